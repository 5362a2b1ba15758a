"""Conflated topics for programs: what they show after changes of their source, on all three kinds of
server, and after a crash.

docs/conflated-topics.md has the rules. The tests of the broker have those of time, over a virtual
clock.
"""

from __future__ import annotations

import json
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
VIEW = {
    "name": "accounts",
    "message_type": "json",
    "underlying_topic": "orders",
    "projection": ["/account", "SUM(/qty) AS /qty"],
    "grouping": ["/account"],
}


def conflated(name: str, source: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "message_type": "json", "underlying_topic": source, "interval": "100ms", **more}


#: Before their sources in the file.
COPIES = [conflated("accounts-C", "accounts"), conflated("orders-C", "orders", filter="/qty > 0")]
SETTINGS: dict[str, Any] = {"sow_topic": ORDERS, "view": VIEW, "conflated_topic": COPIES}


@pytest.fixture
def place(way_in: str, tmp_path: Path) -> Iterator[dict[str, Any]]:
    with configured(way_in, tmp_path, **SETTINGS) as place:
        yield place


@pytest.fixture
def client(place: dict[str, Any]) -> Iterator[quire.Client]:
    with quire.Client(**place) as client:
        yield client


def order(id: int, qty: int, account: str = "A") -> dict[str, Any]:
    return {"id": id, "qty": qty, "account": account}


def records(client: quire.Client, topic: str = "orders-C") -> list[Any]:
    return sorted((record.json() for record in client.sow(topic)), key=str)


def test_subscribers_of_a_conflated_topic_get_the_newest_record_of_an_interval(client: quire.Client) -> None:
    changes = client.sow_and_subscribe("orders-C", oof=True)
    every = client.subscribe("orders")
    for qty in range(1, 501):
        client.publish("orders", order(1, qty), headers={"qty": str(qty)}, correlation_id="c")
    seen = [changes.get(timeout=PATIENCE)]
    while seen[-1].json()["qty"] != 500:
        seen.append(changes.get(timeout=PATIENCE))
    last = [every.get(timeout=PATIENCE) for _ in range(500)][-1]
    assert len(seen) < 100
    assert [message.json()["qty"] for message in seen] == sorted(message.json()["qty"] for message in seen)
    assert (seen[-1].sow_key, seen[-1].timestamp) == (last.sow_key, last.timestamp)
    assert (dict(seen[-1].headers), seen[-1].correlation_id) == ({"qty": "500"}, "c")
    assert seen[-1].bookmark is None
    client.publish("orders", order(1, 0))
    left = changes.get(timeout=PATIENCE)
    assert (left.command, left.reason, left.json()["qty"]) == ("oof", "deleted", 500)
    assert records(client) == []


def test_a_conflated_topic_is_a_last_value_topic_for_every_reader(client: quire.Client) -> None:
    for number, account in enumerate("ABCAB", start=1):
        client.publish("orders", order(number, number, account))
    wait_until(lambda: len(records(client)) == 5 and len(records(client, "accounts-C")) == 3)
    assert records(client, "accounts-C") == [
        {"account": "A", "qty": 5},
        {"account": "B", "qty": 7},
        {"account": "C", "qty": 3},
    ]
    (found,) = client.sow("orders-C", filter="/id = 3", select="-/,+/account")
    assert found.json() == {"account": "C"}
    (total,) = client.sow("orders-C", projection="SUM(/qty) AS /all")
    assert total.json() == {"all": 15}
    (first,) = client.sow("orders-C", order_by="/qty DESC", top_n=1)
    assert [record.json()["id"] for record in client.sow("orders", keys=first.sow_key)] == [5]
    with (
        client.table("orders-C", key="/id") as table,
        client.sow_and_delta_subscribe("orders-C", filter="/id = 2") as deltas,
        client.sow_and_subscribe("orders-C", order_by="/qty", skip_n=0, top_n=1, oof=True) as page,
    ):
        assert table.ready.wait(PATIENCE)
        assert deltas.get(timeout=PATIENCE).json() == order(2, 2, "B")
        assert page.get(timeout=PATIENCE).json()["id"] == 1
        client.publish("orders", order(2, 20, "B"))
        delta = deltas.get(timeout=PATIENCE)
        assert (delta.is_delta, delta.json()) == (True, {"id": 2, "qty": 20})
        wait_until(lambda: table["2"].json()["qty"] == 20)
        client.publish("orders", order(1, 10))
        assert (page.get(timeout=PATIENCE).reason, page.get(timeout=PATIENCE).json()["id"]) == ("match", 3)


def test_only_the_server_writes_to_a_conflated_topic(client: quire.Client) -> None:
    client.publish("orders", order(1, 1))
    wait_until(lambda: len(records(client)) == 1)
    for publish in (client.publish, client.delta_publish):
        publish("orders-C", order(1, 2))
        with pytest.raises(quire.BadTopicError, match=r"conflated topic.*publish to its underlying topic"):
            client.flush(timeout=PATIENCE)
    with pytest.raises(quire.BadTopicError, match="conflated topic"):
        client.sow_delete("orders-C", filter="/id = 1")
    with pytest.raises(quire.QuireError, match="does not record"):
        client.subscribe("orders-C", bookmark="epoch")
    with pytest.raises(quire.QuireError, match="conflated topic"):
        client.create_queue("JOBS", underlying_topic="tasks", dead_letter_topic="orders-C")
    # A pattern leaves conflated topics out, and the records follow those of the source.
    assert client.sow_delete("^", filter="/id = 1") == 1
    wait_until(lambda: records(client) == [])


def test_a_conflated_topic_has_its_own_rights(tmp_path: Path) -> None:
    entitlement = [
        {"user": "writer", "topic": "orders", "allow": ["write"]},
        {"user": "desk", "topic": "orders-C", "allow": ["read", "query"], "filter": "/account = 'A'"},
    ]
    users = {name: {"password": f"{name}-password"} for name in ("writer", "desk")}
    with (
        quire.testing.server(tmp_path, users=users, entitlement=entitlement, **SETTINGS) as server,
        quire.Client(server.url, **server.options("desk")) as desk,
        quire.Client(server.url, **server.options("writer")) as writer,
    ):
        changes = desk.sow_and_subscribe("orders-C")
        writer.publish("orders", order(1, 1, "B"))
        writer.publish("orders", order(2, 2, "A"))
        assert changes.get(timeout=PATIENCE).json() == order(2, 2, "A")
        assert records(desk) == [order(2, 2, "A")]
        with pytest.raises(quire.NotEntitledError):
            desk.sow("orders")
        with pytest.raises(quire.NotEntitledError):
            writer.sow("orders-C")
        desk.publish("orders-C", {})
        with pytest.raises(quire.NotEntitledError):
            desk.flush(timeout=PATIENCE)


def test_a_conflated_topic_is_copied_again_after_a_crash_and_subscribers_get_the_difference(
    tmp_path: Path,
) -> None:
    with ServerProcess(tmp_path / "server", **SETTINGS) as server, quire.Client(server.url) as client:
        changes = client.sow_and_subscribe("orders-C", oof=True)
        for number in range(3):
            client.publish("orders", order(number, 1))
        client.flush(timeout=PATIENCE)
        keys = {
            message.json()["id"]: message.sow_key
            for message in [changes.get(timeout=PATIENCE) for _ in "abc"]
        }
        server.kill()
        server.start()
        with quire.Client(server.url) as other:
            assert records(other) == [order(number, 1) for number in range(3)]
            other.publish("orders", order(0, 7))
            other.publish("orders", order(2, 0))
            other.flush(timeout=PATIENCE)
            wait_until(lambda: records(other) == [order(0, 7), order(1, 1)])
        seen = {message.sow_key: message for message in [changes.get(timeout=PATIENCE) for _ in "ab"]}
        assert seen[keys[0]].json() == order(0, 7)
        assert seen[keys[2]].reason == "deleted"


def test_the_figures_of_a_conflated_topic_are_those_of_a_last_value_topic(client: quire.Client) -> None:
    client.publish("orders", order(1, 1))
    wait_until(lambda: len(records(client)) == 1)
    (described,) = client._described_of(["orders-C"])
    figures = described["last_values"]
    assert described["recorded"] is False
    assert (figures["records"], figures["key"], figures["durability"]) == (1, ["/id"], "transient")
    assert (figures["underlying_topic"], figures["interval_ms"]) == ("orders", 100)
    assert figures["waiting_changes"] == 0


@pytest.mark.parametrize(
    ("change", "line", "key", "reason"),
    [
        ({"underlying_topic": "nothing"}, 9, "underlying_topic", '"nothing" keeps no last values'),
        (
            {"underlying_topic": "copy"},
            9,
            "underlying_topic",
            "the conflated topic reads itself: copy reads copy",
        ),
        ({"underlying_topic": "JOBS"}, 9, "underlying_topic", "is a queue"),
        ({"underlying_topic": "many"}, 9, "underlying_topic", "has a pattern"),
        ({"name": "many"}, 7, "name", "a last-value topic has the name"),
        ({"name": "JOBS"}, 7, "name", "a queue has the name"),
        ({"message_type": "fix"}, 8, "message_type", "has the type of its source"),
        ({"interval": "99ms"}, 10, "interval", "100ms"),
        ({"filter": "/a ="}, 11, "filter", "column 5"),
        ({"index": ["a"]}, 11, "index", "a"),
        ({"topic_format": "x"}, 11, "topic_format", "unknown key"),
    ],
)
def test_a_mistake_in_a_conflated_topic_is_named_with_its_key_and_line(
    tmp_path: Path, change: dict[str, Any], line: int, key: str, reason: str
) -> None:
    copy = conflated("copy", "orders")
    text = "[[sow_topic]]\nname = 'orders'\nmessage_type = 'json'\nkey = ['/id']\n\n[[conflated_topic]]\n"
    text += "".join(f"{name} = {json.dumps(value)}\n" for name, value in {**copy, **change}.items())
    text += "[[queue]]\nname = 'JOBS'\nmessage_type = 'json'\nunderlying_topic = 'tasks'\n"
    text += "[[sow_topic]]\nname = 'many'\nmessage_type = 'json'\npattern = 'm/.*'\nkey = ['/id']\n"
    path = tmp_path / "quire.toml"
    path.write_text(text)
    with pytest.raises(quire.ConfigError) as caught:
        quire.Config.load(path).check()
    (mistake,) = caught.value.mistakes
    assert (mistake.key, mistake.line) == (f"conflated_topic[0].{key}", line)
    assert reason in str(mistake)


def test_views_and_conflated_topics_that_read_each_other_are_refused() -> None:
    config = quire.Config(
        sow_topic=ORDERS,
        view={**VIEW, "underlying_topic": "copy"},
        conflated_topic=[conflated("copy", "accounts"), conflated("fine", "orders")],
    )
    with pytest.raises(quire.ConfigError) as caught:
        config.check()
    assert [(mistake.key, str(mistake).partition("itself: ")[2]) for mistake in caught.value.mistakes] == [
        ("view[0].underlying_topic", "accounts reads copy reads accounts"),
        ("conflated_topic[0].underlying_topic", "copy reads accounts reads copy"),
    ]


def test_a_mistake_in_a_source_is_not_reported_again_by_its_copy(tmp_path: Path) -> None:
    path = tmp_path / "quire.toml"
    path.write_text(
        "[[sow_topic]]\nname = 'orders'\nmessage_type = 'jsn'\n"
        "[[conflated_topic]]\nname = 'copy'\nmessage_type = 'fix'\nunderlying_topic = 'orders'\n"
    )
    with pytest.raises(quire.ConfigError) as caught:
        quire.Config.load(path)
    assert [mistake.key for mistake in caught.value.mistakes] == ["sow_topic[0].message_type"]
