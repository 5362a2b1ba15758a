"""`df.write` and `df.writeStream`: rows become messages, each exactly once (see `_staging`)."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from time import monotonic
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql import datasource as ds
from pyspark.sql import types as t

from quire._errors import BadTopicError, ConfigError, MessageTooLargeError, QuireError
from quire._quire import check_headers, check_rows, check_topic
from quire.client._base import left_until
from quire.client._blocking import Client
from quire.spark._failures import hiding_traceback
from quire.spark._options import WriteOptions
from quire.spark._staging import Part, StagedBatch

if TYPE_CHECKING:
    import pyarrow as pa

#: The limit of the protocol for a client name, in bytes.
NAME_SIZE_MAX = 255

#: Messages of one batch: sequences are the number of the batch times this, plus the place in it.
#: Spark's batches end long before.
BATCH_ROWS_MAX = 1 << 32
#: Batches of one query, so that sequences stay below 2^63.
BATCHES_MAX = 1 << 31


@dataclass
class Staged(ds.WriterCommitMessage):
    """The result of a task."""

    sink: str
    batch: str
    part: Part


class BatchWriter(ds.DataSourceArrowWriter):
    """A batch is one transaction: with `txnId` it may be written again and again, and is in the log once."""

    def __init__(self, options: WriteOptions, schema: t.StructType, overwrite: bool) -> None:
        if overwrite:
            raise ConfigError("mode: a log is only ever appended to; use .mode('append')")
        _check_columns(schema, options)
        self._options = options
        self._sink = f"{options.publisher}/{options.transaction or uuid.uuid4().hex}"
        _check_name(self._sink, "publisher, txnId")

    @hiding_traceback()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        return _stage(self._options, self._sink, "batch", iterator)

    @hiding_traceback()
    def commit(self, messages: list[ds.WriterCommitMessage | None]) -> None:
        batch = StagedBatch(self._options.staging_directory, self._sink, "batch")
        try:
            _publish(self._options, self._sink, batch, _parts(messages), 0)
        finally:
            # No other run uses the name of this write.
            if self._options.transaction is None:
                batch.remove()

    @hiding_traceback()
    def abort(self, messages: list[ds.WriterCommitMessage | None]) -> None:
        batch = StagedBatch(self._options.staging_directory, self._sink, "batch")
        batch.discard(_parts(messages))
        if self._options.transaction is None:
            batch.remove()


class StreamWriter(ds.DataSourceStreamArrowWriter):
    """The batches of a query, each once, over restarts of everything."""

    def __init__(self, options: WriteOptions, schema: t.StructType, overwrite: bool) -> None:
        if overwrite:
            raise ConfigError("outputMode: a log is only ever appended to; use .outputMode('append')")
        _check_columns(schema, options)
        self._options = options
        self._staging = options.staging_directory
        # The id of a query has 36 characters.
        _check_name(f"{options.publisher}/{uuid.UUID(int=0)}" + _epoch(options), "publisher")

    @hiding_traceback()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        context = TaskContext.get()
        query = None if context is None else context.getLocalProperty("sql.streaming.queryId")
        batch = None if context is None else context.getLocalProperty("streaming.sql.batchId")
        if query is None or batch is None:
            raise QuireError("Spark does not say which batch of which query this is")
        sink = f"{self._options.publisher}/{query}" + _epoch(self._options)
        return _stage(self._options, sink, batch, iterator)

    @hiding_traceback()
    def commit(self, messages: list[ds.WriterCommitMessage | None], batchId: int) -> None:
        staged = [message for message in messages if isinstance(message, Staged)]
        if not staged:
            return  # a batch without tasks has no rows
        sink = staged[0].sink
        if batchId >= BATCHES_MAX:
            raise QuireError(
                f"batch {batchId}: the numbers of this query are used up; begin with a new checkpoint"
            )
        batch = StagedBatch(self._staging, sink, str(batchId))
        _publish(self._options, sink, batch, [message.part for message in staged], batchId * BATCH_ROWS_MAX)
        batch.remove_others()

    @hiding_traceback()
    def abort(self, messages: list[ds.WriterCommitMessage | None], batchId: int) -> None:
        for message in messages:
            if isinstance(message, Staged):
                StagedBatch(self._staging, message.sink, message.batch).discard([message.part])


def _epoch(options: WriteOptions) -> str:
    return f"/{options.epoch}" if options.epoch else ""


def _check_name(name: str, options: str) -> None:
    size = len(name.encode())
    if size > NAME_SIZE_MAX:
        raise ConfigError(
            f"{options}: they make a client name of {size} bytes, and it has up to {NAME_SIZE_MAX}"
        )


def _check_columns(schema: t.StructType, options: WriteOptions) -> None:
    types = {
        name: schema.fields[place].dataType.simpleString()
        for name in ("data", "correlation_id", "headers", *(("topic",) if options.topic is None else ()))
        if (place := _place(schema.names, name)) is not None
    }
    if types.get("data") not in ("string", "binary"):
        found = types.get("data", "not there")
        text = "to_json(data)" if found == "variant" else "to_json(struct('*'))"
        raise ConfigError(
            f"column data: it is {found}; the message is text or binary, such as {text} AS data"
        )
    if options.topic is None and types.get("topic") != "string":
        raise ConfigError(
            "topic: neither the option nor a column of this name, with text, says where the messages go"
        )
    if options.topic is not None:
        check_topic(options.topic)
    if types.get("correlation_id", "string") != "string":
        raise ConfigError(f"column correlation_id: it is {types['correlation_id']}, not text")
    if types.get("headers", "map<string,binary>") not in ("map<string,binary>", "map<string,string>"):
        raise ConfigError(
            f"column headers: it is {types['headers']}, not map<string,binary> or map<string,string>"
        )


def _place(names: Sequence[str], name: str) -> int | None:
    """Where the column of this name is, in any case, as Spark has names."""
    found = [place for place, other in enumerate(names) if other.lower() == name]
    if len(found) > 1:
        raise ConfigError(
            f"column {name}: {len(found)} columns have this name, in any case; leave only one of them"
        )
    return found[0] if found else None


def _stage(options: WriteOptions, sink: str, batch: str, iterator: Iterator[pa.RecordBatch]) -> Staged:
    import pyarrow as pa

    context = TaskContext.get()
    partition = 0 if context is None else context.partitionId()
    wanted = [
        ("topic", pa.string()),
        ("data", pa.binary()),
        ("correlation_id", pa.string()),
        ("headers", pa.map_(pa.string(), pa.binary())),
    ]
    schema = pa.schema(wanted)

    largest = 0

    def columns() -> Iterator[pa.RecordBatch]:
        nonlocal largest
        for rows in iterator:
            checked = pa.record_batch(
                [_column(rows, name, kind, options) for name, kind in wanted], schema=schema
            )
            # In the task, so that a mistake is found before a part of the batch is published.
            largest = max(largest, check_rows(checked))
            yield checked

    staged = StagedBatch(options.staging_directory, sink, batch)
    part = staged.write(partition, columns(), schema)
    return Staged(sink, batch, replace(part, largest=largest))


def _column(rows: pa.RecordBatch, name: str, kind: pa.DataType, options: WriteOptions) -> pa.Array:
    import pyarrow as pa

    if name == "topic" and options.topic is not None:
        return pa.repeat(pa.scalar(options.topic, kind), rows.num_rows)
    place = _place(rows.schema.names, name)
    if place is None:
        return pa.nulls(rows.num_rows, kind)
    column = rows.column(place).cast(kind)
    if column.null_count and name not in ("correlation_id", "headers"):
        raise (BadTopicError if name == "topic" else ConfigError)(f"column {name}: a row has NULL there")
    if name == "headers":
        for row in column.filter(column.is_valid()):
            check_headers(dict(row.as_py()))
    return column


def _publish(options: WriteOptions, sink: str, batch: StagedBatch, parts: Sequence[Part], first: int) -> None:
    """Publishes a batch. Skips the messages that the log has already."""
    if batch.is_done:
        batch.discard_parts()
        return
    was_settled = batch.is_settled
    if was_settled:
        parts = batch.settle(())
    count = sum(part.rows for part in parts)
    if count >= BATCH_ROWS_MAX:
        raise QuireError(f"a batch of {count} messages is too large; limit it with maxMessagesPerTrigger")
    if not count:
        batch.settle(parts)
        batch.finish(0)
        return
    with options.access.connect(options.url, name=sink) as client:
        if not was_settled:
            _check_beginning(client, sink, parts, first)
        deadline = monotonic() + options.flush_timeout.total_seconds()
        _send(client, batch.read(batch.settle(parts)), first, deadline)
        client.flush(timeout=left_until(deadline))
    batch.finish(count)


def _check_beginning(client: Client, sink: str, parts: Sequence[Part], first: int) -> None:
    """Raises when the batch cannot be published, before it is settled: the next run of it may have
    other rows."""
    if client.persisted > first:
        raise QuireError(
            f"{sink}: the log has message {client.persisted} of this sink, but the staging directory does not know how it "
            "got there; publishing again could repeat messages"
        )
    largest, limit = max(part.largest for part in parts), client._core.message_size_max
    if limit is not None and largest > limit:
        raise MessageTooLargeError(
            f"column data: a row has {largest} bytes, the server takes messages of up to {limit} bytes; nothing was published"
        )


def _send(client: Client, batches: Iterable[pa.RecordBatch], first: int, deadline: float) -> None:
    sequence = first
    for rows in batches:
        sequence = client._publish_rows(client._core, rows, sequence, left_until(deadline))


def _parts(messages: Iterable[Any]) -> list[Part]:
    return [message.part for message in messages if isinstance(message, Staged)]
