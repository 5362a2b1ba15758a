"""The configuration of an engine: a validated model, from TOML or from Python with the same keys."""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PrivateAttr,
    ValidationError,
    field_validator,
    model_validator,
)

from quire._arguments import check_path
from quire._bookmarks import Bookmark, bookmark_to_core, is_as_in_core
from quire._errors import BadBookmarkError, ConfigError
from quire._filter import MessageType
from quire._text import path_to_core
from quire.config._actions import LEFT_PATTERN, Action, Events, wanted_of
from quire.config._admin import CLIENTS_INSIDE_MAX, IN_MEMORY, Admin
from quire.config._authentication import Authentication
from quire.config._entitlement import Entitlement
from quire.config._last_values import TABLES_LATER, ConflatedTopic, SowTopic, View, not_in_this_version
from quire.config._locate import line_of, path_text, place_of
from quire.config._logging import Logging
from quire.config._mistakes import Mistakes, expected, got, refused, together
from quire.config._model import Model, Topics, tables_as_lists
from quire.config._replication import Replication
from quire.config._tls import ServerTLS
from quire.config._user_limit import UserLimit
from quire.config._values import (
    Address,
    AddressText,
    DirectoryLike,
    Duration,
    DurationLike,
    LeasePeriod,
    Period,
    Share,
    Size,
    SizeLike,
    Table,
    as_written,
    duration_between,
    size_between,
)

DEFAULT_ADDRESS = "127.0.0.1:9007"

_U32 = 2**32 - 1

_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,99}")

#: The words for the ends of the log.
_POINTS = ("epoch", "now")

#: The lease period of an at-least-once queue that sets none, in seconds. After it, the messages of
#: a consumer that hangs return to the queue. It is longer than most handlers take, because a
#: message whose lease is over is delivered again.
LEASE_PERIOD = 300.0

#: The retry delays of an at-least-once queue that sets none, in seconds. Without them, a message
#: that always fails would be delivered thousands of times a second.
RETRY_DELAY = (0.1, 1.0, 10.0, 60.0)


Directory = Annotated[Path, AfterValidator(as_written)]


def _delays(value: Any) -> Any:
    """A single delay is accepted as a list with one entry."""
    return (value,) if isinstance(value, (str, int, float, timedelta)) else value


class Transport(Model):
    """An address for clients, and the limits of its connections."""

    name: str = "clients"
    address: AddressText = DEFAULT_ADDRESS
    max_message_size: Annotated[int, size_between("1KB", "1GB")] = 16 << 20
    #: Connections of clients. Administrators who connect to `local:DIRECTORY` do not count.
    max_connections: Annotated[int, Field(ge=1, le=1 << 20)] = 10_000
    max_subscriptions_per_connection: Annotated[int, Field(ge=1, le=1 << 20)] = 1024
    #: Patterns in the filters of the subscriptions of one connection.
    max_patterns_per_connection: Annotated[int, Field(ge=0, le=1 << 20)] = 1024
    #: Bytes that may wait for a connection with ordinary subscriptions, before they go to disk or
    #: it is cut off.
    max_client_backlog: Annotated[int, size_between("64KB")] = 64 << 20
    #: Bytes that may wait in memory for its clients, within the limit of all transports together.
    message_memory_limit: Annotated[int, size_between("64KB")] | None = None
    #: The same on disk. 0: none go to disk.
    message_disk_limit: Annotated[int, size_between("0")] | None = None
    #: Default: that of the limits.
    client_max_capacity: Share | None = None
    #: Default: that of the limits.
    client_message_age_limit: Period | None = None
    logon_timeout: Period = 5.0
    #: Connections over TLS only (docs/security.md).
    tls: ServerTLS | None = None
    #: How clients prove their user. Default: the `authentication` of the configuration.
    authentication: Authentication | None = None
    #: Accepts clients beyond this machine without authentication, or passwords without TLS.
    insecure: bool = False

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            name: str = ...,
            address: str = ...,
            max_message_size: SizeLike = ...,
            max_connections: int = ...,
            max_subscriptions_per_connection: int = ...,
            max_patterns_per_connection: int = ...,
            max_client_backlog: SizeLike = ...,
            message_memory_limit: SizeLike | None = ...,
            message_disk_limit: SizeLike | None = ...,
            client_max_capacity: float | None = ...,
            client_message_age_limit: DurationLike | None = ...,
            logon_timeout: DurationLike = ...,
            tls: ServerTLS | Table | None = ...,
            authentication: Authentication | Table | None = ...,
            insecure: bool = ...,
        ) -> None: ...

    def below(self, directory: Path) -> Transport:
        """Returns a copy whose relative files are below this directory."""
        tables = {"tls": self.tls, "authentication": self.authentication}
        placed = {key: table.below(directory) for key, table in tables.items() if table is not None}
        return self.model_copy(update=placed)

    def mistakes(self, authentication: Authentication) -> list[tuple[str, str]]:
        """Returns the keys whose values are not safe, with the reasons. `authentication`: the table that applies."""
        if authentication.method == "certificate" and (self.tls is None or self.tls.clients != "required"):
            reason = 'the method "certificate" requires tls with client_certificate = "required"'
            return [("address" if self.tls is None else "tls", reason)]
        address = Address.parse(self.address)
        if address.is_loopback or self.insecure:
            return []
        advice = "or set insecure = true in a network that you trust"
        if authentication.method == "none":
            reason = (
                f"{address} can be reached from other machines, and every program there could publish, read and delete: set "
                f"[authentication], {advice}"
            )
            return [("address", reason)]
        if self.tls is None:
            what = "tokens" if authentication.method == "token" else "passwords"
            reason = f"clients would send their {what} to {address} without encryption: set tls, {advice}"
            return [("address", reason)]
        return []


def _tenth_of_memory() -> int:
    """A tenth of the memory of the machine, in bytes; 1 GB where the system does not say how much it has."""
    try:
        return max(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 10, 64 << 20)
    except (ValueError, OSError, AttributeError):
        return 1 << 30


class Limits(Model):
    """Limits for all connections of all transports together."""

    #: Patterns in the filters of all subscriptions.
    max_patterns: Annotated[int, Field(ge=0, le=1 << 20)] = 8192
    #: Bytes that may wait for connections in memory. Above it, those of the connection with the
    #: most go to disk, or it is cut off. Default: a tenth of the memory of the machine.
    #: `max_waiting` is the older name.
    message_memory_limit: Annotated[int, size_between("64KB")] = Field(default_factory=_tenth_of_memory)
    #: Bytes that may wait for connections on disk. 0: none go to disk. Default: the larger of 1 GB
    #: and `message_memory_limit`.
    message_disk_limit: Annotated[int, size_between("0")] | None = None
    #: Where they wait, below the data directory.
    message_disk_path: Directory = Path("offline")
    #: The part of each of both limits that one client may use.
    client_max_capacity: Share = 0.5
    #: The age of the oldest unread message above which a client is cut off.
    client_message_age_limit: Period | None = None
    #: Bytes of frames that have not arrived whole; the connection that goes beyond is closed.
    max_unfinished: Annotated[int, size_between("64KB")] = 256 << 20
    #: Queues that clients created at run time; creating one more is refused.
    max_created_queues: Annotated[int, Field(ge=0, le=10_000)] = 1000
    #: Bytes of records that were replaced before one query had sent them; a query that needs more
    #: is ended.
    max_query_copies: Annotated[int, size_between("64KB")] = 64 << 20
    #: Topics with records of all last-value topics that have a pattern; a publish to one more is
    #: refused.
    max_pattern_topics: Annotated[int, Field(ge=1, le=1 << 20)] = 10_000

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            max_patterns: int = ...,
            message_memory_limit: SizeLike = ...,
            max_waiting: SizeLike = ...,
            message_disk_limit: SizeLike | None = ...,
            message_disk_path: DirectoryLike = ...,
            client_max_capacity: float = ...,
            client_message_age_limit: DurationLike | None = ...,
            max_unfinished: SizeLike = ...,
            max_created_queues: int = ...,
            max_query_copies: SizeLike = ...,
            max_pattern_topics: int = ...,
        ) -> None: ...

    @property
    def disk_limit(self) -> int:
        """Bytes that may wait for connections on disk. 0: none go to disk."""
        limit = self.message_disk_limit
        return max(1 << 30, self.message_memory_limit) if limit is None else limit

    @model_validator(mode="before")
    @classmethod
    def _rename(cls, values: Any) -> Any:
        """Reads `max_waiting` as `message_memory_limit`."""
        if isinstance(values, Mapping) and "max_waiting" in values and "message_memory_limit" not in values:
            values = {
                "message_memory_limit" if key == "max_waiting" else key: value
                for key, value in values.items()
            }
        return values


class RecordedTopic(Topics):
    r"""Topics that the transaction log records, or with `recorded=False` topics that it must not record.

    The name is exact, or a regular expression if it contains any of ``^ $ * + ? [ ] ( ) { } | \``.
    The first entry that names a topic decides.
    """

    #: False: publishes are accepted and delivered, not persisted.
    recorded: bool = True
    #: Refuse messages that are not well formed; for `message_type = "json"`.
    validate_: Annotated[bool, Field(alias="validate")] = False

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            name: str,
            message_type: MessageType,
            filter: str | None = ...,
            recorded: bool = ...,
            validate: bool = ...,
        ) -> None: ...

    @model_validator(mode="after")
    def _check_validate(self) -> RecordedTopic:
        if self.validate_ and self.message_type != "json":
            raise ValueError(f'validate = true requires message_type = "json", got {got(self.message_type)}')
        return self


class Maintenance(Model):
    """The maintenance of full journal files: when they are archived, compressed or removed.

    A period counts from the last message of a file. A size limits the files that stay unchanged.
    """

    archive_after: Period | None = None
    compress_after: Period | None = None
    #: Files that a queue, a subscription or a reader needs are not removed.
    remove_after: Period | None = None
    #: The oldest go to the archive until those outside of it are this large at most.
    archive_size_max: Size | None = None
    #: The oldest are compressed until those that are not are this large at most.
    compress_size_max: Size | None = None
    #: Removes the oldest files until the rest has at most this size, except files that are still
    #: needed.
    remove_size_max: Size | None = None
    interval: Annotated[float, duration_between("10ms")] = 600.0
    #: The actions that clients may request. Default: all on loopback, else those that lose no
    #: message.
    by_clients: tuple[Literal["archive", "compress", "remove"], ...] | None = None

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            archive_after: DurationLike | None = ...,
            compress_after: DurationLike | None = ...,
            remove_after: DurationLike | None = ...,
            archive_size_max: SizeLike | None = ...,
            compress_size_max: SizeLike | None = ...,
            remove_size_max: SizeLike | None = ...,
            interval: DurationLike = ...,
            by_clients: Sequence[Literal["archive", "compress", "remove"]] | None = ...,
        ) -> None: ...

    def rules(self) -> dict[str, dict[str, float | int]]:
        """What is archived, compressed and removed: by age, or the oldest beyond a size."""
        found: dict[str, dict[str, float | int]] = {}
        for verb in ("archive", "compress", "remove"):
            age, size_max = getattr(self, f"{verb}_after"), getattr(self, f"{verb}_size_max")
            rules = {"age": age, "size_max": size_max}
            if given := {name: value for name, value in rules.items() if value is not None}:
                found[verb] = given
        return found

    def to_core(self, *, is_local: bool, is_scheduled: bool) -> dict[str, Any]:
        """In nanoseconds and bytes.

        - `is_local`: clients are on the machine of the server
        - `is_scheduled`: the core follows the rules; else the actions of a server do
        """
        loses_nothing = ("archive", "compress")
        unsaid = (*loses_nothing, "remove") if is_local else loses_nothing
        by_clients: tuple[str, ...] = unsaid if self.by_clients is None else self.by_clients
        ages = {"archive": self.archive_after, "compress": self.compress_after, "remove": self.remove_after}
        core = {
            f"{action}_after_ns": None if age is None else round(age * 1e9) for action, age in ages.items()
        }
        return {
            **core,
            "archive_size_max": self.archive_size_max,
            "compress_size_max": self.compress_size_max,
            "remove_size_max": self.remove_size_max,
            "interval_ns": round(self.interval * 1e9),
            "is_scheduled": is_scheduled,
            "by_clients": {action: action in by_clients for action in ages},
        }


class TransactionLog(Model):
    """The recorded topics, and the directory, size, durability and maintenance of the journal."""

    journal_directory: Directory = Path("journal")
    journal_archive_directory: Directory | None = None
    journal_size: Annotated[int, size_between("64KB")] = 64 << 20
    preallocated_journal_files: Annotated[int, Field(ge=1, le=1024)] = 2
    flush_interval: Annotated[float, duration_between("30us", "100ms")] = 0.1
    durability: Literal["fsync", "os"] = "fsync"
    #: Bytes that may wait to become persistent before publishers are paused.
    max_unpersisted: Annotated[int, size_between("64KB")] = 64 << 20
    #: Topics that the log may have; a publish to another one is refused. A topic counts until the
    #: last journal file that holds it is removed.
    max_topics: Annotated[int, Field(ge=1, le=1 << 26)] = 100_000
    maintenance: Maintenance = Maintenance()
    #: Without an entry every topic is recorded as JSON.
    topic: tuple[RecordedTopic, ...] = (RecordedTopic(name="^", message_type="json"),)

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            journal_directory: DirectoryLike = ...,
            journal_archive_directory: DirectoryLike | None = ...,
            journal_size: SizeLike = ...,
            preallocated_journal_files: int = ...,
            flush_interval: DurationLike = ...,
            durability: Literal["fsync", "os"] = ...,
            max_unpersisted: SizeLike = ...,
            max_topics: int = ...,
            maintenance: Maintenance | Table = ...,
            topic: RecordedTopic | Table | Sequence[RecordedTopic | Table] = ...,
        ) -> None: ...

    @model_validator(mode="before")
    @classmethod
    def _plain(cls, values: Any) -> Any:
        return tables_as_lists(values, topic=RecordedTopic)

    @field_validator("topic")
    @classmethod
    def _check_topics(cls, value: tuple[RecordedTopic, ...]) -> tuple[RecordedTopic, ...]:
        if not value:
            raise ValueError(
                "the list is empty: leave the key out to record everything, or use recorded = false"
            )
        return value


class Queue(Model):
    """A queue over recorded topics (docs/queues.md section 8)."""

    name: Annotated[str, Field(min_length=1)]
    message_type: MessageType
    #: The topic whose messages enter, or a pattern; without it the topic of the queue's own name.
    underlying_topic: str | None = None
    #: Where a message published to the queue's name goes; without it the underlying topic.
    default_publish_target: str | None = None
    semantics: Literal["at-least-once", "at-most-once"] = "at-least-once"
    fairness_model: Literal["fast", "round-robin", "proportional"] | None = None
    #: How long a consumer may hold a message. Without it, and with `semantics = "at-least-once"`:
    #: `LEASE_PERIOD`. `"disabled"`: until its connection ends.
    lease_period: LeasePeriod = None
    leasing: Literal["strict", "sublease"] = "sublease"
    max_backlog: Annotated[int, Field(ge=1, le=_U32)] | None = None
    max_per_subscription_backlog: Annotated[int, Field(ge=1, le=_U32)] | None = None
    max_deliveries: Annotated[int, Field(ge=1, le=_U32)] | None = None
    max_cancels: Annotated[int, Field(ge=0, le=_U32)] | None = None
    #: How long a message waits after its first cancel, its second, and so on; the last one repeats.
    #: Without it, and with `semantics = "at-least-once"`: `RETRY_DELAY`. An empty list: it does not
    #: wait.
    retry_delay: Annotated[tuple[Duration, ...] | None, BeforeValidator(_delays), Field(max_length=100)] = (
        None
    )
    expiration: Period | None = None
    expiration_model: Literal["message", "queue", "minimum"] = "message"
    #: Only messages that match enter.
    filter: str | None = None
    priority: str | None = None
    barrier_expression: str | None = None
    #: Also written `max_queue_depth`.
    target_queue_depth: Annotated[int, Field(ge=1, le=(1 << 63) - 1)] | None = None
    #: `epoch`, `now`, a bookmark or a time (docs/replay.md).
    recovery_point: str | None = None
    #: The topic or queue that gets what expires.
    dead_letter_topic: str | None = None
    file_backed_metadata: Literal["enabled", "disabled"] = "disabled"
    #: The journal also says who held which message, for an audit.
    record_leases: bool = False

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            name: str,
            message_type: MessageType,
            underlying_topic: str | None = ...,
            default_publish_target: str | None = ...,
            semantics: Literal["at-least-once", "at-most-once"] = ...,
            fairness_model: Literal["fast", "round-robin", "proportional"] | None = ...,
            lease_period: DurationLike | None = ...,
            leasing: Literal["strict", "sublease"] = ...,
            max_backlog: int | None = ...,
            max_per_subscription_backlog: int | None = ...,
            max_deliveries: int | None = ...,
            max_cancels: int | None = ...,
            retry_delay: DurationLike | Sequence[DurationLike] | None = ...,
            expiration: DurationLike | None = ...,
            expiration_model: Literal["message", "queue", "minimum"] = ...,
            filter: str | None = ...,
            priority: str | None = ...,
            barrier_expression: str | None = ...,
            target_queue_depth: int | None = ...,
            max_queue_depth: int = ...,
            recovery_point: Bookmark | None = ...,
            dead_letter_topic: str | None = ...,
            file_backed_metadata: Literal["enabled", "disabled"] = ...,
            record_leases: bool = ...,
        ) -> None: ...

    @field_validator("recovery_point", mode="before")
    @classmethod
    def _check_recovery_point(cls, value: Any) -> Any:
        if value is None:
            return None
        try:
            # The text of a `datetime` stays as it was, too.
            point = bookmark_to_core(value, "recovery_point", is_exact=True)
        except BadBookmarkError as error:
            raise ValueError(error.args[0].removeprefix("recovery_point: ")) from None
        if not isinstance(value, str):
            return point
        # The server stores this text, and a queue starts again when it changes. So the text never
        # changes.
        word = value.strip().lower()
        if any(part.strip().startswith("-") for part in word.split(",")):
            raise expected("a bookmark or a time that is the same at every start", value)
        return word if word in _POINTS else value if is_as_in_core(value) else point

    @model_validator(mode="before")
    @classmethod
    def _older_name(cls, values: Any) -> Any:
        if not isinstance(values, Mapping) or "max_queue_depth" not in values:
            return values
        if "target_queue_depth" in values:
            raise ValueError("target_queue_depth and max_queue_depth are the same setting; use one of them")
        return {
            ("target_queue_depth" if key == "max_queue_depth" else key): value
            for key, value in values.items()
        }

    @property
    def lease_seconds(self) -> float | None:
        """The lease period that applies; `None`: a lease has no end, or there are no leases."""
        if self.lease_period is None:
            return LEASE_PERIOD if self.semantics == "at-least-once" else None
        return None if self.lease_period == "disabled" else self.lease_period

    @property
    def retry_delays(self) -> tuple[float, ...]:
        """The retry delays that apply; empty: a cancelled message does not wait."""
        if self.retry_delay is None:
            return RETRY_DELAY if self.semantics == "at-least-once" else ()
        return self.retry_delay

    def to_core(self) -> dict[str, Any]:
        """Returns the form that the core reads, with durations in nanoseconds."""
        settings = self.model_dump(
            exclude={"lease_period", "expiration", "retry_delay", "file_backed_metadata"}
        )
        lease = self.lease_seconds
        return settings | {
            "lease_period_ns": None if lease is None else round(lease * 1e9),
            "expiration_ns": None if self.expiration is None else round(self.expiration * 1e9),
            "retry_delay_ns": [round(delay * 1e9) for delay in self.retry_delays],
            "file_backed_metadata": self.file_backed_metadata == "enabled",
        }


@dataclass(frozen=True)
class _Source:
    """The file or text of a configuration. It does not count when two configurations are compared."""

    file: Path | None = field(default=None, compare=False)
    text: str = field(default="", compare=False)


class Config(Model):
    """The configuration of a server, from `Config.load(path)` or from Python with the same keys.

        quire.Config(data_directory="shop-data", queue={"name": "jobs", "message_type": "json"})

    Without a `transaction_log`, every topic is recorded as JSON. Raises `ConfigError` with the key
    of the mistake, and for a file also its line. docs/reference/configuration.md lists the keys.
    """

    name: str = "quire"
    #: The group of the instance, for replication. Default: its name.
    group: str | None = None
    #: Relative directories are below it; itself it is below the file that names it, or the working
    #: directory.
    data_directory: Directory = Path("quire-data")
    #: The addresses for clients, each with separate limits.
    transport: Annotated[tuple[Transport, ...], Field(min_length=1, max_length=64)] = (Transport(),)
    #: How clients prove their user, unless their transport says something else.
    authentication: Authentication = Authentication()
    #: Which user may do what. Without an entry, every user may do everything.
    entitlement: tuple[Entitlement, ...] = ()
    #: The limits of users. The first entry that matches a user decides.
    user_limit: tuple[UserLimit, ...] = ()
    limits: Limits = Limits()
    transaction_log: TransactionLog = TransactionLog()
    #: Filters may hold patterns that only a backtracking engine runs (docs/filters.md section 5).
    allow_backtracking_patterns: bool = False
    queue: tuple[Queue, ...] = ()
    #: Queues of this instance only: they may take messages that other instances send.
    local_queue: tuple[Queue, ...] = ()
    #: The topics that keep the newest message of each key.
    sow_topic: tuple[SowTopic, ...] = ()
    #: Topics that the server computes from last-value topics.
    view: tuple[View, ...] = ()
    #: Copies of last-value topics that change at most once per interval.
    conflated_topic: tuple[ConflatedTopic, ...] = ()
    #: The links to other instances.
    replication: Replication = Replication()
    #: The HTTP server of administration, and the statistics.
    admin: Admin | None = None
    #: The targets of the lines of the log. Default: those of the program, and standard error for
    #: `quire serve`.
    logging: tuple[Logging, ...] = ()
    #: The topics of the server itself.
    events: Events = Events()
    #: Steps that the server runs when something happens.
    action: tuple[Action, ...] = ()
    #: Actions may have the step `execute`, which runs programs.
    allow_execute: bool = False
    _source: _Source = PrivateAttr(default_factory=lambda: _Source())

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            name: str = ...,
            group: str | None = ...,
            data_directory: DirectoryLike = ...,
            transport: Transport | Table | Sequence[Transport | Table] = ...,
            authentication: Authentication | Table = ...,
            entitlement: Entitlement | Table | Sequence[Entitlement | Table] = ...,
            user_limit: UserLimit | Table | Sequence[UserLimit | Table] = ...,
            limits: Limits | Table = ...,
            transaction_log: TransactionLog | Table = ...,
            allow_backtracking_patterns: bool = ...,
            queue: Queue | Table | Sequence[Queue | Table] = ...,
            local_queue: Queue | Table | Sequence[Queue | Table] = ...,
            sow_topic: SowTopic | Table | Sequence[SowTopic | Table] = ...,
            view: View | Table | Sequence[View | Table] = ...,
            conflated_topic: ConflatedTopic | Table | Sequence[ConflatedTopic | Table] = ...,
            replication: Replication | Table = ...,
            admin: Admin | Table | None = ...,
            logging: Logging | Table | Sequence[Logging | Table] = ...,
            events: Events | Table = ...,
            action: Action | Table | Sequence[Action | Table] = ...,
            allow_execute: bool = ...,
        ) -> None: ...

    else:

        def __init__(self, **settings):
            try:
                super().__init__(**settings)
            except ValidationError as error:
                raise refused(error, Config) from error

    @field_validator("name", "group")
    @classmethod
    def _check_name(cls, value: str | None) -> str | None:
        if value is None:
            return None
        if _NAME.fullmatch(value) is None:
            raise expected('1 to 100 letters, digits, "-", "_" or ".", not beginning with "."', value)
        return value

    @model_validator(mode="before")
    @classmethod
    def _plain(cls, values: Any) -> Any:
        for key in TABLES_LATER:
            if isinstance(values, Mapping) and key in values:
                raise ValueError(not_in_this_version(key))
        return tables_as_lists(
            values,
            transport=Transport,
            entitlement=Entitlement,
            user_limit=UserLimit,
            queue=Queue,
            local_queue=Queue,
            sow_topic=SowTopic,
            logging=Logging,
            view=View,
            conflated_topic=ConflatedTopic,
            action=Action,
        )

    @classmethod
    def load(cls, path: str | Path) -> Config:
        """Reads a TOML file.

        Raises `ConfigError` with file, line and key, and `OSError` when the file cannot be read.
        The error has all mistakes that can be found at once. When a value is not allowed, that
        includes those that `check` finds in the other tables.
        """
        check_path(path, "path")
        path = Path(path)
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise ConfigError(f"not UTF-8: {error.reason} at byte {error.start}", file=path) from None
        return cls._parse(path, text)

    @classmethod
    def _parse(cls, path: Path, text: str) -> Config:
        """The configuration in the text of a file."""
        try:
            settings = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise _not_toml(error, path, text) from None
        mistakes = Mistakes(settings, path, text)
        config = cls._without(mistakes)
        if config is not None:
            config = config.replace(data_directory=path.parent / config.data_directory)._below(path.parent)
            config._source = _Source(path, text)
        if not mistakes.found and config is not None:
            return config
        if config is not None:
            mistakes.add_of_core(config._mistakes_and_warnings()[0])
        raise together(mistakes.found)

    @classmethod
    def _without(cls, mistakes: Mistakes) -> Config | None:
        """The configuration without its mistakes, which are noted; `None` when there is no such
        configuration."""
        mistakes.take_out(TABLES_LATER, not_in_this_version)
        while True:
            try:
                return cls(**mistakes.settings)
            except ConfigError as error:
                if not isinstance(error.__cause__, ValidationError):
                    raise
                if not mistakes.note(error.__cause__, cls):
                    return None

    @field_validator("transport")
    @classmethod
    def _check_transports(cls, value: tuple[Transport, ...]) -> tuple[Transport, ...]:
        for kind in ("name", "address"):
            texts = [getattr(transport, kind) for transport in value]
            twice = {text for text in texts if texts.count(text) > 1 and not text.endswith(":0")}
            if twice:
                raise ValueError(f"two transports have the {kind} {got(min(twice))}")
        return value

    @property
    def address(self) -> Address:
        """The address on which the server listens, of the first transport."""
        return self.addresses[0]

    @property
    def addresses(self) -> tuple[Address, ...]:
        """The addresses of all transports."""
        return tuple(Address.parse(transport.address) for transport in self.transport)

    @property
    def journal_directory(self) -> Path:
        """The directory of the journal."""
        return self.data_directory / self.transaction_log.journal_directory

    @property
    def journal_archive_directory(self) -> Path | None:
        """The directory of archived journal files, or `None`."""
        directory = self.transaction_log.journal_archive_directory
        return None if directory is None else self.data_directory / directory

    @property
    def statistics_file(self) -> Path | None:
        """The file of the statistics; `None`: they are in memory."""
        if self.admin is None or self.admin.file == IN_MEMORY:
            return None
        return self.data_directory / self.admin.file

    def check(self) -> list[str]:
        """Checks filters, patterns and combinations of keys. Raises `ConfigError` with all mistakes.

        Returns warnings about settings that are allowed but probably not intended.
        """
        mistakes, warnings = self._mistakes_and_warnings()
        if mistakes:
            raise together([self._placed(key, reason) for key, reason in mistakes])
        return warnings

    def _mistakes_and_warnings(self) -> tuple[list[tuple[str, str]], list[str]]:
        """Returns the keys with the reasons that the core finds, and warnings."""
        from quire import _quire

        mistakes, warnings = _quire.check_config(self.to_core())
        return mistakes + self._mistakes_of_access(), warnings

    def authentication_of(self, transport: Transport) -> Authentication:
        """Returns how clients of a transport prove their user."""
        return self.authentication if transport.authentication is None else transport.authentication

    @property
    def has_users(self) -> bool:
        """Whether clients of any transport prove their user."""
        return any(self.authentication_of(transport).method != "none" for transport in self.transport)

    @property
    def authentication_of_admin(self) -> Authentication:
        """How users of the HTTP server prove who they are."""
        table = None if self.admin is None else self.admin.authentication
        return self.authentication if table is None else table

    @property
    def authentication_of_links(self) -> Authentication:
        """How other instances that connect prove their user."""
        table = self.replication.authentication
        return self.authentication if table is None else table

    def _mistakes_of_access(self) -> list[tuple[str, str]]:
        """The keys about TLS and users that only a server reads, with what is wrong with them."""
        mistakes = [
            (f"transport[{number}].{key}", reason)
            for number, transport in enumerate(self.transport)
            for key, reason in transport.mistakes(self.authentication_of(transport))
        ]
        admin = self.admin
        if admin is not None:
            found = admin.mistakes(self.authentication_of_admin)
            mistakes += [(f"admin.{key}" if key else "admin", reason) for key, reason in found]
        replication = self.replication
        found = replication.mistakes(self.authentication_of_links)
        mistakes += [(f"replication.{key}", reason) for key, reason in found]
        if any(each.password_file or each.token_file for each in replication.destination):
            from quire.server._link_identity import mistakes_of_identities

            mistakes += mistakes_of_identities(self)
        tables = [each.tls for each in self.transport] + [replication.tls, admin and admin.tls]
        if any(tables) or any(each.tls is not None for each in replication.destination):
            from quire.server._tls import mistakes_of

            mistakes += mistakes_of(self)
        methods = [self.authentication_of_admin.method, self.authentication_of_links.method]
        if self.has_users or any(method != "none" for method in methods):
            from quire.server._guard import mistakes_of_logons

            mistakes += mistakes_of_logons(self)
        if self.action:
            from quire.actions._check import mistakes_of_actions

            mistakes += mistakes_of_actions(self)
        return mistakes

    def check_access(self) -> None:
        """Checks what a server reads before it listens: TLS and users. Raises `ConfigError` with all mistakes."""
        if mistakes := self._mistakes_of_access():
            raise together([self._placed(key, reason) for key, reason in mistakes])

    def placed(self, error: ConfigError) -> ConfigError:
        """The error of an engine that does not start: with every mistake, and the place of each."""
        if not error.key:
            return error
        try:
            self.check()
        except ConfigError as mistakes:
            return mistakes
        return self._placed(error.key, error._reason)

    def _placed(self, key: str, reason: str) -> ConfigError:
        """A mistake that only the core finds, with the key in the spelling of the file, and with
        its file and line."""
        place = place_of(key)
        if len(place) > 1 and place[0] == "queue" and isinstance(place[1], int):
            local = place[1] - len(self.queue)
            place = ("local_queue", local, *place[2:]) if local >= 0 else place
        source = self._source
        line = line_of(source.text, place)
        return ConfigError(reason, key=path_text(place) or None, file=source.file, line=line)

    def replace(
        self,
        *,
        address: str | None = None,
        data_directory: str | Path | None = None,
        insecure: bool = False,
    ) -> Config:
        """Returns a copy with another data directory, with this address as the only one, or with `insecure` transports."""
        transports = self.transport
        if insecure:
            transports = tuple(each.model_copy(update={"insecure": True}) for each in transports)
        if address is not None:
            transports = (transports[0].model_copy(update={"address": address}),)
        directory = self.data_directory if data_directory is None else Path(data_directory)
        # Every key, so that none is lost that is added later.
        values: dict[str, Any] = {key: getattr(self, key) for key in type(self).model_fields}
        values |= {
            "data_directory": directory,
            "transport": tuple(transport.model_dump() for transport in transports),
        }
        config = Config(**values)
        config._source = self._source
        return config

    def _below(self, directory: Path) -> Config:
        """Returns a copy whose relative files are below this directory."""
        update = {
            "transport": tuple(transport.below(directory) for transport in self.transport),
            "authentication": self.authentication.below(directory),
            "replication": self.replication.below(directory),
            "admin": None if self.admin is None else self.admin.below(directory),
        }
        return self.model_copy(update=update)

    def entitlements_to_core(self) -> list[dict[str, Any]]:
        """The entries of `entitlement` as the core reads them."""
        return [entry.to_core() for entry in self.entitlement]

    def _transport_inside(self) -> list[dict[str, Any]]:
        """The transports of clients inside of the server: those of the HTTP server, whose users it
        knows, and those of actions."""
        common = {
            "max_message_size": max(transport.max_message_size for transport in self.transport),
            "max_connections": CLIENTS_INSIDE_MAX,
            "is_inside": True,
        }
        inside: list[dict[str, Any]] = []
        if self.admin is not None and self.admin.address is not None:
            authenticates = self.authentication_of_admin.method != "none"
            inside.append({"name": "admin", "authenticates": authenticates, **common})
        if self.action:
            inside.append({"name": "actions", **common})
        return inside

    def _events_to_core(self) -> dict[str, Any]:
        """The events that are messages, and those that actions want."""
        wanted = wanted_of(self.action)
        left = [
            {"topic": topic, "deleted": topic in wanted.deleted, "expired": topic in wanted.expired}
            for topic in sorted(wanted.deleted | wanted.expired)
        ]
        return {
            **self.events.to_core(),
            "signals_clients": wanted.clients,
            "left": left,
            "expired": sorted(wanted.expired),
            "delivered": [
                {"name": name, "topic": topic, "filter": filter} for name, topic, filter in wanted.delivered
            ],
        }

    def to_core(
        self, *, in_memory: bool = False, max_connections: int | None = None, has_actions: bool = False
    ) -> str:
        """The JSON that the core reads: bytes and nanoseconds.

        - `max_connections`: where there is room for fewer than configured
        - `has_actions`: actions carry out the maintenance of the journal
        """
        log, limits = self.transaction_log, self.limits
        wanted = sum(transport.max_connections for transport in self.transport)
        # Too little room is shared out as the configuration shares out what it asks for.
        room = wanted if max_connections is None else max_connections
        archive = self.journal_archive_directory
        wanted_left = wanted_of(self.action)
        topics = [topic.model_dump(by_alias=True) for topic in log.topic]
        if wanted_left.deleted or wanted_left.expired:
            topics.append(RecordedTopic(name=LEFT_PATTERN, message_type="json").model_dump(by_alias=True))
        return json.dumps(
            {
                "name": self.name,
                "transaction_log": {
                    "journal_directory": None
                    if in_memory
                    else path_to_core(self.journal_directory, "transaction_log.journal_directory"),
                    "journal_archive_directory": None
                    if archive is None
                    else path_to_core(archive, "transaction_log.journal_archive_directory"),
                    "maintenance": log.maintenance.to_core(
                        is_local=all(address.is_loopback for address in self.addresses),
                        is_scheduled=not has_actions,
                    ),
                    "journal_size": log.journal_size,
                    "preallocated_journal_files": log.preallocated_journal_files,
                    "flush_interval_ns": round(log.flush_interval * 1e9),
                    "durability": log.durability,
                    "topics": topics,
                },
                "allow_backtracking_patterns": self.allow_backtracking_patterns,
                "queues": [queue.to_core() for queue in (*self.queue, *self.local_queue)],
                "events": self._events_to_core(),
                "replication": self.replication.to_core(
                    self.group,
                    [queue.name for queue in self.local_queue],
                    authenticates=self.authentication_of_links.method != "none",
                ),
                "sow_topics": [topic.to_core() for topic in self.sow_topic],
                "views": [view.to_core() for view in self.view],
                "conflated_topics": [topic.to_core() for topic in self.conflated_topic],
                "entitlements": self.entitlements_to_core(),
                "user_limits": [limit.to_core() for limit in self.user_limit],
                "transports": [
                    {
                        "name": transport.name,
                        "max_message_size": transport.max_message_size,
                        "max_connections": max(1, transport.max_connections * room // wanted),
                        "max_subscriptions_per_connection": transport.max_subscriptions_per_connection,
                        "max_patterns_per_connection": transport.max_patterns_per_connection,
                        "max_client_backlog": transport.max_client_backlog,
                        **limits_of_client(transport, limits),
                        "logon_timeout_ns": round(transport.logon_timeout * 1e9),
                        "authenticates": self.authentication_of(transport).method != "none",
                        "tls": transport.tls is not None,
                    }
                    for transport in self.transport
                ]
                + self._transport_inside(),
                "limits": {
                    "max_patterns": limits.max_patterns,
                    "max_waiting": limits.message_memory_limit,
                    "message_disk_limit": 0 if in_memory else limits.disk_limit,
                    "message_disk_path": None
                    if in_memory
                    else path_to_core(
                        self.data_directory / limits.message_disk_path, "limits.message_disk_path"
                    ),
                    "max_unfinished": limits.max_unfinished,
                    "max_created_queues": limits.max_created_queues,
                    "max_query_copies": limits.max_query_copies,
                    "max_pattern_topics": limits.max_pattern_topics,
                    "max_unpersisted": log.max_unpersisted,
                    "max_topics": log.max_topics,
                },
            }
        )


def limits_of_client(transport: Transport, limits: Limits) -> dict[str, int | None]:
    """The limits of each client of a transport, as the core reads them."""
    capacity, age = transport.client_max_capacity, transport.client_message_age_limit
    capacity = limits.client_max_capacity if capacity is None else capacity
    age = limits.client_message_age_limit if age is None else age
    return {
        "message_memory_limit": transport.message_memory_limit,
        "message_disk_limit": transport.message_disk_limit,
        "client_max_capacity": max(1, round(capacity * 1000)),
        "client_message_age_limit_ns": None if age is None else round(age * 1e9),
    }


def queue_of(settings: Mapping[str, Any]) -> Queue:
    """The configuration of one queue. Raises `ConfigError` that names the key."""
    try:
        return Queue(**settings)
    except ValidationError as error:
        raise refused(error, Queue) from error


def _not_toml(error: tomllib.TOMLDecodeError, file: Path, text: str) -> ConfigError:
    """The mistake with its line, which Python has in the text only."""
    reason = str(error)
    line: int | None = None
    if place := re.search(r" \(at line (\d+), column (\d+)\)$", reason):
        line = int(place[1])
        reason = f"{reason[: place.start()]}, at column {place[2]}"
        # A text without quotes begins with a letter, or is a duration or a size: a number and
        # letters.
        written = text.splitlines()[line - 1].partition("=")[2].strip() if text else ""
        if re.match(r"\d*[A-Za-z/^][^\"']*$", written):
            reason += f'; write a text in quotes: "{written}"'
    elif reason.endswith(" (at end of document)"):
        line = max(len(text.splitlines()), 1)
        reason = f"{reason.removesuffix(' (at end of document)')}, at the end of the file"
    return ConfigError(f"not TOML: {reason[:1].lower()}{reason[1:]}", file=file, line=line)
