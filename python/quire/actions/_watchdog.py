"""Tells when a part of the server makes no progress: the event loop, or a thread that it needs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from quire.actions._steps import dump_stacks
from quire.server._log import line

_log = logging.getLogger("quire.server")

#: Seconds without an answer after which a part is stuck, as for `/healthz`.
STUCK: Final = 10.0
#: Seconds between two looks.
INTERVAL: Final = 1.0
#: The event loop, in lines of the log and in the variable THREAD.
LOOP: Final = "event loop"


@dataclass
class _Part:
    #: Asks the part to answer. The answer calls the argument.
    ask: Callable[[Callable[[], None]], None]
    #: When it was asked; `None`: it has answered.
    asked: float | None = None
    is_stuck: bool = False


class Watch:
    """Which parts answer. It has no thread and no clock."""

    def __init__(self) -> None:
        self._parts: dict[str, _Part] = {}
        self._lock = threading.Lock()

    def add(self, name: str, ask: Callable[[Callable[[], None]], None]) -> None:
        """Watches a part. `ask` lets it call its argument soon, from any thread."""
        with self._lock:
            self._parts[name] = _Part(ask)

    def look(self, now: float) -> Iterator[tuple[str, float, bool]]:
        """Asks the parts that have answered. Yields those that are stuck from now on, and those that were: their
        names, for how long, and whether they are stuck."""
        with self._lock:
            parts = list(self._parts.items())
        for name, part in parts:
            if part.asked is None:
                if part.is_stuck:
                    part.is_stuck = False
                    yield name, 0.0, False
                part.asked = now
                part.ask(lambda part=part: setattr(part, "asked", None))  # type: ignore[misc]
            elif not part.is_stuck and now - part.asked >= STUCK:
                part.is_stuck = True
                yield name, now - part.asked, True


class Watchdog(threading.Thread):
    """A thread that looks once a second. It writes the stacks of all threads when a part is stuck."""

    def __init__(self, loop: asyncio.AbstractEventLoop, stuck: Callable[[str, float], None]) -> None:
        """`stuck`: is called with each part that is stuck, and for how long."""
        super().__init__(name="quire-watchdog", daemon=True)
        self._stuck = stuck
        self._is_closing = threading.Event()
        self.watch = Watch()

        def ask(answer: Callable[[], None]) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(answer)

        self.watch.add(LOOP, ask)

    def run(self) -> None:
        """Looks until `close`."""
        while not self._is_closing.wait(INTERVAL):
            self.look(time.monotonic())

    def look(self, now: float) -> None:
        """Looks at the parts, and reports those that are stuck, or no longer stuck."""
        for name, seconds, is_stuck in self.watch.look(now):
            if not is_stuck:
                _log.warning("%s: it runs again", name, extra=line("01-0002", part=name))
                continue
            _log.critical(
                "%s: no progress for %d s; the stacks of all threads follow",
                *(name, round(seconds)),
                extra=line("01-0001", part=name, seconds=round(seconds, 3)),
            )
            dump_stacks()
            self._stuck(name, seconds)

    def close(self) -> None:
        """Looks no more."""
        self._is_closing.set()
        if self.is_alive():
            self.join()
