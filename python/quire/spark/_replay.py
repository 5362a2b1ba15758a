"""A range of the journal back into a server, in its order and at a chosen pace."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Row, SparkSession

from quire._errors import ConfigError
from quire._quire import SparkJournal, spark_frame
from quire.client._again import check_not_again, takes_keys
from quire.client._blocking import Client
from quire.spark._options import job_options
from quire.spark._scan import log

#: Seconds. The system takes no sleep of centuries, which a small pace can ask for.
_SLEEP_MAX = 3600.0


@dataclass(frozen=True)
class Replayed:
    """The result of `replay`."""

    messages: int
    seconds: float
    #: Positions that were removed from the journal since the replay was stopped.
    lost: int = 0
    #: Records of last-value topics that were deleted in the range. The deletes are not published.
    deletions: int = 0


def replay(
    spark: SparkSession,
    journal: str,
    url: str,
    *,
    name: str,
    pace: str = "max",
    topic: str | None = None,
    options: Mapping[str, str] | None = None,
    flush_timeout: float = 300.0,
    archive_directory: str | None = None,
    skip_lost: bool = False,
    again: bool = False,
) -> Replayed:
    """Publishes the messages of a range, and waits until all are persistent.

    On a last-value topic whose publishers supply the keys, the messages keep their keys. Deletes
    are left out, so that a deleted record exists at the destination. The messages have no
    lifetimes: `quire replay` keeps them.

    - `name`: the publisher's identity. The position in the journal is the sequence, so that the
      same replay under the same name changes nothing when it is run again, and completes one that
      was stopped
    - `pace`: `max`; messages per second, `1000`; or a multiple of the original pace, `2X`
    - `topic`: where all of them go instead of to their own
    - `options`: those of a read: `topics`, `filter`, `startingOffsets`, `endingTimestamp`, ...
    - `archive_directory`: where older files of the journal were moved to; needed only where the
      journal does not say it
    - `skip_lost`: continue without messages that were removed from the journal or cannot be read
    - `again`: publish also what the destination has in its log under the same topic. Otherwise a
      destination that has the first message is refused with `ConfigError`: it is the source itself,
      and everything would be repeated

    Raises `BadBookmarkError` when messages of the range were removed from the journal since the
    replay was stopped.
    """
    wait = _pace(pace)
    options = {**(options or {}), **job_options(archive_directory, skip_lost), "includeHeaders": "true"}
    options["includeDeletes"] = "true"
    schema = (
        "position long, timestamp_ns long, topic string, kind string, correlation_id string, data binary, "
        "bookmark string, sow_key string, headers map<string,binary>"
    )
    frame = spark.read.format("quire").schema(schema).options(**options).load(journal)
    begun = time.monotonic()
    count = deletions = 0
    #: The topics of the destination, and whether their publishers supply keys.
    topics: dict[str, bool] = {}
    with Client(url, name=name, wait=True) as client:
        lost = _lost({"path": journal, **options}, client.persisted)
        for row in _in_order(frame.toLocalIterator(prefetchPartitions=True)):
            if row.kind != "publish":
                deletions += 1
                continue
            if not count and not again:
                check_not_again(client, row.topic, row.bookmark, row.timestamp_ns, topic)
            wait(count, row.timestamp_ns)
            target = topic or row.topic
            if target not in topics:
                topics[target] = takes_keys(client, target)
            client.publish(
                target,
                bytes(row.data),
                sequence=row.position,
                correlation_id=row.correlation_id,
                headers=_headers(row.headers),
                sow_key=row.sow_key if topics[target] else None,
            )
            count += 1
        client.flush(timeout=flush_timeout)
    return Replayed(count, time.monotonic() - begun, lost, deletions)


def _headers(column: Mapping[str, bytearray] | None) -> dict[str, str | bytes] | None:
    """The headers of a row. Spark does not distinguish text from bytes: a value that is UTF-8
    becomes text."""
    if column is None:
        return None
    headers: dict[str, str | bytes] = {}
    for name, value in column.items():
        try:
            headers[name] = value.decode()
        except UnicodeDecodeError:
            headers[name] = bytes(value)
    return headers


def _lost(options: Mapping[str, str], done: int) -> int:
    """The number of positions of the range that were removed from the journal since the replay was
    stopped, after the last message that it had published."""
    frame = json.loads(spark_frame(dict(options)))
    range_, archive = frame["ranges"][0], frame["options"]["archive"]
    opened = SparkJournal(range_["directory"], archive)
    # A range that begins later than the journal does has lost nothing, and a replay that has not
    # begun takes what there is.
    if done == 0 or range_["after"] > opened.bounds()[0] - 1:
        return 0
    begin, warnings = opened.retained(done, range_["limit"], frame["options"]["fail_on_data_loss"])
    for warning in warnings:
        log.warning("%s", warning)
    return begin - done


def _in_order(rows: Iterator[Row]) -> Iterator[Row]:
    """Partitions are planned in the order of the journal; a replay in any other would lose messages
    as duplicates."""
    last = 0
    for row in rows:
        # A delete has a row for each of its keys.
        if row.position < last or (row.position == last and row.kind == "publish"):
            raise AssertionError(f"message {row.position} comes behind {last}")
        last = row.position
        yield row


def _pace(text: str) -> Any:
    """Returns a function that waits until a message may be published."""
    if text == "max":
        return lambda _count, _timestamp_ns: None
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)(X?)", text, re.IGNORECASE)
    if match is None or float(match[1]) <= 0:
        raise ConfigError(
            f"pace: {text!r} is none of max, 1000 (messages per second), 2X (of the original pace)"
        )
    factor = float(match[1])
    # The pace begins with the first message, so that the start of Spark is not followed by a burst.
    begun, first_ns = None, 0

    def wait(count: int, timestamp_ns: int) -> None:
        nonlocal begun, first_ns
        if begun is None:
            begun, first_ns = time.monotonic(), timestamp_ns
        due = (timestamp_ns - first_ns) / 1e9 / factor if match[2] else count / factor
        while (left := begun + due - time.monotonic()) > 0:
            time.sleep(min(left, _SLEEP_MAX))

    return wait
