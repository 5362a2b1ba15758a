"""`spark.readStream`: the journal in micro-batches.

An offset says for each journal how far a batch goes, **where it began**, and which record it ends with. Spark
does not store the first offset of a query, so a first batch that failed would begin at a later head when it
is asked for again; and the record proves that a restarted query reads the journal that it left.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from pyspark.sql import datasource as ds
from pyspark.sql import types as t
from pyspark.sql.streaming import datasource as limits

from quire._errors import BadBookmarkError, ConfigError, QuireError
from quire._quire import ArrowReader
from quire.spark import _directory
from quire.spark._batch import split
from quire.spark._directory import Range
from quire.spark._failures import hiding_traceback
from quire.spark._options import ReadOptions
from quire.spark._scan import ScanBuilder

if TYPE_CHECKING:
    import pyarrow as pa

_VERSION = 1

#: Spark asks every 10 ms when it is idle; looking for new files does not have to be done that often.
REFRESH_SECONDS = 0.05


class StreamReader(ds.DataSourceStreamReader, limits.SupportsTriggerAvailableNow):
    """Lives in one process of the driver for a run of a query; `read` runs elsewhere, on a copy as it was made."""

    def __init__(self, options: ReadOptions, schema: t.StructType) -> None:
        self._options = options
        self._directories = [_directory.locate(directory) for directory in options.directories]
        self._scan = ScanBuilder(options, schema)
        #: With `AvailableNow`: the last positions to read.
        self._head: dict[str, int] | None = None
        #: Where directories begin that the checkpoint does not know.
        self._added: dict[str, int] = {}
        self._refreshed = 0.0
        self._last_batch = time.monotonic()

    @hiding_traceback()
    def initialOffset(self) -> dict[str, Any]:
        journals = {}
        for directory in self._directories:
            start = _directory.span(directory, self._options).after
            journals[directory] = self._place(directory, start, start)
        return {"v": _VERSION, "journals": journals}

    def getDefaultReadLimit(self) -> limits.ReadLimit:
        return limits.ReadMaxRows(self._options.max_messages)

    @hiding_traceback()
    def prepareForTriggerAvailableNow(self) -> None:
        self._head = {
            directory: _directory.refreshed(directory, self._options.archive).last
            for directory in self._directories
        }

    @hiding_traceback()
    def latestOffset(self, start: dict[str, Any], limit: limits.ReadLimit) -> dict[str, Any]:
        begun = self._begun(start)
        ends = {directory: max(self._end(directory), begun[directory]) for directory in self._directories}
        available = sum(ends[directory] - begun[directory] for directory in self._directories)
        if available == 0 or self._waits(available):
            # The very same: Spark begins an empty batch for anything else.
            return start
        if not isinstance(limit, limits.ReadAllAvailable):
            self._limit(begun, ends, limit)
        self._last_batch = time.monotonic()
        journals = {
            directory: self._place(directory, begun[directory], ends[directory])
            for directory in self._directories
        }
        return {"v": _VERSION, "journals": journals}

    @hiding_traceback()
    def reportLatestOffset(self) -> dict[str, Any]:
        return {directory: self._end(directory) for directory in self._directories}

    @hiding_traceback()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[ds.InputPartition]:
        ranges = []
        for directory, place in _journals(end).items():
            identity = place["at"]
            known = None if identity is None else (str(identity[0]), int(identity[1]))
            ranges.append(
                Range(directory, int(place["from"]), int(place["to"]), known, self._options.archive)
            )
        return split(ranges, self._scan.spec, self._options)

    def read(self, partition: ds.InputPartition) -> Iterator[pa.RecordBatch]:
        range_ = partition.value
        return _directory.scan(range_, self._scan.spec) if isinstance(range_, Range) else iter(())

    def _begun(self, start: dict[str, Any]) -> dict[str, int]:
        """Where the next batch begins in each journal. One that is new to the query begins where its options say."""
        places = _journals(start)
        missing = set(places) - set(self._directories)
        if missing:
            raise ConfigError(
                f"path: the checkpoint was made with {min(missing)}, which is not read any more; begin with a new checkpoint"
            )
        begun = {}
        for directory in self._directories:
            place = places.get(directory)
            if place is None:
                # Resolved once: `latest` moves, and no message may be skipped before a batch records the position.
                if directory not in self._added:
                    self._added[directory] = _directory.span(directory, self._options).after
                begun[directory] = self._added[directory]
                continue
            begun[directory] = int(place["to"])
            if place["at"] is not None:
                at = (str(place["at"][0]), int(place["at"][1]))
                _directory.reader_of(
                    Range(directory, begun[directory], begun[directory], at, self._options.archive)
                )
        return begun

    def _end(self, directory: str) -> int:
        if self._head is not None:
            return self._head.get(directory, 0)
        if time.monotonic() - self._refreshed > REFRESH_SECONDS:
            for each in self._directories:
                _directory.refreshed(each, self._options.archive)
            self._refreshed = time.monotonic()
        return self._reader(directory).last

    def _waits(self, available: int) -> bool:
        """Whether a batch is put off until there is more for it."""
        wanted = self._options.min_messages
        if wanted is None or available >= wanted or self._head is not None:
            return False
        return time.monotonic() - self._last_batch < self._options.max_trigger_delay.total_seconds()

    def _limit(self, begun: dict[str, int], ends: dict[str, int], limit: limits.ReadLimit) -> None:
        """Shortens the batch. The journals share the limits; the unused part of one goes to the next."""
        rows = limit.max_rows if isinstance(limit, limits.ReadMaxRows) else self._options.max_messages
        size = limit.max_bytes if isinstance(limit, limits.ReadMaxBytes) else self._options.max_bytes
        # Those with the least come first, so that what they leave is known.
        order = sorted(self._directories, key=lambda directory: ends[directory] - begun[directory])
        count = sum(ends[directory] > begun[directory] for directory in order)
        for directory in order:
            after, end = begun[directory], ends[directory]
            if end == after:
                continue
            end = min(end, after + max(rows // count, 1))
            if size is not None:
                end = min(end, self._reader(directory).limit_by_size(after, end, max(size // count, 1)))
            ends[directory] = end
            rows, count = rows - (end - after), count - 1

    def _reader(self, directory: str) -> ArrowReader:
        return _directory.reader(directory, self._options.archive)

    def _place(self, directory: str, begin: int, end: int) -> dict[str, Any]:
        return {
            "from": begin,
            "to": end,
            "at": _directory.identity(self._reader(directory), end),
        }


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


def _journals(offset: dict[str, Any]) -> dict[str, dict[str, Any]]:
    if offset.get("v") != _VERSION or "journals" not in offset:
        raise BadBookmarkError(
            f"the checkpoint has an offset of another source or version, {offset!r}; begin with a new checkpoint"
        )
    journals: dict[str, dict[str, Any]] = offset["journals"]
    return journals
