"""The log of a running server as ranges of bookmarks: for machines that see no files of the journal.

A server reports neither the number of messages of a range nor their positions. So a range is
divided by time, at messages that the server names, and a count of messages has to receive them.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Self

from quire._bookmarks import EPOCH, NOW, instant_to_core
from quire._errors import BadBookmarkError, BadFilterError, ConfigError
from quire._quire import ArrowRange
from quire.client._blocking import Subscription
from quire.client._options import Reconnect
from quire.client._spec import Spec
from quire.journal._arrow import RecordBatches
from quire.spark import _options
from quire.spark._options import ReadOptions
from quire.spark._scan import in_filter

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger("quire.spark")

#: Every topic.
ALL = "^"
#: No topic: they have at least one character.
_NONE = "^$"

#: The code of the error for a bookmark that the log does not have.
_NOT_FOUND = "bookmark_not_found"

#: A range with at most this number of messages, and 16 MB, is one task: a smaller task costs more
#: to start than to run.
_PART_MESSAGES_MIN = 50_000
_PART_BYTES_MIN = 16 << 20

#: Limit of received messages that wait in a task, in bytes. Above it, the server pauses.
_RECEIVE_BYTES_MAX = 16 << 20

#: A server that is away for longer than this fails the task, which Spark then runs again, or the
#: query.
_AWAY_MAX = timedelta(seconds=60)


@dataclass(frozen=True)
class Place:
    """A place before or after a message, or before or after a time."""

    #: The bookmark of the message, `0`, or a time in the form of bookmarks.
    bookmark: str
    #: The place is before the message or the time, not after it.
    is_before: bool = False

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads what `str` wrote."""
        return cls(text[1:], text[0] == "[")

    def __str__(self) -> str:
        """As the beginning of a range."""
        return f"{'[' if self.is_before else '('}{self.bookmark}"


@dataclass(frozen=True)
class ServerRange:
    """The messages from one place to another."""

    start: Place
    end: Place

    def __str__(self) -> str:
        return f"{self.start}:{self.end.bookmark}{')' if self.end.is_before else ']'}"

    @property
    def is_empty(self) -> bool:
        """Whether nothing can be in it."""
        return self.start == self.end or self.end == Place(EPOCH)


@dataclass(frozen=True)
class Wanted:
    """The request to the server: a topic or pattern, and a content filter."""

    topic: str = ALL
    filter: str | None = None

    @classmethod
    def of(cls, options: ReadOptions, names: Sequence[str] | None = None) -> Self:
        """Returns the topics and filters of the options. `names`: the topics that a condition on
        them leaves."""
        rule = options.topics
        if rule is None:
            return cls(ALL if names is None else _exactly(names), options.filter)
        if "names" in rule:
            return cls(_exactly(rule["names"]), options.filter)
        # A pattern is recognized by its special characters. This text always has some.
        pattern = f"^{re.escape(rule['prefix'])}" if "prefix" in rule else f"(?:{rule['pattern']})"
        return cls(pattern, options.filter)


class Connection:
    """A client that reads ranges of the log. Close it."""

    def __init__(self, options: ReadOptions) -> None:
        assert options.url is not None
        self._url = options.url
        self._fails_on_loss = options.fail_on_data_loss
        self._client = options.access.connect(
            options.url,
            reconnect=Reconnect(give_up_after=_AWAY_MAX),
            receive_size_max=_RECEIVE_BYTES_MAX,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Leaves the server."""
        self._client.close()

    def head(self) -> str:
        """Returns the bookmark of the last persisted record of any kind, or `0` in an empty log."""
        with self._client._enter_now(Spec(_NONE, bookmark=NOW), auto_ack=False) as subscription:
            # The server sends the place right after it accepts the command: it is here after a
            # later answer.
            self._client.flush()
            place = self._client._core.resume_position(subscription._core.number)
        return EPOCH if place is None or place == "0|0|" else place

    def has(self, bookmark: str) -> bool:
        """Whether the log has the record."""
        if bookmark == EPOCH:
            return True
        try:
            self._enter(_only(bookmark), Wanted(_NONE)).unsubscribe()
        except BadBookmarkError as error:
            if error.code != _NOT_FOUND:
                raise
            return False
        return True

    def time_of(self, bookmark: str) -> int | None:
        """When the message was taken, in nanoseconds; `None` when it is not a message."""
        found = None if bookmark == EPOCH else self.first(_only(bookmark))
        return None if found is None else found[1]

    def first(self, range_: ServerRange) -> tuple[str, int] | None:
        """Bookmark and time of the first message."""
        # The pace keeps the server from sending more than the one.
        return self.count(range_, Wanted(), 1, 1, rate="1")[1]

    def count(
        self, range_: ServerRange, wanted: Wanted, count_max: int, size_max: int, *, rate: str | None = None
    ) -> tuple[int, tuple[str, int] | None, bool]:
        """Counts messages up to a limit of messages or bytes.

        Returns their number, the bookmark and time of the last one, and whether the range ended
        before the limit.
        """
        if range_.is_empty:
            return 0, None, True
        with self._enter(range_, wanted, rate) as subscription:
            return ArrowRange(subscription._core).count(count_max, size_max)

    def cut(self, range_: ServerRange, wanted: Wanted, parts: int) -> list[ServerRange]:
        """Cuts a range into about `parts` parts of equal time. Does not cut a small range."""
        if range_.is_empty:
            return []
        if parts <= 1 or self.count(range_, wanted, _PART_MESSAGES_MIN, _PART_BYTES_MIN)[2]:
            return [range_]
        first = self.first(range_)
        begin_ns = 0 if first is None else first[1]
        end_ns = self.time_of(range_.end.bookmark) or time.time_ns()
        starts = [range_.start]
        for number in range(1, parts):
            instant = Place(instant_to_core(begin_ns + (end_ns - begin_ns) * number // parts))
            found = self.first(ServerRange(instant, range_.end))
            if found is not None and found[0] not in (
                starts[-1].bookmark,
                None if first is None else first[0],
            ):
                starts.append(Place(found[0], is_before=True))
        return [ServerRange(start, end) for start, end in zip(starts, [*starts[1:], range_.end], strict=True)]

    def scan(self, range_: ServerRange, wanted: Wanted, spec: str) -> Iterator[pa.RecordBatch]:
        """The batches of a range."""
        retained = self.retained(range_)
        if retained.is_empty:
            return
        with self._enter(retained, wanted) as subscription:
            scan = ArrowRange(subscription._core).scan(spec)
            yield from RecordBatches(scan, lambda _first, _last, _reason: None)

    def retained(self, range_: ServerRange) -> ServerRange:
        """Returns the rest of the range if messages of it were removed. Raises, unless the options
        allow that."""
        if range_.is_empty or (self.has(range_.start.bookmark) and self.has(range_.end.bookmark)):
            return range_
        reason = f"{self._url}: the log does not have all of {range_} any more: messages were removed, or it is another log"
        if self._fails_on_loss:
            raise BadBookmarkError(f"{reason}; to continue without them, give failOnDataLoss=false")
        log.warning("%s: they are left out", reason)
        start = Place(EPOCH) if self.has(range_.end.bookmark) else range_.end
        return ServerRange(start, range_.end)

    def _enter(self, range_: ServerRange, wanted: Wanted, rate: str | None = None) -> Subscription:
        spec = Spec(
            wanted.topic, filter=wanted.filter, bookmark=str(range_), bookmark_not_found="fail", rate=rate
        )
        try:
            return self._client._enter_now(spec, auto_ack=False)
        except BadFilterError as error:
            raise in_filter(error, wanted.filter) from None


def span(connection: Connection, options: ReadOptions) -> ServerRange:
    """Returns the range that a read covers now, by its options."""
    head = Place(connection.head())
    start, end = _start(connection, options, head), _end(connection, options, head)
    if end == head:
        return ServerRange(start, end)
    try:
        connection.first(ServerRange(start, end))
    except BadBookmarkError as error:
        if error.code == _NOT_FOUND:
            raise
        return ServerRange(start, start)  # it ends before it begins
    return ServerRange(start, end)


def _start(connection: Connection, options: ReadOptions, head: Place) -> Place:
    if options.starting_ns is None:
        return _offset(connection, "startingOffsets", options.starting or "earliest", head)
    since = Place(instant_to_core(options.starting_ns), is_before=True)
    found = connection.first(ServerRange(since, head))
    if found is None and not options.starts_at_latest:
        raise ConfigError(
            "startingTimestamp: it is behind the last message; timestampStrategy=latest begins there"
        )
    return head if found is None else Place(found[0], is_before=True)


def _end(connection: Connection, options: ReadOptions, head: Place) -> Place:
    if options.ending_ns is None:
        return _offset(connection, "endingOffsets", options.ending, head)
    return _behind(connection, options.ending_ns, head)


def _offset(connection: Connection, key: str, place: _options.Place, head: Place) -> Place:
    match place:
        case "latest":
            return head
        case "earliest":
            return Place(EPOCH)
        case {"back": _}:
            raise ConfigError(
                f"{key}: a server does not say how many messages it has; give a bookmark or a time, or read the directory"
            )
        case {"ago_ns": int(ns)}:
            return _behind(connection, max(time.time_ns() - ns, 0), head)
        case {"time_ns": int(ns)}:
            return _behind(connection, ns, head)
        case {"bookmark": str(bookmark)}:
            if not connection.has(bookmark):
                raise BadBookmarkError(f"the log does not have {bookmark}", key=key)
            return Place(bookmark)
    raise AssertionError(place)


def _behind(connection: Connection, ns: int, head: Place) -> Place:
    """Returns the place after all messages that were recorded up to this time."""
    found = connection.first(ServerRange(Place(instant_to_core(ns)), head))
    return head if found is None else Place(found[0], is_before=True)


def _only(bookmark: str) -> ServerRange:
    return ServerRange(Place(bookmark, is_before=True), Place(bookmark))


def _exactly(names: Sequence[str]) -> str:
    return f"^(?:{'|'.join(map(re.escape, names))})$"
