"""The compiled core. The package `quire` exports its public names."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, final

from quire._errors import QuireError
from quire.client._options import ClientOptions
from quire.client._records import QuerySpec
from quire.client._spec import Spec

__version__: str

def forked() -> None: ...
def check_headers(headers: Mapping[str, str | bytes]) -> None: ...
def local_socket_name(directory: str | PathLike[str]) -> str: ...
def runs_locally(directory: str | PathLike[str]) -> bool: ...
def check_config(config: str) -> tuple[list[tuple[str, str]], list[str]]: ...
def caret(text: str, column: int) -> str: ...

@final
class Message:
    """A received message.

        for message in client.subscribe("shipping", max_backlog=10):
            with message:  # acknowledges at the end, cancels when an exception leaves the block
                print(message.topic, message.json())

    `memoryview(message)` is the data without a copy. Two messages are equal when their topics, bookmarks,
    timestamps, correlation ids, headers and data are equal. A pickled message is a copy with all attributes
    that cannot be settled.
    """

    @property
    def topic(self) -> str:
        """The queue that delivered the message, otherwise the topic to which it was published.

        `client.ack(message.topic, message.bookmark)` acknowledges a message of a queue.
        """
    @property
    def source_topic(self) -> str:
        """The topic to which the message was published, also when a queue delivered it."""
    @property
    def data(self) -> bytes:
        """The data. Each use copies it; `memoryview(message)` does not copy."""
    def json(self) -> Any:
        """Returns the data, decoded from JSON. Raises `ValueError` when it is not JSON."""
    @property
    def bookmark(self) -> str | None:
        """The bookmark of the message, or `None` when the log does not record its topic."""
    @property
    def timestamp(self) -> datetime:
        """The time at which the server received the message (UTC)."""
    @property
    def timestamp_ns(self) -> int:
        """The time at which the server received the message, in nanoseconds since 1970 (UTC)."""
    @property
    def sequence(self) -> int | None:
        """The sequence number that the publisher gave the message."""
    @property
    def publisher(self) -> str | None:
        """The id of the publisher, as in the bookmark."""
    @property
    def correlation_id(self) -> str | None:
        """The correlation id with which the message was published, or `None`."""
    @property
    def headers(self) -> dict[str, str | bytes]:
        """The headers of the message: names with text or bytes. Each use makes a new dictionary."""
    @property
    def sow_key(self) -> str | None:
        """The key of the record in a last-value topic; `None` for messages of other topics and of queues."""
    @property
    def command(self) -> str:
        """`"publish"`, `"sow"` for a record of a query, or `"oof"` for a record that has left a subscription."""
    @property
    def reason(self) -> str | None:
        """Of an `"oof"`: `"deleted"`, `"expired"`, or `"match"` when the filter does not match the record any more.

        The data is then the last message, or the new one with `"match"`. It is empty when the record was
        deleted while the client was disconnected. `None` for other messages.
        """
    @property
    def is_delta(self) -> bool:
        """Whether the data has only the fields that differ from the previous message of the record, and the key fields.

        Only a delta subscription receives such messages. A field that was removed is NULL.
        """
    @property
    def sub_id(self) -> str:
        """The name of the subscription that received the message."""
    def _detached(self) -> Message: ...
    @property
    def _number(self) -> int: ...
    def discard(self) -> None:
        """Marks the message as processed. `most_recent` can then move past it."""
    @property
    def queue(self) -> str | None:
        """The queue that delivered the message, or `None`."""
    @property
    def lease_period(self) -> timedelta | None:
        """The lease period, or `None` without a lease or with a lease without end."""
    @property
    def lease_deadline(self) -> datetime | None:
        """The end of the lease (UTC), by the clock of this machine, counted from the arrival."""
    @property
    def lease_lost(self) -> bool:
        """Whether the lease is over: the time is over, another consumer settled the message, or no connection.

        Another consumer may have the message. `ack` and `expire` are still sent. They have an effect if the
        queue still has the message, and its `leasing` is `"sublease"`. `cancel` is not sent, because the
        message is back in its queue.
        """
    @property
    def delivery_count(self) -> int:
        """The number of deliveries, including this one. 0 for a barrier, and without a queue."""
    @property
    def cancel_count(self) -> int:
        """The number of times that a consumer returned the message with `cancel`."""
    @property
    def _verdict(self) -> Literal["ack", "cancel", "expire"] | None: ...
    def _begin(self) -> bool: ...
    def ack(self) -> None:
        """Acknowledges the message: it leaves its queue. Without a queue, it does the same as `discard`.

        Acknowledgements are sent together (`ack_batch_size` of the client), also after the end of the lease.
        """
    def cancel(self, delay: timedelta | float | str | None = None) -> None:
        """Returns the message to its queue, which delivers it again after `delay`.

        Without `delay`, the queue uses its `retry_delay`.
        """
    def expire(self) -> None:
        """Removes the message from its queue, unprocessed. The dead letter topic of the queue gets it."""
    def extend(self, period: timedelta | float | str | None = None) -> None:
        """Renews the lease for `period` from now. Without it: for the lease period of the queue."""
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        """Acknowledges the message, or cancels it when the block raised."""
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...
    def __reduce__(self) -> tuple[object, tuple[bytes, str, str]]: ...
    def __copy__(self) -> Self: ...
    def __deepcopy__(self, _memo: object, /) -> Self: ...
    def __len__(self) -> int: ...
    def __bool__(self) -> bool: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

def copy_message(body: bytes, command: str, sub_id: str) -> Message: ...
def test_message(
    topic: str,
    data: bytes,
    *,
    bookmark: str | None,
    timestamp_ns: int,
    correlation_id: str,
    headers: Mapping[str, str | bytes] | None,
    sub_id: str,
    queue: str | None,
    lease_ms: int,
    delivery_count: int,
    cancel_count: int,
    kind: str,
    reason: str | None,
    sow_key: str | None,
    is_delta: bool,
) -> Message: ...

@final
class Queue:
    def __new__(cls, settings: str) -> Queue: ...
    def enqueue(self, data: bytes, expiration_s: int | None, delay_ns: int, now: int) -> int | None: ...
    def subscribe(self, connection: int, max_backlog: int | None, filter: str | None) -> int: ...
    def unsubscribe(self, subscription: int, now: int) -> bool: ...
    def disconnect(self, connection: int, now: int) -> None: ...
    def dispatch(
        self, count_max: int, now: int
    ) -> list[tuple[int, int, bytes, int | None, int, int, bool]]: ...
    def settle(
        self, connection: int, verdict: str, positions: Sequence[int], delay_ms: int | None, now: int
    ) -> int: ...
    def settle_matching(self, connection: int, verdict: str, filter: str, now: int) -> int: ...
    def extend(self, connection: int, position: int, deadline: int, now: int) -> bool: ...
    def tick(self, now: int) -> list[tuple[int, bytes, list[str], int, int]]: ...
    @property
    def next_timeout(self) -> int | None: ...
    def stats(self, now: int) -> list[tuple[str, int | None]]: ...

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
    def next(self, timeout: float | None = None, ahead: int = 1024) -> Message | None: ...
    def batch(self, count_max: int, timeout: float | None = None) -> list[Message] | None: ...
    def collect(self, rows: Rows, timeout: float | None = None) -> int | None: ...
    def close(self) -> None: ...
    @property
    def total(self) -> int | None: ...
    def is_snapshot(self) -> bool: ...
    def wait_snapshot(self, timeout: float | None = None) -> bool | None: ...
    def is_current(self) -> bool: ...
    def is_completed(self) -> bool: ...
    @property
    def granted_backlog(self) -> int: ...
    @property
    def bookmark_found(self) -> bool: ...
    def wait_completed(self, timeout: float | None = None) -> bool | None: ...

@final
class Rows:
    def __new__(cls, messages: Sequence[Message]) -> Rows: ...
    @property
    def topic(self) -> str | None: ...
    def fields(self) -> list[str]: ...
    def types(self, paths: Sequence[str], message_type: str) -> list[str]: ...
    def scan(self, spec: str, message_type: str) -> ArrowScan: ...
    def data(self) -> list[bytes]: ...
    def __len__(self) -> int: ...

@final
class Fields:
    def __new__(cls, paths: Sequence[str]) -> Fields: ...
    def texts(self, message: Message, message_type: str) -> list[str | None]: ...

@final
class Receipt:
    @property
    def number(self) -> int: ...
    def is_settled(self) -> bool: ...
    def outcome(
        self, timeout: float | None = None
    ) -> tuple[list[tuple[int, QuireError]], QuireError | None] | bool: ...

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
        links: Sequence[tuple[str, int] | tuple[Path] | Embedded],
        name: str,
        options: ClientOptions,
        bookmark_store: BookmarkStore | None,
        seed: int,
    ) -> Client: ...
    def publish(
        self,
        topic: str,
        data: bytes,
        sequence: int | None = 0,
        expiration_s: int | None = None,
        correlation_id: str | None = None,
        headers: Mapping[str, str | bytes] | None = None,
        delay: tuple[int, int | None] | None = None,
        sow_key: str | None = None,
        is_delta: bool = False,
    ) -> int | None: ...
    def publish_many(
        self,
        messages: Sequence[
            tuple[
                str,
                bytes,
                int,
                int | None,
                str | None,
                Mapping[str, str | bytes] | None,
                tuple[int, int | None] | None,
                str | None,
            ]
        ],
        followed: str | None,
    ) -> tuple[list[int], Receipt | None, tuple[int | None, BaseException] | None]: ...
    @property
    def released(self) -> int: ...
    def wait_room(self, seen: int, timeout: float | None = None) -> bool: ...
    def settled(self, timeout: float | None = None) -> list[int] | None: ...
    def publish_rows(self, rows: object, after: int, timeout: float) -> int: ...
    def wait_connected(self, timeout: float | None = None, keeps_trying: bool = True) -> bool | None: ...
    def resume_position(self, number: int) -> str | None: ...
    def flush(self) -> int: ...
    def wait(self, command: int, timeout: float | None = None) -> bool: ...
    def wait_while_connected(self, command: int, timeout: float | None = None) -> bool | None: ...
    def abandon(self, command: int) -> None: ...
    def forget(self, number: int) -> None: ...
    @property
    def answer_count(self) -> int: ...
    def heard(self) -> tuple[float | None, dict[int, float]]: ...
    def missed(self) -> dict[int, int]: ...
    def subscribe(
        self, spec: Spec, sub_id: str, is_kept: bool, handled: bool, auto_ack: bool
    ) -> Subscription: ...
    def settle_bookmarks(self, queue: str, verdict: str, bookmarks: Sequence[str]) -> int: ...
    def settle_matching(self, queue: str, verdict: str, filter: str) -> int: ...
    def extend(self, messages: Sequence[Message], period: timedelta | None) -> None: ...
    def query(self, spec: QuerySpec) -> Subscription: ...
    def delete(
        self, topic: str, filter: str | None, keys: Sequence[str] | None, data: bytes | None
    ) -> int: ...
    def queue_stats(self, queue: str | None) -> int: ...
    def inspect(
        self, subject: Literal["server", "clients", "topics"], after_connection: int, after_topic: str
    ) -> int: ...
    def create_queue(self, settings: str) -> int: ...
    def alter_queue(self, queue: str, changes: str) -> int: ...
    def drop_queue(self, queue: str) -> int: ...
    def maintain(
        self,
        action: str,
        age: timedelta | None,
        size_max: int | None,
        dry_run: bool,
        archive_directory: str | None = None,
    ) -> int: ...
    def take_told(self, command: int) -> list[str]: ...
    @property
    def unconfirmed_count(self) -> int: ...
    def replace(self, number: int, spec: Spec) -> int: ...
    def unsubscribe(self, number: int) -> int: ...
    def set_paused(self, numbers: Sequence[int], paused: bool) -> int: ...
    def handled_batch(self, count_max: int, timeout: float | None = None) -> list[Message] | None: ...
    def states_after(self, seen: int, timeout: float | None = None) -> list[tuple[int, str]]: ...
    def handled_ended(self) -> list[tuple[int, QuireError | None]]: ...
    def end_handled(self) -> None: ...
    def fail(self, reason: str) -> None: ...
    @property
    def handled_count(self) -> int: ...
    @property
    def state(self) -> str: ...
    @property
    def last_error(self) -> str | None: ...
    @property
    def last_error_code(self) -> str | None: ...
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
    def __new__(
        cls, config: str, directory: str | PathLike[str] | None, name: str, joins_any: bool
    ) -> Embedded: ...

@final
class Engine:
    def __new__(cls, config: str, on_progress: Callable[[int, int], object] | None = None) -> Engine: ...
    def wake_fd(self) -> int: ...
    def panic_in_next_turn(self) -> None: ...
    def turn(self, events: Sequence[tuple[int, int, bytes]]) -> Turn: ...
    def stats(self) -> str: ...
    def create_queue(self, settings: str) -> bool: ...
    def alter_queue(self, queue: str, changes: str) -> bool: ...
    def drop_queue(self, queue: str) -> tuple[int, list[str]]: ...
    def journal(self) -> JournalReader: ...
    def maintain(
        self, action: str, age: timedelta | None, size_max: int | None, dry_run: bool
    ) -> list[SegmentFields]: ...
    def close(self) -> None: ...

@final
class Turn:
    @property
    def sends(self) -> list[tuple[int, list[bytes]]]: ...
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
    def matches(self, data: bytes, message_type: str, headers: Mapping[str, str | bytes] | None) -> bool: ...
    @property
    def fields(self) -> list[str]: ...

@final
class Journal:
    def __new__(
        cls,
        directory: str | PathLike[str],
        *,
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
        headers: Mapping[str, str | bytes] | None = None,
    ) -> list[str | None]: ...
    def flush(self, timeout: float | None = None) -> bool: ...
    @property
    def appended(self) -> int: ...
    def highest_sequence(self, publisher: str | int) -> int: ...
    def reader(self) -> JournalReader: ...
    def maintenance(self) -> JournalMaintenance: ...
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
class JournalMaintenance:
    """Archives, compresses and removes the full files of a journal that no server runs on."""

    def __new__(
        cls, directory: str | PathLike[str], archive_directory: str | PathLike[str] | None
    ) -> JournalMaintenance: ...
    @staticmethod
    def give_up_missing(
        directory: str | PathLike[str], archive_directory: str | PathLike[str] | None
    ) -> tuple[int | None, int] | None: ...
    @property
    def archive_directory(self) -> Path | None: ...
    def maintain(
        self, action: str, age: timedelta | None, size_max: int | None, dry_run: bool
    ) -> list[SegmentFields]: ...

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
    """One record of a journal, as it is stored."""

    @property
    def position(self) -> int:
        """The position in the log, from 1."""
    @property
    def kind(self) -> str:
        """`"publish"`, `"acknowledge"` (a queue settled messages), `"lease"` (a queue delivered messages), or `"delete"`
        (of a last-value topic)."""
    @property
    def message_type(self) -> str:
        """The type of the data, such as `"json"`."""
    @property
    def publisher(self) -> str:
        """The id of the publisher, as in the bookmark."""
    @property
    def sequence(self) -> int:
        """The sequence number that the publisher gave the record."""
    @property
    def bookmark(self) -> str:
        """The bookmark of the record: `<publisher>|<sequence>|`."""
    @property
    def timestamp(self) -> datetime:
        """The time at which the record was received (UTC)."""
    @property
    def timestamp_ns(self) -> int:
        """The time at which the record was received, in nanoseconds since 1970 (UTC)."""
    @property
    def topic(self) -> str:
        """The topic of the record."""
    @property
    def correlation_id(self) -> str | None:
        """The correlation id with which the message was published, or `None`."""
    @property
    def headers(self) -> dict[str, str | bytes]:
        """The headers of the message: names with text or bytes."""
    @property
    def expiration_s(self) -> int | None:
        """The lifetime in a queue in seconds; 0 = never expires; `None` = the lifetime of the queue."""
    @property
    def key(self) -> bytes | None:
        """The key of the message in its last-value topic, or `None`."""
    @property
    def path(self) -> list[tuple[str, str]]:
        """Name and group of each instance that the record passed, oldest first. Empty if published here."""
    @property
    def source_position(self) -> int | None:
        """The position in the log of the last instance in `path`; `None` = published here, or not known."""
    @property
    def deleted_keys(self) -> list[bytes]:
        """The keys that a `"delete"` removed; empty for other kinds."""
    @property
    def data(self) -> bytes:
        """The data as it was published."""
    @property
    def segment(self) -> Path:
        """The file that contains the record."""
    @property
    def offset(self) -> int:
        """The offset of its batch in the file, in bytes."""

@final
class Pace:
    """The pace of messages that are read without a server, with the rates of `Client.subscribe`."""

    def __new__(cls, rate: str, rate_max_gap: timedelta | None = None) -> Pace: ...
    def wait(self, timestamp_ns: int, size: int) -> None:
        """Waits until a message of `size` bytes, recorded at `timestamp_ns`, may be sent."""

def check_scan(spec: str) -> None:
    """Checks a scan. Raises `ConfigError`, `BadFilterError` or `BadTopicError`."""

@final
class ArrowReader:
    """A journal directory, opened for reading while another process may write. Ranges are after `after`, up to `limit`."""

    def __new__(
        cls, directory: str | PathLike[str], archive: str | PathLike[str] | None = None
    ) -> ArrowReader: ...
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
    def last_values(
        self,
        topic: str,
        after: int,
        limit: int,
        *,
        at_ns: int,
        expires: bool,
        lifetime_ns: int | None,
    ) -> LastValues: ...
    def scan(self, spec: str, after: int, limit: int, positions: bytes | None = None) -> ArrowScan: ...

@final
class LastValues:
    """The newest message of each key of a topic, by their positions."""

    @property
    def counts(self) -> tuple[int, int]: ...
    def between(self, after: int, limit: int) -> bytes: ...
    def __len__(self) -> int: ...

@final
class ArrowScan:
    """A range of the log, read once through the Arrow C stream interface."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...
    @property
    def skipped(self) -> list[tuple[int, int, str]]: ...
    @property
    def error(self) -> BaseException | None: ...

@final
class ArrowRange:
    """A subscription with an end that the log has, to be read once: as batches, or as a count."""

    def __new__(cls, subscription: Subscription) -> ArrowRange: ...
    def scan(self, spec: str) -> ArrowScan: ...
    def count(self, count_max: int, size_max: int) -> tuple[int, tuple[str, int] | None, bool]: ...
