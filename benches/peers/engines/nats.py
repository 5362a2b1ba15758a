"""NATS JetStream: one stream on files; a durable pull consumer of a work-queue stream as the queue;
a KV bucket."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import nats
from nats.aio.client import Client
from nats.errors import TimeoutError as NatsTimeoutError
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, KeyValueConfig, RetentionPolicy, StreamConfig

from ..engine import WINDOW, Broker, Durability, LastValues, NotOffered, Record, Table, pauses

_BATCH = 500


@dataclass
class Nats(Broker, LastValues):
    name = "NATS"

    def version(self) -> str:
        return f"{server_version()}, nats-py {version('nats-py')}"

    def settings(self) -> str:
        return f"file storage, sync_interval: {self._sync}, 1 replica; publish_async, pull consumer, fetch({_BATCH})"

    @property
    def _sync(self) -> str:
        return "always" if self.durability is Durability.SYNCED else "2m (its default)"

    def command(self, directory: Path) -> Sequence[str]:
        sync = "sync_interval: always" if self.durability is Durability.SYNCED else ""
        config = directory / "nats.conf"
        config.write_text(
            f'listen: "127.0.0.1:{self.port}"\njetstream {{ store_dir: "{directory}/store"\n {sync} }}\n'
        )
        return [program(), "-c", str(config)]

    def prepare(self) -> None:
        asyncio.run(self._prepare())

    async def _prepare(self) -> None:
        async with self._connected() as (_, stream):
            await stream.add_stream(StreamConfig(name="log", subjects=["log", "live", "keyed.*"]))
            await stream.add_stream(
                StreamConfig(name="work", subjects=["work"], retention=RetentionPolicy.WORK_QUEUE)
            )
            consumer = ConsumerConfig(
                durable_name="workers", ack_policy=AckPolicy.EXPLICIT, ack_wait=300, max_ack_pending=20_000
            )
            await stream.add_consumer("work", consumer)
            await stream.create_key_value(KeyValueConfig(bucket="plain", history=1, direct=True))

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[tuple[Client, JetStreamContext]]:
        client = await nats.connect(f"nats://127.0.0.1:{self.port}")
        try:
            yield client, client.jetstream(publish_async_max_pending=10_000, timeout=60)
        finally:
            await client.close()

    def publish(self, count: int, size: int) -> None:
        asyncio.run(self._publish(["log"], count, b"x" * size))

    def enqueue(self, count: int, size: int) -> None:
        asyncio.run(self._publish(["work"], count, b"x" * size))

    def publish_keyed(self, keys: int, count: int, size: int) -> None:
        asyncio.run(self._publish([f"keyed.{key}" for key in range(keys)], count, b"x" * size))

    async def _publish(self, subjects: Sequence[str], count: int, data: bytes) -> None:
        async with self._connected() as (_, stream):
            acknowledged: list[Awaitable[object]] = []
            for number in range(count):
                acknowledged.append(await stream.publish_async(subjects[number % len(subjects)], data))
                if len(acknowledged) == 10_000:
                    await asyncio.gather(*acknowledged)
                    acknowledged.clear()
            await asyncio.gather(*acknowledged)

    def replay(self, count: int) -> None:
        asyncio.run(self._replay(count))

    async def _replay(self, count: int) -> None:
        async with self._connected() as (_, stream):
            # An ordered consumer, pushed and not acknowledged, is its documented way to read a
            # stream.
            subscription = await stream.subscribe("log", ordered_consumer=True)
            taken = size = 0
            while taken < count:
                size += len((await subscription.next_msg(timeout=60)).data)
                taken += 1

    def consume(self, idle_s: float, acknowledged: Callable[[int], None]) -> None:
        asyncio.run(self._consume(idle_s, acknowledged))

    async def _consume(self, idle_s: float, acknowledged: Callable[[int], None]) -> None:
        taken = 0
        async with self._connected() as (_, stream):
            work = await stream.pull_subscribe("work", durable="workers", stream="work")
            with suppress(NatsTimeoutError, TimeoutError):
                while True:
                    batch = await work.fetch(_BATCH, timeout=idle_s)
                    for message in batch:
                        await message.ack()
                    taken += len(batch)
                    acknowledged(taken)

    def publish_stamped(self, rate: int, count: int) -> None:
        asyncio.run(self._publish_stamped(rate, count))

    async def _publish_stamped(self, rate: int, count: int) -> None:
        async with self._connected() as (_, stream):
            for pause in pauses(rate, count):
                if pause:
                    await asyncio.sleep(pause)
                await stream.publish_async("live", b"%d" % time.monotonic_ns())
            await stream.publish_async_completed()

    def receive_stamped(self, ready: Callable[[], None], came: Callable[[bytes], bool]) -> None:
        asyncio.run(self._receive_stamped(ready, came))

    async def _receive_stamped(self, ready: Callable[[], None], came: Callable[[bytes], bool]) -> None:
        async with self._connected() as (_, stream):
            live = await stream.subscribe("live", ordered_consumer=True)
            ready()
            while not came((await live.next_msg(timeout=60)).data):
                pass

    def receive_keyed(
        self, keys: Sequence[int], ready: Callable[[], None], came: Callable[[int], bool]
    ) -> None:
        asyncio.run(self._receive_keyed(keys, ready, came))

    async def _receive_keyed(
        self, keys: Sequence[int], ready: Callable[[], None], came: Callable[[int], bool]
    ) -> None:
        done = asyncio.Event()

        async def count(_: object) -> None:
            if came(1):
                done.set()

        async with self._connected() as (client, _):
            for key in keys:
                await client.subscribe(f"keyed.{key}", cb=count)
            await client.flush()
            ready()
            await done.wait()

    def upsert(self, table: Table, records: Sequence[Record], *, watched: bool = False) -> None:
        _check_plain(table)
        asyncio.run(self._upsert(records))

    async def _upsert(self, records: Sequence[Record]) -> None:
        # `put` waits for each acknowledgement. This publishes the same message without the wait.
        async with self._connected() as (_, stream):
            acknowledged: list[Awaitable[object]] = []
            for record in records:
                acknowledged.append(await stream.publish_async(f"$KV.plain.{record.key}", record.data))
                if len(acknowledged) == WINDOW:
                    await asyncio.gather(*acknowledged)
                    acknowledged.clear()
            await asyncio.gather(*acknowledged)

    def get(self, table: Table, keys: Iterator[str], came: Callable[[bytes], None]) -> None:
        _check_plain(table)
        asyncio.run(self._get(keys, came))

    async def _get(self, keys: Iterator[str], came: Callable[[bytes], None]) -> None:
        async with self._connected() as (_, stream):
            records = await stream.key_value("plain")
            for key in keys:
                came((await records.get(key)).value or b"")

    def query(self, table: Table, groups: Iterator[str], came: Callable[[Sequence[bytes]], None]) -> None:
        _check_plain(table)
        asyncio.run(self._query(groups, came))

    async def _query(self, groups: Iterator[str], came: Callable[[Sequence[bytes]], None]) -> None:
        async with self._connected() as (_, stream):
            records = await stream.key_value("plain")
            for group in groups:
                # The server has no filters for data. To search the text is faster than to parse it.
                wanted = f'"group":"{group}"'.encode()
                watcher: Any = await records.watchall()
                found = []
                while (entry := await watcher.updates(timeout=60)) is not None:
                    if entry.value is not None and wanted in entry.value:
                        found.append(entry.value)
                await watcher.stop()
                came(found)

    def watch(self, ready: Callable[[int], None], came: Callable[[int], bool]) -> None:
        asyncio.run(self._watch(ready, came))

    async def _watch(self, ready: Callable[[int], None], came: Callable[[int], bool]) -> None:
        async with self._connected() as (_, stream):
            watcher: Any = await (await stream.key_value("plain")).watchall()
            known = 0
            while await watcher.updates(timeout=60) is not None:
                known += 1
            ready(known)
            while await watcher.updates(timeout=60) is None or not came(1):
                pass


def _check_plain(table: Table) -> None:
    if table is Table.INDEXED:
        raise NotOffered("there are no indexes")


def server_version() -> str:
    answer = subprocess.run([program(), "--version"], capture_output=True, text=True, check=True).stdout
    return answer.split()[-1]


def program() -> str:
    found = shutil.which("nats-server")
    if found is None:
        raise FileNotFoundError("nats-server")
    return found
