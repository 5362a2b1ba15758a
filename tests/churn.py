"""Connections come and go at random moments while honest clients work; compare what was
acknowledged with the log.

`tests/test_churn.py` runs a few hundred connections. As a program it runs for the given number of
minutes:

    python tests/churn.py MINUTES [--seed SEED] [--late-max SECONDS]

Strangers log on, publish, subscribe and leave without waiting for an answer: with a goodbye, with a
close, with a reset, or in the middle of a frame. Some publish more refused messages than the server
keeps for one connection. At the same time four honest publishers publish and flush, and two honest
workers empty a queue. These conditions must hold:

- every message that was acknowledged is in the log once, in the order of its publisher, without a
  gap, with its data;
- every job that an honest publisher put into the queue reaches an honest worker, and the queue is
  empty at the end;
- no logon and no acknowledgement takes longer than a minute, and no honest client is disconnected;
- the server logs no panic or exception, and stops cleanly on request;
- its memory, threads and file descriptors do not grow;
- with a disk for slow clients, strangers whose refusals wait there are cut off at their share of it,
  the disk never has more than its limit, and nothing stays on it.

A third of the time the server has the default limits, a third the smallest `max_client_backlog`,
both without a disk for slow clients, and a third the smallest one with a disk. The longest time
that an acknowledgement took is reported; it is an error only with `--late-max`, because it depends
on the machine.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import math
import os
import queue
import random
import re
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import quire
from support.server_process import ServerProcess
from support.stranger import (
    GOODBYE,
    LOGGED_ON,
    PERSISTED,
    Stranger,
    frame,
    logon,
    publish,
    publish_batch,
    subscribe,
)
from support.waiting import PATIENCE, wait_until

PUBLISHERS: Final = 4
WORKERS: Final = 2
STRANGERS: Final = 8
#: Names under which strangers log on. The server keeps the highest sequence of every name for ever,
#: so that they are few.
NAMES: Final = 64
#: The smallest that a configuration may say.
BACKLOG_MIN: Final = "64KB"
#: Refusals that are more than `max_client_backlog`: of the smallest, and of the default of 64 MiB.
REFUSED: Final = 5_998
REFUSED_OF_DEFAULT: Final = 2_400_000
#: Connections a second of all strangers together, when the run is measured in minutes.
PACE: Final = 100.0
#: The allowed growth of the server's memory from the second fifth of a run to its end.
GROWTH_MAX: Final = 24 << 20

_SETTINGS: Final[dict[str, Any]] = {
    "transaction_log": {
        "journal_size": "8MB",
        "topic": [{"name": "^(honest|jobs|churn)", "message_type": "json"}],
    },
    "queue": [{"name": "JOBS", "message_type": "json", "underlying_topic": "jobs"}],
}
#: A stranger that does not read its refusals is cut off at `max_client_backlog`.
WITHOUT_DISK: Final[dict[str, Any]] = {"message_disk_limit": 0}
#: The refusals wait on disk up to the share of the stranger, and it is cut off there.
WITH_DISK: Final[dict[str, Any]] = {"message_disk_limit": "16MB", "client_max_capacity": 0.25}
#: The servers that strangers come to.
VARIANTS: Final[dict[str, dict[str, Any]]] = {
    "default": {},
    "smallest": {"max_client_backlog": BACKLOG_MIN},
    "disk": {"max_client_backlog": BACKLOG_MIN, "limits": WITH_DISK},
}
#: Bytes that may be on the disk, and bytes of files that are being written or were just dropped.
_DISK_MAX: Final = 16 << 20
_DISK_SLACK: Final = 16 << 20
#: The lines of the log about clients beyond their share of the disk.
_BEYOND_SHARE: Final = "its share of message_disk_limit"


@dataclass
class Report:
    """The actions and results of a run."""

    connections: Counter[str] = field(default_factory=Counter)
    #: Seconds from the first publish of a group to the acknowledgement of its last.
    waits: list[float] = field(default_factory=list)
    messages: int = 0
    jobs: int = 0
    #: The most anonymous memory of the server in bytes in each fifth of the time, and what is left
    #: when the strangers have gone.
    memory: list[int] = field(default_factory=list)
    #: Before the strangers come, and when they have gone.
    threads: tuple[int, int] = (0, 0)
    descriptors: tuple[int, int] = (0, 0)
    #: The most bytes of slow clients on disk, and the clients that were cut off at their share.
    disk: int = 0
    cut_off: int = 0
    #: The violated conditions.
    findings: list[str] = field(default_factory=list)

    @property
    def longest_wait(self) -> float:
        """Seconds."""
        return max(self.waits, default=math.inf)

    def __str__(self) -> str:
        waits = sorted(self.waits) or [math.inf]
        quantiles = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999, "max": 1.0}
        times = (
            f"{name} {waits[int(share * (len(waits) - 1))] * 1e3:.1f} ms" for name, share in quantiles.items()
        )
        ways = ", ".join(f"{count:,} {way}" for way, count in self.connections.most_common())
        lines = [
            f"connections: {self.connections.total():,} ({ways})",
            f"honest clients: {self.messages:,} messages, {self.jobs:,} of them jobs",
            f"acknowledgements: {len(self.waits):,}, after {', '.join(times)}",
            "memory: "
            + ", ".join(f"{each / 2**20:.1f}" for each in self.memory)
            + " MiB, each fifth and at the end",
            "threads: {}, then {}; descriptors: {}, then {}".format(*self.threads, *self.descriptors),
            f"disk: {self.disk / 2**20:.1f} MiB at most, {self.cut_off:,} cut off at their share",
        ]
        return "\n".join([*lines, *(f"FOUND: {finding}" for finding in self.findings)])


class Name:
    """A client name under which strangers log on, one after the other."""

    def __init__(self, number: int) -> None:
        self.text = b"churn-%d" % number
        self._topic = b"churn/%d" % number
        self._sequence = 0
        #: Sequences that the server acknowledged to the connection that published them.
        self.acknowledged: set[int] = set()

    def publishes(self, count: int) -> bytes:
        """Returns the frames of the next `count` messages. Each message holds its sequence."""
        numbers = range(self._sequence + 1, self._sequence + 1 + count)
        self._sequence += count
        return b"".join(publish(self._topic, b"%d" % number, number) for number in numbers)

    def refused(self, count: int) -> bytes:
        """Returns a frame with `count` messages that the server refuses, because they have no topic."""
        first = self._sequence + 1
        self._sequence += count
        return publish_batch(b"", [b""] * count, first)

    def publish_and_wait(self, stranger: Stranger, count: int) -> None:
        """Publishes `count` messages, and notes those that are acknowledged."""
        before = self._sequence
        stranger.send(self.publishes(count))
        while (body := stranger.body_of(PERSISTED)) is not None:
            (persisted,) = struct.unpack("<Q", body)
            self.acknowledged.update(range(before + 1, persisted + 1))
            if persisted >= self._sequence:
                return


class Publisher(threading.Thread):
    """An honest publisher: small groups of messages, a flush after each."""

    def __init__(self, churn: Churn, number: int) -> None:
        super().__init__(name=f"honest-{number}")
        self._churn = churn
        self.number = number
        self.published = 0
        #: The last sequence that was acknowledged.
        self.acknowledged = 0
        self.jobs: set[int] = set()
        self.waits: list[float] = []

    def run(self) -> None:
        client = quire.Client(self._churn.url, name=self.name, wait=True, command_timeout=None)
        try:
            dice = random.Random(self.name)
            while not self._churn.is_over.is_set():
                self._publish_group(client, dice.randrange(1, 20))
                # So that a long run does not fill the disk.
                self._churn.is_over.wait(dice.uniform(0, 0.02))
        except (quire.QuireError, TimeoutError) as error:
            self._churn.find(
                f"{self.name} ({self.published} published, {client.persisted} acknowledged): {error!r}"
            )
        finally:
            self.acknowledged = client.persisted
            client.close(0)

    def _publish_group(self, client: quire.Client, count: int) -> None:
        started = time.monotonic()
        for _ in range(count):
            self.published += 1
            is_job = self.published % 10 == 0
            topic = "jobs" if is_job else f"honest/{self.number}"
            client.publish(topic, {"publisher": self.number, "n": self.published})
            if is_job:
                self.jobs.add(self.published)
        client.flush(PATIENCE)
        self.waits.append(time.monotonic() - started)


class Worker(threading.Thread):
    """An honest worker, which notes the jobs that it got."""

    def __init__(self, churn: Churn, number: int) -> None:
        super().__init__(name=f"worker-{number}")
        self._churn = churn
        self.handled: set[tuple[int, int]] = set()
        self._client = quire.Client(
            churn.url, name=self.name, ack_batch_size=20, wait=True, command_timeout=None
        )

    def run(self) -> None:
        try:
            self._client.process("JOBS", self._handle, max_backlog=20)
        except (quire.QuireError, TimeoutError) as error:
            self._churn.find(f"{self.name}: {error!r}")

    def end(self) -> None:
        """Waits until the queue is empty, and stops the worker."""
        try:
            wait_until(lambda: not self._client.queue_stats("JOBS")["JOBS"]["depth"], PATIENCE)
            if not self._client.drain(PATIENCE).is_clean:
                self._churn.find(f"{self.name} could not finish")
        except (quire.QuireError, AssertionError) as error:
            self._churn.find(f"the queue is not empty after {PATIENCE} s: {error!r}")
            self._client.close(0)
        self.join()

    def _handle(self, message: quire.Message) -> None:
        job = message.json()
        self.handled.add((job["publisher"], job["n"]))


class Churn:
    """One server, its honest clients and its strangers.

    Strangers come for `seconds`, or until `connections` of them have come. `limits` and `transport`
    are parts of the server's configuration.
    """

    def __init__(
        self,
        directory: Path,
        *,
        seed: int,
        connections: int | None = None,
        seconds: float = math.inf,
        limits: Mapping[str, object] = WITHOUT_DISK,
        **transport: object,
    ) -> None:
        self.report = Report()
        #: Set when honest publishers are to end.
        self.is_over = threading.Event()
        self._directory = directory
        self._seed = seed
        self._connections = connections
        self._seconds = seconds
        self._settings = {**_SETTINGS, "limits": dict(limits), "transport": transport}
        self._has_disk = limits is WITH_DISK
        self._offline = directory / "data" / "offline"
        self._log = directory / "server.log"
        self._lock = threading.Lock()
        #: Set when the server has failed: more strangers would find nothing else.
        self._is_broken = threading.Event()
        self._names: queue.SimpleQueue[Name] = queue.SimpleQueue()

    def run(self) -> Report:
        """Runs it all; returns what was found."""
        names = [Name(number) for number in range(NAMES)]
        for name in names:
            self._names.put(name)
        with (
            self._log.open("wb") as log,
            ServerProcess(self._directory / "data", standard_error=log, **self._settings) as self._server,
        ):
            workers = [Worker(self, number) for number in range(WORKERS)]
            publishers = [Publisher(self, number) for number in range(PUBLISHERS)]
            for thread in (*workers, *publishers):
                thread.start()
            before = self._resources()
            self._let_strangers_come()
            if self._server.is_running:
                self._check_resources(before)
                self._check_disk()
            self.is_over.set()
            for publisher in publishers:
                publisher.join()
            if self._server.is_running:
                for worker in workers:
                    worker.end()
                self._stop_server()
            else:
                self.find("the server has ended")
        for line in self._failures_in_log():
            self.find(f"the server's log: {line}")
        self._compare(publishers, workers, names)
        return self.report

    @property
    def url(self) -> str:
        return self._server.url

    def find(self, finding: str) -> None:
        with self._lock:
            self.report.findings.append(finding)

    def _let_strangers_come(self) -> None:
        strangers = [
            threading.Thread(target=self._come_and_go, args=(number,)) for number in range(STRANGERS)
        ]
        samples: list[int] = []
        for stranger in strangers:
            stranger.start()
        while any(stranger.is_alive() for stranger in strangers):
            if self._failures_in_log() or not self._server.is_running:
                self._is_broken.set()
            else:
                samples.append(self._server.resident_bytes())
                self.report.disk = max(self.report.disk, self._disk_size())
            for stranger in strangers:
                stranger.join(1 / len(strangers))
        bounds = [len(samples) * part // 5 for part in range(6)]
        fifths = (samples[begin : max(end, begin + 1)] for begin, end in itertools.pairwise(bounds))
        self.report.memory = [max(fifth, default=0) for fifth in fifths]

    def _come_and_go(self, number: int) -> None:
        dice = random.Random(f"{self._seed} {number}")
        ways, end = list(WAYS), time.monotonic() + self._seconds
        for index in itertools.count(number, STRANGERS):
            is_enough = index >= self._connections if self._connections else time.monotonic() > end
            if is_enough or self._is_broken.is_set():
                return
            # Each way occurs at least once, independent of the random numbers.
            way = ways[index] if index < len(ways) else dice.choices(ways, [WAYS[way][0] for way in ways])[0]
            name = self._names.get()
            try:
                self._live(way, name, dice)
            except TimeoutError:
                self.find(f"a stranger waited {PATIENCE} s for the server ({way})")
                self._is_broken.set()
            except OSError:
                pass  # The server ended the connection.
            self._names.put(name)
            with self._lock:
                self.report.connections[way] += 1
            if not self._connections:
                self._is_broken.wait(dice.expovariate(PACE / STRANGERS))

    def _live(self, way: str, name: Name, dice: random.Random) -> None:
        with Stranger(self._server.address, timeout=PATIENCE) as stranger:
            stranger.send(logon(name.text))
            # Some do not wait for the answer.
            if dice.random() < 0.7 and stranger.body_of(LOGGED_ON) is None:
                return
            WAYS[way][1](self, stranger, name, dice)
            if stranger.stream.fileno() >= 0:
                dice.choice(LEAVES)(stranger)

    def _publish(self, stranger: Stranger, name: Name, dice: random.Random) -> None:
        stranger.send(name.publishes(dice.randrange(1, 6)))

    def _publish_and_wait(self, stranger: Stranger, name: Name, dice: random.Random) -> None:
        name.publish_and_wait(stranger, dice.randrange(1, 6))

    def _break_off(self, stranger: Stranger, name: Name, dice: random.Random) -> None:
        frames = name.publishes(dice.randrange(1, 6)) + frame(GOODBYE)
        stranger.send(frames[: dice.randrange(len(frames))])
        # Bytes of a goodbye would complete the frame.
        dice.choice((Stranger.close, Stranger.reset))(stranger)

    def _publish_what_is_refused(self, stranger: Stranger, name: Name, dice: random.Random) -> None:
        """The publishes wait for the disk, and so do the refusals after them. The next connection
        gets the refusals."""
        stranger.send(name.publishes(1) + name.refused(REFUSED))
        dice.choice(LEAVES)(stranger)
        with Stranger(self._server.address, timeout=PATIENCE) as again:
            again.send(logon(name.text))
            again.body_of(LOGGED_ON)

    def _publish_much_that_is_refused(self, stranger: Stranger, name: Name, dice: random.Random) -> None:
        # The server answers the first batch while the second one is sent. The answers are not read
        # meanwhile, so those that wait always exceed the limit.
        stranger.send(name.refused(REFUSED_OF_DEFAULT))
        stranger.send(name.refused(REFUSED_OF_DEFAULT))
        while stranger.frame() is not None:
            pass

    def _replay(self, stranger: Stranger, name: Name, dice: random.Random) -> None:
        stranger.send(subscribe(b"^(honest|churn)/", b"0") + name.publishes(1))
        for _ in range(dice.randrange(20)):
            stranger.frame()

    def _follow(self, stranger: Stranger, name: Name, dice: random.Random) -> None:
        stranger.send(subscribe(b"^(honest|churn)/") + name.publishes(1))
        for _ in range(dice.randrange(20)):
            stranger.frame()

    def _take_jobs(self, stranger: Stranger, name: Name, dice: random.Random) -> None:
        """Nothing is acknowledged: the jobs go back to the queue."""
        stranger.send(subscribe(b"JOBS", max_backlog=5) + name.publishes(1))
        for _ in range(dice.randrange(2)):
            stranger.frame()

    def _take_over(self, stranger: Stranger, name: Name, dice: random.Random) -> None:
        """A second connection takes the name while publishes of the first wait for the disk."""
        stranger.send(name.publishes(dice.randrange(1, 6)))
        with Stranger(self._server.address, timeout=PATIENCE) as other:
            other.send(logon(name.text))
            if other.body_of(LOGGED_ON) is not None:
                other.send(name.publishes(1))
                dice.choice(LEAVES)(other)

    def _resources(self) -> tuple[int, int, int]:
        """Returns anonymous memory in bytes, threads, and open descriptors of the server except
        those of journal files."""
        process = Path(f"/proc/{self._server.pid}")
        descriptors = 0
        for link in process.joinpath("fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                descriptors += not os.readlink(link).endswith(".journal")
        return self._server.resident_bytes(), len(list(process.joinpath("task").iterdir())), descriptors

    def _check_resources(self, before: tuple[int, int, int]) -> None:
        """Waits until the server has given back what the strangers needed. The first fifth of the
        time is for the warm-up."""
        now = before
        limits = {
            "bytes of memory": (self.report.memory[1], GROWTH_MAX),
            "threads": (before[1], 0),
            # The honest clients continue, and so does the background work of the server.
            "descriptors": (before[2], 8),
        }

        def grown() -> list[str]:
            nonlocal now
            now = self._resources()
            pairs = zip(now, limits.items(), strict=True)
            return [
                f"from {was:,} to {is_now:,} {name}"
                for is_now, (name, (was, most)) in pairs
                if is_now > was + most
            ]

        try:
            wait_until(lambda: not grown())
        except AssertionError:
            self.find(f"the server grew {', '.join(grown())}")
        self.report.memory.append(now[0])
        self.report.threads, self.report.descriptors = (before[1], now[1]), (before[2], now[2])

    def _disk_size(self) -> int:
        """Returns the bytes of slow clients on disk."""
        size = 0
        if self._offline.is_dir():
            for file in self._offline.iterdir():
                with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                    size += file.stat().st_size
        return size

    def _check_disk(self) -> None:
        """Waits until nothing is left of the strangers on disk, and compares what was there."""
        self.report.cut_off = self._log.read_text(errors="replace").count(_BEYOND_SHARE)
        if not self._has_disk:
            return
        try:
            wait_until(lambda: self._disk_size() == 0)
        except AssertionError:
            self.find(f"{self._disk_size():,} bytes are on the disk when the strangers have gone")
        if self.report.disk > _DISK_MAX + _DISK_SLACK:
            self.find(f"{self.report.disk:,} bytes were on the disk, and its limit is {_DISK_MAX:,}")
        if self.report.connections["were refused much"] and not self.report.cut_off:
            self.find("no stranger was cut off at its share of the disk")

    def _stop_server(self) -> None:
        try:
            status = self._server.terminate()
        except subprocess.TimeoutExpired:
            self.find("the server did not stop")
        else:
            if status != 0:
                self.find(f"the server stopped with status {status}")

    def _failures_in_log(self) -> list[str]:
        """Returns the lines that tell of a panic or an exception, equal ones once, with their number."""
        lines = self._log.read_text(errors="replace").splitlines()
        found = Counter(line for line in lines if _FAILURE.search(line))
        return [f"{count} x {line}" for line, count in found.most_common(10)]

    def _compare(self, publishers: list[Publisher], workers: list[Worker], names: list[Name]) -> None:
        """Reads the log back, and compares it with what was acknowledged."""
        last = dict.fromkeys(range(PUBLISHERS), 0)
        recorded: dict[str, set[int]] = {name.text.decode(): set() for name in names}
        doubled = 0
        with quire.Journal(self._directory / "data" / "journal", read_only=True) as journal:
            for message in journal.read():
                if message.topic.startswith("churn/"):
                    sequences = recorded[message.topic.replace("/", "-")]
                    doubled += message.sequence in sequences or int(message.data) != message.sequence
                    sequences.add(message.sequence or 0)
                    continue
                data = message.json()
                number = data["publisher"]
                if not message.sequence == data["n"] == last[number] + 1:
                    self.find(f"honest-{number}: {data['n']} follows {last[number]} in the log")
                last[number] = data["n"]
        if doubled:
            self.find(f"{doubled} messages of strangers are in the log twice, or with other data")
        for name in names:
            if lost := name.acknowledged - recorded[name.text.decode()]:
                self.find(
                    f"{name.text.decode()}: {len(lost)} acknowledged messages are not in the log: {sorted(lost)[:5]}"
                )
        handled = set().union(*(worker.handled for worker in workers))
        for publisher in publishers:
            self.report.messages += publisher.published
            self.report.jobs += len(publisher.jobs)
            self.report.waits += publisher.waits
            if last[publisher.number] < publisher.acknowledged:
                self.find(
                    f"{publisher.name}: {publisher.acknowledged} were acknowledged, the log ends with {last[publisher.number]}"
                )
            due = {(publisher.number, n) for n in publisher.jobs if n <= publisher.acknowledged}
            if lost_jobs := due - handled:
                self.find(
                    f"{publisher.name}: {len(lost_jobs)} jobs reached no worker: {sorted(lost_jobs)[:5]}"
                )


_FAILURE: Final = re.compile(r"panicked at|PanicException|Traceback|Exception in")

#: The actions of a stranger after its logon, and their weights.
WAYS: Final[dict[str, tuple[float, Callable[[Churn, Stranger, Name, random.Random], None]]]] = {
    "published": (30, Churn._publish),
    "waited": (20, Churn._publish_and_wait),
    "broke off": (15, Churn._break_off),
    "were refused": (5, Churn._publish_what_is_refused),
    "were refused much": (0.01, Churn._publish_much_that_is_refused),
    "replayed": (5, Churn._replay),
    "followed": (5, Churn._follow),
    "took jobs": (10, Churn._take_jobs),
    "took a name": (10, Churn._take_over),
}


def _say_goodbye(stranger: Stranger) -> None:
    stranger.send(frame(GOODBYE))


def _say_goodbye_and_read(stranger: Stranger) -> None:
    stranger.send(frame(GOODBYE))
    while stranger.frame() is not None:
        pass


#: How a stranger leaves. Its connection is closed afterwards in any case.
LEAVES: Final[tuple[Callable[[Stranger], None], ...]] = (
    _say_goodbye,
    _say_goodbye_and_read,
    lambda _: None,
    Stranger.reset,
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("minutes", type=float)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    parser.add_argument("--late-max", type=float, help="seconds that an acknowledgement may take")
    options = parser.parse_args()
    is_sound = True
    for name, settings in VARIANTS.items():
        print(f"seed {options.seed}, {name}", flush=True)
        with tempfile.TemporaryDirectory(prefix="quire-churn-") as directory:
            seconds = options.minutes * 60 / len(VARIANTS)
            report = Churn(Path(directory), seed=options.seed, seconds=seconds, **settings).run()
        if options.late_max is not None and report.longest_wait > options.late_max:
            report.findings.append(f"an acknowledgement took {report.longest_wait:.3f} s")
        print(report, flush=True)
        is_sound = is_sound and not report.findings
    sys.exit(not is_sound)


if __name__ == "__main__":
    main()
