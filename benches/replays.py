"""Figures of replays and large journals: server and clients in processes of their own, over loopback.

    python benches/replays.py many [--replays 50] [--messages 500000] [--size 256]
    python benches/replays.py beside [--gigabytes 5] [--seconds 10] [--rounds 5]
    python benches/replays.py rare [--gigabytes 5] [--size 1024]
    python benches/replays.py compressed [--gigabytes 1]
    python benches/replays.py paced [--seconds 10]
    python benches/replays.py large [--gigabytes 20] [--journal-size 64MB]

Each prints one JSON object. The ratios in it are the result. The journal is below `--directory` (a
temporary directory otherwise) and is removed at the end. The replay to one client, compared with a
raw sender, is in `end_to_end.py`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import threading
import time
from collections.abc import Iterator
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import quire
import saved
from end_to_end import TIMEOUT, Served, bench_directory, run_role, run_roles

#: Clients of one process when there are many.
_CLIENTS_PER_PROCESS = 10
_TOPICS = 1000
#: A replay with this bookmark ends when it has given out what the log holds.
_ALL = "[0:0|1|]"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--directory", type=Path, help="where the journal goes (a temporary directory)")
    saved.add_option(parser)
    benches = parser.add_subparsers(required=True, dest="name")

    many = benches.add_parser("many", help="many replays at once, to one")
    many.add_argument("--replays", type=int, default=50)
    many.add_argument("--messages", type=int, default=500_000, help="of each replay")
    many.add_argument("--size", type=int, default=256, help="bytes of a message")
    many.set_defaults(bench=bench_many)

    beside = benches.add_parser("beside", help="publish to persisted beside a cold replay, to without it")
    beside.add_argument("--gigabytes", type=float, default=5.0, help="size of the journal")
    beside.add_argument("--seconds", type=float, default=10.0, help="without it, and at most with it")
    beside.add_argument("--rounds", type=int, default=5, help="without it and with it, by turns")
    beside.set_defaults(bench=bench_beside)

    rare = benches.add_parser(
        "rare", help="one topic of 1,000, and the last thousandth by time, to everything"
    )
    rare.add_argument("--gigabytes", type=float, default=5.0, help="size of the journal")
    rare.add_argument("--size", type=int, default=1024, help="bytes of a message")
    rare.set_defaults(bench=bench_rare)

    compressed = benches.add_parser("compressed", help="replay of compressed files, to plain ones")
    compressed.add_argument("--gigabytes", type=float, default=1.0, help="size of the journal")
    compressed.set_defaults(bench=bench_compressed)

    paced = benches.add_parser("paced", help="what a rate comes to")
    paced.add_argument("--seconds", type=float, default=10.0)
    paced.set_defaults(bench=bench_paced)

    large = benches.add_parser("large", help="opening a large journal, and finding bookmarks in it")
    large.add_argument("--gigabytes", type=float, default=20.0)
    large.add_argument("--journal-size", default="64MB", help="of one segment")
    large.set_defaults(bench=bench_large)

    options = parser.parse_args()
    with bench_directory(options.directory) as directory:
        figures = options.bench(directory, options)
    print(json.dumps(figures, indent=2))
    saved.save(options.save, saved.listed(options.name, figures))


def bench_many(directory: Path, options: argparse.Namespace) -> dict[str, Any]:
    _fill(directory, [("bench", options.messages)], options.size)
    processes, rest = divmod(options.replays, _CLIENTS_PER_PROCESS)
    clients = [_CLIENTS_PER_PROCESS] * processes + [rest] * (rest > 0)
    with Served(directory) as server:
        ((start, end),) = run_role(_replay, 1, server.url, 1, options.messages)
        one = options.messages / (end - start)
        resident_before = server.resident_bytes()
        times = run_roles([(_replay, (server.url, count, options.messages)) for count in clients])
        resident = server.resident_bytes()
    seconds = max(end for _, end in times) - min(start for start, _ in times)
    all_together = options.replays * options.messages / seconds
    return {
        "replays": options.replays,
        "one_messages_per_s": round(one),
        "all_messages_per_s": round(all_together),
        "ratio_to_one": round(all_together / one, 2),
        "resident_before_mb": round(resident_before / 1e6, 1),
        "resident_after_mb": round(resident / 1e6, 1),
    }


def bench_beside(directory: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Alternating, because the machine's other work changes both figures more than the replay does.
    The time that the server's threads waited for a processor shows the effect of that work."""
    size = 1024
    count = int(options.gigabytes * 1e9) // size
    _fill(directory, [("bench", count)], size)
    rounds = []
    for _ in range(options.rounds):
        # A server keeps the pages that it has read: only with a new one the journal comes from the
        # disk again.
        _forget_pages(directory)
        with Served(directory) as server, quire.Client(server.url, name="beside") as client:
            # Until it has filled its next segment, which takes the disk.
            _persisted_latencies_us(client, 5.0)
            rounds.append(_beside_round(server, client, count, options))
    return {
        "journal_gb": options.gigabytes,
        "rounds": rounds,
        "p50_ratio": statistics.median(round["p50_ratio"] for round in rounds),
        "p99_ratio": statistics.median(round["p99_ratio"] for round in rounds),
    }


def _beside_round(
    server: Served, client: quire.Client, count: int, options: argparse.Namespace
) -> dict[str, Any]:
    waited = [server.processor_wait_seconds()]
    start = time.monotonic()
    alone = _persisted_latencies_us(client, options.seconds)
    alone_seconds = time.monotonic() - start
    waited.append(server.processor_wait_seconds())
    started, ended = threading.Event(), threading.Event()

    def replay() -> None:
        run_roles([(_replay, (server.url, 1, count))], started=started.set)
        ended.set()

    thread = threading.Thread(target=replay)
    thread.start()
    started.wait(TIMEOUT)
    waited.append(server.processor_wait_seconds())
    start = time.monotonic()
    beside = _persisted_latencies_us(client, options.seconds, ended)
    beside_seconds = time.monotonic() - start
    waited.append(server.processor_wait_seconds())
    is_over = ended.is_set()
    thread.join()
    return {
        "replay_ended_within": is_over,
        "publishes_alone": len(alone),
        "publishes_beside": len(beside),
        "alone_p50_us": _quantile(alone, 50),
        "alone_p99_us": _quantile(alone, 99),
        "alone_processor_waits_per_s": round((waited[1] - waited[0]) / alone_seconds, 2),
        "beside_p50_us": _quantile(beside, 50),
        "beside_p99_us": _quantile(beside, 99),
        "beside_processor_waits_per_s": round((waited[3] - waited[2]) / beside_seconds, 2),
        "p50_ratio": round(_quantile(beside, 50) / _quantile(alone, 50), 2),
        "p99_ratio": round(_quantile(beside, 99) / _quantile(alone, 99), 2),
    }


def bench_rare(directory: Path, options: argparse.Namespace) -> dict[str, Any]:
    rounds = int(options.gigabytes * 1e9) // options.size // _TOPICS
    data = b"x" * options.size
    with quire.Journal(directory / "data" / "journal") as journal:
        for number in range(rounds):
            if number == rounds - rounds // 1000 - 1:
                journal.flush(TIMEOUT)
                late = time.time_ns()
            for topic in range(_TOPICS):
                journal.append(f"topic-{topic}", data, publisher="bench", message_type="binary")
    with Served(directory) as server:
        everything = _seconds(server.url, "^topic-", _ALL, rounds * _TOPICS)
        rare = _seconds(server.url, "topic-500", _ALL, rounds)
        late_count = (rounds // 1000 + 1) * _TOPICS
        by_time = _seconds(server.url, "^topic-", f"({_time(late)}:0|1|]", late_count)
    return {
        "journal_gb": options.gigabytes,
        "everything_seconds": round(everything, 3),
        "one_topic_seconds": round(rare, 3),
        "last_thousandth_seconds": round(by_time, 3),
        "one_topic_faster": round(everything / rare, 1),
        "last_thousandth_faster": round(everything / by_time, 1),
    }


def bench_compressed(directory: Path, options: argparse.Namespace) -> dict[str, Any]:
    record = {
        "symbol": "IBM",
        "side": "buy",
        "account": "A-17",
        "venue": "XNYS",
        "note": "as agreed by telephone",
    }
    count = int(options.gigabytes * 1e9) // 256
    with quire.Journal(directory / "data" / "journal") as journal:
        for number in range(count):
            journal.append("bench", {**record, "n": number, "price": number % 997 / 8}, publisher="bench")
    with Served(directory) as server:
        _seconds(server.url, "bench", _ALL, count)
        plain = _seconds(server.url, "bench", _ALL, count)
    with quire.Journal(directory / "data" / "journal") as journal:
        before = sum(segment.size for segment in journal.segments())
        journal.compress(age=0)
        after = sum(segment.size for segment in journal.segments())
    with Served(directory) as server:
        _seconds(server.url, "bench", _ALL, count)
        compressed = _seconds(server.url, "bench", _ALL, count)
    return {
        "messages": count,
        "size_ratio": round(after / before, 3),
        "plain_messages_per_s": round(count / plain),
        "compressed_messages_per_s": round(count / compressed),
        "rate_ratio": round(plain / compressed, 2),
    }


def bench_paced(directory: Path, options: argparse.Namespace) -> dict[str, Any]:
    figures = {}
    fastest = 50_000
    _fill(directory, [("bench", int(fastest * (options.seconds + 2)))], 256)
    with Served(directory) as server, quire.Client(server.url) as client:
        for rate in (1_000, fastest):
            count = int(rate * options.seconds)
            with client.subscribe("bench", bookmark=quire.EPOCH, rate=rate) as replay:
                batches = replay.batches(timeout=TIMEOUT)
                taken = len(next(batches))
                start, first = time.monotonic(), taken
                while taken < count:
                    taken += len(next(batches))
                seconds = time.monotonic() - start
            figures[f"{rate}_per_s"] = round((taken - first) / seconds, 1)
            figures[f"{rate}_off_percent"] = round(((taken - first) / seconds / rate - 1) * 100, 2)
    return figures


def bench_large(directory: Path, options: argparse.Namespace) -> dict[str, Any]:
    size = 16 * 1024
    figures = {}
    for name, gigabytes in (("small", 0.2), ("large", options.gigabytes)):
        path = directory / name
        count = int(gigabytes * 1e9) // size
        data = b"x" * size
        with quire.Journal(path, journal_size=options.journal_size) as journal:
            publisher = None
            for _ in range(count):
                publisher = journal.append("bench", data, publisher="bench", message_type="binary")
        assert publisher is not None
        identity = publisher.split("|")[0]
        wanted = [f"{identity}|{1 + number * (count - 1) // 999}|" for number in range(1000)]
        start = time.monotonic()
        with quire.Journal(path, journal_size=options.journal_size) as journal:
            figures[f"{name}_open_seconds"] = round(time.monotonic() - start, 3)
            figures[f"{name}_segments"] = len(journal.segments())
            for bookmark in wanted:
                journal.find(bookmark)
            times = []
            for bookmark in wanted:
                start_ns = time.monotonic_ns()
                assert journal.find(bookmark) is not None
                times.append((time.monotonic_ns() - start_ns) / 1e3)
            figures[f"{name}_find_us"] = round(statistics.median(times), 1)
    figures["find_ratio"] = round(figures["large_find_us"] / figures["small_find_us"], 2)
    return {"gigabytes": options.gigabytes, **figures}


def _fill(directory: Path, topics: list[tuple[str, int]], size: int) -> None:
    """Writes a journal for a server that is started afterwards."""
    data = b"x" * size
    with quire.Journal(directory / "data" / "journal") as journal:
        for topic, count in topics:
            for begin in range(0, count, 2000):
                items = [data] * min(2000, count - begin)
                journal.append_many(topic, items, publisher="bench", message_type="binary")


def _forget_pages(directory: Path) -> None:
    """Removes the journal from the page cache, except for mapped pages."""
    for path in (directory / "data" / "journal").glob("*.journal"):
        with _opened(path) as descriptor:
            os.fdatasync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _replay(results: Any, barrier: Barrier, url: str, clients: int, count: int) -> None:
    """This number of clients, each with a separate thread, replay everything."""

    def replay() -> None:
        with quire.Client(url) as client:
            taken = 0
            for batch in client.subscribe("bench", bookmark=quire.EPOCH).batches(timeout=TIMEOUT):
                taken += len(batch)
                if taken >= count:
                    break

    threads = [threading.Thread(target=replay) for _ in range(clients)]
    barrier.wait(TIMEOUT)
    start = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    results.put((start, time.monotonic()))


def _seconds(url: str, topic: str, bookmark: str, count: int) -> float:
    """How long a replay takes from the command to its last message, of which there must be `count`."""
    with quire.Client(url) as client:
        start = time.monotonic()
        taken = sum(len(batch) for batch in client.subscribe(topic, bookmark=bookmark).batches())
        seconds = time.monotonic() - start
    if taken != count:
        raise RuntimeError(f"{taken} messages came, {count} are there")
    return seconds


def _persisted_latencies_us(
    client: quire.Client, seconds: float, ended: threading.Event | None = None
) -> list[float]:
    """One publish after the other, each until it is persisted."""
    latencies = []
    end = time.monotonic() + seconds
    while time.monotonic() < end and not (ended is not None and ended.is_set()):
        start_ns = time.monotonic_ns()
        client.publish("beside", b"x" * 256)
        client.flush(TIMEOUT)
        latencies.append((time.monotonic_ns() - start_ns) / 1e3)
    return latencies


def _quantile(values: list[float], percent: int) -> float:
    return round(statistics.quantiles(values, n=100)[percent - 1], 1)


def _time(ns: int) -> str:
    """As a bookmark, to the microsecond."""
    seconds, rest = divmod(ns, 1_000_000_000)
    return f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime(seconds))}.{rest // 1000:06}Z"


if __name__ == "__main__":
    main()
