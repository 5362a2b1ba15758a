"""What became of the messages of every queue, and how long it took: from the records that the broker writes for its queues."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

#: What of the time in the queue is shown.
PERCENTILES = (0.5, 0.9, 0.99)


def queue_audit(
    spark: SparkSession, journal: str, *, queues: str | None = None, dead_letters: str | None = None
) -> DataFrame:
    """One row per queue, with the columns `queue`, `acknowledged`, `taken`, `expired`, `released`, `cancels`, `reasons`, `p50`, `p90`,
    `p99`, `longest`, `first`, `last`.

    Times are seconds from when the message was taken into the log to when it left the queue. `first` and `last` say when it was that
    something happened.

    - `queues`: names separated by commas; all of them when left out
    - `dead_letters`: the topics that queues send expired messages to; there such a message is the only record of the expiry

    Leases are not recorded, and neither is who acknowledged: a consumer that takes long shows in the times only.
    """
    settled = _changes(spark, journal, queues)
    if dead_letters is not None:
        settled = settled.unionByName(_dead_letters(spark, journal, queues, dead_letters))
    schema = "position long, timestamp_ns long"
    messages = (
        spark.read.format("quire").schema(schema).load(journal).withColumnRenamed("timestamp_ns", "taken_ns")
    )
    waited = (f.col("timestamp_ns") - f.col("taken_ns")) / 1e9
    # What happened to a message that was removed from the journal counts, though nobody knows how long it took.
    rows = settled.join(messages, settled.message == messages.position, "left").withColumn("waited", waited)

    def count(kind: str) -> Column:
        return f.count_if(f.col("kind") == kind).alias(kind)

    left = f.when(f.col("kind") != "cancelled", f.col("waited"))
    found = rows.groupBy("queue").agg(
        count("acknowledged"),
        count("taken"),
        count("expired"),
        count("released"),
        f.count_if(f.col("kind") == "cancelled").alias("cancels"),
        f.concat_ws(",", f.array_sort(f.collect_set("reasons"))).alias("reasons"),
        *[f.percentile(left, f.lit(part)).alias(f"p{part * 100:.0f}") for part in PERCENTILES],
        f.max(left).alias("longest"),
        f.timestamp_micros(f.expr("min(timestamp_ns) div 1000")).alias("first"),
        f.timestamp_micros(f.expr("max(timestamp_ns) div 1000")).alias("last"),
    )
    return found.orderBy("queue")


def _changes(spark: SparkSession, journal: str, queues: str | None) -> DataFrame:
    schema = "topic string, timestamp_ns long, kind string, first_position long, last_position long, reasons string"
    reader = spark.read.format("quire").schema(schema).option("includeQueueEvents", "true")
    events = (reader.option("topics", queues) if queues else reader).load(journal).where("kind != 'publish'")
    message = f.explode(f.sequence("first_position", "last_position")).alias("message")
    return events.select(f.col("topic").alias("queue"), "timestamp_ns", "kind", "reasons", message)


def _dead_letters(spark: SparkSession, journal: str, queues: str | None, topics: str) -> DataFrame:
    reader = spark.read.format("quire").schema("queue string, message long, timestamp_ns long, data string")
    letters = reader.options(topics=topics, **{"field.message": "/position"}).load(journal)
    if queues is not None:
        letters = letters.where(f.col("queue").isin([name.strip() for name in queues.split(",")]))
    reasons = f.array_join(f.from_json(f.get_json_object("data", "$.reason"), "array<string>"), ",")
    return letters.select(
        "queue", "timestamp_ns", f.lit("expired").alias("kind"), reasons.alias("reasons"), "message"
    )
