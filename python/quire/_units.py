"""Durations and sizes as people write them: "100ms", "5m", "64MB"."""

from __future__ import annotations

import re
from datetime import timedelta

from quire._errors import ConfigError

Duration = timedelta | float | int | str
Size = int | str

_SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_BYTES = {"": 1, "B": 1, "KB": 1024, "MB": 1024**2, "GB": 1024**3, "TB": 1024**4}
#: No file and no memory has as many bytes: 2^63, as a signed number of 64 bits ends.
_SIZE_END = 1 << 63
_QUANTITY = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*")


def seconds(value: Duration, key: str) -> float:
    """The seconds of a `timedelta`, a number of seconds, or text such as "30us", "100ms", "10s", "5m",
    "4h", "7d"."""
    if isinstance(value, timedelta):
        result = value.total_seconds()
    elif isinstance(value, str):
        # Nothing is as much in every unit.
        match = _QUANTITY.fullmatch("0s" if value.strip() == "0" else value)
        if match is None or match[2] not in _SECONDS:
            raise ConfigError(f"{value!r} is not a duration such as '100ms', '10s' or '5m'", key=key)
        result = float(match[1]) * _SECONDS[match[2]]
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        result = float(value)
    else:
        raise ConfigError(
            f"{value!r} is not a duration: a timedelta, seconds, or text such as '10s'", key=key
        )
    if not 0 <= result < 1e9:
        raise ConfigError(f"{value!r} is not between 0 and 31 years", key=key)
    return result


def size(value: Size, key: str) -> int:
    """The bytes of a number or of text such as "500KB" (KB = 1024 bytes)."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        result: float = value
    elif isinstance(value, str) and (match := _QUANTITY.fullmatch(value)) and match[2].upper() in _BYTES:
        result = float(match[1]) * _BYTES[match[2].upper()]
    else:
        raise ConfigError(f"{value!r} is not a size: bytes, or text such as '64MB'", key=key)
    if result >= _SIZE_END:
        raise ConfigError(f"{value!r} is not below 8388608TB", key=key)
    return int(result)


def number_text(value: float) -> str:
    """A number for people: six digits, or all before the point."""
    if not 1e-3 <= abs(value) < 1e15:
        return f"{value:.6g}"
    decimals = 6 if abs(value) < 1 else 6 - len(f"{abs(value):.0f}")
    return f"{value:,.{decimals}f}".rstrip("0").rstrip(".") if decimals > 0 else f"{value:,.0f}"


def counted(count: int, one: str, several: str | None = None) -> str:
    """A count with its noun: "1 message", "2,000 messages". `several` is the plural, where it is
    not `one` with an s."""
    return f"{count:,} {one if count == 1 else several or one + 's'}"
