"""Views for programs: what they show after each change of their source, on all three kinds of
server, and after a crash.

docs/views.md has the rules. The tests of the crate quire-table compare the groups of a view with a
computation from nothing.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import quire
import quire.testing
from support.server_process import ServerProcess
from support.waiting import PATIENCE, wait_until
from support.ways_in import configured

ORDERS = {"name": "orders", "message_type": "json", "key": ["/id"], "expiration": "enabled"}
EXPOSURE = {
    "name": "exposure",
    "message_type": "json",
    "underlying_topic": "orders",
    "projection": ["/account", "SUM(/price * /qty) AS /notional", "COUNT(/id) AS /orders"],
    "grouping": ["/account"],
    "filter": "/state IS NULL OR /state != 'cancelled'",
}
#: Over a view, and before it in the file.
SIZES = {
    "name": "sizes",
    "message_type": "nvfix",
    "underlying_topic": "exposure",
    "projection": ["/orders", "COUNT(1) AS /accounts"],
    "grouping": ["/orders"],
}
TOTAL = {
    "name": "total",
    "message_type": "json",
    "underlying_topic": "orders",
    "projection": ["COUNT(1) AS /orders", "MAX(/price) AS /best"],
}
SETTINGS: dict[str, Any] = {"sow_topic": ORDERS, "view": [SIZES, EXPOSURE, TOTAL]}


@pytest.fixture
def place(way_in: str, tmp_path: Path) -> Iterator[dict[str, Any]]:
    with configured(way_in, tmp_path, **SETTINGS) as place:
        yield place


@pytest.fixture
def client(place: dict[str, Any]) -> Iterator[quire.Client]:
    with quire.Client(**place) as client:
        yield client


def order(id: int, account: Any, price: Any = 2, qty: Any = 3, **more: Any) -> dict[str, Any]:
    return {"id": id, "account": account, "price": price, "qty": qty, **more}


def exposure(account: Any, notional: Any, orders: int) -> dict[str, Any]:
    return {"account": account, "notional": notional, "orders": orders}


def received(subscription: quire.Subscription, count: int) -> list[tuple[str, Any]]:
    messages = [subscription.get(timeout=PATIENCE) for _ in range(count)]
    return [(message.reason or message.command, message.json()) for message in messages]


def records(client: quire.Client, topic: str = "exposure") -> list[Any]:
    return sorted((record.json() for record in client.sow(topic)), key=lambda it: str(it["account"]))


def test_a_change_of_the_source_changes_the_groups_before_and_after_it(client: quire.Client) -> None:
    changes = client.sow_and_subscribe("exposure", oof=True)
    client.publish("orders", order(1, "A"))
    assert received(changes, 1) == [("publish", exposure("A", 6, 1))]
    client.publish("orders", order(2, "A", price=0.5))
    assert received(changes, 1) == [("publish", exposure("A", 7.5, 2))]
    client.publish("orders", order(1, "B"))
    assert received(changes, 2) == [("publish", exposure("A", 1.5, 1)), ("publish", exposure("B", 6, 1))]
    client.delta_publish("orders", {"id": 1, "qty": 1})
    assert received(changes, 1) == [("publish", exposure("B", 2, 1))]
    client.publish("orders", order(2, "A", state="cancelled"))
    assert received(changes, 1) == [("deleted", exposure("A", 1.5, 1))]
    client.publish("orders", order(3, None))
    assert received(changes, 1) == [("publish", exposure(None, 6, 1))]
    assert client.sow_delete("orders", filter="/id >= 1") == 3
    assert sorted(map(str, received(changes, 2))) == [
        str(("deleted", exposure("B", 2, 1))),
        str(("deleted", exposure(None, 6, 1))),
    ]
    assert records(client) == []


def test_a_view_is_a_last_value_topic_for_every_reader(client: quire.Client) -> None:
    deltas = client.sow_and_delta_subscribe("exposure")
    every = client.subscribe("^expo")
    for number, account in enumerate("ABCAB"):
        client.publish("orders", order(number, account, price=number))
    assert received(every, 5)[-1] == ("publish", exposure("B", 15, 2))
    assert received(deltas, 5)[3:] == [
        ("publish", {"account": "A", "notional": 9, "orders": 2}),
        ("publish", {"account": "B", "notional": 15, "orders": 2}),
    ]
    assert records(client) == [exposure("A", 9, 2), exposure("B", 15, 2), exposure("C", 6, 1)]
    found = list(client.sow("exposure", filter="/account = 'B'", select="-/,+/orders"))
    assert [record.json() for record in found] == [{"orders": 2}]
    assert found[0].bookmark is None
    assert found[0].sow_key
    assert [
        record.json()["account"] for record in client.sow("exposure", order_by="/notional DESC", top_n=2)
    ] == [
        "B",
        "A",
    ]
    (total,) = client.sow("exposure", projection="SUM(/notional) AS /all")
    assert total.json() == {"all": 30}
    with client.table("exposure", key="/account") as table:
        assert table.ready.wait(PATIENCE)
        assert table["C"].json()["notional"] == 6
        client.publish("orders", order(2, "C", price=5))
        wait_until(lambda: table["C"].json()["notional"] == 15)
    with client.sow_and_subscribe("exposure", order_by="/notional", skip_n=0, top_n=1, oof=True) as page:
        assert received(page, 1) == [("sow", exposure("A", 9, 2))]
        client.publish("orders", order(0, "A", price=100))
        assert received(page, 2) == [
            ("match", exposure("A", 309, 2)),
            ("publish", exposure("B", 15, 2)),
        ]


def test_a_view_of_a_view_and_a_view_without_groups_follow_their_sources(client: quire.Client) -> None:
    sizes = client.sow_and_subscribe("sizes", oof=True)
    (nothing,) = client.sow("total")
    assert nothing.json() == {"orders": 0, "best": None}
    client.publish("orders", order(1, "A"))
    client.publish("orders", order(2, "B", price=7))
    client.publish("orders", order(3, "B"))

    def change(subscription: quire.Subscription) -> tuple[str, bytes]:
        message = subscription.get(timeout=PATIENCE)
        return message.reason or message.command, message.data

    assert [change(sizes) for _ in range(4)] == [
        ("publish", b"orders=1\x01accounts=1\x01"),
        ("publish", b"orders=1\x01accounts=2\x01"),
        ("publish", b"orders=1\x01accounts=1\x01"),
        ("publish", b"orders=2\x01accounts=1\x01"),
    ]
    (total,) = client.sow("total")
    assert total.json() == {"orders": 3, "best": 7}


def test_a_record_leaves_its_group_at_the_end_of_its_lifetime(client: quire.Client) -> None:
    changes = client.sow_and_subscribe("exposure", oof=True)
    client.publish("orders", order(1, "A"))
    client.publish("orders", order(2, "A"), expiration=1)
    assert received(changes, 2)[1] == ("publish", exposure("A", 12, 2))
    assert received(changes, 1) == [("publish", exposure("A", 6, 1))]


def test_a_query_with_a_bookmark_gives_the_view_as_it_was(way_in: str, tmp_path: Path) -> None:
    recorded = {
        "transaction_log": {"topic": [{"name": "orders", "message_type": "json"}]},
        "sow_topic": ORDERS | {"history": {"window": "1h"}},
    }
    with (
        configured(way_in, tmp_path, **SETTINGS | recorded) as place,
        quire.Client(**place) as client,
    ):
        messages = client.subscribe("orders")
        client.publish("orders", order(1, "A"))
        client.publish("orders", order(2, "B"))
        _, second = (messages.get(timeout=PATIENCE) for _ in range(2))
        assert second.bookmark
        client.publish("orders", order(1, "B", qty=9))
        # A query can see a view without the change, because views follow their sources.
        wait_until(lambda: records(client) == [exposure("B", 24, 2)])
        past = client.sow("exposure", bookmark=second.bookmark, order_by="/account")
        assert [record.json() for record in past] == [exposure("A", 6, 1), exposure("B", 6, 1)]
        assert past.total == 2
        (sizes,) = client.sow("sizes", bookmark=second.bookmark)
        assert bytes(sizes.data) == b"orders=1\x01accounts=2\x01"
        (summed,) = client.sow(
            "exposure", bookmark=second.bookmark, projection="SUM(/notional) AS /all", filter="/account = 'A'"
        )
        assert summed.json() == {"all": 6}
        with pytest.raises(quire.BadBookmarkError, match="not in the log"):
            client.sow("exposure", bookmark="77|1|")


def test_a_view_of_a_topic_without_history_has_no_earlier_state(client: quire.Client) -> None:
    client.publish("orders", order(1, "A"))
    with pytest.raises(
        quire.BadBookmarkError, match='"exposure" is a view of "orders", which keeps no history'
    ):
        client.sow("exposure", bookmark=quire.EPOCH)
    assert records(client) == [exposure("A", 6, 1)]


def test_only_the_server_writes_to_a_view(client: quire.Client) -> None:
    client.publish("orders", order(1, "A"))
    for publish in (client.publish, client.delta_publish):
        publish("exposure", {"account": "A"})
        with pytest.raises(
            quire.BadTopicError, match=r"\"exposure\" is a view.*publish to its underlying topic"
        ):
            client.flush(timeout=PATIENCE)
    with pytest.raises(quire.BadTopicError, match="is a view"):
        client.sow_delete("exposure", filter="/account = 'A'")
    assert client.sow_delete("^", filter="/account = 'A'") == 1
    with pytest.raises(quire.QuireError, match="does not record"):
        client.subscribe("exposure", bookmark="epoch")
    wait_until(lambda: records(client) == [])


def test_a_view_has_its_own_rights(tmp_path: Path) -> None:
    entitlement = [
        {"user": "writer", "topic": "orders", "allow": ["write"]},
        {"user": "desk", "topic": "exposure", "allow": ["read", "query"], "filter": "/account = 'A'"},
    ]
    users = {name: {"password": f"{name}-password"} for name in ("writer", "desk")}
    with (
        quire.testing.server(tmp_path, users=users, entitlement=entitlement, **SETTINGS) as server,
        quire.Client(server.url, **server.options("desk")) as desk,
        quire.Client(server.url, **server.options("writer")) as writer,
    ):
        changes = desk.sow_and_subscribe("exposure")
        writer.publish("orders", order(1, "B"))
        writer.publish("orders", order(2, "A"))
        assert received(changes, 1) == [("publish", exposure("A", 6, 1))]
        assert records(desk) == [exposure("A", 6, 1)]
        with pytest.raises(quire.NotEntitledError):
            desk.sow("orders")
        with pytest.raises(quire.NotEntitledError):
            writer.sow("exposure")
        desk.publish("exposure", {})
        with pytest.raises(quire.NotEntitledError):
            desk.flush(timeout=PATIENCE)


def test_a_view_with_conflation_delivers_the_last_state_of_each_group(tmp_path: Path) -> None:
    view = {**EXPOSURE, "inline_conflation": True}
    with (
        configured("server", tmp_path, sow_topic=ORDERS, view=view) as place,
        quire.Client(**place) as client,
    ):
        changes = client.sow_and_subscribe("exposure")
        client.publish_many("orders", [quire.Publish(order(n, "AB"[n % 2], qty=n)) for n in range(200)])
        last: dict[str, Any] = {}
        while last.get("A", {}).get("orders") != 100 or last.get("B", {}).get("orders") != 100:
            message = changes.get(timeout=PATIENCE).json()
            last[message["account"]] = message
        assert records(client) == [last["A"], last["B"]]


def test_a_view_is_computed_again_after_a_crash_and_subscribers_get_the_difference(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "server", **SETTINGS) as server, quire.Client(server.url) as client:
        changes = client.sow_and_subscribe("exposure", oof=True)
        for number, account in enumerate("ABC"):
            client.publish("orders", order(number, account))
        client.flush(timeout=PATIENCE)
        assert len(received(changes, 3)) == 3
        key = {record.json()["account"]: record.sow_key for record in client.sow("exposure")}
        server.kill()
        server.start()
        with quire.Client(server.url) as other:
            other.publish("orders", order(2, "A", qty=1))
            other.flush(timeout=PATIENCE)
            assert records(other) == [exposure("A", 8, 2), exposure("B", 6, 1)]
            assert {
                record.json()["account"]: record.sow_key for record in other.sow("exposure")
            }.items() <= key.items()
            assert [bytes(record.data) for record in other.sow("sizes", order_by="/orders")] == [
                b"orders=1\x01accounts=1\x01",
                b"orders=2\x01accounts=1\x01",
            ]
        messages = [changes.get(timeout=PATIENCE) for _ in range(2)]
        # A lost record has no data when the client was not connected.
        seen = {message.reason or message.command: message for message in messages}
        assert seen["publish"].json() == exposure("A", 8, 2)
        assert seen["deleted"].sow_key == key["C"]


def test_a_view_is_equal_to_a_computation_in_python_after_many_changes_and_a_crash(tmp_path: Path) -> None:
    draw = random.Random(7)
    view = {
        "name": "sums",
        "message_type": "json",
        "underlying_topic": "orders",
        "projection": [
            "/account",
            "SUM(/price) AS /sum",
            "SUM(/qty) AS /whole",
            "COUNT(1) AS /n",
            "MAX(/qty) AS /max",
        ],
        "grouping": ["/account"],
    }
    source: dict[int, dict[str, Any]] = {}

    def expected() -> list[Any]:
        groups: dict[str, list[dict[str, Any]]] = {}
        for record in source.values():
            groups.setdefault(record["account"], []).append(record)
        return [
            {
                "account": account,
                "sum": float(sum((Fraction(record["price"]) for record in members), Fraction())),
                "whole": sum(record["qty"] for record in members),
                "n": len(members),
                "max": max(record["qty"] for record in members),
            }
            for account, members in sorted(groups.items())
        ]

    with ServerProcess(tmp_path / "server", sow_topic=ORDERS, view=view) as server:
        for _ in range(2):
            with quire.Client(server.url) as client:
                for _ in range(400):
                    number = draw.randrange(40)
                    if number in source and draw.random() < 0.2:
                        del source[number]
                        client.sow_delete("orders", filter=f"/id = {number}")
                    else:
                        price = draw.choice([0.1, -0.1, 1e100, -1e100, 3.5, 1e-300])
                        source[number] = order(
                            number, draw.choice("abcd"), price, draw.randrange(-(2**62), 2**62)
                        )
                        client.publish("orders", source[number])
                client.flush(timeout=PATIENCE)
                wait_until(lambda: records(client, "sums") == expected())
            server.kill()
            server.start()
            with quire.Client(server.url) as client:
                assert records(client, "sums") == expected()


def test_the_figures_of_a_view_are_those_of_a_last_value_topic(client: quire.Client) -> None:
    client.publish("orders", order(1, "A"))
    wait_until(lambda: len(records(client)) == 1)
    (described,) = client._described_of(["exposure"])
    figures = described["last_values"]
    assert described["recorded"] is False
    assert (figures["records"], figures["key"], figures["durability"]) == (1, ["/account"], "transient")
    assert (figures["underlying_topic"], figures["waiting_changes"]) == ("orders", 0)


@pytest.mark.parametrize(
    ("change", "line", "key", "reason"),
    [
        ({"underlying_topic": "nothing"}, 9, "underlying_topic", '"nothing" keeps no last values'),
        ({"underlying_topic": "totals"}, 9, "underlying_topic", "the view reads itself: totals reads totals"),
        ({"underlying_topic": "many"}, 9, "underlying_topic", "has a pattern"),
        ({"name": "many"}, 7, "name", "a last-value topic has the name"),
        ({"name": "JOBS"}, 7, "name", "a queue has the name"),
        ({"message_type": "binary"}, 8, "message_type", "binary messages have no fields"),
        ({"projection": ["/a", "SUM(/b AS /c"]}, 10, "projection[1]", "column 8: expected"),
        ({"projection": ["/b"]}, 10, "projection[0]", "an aggregate, or a field of grouping"),
        ({"projection": []}, 10, "projection", "at least 1"),
        ({"grouping": ["/a + 1"]}, 11, "grouping[0]", "only a field"),
        ({"filter": "/a ="}, 12, "filter", "column 5"),
        ({"index": ["a"]}, 12, "index", "a"),
        ({"joins": ["x"]}, 12, "joins", "unknown key"),
    ],
)
def test_a_mistake_in_a_view_is_named_with_its_key_and_line(
    tmp_path: Path, change: dict[str, Any], line: int, key: str, reason: str
) -> None:
    view = {
        "name": "totals",
        "message_type": "json",
        "underlying_topic": "orders",
        "projection": ["/a", "COUNT(1) AS /n"],
        "grouping": ["/a"],
    }
    text = "[[sow_topic]]\nname = 'orders'\nmessage_type = 'json'\nkey = ['/id']\n\n[[view]]\n"
    text += "".join(f"{name} = {json.dumps(value)}\n" for name, value in {**view, **change}.items())
    text += "[[queue]]\nname = 'JOBS'\nmessage_type = 'json'\nunderlying_topic = 'tasks'\n"
    text += "[[sow_topic]]\nname = 'many'\nmessage_type = 'json'\npattern = 'm/.*'\nkey = ['/id']\n"
    path = tmp_path / "quire.toml"
    path.write_text(text)
    with pytest.raises(quire.ConfigError) as caught:
        quire.Config.load(path).check()
    (mistake,) = caught.value.mistakes
    assert (mistake.key, mistake.line) == (f"view[0].{key}", line)
    assert reason in str(mistake)


def test_views_that_read_each_other_are_refused() -> None:
    def view(name: str, source: str) -> dict[str, Any]:
        return {**EXPOSURE, "name": name, "underlying_topic": source}

    config = quire.Config(
        sow_topic=ORDERS, view=[view("a", "b"), view("b", "c"), view("c", "b"), view("d", "orders")]
    )
    with pytest.raises(quire.ConfigError) as caught:
        config.check()
    assert [(mistake.key, str(mistake).partition("itself: ")[2]) for mistake in caught.value.mistakes] == [
        ("view[1].underlying_topic", "b reads c reads b"),
        ("view[2].underlying_topic", "c reads b reads c"),
    ]


def test_a_queue_cannot_write_to_a_view(client: quire.Client, tmp_path: Path) -> None:
    queue = {
        "name": "JOBS",
        "message_type": "json",
        "underlying_topic": "tasks",
        "dead_letter_topic": "exposure",
    }
    with pytest.raises(quire.ConfigError, match=r"dead_letter_topic: \"exposure\" is a view"):
        quire.Config(queue=queue, **SETTINGS).check()
    with pytest.raises(quire.QuireError, match="is a view"):
        client.create_queue("JOBS", underlying_topic="tasks", dead_letter_topic="exposure")
