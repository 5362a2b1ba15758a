"""The encoding of data that is neither bytes nor text by `publish`."""

from __future__ import annotations

import enum
import json
import re
from collections import defaultdict, deque
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any
from uuid import UUID

import pydantic
import pytest
import quire
import quire.testing
from quire._message import to_bytes
from support.waiting import PATIENCE
from support.ways_in import configured


class Side(enum.Enum):
    BUY = "B"


@dataclass
class Order:
    symbol: str
    qty: Decimal
    side: Side


@dataclass
class Interval:
    start: datetime
    lengths: deque[timedelta]


class Model(pydantic.BaseModel):
    at: datetime
    order: Order


AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
ORDER = Order("IBM", Decimal("10.50"), Side.BUY)
ORDER_JSON = {"symbol": "IBM", "qty": "10.50", "side": "B"}


class Instant(datetime):
    """A datetime with nanoseconds, as pandas has."""

    nanosecond = 789

    def isoformat(self, *_: Any) -> str:
        return f"{super().isoformat()[:26]}{self.nanosecond}+00:00"


PARIS_1900 = timezone(timedelta(minutes=9, seconds=21))
INTERVAL_JSON = {"start": "1899-12-31T23:50:39Z", "lengths": ["P400D"]}


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (datetime(1900, 1, 1, tzinfo=PARIS_1900), "1899-12-31T23:50:39Z"),
        (Instant(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC), "2026-01-02T03:04:05.000006789+00:00"),
        (timedelta(days=364, seconds=1), "P364DT1S"),
        (timedelta(days=400), "P400D"),
        (-timedelta(days=400, hours=1, microseconds=5), "-P400DT1H0.000005S"),
        (Interval(datetime(1900, 1, 1, tzinfo=PARIS_1900), deque([timedelta(days=400)])), INTERVAL_JSON),
    ],
)
def test_a_time_is_published_without_a_change(data: object, expected: object) -> None:
    assert json.loads(to_bytes([data])) == [expected]


@pytest.mark.parametrize("number", [float("inf"), Decimal("NaN"), Decimal("-Infinity")])
def test_a_number_that_json_does_not_have_is_refused(number: object) -> None:
    with pytest.raises(ValueError, match="at /a"):
        to_bytes({"a": number})


@pytest.mark.parametrize(
    ("data", "place"),
    [
        ({1: "a", "1": "b"}, "its root: the keys 1 and '1' are"),
        ({"x": [({"null": 1, None: 2},)]}, "/x[0][0]: the keys 'null' and None are"),
        ({True: 1, "true": 2}, "its root: the keys True and 'true' are"),
        (defaultdict(int, {1.5: 1, "1.5": 2}), "its root: the keys 1.5 and '1.5' are"),
    ],
)
def test_two_keys_that_are_one_name_in_json_are_refused(data: Any, place: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"data: cannot become JSON, at {place} the same name")):
        to_bytes(data)
    assert to_bytes({1: "a", None: {"b": (1, 2)}}) == b'{"1":"a","null":{"b":[1,2]}}'


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (ORDER, ORDER_JSON),
        (Model(at=AT, order=ORDER), {"at": "2026-01-02T03:04:05Z", "order": ORDER_JSON}),
        ({"id": UUID(int=7), "days": {date(2026, 1, 2)}}, {"id": str(UUID(int=7)), "days": ["2026-01-02"]}),
        ([AT, Decimal("1E+2"), Path("a/b")], ["2026-01-02T03:04:05Z", "1E+2", "a/b"]),
        (bytearray(b"7"), 7),
        ((number for number in range(2)), [0, 1]),
        ([deque([1]), IPv4Address("10.0.0.1")], [[1], "10.0.0.1"]),
        ([re.compile("a"), 3j], ["a", "3j"]),
        ({"a": b"ok"}, {"a": "ok"}),
    ],
)
def test_what_python_programs_have_is_published_as_json(data: Any, expected: Any) -> None:
    with quire.Client("memory:") as client:
        subscription = client.subscribe("orders")
        client.publish("orders", data)
        assert subscription.get(timeout=PATIENCE).json() == expected


def test_an_encoder_comes_first_for_what_json_does_not_have() -> None:
    def encoder(value: object) -> object:
        return float(value) if isinstance(value, Decimal) else b"raw" if value is Side.BUY else repr(value)

    with quire.Client("memory:", encoder=encoder) as client:
        subscription = client.subscribe("orders")
        for data in ({"qty": Decimal("10.5")}, Side.BUY, Decimal(2)):
            client.publish("orders", data)
        assert [subscription.get(timeout=PATIENCE).data for _ in range(3)] == [
            b'{"qty":10.5}',
            b"raw",
            b"2.0",
        ]
    with pytest.raises(quire.ConfigError, match=r"encoder: expected a function, got `int`"):
        quire.Client("memory:", encoder=7)  # type: ignore[arg-type]


def itself() -> list[Any]:
    """A list that contains itself."""
    data: list[Any] = []
    data.append(data)
    return data


def nested(depth: int) -> list[Any]:
    """A list in a list in a list."""
    data: list[Any] = []
    for _ in range(depth):
        data = [data]
    return data


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        (
            {"a": [1, {"b": object()}]},
            TypeError,
            r"^data: .*'orders', at /a\[1\]/b: object has no form in JSON.*encoder=",
        ),
        (object(), TypeError, "at its root"),
        ({"a": float("nan")}, ValueError, "at /a"),
        ("IBM \ud800", ValueError, r"^data: the text on the topic 'orders' is not Unicode, .*'\\ud800'"),
        ({"a": ["\udfff"]}, ValueError, r"^data: .*at /a\[0\]: text is not Unicode"),
        (itself(), ValueError, r"^data: .* at its root: .*(itself|Circular)"),
        (nested(100_000), ValueError, r"^data: .*nested too deeply"),
        ({"a": b"\xff"}, ValueError, r"^data: .*at /a: .*utf-8"),
    ],
)
def test_data_without_a_form_in_json_is_an_error_that_names_topic_and_field(
    data: Any, error: type[Exception], message: str
) -> None:
    with quire.Client("memory:") as client, pytest.raises(error, match=message):
        client.publish("orders", data)


@pytest.mark.parametrize(
    ("correlation_id", "message"),
    [
        (5, "correlation_id: expected text, got `int`"),
        (b"x", "correlation_id: expected text, got `bytes`"),
        ("x" * 256, "correlation_id: expected at most 255 bytes, got 256"),
        ("ü" * 128, "correlation_id: expected at most 255 bytes, got 256"),
        ("\ud800", "correlation_id: expected Unicode text"),
    ],
)
async def test_a_correlation_id_is_checked_when_the_call_is_made(
    correlation_id: Any, message: str, tmp_path: Path
) -> None:
    def refused(error: quire.ConfigError) -> None:
        assert error.key == "correlation_id"
        assert str(error).startswith(message)

    with quire.Client("memory:") as client, pytest.raises(quire.ConfigError) as caught:
        client.publish("orders", b"", correlation_id=correlation_id)
    refused(caught.value)
    async with quire.AsyncClient("memory:") as asyncio_client:
        with pytest.raises(quire.ConfigError) as caught:
            await asyncio_client.publish("orders", b"", correlation_id=correlation_id)
    refused(caught.value)
    with quire.Journal(tmp_path / "journal") as journal, pytest.raises(quire.ConfigError) as caught:
        journal.append("orders", b"", publisher="loader", correlation_id=correlation_id)
    refused(caught.value)
    with pytest.raises(quire.ConfigError) as caught:
        quire.testing.message("orders", b"", correlation_id=correlation_id)
    refused(caught.value)


SETTINGS: dict[str, Any] = {
    "transaction_log": {
        "topic": [
            {"name": "orders", "message_type": "json", "validate": True},
            {"name": "^", "message_type": "json"},
        ]
    }
}


def test_a_validated_topic_takes_nothing_but_json(way_in: str, tmp_path: Path) -> None:
    with configured(way_in, tmp_path, **SETTINGS) as place, quire.Client(**place) as client:
        subscription = client.subscribe("orders")
        for data in (b"\xff\xfe", b"", "IBM", b'{"a":1} x', b'"\xff"'):
            client.publish("orders", data)
            with pytest.raises(quire.BadMessageError, match='"orders" is not JSON'):
                client.flush(timeout=PATIENCE)
        client.publish("orders", ORDER)
        client.publish("other", "IBM")
        client.flush(timeout=PATIENCE)
        assert subscription.get(timeout=PATIENCE).json() == ORDER_JSON


def test_only_json_can_be_validated() -> None:
    topic = {"name": "orders", "message_type": "fix", "validate": True}
    with pytest.raises(quire.ConfigError, match="validate"):
        quire.Config(transaction_log={"topic": [topic]})
