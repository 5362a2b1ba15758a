"""`spark.readStream` from a running server: its log in micro-batches.

An offset contains the message after which the next batch begins, the time of this message, and
**where the batch began**, for the reasons in `_stream`. The number of messages is known only after
receiving them, so the driver counts a batch before it plans it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql import datasource as ds
from pyspark.sql import types as t
from pyspark.sql.streaming import datasource as limits

from quire._errors import BadBookmarkError
from quire.spark._failures import hiding_traceback
from quire.spark._options import options_of
from quire.spark._scan import ScanBuilder
from quire.spark._server import Connection, Place, ServerRange, Wanted, span
from quire.spark._server_batch import receive, split

if TYPE_CHECKING:
    import pyarrow as pa

_VERSION = 1

#: Spark asks every 10 ms when it is idle; the server does not have to be asked that often.
REFRESH_SECONDS = 0.05

#: No bound.
_EVERYTHING = 1 << 62


class ServerStreamReader(ds.DataSourceStreamReader, limits.SupportsTriggerAvailableNow):
    """Lives in one process of the driver for a run of a query; `read` runs elsewhere, on a copy as
    it was made."""

    def __init__(self, frame: str, schema: t.StructType) -> None:
        options = options_of(json.loads(frame)["options"])
        # A query without a start begins with the next messages.
        self._options = replace(options, starting=options.starting or "latest")
        self._scan = ScanBuilder(frame, schema)
        self._wanted = Wanted.of(options)
        self._connected: Connection | None = None
        #: With `AvailableNow`: the last place to read.
        self._last: Place | None = None
        self._head: Place | None = None
        self._refreshed = 0.0
        self._last_batch = time.monotonic()
        #: Between the start of the next batch and this place there is no message.
        self._empty: tuple[str, Place] | None = None
        #: The place that was found to be in this log.
        self._checked: str | None = None

    @hiding_traceback()
    def initialOffset(self) -> dict[str, Any]:
        start = span(self._connection, self._options).start
        return {"v": _VERSION, "from": str(start), "to": str(start), "at": self._time_of(start)}

    def getDefaultReadLimit(self) -> limits.ReadLimit:
        return limits.ReadMaxRows(self._options.max_messages)

    @hiding_traceback()
    def prepareForTriggerAvailableNow(self) -> None:
        self._last = Place(self._connection.head())

    @hiding_traceback()
    def latestOffset(self, start: dict[str, Any], limit: limits.ReadLimit) -> dict[str, Any]:
        self._check(start)
        begin, head = Place.parse(start["to"]), self._end()
        if self._empty == (start["to"], head) or begin == head:
            return start
        range_ = self._connection.retained(ServerRange(begin, head))
        is_all = isinstance(limit, limits.ReadAllAvailable)
        rows = limit.max_rows if isinstance(limit, limits.ReadMaxRows) else self._options.max_messages
        size = limit.max_bytes if isinstance(limit, limits.ReadMaxBytes) else self._options.max_bytes
        count, last, is_end = self._connection.count(
            range_, self._wanted, _EVERYTHING if is_all else rows, size or _EVERYTHING
        )
        if last is None:
            # The log has no matching message there.
            self._empty = (start["to"], head)
            return start
        if is_end and self._waits(count):
            return start
        self._last_batch = time.monotonic()
        return {"v": _VERSION, "from": str(range_.start), "to": str(Place(last[0])), "at": last[1]}

    @hiding_traceback()
    def reportLatestOffset(self) -> dict[str, Any]:
        place = str(self._end())
        # Without the time, for which the server would have to be asked.
        return {"v": _VERSION, "from": place, "to": place, "at": None}

    @hiding_traceback()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[ds.InputPartition]:
        self._check(end)
        if start == end:
            # Spark compares offsets as text, and another version can have spelled one of them.
            return []
        range_ = ServerRange(Place.parse(end["from"]), Place(Place.parse(end["to"]).bookmark))
        return split(self._connection, range_, self._wanted, self._options)

    def read(self, partition: ds.InputPartition) -> Iterator[pa.RecordBatch]:
        return receive(partition, self._options, self._wanted, self._scan.read.spec())

    @property
    def _connection(self) -> Connection:
        if self._connected is None:
            self._connected = Connection(self._options)
        return self._connected

    def _end(self) -> Place:
        if self._last is not None:
            return self._last
        if self._head is None or time.monotonic() - self._refreshed > REFRESH_SECONDS:
            self._head, self._refreshed = Place(self._connection.head()), time.monotonic()
        return self._head

    def _waits(self, available: int) -> bool:
        """Whether a batch is delayed until there are more messages for it."""
        wanted = self._options.min_messages
        if wanted is None or available >= wanted or self._last is not None:
            return False
        return time.monotonic() - self._last_batch < self._options.max_trigger_delay.total_seconds()

    def _check(self, offset: dict[str, Any]) -> None:
        """Makes sure that the log is the one that the offset was made with."""
        if offset.get("v") != _VERSION or "to" not in offset:
            raise BadBookmarkError(
                f"the checkpoint has an offset of another source or version, {offset!r}; begin with a new checkpoint"
            )
        if self._checked == offset["to"] or offset["at"] is None:
            return
        bookmark = Place.parse(offset["to"]).bookmark
        if self._connection.has(bookmark) and self._connection.time_of(bookmark) != offset["at"]:
            raise BadBookmarkError(
                f"{self._options.url}: message {bookmark} is not the one that the query has read: this is not the journal that it left"
            )
        self._checked = offset["to"]

    def _time_of(self, place: Place) -> int | None:
        return None if place.is_before else self._connection.time_of(place.bookmark)
