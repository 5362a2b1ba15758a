"""NATS JetStream: three servers, and a stream with three replicas. Two of them must have a message."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

import nats
from nats.errors import Error, TimeoutError
from nats.js import JetStreamContext
from nats.js.api import PubAck, StreamConfig

from ...engine import Replicated, own_directory
from ...server import START_TIMEOUT_S, Server, free_port, started
from ..nats import program, server_version

_SERVERS = 3
_ATTEMPT_S = 2.0
_TIMEOUT_S = 60.0


@dataclass
class Clustered(Replicated):
    name = "NATS"
    ports: list[int] = field(default_factory=list)
    route_ports: list[int] = field(default_factory=list)

    def version(self) -> str:
        return f"{server_version()}, nats-py {version('nats-py')}"

    def settings(self) -> str:
        return f"{_SERVERS} servers, num_replicas {_SERVERS}, sync_interval: always; publish_async"

    def servers(self, directory: Path) -> AbstractContextManager[None]:
        self.ports = [self.port, *(free_port() for _ in range(_SERVERS - 1))]
        self.route_ports = [free_port() for _ in range(_SERVERS)]
        return started([self._server(directory, number) for number in range(_SERVERS)])

    def _server(self, directory: Path, number: int) -> Server:
        port = self.ports[number]
        own = own_directory(directory, f"server-{number}")
        routes = ", ".join(f'"nats://127.0.0.1:{route}"' for route in self.route_ports)
        config = own / "nats.conf"
        config.write_text(
            f"""
            server_name: "server-{number}"
            listen: "127.0.0.1:{port}"
            jetstream {{ store_dir: "{own}/store"
                sync_interval: always }}
            cluster {{ name: "peers"
                listen: "127.0.0.1:{self.route_ports[number]}"
                routes: [{routes}] }}
            """
        )
        return Server([program(), "-c", str(config)], {}, own, port)

    def prepare(self) -> None:
        asyncio.run(self._prepare())

    async def _prepare(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        async with self._connected(1, _ATTEMPT_S) as stream:
            while True:
                try:
                    await stream.add_stream(StreamConfig(name="log", subjects=["log"], num_replicas=_SERVERS))
                    await stream.publish("log", b"first")
                except (Error, TimeoutError):
                    # The servers have not chosen a leader yet.
                    if time.monotonic() > deadline:
                        raise
                    await asyncio.sleep(0.1)
                else:
                    break
            cluster = (await stream.stream_info("log")).cluster
            # Another server would pass each message on to the leader.
            if cluster is None or cluster.leader is None:
                raise RuntimeError("the stream has no leader")
            self.port = self.ports[int(cluster.leader.removeprefix("server-"))]

    @asynccontextmanager
    async def _connected(self, window: int, timeout_s: float = _TIMEOUT_S) -> AsyncIterator[JetStreamContext]:
        client = await nats.connect(f"nats://127.0.0.1:{self.port}")
        try:
            yield client.jetstream(publish_async_max_pending=window, timeout=timeout_s)
        finally:
            await client.close()

    def publish(self, more: Callable[[], bool], size: int, window: int) -> int:
        return asyncio.run(self._publish(more, b"x" * size, window))

    async def _publish(self, more: Callable[[], bool], data: bytes, window: int) -> int:
        acknowledged: list[asyncio.Future[PubAck]] = []
        count = 0
        async with self._connected(window) as stream:
            while more():
                # It waits while `window` messages are not acknowledged.
                acknowledged.append(await stream.publish_async("log", data, wait_stall=_TIMEOUT_S))
                if len(acknowledged) == 2 * window:
                    await asyncio.gather(*acknowledged[:window])
                    del acknowledged[:window]
                count += 1
            await asyncio.gather(*acknowledged)
        return count

    def publish_alone(self, messages: Iterator[bytes]) -> None:
        asyncio.run(self._publish_alone(messages))

    async def _publish_alone(self, messages: Iterator[bytes]) -> None:
        async with self._connected(1) as stream:
            for data in messages:
                await stream.publish("log", data)
