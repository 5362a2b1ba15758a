"""Kills the server or a worker of a queue, and compares deliveries with acknowledgements.

`support/crash_harness.py` describes the harnesses. `tests/test_crash.py` runs a few rounds.

A publisher outlives the server. Two worker processes take jobs, acknowledge them in batches and
flush. Each life of a worker writes a file with the jobs that it was given, and those whose
acknowledgement is durable, with the time. These must hold at the end:

- every job whose publish was persisted was acknowledged, so that the queue is empty;
- no job was delivered after a flush had said that its acknowledgement is durable.

Every other directory has a queue whose state is kept in a file (docs/queues.md, section 5). A
server writes it when it ends. So some of these servers get SIGTERM, and are killed while they stop.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

import quire
from support import crash_harness
from support.server_process import ServerProcess
from support.waiting import PATIENCE

#: Jobs published in one round before the kill, at most.
_JOBS_MAX = 2000

_TRANSACTION_LOG = {"journal_size": "256KB", "topic": [{"name": "^jobs$", "message_type": "json"}]}
#: A lease ends with its connection only: then nobody is given what another has acknowledged.
_QUEUE = {"name": "JOBS", "message_type": "json", "underlying_topic": "jobs", "record_leases": True}


class Worker:
    """A worker process that is started again when it is killed, each time with a file of its own."""

    def __init__(self, directory: Path, url: str, number: int) -> None:
        self._directory, self._number = directory, number
        self._lives = 0
        self._process = crash_harness.Program(__file__, "work", url)
        self.start()

    def start(self) -> None:
        self._lives += 1
        log = self._directory / f"worker-{self._number}-{self._lives}.log"
        self._process.start(str(log))

    def kill(self) -> None:
        self._process.kill()


def work(url: str, log: str) -> None:
    """One worker: lines are `given N TIME` and `gone N TIME`, the latter written behind the flush."""
    with (
        open(log, "a", buffering=1) as out,
        crash_harness.client(url, ack_batch_size=30, ack_timeout="10ms") as client,
    ):
        for batch in client.subscribe("JOBS", max_backlog=100).batches(50):
            now = time.monotonic_ns()
            # What an earlier connection brought is not ours any more.
            held = [job for job in batch if not job.lease_lost]
            out.write("".join(f"given {job.json()['n']} {now}\n" for job in held))
            for job in held:
                job.ack()
            try:
                client.flush(PATIENCE)
            except quire.DisconnectedError:
                continue  # Some of them come again, to this worker or the other.
            now = time.monotonic_ns()
            gone = [job.json()["n"] for job in held if not job.lease_lost]
            out.write("".join(f"gone {number} {now}\n" for number in gone))


def crash_rounds(directory: Path, rounds: int, seed: int, has_state_file: bool) -> tuple[int, int]:
    """Runs `rounds` kills; gives how many jobs were published, and how many were given more than once."""
    queue = {**_QUEUE, "file_backed_metadata": "enabled" if has_state_file else "disabled"}
    settings: dict[str, Any] = {"transaction_log": _TRANSACTION_LOG, "queue": [queue]}
    dice = random.Random(seed)
    published = 0
    logs = directory / "logs"
    logs.mkdir()
    with ServerProcess(directory / "data", **settings) as server, contextlib.ExitStack() as cleanup:
        publisher = crash_harness.client(server.url, name="publisher")
        cleanup.callback(publisher.close)
        workers = [Worker(logs, server.url, number) for number in (1, 2)]
        for worker in workers:
            cleanup.callback(worker.kill)
        for _ in range(rounds):
            for _ in range(dice.randrange(_JOBS_MAX)):
                published += 1
                publisher.publish("jobs", {"n": published})
            if dice.random() < 0.3:
                publisher.flush(PATIENCE)
            time.sleep(dice.uniform(0, 0.3))
            if dice.random() < 0.5:
                if has_state_file and dice.random() < 0.5:
                    os.kill(server.pid, signal.SIGTERM)
                    server.end_after(dice.uniform(0, 0.3))
                server.kill()
                server.start()
            else:
                worker = dice.choice(workers)
                worker.kill()
                worker.start()
        if has_state_file:
            assert server.terminate() == 0
            assert list(directory.rglob("queue-*.state")), "the state of the queue was not kept"
            server.start()
        publisher.flush(PATIENCE)
        deadline = time.monotonic() + PATIENCE
        while (figures := publisher.queue_stats("JOBS")["JOBS"])["depth"]:
            assert time.monotonic() < deadline, figures
            time.sleep(0.02)
        for worker in workers:
            worker.kill()
    return published, check(logs, published)


def check(logs: Path, published: int) -> int:
    """Reads what the workers wrote; gives how many jobs were given more than once."""
    given: dict[int, list[int]] = {}
    gone: dict[int, int] = {}
    for log in logs.iterdir():
        # The last line of a worker that was killed may be half of one.
        for line in log.read_text().split("\n")[:-1]:
            what, job, at = line.split(" ")
            if what == "given":
                given.setdefault(int(job), []).append(int(at))
            else:
                # The first time counts. A job that comes again can be gone again, and a later time
                # would excuse it.
                gone[int(job)] = min(gone.get(int(job), int(at)), int(at))
    missing = set(range(1, published + 1)) - given.keys()
    assert not missing, f"{len(missing)} jobs were given to nobody, the first is {min(missing)}"
    for number, gone_at in gone.items():
        late = [given_at for given_at in given[number] if given_at > gone_at]
        assert not late, (
            f"job {number} was given again {(min(late) - gone_at) / 1e6:.1f} ms after it was gone"
        )
    return sum(len(each) > 1 for each in given.values())


def report(directory: Path, rounds: int, seed: int) -> str:
    published, again = crash_rounds(directory, rounds, seed, has_state_file=seed % 2 == 0)
    jobs = f"{published:,} jobs over {rounds} kills, {again:,} given again"
    return f"{jobs}: all handled, none after it was gone"


HARNESS = crash_harness.Harness(run=report, rounds=200, rounds_per_directory=25)

if __name__ == "__main__":
    if sys.argv[1:2] == ["work"]:
        work(*sys.argv[2:])
    else:
        crash_harness.main(HARNESS)
