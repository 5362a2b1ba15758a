"""What `AsyncClient` says to queues: the calls of `Client` with `await`."""

from __future__ import annotations

import asyncio
import inspect
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar, cast

from quire import _quire
from quire._client_base import logger
from quire._errors import QuireError
from quire._message import Message
from quire._options import Spec, backlog_to_core, count_to_core, selection_to_core, verdict_to_core
from quire._queue_calls import BOOKMARKS_PER_COMMAND, queues_of
from quire._subscription import DEFAULT_BATCH_COUNT, check_count
from quire._worker import FLUSH_TIMEOUT, WorkerBase, WorkReport, backlog_of, refusal_of

if TYPE_CHECKING:
    from quire._aio import AsyncClient, AsyncSubscription

AsyncHandler = Callable[[Message], object | Awaitable[object]]
T = TypeVar("T")


class AsyncQueueCalls:
    """The part of the asyncio client that is about queues."""

    def __init__(self) -> None:
        self._workers: set[AsyncWorker] = set()

    async def ack(
        self,
        topic: str,
        bookmarks: str | Message | Iterable[str | Message] | None = None,
        *,
        filter: str | None = None,
        cancel: bool = False,
        expire: bool = False,
    ) -> None:
        """Acknowledges messages of a queue by bookmark or by filter. See `Client.ack`."""
        verdict = verdict_to_core(cancel, expire)
        selected = selection_to_core(bookmarks, filter)
        core = await self._client()._connected()
        if isinstance(selected, str):
            await self._answered(core, core.settle_matching(topic, verdict, selected))
            return
        for start in range(0, len(selected), BOOKMARKS_PER_COMMAND):
            piece = selected[start : start + BOOKMARKS_PER_COMMAND]
            await self._answered(core, core.settle_bookmarks(topic, verdict, piece))

    async def sow(
        self,
        topic: str,
        *,
        filter: str | None = None,
        order_by: str | None = None,
        top_n: int | None = None,
        batch_size: int | None = None,
    ) -> AsyncIterator[Message]:
        """The messages of a queue that could be delivered now. See `Client.sow`."""
        count = DEFAULT_BATCH_COUNT if batch_size is None else batch_size
        check_count(count)
        client = self._client()
        core = await client._connected()
        answers = core.query(topic, filter, order_by, count_to_core(top_n, "top_n"))
        await self._answered(core, answers.command)

        def look() -> tuple[list[Message] | None] | None:
            batch = answers.batch(count, 0)
            return (batch,) if batch is None or batch else None

        while (found := await client._until(look, None)) is not None and found[0] is not None:
            for message in found[0]:
                yield message

    async def queue_stats(self, queue: str | None = None) -> dict[str, dict[str, Any]]:
        """The figures of one queue, or of all, by name (docs/queues.md section 10)."""
        core = await self._client()._connected()
        command = core.queue_stats(queue)
        try:
            await self._client()._answer(core, command)
            return queues_of(core.take_told(command))
        finally:
            core.abandon(command)

    async def process(
        self,
        queue: str,
        handler: AsyncHandler,
        *,
        concurrency: int = 1,
        max_backlog: int | None = None,
        extend: bool = True,
    ) -> WorkReport:
        """Works on a queue until the client is drained or closed, the task is cancelled, or SIGTERM comes.

        `handler` may be a coroutine function; `concurrency` of them run at a time, on the loop. A handler that
        is cancelled leaves its message, which goes back. See `Client.process`.
        """
        backlog = backlog_of(concurrency, max_backlog)
        client = self._client()
        spec = Spec(topic=queue, max_backlog=backlog_to_core(backlog))
        subscription = await client._enter(await client._connected(), spec, auto_ack=False)
        if refusal := refusal_of(queue, subscription._core, backlog):
            await subscription.unsubscribe()
            raise refusal
        worker = AsyncWorker(client, subscription, handler, concurrency, extend)
        self._workers.add(worker)
        try:
            return await worker.run()
        finally:
            self._workers.discard(worker)

    async def _stop_workers(self, seconds: float) -> None:
        """They finish what is in hand; waits for those that are not the caller."""
        workers = list(self._workers)
        for worker in workers:
            worker.stop()
        waiting = [asyncio.ensure_future(w.done.wait()) for w in workers if not w.runs_here()]
        if waiting:
            _, late = await asyncio.wait(waiting, timeout=seconds)
            for task in late:
                task.cancel()

    def _client(self) -> AsyncClient:
        return cast("AsyncClient", self)

    async def _answered(self, core: _quire.Client, command: int) -> None:
        try:
            await self._client()._answer(core, command)
        finally:
            # After a cancellation nobody asks for the answer again.
            core.abandon(command)


class AsyncWorker(WorkerBase):
    """`AsyncClient.process`: `concurrency` tasks on the loop."""

    def __init__(
        self,
        client: AsyncClient,
        subscription: AsyncSubscription,
        handler: AsyncHandler,
        concurrency: int,
        extend: bool,
    ) -> None:
        super().__init__(concurrency)
        self._client = client
        self._subscription = subscription
        self._handler = handler
        self._extend = extend
        self._is_stopping = False
        self._tasks: list[asyncio.Task[None]] = []
        #: Set when a message is in hand, so that the renewals begin.
        self._has_work = asyncio.Event()
        #: Everything is said and done.
        self.done = asyncio.Event()

    def stop(self) -> None:
        """What is in hand is finished, what was only fetched goes back."""
        self._is_stopping = True
        self._client._wake()

    def runs_here(self) -> bool:
        """Whether the caller is one of the handlers, which must not wait for itself."""
        return asyncio.current_task() in self._tasks

    async def run(self) -> WorkReport:
        renewals = asyncio.ensure_future(self._renew()) if self._extend else None
        try:
            with _on_sigterm(self.stop):
                self._tasks = [asyncio.ensure_future(self._work()) for _ in range(self.concurrency)]
                await asyncio.gather(*self._tasks)
        finally:
            self._is_stopping = True
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            if renewals is not None:
                renewals.cancel()
            try:
                await self._leave()
            finally:
                self.done.set()
        return self.report

    async def _work(self) -> None:
        while not self._is_stopping:
            found = await self._client._until(self._look, None)
            if found is None or found[0] is None:
                break
            await self._handle(found[0])

    def _look(self) -> tuple[Message | None] | None:
        if self._is_stopping:
            return (None,)
        try:
            return (self._subscription._core.next(0),)
        except TimeoutError:
            return None

    async def _handle(self, message: Message) -> None:
        if not self._begin(message):
            return
        self._has_work.set()
        try:
            result = self._handler(message)
            if inspect.isawaitable(result):
                await result
        except BaseException as error:
            self._end(message, error)
            if not isinstance(error, Exception):
                raise
        else:
            self._end(message, None)

    async def _renew(self) -> None:
        while True:
            held, interval = self._renewal()
            if interval is None:
                self._has_work.clear()
                await self._has_work.wait()
                continue
            await asyncio.sleep(interval)
            held, _ = self._renewal()
            if held:
                self._client._bind().extend(held, None)

    async def _leave(self) -> None:
        """What was only fetched goes back, and what was said is made durable."""
        if self._client.state == "closed":
            return
        try:
            await self._subscription.unsubscribe()
            await self._client.flush(FLUSH_TIMEOUT)
        except (QuireError, TimeoutError) as error:
            logger.warning("%r: what a worker said may not be durable: %s", self._client, error)


@contextmanager
def _on_sigterm(stop: Callable[[], None]) -> Iterator[None]:
    """Calls `stop` on SIGTERM, unless the program handles it itself or the loop is not in its main thread."""
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
