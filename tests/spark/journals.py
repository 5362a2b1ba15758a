"""Journals for the tests to read, and what is in them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import quire
from support.waiting import PATIENCE

#: Messages of `trades()`: enough for several segments of the smallest size.
COUNT = 3000
NAME = "loader"
SMALL = quire.Config(
    transaction_log={"journal_size": "64KB", "topic": [{"name": ".*", "message_type": "json"}]}
)


def trades(count: int = COUNT) -> list[tuple[str, dict[str, Any]]]:
    """Topic and data: every hundredth is on `rare`, the others on `trades/0` to `trades/2`."""
    return [
        (
            "rare" if n % 100 == 0 else f"trades/{n % 3}",
            {
                "n": n,
                "symbol": ("IBM", "MSFT", "ORCL", None)[n % 4],
                "price": n / 8,
                "is_buy": n % 2 == 0,
                "at": f"2026-01-02T03:04:{n % 60:02d}Z",
                "order": {"qty": n % 7, "account": f"a{n % 5}"},
            },
        )
        for n in range(count)
    ]


def write(directory: Path, messages: Iterable[tuple[str, Any]], *, name: str = NAME) -> None:
    """Publishes into the directory and waits until all is persisted."""
    with quire.Client(f"file:{directory}", name=name, config=SMALL) as client:
        for number, (topic, data) in enumerate(messages, start=1):
            client.publish(topic, data)
            # One large flush would leave the first segment empty, and would be a separate segment.
            if number % 200 == 0:
                client.flush(timeout=PATIENCE)
        client.flush(timeout=PATIENCE)


def segments(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.journal"))


def remove_oldest(directory: Path, count: int) -> None:
    """Removes this number of the oldest files, as maintenance does."""
    with quire.Journal(directory, journal_size="64KB") as journal:
        rest = sum(segment.size for segment in journal.segments()[count:])
        assert len(journal.remove(size_max=rest)) == count


def encoded(data: Any) -> str:
    return json.dumps(data, separators=(",", ":"))
