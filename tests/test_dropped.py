"""A subscription that the program does not hold any more ends, and other consumers get its
messages: on all kinds of server."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
import quire
from support.waiting import PATIENCE, wait_until
from support.ways_in import configured

#: Leases end by nothing else in these tests.
SETTINGS: dict[str, Any] = {"queue": {"name": "JOBS", "message_type": "json", "underlying_topic": "tasks"}}
DROPPED = "was dropped and is ended"


def first(client: quire.Client, topic: str, **options: Any) -> quire.Message:
    """The first message of an iteration that is left by `return`."""
    for message in client.subscribe(topic, **options):
        return message
    raise AssertionError


def publish(client: quire.Client, topic: str, count: int) -> None:
    for n in range(count):
        client.publish(topic, {"n": n})
    client.flush(PATIENCE)


def test_a_dropped_subscription_ends_with_a_warning(way_in: str, tmp_path: Path) -> None:
    with configured(way_in, tmp_path, **SETTINGS) as place, quire.Client(**place) as client:
        publish(client, "orders", 3)
        with pytest.warns(ResourceWarning, match=DROPPED):
            message = first(client, "orders", bookmark=quire.EPOCH)
        assert message.json() == {"n": 0}
        assert client.health().subscriptions == ()


async def test_a_dropped_asyncio_subscription_ends_with_a_warning(way_in: str, tmp_path: Path) -> None:
    with configured(way_in, tmp_path, **SETTINGS) as place:
        async with quire.AsyncClient(**place) as client:
            subscriptions = [await client.subscribe("orders")]
            with pytest.warns(ResourceWarning, match=DROPPED):
                subscriptions.clear()
            assert client.health().subscriptions == ()


def test_what_was_leased_to_a_dropped_subscription_goes_to_others(way_in: str, tmp_path: Path) -> None:
    with (
        configured(way_in, tmp_path, **SETTINGS) as place,
        quire.Client(**place) as client,
        quire.Client(**place) as other,
    ):
        publish(client, "tasks", 3)
        with pytest.warns(ResourceWarning, match=DROPPED):
            # It holds three messages, and the program has begun one and settled it.
            first(client, "JOBS", max_backlog=3).ack()
        with other.subscribe("JOBS", max_backlog=3) as jobs:
            taken = [jobs.get(PATIENCE) for _ in range(2)]
        assert [(job.json()["n"], job.delivery_count) for job in taken] == [(1, 1), (2, 1)]


def test_a_message_under_a_lease_keeps_its_subscription(way_in: str, tmp_path: Path) -> None:
    with configured(way_in, tmp_path, **SETTINGS) as place, quire.Client(**place) as client:
        publish(client, "tasks", 1)
        messages = [client.subscribe("JOBS").get(PATIENCE)]
        gc.collect()
        assert not messages[0].lease_lost
        with pytest.warns(ResourceWarning, match=DROPPED):
            messages.clear()
        with client.subscribe("JOBS") as jobs:
            assert jobs.get(PATIENCE).delivery_count == 2


def test_a_subscription_with_a_handler_is_held_by_its_client(way_in: str, tmp_path: Path) -> None:
    seen: list[int] = []
    with configured(way_in, tmp_path, **SETTINGS) as place, quire.Client(**place) as client:
        client.subscribe("orders", on_message=lambda message: seen.append(message.json()["n"]))
        gc.collect()
        publish(client, "orders", 3)
        wait_until(lambda: seen == [0, 1, 2])


@pytest.mark.parametrize("end", ["unsubscribe", "with", "range", "client"])
def test_a_subscription_that_has_ended_is_dropped_without_a_warning(
    way_in: str, tmp_path: Path, end: str
) -> None:
    with configured(way_in, tmp_path, **SETTINGS) as place, quire.Client(**place) as client:
        publish(client, "orders", 3)
        if end == "range":
            assert len(list(client.subscribe("orders", bookmark="[0:0|1|]"))) == 3
        elif end == "with":
            with client.subscribe("orders"):
                pass
        else:
            subscription = client.subscribe("orders")
            subscription.unsubscribe() if end == "unsubscribe" else client.close()
            del subscription
        gc.collect()
