"""The newest lines of the log, for the console."""

from __future__ import annotations

import asyncio
import logging
import threading
import weakref
from collections import deque
from collections.abc import AsyncGenerator
from typing import Any, Final

#: Lines that are kept, and bytes of each.
LINES_MAX: Final = 2000
LINE_SIZE_MAX: Final = 4096

Line = dict[str, Any]

_log = logging.getLogger("quire.server")


class LogTail:
    """Keeps the newest lines of the log, and hands further ones to pages that follow it.

    It is a filter of the logger, and not a handler: without a handler, Python prints warnings to
    the standard error stream, and still does. The logger keeps it no longer than the server does.
    """

    def __init__(self) -> None:
        self._lines: deque[Line] = deque(maxlen=LINES_MAX)
        self._count = 0
        self._changes = threading.Lock()
        self._followers: set[_Follower] = set()
        kept_by = weakref.WeakMethod(self._keep)

        def keep(record: logging.LogRecord) -> bool:
            method = kept_by()
            return method is None or method(record)

        _log.addFilter(keep)
        weakref.finalize(self, _log.removeFilter, keep)

    def _keep(self, record: logging.LogRecord) -> bool:
        try:
            text = record.getMessage()[:LINE_SIZE_MAX]
        except Exception:
            return True  # the handlers of the logger report it
        with self._changes:
            self._count += 1
            line = {
                "number": self._count,
                "time": record.created,
                "level": record.levelname.lower(),
                "id": getattr(record, "id", None),
                "thread": record.threadName,
                "text": text,
            }
            self._lines.append(line)
            followers = list(self._followers)
        for follower in followers:
            follower.wake()
        return True

    def lines(self) -> list[Line]:
        """Returns the lines that are kept, oldest first."""
        with self._changes:
            return list(self._lines)

    async def follow(self) -> AsyncGenerator[list[Line]]:
        """Yields the lines that are kept, and then further ones as they come.

        A reader that is slower than the log misses lines: no more of them are kept than for other
        readers.
        """
        follower = _Follower(asyncio.get_running_loop())
        with self._changes:
            self._followers.add(follower)
        last = 0
        try:
            while True:
                if fresh := [line for line in self.lines() if line["number"] > last]:
                    last = fresh[-1]["number"]
                    yield [{"line": line} for line in fresh]
                await follower.wait()
        finally:
            with self._changes:
                self._followers.discard(follower)


class _Follower:
    """A page that waits for the next line."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._event = asyncio.Event()
        self._is_woken = False

    def wake(self) -> None:
        """There is a line. Any thread may call it. It does nothing more until the page has seen the line."""
        if self._is_woken:
            return
        self._is_woken = True
        try:
            self._loop.call_soon_threadsafe(self._event.set)
        except RuntimeError:
            return  # the loop is closed

    async def wait(self) -> None:
        await self._event.wait()
        self._event.clear()
        self._is_woken = False
