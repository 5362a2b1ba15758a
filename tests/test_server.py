"""The asyncio server with real clients: publish, replay, restart, and what goes wrong at the start."""

from __future__ import annotations

import asyncio
import errno
import re
import socket
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import quire
from quire.server._server import READ_MAX, _Connection
from support.waiting import PATIENCE


def config(directory: Path, **settings: object) -> quire.Config:
    return quire.Config(data_directory=directory, transport={"address": "127.0.0.1:0", **settings})


def test_what_was_published_is_replayed_after_a_restart(tmp_path: Path) -> None:
    with (
        quire.Server(config(tmp_path)) as server,
        quire.Client(server.url, name="publisher") as client,
    ):
        for number in range(1000):
            client.publish("orders", {"n": number})
        client.flush(timeout=PATIENCE)
        assert client.persisted == 1000
    with quire.Server(config(tmp_path)) as server, quire.Client(server.url, name="publisher") as client:
        subscription = client.subscribe("orders", filter="/n >= 990", bookmark=quire.EPOCH)
        numbers = [subscription.get(timeout=PATIENCE).json()["n"] for _ in range(10)]
        assert numbers == list(range(990, 1000))
        assert client.publish("orders", b"{}") == 1001


def test_ordinary_subscriptions_are_served_at_once(tmp_path: Path) -> None:
    with quire.Server(config(tmp_path)) as server:
        with quire.Client(server.url) as publisher, quire.Client(server.url) as subscriber:
            every = subscriber.subscribe("^ticks", filter="/price > 10")
            publisher.publish("ticks/a", {"price": 9})
            publisher.publish("ticks/b", {"price": 11})
            message = every.get(timeout=PATIENCE)
            assert (message.topic, message.json()) == ("ticks/b", {"price": 11})
        stats = server.stats()
        assert stats["published"] == 2
        assert stats["delivered"] == 1


def test_a_journal_that_another_server_has_is_refused(tmp_path: Path) -> None:
    with quire.Server(config(tmp_path)), pytest.raises(quire.JournalLockedError, match="another process"):
        quire.Server(config(tmp_path)).start()


def test_a_server_whose_address_is_taken_says_so_and_leaves_nothing_behind(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        expected = f"cannot listen on 127.0.0.1:{port}: another program uses the address (stop it, or change "
        with pytest.raises(OSError, match=re.escape(expected)) as refused:
            quire.Server(config(tmp_path, address=f"127.0.0.1:{port}")).start()
        assert refused.value.errno == errno.EADDRINUSE
    assert list(tmp_path.iterdir()) == []


async def test_a_server_runs_on_the_callers_loop_until_it_is_closed(tmp_path: Path) -> None:
    import asyncio

    server = quire.Server(config(tmp_path))
    started = asyncio.Event()
    task = asyncio.create_task(server.serve(started=started.set))
    await asyncio.wait_for(started.wait(), PATIENCE)
    async with quire.AsyncClient(server.url) as client:
        await client.publish("t", b"x")
        await client.flush(timeout=PATIENCE)
        assert server.is_running
    server.close()
    await asyncio.wait_for(task, PATIENCE)
    assert not server.is_running
    with quire.Journal(tmp_path / "journal", read_only=True) as journal:
        assert [message.data for message in journal.read()] == [b"x"]


async def test_a_connection_that_is_lost_after_the_end_is_no_ones_business(tmp_path: Path) -> None:
    import asyncio

    server = quire.Server(config(tmp_path))
    started = asyncio.Event()
    task = asyncio.create_task(server.serve(started=started.set))
    await asyncio.wait_for(started.wait(), PATIENCE)
    server.close()
    await asyncio.wait_for(task, PATIENCE)
    failures: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
    server._disconnected(1)  # as asyncio does for a transport that was aborted
    await asyncio.sleep(0)
    assert not failures
    with pytest.raises(quire.DisconnectedError, match="not running"):
        server.stats()


def test_bytes_that_are_no_protocol_end_the_connection_and_nothing_else(tmp_path: Path) -> None:
    with quire.Server(config(tmp_path)) as server, quire.Client(server.url) as client:
        port = int(server.url.rsplit(":", 1)[1])
        for garbage in (b"GET / HTTP/1.1\r\n\r\n", b"\0" * 64, b"\xff" * 64, b"\1\0\0\0\2"):
            with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as stranger:
                stranger.sendall(garbage)
                answer = b""
                while piece := stranger.recv(4096):
                    answer += piece
                assert answer[4:5] == b"\x45", "an error frame"
        client.publish("t", b"x")
        client.flush(timeout=PATIENCE)


class _Reading(asyncio.Transport):
    """A transport that notes whether it is read from."""

    is_reading_on = True

    def pause_reading(self) -> None:
        self.is_reading_on = False

    def resume_reading(self) -> None:
        self.is_reading_on = True

    def is_closing(self) -> bool:
        return False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass


async def test_a_turn_takes_a_bounded_number_of_bytes_from_one_connection() -> None:
    turns: list[dict[str, Any]] = []
    core = SimpleNamespace(
        turn=lambda events: SimpleNamespace(
            **{
                "sends": [],
                "closes": [],
                "links": [],
                "logons": [],
                "pauses": [],
                "resumes": [],
                "reloads": [],
                "questions": [],
                "logs": [],
                "signals": [],
                "sleep": None,
                "drained": False,
            }
            | (turns.pop(0) if turns else {})
        )
    )
    server = quire.Server()
    server._engine = cast(Any, core)
    server._loop, server._stop, server._drained = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()
    transport, connection = _Reading(), _Connection(server, 0)
    connection.connection_made(transport)
    for _ in range(2):
        for _ in range(READ_MAX // 2**18):
            assert transport.is_reading_on
            connection.data_received(bytes(2**18))
        assert not transport.is_reading_on, "a turn takes READ_MAX bytes"
        server._turn()
        assert transport.is_reading_on, "the next turn takes more"
    # A connection that the core has paused is not resumed by the end of a turn.
    connection.data_received(bytes(READ_MAX))
    turns.append({"pauses": [1]})
    server._turn()
    assert not transport.is_reading_on
    turns.append({"resumes": [1]})
    server._turn()
    assert transport.is_reading_on


def test_a_message_above_the_limit_is_refused_by_the_client(tmp_path: Path) -> None:
    with quire.Server(config(tmp_path, max_message_size="1KB")) as server, quire.Client(server.url) as client:
        with pytest.raises(quire.MessageTooLargeError):
            client.publish("t", b"x" * 1025)
        client.publish("t", b"x" * 1024)
        client.flush(timeout=PATIENCE)


@pytest.mark.parametrize(("address", "is_told"), [("0.0.0.0:0", True), ("127.0.0.1:0", False)])
def test_a_server_that_other_machines_reach_says_that_it_has_no_authentication(
    address: str, is_told: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with quire.Server(config(tmp_path, address=address, insecure=True)):
        told = f"listening on {address} without authentication: every program that reaches it"
        assert (told in caplog.text) is is_told


def test_a_server_whose_turn_panicked_stops_with_a_message_and_loses_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = quire.Server(config(tmp_path)).start()
    port = int(server.url.rsplit(":", 1)[1])
    with quire.Client(server.url, name="publisher", publish_store=tmp_path / "store") as client:
        for number in range(100):
            client.publish("orders", {"n": number})
        client.flush(timeout=PATIENCE)
        assert server._engine is not None
        server._engine.panic_in_next_turn()
        client.publish("orders", {"n": 100})
        assert server._thread is not None
        server._thread.join(PATIENCE)
        assert not server._thread.is_alive()
        assert not server.is_running
        with pytest.raises(
            quire.InternalError, match=r"internal error .a test asked for a panic.*start it again"
        ):
            server.close()
        assert "a test asked for a panic" in caplog.text
        with quire.Server(config(tmp_path, address=f"127.0.0.1:{port}")) as server:
            client.flush(timeout=PATIENCE)
            assert client.persisted == 101
            assert [message.json()["n"] for message in server.journal.read(topic="orders")] == list(
                range(101)
            )


def test_a_torn_tail_that_a_start_cuts_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    server = quire.Server(config(tmp_path)).start()
    with quire.Client(server.url, name="publisher") as client:
        client.publish("orders", {"n": 1})
        client.flush(timeout=PATIENCE)
        assert server._engine is not None
        server._engine.panic_in_next_turn()
        client.publish("orders", {"n": 2})
        assert server._thread is not None
        server._thread.join(PATIENCE)
    segment = min((tmp_path / "journal").glob("*.journal"))
    content = segment.read_bytes().rstrip(b"\0")
    with segment.open("r+b") as file:
        file.seek(-(-len(content) // 8) * 8)  # batches begin at multiples of 8
        file.write(b"half a batch")
    caplog.set_level("INFO")
    with quire.Server(config(tmp_path)) as server:
        deadline = time.monotonic() + PATIENCE
        while "bytes of an unfinished write" not in caplog.text:
            assert time.monotonic() < deadline, caplog.text
            time.sleep(0)
        assert [message.json()["n"] for message in server.journal.read(topic="orders")] == [1]


def test_each_transport_listens_on_its_own_address_with_its_own_limits(tmp_path: Path) -> None:
    config = quire.Config(
        data_directory=tmp_path,
        transport=[
            {"name": "services", "address": "127.0.0.1:0"},
            {"name": "guests", "address": "127.0.0.1:0", "max_message_size": "1KB"},
        ],
    )
    with quire.Server(config) as server:
        assert list(server.urls) == ["services", "guests"]
        assert server.url == server.urls["services"] != server.urls["guests"]
        with quire.Client(server.urls["services"], name="s") as service:
            with quire.Client(server.urls["guests"], name="g") as guest:
                guest.publish("orders", b"{}")
                guest.flush(timeout=PATIENCE)
            with (
                quire.Client(server.urls["guests"], name="g", reconnect=None) as guest,
                pytest.raises(quire.MessageTooLargeError),
            ):
                guest.publish("orders", b"x" * 2000)
            service.publish("orders", b"x" * 2000)
            service.flush(timeout=PATIENCE)
        assert server.stats()["appended"] == 2


def test_two_transports_with_one_name_or_address_are_refused() -> None:
    same = [{"name": "a", "address": "127.0.0.1:9007"}, {"name": "a", "address": "127.0.0.1:9008"}]
    with pytest.raises(quire.ConfigError, match='two transports have the name "a"'):
        quire.Config(transport=same)
    same = [{"name": "a", "address": "127.0.0.1:9007"}, {"name": "b", "address": "127.0.0.1:9007"}]
    with pytest.raises(quire.ConfigError, match=r'two transports have the address "127\.0\.0\.1:9007"'):
        quire.Config(transport=same)
