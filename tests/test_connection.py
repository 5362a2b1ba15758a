"""The connection of a client to its server, and the view of its user: states, health, and the rest
at the end."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
import quire
from quire import _quire
from quire.client._loop import Loop
from support.scripted_server import ScriptedServer
from support.waiting import PATIENCE, wait_until

FAST = quire.Reconnect(initial=0.01, maximum=0.05, jitter=0.0)


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer() as server:
        yield server


@pytest.fixture
def client(server: ScriptedServer) -> Iterator[quire.Client]:
    with quire.Client(server.url, name="client", reconnect=FAST) as client:
        yield client


def test_health_says_when_the_server_and_each_subscription_last_said_something(client: quire.Client) -> None:
    before = datetime.now(UTC)
    quiet = client.subscribe("quiet", sub_id="quiet")
    busy = client.subscribe("orders", sub_id="busy")
    client.publish("orders", b"1")
    busy.get(PATIENCE)
    health = client.health()
    heard = {subscription.sub_id: subscription.last_heard for subscription in health.subscriptions}
    assert heard["quiet"] is None
    assert heard["busy"] is not None
    assert before <= heard["busy"] <= datetime.now(UTC)
    assert health.last_heard is not None
    assert heard["busy"] <= health.last_heard
    quiet.unsubscribe()
    assert [subscription.sub_id for subscription in client.health().subscriptions] == ["busy"]


def test_an_error_has_the_brackets_of_an_ipv6_address() -> None:
    with pytest.raises(quire.DisconnectedError, match=r"no connection: quire://\[::1\]:1: "):
        quire.Client("quire://[::1]:1", connect_timeout=1)


def test_a_listener_is_told_every_state_in_order_and_may_use_the_client(server: ScriptedServer) -> None:
    states: queue.SimpleQueue[str] = queue.SimpleQueue()
    client = quire.Client(server.url, name="client", reconnect=FAST)

    def listen(state: str) -> None:
        if state == "connected":
            client.publish("orders", b"back")
        states.put(state)
        raise KeyError("a listener that fails disturbs nobody")

    client.add_state_listener(listen)
    server.stop()
    assert states.get(timeout=PATIENCE) == "reconnecting"
    assert (client.state, client.health().last_error) != ("connected", None)
    server.start()
    assert states.get(timeout=PATIENCE) == "connected"
    client.flush(PATIENCE)
    client.close()
    assert states.get(timeout=PATIENCE) == "closed"
    assert [record.data for record in server.log] == [b"back"]


def test_a_removed_listener_is_told_nothing(server: ScriptedServer, client: quire.Client) -> None:
    first: queue.SimpleQueue[str] = queue.SimpleQueue()
    second: queue.SimpleQueue[str] = queue.SimpleQueue()
    client.add_state_listener(first.put)
    client.add_state_listener(second.put)
    client.remove_state_listener(first.put)
    client.remove_state_listener(first.put)
    client.close()
    assert second.get(timeout=PATIENCE) == "closed"
    assert first.empty()


def test_while_the_server_is_away_publishes_are_taken_and_iterations_wait(
    server: ScriptedServer, client: quire.Client
) -> None:
    subscription = client.subscribe("orders", bookmark=quire.EPOCH)
    server.stop()
    wait_until(lambda: client.state != "connected")
    with pytest.raises(TimeoutError, match="the flush is not answered yet, and there is no connection"):
        client.flush(0.05)
    assert client.publish("orders", b"1") == 1
    with pytest.raises(TimeoutError, match="1 publish is not persisted yet, and there is no connection"):
        client.flush(0.05)
    with pytest.raises(TimeoutError):
        subscription.get(0.05)
    with pytest.raises(quire.DisconnectedError):
        client.publish("orders", b"lost", sequence=None)
    assert client.health().unpersisted == 1
    server.start()
    assert subscription.get(PATIENCE).data == b"1"
    client.flush(PATIENCE)


def test_acknowledgements_that_nobody_waits_for_are_read_and_a_caller_that_waits_does_not_miss_one(
    client: quire.Client,
) -> None:
    # Each of them is the only one on its way, so that the thread is woken by the socket and then
    # leaves it alone for some time.
    for _ in range(50):
        client.publish("orders", b"alone")
        wait_until(lambda: client.health().unpersisted == 0)

    def publish_and_wait() -> None:
        for _ in range(100):
            sequence = client.publish("orders", b"waited for")
            assert sequence is not None
            client.wait_persisted(sequence, PATIENCE)

    threads = [threading.Thread(target=publish_and_wait) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert not any(thread.is_alive() for thread in threads)
    assert client.health().unpersisted == 0


def test_draining_lets_the_handlers_finish_and_flushes_what_they_publish(server: ScriptedServer) -> None:
    client = quire.Client(server.url, name="client", reconnect=FAST)
    started, go_on = threading.Event(), threading.Event()

    def answer(message: quire.Message) -> None:
        started.set()
        assert go_on.wait(PATIENCE)
        client.publish("answers", message.data)

    client.subscribe("orders", on_message=answer)
    for number in range(5):
        client.publish("orders", b"%d" % number)
    client.flush(PATIENCE)
    assert started.wait(PATIENCE)
    threading.Timer(0.05, go_on.set).start()
    report = client.drain(PATIENCE)
    assert report.unpersisted == 0
    answers = [record.data for record in server.log if record.topic == b"answers"]
    # Those that had come before the subscription ended were handled; the report counts none of them
    # as left.
    assert answers == [b"%d" % number for number in range(len(answers))]
    assert answers
    assert report.is_clean


def test_a_drain_that_runs_out_of_time_says_what_was_left(server: ScriptedServer) -> None:
    client = quire.Client(server.url, name="client", reconnect=FAST)
    started, go_on = threading.Event(), threading.Event()

    def block(message: quire.Message) -> None:
        started.set()
        assert go_on.wait(PATIENCE)

    client.subscribe("orders", on_message=block)
    taken = client.subscribe("orders", sub_id="taken")
    for number in range(3):
        client.publish("orders", b"%d" % number)
    client.flush(PATIENCE)
    assert started.wait(PATIENCE)
    taken.get(PATIENCE)
    wait_until(lambda: sum_of_unprocessed(client) == 6, PATIENCE)
    server.stop()
    client.publish("orders", b"unpersisted")
    report = client.drain(0.2)
    assert not go_on.is_set()
    assert (report.unpersisted, report.unprocessed, report.is_clean) == (1, 6, False)
    go_on.set()
    server.start()


def sum_of_unprocessed(client: quire.Client) -> int:
    return client._unprocessed(client._core, client._subscriptions.values())


async def test_a_listener_is_told_of_a_connection_that_is_made_at_once(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    attach = Loop.attach

    def attach_late(self: Loop, core: _quire.Client) -> None:
        # The thread of the client is faster than the loop.
        assert core.wait_connected(PATIENCE)
        attach(self, core)

    monkeypatch.setattr(Loop, "attach", attach_late)
    states: asyncio.Queue[str] = asyncio.Queue()
    client = quire.AsyncClient(server.url, reconnect=FAST)
    client.add_state_listener(states.put)
    async with client:
        assert await asyncio.wait_for(states.get(), PATIENCE) == "connected"


async def test_the_asyncio_client_has_listeners_and_drains(server: ScriptedServer) -> None:
    client = quire.AsyncClient(server.url, name="client", reconnect=FAST)
    states: asyncio.Queue[str] = asyncio.Queue()
    client.add_state_listener(states.put)
    await client.connect()
    assert await asyncio.wait_for(states.get(), PATIENCE) == "connected"
    handled: list[bytes] = []

    async def handle(message: quire.Message) -> None:
        await asyncio.sleep(0)
        handled.append(message.data)

    await client.subscribe("orders", on_message=handle)
    taken = await client.subscribe("orders")
    for number in range(3):
        await client.publish("orders", b"%d" % number)
    await client.flush(PATIENCE)
    await taken.get(PATIENCE)
    report = await client.drain(PATIENCE)
    assert handled == [b"%d" % number for number in range(len(handled))]
    assert report.unpersisted == 0
    assert report.unprocessed >= 1, "what was taken and not processed"
    assert await asyncio.wait_for(states.get(), PATIENCE) == "closed"
