"""Two servers that send to each other: both have every message, and clients fail over
(docs/replication.md)."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import quire
from support import command_line
from support.ports import reserve
from support.server_process import ServerProcess
from support.waiting import PATIENCE, wait_until


@pytest.fixture
def ports() -> Iterator[dict[str, int]]:
    """The ports where other instances connect, by the names of the instances."""
    with contextlib.ExitStack() as stack:
        found = {}
        for name in "ab":
            reserved, found[name] = reserve()
            stack.enter_context(reserved)
        yield found


def _settings(own: str, other: str, directory: Path, ports: dict[str, int], **link: Any) -> dict[str, Any]:
    destination = {
        "name": other,
        "addresses": [f"127.0.0.1:{ports[other]}"],
        "sync_type": "sync",
        "topic": {"name": "^orders", "message_type": "json"},
        **link,
    }
    return {
        "name": own,
        "data_directory": directory / own,
        "transport": {"address": "127.0.0.1:0"},
        "transaction_log": {"topic": {"name": "^orders", "message_type": "json"}},
        "replication": {"address": f"127.0.0.1:{ports[own]}", "destination": destination},
    }


@pytest.fixture
def pair(tmp_path: Path, ports: dict[str, int]) -> Iterator[tuple[quire.Server, quire.Server]]:
    """Two servers of this process, linked in both directions."""
    pairs = (("a", "b"), ("b", "a"))
    configs = [quire.Config(**_settings(own, other, tmp_path, ports)) for own, other in pairs]
    with quire.Server(configs[0]) as a, quire.Server(configs[1]) as b:
        wait_until(lambda: _state(a) == _state(b) == "live")
        yield a, b


def _state(server: quire.Server) -> str:
    (destination,) = server.replication.stats()["destinations"]
    state: str = destination["state"]
    return state


def _all(url: str) -> list[tuple[str, bytes]]:
    """The bookmarks and the data of all messages of a server."""
    messages = []
    with quire.Client(url) as client:
        replay = client.subscribe("^orders", bookmark=quire.EPOCH)
        # The replay is over after its last message was taken.
        while not replay.completed.wait(0):
            with contextlib.suppress(TimeoutError):
                message = replay.get(0.01)
                messages.append((str(message.bookmark), bytes(message.data)))
    return messages


def test_both_instances_have_a_message_under_the_same_bookmark(
    pair: tuple[quire.Server, quire.Server],
) -> None:
    a, b = pair
    with quire.Client(a.url, name="p") as publisher:
        for number in range(100):
            publisher.publish("orders", {"n": number})
        publisher.flush(PATIENCE)
    assert len(_all(a.url)) == 100
    assert _all(a.url) == _all(b.url)


def test_the_command_line_shows_links_and_downgrades_a_destination(
    pair: tuple[quire.Server, quire.Server],
) -> None:
    a, b = pair
    shown = command_line.quire("replication", "ls", url=a.url)
    assert "live" in shown.stdout, shown.stderr
    shown = command_line.quire("replication", "stats", "b", "--json", url=a.url)
    assert '"configured_sync_type": "sync"' in shown.stdout, shown.stderr
    shown = command_line.quire("replication", "downgrade", "b", url=a.url)
    assert shown.stdout == "b: publishers do not wait for it\n", shown.stderr
    assert a.replication.stats()["destinations"][0]["sync_type"] == "async"
    a.replication.upgrade("b")
    assert a.replication.stats()["destinations"][0]["sync_type"] == "sync"
    with pytest.raises(quire.QuireError, match='no destination has the name "x"'):
        b.replication.downgrade("x")


def test_the_command_line_pauses_and_resumes_a_destination(
    pair: tuple[quire.Server, quire.Server],
) -> None:
    a, b = pair
    shown = command_line.quire("replication", "pause", "b", url=a.url)
    assert shown.stdout == "b: paused, nothing is sent to it\n", shown.stderr
    assert "paused" in command_line.quire("replication", "ls", url=a.url).stdout
    with quire.Client(a.url, name="p") as publisher:
        publisher.publish("orders", {"n": 1})
        with pytest.raises(TimeoutError):
            publisher.flush(0.1)
        assert _all(b.url) == []
        shown = command_line.quire("replication", "resume", "b", url=a.url)
        assert shown.stdout == "b: resumed\n", shown.stderr
        publisher.flush(PATIENCE)
    assert len(_all(b.url)) == 1
    b.replication.pause("a")
    assert _state(b) == "paused"
    b.replication.resume("a")
    wait_until(lambda: _state(b) == "live")
    with pytest.raises(quire.QuireError, match='no destination has the name "x"'):
        b.replication.pause("x")


def test_the_command_line_compares_the_messages_of_two_servers(
    pair: tuple[quire.Server, quire.Server],
) -> None:
    a, b = pair
    servers = ("--url", a.url, "--url", b.url)
    with quire.Client(a.url, name="p") as publisher:
        publisher.publish_many("orders", ({"n": number} for number in range(3000)))
        publisher.flush(PATIENCE)
        shown = command_line.quire("replication", "verify", *servers)
        assert (shown.stdout, shown.returncode) == (f"{a.url} and {b.url}: no message differs\n", 0), (
            shown.stderr
        )
        a.replication.pause("b")
        publisher.publish("orders", {"n": 3000})
        with pytest.raises(TimeoutError):
            publisher.flush(0.1)
        shown = command_line.quire("replication", "verify", "--json", *servers)
        publisher_id, sequence, _ = _all(a.url)[-1][0].split("|")
        assert json.loads(shown.stdout) == {
            "publisher": int(publisher_id),
            "first": int(sequence),
            "last": int(sequence),
            "messages": 1,
            "difference": "missing",
            "instance": "b",
            "server": b.url,
        }
        assert shown.returncode == 1, shown.stderr
        shown = command_line.quire("replication", "verify", "--url", a.url)
        assert (shown.stderr, shown.returncode) == ("quire: --url: two servers or more are required\n", 2)
        a.replication.resume("b")
        publisher.flush(PATIENCE)


def test_a_client_fails_over_and_nothing_is_lost_or_doubled(tmp_path: Path, ports: dict[str, int]) -> None:
    settings = []
    for own, other in (("a", "b"), ("b", "a")):
        every = _settings(own, other, tmp_path, ports)
        settings.append({key: every[key] for key in ("name", "transaction_log", "replication")})
    with (
        ServerProcess(tmp_path / "a", **settings[0]) as a,
        ServerProcess(tmp_path / "b", **settings[1]) as b,
    ):
        urls = [a.url, b.url]
        for url in urls:
            with quire.Client(url) as operator:
                wait_until(lambda: operator._replication()["destinations"][0]["state"] == "live")
        with quire.Client(urls, name="p") as publisher, quire.Client(urls, name="s") as subscriber:
            subscription = subscriber.subscribe("^orders", bookmark=quire.EPOCH)
            for number in range(200):
                publisher.publish("orders", {"n": number})
            publisher.flush(PATIENCE)
            for number in range(200, 300):
                publisher.publish("orders", {"n": number})
            a.kill()
            # By command, because an age could also pass while both instances are there.
            shown = command_line.quire("replication", "downgrade", "a", url=b.url)
            assert shown.stdout == "a: publishers do not wait for it\n", shown.stderr
            for number in range(300, 400):
                publisher.publish("orders", {"n": number})
            publisher.flush(PATIENCE)
            numbers = [subscription.get(PATIENCE).json()["n"] for _ in range(400)]
            assert numbers == list(range(400))
        at_b = _all(b.url)
        assert [json.loads(data)["n"] for _, data in at_b] == list(range(400))
        a.start()
        wait_until(lambda: len(_all(a.url)) == 400)
        assert sorted(_all(a.url)) == sorted(at_b)


def test_an_embedded_engine_has_no_links(tmp_path: Path) -> None:
    ports = {"a": 1, "b": 2}
    config = quire.Config(**_settings("a", "b", tmp_path, ports))
    with pytest.raises(quire.QuireError, match="an embedded engine has no links"):
        quire.Client(f"file:{tmp_path}", config=config)


@pytest.mark.parametrize(
    ("settings", "key", "reason"),
    [
        ({"compression": "gzip"}, "compression", 'expected "none", "lz4" or "zstd"'),
        ({"upgrade_below": "1s"}, "upgrade_below", "it requires downgrade_after"),
        ({"sync_type": "both"}, "sync_type", "both"),
        ({"exclude_validation": ["queue"]}, "exclude_validation", '"queue" is not a check'),
        ({"name": "a"}, "name", "is the name of this instance"),
        ({"pause": True}, "pause", "pause"),
    ],
)
def test_a_setting_that_cannot_be_used_is_refused(
    tmp_path: Path, settings: dict[str, Any], key: str, reason: str
) -> None:
    with pytest.raises(quire.ConfigError, match=reason) as refused:
        quire.Config(**_settings("a", "b", tmp_path, {"a": 1, "b": 2}, **settings)).check()
    assert key in str(refused.value.key)


def test_a_destination_without_an_address_must_be_able_to_connect(tmp_path: Path) -> None:
    settings = _settings("a", "b", tmp_path, {"a": 1, "b": 2}, addresses=[])
    quire.Config(**settings).check()
    del settings["replication"]["address"]
    with pytest.raises(quire.ConfigError, match="the destination cannot connect either") as refused:
        quire.Config(**settings).check()
    assert "addresses" in str(refused.value.key)


def test_a_group_local_queue_is_refused(tmp_path: Path) -> None:
    with pytest.raises(quire.ConfigError, match="group_local_queue is not in this version"):
        quire.Config(group_local_queue={"name": "q"})  # type: ignore[call-arg]
