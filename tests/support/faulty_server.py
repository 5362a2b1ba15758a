"""A server process whose disk and clock misbehave on demand.

`tests/support/faults/preload.c` intercepts the calls of the server to the C library. It reads its
orders from a mapped file, so a fault begins and ends at a moment that the test chooses.
"""

from __future__ import annotations

import errno
import mmap
import shutil
import struct
import subprocess
from pathlib import Path
from typing import Any

from support.server_process import ServerProcess
from support.waiting import Deadline

_SOURCE = Path(__file__).parent / "faults" / "preload.c"
_SIZE = 32


class FaultyServer(ServerProcess):
    """A `ServerProcess` with `fail_writes`, `fail_syncs`, `fail_reads`, `leave_room`, `hang_syncs`,
    `shift_clock`, and `heal`."""

    def __init__(self, directory: Path, **config: Any) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        control = directory / "faults"
        control.write_bytes(bytes(_SIZE))
        with control.open("r+b") as file:
            self._faults = mmap.mmap(file.fileno(), _SIZE)
        #: Of a process that shares the faults of this server.
        self.environment = {"LD_PRELOAD": str(_library(directory)), "QUIRE_FAULTS": str(control)}
        super().__init__(directory / "data", environment=self.environment, **config)

    def fail_writes(self, number: int = errno.ENOSPC) -> None:
        self._set(0, "i", number)

    def fail_syncs(self, number: int = errno.EIO) -> None:
        self._set(4, "i", number)

    def fail_reads(self, number: int = errno.EIO) -> None:
        self._set(24, "i", number)

    def leave_room(self, thousandths: int) -> None:
        """The file systems have this part of their size left."""
        self._set(28, "i", thousandths)

    def hang_syncs(self) -> None:
        self._set(8, "i", 1)

    def wait_until_a_sync_hangs(self) -> None:
        deadline = Deadline()
        while struct.unpack_from("i", self._faults, 12)[0] == 0:
            assert deadline.left > 0

    def shift_clock(self, seconds: float) -> None:
        self._set(16, "q", int(seconds * 1e9))

    def heal(self) -> None:
        """No call fails any more, and blocked calls continue. The clock keeps its shift."""
        for offset in (0, 4, 8, 24, 28):
            self._set(offset, "i", 0)

    def _set(self, offset: int, kind: str, value: int) -> None:
        struct.pack_into(kind, self._faults, offset, value)


def _library(directory: Path) -> Path:
    """Compiles the library into the directory. Rust's linker is the C compiler, so there is one
    wherever quire was built."""
    compiler = shutil.which("cc")
    assert compiler is not None, "no C compiler, although Rust links with one"
    target = directory / "preload.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", target, _SOURCE, "-ldl"], check=True)
    return target
