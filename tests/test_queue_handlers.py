"""Handlers of queue messages: what becomes of a message when its handler returns, raises, or ends its client."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import quire
from support.waiting import PATIENCE, wait_until

QUEUES = (
    # Without a lease period, no lease ends by itself.
    {"name": "JOBS", "message_type": "json", "underlying_topic": "tasks"},
    {"name": "ONCE", "message_type": "json", "underlying_topic": "single", "semantics": "at-most-once"},
    {
        "name": "TRIED",
        "message_type": "json",
        "underlying_topic": "tries",
        "max_cancels": 2,
        "dead_letter_topic": "dead",
    },
)
PLACES = itertools.count()
ENDS = ("close", "drain")


@pytest.fixture
def options() -> dict[str, Any]:
    """The arguments of clients of one engine in memory."""
    return {"url": f"memory:handlers-{next(PLACES)}", "config": quire.Config(queue=QUEUES)}


@pytest.fixture
def other(options: dict[str, Any]) -> Iterator[quire.Client]:
    """The client that publishes, and sees what is left in the queues."""
    with quire.Client(**options) as client:
        yield client


def publish(client: quire.Client, count: int, topic: str = "tasks") -> None:
    client.publish_many(topic, [{"n": n} for n in range(count)])
    client.flush(PATIENCE)


def figures(client: quire.Client, queue: str = "JOBS") -> dict[str, int]:
    stats = client.queue_stats(queue)[queue]
    return {name: stats[name] for name in ("depth", "acknowledged", "cancelled")}


DONE = {"depth": 0, "acknowledged": 1, "cancelled": 0}

# A handler that ends its client


@pytest.mark.parametrize("end", ENDS)
def test_a_handler_that_ends_its_client_has_its_message_acknowledged(
    options: dict[str, Any], other: quire.Client, end: str
) -> None:
    publish(other, 1)
    client = quire.Client(**options, auto_ack=True)
    client.subscribe("JOBS", on_message=lambda _: getattr(client, end)() and None)
    wait_until(lambda: client.state == "closed")
    assert figures(other) == DONE


@pytest.mark.parametrize("end", ENDS)
async def test_an_asyncio_handler_that_ends_its_client_has_its_message_acknowledged(
    options: dict[str, Any], other: quire.Client, end: str
) -> None:
    publish(other, 1)
    client = quire.AsyncClient(**options, auto_ack=True)
    ended = asyncio.Event()
    client.add_state_listener(lambda state: ended.set() if state == "closed" else None)

    async def handle(message: quire.Message) -> None:
        await getattr(client, end)()

    await client.subscribe("JOBS", on_message=handle)
    await asyncio.wait_for(ended.wait(), PATIENCE)
    assert figures(other) == DONE


@pytest.mark.parametrize("end", ENDS)
def test_a_worker_whose_handler_ends_the_client_has_its_message_acknowledged(
    options: dict[str, Any], other: quire.Client, end: str
) -> None:
    publish(other, 1)
    client = quire.Client(**options)
    report = client.process("JOBS", lambda _: getattr(client, end)() and None, concurrency=2)
    assert client.state == "closed"
    assert report == quire.WorkReport(acknowledged=1, cancelled=0, lost=0)
    assert figures(other) == DONE


@pytest.mark.parametrize("end", ENDS)
async def test_an_asyncio_worker_whose_handler_ends_the_client_has_its_message_acknowledged(
    options: dict[str, Any], other: quire.Client, end: str
) -> None:
    publish(other, 1)
    client = quire.AsyncClient(**options)

    async def handle(message: quire.Message) -> None:
        await getattr(client, end)()

    report = await asyncio.wait_for(client.process("JOBS", handle, concurrency=2), PATIENCE)
    assert client.state == "closed"
    assert report == quire.WorkReport(acknowledged=1, cancelled=0, lost=0)
    assert figures(other) == DONE


async def test_a_handler_may_end_its_client_in_another_task(
    options: dict[str, Any], other: quire.Client
) -> None:
    publish(other, 1)
    client = quire.AsyncClient(**options)

    async def handle(message: quire.Message) -> None:
        await asyncio.gather(client.close(PATIENCE))

    await asyncio.wait_for(client.process("JOBS", handle), PATIENCE)
    assert figures(other) == DONE


def test_a_handler_may_publish_and_settle_after_it_has_closed_its_client(
    options: dict[str, Any], other: quire.Client
) -> None:
    publish(other, 3)
    answers = other.subscribe("answers")
    client = quire.Client(**options)

    def handle(message: quire.Message) -> None:
        client.close()
        client.publish("answers", message.data)
        message.ack()

    client.subscribe("JOBS", max_backlog=3, on_message=handle)
    wait_until(lambda: client.state == "closed")
    assert answers.get(PATIENCE).json() == {"n": 0}
    assert figures(other) == {"depth": 2, "acknowledged": 1, "cancelled": 0}
    rest = other.subscribe("JOBS", max_backlog=3)
    assert [rest.get(PATIENCE).delivery_count for _ in range(2)] == [1, 1], "no handler has begun them"


def test_a_close_waits_for_the_handler_that_runs(options: dict[str, Any], other: quire.Client) -> None:
    publish(other, 2)
    client = quire.Client(**options, auto_ack=True)
    begun, may_end = threading.Event(), threading.Event()

    def handle(message: quire.Message) -> None:
        begun.set()
        assert may_end.wait(PATIENCE)

    client.subscribe("JOBS", max_backlog=2, on_message=handle)
    assert begun.wait(PATIENCE)
    close = threading.Thread(target=client.close, args=(PATIENCE,))
    close.start()
    wait_until(lambda: client._is_closed)
    may_end.set()
    close.join(PATIENCE)
    assert figures(other) == {"depth": 1, "acknowledged": 1, "cancelled": 0}
    assert other.subscribe("JOBS").get(PATIENCE).delivery_count == 1


def test_a_signal_handler_may_close_the_client_whose_worker_it_interrupts(
    options: dict[str, Any], other: quire.Client
) -> None:
    publish(other, 1)
    client = quire.Client(**options)
    before = signal.signal(signal.SIGUSR1, lambda *_: client.close())
    handled = threading.Event()

    def interrupt() -> None:
        assert handled.wait(PATIENCE)
        wait_until(lambda: figures(other) == DONE)
        os.kill(os.getpid(), signal.SIGUSR1)

    interrupting = threading.Thread(target=interrupt)
    interrupting.start()
    try:
        report = client.process("JOBS", lambda _: handled.set())
    finally:
        interrupting.join(PATIENCE)
        signal.signal(signal.SIGUSR1, before)
    assert (client.state, report.acknowledged) == ("closed", 1)
