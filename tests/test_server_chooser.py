"""`server_chooser`: which of several servers a client connects to, and `health().instance`, which
names it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
import quire
import quire.testing
from support.waiting import wait_until


@pytest.fixture
def servers() -> Iterator[list[quire.Server]]:
    with ExitStack() as resources:
        yield [resources.enter_context(quire.testing.server(name=name)) for name in ("a", "b", "c")]


def _instance(urls: list[str], **options: object) -> str | None:
    with quire.Client(urls, **options) as client:  # type: ignore[arg-type]
        return client.health().instance


def test_the_first_server_of_the_list_is_chosen_by_default(servers: list[quire.Server]) -> None:
    urls = [server.url for server in servers]
    assert _instance(urls) == "a"
    assert _instance(urls[::-1], server_chooser="first") == "c"


def test_any_server_is_chosen_at_random(servers: list[quire.Server]) -> None:
    urls = [server.url for server in servers]
    # 60 times the same two of three: once in 10 billion runs.
    assert {_instance(urls, server_chooser="random") for _ in range(60)} == {"a", "b", "c"}


def test_the_server_with_the_fewest_connections_is_chosen(servers: list[quire.Server]) -> None:
    urls = [server.url for server in servers]
    with ExitStack() as resources:
        for url, count in zip(urls, (3, 1, 2), strict=True):
            for _ in range(count):
                resources.enter_context(quire.Client(url))
        chosen = resources.enter_context(quire.Client(urls, server_chooser="least_loaded"))
        assert chosen.health().instance == "b"
        # The connections that asked have ended.
        wait_until(lambda: [server.stats()["connections"] for server in servers] == [3, 2, 2])
        servers[1].close()
        wait_until(lambda: chosen.health().instance == "c")
        assert chosen.state == "connected"
        assert _instance(["quire://127.0.0.1:1", urls[0]], server_chooser="least_loaded") == "a"


def test_a_client_without_a_connection_has_no_instance() -> None:
    with quire.testing.server(name="a") as server, quire.Client(server.url) as client:
        assert client.health().instance == "a"
        server.close()
        wait_until(lambda: client.state == "reconnecting")
        assert client.health().instance is None
    assert client.health().instance is None
