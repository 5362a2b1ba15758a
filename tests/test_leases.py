"""The owner of the lease of a message: the handler that runs, the client that fetched the message,
or none of them.

The client renews what it fetched and what a handler works on. It drops what it lost, and gives back
what cannot begin in time (docs/queues.md, "Ownership of a lease").
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import quire
from quire.testing import ServerProcess, server
from support.waiting import PATIENCE, wait_until

#: The queue of docs/how-to/worker.md with short leases.
MAIL = {
    "name": "mail",
    "message_type": "json",
    "underlying_topic": "mail.requests",
    "lease_period": "400ms",
    "max_deliveries": 5,
    "dead_letter_topic": "mail.failed",
}
QUEUES = (
    MAIL,
    # No lease ends by itself in a test.
    {"name": "JOBS", "message_type": "json", "underlying_topic": "tasks", "lease_period": "1h"},
    {"name": "OTHERS", "message_type": "json", "underlying_topic": "chores", "lease_period": "1h"},
)
PLACES = itertools.count()

Connect = Callable[..., quire.Client]
Place = tuple[str, quire.Config | None]


@pytest.fixture(params=["server", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """A URL, and the configuration that clients on it bring."""
    if request.param == "server":
        with server(tmp_path, queue=QUEUES) as running:
            yield running.url, None
    else:
        yield f"memory:leases-{next(PLACES)}", quire.Config(queue=QUEUES)


@pytest.fixture
def connect(place: Place) -> Iterator[Connect]:
    url, config = place
    clients: list[quire.Client] = []

    def make(**options: Any) -> quire.Client:
        clients.append(quire.Client(url, config=config, **options))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


def publish(client: quire.Client, count: int, topic: str = "mail.requests") -> None:
    client.publish_many(topic, [{"n": n} for n in range(count)])
    client.flush(PATIENCE)


def figures(client: quire.Client, queue: str = "mail") -> dict[str, int]:
    stats = client.queue_stats(queue)[queue]
    return {name: stats[name] for name in ("depth", "acknowledged", "expired")}


def deadline(message: quire.Message) -> datetime:
    assert message.lease_deadline is not None
    return message.lease_deadline


def outlast(message: quire.Message, periods: float = 2) -> None:
    """Returns when the lease was renewed so often that it has lasted for some periods more."""
    period = message.lease_period
    assert period is not None
    end = deadline(message) + periods * period
    wait_until(lambda: deadline(message) > end)


def done(count: int) -> dict[str, int]:
    return {"depth": 0, "acknowledged": count, "expired": 0}


# Handlers that take longer than a lease


@pytest.mark.parametrize("concurrency", [1, 2])
def test_a_worker_whose_handlers_outlast_their_leases_runs_every_job_once(
    connect: Connect, concurrency: int
) -> None:
    client, other = connect(), connect()
    publish(other, 4)
    ran: list[int] = []

    def handle(message: quire.Message) -> None:
        ran.append(message.json()["n"])
        outlast(message)
        if len(ran) == 4:
            client.close()

    report = client.process("mail", handle, concurrency=concurrency)
    assert sorted(ran) == [0, 1, 2, 3]
    assert (report.acknowledged, report.cancelled, report.expired) == (4, 0, 0)
    assert figures(other) == done(4)


async def test_an_asyncio_worker_whose_handlers_outlast_their_leases_runs_every_job_once(
    place: Place, connect: Connect
) -> None:
    other = connect()
    publish(other, 3)
    ran: list[int] = []
    async with quire.AsyncClient(place[0], config=place[1]) as client:

        async def handle(message: quire.Message) -> None:
            ran.append(message.json()["n"])
            # It blocks the event loop, which renews nothing.
            outlast(message)
            if len(ran) == 3:
                await client.close()

        report = await client.process("mail", handle)
    assert (ran, report.acknowledged, report.expired) == ([0, 1, 2], 3, 0)
    assert figures(other) == done(3)


def test_workers_with_long_handlers_do_not_run_what_another_one_has_fetched(connect: Connect) -> None:
    other = connect()
    publish(other, 12)
    clients = [connect(), connect()]
    ran: list[int] = []

    def handle(message: quire.Message) -> None:
        ran.append(message.json()["n"])
        outlast(message, 0.5)

    workers = [
        threading.Thread(target=client.process, args=("mail", handle), kwargs={"max_backlog": 4})
        for client in clients
    ]
    for worker in workers:
        worker.start()
    wait_until(lambda: figures(other)["depth"] == 0)
    for client, worker in zip(clients, workers, strict=True):
        client.drain(PATIENCE)
        worker.join(PATIENCE)
    assert (sorted(ran), figures(other)) == (list(range(12)), done(12))


def test_a_handler_of_a_subscription_outlasts_its_lease(connect: Connect) -> None:
    client, other = connect(auto_ack=True), connect()
    publish(other, 3)
    ran: list[int] = []

    def handle(message: quire.Message) -> None:
        ran.append(message.json()["n"])
        outlast(message)

    client.subscribe("mail", max_backlog=3, on_message=handle)
    wait_until(lambda: figures(other)["depth"] == 0)
    assert (ran, figures(other)) == ([0, 1, 2], done(3))


def test_after_its_handler_a_message_without_a_verdict_is_extended_by_the_program_only(
    connect: Connect,
) -> None:
    client, other = connect(), connect()
    publish(other, 1)
    kept: list[quire.Message] = []
    client.subscribe("mail", on_message=kept.append)
    wait_until(lambda: len(kept) == 2)
    assert [message.delivery_count for message in kept] == [1, 2]
    assert kept[0].lease_lost


@pytest.mark.parametrize("way", ["get", "iteration", "batches"])
def test_a_program_that_takes_messages_gets_each_with_a_renewed_lease(connect: Connect, way: str) -> None:
    client, other = connect(), connect()
    publish(other, 4)
    jobs = client.subscribe("mail", max_backlog=4)
    take: dict[str, Callable[[], quire.Message]] = {
        "get": lambda: jobs.get(PATIENCE),
        "iteration": lambda: next(iter(jobs)),
        "batches": lambda: next(jobs.batches(1))[0],
    }
    for n in range(4):
        message = take[way]()
        assert (message.json()["n"], message.delivery_count) == (n, 1)
        # The program extends the lease, for longer than the others last without their client.
        message.extend("1h")
        before = deadline(message)
        wait_until(lambda: datetime.now(before.tzinfo).timestamp() > started(message) + 0.6)  # noqa: B023
        assert not message.lease_lost
        message.ack()
    client.flush(PATIENCE)
    assert figures(other) == done(4)


def started(message: quire.Message) -> float:
    """The time of the `extend("1h")`."""
    return deadline(message).timestamp() - 3600


# Without renewals


def test_without_extend_a_message_that_cannot_begin_in_time_goes_back_without_counting(
    connect: Connect,
) -> None:
    client, other = connect(), connect()
    publish(other, 2)
    begun, may_end = threading.Event(), threading.Event()

    def handle(message: quire.Message) -> None:
        message.extend("1h")
        begun.set()
        assert may_end.wait(PATIENCE)

    worker = threading.Thread(target=client.process, args=("mail", handle), kwargs={"extend": False})
    worker.start()
    assert begun.wait(PATIENCE)
    taken = other.subscribe("mail").get(PATIENCE)
    assert (taken.json()["n"], taken.delivery_count) == (1, 1)
    taken.ack()
    other.flush(PATIENCE)
    may_end.set()
    client.drain(PATIENCE)
    worker.join(PATIENCE)
    assert figures(other) == done(2)


# Lost connections


def numbers_of(jobs: quire.Subscription, server: ServerProcess, way: str) -> Iterator[int]:
    """The messages that a program takes, of which the server is killed after the fortieth."""
    for count in itertools.count():
        if count == 40:
            server.kill()
            wait_until(lambda: jobs._client.state == "reconnecting")
            server.start()
        message = jobs.get(PATIENCE) if way == "get" else next(iter(jobs))
        assert not message.lease_lost
        with message:
            yield message.json()["n"]


@pytest.mark.parametrize("way", ["get", "iteration"])
def test_after_a_reconnect_no_message_comes_twice(tmp_path: Path, way: str) -> None:
    with (
        ServerProcess(tmp_path, queue=QUEUES) as process,
        quire.Client(process.url, name="publisher") as publisher,
        quire.Client(process.url, name="worker") as client,
    ):
        publish(publisher, 100, "tasks")
        jobs = client.subscribe("JOBS", max_backlog=30)
        taken = list(itertools.islice(numbers_of(jobs, process, way), 100))
        assert [n for n, count in Counter(taken).items() if count > 1] == []
        assert sorted(taken) == list(range(100))


def test_what_was_acknowledged_before_the_server_was_killed_does_not_come_again(tmp_path: Path) -> None:
    with (
        ServerProcess(tmp_path, queue=QUEUES) as process,
        quire.Client(process.url, name="publisher") as publisher,
        quire.Client(process.url, name="worker", ack_batch_size=1) as client,
    ):
        publish(publisher, 40, "tasks")
        jobs = client.subscribe("JOBS", max_backlog=10)
        taken = []
        for n in range(40):
            message = jobs.get(PATIENCE)
            taken.append(message.json()["n"])
            message.ack()
            if n == 20:
                # Its last acknowledgements are not durable, and perhaps not sent.
                process.kill()
                process.start()
        assert sorted(taken) == list(range(40))


def test_a_handler_that_runs_while_the_server_restarts_is_not_called_again(tmp_path: Path) -> None:
    with (
        ServerProcess(tmp_path, queue=QUEUES) as process,
        quire.Client(process.url, name="publisher") as publisher,
        quire.Client(process.url, name="worker") as client,
    ):
        publish(publisher, 2, "tasks")
        ran: list[int] = []

        def handle(message: quire.Message) -> None:
            ran.append(message.json()["n"])
            if len(ran) == 1:
                process.kill()
                wait_until(lambda: message.lease_lost)
                process.start()
                # The server delivers the message again, and the handler works on it.
                wait_until(lambda: not message.lease_lost)
            else:
                client.drain()

        report = client.process("JOBS", handle)
        assert (ran, report.acknowledged) == ([0, 1], 2)
        assert report.lost >= 1
        assert figures(publisher, "JOBS")["depth"] == 0


def test_lost_leases_are_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with (
        ServerProcess(tmp_path, queue=QUEUES) as process,
        quire.Client(process.url, name="publisher") as publisher,
        quire.Client(process.url, name="worker") as client,
    ):
        publish(publisher, 3, "tasks")
        jobs = client.subscribe("JOBS", max_backlog=3)
        assert jobs.get(PATIENCE).json() == {"n": 0}
        wait_until(lambda: figures(publisher, "JOBS")["depth"] == 3)
        wait_until(lambda: jobs._core.outstanding_count == 3)
        process.kill()
        text = 'client "worker": lost 3 leases of the queue "JOBS" (1 of messages that the program had begun)'
        wait_until(lambda: text in caplog.text)


# Replaced and dropped subscriptions


@pytest.mark.parametrize(
    "change", [{"topic": "plain"}, {"topic": "OTHERS"}, {"bookmark": quire.EPOCH, "topic": "plain"}]
)
def test_a_replaced_subscription_keeps_its_leases(connect: Connect, change: dict[str, Any]) -> None:
    client, other = connect(), connect()
    publish(other, 3, "tasks")
    jobs = client.subscribe("JOBS", max_backlog=2)
    first = jobs.get(PATIENCE)
    jobs.replace(**change)
    theirs = other.subscribe("JOBS", max_backlog=10)
    assert theirs.get(PATIENCE).json() == {"n": 2}
    first.extend()
    assert not first.lease_lost
    second = jobs.get(PATIENCE)
    assert (second.queue, second.json(), second.lease_lost) == ("JOBS", {"n": 1}, False)
    first.ack()
    second.cancel()
    again = theirs.get(PATIENCE)
    assert (again.json(), again.cancel_count) == ({"n": 1}, 1)
    client.flush(PATIENCE)
    assert figures(other, "JOBS")["acknowledged"] == 1


def test_a_replaced_subscription_gives_back_what_it_has_not_begun_without_counting(connect: Connect) -> None:
    client, other = connect(), connect()
    publish(other, 2, "tasks")
    jobs = client.subscribe("JOBS", max_backlog=2)
    wait_until(lambda: jobs._core.outstanding_count == 2)
    jobs.replace(topic="plain")
    jobs.unsubscribe()
    theirs = other.subscribe("JOBS", max_backlog=2)
    assert [theirs.get(PATIENCE).delivery_count for _ in range(2)] == [1, 1]


@pytest.mark.filterwarnings("ignore:the subscription .* was dropped:ResourceWarning")
def test_a_dropped_subscription_keeps_what_was_begun_and_gives_back_the_rest(connect: Connect) -> None:
    client, other = connect(), connect()
    publish(other, 3, "tasks")
    jobs = client.subscribe("JOBS", max_backlog=3)
    kept = jobs.get(PATIENCE)
    del jobs
    theirs = other.subscribe("JOBS", max_backlog=3)
    taken = [theirs.get(PATIENCE) for _ in range(2)]
    assert [(message.json()["n"], message.delivery_count) for message in taken] == [(1, 1), (2, 1)]
    assert not kept.lease_lost
    kept.ack()
    client.flush(PATIENCE)
    assert figures(other, "JOBS")["acknowledged"] == 1


# Interruptions


def test_a_worker_continues_after_a_handler_that_waited_for_a_cancelled_task(
    connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    client, other = connect(), connect()
    publish(other, 2, "tasks")
    counts: list[int] = []

    def handle(message: quire.Message) -> None:
        counts.append(message.cancel_count)
        if len(counts) == 1:
            raise asyncio.CancelledError
        if len(counts) == 3:
            client.close()

    report = client.process("JOBS", handle)
    assert (report.acknowledged, report.cancelled) == (2, 1)
    assert "waited for a task that was cancelled" in caplog.text


@pytest.mark.parametrize("way", ["iteration", "batches"])
def test_an_iteration_continues_after_the_exception_of_a_signal_handler(connect: Connect, way: str) -> None:
    class Interruption(Exception):
        pass

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise Interruption

    client = connect()
    jobs = client.subscribe("JOBS")
    messages: Iterator[quire.Message | list[quire.Message]] = (
        iter(jobs) if way == "iteration" else jobs.batches()
    )
    before = signal.signal(signal.SIGUSR1, interrupt)
    timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGUSR1))
    try:
        timer.start()
        with pytest.raises(Interruption):
            next(messages)
    finally:
        timer.join(PATIENCE)
        signal.signal(signal.SIGUSR1, before)
    publish(client, 1, "tasks")
    found = next(messages)
    assert (found if isinstance(found, quire.Message) else found[0]).json() == {"n": 0}
