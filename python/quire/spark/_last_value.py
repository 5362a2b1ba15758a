"""The newest message of every key: the state that a topic describes, as a table."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from quire._errors import ConfigError
from quire._quire import SparkJournal, spark_columns
from quire.spark._files import Files
from quire.spark._options import job_options, read_options
from quire.spark._scan import log

_STATE = "_state.json"


@dataclass(frozen=True)
class LastValues:
    """The result of `last_value`."""

    #: Messages that were read.
    messages: int
    #: Keys in the table.
    keys: int
    #: The Parquet data set with the table as it is now.
    path: str
    #: Positions that were removed from the journal before a run reached them: no value is from
    #: there.
    lost: int = 0


def last_value(
    spark: SparkSession,
    journal: str,
    target: str,
    *,
    keys: str,
    topics: str | None = None,
    archive_directory: str | None = None,
    skip_lost: bool = False,
) -> LastValues:
    """Brings the table below `target` up to date: for each topic and key the newest message.

    `keys` are columns from the data, `"id string"` or `"account string, symbol string"`. The first
    run reads the journal from its beginning, and later runs read the new messages. The previous
    table is kept until the new one is complete.

    - `archive_directory`: where older files of the journal were moved to; needed only where the
      journal does not say it
    - `skip_lost`: continue without messages that were removed from the journal or cannot be read

    Raises `BadBookmarkError` when the journal is not the one of the previous run, and when messages
    were removed from it that no run has read.
    """
    files = Files(spark, target)
    state = json.loads(files.read(_STATE) or '{"position": 0, "version": 0}')
    if state.get("keys", keys) != keys or state.get("topics", topics) != topics:
        raise ConfigError(
            f"keys, topics: {target} was made with {state['keys']!r} of {state['topics'] or 'all topics'}"
        )
    columns = spark_columns("keys", keys)
    # The end of the run comes from the journal, not from the rows: the newest record may have
    # another topic, or be no message. Later messages are left to the next run, even if the frame, a
    # later snapshot, contains them.
    job = job_options(archive_directory, skip_lost)
    options = read_options({"path": journal, **job})
    opened, at = SparkJournal(options.directories[0], options.archive), state.get("at")
    # Raises when the last record of the table has changed in the journal: the new messages could
    # not be determined.
    opened.check(state["position"], None if at is None else (str(at[0]), int(at[1])))
    position = max(state["position"], opened.bounds()[1])
    lost = 0
    # The first run begins with what the journal has.
    if state["version"]:
        begin, warnings = opened.retained(state["position"], position, options.fail_on_data_loss)
        lost = begin - state["position"]
        for warning in warnings:
            log.warning("%s", warning)
    reader = spark.read.format("quire").option("fields", keys).options(**job)
    # Every use of the frame has the conditions below.
    reader = reader.option("pushConditions", "true")
    everything = (reader.option("topics", topics) if topics else reader).load(journal)
    new = everything.where(f"position > {state['position']} AND position <= {position}")
    new = new.where(reduce(lambda both, each: both & each, (f.col(name).isNotNull() for name in columns)))
    new = new.where("kind = 'publish'")
    looked_at = new.count()
    version = state["version"] + 1
    _newest(spark, new, files, state["version"], columns).write.mode("overwrite").parquet(
        files.path(f"version={version}")
    )
    after = {"position": position, "at": opened.identity(position), "version": version}
    files.write(_STATE, json.dumps({**after, "keys": keys, "topics": topics}))
    files.remove(f"version={state['version']}")
    path = files.path(f"version={version}")
    return LastValues(looked_at, spark.read.parquet(path).count(), path, lost)


def _newest(spark: SparkSession, new: DataFrame, files: Files, version: int, keys: list[str]) -> DataFrame:
    if version:
        # A table of an earlier version has fewer columns.
        before = spark.read.parquet(files.path(f"version={version}"))
        new = before.unionByName(new, allowMissingColumns=True)
    whole = f.struct(*[f.col(name) for name in new.columns])
    return new.groupBy("topic", *keys).agg(f.max_by(whole, "position").alias("newest")).select("newest.*")
