"""The third act of `quire demo`: the journal of the acts before it through Spark, its numbers
checked against the data set."""

from __future__ import annotations

import importlib.util
import json
import shutil
import time
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from pyspark.sql import Row

#: What is shown of carriers and hours.
ROWS = 5


def act(console: Console, journal: Path, topic: str, flights: list[bytes], queue: str | None) -> bool:
    """Runs it; false when a number is wrong. `queue` has had every flight as a job. Without Spark
    it prints how to install it."""
    if importlib.util.find_spec("pyspark") is None or shutil.which("java") is None:
        console.print(
            "[yellow]Spark would read the journal now[/]: pip install 'quire-mq\\[spark]', and Java 17 or newer"
        )
        return True
    from pyspark.sql import functions as f

    import quire.spark

    begun = time.perf_counter()
    spark = quire.spark.session(memory="1g", name="quire demo", quiet=True)
    try:
        console.print(
            f"a session after {time.perf_counter() - begun:.1f} s; the fields of the JSON are read in Rust"
        )
        begun = time.perf_counter()
        schema = "position long, carrier string, sched_dep_time int, dep_delay double"
        frame = spark.read.format("quire").schema(schema).option("topics", topic).load(str(journal)).cache()
        hour = (f.col("sched_dep_time") / 100).cast("int")
        found = {
            "carrier": frame.groupBy("carrier"),
            "hour": frame.groupBy(hour.alias("hour")),
        }
        delays: dict[str, dict[str, tuple[int, float]]] = {}
        for name, groups in found.items():
            rows = groups.agg(f.count("dep_delay").alias("n"), f.sum("dep_delay").alias("sum")).collect()
            delays[name] = {str(row[name]): (row["n"], row["sum"] or 0.0) for row in rows}
        count = frame.count()
        console.print(f"{count:,} flights in {time.perf_counter() - begun:.1f} s")
        console.print(_table(delays))
        acknowledged, by_workers = len(flights), len(flights)
        if queue is not None:
            (audit,) = quire.spark.queue_audit(spark, str(journal), queues=queue).collect()
            workers = quire.spark.queue_audit(spark, str(journal), queues=queue, by="consumer").collect()
            acknowledged, by_workers = audit.acknowledged, sum(worker.acknowledged for worker in workers)
            console.print(
                f"audit of {queue}: {acknowledged:,} jobs acknowledged, {audit.expired:,} expired; from the publish to the "
                f"acknowledgement half took less than {audit.p50:.1f} s, the longest {audit.longest:.1f} s"
            )
            console.print(_audit_table(workers))
        begun = time.perf_counter()
        target = journal.parent / "archive"
        archived = quire.spark.archive(spark, str(journal), str(target), topics=topic)
        again = quire.spark.archive(spark, str(journal), str(target), topics=topic)
        console.print(
            f"archive: {archived.messages:,} messages as Parquet in {time.perf_counter() - begun:.1f} s, "
            f"{again.messages:,} more when it is run again"
        )
    finally:
        spark.stop()
    counts = {count, archived.messages, acknowledged, by_workers, len(flights)}
    is_right = delays == _expected(flights) and len(counts) == 1 and again.messages == 0
    console.print(
        "[bold green]every sum is that of the data set[/]"
        if is_right
        else "[bold red]Spark's numbers are not those of the data set[/]"
    )
    return is_right


def _expected(flights: Iterable[bytes]) -> dict[str, dict[str, tuple[int, float]]]:
    """The same without quire and without Spark."""
    sums: dict[str, dict[str, tuple[int, float]]] = {
        "carrier": defaultdict(lambda: (0, 0.0)),
        "hour": defaultdict(lambda: (0, 0.0)),
    }
    for data in flights:
        flight = json.loads(data)
        delay = flight["dep_delay"]
        for name, key in (("carrier", flight["carrier"]), ("hour", str(flight["sched_dep_time"] // 100))):
            count, total = sums[name][key]
            sums[name][key] = (count, total) if delay is None else (count + 1, total + delay)
    return {name: dict(groups) for name, groups in sums.items()}


def _audit_table(workers: Iterable[Row]) -> Table:
    """Returns the table of the workers: the number and the time of the jobs of each."""
    table = Table(title="the jobs by worker, from the journal")
    table.add_column("worker")
    for column in ("given", "acknowledged", "not settled", "median time", "longest time"):
        table.add_column(column, justify="right")
    for worker in workers:
        counts = [f"{count:,}" for count in (worker.delivered, worker.acknowledged, worker.left)]
        times = ["" if time is None else f"{time:.3f} s" for time in (worker.p50, worker.longest)]
        table.add_row(worker.consumer, *counts, *times)
    return table


def _table(delays: dict[str, dict[str, tuple[int, float]]]) -> Table:
    """The worst of both, by the mean."""
    table = Table(title="mean delay in minutes")
    columns = {}
    for name, groups in delays.items():
        table.add_column(name)
        table.add_column("delay", justify="right")
        means = sorted(
            ((total / count, key) for key, (count, total) in groups.items() if count), reverse=True
        )
        columns[name] = [(key, f"{mean:.1f}") for mean, key in means[:ROWS]]
    for row in zip(*columns.values(), strict=False):
        table.add_row(*(cell for pair in row for cell in pair))
    return table


__all__ = ["act"]
