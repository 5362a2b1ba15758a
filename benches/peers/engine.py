"""What every engine is asked to do, in the words that it is asked in."""

from __future__ import annotations

import enum
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
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
    """One engine at one durability: how its server is started, and what one client process does.

    The methods from `prepare` on run in processes of their own, so that no client's interpreter slows another's. All
    of them do what the engine's own documentation recommends for throughput: pipelining, batches, prefetching.
    """

    name: ClassVar[str]
    durability: Durability
    port: int = field(default_factory=free_port)

    @abstractmethod
    def version(self) -> str:
        """Of server and client library. Raises `FileNotFoundError` where the server is not installed."""

    @abstractmethod
    def settings(self) -> str:
        """What was set for this durability, in one line of the report."""

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

    def prepare(self) -> None:  # noqa: B027 (most need no more than their configuration)
        """Creates the stream and the queue that the engine wants to be created."""

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
        """Takes and acknowledges messages of the queue until none came for `idle_s`; says how many it has, now and then."""

    @abstractmethod
    def publish_stamped(self, rate: int, count: int) -> None:
        """Publishes the monotonic clock's nanoseconds to the log, `rate` times a second: see `pauses`."""

    @abstractmethod
    def receive_stamped(self, ready: Callable[[], None], came: Callable[[bytes], bool]) -> None:
        """Data of what is stored in the log from now on, until `came` says that it was the last. `ready` when subscribed."""

    @abstractmethod
    def publish_keyed(self, keys: int, count: int, size: int) -> None:
        """Messages that belong to one of `keys` keys each, in turn."""

    @abstractmethod
    def receive_keyed(
        self, keys: Sequence[int], ready: Callable[[], None], came: Callable[[int], bool]
    ) -> None:
        """One subscription per key, until `came`, which is told how many more have come, says that these were the last."""


def pauses(rate: int, count: int) -> Iterator[float]:
    """How long to wait before each of `count` publishes; 0 for one that is late."""
    start = time.monotonic()
    for number in range(count):
        yield max(0.0, start + number / rate - time.monotonic())
