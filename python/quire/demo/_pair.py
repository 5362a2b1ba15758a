"""The act of `quire demo` on two instances: one is killed and loses its disk, and is filled again
by the other."""

from __future__ import annotations

import time
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

import quire
import quire.testing

TOPIC = "flights"
#: Flights that the act uses at most, so that it takes less than half a minute.
FLIGHTS_MAX = 100_000
#: Seconds that any wait of the act may take.
PATIENCE = 100.0


@dataclass
class PairResults:
    """The outcome of the act."""

    published: int
    persisted_at_kill: int
    publish_seconds: float
    #: From the kill to the first message that the other instance has persisted.
    outage_seconds: float
    #: From the start of the empty instance until it had everything.
    fill_seconds: float
    #: Messages of both instances that were read back.
    read: int
    #: The messages that differ from their source, or have another bookmark on the other instance.
    wrong: int

    @property
    def is_sound(self) -> bool:
        return self.wrong == 0 and self.read == 2 * self.published

    def table(self) -> Table:
        table = Table(title="two instances", show_header=False)
        rate = self.published / max(self.publish_seconds - self.outage_seconds, 1e-9)
        table.add_row("published", f"{self.published:,}", f"{rate:,.0f} messages/s")
        table.add_row(
            "kill -9 of the first, its data deleted",
            f"{self.persisted_at_kill:,} persisted",
            f"continued on the second after {self.outage_seconds:.2f} s",
        )
        table.add_row("filled again", f"{self.published:,}", f"{self.fill_seconds:.1f} s, with publishes")
        table.add_row("read back from both", f"{self.read:,}", "data, order and bookmarks were compared")
        return table

    def verdict(self) -> str:
        if self.is_sound:
            return (
                "[bold green]both instances have every flight, once and in order[/], under the same bookmarks"
            )
        return f"[bold red]{self.wrong:,} messages are wrong, {self.read:,} of {2 * self.published:,} were read[/]"


def run_pair(console: Console, flights: list[bytes]) -> PairResults:
    """Runs the act on the first flights, at most `FLIGHTS_MAX`."""
    flights = flights[:FLIGHTS_MAX]
    half, most = len(flights) // 2, len(flights) * 3 // 4
    with (
        quire.testing.cluster(2) as cluster,
        quire.Client(cluster.urls, name="demo-pair") as client,
    ):
        first, second = cluster
        console.print(f"{first.name} on {first.url}, {second.name} on {second.url}, sync links both ways")
        begun = time.perf_counter()
        for data in flights[:half]:
            client.publish(TOPIC, data)
        _wait_until_persisted(client, half // 2)
        killed, persisted_at_kill = time.perf_counter(), client.persisted
        console.print(f"[bold]kill -9[/] of {first.name}, process {first.pid}; its directory is deleted")
        cluster.lose_disk(first)
        # As `quire replication downgrade` does: publishers do not wait for a lost instance.
        with quire.Client(second.url) as operator:
            operator._replicate(first.name, "downgrade")
        _wait_until_persisted(client, min(persisted_at_kill + 1, half))
        outage_seconds = time.perf_counter() - killed
        for data in flights[half:most]:
            client.publish(TOPIC, data)
        started = time.perf_counter()
        cluster.start(first)
        console.print(f"{first.name} starts again with an empty directory")
        for data in flights[most:]:
            client.publish(TOPIC, data)
        client.flush(timeout=PATIENCE)
        publish_seconds = time.perf_counter() - begun
        cluster.wait_until_replicated(PATIENCE)
        fill_seconds = time.perf_counter() - started
        with quire.Client(second.url) as operator:
            operator._replicate(first.name, "upgrade")
        bookmarks_at_first, wrong_at_first = _compare(first.url, flights)
        bookmarks_at_second, wrong_at_second = _compare(second.url, flights)
    other = sum(a != b for a, b in zip(bookmarks_at_first, bookmarks_at_second, strict=False))
    return PairResults(
        published=len(flights),
        persisted_at_kill=persisted_at_kill,
        publish_seconds=publish_seconds,
        outage_seconds=outage_seconds,
        fill_seconds=fill_seconds,
        read=len(bookmarks_at_first) + len(bookmarks_at_second),
        wrong=wrong_at_first + wrong_at_second + other,
    )


def _compare(url: str, flights: list[bytes]) -> tuple[list[str], int]:
    """Reads the messages of an instance. Returns their bookmarks, and the number of those that are
    not the next flight."""
    bookmarks: list[str] = []
    wrong = 0
    with quire.Client(url, name="demo-pair-reader") as client:
        replay = client.subscribe(TOPIC, bookmark=quire.EPOCH)
        for messages in replay.batches(timeout=PATIENCE):
            for message in messages:
                expected = flights[len(bookmarks)] if len(bookmarks) < len(flights) else None
                bookmarks.append(str(message.bookmark))
                wrong += message.data != expected or message.sequence != len(bookmarks)
            if len(bookmarks) >= len(flights) or not messages:
                break
    return bookmarks, wrong


def _wait_until_persisted(client: quire.Client, count: int) -> None:
    deadline = time.monotonic() + PATIENCE
    while client.persisted < count and time.monotonic() < deadline:
        time.sleep(0.01)


__all__ = ["PairResults", "run_pair"]
