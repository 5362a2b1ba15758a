"""The asyncio client: the same behavior, with `await`, and on the same kinds of server."""

from __future__ import annotations

import asyncio
import inspect
import logging
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import quire
from support.scripted_server import ScriptedServer
from support.waiting import PATIENCE, wait_until
from support.ways_in import everywhere, url_of

FAST = quire.Reconnect(initial=0.01, maximum=0.05, jitter=0.0)


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer() as server:
        yield server


@pytest.fixture
async def client(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[quire.AsyncClient]:
    with url_of(request, tmp_path) as url:
        async with quire.AsyncClient(url, name="client", reconnect=FAST) as client:
            yield client


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    everywhere(metafunc)


async def take(subscription: quire.AsyncSubscription, count: int) -> list[bytes]:
    return [(await subscription.get(PATIENCE)).data for _ in range(count)]


def test_both_clients_have_the_same_calls_and_options() -> None:
    for blocking, asynchronous in [
        (quire.Client, quire.AsyncClient),
        (quire.Subscription, quire.AsyncSubscription),
    ]:
        for name, method in inspect.getmembers(blocking, inspect.isfunction):
            if name.startswith("_") and (name != "__init__" or blocking is quire.Subscription):
                continue
            other = getattr(asynchronous, name)
            assert list(inspect.signature(method).parameters) == list(inspect.signature(other).parameters), (
                name
            )


async def test_publish_flush_and_replay(server: ScriptedServer, client: quire.AsyncClient) -> None:
    assert [await client.publish("orders", {"n": n}) for n in range(3)] == [1, 2, 3]
    assert await client.publish("orders", b"", sequence=None) is None
    await client.flush(PATIENCE)
    assert client.persisted == 3
    subscription = await client.subscribe("orders", bookmark=quire.EPOCH, filter='"n"', sub_id="mine")
    assert [(await subscription.get(PATIENCE)).json() for _ in range(3)] == [{"n": n} for n in range(3)]
    assert await subscription.completed.wait(PATIENCE)
    assert subscription.most_recent == f"{server.log[0].publisher}|2|"
    assert client.health().subscriptions[0].sub_id == "mine"
    await subscription.unsubscribe()
    again = await client.subscribe("orders", bookmark=quire.MOST_RECENT, sub_id="mine")
    assert await take(again, 1) == [b'{"n":2}']


async def test_a_timeout_does_not_end_an_iteration(url: str) -> None:
    async with quire.AsyncClient(url) as client:
        subscription = await client.subscribe("t")
        messages = aiter(subscription)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(messages), 0.001)
        await client.publish("t", b"1")
        assert (await anext(messages)).data == b"1"
        lists = subscription.batches()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(lists), 0.001)
        await client.publish("t", b"2")
        assert [message.data for message in await anext(lists)] == [b"2"]


async def test_a_wait_ends_at_its_timeout_and_leaves_the_loop_free(client: quire.AsyncClient) -> None:
    subscription = await client.subscribe("orders")
    waiting = asyncio.ensure_future(subscription.get(PATIENCE))
    with pytest.raises(TimeoutError):
        await subscription.get("10ms")
    await client.publish("orders", b"1")
    assert (await waiting).data == b"1"


async def test_an_iteration_ends_when_the_client_is_closed(client: quire.AsyncClient) -> None:
    subscription = await client.subscribe("orders", bookmark=quire.EPOCH)
    seen: list[bytes] = []

    async def iterate() -> None:
        async for message in subscription:
            seen.append(message.data)
            if len(seen) == 3:
                await client.close()

    for n in range(3):
        await client.publish("orders", b"%d" % n)
    await asyncio.wait_for(iterate(), PATIENCE)
    assert seen == [b"0", b"1", b"2"]
    with pytest.raises(quire.DisconnectedError):
        await client.publish("orders", b"")
    await client.close()


async def test_batches_are_bounded_and_in_order(client: quire.AsyncClient) -> None:
    for n in range(100):
        await client.publish("orders", b"%d" % n)
    subscription = await client.subscribe("orders", bookmark=quire.EPOCH)
    data: list[bytes] = []
    async for batch in subscription.batches(30, timeout=PATIENCE):
        assert 1 <= len(batch) <= 30
        data += [message.data for message in batch]
        if len(data) == 100:
            break
    assert data == [b"%d" % n for n in range(100)]
    async for batch in subscription.batches(timeout=0):
        assert batch == []
        break


async def test_pausing_replacing_and_refusals(client: quire.AsyncClient) -> None:
    subscription = await client.subscribe("orders", bookmark=quire.EPOCH, paused=True, filter="/a > 0")
    await client.publish("orders", b'{"a":1}')
    await client.flush(PATIENCE)
    with pytest.raises(TimeoutError):
        await subscription.get(0)
    await subscription.resume()
    assert await take(subscription, 1) == [b'{"a":1}']
    with pytest.raises(quire.BadFilterError):
        await subscription.replace(filter="/qty >")
    await subscription.replace(filter="/b > 0")
    await client.publish("orders", b'{"b":1}')
    assert await take(subscription, 1) == [b'{"b":1}']
    with pytest.raises(quire.BadBookmarkError):
        await client.subscribe("orders", bookmark="yesterday")


async def test_a_killed_server_that_comes_back_has_everything_once(
    server: ScriptedServer, client: quire.AsyncClient
) -> None:
    subscription = await client.subscribe("orders", bookmark=quire.EPOCH)
    for n in range(50):
        await client.publish("orders", b"%d" % n)
    assert await take(subscription, 50) == [b"%d" % n for n in range(50)]
    server.stop()
    for n in range(50, 100):
        await client.publish("orders", b"%d" % n)
    server.start()
    await client.flush(PATIENCE)
    assert await take(subscription, 50) == [b"%d" % n for n in range(50, 100)]
    assert [record.sequence for record in server.log] == list(range(1, 101))


async def test_a_full_store_makes_publish_wait_and_loses_nothing(server: ScriptedServer) -> None:
    async with quire.AsyncClient(server.url, publish_store=quire.PublishStore(size_max="4KB")) as client:
        for n in range(100):
            await client.publish("orders", b"%03d" % n + b"x" * 500)
    assert [record.data[:3] for record in server.log] == [b"%03d" % n for n in range(100)]


async def _wait_often(client: quire.AsyncClient, count: int = 10) -> None:
    for _ in range(count):
        await client.publish("orders", b"1")
        await client.flush(PATIENCE)


def _client_sleep_count() -> int:
    """How often the threads of clients slept."""
    threads = [
        thread
        for thread in Path("/proc/self/task").iterdir()
        if (thread / "comm").read_text() == "quire-client\n"
    ]
    lines = [line for thread in threads for line in (thread / "status").read_text().splitlines()]
    return sum(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches"))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="it reads /proc")
async def test_a_loop_that_waits_often_reads_the_socket_in_place_of_the_thread(
    server: ScriptedServer,
) -> None:
    async with quire.AsyncClient(server.url, reconnect=FAST) as client:
        await _wait_often(client)
        before = _client_sleep_count()
        await _wait_often(client, 400)
        assert _client_sleep_count() - before < 200


async def test_a_loop_that_is_busy_loses_the_connection_to_the_thread(server: ScriptedServer) -> None:
    async with quire.AsyncClient(server.url, reconnect=FAST) as client:
        await _wait_often(client)
        await client.publish("orders", b"2")
        # The loop runs nothing meanwhile, so the thread of the client has to read the
        # acknowledgement.
        wait_until(lambda: client.health().unpersisted == 0)
        subscription = await client.subscribe("orders", bookmark=quire.EPOCH)
        assert await take(subscription, 11) == [b"1"] * 10 + [b"2"]


async def test_a_lent_connection_that_is_lost_is_made_again(server: ScriptedServer) -> None:
    async with quire.AsyncClient(server.url, reconnect=FAST) as client:
        for _ in range(3):
            await _wait_often(client)
            server.stop()
            server.start()
        await _wait_often(client)
    assert len(server.log) == 40


async def test_handlers_run_in_the_order_of_arrival_one_at_a_time(
    client: quire.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[bytes] = []
    done = asyncio.Event()

    async def slow(message: quire.Message) -> None:
        before = len(seen)
        await asyncio.sleep(0)
        assert len(seen) == before
        quick(message)
        if message.data == b"3":
            raise ValueError("on purpose")

    def quick(message: quire.Message) -> None:
        seen.append(message.data)
        if message.data == b"9":
            done.set()

    await client.subscribe("even", on_message=slow)
    odd = await client.subscribe("odd", on_message=slow, bookmark=quire.EPOCH)
    with caplog.at_level(logging.CRITICAL, "quire.client"):
        for n in range(10):
            await client.publish("odd" if n % 2 else "even", b"%d" % n)
            await client.flush(PATIENCE)
        await asyncio.wait_for(done.wait(), PATIENCE)
        # The one whose handler failed is left.
        assert await client.drain(PATIENCE) == quire.DrainReport(unpersisted=0, unprocessed=1)
    assert seen == [b"%d" % n for n in range(10)]
    assert odd.most_recent is not None
    assert odd.most_recent.endswith("|2|")


async def test_handlers_go_on_after_one_that_waited_for_a_cancelled_task(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[bytes] = []
    done = asyncio.Event()

    async def handle(message: quire.Message) -> None:
        seen.append(message.data)
        if message.data == b"0":
            task = asyncio.ensure_future(asyncio.sleep(PATIENCE))
            task.cancel()
            await task
        if message.data == b"1":
            raise SystemExit("on purpose")
        if message.data == b"2":
            done.set()

    async with quire.AsyncClient(url) as client:
        with caplog.at_level(logging.ERROR, "quire.client"):
            await client.subscribe("orders", on_message=handle)
            for n in range(3):
                await client.publish("orders", b"%d" % n)
            await asyncio.wait_for(done.wait(), PATIENCE)
        assert client.health().state == "connected"
    assert seen == [b"0", b"1", b"2"]
    assert "waited for a task that was cancelled" in caplog.text
    assert "on purpose" in caplog.text


def test_a_client_whose_handlers_were_interrupted_is_closed_and_says_why(url: str) -> None:
    def handle(_message: quire.Message) -> None:
        raise KeyboardInterrupt("on purpose")

    clients: list[quire.AsyncClient] = []

    async def program() -> None:
        clients.append(client := quire.AsyncClient(url))
        await client.subscribe("orders", on_message=handle)
        await client.publish("orders", b"0")
        await asyncio.sleep(PATIENCE)

    with pytest.raises(KeyboardInterrupt, match="on purpose"):
        asyncio.run(program())
    health = clients[0].health()
    assert health.state == "closed"
    assert health.last_error == "the handlers of the client were ended by KeyboardInterrupt('on purpose')"

    async def publish() -> None:
        with pytest.raises(RuntimeError):
            await clients[0].publish("orders", b"1")

    asyncio.run(publish())


async def test_a_lost_name_is_said_to_whoever_waits(
    server: ScriptedServer, client: quire.AsyncClient
) -> None:
    subscription = await client.subscribe("orders")
    waiting = asyncio.ensure_future(subscription.get(PATIENCE))
    async with quire.AsyncClient(server.url, name="client"):
        with pytest.raises(quire.NameInUseError):
            await waiting
        with pytest.raises(quire.NameInUseError):
            await client.publish("orders", b"")


async def test_a_server_that_is_not_there_is_named(server: ScriptedServer) -> None:
    server.stop()
    with pytest.raises(quire.DisconnectedError, match=server.url):
        await quire.AsyncClient(server.url, connect_timeout="1s").connect()
    server.start()


async def test_a_cancelled_wait_takes_no_message(client: quire.AsyncClient) -> None:
    subscription = await client.subscribe("orders")
    waiting = asyncio.ensure_future(subscription.get())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await client.publish("orders", b"1")
    assert await take(subscription, 1) == [b"1"]


async def test_a_close_that_is_cancelled_closes_at_once(server: ScriptedServer) -> None:
    server.persists = False
    client = quire.AsyncClient(server.url)
    await client.publish("orders", b"1")
    closing = asyncio.ensure_future(client.close(PATIENCE))
    await asyncio.sleep(0)
    assert not closing.done(), "it waits for the publish"
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert client.state == "closed"
    with pytest.raises(quire.DisconnectedError):
        await client.publish("orders", b"2")


def test_a_client_belongs_to_the_loop_of_its_first_await(server: ScriptedServer) -> None:
    client = quire.AsyncClient(server.url)
    with asyncio.Runner() as first, asyncio.Runner() as second:
        first.run(client.connect())
        with pytest.raises(RuntimeError, match="another event loop"):
            second.run(client.flush())
        first.run(client.close())
