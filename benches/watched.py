"""What it costs a server to collect statistics, and to show them.

    python benches/watched.py latency [--rate 2000] [--seconds 10] [--rounds 5] [--tabs 20]
    python benches/watched.py throughput [--messages 1000000] [--rounds 7]
    python benches/watched.py month [--queues 20] [--interval 60]

    latency     a client publishes at a rate until its messages are persisted. Rows: a server without `[admin]`, one
                with statistics, and the same while the console is open in tabs and `/metrics` is read every second
    throughput  a client publishes as fast as it can, without `[admin]`, with statistics, and with statistics and a
                reader of `/metrics`
    month       30 days of samples of a server with queues are written, with the times of such days: the size of the
                file, the memory of the writer, and the time of a sample

The rows take turns, so that what else the machine does falls on all. The ratios are medians of
those of the rounds. A tab sends the requests of the overview at its intervals. The tabs get only
the time that nothing else wants, because browsers are on other machines.
"""

from __future__ import annotations

import argparse
import http.client
import json
import multiprocessing
import os
import resource
import statistics
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import saved
from end_to_end import TIMEOUT, Served, publish_all, run_roles
from latency import measure, publish_and_confirm

_SPAWN = multiprocessing.get_context("spawn")
_INSTANCE = "/quire/instance"
#: What the overview of the console asks for. It asks for nodes of one interval together.
_FIGURES = (
    "messages.json",
    "queues.json?sort=-depth&limit=5",
    "clients.json?sort=-backlog_bytes&limit=5",
    "replication/destinations.json",
    "journal.json",
    "loop.json",
    "memory.json",
    "uptime_s.json",
)
_HISTORIES = (
    "messages/published_per_s",
    "messages/delivered_per_s",
    "messages/received_bytes_per_s",
    "messages/sent_bytes_per_s",
    "journal/sync_p50_s",
    "journal/sync_p99_s",
    "loop/delay_p50_s",
    "loop/delay_p99_s",
    "memory/resident_bytes",
)


def _several(paths: Iterable[str]) -> str:
    return f"/console/api/several?{urlencode([('get', path) for path in paths])}"


#: The requests of a tab, with the seconds between two of them.
_TAB: tuple[tuple[str, float], ...] = (
    (_several(f"{_INSTANCE}/{path}" for path in _FIGURES), 2.0),
    (_several(["/readyz", *(f"{_INSTANCE}/{path}.json?t0=-15m&points=600" for path in _HISTORIES)]), 5.0),
    (_several(["/quire/host/filesystems.json"]), 10.0),
)
_DAY = 86400


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    saved.add_option(parser)
    benches = parser.add_subparsers(required=True)

    latency = benches.add_parser("latency")
    latency.add_argument("--rate", type=int, default=2000, help="messages a second")
    latency.add_argument("--seconds", type=float, default=10.0, help="of each row")
    latency.add_argument("--rounds", type=int, default=5)
    latency.add_argument("--tabs", type=int, default=20)
    latency.set_defaults(bench=bench_latency)

    throughput = benches.add_parser("throughput")
    throughput.add_argument("--messages", type=int, default=1_000_000, help="of each row")
    throughput.add_argument("--rounds", type=int, default=7)
    throughput.set_defaults(bench=bench_throughput)

    month = benches.add_parser("month")
    month.add_argument("--queues", type=int, default=20)
    month.add_argument("--interval", type=float, default=60.0, help="seconds between two samples")
    month.set_defaults(bench=bench_month)

    options = parser.parse_args()
    rows = options.bench(options)
    print(json.dumps(rows, indent=2))
    saved.save(options.save, rows)


@contextmanager
def _servers() -> Iterator[tuple[Served, Served]]:
    """One without `[admin]`, and one with it."""
    with tempfile.TemporaryDirectory(prefix="quire-bench-") as name, ExitStack() as stack:
        places = [Path(name) / "plain", Path(name) / "observed"]
        for place in places:
            place.mkdir()
        config = places[1] / "quire.toml"
        config.write_text('[admin]\naddress = "127.0.0.1:0"\n')
        plain, observed = Served(places[0]), Served(places[1], config)
        yield stack.enter_context(plain), stack.enter_context(observed)


def bench_latency(options: argparse.Namespace) -> dict[str, Any]:
    rounds: dict[str, list[dict[str, Any]]] = {"no statistics": [], "statistics": [], "watched": []}
    answered = 0
    with _servers() as (plain, observed):
        for _ in range(options.rounds):
            for row, into in rounds.items():
                server = plain if row == "no statistics" else observed
                role = (publish_and_confirm, (server.url, options.rate, int(options.rate * options.seconds)))
                with _watching(
                    observed, options.tabs if row == "watched" else 0, scrapes=row == "watched"
                ) as done:
                    into.append(measure(lambda pid=server.pid: [pid], [role]))  # type: ignore[misc]
                    answered += done.value
    rows = _with_ratios(rounds, ("p50", "p99"), base="statistics")
    rows["watched"]["requests_per_s"] = round(answered / options.rounds / options.seconds)
    return rows


def bench_throughput(options: argparse.Namespace) -> dict[str, Any]:
    rounds: dict[str, list[dict[str, Any]]] = {"no statistics": [], "statistics": [], "scraped": []}
    with _servers() as (plain, observed):
        for _ in range(options.rounds):
            for row, into in rounds.items():
                server = plain if row == "no statistics" else observed
                with _watching(observed, 0, scrapes=row == "scraped"):
                    times = run_roles([(publish_all, (server.url, options.messages, 512))])
                into.append({"per_s": options.messages / (times[0][1] - times[0][0])})
    return _with_ratios(rounds, ("per_s",), base="no statistics")


def bench_month(options: argparse.Namespace) -> dict[str, Any]:
    """The figures of each queue change in each sample. The file has its default limits."""
    from quire.admin._metrics import NODES
    from quire.admin._statistics import Store

    nodes = {node.path: node for node in NODES}
    single = [node for node in NODES if node.id is None]
    took: list[float] = []
    sizes: list[int] = []
    memory: list[int] = []
    limit = 64 << 20
    with tempfile.TemporaryDirectory(prefix="quire-bench-") as name:
        store = Store(Path(name) / "statistics.db", max_size=limit, retention=30 * _DAY, version="bench")
        count = int(30 * _DAY / options.interval)
        for number in range(count):
            tree: dict[str, Any] = {
                node.path: {metric.name: number for metric in node.metrics} for node in single
            }
            figures = {metric.name: number for metric in nodes["instance/queues"].metrics}
            tree["instance/queues"] = {f"queue-{at}": figures for at in range(options.queues)}
            begun = time.perf_counter()
            store.write(1_800_000_000 + number * options.interval, tree)
            took.append(time.perf_counter() - begun)
            if number % (count // 30) == 0:
                sizes.append(store.size)
                memory.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10)
        store.close(1_800_000_000 + count * options.interval)
    return {
        f"a month, {options.queues} queues": {
            "samples": count,
            "limit_mb": limit >> 20,
            "largest_file_mb": round(max(sizes) / 2**20, 1),
            "memory_after_10_days_mb": round(memory[len(memory) // 3] / 2**20, 1),
            "memory_at_end_mb": round(memory[-1] / 2**20, 1),
            "sample_p50_ms": round(statistics.median(took) * 1e3, 2),
            "sample_p99_ms": round(statistics.quantiles(took, n=100)[98] * 1e3, 2),
        }
    }


def _with_ratios(
    rounds: dict[str, list[dict[str, Any]]], names: tuple[str, ...], *, base: str
) -> dict[str, Any]:
    rows: dict[str, Any] = {}
    for row, measured in rounds.items():
        figures: dict[str, float] = {}
        for name in names:
            unit = "_us" if name != "per_s" else ""
            figures[f"{name}{unit}"] = round(statistics.median(each[name] for each in measured))
            if row != base:
                pairs = zip(measured, rounds[base], strict=True)
                figures[f"{name}_to_{base.replace(' ', '_')}"] = round(
                    statistics.median(own[name] / other[name] for own, other in pairs), 3
                )
        rows[row] = figures
    return rows


@contextmanager
def _watching(server: Served, tabs: int, *, scrapes: bool) -> Iterator[Any]:
    """Keeps the console open in tabs and reads `/metrics` every second, in another process. Without
    both, does nothing. Gives the number of answers."""
    done = _SPAWN.Value("q", 0)
    if tabs == 0 and not scrapes:
        yield done
        return
    process = _SPAWN.Process(target=_watch, args=(server.admin_url, tabs, scrapes, done))
    process.start()
    while done.value == 0:
        time.sleep(0.01)
    try:
        yield done
    finally:
        process.terminate()
        process.join(TIMEOUT)


def _watch(url: str, tabs: int, scrapes: bool, done: Any) -> None:
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    requests = [_TAB] * tabs + [(("/metrics", 1.0),)] * scrapes
    threads = [
        threading.Thread(target=_open_tab, args=(url, paths, number / max(len(requests), 1), done))
        for number, paths in enumerate(requests)
    ]
    for thread in threads:
        thread.start()


def _open_tab(url: str, paths: tuple[tuple[str, float], ...], delay: float, done: Any) -> None:
    """Sends each request at its interval. Tabs that are open for long are not in step: each begins
    after its own delay."""
    time.sleep(delay)
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=TIMEOUT)
    due = [(time.monotonic(), path, interval) for path, interval in paths]
    while True:
        due.sort()
        at, path, interval = due[0]
        time.sleep(max(at - time.monotonic(), 0))
        connection.request("GET", path)
        answer = connection.getresponse()
        answer.read()
        if answer.status not in (200, 404):
            raise RuntimeError(f"{path}: {answer.status}")
        with done.get_lock():
            done.value += 1
        due[0] = (max(at + interval, time.monotonic()), path, interval)


if __name__ == "__main__":
    main()
