"""The asyncio client: the calls of the blocking client with `await`, on the loop of the first `await`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Any, Self, Unpack

from quire import _quire
from quire._arguments import (
    AUTO,
    Auto,
    SequenceArgument,
    suggests,
    takes,
    timeout_to_core,
)
from quire._filter import FilterArgument
from quire._message import Message
from quire._units import Duration
from quire.client._base import ClientBase
from quire.client._define import DropReport, QueueChanges, QueueSettings, ViewSettings
from quire.client._driver import Driver
from quire.client._loop import Loop
from quire.client._options import DEFAULT_CLOSE_TIMEOUT, ClientOptions
from quire.client._publish import batch_to_core, check_not_empty, message_to_core
from quire.client._query import AsyncQuery
from quire.client._receipts import AsyncBatchReceipt, AsyncReceipt
from quire.client._records import (
    DeltaRecordsSpec,
    DeltaSpec,
    QuerySpec,
    RecordsSpec,
    check_delta_records,
    check_deltas,
    delete,
)
from quire.client._reports import DrainReport, QueueStats, ServerInfo, WorkReport
from quire.client._spec import Change, Spec
from quire.client._subscription import (
    DEFAULT_BATCH_COUNT,
    CompletedBase,
    SnapshotBase,
    SubscriptionBase,
    check_count,
)
from quire.client._table import AsyncTable, TableSpec


class AsyncCompleted(CompletedBase):
    __doc__ = CompletedBase.__doc__

    def __init__(self, client: AsyncClient, core: _quire.Subscription) -> None:
        super().__init__(core)
        self._client = client

    async def wait(self, timeout: Duration | None = None) -> bool:
        """Waits for the event. Returns `False` after `timeout`, or when the client ended before the event."""
        return bool(await self._client._driver.wait(self._core.wait_completed, timeout_to_core(timeout)))


class AsyncSnapshot(SnapshotBase):
    __doc__ = SnapshotBase.__doc__

    def __init__(self, client: AsyncClient, core: _quire.Subscription) -> None:
        super().__init__(core)
        self._client = client

    async def wait(self, timeout: Duration | None = None) -> bool:
        """Waits for the event. See `Snapshot.wait`."""
        is_set = bool(await self._client._driver.wait(self._core.wait_snapshot, timeout_to_core(timeout)))
        self._check_possible()
        return is_set


# Iterators and not generators: `asyncio.wait_for(anext(messages), 1)` would end a generator for
# good.
class _Messages(AsyncIterator[Message]):
    """The messages of a subscription, one by one."""

    __slots__ = ("_driver", "_take")

    def __init__(self, driver: Driver, take: Callable[[float | None], tuple[Message | None, ...]]) -> None:
        self._driver = driver
        self._take = take

    async def __anext__(self) -> Message:
        found = await self._driver.wait(self._take)
        if found[0] is None:
            raise StopAsyncIteration
        return found[0]


class _Batches(AsyncIterator[list[Message]]):
    """The messages of a subscription in lists."""

    __slots__ = ("_driver", "_seconds", "_take")

    def __init__(
        self, driver: Driver, take: Callable[[float | None], list[Message] | None], seconds: float | None
    ) -> None:
        self._driver = driver
        self._take = take
        self._seconds = seconds

    async def __anext__(self) -> list[Message]:
        batch = await self._driver.wait(self._take, self._seconds)
        if batch is None:
            raise StopAsyncIteration
        return batch


class AsyncSubscription(SubscriptionBase):
    """A subscription: `async for` over it, or take messages with `get` or `batches`.

    A message counts as processed when the program asks for the next one, or discards it. The iteration ends
    when the subscription or the client is closed. It raises the error with which the server ended it.
    """

    _client: AsyncClient

    def __init__(self, client: AsyncClient, core: _quire.Subscription, spec: Spec, sub_id: str) -> None:
        super().__init__(client, core, spec, sub_id)
        #: An event: the program was handed the whole replay, up to what the log held as it was
        #: made.
        self.completed: AsyncCompleted = AsyncCompleted(client, core)
        #: An event: the last record of the query has arrived. Only a subscription that begins with
        #: one has it.
        self.snapshot: AsyncSnapshot = AsyncSnapshot(client, core)
        self._snapshot = self.snapshot

    def __aiter__(self) -> AsyncIterator[Message]:
        self._check_not_handled()
        return _Messages(self._client._driver, self._take)

    async def get(self, timeout: Duration | None = None) -> Message:
        """Returns the next message, and waits for it for at most `timeout`.

        The message before it then counts as processed, also when no message comes.

        Raises `TimeoutError` after `timeout`, and `DisconnectedError` when the subscription has ended.
        """
        self._check_not_handled()
        found = await self._client._driver.wait(self._take, timeout_to_core(timeout))
        if not found:
            raise TimeoutError("no message came in time")
        if found[0] is None:
            raise self._ended()
        return found[0]

    def batches(
        self, max_messages: int = DEFAULT_BATCH_COUNT, timeout: Duration | None = None
    ) -> AsyncIterator[list[Message]]:
        """Yields lists with the messages that have arrived, from one message to `max_messages`.

        When the program asks for the next list, the messages of the list before it count as processed.

        With a `timeout`, it yields an empty list when no message arrives for this long.
        """
        self._check_not_handled()
        check_count(max_messages)
        take = partial(self._core.batch, max_messages)
        return _Batches(self._client._driver, take, timeout_to_core(timeout))

    async def pause(self, timeout: Duration | None = None) -> None:
        """Pauses a bookmark subscription until `resume`."""
        await self._client.pause([self], timeout=timeout)

    async def resume(self, timeout: Duration | None = None) -> None:
        """Continues a paused subscription."""
        await self._client.resume([self], timeout=timeout)

    @takes(Change)
    async def replace(self, change: Change) -> None:
        """Changes the subscription atomically.

        Arguments that are left out stay as they are. `None` removes the filter, the rate, the conflation and
        the select list. The subscription keeps its place in the log unless `bookmark` is given. When the
        server refuses the change, nothing has changed.

        A subscription that began with a query receives the difference between the two views: `"publish"` for
        records that come into view, and with `oof=True` `"oof"` for records that leave it. A subscription that
        began with a query and a bookmark receives no difference.

        - `keys`: only of a subscription that began with a query
        - `skip_n`, `top_n`, `order_by`: only of a page. `page.replace(skip_n=20)` turns the page
        """
        await self._replace(change)

    async def unsubscribe(self, timeout: Duration | None = None) -> None:
        """Ends the subscription. Does nothing when it has ended. Returns immediately without a connection."""
        await self._client.unsubscribe(self.sub_id, timeout=timeout)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.unsubscribe()

    def _take(self, timeout: float | None) -> tuple[Message | None, ...]:
        """Returns the next message, `None` after the last one, or nothing after the timeout."""
        try:
            return (self._core.next(timeout, self._spec.ahead),)
        except TimeoutError:
            return ()


class AsyncClient(ClientBase[AsyncSubscription]):
    """Connects to a server or an engine in this process, for asyncio. Takes the options of `Client`.

        async with quire.AsyncClient("quire://127.0.0.1:9007", name="shop") as client:
            await client.publish("orders", {"id": 1, "item": "book"})
            await client.flush()

    The client connects at `async with`, or at the first `await` of any call. It reconnects when the
    connection is lost.
    """

    _subscription_class = AsyncSubscription

    @takes(ClientOptions)
    def __init__(self, options: ClientOptions) -> None:
        super().__init__(options, Loop())

    async def connect(self) -> None:
        """Connects, and returns when the client is logged on; with `connect="background"` immediately."""
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
        delay: Duration | None = None,
        deliver_at: datetime | None = None,
        sow_key: str | None = None,
        on_persisted: Callable[[AsyncReceipt], object] | None = None,
        timeout: Duration | None = None,
    ) -> int | None:
        """Sends a message and returns its sequence number. See `Client.publish`.

        `on_persisted` must be a plain function, and is called on the loop.
        """
        message = message_to_core(
            topic,
            data,
            sequence,
            expiration,
            correlation_id,
            headers,
            delay,
            deliver_at,
            sow_key,
            self._options.encoder,
        )
        return await self._publish(AsyncReceipt, message, on_persisted, timeout)

    async def delta_publish(
        self,
        topic: str,
        data: Any,
        *,
        sequence: SequenceArgument = AUTO,
        expiration: Duration | None = None,
        correlation_id: str | None = None,
        headers: Mapping[str, str | bytes] | None = None,
        delay: Duration | None = None,
        deliver_at: datetime | None = None,
        sow_key: str | None = None,
        on_persisted: Callable[[AsyncReceipt], object] | None = None,
        timeout: Duration | None = None,
    ) -> int | None:
        """Sends the fields of a record that change, and returns the sequence number. See
        `Client.delta_publish`."""
        message = message_to_core(
            topic,
            data,
            sequence,
            expiration,
            correlation_id,
            headers,
            delay,
            deliver_at,
            sow_key,
            self._options.encoder,
            is_delta=True,
        )
        return await self._publish(AsyncReceipt, message, on_persisted, timeout)

    async def publish_receipt(
        self,
        topic: str,
        data: Any,
        *,
        sequence: int | Auto = AUTO,
        expiration: Duration | None = None,
        correlation_id: str | None = None,
        headers: Mapping[str, str | bytes] | None = None,
        delay: Duration | None = None,
        deliver_at: datetime | None = None,
        sow_key: str | None = None,
        on_persisted: Callable[[AsyncReceipt], object] | None = None,
        timeout: Duration | None = None,
    ) -> AsyncReceipt:
        """Sends a message and returns its receipt, which can be awaited. See `Client.publish_receipt`."""
        message = message_to_core(
            topic,
            data,
            sequence,
            expiration,
            correlation_id,
            headers,
            delay,
            deliver_at,
            sow_key,
            self._options.encoder,
        )
        return await self._publish_one(AsyncReceipt, message, on_persisted, timeout)

    @suggests
    async def publish_many(
        self,
        topic: str | None,
        items: Iterable[Any],
        *,
        expiration: Duration | None = None,
        correlation_id: str | None = None,
        headers: Mapping[str, str | bytes] | None = None,
        delay: Duration | None = None,
        deliver_at: datetime | None = None,
        on_persisted: Callable[[AsyncBatchReceipt], object] | None = None,
        timeout: Duration | None = None,
    ) -> list[int]:
        """Sends several messages, all or none, and returns their sequences. See `Client.publish_many`."""
        kind = None if on_persisted is None else AsyncBatchReceipt
        batch = batch_to_core(
            topic, items, expiration, correlation_id, headers, delay, deliver_at, self._options.encoder
        )
        sequences, _ = await self._publish_all(kind, batch, on_persisted, timeout)
        return sequences

    async def publish_many_receipt(
        self,
        topic: str | None,
        items: Iterable[Any],
        *,
        expiration: Duration | None = None,
        correlation_id: str | None = None,
        headers: Mapping[str, str | bytes] | None = None,
        delay: Duration | None = None,
        deliver_at: datetime | None = None,
        on_persisted: Callable[[AsyncBatchReceipt], object] | None = None,
        timeout: Duration | None = None,
    ) -> AsyncBatchReceipt:
        """Sends several messages and returns one receipt to await. See `Client.publish_many_receipt`."""
        batch = batch_to_core(
            topic, items, expiration, correlation_id, headers, delay, deliver_at, self._options.encoder
        )
        check_not_empty(batch)
        _, receipt = await self._publish_all(AsyncBatchReceipt, batch, on_persisted, timeout)
        assert receipt is not None
        return receipt

    @suggests
    async def flush(self, timeout: Duration | None = None) -> None:
        """Waits until everything published so far is persisted. Continues to wait after a reconnect.

        On a topic that the server is configured not to record (`recorded = false`), publishes are accepted,
        not persisted. `timeout`: the longest wait; without it there is no limit.

        Raises `TimeoutError` after `timeout`, and the error of a publish that the server refused since the
        last flush. Raises `NameInUseError`, once, when the server dropped publishes as duplicates, because it has
        sequences of the client name that this client did not publish.
        """
        await self._flush(timeout)

    @suggests
    async def wait_persisted(self, sequence: int, timeout: Duration | None = None) -> None:
        """Waits until every publish up to `sequence` is persisted. See `Client.wait_persisted`."""
        await self._wait_persisted(sequence, timeout)

    @takes(Spec)
    async def subscribe(self, spec: Spec) -> AsyncSubscription:
        """Subscribes to a topic or a queue. See `Client.subscribe`.

        `on_message` may be a coroutine function. The handlers of one client run one at a time, in the order
        of arrival, on the loop.
        """
        return await self._subscribe(spec)

    @suggests
    async def unsubscribe(self, sub_id: str | None = None, *, timeout: Duration | None = None) -> None:
        """Ends one subscription, or all. Does not wait without a connection: it ended the subscriptions."""
        await self._unsubscribe(None if sub_id is None else [sub_id], timeout=timeout)

    async def pause(
        self, subscriptions: Iterable[AsyncSubscription] | None = None, *, timeout: Duration | None = None
    ) -> None:
        """Pauses bookmark subscriptions with one command; without an argument, all of this client."""
        await self._set_paused(subscriptions, True, timeout)

    async def resume(
        self, subscriptions: Iterable[AsyncSubscription] | None = None, *, timeout: Duration | None = None
    ) -> None:
        """Continues paused subscriptions with one command.

        Those with the same rate share one replay, from the lowest of their positions on: their messages
        arrive in log order across them, and together they do not exceed the rate. They still share it
        after a lost connection. None misses or repeats a message.
        """
        await self._set_paused(subscriptions, False, timeout)

    async def ack(
        self,
        topic: str,
        bookmarks: str | Message | Iterable[str | Message] | None = None,
        *,
        filter: FilterArgument | None = None,
        cancel: bool = False,
        expire: bool = False,
        reason: str | None = None,
        timeout: Duration | None = None,
    ) -> None:
        """Acknowledges messages of a queue by bookmark or by filter. See `Client.ack`."""
        await self._settle(topic, bookmarks, filter, cancel, expire, reason, timeout)

    @takes(QuerySpec)
    def sow(self, spec: QuerySpec) -> AsyncQuery:
        """Returns the records of a last-value topic, or the messages that a queue can deliver. See `Client.sow`.

            async for record in client.sow("orders"):
                print(record.sow_key, record.json())

        The query starts with the first record that is asked for, or when the query is awaited.
        """
        return AsyncQuery(self, spec)

    @takes(RecordsSpec)
    async def sow_and_subscribe(self, spec: RecordsSpec) -> AsyncSubscription:
        """Subscribes to the records of last-value topics and their changes. See `Client.sow_and_subscribe`."""
        return await self._enter(spec.spec, auto_ack=self._options.auto_ack)

    @takes(DeltaSpec, check_deltas)
    async def delta_subscribe(self, spec: DeltaSpec) -> AsyncSubscription:
        """Subscribes to the fields that differ in each change of a record. See `Client.delta_subscribe`."""
        return await self._enter(spec.spec, auto_ack=self._options.auto_ack)

    @takes(DeltaRecordsSpec, check_delta_records)
    async def sow_and_delta_subscribe(self, spec: DeltaRecordsSpec) -> AsyncSubscription:
        """Subscribes to records, and then to the fields that differ. See `Client.sow_and_delta_subscribe`."""
        return await self._enter(spec.spec, auto_ack=self._options.auto_ack)

    @suggests
    async def sow_delete(
        self,
        topic: str,
        *,
        keys: str | Iterable[str] | None = None,
        filter: FilterArgument | None = None,
        data: Any = None,
        bookmarks: str | Message | Iterable[str | Message] | None = None,
        timeout: Duration | None = None,
    ) -> int:
        """Removes records of a last-value topic, and returns their number. See `Client.sow_delete`."""
        return await delete(self, topic, keys, filter, data, bookmarks, timeout)

    @takes(TableSpec)
    async def table(self, spec: TableSpec) -> AsyncTable:
        """Returns a live copy of the records of a last-value topic. See `Client.table`.

        `on_change` may be a coroutine function, and runs on the loop.
        """
        table = AsyncTable(self, spec)
        await table._open(table._handle)
        return table

    @suggests
    async def queue_stats(self, queue: str | None = None, *, timeout: Duration | None = None) -> QueueStats:
        """Returns the figures of one queue, or of all queues, by name (docs/queues.md section 10).

        `queue_stats("jobs")["jobs"].depth` is a figure of one queue. Raises `UnknownQueueError`.
        """
        return await self._queue_stats(queue, timeout)

    @suggests
    async def create_queue(
        self, name: str, *, timeout: Duration | None = None, **settings: Unpack[QueueSettings]
    ) -> bool:
        """Creates a queue on the server while it runs. See `Client.create_queue`."""
        return await self._create_queue(name, settings, timeout)

    @suggests
    async def alter_queue(
        self, name: str, *, timeout: Duration | None = None, **settings: Unpack[QueueChanges]
    ) -> bool:
        """Changes settings of a queue that was created with `create_queue`. See `Client.alter_queue`."""
        return await self._alter_queue(name, settings, timeout)

    @suggests
    async def drop_queue(self, name: str, *, timeout: Duration | None = None) -> DropReport:
        """Drops a queue that was created with `create_queue`. See `Client.drop_queue`."""
        return await self._drop_queue(name, timeout)

    @suggests
    async def define_view(
        self, name: str, *, timeout: Duration | None = None, **settings: Unpack[ViewSettings]
    ) -> bool:
        """Replaces the definition of a view on the server while it runs. See `Client.define_view`."""
        return await self._define_view(name, settings, timeout)

    @suggests
    async def server_info(self, *, timeout: Duration | None = None) -> ServerInfo:
        """Returns the name, version and uptime of the server, and the sizes and counts of its parts.

        Raises `TimeoutError` when the server does not answer within `timeout`, or without it
        `command_timeout`.
        """
        return await self._server_info(timeout)

    @suggests
    async def process(
        self,
        queue: str,
        handler: Callable[[Message], Awaitable[None] | None],
        *,
        concurrency: int = 1,
        max_backlog: int | None = None,
        extend: bool = True,
        retry_delay: Duration | Sequence[Duration] | None = None,
        filter: FilterArgument | None = None,
    ) -> WorkReport:
        """Calls `handler` with the messages of a queue. See `Client.process`.

        The call ends when the client is drained or closed, when the task is cancelled, or at SIGTERM.
        `handler` may be a coroutine function; `concurrency` of them run at a time, on the loop. The message
        of a cancelled handler returns to the queue.
        """
        return await self._process(queue, handler, concurrency, max_backlog, extend, retry_delay, filter)

    @suggests
    async def drain(self, timeout: Duration = DEFAULT_CLOSE_TIMEOUT) -> DrainReport:
        """Stops taking messages, waits for handlers, workers and publishes, closes, and reports what is left.

        See `Client.drain`.
        """
        return await self._drain(timeout)

    @suggests
    async def close(self, timeout: Duration = DEFAULT_CLOSE_TIMEOUT) -> None:
        """Waits up to `timeout` for running handlers and pending publishes, and closes the client. All iterations end.

        Called by a handler, it returns at once, and is carried out when the handler has returned.

        Does not wait without a connection, or after the connection is lost. Logs the number of publishes that
        are not persisted, and the errors of publishes that `flush` did not raise. Does nothing when the client is closed.
        """
        await self._close(timeout_to_core(timeout) or 0.0)

    async def __aenter__(self) -> Self:
        await self._connect()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
