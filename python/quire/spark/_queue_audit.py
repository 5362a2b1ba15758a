"""What became of the messages of every queue, who held them, and how long it took: from what the broker writes for its queues."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, get_args

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as f

from quire._errors import ConfigError
from quire.spark._options import job_options

#: What of the times is shown.
PERCENTILES = (0.5, 0.9, 0.99)

#: What a row is about.
AuditBy = Literal["queue", "consumer", "message"]

#: How messages leave a queue.
_OUTCOMES = ("acknowledged", "taken", "expired", "released")

#: How leases end, as the journal has it.
_LEASE_ENDS = ("acknowledged", "cancelled", "expired", "ran_out", "left", "lost", "released")


def queue_audit(
    spark: SparkSession,
    journal: str,
    *,
    queues: str | None = None,
    dead_letters: str | None = None,
    by: AuditBy = "queue",
    archive_directory: str | None = None,
    skip_lost: bool = False,
) -> DataFrame:
    """One row per queue, per consumer of a queue, or per message of a queue.

    - `queues`: names separated by commas; all of them when left out
    - `dead_letters`: the topics that queues send expired messages to; there such a message is the only record of the expiry
    - `by`: what a row is about
    - `archive_directory`: where older files of the journal were moved to; needed only where the journal does not say it
    - `skip_lost`: continue without messages that are removed from the journal meanwhile, or cannot be read

    Times are seconds, of which there are the columns `p50`, `p90`, `p99` and `longest`; `first` and `last` say when it was that
    something happened. What needs to be known of leases is null for a queue whose leases were not recorded (`record_leases`).

    - `queue`: `acknowledged`, `taken`, `expired`, `released`, `cancels`, `reasons`; the times from when a message was taken into the log
      to when it left the queue; `delivered`, `redelivered` (messages delivered more than once), `ran_out` (leases whose time was over),
      `held`; `wait_p50` and so on from when it was taken into the log to the first delivery; `lease_p50` and so on from a delivery to
      the end of the lease
    - `consumer`: `queue`, `consumer` (a client name), `delivered`, `redelivered` (deliveries of messages that had been delivered before),
      how many it `acknowledged` and `expired`, also of those that others held, and how its leases ended: `cancelled`, `ran_out`, `left`
      (it disconnected or unsubscribed), `lost` (another consumer settled the message), `released` (it gave the message back before it
      began it), `held` (no end is in the journal); the times of its leases
    - `message`: `queue`, `position`, `bookmark`, `outcome` (null: it is in the queue), `reasons`, `cancels`, `deliveries`, `consumers` in
      the order of the deliveries, `settled_by`; the times `published`, `delivered` (first) and `ended`, and in seconds `wait`, `stay` and
      `leased`, all leases together. Messages to which nothing happened are not among them
    """
    if by not in get_args(AuditBy):
        raise ConfigError(f"by: {by!r} is not one of {', '.join(get_args(AuditBy))}")
    job = job_options(archive_directory, skip_lost)

    def read(schema: str, **options: str) -> DataFrame:
        return spark.read.format("quire").schema(schema).options(**job, **options).load(journal)

    events = _events(read, queues)
    if dead_letters is not None:
        letters = _dead_letters(read, queues, dead_letters)
        events = events.unionByName(letters, allowMissingColumns=True)
    rows = _with_leases(events)
    if by == "consumer":
        return _by_consumer(rows)
    messages = read("position long, bookmark string, timestamp_ns long")
    messages = messages.withColumnRenamed("timestamp_ns", "taken_ns")
    # What happened to a message that was removed from the journal counts, though nobody knows how long it took.
    rows = rows.join(messages, rows.message == messages.position, "left").withColumn(
        "since", _seconds(f.col("timestamp_ns") - f.col("taken_ns"))
    )
    return _by_message(rows) if by == "message" else _by_queue(rows)


def _by_queue(rows: DataFrame) -> DataFrame:
    known = f.count_if(_is("lease")) > 0
    found = rows.groupBy("queue").agg(
        *[f.count_if(f.col("kind") == outcome).alias(outcome) for outcome in _OUTCOMES],
        f.count_if(f.col("kind") == "cancelled").alias("cancels"),
        f.concat_ws(",", f.array_sort(f.collect_set(f.when(_is("outcome"), f.col("reasons"))))).alias(
            "reasons"
        ),
        *_times(f.when(_is("outcome"), f.col("since"))),
        f.when(known, f.count_if(_is("delivery"))).alias("delivered"),
        f.when(known, f.count_if(_is("delivery") & (f.col("number") == 2))).alias("redelivered"),
        f.when(known, f.count_if(f.col("end") == "ran_out")).alias("ran_out"),
        f.when(known, f.count_if(_is("held"))).alias("held"),
        *_times(f.when(_is("delivery") & (f.col("number") == 1), f.col("since")), "wait_"),
        *_times(f.col("leased"), "lease_"),
        *_first_and_last(),
    )
    return found.orderBy("queue")


def _by_consumer(rows: DataFrame) -> DataFrame:
    def ended(end: str) -> Column:
        count = f.count_if(f.col("end") == end)
        unheld = f.count_if((f.col("kind") == "settled_unheld") & (f.col("reasons") == end))
        return (count + unheld if end in ("acknowledged", "expired") else count).alias(end)

    found = (
        rows.where(f.col("consumer").isNotNull())
        .groupBy("queue", "consumer")
        .agg(
            f.count_if(_is("delivery")).alias("delivered"),
            f.count_if(_is("delivery") & (f.col("number") > 1)).alias("redelivered"),
            *[ended(end) for end in _LEASE_ENDS],
            f.count_if(_is("held")).alias("held"),
            *_times(f.col("leased")),
            *_first_and_last(),
        )
    )
    return found.orderBy("queue", "consumer")


def _by_message(rows: DataFrame) -> DataFrame:
    delivery, outcome = _is("delivery"), _is("outcome")
    settles = f.when(
        (f.col("kind") == "settled_unheld") | f.col("end").isin("acknowledged", "expired"), f.col("order")
    )
    consumers = f.sort_array(
        f.collect_list(f.when(delivery, f.struct("order", f.col("consumer").alias("name"))))
    )
    first = f.min(f.when(delivery, f.col("timestamp_ns")))
    found = rows.groupBy("queue", f.col("message").alias("position")).agg(
        f.first("bookmark").alias("bookmark"),
        f.max(f.when(outcome, f.col("kind"))).alias("outcome"),
        f.max(f.when(outcome, f.col("reasons"))).alias("reasons"),
        f.count_if(f.col("kind") == "cancelled").alias("cancels"),
        f.count_if(delivery).alias("deliveries"),
        f.array_join(f.transform(consumers, lambda each: each["name"]), ",").alias("consumers"),
        f.max_by("consumer", settles).alias("settled_by"),
        _moment(f.first("taken_ns")).alias("published"),
        _moment(first).alias("delivered"),
        _moment(f.max(f.when(outcome, f.col("timestamp_ns")))).alias("ended"),
        f.min(f.when(delivery, f.col("since"))).alias("wait"),
        f.max(f.when(outcome, f.col("since"))).alias("stay"),
        f.sum("leased").alias("leased"),
    )
    return found.orderBy("queue", "position")


def _events(read: Callable[..., DataFrame], queues: str | None) -> DataFrame:
    """A row for each message and what happened to it. `order` is that of the log."""
    schema = "topic string, timestamp_ns long, kind string, first_position long, last_position long, reasons string, consumer string"
    options = {"includeQueueEvents": "true"} | ({"topics": queues} if queues else {})
    events = read(schema, **options).where("kind != 'publish'")
    message = f.explode(f.sequence("first_position", "last_position")).alias("message")
    return events.withColumn("order", f.monotonically_increasing_id()).select(
        f.col("topic").alias("queue"), "timestamp_ns", "kind", "reasons", "consumer", "order", message
    )


def _dead_letters(read: Callable[..., DataFrame], queues: str | None, topics: str) -> DataFrame:
    schema = "queue string, message long, timestamp_ns long, data string"
    letters = read(schema, topics=topics, **{"field.message": "/position"})
    # Others may publish there too.
    letters = letters.where(f.col("queue").isNotNull() & f.col("message").isNotNull())
    if queues is not None:
        letters = letters.where(f.col("queue").isin([name.strip() for name in queues.split(",")]))
    reasons = f.array_join(f.from_json(f.get_json_object("data", "$.reason"), "array<string>"), ",")
    return letters.select(
        "queue", "timestamp_ns", f.lit("expired").alias("kind"), reasons.alias("reasons"), "message"
    )


def _with_leases(events: DataFrame) -> DataFrame:
    """Adds to a delivery its `number` for the message, how its lease came to its `end`, and for how long the message was `leased`.

    A message has one holder at a time: what follows a delivery in the log, of what is said of its leases, is the end of that lease.
    """
    is_lease = f.col("kind").isin("delivered", "lease_ended")
    # What is said of leases comes last, so that only that follows a delivery. One order for both: events are sorted once.
    in_order = Window.partitionBy("queue", "message").orderBy("is_lease", "order")
    of_message = in_order.rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)

    def following(column: str) -> Column:
        return f.lead(column).over(in_order)

    is_delivery = f.col("kind") == "delivered"
    is_ended = (
        is_delivery & (following("kind") == "lease_ended") & (following("consumer") == f.col("consumer"))
    )
    is_gone = f.max(f.col("kind").isin(*_OUTCOMES)).over(of_message)
    elapsed = _seconds(following("timestamp_ns") - f.col("timestamp_ns"))
    return (
        events.withColumn("is_lease", is_lease)
        .withColumn("is_delivery", is_delivery)
        .withColumn("is_outcome", f.col("kind").isin(*_OUTCOMES))
        .withColumn("number", f.sum(is_delivery.cast("int")).over(in_order))
        .withColumn("end", f.when(is_ended, following("reasons")))
        .withColumn("leased", f.when(is_ended, elapsed))
        .withColumn("is_held", is_delivery & following("kind").isNull() & ~is_gone)
    )


def _is(what: str) -> Column:
    return f.col(f"is_{what}")


def _times(seconds: Column, prefix: str = "") -> Sequence[Column]:
    parts = [f.percentile(seconds, f.lit(part)).alias(f"{prefix}p{part * 100:.0f}") for part in PERCENTILES]
    return [*parts, f.max(seconds).alias(f"{prefix}longest")]


def _first_and_last() -> Sequence[Column]:
    ends: dict[str, Callable[[str], Column]] = {"first": f.min, "last": f.max}
    return [_moment(end("timestamp_ns")).alias(name) for name, end in ends.items()]


def _moment(nanoseconds: Column) -> Column:
    # Division of whole numbers: as a fraction it would be rounded, and up.
    return f.timestamp_micros(f.call_function("div", nanoseconds, f.lit(1000)))


def _seconds(nanoseconds: Column) -> Column:
    """Never less than nothing, also when the clock of the server was set back between two starts; null when nobody knows."""
    return f.when(nanoseconds < 0, 0).otherwise(nanoseconds) / 1e9
