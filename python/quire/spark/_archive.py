"""The journal as Parquet: incremental, by topic and date, each message once.

A batch of the stream is a directory, `batch=N/topic=T/date=D/`, which is written whole or written
again. So a run that is killed anywhere is completed by the next one. `compact` joins the
directories of many runs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql import types as t

from quire._errors import ConfigError
from quire._quire import SparkJournal, SparkRead, spark_columns, spark_frame
from quire.spark._files import Files
from quire.spark._options import job_options, options_of
from quire.spark._scan import log, scan, tasks_of

_CHECKPOINT = "_checkpoint"
_JOINED = "_joined"
_PLAN = "_plan.json"

#: Bytes of a name in the file systems that there are; `topic=` is a part of it.
_NAME_MAX = 255
_PREFIX = "topic="
#: The characters that Spark writes as `%` and two digits into names of directories.
_ESCAPED = re.compile(r"[\x01-\x1f\x7f\"#%'*/:=?\\{\[\]^]")
#: Topics whose directory could have too long a name: no character has more than four bytes, escaped
#: or not.
_LONG = f"(?s)^.{{{(_NAME_MAX - len(_PREFIX)) // 4},}}$"
_NOT_ASCII = "[^\\x00-\\x7f]"

#: Columns of the directories that messages do not have.
_OWN_COLUMNS = frozenset({"batch", "date"})


@dataclass(frozen=True)
class Archived:
    """The result of `archive`."""

    #: Messages that were added.
    messages: int
    #: Batches in which they were.
    batches: int
    target: str
    #: Positions that were removed from the journal before a run reached them, and are missing in
    #: the archive.
    lost: int = 0


@dataclass(frozen=True)
class Compacted:
    """The result of `compact`."""

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
    archive_directory: str | None = None,
    skip_lost: bool = False,
) -> Archived:
    """Adds the messages since the last run to the Parquet data set `target`.

        quire.spark.archive(spark, "quire-data/journal", "archive", fields="price double, qty int")

    - `topics`: names separated by commas; without it, all topics
    - `fields`: typed columns from the data, as in `option("fields", ...)`
    - `max_messages`: limit of messages in a batch; each batch is one directory
    - `archive_directory`: the directory with the archived files of the journal, if the journal does
      not name it
    - `skip_lost`: skip messages that were removed from the journal or cannot be read

    Topics and fields may change between runs. They apply to the messages that a run adds. Messages
    that a run skips are not added by later runs.

    Raises `BadBookmarkError` when messages were removed before a run archived them. Raises
    `ConfigError` when the name of a directory would be too long, or contain characters that Java
    cannot write. Nothing is written then.
    """
    if not 1 <= max_messages < 1 << 63:
        raise ConfigError(f"max_messages: {max_messages} is not from 1 to {(1 << 63) - 1}")
    if fields:
        own = _OWN_COLUMNS.intersection(name.lower() for name in spark_columns("fields", fields))
        if own:
            raise ConfigError(f"fields: {min(own)} is a column of the archive itself")
    options = {"startingOffsets": "earliest", "maxMessagesPerTrigger": str(max_messages)}
    options |= {"topics": topics} if topics else {}
    options |= {"fields": fields} if fields else {}
    options |= job_options(archive_directory, skip_lost)
    counts: list[int] = []

    names = _Names(spark, journal, target, topics, job_options(archive_directory, skip_lost))
    names.check()

    def write(frame: DataFrame, batch: int) -> None:
        names.check()  # the messages since the last run
        # The date in UTC, independent of the time zone of the session.
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
    return Archived(sum(counts), len(counts), target, names.lost)


class _Names:
    """Checks the directories that a run will make, before it makes them: Spark would fail in the
    middle of a batch."""

    def __init__(
        self, spark: SparkSession, journal: str, target: str, topics: str | None, options: dict[str, str]
    ) -> None:
        self._files = Files(spark, target)
        self._encoding = self._files.encoding()
        if self._encoding is not None and not target.isascii():
            raise self._not_written(target)
        self._topics = topics
        pattern = f"{_LONG}|{_NOT_ASCII}" if self._encoding is not None else _LONG
        self._frame = spark_frame({"path": journal, "topicPattern": pattern, **options})
        self._options = options_of(json.loads(self._frame)["options"])
        self._journal = SparkJournal(self._options.directories[0], self._options.archive)
        begin, (first, last) = self._begin(), self._journal.bounds()
        # The first run begins with what the journal has.
        self._after = first - 1 if begin is None else self._retained(begin, last)
        #: Positions after the last batch that were removed from the journal.
        self.lost = 0 if begin is None else self._after - begin

    def check(self) -> None:
        """Looks at what the journal has gained since the last time."""
        given = self._topics and [name.strip() for name in self._topics.split(",")]
        for topic in given or self._unusual():
            size = len((_PREFIX + _ESCAPED.sub("%00", topic)).encode())
            if size > _NAME_MAX:
                raise ConfigError(
                    f"topics: the directory of {topic[:40]!r}... would have a name of {size} bytes, and file systems take {_NAME_MAX}; "
                    "name the topics to archive, without it"
                )
            if self._encoding is not None and not topic.isascii():
                raise self._not_written(topic)

    def _unusual(self) -> Iterator[str]:
        """The topics of new messages whose names have to be checked: the scan skips all others."""
        _, last = self._journal.bounds()
        self._after = self._retained(min(self._after, last), last)
        schema = t.StructType([t.StructField("topic", t.StringType())]).json()
        read = SparkRead(f'{{"frame": {self._frame}, "schema": {schema}}}')
        for task in tasks_of(*read.plan_part(self._journal.directory, self._after, last)):
            for batch in scan(task):
                yield from batch.column(0).unique().to_pylist()
        self._after = last

    def _retained(self, after: int, last: int) -> int:
        begin, warnings = self._journal.retained(after, last, self._options.fail_on_data_loss)
        for warning in warnings:
            log.warning("%s", warning)
        return begin

    def _begin(self) -> int | None:
        """Where the run begins: after the last batch that Spark has noted to be whole; `None` for
        the first run."""
        offsets, commits = (f"{_CHECKPOINT}/{name}" for name in ("offsets", "commits"))
        numbers = [int(name) for name in self._files.names(offsets) if name.isdigit()]
        if not numbers:
            return None
        newest = str(max(numbers))
        lines = (self._files.read(f"{offsets}/{newest}") or "").splitlines()
        place: Any = json.loads(lines[-1])["journals"].get(self._journal.directory) if lines else None
        if place is None:
            return None
        return int(place["to" if self._files.exists(f"{commits}/{newest}") else "from"])

    def _not_written(self, name: str) -> ConfigError:
        return ConfigError(
            f"target: Java writes the names of files in {self._encoding}, which {name[:40]!r} cannot be written in; start it in a "
            "locale with UTF-8, such as LC_ALL=C.UTF-8"
        )


def compact(spark: SparkSession, target: str) -> Compacted:
    """Joins all batches of an archive except the newest one into one directory.

    The joined files are written next to the batches, and then replace them. The next run completes
    a run that was killed. Do not read the archive while directories are replaced. Raises
    `ConfigError` when there is no archive.
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
    """Replaces the directories by the joined one. Continues from the step at which an earlier run
    was stopped."""
    plan = files.read(_PLAN)
    if plan is None:
        return
    replaces: list[str] = json.loads(plan)["replaces"]
    if files.exists(_JOINED):
        for name in replaces:
            files.remove(name)
        files.rename(_JOINED, replaces[-1])
    files.remove(_PLAN)
