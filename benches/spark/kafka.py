"""The same messages read by Spark from a journal and from Kafka, by Spark's own source for it, in
one session.

    KAFKA_LIBS=DIR SPARK_KAFKA_LIBS=DIR python benches/spark/kafka.py [--messages 10000000] [--cores 4] [--rounds 3] [--directory DIR]

From the project's root, after `make setup` and `pip install '.[peers]'`. `KAFKA_LIBS` is a
directory with the jar files of a broker, `SPARK_KAFKA_LIBS` one with those of the connector
(`spark-sql-kafka-0-10` of the version of PySpark, and what it needs). The messages are those of
`scan.py`. They are in one topic with a partition for each core, where Spark writes them from the
journal, with what they were published to as the key; the broker runs on this machine, on 127.0.0.1.
Both are read to the `noop` sink: all columns as they come, the data as text, and three fields of
it. The first round warms up and does not count.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

import quire
import quire.spark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from scan import JSON_SCHEMA, write

sys.path.append(str(Path(__file__).resolve().parents[1]))
import saved
from peers.engine import Durability
from peers.engines.kafka import Kafka

#: The topic of `Kafka.prepare` that has several partitions.
TOPIC = "work"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=10_000_000)
    parser.add_argument("--cores", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--directory", type=Path, help="a journal in it is used; else it is made there and left"
    )
    saved.add_option(parser)
    arguments = parser.parse_args()
    broker = Kafka(Durability.OS)
    jars = ",".join(map(str, sorted(Path(os.environ["SPARK_KAFKA_LIBS"]).glob("*.jar"))))
    directory = arguments.directory or Path(tempfile.mkdtemp(prefix="quire-bench-"))
    directory.mkdir(parents=True, exist_ok=True)
    log = Path(tempfile.mkdtemp(prefix="kafka-", dir=directory))
    try:
        journal = directory / "journal"
        if not journal.exists():
            write(journal, arguments.messages)
        config = {"spark.log.level": "OFF", "spark.jars": jars}
        spark = quire.spark.session(f"local[{arguments.cores}]", memory="3g", config=config)
        with broker.serving(log):
            run(spark, journal, f"127.0.0.1:{broker.port}", arguments)
        spark.stop()
    finally:
        shutil.rmtree(log if arguments.directory else directory)


def run(spark: SparkSession, journal: Path, servers: str, arguments: argparse.Namespace) -> None:
    everything = spark.read.format("quire").load(str(journal))
    options = {"kafka.bootstrap.servers": servers, "topic": TOPIC}
    everything.selectExpr("topic AS key", "data AS value").write.format("kafka").options(**options).save()
    records = (
        spark.read.format("kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", TOPIC)
        .load()
    )
    text = f.col("value").cast("string")
    cases: dict[str, tuple[DataFrame, DataFrame]] = {
        "all columns, data as it is": (everything, records),
        "the data as text": (
            spark.read.format("quire").schema("data string").load(str(journal)),
            records.select(text),
        ),
        "three fields of the data": (
            spark.read.format("quire").schema(JSON_SCHEMA).load(str(journal)),
            records.select(f.from_json(text, JSON_SCHEMA).alias("j")).select("j.*"),
        ),
    }
    assert records.count() == everything.count()
    seconds: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in cases}
    for number in range(arguments.rounds + 1):
        for name, frames in cases.items():
            for frame, found in zip(frames, seconds[name], strict=True):
                begun = time.perf_counter()
                frame.write.format("noop").mode("overwrite").save()
                if number > 0:
                    found.append(time.perf_counter() - begun)
    rows = {}
    for name, found in seconds.items():
        mine, theirs = map(statistics.median, found)
        print(
            f"{name:30} quire {mine:7.2f} s   Kafka {theirs:7.2f} s   ratio {mine / theirs:5.2f}   target <= 1"
        )
        rows[name] = {
            "ratio": round(mine / theirs, 2),
            "journal, s": round(mine, 2),
            "Kafka, s": round(theirs, 2),
        }
    saved.save(arguments.save, rows)


if __name__ == "__main__":
    main()
