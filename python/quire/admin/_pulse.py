"""Measures how long the event loop of the server lets others wait."""

from __future__ import annotations

import asyncio
import contextlib
import time
from bisect import bisect_left
from collections import deque
from typing import Final

from quire.admin._figures import Durations

#: Seconds between two measurements.
INTERVAL: Final = 0.5
#: The measurements that the figures describe: two minutes.
_KEPT: Final = 240


#: The upper bounds of the delays that are counted together, in seconds.
BOUNDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


class Pulse:
    """Calls into the loop of the server from another thread, and measures the delay of each call."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._answered = time.monotonic()
        self._delays: deque[float] = deque(maxlen=_KEPT)
        self._is_waiting = False
        self._counts = [0] * (len(BOUNDS) + 1)
        self._sum = 0.0

    @property
    def idle(self) -> float:
        """Seconds since the loop has answered last."""
        return time.monotonic() - self._answered

    def figures(self) -> dict[str, float]:
        """The delays of the last two minutes, in seconds."""
        delays = sorted(self._delays)
        if not delays:
            return {"delay_p50_s": 0.0, "delay_p99_s": 0.0, "delay_max_s": 0.0}
        return {
            "delay_p50_s": round(delays[len(delays) // 2], 6),
            "delay_p99_s": round(delays[min(len(delays) * 99 // 100, len(delays) - 1)], 6),
            "delay_max_s": round(delays[-1], 6),
        }

    @property
    def durations(self) -> Durations:
        """The delays since the start."""
        return Durations(list(BOUNDS), list(self._counts), self._sum)

    async def run(self) -> None:
        """Measures on another loop, until it is cancelled."""
        while True:
            if not self._is_waiting:
                self._is_waiting = True
                with contextlib.suppress(RuntimeError):  # the loop is closed
                    self._loop.call_soon_threadsafe(self._answer, time.monotonic())
            await asyncio.sleep(INTERVAL)

    def _answer(self, asked: float) -> None:
        self._answered = time.monotonic()
        delay = self._answered - asked
        self._delays.append(delay)
        self._counts[bisect_left(BOUNDS, delay)] += 1
        self._sum += delay
        self._is_waiting = False
