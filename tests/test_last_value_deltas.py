"""Deltas of last-value topics for programs: publishing and receiving them. Constructed fields.

docs/last-values.md has the rules, in its sections 10 and 11.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import quire
from support.last_values import SETTINGS, changes_of, order, publish, received
from support.waiting import PATIENCE, wait_until
from support.ways_in import configured

FIELDS: dict[str, Any] = {
    "name": "fields",
    "message_type": "json",
    "preprocessing": ["CONCAT(/customer, '-', /number) AS /order_id"],
    "key": ["/order_id"],
    "enrichment": "/qty - COALESCE(/qty OF PREVIOUS, 0) AS /change",
}


@pytest.fixture
def place(way_in: str, tmp_path: Path) -> Iterator[dict[str, Any]]:
    with configured(way_in, tmp_path, **SETTINGS) as place:
        yield place


@pytest.fixture
def client(place: dict[str, Any]) -> Iterator[quire.Client]:
    with quire.Client(**place) as client:
        yield client


def test_a_delta_is_merged_into_the_record_with_its_key(client: quire.Client) -> None:
    publish(client, order(1, side="buy", at={"x": 1, "y": 2}))
    with client.sow_and_subscribe("orders") as subscription:
        subscription.get(timeout=PATIENCE)
        assert client.delta_publish("orders", {"id": 1, "qty": 5, "at": {"y": 3}}) == 2
        whole = {"id": 1, "qty": 5, "side": "buy", "at": {"x": 1, "y": 3}}
        assert subscription.get(timeout=PATIENCE).json() == whole
    assert client.delta_publish("orders", {"id": 2, "qty": 1}, sequence=None) is None
    client.delta_publish("prices", {"price": 1.5}, sow_key="IBM")
    client.delta_publish("prices", {"size": 10}, sow_key="IBM")
    client.flush()
    assert {record.json()["id"]: record.json() for record in client.sow("orders")} == {1: whole, 2: order(2)}
    assert [record.json() for record in client.sow("prices")] == [{"price": 1.5, "size": 10}]
    # The log has whole messages.
    replay = client.subscribe("orders", bookmark=quire.EPOCH)
    assert [replay.get(timeout=PATIENCE).json() for _ in range(3)][1] == whole


def test_a_delta_that_cannot_be_merged_is_an_error_and_the_record_stays(client: quire.Client) -> None:
    client.publish("prices", {"price": 1.5}, sow_key="IBM")
    client.delta_publish("prices", "[1", sow_key="IBM")
    with pytest.raises(quire.BadMessageError, match="cannot be merged"):
        client.flush()
    assert [record.json() for record in client.sow("prices")] == [{"price": 1.5}]


def test_a_delta_has_the_options_of_a_publish(place: dict[str, Any]) -> None:
    persisted: list[int] = []
    with quire.Client(**place) as client:
        client.publish("orders", {"id": 1, "qty": 1})
        sequence = client.delta_publish(
            "orders",
            {"id": 1, "side": "buy"},
            on_persisted=lambda receipt: persisted.append(receipt.sequence),
        )
        client.flush(timeout=PATIENCE)
        (record,) = client.sow("orders")
        assert record.json() == {"id": 1, "qty": 1, "side": "buy"}
    assert persisted == [sequence]


def test_a_delayed_delta_is_merged_at_once_and_delivered_whole_by_a_queue_later(client: quire.Client) -> None:
    client.publish("prices", {"bid": 1, "ask": 2}, sow_key="IBM")
    client.delta_publish("prices", {"ask": 3}, sow_key="IBM", delay="1h")
    client.delta_publish(
        "prices", {"bid": 0}, sow_key="IBM", deliver_at=datetime.now(UTC) - timedelta(hours=1)
    )
    client.flush(timeout=PATIENCE)
    (record,) = client.sow("prices")
    assert record.json() == {"bid": 0, "ask": 3}
    assert [message.json() for message in client.sow("PRICED")] == [
        {"bid": 1, "ask": 2},
        {"bid": 0, "ask": 3},
    ]
    assert client.queue_stats("PRICED")["PRICED"]["delayed"] == 1


async def test_a_delta_of_the_asyncio_client_has_the_options_of_a_publish(place: dict[str, Any]) -> None:
    persisted: list[int] = []
    async with quire.AsyncClient(**place) as client:
        sequence = await client.delta_publish(
            "prices",
            {"ask": 3},
            sow_key="IBM",
            delay="1h",
            on_persisted=lambda receipt: persisted.append(receipt.sequence),
        )
        await client.flush(timeout=PATIENCE)
        assert [message async for message in client.sow("PRICED")] == []
    assert persisted == [sequence]


async def test_the_asyncio_client_publishes_deltas(place: dict[str, Any]) -> None:
    async with quire.AsyncClient(**place) as client:
        await client.publish("orders", order(1, side="buy"))
        await client.delta_publish("orders", {"id": 1, "qty": 4})
        await client.flush()
        assert [record.json() async for record in client.sow("orders")] == [order(1, 4, side="buy")]


@pytest.fixture
def enriching(way_in: str, tmp_path: Path) -> Iterator[quire.Client]:
    with (
        configured(way_in, tmp_path, sow_topic=FIELDS) as place,
        quire.Client(**place) as client,
    ):
        yield client


def test_constructed_fields_are_in_records_live_messages_and_replays(enriching: quire.Client) -> None:
    with enriching.subscribe("fields") as live:
        for qty in (100, 80):
            enriching.publish("fields", {"customer": "A", "number": 1, "qty": qty})
        whole = [{"customer": "A", "number": 1, "qty": 100, "order_id": "A-1", "change": 100}]
        whole.append({**whole[0], "qty": 80, "change": -20})
        assert [live.get(timeout=PATIENCE).json() for _ in whole] == whole
    assert [record.json() for record in enriching.sow("fields")] == whole[1:]
    with enriching.subscribe("fields", bookmark=quire.EPOCH) as replay:
        assert [replay.get(timeout=PATIENCE).json() for _ in whole] == whole
    enriching.delta_publish("fields", {"customer": "A", "number": 1, "qty": 90, "side": "buy"})
    (record,) = enriching.sow("fields")
    assert record.json() == {**whole[1], "qty": 90, "change": 10, "side": "buy"}
    assert enriching.sow_delete("fields", data={"customer": "A", "number": 1}) == 1


def test_a_message_that_cannot_get_its_fields_raises_at_its_receipt(enriching: quire.Client) -> None:
    receipt = enriching.publish_receipt("fields", b"[1, 2]")
    with pytest.raises(quire.BadMessageError, match=r"preprocessing.*not an object"):
        receipt.wait(timeout=PATIENCE)
    enriching.publish("fields", b'{"customer": "A"')
    with pytest.raises(quire.BadMessageError, match="preprocessing"):
        enriching.flush(timeout=PATIENCE)
    assert list(enriching.sow("fields")) == []


def test_a_delta_subscription_has_the_fields_that_differ(client: quire.Client) -> None:
    publish(client, order(1, qty=1, state="open"))
    with client.sow_and_delta_subscribe("orders", oof=True, filter="/qty > 0") as orders:
        publish(client, order(1, qty=2, state="open"), order(1, qty=2), order(1, qty=0), order(1, qty=3))
        assert changes_of(orders, 5) == [
            ("sow", False, order(1, qty=1, state="open")),
            ("publish", True, {"id": 1, "qty": 2}),
            ("publish", True, {"id": 1, "state": None}),
            ("oof", False, order(1, qty=0)),
            ("publish", False, order(1, qty=3)),
        ]
        assert orders.snapshot.is_set()


def test_a_delta_subscription_without_a_query_begins_with_the_next_change(client: quire.Client) -> None:
    publish(client, order(1, qty=1))
    with client.delta_subscribe("orders", no_empties=True, select="-/,+/qty") as orders:
        publish(client, order(1, qty=1), order(1, qty=2), order(2, qty=1))
        assert changes_of(orders, 2) == [
            ("publish", True, {"id": 1, "qty": 2}),
            ("publish", False, {"qty": 1}),
        ]
    with client.delta_subscribe("orders", filter="/qty > 1", oof=True) as orders:
        publish(client, order(1, qty=1))
        left = orders.get(timeout=PATIENCE)
        assert (left.command, left.reason, left.is_delta) == ("oof", "match", False)


def test_empty_differences_are_left_out_on_request(client: quire.Client) -> None:
    publish(client, order(1, qty=1))
    with (
        client.sow_and_delta_subscribe("orders") as all_changes,
        client.sow_and_delta_subscribe("orders", no_empties=True) as without_empties,
    ):
        publish(client, order(1, qty=1), order(1, qty=2))
        record = ("sow", False, order(1, qty=1))
        change = ("publish", True, {"id": 1, "qty": 2})
        assert changes_of(all_changes, 3) == [record, ("publish", True, {"id": 1}), change]
        assert changes_of(without_empties, 2) == [record, change]


def test_a_handler_receives_differences_and_they_can_be_pickled(client: quire.Client) -> None:
    taken: list[quire.Message] = []
    with client.delta_subscribe("orders", on_message=taken.append):
        publish(client, order(1, qty=1), order(1, qty=2))
        wait_until(lambda: len(taken) == 2)
    copies = [pickle.loads(pickle.dumps(message)) for message in taken]
    assert [(each.is_delta, each.json()) for each in copies] == [
        (False, order(1, qty=1)),
        (True, {"id": 1, "qty": 2}),
    ]


def test_mistakes_of_delta_subscriptions_are_errors(client: quire.Client) -> None:
    with pytest.raises(quire.ConfigError, match="no_empties: expected True or False"):
        client.delta_subscribe("orders", no_empties=1)  # type: ignore[arg-type]
    with pytest.raises(quire.ConfigError, match="no_empties: expected True or False"):
        client.sow_and_delta_subscribe("orders", no_empties=1)  # type: ignore[arg-type]
    for subscribe in (client.delta_subscribe, client.sow_and_delta_subscribe):
        with pytest.raises(quire.QuireError, match=r"delta: .JOBS. names a queue"):
            subscribe("JOBS")


async def test_the_asyncio_client_has_delta_subscriptions(place: dict[str, Any]) -> None:
    async with quire.AsyncClient(**place) as client:
        await client.publish("orders", order(1, qty=1))
        records = await client.sow_and_delta_subscribe("orders")
        changes = await client.delta_subscribe("orders", no_empties=True)
        await client.publish("orders", order(1, qty=2))
        record, change = [await records.get(timeout=PATIENCE) for _ in range(2)]
        assert (record.command, record.is_delta) == ("sow", False)
        assert change.is_delta
        assert (await changes.get(timeout=PATIENCE)).json() == change.json() == {"id": 1, "qty": 2}


def test_a_replaced_subscription_receives_the_difference_between_the_views(client: quire.Client) -> None:
    publish(client, *(order(number) for number in range(1, 6)))
    with client.sow_and_subscribe("orders", filter="/id <= 3", order_by="/id", oof=True) as orders:
        assert received(orders, 3) == [("sow", None, 1), ("sow", None, 2), ("sow", None, 3)]
        orders.replace(filter="/id >= 3")
        publish(client, order(1), order(3))
        assert received(orders, 5) == [
            ("oof", "match", 1),
            ("oof", "match", 2),
            ("publish", None, 4),
            ("publish", None, 5),
            ("publish", None, 3),
        ]
        orders.replace(filter="/id = 3", select="-/qty")
        assert received(orders, 3) == [("oof", "match", 4), ("oof", "match", 5), ("publish", None, 3)]
        assert orders.filter == "/id = 3"


def test_a_replaced_delta_subscription_has_whole_records_that_enter(client: quire.Client) -> None:
    publish(client, order(1), order(2))
    with client.sow_and_delta_subscribe("orders", filter="/id = 1") as orders:
        orders.replace(filter="/id IN (1, 2)")
        publish(client, order(1, qty=2), order(2, qty=2))
        assert changes_of(orders, 4) == [
            ("sow", False, order(1)),
            ("publish", False, order(2)),
            ("publish", True, {"id": 1, "qty": 2}),
            ("publish", True, {"id": 2, "qty": 2}),
        ]
        with pytest.raises(quire.BadFilterError):
            orders.replace(filter="/id =")
        publish(client, order(2, qty=3))
        assert changes_of(orders, 1) == [("publish", True, {"id": 2, "qty": 3})]
