"""Figures of last-value topics through the whole stack: server and clients in processes of their
own, over loopback.

    python benches/last_values.py upsert [--messages 500000] [--keys 100000] [--rounds 5]
    python benches/last_values.py query [--records 1000,100000,10000000] [--size 256] [--seconds 3]
    python benches/last_values.py start [--records 10000000] [--size 256] [--rounds 3] [--topic plain|hashed|records]
    python benches/last_values.py beside [--records 10000000] [--size 256] [--rate 200] [--seconds 10]

Each prints one JSON object. Compare its ratios: the two sides of each alternate in one run.

    upsert     publishes JSON until all of it is persisted, to a last-value topic, and to a topic that is only recorded
    query      queries by key, and the shortest command that has an answer (the ping). Ranges with an index, and without
    start      starts a server, until a query by key is answered. It loads the newest snapshot and the later records of the log.
               Before, it fills the topic: `plain` has no index, `hashed` a hash index, `records` a hash index and an ordered one.
               The overhead is the memory after the start, less that of the server before the first record, the keys and the messages
    beside     publishes and waits, while another client queries without an index again and again, and alone

`query` and `ping` use a plain socket, so that the client has no part in them. `query in Python` is
`client.sow`.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import socket
import statistics
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import quire
import saved
from end_to_end import Served, bench_directory, run_role
from strangers import ACK, ERROR, LOGON, MESSAGE, fields, frame, number, unsubscribe

TIMEOUT = 900.0
#: Bytes of a generated key.
KEY_SIZE = 32
QUERY, PROCESSED, COMPLETED = 13, 1, 2
#: A prime, so that successive keys are far apart and all are used.
_STRIDE = 7_919
#: Conditions on /quantity, which is between 0 and 999. The second one uses no index.
_RANGE, _ALL = "/quantity < 10", "/quantity < 10 OR /price = -1"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--directory", type=Path, help="where the journal goes (a temporary directory)")
    saved.add_option(parser)
    benches = parser.add_subparsers(required=True)

    upsert = benches.add_parser("upsert", help="publish to a last-value topic, and to the log alone")
    upsert.add_argument("--messages", type=int, default=500_000, help="of each kind, in each round")
    upsert.add_argument("--keys", type=int, default=100_000)
    upsert.add_argument("--size", type=int, default=300, help="bytes of a message")
    upsert.add_argument("--rounds", type=int, default=5)
    upsert.set_defaults(bench=bench_upsert, rows=rows_by_kind)

    query = benches.add_parser("query", help="queries by key, of a range, and of all records")
    query.add_argument("--records", default="1000,100000,10000000", help="numbers of records")
    query.add_argument("--size", type=int, default=256, help="bytes of a record")
    query.add_argument("--seconds", type=float, default=3.0, help="of each kind")
    query.set_defaults(bench=bench_query, rows=rows_by_size)

    start = benches.add_parser("start", help="start with a snapshot")
    start.add_argument("--records", type=int, default=10_000_000)
    start.add_argument("--size", type=int, default=256, help="bytes of a record")
    start.add_argument("--rounds", type=int, default=3)
    start.add_argument("--topic", choices=["plain", "hashed", "records"], default="records")
    start.set_defaults(bench=bench_start, rows=rows_of_start)

    beside = benches.add_parser("beside", help="latency of a publish during queries of all records")
    beside.add_argument("--records", type=int, default=10_000_000)
    beside.add_argument("--size", type=int, default=256, help="bytes of a record")
    beside.add_argument("--rate", type=int, default=200, help="publishes a second")
    beside.add_argument("--seconds", type=float, default=10.0, help="of each of four portions")
    beside.set_defaults(bench=bench_beside, rows=rows_by_kind)

    options = parser.parse_args()
    with bench_directory(options.directory) as directory:
        figures = options.bench(directory, options)
    print(json.dumps(figures, indent=2))
    saved.save(options.save, options.rows(figures))


def rows_by_kind(figures: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """One row for each kind of publish. The rounds are left out."""
    named = {name: each for name, each in figures.items() if isinstance(each, dict) and name != "rounds"}
    kinds = next(iter(named.values()))
    return {kind: {name: each[kind] for name, each in named.items()} for kind in kinds}


def rows_by_size(figures: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """One column for each number of records."""
    rows: dict[str, dict[str, Any]] = {}
    for size, found in figures.items():
        for name, each in found["p50_us"].items():
            rows.setdefault(f"{name}, p50 in µs", {})[size] = each
        for name in ("query_to_ping", "scan_records_per_s", "scan_to_range"):
            rows.setdefault(name, {})[size] = found[name]
    return rows


def rows_of_start(figures: dict[str, Any]) -> dict[str, dict[str, Any]]:
    medians = {name: statistics.median(each) for name, each in figures.items() if isinstance(each, list)}
    return {f"{figures['records']:,} records, topic {figures['topic']}": medians}


def bench_upsert(directory: Path, options: argparse.Namespace) -> dict[str, Any]:
    rates: dict[str, list[float]] = {
        f"{kind}{indexed}": [] for indexed in ["", ", two indexes"] for kind in ["known", "new"]
    }
    rates = {"log": [], **rates}
    with Served(directory, configured(directory)) as server:

        def publish(kind: str, topic: str, keys: int, prefix: str) -> None:
            arguments = (server.url, options.messages, options.size, topic, keys, prefix)
            ((begun, ended),) = run_role(_publish, 1, *arguments)
            rates[kind].append(options.messages / (ended - begun))

        for topic in ["plain", "records"]:
            run_role(_publish, 1, server.url, options.keys, options.size, topic, options.keys, "k")
        for round_number in range(options.rounds):
            publish("log", "log", options.keys, "k")
            for topic, indexed in [("plain", ""), ("records", ", two indexes")]:
                publish(f"known{indexed}", topic, options.keys, "k")
                # Records that are new in this round have keys of their own.
                publish(f"new{indexed}", topic, options.messages, f"{round_number}-")
    medians = {kind: statistics.median(each) for kind, each in rates.items()}
    return {
        "messages_per_s": {kind: round(rate) for kind, rate in medians.items()},
        "ratio_to_log": {kind: round(rate / medians["log"], 3) for kind, rate in medians.items()},
        "rounds": {kind: [round(rate) for rate in each] for kind, each in rates.items()},
    }


def bench_query(directory: Path, options: argparse.Namespace) -> dict[str, Any]:
    figures = {}
    for records in map(int, options.records.split(",")):
        below = directory / str(records)
        below.mkdir()
        with Served(below, configured(below)) as server:
            fill(server, records, options.size)
            figures[f"{records:,} records"] = query_figures(server, records, options)
    return figures


def query_figures(server: Served, records: int, options: argparse.Namespace) -> dict[str, Any]:
    took: dict[str, list[int]] = {}
    numbers = (position * _STRIDE % records for position in itertools.count())
    with connected(server.url) as asked, quire.Client(server.url) as client:

        def ask(filter: str, expected: int) -> None:
            if (found := asked.query("records", filter)) != expected:
                raise RuntimeError(f"{found} records instead of {expected} for {filter}")

        def ask_in_python() -> None:
            (_,) = client.sow("records", filter=f"/id = '{key(next(numbers))}'")

        hundredth = sum(1 for each in range(1_000) if each < 10) * records // 1_000
        kinds: dict[str, Callable[[], None]] = {
            "ping": asked.ping,
            "query by key": lambda: ask(f"/id = '{key(next(numbers))}'", 1),
            "query in Python": ask_in_python,
            "equality, hash index, 100 matches": lambda: ask(
                f"/group = '{next(numbers) % (records // 100)}'", 100
            ),
            "1 %, ordered index": lambda: ask(_RANGE, hundredth),
            "1 %, all records": lambda: ask(_ALL, hundredth),
            "no match, all records": lambda: ask("/quantity = 1000 OR /price = -1", 0),
        }
        for kind in kinds.values():
            kind()
        for name in ["ping", "query by key", "query in Python"]:
            took[name] = []
        # The kinds alternate in short portions, so that other work of the machine affects all of
        # them.
        for _ in range(10):
            for name, each in took.items():
                each += timed(kinds[name], options.seconds / 10)
        for name in list(kinds)[3:]:
            took[name] = timed(kinds[name], options.seconds)
    p50 = {name: statistics.median(each) / 1e3 for name, each in took.items()}
    scan = p50["1 %, all records"]
    return {
        "p50_us": {name: round(each, 1) for name, each in p50.items()},
        "query_to_ping": round(p50["query by key"] / p50["ping"], 3),
        "scan_records_per_s": round(records / p50["no match, all records"] * 1e6),
        "scan_to_range": round(scan / p50["1 %, ordered index"], 1),
    }


def bench_start(directory: Path, options: argparse.Namespace) -> dict[str, Any]:
    with Served(directory, configured(directory)) as server:
        empty = server.resident_bytes()
        fill(server, options.records, options.size, options.topic)
    seconds, answered, restored, largest = [], [], [], []
    for round_number in range(options.rounds):
        begun = time.monotonic()
        with Served(directory, configured(directory)) as server:
            seconds.append(time.monotonic() - begun)
            with connected(server.url) as asked:
                wanted = f"/id = '{key(round_number * _STRIDE % options.records)}'"
                if asked.query(options.topic, wanted) != 1:
                    raise RuntimeError("the record is missing")
            answered.append(time.monotonic() - begun)
            restored.append(server.resident_bytes() - empty)
            largest.append(round(status_bytes(server.pid, "VmHWM") / status_bytes(server.pid, "VmRSS"), 2))

    def overhead(size: int) -> float:
        return round(size / options.records - options.size - KEY_SIZE, 1)

    return {
        "records": options.records,
        "topic": options.topic,
        "empty_server_mb": round(empty / 1e6),
        "overhead_bytes_per_record": [overhead(size) for size in restored],
        "largest_memory_to_memory_after_start": largest,
        "seconds_until_listening": [round(each, 2) for each in seconds],
        "seconds_until_answered": [round(each, 2) for each in answered],
    }


def bench_beside(directory: Path, options: argparse.Namespace) -> dict[str, Any]:
    took: dict[str, list[int]] = {"alone": [], "during scans": []}
    scans = 0
    with Served(directory, configured(directory)) as server:
        fill(server, options.records, options.size)
        # The publishes are not to wait until the disk has written the records and their snapshot.
        os.sync()
        for name in ["alone", "during scans"] * 2:
            stop = threading.Event()
            done: list[int] = []
            with contextlib.ExitStack() as resources:
                if name != "alone":
                    resources.enter_context(scanning(server.url, stop, done))
                took[name] += publish_and_wait(server.url, options.rate, options.seconds, options.records)
                stop.set()
            scans += len(done)
    cuts = {name: statistics.quantiles(each, n=1_000) for name, each in took.items()}
    p50 = {name: round(each[499] / 1e3, 1) for name, each in cuts.items()}
    p99 = {name: round(each[989] / 1e3, 1) for name, each in cuts.items()}
    return {
        "p50_us": p50,
        "p99_us": p99,
        "ratio_p99": round(p99["during scans"] / p99["alone"], 2),
        "scans": scans,
    }


@contextlib.contextmanager
def scanning(url: str, stop: threading.Event, done: list[int]) -> Iterator[None]:
    """Asks again and again for records of which there are none, and looks at all for them. The
    thread only waits for the answers."""

    def scan() -> None:
        with connected(url) as asked:
            while not stop.is_set():
                done.append(asked.query("records", "/quantity = 1000 OR /price = -1"))

    thread = threading.Thread(target=scan)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def publish_and_wait(url: str, rate: int, seconds: float, keys: int) -> list[int]:
    """Publishes at a rate and waits for each, from the time at which it was due."""
    took = []
    with quire.Client(url) as client:
        begun = time.monotonic_ns()
        for position in range(int(rate * seconds)):
            due = begun + position * 1_000_000_000 // rate
            while (left := due - time.monotonic_ns()) > 0:
                time.sleep(left / 1e9)
            client.publish("records", record(position * _STRIDE % keys, 256, "k"))
            client.flush(timeout=TIMEOUT)
            took.append(time.monotonic_ns() - due)
    return took


def configured(directory: Path) -> Path:
    path = directory / "last_values.toml"
    path.write_text("""
[transaction_log]

[[transaction_log.topic]]
name = "^(log|plain|hashed|records)$"
message_type = "json"

[[sow_topic]]
name = "plain"
message_type = "json"
key = ["/id"]

[[sow_topic]]
name = "hashed"
message_type = "json"
key = ["/id"]
hash_index = [["/group"]]

[[sow_topic]]
name = "records"
message_type = "json"
key = ["/id"]
hash_index = [["/group"]]
index = ["/quantity"]
""")
    return path


def key(position: int, prefix: str = "k") -> str:
    return f"{prefix}{position:09}"


def record(position: int, size: int, prefix: str) -> bytes:
    head = (
        f'{{"id":"{key(position, prefix)}","group":"{position // 100}",'
        f'"quantity":{position % 1_000},"price":{position % 97}.5,"text":"'
    )
    return (head.ljust(size - 2, "x") + '"}').encode()


def fill(server: Served, records: int, size: int, topic: str = "records") -> None:
    run_role(_publish, 1, server.url, records, size, topic, records, "k")


def _publish(
    results: Any, barrier: Any, url: str, count: int, size: int, topic: str, keys: int, prefix: str
) -> None:
    # Made before the clock starts, as far as they are used again.
    made = [record(position, size, prefix) for position in range(min(keys, count, 1_000_000))]
    with quire.Client(url) as client:
        barrier.wait(TIMEOUT)
        begun = time.monotonic()
        for first in range(0, count, len(made)):
            if first and keys > len(made):
                made = [record(position, size, prefix) for position in range(first, first + len(made))]
            for data in made[: count - first]:
                client.publish(topic, data)
        client.flush(timeout=TIMEOUT)
        results.put((begun, time.monotonic()))


def status_bytes(pid: int, name: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"the kernel does not say {name}")


def timed(call: Callable[[], None], seconds: float) -> list[int]:
    took: list[int] = []
    end = time.monotonic_ns() + int(seconds * 1e9)
    while (begun := time.monotonic_ns()) < end or not took:
        call()
        took.append(time.monotonic_ns() - begun)
    return took


class Asked:
    """A connection that sends frames of the protocol, and waits for each answer."""

    def __init__(self, stream: socket.socket) -> None:
        self._stream = stream
        self._read = bytearray()
        self._numbers = itertools.count(1)

    def send(self, sent: bytes) -> None:
        self._stream.sendall(sent)

    def ping(self) -> None:
        """Ends a subscription that does not exist: the server looks for it, and says so."""
        self.send(unsubscribe(next(self._numbers)))
        self.answer(PROCESSED)

    def query(self, topic: str, filter: str) -> int:
        """Returns the number of records that came."""
        given = next(self._numbers)
        self.send(
            frame(
                QUERY,
                fields(
                    (1, number(2 * given)),
                    (2, bytes([1 << COMPLETED])),
                    (3, number(given)),
                    (4, topic.encode()),
                    (5, filter.encode()),
                    (20, b"\1"),
                ),
            )
        )
        return self.answer(COMPLETED)

    def answer(self, acknowledgement: int) -> int:
        """Returns the number of messages before it."""
        messages = 0
        while True:
            at = 0
            while len(self._read) - at >= 5:
                size, kind = struct.unpack_from("<IB", self._read, at)
                if len(self._read) - at < 4 + size:
                    break
                if kind == MESSAGE:
                    messages += 1
                elif kind == ERROR:
                    raise RuntimeError(bytes(self._read[at + 9 : at + 4 + size]).decode())
                elif kind == ACK:
                    ack, _, code = struct.unpack_from("<BBH", self._read, at + 5)
                    if code and acknowledgement != PROCESSED:
                        raise RuntimeError(f"code {code}")
                    if ack == acknowledgement:
                        del self._read[: at + 4 + size]
                        return messages
                at += 4 + size
            del self._read[:at]
            if not (taken := self._stream.recv(1 << 18)):
                raise RuntimeError("the server closed the connection")
            self._read += taken


@contextlib.contextmanager
def connected(url: str) -> Iterator[Asked]:
    parts = urlsplit(url)
    with socket.create_connection((parts.hostname, parts.port)) as stream:
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream.settimeout(TIMEOUT)
        asked = Asked(stream)
        asked.send(
            frame(LOGON, fields((1, b"QUIR"), (2, b"\1\0"), (3, b"asked-%d" % stream.getsockname()[1])))
        )
        yield asked


if __name__ == "__main__":
    main()
