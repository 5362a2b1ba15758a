"""Handlers of queue messages: the result for a message when its handler returns, raises, or ends
its client."""

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
    # No lease ends by itself, and a cancelled message returns at once.
    {
        "name": "JOBS",
        "message_type": "json",
        "underlying_topic": "tasks",
        "lease_period": "disabled",
        "retry_delay": [],
    },
    {"name": "ONCE", "message_type": "json", "underlying_topic": "single", "semantics": "at-most-once"},
    {
        "name": "TRIED",
        "message_type": "json",
        "underlying_topic": "tries",
        "max_cancels": 2,
        "retry_delay": [],
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


# A handler that raises


class Handler:
    """Notes each delivery, and raises on the first `failures` deliveries of message 0. `done` is
    set with message 1."""

    def __init__(self, failures: float, error: type[BaseException] = RuntimeError) -> None:
        self.failures = failures
        self.error = error
        self.seen: list[tuple[int, int, int]] = []
        self.done = threading.Event()

    def __call__(self, message: quire.Message) -> None:
        n = message.json()["n"]
        self.seen.append((n, message.delivery_count, message.cancel_count))
        if n == 1:
            self.done.set()
        elif len(self.seen) <= self.failures:
            raise self.error("on purpose")


@pytest.mark.parametrize("error", [RuntimeError, SystemExit])
def test_with_auto_ack_the_message_of_a_handler_that_raises_returns_to_its_queue(
    options: dict[str, Any],
    other: quire.Client,
    error: type[BaseException],
    caplog: pytest.LogCaptureFixture,
) -> None:
    publish(other, 2)
    handler = Handler(1, error)
    with quire.Client(**options, auto_ack=True) as client:
        client.subscribe("JOBS", on_message=handler)
        assert handler.done.wait(10)
    assert handler.seen == [(0, 1, 0), (0, 2, 1), (1, 1, 0)]
    assert figures(other) == {"depth": 0, "acknowledged": 2, "cancelled": 1}
    assert "failed on a message" in caplog.text


async def test_with_auto_ack_the_message_of_an_asyncio_handler_that_raises_returns_to_its_queue(
    options: dict[str, Any], other: quire.Client
) -> None:
    publish(other, 2)
    handler, done = Handler(1), asyncio.Event()

    async def handle(message: quire.Message) -> None:
        await asyncio.sleep(0)
        handler(message)
        if handler.done.is_set():
            done.set()

    async with quire.AsyncClient(**options, auto_ack=True) as client:
        await client.subscribe("JOBS", on_message=handle)
        await asyncio.wait_for(done.wait(), 10)
    assert handler.seen == [(0, 1, 0), (0, 2, 1), (1, 1, 0)]
    assert figures(other) == {"depth": 0, "acknowledged": 2, "cancelled": 1}


def test_a_message_on_which_its_handler_always_raises_becomes_a_dead_letter(
    options: dict[str, Any], other: quire.Client
) -> None:
    publish(other, 2, "tries")
    handler = Handler(float("inf"))
    with quire.Client(**options, auto_ack=True) as client:
        client.subscribe("TRIED", on_message=handler)
        assert handler.done.wait(10)
    assert handler.seen == [(0, 1, 0), (0, 2, 1), (0, 3, 2), (1, 1, 0)], "max_cancels is 2"
    letter = other.subscribe("dead", bookmark=quire.EPOCH).get(PATIENCE).json()
    assert (letter["message"], letter["reason"]) == ({"n": 0}, ["max_cancels"])


def test_a_handler_that_raises_frees_its_place_in_an_at_most_once_queue(
    options: dict[str, Any], other: quire.Client
) -> None:
    publish(other, 2, "single")
    handler = Handler(1)
    with quire.Client(**options, auto_ack=True) as client:
        client.subscribe("ONCE", on_message=handler)
        assert handler.done.wait(10)
    assert [n for n, *_ in handler.seen] == [0, 1], "the message has left the queue"


def test_without_auto_ack_the_message_of_a_handler_that_raises_stays_with_the_client(
    options: dict[str, Any], other: quire.Client
) -> None:
    publish(other, 2)
    handler = Handler(1)
    with quire.Client(**options) as client:
        client.subscribe("JOBS", max_backlog=2, on_message=handler)
        assert handler.done.wait(PATIENCE)
        assert figures(other) == {"depth": 2, "acknowledged": 0, "cancelled": 0}


def test_a_verdict_of_a_handler_that_raises_counts(options: dict[str, Any], other: quire.Client) -> None:
    publish(other, 1)
    done = threading.Event()

    def handle(message: quire.Message) -> None:
        message.ack()
        done.set()
        raise RuntimeError("on purpose")

    with quire.Client(**options, auto_ack=True) as client:
        client.subscribe("JOBS", on_message=handle)
        assert done.wait(PATIENCE)
    assert figures(other) == DONE


# Verdicts after the end of the client

VERDICTS = ("ack", "cancel", "expire", "extend")


@pytest.mark.parametrize("verdict", VERDICTS)
def test_a_closed_client_refuses_verdicts(options: dict[str, Any], other: quire.Client, verdict: str) -> None:
    publish(other, 1)
    with quire.Client(**options) as client:
        message = client.subscribe("JOBS").get(PATIENCE)
    with pytest.raises(quire.DisconnectedError, match="the client is closed") as refused:
        getattr(message, verdict)()
    assert refused.value.code == "closed"
    assert message._verdict is None
    assert figures(other) == {"depth": 1, "acknowledged": 0, "cancelled": 0}


@pytest.mark.parametrize("verdict", VERDICTS)
async def test_a_closed_asyncio_client_refuses_verdicts(
    options: dict[str, Any], other: quire.Client, verdict: str
) -> None:
    publish(other, 1)
    async with quire.AsyncClient(**options) as client:
        message = await (await client.subscribe("JOBS")).get(PATIENCE)
    with pytest.raises(quire.DisconnectedError, match="the client is closed"):
        getattr(message, verdict)()


def test_a_closed_client_accepts_what_a_verdict_cannot_change(
    options: dict[str, Any], other: quire.Client
) -> None:
    publish(other, 1)
    publish(other, 1, "single")
    with quire.Client(**options) as client:
        message = client.subscribe("JOBS").get(PATIENCE)
        message.ack()
        taken = client.subscribe("ONCE").get(PATIENCE)
        read = client.subscribe("tasks", bookmark=quire.EPOCH).get(PATIENCE)
    message.ack()
    message.cancel()
    taken.ack()
    read.ack()
    read.discard()
    assert figures(other) == DONE


def test_a_block_on_a_message_raises_after_the_client_is_closed(
    options: dict[str, Any], other: quire.Client
) -> None:
    publish(other, 1)
    with quire.Client(**options) as client:
        message = client.subscribe("JOBS").get(PATIENCE)
    with pytest.raises(quire.DisconnectedError), message:
        pass
    with pytest.raises(RuntimeError, match="on purpose"), message:
        raise RuntimeError("on purpose")


def test_an_iteration_that_ends_with_its_client_logs_what_it_cannot_acknowledge(
    options: dict[str, Any], other: quire.Client, caplog: pytest.LogCaptureFixture
) -> None:
    publish(other, 1)
    client = quire.Client(**options, auto_ack=True)
    for _ in client.subscribe("JOBS", sub_id="jobs"):
        client.close()
    wait_until(lambda: '1 message of the subscription "jobs" cannot be acknowledged' in caplog.text)


@pytest.mark.parametrize("is_worker", [False, True])
def test_a_handler_that_outlives_its_client_logs_what_it_cannot_acknowledge(
    options: dict[str, Any], other: quire.Client, caplog: pytest.LogCaptureFixture, is_worker: bool
) -> None:
    publish(other, 1)
    client = quire.Client(**options, auto_ack=True)
    begun, may_end = threading.Event(), threading.Event()

    def handle(message: quire.Message) -> None:
        begun.set()
        assert may_end.wait(PATIENCE)

    reports: list[quire.WorkReport] = []
    worker = threading.Thread(target=lambda: reports.append(client.process("JOBS", handle)))
    if is_worker:
        worker.start()
    else:
        client.subscribe("JOBS", on_message=handle)
    assert begun.wait(PATIENCE)
    client.close(0.1)
    may_end.set()
    wait_until(lambda: "could not be acknowledged" in caplog.text)
    assert "the client is closed" in caplog.text
    if is_worker:
        worker.join(PATIENCE)
        assert reports == [quire.WorkReport(acknowledged=0, cancelled=0, lost=1)]
    assert figures(other) == {"depth": 1, "acknowledged": 0, "cancelled": 0}
