"""End-to-end figures: server, publishers and consumers in processes of their own, over loopback.

    python benches/end_to_end.py publish [--processes 1] [--messages 2000000] [--size 512]
    python benches/end_to_end.py replay [--messages 5000000] [--size 256] [--rounds 3]
    python benches/end_to_end.py latency [--rate 5000] [--seconds 10]
    python benches/end_to_end.py slow-reader [--gigabytes 5]
    python benches/end_to_end.py queue [--publishers 1] [--consumers 1] [--messages 2000000] [--size 512] [--record-leases]
    python benches/end_to_end.py queue-latency [--rate 2000] [--seconds 10] [--record-leases]

Each prints one JSON object. `--save NAME`, before the name of the bench, also writes it to a result
file. Where hardware sets a bound, it is measured in the same run and the figure is given as a ratio
to it too: rates on a shared machine mean little on their own. The journal is below `--directory` (a
temporary directory otherwise), synced.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import quire
import saved
from recorded import Recorded

TIMEOUT = 600.0
_SPAWN = multiprocessing.get_context("spawn")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--directory", type=Path, help="where the journal goes (a temporary directory)")
    saved.add_option(parser)
    benches = parser.add_subparsers(required=True)

    publish = benches.add_parser("publish", help="publish to persisted")
    publish.add_argument("--processes", type=int, default=1)
    publish.add_argument("--messages", type=int, default=2_000_000, help="of each process")
    publish.add_argument("--size", type=int, default=512, help="bytes of a message")
    publish.set_defaults(bench=bench_publish, row="processes: {processes}, {size} B")

    replay = benches.add_parser("replay", help="replay to one client with batches()")
    replay.add_argument("--messages", type=int, default=5_000_000)
    replay.add_argument("--size", type=int, default=256)
    replay.add_argument("--rounds", type=int, default=3, help="with and without the server, by turns")
    replay.set_defaults(bench=bench_replay, row="{messages:,} messages of {size} B")

    latency = benches.add_parser("latency", help="publish to subscriber, at a steady rate")
    latency.add_argument("--rate", type=int, default=5_000, help="messages a second")
    latency.add_argument("--seconds", type=int, default=10)
    latency.set_defaults(bench=bench_latency, row="{rate:,}/s")

    slow = benches.add_parser("slow-reader", help="memory of a server that replays to a reader that is slow")
    slow.add_argument("--gigabytes", type=float, default=5.0, help="size of the journal")
    slow.set_defaults(bench=bench_slow_reader, row="{gigabytes:g} GB")

    queue = benches.add_parser("queue", help="publish to acknowledged, through a queue")
    queue.add_argument("--publishers", type=int, default=1)
    queue.add_argument("--consumers", type=int, default=1)
    queue.add_argument("--messages", type=int, default=2_000_000, help="of all publishers")
    queue.add_argument("--size", type=int, default=512, help="bytes of a message")
    queue.set_defaults(bench=bench_queue, row="publishers: {publishers}, consumers: {consumers}, {size} B")

    queue_latency = benches.add_parser("queue-latency", help="publish to consumer, at a steady rate")
    queue_latency.add_argument("--rate", type=int, default=2_000, help="messages a second")
    queue_latency.add_argument("--seconds", type=int, default=10)
    queue_latency.set_defaults(
        bench=bench_queue_latency, row="queue, {rate:,}/s, leases recorded: {record_leases}"
    )
    for parser_of_queues in (queue, queue_latency):
        parser_of_queues.add_argument(
            "--record-leases", action="store_true", help="the journal says who held what"
        )

    options = parser.parse_args()
    with bench_directory(options.directory) as directory:
        figures = options.bench(directory, options)
    print(json.dumps(figures, indent=2))
    saved.save(options.save, saved.rows_of(options.row.format(**vars(options)), figures))


def bench_publish(directory: Path, options: argparse.Namespace) -> dict[str, Any]:
    count = options.processes * options.messages
    with Served(directory) as server:
        results = run_role(publish_all, options.processes, server.url, options.messages, options.size)
    # From the first publish anywhere to the last flush anywhere.
    seconds = max(end for _, end in results) - min(start for start, _ in results)
    disk = _synced_write_rate(directory, min(count * options.size, 1 << 30))
    return {
        "messages_per_s": round(count / seconds),
        "mb_per_s": round(count * options.size / seconds / 1e6),
        "disk_mb_per_s": round(disk / 1e6),
        "ratio_to_disk": round(count * options.size / seconds / disk, 3),
        "seconds": round(seconds, 2),
    }


def bench_replay(directory: Path, options: argparse.Namespace) -> dict[str, Any]:
    """To one client, alternating with the same bytes from a sender that has them ready, and with a
    socket that is only read."""
    recorded = Recorded(directory / "recorded")
    seconds, prepared = [], []
    with Served(directory) as server:
        run_role(publish_all, 1, server.url, options.messages, options.size)
        with recorded.recording(server.url) as url:
            run_role(_replay, 1, url, options.messages)
        for _ in range(options.rounds):
            seconds.append(_time_replay(server.url, options.messages))
            with recorded.sending() as url:
                prepared.append(_time_replay(url, options.messages))
    median, prepared_median = statistics.median(seconds), statistics.median(prepared)
    loopback = _loopback_rate(options.messages * options.size)
    return {
        "messages_per_s": round(options.messages / median),
        "mb_per_s": round(options.messages * options.size / median / 1e6),
        "prepared_messages_per_s": round(options.messages / prepared_median),
        "ratio_to_prepared": round(prepared_median / median, 3),
        "loopback_mb_per_s": round(loopback / 1e6),
        "ratio_to_loopback": round(options.messages * options.size / median / loopback, 3),
        "seconds": [round(each, 2) for each in seconds],
        "prepared_seconds": [round(each, 2) for each in prepared],
    }


def _time_replay(url: str, count: int) -> float:
    ((start, end),) = run_role(_replay, 1, url, count)
    return end - start


def bench_latency(directory: Path, options: argparse.Namespace) -> dict[str, Any]:
    count = options.rate * options.seconds
    figures = {}
    with Served(directory) as server:
        for kind, bookmark in (("live", None), ("persisted", quire.NOW)):
            barrier, results = _SPAWN.Barrier(2), _SPAWN.SimpleQueue()
            topic = f"ticks/{kind}"
            process = _SPAWN.Process(
                target=_receive, args=(results, barrier, server.url, topic, bookmark, count)
            )
            process.start()
            with quire.Client(server.url) as client:
                barrier.wait(TIMEOUT)
                _publish_paced(client, topic, options.rate, count)
                latencies_ns = results.get()
            process.join()
            cuts = statistics.quantiles(latencies_ns, n=1000)
            figures[kind] = {
                "p50_us": round(cuts[499] / 1e3, 1),
                "p99_us": round(cuts[989] / 1e3, 1),
                "p999_us": round(cuts[998] / 1e3, 1),
            }
    return {"rate_per_s": options.rate, **figures}


def bench_slow_reader(directory: Path, options: argparse.Namespace) -> dict[str, Any]:
    """A reader takes a message now and then; the server's memory is watched all the time."""
    size = 16 * 1024
    count = int(options.gigabytes * 1e9) // size
    with Served(directory) as server:
        run_role(publish_all, 1, server.url, count, size)
        resident_before = server.resident_bytes()
        peak = 0
        with quire.Client(server.url, receive_size_max="1MB") as client:
            subscription = client.subscribe("bench", bookmark=quire.EPOCH)
            end = time.monotonic() + 20
            taken = 0
            while time.monotonic() < end:
                taken += len(next(subscription.batches(64, timeout=TIMEOUT)))
                time.sleep(0.01)
                peak = max(peak, server.resident_bytes())
    return {
        "journal_gb": options.gigabytes,
        "messages_taken": taken,
        "messages": count,
        "resident_before_mb": round(resident_before / 1e6, 1),
        "resident_peak_mb": round(peak / 1e6, 1),
    }


def bench_queue(directory: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Publishers and consumers at the same time; acknowledgements in batches of 80, a backlog of
    100, proportional."""
    each = options.messages // options.publishers
    count = each * options.publishers
    with Served(directory, _queue_config(directory, options)) as server:
        left = _SPAWN.Value("q", count)
        roles = [(publish_all, (server.url, each, options.size))] * options.publishers
        roles += [(consume_all, (server.url, left))] * options.consumers
        results = run_roles(roles)
        with quire.Client(server.url) as client:
            figures = client.queue_stats("QUEUE")["QUEUE"]
    if figures["depth"] or figures["acknowledged"] != count:
        raise RuntimeError(f"{count} messages were published, and the queue says {figures}")
    seconds = max(end for _, end in results) - min(start for start, _ in results)
    return {
        "publishers": options.publishers,
        "consumers": options.consumers,
        "messages_per_s": round(count / seconds),
        "redelivered": figures["delivered"] - count,
        "seconds": round(seconds, 2),
    }


def bench_queue_latency(directory: Path, options: argparse.Namespace) -> dict[str, Any]:
    count = options.rate * options.seconds
    with Served(directory, _queue_config(directory, options)) as server:
        barrier, results = _SPAWN.Barrier(2), _SPAWN.SimpleQueue()
        process = _SPAWN.Process(target=_consume_timed, args=(results, barrier, server.url, count))
        process.start()
        with quire.Client(server.url) as client:
            barrier.wait(TIMEOUT)
            _publish_paced(client, "bench", options.rate, count)
            latencies_ns = results.get()
        process.join()
    cuts = statistics.quantiles(latencies_ns, n=1000)
    return {
        "rate_per_s": options.rate,
        "p50_us": round(cuts[499] / 1e3, 1),
        "p99_us": round(cuts[989] / 1e3, 1),
        "p999_us": round(cuts[998] / 1e3, 1),
    }


def _queue_config(directory: Path, options: argparse.Namespace) -> Path:
    path = directory / "queue.toml"
    path.write_text(
        f"""
        [[transaction_log.topic]]
        name = "bench"
        message_type = "binary"

        [[queue]]
        name = "QUEUE"
        message_type = "binary"
        underlying_topic = "bench"
        fairness_model = "proportional"
        lease_period = "60s"
        max_per_subscription_backlog = 100
        record_leases = {str(options.record_leases).lower()}
        """
    )
    return path


class Served:
    """A `quire serve` process on a journal below `directory`, with a configuration file or without.
    Its log is next to it."""

    def __init__(self, directory: Path, config: Path | None = None) -> None:
        self._directory = directory
        self._config = [] if config is None else [str(config)]

    def __enter__(self) -> Served:
        command = [
            sys.executable,
            "-m",
            "quire",
            "serve",
            *self._config,
            "--json",
            "--address",
            "127.0.0.1:0",
        ]
        command += ["--data-directory", str(self._directory / "data")]
        with (self._directory / "server.log").open("wb") as log:
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self._process.stdout is not None
        self.pid = self._process.pid
        told = json.loads(self._process.stdout.readline())
        self.url: str = told["url"]
        #: `None`: no HTTP server.
        self.admin_url: str | None = told["admin"]
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.communicate()

    def resident_bytes(self) -> int:
        """Memory that is not backed by files: the mapped journal is the page cache's."""
        for line in Path(f"/proc/{self._process.pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
        raise RuntimeError("the kernel does not say RssAnon")

    def processor_wait_seconds(self) -> float:
        """How long its threads could have run and had to wait for a processor, all together and
        since they began."""
        tasks = Path(f"/proc/{self._process.pid}/task").glob("*/schedstat")
        return sum(int(task.read_text().split()[1]) for task in tasks) / 1e9


def run_role(role: Callable[..., None], processes: int, *arguments: Any) -> list[tuple[float, float]]:
    """Runs `role` in as many processes, which start together; gives when each began and ended."""
    return run_roles([(role, arguments)] * processes)


def run_roles(
    roles: list[tuple[Callable[..., None], tuple[Any, ...]]], *, started: Callable[[], None] = lambda: None
) -> list[tuple[float, float]]:
    """Runs each role in a separate process. They start together, and `started` is called then.
    Returns when each began and ended."""
    results: Any = _SPAWN.SimpleQueue()
    barrier = _SPAWN.Barrier(len(roles) + 1)
    running = [_SPAWN.Process(target=role, args=(results, barrier, *arguments)) for role, arguments in roles]
    for process in running:
        process.start()
    barrier.wait(TIMEOUT)
    started()
    times = [results.get() for _ in running]
    for process in running:
        process.join()
    return times


def publish_all(results: Any, barrier: Barrier, url: str, count: int, size: int) -> None:
    data = b"x" * size
    with quire.Client(url, name=f"publisher-{os.getpid()}") as client:
        barrier.wait(TIMEOUT)
        start = time.monotonic()
        publish = client.publish
        for _ in range(count):
            publish("bench", data)
        client.flush(timeout=TIMEOUT)
        results.put((start, time.monotonic()))


def _replay(results: Any, barrier: Barrier, url: str, count: int) -> None:
    with quire.Client(url) as client:
        barrier.wait(TIMEOUT)
        start = time.monotonic()
        taken = size = 0
        for batch in client.subscribe("bench", bookmark=quire.EPOCH).batches(timeout=TIMEOUT):
            taken += len(batch)
            # Every message's data is asked for, as a program would.
            size += sum(len(message.data) for message in batch)
            if taken >= count:
                break
        results.put((start, time.monotonic()))


def _receive(results: Any, barrier: Barrier, url: str, topic: str, bookmark: str | None, count: int) -> None:
    latencies_ns = []
    with quire.Client(url) as client:
        subscription = client.subscribe(topic, bookmark=bookmark)
        barrier.wait(TIMEOUT)
        for message in subscription:
            latencies_ns.append(time.monotonic_ns() - int(message.data))
            if len(latencies_ns) == count:
                break
    results.put(latencies_ns)


def consume_all(results: Any, barrier: Barrier, url: str, left: Any, flushes: bool = False) -> None:
    """Acknowledges until all consumers together have come to the end. `flushes`: waits for each
    batch to be durable."""
    with quire.Client(url, ack_batch_size=80, ack_timeout="100ms") as client:
        jobs = client.subscribe("QUEUE", max_backlog=100)
        barrier.wait(TIMEOUT)
        start = time.monotonic()
        for batch in jobs.batches(100, timeout=0.1):
            for message in batch:
                message.ack()
            if flushes:
                client.flush(timeout=TIMEOUT)
            with left.get_lock():
                left.value -= len(batch)
                if left.value <= 0:
                    break
        client.flush(timeout=TIMEOUT)
        results.put((start, time.monotonic()))


def _consume_timed(results: Any, barrier: Barrier, url: str, count: int) -> None:
    latencies_ns = []
    with quire.Client(url, ack_batch_size=80, ack_timeout="10ms") as client:
        jobs = client.subscribe("QUEUE", max_backlog=100)
        barrier.wait(TIMEOUT)
        for message in jobs:
            latencies_ns.append(time.monotonic_ns() - int(message.data))
            message.ack()
            if len(latencies_ns) == count:
                break
    results.put(latencies_ns)


def _publish_paced(client: quire.Client, topic: str, rate: int, count: int) -> None:
    start = time.monotonic()
    for number in range(count):
        due = start + number / rate
        if (early := due - time.monotonic()) > 0:
            time.sleep(early)
        client.publish(topic, b"%d" % time.monotonic_ns())


def _synced_write_rate(directory: Path, size: int) -> float:
    """Bytes a second of a plain sequential write, synced every MiB, over space that was written before."""
    chunk = os.urandom(1 << 20)
    path = directory / "disk"
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY)
    try:
        for offset in range(0, size, len(chunk)):
            os.pwrite(descriptor, chunk, offset)
        os.fsync(descriptor)
        start = time.monotonic()
        for offset in range(0, size, len(chunk)):
            os.pwrite(descriptor, chunk, offset)
            os.fdatasync(descriptor)
        return size / (time.monotonic() - start)
    finally:
        os.close(descriptor)
        path.unlink()


def _loopback_rate(size: int) -> float:
    """Bytes a second of a sender that does nothing but send, over a TCP connection of this machine."""
    chunk = b"x" * (256 * 1024)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        receiver = socket.create_connection(listener.getsockname())
        sender, _ = listener.accept()

    def send() -> None:
        with sender:
            for _ in range(0, size, len(chunk)):
                sender.sendall(chunk)

    thread = threading.Thread(target=send)
    start = time.monotonic()
    thread.start()
    buffer = bytearray(256 * 1024)
    received = 0
    with receiver:
        while taken := receiver.recv_into(buffer):
            received += taken
    seconds = time.monotonic() - start
    thread.join()
    return received / seconds


@contextlib.contextmanager
def bench_directory(given: Path | None) -> Iterator[Path]:
    if given is not None:
        given.mkdir(parents=True, exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="quire-bench-", dir=given))
    try:
        yield directory
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
