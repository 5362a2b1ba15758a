"""The times of a schedule: `"4h"`, `"23:00"`, `"Saturday at 00:30"`, and with `Z` in UTC."""

from __future__ import annotations

import calendar
import re
import time
from dataclasses import dataclass
from typing import Final

from quire._errors import ConfigError
from quire._units import seconds

_DAYS: Final = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_AT: Final = re.compile(r"(?:([A-Za-z]+)\s+at\s+)?([0-9]{1,2}):([0-9]{2})(Z?)")
#: The shortest interval, in seconds.
INTERVAL_MIN: Final = 1.0
#: The form of a schedule, for errors.
EXPECTED: Final = 'a time such as "4h", "23:00" or "Saturday at 00:30", with Z at the end for UTC'


@dataclass(frozen=True)
class Schedule:
    """Times that come again and again."""

    text: str
    #: Seconds between two times; `None`: at times of a clock.
    interval: float | None = None
    #: From 0 for Monday; `None`: each day.
    day: int | None = None
    hour: int = 0
    minute: int = 0
    is_utc: bool = False

    @classmethod
    def of(cls, value: str | Schedule) -> Schedule:
        """A schedule, or one that `parse` reads. Maintenance can have shorter intervals."""
        return value if isinstance(value, Schedule) else cls.parse(value)

    @classmethod
    def parse(cls, text: str) -> Schedule:
        """Reads a schedule. Raises `ValueError`."""
        found = _AT.fullmatch(text.strip())
        if found is None:
            try:
                interval = seconds(text, "schedule")
            except ConfigError:
                raise ValueError(f"expected {EXPECTED}, got {text!r}") from None
            if interval < INTERVAL_MIN:
                raise ValueError(f"expected an interval of at least 1s, got {text!r}")
            return cls(text, interval)
        day = None if found[1] is None else found[1].lower()
        if day is not None and day not in _DAYS:
            raise ValueError(f"expected {EXPECTED}, got the day {found[1]!r}")
        hour, minute = int(found[2]), int(found[3])
        if hour > 23 or minute > 59:
            raise ValueError(f"expected {EXPECTED}, got {text!r}")
        number = None if day is None else _DAYS.index(day)
        return cls(text, day=number, hour=hour, minute=minute, is_utc=bool(found[4]))

    def after(self, now: float, started: float, last: float | None = None) -> float:
        """The first time after `now`, in seconds since 1970.

        - `started`: when the server started
        - `last`: the time before, which does not come again at a change of the clocks

        A local time that a change of the clocks leaves out comes an hour later. One that it repeats
        comes once.
        """
        if self.interval is not None:
            count = int((now - started) // self.interval) + 1
            return started + count * self.interval
        parts = time.gmtime(now) if self.is_utc else time.localtime(now)
        for ahead in range(-1, 16):
            at = self._on(parts, ahead)
            if last is not None and self._date(at) == self._date(last):
                continue
            if at > now and (self.day is None or self._weekday(at) == self.day):
                return at
        raise AssertionError("a week has every day")

    def _on(self, parts: time.struct_time, ahead: int) -> float:
        day = (parts.tm_year, parts.tm_mon, parts.tm_mday + ahead, self.hour, self.minute, 0, 0, 0)
        return float(calendar.timegm((*day, 0))) if self.is_utc else time.mktime((*day, -1))

    def _date(self, at: float) -> tuple[int, ...]:
        return tuple((time.gmtime(at) if self.is_utc else time.localtime(at))[:3])

    def _weekday(self, at: float) -> int:
        return (time.gmtime(at) if self.is_utc else time.localtime(at)).tm_wday
