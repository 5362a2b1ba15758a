"""The cost of Spark on the journal, as ratios of cases that alternate in one run.

    python benches/spark/scan.py [--messages 10000000] [--cores 4] [--rounds 3] [--directory DIR]

Messages are about 290 bytes: JSON of 256 bytes on one of 21 topics. The case to compare with reads
the same rows from uncompressed Parquet that Spark wrote. Every case runs to Spark's `noop` sink, so
that all of its columns are made; the figure is the median of the rounds. The first round warms up
and does not count. `addBatch` is what Spark reports of micro-batches of a thousand messages, the
median of a query. `--only` and `--directory` make it cheap to run a few cases again: existing files
in the directory are used.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import quire
import quire.spark
import variants
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

sys.path.append(str(Path(__file__).resolve().parents[1]))
import saved

#: Messages of the rare topic, in a thousand.
RARE = 1
#: Messages that are published, if there are this many.
PUBLISHED_MAX = 1_000_000
#: Micro-batches of a thousand messages.
ADD_BATCHES = 30
JSON_SCHEMA = "symbol string, price double, qty int"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=10_000_000)
    parser.add_argument("--cores", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--directory", type=Path)
    parser.add_argument("--only", help="names of cases, separated by commas")
    saved.add_option(parser)
    parser.add_argument("--tcp", action="store_true", help="workers over TCP instead of Unix sockets")
    arguments = parser.parse_args()
    directory = arguments.directory or Path(tempfile.mkdtemp(prefix="quire-bench-"))
    try:
        run(directory, arguments)
    finally:
        if arguments.directory is None:
            shutil.rmtree(directory)


def run(directory: Path, arguments: argparse.Namespace) -> None:
    journal, parquet = directory / "journal", directory / "parquet"
    if not journal.exists():
        write(journal, arguments.messages)
    # A query that is stopped says so in many lines.
    config = {
        "spark.log.level": "OFF",
        "spark.python.unix.domain.socket.enabled": str(not arguments.tcp).lower(),
    }
    spark = quire.spark.session(f"local[{arguments.cores}]", memory="3g", config=config)
    spark.sparkContext.addPyFile(variants.__file__)
    spark.dataSource.register(variants.TuplesDataSource)
    spark.dataSource.register(variants.ReadyDataSource)
    spark.dataSource.register(variants.CountingDataSource)
    if not parquet.exists():
        frame = spark.read.format("quire").load(str(journal))
        frame.write.option("compression", "none").parquet(str(parquet))
    everything = cases(spark, journal, parquet, arguments.messages)
    wanted = arguments.only.split(",") if arguments.only else list(everything)
    seconds: dict[str, list[float]] = {name: [] for name in wanted}
    for number in range(arguments.rounds + 1):
        for name in wanted:
            begun = time.perf_counter()
            told = everything[name]()
            if number > 0:
                seconds[name].append(time.perf_counter() - begun if told is None else told)
    medians = {name: statistics.median(found) for name, found in seconds.items()}
    for name, found in seconds.items():
        print(f"{name:24} {medians[name]:8.3f} s   spread {max(found) / min(found):.2f}")
    rows: dict[str, dict[str, Any]] = {}
    for ratio, above, below, target in RATIOS:
        if above in medians and below in medians:
            print(f"{ratio:62} {medians[above] / medians[below]:6.2f}   target {target}")
            rows[ratio] = {"ratio": round(medians[above] / medians[below], 2), "goal": target}
    for difference, larger, smaller, target in DIFFERENCES:
        if larger in medians and smaller in medians:
            print(f"{difference:62} {1000 * (medians[larger] - medians[smaller]):6.0f} ms   target {target}")
            rows[difference] = {"ms": round(1000 * (medians[larger] - medians[smaller])), "goal": target}
    private, mapped = _worker_peaks(spark, journal)
    print(f"peak of one Python worker: {private:.0f} MiB of its own, {mapped:.0f} MiB of mapped files")
    spark.stop()
    saved.save(arguments.save, rows)


#: The label, the cases of the numerator and of the denominator, the expected value.
RATIOS = [
    ("all columns : Parquet", "all", "parquet", "<= 1.2"),
    ("all columns, a batch that is ready again and again : Parquet", "ready", "parquet", ""),
    ("all columns : a batch that is ready", "all", "ready", ""),
    ("one column : all columns", "one", "all", "<= 0.65"),
    ("a tenth of the range : all columns", "tenth", "all", "<= 0.3"),
    ("a topic of one message in a thousand : all columns", "rare", "all", "small"),
    ("three fields by schema : from_json", "fields", "from_json", "<= 0.4"),
    ("a filter on the data : get_json_object", "filter", "get_json", "<= 0.4"),
    ("get_json_object : the same on Parquet", "get_json", "get_json_parquet", "<= 1.3"),
    ("all columns by all cores : by one task", "all", "one_task", "<= 0.6 on 4 cores"),
    ("all columns by two tasks : by one task", "two_tasks", "one_task", ""),
    ("all columns by three tasks : by one task", "three_tasks", "one_task", ""),
    ("all columns : the same in micro-batches of a million", "all", "stream", ">= 0.5"),
    ("publishing a million of them into a directory : all columns", "publish", "all", ""),
    ("a million from Parquet published : to nowhere", "publish_parquet", "nowhere_parquet", "<= 3.5"),
    (
        "a million from Parquet counted by Python as Arrow : to nowhere",
        "count_parquet",
        "nowhere_parquet",
        "",
    ),
    ("a million from Parquet published : counted", "publish_parquet", "count_parquet", ""),
    ("counted row by row : as Arrow", "count_rows_parquet", "count_parquet", ""),
    ("all columns counted row by row : as Arrow", "count_rows_all_parquet", "count_all_parquet", ">= 4"),
    ("a million by tuples : as Arrow", "tuples", "million", ">= 5"),
    ("the same in micro-batches of 100,000 : published at once", "publish_stream", "publish_parquet", ""),
]

#: The label, the case with the larger figure, the case that is subtracted, the expected value.
DIFFERENCES = [
    ("addBatch of the journal, above that of a source in the JVM", "add_batch", "add_batch_jvm", "<= 30 ms"),
    ("addBatch of the journal into a journal, above to nowhere", "add_batch_publish", "add_batch", ""),
]


def cases(
    spark: SparkSession, journal: Path, parquet: Path, count: int
) -> dict[str, Callable[[], float | None]]:
    """What to run by name. A case that gives seconds has taken the time itself."""

    def drain(frame: Callable[[], DataFrame]) -> Callable[[], None]:
        return lambda: frame().write.format("noop").mode("overwrite").save()

    def stream() -> None:
        frame = spark.readStream.format("quire").option("startingOffsets", "earliest").load(str(journal))
        with tempfile.TemporaryDirectory() as checkpoint:
            writer = frame.writeStream.format("noop").option("checkpointLocation", checkpoint)
            writer.trigger(availableNow=True).start().awaitTermination()

    published = min(count, PUBLISHED_MAX)

    def publish() -> float:
        first = read("topic string, data string, position long", pushConditions="true")
        return publish_rows(first.where(f"position <= {published}").select("topic", "data"))

    def publish_rows(rows: DataFrame) -> float:
        with tempfile.TemporaryDirectory(dir=journal.parent) as target:
            begun = time.perf_counter()
            rows.write.format("quire").mode("append").save(str(Path(target) / "journal"))
            return time.perf_counter() - begun  # without removing it again

    def first_of_parquet(*columns: str) -> DataFrame:
        return spark.read.parquet(str(parquet)).where(f"position <= {published}").select(*columns)

    def last_million(source: str) -> DataFrame:
        return spark.read.format(source).option("startingOffsets", f"-{published}").load(str(journal))

    def counting(rows: str, *columns: str) -> Callable[[], None]:
        frame = first_of_parquet(*columns)
        return lambda: frame.write.format("counting").mode("append").option("rows", rows).save()

    def publish_stream() -> float:
        frame = tail(published, 100_000).select("topic", "data")
        with tempfile.TemporaryDirectory(dir=journal.parent) as target:
            writer = frame.writeStream.format("quire").option("checkpointLocation", f"{target}/checkpoint")
            begun = time.perf_counter()
            writer.trigger(availableNow=True).start(f"{target}/journal").awaitTermination()
            return time.perf_counter() - begun

    def tail(rows: int, rows_of_batch: int) -> DataFrame:
        reader = spark.readStream.format("quire").option("startingOffsets", f"-{rows}")
        return reader.option("maxMessagesPerTrigger", rows_of_batch).load(str(journal))

    def add_batch(frame: DataFrame, sink: str) -> float:
        """The median of what `ADD_BATCHES` micro-batches take in Spark, from planning to writing."""
        with tempfile.TemporaryDirectory(dir=journal.parent) as target:
            writer = frame.writeStream.format(sink).option("checkpointLocation", f"{target}/checkpoint")
            taken = add_batch_times(writer.option("path", f"{target}/journal").start(), ADD_BATCHES)
        return statistics.median(taken) / 1000

    def jvm() -> DataFrame:
        source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1000)
        return source.option("numPartitions", 1).load()

    def thousands() -> DataFrame:
        return tail(ADD_BATCHES * 1000, 1000)

    def read(schema: str | None = None, **options: Any) -> DataFrame:
        reader = spark.read.format("quire").options(**options)
        return (reader.schema(schema) if schema else reader).load(str(journal))

    def price(frame: DataFrame) -> DataFrame:
        return frame.where(f.get_json_object("data", "$.price").cast("double") > 990)

    everything = read()
    with quire.Journal(journal, read_only=True) as read_only:
        size = sum(segment.size for segment in read_only.segments())
    frames: dict[str, Callable[[], DataFrame]] = {
        "parquet": lambda: spark.read.parquet(str(parquet)),
        "all": lambda: everything,
        "ready": lambda: spark.read.format("quire-ready").load(str(journal)),
        "one": lambda: read("position long"),
        "tenth": lambda: read(pushConditions="true").where(
            f"position > {count // 2} AND position <= {count // 2 + count // 10}"
        ),
        "rare": lambda: read(topics="rare"),
        "fields": lambda: read(JSON_SCHEMA),
        "from_json": lambda: everything.select(f.from_json("data", JSON_SCHEMA).alias("j")).select("j.*"),
        "filter": lambda: read(filter="/price > 990"),
        "get_json": lambda: price(everything),
        "get_json_parquet": lambda: price(spark.read.parquet(str(parquet))),
        "one_task": lambda: read(partitionBytes="100g"),
        "two_tasks": lambda: read(partitionBytes=str(size // 2 + 65536)),
        "three_tasks": lambda: read(partitionBytes=str(size // 3 + 65536)),
        "nowhere_parquet": lambda: first_of_parquet("topic", "data"),
        "nowhere_all_parquet": lambda: first_of_parquet("*"),
        "million": lambda: last_million("quire"),
        "tuples": lambda: last_million("quire-tuples"),
    }
    return {name: drain(frame) for name, frame in frames.items()} | {
        "stream": stream,
        "publish": publish,
        "publish_parquet": lambda: publish_rows(first_of_parquet("topic", "data")),
        "count_parquet": counting("false", "topic", "data"),
        "count_rows_parquet": counting("true", "topic", "data"),
        "count_all_parquet": counting("false", "*"),
        "count_rows_all_parquet": counting("true", "*"),
        "publish_stream": publish_stream,
        "add_batch": lambda: add_batch(thousands(), "noop"),
        "add_batch_jvm": lambda: add_batch(jvm(), "noop"),
        "add_batch_publish": lambda: add_batch(thousands().select("topic", "data"), "quire"),
    }


def add_batch_times(query: StreamingQuery, count: int) -> list[int]:
    """Waits for `count` micro-batches of a query, and stops it.

    Returns the milliseconds of each micro-batch with rows, from planning to writing.
    """
    while query.isActive and (query.lastProgress or {"batchId": 0})["batchId"] < count - 1:
        time.sleep(0.05)
    taken = [
        progress["durationMs"]["addBatch"] for progress in query.recentProgress if progress["numInputRows"]
    ]
    query.stop()
    return taken


def write(directory: Path, count: int) -> None:
    """The messages, made from a seed."""
    chance = random.Random(1)
    templates = [
        json.dumps(
            {
                "symbol": f"S{chance.randrange(500)}",
                "price": round(chance.random() * 1000, 2),
                "qty": chance.randrange(1000),
                "side": chance.choice(["buy", "sell"]),
                "account": f"{chance.randrange(10**9):09}",
                "note": "x" * 150,
            },
            separators=(",", ":"),
        ).encode()
        for _ in range(10_000)
    ]
    with quire.Journal(directory) as journal:
        for first in range(0, count, 1000):
            run = templates[first % len(templates) : first % len(templates) + 1000]
            journal.append_many(f"trades/{first // 1000 % 20}", run[:-RARE], publisher="bench")
            journal.append_many("rare", run[-RARE:], publisher="bench")
        journal.flush()


def _worker_peaks(spark: SparkSession, journal: Path) -> tuple[float, float]:
    """The most that one worker has while the whole journal is read, in MiB: private memory, and
    pages of files, which the system may free at any time. It is sampled from outside, every 50
    ms."""
    is_done = threading.Event()
    peaks = {"RssAnon": 0.0, "RssFile": 0.0}

    def watch() -> None:
        while not is_done.wait(0.05):
            for directory in Path("/proc").glob("[0-9]*"):
                with suppress(OSError):
                    if b"\0-m\0quire.spark._daemon\0" not in (directory / "cmdline").read_bytes():
                        continue
                    for line in (directory / "status").read_text().splitlines():
                        name, _, size = line.partition(":")
                        if name in peaks:
                            peaks[name] = max(peaks[name], int(size.split()[0]) / 1024)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        spark.read.format("quire").load(str(journal)).write.format("noop").mode("overwrite").save()
    finally:
        is_done.set()
        watcher.join()
    return peaks["RssAnon"], peaks["RssFile"]


if __name__ == "__main__":
    main()
