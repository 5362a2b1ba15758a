"""Clusters of Spark whose executors have no quire: they get the reader on the JVM from the driver.

The driver of the standalone cluster has only what the wheel installs.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pyspark
from support.waiting import PATIENCE, wait_until

from spark import journals

ROOT = Path(__file__).parents[2]
#: Small and quick to start.
JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

#: Reads with the reader on the JVM. The frame in Python would need a Python on the executors.
DRIVER = """
import json, os, sys
import quire
import quire.spark

master, journal, java, *config = sys.argv[1:]
config = {
    **dict(pair.split("=") for pair in config), "spark.log.level": "ERROR", "spark.executor.memory": "600m",
    "spark.driver.extraJavaOptions": java, "spark.executor.extraJavaOptions": java,
    "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1", "spark.sql.shuffle.partitions": "2",
}
os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
spark = quire.spark.session(master, memory="600m", config=config)
frame = spark.read.format("quire").options(minPartitions=4, fields="n int, symbol string").load(journal)
pushed = frame.where("topic = 'rare' AND n >= 2000").select("n")
counted = frame.groupBy("topic").count()
tasks = frame.selectExpr("n", "spark_partition_id() AS task").selectExpr("sum(n)", "count(distinct task)")
found = {
    "installed": quire.__file__,
    "rows": [list(row) for row in frame.orderBy("position").select("topic", "n", "symbol").collect()],
    "pushed": [sorted(row.n for row in pushed.collect()), pushed._jdf.queryExecution().executedPlan().toString()],
    "counted": [dict(counted.collect()), counted._jdf.queryExecution().executedPlan().toString()],
    "count": frame.count(),
    "tasks": list(tasks.first()),
    "executors": spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1,
}
print("found", json.dumps(found))
spark.stop()
"""


def test_two_executors_get_the_reader_from_the_driver(trades: Path) -> None:
    found = read_on("local-cluster[2,2,1200]", trades, {"PYTHONPATH": os.pathsep.join(sys.path)})
    assert found.pop("executors") == 2
    check(found)


def test_a_standalone_master_needs_nothing_but_the_wheel(trades: Path, tmp_path: Path) -> None:
    installed = tmp_path / "installed"
    install(installed)
    # Without `site`, the editable installation is not found.
    path = os.pathsep.join([str(installed), sysconfig.get_path("purelib")])
    with standalone(tmp_path) as master:
        found = read_on(master, trades, {"PYTHONPATH": path}, "-S")
    assert Path(found["installed"]).is_relative_to(installed)
    assert found.pop("executors") == 1
    check(found)


def check(found: dict[str, Any]) -> None:
    """Compares with the messages that were published."""
    published = journals.trades()
    assert found["rows"] == [[topic, data["n"], data["symbol"]] for topic, data in published]
    numbers, plan = found["pushed"]
    assert numbers == list(range(2000, journals.COUNT, 100))
    assert "ColumnarToRow" in plan
    topics = [topic for topic, _ in published]
    counts, plan = found["counted"]
    assert counts == {topic: topics.count(topic) for topic in topics}
    assert "aggregates" in plan
    assert found["count"] == journals.COUNT
    assert found["tasks"] == [sum(range(journals.COUNT)), 4]


def read_on(master: str, journal: Path, environment: dict[str, str], *options: str) -> dict[str, Any]:
    """Runs the driver. There is no Python on the executors."""
    command = [sys.executable, *options, "-c", DRIVER, master, str(journal), JAVA]
    outside = {key: value for key, value in os.environ.items() if key != "PYSPARK_GATEWAY_PORT"}
    outside |= {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": "/no/python/here", **environment}
    done = subprocess.run(command, env=outside, capture_output=True, text=True, timeout=2 * PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("found ")]
    found: dict[str, Any] = json.loads(line.removeprefix("found "))
    return found


def install(directory: Path) -> None:
    """Copies what the wheel installs of quire."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["maturin"]
    jar = "python/quire/spark/quire-spark.jar"
    assert jar in [each["path"] for each in project["include"] if each["format"] == "wheel"]
    for package in project["python-packages"]:
        source = ROOT / project["python-source"] / package
        shutil.copytree(source, directory / package, ignore=shutil.ignore_patterns("__pycache__"))


@contextmanager
def standalone(directory: Path) -> Iterator[str]:
    """Starts Spark's own master and one worker. Gives the address of the master."""
    deploy = "org.apache.spark.deploy"
    here = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
    room = ["--cores", "2", "--memory", "700m", "--work-dir", str(directory / "work")]
    with ExitStack() as stack:
        log = stack.enter_context(daemon(directory / "master", f"{deploy}.master.Master", *here))
        master = said(log, r"Starting Spark master at (spark://127\.0\.0\.1:\d+)")
        log = stack.enter_context(
            daemon(directory / "worker", f"{deploy}.worker.Worker", *here, *room, master)
        )
        said(log, r"(Successfully registered with master)")
        yield master


@contextmanager
def daemon(directory: Path, *command: str) -> Iterator[Path]:
    """Runs a class of Spark until the end of the block. Gives its log."""
    home = Path(pyspark.__path__[0])
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")} | {
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(directory),
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": JAVA,
        "PYSPARK_PYTHON": "/no/python/here",
    }
    directory.mkdir()
    log = directory / "log"
    with log.open("wb") as output:
        # The script replaces itself by Java, so the process is that of the daemon.
        process = subprocess.Popen(
            [str(home / "bin/spark-class"), *command],
            env=environment,
            cwd=directory,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        yield log
    finally:
        # The worker ends its executors first.
        process.terminate()
        try:
            process.wait(PATIENCE)
        finally:
            process.kill()


def said(log: Path, pattern: str) -> str:
    """Waits for a line in a log. Returns its first group."""
    found: list[str] = []

    def is_there() -> bool:
        found[:] = re.findall(pattern, log.read_text(errors="replace"))
        return bool(found)

    try:
        wait_until(is_there)
    except AssertionError:
        raise AssertionError(log.read_text(errors="replace")) from None
    return found[0]
