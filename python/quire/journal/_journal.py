"""The transaction log without a broker: a journal that a program writes, and read access to any journal."""

from __future__ import annotations

import errno
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from quire import _quire
from quire._arguments import (
    AUTO,
    Auto,
    check_path,
    check_type,
    correlation_to_core,
    expiration_to_core,
    journal_inside,
    sequence_to_core,
    suggests,
    timeout_to_core,
)
from quire._bookmarks import EPOCH, Bookmark, Point, bookmark_to_core, one_message
from quire._errors import ConfigError
from quire._filter import FilterArgument, optional_filter_to_core
from quire._message import Message, datetime_from_ns, to_bytes
from quire._quire import Record as Record
from quire._units import Duration, Size, seconds, size
from quire.journal._arrow import read_arrow

if TYPE_CHECKING:
    import pyarrow as pa

#: A client name, or the id that it has in bookmarks.
Publisher = str | int


@dataclass(frozen=True)
class Segment:
    """One file of a journal."""

    path: Path
    number: int
    #: Bookmarks of its first and its last record; `None` when it is empty, or damaged there.
    first: str | None
    last: str | None
    #: When these were taken, to the microsecond.
    first_timestamp: datetime | None
    last_timestamp: datetime | None
    #: Records.
    count: int
    #: Bytes of the file.
    size: int
    #: `"active"`, `"sealed"`, `"archived"` or `"compressed"`.
    state: str
    #: The two times in nanoseconds since 1970 (UTC).
    first_timestamp_ns: int | None = None
    last_timestamp_ns: int | None = None

    def __fspath__(self) -> str:
        return os.fspath(self.path)


@dataclass(frozen=True)
class Damage:
    """Damaged bytes of a journal: their file, place and reason."""

    #: The segment, also when its index is damaged; `None` for a file of the whole journal.
    segment: Segment | None
    #: Where it begins, in bytes.
    offset: int
    reason: str
    path: Path


class JournalReader:
    """Reads a journal, also while it is written: the base of `Journal` and `server.journal`. Thread-safe."""

    def __init__(self, core: _quire.JournalReader) -> None:
        self._reader = core

    @property
    def persisted(self) -> int:
        """The position of the last persisted record. Records are numbered from 1."""
        return self._open_reader().positions()[1]

    def read(
        self,
        bookmark: Bookmark = EPOCH,
        *,
        until: Bookmark | None = None,
        topic: str | None = None,
        filter: FilterArgument | None = None,
    ) -> Iterator[Message]:
        r"""Yields the messages after one place, up to another place and including it.

            for message in journal.read("2026-01-05T08:00", topic="orders", filter="/qty > 50"):
                print(message.bookmark, message.json())

        - `bookmark`, `until`: a bookmark, a `Message`, a time, several of them (the oldest counts),
          `"epoch"` or `"now"`. Without `until`, the end is the last message that is persisted now
        - `topic`: exact name, or a regular expression if it contains any of
          ``^ $ * + ? [ ] ( ) { } | \``
        - `filter`: content filter; only messages that match it are returned

        Raises `BadBookmarkError`, `BadTopicError` and `BadFilterError`. Raises
        `JournalCorruptError` when it reaches damage.
        """
        check_type(topic, str, "topic", optional=True)
        return self._open_reader().read(
            *_range_to_core(bookmark, until), topic, optional_filter_to_core(filter)
        )

    def read_arrow(
        self,
        bookmark: Bookmark = EPOCH,
        *,
        until: Bookmark | None = None,
        topic: str | None = None,
        filter: FilterArgument | None = None,
        fields: Mapping[str, str] | None = None,
        batch_rows: int = 10_000,
    ) -> Iterator[pa.RecordBatch]:
        """Yields the range of `read` as `pyarrow.RecordBatch`es of about `batch_rows` messages,
        built in Rust.

        The columns are the attributes of a message, and those of `fields`: names or paths in the
        data with their types, such as `{"qty": "int", "/order/price": "double"}`. The types are
        boolean, byte, short, int, long, float, double, string, timestamp and date. A value of
        another type is null, and so is `data` that is not UTF-8.

        Requires `quire-mq[arrow]`.
        """
        check_type(topic, str, "topic", optional=True)
        check_type(batch_rows, int, "batch_rows")
        if not 1 <= batch_rows < 2**31:
            raise ConfigError(f"{batch_rows} is not between 1 and 2**31 - 1", key="batch_rows")
        return read_arrow(
            self._open_reader(),
            *_range_to_core(bookmark, until),
            topic,
            optional_filter_to_core(filter),
            fields,
            batch_rows,
        )

    def records(
        self,
        bookmark: Bookmark = EPOCH,
        *,
        until: Bookmark | None = None,
        topic: str | None = None,
        filter: FilterArgument | None = None,
    ) -> Iterator[Record]:
        """Yields the range of `read` as it is stored, with records that are not messages.

        With a filter, it returns the messages that match, and the deletes of last-value topics,
        which have no content and pass every filter. Other records are left out.
        """
        check_type(topic, str, "topic", optional=True)
        return self._open_reader().records(
            *_range_to_core(bookmark, until), topic, optional_filter_to_core(filter)
        )

    def find(self, bookmark: Point) -> tuple[Segment, int] | None:
        """Returns the segment that contains the message, and the offset of its batch in bytes, or `None`.

        Raises `BadBookmarkError` for anything but a message or the bookmark of one message.
        """
        found = self._open_reader().find(one_message(bookmark, "bookmark"))
        return None if found is None else (segment_of(found[0]), found[1])

    def segments(self) -> list[Segment]:
        """Returns the files, oldest first."""
        return [segment_of(fields) for fields in self._open_reader().segments()]

    def verify(self) -> list[Damage]:
        """Checks every written byte, and returns a list of all damage. The list is empty without damage."""
        damages = self._open_reader().verify()
        segments = {segment.path: segment for segment in self.segments()} if damages else {}
        return [
            Damage(
                segment=segments.get(path.with_suffix(".journal")), offset=offset, reason=reason, path=path
            )
            for path, offset, reason in damages
        ]

    def _open_reader(self) -> _quire.JournalReader:
        return self._reader


class _Maintained(JournalReader, ABC):
    """A journal whose full files can be archived, compressed and removed, also while it is written
    to and read."""

    def archive(
        self, *, age: Duration | None = None, size_max: Size | None = None, dry_run: bool = False
    ) -> list[Segment]:
        """Moves full files to the archive directory. They stay part of the log. Returns these
        files, oldest first.

        - `age`: files whose last write is older than this; 0 = all files
        - `size_max`: the oldest files, until the rest outside of the archive has at most this size
        - `dry_run`: only return the files

        Raises `ConfigError` without an archive directory, `StorageFullError` and
        `StorageFailedError`. Files that were moved before the error stay moved.
        """
        return self._take("archive", age, size_max, dry_run)

    def compress(
        self, *, age: Duration | None = None, size_max: Size | None = None, dry_run: bool = False
    ) -> list[Segment]:
        """Compresses full files in their directory. They stay part of the log, and are read more slowly.

        Arguments, result and errors are those of `archive`. `size_max` is the limit of the files
        that stay uncompressed.
        """
        return self._take("compress", age, size_max, dry_run)

    def remove(
        self, *, age: Duration | None = None, size_max: Size | None = None, dry_run: bool = False
    ) -> list[Segment]:
        """Removes full files with their messages. The highest sequence of every publisher is kept.

        A file stays while a queue or a subscription of the running server, or an iterator of this
        process, needs it. All newer files then stay, too. Arguments and errors are those of
        `archive`. `size_max` is the limit of all files. Returns the removed files.
        """
        return self._take("remove", age, size_max, dry_run)

    def _take(self, action: str, age: Duration | None, size_max: Size | None, dry_run: bool) -> list[Segment]:
        files = maintain(self._maintenance(), action, age, size_max, dry_run)
        return [segment_of(fields) for fields in files]

    @abstractmethod
    def _maintenance(self) -> _quire.JournalMaintenance | _quire.Engine:
        """Archives, compresses and removes files."""


class ServerJournal(_Maintained):
    """The journal of a running server."""

    def __init__(self, engine: _quire.Engine) -> None:
        super().__init__(engine.journal())
        self._engine = engine

    def _maintenance(self) -> _quire.Engine:
        return self._engine


class Journal(_Maintained):
    """Opens the journal in a directory. Creates it if there is none, and recovers it after a crash.

        with quire.Journal("./orders") as journal:
            bookmark = journal.append("orders", {"qty": 100}, publisher="desk-1")
            journal.flush()

    - `read_only`: lock and change nothing. This is safe while another process writes
    - `archive_directory`: the directory of archived files. `None` = the directory of the last
      archiving
    - `journal_size`: the size of a segment. The first segments have 4 MB and grow up to this size.
      A larger record gets a separate segment
    - `preallocated_journal_files`: the number of segments that are prepared in advance
    - `flush_interval`: the longest time that a record waits until its flush starts (30us to 100ms).
      An idle disk flushes immediately
    - `durability`: `"fsync"`: persisted means synced to the disk. `"os"`: persisted messages
      survive the process, but not the machine
    - `on_progress`: function that is called with the bytes done and the total bytes while a long
      journal is recovered

    Raises `JournalLockedError` when another process has the journal, `JournalCorruptError` when it
    is damaged or files are missing, `ConfigError`, `StorageFullError`, and `StorageFailedError`.
    With `read_only`, raises `FileNotFoundError` when there is no journal.
    """

    @suggests
    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        archive_directory: str | os.PathLike[str] | None = None,
        journal_size: Size = "64MB",
        preallocated_journal_files: int = 2,
        flush_interval: Duration = "100ms",
        durability: Literal["fsync", "os"] = "fsync",
        read_only: bool = False,
        on_progress: Any = None,
    ) -> None:
        check_path(directory, "directory")
        check_path(archive_directory, "archive_directory", optional=True)
        check_type(preallocated_journal_files, int, "preallocated_journal_files")
        self._directory = Path(directory)
        self._closed = False
        self._writer: _quire.Journal | None = None
        if read_only:
            check_is_journal(self._directory)
            super().__init__(_quire.JournalReader(self._directory, archive_directory))
            return
        if durability not in ("fsync", "os"):
            raise ConfigError(f"{durability!r} is neither 'fsync' nor 'os'", key="durability")
        if preallocated_journal_files < 1:
            raise ConfigError(
                f"{preallocated_journal_files} is not at least 1", key="preallocated_journal_files"
            )
        self._writer = _quire.Journal(
            self._directory,
            archive_directory=archive_directory,
            journal_size=size(journal_size, "journal_size"),
            prepared_count=preallocated_journal_files,
            flush_interval=timedelta(seconds=seconds(flush_interval, "flush_interval")),
            durability=durability,
            on_progress=on_progress,
        )
        super().__init__(self._writer.reader())

    @property
    def directory(self) -> Path:
        """The directory of the journal."""
        return self._directory

    @property
    def is_read_only(self) -> bool:
        """Whether the journal was opened with `read_only`."""
        return self._writer is None

    def append(
        self,
        topic: str,
        data: Any,
        *,
        publisher: Publisher,
        sequence: int | Auto = AUTO,
        message_type: str = "json",
        expiration: Duration | None = None,
        correlation_id: str | None = None,
        headers: Mapping[str, str | bytes] | None = None,
    ) -> str | None:
        """Appends one message, and returns its bookmark, or `None` for a duplicate.

        Does not wait until the message is persisted. Waits only while 64 MiB wait for the disk.

        - `data`: bytes, text (stored as UTF-8), or anything else that can become JSON
        - `publisher`: a client name, or its id in bookmarks
        - `sequence`: `AUTO` assigns the number after the highest one of the publisher. A number
          that is not above the highest one is a duplicate
        - `expiration`: lifetime in a queue, in whole seconds rounded up; 0 = never expires
        - `headers`: as in `Client.publish`

        Raises `ConfigError` for an invalid argument, `LimitExceededError` after the last number of
        the publisher, 2^64 - 1, and `StorageFullError` or `StorageFailedError` when the journal
        takes no more writes.
        """
        return self.append_many(
            topic,
            (data,),
            publisher=publisher,
            sequence=sequence,
            message_type=message_type,
            expiration=expiration,
            correlation_id=correlation_id,
            headers=headers,
        )[0]

    def append_many(
        self,
        topic: str,
        items: Iterable[Any],
        *,
        publisher: Publisher,
        sequence: int | Auto = AUTO,
        message_type: str = "json",
        expiration: Duration | None = None,
        correlation_id: str | None = None,
        headers: Mapping[str, str | bytes] | None = None,
    ) -> list[str | None]:
        """Appends `items` in their order, and returns their bookmarks. `sequence` is that of the first one.

        When it raises, the items before the refused one are appended.
        """
        check_type(topic, str, "topic")
        check_type(message_type, str, "message_type")
        named: object = items
        if not isinstance(named, Iterable) or isinstance(named, (str, bytes)):
            raise ConfigError(f"expected a list of data, got `{type(named).__name__}`", key="items")
        is_id = isinstance(publisher, int) and not isinstance(publisher, bool) and 0 <= publisher < 2**64
        if not is_id and not isinstance(publisher, str):
            reason = f"expected a client name or the id of a publisher, got {publisher!r}"
            raise ConfigError(reason, key="publisher")
        return self._open_writer().append(
            topic,
            [to_bytes(data, topic=topic) for data in items],
            publisher=publisher,
            sequence=sequence_to_core(sequence) or None,
            message_type=message_type,
            correlation_id=correlation_to_core(correlation_id),
            expiration_s=expiration_to_core(expiration),
            headers=headers,
        )

    def flush(self, timeout: Duration | None = None) -> None:
        """Waits until everything appended so far is persisted.

        Raises `TimeoutError`, `StorageFullError` and `StorageFailedError`.
        """
        if not self._open_writer().flush(timeout_to_core(timeout)):
            raise TimeoutError(f"{self._directory}: not everything became persistent within {timeout}")

    @property
    def appended(self) -> int:
        """The position of the last appended record."""
        return self._open_writer().appended

    def highest_sequence(self, publisher: Publisher) -> int:
        """Returns the highest sequence number of a publisher, or 0."""
        return self._open_writer().highest_sequence(publisher)

    def close(self) -> None:
        """Persists everything appended, marks a clean stop, and releases the directory.

        Raises `StorageFullError` or `StorageFailedError` when not everything is persisted.
        """
        self._closed = True
        if self._writer is not None:
            self._writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        mode = ", read_only=True" if self.is_read_only else ""
        return f"Journal({os.fspath(self._directory)!r}{mode})"

    def _open_reader(self) -> _quire.JournalReader:
        if self._closed:
            raise ValueError("the journal is closed")
        return self._reader

    def _open_writer(self) -> _quire.Journal:
        if self._writer is None:
            raise ConfigError(f"{self!r} was opened to be read")
        return self._writer

    def _maintenance(self) -> _quire.JournalMaintenance:
        return self._open_writer().maintenance()


def maintain(
    maintenance: _quire.JournalMaintenance | _quire.Engine,
    action: str,
    age: Duration | None,
    size_max: Size | None,
    dry_run: bool,
) -> Iterator[_quire.SegmentFields]:
    """Archives, compresses or removes one file after the other, and yields each when it is done."""
    older, beyond = which_to_core(age, size_max)
    while files := maintenance.maintain(action, older, beyond, dry_run):
        yield from files
        if dry_run:
            return


def which_to_core(age: Duration | None, size_max: Size | None) -> tuple[timedelta | None, int | None]:
    """Which files are meant. Raises `ConfigError` unless exactly one of both is given."""
    if (age is None) == (size_max is None):
        raise ConfigError("give either age or size_max")
    older = None if age is None else timedelta(seconds=seconds(age, "age"))
    return older, None if size_max is None else size(size_max, "size_max")


def _range_to_core(bookmark: Bookmark, until: Bookmark | None) -> tuple[str, str | None]:
    end = None if until is None else bookmark_to_core(until, "until")
    return bookmark_to_core(bookmark, "bookmark"), end


def check_is_journal(directory: Path) -> None:
    """Raises `FileNotFoundError` or `NotADirectoryError` for a directory without a journal, and
    names one that has it."""
    if not directory.exists():
        raise FileNotFoundError(errno.ENOENT, "there is no such directory", os.fspath(directory))
    if not directory.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, "a journal is a directory", os.fspath(directory))
    if not any(directory.glob("*.journal")):
        inside = journal_inside(directory)
        hint = "" if inside is None else f"; perhaps you mean {inside}"
        raise FileNotFoundError(errno.ENOENT, f"there are no journal files{hint}", os.fspath(directory))


def segment_of(fields: _quire.SegmentFields) -> Segment:
    path, number, first, last, first_ns, last_ns, count, size, state = fields
    return Segment(
        path=path,
        number=number,
        first=first,
        last=last,
        first_timestamp=None if first_ns is None else datetime_from_ns(first_ns),
        last_timestamp=None if last_ns is None else datetime_from_ns(last_ns),
        count=count,
        size=size,
        state=state,
        first_timestamp_ns=first_ns,
        last_timestamp_ns=last_ns,
    )
