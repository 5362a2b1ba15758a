"""`Message` is made by the Rust core; here is what it needs of Python, and how data becomes one."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

from quire._quire import Message as Message

_UNIX_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def datetime_from_ns(timestamp_ns: int) -> datetime:
    """The moment, to the microsecond: what a `datetime` holds."""
    return _UNIX_EPOCH + timedelta(microseconds=timestamp_ns // 1000)


def to_bytes(data: Any) -> bytes:
    """Bytes as they are, text as UTF-8, anything else as JSON."""
    if isinstance(data, bytes):
        return data
    if isinstance(data, str):
        return data.encode()
    if isinstance(data, (bytearray, memoryview)):
        return bytes(data)
    return json.dumps(data, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()
