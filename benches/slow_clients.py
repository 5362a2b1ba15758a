"""A subscriber that stops reading, and what others notice of it.

    python benches/slow_clients.py [--rate 50000] [--seconds 60] [--rounds 3] [--save NAME]

A publisher sends messages of 300 B at a rate to a topic that is not recorded. Its only subscriber
reads all the time (`reads`), or does not read until the publisher ends (`stops`). Then it reads
what waits for it, and checks that each message comes once and in its order. Beside it, an honest
pair has 1,000 messages/s; the clock of one starts when it was due. The rows take turns. Printed are
p50 and p99 of the pair, and for `stops` the largest memory of the server, the largest size on disk,
and the time in which the subscriber has caught up.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import socket
import statistics
import struct
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import quire
import quire.testing
import saved
from end_to_end import TIMEOUT
from strangers import ACK, LOGON, fields, frame, subscribe

_SPAWN = multiprocessing.get_context("spawn")
_SIZE = 300
_RATE = 1000


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rate", type=int, default=50_000)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--rounds", type=int, default=3)
    saved.add_option(parser)
    options = parser.parse_args()
    rounds: dict[str, list[dict[str, float]]] = {"reads": [], "stops": []}
    topics = [
        {"name": "load", "message_type": "binary", "recorded": False},
        {"name": "^", "message_type": "json"},
    ]
    with tempfile.TemporaryDirectory(prefix="quire-bench-") as name:
        settings: Any = {"transaction_log": {"topic": topics}}
        with quire.testing.ServerProcess(Path(name), **settings) as server:
            for _ in range(options.rounds):
                for row, into in rounds.items():
                    into.append(_row(server, Path(name), stops=row == "stops", options=options))
    rows = {
        row: {key: round(statistics.median(each[key] for each in into), 1) for key in into[0]}
        for row, into in rounds.items()
    }
    pairs = zip(rounds["stops"], rounds["reads"], strict=True)
    rows["stops"]["p99_to_reads"] = round(
        statistics.median(one["p99_us"] / other["p99_us"] for one, other in pairs), 2
    )
    print(json.dumps(rows, indent=2))
    saved.save(options.save, rows)


def _row(
    server: quire.testing.ServerProcess, directory: Path, *, stops: bool, options: argparse.Namespace
) -> dict[str, float]:
    """One subscriber, one publisher, and the pair."""
    count = int(options.rate * options.seconds)
    ready, go_on, results = _SPAWN.Event(), _SPAWN.Event(), _SPAWN.SimpleQueue()
    if not stops:
        go_on.set()
    subscriber = _SPAWN.Process(target=_subscribe, args=(server.address, count, ready, go_on, results))
    subscriber.start()
    assert ready.wait(TIMEOUT)
    publisher = _SPAWN.Process(target=_publish, args=(server.url, options.rate, count))
    publisher.start()
    memory, disk = [_resident_bytes(server.pid)], [0]
    watching = threading.Event()

    def watch() -> None:
        while not watching.wait(0.2):
            memory.append(_resident_bytes(server.pid))
            disk.append(
                sum(file.stat().st_size for file in list((directory / "offline").glob("*")) if file.exists())
            )

    watcher = threading.Thread(target=watch)
    watcher.start()
    took = _pair(server.url, options.seconds)
    publisher.join()
    begun = time.monotonic()
    go_on.set()
    assert results.get() == count
    caught_up = time.monotonic() - begun
    watching.set()
    watcher.join()
    subscriber.join()
    cuts = statistics.quantiles(took, n=100)
    figures = {"p50_us": cuts[49] / 1000, "p99_us": cuts[98] / 1000}
    if stops:
        figures |= {
            "memory_mb": max(memory) / 1e6,
            "disk_mb": max(disk) / 1e6,
            "caught_up_s": caught_up,
        }
    return figures


def _resident_bytes(pid: int) -> int:
    """Memory of the process that is not backed by files."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) << 10
    return 0


def _pair(url: str, seconds: float) -> list[int]:
    took: list[int] = []
    with quire.Client(url) as publisher, quire.Client(url) as consumer:
        consumer.subscribe(
            "honest", on_message=lambda message: took.append(time.perf_counter_ns() - int(message.data))
        )
        due, step = time.perf_counter_ns(), 1_000_000_000 // _RATE
        end = due + int(seconds * 1e9)
        while due < end:
            due += step
            if (wait := due - time.perf_counter_ns()) > 0:
                time.sleep(wait / 1e9)
            publisher.publish("honest", str(due))
        publisher.flush(60)
    return took


def _publish(url: str, rate: int, count: int) -> None:
    rest = b"x" * (_SIZE - 8)
    with quire.Client(url) as client:
        begun = time.perf_counter()
        for number in range(count):
            client.publish("load", number.to_bytes(8, "little") + rest)
            if number % 50 == 49 and (wait := begun + number / rate - time.perf_counter()) > 0:
                time.sleep(wait)
        client.flush(TIMEOUT)


def _subscribe(address: tuple[str, int], count: int, ready: Any, go_on: Any, results: Any) -> None:
    """Reads `count` messages, which are numbered, after `go_on`. Their frames have one size."""
    with socket.create_connection(address) as stream:
        name = b"subscriber-%d" % os.getpid()
        stream.sendall(frame(LOGON, fields((1, b"QUIR"), (2, b"\1\0"), (3, name))))
        stream.sendall(subscribe(1, b"load"))
        buffer, kind = b"", 0
        while kind != ACK:
            while len(buffer) < 5 or len(buffer) < 4 + struct.unpack_from("<I", buffer)[0]:
                buffer += stream.recv(1 << 16)
            kind, buffer = buffer[4], buffer[4 + struct.unpack_from("<I", buffer)[0] :]
        ready.set()
        go_on.wait()
        received = size = 0
        while received < count:
            buffer += stream.recv(1 << 20)
            if not size:
                (size,) = struct.unpack_from("<I", buffer)
                size += 4
            whole = len(buffer) // size * size
            for start in range(0, whole, size):
                number = int.from_bytes(buffer[start + size - _SIZE : start + size - _SIZE + 8], "little")
                if number != received:
                    raise RuntimeError(f"message {number} came, and {received} was expected")
                received += 1
            buffer = buffer[whole:]
        results.put(received)


if __name__ == "__main__":
    main()
