"""Filters with parameters: a value is only ever a value."""

from __future__ import annotations

import enum
import math
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import quire
from hypothesis import example, given
from hypothesis import strategies as st
from support.waiting import PATIENCE


class Side(enum.Enum):
    BUY = "B"


@given(st.text(min_size=1, alphabet=st.characters(exclude_categories=["Cs"])))
@example("O'Neil")
@example("x' OR TRUE OR '")
@example('"?')
def test_any_text_is_found_and_finds_nothing_else(text: str) -> None:
    wanted = quire.Filter(("/name = ?", text))
    assert wanted.matches({"name": text})
    assert not wanted.matches({"name": text + "x"})


@given(st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False))
@example(-0.0)
def test_any_number_is_equal_to_itself(number: float) -> None:
    assert quire.Filter(("/n = ? AND /n+? = /n+?", number, number, number)).matches({"n": number})


@pytest.mark.parametrize("value", [None, "", ["IBM", ""]])
def test_a_parameter_that_is_null_is_refused_because_nothing_is_equal_to_it(value: Any) -> None:
    with pytest.raises(quire.ConfigError, match="write /field IS NULL, or /field IS NOT NULL"):
        quire.Filter(("/v IN ?" if isinstance(value, list) else "/v = ?", value))


@pytest.mark.parametrize(
    ("filter", "data"),
    [
        (("/side = ?", Side.BUY), {"side": "B"}),
        (("/urgent = ?", True), {"urgent": True}),
        (("/qty > ?", Decimal("10.5")), {"qty": Decimal("10.75")}),
        (("/on = ?", date(2026, 1, 2)), {"on": date(2026, 1, 2)}),
        (("/at = ?", datetime(2026, 1, 2, 3, 4, 5)), {"at": datetime(2026, 1, 2, 3, 4, 5)}),
        (("/id = ?", UUID(int=7)), {"id": UUID(int=7)}),
        (("/symbol IN ?", ["IBM", "O'Neil"]), {"symbol": "O'Neil"}),
        (("[/odd ?] = ? AND /b = '?' AND /c = \"?\"", 1), {"odd ?": 1, "b": "?", "c": "?"}),
        (("/a-? = ?", -1, 3), {"a": 2}),
    ],
)
def test_a_parameter_is_compared_as_it_is_published(filter: tuple[Any, ...], data: Any) -> None:
    if filter[0].startswith("/a-"):
        # `/a-` is a name: a blank divides the sign from it.
        filter = ("/a - ? = ?", *filter[1:])
    assert quire.Filter(filter).matches(data)


@pytest.mark.parametrize(
    ("filter", "message"),
    [
        (("/a = ?",), "1 question mark for 0 parameters"),
        (("/a = ?", 1, 2), "1 question mark for 2 parameters"),
        (("/a = ?", None), "IS NULL"),
        (("/a = ?", math.nan), "nan cannot be written in a filter"),
        (("/a = ?", 2**64), "cannot be written"),
        (("/a IN ?", []), "cannot be written"),
        (("/a = ?", object()), "cannot be written"),
        (7, "expected text, a quire.Filter or a tuple.*got `int`"),
        ((), "got `tuple`"),
    ],
)
def test_a_mistake_is_said(filter: Any, message: str) -> None:
    with pytest.raises(quire.ConfigError, match=message) as error:
        quire.Filter(filter)
    assert error.value.key == "filter"


def test_quote_is_the_text_of_a_parameter() -> None:
    assert quire.quote("O'Neil") == "'O''Neil'"
    assert quire.quote([1, -2, "x"]) == "(1, (-2), 'x')"


def test_clients_and_journals_take_parameters(url: str, tmp_path: Path) -> None:
    with quire.Client(url) as client:
        for name in ("O'Neil", "Smith"):
            client.publish("people", {"name": name})
        client.flush(timeout=PATIENCE)
        found = client.subscribe("people", filter=("/name = ?", "O'Neil"), bookmark=quire.EPOCH)
        assert found.get(timeout=PATIENCE).json() == {"name": "O'Neil"}
        found.replace(filter=quire.Filter(("/name = ?", "Smith")), bookmark=quire.EPOCH)
        assert found.get(timeout=PATIENCE).json() == {"name": "Smith"}
        assert found.filter == "/name = 'Smith'"
    with quire.Journal(tmp_path / "other") as journal:
        journal.append_many("people", [{"name": "O'Neil"}, {"name": "Smith"}], publisher="p")
        journal.flush()
        assert [m.json()["name"] for m in journal.read(filter=("/name = ?", "O'Neil"))] == ["O'Neil"]


@pytest.mark.parametrize(
    "topic", ["orders[1]", "a.b", "a+b", "x^y$", "back\\slash", "blank (1)", "é{2}", "orders.>", "a/#"]
)
def test_a_topic_with_pattern_characters_is_named_exactly(topic: str) -> None:
    with quire.Client("memory:") as client:
        subscription = client.subscribe(quire.exact(topic))
        client.publish(f"{topic}x", b"other")
        client.publish(topic, b"meant")
        assert subscription.get(timeout=PATIENCE).data == b"meant"


@pytest.mark.parametrize("topic", ["orders.>", "eu/orders/#"])
def test_a_wildcard_of_another_system_is_refused_with_the_pattern_to_write(topic: str, url: str) -> None:
    with (
        quire.Client(url) as client,
        pytest.raises(quire.BadTopicError, match=r"NATS or MQTT.*regular expression"),
    ):
        client.subscribe(topic)


def test_a_topic_with_a_control_character_is_refused(url: str) -> None:
    with quire.Client(url) as client:
        with pytest.raises(quire.BadTopicError, match="control character at byte 3"):
            client.publish("two\nlines", b"1")
        with pytest.raises(quire.BadTopicError, match="control character"):
            client.subscribe("two\nlines")


def test_the_wildcard_of_sql_is_refused() -> None:
    with pytest.raises(quire.BadFilterError, match="% is not a wildcard in LIKE") as error:
        quire.Filter("/symbol LIKE '%IBM%'")
    assert error.value.column == 14


def test_times_are_written_as_they_are_published() -> None:
    at = datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC)
    assert quire.Filter(("/at = ?", at)).matches({"at": at})
