"""The driver of the asyncio client.

While calls wait often, the loop watches the socket and lets the core read it. Otherwise the
client's thread reads, and wakes the loop through a descriptor after a change. Each waiting call
then checks its condition again. No call blocks the loop.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar, cast

from quire import _quire
from quire.client._driver import Driver, Event, Running

T = TypeVar("T")


class LoopEvent(Event):
    def __init__(self) -> None:
        self._event = asyncio.Event()

    def set(self) -> None:
        self._event.set()

    def clear(self) -> None:
        self._event.clear()

    async def wait(self, timeout: float | None) -> bool:
        try:
            return await asyncio.wait_for(self._event.wait(), timeout)
        except TimeoutError:
            return False


class RunningTask(Running):
    def __init__(self, task: asyncio.Task[None]) -> None:
        self._task = task
        task.add_done_callback(_report)

    async def join(self, timeout: float | None) -> None:
        if self._task is not asyncio.current_task():
            await asyncio.wait([self._task], timeout=timeout)

    def abandon(self) -> None:
        if self._task is not asyncio.current_task():
            self._task.cancel()


def _report(task: asyncio.Task[None]) -> None:
    """Reports what ended a task that is not awaited. Ctrl-C was already raised by the loop."""
    error = None if task.cancelled() else task.exception()
    if error is not None and not isinstance(error, KeyboardInterrupt):
        message = f"the task {task.get_name()} has failed"
        task.get_loop().call_exception_handler({"message": message, "exception": error, "task": task})


def _end_wait(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


class Loop(Driver):
    stop_latency = None

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._core: _quire.Client | None = None
        self._descriptor = self._socket = -1
        self._waiters: set[asyncio.Future[None]] = set()

    def check(self) -> None:
        if self._loop is not None and self._loop is not asyncio.get_running_loop():
            raise RuntimeError("this client belongs to another event loop: make one per loop")

    def attach(self, core: _quire.Client) -> None:
        self._loop, self._core = asyncio.get_running_loop(), core
        # Both can fail, and nothing is watched then. They belong to the core.
        self._socket = core.loop_descriptor()
        self._descriptor = core.ready_descriptor()
        self._loop.add_reader(self._socket, self._on_socket)
        self._loop.add_reader(self._descriptor, self._on_ready)

    def detach(self) -> None:
        if self._descriptor >= 0 and self._loop is not None:
            self._loop.remove_reader(self._socket)
            self._loop.remove_reader(self._descriptor)
            self._descriptor = -1
        self.wake()

    def detach_soon(self) -> None:
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed, and watches nothing any more
                self._loop.call_soon_threadsafe(self.detach)

    def wake(self) -> None:
        for waiter in self._waiters:
            _end_wait(waiter)

    async def wait(self, operation: Callable[[float | None], T], timeout: float | None = None) -> T:
        result = operation(0)
        if result or result is None:
            return result
        self.check()
        assert self._loop is not None
        assert self._core is not None
        deadline = None if timeout is None else self._loop.time() + timeout
        while True:
            changed: asyncio.Future[None] = self._loop.create_future()
            self._waiters.add(changed)
            timer: asyncio.TimerHandle | None = None
            try:
                # Armed before the look, so that no change can fall between look and wait.
                self._core.arm()
                result = operation(0)
                if result or result is None:
                    return result
                left = None if deadline is None else deadline - self._loop.time()
                if left is not None:
                    if left <= 0:
                        return result
                    timer = self._loop.call_later(left, _end_wait, changed)
                await changed
            finally:
                if timer is not None:
                    timer.cancel()
                self._waiters.discard(changed)

    async def call(self, function: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(None, function)

    def check_handler(self, handler: Callable[..., object]) -> None:
        pass

    def source(self, function: Callable[[], Awaitable[str] | str], timeout: float) -> Callable[[], str]:
        if not inspect.iscoroutinefunction(function):
            return cast("Callable[[], str]", function)
        loop = asyncio.get_running_loop()
        return lambda: asyncio.run_coroutine_threadsafe(function(), loop).result(timeout)

    def check_background(self) -> None:
        pass

    async def handle(self, handler: Callable[[T], object], argument: T) -> None:
        try:
            result = handler(argument)
            if inspect.isawaitable(result):
                await result
        except asyncio.CancelledError as error:
            if self.is_told_to_end(error):
                raise
            raise RuntimeError(f"{handler!r} waited for a task that was cancelled") from error

    def is_told_to_end(self, error: BaseException) -> bool:
        if isinstance(error, asyncio.CancelledError):
            task = asyncio.current_task()
            return task is not None and task.cancelling() > 0
        # Any task of the loop may get Ctrl-C. A task that the loop has dropped gets
        # `GeneratorExit`.
        return isinstance(error, (KeyboardInterrupt, GeneratorExit))

    def run(self, name: str, work: Coroutine[Any, Any, None]) -> Running:
        return RunningTask(asyncio.get_running_loop().create_task(work, name=name))

    async def run_all(
        self, name: str, works: Sequence[Coroutine[Any, Any, None]], stop: Callable[[], None]
    ) -> None:
        loop = asyncio.get_running_loop()
        tasks = [loop.create_task(work, name=f"{name}-{number}") for number, work in enumerate(works)]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def event(self) -> Event:
        return LoopEvent()

    @contextmanager
    def on_sigterm(self, stop: Callable[[], None]) -> Iterator[None]:
        is_main = threading.current_thread() is threading.main_thread()
        if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
            yield
            return
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, stop)
        try:
            yield
        finally:
            loop.remove_signal_handler(signal.SIGTERM)

    def _on_socket(self) -> None:
        assert self._core is not None
        self._core.step(is_last=not self._waiters)
        self.wake()

    def _on_ready(self) -> None:
        with suppress(BlockingIOError):
            os.read(self._descriptor, 64)
            self.wake()
