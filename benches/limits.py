"""The cost of a crowd, or of one peer: the server's memory, and the latency of honest clients at
the same time.

    python benches/limits.py [--short] [connections] [subscriptions] [slow] [churn] [oversized]
    python benches/limits.py [--short] [stats-5000] [stats-220000] [patterns-1] [patterns-10] [patterns-4-long] [replace]
                             [arrays] [filters] [unread]

Without a name all of them. `--short` does a part of each, in a few minutes altogether.

An honest publisher sends at a steady rate to an honest subscriber, all the time. First there is no
other client. Then the crowd connects, from separate processes that use the protocol over bare
sockets (docs/protocol.md), and the same is measured again. The results of each crowd are the
server's memory, per client where that is useful, and the honest pair's latency before and during.

    connections    10,000 connections, logged on, idle
    subscriptions  100,000 subscriptions with a filter each, over 100 connections, on the honest topic; none matches
    slow           200 ordinary subscribers of a topic with 20 MB/s that never read: cut off at `max_client_backlog`
    churn          subscriptions that come and go as fast as they are answered, over 20 connections
    oversized      connections that announce frames above every limit, one after the other

The other names are rows of `stalls.py`, one action of one peer each. They are printed as a table:
an honest client that publishes and flushes 200 times a second, alone and together with the peer;
whether heartbeats were served meanwhile; and whether the server cut the peer off.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import statistics
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import quire
import saved
import stalls
from end_to_end import Served
from strangers import ACK, CutOffError, Strangers, subscribe, unsubscribe

_SPAWN = multiprocessing.get_context("spawn")
_RATE = 2_000
_SECONDS = 5
_TIMEOUT = 300.0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "names", nargs="*", choices=[[], *CROWDS, *stalls.ROWS], help="all of them by default"
    )
    parser.add_argument("--short", action="store_true", help="a part of each, for a quick look")
    parser.add_argument("--directory", type=Path, help="where the journal goes (a temporary directory)")
    saved.add_option(parser)
    options = parser.parse_args()
    rows = []
    figures: dict[str, dict[str, Any]] = {}
    for name in options.names or [*CROWDS, *stalls.ROWS]:
        with tempfile.TemporaryDirectory(prefix="quire-limits-", dir=options.directory) as directory:
            if name in CROWDS:
                figures[name] = CROWDS[name](Path(directory), 10 if options.short else 1)
                result = {"crowd": name, **figures[name]}
            else:
                rows.append(result := stalls.measure(Path(directory), name, options.short))
                figures[stalls.ROWS[name].what] = stalls.figures(result)
            print(json.dumps(result), flush=True)
    if rows:
        print(stalls.table(rows))
    saved.save(options.save, figures)


def connections(directory: Path, part: int) -> dict[str, Any]:
    heads = 10_000 // part
    with Measured(directory) as measured, measured.crowd(_stay, 4, heads // 4):
        return measured.figures(heads)


def subscriptions(directory: Path, part: int) -> dict[str, Any]:
    heads = 100_000 // part
    with Measured(directory) as measured, measured.crowd(_subscribe_much, 4, heads // 4):
        return measured.figures(heads)


def slow(directory: Path, part: int) -> dict[str, Any]:
    size = 16 << 10
    with (
        Measured(directory) as measured,
        measured.crowd(_never_read, 4, 50 // part),
        quire.Client(measured.server.url) as client,
        Pump(lambda: client.publish("flood", bytes(size)), per_second=20_000_000 // size),
    ):
        return measured.figures()


def churn(directory: Path, part: int) -> dict[str, Any]:
    with Measured(directory) as measured, measured.crowd(_come_and_go, 4, 5) as crowd:
        before, start = crowd.done(), time.monotonic()
        figures = measured.figures()
        rate = (crowd.done() - before) / (time.monotonic() - start)
        return {"subscribes_and_unsubscribes_per_s": round(rate), **figures}


def oversized(directory: Path, part: int) -> dict[str, Any]:
    with Measured(directory) as measured, measured.crowd(_announce_too_much, 4, 5) as crowd:
        before, start = crowd.done(), time.monotonic()
        figures = measured.figures()
        rate = (crowd.done() - before) / (time.monotonic() - start)
        return {"refused_per_s": round(rate), **figures}


#: Each with a directory for the server, and the divisor by which the crowd is reduced.
CROWDS: dict[str, Callable[[Path, int], dict[str, Any]]] = {
    "connections": connections,
    "subscriptions": subscriptions,
    "slow": slow,
    "churn": churn,
    "oversized": oversized,
}


class Measured:
    """A server, its memory, and its latency with only the honest pair."""

    def __init__(self, directory: Path) -> None:
        config = directory / "quire.toml"
        config.write_text(
            '[[transport]]\nname = "limits"\nmax_connections = 11000\nmax_subscriptions_per_connection = 2000\n'
            '[[transaction_log.topic]]\nname = "^honest$"\nmessage_type = "json"\n'
            '[[transaction_log.topic]]\nname = "flood"\nmessage_type = "binary"\nrecorded = false\n'
        )
        self.server = Served(directory, config)

    def __enter__(self) -> Measured:
        self.server.__enter__()
        self._alone = _latency(self.server.url)
        self._resident_alone = self.server.resident_bytes()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.__exit__()

    @contextmanager
    def crowd(self, role: Callable[..., Awaitable[None]], processes: int, heads: int) -> Iterator[Crowd]:
        crowd = Crowd(_SPAWN.Value("q", 0), _SPAWN.Semaphore(0), _SPAWN.Event())
        running = [
            _SPAWN.Process(target=_run, args=(role, self.server.url, number, heads, crowd))
            for number in range(processes)
        ]
        for process in running:
            process.start()
        try:
            for _ in running:
                if not crowd.ready.acquire(timeout=_TIMEOUT):
                    raise TimeoutError("the crowd did not come")
            yield crowd
        finally:
            crowd.over.set()
            for process in running:
                process.join(30)
                process.kill()

    def figures(self, heads: int | None = None) -> dict[str, Any]:
        beside = _latency(self.server.url)
        resident = self.server.resident_bytes()
        figures: dict[str, Any] = {
            "resident_alone_mb": round(self._resident_alone / 1e6, 1),
            "resident_mb": round(resident / 1e6, 1),
        }
        if heads is not None:
            figures["heads"] = heads
            figures["bytes_per_head"] = round((resident - self._resident_alone) / heads)
        for percent in ("p50", "p99"):
            figures[f"{percent}_alone_us"] = round(self._alone[percent])
            figures[f"{percent}_us"] = round(beside[percent])
        return figures


@dataclass
class Crowd:
    """The common code of the processes of a crowd."""

    count: Any
    ready: Any
    over: Any

    def done(self) -> int:
        count: int = self.count.value
        return count

    def did(self) -> None:
        with self.count.get_lock():
            self.count.value += 1


class Pump:
    """Calls `publish` at a rate, on a thread, while the block runs."""

    def __init__(self, publish: Callable[[], object], *, per_second: int) -> None:
        self._publish = publish
        self._per_second = per_second
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        start, sent = time.monotonic(), 0
        while not self._stop.wait(0.01):
            due = int((time.monotonic() - start) * self._per_second)
            for _ in range(due - sent):
                self._publish()
            sent = due


def _latency(url: str) -> dict[str, float]:
    """Publish to persisted subscriber, in microseconds: both clients in one process of their own."""
    results = _SPAWN.SimpleQueue()
    process = _SPAWN.Process(target=_honest_pair, args=(results, url))
    process.start()
    latencies_ns = results.get()
    process.join()
    cuts = statistics.quantiles(latencies_ns, n=100)
    return {"p50": cuts[49] / 1e3, "p99": cuts[98] / 1e3}


def _honest_pair(results: Any, url: str) -> None:
    count = _RATE * _SECONDS
    latencies_ns: list[int] = []
    with quire.Client(url) as publisher, quire.Client(url) as subscriber:
        subscription = subscriber.subscribe("honest", bookmark=quire.NOW)

        def receive() -> None:
            for message in subscription:
                latencies_ns.append(time.monotonic_ns() - message.json()["sent"])
                if len(latencies_ns) == count:
                    return

        receiver = threading.Thread(target=receive)
        receiver.start()
        start = time.monotonic()
        for number in range(count):
            if (early := start + number / _RATE - time.monotonic()) > 0:
                time.sleep(early)
            publisher.publish("honest", b'{"sent": %d, "head": -1}' % time.monotonic_ns())
        receiver.join(_TIMEOUT)
    results.put(latencies_ns)


def _run(
    role: Callable[[Strangers, int, Crowd], Awaitable[None]], url: str, number: int, heads: int, crowd: Crowd
) -> None:
    host, port = url.removeprefix("quire://").rsplit(":", 1)
    asyncio.run(role(Strangers(host, int(port), number), heads, crowd))


async def _until_over(crowd: Crowd) -> None:
    await asyncio.get_running_loop().run_in_executor(None, crowd.over.wait)


async def _stay(strangers: Strangers, heads: int, crowd: Crowd) -> None:
    stayed = [await strangers.logged_on() for _ in range(heads)]
    crowd.ready.release()
    await _until_over(crowd)
    for stranger in stayed:
        stranger.close()


async def _subscribe_much(strangers: Strangers, heads: int, crowd: Crowd) -> None:
    stayed = []  # a connection without a reference is closed
    for first in range(0, heads, 1000):
        stayed.append(stranger := await strangers.logged_on())
        here = range(first, min(first + 1000, heads))
        for head in here:
            filter_text = b"/head = %d" % (strangers.number * heads + head)
            stranger.writer.write(subscribe(head - first + 1, b"honest", filter_text))
        await stranger.writer.drain()
        for _ in here:
            await stranger.expect(ACK)
    crowd.ready.release()
    await _until_over(crowd)


async def _never_read(strangers: Strangers, heads: int, crowd: Crowd) -> None:
    stayed = []
    for _ in range(heads):
        stayed.append(stranger := await strangers.logged_on(limit=1))
        await stranger.send(subscribe(1, b"flood"))
    crowd.ready.release()
    await _until_over(crowd)


async def _come_and_go(strangers: Strangers, heads: int, crowd: Crowd) -> None:
    async def one(head: int) -> None:
        stranger = await strangers.logged_on()
        number = 0
        while not crowd.over.is_set():
            number += 1
            filter_text = b"/head = %d AND /qty > %d" % (head, number)
            await stranger.send(subscribe(number, b"honest", filter_text))
            await stranger.expect(ACK)
            await stranger.send(unsubscribe(number))
            await stranger.expect(ACK)
            crowd.did()

    tasks = [asyncio.create_task(one(head)) for head in range(heads)]
    crowd.ready.release()
    await asyncio.gather(*tasks)


async def _announce_too_much(strangers: Strangers, heads: int, crowd: Crowd) -> None:
    async def one() -> None:
        while not crowd.over.is_set():
            stranger = await strangers.logged_on()
            with contextlib.suppress(CutOffError):
                await stranger.send(struct.pack("<IB", 0x7FFF_FFFF, 3) + bytes(32 << 10))
                await stranger.frame()
            crowd.did()
            stranger.close()

    tasks = [asyncio.create_task(one()) for _ in range(heads)]
    crowd.ready.release()
    await asyncio.gather(*tasks)


if __name__ == "__main__":
    sys.exit(main())
