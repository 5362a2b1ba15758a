"""How long a test waits for something that must happen."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

#: Seconds that a test waits for something that must happen. Only a hang takes longer, on any
#: machine.
PATIENCE: Final = 240


class Deadline:
    """The end of one wait."""

    def __init__(self, seconds: float = PATIENCE) -> None:
        self._end = time.monotonic() + seconds

    @property
    def left(self) -> float:
        """Seconds left. Raises `AssertionError` when there are none."""
        left = self._end - time.monotonic()
        assert left > 0, "what had to come did not come in time"
        return left


def wait_until(is_so: Callable[[], bool], seconds: float = PATIENCE) -> None:
    """Returns when `is_so()` is true. Raises `AssertionError` when that takes longer than `seconds`."""
    deadline = Deadline(seconds)
    while not is_so():
        time.sleep(min(0.01, deadline.left))


def stop(pid: int) -> None:
    """Sends SIGSTOP, and returns when all threads of the process have stopped. On a busy machine
    they run on for a while."""
    os.kill(pid, signal.SIGSTOP)
    tasks = Path(f"/proc/{pid}/task")
    # The state is the field after the name, which ends with the last parenthesis.
    wait_until(
        lambda: all((t / "stat").read_text().rpartition(")")[2].split()[0] == "T" for t in tasks.iterdir())
    )
