"""Redis: XADD in pipelines, a consumer group as the queue, one channel per key; a hash per record; sums
that the client computes."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import redis

from ..engine import WINDOW, Amount, Broker, Durability, LastValues, NotOffered, Record, Sums, Table, pauses

_BATCH = 500

_SEARCH = Path("/usr/lib/redis/modules/redisearch.so")
"""RediSearch, where Debian's package has it."""

_SCAN = """
local found, cursor = {}, '0'
repeat
    local part = redis.call('SCAN', cursor, 'MATCH', ARGV[1], 'COUNT', 1000)
    cursor = part[1]
    for _, key in ipairs(part[2]) do
        if redis.call('HGET', key, 'group') == ARGV[2] then
            found[#found + 1] = redis.call('HGET', key, 'data')
        end
    end
until cursor == '0'
return found
"""


@dataclass
class Redis(Broker, LastValues, Sums):
    name = "Redis"

    def version(self) -> str:
        return f"{server_version()}, redis-py {version('redis')} with hiredis"

    def settings(self) -> str:
        return (
            f"appendonly yes, appendfsync {self._sync}; pipelines and XREADGROUP of {_BATCH};"
            f" records: MULTI of {WINDOW:,}, a RediSearch tag index"
        )

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
        search = ["--loadmodule", str(_SEARCH)] if _SEARCH.exists() else []
        return [program(), *search, *(word for key, value in options.items() for word in (f"--{key}", value))]

    def _connected(self) -> Any:
        # Its own types are unions of a value and an awaitable of it.
        return redis.Redis(port=self.port, socket_timeout=60)

    def prepare(self) -> None:
        with self._connected() as client:
            client.xgroup_create("work", "workers", id="0", mkstream=True)
            # A slow subscriber is not disconnected, as with the other engines.
            client.config_set("client-output-buffer-limit", "pubsub 0 0 0")
            if _SEARCH.exists():
                client.execute_command("FT.CREATE", "groups", "SCHEMA", "group", "TAG")

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
                    # Messages that became due while the server answered are sent together.
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

    def upsert(self, table: Table, records: Sequence[Record], *, watched: bool = False) -> None:
        _check_search(table)
        with self._connected() as client:
            for start in range(0, len(records), WINDOW):
                # A transaction has one sync; a pipeline has one for each 16 KB that the server
                # reads. Outside of a transaction RediSearch also holds the connection at each
                # record.
                pipeline = client.pipeline(transaction=True)
                for record in records[start : start + WINDOW]:
                    key = f"{table.value}:{record.key}"
                    pipeline.hset(key, mapping={b"group": record.group, b"data": record.data})
                    if table is Table.INDEXED:
                        # This version of RediSearch does not follow the hashes by itself.
                        pipeline.execute_command("FT.ADDHASH", "groups", key, "1.0", "REPLACE")
                    if watched:
                        pipeline.publish("changes", record.data)
                pipeline.execute()

    def get(self, table: Table, keys: Iterator[str], came: Callable[[bytes], None]) -> None:
        with self._connected() as client:
            for key in keys:
                came(client.hget(f"{table.value}:{key}", "data"))

    def query(self, table: Table, groups: Iterator[str], came: Callable[[Sequence[bytes]], None]) -> None:
        _check_search(table)
        with self._connected() as client:
            scan = client.register_script(_SCAN)
            for group in groups:
                if table is Table.PLAIN:
                    came(scan(args=[f"{table.value}:*", group]))
                else:
                    search = (
                        "FT.SEARCH",
                        "groups",
                        f"@group:{{{group}}}",
                        "LIMIT",
                        0,
                        1_000_000,
                        "RETURN",
                        1,
                        "data",
                    )
                    # The number of results; then for each its key, and the names and values of its
                    # fields.
                    came([fields[1] for fields in client.execute_command(*search)[2::2]])

    def watch(self, ready: Callable[[int], None], came: Callable[[int], bool]) -> None:
        with self._connected() as client, client.pubsub() as channel:
            channel.subscribe("changes")
            channel.get_message(timeout=60)
            known = 0
            cursor = None
            while cursor != 0:
                cursor, keys = client.scan(cursor or 0, match=f"{Table.PLAIN.value}:*", count=1000)
                pipeline = client.pipeline(transaction=False)
                for key in keys:
                    pipeline.hget(key, "data")
                known += len(pipeline.execute())
            ready(known)
            for message in channel.listen():
                if message["type"] == "message" and came(1):
                    return

    def update(self, records: Sequence[Amount]) -> None:
        with self._connected() as client:
            for start in range(0, len(records), WINDOW):
                window = records[start : start + WINDOW]
                reads = client.pipeline(transaction=False)
                for record in window:
                    reads.hmget(f"amount:{record.key}", "group", "amount")
                # The client is the only writer. With others it would WATCH the records, too.
                counts: Counter[str] = Counter()
                totals: Counter[str] = Counter()
                writes = client.pipeline(transaction=True)
                for record, (group, value) in zip(window, reads.execute(), strict=True):
                    if group is not None:
                        counts[group.decode()] -= 1
                        totals[group.decode()] -= int(value)
                    counts[record.group] += 1
                    totals[record.group] += record.amount
                    fields = {b"group": record.group, b"amount": record.amount, b"data": record.data}
                    writes.hset(f"amount:{record.key}", mapping=fields)
                for name, changes in (("counts", counts), ("totals", totals)):
                    for group, change in changes.items():
                        writes.hincrby(name, group, change)
                writes.execute()

    def sums(self) -> dict[str, tuple[int, int]]:
        with self._connected() as client:
            counts, totals = client.hgetall("counts"), client.hgetall("totals")
        return {group.decode(): (int(count), int(totals[group])) for group, count in counts.items()}


def _check_search(table: Table) -> None:
    if table is Table.INDEXED and not _SEARCH.exists():
        raise NotOffered("RediSearch is not installed")


def server_version() -> str:
    """`7.2.0`, or with the name of another server that has the same commands."""
    words = subprocess.run(
        [program(), "--version"], capture_output=True, text=True, check=True
    ).stdout.split()
    return f"{words[0]} {words[2].removeprefix('v=')}".removeprefix("Redis ")


def program() -> str:
    wanted = os.environ.get("REDIS_SERVER", "redis-server")
    found = shutil.which(wanted)
    if found is None:
        raise FileNotFoundError(wanted)
    return found
