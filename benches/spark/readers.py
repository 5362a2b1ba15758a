"""The time of the two readers of `quire` and of Spark's Parquet for the same rows: ratios of cases
that alternate in one session.

    python benches/spark/readers.py [--messages 10000000] [--cores 2] [--rounds 7] [--directory DIR] [--only CASE,...]
    python benches/spark/readers.py [--readers jvm] [--against delta --jars JAR,... --conf KEY=VALUE ...]

The messages are those of `scan.py`; Parquet is uncompressed and was written by Spark. Each query
runs with the JVM reader, with the Python reader, and over Parquet, one after the other, in every
round. The first round warms up and does not count. Shown are the medians of the ratios of the
rounds to Parquet, by processor time (this process, Java and all workers) and by wall time.
`--against` takes another format that Spark can write and read instead of Parquet, with the jars and
the settings that it needs. `micro-batches` is the time of `addBatch` of 1,000 messages, and of as
many rows of a source that Spark has built in, to the `noop` sink. `memory` reads everything 100
times with the JVM reader and shows the resident memory of Java before and after. `cancel` cancels a
job with the JVM reader in the middle of a scan and shows how long its last task then stays in the
core. `data as variant` is compared with `parse_json` over Parquet, and the text of a reader with
`parse_json` is shown, too.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import quire.spark
import scan
from py4j.protocol import Py4JJavaError
from pyspark import InheritableThread
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

sys.path.append(str(Path(__file__).resolve().parents[1]))
import saved

#: Reads that the memory of Java is compared over.
SCANS = 100
#: The format that the readers are compared with, unless another one is named.
PARQUET = "parquet"
#: Micro-batches of a thousand messages in a round.
MICRO_BATCHES = 30
TICKS = os.sysconf("SC_CLK_TCK")

#: The queries, of a frame with all columns, and what the ratio of the JVM reader should be.
Query = Callable[[DataFrame], DataFrame]
QUERIES: dict[str, tuple[Query, str]] = {
    "all columns": (lambda frame: frame, "<= 0.8"),
    "count()": (lambda frame: frame.groupBy().count(), ""),
    "count(position)": (lambda frame: frame.select(f.count("position")), "<= 1.2"),
    "sum(position)": (lambda frame: frame.groupBy().sum("position"), ""),
    "groupBy(topic).count()": (lambda frame: frame.groupBy("topic").count(), "<= 1.1"),
    "hash of every column": (lambda frame: frame.select(f.bit_xor(f.xxhash64("*"))), ""),
    "a tenth by position": (lambda frame: frame.where(f"position between {10**6} and {2 * 10**6}"), ""),
    "one topic of 21": (lambda frame: frame.where("topic = 'trades/3'"), ""),
    "one topic of a thousandth": (lambda frame: frame.where("topic = 'rare'"), ""),
}
#: Compared with `from_json` over Parquet.
FIELDS = "three fields of the data"
#: Compared with `parse_json` over Parquet. With this mark, a reader gives the text, and Spark
#: parses it.
VARIANT, PARSED = "data as variant", " + parse_json"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=10_000_000)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--directory", type=Path)
    parser.add_argument("--only", help="names of cases, separated by commas")
    parser.add_argument("--readers", default="jvm,python")
    parser.add_argument("--against", default=PARQUET, metavar="FORMAT")
    parser.add_argument("--jars", help="jars of that format, separated by commas")
    parser.add_argument("--conf", action="append", default=[], metavar="KEY=VALUE")
    saved.add_option(parser)
    arguments = parser.parse_args()
    directory = arguments.directory or Path(tempfile.mkdtemp(prefix="quire-bench-"))
    try:
        run(directory, arguments)
    finally:
        if arguments.directory is None:
            shutil.rmtree(directory)


def run(directory: Path, arguments: argparse.Namespace) -> None:
    journal, other = directory / "journal", directory / arguments.against
    if not journal.exists():
        scan.write(journal, arguments.messages)
    # A job that is cancelled says so in many lines.
    config = {
        "spark.log.level": "OFF",
        "spark.sql.shuffle.partitions": str(arguments.cores),
        "spark.sql.parquet.compression.codec": "uncompressed",
    }
    config |= dict(setting.split("=", 1) for setting in arguments.conf)
    if arguments.jars:
        config["spark.jars"] = arguments.jars
    spark = quire.spark.session(f"local[{arguments.cores}]", memory="1500m", config=config)
    if not other.exists():
        spark.read.format("quire").load(str(journal)).write.format(arguments.against).save(str(other))

    def frame(reader: str, schema: str | None = None) -> DataFrame:
        if reader == arguments.against:
            return spark.read.format(reader).load(str(other))
        source = spark.read.format("quire").option("reader", reader)
        return (source if schema is None else source.schema(schema)).load(str(journal))

    def fields(reader: str) -> DataFrame:
        if reader == arguments.against:
            parsed = f.from_json("data", scan.JSON_SCHEMA).alias("parsed")
            return frame(reader).select(parsed).select("parsed.*")
        return frame(reader, scan.JSON_SCHEMA)

    def variants(reader: str) -> DataFrame:
        name = reader.removesuffix(PARSED)
        if name != reader or reader == arguments.against:
            return frame(name, "data string").select(f.parse_json("data"))
        return frame(reader, "data variant")

    readers = [arguments.against, *arguments.readers.split(",")]
    every = [*QUERIES, FIELDS, VARIANT, "micro-batches", "memory", "cancel"]
    wanted = arguments.only.split(",") if arguments.only else every
    rows: dict[str, dict[str, str]] = {}
    for name in wanted:
        if name == "memory":
            memory(spark, lambda: frame("jvm"))
        elif name == "micro-batches":
            micro_batches(spark, journal, readers[1:], arguments.rounds)
        elif name == "cancel":
            cancel(spark, journal, arguments.rounds)
        elif name == FIELDS:
            rows |= compare(name, fields, "<= 0.15 of from_json", readers, arguments.rounds)
        elif name == VARIANT:
            parsing = [f"{reader}{PARSED}" for reader in readers[1:]]
            rows |= compare(name, variants, "", readers + parsing, arguments.rounds)
        else:
            query, target = QUERIES[name]
            queried: Callable[[str], DataFrame] = lambda reader, query=query: query(frame(reader))  # noqa: E731
            rows |= compare(name, queried, target, readers, arguments.rounds)
    spark.stop()
    saved.save(arguments.save, rows)


def compare(
    name: str, frame: Callable[[str], DataFrame], target: str, readers: list[str], rounds: int
) -> dict[str, dict[str, str]]:
    """Runs a query with each reader in turns and prints the ratios to the first of them.

    Returns a row of the table for each of the other readers.
    """
    taken: dict[str, list[tuple[float, float]]] = {reader: [] for reader in readers}
    for round in range(rounds + 1):
        for reader, found in taken.items():
            begun, used = time.perf_counter(), processor_seconds()
            drain(frame(reader))
            if round > 0:
                found.append((processor_seconds() - used, time.perf_counter() - begun))
    base = taken[readers[0]]
    shown = f"{_spread([cpu for cpu, _ in base], ' s')}, wall {_spread([wall for _, wall in base], ' s')}"
    print(f"{name}: {readers[0]} takes processor {shown}", flush=True)
    rows = {}
    for reader in readers[1:]:
        pairs = list(zip(taken[reader], base, strict=True))
        cpu = [own[0] / other[0] for own, other in pairs]
        wall = [own[1] / other[1] for own, other in pairs]
        shown = f"target {target}" if target and reader == "jvm" else ""
        print(f"    {reader:8} processor {_spread(cpu)}   wall {_spread(wall)}   {shown}", flush=True)
        rows[f"{name}, {reader}"] = {
            "processor time": _spread(cpu),
            "wall time": _spread(wall),
            f"{readers[0]}, s": f"{statistics.median(wall for _, wall in base):.2f}",
        }
    return rows


def _spread(found: list[float], unit: str = "") -> str:
    return f"{statistics.median(found):.2f}{unit} ({min(found):.2f} to {max(found):.2f})"


def micro_batches(spark: SparkSession, journal: Path, readers: list[str], rounds: int) -> None:
    """Prints how long micro-batches of 1,000 rows take in Spark, from planning to writing: medians
    of the rounds."""
    built_in = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1000)
    frames = {"built in": built_in.option("numPartitions", 1).load()}
    for reader in readers:
        source = spark.readStream.format("quire").option("reader", reader)
        source = source.option("startingOffsets", f"-{MICRO_BATCHES * 1000}")
        frames[reader] = source.option("maxMessagesPerTrigger", 1000).load(str(journal))
    taken: dict[str, list[float]] = {name: [] for name in frames}
    for round in range(rounds + 1):
        for name, frame in frames.items():
            with tempfile.TemporaryDirectory(dir=journal.parent) as checkpoint:
                query = frame.writeStream.format("noop").option("checkpointLocation", checkpoint).start()
                batches = scan.add_batch_times(query, MICRO_BATCHES)
            if round > 0:
                taken[name].append(statistics.median(batches))
    for name, found in taken.items():
        target = "target <= 10 ms above built in" if name == "jvm" else ""
        print(f"micro-batches, {name}: {_spread(found, ' ms')}   {target}", flush=True)


def drain(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def memory(spark: SparkSession, frame: Callable[[], DataFrame]) -> None:
    """Shows the resident memory of Java over many scans. It grows to what the heap may take, and
    then no further."""
    java = [pid for pid in _tree() if (Path("/proc") / str(pid) / "comm").read_text().strip() == "java"]

    def resident() -> float:
        pages = sum(int((Path("/proc") / str(pid) / "statm").read_text().split()[1]) for pid in java)
        return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)

    shown = []
    for number in range(SCANS + 1):
        drain(frame())
        if number % (SCANS // 5) == 0:
            shown.append(f"{resident():.0f}")
    print(f"resident memory of Java over {SCANS} scans, in MiB: {', '.join(shown)}")


def cancel(spark: SparkSession, journal: Path, rounds: int) -> None:
    """Cancels a scan that returns nothing until its end: each task is in the core all the time."""
    source = spark.read.format("quire").options(filter="/price < 0 OR /note LIKE '[a-w].*y'", reader="jvm")
    frame = source.load(str(journal))
    drain(frame)
    begun = time.perf_counter()
    drain(frame)
    whole, taken = time.perf_counter() - begun, []
    for number in range(rounds):

        def job(group: str = f"cancel {number}") -> None:
            spark.sparkContext.setJobGroup(group, group)
            with suppress(Py4JJavaError):
                drain(frame)

        thread = InheritableThread(target=job)
        thread.start()
        while thread.is_alive() and not in_core(spark):
            pass
        time.sleep(whole / 3)
        begun = time.perf_counter()
        spark.sparkContext.cancelJobGroup(f"cancel {number}")
        while in_core(spark):
            pass
        taken.append(1000 * (time.perf_counter() - begun))
        thread.join()
    print(
        f"cancel: the scan takes {whole:.2f} s, its end after the request {_spread(taken, ' ms')}", flush=True
    )


def in_core(spark: SparkSession) -> bool:
    """Whether a task is in the core."""
    assert spark._jvm is not None
    threads = spark._jvm.java.lang.management.ManagementFactory.getThreadMXBean().dumpAllThreads(False, False)
    return any("quire.Core.scanNext" in str(thread) for thread in threads)


def processor_seconds() -> float:
    """The processor time of this process and everything below it, ended processes included."""
    total = 0
    for pid in _tree():
        with suppress(OSError):
            fields = (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()
            total += sum(map(int, fields[11:15]))
    return total / TICKS


def _tree() -> list[int]:
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            parents.setdefault(parent, []).append(int(entry.name))
    found = [os.getpid()]
    for pid in found:
        found += parents.get(pid, [])
    return found


if __name__ == "__main__":
    main()
