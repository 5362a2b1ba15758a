"""How long records have matched: for `condition_timeout` and `alert`. It has no thread and no clock."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

Reason = Literal["timeout", "left"]

#: Records that are followed. Further ones are left out, and counted.
RECORDS_MAX: Final = 1_000_000


@dataclass
class _Record:
    since: float
    message: Any
    has_fired: bool = False


class Conditions:
    """The records that match. The caller reports each change, and asks for those whose time is over."""

    def __init__(self, after: float) -> None:
        """`after`: how long a record must match, in seconds."""
        self._after = after
        self._records: dict[tuple[str, str], _Record] = {}
        self._due: list[tuple[float, tuple[str, str]]] = []
        #: Records that were left out.
        self.left_out = 0

    def matched(self, key: tuple[str, str], message: Any, now: float) -> None:
        """A record matches: it is new, or was changed."""
        record = self._records.get(key)
        if record is not None:
            record.message = message
        elif len(self._records) >= RECORDS_MAX:
            self.left_out += 1
        else:
            self._records[key] = _Record(now, message)
            heapq.heappush(self._due, (now + self._after, key))

    def left(self, key: tuple[str, str]) -> bool:
        """A record does not match any more. Returns whether this was before its time was over."""
        record = self._records.pop(key, None)
        return record is not None and not record.has_fired

    def due(self, now: float) -> Iterator[Any]:
        """The last messages of the records whose time is over, each once."""
        while self._due and self._due[0][0] <= now:
            at, key = heapq.heappop(self._due)
            record = self._records.get(key)
            # It may have left and come again meanwhile.
            if record is not None and not record.has_fired and record.since + self._after <= at:
                record.has_fired = True
                yield record.message

    @property
    def next(self) -> float | None:
        """When to ask for those whose time is over; `None`: there are none."""
        return self._due[0][0] if self._due else None
