"""The compiled core. Nobody imports it directly."""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, Self, final

from quire._options import Spec

__all__ = [
    "ArrowReader",
    "ArrowScan",
    "Client",
    "Embedded",
    "Engine",
    "Filter",
    "Journal",
    "JournalReader",
    "Message",
    "Messages",
    "Record",
    "Records",
    "Subscription",
    "Turn",
    "__version__",
    "caret",
    "check_config",
    "check_scan",
    "forked",
]

__version__: str

def forked() -> None: ...
def check_config(config: str) -> None: ...
def caret(text: str, column: int) -> str: ...

@final
class Message:
    """One received message: a range of the receive buffer.

    It supports the buffer protocol: `memoryview(message)` is its data, uncopied.
    """

    @property
    def topic(self) -> str:
        """The topic that it was published to."""
    @property
    def data(self) -> bytes:
        """The data, copied at each use; `memoryview(message)` does not copy."""
    def json(self) -> Any:
        """The data read as JSON."""
    @property
    def bookmark(self) -> str | None:
        """The name of the message in the log, `None` when the log does not record its topic."""
    @property
    def timestamp(self) -> datetime:
        """When the server took it (UTC)."""
    @property
    def timestamp_ns(self) -> int:
        """When the server took it, in nanoseconds since 1970 UTC."""
    @property
    def sequence(self) -> int | None:
        """Its number among those of its publisher."""
    @property
    def publisher(self) -> str | None:
        """The id of its publisher, as in the bookmark."""
    @property
    def correlation_id(self) -> str | None:
        """As published."""
    @property
    def command(self) -> str:
        """`"publish"`, or `"sow"` for an answer to a query."""
    @property
    def sub_id(self) -> str:
        """The subscription that it came on."""
    @property
    def _number(self) -> int: ...
    def discard(self) -> None:
        """The message is processed: `most_recent` may move past it."""
    @property
    def queue(self) -> str | None:
        """The queue that it came from, if it did."""
    @property
    def lease_period(self) -> timedelta | None:
        """How long the server lets us have it; `None`: there is no lease, or one without end."""
    @property
    def lease_deadline(self) -> datetime | None:
        """When the lease ends (UTC), by this machine's clock, counted from the arrival."""
    @property
    def lease_lost(self) -> bool:
        """Whether the lease is over: its time, another one's verdict, or the connection."""
    @property
    def delivery_count(self) -> int:
        """How often it was delivered, this time included; 0 when it did not come from a queue, or is a barrier."""
    @property
    def cancel_count(self) -> int:
        """How often it was given back with `cancel`."""
    @property
    def _is_settled(self) -> bool: ...
    def ack(self) -> None:
        """It is processed: the queue forgets it. Sent with the batch; of a message that came from no queue, `discard`."""
    def cancel(self) -> None:
        """Gives it back to its queue."""
    def expire(self) -> None:
        """Throws it out of its queue, unprocessed."""
    def extend(self, period: timedelta | float | str | None = None) -> None:
        """Asks for a longer lease, from now on; left out: for another period of the queue's."""
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        """Acknowledges, or cancels when the block raised."""
    def __len__(self) -> int: ...
    def __bool__(self) -> bool: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class Subscription:
    @property
    def number(self) -> int: ...
    @property
    def command(self) -> int: ...
    @property
    def most_recent(self) -> str | None: ...
    @property
    def outstanding_count(self) -> int: ...
    def next(self, timeout: float | None = None) -> Message | None: ...
    def batch(self, count_max: int, timeout: float | None = None) -> list[Message] | None: ...
    def is_completed(self) -> bool: ...
    def wait_completed(self, timeout: float | None = None) -> bool: ...

@final
class BookmarkStore:
    def __new__(cls, path: Path | None = None) -> BookmarkStore: ...
    def most_recent(self, sub_id: str) -> str | None: ...
    def sub_ids(self) -> list[str]: ...
    def forget(self, sub_id: str) -> bool: ...
    def close(self) -> None: ...

@final
class Client:
    def __new__(
        cls,
        links: Sequence[tuple[str, int] | Embedded],
        name: str,
        *,
        user: str | None,
        password: str | None,
        heartbeat: timedelta | None,
        connect_timeout: timedelta,
        reconnect: tuple[timedelta, timedelta, float, float, timedelta | None],
        publish_store: str | None,
        publish_store_size_max: int,
        bookmark_store: BookmarkStore | None,
        receive_size_max: int,
        ack_batch_size: int,
        ack_timeout: timedelta,
        seed: int,
    ) -> Client: ...
    def publish(
        self,
        topic: str,
        data: bytes,
        sequence: int | None = 0,
        expiration_s: int | None = None,
        correlation_id: str | None = None,
        wait: bool = True,
    ) -> int | None: ...
    def wait_connected(self, timeout: float | None = None) -> bool: ...
    def flush(self) -> int: ...
    def wait(self, command: int, timeout: float | None = None) -> bool: ...
    def abandon(self, command: int) -> None: ...
    def forget(self, number: int) -> None: ...
    @property
    def answer_count(self) -> int: ...
    def heard(self) -> tuple[float | None, dict[int, float]]: ...
    def subscribe(
        self, spec: Spec, sub_id: str, is_kept: bool, handled: bool, auto_ack: bool
    ) -> Subscription: ...
    def settle_bookmarks(self, queue: str, verdict: str, bookmarks: Sequence[str]) -> int: ...
    def settle_matching(self, queue: str, verdict: str, filter: str) -> int: ...
    def extend(self, messages: Sequence[Message], period: timedelta | None) -> None: ...
    def query(
        self, queue: str, filter: str | None, order_by: str | None, top_n: int | None
    ) -> Subscription: ...
    def queue_stats(self, queue: str | None) -> int: ...
    def take_stats(self, command: int) -> str | None: ...
    @property
    def waiting_acknowledgement_count(self) -> int: ...
    def replace(self, number: int, spec: Spec) -> int: ...
    def unsubscribe(self, number: int) -> int: ...
    def set_paused(self, numbers: Sequence[int], paused: bool) -> int: ...
    def handled_batch(self, count_max: int, timeout: float | None = None) -> list[Message] | None: ...
    @property
    def state(self) -> str: ...
    @property
    def last_error(self) -> str | None: ...
    @property
    def persisted(self) -> int: ...
    @property
    def unpersisted_count(self) -> int: ...
    def take_failed_publishes(self) -> list[tuple[int, BaseException]]: ...
    def ready_descriptor(self) -> int: ...
    def arm(self) -> None: ...
    def close(self, timeout: float) -> int: ...

@final
class Embedded:
    def __new__(cls, config: str, directory: str | PathLike[str] | None, name: str) -> Embedded: ...

@final
class Engine:
    def __new__(cls, config: str, on_progress: Callable[[int, int], object] | None = None) -> Engine: ...
    def wake_fd(self) -> int: ...
    def turn(self, events: Sequence[tuple[int, int, bytes]]) -> Turn: ...
    def stats(self) -> str: ...
    def journal(self) -> JournalReader: ...
    def upkeep(self) -> Upkeep: ...
    def keep_from(self) -> int | None: ...
    def close(self) -> None: ...

@final
class Turn:
    @property
    def sends(self) -> list[tuple[int, bytes]]: ...
    @property
    def closes(self) -> list[int]: ...
    @property
    def pauses(self) -> list[int]: ...
    @property
    def resumes(self) -> list[int]: ...
    @property
    def logs(self) -> list[tuple[int, str]]: ...
    @property
    def sleep(self) -> float | None: ...
    @property
    def drained(self) -> bool: ...

@final
class Filter:
    def __new__(cls, text: str, allow_backtracking: bool) -> Filter: ...
    def matches(self, data: bytes, message_type: str) -> bool: ...
    @property
    def fields(self) -> list[str]: ...

@final
class Journal:
    def __new__(
        cls,
        directory: str | PathLike[str],
        *,
        name: str,
        archive_directory: str | PathLike[str] | None,
        journal_size: int,
        prepared_count: int,
        flush_interval: timedelta,
        durability: str,
        on_progress: Callable[[int, int], object] | None = None,
    ) -> Journal: ...
    def append(
        self,
        topic: str,
        data: Sequence[bytes],
        *,
        publisher: str | int,
        sequence: int | None,
        message_type: str,
        correlation_id: str | None,
        expiration_s: int | None,
    ) -> list[str | None]: ...
    def flush(self, timeout: float | None = None) -> bool: ...
    @property
    def appended(self) -> int: ...
    def highest_sequence(self, publisher: str | int) -> int: ...
    def reader(self) -> JournalReader: ...
    def upkeep(self) -> Upkeep: ...
    def close(self) -> None: ...

#: Path, number, first and last bookmark, first and last timestamp in nanoseconds, records, bytes, state.
SegmentFields = tuple[Path, int, str | None, str | None, int | None, int | None, int, int, str]

@final
class JournalReader:
    def __new__(
        cls, directory: str | PathLike[str], archive_directory: str | PathLike[str] | None = None
    ) -> JournalReader: ...
    def positions(self) -> tuple[int, int]: ...
    def segments(self) -> list[SegmentFields]: ...
    def find(self, bookmark: str) -> tuple[SegmentFields, int] | None: ...
    def verify(self) -> list[tuple[Path, int, str]]: ...
    def bounds(self, after: str, until: str | None) -> tuple[int, int]: ...
    def read(self, after: str, until: str | None, topic: str | None, filter: str | None) -> Messages: ...
    def records(self, after: str, until: str | None, topic: str | None, filter: str | None) -> Records: ...

@final
class Upkeep:
    """Takes care of the full files of one journal."""

    def __new__(
        cls, directory: str | PathLike[str], archive_directory: str | PathLike[str] | None
    ) -> Upkeep: ...
    def take_next(self, action: str, age: timedelta, keep_from: int | None) -> SegmentFields | None: ...
    def queues_need(self) -> int | None: ...
    def plan(self, action: str, age: timedelta, keep_from: int | None) -> list[SegmentFields]: ...

@final
class Messages:
    def __iter__(self) -> Self: ...
    def __next__(self) -> Message: ...

@final
class Records:
    def __iter__(self) -> Self: ...
    def __next__(self) -> Record: ...

@final
class Record:
    """One record as it stands in a journal."""

    @property
    def position(self) -> int:
        """Its number in the log, from 1."""
    @property
    def kind(self) -> str:
        """`"publish"`, `"acknowledge"` or `"noop"`."""
    @property
    def message_type(self) -> str: ...
    @property
    def publisher(self) -> str:
        """The id of its publisher, as in the bookmark."""
    @property
    def sequence(self) -> int: ...
    @property
    def bookmark(self) -> str: ...
    @property
    def timestamp(self) -> datetime:
        """When it was taken (UTC)."""
    @property
    def timestamp_ns(self) -> int:
        """When it was taken, in nanoseconds since 1970 UTC."""
    @property
    def topic(self) -> str: ...
    @property
    def correlation_id(self) -> str | None: ...
    @property
    def expiration_s(self) -> int | None:
        """Lifetime in a queue in seconds, 0 = never expires; `None` = not said."""
    @property
    def data(self) -> bytes: ...
    @property
    def segment(self) -> Path:
        """The file that holds it."""
    @property
    def offset(self) -> int:
        """Where its batch begins in the file, in bytes."""

@final
class Pace:
    """How fast messages may go out: the rates of `Client.subscribe`, for whoever reads without a server."""

    def __new__(cls, rate: str, rate_max_gap: timedelta | None = None) -> Pace: ...
    def wait(self, timestamp_ns: int, size: int) -> None:
        """Waits until a message of `size` bytes that was taken at `timestamp_ns` may go."""

def check_scan(spec: str) -> None:
    """Raises what is wrong with a scan, `ConfigError`, `BadFilterError` or `BadTopicError`."""

@final
class ArrowReader:
    """A journal directory, opened for reading beside whoever writes to it. Ranges are behind `after`, up to `limit`."""

    def __new__(cls, directory: str | PathLike[str]) -> ArrowReader: ...
    @staticmethod
    def of(reader: JournalReader) -> ArrowReader: ...
    @property
    def first(self) -> int: ...
    @property
    def last(self) -> int: ...
    def refresh(self) -> int: ...
    def find(self, bookmark: str) -> int | None: ...
    def position_before(self, timestamp_ns: int) -> int: ...
    def identity(self, position: int) -> tuple[str, int] | None: ...
    def narrow(self, spec: str, after: int, limit: int) -> tuple[int, int]: ...
    def split(
        self, spec: str, after: int, limit: int, part_size: int, part_count_min: int
    ) -> list[tuple[int, int, int]]: ...
    def limit_by_size(self, after: int, limit: int, size: int) -> int: ...
    def scan(self, spec: str, after: int, limit: int) -> ArrowScan: ...

@final
class ArrowScan:
    """A range of the log, read once through the Arrow C stream interface."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...
    @property
    def skipped(self) -> list[tuple[int, int, str]]: ...
    @property
    def error(self) -> BaseException | None: ...
