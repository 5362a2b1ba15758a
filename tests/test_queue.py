"""Queues as a program sees them: the same on a server, on files in this process, and in memory."""

from __future__ import annotations

import asyncio
import itertools
import os
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
import quire._worker
from quire.testing import ServerProcess, server
from server_process import PATIENCE, wait_until

TIMEOUT = PATIENCE
QUEUES = (
    # So long that no lease ends by itself in a test.
    {"name": "JOBS", "message_type": "json", "underlying_topic": "tasks", "lease_period": "1h"},
    {"name": "SHORT", "message_type": "json", "underlying_topic": "brief", "lease_period": "1s"},
    {"name": "ONCE", "message_type": "json", "underlying_topic": "single", "semantics": "at-most-once"},
    {"name": "STRICT", "message_type": "json", "underlying_topic": "tasks", "leasing": "strict"},
    {"name": "plain", "message_type": "json"},
)
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
    client.flush(TIMEOUT)


def numbers(messages: list[quire.Message]) -> list[int]:
    return [message.json()["n"] for message in messages]


def depth(client: quire.Client, queue: str = "JOBS") -> int:
    return int(client.queue_stats(queue)[queue]["depth"])


def test_a_message_comes_under_a_lease_and_goes_with_its_acknowledgement(connect: Connect) -> None:
    client = connect()
    publish(client, 1)
    before = datetime.now(UTC)
    with client.subscribe("JOBS", max_backlog=5) as jobs:
        message = jobs.get(TIMEOUT)
        assert (message.json(), message.topic, message.queue) == ({"n": 0}, "JOBS", "JOBS")
        assert message.source_topic == "tasks"
        assert (message.delivery_count, message.cancel_count) == (1, 0)
        assert message.lease_period == timedelta(hours=1)
        assert message.lease_deadline is not None
        assert before < message.lease_deadline - timedelta(minutes=59)
        assert not message.lease_lost
        message.ack()
        client.flush(TIMEOUT)
        assert depth(client) == 0
        assert not message.lease_lost


def test_a_block_that_raises_gives_the_message_back(connect: Connect) -> None:
    client = connect()
    publish(client, 1)
    jobs = client.subscribe("JOBS")
    with pytest.raises(RuntimeError), jobs.get(TIMEOUT):
        raise RuntimeError("not today")
    again = jobs.get(TIMEOUT)
    assert (again.delivery_count, again.cancel_count) == (2, 1)
    with again as message:
        assert message is again
    client.flush(TIMEOUT)
    assert depth(client) == 0


def test_the_backlog_bounds_what_is_out(connect: Connect) -> None:
    client = connect()
    publish(client, 10)
    jobs = client.subscribe("JOBS", max_backlog=3)
    first = [jobs.get(TIMEOUT) for _ in range(3)]
    assert numbers(first) == [0, 1, 2]
    with pytest.raises(TimeoutError):
        jobs.get(0.05)
    first[1].ack()
    assert jobs.get(TIMEOUT).json()["n"] == 3
    first[0].expire()
    assert jobs.get(TIMEOUT).json()["n"] == 4


def test_acknowledgements_wait_for_their_batch(connect: Connect) -> None:
    client = connect(ack_batch_size=3, ack_timeout="1h")
    publish(client, 5)
    jobs = client.subscribe("JOBS", max_backlog=10)
    messages = [jobs.get(TIMEOUT) for _ in range(5)]
    for message in messages[:2]:
        message.ack()
    assert depth(client) == 5
    messages[2].ack()
    assert depth(client) == 2
    messages[3].ack()
    client.flush(TIMEOUT)
    assert depth(client) == 1


def test_an_acknowledgement_waits_no_longer_than_ack_timeout(connect: Connect) -> None:
    client = connect(ack_batch_size=100, ack_timeout="50ms")
    publish(client, 1)
    client.subscribe("JOBS", max_backlog=100).get(TIMEOUT).ack()
    wait_until(lambda: depth(client) == 0)


def test_iterating_acknowledges_when_it_is_asked_to(connect: Connect) -> None:
    client = connect(auto_ack=True)
    publish(client, 5)
    for message in client.subscribe("JOBS", max_backlog=2):
        if message.json()["n"] == 4:
            break
    client.flush(TIMEOUT)
    assert depth(client) == 1


def test_a_handler_acknowledges_what_it_returned_from(connect: Connect) -> None:
    client = connect(auto_ack=True)
    publish(client, 5)
    seen = []
    done = threading.Event()

    def handle(message: quire.Message) -> None:
        seen.append(message.json()["n"])
        if len(seen) == 5:
            done.set()
        if seen[-1] == 2:
            raise RuntimeError("two")

    client.subscribe("JOBS", max_backlog=10, on_message=handle)
    assert done.wait(TIMEOUT)
    wait_until(lambda: depth(client) == 1)
    assert seen == [0, 1, 2, 3, 4]


def test_leases_end_with_the_connection(connect: Connect) -> None:
    first, second = connect(), connect()
    publish(first, 1)
    held = first.subscribe("JOBS").get(TIMEOUT)
    first.close()
    assert held.lease_lost
    held.ack()
    assert second.subscribe("JOBS").get(TIMEOUT).delivery_count == 2


def test_a_lease_that_is_over_is_lost_and_one_that_is_extended_is_not(connect: Connect) -> None:
    first, second = connect(), connect()
    publish(first, 2)
    mine = first.subscribe("JOBS", max_backlog=2)
    lost, kept = mine.get(TIMEOUT), mine.get(TIMEOUT)
    kept.extend("2h")
    # The server ends this one, and delivers the message to somebody else.
    lost.extend("1ms")
    theirs = second.subscribe("JOBS", max_backlog=2)
    again = theirs.get(TIMEOUT)
    assert (again.json(), again.delivery_count) == (lost.json(), 2)
    assert lost.lease_lost
    assert not kept.lease_lost
    assert kept.lease_deadline is not None
    assert kept.lease_deadline > datetime.now(UTC) + timedelta(minutes=61)
    again.ack()
    kept.ack()
    first.flush(TIMEOUT)
    second.flush(TIMEOUT)
    assert depth(first) == 0


def test_a_message_whose_lease_period_is_over_comes_again(connect: Connect) -> None:
    client = connect()
    publish(client, 1, "brief")
    jobs = client.subscribe("SHORT")
    lost, again = jobs.get(TIMEOUT), jobs.get(TIMEOUT)
    assert again.delivery_count == lost.delivery_count + 1
    assert lost.lease_lost


@pytest.mark.parametrize(("queue", "left"), [("JOBS", 0), ("STRICT", 1)])
def test_a_late_acknowledgement_removes_the_message_unless_the_queue_is_strict(
    connect: Connect, queue: str, left: int
) -> None:
    first, second = connect(), connect()
    publish(first, 1)
    mine = first.subscribe(queue)
    late = mine.get(TIMEOUT)
    mine.unsubscribe()
    again = second.subscribe(queue).get(TIMEOUT)
    assert (again.delivery_count, late.lease_lost) == (2, True)
    late.ack()
    first.flush(TIMEOUT)
    assert late.lease_lost
    assert depth(first, queue) == left
    if left:
        again.ack()
        second.flush(TIMEOUT)
        assert depth(first, queue) == 0
    else:
        wait_until(lambda: again.lease_lost)


def test_a_message_acknowledges_by_its_topic_and_bookmark(connect: Connect) -> None:
    client = connect()
    publish(client, 1)
    publish(client, 1, "brief")
    publish(client, 1, "plain")
    jobs = client.subscribe("^(JOBS|SHORT|plain)$", max_backlog=3)
    messages = [jobs.get(TIMEOUT) for _ in range(3)]
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
    message = once.get(TIMEOUT)
    assert (message.lease_period, message.lease_deadline, message.lease_lost) == (None, None, False)
    with pytest.raises(TimeoutError):
        once.get(0.05)
    message.ack()
    assert once.get(TIMEOUT).json() == {"n": 1}
    assert depth(client, "ONCE") == 0


def test_messages_are_settled_by_bookmark(connect: Connect) -> None:
    client = connect()
    publish(client, 6)
    jobs = client.subscribe("JOBS", max_backlog=6)
    messages = [jobs.get(TIMEOUT) for _ in range(6)]
    client.ack("JOBS", messages[0].bookmark)
    client.ack("JOBS", [messages[1], messages[2].bookmark or ""])
    client.ack("JOBS", messages[3], expire=True)
    client.ack("JOBS", messages[4], cancel=True)
    assert jobs.get(TIMEOUT).json() == {"n": 4}
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
    with pytest.raises(quire.ConfigError, match="exclude"):
        client.ack("JOBS", "1|1|", cancel=True, expire=True)
    with pytest.raises(quire.ConfigError, match="max_backlog"):
        client.subscribe("JOBS", max_backlog=-1)
    client.publish("plain", b"x")
    with pytest.raises(quire.ConfigError, match="queue"):
        client.subscribe("plain", bookmark=quire.EPOCH).get(TIMEOUT).cancel()


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
    assert client.drain(TIMEOUT).is_clean
    worker.join(TIMEOUT)
    assert sorted(set(seen)) == list(range(200))
    assert len(seen) == 204
    assert reports == [quire.WorkReport(acknowledged=200, cancelled=4, lost=0)]


def test_a_drain_leaves_what_a_handler_has_with_it(connect: Connect) -> None:
    client, other = connect(ack_batch_size=100), connect()
    publish(other, 3)
    begun, may_end = threading.Event(), threading.Event()
    seen: list[int] = []

    def handle(message: quire.Message) -> None:
        begun.set()
        assert may_end.wait(TIMEOUT)
        seen.append(message.json()["n"])
        message.ack()

    client.subscribe("JOBS", max_backlog=2, on_message=handle)
    assert begun.wait(TIMEOUT)
    reports: list[quire.DrainReport] = []
    drain = threading.Thread(target=lambda: reports.append(client.drain(TIMEOUT)))
    drain.start()
    mine = other.subscribe("JOBS", max_backlog=10)
    assert mine.get(TIMEOUT).json() == {"n": 2}, "what nobody has goes to others"
    with pytest.raises(TimeoutError):
        mine.get(0.3)
    may_end.set()
    drain.join(TIMEOUT)
    assert (seen, [report.is_clean for report in reports]) == ([0, 1], [True])
    with pytest.raises(TimeoutError):
        mine.get(0.3)


def test_a_worker_keeps_the_leases_of_what_it_handles(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A renewal every 10 ms of a lease of an hour.
    monkeypatch.setattr(quire._worker, "RENEWALS_PER_PERIOD", 360_000)
    client, other = connect(), connect()
    publish(other, 1)
    handled = threading.Event()

    def deadline(message: quire.Message) -> datetime:
        assert message.lease_deadline is not None
        return message.lease_deadline

    def handle(message: quire.Message) -> None:
        for _ in range(3):
            before = deadline(message)
            wait_until(lambda: deadline(message) > before)  # noqa: B023
        assert not message.lease_lost
        handled.set()

    worker = threading.Thread(target=lambda: client.process("JOBS", handle))
    worker.start()
    assert handled.wait(TIMEOUT)
    wait_until(lambda: depth(other) == 0)
    client.drain(TIMEOUT)
    worker.join(TIMEOUT)
    assert other.queue_stats("JOBS")["JOBS"]["expired_leases"] == 0


def test_a_worker_that_stops_finishes_what_it_handles_and_returns_the_rest(connect: Connect) -> None:
    client, other = connect(), connect()
    publish(other, 10)
    begun, may_end = threading.Event(), threading.Event()

    def handle(message: quire.Message) -> None:
        begun.set()
        assert may_end.wait(TIMEOUT)

    reports: list[quire.WorkReport] = []

    def work() -> None:
        reports.append(client.process("JOBS", handle, max_backlog=10))

    worker = threading.Thread(target=work)
    worker.start()
    assert begun.wait(TIMEOUT)
    drain = threading.Thread(target=client.drain, args=(TIMEOUT,))
    drain.start()
    wait_until(lambda: all(worker._stopping.is_set() for worker in client._workers))
    may_end.set()
    worker.join(TIMEOUT)
    drain.join(TIMEOUT)
    assert reports[0].acknowledged == 1
    stats = other.queue_stats("JOBS")["JOBS"]
    assert stats["depth"] == stats["waiting"] == 9
    assert stats["cancelled"] == 0


async def test_the_asyncio_client_works_on_queues_too(place: tuple[str, quire.Config | None]) -> None:
    url, config = place
    async with quire.AsyncClient(url, config=config, auto_ack=True) as client:
        for number in range(20):
            await client.publish("tasks", {"n": number})
        await client.flush(TIMEOUT)
        jobs = await client.subscribe("JOBS", max_backlog=2)
        assert numbers([await jobs.get(TIMEOUT) for _ in range(4)]) == [0, 1, 2, 3]
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
        await asyncio.wait_for(all_seen.wait(), TIMEOUT)
        deadline = time.monotonic() + TIMEOUT
        while (await client.queue_stats("JOBS"))["JOBS"]["depth"]:
            assert time.monotonic() < deadline
        drained = await client.drain(TIMEOUT)
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
        await asyncio.wait_for(begun.wait(), TIMEOUT)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        again = await (await client.subscribe("JOBS")).get(TIMEOUT)
        assert (again.delivery_count, again.cancel_count) == (2, 0)


def test_a_worker_on_what_is_no_queue_says_so(
    connect: Connect, place: tuple[str, quire.Config | None]
) -> None:
    client = connect()
    with pytest.raises(quire.UnknownQueueError, match='"JOBZ"'):
        client.process("JOBZ", lambda message: client.close())
    # The topic below a queue is none, either.
    client.publish("tasks", {"n": 1})
    client.flush(TIMEOUT)
    with pytest.raises(quire.UnknownQueueError, match='"tasks"'):
        client.process("tasks", lambda message: client.close())
    assert not client.health().subscriptions

    async def work() -> None:
        url, config = place
        async with quire.AsyncClient(url, config=config) as awaiting:
            with pytest.raises(quire.UnknownQueueError, match='"JOBZ"'):
                await asyncio.wait_for(awaiting.process("JOBZ", lambda message: None), TIMEOUT)

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
        said, _ = worker.communicate("\n", timeout=TIMEOUT)
        assert said == "1 0\n"
        assert worker.returncode == 0
        stats = client.queue_stats("JOBS")["JOBS"]
        assert (stats["depth"], stats["waiting"], stats["acknowledged"]) == (4, 4, 1)


def test_what_was_acknowledged_stays_so_over_a_restart(tmp_path: Path) -> None:
    with server(tmp_path, queue=QUEUES) as running, quire.Client(running.url) as client:
        publish(client, 10)
        jobs = client.subscribe("JOBS", max_backlog=10)
        for message in [jobs.get(TIMEOUT) for _ in range(10)]:
            if message.json()["n"] % 2:
                message.ack()
        client.flush(TIMEOUT)
    with server(tmp_path, queue=QUEUES) as running, quire.Client(running.url) as client:
        jobs = client.subscribe("JOBS", max_backlog=10)
        assert numbers([jobs.get(TIMEOUT) for _ in range(5)]) == [0, 2, 4, 6, 8]


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
                client.flush(TIMEOUT)
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
        await asyncio.wait_for(begun.wait(), TIMEOUT)
        drain = asyncio.ensure_future(client.drain(TIMEOUT))
        mine = await other.subscribe("JOBS", max_backlog=10)
        assert (await mine.get(TIMEOUT)).json() == {"n": 1}
        with pytest.raises(TimeoutError):
            await mine.get(0.3)
        may_end.set()
        assert (await drain).is_clean
        with pytest.raises(TimeoutError):
            await mine.get(0.3)
    assert seen == [0]
