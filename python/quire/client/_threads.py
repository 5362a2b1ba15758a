"""The driver of the blocking client: it waits inside the extension, which leaves the interpreter to
other threads and obeys Ctrl-C."""

from __future__ import annotations

import inspect
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar, cast

from quire import _quire
from quire._process import check_threads, join_thread, start_thread
from quire.client._driver import Driver, Event, Running

T = TypeVar("T")


def finish(work: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine that waits through `Threads` alone, and so never suspends."""
    try:
        work.send(None)
    except StopIteration as end:
        return cast(T, end.value)
    work.close()
    raise AssertionError(f"{work!r} waited for an event loop")


class ThreadEvent(Event):
    def __init__(self) -> None:
        self._event = threading.Event()

    def set(self) -> None:
        self._event.set()

    def clear(self) -> None:
        self._event.clear()

    async def wait(self, timeout: float | None) -> bool:
        return self._event.wait(timeout)


class RunningThread(Running):
    def __init__(self, thread: threading.Thread) -> None:
        self._thread = thread

    async def join(self, timeout: float | None) -> None:
        if self._thread is not threading.current_thread():
            self._thread.join(timeout)

    def abandon(self) -> None:
        pass


class Threads(Driver):
    stop_latency = 0.1

    def check(self) -> None:
        pass

    def attach(self, core: _quire.Client) -> None:
        pass

    def detach(self) -> None:
        pass

    def detach_soon(self) -> None:
        pass

    def wake(self) -> None:
        # The core wakes the threads that wait in it.
        pass

    async def wait(self, operation: Callable[[float | None], T], timeout: float | None = None) -> T:
        return operation(timeout)

    async def call(self, function: Callable[[], T]) -> T:
        return function()

    def check_handler(self, handler: Callable[..., object]) -> None:
        if inspect.iscoroutinefunction(handler):
            raise TypeError(
                f"{handler!r} is a coroutine function: a blocking client has no loop to run it; use quire.AsyncClient"
            )

    def source(self, function: Callable[[], Awaitable[str] | str], timeout: float) -> Callable[[], str]:
        self.check_handler(function)
        return cast("Callable[[], str]", function)

    def check_background(self) -> None:
        check_threads("a handler of a blocking client")

    async def handle(self, handler: Callable[[T], object], argument: T) -> None:
        try:
            result = handler(argument)
        except BaseException as error:
            # Not an `Exception`, but a failure of the handler: it has waited for a task of the loop
            # of another thread. A program without a loop does not load asyncio.
            asyncio = sys.modules.get("asyncio")
            if asyncio is None or not isinstance(error, asyncio.CancelledError):
                raise
            raise RuntimeError(f"{handler!r} waited for a task that was cancelled") from error
        if inspect.isawaitable(result):
            if inspect.iscoroutine(result):
                result.close()
            raise TypeError(f"{handler!r} returned {result!r}, which a blocking client cannot await")

    def is_told_to_end(self, error: BaseException) -> bool:
        # Ctrl-C interrupts the main thread, which runs no handlers in the background.
        return False

    def run(self, name: str, work: Coroutine[Any, Any, None]) -> Running:
        thread = threading.Thread(target=finish, args=(work,), name=name, daemon=True)
        _start(thread, work)
        return RunningThread(thread)

    async def run_all(
        self, name: str, works: Sequence[Coroutine[Any, Any, None]], stop: Callable[[], None]
    ) -> None:
        if len(works) == 1:
            await works[0]
            return
        failures: list[BaseException] = []

        def run(work: Coroutine[Any, Any, None]) -> None:
            try:
                finish(work)
            except BaseException as error:
                failures.append(error)

        started: list[threading.Thread] = []
        try:
            for number, work in enumerate(works):
                thread = threading.Thread(target=run, args=(work,), name=f"{name}-{number}", daemon=True)
                _start(thread, work)
                started.append(thread)
            for thread in started:
                join_thread(thread)
        finally:
            # After Ctrl-C here, or when a thread cannot be started, the running threads finish
            # their work.
            stop()
            for thread in started:
                join_thread(thread)
            for work in works[len(started) :]:
                work.close()
        if failures:
            raise failures[0]

    def event(self) -> Event:
        return ThreadEvent()

    @contextmanager
    def on_sigterm(self, stop: Callable[[], None]) -> Iterator[None]:
        is_main = threading.current_thread() is threading.main_thread()
        if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
            yield
            return
        before = signal.signal(signal.SIGTERM, lambda _signal, _frame: stop())
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, before)


def _start(thread: threading.Thread, work: Coroutine[Any, Any, None]) -> None:
    try:
        start_thread(thread)
    except BaseException:
        work.close()
        raise
