"""What Spark costs on the journal, as ratios of cases that take turns in one run.

    python benches/spark/scan.py [--messages 10000000] [--cores 4] [--rounds 3] [--directory DIR]

Messages are about 290 bytes: JSON of 256 bytes on one of 21 topics. The case beside it reads the same rows from uncompressed Parquet
that Spark wrote. Every case runs to Spark's `noop` sink, so that all of its columns are made; the figure is the median of the rounds.
The first round warms up and does not count.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import quire
import quire.spark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

#: Messages of the rare topic, in a thousand.
RARE = 1
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
    spark = quire.spark.session(f"local[{arguments.cores}]", memory="3g")
    if not parquet.exists():
        frame = spark.read.format("quire").load(str(journal))
        frame.write.option("compression", "none").parquet(str(parquet))
    everything = cases(spark, journal, parquet, arguments.messages)
    wanted = arguments.only.split(",") if arguments.only else list(everything)
    seconds: dict[str, list[float]] = {name: [] for name in wanted}
    for round in range(arguments.rounds + 1):
        for name in wanted:
            begun = time.perf_counter()
            everything[name]()
            if round > 0:
                seconds[name].append(time.perf_counter() - begun)
    medians = {name: statistics.median(found) for name, found in seconds.items()}
    for name, found in seconds.items():
        print(f"{name:24} {medians[name]:8.3f} s   spread {max(found) / min(found):.2f}")
    for ratio, above, below, target in RATIOS:
        if above in medians and below in medians:
            print(f"{ratio:58} {medians[above] / medians[below]:6.2f}   target {target}")
    private, mapped = _worker_peaks(spark, journal)
    print(f"peak of one Python worker: {private:.0f} MiB of its own, {mapped:.0f} MiB of mapped files")
    spark.stop()


#: What is shown, the case above and the case below the line, what it should be.
RATIOS = [
    ("all columns : Parquet", "all", "parquet", "<= 1.2"),
    ("one column : all columns", "one", "all", "<= 0.65"),
    ("a tenth of the range : all columns", "tenth", "all", "<= 0.3"),
    ("a topic of one message in a thousand : all columns", "rare", "all", "small"),
    ("three fields by schema : from_json", "fields", "from_json", "<= 0.4"),
    ("a filter on the data : get_json_object", "filter", "get_json", "<= 0.4"),
    ("get_json_object : the same on Parquet", "get_json", "get_json_parquet", "<= 1.3"),
    ("all columns by all cores : by one task", "all", "one_task", "<= 0.6 on 4 cores"),
    ("all columns : the same in micro-batches of a million", "all", "stream", ">= 0.5"),
    ("publishing a tenth of them into a directory : all columns", "publish", "all", ""),
]


def cases(spark: SparkSession, journal: Path, parquet: Path, count: int) -> dict[str, Callable[[], object]]:
    def drain(frame: Callable[[], DataFrame]) -> Callable[[], object]:
        return lambda: frame().write.format("noop").mode("overwrite").save()

    def stream() -> None:
        frame = spark.readStream.format("quire").option("startingOffsets", "earliest").load(str(journal))
        with tempfile.TemporaryDirectory() as checkpoint:
            writer = frame.writeStream.format("noop").option("checkpointLocation", checkpoint)
            writer.trigger(availableNow=True).start().awaitTermination()

    def publish() -> None:
        tenth = read("topic string, data string, position long", pushConditions="true")
        rows = tenth.where(f"position <= {count // 10}").select("topic", "data")
        with tempfile.TemporaryDirectory(dir=journal.parent) as target:
            rows.write.format("quire").mode("append").save(str(Path(target) / "journal"))

    def read(schema: str | None = None, **options: Any) -> DataFrame:
        reader = spark.read.format("quire").options(**options)
        return (reader.schema(schema) if schema else reader).load(str(journal))

    def price(frame: DataFrame) -> DataFrame:
        return frame.where(f.get_json_object("data", "$.price").cast("double") > 990)

    everything = read()
    frames: dict[str, Callable[[], DataFrame]] = {
        "parquet": lambda: spark.read.parquet(str(parquet)),
        "all": lambda: everything,
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
    }
    return {name: drain(frame) for name, frame in frames.items()} | {"stream": stream, "publish": publish}


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
    """The most that one worker has while the whole journal is read, in MiB: memory of its own, and pages of files, which the system may
    take back at any time. Looked at from outside, every 50 ms."""
    is_done = threading.Event()
    peaks = {"RssAnon": 0.0, "RssFile": 0.0}

    def watch() -> None:
        while not is_done.wait(0.05):
            for directory in Path("/proc").glob("[0-9]*"):
                with suppress(OSError):
                    if b"pyspark.daemon" not in (directory / "cmdline").read_bytes():
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
