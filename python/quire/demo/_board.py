"""The act of `quire demo` on a last-value topic: the newest flight of each aircraft, and a live
table of them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

import quire
from quire.testing import ServerProcess

#: The newest flight of each aircraft, by its tail number.
AIRCRAFT = {"name": "aircraft", "message_type": "json", "key": ["/tailnum"]}
TOPIC = str(AIRCRAFT["name"])
#: The filter of a second table: the aircraft that departed late.
LATE = "/dep_delay > 60"
#: Seconds that any wait of the act may take.
PATIENCE = 100.0


@dataclass
class BoardResults:
    """The outcome of the act."""

    published: int
    seconds: float
    aircraft: int
    #: Changes that the table reported.
    changes: int
    outage_seconds: float
    #: How long a query of all records took.
    query_seconds: float
    #: The number of records of the table, of the query and of the filtered table that differ from
    #: the source.
    wrong: int

    @property
    def is_sound(self) -> bool:
        return self.wrong == 0

    def table(self) -> Table:
        table = Table(title="the newest flight of each aircraft", show_header=False)
        rate = self.published / max(self.seconds - self.outage_seconds, 1e-9)
        table.add_row("published", f"{self.published:,}", f"{rate:,.0f} messages/s, with a live table")
        table.add_row("records", f"{self.aircraft:,}", "one for each tail number")
        table.add_row(
            "changes of the live table", f"{self.changes:,}", "with those that the kill -9 took back"
        )
        per_second = self.aircraft / max(self.query_seconds, 1e-9)
        table.add_row("query of all records", f"{self.query_seconds:.3f} s", f"{per_second:,.0f} records/s")
        return table

    def verdict(self) -> str:
        if self.is_sound:
            return (
                "[bold green]table and query are equal to the source[/]: the newest flight of every aircraft"
            )
        return f"[bold red]{self.wrong:,} records differ from the source[/]"


def run_board(console: Console, server: ServerProcess, flights: list[bytes]) -> BoardResults:
    """Publishes the flights to a last-value topic while a table follows it, and compares all copies
    at the end."""
    flights = [data for data in flights if b'"tailnum": null' not in data]
    newest = {json.loads(data)["tailnum"]: data for data in flights}
    late = {tail: data for tail, data in newest.items() if (json.loads(data)["dep_delay"] or 0) > 60}
    console.print(f"{len(flights):,} flights of {len(newest):,} aircraft, to the last-value topic {TOPIC}")
    changes = 0

    def count(_change: quire.Change) -> None:
        nonlocal changes
        changes += 1

    with (
        quire.Client(server.url, name="demo-tower") as tower,
        quire.Client(server.url, name="demo-board") as screen,
        screen.table(TOPIC, key="/tailnum", on_change=count) as board,
        screen.table(TOPIC, key="/tailnum", filter=LATE) as late_board,
    ):
        begun = time.perf_counter()
        half = len(flights) // 2
        for data in flights[:half]:
            tower.publish(TOPIC, data)
        _wait_for(lambda: tower.persisted >= half // 2)
        killed = time.perf_counter()
        console.print(f"[bold]kill -9[/] of process {server.pid}, with {len(board):,} aircraft in the table")
        server.kill()
        server.start()
        outage = time.perf_counter() - killed
        for data in flights[half:]:
            tower.publish(TOPIC, data)
        tower.flush(timeout=PATIENCE)
        _wait_for(lambda: wrong_of(board, newest) + wrong_of(late_board, late) == 0)
        seconds = time.perf_counter() - begun
        begun = time.perf_counter()
        records = {record.json()["tailnum"]: record for record in tower.sow(TOPIC)}
        query_seconds = time.perf_counter() - begun
        wrong = wrong_of(board, newest) + wrong_of(late_board, late) + wrong_of(records, newest)
    return BoardResults(len(flights), seconds, len(records), changes, outage, query_seconds, wrong)


def wrong_of(copy: quire.Table | dict[str, quire.Message], expected: dict[str, bytes]) -> int:
    """The number of records that are missing, too many, or different."""
    found = {key: message.data for key, message in copy.items()}
    return len(set(found.items()) ^ set(expected.items()))


def _wait_for(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not is_so() and time.monotonic() < deadline:
        time.sleep(0.05)


__all__ = ["AIRCRAFT", "BoardResults", "run_board"]
