"""`Journal.read_arrow`: the messages of a range as record batches, the same as `read` gives them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import quire
from support.waiting import PATIENCE

COUNT = 1000


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[quire.Journal]:
    with quire.Journal(tmp_path / "j", journal_size="64KB") as journal:
        for n in range(COUNT):
            data = {"n": n, "half": n / 2, "order": {"side": "buy" if n % 2 else "sell"}}
            journal.append("odd" if n % 2 else "even", data, publisher="p", correlation_id=f"c-{n}")
        journal.flush(timeout=PATIENCE)
        yield journal


def rows(batches: Iterator[Any]) -> list[dict[str, Any]]:
    return [row for batch in batches for row in batch.to_pylist()]


def test_batches_hold_what_messages_say(journal: quire.Journal) -> None:
    found = rows(journal.read_arrow())
    messages = list(journal.read())
    assert [row["position"] for row in found] == list(range(1, COUNT + 1))
    for row, message in zip(found, messages, strict=True):
        assert row["data"].encode() == message.data
        for name in (
            "bookmark",
            "topic",
            "publisher",
            "sequence",
            "correlation_id",
            "sow_key",
            "timestamp_ns",
            "timestamp",
        ):
            assert row[name] == getattr(message, name), name


def test_a_range_is_that_of_read(journal: quire.Journal) -> None:
    marks = [message.bookmark for message in journal.read()]
    options: list[dict[str, Any]] = [
        {"topic": "odd"},
        {"topic": "^od"},
        {"filter": "/n > 990"},
        {"bookmark": marks[10], "until": marks[20]},
        {"bookmark": marks[20], "until": marks[10]},
    ]
    for option in options:
        found = [row["bookmark"] for row in rows(journal.read_arrow(**option))]
        assert found == [message.bookmark for message in journal.read(**option)], option


def test_fields_are_typed_columns(journal: quire.Journal) -> None:
    table = pa.Table.from_batches(
        journal.read_arrow(fields={"n": "int", "half": "double", "/order/side": "string", "absent": "date"})
    )
    assert table.schema.types[-4:] == [pa.int32(), pa.float64(), pa.string(), pa.date32()]
    last = table.slice(COUNT - 1).to_pylist()[0]
    assert (last["n"], last["half"], last["/order/side"], last["absent"]) == (999, 499.5, "buy", None)


def test_batches_have_the_size_that_was_asked_for(journal: quire.Journal) -> None:
    sizes = [batch.num_rows for batch in journal.read_arrow(batch_rows=100)]
    assert sum(sizes) == COUNT
    assert min(sizes[:-1]) >= 100


def test_mistakes_are_named(journal: quire.Journal) -> None:
    reason = "^fields: 'n': 'decimal' is not a type; expected boolean, byte, .*timestamp or date$"
    with pytest.raises(quire.ConfigError, match=reason):
        journal.read_arrow(fields={"n": "decimal"})
    with pytest.raises(quire.BadFilterError):
        journal.read_arrow(filter="/n >")
    with pytest.raises(quire.BadTopicError):
        journal.read_arrow(topic="(")
    with pytest.raises(quire.BadBookmarkError):
        journal.read_arrow("1|1|")


def test_damage_ends_the_batches_with_its_place(tmp_path: Path) -> None:
    with quire.Journal(tmp_path, journal_size="64KB") as journal:
        for n in range(300):
            journal.append("t", {"n": n, "pad": "x" * 500}, publisher="p")
            journal.flush(timeout=PATIENCE) if n % 50 == 0 else None
    damaged = sorted(tmp_path.glob("*.journal"))[0]
    with damaged.open("r+b") as file:
        file.seek(damaged.stat().st_size // 2)
        file.write(b"damage")
    with (
        quire.Journal(tmp_path, read_only=True) as journal,
        pytest.raises(quire.JournalCorruptError, match=damaged.name),
    ):
        rows(journal.read_arrow(batch_rows=10))


class Interrupted(Exception):
    """Raised by the handler of a signal, as `KeyboardInterrupt` is by that of Ctrl-C."""


class Interrupting:
    """A stream of which each read is ended by a signal, once."""

    def __init__(self, stream: Iterator[Any]) -> None:
        self._stream = stream
        self._is_next = False

    def __iter__(self) -> Interrupting:
        return self

    def __next__(self) -> Any:
        self._is_next = not self._is_next
        if self._is_next:
            raise Interrupted
        return next(self._stream)


def test_the_exception_of_a_signal_handler_does_not_end_the_batches(journal: quire.Journal) -> None:
    batches: Any = journal.read_arrow(batch_rows=300)
    batches._stream = Interrupting(batches._stream)
    found = []
    for _ in range(4):
        with pytest.raises(Interrupted):
            next(batches)
        found.append(next(batches))
    assert [row["position"] for row in rows(iter(found))] == list(range(1, COUNT + 1))
    with pytest.raises(Interrupted):
        next(batches)
    assert list(batches) == []
