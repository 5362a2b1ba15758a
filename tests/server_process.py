"""A server in a process of its own, so that a test can kill it as nothing else can.

Run as a program it serves until it is terminated or its standard input ends, which it does with the test that
started it.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import quire

#: Seconds that a start may take on a loaded machine; recovery of a test's journal is a small part of it.
START_TIMEOUT = 60.0


class ServerProcess:
    """Starts on entering, and again on `start`; the first start chooses the port, later ones keep it."""

    def __init__(
        self, directory: Path, *, environment: Mapping[str, str] | None = None, **config: Any
    ) -> None:
        self._config: Mapping[str, Any] = {"data_directory": str(directory), **config}
        self._environment = {**os.environ, **(environment or {})}
        self._port = 0
        self._process: subprocess.Popen[str] | None = None

    @property
    def url(self) -> str:
        return f"quire://127.0.0.1:{self._port}"

    @property
    def address(self) -> tuple[str, int]:
        return "127.0.0.1", self._port

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def launch(self) -> None:
        """Starts the process and returns at once."""
        host, port = self.address
        transport = {**self._config.get("transport", {}), "address": f"{host}:{port}"}
        config = {**self._config, "transport": transport}
        self._process = subprocess.Popen(
            [sys.executable, __file__, json.dumps(config)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=self._environment,
            text=True,
        )

    def wait_until_listening(self) -> None:
        process = self._process
        assert process is not None
        assert process.stdout is not None
        ready, _, _ = select.select([process.stdout], [], [], START_TIMEOUT)
        line = process.stdout.readline() if ready else ""
        assert line.startswith("quire://"), f"the server did not start: {process.poll()=} {line=}"
        self._port = int(line.rsplit(":", 1)[1])

    def start(self) -> None:
        self.launch()
        self.wait_until_listening()

    def end_after(self, seconds: float) -> int | None:
        """The exit status of a process that ends within `seconds`, or `None`."""
        assert self._process is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(seconds)
        return None

    def kill(self) -> None:
        """`kill -9`: the process does nothing more, from one instruction to the next."""
        self._end(signal.SIGKILL)

    def terminate(self) -> int:
        """Asks it to stop, and gives its exit status."""
        return self._end(signal.SIGTERM)

    def resident_bytes(self) -> int:
        """Memory of the process that is not backed by files: a mapped journal does not count."""
        fields = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        values = {line.split(":")[0]: line.split()[1] for line in fields if line.startswith("Rss")}
        return int(values["RssAnon"]) * 1024

    def _end(self, number: signal.Signals) -> int:
        process = self._process
        assert process is not None
        os.kill(process.pid, number)
        status = process.wait(START_TIMEOUT)
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()
        self._process = None
        return status

    def __enter__(self) -> ServerProcess:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._process is not None:
            self.kill()


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


def _serve(config: str) -> None:
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())

    def stop_with_the_parent() -> None:
        sys.stdin.read()
        stop.set()

    threading.Thread(target=stop_with_the_parent, daemon=True).start()
    with quire.Server(quire.Config(**json.loads(config))) as server:
        print(server.url, flush=True)
        stop.wait()


if __name__ == "__main__":
    _serve(sys.argv[1])
