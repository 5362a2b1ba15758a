"""The journal as Parquet: incremental, by topic and date, each message once.

A batch of the stream is a directory, `batch=N/topic=T/date=D/`, which is written whole or written again. So a run that is killed
anywhere is completed by the next one. `compact` joins the directories of many runs.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from quire._errors import ConfigError
from quire.spark import _columns
from quire.spark._files import Files

_CHECKPOINT = "_checkpoint"
_JOINED = "_joined"
_PLAN = "_plan.json"

#: Columns of the directories that messages do not have.
_OWN_COLUMNS = frozenset({"batch", "date"})


@dataclass(frozen=True)
class Archived:
    """What `archive` did."""

    #: Messages that were added.
    messages: int
    #: Batches in which they were.
    batches: int
    target: str


@dataclass(frozen=True)
class Compacted:
    """What `compact` did."""

    #: Directories that were joined.
    joined: int
    #: Messages in the one that they became.
    messages: int
    target: str


def archive(
    spark: SparkSession,
    journal: str,
    target: str,
    *,
    topics: str | None = None,
    fields: str | None = None,
    max_messages: int = 10_000_000,
) -> Archived:
    """Adds what the journal has gained since the last run to the Parquet data set `target`.

    - `topics`: names separated by commas; all of them when left out
    - `fields`: typed columns from the data, as `option("fields", ...)` has them
    - `max_messages`: of one batch, which is one directory

    Topics and fields may change from run to run. They hold for what a run adds: what it passes over, no later one comes back to.
    """
    if not 1 <= max_messages < 1 << 63:
        raise ConfigError(f"max_messages: {max_messages} is not from 1 to {(1 << 63) - 1}")
    if fields:
        own = _OWN_COLUMNS.intersection(name.lower() for name in _columns.defined("fields", fields))
        if own:
            raise ConfigError(f"fields: {min(own)} is a column of the archive itself")
    options = {"startingOffsets": "earliest", "maxMessagesPerTrigger": str(max_messages)}
    options |= {"topics": topics} if topics else {}
    options |= {"fields": fields} if fields else {}
    counts: list[int] = []

    def write(frame: DataFrame, batch: int) -> None:
        # That of UTC, whatever the zone of the session is.
        days = f.floor(f.unix_seconds("timestamp") / 86_400).cast("int")
        dated = frame.withColumn("date", f.date_from_unix_date(days))
        path = f"{target.rstrip('/')}/batch={batch:09d}"
        writer = dated.sortWithinPartitions("position").write.mode("overwrite").option("compression", "zstd")
        writer.partitionBy("topic", "date").parquet(path)
        counts.append(spark.read.parquet(path).count() if _has_messages(Files(spark, path)) else 0)

    stream = spark.readStream.format("quire").options(**options).load(journal)
    query = (
        stream.writeStream.foreachBatch(write)
        .option("checkpointLocation", f"{target.rstrip('/')}/{_CHECKPOINT}")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return Archived(sum(counts), len(counts), target)


def compact(spark: SparkSession, target: str) -> Compacted:
    """Joins the batches of an archive, the newest apart, into one directory.

    What is joined is written beside them first, then takes their place. A run that was killed is completed by the next one. Nobody should
    read the archive while the directories change places. `ConfigError` when there is none.
    """
    files = Files(spark, target)
    if not files.names():
        raise ConfigError(f"target: there is no archive in {target}")
    _change_places(files)
    # The newest may be written again, if its run was killed before Spark noted it.
    batches = [name for name in files.names() if name.startswith("batch=")][:-1]
    filled = [name for name in batches if _has_messages(files, name)]
    if len(batches) < 2 or not filled:
        return Compacted(0, 0, target)
    files.remove(_JOINED)
    frame = _as_written(spark, files, filled)
    joined = frame.drop("batch").repartition("topic", "date").sortWithinPartitions("position")
    joined.write.option("compression", "zstd").partitionBy("topic", "date").parquet(files.path(_JOINED))
    count = spark.read.parquet(files.path(_JOINED)).count()
    files.write(_PLAN, json.dumps({"replaces": batches}))
    _change_places(files)
    return Compacted(len(batches), count, target)


def _has_messages(files: Files, batch: str = "") -> bool:
    """Whether the directory of a batch has more in it than the note of Spark that it is whole."""
    return any(name.startswith("topic=") for name in files.names(batch))


def _as_written(spark: SparkSession, files: Files, batches: list[str]) -> DataFrame:
    """Every column that any batch has; topics as text, also where all of them look like numbers."""
    setting = "spark.sql.sources.partitionColumnTypeInference.enabled"
    guesses = str(spark.conf.get(setting))
    spark.conf.set(setting, "false")
    try:
        reader = spark.read.option("basePath", files.path("")).option("mergeSchema", "true")
        return reader.parquet(*[files.path(name) for name in batches])
    finally:
        spark.conf.set(setting, guesses)


def _change_places(files: Files) -> None:
    """Puts the joined directory in the place of those that it was made of, from wherever an earlier run was stopped."""
    plan = files.read(_PLAN)
    if plan is None:
        return
    replaces: list[str] = json.loads(plan)["replaces"]
    if files.exists(_JOINED):
        for name in replaces:
            files.remove(name)
        files.rename(_JOINED, replaces[-1])
    files.remove(_PLAN)
