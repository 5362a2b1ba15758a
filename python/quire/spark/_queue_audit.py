"""Reports the outcome of the messages of each queue, their consumers, and the times, from queue records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, get_args

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as f

from quire._errors import ConfigError
from quire.spark._options import job_options

#: The percentiles of the times.
PERCENTILES = (0.5, 0.9, 0.99)

#: The subject of a row.
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
    """Returns one row per queue, per consumer of a queue, or per message of a queue.

    - `queues`: names separated by commas; without it, all queues
    - `dead_letters`: the dead letter topics of the queues. They contain the only record of an
      expired message
    - `by`: the subject of a row: `"queue"`, `"consumer"` or `"message"`
    - `archive_directory`: the directory with the archived files of the journal, if the journal does
      not name it
    - `skip_lost`: skip messages that were removed from the journal or cannot be read

    Times are in seconds, in the columns `p50`, `p90`, `p99` and `longest`. `first` and `last` are
    the times of the first and the last event. Columns about leases are null for a queue without
    recorded leases (`record_leases`).

    The columns with `by="queue"`:

    - `acknowledged`, `taken`, `expired`, `released`, `cancels`, `reasons`.
    - The times from the record of a message to its end in the queue.
    - `delivered`, `redelivered` (messages delivered more than once), `ran_out` (leases that timed
      out), `held`
    - `wait_p50` and so on: the time from the record of a message to its first delivery
    - `lease_p50` and so on: the time from a delivery to the end of the lease

    The columns with `by="consumer"`:

    - `queue`, `consumer` (a client name)
    - `delivered`, `redelivered` (deliveries of messages that had been delivered before)
    - `acknowledged`, `expired`: messages that it settled, including messages that other consumers
      held
    - its leases, by their end: `cancelled`, `ran_out`, `left` (it disconnected or unsubscribed),
      `lost` (another consumer settled the message), `released` (returned before it was handled),
      `held` (no end in the journal)
    - the times of its leases

    The columns with `by="message"`. Messages without an event have no row:

    - `queue`, `position`, `bookmark`, `outcome` (null: it is in the queue), `reasons`, `cancels`,
      `deliveries`
    - `consumers` in the order of the deliveries, `settled_by`
    - `published`, `delivered` (first delivery), `ended`: times
    - `wait`, `stay`, and `leased` (the sum of all leases): in seconds
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
    # The events of a message that was removed from the journal are counted. Their times are not
    # known.
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
    """Adds to a delivery its `number` for the message, the `end` of its lease, and the time for
    which the message was `leased`.

    A message has one holder at a time. So the next lease event after a delivery in the log is the
    end of its lease.
    """
    is_lease = f.col("kind").isin("delivered", "lease_ended")
    # The events of leases are last, so that only they follow a delivery. Both have one order, so
    # events are sorted once.
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
    """Returns seconds, at least 0 even if the clock of the server was set back; null for an unknown time."""
    return f.when(nanoseconds < 0, 0).otherwise(nanoseconds) / 1e9
