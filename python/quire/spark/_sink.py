"""`df.write` and `df.writeStream`: rows become messages, each exactly once (`_staging` says how)."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql import datasource as ds
from pyspark.sql import types as t

from quire._errors import BadTopicError, ConfigError, QuireError
from quire._quire import check_headers
from quire.client._base import left_until
from quire.client._blocking import Client
from quire.spark._failures import hiding_traceback
from quire.spark._options import WriteOptions, password
from quire.spark._staging import Part, StagedBatch

if TYPE_CHECKING:
    import pyarrow as pa

#: The limits of the protocol for a topic, a correlation id, and a client name, in bytes.
TOPIC_SIZE_MAX, CORRELATION_SIZE_MAX, NAME_SIZE_MAX = 1024, 255, 255

#: Messages of one batch: sequences are the number of the batch times this, plus the place in it. Spark's batches end long before.
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
    if options.topic is not None and len(options.topic.encode()) > TOPIC_SIZE_MAX:
        raise BadTopicError(f"topic: a topic has up to {TOPIC_SIZE_MAX} bytes")
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

    def columns() -> Iterator[pa.RecordBatch]:
        for rows in iterator:
            yield pa.record_batch(
                [_column(rows, name, kind, options) for name, kind in wanted], schema=schema
            )

    staged = StagedBatch(options.staging_directory, sink, batch)
    return Staged(sink, batch, staged.write(partition, columns(), schema))


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
    if name == "topic":
        _check_sizes(
            column,
            1,
            TOPIC_SIZE_MAX,
            BadTopicError(f"column topic: a row has none, or one of more than {TOPIC_SIZE_MAX} bytes"),
        )
    elif name == "headers":
        for row in column.filter(column.is_valid()):
            check_headers(dict(row.as_py()))
    elif name == "correlation_id":
        _check_sizes(
            column,
            0,
            CORRELATION_SIZE_MAX,
            ConfigError(f"column correlation_id: a row has more than {CORRELATION_SIZE_MAX} bytes there"),
        )
    return column


def _check_sizes(column: pa.Array, least: int, most: int, error: QuireError) -> None:
    """Checks the sizes in the task, so that a mistake is found before a part of the batch is published."""
    import pyarrow.compute

    # Its functions are made when it is loaded, which the type checkers do not see.
    compute: Any = pyarrow.compute
    found = compute.min_max(compute.binary_length(column)).as_py()
    if found["min"] is not None and not least <= found["min"] <= found["max"] <= most:
        raise error


def _publish(options: WriteOptions, sink: str, batch: StagedBatch, parts: Sequence[Part], first: int) -> None:
    """Brings a batch into the log; harmless when it is there, wholly or in part."""
    if batch.is_done:
        batch.discard_parts()
        return
    was_settled = batch.is_settled
    kept = batch.settle(parts)
    count = sum(part.rows for part in kept)
    if count >= BATCH_ROWS_MAX:
        raise QuireError(f"a batch of {count} messages is too large; limit it with maxMessagesPerTrigger")
    if count:
        with Client(
            options.url, name=sink, user=options.user, password=password(options.password_file), wait=True
        ) as client:
            if not was_settled and client.persisted > first:
                raise QuireError(
                    f"{sink}: the log has message {client.persisted} of this sink, but the staging directory does not know how it "
                    "got there; publishing again could repeat messages"
                )
            deadline = monotonic() + options.flush_timeout.total_seconds()
            _send(client, batch.read(kept), first, deadline)
            client.flush(timeout=left_until(deadline))
    batch.finish(count)


def _send(client: Client, batches: Iterable[pa.RecordBatch], first: int, deadline: float) -> None:
    sequence = first
    for rows in batches:
        sequence = client._publish_rows(client._core, rows, sequence, left_until(deadline))


def _parts(messages: Iterable[Any]) -> list[Part]:
    return [message.part for message in messages if isinstance(message, Staged)]
