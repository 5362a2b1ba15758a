"""Journal directories as ranges of positions: found once on the driver, read in parts by the tasks.

Readers are kept per process and directory, because the workers of Spark live longer than a task, and opening
a journal reads every index. A range contains the identity of its last record, so that another journal under
the same path is detected.
"""

from __future__ import annotations

import logging
import os
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from time import time_ns as clock_ns
from typing import TYPE_CHECKING

from quire._bookmarks import time_ns
from quire._errors import BadBookmarkError, ConfigError, NotLastValueError, QuireError
from quire._quire import ArrowReader, LastValues
from quire._units import counted
from quire.journal._arrow import batches
from quire.spark._failures import hiding_traceback
from quire.spark._options import EARLIEST, LATEST, ReadOptions, time_ago_ns, whole

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger("quire.spark")

#: Readers that a process keeps: each maps the segments that it read, and holds their indexes.
READERS_MAX = 8


#: The end of an error about messages that are not there any more.
TO_SKIP = (
    "to continue without them, give failOnDataLoss=false (a job: skip_lost=True, a command: --skip-lost)"
)


@dataclass(frozen=True)
class Range:
    """A range of one journal: the records after `after`, up to and including `limit`."""

    directory: str
    after: int
    limit: int
    #: Bookmark and time of the record at `limit`; `None` when the journal was empty, or begins after it.
    identity: tuple[str, int] | None
    #: Where older segments of the journal were moved to.
    archive: str | None = None
    #: The instant for which lifetimes of last values count, in nanoseconds since 1970.
    at_ns: int | None = None
    #: The messages that are read, when not all are: positions of `ArrowReader.last_values`.
    positions: bytes | None = None


def locate(directory: str) -> str:
    """The journal directory that is meant: that of a server is inside its data directory. `ConfigError` when there is no journal."""
    for candidate in (directory, os.path.join(directory, "journal")):
        if _holds_segments(candidate):
            return candidate
    if os.path.isdir(directory):
        raise ConfigError(f"path: there is no journal in {directory!r}")
    raise ConfigError(f"path: {directory!r} is no directory on this machine")


def reader(directory: str, archive: str | None = None) -> ArrowReader:
    """The reader of the directory in this process, as far as it has followed the journal."""
    status = os.stat(directory)
    key = (os.getpid(), directory, archive, status.st_dev, status.st_ino)
    found = _readers.get(key)
    if found is None:
        found = ArrowReader(directory, archive)
        while len(_readers) >= READERS_MAX:
            _readers.popitem(last=False)
        _readers[key] = found
    _readers.move_to_end(key)
    return found


def refreshed(directory: str, archive: str | None = None) -> ArrowReader:
    """The same, having looked for what was added, archived or removed since."""
    found = reader(directory, archive)
    try:
        found.refresh()
    except QuireError:
        # Another journal may have taken its place: a new reader takes that, or says what is wrong.
        forget(directory)
        return reader(directory, archive)
    return found


def reader_of(range_: Range) -> ArrowReader:
    """The reader of the journal that the range was planned on."""
    found = reader(range_.directory, range_.archive)
    if found.last < range_.limit:
        found = refreshed(range_.directory, range_.archive)
    if _is_same(found, range_):
        return found
    forget(range_.directory)
    found = reader(range_.directory, range_.archive)
    if _is_same(found, range_):
        return found
    raise BadBookmarkError(
        f"{range_.directory}: position {range_.limit} does not hold message {range_.identity} any more: this is not the journal "
        "that the read was planned on"
    )


def forget(directory: str) -> None:
    """Opens the directory anew when it is asked for next."""
    for key in [key for key in _readers if key[1] == directory]:
        del _readers[key]


def span(directory: str, options: ReadOptions) -> Range:
    """Returns the range that a read of this directory covers now, by its options."""
    found = refreshed(directory, options.archive)
    last = found.last
    if options.last_values is not None:
        return _span_of_last_values(directory, found, options)
    after, limit = _start(found, options, last), _end(found, options, last)
    limit = max(limit, after)
    return Range(directory, after, limit, identity(found, limit), options.archive)


def _span_of_last_values(directory: str, found: ArrowReader, options: ReadOptions) -> Range:
    """The whole log up to the end of the read, which is also the instant for which lifetimes count."""
    if options.ending_ns is None and options.ending != LATEST:
        instant_ns = time_ago_ns("endingOffsets", options.ending)
        instant_ns = time_ns(options.ending) if instant_ns is None else instant_ns
        options = replace(options, ending_ns=instant_ns)
    limit = _end(found, options, found.last)
    at = identity(found, limit)
    at_ns = options.ending_ns
    if at_ns is None:
        at_ns = clock_ns() if options.ending == LATEST or at is None else at[1]
    return Range(directory, 0, limit, at, options.archive, at_ns=max(at_ns, 0))


def last_values(found: ArrowReader, range_: Range, after: int, options: ReadOptions) -> LastValues:
    """The newest message of each key after a position. `NotLastValueError` when no message of the topic has a key."""
    topic, lifetime = options.last_values, options.expiration
    assert topic is not None
    search = partial(
        found.last_values,
        topic,
        at_ns=range_.at_ns or 0,
        expires=lifetime != "disabled",
        lifetime_ns=None if isinstance(lifetime, str) else round(lifetime * 1e9),
    )
    newest = search(after, range_.limit)
    keyed, keyless = newest.counts
    if not keyed and not search(range_.limit, found.last).counts[0]:
        found_text = f"{counted(keyless, 'message')} without a key" if keyless else "no message"
        raise NotLastValueError(
            f"lastValues: {range_.directory} has {found_text} of the topic {topic!r}; a last-value topic has a key for each message"
        )
    if keyed and keyless:
        log.warning(
            "%s: %s of %s left out, because the log has no key for them",
            range_.directory,
            counted(keyless, "message is", "messages are"),
            topic,
        )
    return newest


def retained(found: ArrowReader, range_: Range, options: ReadOptions) -> int:
    """The position after which the range begins now, if files were removed. `BadBookmarkError` when the removed messages may not be left
    out."""
    if range_.limit <= range_.after or range_.after + 1 >= found.first:
        return range_.after
    last = min(range_.limit, found.first - 1)
    reason = f"{range_.directory}: messages {range_.after + 1} to {last} were removed from the journal, which begins at {found.first}"
    if options.fail_on_data_loss:
        raise BadBookmarkError(f"{reason}; {TO_SKIP}")
    log.warning("%s: they are left out", reason)
    return last


def identity(found: ArrowReader, position: int) -> tuple[str, int] | None:
    """Bookmark and time of the record, if the journal has it and it can be read."""
    try:
        return found.identity(position)
    except QuireError:
        return None


def scan(range_: Range, spec: str) -> Iterator[pa.RecordBatch]:
    """Yields the batches of a range. An unreadable message is an error, or logged if it may be skipped."""

    def tell(first: int, last: int, reason: str) -> None:
        log.warning("%s: messages %d to %d are left out: %s", range_.directory, first, last, reason)

    with hiding_traceback():
        scan = reader_of(range_).scan(spec, range_.after, range_.limit, range_.positions)
        yield from batches(scan, tell)


def _start(found: ArrowReader, options: ReadOptions, last: int) -> int:
    before_first = found.first - 1
    if options.starting_ns is not None:
        after = found.position_before(max(options.starting_ns - 1, 0))
        if after >= last and options.timestamp_strategy == "error":
            raise ConfigError(
                "startingTimestamp: it is behind the last message; timestampStrategy=latest begins there"
            )
        return after
    if options.starting == EARLIEST:
        return before_first
    return max(_offset(found, "startingOffsets", options.starting, options, last), before_first)


def _end(found: ArrowReader, options: ReadOptions, last: int) -> int:
    if options.ending_ns is not None:
        return found.position_before(max(options.ending_ns, 0))
    if options.ending == EARLIEST:
        return found.first - 1
    return _offset(found, "endingOffsets", options.ending, options, last)


def _offset(found: ArrowReader, key: str, text: str, options: ReadOptions, last: int) -> int:
    """The position that `latest`, `-1000`, `-10 minutes`, a time or a bookmark means."""
    if text == LATEST:
        return last
    if text.startswith("-") and (back := whole(text)) is not None:
        return max(last + back, 0)
    if (ago_ns := time_ago_ns(key, text)) is not None:
        return found.position_before(ago_ns)
    if (instant_ns := time_ns(text)) is not None:
        return found.position_before(instant_ns)
    if len(options.directories) != 1:
        raise ConfigError(
            f"{key}: a bookmark names a message of one journal, and {len(options.directories)} are read"
        )
    try:
        position = found.find(text)
    except BadBookmarkError as error:
        raise BadBookmarkError(error.reason, code=error.code, key=key) from None
    if position is None:
        raise BadBookmarkError(f"the journal in {options.places} does not have {text}", key=key)
    return position


_readers: OrderedDict[tuple[int, str, str | None, int, int], ArrowReader] = OrderedDict()


def _is_same(found: ArrowReader, range_: Range) -> bool:
    if range_.identity is None:
        return True
    return identity(found, range_.limit) in (range_.identity, None) and found.last >= range_.limit


def _holds_segments(directory: str) -> bool:
    try:
        with os.scandir(directory) as entries:
            return any(".journal" in entry.name and entry.name != "journal.lock" for entry in entries)
    except (FileNotFoundError, NotADirectoryError):
        return False
