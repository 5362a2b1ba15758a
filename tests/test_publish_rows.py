"""Rows of Arrow, as the sink of Spark publishes them: each once, in order, and only valid
messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import quire
from support.waiting import PATIENCE


def rows_of(data: Sequence[bytes | None], topic: str = "t") -> pa.RecordBatch:
    columns = [
        pa.array([topic] * len(data), pa.string()),
        pa.array(data, pa.binary()),
        pa.nulls(len(data), pa.string()),
    ]
    return pa.record_batch(columns, names=["topic", "data", "correlation_id"])


def written(directory: Path) -> list[quire.Message]:
    with quire.Journal(directory, read_only=True) as journal:
        return list(journal.read())


def test_rows_are_published_once_under_their_sequences_also_when_the_store_is_full(tmp_path: Path) -> None:
    data = [b'{"n":%d}' % number for number in range(5000)]
    store = quire.PublishStore(size_max=4096)
    with quire.Client(f"file:{tmp_path / 'j'}", name="loader", publish_store=store) as client:
        assert client._core.publish_rows(rows_of(data[:3000]), 100, PATIENCE) == 3000
        assert client._core.publish_rows(rows_of(data[2000:]), 2100, PATIENCE) == 3000, (
            "a thousand of them again"
        )
        assert client._core.publish_rows(rows_of([]), 5100, PATIENCE) == 0
        client.flush(timeout=PATIENCE)
    messages = written(tmp_path / "j")
    assert [message.data for message in messages] == data
    assert [message.sequence for message in messages] == list(range(101, 5101))


def test_a_publish_of_rows_ends_when_its_time_is_over_and_says_how_many_were_taken(tmp_path: Path) -> None:
    store = quire.PublishStore(str(tmp_path / "store"), size_max=4096)
    # The server is not there, so the store gets no room.
    client = quire.Client("quire://127.0.0.1:1", name="loader", publish_store=store, connect="background")
    rows = rows_of([b"x" * 100] * 500)
    with pytest.raises(
        TimeoutError, match=r"had no room within 0.01 s, .*; \d+ of 500 rows were taken"
    ) as late:
        client._publish_rows(client._core, rows, 0, 0.01)
    taken = int(str(late.value).split("; ")[1].split()[0])
    assert 0 < taken < 500
    assert client.health().unpersisted == taken
    client.close(timeout=0)


def test_a_message_keeps_what_its_row_has(tmp_path: Path) -> None:
    rows = pa.record_batch(
        [["a", "b/c"], pa.array([b"", b"\xff\x00"]), pa.array(["order-1", None])],
        names=["topic", "data", "correlation_id"],
    )
    with quire.Client(f"file:{tmp_path / 'j'}", name="loader") as client:
        client._core.publish_rows(rows, 0, PATIENCE)
        client.flush(timeout=PATIENCE)
    found = [(message.topic, message.data, message.correlation_id) for message in written(tmp_path / "j")]
    assert found == [("a", b"", "order-1"), ("b/c", b"\xff\x00", None)]


def test_rows_before_one_that_is_refused_are_taken(tmp_path: Path) -> None:
    topics = ["t"] * 300 + [""] + ["t"] * 10
    rows = pa.record_batch(
        [topics, pa.array([b"{}"] * 311), pa.nulls(311, pa.string())],
        names=["topic", "data", "correlation_id"],
    )
    with quire.Client(f"file:{tmp_path / 'j'}", name="loader") as client:
        with pytest.raises(quire.BadTopicError):
            client._core.publish_rows(rows, 0, PATIENCE)
        client.flush(timeout=PATIENCE)
    assert len(written(tmp_path / "j")) == 300


def _invalid_text() -> pa.RecordBatch:
    offsets = pa.array([0, 2], pa.int32()).buffers()[1]
    text = pa.StringArray.from_buffers(1, offsets, pa.py_buffer(b"\xff\xfe"))
    columns = [text, pa.array([b"{}"]), pa.nulls(1, pa.string())]
    return pa.record_batch(columns, names=["topic", "data", "correlation_id"])


def _outside() -> pa.RecordBatch:
    offsets = pa.array([0, 1 << 20], pa.int32()).buffers()[1]
    data = pa.BinaryArray.from_buffers(pa.binary(), 1, [None, offsets, pa.py_buffer(b"{}")])
    return pa.record_batch([pa.array(["t"]), data, pa.nulls(1, pa.string())], names=["a", "b", "c"])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: rows_of([b"{}", None]), "rows: column 1 has NULL in it"),
        (lambda: pa.record_batch([["t"]], names=["topic"]), "rows: column 1 is not there, not Binary"),
        (lambda: pa.record_batch([[1], [b""], ["c"]], names=["a", "b", "c"]), "column 0 is Int64, not Utf8"),
        (lambda: pa.array([1, 2, 3]), "rows must be a record batch"),
        (_invalid_text, "(?i)utf-?8"),
        (_outside, "(?i)offset|buffer"),
    ],
    ids=["null", "missing", "type", "array", "text", "outside"],
)
def test_what_is_no_message_is_refused(tmp_path: Path, make: Callable[[], Any], message: str) -> None:
    with quire.Client(f"file:{tmp_path / 'j'}", name="loader") as client:
        with pytest.raises((ValueError, TypeError), match=message):
            client._core.publish_rows(make(), 0, PATIENCE)
        with pytest.raises(AttributeError, match="__arrow_c_array__"):
            client._core.publish_rows("text", 0, PATIENCE)
        with pytest.raises(ValueError, match="after"):
            client._core.publish_rows(rows_of([b"{}"]), (1 << 64) - 1, PATIENCE)
        client.flush(timeout=PATIENCE)
    assert not written(tmp_path / "j")
