"""Queues as a program sees them: the same on a server, on files in this process, and in memory."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import quire
from quire.testing import ServerProcess, server
from support.waiting import PATIENCE, stop, wait_until

QUEUES: tuple[dict[str, object], ...] = (
    # So long that no lease ends by itself in a test.
    {"name": "JOBS", "message_type": "json", "underlying_topic": "tasks", "lease_period": "1h"},
    {"name": "SHORT", "message_type": "json", "underlying_topic": "brief", "lease_period": "1s"},
    {"name": "ONCE", "message_type": "json", "underlying_topic": "single", "semantics": "at-most-once"},
    {"name": "STRICT", "message_type": "json", "underlying_topic": "tasks", "leasing": "strict"},
    {"name": "plain", "message_type": "json"},
    {
        "name": "TRIED",
        "message_type": "json",
        "underlying_topic": "tries",
        "max_deliveries": 2,
        "dead_letter_topic": "dead",
    },
    {"name": "PATIENT", "message_type": "json", "underlying_topic": "slow", "retry_delay": ["1h", "2h"]},
)
# A cancelled message returns at once, unless the queue says otherwise.
QUEUES = tuple({"retry_delay": [], **queue} for queue in QUEUES)
#: Memory is a place of one name for each test.
PLACES = itertools.count()

Connect = Callable[..., quire.Client]


@pytest.fixture(params=["server", "file", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, quire.Config | None]]:
    """A URL, and the configuration that clients on it bring."""
    if request.param == "server":
        with server(tmp_path, queue=QUEUES) as running:
            yield running.url, None
    else:
        config = quire.Config(queue=QUEUES)
        name = tmp_path if request.param == "file" else f"queues-{next(PLACES)}"
        yield f"{request.param}:{name}", config


@pytest.fixture
def connect(place: tuple[str, quire.Config | None]) -> Iterator[Connect]:
    url, config = place
    clients: list[quire.Client] = []

    def make(**options: object) -> quire.Client:
        clients.append(quire.Client(url, config=config, **options))  # type: ignore[arg-type]
        return clients[-1]

    yield make
    for client in clients:
        client.close()


def publish(client: quire.Client, count: int, topic: str = "tasks") -> None:
    for number in range(count):
        client.publish(topic, {"n": number})
    client.flush(PATIENCE)


def numbers(messages: list[quire.Message]) -> list[int]:
    return [message.json()["n"] for message in messages]


def depth(client: quire.Client, queue: str = "JOBS") -> int:
    return int(client.queue_stats(queue)[queue]["depth"])


def test_a_message_comes_under_a_lease_and_goes_with_its_acknowledgement(connect: Connect) -> None:
    client = connect()
    publish(client, 1)
    before = datetime.now(UTC)
    with client.subscribe("JOBS", max_backlog=5) as jobs:
        message = jobs.get(PATIENCE)
        assert (message.json(), message.topic, message.queue) == ({"n": 0}, "JOBS", "JOBS")
        assert message.source_topic == "tasks"
        assert (message.delivery_count, message.cancel_count) == (1, 0)
        assert message.lease_period == timedelta(hours=1)
        assert message.lease_deadline is not None
        assert before < message.lease_deadline - timedelta(minutes=59)
        assert not message.lease_lost
        message.ack()
        client.flush(PATIENCE)
        assert depth(client) == 0
        assert not message.lease_lost


def test_a_block_that_raises_gives_the_message_back(connect: Connect) -> None:
    client = connect()
    publish(client, 1)
    jobs = client.subscribe("JOBS")
    with pytest.raises(RuntimeError), jobs.get(PATIENCE):
        raise RuntimeError("not today")
    again = jobs.get(PATIENCE)
    assert (again.delivery_count, again.cancel_count) == (2, 1)
    with again as message:
        assert message is again
    client.flush(PATIENCE)
    assert depth(client) == 0


def test_the_backlog_bounds_what_is_out(connect: Connect) -> None:
    client = connect()
    publish(client, 10)
    jobs = client.subscribe("JOBS", max_backlog=3)
    first = [jobs.get(PATIENCE) for _ in range(3)]
    assert numbers(first) == [0, 1, 2]
    with pytest.raises(TimeoutError):
        jobs.get(0.05)
    first[1].ack()
    assert jobs.get(PATIENCE).json()["n"] == 3
    first[0].expire()
    assert jobs.get(PATIENCE).json()["n"] == 4


def test_acknowledgements_wait_for_their_batch(connect: Connect) -> None:
    client = connect(ack_batch_size=3, ack_timeout="1h")
    publish(client, 5)
    jobs = client.subscribe("JOBS", max_backlog=10)
    messages = [jobs.get(PATIENCE) for _ in range(5)]
    for message in messages[:2]:
        message.ack()
    assert depth(client) == 5
    messages[2].ack()
    assert depth(client) == 2
    messages[3].ack()
    client.flush(PATIENCE)
    assert depth(client) == 1


def test_an_acknowledgement_waits_no_longer_than_ack_timeout(connect: Connect) -> None:
    client = connect(ack_batch_size=100, ack_timeout="50ms")
    publish(client, 1)
    client.subscribe("JOBS", max_backlog=100).get(PATIENCE).ack()
    wait_until(lambda: depth(client) == 0)


def test_iterating_acknowledges_when_it_is_asked_to(connect: Connect) -> None:
    client = connect(auto_ack=True)
    publish(client, 5)
    for message in client.subscribe("JOBS", max_backlog=2):
        if message.json()["n"] == 4:
            break
    client.flush(PATIENCE)
    assert depth(client) == 1


def test_a_handler_acknowledges_what_it_returned_from(connect: Connect) -> None:
    client = connect(auto_ack=True)
    publish(client, 5)
    seen = []

    def handle(message: quire.Message) -> None:
        seen.append(message.json()["n"])
        if seen[-1] == 2 and message.cancel_count == 0:
            raise RuntimeError("two")

    client.subscribe("JOBS", max_backlog=10, on_message=handle)
    wait_until(lambda: depth(client) == 0)
    assert sorted(seen) == [0, 1, 2, 2, 3, 4]


def test_leases_end_with_the_connection(connect: Connect) -> None:
    first, second = connect(), connect()
    publish(first, 1)
    held = first.subscribe("JOBS").get(PATIENCE)
    first.close()
    assert held.lease_lost
    with pytest.raises(quire.DisconnectedError):
        held.ack()
    assert second.subscribe("JOBS").get(PATIENCE).delivery_count == 2


def test_a_lease_that_is_over_is_lost_and_one_that_is_extended_is_not(connect: Connect) -> None:
    first, second = connect(), connect()
    publish(first, 2)
    mine = first.subscribe("JOBS", max_backlog=2)
    lost, kept = mine.get(PATIENCE), mine.get(PATIENCE)
    kept.extend("2h")
    # The second subscription is there before the lease ends. It holds fewer messages than the
    # first, so the server delivers the message to it, and never again to the first.
    theirs = second.subscribe("JOBS", max_backlog=2)
    lost.extend("1ms")
    again = theirs.get(PATIENCE)
    assert (again.json(), again.delivery_count) == (lost.json(), 2)
    assert lost.lease_lost
    assert not kept.lease_lost
    assert kept.lease_deadline is not None
    assert kept.lease_deadline > datetime.now(UTC) + timedelta(minutes=61)
    again.ack()
    kept.ack()
    first.flush(PATIENCE)
    second.flush(PATIENCE)
    assert depth(first) == 0


def test_a_message_whose_lease_period_is_over_comes_again(connect: Connect) -> None:
    client = connect()
    publish(client, 1, "brief")
    jobs = client.subscribe("SHORT")
    lost, again = jobs.get(PATIENCE), jobs.get(PATIENCE)
    assert again.delivery_count == lost.delivery_count + 1
    assert lost.lease_lost


@pytest.mark.parametrize(("queue", "left"), [("JOBS", 0), ("STRICT", 1)])
def test_a_late_acknowledgement_removes_the_message_unless_the_queue_is_strict(
    connect: Connect, queue: str, left: int
) -> None:
    first, second = connect(), connect()
    publish(first, 1)
    mine = first.subscribe(queue)
    late = mine.get(PATIENCE)
    mine.unsubscribe()
    again = second.subscribe(queue).get(PATIENCE)
    assert (again.delivery_count, late.lease_lost) == (2, True)
    late.ack()
    first.flush(PATIENCE)
    assert late.lease_lost
    assert depth(first, queue) == left
    if left:
        again.ack()
        second.flush(PATIENCE)
        assert depth(first, queue) == 0
    else:
        wait_until(lambda: again.lease_lost)


def test_a_message_acknowledges_by_its_topic_and_bookmark(connect: Connect) -> None:
    client = connect()
    publish(client, 1)
    publish(client, 1, "brief")
    publish(client, 1, "plain")
    jobs = client.subscribe("^(JOBS|SHORT|plain)$", max_backlog=3)
    messages = [jobs.get(PATIENCE) for _ in range(3)]
    topics = {(message.topic, message.source_topic) for message in messages}
    assert topics == {("JOBS", "tasks"), ("SHORT", "brief"), ("plain", "plain")}
    for message in messages:
        assert message.bookmark is not None
        client.ack(message.topic, message.bookmark)
        assert depth(client, message.topic) == 0
    jobs.unsubscribe()
    publish(client, 1)
    (shown,) = client.sow("JOBS")
    assert (shown.topic, shown.source_topic) == ("JOBS", "tasks")
    (replayed, *_) = client.subscribe("JOBS", bookmark=quire.EPOCH).batches().__next__()
    assert (replayed.topic, replayed.source_topic, replayed.queue) == ("tasks", "tasks", None)


def test_at_most_once_is_once(connect: Connect) -> None:
    client = connect()
    publish(client, 2, "single")
    once = client.subscribe("ONCE")
    message = once.get(PATIENCE)
    assert (message.lease_period, message.lease_deadline, message.lease_lost) == (None, None, False)
    with pytest.raises(TimeoutError):
        once.get(0.05)
    message.ack()
    assert once.get(PATIENCE).json() == {"n": 1}
    assert depth(client, "ONCE") == 0


def test_messages_are_settled_by_bookmark(connect: Connect) -> None:
    client = connect()
    publish(client, 6)
    jobs = client.subscribe("JOBS", max_backlog=6)
    messages = [jobs.get(PATIENCE) for _ in range(6)]
    client.ack("JOBS", messages[0].bookmark)
    client.ack("JOBS", [messages[1], messages[2].bookmark or ""])
    client.ack("JOBS", messages[3], expire=True)
    client.ack("JOBS", messages[4], cancel=True)
    assert jobs.get(PATIENCE).json() == {"n": 4}
    assert depth(client) == 2


def test_mistakes_about_queues_are_told(connect: Connect) -> None:
    client = connect()
    with pytest.raises(quire.UnknownQueueError):
        client.ack("NONE", "1|1|")
    with pytest.raises(quire.UnknownQueueError):
        client.queue_stats("NONE")
    with pytest.raises(quire.BadBookmarkError):
        client.ack("JOBS", "yesterday")
    with pytest.raises(quire.ConfigError, match="one of them"):
        client.ack("JOBS")
    with pytest.raises(quire.ConfigError, match="expire: it does not go together with cancel"):
        client.ack("JOBS", "1|1|", cancel=True, expire=True)
    with pytest.raises(quire.ConfigError, match="max_backlog"):
        client.subscribe("JOBS", max_backlog=-1)
    client.publish("plain", b"x")
    with pytest.raises(quire.ConfigError, match="queue"):
        client.subscribe("plain", bookmark=quire.EPOCH).get(PATIENCE).cancel()


def test_a_worker_handles_everything_and_stops_when_it_is_drained(connect: Connect) -> None:
    client, other = connect(), connect()
    publish(other, 200)
    seen: list[int] = []

    def handle(message: quire.Message) -> None:
        seen.append(message.json()["n"])
        if message.json()["n"] % 50 == 7 and message.delivery_count == 1:
            raise RuntimeError("once more")

    reports: list[quire.WorkReport] = []
    worker = threading.Thread(target=lambda: reports.append(client.process("JOBS", handle, concurrency=3)))
    worker.start()
    wait_until(lambda: depth(other) == 0)
    assert client.drain(PATIENCE).is_clean
    worker.join(PATIENCE)
    assert sorted(set(seen)) == list(range(200))
    assert len(seen) == 204
    assert reports == [quire.WorkReport(acknowledged=200, cancelled=4, lost=0)]


def test_a_worker_with_a_filter_takes_the_messages_that_match(connect: Connect) -> None:
    client, other = connect(), connect()
    publish(other, 10)
    seen: list[int] = []
    worker = threading.Thread(
        target=lambda: client.process(
            "JOBS", lambda message: seen.append(message.json()["n"]), filter="/n >= 7"
        )
    )
    worker.start()
    wait_until(lambda: depth(other) == 7)
    assert client.drain(PATIENCE).is_clean
    worker.join(PATIENCE)
    assert seen == [7, 8, 9]


async def test_a_message_whose_handler_waited_for_a_cancelled_task_goes_back(
    place: tuple[str, quire.Config | None],
) -> None:
    url, config = place
    seen: list[int] = []

    async with quire.AsyncClient(url, config=config) as client:

        async def handle(message: quire.Message) -> None:
            seen.append(message.json()["n"])
            if len(seen) == 1:
                task = asyncio.ensure_future(asyncio.sleep(PATIENCE))
                task.cancel()
                await task
            else:
                [worker] = client._workers
                worker.stop()

        await client.publish("tasks", {"n": 1})
        report = await asyncio.wait_for(client.process("JOBS", handle), PATIENCE)
    assert (seen, report) == ([1, 1], quire.WorkReport(acknowledged=1, cancelled=1, lost=0))


def test_the_report_of_a_worker_counts_the_verdicts_of_its_handler(connect: Connect) -> None:
    client = connect()
    verdicts = ("ack", "cancel", "expire", "return", "raise", "ack and raise", "expire and return")
    for verdict in verdicts:
        client.publish("tasks", {"verdict": verdict})
    client.flush(PATIENCE)
    handled: list[str] = []

    def handle(message: quire.Message) -> None:
        verdict = message.json()["verdict"] if message.cancel_count == 0 else "return"
        handled.append(verdict)
        # The two returned messages are delivered again.
        if len(handled) == len(verdicts) + 2:
            [worker] = client._workers
            worker.stop()
        for step in verdict.split(" and "):
            if step == "raise":
                raise ValueError
            if step != "return":
                getattr(message, step)()

    report = client.process("JOBS", handle)
    assert report == quire.WorkReport(acknowledged=5, cancelled=2, lost=0, expired=2)


def test_the_help_of_a_report_describes_its_fields() -> None:
    for report in (
        quire.WorkReport,
        quire.DrainReport,
        quire.Health,
        quire.SubscriptionHealth,
        quire.ServerInfo,
    ):
        text = report.__doc__ or ""
        assert [name for name in report.__dataclass_fields__ if f"`{name}`" not in text] == []


def test_a_drain_leaves_what_a_handler_has_with_it(connect: Connect) -> None:
    client, other = connect(ack_batch_size=100), connect()
    publish(other, 3)
    begun, may_end = threading.Event(), threading.Event()
    seen: list[int] = []

    def handle(message: quire.Message) -> None:
        begun.set()
        assert may_end.wait(PATIENCE)
        seen.append(message.json()["n"])
        message.ack()

    client.subscribe("JOBS", max_backlog=2, on_message=handle)
    assert begun.wait(PATIENCE)
    reports: list[quire.DrainReport] = []
    drain = threading.Thread(target=lambda: reports.append(client.drain(PATIENCE)))
    drain.start()
    mine = other.subscribe("JOBS", max_backlog=10)
    assert mine.get(PATIENCE).json() == {"n": 2}, "what nobody has goes to others"
    with pytest.raises(TimeoutError):
        mine.get(0.3)
    may_end.set()
    drain.join(PATIENCE)
    assert (seen, [report.is_clean for report in reports]) == ([0, 1], [True])
    with pytest.raises(TimeoutError):
        mine.get(0.3)


def test_a_worker_that_stops_finishes_what_it_handles_and_returns_the_rest(connect: Connect) -> None:
    client, other = connect(), connect()
    publish(other, 10)
    begun, may_end = threading.Event(), threading.Event()

    def handle(message: quire.Message) -> None:
        begun.set()
        assert may_end.wait(PATIENCE)

    reports: list[quire.WorkReport] = []

    def work() -> None:
        reports.append(client.process("JOBS", handle, max_backlog=10))

    worker = threading.Thread(target=work)
    worker.start()
    assert begun.wait(PATIENCE)
    drain = threading.Thread(target=client.drain, args=(PATIENCE,))
    drain.start()
    wait_until(lambda: all(worker._is_stopping for worker in client._workers))
    may_end.set()
    worker.join(PATIENCE)
    drain.join(PATIENCE)
    assert reports[0].acknowledged == 1
    stats = other.queue_stats("JOBS")["JOBS"]
    assert stats["depth"] == stats["waiting"] == 9
    assert stats["cancelled"] == 0


def dead_letters(client: quire.Client) -> list[int]:
    """The numbers in the dead letters, when all of them are published."""
    client.flush(PATIENCE)
    with client.subscribe("dead", bookmark=f"[{quire.EPOCH}:{quire.NOW}]") as letters:
        return [letter.json()["message"]["n"] for letter in letters]


def test_workers_that_are_drained_leave_what_they_only_fetched_without_a_count(connect: Connect) -> None:
    other = connect()
    publish(other, 6, "tries")
    handled: list[int] = []
    for _ in range(3):
        client = connect()
        begun, may_end = threading.Event(), threading.Event()

        def work(
            client: quire.Client = client,
            begun: threading.Event = begun,
            may_end: threading.Event = may_end,
        ) -> None:
            def handle(message: quire.Message) -> None:
                handled.append(message.json()["n"])
                begun.set()
                assert may_end.wait(PATIENCE)

            client.process("TRIED", handle, max_backlog=4)

        worker = threading.Thread(target=work)
        worker.start()
        assert begun.wait(PATIENCE)
        drain = threading.Thread(target=client.drain, args=(PATIENCE,))
        drain.start()
        wait_until(lambda client=client: all(w._is_stopping for w in client._workers))  # type: ignore[misc]
        may_end.set()
        worker.join(PATIENCE)
        drain.join(PATIENCE)
    assert dead_letters(other) == []
    left = other.subscribe("TRIED", max_backlog=10)
    rest = [left.get(PATIENCE) for _ in range(3)]
    assert (handled, numbers(rest)) == ([0, 1, 2], [3, 4, 5]), "each at its place in the order"
    assert {message.delivery_count for message in rest} == {1}


def test_a_handler_that_was_not_begun_when_the_client_closes_never_sees_its_message(connect: Connect) -> None:
    client, other = connect(), connect()
    publish(other, 3, "tries")
    begun, may_end = threading.Event(), threading.Event()
    seen: list[int] = []

    def handle(message: quire.Message) -> None:
        seen.append(message.json()["n"])
        begun.set()
        assert may_end.wait(PATIENCE)

    client.subscribe("TRIED", max_backlog=10, on_message=handle)
    assert begun.wait(PATIENCE)
    # It does not wait longer for the handler.
    close = threading.Thread(target=client.close, args=(1,))
    close.start()
    mine = other.subscribe("TRIED", max_backlog=10)
    again = [mine.get(PATIENCE) for _ in range(3)]
    may_end.set()
    close.join(PATIENCE)
    assert seen == [0]
    counts = {message.json()["n"]: message.delivery_count for message in again}
    assert counts == {0: 2, 1: 1, 2: 1}, "only what the handler began was delivered"


def test_after_its_end_a_subscription_gives_nothing_that_it_released(connect: Connect) -> None:
    client, other = connect(), connect()
    publish(other, 5, "tries")
    jobs = client.subscribe("TRIED", max_backlog=10)
    first = jobs.get(PATIENCE)
    wait_until(lambda: other.queue_stats("TRIED")["TRIED"]["backlog"] == 5)
    jobs.unsubscribe()
    with pytest.raises(quire.DisconnectedError):
        jobs.get(PATIENCE)
    assert first.lease_lost
    again = other.subscribe("TRIED", max_backlog=10)
    counts = [
        (message.json()["n"], message.delivery_count) for message in (again.get(PATIENCE) for _ in range(5))
    ]
    assert counts == [(0, 2), (1, 1), (2, 1), (3, 1), (4, 1)]


def test_a_client_that_is_full_releases_what_it_never_read(connect: Connect) -> None:
    client, other = connect(receive_size_max="64KB"), connect()
    for number in range(40):
        other.publish("tries", {"n": number, "text": "x" * 60_000})
    other.flush(PATIENCE)
    jobs = client.subscribe("TRIED", max_backlog=100)
    assert jobs.get(PATIENCE).json()["n"] == 0
    wait_until(lambda: other.queue_stats("TRIED")["TRIED"]["backlog"] > 10)
    client.close()
    again = other.subscribe("TRIED", max_backlog=100)
    counts = {
        message.json()["n"]: message.delivery_count for message in (again.get(PATIENCE) for _ in range(40))
    }
    assert counts == {number: 2 if number == 0 else 1 for number in range(40)}


def test_a_client_that_is_full_leaves_when_its_server_has_heard_it(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, queue=QUEUES) as process:
        client = quire.Client(process.url, receive_size_max="64KB")
        other = quire.Client(process.url)
        for number in range(40):
            other.publish("tries", {"n": number, "text": "x" * 60_000})
        other.flush(PATIENCE)
        jobs = client.subscribe("TRIED", max_backlog=100)
        assert jobs.get(PATIENCE).json()["n"] == 0
        wait_until(lambda: other.queue_stats("TRIED")["TRIED"]["backlog"] > 10)
        stop(process.pid)
        closing = threading.Thread(target=client.close, args=(PATIENCE,))
        try:
            closing.start()
            # The server reads nothing yet, and the client has messages that it did not read.
            closing.join(0.3)
            assert closing.is_alive()
        finally:
            os.kill(process.pid, signal.SIGCONT)
            closing.join()
        again = other.subscribe("TRIED", max_backlog=100)
        counts = [again.get(PATIENCE).delivery_count for _ in range(40)]
        assert sorted(counts) == [1] * 39 + [2]
        other.close()


def test_random_rolling_restarts_dead_letter_nothing_that_no_handler_saw(connect: Connect) -> None:
    """Fifty programs, one after the other, each with its own way to leave."""
    draw = random.Random(20)
    other = connect()
    publish(other, 100, "tries")
    seen: set[int] = set()
    for _ in range(50):
        client = connect()
        jobs = client.subscribe("TRIED", max_backlog=draw.randint(1, 60))
        for _ in range(draw.randint(0, 2)):
            message = jobs.get(PATIENCE)
            seen.add(message.json()["n"])
            if draw.random() < 0.5:
                message.ack()
        leave: list[Callable[[], object]] = [jobs.unsubscribe, client.drain, client.close]
        draw.choice(leave)()
        client.close()
    dead = dead_letters(other)
    assert set(dead) <= seen
    assert dead, "what a handler began and did not settle twice is dead"
    rest = int(other.queue_stats("TRIED")["TRIED"]["depth"])
    left = other.subscribe("TRIED", max_backlog=100)
    unseen = {left.get(PATIENCE).json()["n"] for _ in range(rest)}
    assert unseen >= set(range(100)) - seen


def test_a_message_that_is_cancelled_with_a_delay_comes_again_after_it(connect: Connect) -> None:
    client = connect()
    publish(client, 3)
    jobs = client.subscribe("JOBS", max_backlog=3)
    first, second, third = (jobs.get(PATIENCE) for _ in range(3))
    first.cancel(delay="1h")
    second.cancel(delay=timedelta(milliseconds=1))
    again = jobs.get(PATIENCE)
    assert (again.json()["n"], again.cancel_count, again.delivery_count) == (1, 1, 2)
    again.cancel(delay=0)
    assert jobs.get(PATIENCE).cancel_count == 2
    stats = client.queue_stats("JOBS")["JOBS"]
    assert (stats["depth"], stats["delayed"], stats["waiting"]) == (3, 1, 0)
    assert list(client.sow("JOBS")) == [], "a delayed message cannot be delivered"
    assert first.bookmark is not None
    client.ack("JOBS", first.bookmark)
    third.ack()
    client.flush(PATIENCE)
    stats = client.queue_stats("JOBS")["JOBS"]
    assert (stats["depth"], stats["delayed"]) == (1, 0)
    for delay in ("soon", -1):
        with pytest.raises(quire.ConfigError, match="delay"):
            third.cancel(delay)


def test_a_cancel_waits_as_the_queue_is_configured(connect: Connect) -> None:
    client = connect()
    publish(client, 2, "slow")
    jobs = client.subscribe("PATIENT", max_backlog=2)
    first, second = jobs.get(PATIENCE), jobs.get(PATIENCE)
    first.cancel()
    second.cancel(delay="1ms")
    again = jobs.get(PATIENCE)
    assert (again.json()["n"], again.cancel_count) == (1, 1)
    again.cancel()
    client.flush(PATIENCE)
    assert client.queue_stats("PATIENT")["PATIENT"]["delayed"] == 2


@pytest.mark.parametrize("retry_delay", ["1ms", ["1ms", "2ms"]])
def test_a_worker_says_how_long_a_message_waits_on_which_its_handler_raised(
    connect: Connect, caplog: pytest.LogCaptureFixture, retry_delay: str | list[str]
) -> None:
    client, other = connect(), connect()
    publish(other, 1, "slow")
    seen: list[int] = []
    done = threading.Event()

    def handle(message: quire.Message) -> None:
        seen.append(message.cancel_count)
        if len(seen) < 5:
            raise RuntimeError("not yet")
        done.set()

    worker = threading.Thread(target=lambda: client.process("PATIENT", handle, retry_delay=retry_delay))
    worker.start()
    assert done.wait(PATIENCE)
    client.drain(PATIENCE)
    worker.join(PATIENCE)
    assert seen == [0, 1, 2, 3, 4]
    failures = [record.message for record in caplog.records if "a handler failed" in record.message]
    assert len(failures) == 1, "one line per message and minute"
    with pytest.raises(quire.ConfigError, match="retry_delay"):
        other.process("PATIENT", handle, retry_delay=[])


async def test_the_asyncio_client_works_on_queues_too(place: tuple[str, quire.Config | None]) -> None:
    url, config = place
    async with quire.AsyncClient(url, config=config, auto_ack=True) as client:
        for number in range(20):
            await client.publish("tasks", {"n": number})
        await client.flush(PATIENCE)
        jobs = await client.subscribe("JOBS", max_backlog=2)
        assert numbers([await jobs.get(PATIENCE) for _ in range(4)]) == [0, 1, 2, 3]
        await jobs.unsubscribe()
        seen: list[int] = []

        async def handle(message: quire.Message) -> None:
            await asyncio.sleep(0)
            seen.append(message.json()["n"])
            if message.json()["n"] == 10 and message.delivery_count == 1:
                raise RuntimeError("once more")
            if len(seen) == 18:
                all_seen.set()

        all_seen = asyncio.Event()
        work = asyncio.ensure_future(client.process("JOBS", handle, concurrency=4))
        await asyncio.wait_for(all_seen.wait(), PATIENCE)
        deadline = time.monotonic() + PATIENCE
        while (await client.queue_stats("JOBS"))["JOBS"]["depth"]:
            assert time.monotonic() < deadline
        drained = await client.drain(PATIENCE)
        report = await work
        assert drained.is_clean
        assert sorted(set(seen)) == list(range(3, 20))
        assert report == quire.WorkReport(acknowledged=17, cancelled=1, lost=0)


async def test_a_cancelled_worker_gives_back_what_it_handles(place: tuple[str, quire.Config | None]) -> None:
    url, config = place
    async with quire.AsyncClient(url, config=config) as client:
        await client.publish("tasks", {"n": 0})
        begun = asyncio.Event()

        async def handle(message: quire.Message) -> None:
            begun.set()
            await asyncio.Event().wait()

        work = asyncio.ensure_future(client.process("JOBS", handle))
        await asyncio.wait_for(begun.wait(), PATIENCE)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        again = await (await client.subscribe("JOBS")).get(PATIENCE)
        assert (again.delivery_count, again.cancel_count) == (2, 0)


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        line for name, _, line in caplog.record_tuples if name == "quire.client" and "max_backlog" in line
    ]


def test_a_max_backlog_without_a_queue_is_logged_once(
    connect: Connect, place: tuple[str, quire.Config | None], caplog: pytest.LogCaptureFixture
) -> None:
    client = connect()
    with client.subscribe("JOBZ", max_backlog=10):
        [line] = warnings_of(caplog)
        assert "'JOBZ' has no effect: no queue has the name" in line
    caplog.clear()
    with client.subscribe("^JOBZ", max_backlog=10), client.subscribe("JOBS", bookmark="now", max_backlog=10):
        name, replay = warnings_of(caplog)
        assert "no queue has a name that matches" in name
        assert "'JOBS' has no effect: a subscription with a bookmark is a replay" in replay
    caplog.clear()
    for topic, backlog in (("JOBS", 10), ("^JOB", 10), ("tasks", None), ("JOBZ", 0)):
        with client.subscribe(topic, max_backlog=backlog):
            pass
    with pytest.raises(quire.UnknownQueueError):
        client.process("JOBZ", lambda message: None)
    assert warnings_of(caplog) == []

    async def subscribe() -> None:
        url, config = place
        async with quire.AsyncClient(url, config=config) as awaiting:
            await awaiting.subscribe("JOBZ", max_backlog=10)

    asyncio.run(subscribe())
    assert len(warnings_of(caplog)) == 1


def test_a_worker_on_what_is_no_queue_says_so(
    connect: Connect, place: tuple[str, quire.Config | None]
) -> None:
    client = connect()
    with pytest.raises(quire.UnknownQueueError, match='"JOBZ"'):
        client.process("JOBZ", lambda message: client.close())
    # The topic below a queue is not a queue, either.
    client.publish("tasks", {"n": 1})
    client.flush(PATIENCE)
    with pytest.raises(quire.UnknownQueueError, match='"tasks"'):
        client.process("tasks", lambda message: client.close())
    assert not client.health().subscriptions

    async def work() -> None:
        url, config = place
        async with quire.AsyncClient(url, config=config) as awaiting:
            with pytest.raises(quire.UnknownQueueError, match='"JOBZ"'):
                await asyncio.wait_for(awaiting.process("JOBZ", lambda message: None), PATIENCE)

    asyncio.run(work())


WORKER = """
import sys, quire
client = quire.Client(sys.argv[1])
def handle(message):
    print(message.json()["n"], flush=True)
    sys.stdin.readline()
report = client.process("JOBS", handle, max_backlog=5)
client.close()
print(report.acknowledged, report.cancelled, flush=True)
"""


def test_sigterm_lets_a_worker_finish_what_it_handles(tmp_path: Path) -> None:
    with server(tmp_path, queue=QUEUES) as running, quire.Client(running.url) as client:
        publish(client, 5)
        worker = subprocess.Popen(
            [sys.executable, "-c", WORKER, running.url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert worker.stdin is not None
        assert worker.stdout is not None
        assert worker.stdout.readline() == "0\n"
        os.kill(worker.pid, signal.SIGTERM)
        said, _ = worker.communicate("\n", timeout=PATIENCE)
        assert said == "1 0\n"
        assert worker.returncode == 0
        stats = client.queue_stats("JOBS")["JOBS"]
        assert (stats["depth"], stats["waiting"], stats["acknowledged"]) == (4, 4, 1)


def test_what_was_acknowledged_stays_so_over_a_restart(tmp_path: Path) -> None:
    with server(tmp_path, queue=QUEUES) as running, quire.Client(running.url) as client:
        publish(client, 10)
        jobs = client.subscribe("JOBS", max_backlog=10)
        for message in [jobs.get(PATIENCE) for _ in range(10)]:
            if message.json()["n"] % 2:
                message.ack()
        client.flush(PATIENCE)
    with server(tmp_path, queue=QUEUES) as running, quire.Client(running.url) as client:
        jobs = client.subscribe("JOBS", max_backlog=10)
        assert numbers([jobs.get(PATIENCE) for _ in range(5)]) == [0, 2, 4, 6, 8]


def test_with_its_state_in_a_file_a_queue_knows_after_a_restart_how_often_it_delivered(
    tmp_path: Path,
) -> None:
    delivered = {}
    for kept in ("disabled", "enabled"):
        settings: dict[str, Any] = {
            "transaction_log": {"topic": [{"name": "jobs", "message_type": "json"}]},
            "queue": [{"name": "jobs", "message_type": "json", "file_backed_metadata": kept}],
        }
        with ServerProcess(tmp_path / kept, **settings) as server:
            with quire.Client(server.url) as client:
                for number in range(2):
                    client.publish("jobs", {"n": number})
                client.flush(PATIENCE)
                next(iter(client.subscribe("jobs", max_backlog=1)))
            assert server.terminate() == 0
            server.start()
            with quire.Client(server.url) as client:
                jobs = client.subscribe("jobs", max_backlog=2)
                both = itertools.islice(jobs, 2)
                delivered[kept] = {message.json()["n"]: message.delivery_count for message in both}
    assert delivered == {"disabled": {0: 1, 1: 1}, "enabled": {0: 2, 1: 1}}


async def test_an_asyncio_drain_leaves_what_a_handler_has_with_it(
    place: tuple[str, quire.Config | None],
) -> None:
    url, config = place
    begun, may_end = asyncio.Event(), asyncio.Event()
    seen: list[int] = []

    async def handle(message: quire.Message) -> None:
        begun.set()
        await may_end.wait()
        seen.append(message.json()["n"])
        message.ack()

    async with (
        quire.AsyncClient(url, config=config, ack_batch_size=100) as client,
        quire.AsyncClient(url, config=config) as other,
    ):
        for number in range(2):
            await other.publish("tasks", {"n": number})
        await client.subscribe("JOBS", on_message=handle)
        await asyncio.wait_for(begun.wait(), PATIENCE)
        drain = asyncio.ensure_future(client.drain(PATIENCE))
        mine = await other.subscribe("JOBS", max_backlog=10)
        assert (await mine.get(PATIENCE)).json() == {"n": 1}
        with pytest.raises(TimeoutError):
            await mine.get(0.3)
        may_end.set()
        assert (await drain).is_clean
        with pytest.raises(TimeoutError):
            await mine.get(0.3)
    assert seen == [0]
