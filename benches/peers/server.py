"""A server process that is started, waited for, measured and ended."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

START_TIMEOUT_S = 60.0


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


class Server:
    """Runs `command` in a separate process group until the block ends. Its output is written to a
    file."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        directory: Path,
        port: int,
        *,
        ends_by: Sequence[signal.Signals] = (signal.SIGTERM, signal.SIGKILL),
    ) -> None:
        self._command = command
        self._environment = environment
        self._log = directory / "server.log"
        self._directory = directory
        self._port = port
        self._ends_by = ends_by

    def __enter__(self) -> Server:
        self.start()
        self.wait()
        return self

    def start(self) -> None:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._directory,
                env={**os.environ, **self._environment},
                start_new_session=True,
            )

    def wait(self) -> None:
        """Waits until the server accepts connections."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._accepts():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.__exit__()
                raise RuntimeError(f"{self._command[0]} did not start:\n{self._log.read_text()[-2000:]}")
            time.sleep(0.05)

    def __exit__(self, *_: object) -> None:
        for number in self._ends_by:
            try:
                os.killpg(self._process.pid, number)
            except ProcessLookupError:
                break
            try:
                self._process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                continue
            if not self.processes():
                break

    def resident_bytes(self) -> int:
        """Memory of the server's processes that is not backed by files."""
        return sum(_anonymous_bytes(process) for process in self.processes())

    def processor_seconds(self) -> float:
        """Time on a processor, of processes that have ended, too."""
        ticks = 0
        for process in self.processes():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
                own, ended = fields[11:13], fields[13:15] if process == self._process.pid else []
                ticks += sum(map(int, own + ended))
        return ticks / os.sysconf("SC_CLK_TCK")

    def processes(self) -> list[int]:
        """The process that was started, and those that it started."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                # Processes of PostgreSQL have a group each.
                with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                    _, parent, group = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
                    if self._process.pid in (int(parent), int(group)):
                        found.append(int(entry.name))
        return found

    def _accepts(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self._port), timeout=1).close()
        except OSError:
            return False
        return True


@contextmanager
def started(servers: Sequence[Server]) -> Iterator[None]:
    """Starts all of them before it waits for the first: a server may accept connections only when
    it has found the others."""
    with ExitStack() as stack:
        for server in servers:
            server.start()
            stack.push(server)
        for server in servers:
            server.wait()
        yield


def _anonymous_bytes(process: int) -> int:
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except FileNotFoundError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("RssAnon:"))
