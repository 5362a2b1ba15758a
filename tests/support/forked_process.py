"""Processes for tests that kill hundreds of them: forked from one that has read quire already, they
start in milliseconds."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Self

import quire

from support.waiting import PATIENCE

#: It forks from a process without threads, because a process that is forked must not have any.
_FORKS = multiprocessing.get_context("forkserver")
# Modules of the tests would not be found there; `pytest` is read again by each process when it is
# the main program.
_FORKS.set_forkserver_preload(["quire.testing", "pytest"])


class ForkedProcess:
    """`target(connection, *arguments)` in a separate process, which ends with this one at the
    latest."""

    def __init__(self, target: Callable[..., None], *arguments: Any) -> None:
        #: Our end of what the target got; it ends with the process.
        self.connection, theirs = _FORKS.Pipe()
        self._process = _FORKS.Process(target=target, args=(theirs, *arguments), daemon=True)
        self._process.start()
        theirs.close()
        # Its status can be read only once.
        self._lock = threading.Lock()

    @property
    def is_running(self) -> bool:
        with self._lock:
            return self._process.is_alive()

    def end(self, timeout: float) -> int | None:
        """Waits for its end; its exit status."""
        with self._lock:
            self._process.join(timeout)
            return self._process.exitcode

    def kill(self) -> None:
        """`kill -9`."""
        with self._lock:
            self._process.kill()
            self._process.join()


class ForkedServer:
    """A server in such a process, with these settings of `quire.Config`; a later `start` keeps its port."""

    def __init__(self, directory: Path, settings: dict[str, Any]) -> None:
        self._settings = {**settings, "data_directory": os.fspath(directory)}
        self._process: ForkedProcess | None = None
        self.url = "quire://127.0.0.1:0"

    def start(self) -> None:
        transport = {"address": self.url.removeprefix("quire://")}
        self._process = ForkedProcess(_serve, {**self._settings, "transport": transport})
        assert self._process.connection.poll(PATIENCE), "the server does not start"
        self.url = self._process.connection.recv()

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.connection.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def _serve(connection: Connection, settings: dict[str, Any]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with quire.Server(quire.Config(**settings)) as running:
        connection.send(running.url)
        signal.pause()
