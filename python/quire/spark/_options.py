"""The options of the data source: read strictly, each with the unit and meaning that `docs/spark.md` gives it."""

from __future__ import annotations

import difflib
import json
import os
import re
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Final, TypeVar

from quire import _units
from quire._bookmarks import EPOCH, NOW, point_to_core, time_ns
from quire._errors import BadBookmarkError, ConfigError

T = TypeVar("T")

EARLIEST: Final = "earliest"
LATEST: Final = "latest"

#: The limit of messages in the first batch of a query, so that a backlog does not become one batch.
MAX_MESSAGES_PER_TRIGGER: Final = 1_000_000
#: Bytes of the log for one task: a few seconds of work, so that a lost one costs little.
PARTITION_BYTES: Final = 128 << 20
#: Below this a task costs more to start than to run.
PARTITION_BYTES_MIN: Final = 16 << 20

#: The last time that a column `timestamp_ns` can hold, in 2262.
_NS_MAX: Final = (1 << 63) - 1
#: The largest count of the core and Spark.
_COUNT_MAX: Final = (1 << 63) - 1
#: Tasks of one read: more cost more to hand out than to run, and a server is asked for every cut.
PARTITIONS_MAX: Final = 100_000
#: Those of the core: offsets in an Arrow batch have 32 bits.
BATCH_ROWS_MAX: Final = (1 << 31) - 1
BATCH_BYTES_MAX: Final = 256 << 20


@dataclass(frozen=True)
class ReadOptions:
    """The options of `spark.read` and `spark.readStream`."""

    #: Journal directories, absolute.
    directories: tuple[str, ...] = ()
    #: Where older segments of the journal were moved to.
    archive: str | None = None
    #: A running server instead of directories.
    url: str | None = None
    #: Client name, and user where the server asks for one; the password comes from the environment or a file.
    user: str | None = None
    password_file: str | None = None
    #: `{"names": [...]}`, `{"pattern": ...}` or `{"prefix": ...}`.
    topics: Mapping[str, Any] | None = None
    filter: str | None = None
    #: `EARLIEST`, `LATEST`, a number such as -1000, `-10 minutes`, or a bookmark or time as the core reads it.
    starting: str = EARLIEST
    ending: str = LATEST
    #: Nanoseconds since 1970; they win over `starting` and `ending`.
    starting_ns: int | None = None
    ending_ns: int | None = None
    #: The reaction to a starting time after the head: `error` or `latest`.
    timestamp_strategy: str = "error"
    fail_on_data_loss: bool = True
    max_messages: int = MAX_MESSAGES_PER_TRIGGER
    max_bytes: int | None = None
    min_messages: int | None = None
    max_trigger_delay: timedelta = timedelta(minutes=15)
    partition_bytes: int | None = None
    min_partitions: int | None = None
    batch_rows: int = 10_000
    batch_bytes: int = 4 << 20
    #: DDL of columns that come on top of the record's own.
    fields: str | None = None
    #: Path of a column, in lower case, in the data when it is not its name.
    field_paths: Mapping[str, str] = field(default_factory=dict)
    includes_events: bool = False
    includes_deletes: bool = False
    includes_headers: bool = False
    #: Conditions of Spark are taken, for all uses of the frame that come after.
    takes_conditions: bool = False
    #: Only the newest message of each key of this topic.
    last_values: str | None = None
    #: The lifetimes of its records, as the topic is configured: `disabled`, `enabled`, or seconds.
    expiration: str | float = "disabled"

    @property
    def places(self) -> str:
        """Where it reads, for messages to people."""
        return self.url or ", ".join(self.directories)


@dataclass(frozen=True)
class WriteOptions:
    """The options of `df.write` and `df.writeStream`."""

    #: A server, or `file:` and a directory.
    url: str
    user: str | None = None
    password_file: str | None = None
    #: Where all rows go; else the column `topic` says.
    topic: str | None = None
    #: The identity of the sink among those that write into this log.
    publisher: str = "spark"
    #: The identity of a batch write: written again, it changes nothing.
    transaction: str | None = None
    #: Raised when a name is to be used again after its checkpoint was deleted on purpose.
    epoch: int = 0
    #: Where tasks leave their rows until the batch is complete. All executors and the driver see it.
    staging: str | None = None
    checkpoint: str | None = None
    flush_timeout: timedelta = timedelta(minutes=5)

    @property
    def staging_directory(self) -> Path:
        """Returns the directory in the options, or one near the checkpoint, the journal, or temporary files."""
        if self.staging is not None:
            return Path(_local_path("stagingDirectory", self.staging))
        if self.checkpoint is not None:
            return Path(_local_path("checkpointLocation", self.checkpoint)) / "quire-staging"
        if self.url.startswith("file:"):
            return Path(f"{self.url.removeprefix('file:')}.staging")
        return Path(tempfile.gettempdir()) / f"quire-staging-{os.getuid()}"


_READ: tuple[str, ...] = (
    "path",
    "paths",
    "archiveDirectory",
    "url",
    "user",
    "passwordFile",
    "topics",
    "topicPattern",
    "topicPrefix",
    "filter",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "timestampStrategy",
    "failOnDataLoss",
    "maxMessagesPerTrigger",
    "maxBytesPerTrigger",
    "minMessagesPerTrigger",
    "maxTriggerDelay",
    "partitionBytes",
    "minPartitions",
    "batchRows",
    "batchBytes",
    "fields",
    "includeQueueEvents",
    "includeDeletes",
    "includeHeaders",
    "lastValues",
    "expiration",
    "pushConditions",
)
_WRITE: tuple[str, ...] = (
    "path",
    "url",
    "user",
    "passwordFile",
    "topic",
    "publisher",
    "txnId",
    "sinkEpoch",
    "stagingDirectory",
    "checkpointLocation",
    "flushTimeout",
)
#: Spark gives these to sources and sinks on its own account.
_OF_SPARK = frozenset({"checkpointlocation", "querydescription", "queryname", "reader"})
_FIELD = "field."

#: `-1000`, `-10 minutes`: back from the end. Whether there is such a unit is checked where it is used.
_BACK = re.compile(r"-[0-9]+|-\s*[0-9]+(?:\.[0-9]+)?\s*[a-z]+")


def read_options(options: Mapping[str, str]) -> ReadOptions:
    """Reads the options of a source. `ConfigError` names what is wrong."""
    given = _Given(options, _READ, prefix=_FIELD)
    directories = given.directories()
    url = given.text("url")
    if (url is None) == (not directories):
        raise ConfigError("path, url: exactly one of them says where the messages are")
    if url is not None and not url.startswith("quire://"):
        raise ConfigError(f"url: {url!r} is no quire://host:port; a directory goes into path")
    archive = given.text("archiveDirectory")
    if archive is not None and len(directories) != 1:
        raise ConfigError("archiveDirectory: it is that of one journal directory")
    includes_events = given.flag("includeQueueEvents", False)
    if includes_events and url is not None:
        raise ConfigError("includeQueueEvents: a server sends messages only; read its directory")
    includes_deletes = given.flag("includeDeletes", False)
    if includes_deletes and url is not None:
        raise ConfigError("includeDeletes: a server sends messages only; read its directory")
    last_values = given.text("lastValues")
    _check_last_values(given, last_values, directories)
    return ReadOptions(
        directories=directories,
        archive=None if archive is None else _local_path("archiveDirectory", archive),
        url=url,
        user=given.text("user"),
        password_file=given.text("passwordFile"),
        topics=_topics(given) if last_values is None else {"names": [last_values]},
        filter=given.text("filter"),
        starting=given.offset("startingOffsets", EARLIEST),
        ending=given.offset("endingOffsets", LATEST),
        starting_ns=given.convert("startingTimestamp", timestamp_ns),
        ending_ns=given.convert("endingTimestamp", timestamp_ns),
        timestamp_strategy=given.one_of("timestampStrategy", "error", "latest"),
        fail_on_data_loss=given.flag("failOnDataLoss", True),
        max_messages=given.count("maxMessagesPerTrigger") or MAX_MESSAGES_PER_TRIGGER,
        max_bytes=given.size("maxBytesPerTrigger"),
        min_messages=given.count("minMessagesPerTrigger"),
        max_trigger_delay=given.duration("maxTriggerDelay", timedelta(minutes=15)),
        partition_bytes=given.size("partitionBytes"),
        min_partitions=given.count("minPartitions", most=PARTITIONS_MAX),
        batch_rows=given.count("batchRows", most=BATCH_ROWS_MAX) or 10_000,
        batch_bytes=given.size("batchBytes", most=BATCH_BYTES_MAX) or 4 << 20,
        fields=given.text("fields"),
        field_paths=given.prefixed(),
        includes_events=includes_events,
        includes_deletes=includes_deletes,
        last_values=last_values,
        expiration=_expiration(given),
        includes_headers=given.flag("includeHeaders", False),
        takes_conditions=given.flag("pushConditions", False),
    )


#: Options that say which messages are read. With `lastValues` there is no choice.
_WITHOUT_LAST_VALUES = {
    "topics": "lastValues names the topic",
    "topicPattern": "lastValues names the topic",
    "topicPrefix": "lastValues names the topic",
    "startingOffsets": "the log is searched from its beginning; endingOffsets selects the state at an earlier point",
    "startingTimestamp": "the log is searched from its beginning; endingTimestamp selects the state at an earlier time",
    "includeQueueEvents": "a state has no events",
    "includeDeletes": "deleted records are not in the state",
    "url": "the newest messages are found in the files of the journal; read its directory, or use client.sow(...).to_arrow()",
}


def _check_last_values(given: _Given, topic: str | None, directories: Sequence[str]) -> None:
    """Raises `ConfigError` for options that do not fit to `lastValues`, and for its own options without it."""
    if topic is None:
        if given.text("expiration") is not None:
            raise ConfigError(
                "expiration: it is for lastValues; leave it out, or name the topic in lastValues"
            )
        return
    for key, reason in _WITHOUT_LAST_VALUES.items():
        if given.text(key) is not None:
            raise ConfigError(f"{key}: it cannot be used with lastValues: {reason}")
    if len(directories) != 1:
        raise ConfigError("lastValues: it is the state of one journal; read each directory separately")


def _expiration(given: _Given) -> str | float:
    text = given.text("expiration") or "disabled"
    if text.lower() in ("disabled", "enabled"):
        return text.lower()
    lifetime = _units.seconds(text, "expiration")
    if lifetime <= 0:
        raise ConfigError(f"expiration: {text!r} is not disabled, enabled, or a time above 0")
    return lifetime


def job_options(archive_directory: str | None, skip_lost: bool) -> dict[str, str]:
    """The options that every read of a job has."""
    archive = {} if archive_directory is None else {"archiveDirectory": archive_directory}
    return archive | ({"failOnDataLoss": "false"} if skip_lost else {})


def write_options(options: Mapping[str, str]) -> WriteOptions:
    """Reads the options of a sink. `ConfigError` names what is wrong."""
    given = _Given(options, _WRITE)
    path, url = given.text("path"), given.text("url")
    if path is not None and url is None:
        url = "file:" + _local_path("path", path)
    elif path is not None or url is None:
        raise ConfigError("path, url: exactly one of them says where the messages go")
    return WriteOptions(
        url=url,
        user=given.text("user"),
        password_file=given.text("passwordFile"),
        topic=given.text("topic"),
        publisher=given.text("publisher") or "spark",
        transaction=given.text("txnId"),
        epoch=given.count("sinkEpoch", least=0) or 0,
        staging=given.text("stagingDirectory"),
        checkpoint=given.text("checkpointLocation"),
        flush_timeout=given.duration("flushTimeout", timedelta(minutes=5)),
    )


def password(file: str | None) -> str | None:
    """The password from its file, else from the environment: an option would show it in plans and logs."""
    if file is not None:
        return Path(file).read_text(encoding="utf-8").strip()
    return os.environ.get("QUIRE_PASSWORD")


def timestamp_ns(text: str) -> int:
    """Nanoseconds since 1970 of ISO 8601 text (UTC where it names no zone), or of milliseconds; of an earlier or a later time than those of
    messages can be, the first or the last that can."""
    if (milliseconds := whole(text)) is not None:
        return min(max(milliseconds * 1_000_000, 0), _NS_MAX)
    ns = time_ns(text)
    if ns is None:
        raise ValueError('expected a time such as "2026-01-31T12:00:00Z", or milliseconds since 1970')
    return min(max(ns, 0), _NS_MAX)


def whole(text: str) -> int | None:
    """The whole number that the text is, if it is one."""
    if re.fullmatch(r"\s*[+-]?[0-9]+\s*", text) is None:
        return None
    # Python refuses to read thousands of digits; nothing here can count as far as these.
    return int(text.strip()[:100])


def time_ago_ns(key: str, text: str) -> int | None:
    """The instant that `-10 minutes` means now, in nanoseconds since 1970; `None` when the text is not of this form.

    `ConfigError` names the option when the unit is unknown, or the time is more than 31 years."""
    match = re.fullmatch(r"-\s*([0-9]+(?:\.[0-9]+)?)\s*([a-z]+)", text.strip().lower())
    if match is None:
        return None
    unit_ns = UNITS_NS.get(match[2])
    if unit_ns is None:
        raise ConfigError(
            f"{key}: {text!r} has the unknown unit {match[2]!r}; the units are ns, us, ms, s, m, h, d, and their names, such as minutes"
        )
    ago_ns = Decimal(match[1]) * unit_ns
    if ago_ns >= _AGO_END_NS:
        raise ConfigError(f"{key}: {text!r} is not between 0 and 31 years")
    return max(time.time_ns() - int(ago_ns), 0)


#: Nanoseconds of every unit of a relative time, by each of its names.
UNITS_NS: Mapping[str, int] = {
    name: ns
    for names, ns in (
        ("ns nanosecond nanoseconds", 1),
        ("us microsecond microseconds", 1_000),
        ("ms msec msecs millisecond milliseconds", 1_000_000),
        ("s sec secs second seconds", 1_000_000_000),
        ("m min mins minute minutes", 60 * 1_000_000_000),
        ("h hour hours", 3_600 * 1_000_000_000),
        ("d day days", 86_400 * 1_000_000_000),
    )
    for name in names.split()
}
#: As for every duration: 10^9 seconds.
_AGO_END_NS: Final = 10**18


class _Given:
    """Options as they came: Spark does not keep the case of their names."""

    def __init__(
        self, options: Mapping[str, str], known: tuple[str, ...], *, prefix: str | None = None
    ) -> None:
        self._options = {key.lower(): value for key, value in options.items()}
        self._prefix = prefix
        names = {key.lower(): key for key in known}
        for key in self._options:
            if key in names or key in _OF_SPARK or (prefix is not None and key.startswith(prefix)):
                continue
            close = difflib.get_close_matches(key, names, n=1)
            hint = f"; did you mean {names[close[0]]}?" if close else f"; the options are {', '.join(known)}"
            raise ConfigError(f"{key}: no such option{hint}")

    def text(self, key: str) -> str | None:
        value = self._options.get(key.lower())
        return value if value else None

    def convert(self, key: str, read: Callable[[str], T]) -> T | None:
        text = self.text(key)
        if text is None:
            return None
        try:
            return read(text)
        except (ValueError, OverflowError, ConfigError) as error:
            raise ConfigError(f"{key}: {text!r} cannot be read: {error}") from None

    def offset(self, key: str, default: str) -> str:
        text = self.text(key)
        if text is None or text.lower() in (EARLIEST, LATEST):
            return default if text is None else text.lower()
        if _BACK.fullmatch(text.strip().lower()):
            return text
        try:
            point = point_to_core(text, key)
        except BadBookmarkError as error:
            raise BadBookmarkError(
                f"{error.reason}; earliest, latest, a number such as -1000, and a time such as '-10 minutes' are read, too"
            ) from None
        return {EPOCH: EARLIEST, NOW: LATEST}.get(point, point)

    def count(self, key: str, *, least: int = 1, most: int = _COUNT_MAX) -> int | None:
        text = self.text(key)
        return None if text is None else _within(key, text, whole(text), least, most)

    def size(self, key: str, *, most: int = _COUNT_MAX) -> int | None:
        text = self.text(key)
        return None if text is None else _within(key, text, _units.size(_spark_size(text), key), 1, most)

    def duration(self, key: str, default: timedelta) -> timedelta:
        text = self.text(key)
        duration = default if text is None else timedelta(seconds=_units.seconds(text, key))
        if not duration:
            raise ConfigError(f"{key}: {text!r} is no time")
        return duration

    def flag(self, key: str, default: bool) -> bool:
        return self.one_of(key, "true" if default else "false", "false", "true") == "true"

    def one_of(self, key: str, default: str, *others: str) -> str:
        value = (self.text(key) or default).lower()
        if value not in (default, *others):
            raise ConfigError(f"{key}: {value!r} is not one of {', '.join(sorted({default, *others}))}")
        return value

    def prefixed(self) -> dict[str, str]:
        assert self._prefix is not None
        size = len(self._prefix)
        return {key[size:]: value for key, value in self._options.items() if key.startswith(self._prefix)}

    def directories(self) -> tuple[str, ...]:
        path, paths = self.text("path"), self.text("paths")
        if path is not None and paths is not None:
            raise ConfigError("path, paths: only one of them")
        given = [path] if path is not None else self.convert("paths", json.loads) or []
        if not isinstance(given, list) or not all(isinstance(item, str) for item in given):
            raise ConfigError("paths: expected a JSON list of directories")
        return tuple(_local_path("path", item) for item in given)


def _topics(given: _Given) -> Mapping[str, Any] | None:
    names, pattern, prefix = (given.text(key) for key in ("topics", "topicPattern", "topicPrefix"))
    if [names, pattern, prefix].count(None) < 2:
        raise ConfigError("topics, topicPattern, topicPrefix: only one of them")
    if names is not None:
        return {"names": [name.strip() for name in names.split(",")]}
    if pattern is not None:
        return {"pattern": pattern}
    return None if prefix is None else {"prefix": prefix}


def _within(key: str, text: str, number: int | None, least: int, most: int) -> int:
    if number is None or not least <= number <= most:
        raise ConfigError(f"{key}: {text!r} is no whole number from {least} to {most}")
    return number


def _spark_size(text: str) -> str:
    """Spark writes `128m` where quire writes `128MB`."""
    return re.sub(r"(?i)^(\d+)\s*([kmgt])b?$", r"\1\2B", text.strip())


def _local_path(key: str, text: str) -> str:
    path = text.removeprefix("file://").removeprefix("file:")
    if re.match(r"[a-z][a-z0-9+.-]+:/", path):
        raise ConfigError(
            f"{key}: {text!r} is no directory of a file system that is mounted here; archive the journal to Parquet there instead"
        )
    return os.path.abspath(path)
