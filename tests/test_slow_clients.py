"""Slow clients of a server: their messages wait on disk (docs/operations.md, "Slow clients")."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import quire
import quire.testing
from support.server_process import ServerProcess
from support.stranger import ACK, ERROR, MESSAGE, Stranger, subscribe
from support.waiting import PATIENCE, wait_until

#: The smallest limits with which a client is offlined early.
SMALL = {"max_client_backlog": "1MB"}
#: Messages that do not fit into the buffers of the system and of the server.
COUNT, SIZE = 400, 100_000


def slow_client(url: str, topic: str) -> Stranger:
    """A subscriber that does not read."""
    address = ("127.0.0.1", int(url.rpartition(":")[2]))
    slow = Stranger(address, timeout=PATIENCE, logged_on=True, receive_size=4096)
    slow.send(subscribe(topic.encode()))
    assert slow.body_of(ACK) is not None
    return slow


def data_of(number: int) -> bytes:
    return f"{number:09}".encode() + b"x" * (SIZE - 9)


def publish(client: quire.Client, topic: str, numbers: range) -> None:
    for number in numbers:
        client.publish(topic, data_of(number))
    client.flush(PATIENCE)


def numbers_of(slow: Stranger, count: int) -> Iterator[int]:
    """The numbers of the next messages that the subscriber reads."""
    for _ in range(count):
        body = slow.body_of(MESSAGE)
        assert body is not None, "the connection has ended"
        yield int(body[-SIZE : 9 - SIZE])


def clients_of(client: quire.Client) -> list[dict[str, Any]]:
    return [each for each in client._clients() if each["client_name"].startswith("stranger")]


def check_cut_off(
    client: quire.Client, slow: Stranger, caplog: pytest.LogCaptureFixture, reason: str
) -> None:
    """The server disconnects the subscriber for this reason. The subscriber begins to read after
    that: before, it may read as fast as the server sends, and stay within each limit."""
    wait_until(lambda: not clients_of(client))
    [line] = [each for each in caplog.records if getattr(each, "line_id", "") == "10-0006"]
    assert reason in line.getMessage()
    # The server gives it 2 s to read the error. A busy machine may take longer.
    body = slow.body_of(ERROR)
    assert body is None or reason.encode() in body


@pytest.mark.parametrize("is_recorded", [True, False], ids=["recorded", "unrecorded"])
def test_a_client_that_stops_reading_gets_everything_in_order(tmp_path: Path, is_recorded: bool) -> None:
    topics = {"topic": [{"name": "orders", "message_type": "binary", "recorded": is_recorded}]}
    with (
        quire.testing.server(tmp_path, transport=SMALL, transaction_log=topics) as server,
        quire.Client(server.url) as client,
        slow_client(server.url, "orders") as slow,
    ):
        offline = tmp_path / "offline"
        publish(client, "orders", range(COUNT))
        wait_until(lambda: any(each["offlined_bytes"] > 20_000_000 for each in clients_of(client)))
        wait_until(lambda: any(each["backlog_bytes"] < 10_000_000 for each in clients_of(client)))
        assert offline.stat().st_mode & 0o777 == 0o700
        assert {file.stat().st_mode & 0o777 for file in offline.iterdir()} == {0o600}
        # It reads while further messages arrive.
        read = numbers_of(slow, 2 * COUNT)
        assert [next(read) for _ in range(10)] == list(range(10))
        publish(client, "orders", range(COUNT, 2 * COUNT))
        assert list(read) == list(range(10, 2 * COUNT))
        wait_until(lambda: not any(each["offlined"] for each in clients_of(client)))
        wait_until(lambda: not list(offline.iterdir()))


def test_a_client_beyond_the_limit_of_the_disk_is_cut_off(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    limits = {"message_disk_limit": "16MB"}
    with (
        quire.testing.server(tmp_path, transport=SMALL, limits=limits) as server,
        quire.Client(server.url) as client,
        slow_client(server.url, "orders") as slow,
    ):
        publish(client, "orders", range(COUNT))
        check_cut_off(client, slow, caplog, "its share of message_disk_limit")
        wait_until(lambda: not list((tmp_path / "offline").iterdir()))


def test_no_client_is_offlined_without_a_disk(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with (
        quire.testing.server(tmp_path, transport=SMALL, limits={"message_disk_limit": 0}) as server,
        quire.Client(server.url) as client,
        slow_client(server.url, "orders") as slow,
    ):
        publish(client, "orders", range(COUNT))
        check_cut_off(client, slow, caplog, "more than max_client_backlog")
        assert not (tmp_path / "offline").exists()


def test_messages_that_are_too_old_end_their_client(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    limits = {"client_message_age_limit": "200ms"}
    with (
        quire.testing.server(tmp_path, limits=limits) as server,
        quire.Client(server.url) as client,
        slow_client(server.url, "orders") as slow,
    ):
        publish(client, "orders", range(COUNT))
        check_cut_off(client, slow, caplog, "client_message_age_limit")


def test_a_start_removes_what_a_killed_server_has_left(tmp_path: Path) -> None:
    offline = tmp_path / "offline"
    with ServerProcess(tmp_path, transport=SMALL) as server:
        with quire.Client(server.url) as client, slow_client(server.url, "orders"):
            publish(client, "orders", range(COUNT))
            wait_until(lambda: any(each["offlined"] for each in clients_of(client)))
            server.kill()
        assert list(offline.iterdir())
        server.start()
        assert not list(offline.iterdir())


def test_the_limits_have_their_older_name_and_ranges() -> None:
    config = quire.Config(limits={"max_waiting": "100MB"})
    assert config.limits.message_memory_limit == 100 << 20
    assert config.limits.disk_limit == 1 << 30
    assert quire.Config(limits={"message_memory_limit": "3GB"}).limits.disk_limit == 3 << 30
    for limits, key in (
        ({"max_waiting": "1MB", "message_memory_limit": "1MB"}, "max_waiting"),
        ({"client_max_capacity": 0}, "client_max_capacity"),
        ({"client_max_capacity": 1.5}, "client_max_capacity"),
        ({"client_message_age_limit": "0s"}, "client_message_age_limit"),
        ({"message_disk_path": "~/offline"}, "message_disk_path"),
    ):
        with pytest.raises(quire.ConfigError, match=rf"limits\.{key}"):
            quire.Config(limits=limits)
