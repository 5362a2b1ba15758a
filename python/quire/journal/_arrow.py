"""The journal as Arrow record batches, built by the core: no Python per message."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

from quire._errors import ConfigError, QuireError
from quire._frames import check_types
from quire._quire import ArrowScan, JournalReader, scan_journal

if TYPE_CHECKING:
    import pyarrow as pa

#: The columns that every message has, in their order.
ATTRIBUTES = (
    "position",
    "bookmark",
    "timestamp",
    "timestamp_ns",
    "topic",
    "publisher",
    "sequence",
    "kind",
    "correlation_id",
    "sow_key",
    "headers",
    "message_type",
    "data",
)


def read_arrow(
    reader: JournalReader,
    after: str,
    until: str | None,
    topic: str | None,
    filter: str | None,
    fields: Mapping[str, str] | None,
    batch_rows: int,
) -> Iterator[pa.RecordBatch]:
    """The batches of a range, all columns of the messages and the fields on top."""
    check_types(fields or {})
    spec = {
        "columns": [*({"name": name, "attribute": name} for name in ATTRIBUTES), *_fields(fields or {})],
        "topics": None if topic is None else {"selector": topic},
        "filter": filter,
        "batch_rows": batch_rows,
    }
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        raise ConfigError("Arrow is not installed: pip install 'quire-mq[arrow]'") from None
    first, last = reader.bounds(after, until)
    scan = scan_journal(reader, json.dumps(spec), first, max(first, last))
    return RecordBatches(scan, lambda _first, _last, _reason: None)


class RecordBatches(Iterator["pa.RecordBatch"]):
    """The batches of a scan. Raises the error that ended the scan.

    Calls `on_skip` for records that were left out. It is an iterator and not a generator, which the
    exception of a signal handler would end for good.
    """

    def __init__(self, scan: ArrowScan, on_skip: Callable[[int, int, str], object]) -> None:
        import pyarrow as pa

        self._scan = scan
        self._on_skip = on_skip
        self._told = 0
        self._names = scan.names
        self._has_nul = any("\0" in name for name in self._names)
        self._stream: Any = pa.RecordBatchReader.from_stream(scan)
        #: The batch that was read, until it is returned.
        self._read: list[pa.RecordBatch] = []
        self._failure = pa.ArrowException

    def __next__(self) -> pa.RecordBatch:
        read = self._read
        if not read:
            try:
                # In one call: the exception of a signal handler comes after it, and the batch is
                # not lost.
                read.extend(islice(self._stream, 1))
            except self._failure:
                raise self._scan.error or QuireError("the scan ended") from None
        skipped = self._scan.skipped
        for gap in skipped[self._told :]:
            self._told += 1
            self._on_skip(*gap)
        if not read:
            raise StopIteration
        # The stream cannot have a NUL in a name.
        batch = read[0].rename_columns(self._names) if self._has_nul else read[0]
        del read[0]
        return batch


def _fields(fields: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    for name, kind in fields.items():
        path = name if name.startswith("/") else f"/{name}"
        yield {"name": name, "field": {"path": path, "type": kind}}
