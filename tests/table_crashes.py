"""Kill the server of a last-value topic with `kill -9` at random moments, and compare all copies of its records.

`tests/test_table_crash.py` runs a few rounds. As a program, it runs ROUNDS of them:

    python tests/table_crashes.py ROUNDS [SEED]

A writer publishes and deletes, and a reader has a `Table`. Both outlive the server. After each kill, and at the
end, these are equal:

- the table of the reader;
- the records that a query of another client returns;
- the records of all publishes and deletes that the writer has made, each of which is applied once.

After the last round the records are also computed from the log, in the order of its messages and deletes.
"""

from __future__ import annotations

import random
import sys
import tempfile
from pathlib import Path
from typing import Any

import quire
from support.server_process import ServerProcess
from support.waiting import PATIENCE, wait_until

SETTINGS: dict[str, Any] = {
    "sow_topic": {"name": "orders", "message_type": "json"},
    "transaction_log": {"journal_size": "256KB", "topic": [{"name": "orders", "message_type": "json"}]},
}
_OPTIONS: dict[str, Any] = {
    "reconnect": quire.Reconnect(initial="5ms", maximum="50ms"),
    "wait": True,
    "command_timeout": None,
}
_KEYS = 200


class Writer:
    """A client, and the records that its publishes and deletes leave."""

    def __init__(self, url: str, dice: random.Random) -> None:
        self.client = quire.Client(url, name="writer", **_OPTIONS)
        self.records: dict[str, int] = {}
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
            self.client.publish("orders", {"n": self._count, "padding": padding}, sow_key=key)
            self.records[key] = self._count


def crash_rounds(directory: Path, rounds: int, seed: int) -> int:
    """Runs `rounds` kills on the journal in `directory`; gives how many changes were made."""
    dice = random.Random(seed)
    with ServerProcess(directory, **SETTINGS) as server:
        writer = Writer(server.url, dice)
        with quire.Client(server.url, name="reader", **_OPTIONS) as reader:
            table = reader.table("orders")
            changes = 0
            for _ in range(rounds):
                for _ in range(dice.randrange(50, 1500)):
                    writer.change()
                    changes += 1
                # Some of the publishes are on their way.
                server.kill()
                server.start()
                writer.client.flush(timeout=PATIENCE)
                wait_until(lambda: not table.stale and _records(table.values()) == writer.records)
                with quire.Client(server.url, **_OPTIONS) as other:
                    assert _records(other.sow("orders")) == writer.records
        writer.client.close()
        assert server.terminate() == 0
    assert _from_the_log(directory / "journal") == writer.records
    return changes


def _records(messages: Any) -> dict[str | None, int]:
    return {message.sow_key: message.json()["n"] for message in messages}


def _from_the_log(directory: Path) -> dict[str, int]:
    records: dict[str, int] = {}
    with quire.Journal(directory, read_only=True) as journal:
        for record in journal.records(topic="orders"):
            for key in record.deleted_keys:
                records.pop(key.decode(), None)
            if record.kind == "publish":
                assert record.key is not None
                records[record.key.decode()] = int(record.data[5 : record.data.index(b",")])
    return records


def main(rounds: int, seed: int) -> None:
    done = 0
    while done < rounds:
        count = min(25, rounds - done)
        print(f"seed {seed}: ", end="", flush=True)
        with tempfile.TemporaryDirectory(prefix="quire-tables-") as directory:
            changes = crash_rounds(Path(directory), count, seed)
        done += count
        print(f"{changes:,} changes over {count} kills: all copies are equal ({done}/{rounds})")
        seed += 1


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else random.SystemRandom().randrange(2**32))
