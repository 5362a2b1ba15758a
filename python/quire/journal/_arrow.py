"""The journal as Arrow record batches, built by the core: no Python per message."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
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
    return batches(scan, lambda _first, _last, _reason: None)


def batches(scan: ArrowScan, on_skip: Callable[[int, int, str], object]) -> Iterator[pa.RecordBatch]:
    """Yields the batches of a scan. Calls `on_skip` for records that were left out. Raises the error that ended the scan."""
    import pyarrow as pa

    names = scan.names
    has_nul = any("\0" in name for name in names)
    stream: Any = pa.RecordBatchReader.from_stream(scan)
    told = 0
    while True:
        try:
            batch = next(stream, None)
        except pa.ArrowException:
            raise scan.error or QuireError("the scan ended") from None
        skipped = scan.skipped
        for gap in skipped[told:]:
            on_skip(*gap)
        told = len(skipped)
        if batch is None:
            return
        # The stream cannot have a NUL in a name.
        yield batch.rename_columns(names) if has_nul else batch


def _fields(fields: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    for name, kind in fields.items():
        path = name if name.startswith("/") else f"/{name}"
        yield {"name": name, "field": {"path": path, "type": kind}}
