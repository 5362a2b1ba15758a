"""A client whose server is away: no call waits for ever, and the client says what happened."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import quire
from quire.testing import ServerProcess, server
from support.scripted_server import ScriptedServer
from support.waiting import PATIENCE, wait_until

QUEUE = {"name": "JOBS", "message_type": "json", "underlying_topic": "tasks", "lease_period": "1h"}
FAST = quire.Reconnect(initial=0.01, maximum=0.05, jitter=0.0)


@pytest.fixture
def process(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path, queue=[QUEUE]) as process:
        yield process


@pytest.fixture
def nobody() -> Iterator[str]:
    """The URL of a port that refuses connections."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"quire://127.0.0.1:{bound.getsockname()[1]}"


#: Calls that wait for the server, with what their error begins with.
CALLS: dict[str, tuple[Callable[[Any, Any, Any], Any], str]] = {
    "subscribe": (lambda client, _, options: client.subscribe("t", **options), "subscribing to 't'"),
    "pause": (lambda client, _, options: client.pause(**options), "pausing"),
    "resume": (lambda client, _, options: client.resume(**options), "resuming"),
    "replace": (lambda _, replay, options: replay.replace(filter="/a = 1", **options), "replacing 'replay'"),
    "ack": (lambda client, _, options: client.ack("JOBS", "1|1|", **options), "settling messages of 'JOBS'"),
    "ack by filter": (
        lambda client, _, options: client.ack("JOBS", filter="", **options),
        "settling messages of 'JOBS'",
    ),
    "sow": (lambda client, _, options: client.sow("JOBS", **options), "querying 'JOBS'"),
    "create_queue": (
        lambda client, _, options: client.create_queue("NEW", **options),
        "creating queue 'NEW'",
    ),
    "alter_queue": (
        lambda client, _, options: client.alter_queue("JOBS", lease_period="1m", **options),
        "altering queue 'JOBS'",
    ),
    "drop_queue": (lambda client, _, options: client.drop_queue("JOBS", **options), "dropping queue 'JOBS'"),
    "define_view": (
        lambda client, _, options: client.define_view(
            "SUMS", underlying_topic="orders", projection="COUNT(1) AS /n", **options
        ),
        "defining view 'SUMS'",
    ),
    "queue_stats": (
        lambda client, _, options: client.queue_stats(**options),
        "asking for the figures of queues",
    ),
}


@pytest.mark.parametrize("options", [{}, {"timeout": "10ms"}], ids=["command_timeout", "timeout"])
@pytest.mark.parametrize("call", CALLS)
def test_a_call_ends_with_its_time(process: ServerProcess, call: str, options: dict[str, Any]) -> None:
    run, doing = CALLS[call]
    client = quire.Client(process.url, command_timeout=PATIENCE if options else "10ms", reconnect=FAST)
    # Entered before the time is short.
    replay = client.subscribe("t", bookmark=quire.EPOCH, sub_id="replay", timeout=PATIENCE)
    process.kill()
    wait_until(lambda: client.state != "connected")
    with pytest.raises(
        TimeoutError, match=f"^{doing}: no answer within 0.01 s, because there is no connection: quire://"
    ):
        run(client, replay, options)
    client.close()


@pytest.mark.parametrize("call", CALLS)
async def test_an_asyncio_call_ends_with_its_time(process: ServerProcess, call: str) -> None:
    run, doing = CALLS[call]
    client = quire.AsyncClient(process.url, reconnect=FAST)
    replay = await client.subscribe("t", bookmark=quire.EPOCH, sub_id="replay")
    lost = _lost(client)
    process.kill()
    await asyncio.wait_for(lost.wait(), PATIENCE)
    answer = run(client, replay, {"timeout": "10ms"})
    with pytest.raises(TimeoutError, match=f"^{doing}: no answer within 0.01 s, because there is no connect"):
        await (anext(answer) if call == "sow" else answer)
    await client.close()


def _lost(client: quire.AsyncClient) -> asyncio.Event:
    """Set when the client has lost its connection."""
    lost = asyncio.Event()
    client.add_state_listener(lambda state: lost.set() if state == "reconnecting" else None)
    return lost


def test_leaving_and_closing_do_not_wait_for_a_connection(process: ServerProcess) -> None:
    # A call that waited would take longer than the test may.
    client = quire.Client(process.url, command_timeout=None, reconnect=FAST)

    def body() -> None:
        with client.subscribe("t"):
            process.kill()
            wait_until(lambda: client.state != "connected")
            client.publish("t", b"1")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        body()
    client.unsubscribe()
    client.close(timeout=10 * PATIENCE)
    assert client.health().unpersisted == 1


def test_leaving_does_not_wait_for_the_next_attempt_to_connect(process: ServerProcess) -> None:
    never = quire.Reconnect(initial=100 * PATIENCE, maximum=100 * PATIENCE, jitter=0.0)
    client = quire.Client(process.url, command_timeout=30, reconnect=never)
    left, subscription = client.subscribe("a"), client.subscribe("b")
    process.kill()
    wait_until(lambda: client.state != "connected")
    left.unsubscribe()
    with subscription:
        pass
    client.close()


async def test_an_asyncio_client_does_not_wait_for_a_connection_to_leave(process: ServerProcess) -> None:
    client = quire.AsyncClient(process.url, command_timeout=None, reconnect=FAST)
    async with await client.subscribe("t"):
        lost = _lost(client)
        process.kill()
        await asyncio.wait_for(lost.wait(), PATIENCE)
        await client.publish("t", b"1")
    await client.unsubscribe()
    await client.close(timeout=10 * PATIENCE)
    assert client.health().unpersisted == 1


def test_what_ran_out_of_time_is_not_done_after_the_reconnect(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, queue=[QUEUE]) as process:
        client = quire.Client(process.url, reconnect=FAST)
        client.publish("tasks", {"n": 1})
        client.flush(PATIENCE)
        process.kill()
        wait_until(lambda: client.state != "connected")
        with pytest.raises(TimeoutError):
            client.ack("JOBS", filter="", timeout=0)
        with pytest.raises(TimeoutError):
            client.subscribe("t", timeout=0)
        process.start()
        assert [message.json() for message in client.sow("JOBS", timeout=PATIENCE)] == [{"n": 1}]
        assert client.health().subscriptions == ()
        client.close()


def test_a_server_that_refuses_the_first_connection_is_reported_at_once(nobody: str) -> None:
    for urls in (nobody, [nobody, nobody]):
        with pytest.raises(quire.DisconnectedError, match=f"^no connection: {nobody}: Connection refused"):
            quire.Client(urls, connect_timeout=10 * PATIENCE)


async def test_a_server_that_refuses_the_first_asyncio_connection_is_reported_at_once(nobody: str) -> None:
    with pytest.raises(quire.DisconnectedError, match=f"^no connection: {nobody}: Connection refused"):
        await quire.AsyncClient(nobody, connect_timeout=10 * PATIENCE).connect()


def test_a_client_connects_to_the_second_server_when_the_first_refuses(nobody: str, tmp_path: Path) -> None:
    with server(tmp_path) as running, quire.Client([nobody, running.url]) as client:
        assert client.state == "connected"


def test_a_client_that_waits_keeps_trying(nobody: str) -> None:
    with pytest.raises(quire.DisconnectedError, match=r"^no connection within 1 s: .*Connection refused"):
        quire.Client(nobody, wait=True, connect_timeout=1, reconnect=FAST)


def test_a_client_starts_without_a_server_and_publishes_when_it_comes(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "server") as process:
        process.kill()
        options: dict[str, Any] = {
            "name": "sensor",
            "publish_store": tmp_path / "store",
            "connect": "background",
            "reconnect": FAST,
        }
        with quire.Client(process.url, **options) as client:
            assert client.publish("readings", b"1") == 1
            assert client.state == "connecting"
            with pytest.raises(TimeoutError):
                client.subscribe("readings", timeout=0)
        with quire.Client(process.url, **options) as client:
            assert client.publish("readings", b"2") == 2
            process.start()
            client.flush(PATIENCE)
            replay = client.subscribe("readings", bookmark=quire.EPOCH)
            assert [replay.get(PATIENCE).data for _ in range(2)] == [b"1", b"2"]


async def test_an_asyncio_client_starts_without_a_server(nobody: str, tmp_path: Path) -> None:
    store = tmp_path / "store"
    async with quire.AsyncClient(nobody, name="sensor", publish_store=store, connect="background") as client:
        assert await client.publish("readings", b"1") == 1
        assert client.state == "connecting"
    with quire.Client(nobody, name="sensor", publish_store=store, connect="background") as client:
        assert client.health().unpersisted == 1


def test_a_client_in_the_background_requires_a_file() -> None:
    with pytest.raises(quire.ConfigError, match="publish_store= with a path") as refused:
        quire.Client("memory:", connect="background")
    assert refused.value.key == "connect"
    with pytest.raises(quire.ConfigError, match="expected 'wait' or 'background', got 'later'"):
        quire.Client("memory:", connect="later")  # type: ignore[arg-type]


def test_a_lost_connection_and_its_return_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    with (
        ScriptedServer() as scripted,
        caplog.at_level(logging.INFO, "quire.client"),
        quire.Client(scripted.url, name="loader", reconnect=FAST) as client,
        client.subscribe("orders"),
    ):
        scripted.stop()
        wait_until(lambda: "lost the connection" in caplog.text)
        client.publish("orders", b"1")
        client.publish("orders", b"2")
        scripted.start()
        client.flush(PATIENCE)
        wait_until(lambda: "sent again" in caplog.text)
    lost, returned = (record for record in caplog.records if 'client "loader"' in record.getMessage())
    assert (lost.levelname, returned.levelname) == ("WARNING", "INFO")
    assert lost.getMessage() == (
        f'client "loader": lost the connection to {scripted.url}: the server closed the connection;'
        " publishes that are not known to be persisted: 0"
    )
    assert returned.getMessage().startswith(f'client "loader": connected to {scripted.url} again after ')
    assert returned.getMessage().endswith("; sent again: 2 publishes, 1 subscriptions")


def test_a_server_that_stops_gives_the_reason(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "quire.client"), server(tmp_path) as running:
        client = quire.Client(running.url, reconnect=FAST)
        running.close()
        wait_until(lambda: "lost the connection" in caplog.text)
        client.close()
    assert "the server is stopping" in caplog.text


@pytest.mark.parametrize("call", ["close", "drain"])
def test_a_client_that_loses_its_connection_while_it_closes_does_not_wait(
    call: str, caplog: pytest.LogCaptureFixture
) -> None:
    with ScriptedServer() as server:
        server.persists = False
        client = quire.Client(server.url, reconnect=FAST)
        client.publish("t", b"1")
        closing = threading.Thread(target=getattr(client, call), args=(100 * PATIENCE,))
        closing.start()
        wait_until(lambda: len(server.received) == 1)
        server.stop()
        closing.join(PATIENCE)
        assert not closing.is_alive()
        server.start()
    assert "closed with 1 publish not persisted" in caplog.text


@pytest.mark.parametrize("call", ["close", "drain"])
async def test_an_asyncio_client_that_loses_its_connection_while_it_closes_does_not_wait(
    call: str, caplog: pytest.LogCaptureFixture
) -> None:
    with ScriptedServer() as server:
        server.persists = False
        client = quire.AsyncClient(server.url, reconnect=FAST)
        await client.publish("t", b"1")
        closing = asyncio.create_task(getattr(client, call)(100 * PATIENCE))
        await asyncio.to_thread(wait_until, lambda: len(server.received) == 1)
        await asyncio.to_thread(server.stop)
        await asyncio.wait_for(closing, PATIENCE)
        server.start()
    assert "closed with 1 publish not persisted" in caplog.text


def test_the_code_of_an_error_says_why_there_is_no_connection(nobody: str) -> None:
    codes = {nobody: "connection_refused", "quire://no-such-host.invalid:9007": "no_such_host"}
    for url, code in codes.items():
        with pytest.raises(quire.DisconnectedError) as refused:
            quire.Client(url)
        assert refused.value.code == code


def test_calls_on_what_is_closed_have_the_code_closed(url: str) -> None:
    client = quire.Client(url)
    subscription = client.subscribe("t")
    subscription.unsubscribe()
    calls: list[Callable[[], object]] = [subscription.get]
    client.close()
    calls += [
        lambda: client.publish("t", b"1"),
        lambda: client.publish_many("t", [b"1"]),
        lambda: client.publish_receipt("t", b"1"),
        lambda: client.subscribe("t"),
        client.flush,
        client.queue_stats,
    ]
    for call in calls:
        with pytest.raises(quire.DisconnectedError) as caught:
            call()
        assert caught.value.code == "closed", call


async def test_calls_on_a_closed_asyncio_client_have_the_code_closed(url: str) -> None:
    unused, used = quire.AsyncClient(url), quire.AsyncClient(url)
    await used.connect()
    for client in (unused, used):
        await client.close()
        with pytest.raises(quire.DisconnectedError) as caught:
            await client.publish("t", b"1")
        assert caught.value.code == "closed"


def test_a_call_that_needs_a_connection_has_the_code_disconnected(process: ServerProcess) -> None:
    client = quire.Client(process.url, reconnect=FAST)
    process.kill()
    wait_until(lambda: client.state != "connected")
    with pytest.raises(quire.DisconnectedError) as caught:
        client.publish("t", b"1", sequence=None)
    assert caught.value.code == "disconnected"
    client.close()


def _with_an_old_name(process: ServerProcess, count: int) -> None:
    """Another store of the name `sensor` published as many messages. The server is away now."""
    with quire.Client(process.url, name="sensor") as client:
        for number in range(count):
            client.publish("readings", number)
        client.flush(PATIENCE)
    process.kill()


def _readings(url: str) -> list[int]:
    with quire.Client(url) as client:
        everything = client.subscribe("readings", bookmark=f"[{quire.EPOCH}:{quire.NOW}]")
        return [message.json() for message in everything]


def _begin(store: Path) -> dict[str, Any]:
    return {"name": "sensor", "publish_store": store, "connect": "background", "reconnect": FAST}


@pytest.mark.parametrize(("persisted", "dropped"), [(10, 5), (2, 2)])
def test_a_flush_raises_that_a_new_store_for_an_old_name_lost_publishes(
    tmp_path: Path, persisted: int, dropped: int
) -> None:
    with ServerProcess(tmp_path / "data") as process:
        _with_an_old_name(process, persisted)
        with quire.Client(process.url, **_begin(tmp_path / "store")) as client:
            for number in range(100, 105):
                client.publish("readings", number)
            receipt = client.publish_receipt("readings", 105)
            process.start()
            with pytest.raises(
                quire.NameInUseError, match=f"{dropped} publishes of this client were drop"
            ) as raised:
                client.flush(PATIENCE)
            assert "publish_store=" in str(raised.value)
            assert raised.value.code == "name_in_use"
            if persisted == 10:
                with pytest.raises(quire.NameInUseError):
                    receipt.wait(PATIENCE)
            else:
                receipt.wait(PATIENCE)
            # Raised once. What is published from now on is recorded.
            client.flush(PATIENCE)
            client.publish("readings", 106)
            client.flush(PATIENCE)
        kept = [] if persisted == 10 else [102, 103, 104, 105]
        assert _readings(process.url) == [*range(persisted), *kept, 106]


async def test_an_asyncio_flush_raises_that_publishes_were_dropped(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as process:
        await asyncio.to_thread(_with_an_old_name, process, 3)
        async with quire.AsyncClient(process.url, **_begin(tmp_path / "store")) as client:
            await client.publish("readings", 100)
            await asyncio.to_thread(process.start)
            with pytest.raises(quire.NameInUseError, match="1 publish of this client was dropped"):
                await client.flush(PATIENCE)
            await client.flush(PATIENCE)
            assert (await client.drain(PATIENCE)).is_clean


def test_a_receipt_that_is_not_asked_lets_the_flush_raise_that_its_publish_was_dropped(
    tmp_path: Path,
) -> None:
    with ServerProcess(tmp_path / "data") as process:
        _with_an_old_name(process, 3)
        with quire.Client(process.url, **_begin(tmp_path / "store")) as client:
            client.publish_receipt("readings", 100)
            process.start()
            with pytest.raises(quire.NameInUseError, match="duplicate"):
                client.flush(PATIENCE)


def test_drain_reports_dropped_publishes_that_no_flush_raised(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with ServerProcess(tmp_path / "data") as process:
        _with_an_old_name(process, 3)
        client = quire.Client(process.url, **_begin(tmp_path / "store"))
        client.publish("readings", 100)
        process.start()
        wait_until(lambda: client.state == "connected")
        report = client.drain(PATIENCE)
        assert (report.is_clean, report.unpersisted) == (False, 0)
        assert [error.code for error in report.failures] == ["name_in_use"]
        assert "1 publish of this client was dropped as a duplicate" in caplog.text


def test_publishes_that_the_program_numbers_may_be_repeated_by_a_new_store(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as process:
        _with_an_old_name(process, 3)
        with quire.Client(process.url, **_begin(tmp_path / "store")) as client:
            for sequence in (1, 2, 3, 4):
                client.publish("readings", 100 + sequence, sequence=sequence)
            process.start()
            client.flush(PATIENCE)
        assert _readings(process.url) == [0, 1, 2, 104]
