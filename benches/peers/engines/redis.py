"""Redis Streams: XADD in pipelines, a consumer group as the queue, one channel per key."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import redis

from ..engine import Durability, Engine, pauses

_BATCH = 500


@dataclass
class Redis(Engine):
    name = "Redis Streams"

    def version(self) -> str:
        server = subprocess.run([_server(), "--version"], capture_output=True, text=True, check=True).stdout
        return f"{server.split()[2].removeprefix('v=')}, redis-py {version('redis')} with hiredis"

    def settings(self) -> str:
        return f"appendonly yes, appendfsync {self._sync}; pipelines and XREADGROUP of {_BATCH}"

    @property
    def _sync(self) -> str:
        return "always" if self.durability is Durability.SYNCED else "everysec"

    def command(self, directory: Path) -> Sequence[str]:
        options = {
            "bind": "127.0.0.1",
            "port": str(self.port),
            "dir": str(directory),
            "appendonly": "yes",
            "appendfsync": self._sync,
            "save": "",
        }
        return [_server(), *(word for key, value in options.items() for word in (f"--{key}", value))]

    def _connected(self) -> Any:
        # Its own types are unions of a value and an awaitable of it.
        return redis.Redis(port=self.port, socket_timeout=60)

    def prepare(self) -> None:
        with self._connected() as client:
            client.xgroup_create("work", "workers", id="0", mkstream=True)

    def publish(self, count: int, size: int) -> None:
        self._publish("log", count, size)

    def enqueue(self, count: int, size: int) -> None:
        self._publish("work", count, size)

    def _publish(self, stream: str, count: int, size: int) -> None:
        fields = {b"d": b"x" * size}
        with self._connected() as client:
            for start in range(0, count, _BATCH):
                pipeline = client.pipeline(transaction=False)
                for _ in range(min(_BATCH, count - start)):
                    pipeline.xadd(stream, fields)
                pipeline.execute()

    def replay(self, count: int) -> None:
        taken = size = 0
        last = b"0"
        with self._connected() as client:
            while taken < count:
                ((_, entries),) = client.xread({"log": last}, count=1000, block=60_000)
                size += sum(len(fields[b"d"]) for _, fields in entries)
                taken += len(entries)
                last = entries[-1][0]

    def consume(self, idle_s: float, acknowledged: Callable[[int], None]) -> None:
        taken = 0
        with self._connected() as client:
            while found := client.xreadgroup(
                "workers", str(os.getpid()), {"work": ">"}, count=_BATCH, block=int(idle_s * 1000)
            ):
                ((_, entries),) = found
                names = [name for name, _ in entries]
                pipeline = client.pipeline(transaction=False)
                pipeline.xack("work", "workers", *names)
                # What is acknowledged stays in the stream until it is deleted.
                pipeline.xdel("work", *names)
                pipeline.execute()
                taken += len(entries)
                acknowledged(taken)

    def publish_stamped(self, rate: int, count: int) -> None:
        with self._connected() as client:
            pipeline = client.pipeline(transaction=False)
            for pause in pauses(rate, count):
                if pause:
                    # What was due while the server answered goes out together.
                    pipeline.execute()
                    time.sleep(pause)
                pipeline.xadd("live", {b"d": b"%d" % time.monotonic_ns()})
            pipeline.execute()

    def receive_stamped(self, ready: Callable[[], None], came: Callable[[bytes], bool]) -> None:
        last = b"0"
        ready()
        with self._connected() as client:
            while True:
                ((_, entries),) = client.xread({"live": last}, count=1000, block=60_000)
                last = entries[-1][0]
                if any(came(fields[b"d"]) for _, fields in entries):
                    return

    def publish_keyed(self, keys: int, count: int, size: int) -> None:
        data = b"x" * size
        with self._connected() as client:
            for start in range(0, count, _BATCH):
                pipeline = client.pipeline(transaction=False)
                for number in range(start, min(start + _BATCH, count)):
                    pipeline.xadd("keyed", {b"k": number % keys, b"d": data})
                    pipeline.publish(f"keyed.{number % keys}", data)
                pipeline.execute()

    def receive_keyed(
        self, keys: Sequence[int], ready: Callable[[], None], came: Callable[[int], bool]
    ) -> None:
        with self._connected() as client, client.pubsub(ignore_subscribe_messages=False) as channels:
            channels.subscribe(*(f"keyed.{key}" for key in keys))
            for _ in keys:
                channels.get_message(timeout=60)
            ready()
            for message in channels.listen():
                if message["type"] == "message" and came(1):
                    return


def _server() -> str:
    found = shutil.which("redis-server")
    if found is None:
        raise FileNotFoundError("redis-server")
    return found
