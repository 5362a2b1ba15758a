"""Reads the times of a range, as requests and the command line write them."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime
from typing import Final

from quire._errors import ConfigError
from quire._units import seconds

_TIME: Final = re.compile(r"([0-9]{4})([0-9]{2})?([0-9]{2})?(?:T([0-9]{0,6})(?:\.([0-9]{1,9}))?)?Z?")


def milliseconds(text: str, name: str, now: float | None = None) -> int:
    """Returns a time in milliseconds since 1970: `20261127T113000.5Z`, a prefix of it, or `-15m`.

    Raises `ConfigError` with the name when it is neither.
    """
    now = time.time() if now is None else now
    if text.startswith("-"):
        try:
            return round((now - seconds(text[1:], name)) * 1000)
        except ConfigError:
            raise _expected(text, name) from None
    match = _TIME.fullmatch(text.replace("-", "").replace(":", ""))
    if match is None:
        raise _expected(text, name)
    year, month, day, clock, fraction = match.groups()
    clock = (clock or "").ljust(6, "0")
    try:
        at = datetime(
            int(year),
            int(month or 1),
            int(day or 1),
            int(clock[:2]),
            int(clock[2:4]),
            int(clock[4:]),
            tzinfo=UTC,
        )
    except ValueError:
        raise _expected(text, name) from None
    return round((at.timestamp() + float(f"0.{fraction or 0}")) * 1000)


def span(begin: str | None, end: str | None, names: tuple[str, str]) -> tuple[int | None, int | None]:
    """Returns the times of a range; either may be missing. Raises `ConfigError` for a bad or reversed one."""
    now = time.time()
    first = None if begin is None else milliseconds(begin, names[0], now)
    last = None if end is None else milliseconds(end, names[1], now)
    if first is not None and last is not None and first > last:
        raise ConfigError(f"it is after {names[1]}", key=names[0])
    return first, last


def _expected(text: str, name: str) -> ConfigError:
    what = "a time in UTC such as 20261127T113000Z, or a duration before now such as -15m"
    return ConfigError(f"expected {what}, got {text[:60]!r}", key=name)
