"""Aggregated queries: a record for each group of the records of a last-value topic."""

from __future__ import annotations

import json
import math
import statistics
from collections import defaultdict
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import quire
import quire.testing
from hypothesis import given, settings
from hypothesis import strategies as st
from support.command_line import quire as run
from support.waiting import PATIENCE

ORDERS = {"name": "orders", "message_type": "json", "key": ["/id"]}
TYPES = [{"name": "trades", "message_type": "nvfix"}, {"name": ".*", "message_type": "json"}]
CONFIG = quire.Config(
    transaction_log={"topic": TYPES},
    sow_topic=[ORDERS, {"name": "trades", "message_type": "nvfix", "key": ["/id"]}],
    queue={"name": "jobs", "message_type": "json"},
)


@pytest.fixture
def client() -> Iterator[quire.Client]:
    with quire.Client("memory:", config=CONFIG) as client:
        for id, (account, qty) in enumerate((("b", 3), ("a", 1), ("b", 4), (None, 2))):
            client.publish("orders", {"id": id, "account": account, "qty": qty})
        yield client


def groups(query: quire.Query) -> list[dict[str, Any]]:
    return [message.json() for message in query]


def test_groups_have_computed_fields_in_the_order_of_the_projection(client: quire.Client) -> None:
    query = client.sow(
        "orders", projection=["SUM(/qty) AS /total", "/account", "COUNT(1) AS /n"], grouping=["/account"]
    )
    messages = list(query)
    assert [message.data for message in messages] == [
        b'{"total":2,"account":null,"n":1}',
        b'{"total":1,"account":"a","n":1}',
        b'{"total":7,"account":"b","n":2}',
    ]
    assert query.total == 3
    assert len({message.sow_key for message in messages}) == 3
    again = client.sow("orders", projection="MAX(/qty) AS /max", grouping="/account")
    assert [message.sow_key for message in again] == [message.sow_key for message in messages]


def test_order_and_limits_are_those_of_the_groups(client: quire.Client) -> None:
    query = client.sow(
        "orders",
        projection=["/account", "SUM(/qty) AS /total"],
        grouping=["/account"],
        order_by="/total DESC",
        top_n=1,
        skip_n=1,
    )
    assert groups(query) == [{"account": None, "total": 2}]
    assert query.total == 3


def test_a_filter_and_keys_select_records_before_they_are_grouped(client: quire.Client) -> None:
    assert groups(client.sow("orders", filter="/qty > 1", projection="COUNT(1) AS /n")) == [{"n": 3}]
    key = next(iter(client.sow("orders", filter="/id = 1"))).sow_key
    assert key is not None
    assert groups(client.sow("orders", keys=[key], projection="SUM(/qty) AS /n")) == [{"n": 1}]


def test_without_records_there_is_one_group_or_none(client: quire.Client) -> None:
    query = client.sow("orders", filter="/qty > 99", projection=["COUNT(1) AS /n", "SUM(/qty) AS /s"])
    assert groups(query) == [{"n": 0, "s": None}]
    assert groups(client.sow("orders", filter="/qty > 99", projection="COUNT(1) AS /n", grouping="/id")) == []


def test_a_projection_of_another_message_type(client: quire.Client) -> None:
    for id, side in enumerate(("buy", "sell", "buy")):
        client.publish("trades", f"id={id}\x01side={side}\x01qty=2\x01")
    query = client.sow("trades", projection=["/side", "SUM(/qty) AS /qty"], grouping="/side")
    assert [message.data for message in query] == [b"side=buy\x01qty=4\x01", b"side=sell\x01qty=2\x01"]


@pytest.mark.parametrize(
    ("arguments", "key", "text"),
    [
        ({"grouping": "/id"}, "grouping", "requires `projection`"),
        ({"projection": "COUNT(1) AS /n", "select": "-/"}, "select", "leave it out"),
        ({"projection": []}, "projection", "the list is empty"),
        (
            {"projection": "/qty"},
            None,
            "projection: entry 1: column 1: expected an aggregate, or a field of grouping, found /qty",
        ),
        ({"projection": "SUM(/qty AS /n"}, None, "projection: entry 1: column 10: expected"),
        (
            {"projection": "SUM(/qty) AS /n", "grouping": "1"},
            None,
            "grouping: entry 1: .* only a field like /symbol",
        ),
        ({"projection": ["COUNT(1) AS /n"] * 300}, None, "256 entries"),
        ({"projection": 7}, "projection", "expected text"),
    ],
)
def test_a_mistake_names_its_argument(
    client: quire.Client, arguments: dict[str, Any], key: str | None, text: str
) -> None:
    with pytest.raises(quire.QuireError, match=text.replace("(", r"\(")) as raised:
        client.sow("orders", **arguments)
    if key is not None:
        assert isinstance(raised.value, quire.ConfigError)
        assert raised.value.key == key


def test_only_one_last_value_topic_is_aggregated(client: quire.Client) -> None:
    for topic, text in ((".*", "matches 2 last-value topics"), ("jobs", '"jobs" is a queue')):
        with pytest.raises(quire.ConfigError, match=text):
            client.sow(topic, projection="COUNT(1) AS /n")


def test_messages_that_cannot_be_read_have_no_values() -> None:
    config = quire.Config(sow_topic={"name": "raw", "message_type": "json"})
    with quire.Client("memory:", config=config) as client:
        client.publish("raw", b'{"x" 1, "qty": 1}', sow_key="broken")
        client.publish("raw", b'{"qty": 2}', sow_key="sound")
        assert groups(client.sow("raw", projection=["COUNT(1) AS /n", "SUM(/qty) AS /s"])) == [
            {"n": 1, "s": 2}
        ]


def test_groups_that_need_too_much_memory_end_the_query() -> None:
    config = quire.Config(sow_topic=ORDERS, limits={"max_query_copies": "1MB"})
    with quire.Client("memory:", config=config) as client:
        client.publish_many("orders", [{"id": id, "text": "x" * 100} for id in range(20_000)])
        with pytest.raises(quire.LimitExceededError, match="max_query_copies: the groups of the query"):
            list(client.sow("orders", projection=["/text", "/id"], grouping=["/text", "/id"]))
        assert groups(client.sow("orders", projection="COUNT(1) AS /n")) == [{"n": 20_000}]


def test_many_groups_arrive_in_order() -> None:
    with quire.Client("memory:", config=quire.Config(sow_topic=ORDERS)) as client:
        client.publish_many("orders", [{"id": id, "g": id % 7_000} for id in range(30_000)])
        found = groups(
            client.sow("orders", projection=["/g", "COUNT(1) AS /n"], grouping="/g", order_by="/g DESC")
        )
    assert [each["g"] for each in found] == list(reversed(range(7_000)))
    assert sum(each["n"] for each in found) == 30_000


def test_an_earlier_state_is_aggregated(tmp_path: Path) -> None:
    config = quire.Config(sow_topic={**ORDERS, "history": {"window": "1d"}})
    with quire.Client(f"file:{tmp_path}", config=config) as client:
        client.publish("orders", {"id": 1, "qty": 1})
        client.flush(PATIENCE)
        then = client.subscribe("orders", bookmark=quire.EPOCH).get(PATIENCE).bookmark
        client.publish("orders", {"id": 1, "qty": 10})
        client.publish("orders", {"id": 2, "qty": 10})
        client.flush(PATIENCE)
        assert groups(client.sow("orders", projection="SUM(/qty) AS /qty")) == [{"qty": 20}]
        assert groups(client.sow("orders", bookmark=then, projection="SUM(/qty) AS /qty")) == [{"qty": 1}]


async def test_asyncio_clients_aggregate() -> None:
    async with quire.AsyncClient("memory:", config=CONFIG) as client:
        await client.publish("orders", {"id": 1, "qty": 1})
        query = client.sow("orders", projection="SUM(/qty) AS /qty")
        assert [message.json() async for message in query] == [{"qty": 1}]


def test_rights_come_before_the_aggregation() -> None:
    users = {name: {"password": f"password of {name}"} for name in ("anna", "writer")}
    entries = [
        {"user": "writer", "topic": "orders", "allow": ["write"]},
        {
            "user": "anna",
            "topic": "orders",
            "allow": ["query"],
            "filter": "/desk = 'FX'",
            "select": ["-/secret"],
        },
    ]
    with quire.testing.server(users=users, entitlement=entries, sow_topic=ORDERS) as server:
        with quire.Client(server.url, **server.options("writer")) as client:
            for id, desk in enumerate(("FX", "FX", "rates")):
                client.publish("orders", {"id": id, "desk": desk, "secret": id})
            client.publish("orders", b'{"id": 9, "desk": "FX", "secret": 1, "secret": 2}')
            client.flush(PATIENCE)
        with quire.Client(server.url, **server.options("anna")) as client:
            projection = ["COUNT(1) AS /n", "SUM(/secret) AS /s", "DISTINCT_LIST(/desk) AS /desks"]
            assert groups(client.sow("orders", projection=projection)) == [{"n": 2, "s": None, "desks": "FX"}]
            assert groups(client.sow("orders", projection="COUNT(1) AS /n", grouping="/secret")) == [{"n": 2}]


def test_the_command_line_prints_groups(tmp_path: Path) -> None:
    with quire.testing.server(tmp_path, sow_topic=ORDERS) as server:
        with quire.Client(server.url) as client:
            client.publish_many("orders", [{"id": id, "side": "buy", "qty": id} for id in range(4)])
            client.flush(PATIENCE)
        options = ("--projection", "/side", "--projection", "SUM(/qty) AS /total", "--grouping", "/side")
        done = run("sow", "orders", *options, "--format", "raw", url=server.url)
        assert (done.returncode, done.stdout) == (0, '{"side":"buy","total":6}\n'), done.stderr
        mistake = run("sow", "orders", "--projection", "SUM(", url=server.url)
        assert mistake.returncode == 2
        assert "projection: entry 1" in mistake.stderr


# The same by an obvious model.

NUMBERS = st.one_of(
    st.integers(-(2**63), 2**64 - 1),
    st.floats(allow_nan=False, allow_infinity=False, width=32),
    st.none(),
)
RECORDS = st.lists(
    st.fixed_dictionaries({"g": st.sampled_from(["a", "b", 1, "1", 1.0, None, True]), "v": NUMBERS}),
    max_size=30,
)
PROJECTION = [
    "/g",
    "COUNT(/v) AS /count",
    "SUM(/v) AS /sum",
    "MIN(/v) AS /min",
    "MAX(/v) AS /max",
    "AVG(/v) AS /avg",
    "COUNT_DISTINCT(/v) AS /different",
    "VAR_POP(/v) AS /variance",
]


def group_of(value: object) -> object:
    """`1`, `'1'`, `1.0` and TRUE are one value."""
    return 1 if value in (1, "1") else value


def model(records: list[dict[str, Any]]) -> dict[object, dict[str, Any]]:
    values: dict[object, list[Any]] = defaultdict(list)
    for record in records:
        found = values[group_of(record["g"])]
        if record["v"] is not None:
            found.append(record["v"])
    result = {}
    for group, found in values.items():
        exact = [Fraction(value) for value in found]
        has_floats = any(isinstance(value, float) for value in found)
        total = sum(exact, Fraction(0))
        result[group] = {
            "count": len(found),
            "sum": None if not found else float(total) if has_floats else int(total),
            "min": min(found, key=Fraction, default=None),
            "max": max(found, key=Fraction, default=None),
            "avg": float(total / len(exact)) if exact else None,
            "different": len(set(exact)),
            "variance": float(statistics.pvariance(exact)) if exact else None,
        }
    return result


@settings(max_examples=60, deadline=None)
@given(records=RECORDS)
def test_the_result_is_that_of_a_model(records: list[dict[str, Any]]) -> None:
    with quire.Client("memory:", config=quire.Config(sow_topic=ORDERS)) as client:
        client.publish_many("orders", [{"id": id, **record} for id, record in enumerate(records)])
        found = groups(client.sow("orders", projection=PROJECTION, grouping="/g"))
    expected = model(records)
    assert {group_of(each["g"]) for each in found} == set(expected)
    assert len(found) == len(expected)
    for each in found:
        wanted = expected[group_of(each.pop("g"))]
        scale = max((abs(float(record["v"])) for record in records if record["v"] is not None), default=0.0)
        for name, value in wanted.items():
            got = each[name]
            if isinstance(value, float) and got is not None:
                # A variance is of squares.
                allowed = 1e-9 * max(abs(value), scale * (scale if name == "variance" else 1e-3), 1e-300)
                assert math.isclose(got, value, rel_tol=1e-9, abs_tol=allowed), (name, got, value)
            elif name == "sum" and value is not None and not -(2**63) <= value < 2**64:
                assert got == float(value)
            else:
                assert got == value, (name, json.dumps(records))
