"""Alternatives to the pipeline: the cases of `scan.py` with which it is compared.

They are as little as they can be: `quire-tuples` hands Spark the same columns as `quire` does, made
by the same scan, but a tuple for each row; `quire-ready` hands over the first batch of a task again
and again, as many rows as the task has, and so shows what any source in Python costs at least;
`counting` takes rows and counts them, as Arrow batches or, with the option `rows`, one by one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import datasource as ds
from pyspark.sql import types as t
from quire.spark import QuireDataSource

if TYPE_CHECKING:
    import pyarrow as pa


class TuplesDataSource(QuireDataSource):
    """The format `quire` without Arrow between the worker and Spark."""

    @classmethod
    def name(cls) -> str:
        return "quire-tuples"

    def reader(self, schema: t.StructType) -> ds.DataSourceReader:
        return _TuplesReader(super().reader(schema))


class ReadyDataSource(QuireDataSource):
    """The format `quire` without reading the journal."""

    @classmethod
    def name(cls) -> str:
        return "quire-ready"

    def reader(self, schema: t.StructType) -> ds.DataSourceReader:
        return _ReadyReader(super().reader(schema))


class CountingDataSource(ds.DataSource):
    """A sink that only looks how much comes."""

    @classmethod
    def name(cls) -> str:
        return "counting"

    def writer(self, schema: t.StructType, overwrite: bool) -> ds.DataSourceWriter:
        return _RowCounter() if self.options.get("rows") == "true" else _BatchCounter()


class _SameTasksReader(ds.DataSourceReader):
    def __init__(self, reader: ds.DataSourceReader) -> None:
        self._reader = reader

    def partitions(self) -> Any:
        return self._reader.partitions()


class _TuplesReader(_SameTasksReader):
    def read(self, partition: ds.InputPartition) -> Iterator[tuple[Any, ...]]:
        batch: Any
        for batch in self._reader.read(partition):
            yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


class _ReadyReader(_SameTasksReader):
    def read(self, partition: ds.InputPartition) -> Iterator[pa.RecordBatch]:
        left = partition.value.limit - partition.value.after
        batch: Any = next(iter(self._reader.read(partition)))
        while left > 0:
            yield batch.slice(0, left)
            left -= batch.num_rows


@dataclass
class _Counted(ds.WriterCommitMessage):
    count: int


class _BatchCounter(ds.DataSourceArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> _Counted:
        return _Counted(sum(batch.num_rows for batch in iterator))


class _RowCounter(ds.DataSourceWriter):
    def write(self, iterator: Iterator[Any]) -> _Counted:
        return _Counted(sum(1 for _ in iterator))
