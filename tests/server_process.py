"""`quire.testing.ServerProcess` with what only the tests of quire itself want to know."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import quire.testing

#: Seconds that a test waits for what must come: so long that on any machine only a hang takes longer.
PATIENCE: Final = 120.0


class ServerProcess(quire.testing.ServerProcess):
    """A server in a process of its own, so that a test can kill it as nothing else can."""

    def end_after(self, seconds: float) -> int | None:
        """The exit status of a process that ends within `seconds`, or `None`."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._running().wait(seconds)
        return None

    def resident_bytes(self) -> int:
        """Memory of the process that is not backed by files: a mapped journal does not count."""
        fields = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        values = {line.split(":")[0]: line.split()[1] for line in fields if line.startswith("Rss")}
        return int(values["RssAnon"]) * 1024


class Deadline:
    """So long a test waits for what must come."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    @property
    def left(self) -> float:
        """Seconds left; an error when there are none."""
        left = self._end - time.monotonic()
        assert left > 0, "what had to come did not come in time"
        return left


def wait_until(is_so: Callable[[], bool], seconds: float = PATIENCE) -> None:
    """Returns when it is so; an error when it is not so in time."""
    deadline = Deadline(seconds)
    while not is_so():
        time.sleep(min(0.01, deadline.left))
