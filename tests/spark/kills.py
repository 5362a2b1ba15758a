"""A query that copies a journal, killed at random moments: the driver with `kill -9`, and workers
and executors under it.

Run as a program: `python tests/spark/kills.py ROUNDS [SEED]`. Every round adds messages to the
source, starts a driver in a separate session, waits until the target has grown, and kills: the
whole session, or only a process below the driver, which Spark has to survive. At the end the query
runs to its end, and the target must hold every message of the source exactly once.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import quire

#: Seconds after which a query that does not get on is an error. No machine is that slow.
PATIENCE = 600
#: Messages that a round finds to copy, and those of a batch.
NEW, BATCH = 3000, 1000
DRIVER = """
import sys
import quire.spark
from pyspark.sql import functions as f

source, target, checkpoint, left, master, partitions, batch = sys.argv[1:]
spark = quire.spark.session(master, memory="512m", config={
    "spark.log.level": "OFF", "spark.sql.shuffle.partitions": partitions, "spark.executor.memory": "512m",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Djava.io.tmpdir=" + left,
    "spark.local.dir": left,
})
frame = (
    spark.readStream.format("quire")
    .options(startingOffsets="earliest", maxMessagesPerTrigger=batch, minPartitions=partitions).load(source)
    .select("topic", "data")
    .repartition(int(partitions), f.rand())  # another order and other tasks in every run
)
writer = frame.writeStream.format("quire").option("checkpointLocation", checkpoint)
query = writer.trigger(availableNow=True).start(target)
query.awaitTermination()
"""


def main(rounds: int, seed: int) -> None:
    print(f"seed {seed}", flush=True)
    chance = random.Random(seed)
    directory = Path(tempfile.mkdtemp(prefix="quire-kills-"))
    source, target = directory / "source", directory / "target"
    for round in range(rounds):
        with quire.Journal(source) as journal:
            journal.append_many("t", [{"n": round * NEW + n} for n in range(NEW)], publisher="p")
        driver, ends_all = start(directory, chance), True
        try:
            before = length(target)
            wait_until(lambda: driver.poll() is not None or length(target) > before)  # noqa: B023
            # A moment in the batch, which no condition can name.
            time.sleep(chance.random() * 0.2)
            ends_all = round % 2 == 0
            killed = kill(driver, ends_all, chance)
            print(f"round {round}: {killed} killed with {length(target)} messages in the target", flush=True)
        except BaseException:
            kill(driver, True, chance)
            raise
        finally:
            if ends_all:
                driver.wait()
            elif driver.wait(PATIENCE) != 0:
                print(f"round {round}: the query did not survive", flush=True)
    last = start(directory, chance)
    assert last.wait(PATIENCE) == 0, f"the last run fails: {directory / 'log'}"
    found = copied(target)
    wrong = {number: count for number, count in found.items() if count != 1}
    assert not wrong, f"not once: {dict(list(wrong.items())[:10])}"
    count = rounds * NEW
    assert found == Counter(range(count)), f"{count - len(found)} are missing"
    print(f"{count} messages, each once", flush=True)
    _remove(directory)


def _remove(directory: Path) -> None:
    """Removes a directory, of which a Java machine that is just ending may remove files at the same time."""
    deadline = time.monotonic() + PATIENCE
    while directory.exists():
        try:
            shutil.rmtree(directory)
        except OSError:
            if time.monotonic() > deadline:
                raise


def start(directory: Path, chance: random.Random) -> subprocess.Popen[bytes]:
    # The files of a killed Java machine are removed with the directory.
    left = directory / "left"
    left.mkdir(exist_ok=True)
    paths = [str(directory / name) for name in ("source", "target", "checkpoint", "left")]
    # A lost task is tried again.
    arguments = [*paths, "local[2,4]", str(chance.randint(1, 4)), str(BATCH)]
    command = [sys.executable, "-c", DRIVER, *arguments]
    with open(directory / "log", "ab") as log:
        return subprocess.Popen(command, start_new_session=True, stdout=log, stderr=log)


def kill(driver: subprocess.Popen[bytes], whole: bool, chance: random.Random) -> str:
    """Kills the session of the driver, or one of the Python workers that run its tasks."""
    if whole:
        # The workers have process groups of their own, but one session.
        for pid in (pids := _group(driver.pid)):
            _kill(pid)
        return "everything" if pids else "nothing"
    # The command of the Java machine names the module too.
    workers = [pid for pid in _group(driver.pid) if b"\0-m\0quire.spark._daemon\0" in _command(pid)]
    # The first is the daemon that forks them.
    if len(workers) < 2:
        return "nothing"
    return "a worker" if _kill(chance.choice(workers[1:])) else "nothing"


def _kill(pid: int) -> bool:
    """Kills a process, unless it has ended by itself since it was seen: workers do when their driver does."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def length(target: Path) -> int:
    if not any(target.glob("*.journal")):
        return 0
    with quire.Journal(target, read_only=True) as journal:
        return journal.persisted


def copied(target: Path) -> Counter[int]:
    with quire.Journal(target, read_only=True) as journal:
        return Counter(json.loads(message.data)["n"] for message in journal.read())


def wait_until(ready: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not ready():
        assert time.monotonic() < deadline, "the query does not get on"
        time.sleep(0.02)


def is_running(leader: int, program: str) -> bool:
    """Whether a process of its session runs the program."""
    return any(Path(_command(pid).split(b"\0")[0].decode()).name == program for pid in _group(leader))


def _group(leader: int) -> list[int]:
    """The processes of its session, oldest first."""
    pids = (int(entry) for entry in os.listdir("/proc") if entry.isdigit())
    return sorted(pid for pid in pids if _session(pid) == leader)


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return 0


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else random.randrange(2**32))
