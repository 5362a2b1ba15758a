"""Measures how long a client waits while another client (the peer) does something costly.
`limits.py` runs these rows.

The honest client publishes a message and flushes 200 times a second. Another connection asks for
heartbeats. Then the peer does what its row says, over bare sockets. Between the two, the honest
client is measured together with a process that only computes and has no connection: on a machine
with few processors, this alone raises the latency. The ratio of a row compares with that. Each
latency is measured from the time at which the publish was due. A publish that waits for an earlier
one counts with its whole wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import multiprocessing
import os
import socket
import statistics
import struct
import threading
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import quire
from end_to_end import Served
from strangers import (
    FIGURES,
    HEARTBEAT,
    LOGON,
    CutOffError,
    Stranger,
    Strangers,
    fields,
    frame,
    publish,
    stats,
    subscribe,
)

_SPAWN = multiprocessing.get_context("spawn")
#: Publishes a second of the honest client.
_RATE = 200
#: Seconds for which the honest client is measured alone, and at least as long together with the
#: peer.
_SECONDS = 3.0
#: Seconds after which a peer that is not answered is given up.
_TIMEOUT = 300.0
#: Seconds between two heartbeats that the watching connection asks for. Two of them without a frame
#: are a lost connection.
_HEARTBEAT = 0.5
#: Queues of the server.
_QUEUES = 30

#: A row in three steps: the preparation, the action for which the others wait, and at last the
#: state of the peer.
Steps = AsyncIterator[str | None]


@dataclass(frozen=True)
class Row:
    """The action of a peer. With `is_short` it is shorter, so that all rows take a few minutes."""

    what: str
    steps: Callable[[Strangers, bool], Steps]


async def stats_5000(strangers: Strangers, is_short: bool) -> Steps:
    async for step in _ask_for_stats(strangers, 5_000):
        yield step


async def stats_220000(strangers: Strangers, is_short: bool) -> Steps:
    async for step in _ask_for_stats(strangers, 40_000 if is_short else 220_000):
        yield step


async def patterns_1(strangers: Strangers, is_short: bool) -> Steps:
    async for step in _match_patterns(strangers, 1, 1 << 20):
        yield step


async def patterns_10(strangers: Strangers, is_short: bool) -> Steps:
    async for step in _match_patterns(strangers, 10, (1 << 20) // (4 if is_short else 1)):
        yield step


async def patterns_4_long(strangers: Strangers, is_short: bool) -> Steps:
    async for step in _match_patterns(strangers, 4, (8 << 20) // (8 if is_short else 1)):
        yield step


async def replace_towers(strangers: Strangers, is_short: bool) -> Steps:
    """Six levels make the text 64 times as long."""
    tower = b"/f"
    for _ in range(6):
        tower = b"REPLACE(%s, 'a', 'aa')" % tower
    filters = [b"REPLACE(%s, 'b%d', '') = 'x'" % (tower, n) for n in range(20 if is_short else 100)]
    async for step in _evaluate(strangers, [filters], b'{"f":"%s"}' % (b"a" * 150_000)):
        yield step


async def arrays(strangers: Strangers, is_short: bool) -> Steps:
    count = 50 if is_short else 200
    filters = [b"/a%d = /b" % n for n in range(count)]
    ones, twos = b",".join([b"1"] * 1000), b",".join([b"2"] * 1000)
    message = b"{%s,%s}" % (
        b'"b":[%s]' % twos,
        b",".join(b'"a%d":[%s]' % (n, ones) for n in range(count)),
    )
    async for step in _evaluate(strangers, [filters], message):
        yield step


async def many_filters(strangers: Strangers, is_short: bool) -> Steps:
    peers = []
    for peer in range(10 if is_short else 60):
        peers.append(stranger := await strangers.logged_on())
        await _subscribe_all(
            stranger, b"honest", [b"/text LIKE 'x%dy%d.*z'" % (peer, n) for n in range(1000)]
        )
    yield None
    # The honest messages are the peer's act.
    await asyncio.sleep(_SECONDS)
    yield None
    yield await _fates(peers)


async def unread(strangers: Strangers, is_short: bool) -> Steps:
    subscribers = [await strangers.logged_on(limit=1) for _ in range(40)]
    for stranger in subscribers:
        await stranger.send(subscribe(1, b"unread"))
    publisher = await strangers.logged_on()
    size, total = 16 << 10, (20 if is_short else 60) * 1_000_000
    yield None
    await publisher.send(*[publish(b"unread", bytes(size))] * (total // size), stats(1))
    await publisher.expect(FIGURES)
    yield None
    yield await _fates(subscribers)


ROWS = {
    "stats-5000": Row("5,000 `stats` frames", stats_5000),
    "stats-220000": Row("220,000 `stats` frames", stats_220000),
    "patterns-1": Row("1 subscription with 300 patterns, a message of 1 MB", patterns_1),
    "patterns-10": Row("10 such subscriptions, 1 MB", patterns_10),
    "patterns-4-long": Row("4 such subscriptions, 8 MB", patterns_4_long),
    "replace": Row("100 filters with towers of `REPLACE`, 150 KB", replace_towers),
    "arrays": Row("200 filters `/ai = /b`, arrays of 1,000", arrays),
    "filters": Row("60 connections with 1,000 `LIKE` filters each on the honest topic", many_filters),
    "unread": Row("40 subscribers that do not read, 60 MB published", unread),
}


def measure(directory: Path, name: str, is_short: bool) -> dict[str, Any]:
    """Returns one row: times in milliseconds, and what became of the heartbeats and of the peer."""
    config = directory / "quire.toml"
    queues = "".join(
        f'[[queue]]\nname = "QUEUE-{n}"\nmessage_type = "json"\nunderlying_topic = "queued/{n}"\n'
        for n in range(_QUEUES)
    )
    config.write_text(
        '[[transaction_log.topic]]\nname = "^(honest|queued)"\nmessage_type = "json"\n' + queues
    )
    with Served(directory, config) as server, Honest(server.url) as honest:
        resident_alone = server.resident_bytes()
        alone = honest.times(*_wait(_SECONDS))
        busy = honest.times(*_compute(_SECONDS))
        with Peer(server.url, name, is_short) as peer:
            begin, end = peer.strike()
            _wait(begin + _SECONDS - time.monotonic())
            beside = honest.times(begin, max(end, begin + _SECONDS))
            gap = honest.longest_silence(begin, max(end, begin + _SECONDS))
            fate = peer.fate()
        resident = server.resident_bytes()
    return {
        "row": name,
        "alone_ms": alone,
        "busy_ms": busy,
        "beside_ms": beside,
        "p99_ratio": round(beside["p99"] / busy["p99"], 1),
        "heartbeats": "served" if gap < 2 * _HEARTBEAT else f"none for {gap:.1f} s",
        "resident_mb": [round(resident_alone / 1e6), round(resident / 1e6)],
        "peer": fate,
    }


def figures(row: dict[str, Any]) -> dict[str, Any]:
    """Returns the columns of a row in a result file. The three times are p50, p99 and the maximum."""
    names = {"alone_ms": "alone, ms", "busy_ms": "with a busy process, ms", "beside_ms": "with the peer, ms"}
    times = {title: ", ".join(f"{each:.1f}" for each in row[key].values()) for key, title in names.items()}
    return {**times, "p99_ratio": row["p99_ratio"], "heartbeats": row["heartbeats"], "peer": row["peer"]}


def table(rows: list[dict[str, Any]]) -> str:
    """Returns the rows as a table in Markdown."""
    lines = [
        "| the peer | alone: p50, p99, max | beside a busy process | beside the peer | p99 ratio | heartbeats | memory | the peer's end |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        times = (
            ", ".join(f"{each:.1f}" for each in row[key].values())
            for key in ("alone_ms", "busy_ms", "beside_ms")
        )
        memory = " to ".join(map(str, row["resident_mb"]))
        cells = [ROWS[row["row"]].what, *(f"{each} ms" for each in times), f"{row['p99_ratio']:g}"]
        cells += [row["heartbeats"], f"{memory} MB", row["peer"]]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


class Honest:
    """A process with an honest client and a connection with heartbeats, which tells their times."""

    def __init__(self, url: str) -> None:
        self._ours, theirs = _SPAWN.Pipe()
        self._process = _SPAWN.Process(target=_be_honest, args=(theirs, url), daemon=True)
        self._published: list[tuple[float, float]] = []
        self._heard: list[float] = []

    def __enter__(self) -> Honest:
        self._process.start()
        self._ask()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.join()

    def times(self, begin: float, end: float) -> dict[str, float]:
        """Returns how long publishes took, in milliseconds, that were due between two moments."""
        while not self._published or self._published[-1][0] < end:
            self._ask()
        took = [waited * 1e3 for due, waited in self._published if begin <= due <= end]
        cuts = statistics.quantiles(took, n=100)
        return {"p50": round(cuts[49], 2), "p99": round(cuts[98], 2), "max": round(max(took), 2)}

    def longest_silence(self, begin: float, end: float) -> float:
        """Returns the longest time in seconds between two frames on the connection with heartbeats."""
        moments = [begin, *(moment for moment in self._heard if begin <= moment <= end), end]
        return max(after - before for before, after in itertools.pairwise(moments))

    def _ask(self) -> None:
        """Takes what was measured since the last call."""
        self._ours.send(None)
        if not self._ours.poll(_TIMEOUT):
            raise TimeoutError("the honest client is not served any more")
        published, heard = self._ours.recv()
        self._published += published
        self._heard += heard


def _be_honest(connection: Any, url: str) -> None:
    heard: list[float] = []
    threading.Thread(target=_watch, args=(url, heard), daemon=True).start()
    published: list[tuple[float, float]] = []
    with quire.Client(url, name="honest") as client:
        due = time.monotonic()
        while True:
            client.publish("honest", b'{"text":"honest","n":%d}' % len(published))
            client.flush(_TIMEOUT)
            now = time.monotonic()
            # Those that became due meanwhile would have waited until now, too.
            while due <= now:
                published.append((due, now - due))
                due += 1 / _RATE
            if connection.poll(due - now):
                connection.recv()
                connection.send((published, heard[:]))
                published, heard[:] = [], []


def _watch(url: str, heard: list[float]) -> None:
    """Says something often enough, and notes when it hears something."""
    stream = socket.create_connection(_address(url))
    interval = struct.pack("<I", int(_HEARTBEAT * 1000))
    stream.sendall(frame(LOGON, fields((1, b"QUIR"), (2, b"\1\0"), (3, b"watching"), (6, interval))))
    stream.settimeout(_HEARTBEAT / 2)
    with contextlib.suppress(OSError):  # The server has ended the connection; the silence tells it.
        while True:
            with contextlib.suppress(TimeoutError):
                if not stream.recv(1 << 16):
                    return
                heard.append(time.monotonic())
            stream.sendall(frame(HEARTBEAT))


class Peer:
    """A process that goes through the steps of a row."""

    def __init__(self, url: str, name: str, is_short: bool) -> None:
        self._ours, theirs = _SPAWN.Pipe()
        self._process = _SPAWN.Process(target=_be_peer, args=(theirs, url, name, is_short), daemon=True)

    def __enter__(self) -> Peer:
        self._process.start()
        self._receive()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.join()

    def strike(self) -> tuple[float, float]:
        """Returns when the peer began and when it was answered or cut off."""
        self._ours.send(None)
        begin = time.monotonic()
        return begin, self._receive() or begin + _TIMEOUT

    def fate(self) -> str:
        self._ours.send(None)
        return self._receive() or f"not answered within {_TIMEOUT:.0f} s"

    def _receive(self) -> Any:
        return self._ours.recv() if self._ours.poll(_TIMEOUT) else None


def _be_peer(connection: Any, url: str, name: str, is_short: bool) -> None:
    _take_idle_time()
    asyncio.run(_go_through(connection, Strangers(*_address(url), 0), ROWS[name], is_short))


async def _go_through(connection: Any, strangers: Strangers, row: Row, is_short: bool) -> None:
    steps = row.steps(strangers, is_short)
    steps_left = 2
    try:
        while steps_left:
            await anext(steps)
            steps_left -= 1
            connection.send(time.monotonic())
            connection.recv()
        connection.send(await anext(steps))
    except CutOffError as error:
        # Its action is over.
        for _ in range(steps_left):
            connection.send(time.monotonic())
            connection.recv()
        connection.send(f"cut off ({error})")


async def _ask_for_stats(strangers: Strangers, count: int) -> Steps:
    stranger = await strangers.logged_on()
    frames = b"".join(stats(command) for command in range(1, count + 1))
    yield None
    sending = asyncio.create_task(stranger.send(frames))
    for _ in range(count):
        await stranger.expect(FIGURES)
    await sending
    yield None
    yield "answered"


async def _match_patterns(strangers: Strangers, count: int, size: int) -> Steps:
    filters = [
        [b" OR ".join(b"/f LIKE '.*a{100}b%d_%d'" % (subscription, n) for n in range(300))]
        for subscription in range(count)
    ]
    async for step in _evaluate(strangers, filters, b'{"f":"%s"}' % (b"a" * size)):
        yield step


async def _evaluate(strangers: Strangers, filters: list[list[bytes]], message: bytes) -> Steps:
    """For each list of filters a connection with those subscriptions; then one message, which none
    of them matches."""
    peers = []
    for texts in filters:
        peers.append(stranger := await strangers.logged_on())
        await _subscribe_all(stranger, b"costly", texts)
    publisher = await strangers.logged_on()
    yield None
    # Commands are handled in their order: the answer tells that the message was evaluated.
    await publisher.send(publish(b"costly", message), stats(1))
    await publisher.expect(FIGURES)
    yield None
    yield await _fates([publisher, *peers])


async def _subscribe_all(stranger: Stranger, topic: bytes, filters: list[bytes]) -> None:
    await stranger.send(b"".join(subscribe(n, topic, text) for n, text in enumerate(filters, start=1)))
    for _ in filters:
        _, body = await stranger.frame()
        if code := int.from_bytes(body[2:4], "little"):
            raise CutOffError(f"subscription refused with code {code}: {body[16:].decode()}")


async def _fates(peers: list[Stranger]) -> str:
    """Returns how many of the connections were cut off, and why the first of them."""
    reasons = []
    for peer in peers:
        try:
            # The answer comes after everything else.
            await peer.send(stats(1))
            await peer.expect(FIGURES)
        except CutOffError as error:
            reasons.append(str(error))
    if not reasons:
        return "served" if len(peers) == 1 else f"all {len(peers)} connections served"
    return f"{len(reasons)} of {len(peers)} connections cut off ({reasons[0]})"


def _take_idle_time() -> None:
    """A peer usually has its own machine. Here it gets the processor time that the others leave."""
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def _compute(seconds: float) -> tuple[float, float]:
    """Has a process compute for some seconds. Returns when it began and ended."""
    process = _SPAWN.Process(target=_be_busy, daemon=True)
    process.start()
    try:
        return _wait(seconds)
    finally:
        process.kill()
        process.join()


def _be_busy() -> None:
    _take_idle_time()
    while True:
        pass


def _address(url: str) -> tuple[str, int]:
    host, port = url.removeprefix("quire://").rsplit(":", 1)
    return host, int(port)


def _wait(seconds: float) -> tuple[float, float]:
    begin = time.monotonic()
    time.sleep(max(0.0, seconds))
    return begin, time.monotonic()
