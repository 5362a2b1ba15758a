"""`spark.read`: a snapshot of the journal, cut into tasks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql import datasource as ds
from pyspark.sql import types as t

from quire.spark import _scan
from quire.spark._failures import hiding_traceback
from quire.spark._scan import PushFilters, ScanBuilder

if TYPE_CHECKING:
    import pyarrow as pa


class BatchReader(ds.DataSourceReader):
    """Reads what the options covered when the frame was made: every action on it sees the same."""

    def __init__(
        self, frame: str, schema: t.StructType, name: str = "", takes_conditions: bool = False
    ) -> None:
        self._scan = ScanBuilder(frame, schema)
        if takes_conditions:
            setattr(self, "pushFilters", PushFilters(self._scan, name))  # noqa: B010  (see `PushFilters`)

    @hiding_traceback()
    def partitions(self) -> Sequence[ds.InputPartition]:
        return self._scan.tasks()

    def read(self, partition: ds.InputPartition) -> Iterator[pa.RecordBatch]:
        return _scan.scan(partition)
