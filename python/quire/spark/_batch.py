"""`spark.read`: a snapshot of the journal, cut into tasks."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql import datasource as ds
from pyspark.sql import types as t

from quire._quire import ArrowReader
from quire.spark import _directory
from quire.spark._directory import Range
from quire.spark._failures import hiding_traceback
from quire.spark._options import PARTITION_BYTES, PARTITION_BYTES_MIN, ReadOptions
from quire.spark._scan import PushFilters, ScanBuilder

if TYPE_CHECKING:
    import pyarrow as pa


class LogRange(ds.InputPartition):
    """The range that one task reads."""

    def __init__(self, range_: Range) -> None:
        super().__init__(range_)


class BatchReader(ds.DataSourceReader):
    """Reads what the options covered when the frame was made: every action on it sees the same."""

    def __init__(
        self, options: ReadOptions, schema: t.StructType, ranges: Sequence[Range], frame: str = ""
    ) -> None:
        self._options = options
        self._ranges = ranges
        self._scan = ScanBuilder(options, schema)
        if options.takes_conditions:
            setattr(self, "pushFilters", PushFilters(self._scan, frame))  # noqa: B010  (see `PushFilters`)

    @hiding_traceback()
    def partitions(self) -> Sequence[ds.InputPartition]:
        return split(self._ranges, self._scan.spec, self._options)

    def read(self, partition: ds.InputPartition) -> Iterator[pa.RecordBatch]:
        # Without a partition, Spark passes an empty one.
        range_ = partition.value
        return _directory.scan(range_, self._scan.spec) if isinstance(range_, Range) else iter(())


def split(ranges: Sequence[Range], spec: str, options: ReadOptions) -> list[ds.InputPartition]:
    """Cuts ranges into tasks: by size, small ranges joined, at least as many as asked for if there is so much."""
    found: list[ds.InputPartition] = []
    wanted = -(-options.min_partitions // max(len(ranges), 1)) if options.min_partitions else 1
    for range_ in ranges:
        _directory.refreshed(range_.directory, range_.archive)
        reader = _directory.reader_of(range_)
        begin, newest = _directory.retained(reader, range_, options), None
        if options.last_values is not None:
            newest = _directory.last_values(reader, range_, begin, options)
        after, limit = reader.narrow(spec, begin, range_.limit)
        if limit <= after:
            continue
        for first, last in _cut(reader, spec, after, limit, options, wanted):
            positions = None if newest is None else newest.between(first, last)
            if positions == b"":
                continue
            identity = _directory.identity(reader, last)
            part = Range(range_.directory, first, last, identity, range_.archive, positions=positions)
            found.append(LogRange(part))
    return found


def _cut(
    reader: ArrowReader, spec: str, after: int, limit: int, options: ReadOptions, wanted: int
) -> list[tuple[int, int]]:
    size = options.partition_bytes
    if size is None:
        # Every core gets something to do, and as many tasks as the others, as long as that is worth a task.
        cores = os.cpu_count() or 1
        total = sum(part[2] for part in reader.split(spec, after, limit, 1 << 62, 1))
        rounds = max(-(-total // (PARTITION_BYTES * cores)), 1)
        size = max(total // (rounds * cores), PARTITION_BYTES_MIN)
    return [(first, last) for first, last, _ in reader.split(spec, after, limit, size, wanted)]
