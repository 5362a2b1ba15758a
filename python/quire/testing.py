"""Real servers for tests: `server()` in this process, `ServerProcess` in one of its own that can be killed.

The pytest fixtures `quire_server` and `quire_server_process` are there wherever quire is installed (docs/testing.md).
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from types import TracebackType
from typing import IO, Any, Final, Self

from quire._config import Config
from quire._errors import QuireError
from quire._server import Server

#: Seconds that a process may take to listen, or to end, on a loaded machine.
START_TIMEOUT: Final = 60.0


@contextmanager
def server(directory: str | os.PathLike[str] | None = None, **settings: Any) -> Iterator[Server]:
    """A running server of this process on a free port of 127.0.0.1.

    - `directory`: where its data goes; left out, a temporary one that is removed at the end
    - `settings`: as of `Config`
    """
    temporary = tempfile.TemporaryDirectory(prefix="quire-") if directory is None else nullcontext(directory)
    with temporary as place, Server(Config(**_settings(place, 0, settings))) as running:
        yield running


class ServerProcess:
    """A server in a process of its own: a context manager that starts it, and ends it with `kill -9`.

    The first start chooses a free port of 127.0.0.1, later ones keep it. The process ends with the one that made it.

    - `directory`: where its data goes
    - `environment`: variables of its environment beside those of this process
    - `standard_error`: an open file that its standard error goes to; left out, that of this process
    - `settings`: as of `Config`
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        environment: Mapping[str, str] | None = None,
        standard_error: IO[Any] | None = None,
        **settings: Any,
    ) -> None:
        self._directory = directory
        self._settings = settings
        self._environment = {**os.environ, **(environment or {})}
        self._standard_error = standard_error
        self._port = 0
        self._process: subprocess.Popen[str] | None = None

    @property
    def url(self) -> str:
        """Where clients connect."""
        return f"quire://127.0.0.1:{self._port}"

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        return "127.0.0.1", self._port

    @property
    def pid(self) -> int:
        """The process."""
        return self._running().pid

    @property
    def is_running(self) -> bool:
        """Whether it was started, and has not ended."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Starts the process; returns when it accepts connections. Raises `QuireError` when it does not."""
        self.launch()
        self.wait_until_listening()

    def launch(self) -> None:
        """Starts the process and returns at once."""
        if self._process is not None:
            raise QuireError("the server process was started already", code="bad_option")
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "quire.testing",
                json.dumps(_settings(self._directory, self._port, self._settings)),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._standard_error,
            env=self._environment,
            text=True,
        )

    def wait_until_listening(self) -> None:
        """After `launch`: returns when it accepts connections. Raises `QuireError` when it does not."""
        process = self._running()
        assert process.stdout is not None
        ready, _, _ = select.select([process.stdout], [], [], START_TIMEOUT)
        line = process.stdout.readline() if ready else ""
        if not line.startswith("quire://"):
            self._end(signal.SIGKILL)
            raise QuireError("the server process did not start; its standard error says why")
        self._port = int(line.rsplit(":", 1)[1])

    def kill(self) -> None:
        """`kill -9`: the process does nothing more, from one instruction to the next."""
        self._end(signal.SIGKILL)

    def terminate(self) -> int:
        """Asks it to stop cleanly; gives its exit status."""
        return self._end(signal.SIGTERM)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._process is not None:
            self.kill()

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None:
            raise QuireError("the server process is not running", code="shutting_down")
        return self._process

    def _end(self, number: signal.Signals) -> int:
        process = self._running()
        process.send_signal(number)
        status = process.wait(START_TIMEOUT)
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()
        self._process = None
        return status


def _settings(directory: str | os.PathLike[str], port: int, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of `Config` with this directory and port."""
    transport = {**settings.get("transport", {}), "address": f"127.0.0.1:{port}"}
    return {**settings, "data_directory": os.fspath(directory), "transport": transport}


def _serve(settings: str) -> None:
    """The program of a `ServerProcess`: serves until SIGTERM, or the end of its standard input, which comes with the end of its parent."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())

    def stop_with_the_parent() -> None:
        sys.stdin.read()
        stop.set()

    threading.Thread(target=stop_with_the_parent, daemon=True).start()
    with Server(Config(**json.loads(settings))) as running:
        print(running.url, flush=True)
        stop.wait()


if __name__ == "__main__":
    _serve(sys.argv[1])


__all__ = ["ServerProcess", "server"]
