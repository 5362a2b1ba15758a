"""`spark.read` from a running server: a snapshot of its log, cut into tasks that each receive a
part of it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql import datasource as ds
from pyspark.sql import types as t

from quire.spark._failures import hiding_traceback
from quire.spark._options import ReadOptions, options_of
from quire.spark._scan import PushFilters, ScanBuilder
from quire.spark._server import Connection, ServerRange, Wanted

if TYPE_CHECKING:
    import pyarrow as pa


class ServerPart(ds.InputPartition):
    """The range that one task reads."""

    def __init__(self, range_: ServerRange) -> None:
        super().__init__(range_)


class ServerReader(ds.DataSourceReader):
    """Reads what the options covered when the frame was made: every action on it sees the same."""

    def __init__(self, frame: str, schema: t.StructType, range_: ServerRange, name: str) -> None:
        self._options = options_of(json.loads(frame)["options"])
        self._range = range_
        self._scan = ScanBuilder(frame, schema)
        if self._options.takes_conditions:
            setattr(self, "pushFilters", PushFilters(self._scan, name))  # noqa: B010  (see `PushFilters`)

    @hiding_traceback()
    def partitions(self) -> Sequence[ds.InputPartition]:
        with Connection(self._options) as connection:
            return split(connection, self._range, self._wanted, self._options)

    def read(self, partition: ds.InputPartition) -> Iterator[pa.RecordBatch]:
        return receive(partition, self._options, self._wanted, self._scan.read.spec())

    @property
    def _wanted(self) -> Wanted:
        return Wanted.of(self._options, self._scan.read.topics())


def split(
    connection: Connection, range_: ServerRange, wanted: Wanted, options: ReadOptions
) -> list[ds.InputPartition]:
    """Cuts a range into tasks."""
    parts = options.min_partitions or os.cpu_count() or 1
    return [ServerPart(part) for part in connection.cut(connection.retained(range_), wanted, parts)]


def receive(
    partition: ds.InputPartition, options: ReadOptions, wanted: Wanted, spec: str
) -> Iterator[pa.RecordBatch]:
    """The batches of a task."""
    # Without a partition, Spark passes an empty one.
    if isinstance(partition.value, ServerRange):
        with hiding_traceback(), Connection(options) as connection:
            yield from connection.scan(partition.value, wanted, spec)
