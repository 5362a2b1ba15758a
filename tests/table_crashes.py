"""Kills the server of a last-value topic, or a program with tables, and compares the records.

`support/crash_harness.py` describes the harnesses. `tests/test_table_crash.py` runs a few rounds.

A writer publishes and deletes. The process of the writer also has a `Table`, and outlives
everything. A subscriber in another process has two tables, one of them with a filter and
conflation. Each round kills the server, the subscriber, or both, and starts it again, or stops the
server, which writes snapshots. Three rounds of four end the server. After each round, these are
equal:

- the table in the process of the writer;
- the tables of the subscriber;
- the records that a query of another client returns;
- the records of all publishes and deletes that the writer has made, each of which is applied once;
- the records that are computed from the log, in the order of its messages and deletes.

The records of a view of the topic, of a view of this view, and of a join of the two are those that
are computed from the records of the topic.
"""

from __future__ import annotations

import dataclasses
import json
import random
import sys
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import quire
from support import crash_harness
from support.server_process import ServerProcess
from support.waiting import PATIENCE, wait_until

SETTINGS: dict[str, Any] = {
    "sow_topic": {"name": "orders", "message_type": "json"},
    "view": [
        {
            "name": "sums",
            "message_type": "json",
            "underlying_topic": "orders",
            "projection": ["/g", "COUNT(1) AS /count", "SUM(/n) AS /sum", "MAX(/n) AS /max"],
            "grouping": ["/g"],
        },
        {
            "name": "total",
            "message_type": "json",
            "underlying_topic": "sums",
            "projection": ["COUNT(1) AS /groups", "SUM(/sum) AS /sum"],
        },
        {
            "name": "latest",
            "message_type": "json",
            "join": ["[sums].[/max] = [orders].[/n]"],
            "projection": ["[sums].[/g] AS /g", "[orders].[/n] AS /n"],
        },
    ],
    "transaction_log": {"journal_size": "256KB", "topic": [{"name": "orders", "message_type": "json"}]},
}
_KEYS = 200
#: What is killed in a round: four rounds have each of these once. With "none", the server stops.
_VICTIMS = ("server", "both", "subscriber", "none")

Copy = dict[str, int]


@dataclasses.dataclass
class Done:
    """What rounds did."""

    changes: int = 0
    server_kills: int = 0
    subscriber_kills: int = 0
    #: Kills of the server, after which publishes were not known to be persisted.
    kills_during_publishes: int = 0

    def __str__(self) -> str:
        return (
            f"{self.changes:,} changes, {self.server_kills} kills of the server "
            f"({self.kills_during_publishes} during publishes), {self.subscriber_kills} kills of the subscriber"
        )


class Writer:
    """A client, and the records that its publishes and deletes leave."""

    def __init__(self, url: str, dice: random.Random) -> None:
        self.client = _client(url, name="writer")
        self.records: Copy = {}
        self._dice = dice
        self._count = 0

    def change(self) -> None:
        self._count += 1
        key = f"key-{self._dice.randrange(_KEYS)}"
        if self._dice.random() < 0.02:
            try:
                deleted = self.client.sow_delete("orders", keys=key)
                assert deleted == (key in self.records), (key, deleted)
            except quire.DisconnectedError:
                pass  # It is applied once, and the number is not known.
            self.records.pop(key, None)
        else:
            padding = "x" * self._dice.randrange(300)
            message = {"n": self._count, "g": self._count % 7, "padding": padding}
            self.client.publish("orders", message, sow_key=key)
            self.records[key] = self._count


class Subscriber:
    """A process with tables of the topic."""

    def __init__(self, url: str) -> None:
        self._process = crash_harness.Program(__file__, "subscriber", url)
        self._process.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def kill(self) -> None:
        self._process.kill()

    def start(self) -> None:
        self._process.start()

    def tables(self) -> list[Copy | None]:
        """The records of its tables: all, and those with an even number. `None`: a table may miss changes."""
        answer: list[Copy | None] = json.loads(self._process.ask("tables"))
        return answer


def subscribe(url: str) -> None:
    """The process of a `Subscriber`."""
    with _client(url, name="subscriber") as client:
        tables = [
            client.table("orders"),
            client.table("orders", filter="/n % 2 = 0", conflation="20ms"),
        ]
        for _ in sys.stdin:
            copies = [None if table.stale else _records(table.values()) for table in tables]
            print(json.dumps(copies), flush=True)


def crash_rounds(directory: Path, rounds: int, seed: int) -> Done:
    """Runs `rounds` kills on the journal in `directory`."""
    dice = random.Random(seed)
    done = Done()
    with ServerProcess(directory, **SETTINGS) as server:
        writer = Writer(server.url, dice)
        with (
            _client(server.url, name="reader") as reader,
            Subscriber(server.url) as subscriber,
        ):
            table = reader.table("orders")
            victims: list[str] = []
            for _ in range(rounds):
                for _ in range(dice.randrange(50, 1500)):
                    writer.change()
                    done.changes += 1
                victims = victims or dice.sample(_VICTIMS, len(_VICTIMS))
                victim = victims.pop()
                if victim in ("server", "both"):
                    # Some of the publishes are on their way.
                    server.kill()
                    done.server_kills += 1
                    done.kills_during_publishes += writer.client.health().unpersisted > 0
                elif victim == "none":
                    assert server.terminate() == 0
                if victim in ("both", "subscriber"):
                    done.subscriber_kills += 1
                    subscriber.kill()
                    subscriber.start()
                if victim != "subscriber":
                    server.start()
                writer.client.flush(timeout=PATIENCE)
                _check(directory, writer, server.url, table, subscriber)
        writer.client.close()
        assert server.terminate() == 0
    assert _from_the_log(directory / "journal") == writer.records
    return done


def _check(directory: Path, writer: Writer, url: str, table: quire.Table, subscriber: Subscriber) -> None:
    records = writer.records
    even = {key: number for key, number in records.items() if number % 2 == 0}
    wait_until(lambda: not table.stale and _records(table.values()) == records)
    wait_until(lambda: subscriber.tables() == [records, even])
    with _client(url) as other:
        assert _records(other.sow("orders")) == records
        wait_until(lambda: _views(other) == _computed(records))
    assert _from_the_log(directory / "journal") == records


def _views(client: quire.Client) -> list[list[Any]]:
    return [
        sorted(list(record.json().values()) for record in client.sow(view))
        for view in ("sums", "total", "latest")
    ]


def _computed(records: Copy) -> list[list[Any]]:
    """The records of the views, from those of the topic."""
    groups: dict[int, list[int]] = {}
    for number in records.values():
        groups.setdefault(number % 7, []).append(number)
    total = sum(records.values()) if records else None
    return [
        sorted([group, len(numbers), sum(numbers), max(numbers)] for group, numbers in groups.items()),
        [[len(groups), total]],
        sorted([group, max(numbers)] for group, numbers in groups.items()),
    ]


def _client(url: str, **options: Any) -> quire.Client:
    return crash_harness.client(url, connect_timeout=PATIENCE, **options)


def _records(messages: Iterable[quire.Message]) -> Copy:
    return {message.sow_key or "": message.json()["n"] for message in messages}


def _from_the_log(directory: Path) -> Copy:
    records: Copy = {}
    with quire.Journal(directory, read_only=True) as journal:
        for record in journal.records(topic="orders"):
            for key in record.deleted_keys:
                records.pop(key.decode(), None)
            if record.kind == "publish":
                assert record.key is not None
                records[record.key.decode()] = int(record.data[5 : record.data.index(b",")])
    return records


def report(directory: Path, rounds: int, seed: int) -> str:
    return f"{crash_rounds(directory, rounds, seed)}: all copies are equal"


HARNESS = crash_harness.Harness(run=report, rounds=200, rounds_per_directory=25)

if __name__ == "__main__":
    if sys.argv[1:2] == ["subscriber"]:
        subscribe(sys.argv[2])
    else:
        crash_harness.main(HARNESS)
