"""The second part of `quire demo`: the flights as jobs, four worker processes, one of them killed
in the middle."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

import quire
from quire.testing import ServerProcess

#: Jobs that one worker may have fetched and not acknowledged.
BACKLOG = 1000
#: The queue over the flights. Leases are as long as a handler could ever take: those of a killed
#: worker end with its connection.
QUEUE = {
    "name": "JOBS",
    "message_type": "json",
    "underlying_topic": "flights",
    "lease_period": "60s",
    "max_per_subscription_backlog": BACKLOG,
    "record_leases": True,
}
#: The topic to which a worker publishes each flight that it has handled.
DONE = "flights/done"
WORKERS = 4
#: Seconds that any wait of the act may take.
PATIENCE = 100.0


@dataclass
class JobResults:
    """The outcome of the jobs."""

    jobs: int
    done: int
    #: Jobs that were handled twice: by the worker that was killed, and by one that got it again.
    doubled: int
    redelivered: int
    left: int
    seconds: float
    by_worker: dict[str, int]

    @property
    def is_sound(self) -> bool:
        """Every job was handled at least once. Only jobs that the killed worker had fetched were
        handled twice."""
        return self.done == self.jobs and self.left == 0 and self.doubled <= BACKLOG

    def table(self) -> Table:
        table = Table(title="the flights as jobs", show_header=False)
        table.add_row("jobs handled", f"{self.done:,}", f"{self.jobs / max(self.seconds, 1e-9):,.0f} jobs/s")
        for worker, count in sorted(self.by_worker.items()):
            table.add_row(worker, f"{count:,}", "killed in the middle" if worker == "worker-1" else "")
        table.add_row(
            "given to another worker", f"{self.redelivered:,}", "the killed worker had fetched them"
        )
        table.add_row("handled twice", f"{self.doubled:,}", "handled, and not acknowledged before the kill")
        return table

    def verdict(self) -> str:
        if self.is_sound:
            return "[bold green]every flight was processed[/], and only jobs of the killed worker twice"
        return f"[bold red]{self.jobs - self.done:,} of {self.jobs:,} jobs were not handled, {self.left:,} are left[/]"


def run_jobs(console: Console, server: ServerProcess, jobs: int) -> JobResults:
    """Works off the queue, which has one message for each flight."""
    console.print(f"{WORKERS} worker processes on the queue {QUEUE['name']}, {jobs:,} jobs")
    with quire.Client(server.url, name="demo-foreman") as foreman:
        begun = time.perf_counter()
        with _workers(server.url) as workers:
            _wait_for(lambda: _figures(foreman)["acknowledged"] >= jobs // 3)
            workers[0].kill()
            console.print(f"[bold]kill -9[/] of worker process {workers[0].pid}")
            _wait_for(lambda: _figures(foreman)["depth"] == 0)
            seconds = time.perf_counter() - begun
        figures = _figures(foreman)
        handled = _handled(foreman)
    by_worker: dict[str, int] = {}
    for worker in (worker for each in handled.values() for worker, _ in each):
        by_worker[worker] = by_worker.get(worker, 0) + 1
    return JobResults(
        jobs=jobs,
        done=len(handled),
        doubled=sum(len(each) - 1 for each in handled.values()),
        redelivered=sum(any(count > 1 for _, count in each) for each in handled.values()),
        left=figures["depth"],
        seconds=seconds,
        by_worker=by_worker,
    )


def work(url: str, name: str) -> None:
    """One worker process: publishes for each flight that it is done, and acknowledges it when that
    is persisted."""
    with quire.Client(url, name=name, ack_batch_size=100, ack_timeout="20ms") as client:
        jobs = client.subscribe(str(QUEUE["name"]), max_backlog=BACKLOG)
        for batch in jobs.batches(BACKLOG // 2):
            for job in batch:
                client.publish(DONE, {"job": job.bookmark, "worker": name, "delivery": job.delivery_count})
            client.flush(PATIENCE)
            for job in batch:
                job.ack()


@contextlib.contextmanager
def _workers(url: str) -> Iterator[list[subprocess.Popen[bytes]]]:
    command = [
        sys.executable,
        "-c",
        "import sys; from quire.demo._jobs import work; work(*sys.argv[1:])",
        url,
    ]
    workers = [subprocess.Popen([*command, f"worker-{number}"]) for number in range(1, WORKERS + 1)]
    try:
        yield workers
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()


def _figures(client: quire.Client) -> dict[str, int]:
    name = str(QUEUE["name"])
    return client.queue_stats(name)[name]


def _handled(client: quire.Client) -> dict[str, list[tuple[str, int]]]:
    """Returns for each job the workers that handled it, and the numbers of their deliveries."""
    handled: dict[str, list[tuple[str, int]]] = {}
    done = client.subscribe(DONE, bookmark=quire.EPOCH)
    client.publish(DONE, {"job": None})
    client.flush(PATIENCE)
    for batch in done.batches(timeout=PATIENCE):
        for message in batch:
            said = message.json()
            if said["job"] is None:
                return handled
            handled.setdefault(said["job"], []).append((said["worker"], said["delivery"]))
    return handled


def _wait_for(ready: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not ready() and time.monotonic() < deadline:
        time.sleep(0.05)
