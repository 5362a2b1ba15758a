"""The options that both clients take, checked and in the form that the core takes."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from quire import _quire
from quire._bookmarks import Bookmark, to_text
from quire._errors import ConfigError, DisconnectedError, QuireError
from quire._message import Message
from quire._stores import BookmarkStore, PublishStore
from quire._units import Duration, Size, seconds, size

if TYPE_CHECKING:
    from quire._config import Config

DEFAULT_PORT: Final = 9007
DEFAULT_CONNECT_TIMEOUT: Final = 10.0
DEFAULT_CLOSE_TIMEOUT: Final = 10.0
#: How long an acknowledgement of a queue message may wait for its batch.
DEFAULT_ACK_TIMEOUT: Final = timedelta(seconds=1)
#: Bytes of received messages that may wait for the program.
DEFAULT_RECEIVE_SIZE_MAX: Final = 64 * 1024 * 1024

os.register_at_fork(after_in_child=_quire.forked)


class _Auto(Enum):
    AUTO = "auto"

    def __repr__(self) -> str:
        return "quire.AUTO"


#: The next sequence number.
AUTO: Final = _Auto.AUTO
Auto = Literal[_Auto.AUTO]


class _Kept(Enum):
    KEPT = "kept"

    def __repr__(self) -> str:
        return "..."


#: Left out of a replacement, and so not changed.
KEPT: Final = _Kept.KEPT
Kept = Literal[_Kept.KEPT]
BookmarkStoreArgument = str | os.PathLike[str] | BookmarkStore | None
PublishStoreArgument = str | os.PathLike[str] | PublishStore | None
SequenceArgument = int | Auto | None
#: Text as on the wire, or messages per second.
Rate = str | float | int


@dataclass(frozen=True, kw_only=True)
class Reconnect:
    """How a client comes back after a lost connection: the delay grows from `initial` by `factor` up to
    `maximum`."""

    initial: Duration = 0.2
    maximum: Duration = 20.0
    factor: float = 2.0
    #: A random time up to this share of `initial` is added to every delay.
    jitter: float = 1.0
    #: Stop trying after this long; `None` = never.
    give_up_after: Duration | None = None

    def to_core(self) -> tuple[timedelta, timedelta, float, float, timedelta | None]:
        if not (math.isfinite(self.factor) and self.factor >= 1):
            raise ConfigError(f"{self.factor!r} is not a number from 1 up", key="reconnect.factor")
        if not 0 <= self.jitter <= 1:
            raise ConfigError(f"{self.jitter!r} is not between 0 and 1", key="reconnect.jitter")
        give_up = self.give_up_after
        return (
            _delta(self.initial, "reconnect.initial"),
            _delta(self.maximum, "reconnect.maximum"),
            self.factor,
            self.jitter,
            None if give_up is None else _delta(give_up, "reconnect.give_up_after"),
        )


@dataclass(frozen=True)
class DrainReport:
    """What was left when a client drained."""

    #: Publishes that are not known to be persisted.
    unpersisted: int
    #: Messages that were received and not processed: held by the program, waiting for their handlers, or not taken.
    unprocessed: int = 0

    @property
    def is_clean(self) -> bool:
        """Whether nothing was left."""
        return self.unpersisted == 0 and self.unprocessed == 0


@dataclass(frozen=True)
class SubscriptionHealth:
    """How one subscription stands."""

    sub_id: str
    topic: str
    most_recent: str | None
    completed: bool
    #: When a message, or the end of the replay, last came for it.
    last_heard: datetime | None
    #: Messages of an ordinary subscription that came while those before them were not taken: docs/clients.md, "Bounds".
    missed: int


@dataclass(frozen=True)
class Health:
    """How a client stands."""

    state: str
    persisted: int
    unpersisted: int
    #: Why the last attempt to connect failed, if one did.
    last_error: str | None
    #: When anything last came from the server.
    last_heard: datetime | None
    subscriptions: tuple[SubscriptionHealth, ...]


@dataclass(frozen=True, kw_only=True)
class ClientOptions:
    """Everything that the constructors take."""

    urls: tuple[str, ...]
    links: tuple[tuple[str, int] | Place, ...]
    config: Config | None
    name: str
    user: str | None
    password: str | None
    heartbeat: timedelta | None
    connect_timeout: float
    reconnect: Reconnect
    publish_store: PublishStore
    bookmark_store: str | os.PathLike[str] | BookmarkStore | None
    receive_size_max: int
    auto_ack: bool
    ack_batch_size: int
    ack_timeout: timedelta

    @classmethod
    def of(
        cls,
        url: str | Sequence[str],
        *,
        config: Config | None,
        name: str | None,
        user: str | None,
        password: str | None,
        heartbeat: Duration | None,
        connect_timeout: Duration,
        reconnect: Reconnect | None,
        publish_store: PublishStoreArgument,
        bookmark_store: BookmarkStoreArgument,
        receive_size_max: Size,
        auto_ack: bool,
        ack_batch_size: int,
        ack_timeout: Duration,
    ) -> ClientOptions:
        urls = (url,) if isinstance(url, str) else tuple(url)
        if not urls:
            raise ConfigError("the list is empty", key="url")
        store = publish_store if isinstance(publish_store, PublishStore) else PublishStore(publish_store)
        if store.path is not None and name is None:
            raise ConfigError(
                "publish_store: a file needs a name=, the same after a restart: the server knows by it what it has"
            )
        name = generated_name() if name is None else name
        if not 1 <= len(name.encode()) <= 255 or any(ord(c) < 32 or 127 <= ord(c) < 160 for c in name):
            raise ConfigError("it must have 1 to 255 bytes and no control characters", key="name")
        if not 1 <= ack_batch_size < 2**32:
            raise ConfigError(f"{ack_batch_size} is not between 1 and 2**32 - 1", key="ack_batch_size")
        reconnect = Reconnect() if reconnect is None else reconnect
        if not isinstance(reconnect, Reconnect):
            raise ConfigError(f"{reconnect!r} is no quire.Reconnect", key="reconnect")
        reconnect.to_core()
        return cls(
            urls=urls,
            links=tuple(parse_url(each) for each in urls),
            config=config,
            name=name,
            user=user,
            password=password,
            heartbeat=None if heartbeat is None else _delta(heartbeat, "heartbeat"),
            connect_timeout=seconds(connect_timeout, "connect_timeout"),
            reconnect=reconnect,
            publish_store=store,
            bookmark_store=bookmark_store,
            receive_size_max=size(receive_size_max, "receive_size_max"),
            auto_ack=auto_ack,
            ack_batch_size=ack_batch_size,
            ack_timeout=_delta(ack_timeout, "ack_timeout"),
        )

    def start(self, places: BookmarkStore | None) -> _quire.Client:
        """The running client of the core, which begins to connect."""
        return _quire.Client(
            [self._engine(link) if isinstance(link, Place) else link for link in self.links],
            self.name,
            user=self.user,
            password=self.password,
            heartbeat=self.heartbeat,
            connect_timeout=timedelta(seconds=max(self.connect_timeout, 0.001)),
            reconnect=self.reconnect.to_core(),
            publish_store=None if self.publish_store.path is None else str(self.publish_store.path),
            publish_store_size_max=self.publish_store.size_max,
            bookmark_store=None if places is None else places._core,
            receive_size_max=self.receive_size_max,
            ack_batch_size=self.ack_batch_size,
            ack_timeout=self.ack_timeout,
            seed=int.from_bytes(os.urandom(8)),
        )

    def _engine(self, place: Place) -> _quire.Embedded:
        """The engine of this process at that place; everything is recorded as JSON unless `config` says otherwise."""
        directory = None if place.directory is None else str(place.directory)
        if self.config is not None:
            settings = json.loads(self.config.to_core())
            settings["transaction_log"]["journal_directory"] = directory
        else:
            everything = {"name": "^", "message_type": "json"}
            settings = {"transaction_log": {"journal_directory": directory, "topics": [everything]}}
        try:
            return _quire.Embedded(json.dumps(settings), directory, place.name)
        except ConfigError as error:
            raise error if self.config is None else self.config.placed(error) from None

    def not_connected(self, last_error: str | None) -> Exception:
        """What to raise when no server answered in time."""
        where = ", ".join(self.urls)
        if last_error is None:
            return TimeoutError(f"{where} did not answer within {self.connect_timeout:g} s")
        return DisconnectedError(
            f"no connection to {where} within {self.connect_timeout:g} s: {last_error}; is it running?"
        )


@dataclass(frozen=True)
class Place:
    """Where an engine inside this process keeps its journal."""

    #: Absolute; `None` = in memory.
    directory: Path | None
    #: In memory: clients of one name share an engine.
    name: str


def parse_url(url: str) -> tuple[str, int] | Place:
    """Host and port of `quire://host:port`, or the place of `file:DIRECTORY` and `memory:NAME`."""
    scheme, colon, rest = url.partition(":")
    if colon and scheme == "memory":
        return Place(None, rest)
    if colon and scheme == "file":
        if not rest:
            raise ConfigError(f"{url!r} names no directory, as file:./trades does", key="url")
        return Place(Path(rest.removeprefix("//")).expanduser().resolve(), "")
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ConfigError(f"{url!r}: {error}", key="url") from None
    if parts.scheme != "quire":
        raise ConfigError(f"{url!r} does not begin with quire://, file: or memory:", key="url")
    if not parts.hostname:
        raise ConfigError(f"{url!r} names no host, as quire://127.0.0.1:{DEFAULT_PORT} does", key="url")
    if parts.username is not None or parts.path not in ("", "/") or parts.query or parts.fragment:
        raise ConfigError(
            f"{url!r} has more than a host and a port; user and password are arguments", key="url"
        )
    return parts.hostname, DEFAULT_PORT if port is None else port


def generated_name() -> str:
    """A name that no other client has; with it nothing can be deduplicated across restarts."""
    return f"{os.uname().nodename[:100]}-{os.getpid()}-{os.urandom(4).hex()}"


def sequence_to_core(sequence: SequenceArgument) -> int | None:
    """0 = the next one, `None` = without one."""
    if sequence is AUTO:
        return 0
    if sequence is not None and not 0 < sequence < 2**64:
        raise ConfigError(f"{sequence} is not between 1 and 2**64 - 1", key="sequence")
    return sequence


def expiration_to_core(expiration: Duration | None) -> int | None:
    """Whole seconds, rounded up: a message never expires early. 0 = never."""
    if expiration is None:
        return None
    result = math.ceil(seconds(expiration, "expiration"))
    return min(result, 2**32 - 1)


@dataclass(frozen=True, kw_only=True)
class Spec:
    """What a subscription asks for; the core reads the members by their names."""

    topic: str
    filter: str | None = None
    bookmark: str | None = None
    live: bool = False
    fully_durable: bool = False
    paused: bool = False
    max_backlog: int | None = None
    completed: bool = False
    #: As on the wire: "1000", "500KB", "2X".
    rate: str | None = None
    rate_max_gap: timedelta | None = None
    conflation: timedelta | None = None
    #: Fields, separated by commas.
    conflation_key: str | None = None
    #: A replay whose bookmark is not in the log is refused, instead of beginning with the log.
    not_found_fails: bool = False
    #: Entries, separated by commas.
    select: str | None = None

    @property
    def options(self) -> int:
        """The option bits of the wire (docs/protocol.md, `subscribe`)."""
        return self.live << 1 | self.fully_durable << 2 | self.paused << 3 | self.not_found_fails << 4

    @property
    def wants_completed(self) -> bool:
        """A replay is always asked to say when it has caught up, so that `completed` is true to its name."""
        return self.completed or self.bookmark is not None


def rate_to_core(rate: Rate | None) -> str | None:
    """A number is messages per second."""
    return rate if rate is None or isinstance(rate, str) else f"{rate:f}"


def delta_to_core(value: Duration | None, key: str) -> timedelta | None:
    """`None` stays what it is: not said."""
    return None if value is None else _delta(value, key)


def backlog_to_core(max_backlog: int | None) -> int | None:
    """The most messages of queues that a subscription may have outstanding; the server takes 1 for `None`."""
    return count_to_core(max_backlog, "max_backlog")


def count_to_core(count: int | None, key: str) -> int | None:
    """A number of messages as the protocol has it."""
    if count is not None and not 0 <= count < 2**32:
        raise ConfigError(f"{count} is not between 0 and 2**32 - 1", key=key)
    return count


def verdict_to_core(cancel: bool, expire: bool) -> str:
    if cancel and expire:
        raise ConfigError("cancel and expire exclude each other")
    return "cancel" if cancel else "expire" if expire else "acknowledge"


def selection_to_core(
    bookmarks: str | Message | Iterable[str | Message] | None, filter: str | None
) -> list[str] | str:
    """Bookmarks, or a filter: the one of the two that was given."""
    if (bookmarks is None) == (filter is None):
        raise ConfigError("ack takes bookmarks or a filter (an empty one for every message), one of them")
    if bookmarks is None:
        return filter or ""
    named = [bookmarks] if isinstance(bookmarks, (str, Message)) else bookmarks
    texts = [each if isinstance(each, str) else each.bookmark or "" for each in named]
    return [
        f"{text}|" for joined in texts for each in joined.split(",") if (text := each.strip().rstrip("|"))
    ]


def fields_to_core(fields: str | Iterable[str] | None) -> str | None:
    """One text as on the wire, or its parts."""
    return fields if fields is None or isinstance(fields, str) else ",".join(fields)


def bookmark_to_core(bookmark: Bookmark | None) -> str | None:
    return None if bookmark is None else to_text(bookmark)


def failure_of_publishes(failed: list[tuple[int, BaseException]]) -> BaseException | None:
    """One exception for all refused publishes, the first of them with a note about the others."""
    if not failed:
        return None
    sequence, error = failed[0]
    if isinstance(error, QuireError):
        error.add_note(f"publish {sequence} was refused, and {len(failed) - 1} more since the last flush")
    return error


def _delta(value: Duration, key: str) -> timedelta:
    return timedelta(seconds=seconds(value, key))
