"""Aggregated subscriptions for programs: groups of records that follow each change, on all three
kinds of server, with rights, and after a crash.

docs/last-values.md has the rules. The tests of the broker compare the groups with a model.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import quire
import quire.testing
from support.server_process import ServerProcess
from support.waiting import PATIENCE, wait_until
from support.ways_in import configured

ORDERS = {"name": "orders", "message_type": "json", "key": ["/id"]}
GROUPS: dict[str, Any] = {
    "projection": ["/account", "SUM(/price * /qty) AS /notional", "COUNT(/id) AS /orders"],
    "grouping": ["/account"],
}


@pytest.fixture
def client(way_in: str, tmp_path: Path) -> Iterator[quire.Client]:
    with configured(way_in, tmp_path, sow_topic=ORDERS) as place, quire.Client(**place) as client:
        yield client


def order(id: int, account: Any, price: Any = 2, qty: Any = 3, **more: Any) -> dict[str, Any]:
    return {"id": id, "account": account, "price": price, "qty": qty, **more}


def group(account: Any, notional: Any, orders: int) -> dict[str, Any]:
    return {"account": account, "notional": notional, "orders": orders}


def received(subscription: quire.Subscription, count: int) -> list[tuple[str, Any]]:
    messages = [subscription.get(timeout=PATIENCE) for _ in range(count)]
    return [(message.reason or message.command, message.json()) for message in messages]


def test_groups_are_records_that_follow_each_change(client: quire.Client) -> None:
    client.publish("orders", order(1, "A"))
    client.publish("orders", order(2, "B", qty=5))
    with client.sow_and_subscribe("orders", oof=True, order_by="/notional DESC", **GROUPS) as changes:
        assert received(changes, 2) == [("sow", group("B", 10, 1)), ("sow", group("A", 6, 1))]
        assert changes.snapshot.wait(PATIENCE)
        client.publish("orders", order(2, "A", price=0.5))
        assert received(changes, 2) == [("deleted", group("B", 10, 1)), ("publish", group("A", 7.5, 2))]
        client.delta_publish("orders", {"id": 1, "qty": 1})
        message = changes.get(timeout=PATIENCE)
        assert (message.topic, message.json()) == ("orders", group("A", 3.5, 2))
        (found,) = client.sow("orders", filter="/account = 'A'", **GROUPS)
        assert found.json() == message.json()


def test_a_filter_and_keys_select_what_is_aggregated(client: quire.Client) -> None:
    for number in range(4):
        client.publish("orders", order(number, "A", qty=number))
    key = next(iter(client.sow("orders", filter="/id = 3"))).sow_key
    total: dict[str, Any] = {"projection": "SUM(/qty) AS /sum"}
    assert key is not None
    with (
        client.sow_and_subscribe("orders", filter="/qty > 1", **total) as some,
        client.sow_and_subscribe("orders", keys=[key], **total) as one,
    ):
        assert received(some, 1) == [("sow", {"sum": 5})]
        assert received(one, 1) == [("sow", {"sum": 3})]
        client.publish("orders", order(1, "A", qty=7))
        assert received(some, 1) == [("publish", {"sum": 12})]
        client.publish("orders", order(3, "A", qty=0))
        assert received(some, 1) == [("publish", {"sum": 9})]
        assert received(one, 1) == [("publish", {"sum": 0})]


def test_delta_and_conflated_subscriptions_to_groups(client: quire.Client) -> None:
    with (
        client.sow_and_delta_subscribe("orders", **GROUPS) as deltas,
        client.sow_and_delta_subscribe("orders", conflation="50ms", **GROUPS) as rare,
        client.sow_and_subscribe("orders", conflation="50ms", oof=True, **GROUPS) as whole,
    ):
        for subscription in (deltas, rare, whole):
            assert subscription.snapshot.wait(PATIENCE)
        for number in range(100):
            client.publish("orders", order(number, "A", qty=0))
        messages = [deltas.get(timeout=PATIENCE) for _ in range(100)]
        assert [message.is_delta for message in messages] == [False] + [True] * 99
        assert messages[-1].json() == {"account": "A", "orders": 100}
        for subscription in (rare, whole):
            seen = [subscription.get(timeout=PATIENCE)]
            while seen[-1].json()["orders"] != 100:
                seen.append(subscription.get(timeout=PATIENCE))
            assert len(seen) < 50


def test_a_table_of_groups(client: quire.Client) -> None:
    client.publish("orders", order(1, "A"))
    with client.table("orders", key="/account", **GROUPS) as table:
        assert table.ready.wait(PATIENCE)
        assert table["A"].json() == group("A", 6, 1)
        client.publish("orders", order(2, "B"))
        wait_until(lambda: len(table) == 2)
        client.publish("orders", order(1, "B"))
        wait_until(lambda: list(table) == ["B"])
        assert table["B"].json() == group("B", 12, 2)


@pytest.mark.parametrize(
    ("arguments", "key", "text"),
    [
        ({"grouping": "/id"}, "grouping", "requires `projection`"),
        ({**GROUPS, "select": "-/"}, "select", "leave it out"),
        ({**GROUPS, "skip_n": 0, "top_n": 1}, "projection", "does not go together with `skip_n`"),
        ({**GROUPS, "bookmark": "0"}, "projection", "does not go together with `bookmark`"),
        ({**GROUPS, "conflation": "1s", "conflation_key": "/id"}, "conflation_key", "leave it out"),
        ({"projection": []}, "projection", "the list is empty"),
        ({"projection": "SUM(/qty AS /n"}, None, "projection: entry 1: column 10: expected"),
        ({"projection": "SUM(/qty) AS /n", "grouping": "1"}, None, "grouping: entry 1"),
    ],
)
def test_a_mistake_is_named(
    client: quire.Client, arguments: dict[str, Any], key: str | None, text: str
) -> None:
    with pytest.raises(quire.QuireError) as raised:
        client.sow_and_subscribe("orders", **arguments)
    assert text in str(raised.value)
    if key is not None:
        assert isinstance(raised.value, quire.ConfigError)
        assert raised.value.key == key


def test_a_subscription_to_groups_is_not_replaced(client: quire.Client) -> None:
    with pytest.raises(quire.ConfigError, match="pattern"):
        client.sow_and_subscribe("^ord", **GROUPS)
    with pytest.raises(quire.NotLastValueError):
        client.sow_and_subscribe("nothing", **GROUPS)
    with client.sow_and_subscribe("orders", **GROUPS) as groups:
        with pytest.raises(quire.ConfigError, match="cannot be replaced"):
            groups.replace(filter="/qty > 1")
        client.publish("orders", order(1, "A"))
        assert received(groups, 1) == [("publish", group("A", 6, 1))]


def test_rights_decide_what_is_aggregated(tmp_path: Path) -> None:
    entitlement = [
        {"user": "writer", "topic": "orders", "allow": ["write"]},
        {
            "user": "desk",
            "topic": "orders",
            "allow": ["read", "query"],
            "filter": "/account = USER()",
            "select": "-/secret",
        },
        {"user": "other", "topic": "orders", "allow": ["read", "query"], "filter": "/account = USER()"},
    ]
    users = {name: {"password": f"{name}-password"} for name in ("writer", "desk", "other", "none")}
    projection = ["COUNT(1) AS /n", "SUM(/qty) AS /qty", "SUM(/secret) AS /secret"]
    with (
        quire.testing.server(tmp_path, users=users, entitlement=entitlement, sow_topic=ORDERS) as server,
        quire.Client(server.url, **server.options("desk")) as desk,
        quire.Client(server.url, **server.options("other")) as other,
        quire.Client(server.url, **server.options("none")) as none,
        quire.Client(server.url, **server.options("writer")) as writer,
    ):
        for number, account in enumerate(["desk", "other", "other"]):
            writer.publish("orders", order(number, account, secret=5))
        writer.flush(timeout=PATIENCE)
        own = desk.sow_and_subscribe("orders", projection=projection)
        others = other.sow_and_subscribe("orders", projection=projection)
        assert received(own, 1) == [("sow", {"n": 1, "qty": 3, "secret": None})]
        assert received(others, 1) == [("sow", {"n": 2, "qty": 6, "secret": 10})]
        writer.publish("orders", order(1, "desk", secret=5))
        assert received(own, 1) == [("publish", {"n": 2, "qty": 6, "secret": None})]
        assert received(others, 1) == [("publish", {"n": 1, "qty": 3, "secret": 5})]
        with pytest.raises(quire.NotEntitledError):
            none.sow_and_subscribe("orders", projection=projection)


def test_a_reconnect_gives_the_difference(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "server", sow_topic=ORDERS) as server, quire.Client(server.url) as client:
        changes = client.sow_and_subscribe("orders", oof=True, **GROUPS)
        for number, account in enumerate("ABC"):
            client.publish("orders", order(number, account))
        client.flush(timeout=PATIENCE)
        keys = [changes.get(timeout=PATIENCE).sow_key for _ in "ABC"]
        server.kill()
        server.start()
        with quire.Client(server.url) as other:
            other.publish("orders", order(2, "A", qty=1))
            other.flush(timeout=PATIENCE)
        seen = {message.sow_key: message for message in [changes.get(timeout=PATIENCE) for _ in "ab"]}
        # The group of B has not changed.
        assert seen[keys[0]].json() == group("A", 8, 2)
        assert (seen[keys[2]].command, seen[keys[2]].reason) == ("oof", "deleted")


def test_the_figures_of_a_topic_have_its_computations(client: quire.Client) -> None:
    client.publish("orders", order(1, "A"))

    def figures() -> tuple[int, bool]:
        (described,) = client._described_of(["orders"])
        values = described["last_values"]
        return values["aggregations"], values["aggregation_memory"] > 0

    assert figures() == (0, False)
    first, second = (client.sow_and_subscribe("orders", **GROUPS) for _ in "ab")
    assert received(first, 1) == received(second, 1)
    assert figures() == (1, True)
    first.unsubscribe()
    second.unsubscribe()
    wait_until(lambda: figures() == (0, False))
