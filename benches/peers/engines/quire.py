"""quire itself."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import quire

# Imported here: `quire.Client` is loaded at its first use, and no engine is charged for its
# imports.
from quire import Client

from ..engine import Amount, Broker, Durability, LastValues, Record, Sums, Table, pauses

#: Messages of one call, as with the other engines.
_BATCH = 500


@dataclass
class Quire(Broker, LastValues, Sums):
    name = "quire"

    def version(self) -> str:
        return version("quire-mq")

    def settings(self) -> str:
        durability = "fsync" if self.durability is Durability.SYNCED else "os"
        return f'durability = "{durability}"; publish_many of {_BATCH}; in the table with an index, hash_index of /group'

    def command(self, directory: Path) -> Sequence[str]:
        config = directory / "quire.toml"
        config.write_text(
            f"""
            data_directory = {json.dumps(str(directory / "data"))}
            [[transport]]
            name = "peers"
            address = "127.0.0.1:{self.port}"
            [transaction_log]
            durability = "{"fsync" if self.durability is Durability.SYNCED else "os"}"
            [[transaction_log.topic]]
            name = "^(log|jobs|live)$"
            message_type = "binary"
            [[transaction_log.topic]]
            name = "keyed"
            message_type = "json"
            [[transaction_log.topic]]
            name = "^(plain|indexed|amounts)$"
            message_type = "json"
            [[sow_topic]]
            name = "plain"
            message_type = "json"
            key = ["/id"]
            [[sow_topic]]
            name = "indexed"
            message_type = "json"
            key = ["/id"]
            hash_index = [["/group"]]
            [[sow_topic]]
            name = "amounts"
            message_type = "json"
            key = ["/id"]
            [[view]]
            name = "sums"
            message_type = "json"
            underlying_topic = "amounts"
            projection = ["/group", "COUNT(/id) AS /records", "SUM(/amount) AS /total"]
            grouping = ["/group"]
            [[queue]]
            name = "work"
            message_type = "binary"
            underlying_topic = "jobs"
            max_per_subscription_backlog = 500
            lease_period = "5m"
            """
        )
        return [sys.executable, "-m", "quire", "serve", str(config)]

    @property
    def _url(self) -> str:
        return f"quire://127.0.0.1:{self.port}"

    def publish(self, count: int, size: int) -> None:
        self._publish("log", count, size)

    def enqueue(self, count: int, size: int) -> None:
        self._publish("jobs", count, size)

    def _publish(self, topic: str, count: int, size: int) -> None:
        data = b"x" * size
        with Client(self._url) as client:
            for start in range(0, count, _BATCH):
                client.publish_many(topic, [data] * min(_BATCH, count - start))
            client.flush(timeout=600)

    def replay(self, count: int) -> None:
        taken = size = 0
        with Client(self._url) as client:
            for batch in client.subscribe("log", bookmark=quire.EPOCH).batches():
                taken += len(batch)
                size += sum(len(message.data) for message in batch)
                if taken >= count:
                    return

    def consume(self, idle_s: float, acknowledged: Callable[[int], None]) -> None:
        taken = 0
        with (
            Client(self._url, ack_batch_size=100) as client,
            client.subscribe("work", max_backlog=500) as work,
        ):
            for batch in work.batches(timeout=idle_s):
                if not batch:
                    return
                for message in batch:
                    message.ack()
                taken += len(batch)
                acknowledged(taken)

    def publish_stamped(self, rate: int, count: int) -> None:
        with Client(self._url) as client:
            for pause in pauses(rate, count):
                if pause:
                    time.sleep(pause)
                client.publish("live", b"%d" % time.monotonic_ns())

    def receive_stamped(self, ready: Callable[[], None], came: Callable[[bytes], bool]) -> None:
        with Client(self._url) as client, client.subscribe("live", bookmark=quire.NOW) as live:
            ready()
            for message in live:
                if came(message.data):
                    return

    def publish_keyed(self, keys: int, count: int, size: int) -> None:
        bodies = [json.dumps({"key": key, "pad": "x" * size}).encode() for key in range(keys)]
        with Client(self._url) as client:
            for number in range(count):
                client.publish("keyed", bodies[number % keys])
            client.flush(timeout=600)

    def receive_keyed(
        self, keys: Sequence[int], ready: Callable[[], None], came: Callable[[int], bool]
    ) -> None:
        done = threading.Event()

        def count(_: quire.Message) -> None:
            if came(1):
                done.set()

        with Client(self._url) as client:
            for key in keys:
                client.subscribe("keyed", filter=f"/key = {key}", on_message=count)
            ready()
            done.wait()

    def upsert(self, table: Table, records: Sequence[Record], *, watched: bool = False) -> None:
        with Client(self._url) as client:
            for start in range(0, len(records), _BATCH):
                client.publish_many(table.value, [record.data for record in records[start : start + _BATCH]])
            client.flush(timeout=600)

    def get(self, table: Table, keys: Iterator[str], came: Callable[[bytes], None]) -> None:
        with Client(self._url) as client:
            for key in keys:
                (record,) = client.sow(table.value, filter=f"/id = '{key}'")
                came(record.data)

    def query(self, table: Table, groups: Iterator[str], came: Callable[[Sequence[bytes]], None]) -> None:
        with Client(self._url) as client:
            for group in groups:
                came([record.data for record in client.sow(table.value, filter=f"/group = '{group}'")])

    def watch(self, ready: Callable[[int], None], came: Callable[[int], bool]) -> None:
        with Client(self._url) as client, client.sow_and_subscribe(Table.PLAIN.value) as records:
            known = 0
            for batch in records.batches(timeout=0.1):
                known += len(batch)
                # It is set when the last record has arrived, which can be before that record is
                # taken.
                if not batch and records.snapshot.wait(0):
                    break
            ready(known)
            for batch in records.batches():
                if came(len(batch)):
                    return

    def update(self, records: Sequence[Amount]) -> None:
        with Client(self._url) as client:
            for start in range(0, len(records), _BATCH):
                client.publish_many("amounts", [record.data for record in records[start : start + _BATCH]])
            client.flush(timeout=600)
            while self._view_is_behind(client):
                time.sleep(0.001)

    def sums(self) -> dict[str, tuple[int, int]]:
        with Client(self._url) as client:
            rows = [json.loads(record.data) for record in client.sow("sums")]
        return {row["group"]: (row["records"], row["total"]) for row in rows}

    def _view_is_behind(self, client: Client) -> bool:
        (described,) = client._described_of(["sums"])
        return bool(described["last_values"]["waiting_changes"])
