"""`spark.readStream`: the journal in micro-batches."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from pyspark.sql import datasource as ds
from pyspark.sql import types as t
from pyspark.sql.streaming import datasource as limits

from quire._errors import QuireError
from quire._quire import SparkStream
from quire.spark import _scan
from quire.spark._failures import hiding_traceback
from quire.spark._scan import ScanBuilder, tasks_of

if TYPE_CHECKING:
    import pyarrow as pa


class StreamReader(ds.DataSourceStreamReader, limits.SupportsTriggerAvailableNow):
    """Lives in one process of the driver for a run of a query; `read` runs elsewhere, on a copy as
    it was made."""

    def __init__(self, frame: str, schema: t.StructType) -> None:
        self._text = ScanBuilder(frame, schema).text
        self._opened: SparkStream | None = self._open()

    def __getstate__(self) -> dict[str, Any]:
        return {"_text": self._text, "_opened": None}

    @hiding_traceback()
    def initialOffset(self) -> dict[str, Any]:
        offset: dict[str, Any] = json.loads(self._stream.initial())
        return offset

    def getDefaultReadLimit(self) -> limits.ReadLimit:
        return limits.ReadMaxRows(self._stream.limit())

    @hiding_traceback()
    def prepareForTriggerAvailableNow(self) -> None:
        self._stream.available_now()

    @hiding_traceback()
    def latestOffset(self, start: dict[str, Any], limit: limits.ReadLimit) -> dict[str, Any]:
        latest = self._stream.latest(json.dumps({"start": start, "limit": _limit(limit)}))
        # The very same: Spark begins an empty batch for anything else.
        return start if latest is None else json.loads(latest)

    @hiding_traceback()
    def reportLatestOffset(self) -> dict[str, Any]:
        newest: dict[str, Any] = json.loads(self._stream.newest())
        return newest

    @hiding_traceback()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[ds.InputPartition]:
        return tasks_of(*self._stream.plan(json.dumps({"start": start, "end": end})))

    def read(self, partition: ds.InputPartition) -> Iterator[pa.RecordBatch]:
        return _scan.scan(partition)

    @property
    def _stream(self) -> SparkStream:
        if self._opened is None:
            self._opened = self._open()
        return self._opened

    def _open(self) -> SparkStream:
        return SparkStream(self._text)


def _limit(limit: limits.ReadLimit) -> dict[str, Any] | None:
    match limit:
        case limits.ReadAllAvailable():
            return {"all": True}
        case limits.ReadMaxRows():
            return {"rows": limit.max_rows}
        case limits.ReadMaxBytes():
            return {"bytes": limit.max_bytes}
        case _:
            return None


class FailedStreamReader(ds.DataSourceStreamReader, limits.SupportsTriggerAvailableNow):
    """Raises the error that prevented the planning of a query, at the first call.

    PySpark (up to at least 4.3) reports an error in `streamReader` as an
    `UnboundLocalError`.
    """

    def __init__(self, error: QuireError | OSError) -> None:
        self._error = error

    @hiding_traceback()
    def _fail(self) -> NoReturn:
        raise self._error

    def initialOffset(self) -> dict[str, Any]:
        self._fail()

    def getDefaultReadLimit(self) -> limits.ReadLimit:
        self._fail()

    def prepareForTriggerAvailableNow(self) -> None:
        self._fail()

    def latestOffset(self, start: dict[str, Any], limit: limits.ReadLimit) -> dict[str, Any]:
        self._fail()

    def reportLatestOffset(self) -> dict[str, Any]:
        self._fail()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[ds.InputPartition]:
        self._fail()

    def read(self, partition: ds.InputPartition) -> Iterator[pa.RecordBatch]:
        self._fail()
