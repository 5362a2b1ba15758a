"""Latency and cost of single messages: server, publishers and consumers in processes of their own,
on few processors.

    python benches/latency.py [--cpus 0,1] [--busy 1] [--seconds 5] [--only wait,confirm,queue,flow,settle] [--json]
    python benches/latency.py --engine quire --engine redis --engine postgresql [--rounds 3]

A message's clock starts when it was due, so that a publisher which falls behind does not hide a
wait. For each row the program prints p50, p99 and p99.9 in microseconds, and for each message: the
context switches, the processor time in microseconds, and the context switches of each thread.
`switches` counts the times that a thread slept and was woken; `preempted` counts the times that
another thread took its processor. `stolen_ms` is how long the host of a virtual machine kept
processors that had work, over the whole row.

    wait       a client publishes, and waits until the message is persisted, before it publishes the next one
    confirm    a client publishes at a rate, and waits between the publishes until its messages are persisted
    queue      two publishers at a rate together, and two handlers of a queue, which acknowledge
    flow       publishers and consumers of a queue as fast as they can: 1 and 1, and 4 and 4 processes (messages/s)
    settle     1 and 4 consumers of a filled queue, which wait until the acknowledgements of 100 messages are durable,
               before they take the next messages (messages/s)

With `--engine` the engines do each row in turn, so that other work on the machine affects all of
them. `--rounds` repeats a row, and the program prints the median of each figure. `bytes` is what
the disk wrote for each byte of the messages.

`--cpus` names the processors that everything runs on. `--busy` starts processes beside it that only
compute. `disk` is what the disk alone takes: a synced write of the same size, one at a time, to
space that was written before. `--engine bare` is a server that does nothing but these steps
(`bare_server.py`): what the machine takes for a row without any engine.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import TYPE_CHECKING, Any, Union

import quire
import saved
from end_to_end import Served, bench_directory, consume_all, publish_all, run_roles

if TYPE_CHECKING:
    from latency_peers import Peer

TIMEOUT = 300.0
SIZE = 512
_SPAWN = multiprocessing.get_context("spawn")

#: A function that is called with a `Bench` and its arguments.
Role = tuple[Callable[..., None], tuple[Any, ...]]

#: The URL of a server of quire, or another engine whose server was started.
Target = Union[str, "Peer"]


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
    parser.add_argument("--messages", type=int, default=400_000, help="of each round of flow and settle")
    parser.add_argument("--durability", default="fsync", choices=["fsync", "os"])
    parser.add_argument("--engine", action="append", choices=["quire", "redis", "postgresql", "bare"])
    parser.add_argument(
        "--rounds", type=int, default=1, help="of each row; the median of each figure is printed"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object for each row")
    saved.add_option(parser)
    options = parser.parse_args()
    if options.cpus is not None:
        os.sched_setaffinity(0, {int(cpu) for cpu in options.cpus.split(",")})
    kinds, rates = options.only.split(","), [int(rate) for rate in options.rates.split(",")]
    rows: dict[str, dict[str, Any]] = {}
    with bench_directory(options.directory) as directory, computing(options.busy):
        disk = disk_alone(directory, options.seconds)
        rows["disk alone"] = {"disk": f"p50 {disk['p50']} µs, p99 {disk['p99']} µs"}
        show(options, "disk", disk)
        for kind in kinds:
            for rate in {"wait": [0], "flow": [1, 4], "settle": [1, 4]}.get(kind, rates):
                row = kind if kind == "wait" else f"{kind} {rate}" + "/s" * (kind in ("confirm", "queue"))
                measured: dict[str, list[dict[str, Any]]] = {}
                for _ in range(options.rounds):
                    for engine in options.engine or ["quire"]:
                        figures = measure_row(directory, engine, kind, rate, options)
                        measured.setdefault(engine, []).append(figures)
                for engine, rounds in measured.items():
                    figures = median_of(rounds)
                    for name in ("p50", "p99", "per_s"):
                        if name in figures:
                            unit = "messages/s" if name == "per_s" else f"{name} in µs"
                            rows.setdefault(f"{row}, {unit}", {})[engine] = figures[name]
                    show(options, row if engine == "quire" else f"{row} {engine}", figures)
    saved.save(options.save, rows)


def measure_row(
    directory: Path, engine: str, kind: str, rate: int, options: argparse.Namespace
) -> dict[str, Any]:
    """One row of one engine, with a server that is started for it. `rate`: messages a second, or
    processes."""
    place = Path(tempfile.mkdtemp(prefix=f"{engine}-{kind}-", dir=directory))
    with contextlib.ExitStack() as stack:
        target: Target
        if engine == "quire":
            server = stack.enter_context(Served(place, configured(place, options)))
            target, pids = server.url, lambda: [server.pid]
        else:
            from latency_peers import PEERS
            from peers.engine import Durability

            # The account of PostgreSQL has to reach its files.
            directory.chmod(0o711)
            target = PEERS[engine](Durability.SYNCED if options.durability == "fsync" else Durability.OS)
            pids = stack.enter_context(target.serving(place)).processes
        if kind in ("flow", "settle"):
            return throughput(target, kind, rate, options.messages)
        return measure(pids, roles_of(kind, target, rate, options.seconds))


def roles_of(kind: str, target: Target, rate: int, seconds: float) -> list[Role]:
    is_quire = isinstance(target, str)
    if kind == "wait":
        return [(publish_and_wait if is_quire else send_and_wait, (target, seconds))]
    if kind == "confirm":
        return [(publish_and_confirm if is_quire else send_at_rate, (target, rate, int(rate * seconds)))]
    each = int(rate * seconds) // 2
    left = _SPAWN.Value("q", 2 * each)
    done = _SPAWN.Event()
    publishing = publish_at_rate if is_quire else send_unreported
    publishers: list[Role] = [(publishing, (target, rate / 2, each))] * 2
    return publishers + [(handle if is_quire else take_and_settle, (target, left, done))] * 2


def throughput(target: Target, kind: str, processes: int, messages: int) -> dict[str, Any]:
    """Messages a second of `flow` and `settle`, and the bytes that the disk wrote for each byte of
    the messages."""
    is_quire = isinstance(target, str)
    publishing, consuming = (publish_all, consume_all) if is_quire else (send_all, take_all)
    count = messages // processes * processes
    left = _SPAWN.Value("q", count)
    publishers = [(publishing, (target, messages // processes, SIZE))] * processes
    consumers = [(consuming, (target, left, kind == "settle"))] * processes
    written = written_bytes()
    if kind == "settle":
        run_roles(publishers)
        results = run_roles(consumers)
    else:
        results = run_roles(publishers + consumers)
    seconds = max(end for _, end in results) - min(start for start, _ in results)
    os.sync()
    return {
        "per_s": round(count / seconds),
        "bytes": round((written_bytes() - written) / (count * SIZE), 2),
    }


def written_bytes() -> int:
    """The bytes that all disks of the machine have written."""
    disks = (line.split() for line in Path("/proc/diskstats").read_text().splitlines())
    return sum(int(fields[9]) * 512 for fields in disks if Path("/sys/block", fields[2]).exists())


def median_of(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    numbers = {
        name: statistics.median(figures[name] for figures in rounds)
        for name in rounds[0]
        if name != "threads"
    }
    return numbers | {name: value for name, value in rounds[-1].items() if name == "threads"}


def configured(directory: Path, options: argparse.Namespace) -> Path:
    path = directory / "quire.toml"
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
    """The reports of a role to the process that counts."""

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
    with quire.Client(url) as client:
        warm_up(client)
        first = client.publish("bench", b"x" * SIZE)
        assert first is not None
        client.flush(timeout=TIMEOUT)
        bench.start()
        begun = time.monotonic_ns()
        published = 0
        while (confirmed := len(took)) < count:
            now = time.monotonic_ns()
            if published < count and (due := begun + int(published / rate * 1e9)) <= now:
                client.publish("bench", b"x" * SIZE)
                published += 1
            elif confirmed == published:
                sleep_until(due)
            else:
                left = (due - now) / 1e9 if published < count else TIMEOUT
                with contextlib.suppress(TimeoutError):
                    client.wait_persisted(first + 1 + confirmed, timeout=left)
                    took.append(time.monotonic_ns() - begun - int(confirmed / rate * 1e9))
        bench.end(took)


def send_and_wait(bench: Bench, peer: Peer, seconds: float) -> None:
    took, data = [], [b"x" * SIZE]
    with peer.session() as session:
        for _ in range(200):
            session.send(data)
        bench.start()
        end = time.monotonic_ns() + int(seconds * 1e9)
        while (begun := time.monotonic_ns()) < end:
            session.send(data)
            took.append(time.monotonic_ns() - begun)
        bench.end(took)


def send_unreported(bench: Bench, peer: Peer, rate: float, count: int) -> None:
    send_at_rate(bench, peer, rate, count, reports=False)


def send_at_rate(bench: Bench, peer: Peer, rate: float, count: int, *, reports: bool = True) -> None:
    """Sends what is due together, and waits until it is synced."""
    took: list[int] = []
    padding = b"x" * (SIZE - 8)
    with peer.session() as session:
        for _ in range(50 * reports):
            session.send([b"x" * SIZE])
        bench.start()
        begun = time.monotonic_ns()
        dues = [begun + int(number / rate * 1e9) for number in range(count)]
        sent = 0
        while sent < count:
            sleep_until(dues[sent])
            now = time.monotonic_ns()
            end = sent
            while end < count and dues[end] <= now:
                end += 1
            session.send([due.to_bytes(8) + padding for due in dues[sent:end]])
            now = time.monotonic_ns()
            took += [now - due for due in dues[sent:end]]
            sent = end
        bench.end(took if reports else [])


def take_and_settle(bench: Bench, peer: Peer, left: Any, done: Any) -> None:
    took: list[int] = []
    with peer.session() as session:
        session.take(1, 0.01)
        session.settle()
        bench.start()
        while not done.is_set():
            found = session.take(100, 0.05)
            for data in found:
                took.append(time.monotonic_ns() - int.from_bytes(data[:8]))
            session.settle()
            with left.get_lock():
                left.value -= len(found)
                if left.value <= 0:
                    done.set()
        bench.end(took)


def send_all(results: Any, barrier: Barrier, peer: Peer, count: int, size: int) -> None:
    with peer.session() as session:
        barrier.wait(TIMEOUT)
        start = time.monotonic()
        for sent in range(0, count, 500):
            session.send([b"x" * size] * min(500, count - sent))
        results.put((start, time.monotonic()))


def take_all(results: Any, barrier: Barrier, peer: Peer, left: Any, waits: bool) -> None:
    """Every acknowledgement of the peers is waited for. `waits`: batches are as large as those of quire."""
    with peer.session() as session:
        barrier.wait(TIMEOUT)
        start = time.monotonic()
        while left.value > 0:
            found = session.take(100 if waits else 500, 0.05)
            session.settle()
            with left.get_lock():
                left.value -= len(found)
        results.put((start, time.monotonic()))


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


def measure(server: Callable[[], list[int]], roles: list[Role]) -> dict[str, Any]:
    """Runs each role in a process, and counts what the threads of all of them and of the server did
    meanwhile."""
    results: Any = _SPAWN.SimpleQueue()
    barrier = _SPAWN.Barrier(len(roles) + 1)
    running = [
        _SPAWN.Process(target=role, args=(Bench(results, barrier), *arguments)) for role, arguments in roles
    ]
    for process in running:
        process.start()
    barrier.wait(TIMEOUT)
    processes = {process.pid: "client" for process in running} | dict.fromkeys(server(), "server")
    before, stolen_before = count_all(processes), stolen_ms()
    barrier.wait(TIMEOUT)
    took = [latency for _ in running for latency in results.get()]
    after, stolen = count_all(processes), stolen_ms() - stolen_before
    barrier.wait(TIMEOUT)
    for process in running:
        process.join()
    after.subtract(before)
    return {"messages": len(took), **cuts(took), **per_message(after, len(took)), "stolen_ms": stolen}


def stolen_ms() -> int:
    """How long processors with work did not run, because the host ran something else, over all processors."""
    fields = Path("/proc/stat").read_text().split(maxsplit=9)
    return int(fields[8]) * 1000 // os.sysconf("SC_CLK_TCK")


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
