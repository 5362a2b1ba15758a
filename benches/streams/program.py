"""Every program that computes a query of Nexmark has these: its arguments, its times and its answer."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any


def read_events(path: Path, topics: Sequence[str]) -> list[tuple[str, bytes]]:
    """The topic and the record, as JSON, of each event of these topics. A bid has its line as `id`."""
    events = []
    with path.open("rb") as lines:
        for number, line in enumerate(lines):
            ((topic, record),) = json.loads(line).items()
            if topic in topics:
                events.append((topic, json.dumps({"id": number} | record).encode()))
    return events


class Meter:
    """The time and the processor time of this process, from the first event to the last answer."""

    def __init__(self) -> None:
        self._begin: tuple[float, float] | None = None
        self.seconds = 0.0
        self.processor_seconds = 0.0

    def begin(self) -> None:
        """Begins; another call does nothing."""
        if self._begin is None:
            self._begin = time.perf_counter(), time.process_time()

    def end(self) -> None:
        assert self._begin is not None
        begin, used = self._begin
        self.seconds, self.processor_seconds = time.perf_counter() - begin, time.process_time() - used


class Program:
    def __init__(self, arguments: list[str]) -> None:
        self.query = arguments[1]
        self.events = Path(arguments[2])

    def answer(self, meter: Meter, events: int, rows: Iterable[dict[str, Any]]) -> None:
        """Prints the figures, and then each row of the answer, as JSON."""
        figures = {"events": events, "seconds": meter.seconds, "processor_seconds": meter.processor_seconds}
        print(json.dumps(figures))
        for row in rows:
            sys.stdout.write(json.dumps(row, sort_keys=True) + "\n")
