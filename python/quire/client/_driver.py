"""Waiting and background work: the only parts in which the two clients differ.

The logic of the clients (`_base`, `_worker`) is written once, as coroutines. They wait only through
a `Driver`. `Threads` waits inside the extension, so that no coroutine of a blocking client ever
suspends: `finish` runs one to its end like a call. `Loop` waits on an event loop.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from quire import _quire
from quire._message import Message

T = TypeVar("T")

#: Takes one message. A coroutine function may be given to an asyncio client.
Handler = Callable[[Message], Awaitable[None] | None]


class Event(ABC):
    """A flag that can be waited for."""

    @abstractmethod
    def set(self) -> None: ...

    @abstractmethod
    def clear(self) -> None: ...

    @abstractmethod
    async def wait(self, timeout: float | None) -> bool:
        """Whether it was set within `timeout` seconds; `None`: waits without a limit."""


class Running(ABC):
    """A coroutine that runs in the background."""

    @abstractmethod
    async def join(self, timeout: float | None) -> None:
        """Waits up to `timeout` seconds for its end. Returns at once when the caller is the
        coroutine itself."""

    @abstractmethod
    def abandon(self) -> None:
        """Ends the coroutine: cancels a task. A thread ends with its client."""


class Driver(ABC):
    """The way in which a client waits and runs background work: with threads, or on an event loop."""

    #: How long a worker waits for a message before it checks whether to stop, in seconds. `None`:
    #: `wake` notifies it.
    stop_latency: float | None

    @abstractmethod
    def check(self) -> None:
        """Raises `RuntimeError` where the client cannot be used."""

    @abstractmethod
    def attach(self, core: _quire.Client) -> None:
        """The client has started."""

    @abstractmethod
    def detach(self) -> None:
        """The client has ended."""

    @abstractmethod
    def detach_soon(self) -> None:
        """The client was dropped and has ended. Any thread may call it."""

    @abstractmethod
    def wake(self) -> None:
        """The client itself changed something that its own waits depend on."""

    @abstractmethod
    async def wait(self, operation: Callable[[float | None], T], timeout: float | None = None) -> T:
        """The result of an operation of the core, as soon as there is one.

        `operation` takes the seconds that it may wait (`None`: without a limit). A result that is
        false, but not `None`, means that nothing happened in time; such a result is given after
        `timeout` seconds.
        """

    @abstractmethod
    async def call(self, function: Callable[[], T]) -> T:
        """The result of a function that may block for a moment."""

    @abstractmethod
    def check_handler(self, handler: Callable[..., object]) -> None:
        """Raises `TypeError` for a handler that this client cannot run."""

    @abstractmethod
    def source(self, function: Callable[[], Awaitable[str] | str], timeout: float) -> Callable[[], str]:
        """Returns a function for the thread of the client that returns what `function` returns, after `timeout`
        seconds at most. Raises `TypeError` for a function that this client cannot run."""

    @abstractmethod
    def check_background(self) -> None:
        """Raises `RuntimeError` where `run` cannot run a coroutine in the background."""

    @abstractmethod
    async def handle(self, handler: Callable[[T], object], argument: T) -> None:
        """Runs a handler to its end."""

    @abstractmethod
    def is_told_to_end(self, error: BaseException) -> bool:
        """Whether an error of a handler is meant for what runs the handlers, which then must end."""

    @abstractmethod
    def run(self, name: str, work: Coroutine[Any, Any, None]) -> Running:
        """Starts a coroutine in the background. Raises `LimitExceededError` without a free thread."""

    @abstractmethod
    async def run_all(
        self, name: str, works: Sequence[Coroutine[Any, Any, None]], stop: Callable[[], None]
    ) -> None:
        """Runs coroutines concurrently, and returns when all have ended. Raises the first failure.

        When the caller is interrupted, `stop` is called and the threads are joined, or the tasks
        are cancelled.
        """

    @abstractmethod
    def event(self) -> Event:
        """A new flag, which is not set."""

    @abstractmethod
    def on_sigterm(self, stop: Callable[[], None]) -> AbstractContextManager[None]:
        """Calls `stop` on SIGTERM, unless the program handles it itself or this is not its main thread."""
