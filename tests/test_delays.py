"""Messages that are published with a delay: on all kinds of server, over kills of the server, from
a publish store, and on the command line."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
import quire
import quire.testing
from support.command_line import quire as command
from support.waiting import PATIENCE
from support.ways_in import configured

JOBS = {"name": "JOBS", "message_type": "json", "underlying_topic": "jobs"}

#: Seconds.
SHORT = 0.2


def delayed(client: quire.Client) -> Any:
    client.flush(timeout=PATIENCE)
    return client.queue_stats("JOBS")["JOBS"]["delayed"]


def in_a_while() -> datetime:
    return datetime.now(UTC) + timedelta(seconds=SHORT)


@pytest.mark.parametrize(
    "later",
    [
        lambda: {"delay": "200ms"},
        lambda: {"delay": SHORT},
        lambda: {"delay": timedelta(seconds=SHORT)},
        lambda: {"deliver_at": in_a_while()},
        lambda: {"deliver_at": in_a_while().astimezone(timezone(timedelta(hours=5)))},
    ],
)
def test_a_queue_delivers_a_message_when_its_delay_is_over(
    way_in: str, tmp_path: Path, later: Callable[[], dict[str, Any]]
) -> None:
    with configured(way_in, tmp_path, queue=[JOBS]) as reached, quire.Client(**reached) as client:
        ordinary = client.subscribe("jobs")
        jobs = client.subscribe("JOBS", max_backlog=10)
        before = time.monotonic()
        client.publish("jobs", 1, **later())
        client.publish("jobs", 2)
        assert [ordinary.get(timeout=PATIENCE).json() for _ in range(2)] == [1, 2]
        arrived: dict[int, float] = {}
        for _ in range(2):
            message = jobs.get(timeout=PATIENCE)
            arrived[message.json()] = time.monotonic()
            assert message.delivery_count == 1
        # Clocks of the machine may differ by their steps.
        assert arrived[1] - before >= SHORT - 0.01
        assert set(arrived) == {1, 2}


@pytest.mark.parametrize(
    "now", [{"delay": 0}, {"deliver_at": datetime(1969, 1, 1, tzinfo=UTC)}, {"deliver_at": datetime.now(UTC)}]
)
def test_a_delay_that_is_over_is_none(now: dict[str, Any]) -> None:
    config = quire.Config(queue=[JOBS])
    with quire.Client("memory:over", config=config) as client:
        client.publish("jobs", 1, **now)
        client.publish("jobs", 2)
        jobs = client.subscribe("JOBS", max_backlog=10)
        assert [jobs.get(timeout=PATIENCE).json() for _ in range(2)] == [1, 2]


async def test_the_asyncio_client_publishes_with_a_delay(tmp_path: Path) -> None:
    with quire.testing.server(tmp_path, queue=[JOBS]) as server:
        async with quire.AsyncClient(server.url) as client:
            jobs = await client.subscribe("JOBS", max_backlog=10)
            before = time.monotonic()
            await client.publish("jobs", 1, delay=SHORT)
            await (await client.publish_receipt("jobs", 2, deliver_at=in_a_while()))
            await client.publish_many("jobs", [3], delay=SHORT)
            await client.publish("jobs", 4, delay="1h", on_persisted=lambda _: None)
            messages = [await jobs.get(timeout=PATIENCE) for _ in range(3)]
            assert time.monotonic() - before >= SHORT - 0.01
            assert sorted(message.json() for message in messages) == [1, 2, 3]
            with pytest.raises(quire.ConfigError) as caught:
                await client.publish("jobs", 1, delay=1, deliver_at=in_a_while())
            assert caught.value.key == "deliver_at"


def test_receipts_and_batches_have_delays_and_an_item_replaces_that_of_the_call() -> None:
    with quire.Client("memory:batches", config=quire.Config(queue=[JOBS])) as client:
        jobs = client.subscribe("JOBS", max_backlog=10)
        client.publish_receipt("jobs", 1, delay="1h").wait(timeout=PATIENCE)
        assert delayed(client) == 1
        items = [2, quire.Publish(3, delay=0), quire.Publish(4, deliver_at=in_a_while())]
        client.publish_many("jobs", items, delay="1h")
        client.publish_many_receipt("jobs", [5], deliver_at=in_a_while()).wait(timeout=PATIENCE)
        client.publish("jobs", 6, delay="1h", sequence=None)
        client.publish("jobs", 7, delay="1h", expiration="2h", on_persisted=lambda _: None)
        received = [jobs.get(timeout=PATIENCE).json() for _ in range(3)]
        assert received[0] == 3
        assert sorted(received[1:]) == [4, 5]
        assert delayed(client) == 4


WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"delay": 1, "deliver_at": datetime.now(UTC)}, "deliver_at", "does not go together with delay"),
    ({"delay": "soon"}, "delay", "not a duration"),
    ({"delay": -1}, "delay", "not between 0"),
    ({"delay": b"5s"}, "delay", "not a duration"),
    ({"delay": "3654d"}, "delay", "more than 10 years"),
    ({"deliver_at": datetime(2300, 1, 1, tzinfo=UTC)}, "deliver_at", "more than 10 years"),
    ({"deliver_at": datetime.max.replace(tzinfo=UTC)}, "deliver_at", "more than 10 years"),
    ({"deliver_at": datetime(2030, 1, 1)}, "deliver_at", "no time zone"),
    ({"deliver_at": "2030-01-01T00:00:00Z"}, "deliver_at", "expected a datetime, got `str`"),
    ({"deliver_at": 5}, "deliver_at", "expected a datetime, got `int`"),
    ({"delay": "2m", "expiration": "1m"}, "expiration", "would expire after 60 s, before its delay ends"),
    ({"delay": "1m", "expiration": "1m"}, "expiration", "would expire after 60 s, before its delay ends"),
    (
        {"deliver_at": datetime.now(UTC) + timedelta(days=1), "expiration": "1h"},
        "expiration",
        r"would expire after 3,600 s, before its delay ends \(deliver_at\)",
    ),
]


@pytest.mark.parametrize(("arguments", "key", "reason"), WRONG)
def test_wrong_arguments_are_refused_by_every_call(arguments: dict[str, Any], key: str, reason: str) -> None:
    with quire.Client("memory:wrong", config=quire.Config(queue=[JOBS])) as client:
        calls: list[Callable[[], object]] = [
            lambda: client.publish("jobs", 1, **arguments),
            lambda: client.publish("jobs", 1, on_persisted=lambda _: None, **arguments),
            lambda: client.publish_receipt("jobs", 1, **arguments),
            lambda: client.publish_many("jobs", [1], **arguments),
            lambda: client.publish_many_receipt("jobs", [quire.Publish(1, **arguments)]),
        ]
        for call in calls:
            with pytest.raises(quire.ConfigError, match=reason) as caught:
                call()
            assert caught.value.key == key
        client.flush(timeout=PATIENCE)
        assert client.queue_stats("JOBS")["JOBS"]["depth"] == 0
        client.publish("jobs", 1, delay="1h", expiration=0)
        client.publish("jobs", 1, delay="3653d")
        assert delayed(client) == 2


def test_a_topic_without_a_queue_takes_no_delay(url: str) -> None:
    with quire.Client(url) as client:
        expected = 'the message has a delay, and no queue takes messages from the topic "orders"'
        # A delay that is over when the message arrives has no effect, so these end long after the
        # test.
        client.publish("orders", 1, delay="1h")
        with pytest.raises(quire.UnknownQueueError, match=expected) as caught:
            client.flush(timeout=PATIENCE)
        assert caught.value.code == "unknown_queue"
        receipt = client.publish_receipt("orders", 1, deliver_at=datetime.now(UTC) + timedelta(hours=1))
        with pytest.raises(quire.UnknownQueueError, match="quire queue ls"):
            receipt.wait(timeout=PATIENCE)
        client.publish("orders", 1, delay=0)
        client.flush(timeout=PATIENCE)


def test_a_delay_survives_a_kill_of_the_server(tmp_path: Path) -> None:
    with quire.testing.ServerProcess(tmp_path, queue=[JOBS]) as server:
        with quire.Client(server.url) as client:
            before = time.monotonic()
            client.publish("jobs", 1, delay="1h")
            client.publish("jobs", 2, delay=SHORT)
            assert delayed(client) >= 1
        server.kill()
        server.start()
        with quire.Client(server.url) as client:
            jobs = client.subscribe("JOBS", max_backlog=10)
            assert jobs.get(timeout=PATIENCE).json() == 2
            assert time.monotonic() - before >= SHORT - 0.01
            assert delayed(client) == 1


def test_a_publish_store_keeps_the_end_of_a_delay(tmp_path: Path) -> None:
    store = tmp_path / "publishes"
    with quire.testing.ServerProcess(tmp_path / "data", queue=[JOBS]) as server:
        server.kill()
        client = quire.Client(server.url, name="sensor", publish_store=store, connect="background")
        client.publish("jobs", 1, delay="1h")
        client.publish("jobs", 2, delay="1ms")
        client.publish("jobs", 3, deliver_at=datetime.now(UTC) + timedelta(hours=1))
        client.close()
        server.start()
        with quire.Client(server.url, name="sensor", publish_store=store) as client:
            assert client.subscribe("JOBS", max_backlog=10).get(timeout=PATIENCE).json() == 2
            assert delayed(client) == 2


def test_the_command_line_publishes_with_a_delay(tmp_path: Path) -> None:
    with quire.testing.server(tmp_path, queue=[JOBS]) as server, quire.Client(server.url) as client:
        for options in (
            ["--delay", "1h"],
            ["--deliver-at", f"{datetime.now(UTC) + timedelta(hours=1):%FT%TZ}"],
        ):
            done = command("publish", "jobs", *options, "--json", stdin="1\n2\n", url=server.url)
            assert done.returncode == 0, done.stderr
            assert json.loads(done.stdout)["published"] == 2
        assert delayed(client) == 4
        for options, reason in (
            (["--delay", "soon"], "--delay: 'soon' is not a duration"),
            (["--deliver-at", "soon"], "--deliver-at: 'soon' is not a time"),
            (
                ["--delay", "1s", "--deliver-at", "2030-01-01"],
                "--deliver-at: it does not go together with --delay",
            ),
        ):
            done = command("publish", "jobs", *options, stdin="1\n", url=server.url)
            assert (done.returncode, done.stdout) == (2, "")
            assert reason in done.stderr
        # A time without a zone is UTC, and a delay needs a queue.
        done = command("publish", "jobs", "--deliver-at", "2020-01-01T08:00:00", stdin="3\n", url=server.url)
        assert done.returncode == 0, done.stderr
        assert client.subscribe("JOBS").get(timeout=PATIENCE).json() == 3
        done = command("publish", "orders", "--delay", "1h", stdin="1\n", url=server.url)
        assert done.returncode == 1
        assert "no queue takes messages from the topic" in done.stderr
