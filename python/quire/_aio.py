"""The asyncio client: the blocking one's calls with `await`. It belongs to the loop of its first `await`.

One descriptor per client tells the loop that something changed; whoever waits looks again then. Nothing
blocks the loop.
"""

# A `timeout` argument is a promise of the blocking client, which this one mirrors call by call.
# ruff: noqa: ASYNC109

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from quire import _quire
from quire._aio_queue_calls import AsyncHandler, AsyncQueueCalls
from quire._bookmarks import Bookmark
from quire._client_base import ENDED_BEFORE, ClientBase, logger
from quire._errors import DisconnectedError, QuireError
from quire._message import Message, to_bytes
from quire._options import (
    AUTO,
    DEFAULT_ACK_TIMEOUT,
    DEFAULT_CLOSE_TIMEOUT,
    DEFAULT_CONNECT_TIMEOUT,
    DEFAULT_RECEIVE_SIZE_MAX,
    KEPT,
    BookmarkStoreArgument,
    ClientOptions,
    DrainReport,
    Health,
    Kept,
    PublishStoreArgument,
    Rate,
    Reconnect,
    SequenceArgument,
    Spec,
    backlog_to_core,
    bookmark_to_core,
    delta_to_core,
    expiration_to_core,
    failure_of_publishes,
    fields_to_core,
    rate_to_core,
    sequence_to_core,
)
from quire._subscription import DEFAULT_BATCH_COUNT, SubscriptionBase, check_count, timeout_to_core
from quire._units import Duration, Size

#: Called with `"connected"`, `"reconnecting"` or `"closed"`.
AsyncStateListener = Callable[[str], object | Awaitable[object]]
T = TypeVar("T")
if TYPE_CHECKING:
    from quire._config import Config


class AsyncCompleted:
    """An event: the replay of a subscription has caught up with what the log held as it was made."""

    def __init__(self, client: AsyncClient, core: _quire.Subscription) -> None:
        self._client = client
        self._core = core

    def is_set(self) -> bool:
        return self._core.is_completed()

    async def wait(self, timeout: Duration | None = None) -> bool:
        """True when it has; false when `timeout` passed first or the client ended before."""

        def look() -> bool | None:
            if self._core.is_completed():
                return True
            return False if self._client.state == "closed" else None

        return bool(await self._client._until(look, timeout_to_core(timeout)))


class AsyncSubscription(SubscriptionBase):
    """A subscription: `async for` over it, or take messages with `get` or `batches`. See `Subscription`."""

    def __init__(
        self, client: AsyncClient, core: _quire.Subscription, spec: Spec, sub_id: str, handled: bool
    ) -> None:
        super().__init__(core, spec, sub_id, handled)
        self._client = client
        self.completed = AsyncCompleted(client, core)

    async def __aiter__(self) -> AsyncIterator[Message]:
        self._check_not_handled()
        while (message := await self._next(None)) is not None:
            yield message

    async def get(self, timeout: Duration | None = None) -> Message:
        """The next message.

        Raises `TimeoutError` when none comes in time, `DisconnectedError` when there will be no more.
        """
        self._check_not_handled()
        message = await self._next(timeout_to_core(timeout))
        if message is None:
            raise DisconnectedError(f"the subscription {self.sub_id!r} is closed")
        return message

    async def batches(
        self, max_messages: int = DEFAULT_BATCH_COUNT, timeout: Duration | None = None
    ) -> AsyncIterator[list[Message]]:
        """Lists of what is there, at least one message each; with a `timeout`, an empty list when nothing
        came for so long."""
        self._check_not_handled()
        check_count(max_messages)
        seconds_or_none = timeout_to_core(timeout)

        def look() -> tuple[list[Message] | None] | None:
            batch = self._core.batch(max_messages, 0)
            return (batch,) if batch is None or batch else None

        while True:
            found = await self._client._until(look, seconds_or_none)
            if found is None:
                yield []
            elif found[0] is None:
                return
            else:
                yield found[0]

    async def pause(self) -> None:
        """Stops a bookmark subscription until `resume`."""
        await self._client.pause([self])

    async def resume(self) -> None:
        """Continues after `pause`."""
        await self._client.resume([self])

    async def replace(
        self,
        *,
        filter: str | None = None,
        topic: str | None = None,
        bookmark: Bookmark | None = None,
        live: bool | None = None,
        fully_durable: bool | None = None,
        max_backlog: int | None = None,
        rate: Rate | Kept | None = KEPT,
        rate_max_gap: Duration | Kept | None = KEPT,
        conflation: Duration | Kept | None = KEPT,
        conflation_key: str | Iterable[str] | Kept | None = KEPT,
        select: str | Iterable[str] | Kept | None = KEPT,
    ) -> None:
        """Changes the subscription atomically; what is left out stays as it is, except that the filter is
        taken off. `None` takes rate, conflation and select list off, too."""
        spec, told = self._replaced(
            topic,
            filter,
            bookmark,
            live,
            fully_durable,
            max_backlog,
            rate,
            rate_max_gap,
            conflation,
            conflation_key,
            select,
        )
        await self._client._replace(self._core, told)
        self._spec = spec

    async def unsubscribe(self) -> None:
        """Ends the subscription. Harmless when it has ended."""
        await self._client.unsubscribe(self.sub_id)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.unsubscribe()

    async def _next(self, timeout: float | None) -> Message | None:
        def look() -> tuple[Message | None] | None:
            try:
                return (self._core.next(0),)
            except TimeoutError:
                return None

        found = await self._client._until(look, timeout)
        if found is None:
            raise TimeoutError("no message came in time")
        return found[0]


class AsyncClient(AsyncQueueCalls, ClientBase[AsyncSubscription, AsyncHandler]):
    """A connection to a server that comes back by itself, for asyncio. Same options as `Client`.

    `async with` connects; so does the first `await` of any call.
    """

    def __init__(
        self,
        url: str | Sequence[str],
        *,
        config: Config | None = None,
        name: str | None = None,
        user: str | None = None,
        password: str | None = None,
        publish_store: PublishStoreArgument = None,
        bookmark_store: BookmarkStoreArgument = None,
        heartbeat: Duration | None = None,
        connect_timeout: Duration = DEFAULT_CONNECT_TIMEOUT,
        auto_ack: bool = False,
        ack_batch_size: int = 1,
        ack_timeout: Duration = DEFAULT_ACK_TIMEOUT,
        reconnect: Reconnect | None = None,
        receive_size_max: Size = DEFAULT_RECEIVE_SIZE_MAX,
    ) -> None:
        options = ClientOptions.of(
            url,
            config=config,
            name=name,
            user=user,
            password=password,
            publish_store=publish_store,
            bookmark_store=bookmark_store,
            heartbeat=heartbeat,
            connect_timeout=connect_timeout,
            reconnect=reconnect,
            receive_size_max=receive_size_max,
            auto_ack=auto_ack,
            ack_batch_size=ack_batch_size,
            ack_timeout=ack_timeout,
        )
        ClientBase.__init__(self, options)
        AsyncQueueCalls.__init__(self)
        self._started: _quire.Client | None = None
        self._is_connected = False
        self._is_closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._descriptor = -1
        self._waiters: set[asyncio.Future[None]] = set()
        self._handler_task: asyncio.Task[None] | None = None
        self._listeners: list[AsyncStateListener] = []
        self._listener_task: asyncio.Task[None] | None = None

    async def connect(self) -> None:
        """Connects, and returns when it is logged on. Harmless when it is."""
        core = self._bind()
        if self._is_connected:
            return

        def look() -> bool | None:
            return core.wait_connected(0) or None

        try:
            if await self._until(look, self._options.connect_timeout) is None:
                raise self._options.not_connected(core.last_error)
        except BaseException:
            self._leave(core)
            raise
        self._is_connected = True

    async def publish(
        self,
        topic: str,
        data: Any,
        *,
        sequence: SequenceArgument = AUTO,
        expiration: Duration | None = None,
        correlation_id: str | None = None,
    ) -> int | None:
        """Sends a message and returns its sequence number. See `Client.publish`."""
        core = await self._connected()
        body = data if type(data) is bytes else to_bytes(data)
        number = 0 if sequence is AUTO else sequence_to_core(sequence)
        expiration_s = None if expiration is None else expiration_to_core(expiration)

        def look() -> tuple[int | None] | None:
            try:
                return (core.publish(topic, body, number, expiration_s, correlation_id, wait=False),)
            except BlockingIOError:
                return None

        found = look() or await self._until(look, None)
        return None if found is None else found[0]

    async def flush(self, timeout: Duration | None = None) -> None:
        """Waits until everything published so far is persisted. See `Client.flush`."""
        core = await self._connected()
        if not await self._flush(core, timeout_to_core(timeout)):
            raise self._not_flushed(core)
        failure = failure_of_publishes(core.take_failed_publishes())
        if failure is not None:
            raise failure

    @property
    def persisted(self) -> int:
        """The highest sequence number acknowledged as persisted."""
        return 0 if self._started is None else self._started.persisted

    async def subscribe(
        self,
        topic: str,
        *,
        filter: str | None = None,
        bookmark: Bookmark | None = None,
        max_backlog: int | None = None,
        live: bool = False,
        fully_durable: bool = False,
        paused: bool = False,
        completed: bool = False,
        rate: Rate | None = None,
        rate_max_gap: Duration | None = None,
        conflation: Duration | None = None,
        conflation_key: str | Iterable[str] | None = None,
        select: str | Iterable[str] | None = None,
        on_message: AsyncHandler | None = None,
        sub_id: str | None = None,
    ) -> AsyncSubscription:
        """Subscribes and returns when the server has accepted it. See `Client.subscribe`.

        `on_message` may be a coroutine function. The handlers of one client run one at a time, in the order
        of arrival, on the loop.
        """
        client = await self._connected()
        spec = Spec(
            topic=topic,
            filter=filter,
            bookmark=bookmark_to_core(bookmark),
            live=live,
            fully_durable=fully_durable,
            paused=paused,
            max_backlog=backlog_to_core(max_backlog),
            completed=completed,
            rate=rate_to_core(rate),
            rate_max_gap=delta_to_core(rate_max_gap, "rate_max_gap"),
            conflation=delta_to_core(conflation, "conflation"),
            conflation_key=fields_to_core(conflation_key),
            select=fields_to_core(select),
        )
        return await self._enter(client, spec, on_message, sub_id, auto_ack=self._options.auto_ack)

    async def _enter(
        self,
        client: _quire.Client,
        spec: Spec,
        on_message: AsyncHandler | None = None,
        sub_id: str | None = None,
        *,
        auto_ack: bool,
    ) -> AsyncSubscription:
        is_kept = sub_id is not None
        sub_id = self._new_sub_id(sub_id, spec.bookmark)
        core = client.subscribe(spec, sub_id, is_kept, on_message is not None, auto_ack)
        subscription = AsyncSubscription(self, core, spec, sub_id, on_message is not None)
        self._subscriptions[sub_id] = subscription
        if on_message is not None:
            self._handlers[core.number] = on_message
        try:
            await self._answer(client, core.command)
        except BaseException as error:
            self._subscriptions.pop(sub_id, None)
            self._handlers.pop(core.number, None)
            client.forget(core.number)
            client.abandon(core.command)
            if not isinstance(error, QuireError):
                client.unsubscribe(core.number)
            raise
        if on_message is not None and self._handler_task is None:
            self._handler_task = asyncio.ensure_future(self._run_handlers(client))
        return subscription

    async def unsubscribe(self, sub_id: str | None = None) -> None:
        """Ends one subscription, or all of them."""
        await self._unsubscribe(list(self._subscriptions) if sub_id is None else [sub_id], None)

    async def _unsubscribe(self, names: list[str], deadline: float | None) -> None:
        ended = [s for s in map(self._forget, names) if s is not None]
        if self._started is None or self.state == "closed":
            return
        core = self._started
        commands = []
        for subscription in ended:
            try:
                commands.append(core.unsubscribe(subscription._core.number))
            except QuireError as error:
                if error.code not in ENDED_BEFORE:
                    raise
        self._wake()
        await self._wait_all(core, commands, deadline)

    async def _wait_all(self, core: _quire.Client, commands: list[int], deadline: float | None) -> None:
        """For commands about subscriptions, which may have ended before."""
        for command in commands:
            left = None if deadline is None else max(0.0, deadline - asyncio.get_running_loop().time())
            try:
                if not await self._answer(core, command, left):
                    core.abandon(command)
            except QuireError as error:
                if error.code not in ENDED_BEFORE:
                    raise

    async def pause(self, subscriptions: Iterable[AsyncSubscription] | None = None) -> None:
        """Stops bookmark subscriptions, all with one command; left out: all of this client."""
        await self._set_paused(subscriptions, True)

    async def resume(self, subscriptions: Iterable[AsyncSubscription] | None = None) -> None:
        """Continues bookmark subscriptions, all with one command (they may then share one replay)."""
        await self._set_paused(subscriptions, False)

    @property
    def state(self) -> str:
        """`"connecting"`, `"connected"`, `"reconnecting"` or `"closed"`."""
        if self._started is None:
            return "closed" if self._is_closed else "connecting"
        return self._started.state

    def add_state_listener(self, listener: AsyncStateListener) -> None:
        """Calls `listener`, which may be a coroutine function, with each state that the client comes into from
        now on, in their order, on the loop. What it raises is logged."""
        self._listeners.append(listener)
        if self._started is not None:
            self._start_listeners(self._started)

    def remove_state_listener(self, listener: AsyncStateListener) -> None:
        """Calls it no more. Harmless when it is not called."""
        if listener in self._listeners:
            self._listeners.remove(listener)

    def health(self) -> Health:
        """How the client and its subscriptions stand."""
        if self._started is None:
            return Health(
                state=self.state,
                persisted=0,
                unpersisted=0,
                last_error=None,
                last_heard=None,
                subscriptions=(),
            )
        return self._health_of(self._started)

    async def drain(self, timeout: Duration = DEFAULT_CLOSE_TIMEOUT) -> DrainReport:
        """Stops taking messages, waits for the handlers, the workers and the publishes, and closes; tells
        what was left."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + (timeout_to_core(timeout) or 0)
        await self._stop_workers(max(0.0, deadline - loop.time()))
        subscriptions = list(self._subscriptions.values())
        core = self._started
        if core is not None:
            # What handlers have of queues stays theirs until they are done.
            leased = [s for s in subscriptions if s._is_leased_to_handler]
            if self.state == "connected":
                commands = [core.replace(s._core.number, s._spec_without_more) for s in leased]
                await self._unsubscribe([s.sub_id for s in subscriptions if s not in leased], deadline)
                await self._wait_all(core, commands, deadline)
            core.end_handled()
            self._wake()
            await self._wait_for_handlers(deadline)
            if self.state == "connected":
                await self._unsubscribe([s.sub_id for s in leased], deadline)
        report = await self._close(max(0.0, deadline - loop.time()))
        return report if core is None else replace(report, unprocessed=self._unprocessed(core, subscriptions))

    async def close(self, timeout: Duration = DEFAULT_CLOSE_TIMEOUT) -> None:
        """Waits up to `timeout` for pending publishes, then leaves.

        Iterations end. Harmless when it is closed.
        """
        report = await self._close(timeout_to_core(timeout) or 0.0)
        if report.unpersisted:
            logger.warning("%r closed with %d publishes not persisted", self, report.unpersisted)

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _until(self, look: Callable[[], T | None], timeout: float | None) -> T | None:
        """What `look` finds, as soon as it finds something; `None` after `timeout` seconds."""
        core = self._bind()
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + timeout
        found = look()
        while found is None:
            changed: asyncio.Future[None] = loop.create_future()
            self._waiters.add(changed)
            # Armed before the second look, so that no change can fall between look and wait.
            core.arm()
            try:
                found = look()
                if found is not None:
                    break
                left = None if deadline is None else deadline - loop.time()
                if left is not None and left <= 0:
                    return None
                await asyncio.wait([changed], timeout=left)
            finally:
                self._waiters.discard(changed)
            found = look()
        return found

    async def _answer(self, core: _quire.Client, command: int, timeout: float | None = None) -> bool:
        return bool(await self._until(lambda: core.wait(command, 0) or None, timeout))

    async def _flush(self, core: _quire.Client, timeout: float | None) -> bool:
        command = core.flush()
        try:
            return await self._answer(core, command, timeout)
        finally:
            # After a timeout or a cancellation nobody asks for the answer again.
            core.abandon(command)

    async def _connected(self) -> _quire.Client:
        if not self._is_connected:
            await self.connect()
        return self._bind()

    async def _close(self, timeout: float) -> DrainReport:
        self._is_closed = True
        core = self._started
        if core is None or self._descriptor < 0:
            return DrainReport(unpersisted=0 if core is None else core.unpersisted_count)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        try:
            waiting = core.unpersisted_count or core.unconfirmed_count
            if core.state != "closed" and waiting:
                await self._flush(core, timeout)
        except QuireError as error:
            logger.warning("%r: pending publishes were not persisted: %s", self, error)
        left = await loop.run_in_executor(None, core.close, max(0.0, deadline - loop.time()))
        for sequence, refused in core.take_failed_publishes():
            logger.error("%r: publish %d was refused: %s", self, sequence, refused)
        self._wake()
        await self._wait_for_handlers(deadline)
        if self._handler_task is not None and self._handler_task is not asyncio.current_task():
            self._handler_task.cancel()
        self._leave(core)
        return DrainReport(unpersisted=left)

    async def _wait_for_handlers(self, deadline: float) -> None:
        task = self._handler_task
        if task is not None and task is not asyncio.current_task():
            left = max(0.0, deadline - asyncio.get_running_loop().time())
            await asyncio.wait([task], timeout=left)

    async def _set_paused(self, subscriptions: Iterable[AsyncSubscription] | None, paused: bool) -> None:
        core = await self._connected()
        chosen = self._chosen(subscriptions)
        if chosen:
            await self._answer(core, core.set_paused([s._core.number for s in chosen], paused))
        for subscription in chosen:
            subscription._paused(paused)

    async def _replace(self, subscription: _quire.Subscription, spec: Spec) -> None:
        core = await self._connected()
        await self._answer(core, core.replace(subscription.number, spec))

    def _start_listeners(self, core: _quire.Client) -> None:
        if self._listener_task is None and self._listeners:
            seen = core.states_after(0, 0)[-1][0]
            self._listener_task = asyncio.ensure_future(self._run_listeners(core, seen))

    async def _run_listeners(self, core: _quire.Client, seen: int) -> None:
        def look() -> list[tuple[int, str]] | None:
            # Once the descriptor is gone, nobody is told of anything any more.
            ended = [(seen + 1, "closed")] if self._descriptor < 0 else None
            return core.states_after(seen, 0) or ended

        while True:
            for number, state in await self._until(look, None) or ():
                seen = number
                for listener in tuple(self._listeners):
                    try:
                        result = listener(state)
                        if inspect.isawaitable(result):
                            await result
                    except Exception:
                        logger.exception("a state listener of %r failed on %r", self, state)
                if state == "closed":
                    return

    async def _run_handlers(self, core: _quire.Client) -> None:
        def look() -> tuple[list[Message] | None] | None:
            self._forget_handlers(core)
            batch = core.handled_batch(DEFAULT_BATCH_COUNT, 0)
            return (batch,) if batch is None or batch else None

        while (found := await self._until(look, None)) is not None and found[0] is not None:
            for message in found[0]:
                handler = self._handlers.get(message._number)
                if handler is None:
                    continue
                try:
                    result = handler(message)
                    if inspect.isawaitable(result):
                        await result
                    message.discard()
                except Exception:
                    # One bad message must not stop the others; it stays unprocessed, so that a resumption
                    # sees it again.
                    logger.exception("the handler of %r failed on %r", message.sub_id, message)

    def _bind(self) -> _quire.Client:
        """The core, started on the loop of the first call."""
        loop = asyncio.get_running_loop()
        if self._started is None:
            if self._is_closed:
                raise DisconnectedError("the client is closed")
            self._loop = loop
            self._started = self._start_core()
            self._descriptor = self._started.ready_descriptor()
            loop.add_reader(self._descriptor, self._on_ready)
            self._start_listeners(self._started)
        elif self._loop is not loop:
            raise RuntimeError("this client belongs to another event loop: make one per loop")
        return self._started

    def _on_ready(self) -> None:
        try:
            if not os.read(self._descriptor, 64):
                self._forget_descriptor()
        except BlockingIOError:
            return
        self._wake()

    def _wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _leave(self, core: _quire.Client) -> None:
        """Ends the core at once and wakes everybody who waits."""
        self._is_closed = True
        core.close(0)
        self._close_stores()
        self._forget_descriptor()
        self._wake()

    def _forget_descriptor(self) -> None:
        if self._descriptor >= 0 and self._loop is not None:
            self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1
