"""The act of `quire demo` on a last-value topic: the newest flight of each aircraft, a view of the
delays of these flights, and live tables of both."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

import quire
from quire.testing import ServerProcess

#: The newest flight of each aircraft, by its tail number.
AIRCRAFT = {"name": "aircraft", "message_type": "json", "key": ["/tailnum"]}
TOPIC = str(AIRCRAFT["name"])
#: The delays of these flights, by carrier and hour of departure.
DELAYS = {
    "name": "delays",
    "message_type": "json",
    "underlying_topic": TOPIC,
    "projection": [
        "/carrier",
        "/hour",
        "COUNT(1) AS /aircraft",
        "SUM(/dep_delay) AS /minutes",
        "AVG(/arr_delay) AS /mean",
        "MAX(/dep_delay) AS /worst",
    ],
    "grouping": ["/carrier", "/hour"],
}
#: A group of the view: carrier and hour.
_Group = tuple[str, int]
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
    #: Groups of the view, and the changes that its table reported.
    groups: int
    group_changes: int
    #: How long a query of all records took.
    query_seconds: float
    #: The number of records of the table, of the query and of the filtered table that differ from
    #: the source.
    wrong: int
    #: The number of groups of the view that differ from those of pandas.
    wrong_groups: int

    @property
    def is_sound(self) -> bool:
        return self.wrong == 0 and self.wrong_groups == 0

    def table(self) -> Table:
        table = Table(title="the newest flight of each aircraft", show_header=False)
        rate = self.published / max(self.seconds - self.outage_seconds, 1e-9)
        table.add_row("published", f"{self.published:,}", f"{rate:,.0f} messages/s, with a live table")
        table.add_row("records", f"{self.aircraft:,}", "one for each tail number")
        table.add_row(
            "changes of the live table", f"{self.changes:,}", "with those that the kill -9 took back"
        )
        table.add_row(
            "view of delays",
            f"{self.groups:,}",
            f"groups by carrier and hour, {self.group_changes:,} changes",
        )
        per_second = self.aircraft / max(self.query_seconds, 1e-9)
        table.add_row("query of all records", f"{self.query_seconds:.3f} s", f"{per_second:,.0f} records/s")
        return table

    def verdict(self) -> str:
        if self.is_sound:
            return (
                "[bold green]table and query are equal to the source[/]: the newest flight of every aircraft. "
                "[bold green]the view is equal to pandas[/]: the delays by carrier and hour"
            )
        if self.wrong == 0:
            return f"[bold red]{self.wrong_groups:,} groups of the view differ from those of pandas[/]"
        return f"[bold red]{self.wrong:,} records differ from the source[/]"


def run_board(console: Console, server: ServerProcess, flights: list[bytes]) -> BoardResults:
    """Publishes the flights to a last-value topic while tables follow it and its view, and compares
    all copies at the end."""
    flights = [data for data in flights if b'"tailnum": null' not in data]
    newest = {json.loads(data)["tailnum"]: data for data in flights}
    late = {tail: data for tail, data in newest.items() if (json.loads(data)["dep_delay"] or 0) > 60}
    delays = _delays_of(newest)
    console.print(f"{len(flights):,} flights of {len(newest):,} aircraft, to the last-value topic {TOPIC}")
    changes = group_changes = 0

    def count(_change: quire.Change) -> None:
        nonlocal changes
        changes += 1

    def count_group(_change: quire.Change) -> None:
        nonlocal group_changes
        group_changes += 1

    with (
        quire.Client(server.url, name="demo-tower") as tower,
        quire.Client(server.url, name="demo-board") as screen,
        screen.table(TOPIC, key="/tailnum", on_change=count) as board,
        screen.table(TOPIC, key="/tailnum", filter=LATE) as late_board,
        screen.table(str(DELAYS["name"]), on_change=count_group) as delay_board,
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
        _wait_for(lambda: _wrong_groups(delay_board, delays) == 0)
        seconds = time.perf_counter() - begun
        begun = time.perf_counter()
        records = {record.json()["tailnum"]: record for record in tower.sow(TOPIC)}
        query_seconds = time.perf_counter() - begun
        wrong = wrong_of(board, newest) + wrong_of(late_board, late) + wrong_of(records, newest)
        wrong_groups = _wrong_groups(delay_board, delays)
        groups = len(delay_board)
    return BoardResults(
        published=len(flights),
        seconds=seconds,
        aircraft=len(records),
        changes=changes,
        outage_seconds=outage,
        groups=groups,
        group_changes=group_changes,
        query_seconds=query_seconds,
        wrong=wrong,
        wrong_groups=wrong_groups,
    )


def _delays_of(newest: dict[str, bytes]) -> dict[_Group, dict[str, Any]]:
    """The groups of the view, as pandas computes them."""
    import pandas as pd

    flights = pd.DataFrame([json.loads(data) for data in newest.values()])
    groups = flights.groupby(["carrier", "hour"])
    frame = pd.DataFrame(
        {
            "aircraft": groups.size(),
            "minutes": groups["dep_delay"].sum(min_count=1),
            "mean": groups["arr_delay"].mean(),
            "worst": groups["dep_delay"].max(),
        }
    )
    return {key: dict(row) for key, row in frame.to_dict("index").items()}


def _wrong_groups(view: quire.Table, expected: dict[_Group, dict[str, Any]]) -> int:
    """The number of groups that are missing, too many, or different."""
    found: dict[_Group, dict[str, Any]] = {}
    for message in list(view.values()):
        record = message.json()
        found[record["carrier"], record["hour"]] = record
    same = sum(key in found and _is_equal(found[key], group) for key, group in expected.items())
    return len(found.keys() | expected.keys()) - same


def _is_equal(found: Mapping[str, Any], expected: Mapping[str, Any]) -> bool:
    """Integers must be equal, and floats to a billionth. NULL is NaN in pandas."""
    for name, value in expected.items():
        if value is None or math.isnan(value):
            if found[name] is not None:
                return False
        elif found[name] is None or isinstance(found[name], int):
            if found[name] != value:
                return False
        elif not math.isclose(found[name], value, rel_tol=1e-9, abs_tol=1e-9):
            return False
    return True


def wrong_of(copy: quire.Table | dict[str, quire.Message], expected: dict[str, bytes]) -> int:
    """The number of records that are missing, too many, or different."""
    found = {key: message.data for key, message in copy.items()}
    return len(set(found.items()) ^ set(expected.items()))


def _wait_for(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not is_so() and time.monotonic() < deadline:
        time.sleep(0.05)


__all__ = ["AIRCRAFT", "DELAYS", "BoardResults", "run_board"]
