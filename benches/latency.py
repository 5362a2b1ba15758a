"""Latency and cost of single messages: server, publishers and consumers in processes of their own, on few processors.

    python benches/latency.py [--cpus 0,1] [--busy 1] [--seconds 5] [--only wait,confirm,queue] [--json]

A message's clock starts when it was due, so that a publisher which falls behind does not hide a wait. For each row the program prints
p50, p99 and p99.9 in microseconds, and for each message: the context switches, the processor time in microseconds, and the context
switches of each thread. `switches` counts the times that a thread slept and was woken; `preempted` counts the times that another thread
took its processor.

    wait       a client publishes, and waits until the message is persisted, before it publishes the next one
    confirm    a client publishes at a rate, and a second thread of it waits for each message to be persisted
    queue      two publishers at a rate together, and two handlers of a queue, which acknowledge

`--cpus` names the processors that everything runs on. `--busy` starts processes beside it that only compute. `disk` is what the disk
alone takes: a synced write of the same size, one at a time, to space that was written before.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import quire
from end_to_end import Served, bench_directory

TIMEOUT = 300.0
SIZE = 512
_SPAWN = multiprocessing.get_context("spawn")

#: A function that is called with a `Bench` and its arguments.
Role = tuple[Callable[..., None], tuple[Any, ...]]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--directory", type=Path, help="where the journal goes (a temporary directory)")
    parser.add_argument("--cpus", help="processors that everything runs on, such as 0 or 0,1 (all)")
    parser.add_argument("--busy", type=int, default=0, help="processes beside it that only compute")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each row")
    parser.add_argument("--only", default="wait,confirm,queue", help="kinds of rows")
    parser.add_argument("--rates", default="2000,5000,20000", help="messages a second")
    parser.add_argument("--durability", default="fsync", choices=["fsync", "os"])
    parser.add_argument("--json", action="store_true", help="print one JSON object for each row")
    options = parser.parse_args()
    if options.cpus is not None:
        os.sched_setaffinity(0, {int(cpu) for cpu in options.cpus.split(",")})
    kinds, rates = options.only.split(","), [int(rate) for rate in options.rates.split(",")]
    with bench_directory(options.directory) as directory, computing(options.busy):
        show(options, "disk", disk_alone(directory, options.seconds))
        for kind in kinds:
            for rate in [0] if kind == "wait" else rates:
                with Served(
                    directory / f"{kind}-{rate}", configured(directory, kind, rate, options)
                ) as server:
                    row = measure(server, roles_of(kind, server.url, rate, options.seconds))
                show(options, f"{kind} {rate}/s" if rate else kind, row)


def roles_of(kind: str, url: str, rate: int, seconds: float) -> list[Role]:
    if kind == "wait":
        return [(publish_and_wait, (url, seconds))]
    if kind == "confirm":
        return [(publish_and_confirm, (url, rate, int(rate * seconds)))]
    each = int(rate * seconds) // 2
    left = _SPAWN.Value("q", 2 * each)
    done = _SPAWN.Event()
    publishing: list[Role] = [(publish_at_rate, (url, rate / 2, each))] * 2
    return publishing + [(handle, (url, left, done))] * 2


def configured(directory: Path, kind: str, rate: int, options: argparse.Namespace) -> Path:
    (directory / f"{kind}-{rate}").mkdir()
    path = directory / f"{kind}-{rate}.toml"
    path.write_text(f"""
[transaction_log]
durability = "{options.durability}"

[[transaction_log.topic]]
name = "bench"
message_type = "binary"

[[transaction_log.topic]]
name = "warm"
message_type = "binary"

[[queue]]
name = "QUEUE"
message_type = "binary"
underlying_topic = "bench"
lease_period = "60s"
max_per_subscription_backlog = 100
""")
    return path


class Bench:
    """What a role says to the process that counts."""

    def __init__(self, results: Any, barrier: Barrier) -> None:
        self._results = results
        self._barrier = barrier

    def start(self) -> None:
        """Waits until all roles are ready, and their threads were counted."""
        self._barrier.wait(TIMEOUT)
        self._barrier.wait(TIMEOUT)

    def end(self, took: list[int]) -> None:
        """Reports latencies in ns, and waits until the threads were counted again."""
        self._results.put(took)
        self._barrier.wait(TIMEOUT)


def publish_and_wait(bench: Bench, url: str, seconds: float) -> None:
    took, data = [], b"x" * SIZE
    with quire.Client(url) as client:
        for _ in range(200):
            client.publish("bench", data)
            client.flush(timeout=TIMEOUT)
        bench.start()
        end = time.monotonic_ns() + int(seconds * 1e9)
        while (begun := time.monotonic_ns()) < end:
            client.publish("bench", data)
            client.flush(timeout=TIMEOUT)
            took.append(time.monotonic_ns() - begun)
        bench.end(took)


def publish_and_confirm(bench: Bench, url: str, rate: float, count: int) -> None:
    took: list[int] = []
    due_ns: list[int] = []
    confirmed, counted = threading.Event(), threading.Event()
    with quire.Client(url) as client:
        warm_up(client)
        first = client.publish("bench", b"x" * SIZE)
        assert first is not None

        def confirm() -> None:
            for number in range(count):
                while len(due_ns) <= number:
                    time.sleep(0.0001)
                client.wait_persisted(first + 1 + number, timeout=TIMEOUT)
                took.append(time.monotonic_ns() - due_ns[number])
            confirmed.set()
            # Its context switches are counted as long as it lives.
            counted.wait()

        bench.start()
        confirming = threading.Thread(target=confirm)
        begun = time.monotonic_ns()
        for number in range(count):
            due = begun + int(number / rate * 1e9)
            sleep_until(due)
            due_ns.append(due)
            client.publish("bench", b"x" * SIZE)
            if number == 0:
                confirming.start()
        confirmed.wait()
        bench.end(took)
        counted.set()


def publish_at_rate(bench: Bench, url: str, rate: float, count: int) -> None:
    padding = b"x" * (SIZE - 8)
    with quire.Client(url) as client:
        warm_up(client)
        bench.start()
        begun = time.monotonic_ns()
        for number in range(count):
            due = begun + int(number / rate * 1e9)
            sleep_until(due)
            client.publish("bench", due.to_bytes(8) + padding)
        bench.end([])


def handle(bench: Bench, url: str, left: Any, done: Any) -> None:
    took: list[int] = []

    def on_message(message: quire.Message) -> None:
        took.append(time.monotonic_ns() - int.from_bytes(message.data[:8]))
        message.ack()

    with quire.Client(url, ack_batch_size=80, ack_timeout="10ms") as client:
        client.subscribe("QUEUE", max_backlog=100, on_message=on_message)
        warm_up(client)
        bench.start()
        counted = 0
        while not done.wait(0.05):
            with left.get_lock():
                left.value -= len(took) - counted
                counted = len(took)
                if left.value <= 0:
                    done.set()
        bench.end(took)


def warm_up(client: quire.Client) -> None:
    for _ in range(50):
        client.publish("warm", b"x")
        client.flush(timeout=TIMEOUT)


def sleep_until(due_ns: int) -> None:
    while (left := due_ns - time.monotonic_ns()) > 0:
        time.sleep(left / 1e9)


def measure(server: Served, roles: list[Role]) -> dict[str, Any]:
    """Runs each role in a process, and counts what the threads of all of them and of the server did meanwhile."""
    results: Any = _SPAWN.SimpleQueue()
    barrier = _SPAWN.Barrier(len(roles) + 1)
    running = [
        _SPAWN.Process(target=role, args=(Bench(results, barrier), *arguments)) for role, arguments in roles
    ]
    for process in running:
        process.start()
    processes = {process.pid: "client" for process in running} | {server.pid: "server"}
    barrier.wait(TIMEOUT)
    before = count_all(processes)
    barrier.wait(TIMEOUT)
    took = [latency for _ in running for latency in results.get()]
    after = count_all(processes)
    barrier.wait(TIMEOUT)
    for process in running:
        process.join()
    after.subtract(before)
    return {"messages": len(took), **cuts(took), **per_message(after, len(took))}


def count_all(processes: dict[int | None, str]) -> Counter[tuple[str, str]]:
    """Context switches and processor time, by the process and thread, or by what it is."""
    counted: Counter[tuple[str, str]] = Counter()
    for pid, kind in processes.items():
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                status = (task / "status").read_text().splitlines()
                fields = dict(line.split(":\t", 1) for line in status if ":\t" in line)
                slept, preempted = (
                    int(fields[f"{which}_ctxt_switches"]) for which in ("voluntary", "nonvoluntary")
                )
                name = "main" if task.name == str(pid) else fields["Name"]
                counted["switches", kind] += slept
                counted["preempted", kind] += preempted
                counted["thread", f"{kind} {name}"] += slept
                counted["cpu_us", kind] += int((task / "schedstat").read_text().split()[0]) // 1000
    return counted


def per_message(counted: Counter[tuple[str, str]], count: int) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    for what in ("switches", "preempted", "cpu_us"):
        for kind in ("server", "client"):
            figures[f"{kind}_{what}"] = round(counted[what, kind] / count, 2)
    threads = {name: number / count for (what, name), number in counted.items() if what == "thread"}
    figures["threads"] = {name: round(number, 2) for name, number in threads.items() if number >= 0.05}
    return figures


def cuts(took: list[int]) -> dict[str, float]:
    quantiles = statistics.quantiles(took, n=1000)
    return {name: round(quantiles[at] / 1e3) for name, at in (("p50", 499), ("p99", 989), ("p999", 998))}


def disk_alone(directory: Path, seconds: float) -> dict[str, Any]:
    path = directory / "disk"
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY)
    took, data = [], b"x" * SIZE
    try:
        os.pwrite(descriptor, bytes(8 << 20), 0)
        os.fsync(descriptor)
        end = time.monotonic() + min(seconds, 2)
        while time.monotonic() < end:
            begun = time.monotonic_ns()
            os.pwrite(descriptor, data, len(took) * SIZE % (8 << 20))
            os.fdatasync(descriptor)
            took.append(time.monotonic_ns() - begun)
    finally:
        os.close(descriptor)
        path.unlink()
    return {"messages": len(took), **cuts(took)}


@contextlib.contextmanager
def computing(count: int) -> Iterator[None]:
    """Processes that only compute."""
    processes = [_SPAWN.Process(target=compute, daemon=True) for _ in range(count)]
    for process in processes:
        process.start()
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.join()


def compute() -> None:
    parent = os.getppid()
    while os.getppid() == parent:
        for _ in range(1_000_000):
            pass


def show(options: argparse.Namespace, row: str, figures: dict[str, Any]) -> None:
    if options.json:
        print(json.dumps({"row": row, **figures}), flush=True)
        return
    threads = figures.pop("threads", {})
    print(f"{row:16}", "  ".join(f"{name} {figure:,}" for name, figure in figures.items()), flush=True)
    if threads:
        print(" " * 16, "  ".join(f"{name} {figure}" for name, figure in sorted(threads.items())), flush=True)


if __name__ == "__main__":
    main()
