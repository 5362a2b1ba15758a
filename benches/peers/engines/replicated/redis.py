"""Redis: a primary and a replica with append-only files, `XADD` in pipelines that end with `WAITAOF`.

The server is the program that `REDIS_SERVER` names, or else `redis-server` on the path. One without
`WAITAOF` (before 7.2) gets `WAIT`, which does not say that the replica has synced a message.
"""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import redis

from ...engine import Replicated, own_directory
from ...server import START_TIMEOUT_S, Server, free_port, started
from ..redis import program, server_version


@dataclass
class Copied(Replicated):
    name = "Redis"

    def version(self) -> str:
        return f"{server_version()}, redis-py {version('redis')} with hiredis"

    def settings(self) -> str:
        waits = ", ".join(" ".join(map(str, wait)) for wait in _waits(timeout_ms=0))
        return f"primary and replica, appendonly yes, appendfsync always; MULTI of a window, then {waits}"

    def servers(self, directory: Path) -> AbstractContextManager[None]:
        replica_port = free_port()
        return started(
            [
                self._server(own_directory(directory, "primary"), self.port, {}),
                self._server(
                    own_directory(directory, "replica"), replica_port, {"replicaof": f"127.0.0.1 {self.port}"}
                ),
            ]
        )

    def _server(self, directory: Path, port: int, more: dict[str, str]) -> Server:
        options = {
            "bind": "127.0.0.1",
            "port": str(port),
            "dir": str(directory),
            "appendonly": "yes",
            "appendfsync": "always",
            "save": "",
            # The copy at the beginning is sent at once.
            "repl-diskless-sync-delay": "0",
            **more,
        }
        words = [word for key, value in options.items() for word in (f"--{key}", *value.split(" "))]
        return Server([program(), *words], {}, directory, port)

    def _connected(self) -> Any:
        # Its own types are unions of a value and an awaitable of it.
        return redis.Redis(port=self.port, socket_timeout=60)

    def prepare(self) -> None:
        # A replica writes a new append-only file after the copy at the beginning, and says nothing
        # about syncs before it is done.
        deadline = time.monotonic() + START_TIMEOUT_S
        with self._connected() as client:
            while True:
                client.xadd("log", {b"d": b"first"})
                try:
                    _confirm(client.pipeline(transaction=False), timeout_ms=1_000)
                except RuntimeError:
                    if time.monotonic() > deadline:
                        raise
                    continue
                return

    def publish(self, more: Callable[[], bool], size: int, window: int) -> int:
        fields = {b"d": b"x" * size}
        count = 0
        with self._connected() as client:
            while more():
                # A transaction has one sync; a pipeline has one for each 16 KB that the server
                # reads.
                pipeline = client.pipeline(transaction=False)
                pipeline.execute_command("MULTI")
                for _ in range(window):
                    pipeline.xadd("log", fields)
                pipeline.execute_command("EXEC")
                _confirm(pipeline)
                count += window
        return count

    def publish_alone(self, messages: Iterator[bytes]) -> None:
        with self._connected() as client:
            for data in messages:
                pipeline = client.pipeline(transaction=False)
                pipeline.xadd("log", {b"d": data})
                _confirm(pipeline)


def _waits(timeout_ms: int) -> list[tuple[object, ...]]:
    waits: list[tuple[object, ...]] = [("WAIT", 1, timeout_ms)]
    if _has_waitaof():
        # Both commands ask the replica how far it is. It answers before it syncs what came with the
        # question, and says by itself once a second what it has synced. So the second question gets
        # an answer earlier.
        waits.append(("WAITAOF", 1, 1, timeout_ms))
    return waits


def _confirm(pipeline: Any, timeout_ms: int = 0) -> None:
    """Executes the pipeline, and waits until this server and one replica have synced what the
    connection has written."""
    for wait in _waits(timeout_ms):
        pipeline.execute_command(*wait)
    # How many replicas have it. `WAITAOF`: whether this server has synced it, and how many replicas
    # have.
    answer = pipeline.execute()[-1]
    if 0 in (answer if isinstance(answer, list) else [answer]):
        raise RuntimeError(f"a message has no synced copy: {answer}")


@functools.cache
def _has_waitaof() -> bool:
    return tuple(map(int, re.findall(r"\d+", server_version())[:2])) >= (7, 2)
