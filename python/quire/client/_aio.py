"""The asyncio client: the blocking one's calls with `await`. It belongs to the loop of its first `await`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Self

from quire import _quire
from quire._arguments import (
    AUTO,
    Auto,
    SequenceArgument,
    check_timeout,
    check_type,
    correlation_to_core,
    expiration_to_core,
    sequence_to_core,
    takes,
    timeout_to_core,
)
from quire._filter import FilterArgument
from quire._message import Message, to_bytes
from quire._units import Duration
from quire.client._base import ClientBase
from quire.client._loop import Loop
from quire.client._options import DEFAULT_CLOSE_TIMEOUT, ClientOptions
from quire.client._publish import Publish, batch_to_core, check_not_empty
from quire.client._receipts import AsyncBatchReceipt, AsyncReceipt
from quire.client._reports import DrainReport, ServerInfo, WorkReport
from quire.client._spec import Change, Spec
from quire.client._subscription import DEFAULT_BATCH_COUNT, CompletedBase, SubscriptionBase, check_count


class AsyncCompleted(CompletedBase):
    __doc__ = CompletedBase.__doc__

    def __init__(self, client: AsyncClient, core: _quire.Subscription) -> None:
        super().__init__(core)
        self._client = client

    async def wait(self, timeout: Duration | None = None) -> bool:
        """True when it has; false when `timeout` passed first or the client ended before."""
        return bool(await self._client._driver.wait(self._core.wait_completed, timeout_to_core(timeout)))


class AsyncSubscription(SubscriptionBase):
    """A subscription: `async for` over it, or take messages with `get` or `batches`.

    A message is processed when the next one is asked for or it was discarded. The iteration ends when the
    subscription or the client is closed, and raises what the server ended it with.
    """

    _client: AsyncClient

    def __init__(self, client: AsyncClient, core: _quire.Subscription, spec: Spec, sub_id: str) -> None:
        super().__init__(client, core, spec, sub_id)
        #: An event: the program was handed the whole replay, up to what the log held as it was made.
        self.completed = AsyncCompleted(client, core)

    async def __aiter__(self) -> AsyncIterator[Message]:
        self._check_not_handled()
        wait, take = self._client._driver.wait, self._take
        while (found := await wait(take))[0] is not None:
            yield found[0]

    async def get(self, timeout: Duration | None = None) -> Message:
        """The next message.

        Raises `TimeoutError` when none comes in time, `DisconnectedError` when there will be no more.
        """
        self._check_not_handled()
        found = await self._client._driver.wait(self._take, timeout_to_core(timeout))
        if not found:
            raise TimeoutError("no message came in time")
        if found[0] is None:
            raise self._ended()
        return found[0]

    async def batches(
        self, max_messages: int = DEFAULT_BATCH_COUNT, timeout: Duration | None = None
    ) -> AsyncIterator[list[Message]]:
        """Lists of what is there, at least one message each and at most `max_messages`.

        With a `timeout`, an empty list when nothing came for so long.
        """
        self._check_not_handled()
        check_count(max_messages)
        seconds_or_none = timeout_to_core(timeout)
        take = partial(self._core.batch, max_messages)
        while (batch := await self._client._driver.wait(take, seconds_or_none)) is not None:
            yield batch

    async def pause(self, timeout: Duration | None = None) -> None:
        """Stops a bookmark subscription until `resume`."""
        await self._client.pause([self], timeout=timeout)

    async def resume(self, timeout: Duration | None = None) -> None:
        """Continues after `pause`."""
        await self._client.resume([self], timeout=timeout)

    @takes(Change)
    async def replace(self, change: Change) -> None:
        """Changes the subscription atomically; what is left out stays as it is, except that the filter is
        taken off. `None` takes rate, conflation and select list off, too.

        It keeps its place in the log unless `bookmark` is given. When the server refuses, nothing has
        changed.
        """
        await self._replace(change)

    async def unsubscribe(self, timeout: Duration | None = None) -> None:
        """Ends the subscription. Harmless when it has ended. Returns at once without a connection."""
        await self._client.unsubscribe(self.sub_id, timeout=timeout)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.unsubscribe()

    def _take(self, timeout: float | None) -> tuple[Message | None, ...]:
        """The next message, `None` when there will be none, nothing when none came in time."""
        try:
            return (self._core.next(timeout),)
        except TimeoutError:
            return ()


class AsyncClient(ClientBase[AsyncSubscription]):
    """A connection to a server that comes back by itself, for asyncio. Takes the options of `Client`.

    `async with` connects; so does the first `await` of any call.
    """

    _subscription_class = AsyncSubscription

    @takes(ClientOptions)
    def __init__(self, options: ClientOptions) -> None:
        super().__init__(options, Loop())

    async def connect(self) -> None:
        """Connects, and returns when it is logged on; at once with `connect="background"`. Harmless when it is."""
        await self._connect()

    async def publish(
        self,
        topic: str,
        data: Any,
        *,
        sequence: SequenceArgument = AUTO,
        expiration: Duration | None = None,
        correlation_id: str | None = None,
        headers: Mapping[str, str | bytes] | None = None,
        on_persisted: Callable[[AsyncReceipt], object] | None = None,
        timeout: Duration | None = None,
    ) -> int | None:
        """Sends a message and returns its sequence number. See `Client.publish`. `on_persisted` is called on the loop, and is a plain
        function."""
        if on_persisted is not None:
            message = Publish(
                data,
                topic=topic,
                sequence=sequence,
                expiration=expiration,
                correlation_id=correlation_id,
                headers=headers,
            )
            return (await self._publish_one(AsyncReceipt, message, on_persisted, timeout)).sequence
        if type(topic) is not str or not topic.isascii():  # see `Client.publish`
            check_type(topic, str, "topic")
        if timeout is not None:
            check_timeout(timeout)
        core = await self._ready()
        send = partial(
            core.publish,
            topic,
            data if type(data) is bytes else to_bytes(data, self._options.encoder, topic),
            0 if sequence is AUTO else sequence_to_core(sequence),
            None if expiration is None else expiration_to_core(expiration),
            None if correlation_id is None else correlation_to_core(correlation_id),
            headers,
        )
        try:
            return send()
        except BlockingIOError:
            return await self._publish_when_room(core, send, timeout, f"publishing to {topic!r}")

    async def publish_receipt(
        self,
        topic: str,
        data: Any,
        *,
        sequence: int | Auto = AUTO,
        expiration: Duration | None = None,
        correlation_id: str | None = None,
        headers: Mapping[str, str | bytes] | None = None,
        on_persisted: Callable[[AsyncReceipt], object] | None = None,
        timeout: Duration | None = None,
    ) -> AsyncReceipt:
        """Sends a message and returns its receipt, which can be awaited. See `Client.publish_receipt`."""
        message = Publish(
            data,
            topic=topic,
            sequence=sequence,
            expiration=expiration,
            correlation_id=correlation_id,
            headers=headers,
        )
        return await self._publish_one(AsyncReceipt, message, on_persisted, timeout)

    async def publish_many(
        self,
        topic: str | None,
        items: Iterable[Any],
        *,
        expiration: Duration | None = None,
        correlation_id: str | None = None,
        headers: Mapping[str, str | bytes] | None = None,
        on_persisted: Callable[[AsyncBatchReceipt], object] | None = None,
        timeout: Duration | None = None,
    ) -> list[int]:
        """Sends several messages with one call, all or none, and returns their sequence numbers. See `Client.publish_many`."""
        kind = None if on_persisted is None else AsyncBatchReceipt
        messages = batch_to_core(topic, items, expiration, correlation_id, headers, self._options.encoder)
        sequences, _ = await self._publish_all(kind, messages, on_persisted, timeout)
        return sequences

    async def publish_many_receipt(
        self,
        topic: str | None,
        items: Iterable[Any],
        *,
        expiration: Duration | None = None,
        correlation_id: str | None = None,
        headers: Mapping[str, str | bytes] | None = None,
        on_persisted: Callable[[AsyncBatchReceipt], object] | None = None,
        timeout: Duration | None = None,
    ) -> AsyncBatchReceipt:
        """Sends several messages and returns the receipt of all of them, which can be awaited. See `Client.publish_many_receipt`."""
        messages = batch_to_core(topic, items, expiration, correlation_id, headers, self._options.encoder)
        check_not_empty(messages)
        _, receipt = await self._publish_all(AsyncBatchReceipt, messages, on_persisted, timeout)
        assert receipt is not None
        return receipt

    async def flush(self, timeout: Duration | None = None) -> None:
        """Waits until everything published so far is persisted; goes on over reconnects.

        Raises `TimeoutError`, and the error of a publish that the server refused since the last flush.

        On a topic that the server is configured not to record (`recorded = false`), publishes are accepted, not persisted.
        """
        await self._flush(timeout)

    @takes(Spec)
    async def subscribe(self, spec: Spec) -> AsyncSubscription:
        """Subscribes and returns when the server has accepted it. See `Client.subscribe`.

        `on_message` may be a coroutine function. The handlers of one client run one at a time, in the order
        of arrival, on the loop.
        """
        return await self._enter(spec, auto_ack=self._options.auto_ack)

    async def unsubscribe(self, sub_id: str | None = None, *, timeout: Duration | None = None) -> None:
        """Ends one subscription, or all of them. Returns at once without a connection: the server ended them with it."""
        await self._unsubscribe(None if sub_id is None else [sub_id], timeout=timeout)

    async def pause(
        self, subscriptions: Iterable[AsyncSubscription] | None = None, *, timeout: Duration | None = None
    ) -> None:
        """Stops bookmark subscriptions, all with one command; left out: all of this client."""
        await self._set_paused(subscriptions, True, timeout)

    async def resume(
        self, subscriptions: Iterable[AsyncSubscription] | None = None, *, timeout: Duration | None = None
    ) -> None:
        """Continues bookmark subscriptions, all with one command (they may then share one replay)."""
        await self._set_paused(subscriptions, False, timeout)

    async def ack(
        self,
        topic: str,
        bookmarks: str | Message | Iterable[str | Message] | None = None,
        *,
        filter: FilterArgument | None = None,
        cancel: bool = False,
        expire: bool = False,
        timeout: Duration | None = None,
    ) -> None:
        """Acknowledges messages of a queue by bookmark or by filter. See `Client.ack`."""
        await self._settle(topic, bookmarks, filter, cancel, expire, timeout)

    async def sow(
        self,
        topic: str,
        *,
        filter: FilterArgument | None = None,
        order_by: str | None = None,
        top_n: int | None = None,
        batch_size: int | None = None,
        timeout: Duration | None = None,
    ) -> AsyncIterator[Message]:
        """The messages of a queue that could be delivered now. See `Client.sow`."""
        count = DEFAULT_BATCH_COUNT if batch_size is None else batch_size
        check_count(count)
        answers = await self._query(topic, filter, order_by, top_n, timeout)
        while (batch := await self._driver.wait(partial(answers.batch, count))) is not None:
            for message in batch:
                yield message

    async def queue_stats(
        self, queue: str | None = None, *, timeout: Duration | None = None
    ) -> dict[str, dict[str, Any]]:
        """The figures of one queue, or of all, by name (docs/queues.md section 10)."""
        return await self._queue_stats(queue, timeout)

    async def server_info(self, *, timeout: Duration | None = None) -> ServerInfo:
        """Returns what the server is: name, version, uptime, journal, and how much there is of everything.

        Raises `TimeoutError` when no answer comes within `timeout`; left out, `command_timeout`.
        """
        return await self._server_info(timeout)

    async def process(
        self,
        queue: str,
        handler: Callable[[Message], Awaitable[None] | None],
        *,
        concurrency: int = 1,
        max_backlog: int | None = None,
        extend: bool = True,
        retry_delay: Duration | Sequence[Duration] | None = None,
    ) -> WorkReport:
        """Works on a queue until the client is drained or closed, the task is cancelled, or SIGTERM comes.

        `handler` may be a coroutine function; `concurrency` of them run at a time, on the loop. A handler that
        is cancelled leaves its message, which goes back. See `Client.process`.
        """
        return await self._process(queue, handler, concurrency, max_backlog, extend, retry_delay)

    async def drain(self, timeout: Duration = DEFAULT_CLOSE_TIMEOUT) -> DrainReport:
        """Stops taking messages, waits for the handlers, the workers and the publishes, and closes; tells
        what was left. See `Client.drain`."""
        return await self._drain(timeout)

    async def close(self, timeout: Duration = DEFAULT_CLOSE_TIMEOUT) -> None:
        """Waits up to `timeout` for pending publishes, then leaves. Leaves at once without a connection, and when it is lost
        meanwhile. Logs how many publishes are not persisted.

        Iterations end. Harmless when it is closed.
        """
        await self._close(timeout_to_core(timeout) or 0.0)

    async def __aenter__(self) -> Self:
        await self._connect()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
