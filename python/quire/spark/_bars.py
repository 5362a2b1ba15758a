"""Open, high, low, close and volume by window: the numbers of a topic at a scale for people."""

from __future__ import annotations

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from quire._errors import ConfigError
from quire._units import Duration, seconds
from quire.spark._options import job_options


def bars(
    spark: SparkSession,
    journal: str,
    *,
    value: str,
    by: str | None = None,
    size: str | None = None,
    time: str | None = None,
    every: Duration = "1 minute",
    topics: str | None = None,
    filter: str | None = None,
    archive_directory: str | None = None,
    skip_lost: bool = False,
) -> DataFrame:
    """One row per window and key: `start`, `key`, `open`, `high`, `low`, `close`, `mean`, `volume`, `count`.

    - `value`, `by`, `size`, `time`: paths in the data such as `/price`, `/symbol`, `/qty`, `/at`.
      `volume` adds up `size`. Without `time` the time at which the journal took the message counts
    - `every`: the window: `10s`, `15m`, `4h`, a `timedelta`, or as Spark has it: `1 minute`,
      `1 day`
    - `archive_directory`: where older files of the journal were moved to; needed only where the
      journal does not say it
    - `skip_lost`: continue without messages that are removed from the journal meanwhile, or cannot
      be read

    Open and close are those of the first and the last message of the window in the order of the
    journal: times can be equal.
    """
    columns = {"position": "position long", "moment": "timestamp timestamp", "value": "value double"}
    paths = {"value": value}
    if by is not None:
        columns["by"], paths["by"] = "by string", by
    if size is not None:
        columns["size"], paths["size"] = "size double", size
    if time is not None:
        columns["moment"], paths["moment"] = "moment timestamp", time
    for name, path in paths.items():
        if not path.startswith(("/", "[/")):
            raise ConfigError(
                f"{'time' if name == 'moment' else name}: {path!r} is no path in the data, such as /price or [/odd name]"
            )
    window = _window(spark, every)
    reader = spark.read.format("quire").schema(", ".join(columns.values()))
    reader = reader.options(**{f"field.{name}": path for name, path in paths.items()})
    reader = reader.options(**job_options(archive_directory, skip_lost))
    reader = reader.option("topics", topics) if topics else reader
    frame = (reader.option("filter", filter) if filter else reader).load(journal)
    moment = f.col("timestamp") if time is None else f.col("moment")
    key = f.lit(None).cast("string") if by is None else f.col("by")
    volume = f.lit(None).cast("double") if size is None else f.sum("size")
    rows = frame.where("value IS NOT NULL").where(moment.isNotNull())
    grouped = rows.groupBy(f.window(moment, window).alias("window"), key.alias("key"))
    found = grouped.agg(
        f.min_by("value", "position").alias("open"),
        f.max("value").alias("high"),
        f.min("value").alias("low"),
        f.max_by("value", "position").alias("close"),
        f.avg("value").alias("mean"),
        volume.alias("volume"),
        f.count("value").alias("count"),
    )
    return found.select(f.col("window.start").alias("start"), *found.columns[1:])


def _window(spark: SparkSession, every: Duration) -> str:
    """Returns the window in the form of Spark. Only Spark can check it, so Spark checks it before
    anything is read."""
    try:
        window = f"{round(seconds(every, 'every') * 1e6)} microseconds"
    except ConfigError:
        window = str(every)
    try:
        _ = spark.range(0).select(f.window(f.timestamp_seconds("id"), window)).schema
    except PySparkException:
        raise ConfigError(
            f"every: {every!r} is no window such as '10s', '15m', '4h' or '1 day'; there are none of months"
        ) from None
    return window
