"""`quire.testing.ServerProcess` with what only the tests of quire itself want to know."""

from __future__ import annotations

import contextlib
import subprocess
from pathlib import Path

import quire.testing


class ServerProcess(quire.testing.ServerProcess):
    """A server in a separate process, so that a test can kill it."""

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
