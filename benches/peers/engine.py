"""The tasks of every engine, and their interface."""

from __future__ import annotations

import enum
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from .server import Server, free_port


class Durability(enum.Enum):
    """When an engine may say that it has a message."""

    SYNCED = "synced"
    """After a sync to the disk: a power cut loses nothing that was acknowledged."""
    OS = "os"
    """After the operating system has it: a killed process loses nothing, a power cut may."""


class NotOffered(Exception):
    """The engine does not do this; the table shows a dash and the reason."""


@dataclass
class Engine(ABC):
    """One engine at one durability: how its servers are started, and what one client process does.

    The tasks of a `Broker`, a `LastValues`, a `Sums` and a `Replicated` run in separate processes, so that no
    client's interpreter slows another one down. All of it does what the engine's own documentation
    recommends for throughput: pipelining, batches, prefetching.
    """

    name: ClassVar[str]
    durability: Durability
    port: int = field(default_factory=free_port)

    @abstractmethod
    def version(self) -> str:
        """Of server and client library. Raises `FileNotFoundError` where the server is not installed."""

    @abstractmethod
    def settings(self) -> str:
        """The settings for this durability, in one line of the report."""

    @abstractmethod
    def serving(self, directory: Path) -> AbstractContextManager[Server | None]:
        """Starts what serves, with its files in `directory`, and ends it. The lines that need the
        one server get it."""

    def prepare(self) -> None:  # noqa: B027 (most need no more than their configuration)
        """Creates the streams, queues and tables that the engine wants to be created."""


class Single(Engine):
    """An engine with one server."""

    @abstractmethod
    def command(self, directory: Path) -> Sequence[str]:
        """Writes the configuration into `directory` and gives the command that serves in the foreground."""

    def environment(self, directory: Path) -> dict[str, str]:
        return {}

    @contextmanager
    def serving(self, directory: Path) -> Iterator[Server]:
        with Server(self.command(directory), self.environment(directory), directory, self.port) as server:
            self.prepare()
            yield server


class Broker(Single):
    """An engine with a log that subscribers follow, and with queues."""

    @abstractmethod
    def publish(self, count: int, size: int) -> None:
        """To the log; returns when all are acknowledged at this durability."""

    @abstractmethod
    def replay(self, count: int) -> None:
        """Reads `count` messages of the log from its beginning."""

    @abstractmethod
    def enqueue(self, count: int, size: int) -> None:
        """To the queue; returns when all are acknowledged at this durability."""

    @abstractmethod
    def consume(self, idle_s: float, acknowledged: Callable[[int], None]) -> None:
        """Takes and acknowledges messages of the queue until none came for `idle_s`; says how many
        it has, now and then."""

    @abstractmethod
    def publish_stamped(self, rate: int, count: int) -> None:
        """Publishes the monotonic clock's nanoseconds to the log, `rate` times a second: see `pauses`."""

    @abstractmethod
    def receive_stamped(self, ready: Callable[[], None], came: Callable[[bytes], bool]) -> None:
        """Data of what is stored in the log from now on, until `came` says that it was the last.
        `ready` when subscribed."""

    @abstractmethod
    def publish_keyed(self, keys: int, count: int, size: int) -> None:
        """Messages that belong to one of `keys` keys each, in turn."""

    @abstractmethod
    def receive_keyed(
        self, keys: Sequence[int], ready: Callable[[], None], came: Callable[[int], bool]
    ) -> None:
        """One subscription per key, until `came`, which gets the number of new messages, returns
        that these were the last."""


@dataclass(frozen=True)
class Record:
    """One version of a record: JSON whose fields `id` and `group` are its key and its group."""

    key: str
    group: str
    data: bytes


class Table(enum.Enum):
    """Where records are kept."""

    PLAIN = "plain"
    """An index of the keys only."""
    INDEXED = "indexed"
    """An index of the keys, and one of the groups."""


WINDOW = 10_000
"""Records that are sent before an acknowledgement, where the program decides it. A sync can cover
all of them."""


class LastValues(Single):
    """An engine that keeps the newest version of each record."""

    @abstractmethod
    def upsert(self, table: Table, records: Sequence[Record], *, watched: bool = False) -> None:
        """Stores the records; returns when all are acknowledged at this durability. A key is not
        twice in any `WINDOW` of them.

        `watched`: also sends the notifications that `watch` needs.
        """

    @abstractmethod
    def get(self, table: Table, keys: Iterator[str], came: Callable[[bytes], None]) -> None:
        """Reads one record after the other by its key."""

    @abstractmethod
    def query(self, table: Table, groups: Iterator[str], came: Callable[[Sequence[bytes]], None]) -> None:
        """Reads the records of one group after the other."""

    @abstractmethod
    def watch(self, ready: Callable[[int], None], came: Callable[[int], bool]) -> None:
        """Reads all records of the plain table, and tells `ready` how many. Then each change, until
        `came` returns true."""


@dataclass(frozen=True)
class Amount:
    """One version of a record that counts in the sums of a group. `data` is JSON with the fields
    `id`, `group` and `amount`."""

    key: str
    group: str
    amount: int
    data: bytes


class Sums(Single):
    """An engine that keeps the newest version of each record, and for each group the number and the
    sum of its records."""

    @abstractmethod
    def update(self, records: Sequence[Amount]) -> None:
        """Stores the records; returns when all are acknowledged at this durability, and the sums
        have them. A key is not twice in any `WINDOW` of them. A record can move to another group."""

    @abstractmethod
    def sums(self) -> dict[str, tuple[int, int]]:
        """The number and the sum of each group."""


class Replicated(Engine):
    """An engine with several servers that keep copies of one log.

    A message is confirmed when at least two servers have synced it to their disks. The servers
    share the disk of this machine.
    """

    @abstractmethod
    def servers(self, directory: Path) -> AbstractContextManager[None]:
        """Starts the servers, each with its files in a directory below `directory`, and ends them."""

    @contextmanager
    def serving(self, directory: Path) -> Iterator[None]:
        with self.servers(directory):
            self.prepare()
            yield

    @abstractmethod
    def publish(self, more: Callable[[], bool], size: int, window: int) -> int:
        """Publishes while `more()`, with at most `window` messages unconfirmed. Returns how many,
        when all are confirmed."""

    @abstractmethod
    def publish_alone(self, messages: Iterator[bytes]) -> None:
        """Publishes one message after the other. Each is confirmed before the next one is taken."""


def own_directory(directory: Path, name: str) -> Path:
    """Creates the directory of one of several servers."""
    (created := directory / name).mkdir()
    return created


def pauses(rate: int, count: int) -> Iterator[float]:
    """How long to wait before each of `count` publishes; 0 for one that is late."""
    start = time.monotonic()
    for number in range(count):
        yield max(0.0, start + number / rate - time.monotonic())
