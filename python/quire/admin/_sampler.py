"""Takes a sample of every figure per interval, and hands it to a thread that writes."""

from __future__ import annotations

import logging
import queue
import sqlite3
import threading
import time
from typing import Any, Final

from quire._process import start_thread
from quire.admin._figures import Figures, Tree, rates_of
from quire.admin._statistics import History, Store
from quire.server._log import line

_log = logging.getLogger("quire.server")

#: Samples that may wait for the disk. A disk that is slower for longer loses samples, which are
#: counted.
_WAITING_MAX: Final = 16


class Sampler:
    """Samples at fixed times. It counts the intervals that have no sample.

    A store in memory needs no second thread.
    """

    def __init__(self, figures: Figures, store: Store, interval: float) -> None:
        self._figures = figures
        self._store = store
        self._interval = interval
        self._stop = threading.Event()
        self._waiting: queue.Queue[tuple[float, Tree] | None] = queue.Queue(_WAITING_MAX)
        self._taken = 0
        self._missed = 0
        self._is_failing = False
        self._threads = [threading.Thread(target=self._sample, name="quire-statistics", daemon=True)]
        if not store.is_in_memory:
            writer = threading.Thread(target=self._write_waiting, name="quire-statistics-file", daemon=True)
            self._threads.append(writer)

    def start(self) -> None:
        """Takes the first sample now."""
        for thread in self._threads:
            start_thread(thread)

    def close(self) -> None:
        """Writes the samples that wait, and closes the store."""
        self._stop.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join()
        self._store.close(time.time())

    def truncate(self, age: float) -> int:
        """Removes the samples that are older than `age` seconds, and returns their number. It waits for the file."""
        return self._store.truncate(time.time() - age)

    def history(self) -> History:
        """Returns a reader of the samples."""
        return self._store.history()

    def figures(self) -> dict[str, Any]:
        """The figures of the statistics."""
        return {"samples": self._taken, "missed": self._missed, "file_bytes": self._store.size}

    def _sample(self) -> None:
        begin, count = time.monotonic(), 0
        before: Tree = {}
        then = begin
        while True:
            at, now = time.time(), time.monotonic()
            try:
                tree = self._figures.take()
                if before:
                    self._figures.rates = rates_of(before, tree, max(now - then, 0.001))
                before, then = tree, now
                if self._store.is_in_memory:
                    self._write(at, tree)
                else:
                    self._waiting.put_nowait((at, tree))
            except queue.Full:
                self._missed += 1
            except Exception:
                # The next sample may succeed.
                self._missed += 1
                _log.exception("the figures could not be read", extra=line("70-0002"))
            # The times of the samples do not drift. An interval that is over already is missed.
            count += 1
            late = int((time.monotonic() - begin) // self._interval) - count
            if late > 0:
                self._missed += late
                count += late
            if self._stop.wait(max(begin + count * self._interval - time.monotonic(), 0.0)):
                if not self._store.is_in_memory:
                    self._waiting.put(None)
                return

    def _write_waiting(self) -> None:
        while (sample := self._waiting.get()) is not None:
            self._write(*sample)

    def _write(self, at: float, tree: Tree) -> None:
        try:
            self._store.write(at, tree)
        except sqlite3.Error as error:
            self._missed += 1
            if not self._is_failing:
                _log.error("a sample of the statistics was not written: %s", error, extra=line("70-0003"))
            self._is_failing = True
        else:
            self._is_failing = False
            self._taken += 1
