"""The common logic of both clients: coroutines that wait only through the driver (`_driver`)."""

from __future__ import annotations

import json
import logging
import os
import threading
import weakref
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from time import monotonic
from typing import Any, ClassVar, Generic, Literal, TypeVar

from quire import _quire
from quire._arguments import (
    LinkAction,
    backlog_to_core,
    check_function,
    check_timeout,
    check_type,
    selection_to_core,
    timeout_to_core,
    verdict_to_core,
)
from quire._bookmarks import MOST_RECENT
from quire._errors import ConfigError, DisconnectedError, QuireError, SubscriptionInUseError
from quire._filter import FilterArgument
from quire._message import Message
from quire._reasons import reason_of, reason_to_core
from quire._topics import exact
from quire._units import Duration, counted
from quire.client._define import (
    DropReport,
    QueueChanges,
    QueueSettings,
    ViewSettings,
    changes_to_core,
    definition_to_core,
    settings_to_core,
)
from quire.client._driver import Driver, Handler, Running
from quire.client._failures import FailureLog
from quire.client._handling import Handling, is_handling
from quire.client._options import ClientOptions, generated_name
from quire.client._publish import Batch, CoreMessage, check_followed, note_of_batch
from quire.client._receipts import (
    Following,
    LoopReceipt,
    OneBase,
    OnPersisted,
    ReceiptBase,
    check_on_persisted,
)
from quire.client._reports import (
    DrainReport,
    Health,
    QueueFigures,
    QueueStats,
    ServerInfo,
    WorkReport,
    failure_of_publishes,
    server_info_of,
    text_of_failure,
)
from quire.client._spec import Renewal, Spec
from quire.client._stores import BookmarkStore
from quire.client._subscription import DEFAULT_BATCH_COUNT, SubscriptionBase
from quire.client._unclosed import finish_when_dropped
from quire.client._worker import Worker, backlog_of, delays_of, refusal_of

logger = logging.getLogger("quire.client")

#: Called with `"connected"`, `"reconnecting"` or `"closed"`.
StateListener = Callable[[str], object]
#: Called with the error that ended a subscription; `None`: the program ended it.
OnEnd = Callable[[QuireError | None], None]
S = TypeVar("S", bound=SubscriptionBase)
Q = TypeVar("Q", bound=ReceiptBase[Any])
One = TypeVar("One", bound=OneBase)
T = TypeVar("T")

#: Refusals of an `unsubscribe` that change nothing: the server ended the subscription before, so
#: that what was asked for is so.
ENDED_BEFORE = ("unknown_subscription", "shutting_down", "disconnected", "closed")
#: Bookmarks in one command; more are said in several.
BOOKMARKS_PER_COMMAND = 10_000
#: The part of the timeout of `close` in which it waits for handlers. In the rest it releases the
#: messages that no handler has begun.
HANDLERS_SHARE = 0.9


class ClientBase(Generic[S]):
    """The state of a client outside of its core, and the logic of its calls."""

    #: The class that `subscribe` returns.
    _subscription_class: type[S]
    #: The server lets it in while it may lack messages. It takes only commands that show or
    #: administer it.
    _observes: ClassVar[bool] = False

    def __init__(self, options: ClientOptions, driver: Driver) -> None:
        self._options = options
        self._name = generated_name() if options.name is None else options.name
        self._driver = driver
        self._started: _quire.Client | None = None
        #: Commands may be given: it was connected, or does not wait for that.
        self._is_ready = False
        self._is_closed = False
        self._has_left = False
        #: Held while the members below change, never during a wait.
        self._lock = threading.Lock()
        #: Those that the program holds. One that it drops ends, unless it has a handler.
        self._subscriptions: weakref.WeakValueDictionary[str, S] = weakref.WeakValueDictionary()
        self._handled: set[S] = set()
        self._subscription_count = 0
        #: Those that the program has named. Their places are in the store.
        self._sub_ids: set[str] = set()
        self._handlers: dict[int, Handler] = {}
        #: Called when a subscription with a handler has ended, with the error that ended it.
        self._on_end: dict[int, OnEnd] = {}
        self._handling: Running | None = None
        #: The message whose handler runs.
        self._in_hand: Message | None = None
        #: The client is being closed: no handler begins a message of a queue.
        self._is_leaving = False
        #: Set when a handler has returned while the client is being closed.
        self._returned = driver.event()
        #: The close or drain that a handler asked for, which waits for this handler.
        self._closing: Running | None = None
        self._listeners: list[StateListener] = []
        self._listening: Running | None = None
        self._workers: set[Worker] = set()
        self._failures = FailureLog()
        #: The message types of topics, as far as they were asked for.
        self._known_types: dict[str, str] = {}
        #: The receipts that are announced; made at the first of them.
        self._following: Following | None = None
        #: A bookmark store that was opened for this client alone, and is closed with it.
        self._own_places: BookmarkStore | None = None
        #: Ends the core when the program does not.
        self._unclosed: weakref.finalize[..., Any] | None = None

    @property
    def name(self) -> str:
        """The client name: the identity of the publisher."""
        return self._name

    @property
    def persisted(self) -> int:
        """All publishes of the client up to this sequence number are settled: persisted, accepted or refused.

        To limit how many publishes are on their way, use `wait_persisted` and do not poll.
        """
        return 0 if self._started is None else self._started.persisted

    @property
    def _last_sequence(self) -> int:
        """The highest sequence that was published."""
        return 0 if self._started is None else self._started.last_sequence

    @property
    def state(self) -> str:
        """`"connecting"`, `"connected"`, `"reconnecting"` or `"closed"`."""
        if self._started is None:
            return "closed" if self._is_closed else "connecting"
        return self._started.state

    def health(self) -> Health:
        """Returns the state of the client and of its subscriptions. Does not ask the server."""
        core = self._started
        if core is None:
            return Health(state=self.state, persisted=0, unpersisted=0)
        heard, by_number = core.heard()
        missed = core.missed()
        return Health(
            state=core.state,
            persisted=core.persisted,
            unpersisted=core.unpersisted_count,
            last_error=core.last_error,
            last_heard=moment(heard),
            subscriptions=tuple(
                s._health(moment(by_number.get(s._core.number)), missed.get(s._core.number, 0))
                for s in list(self._subscriptions.values())
            ),
            instance=core.instance,
        )

    def add_state_listener(self, listener: StateListener) -> None:
        """Calls `listener` with each new state of the client, in their order.

        The listeners of a blocking client run one at a time on a separate thread, so they may use
        the client. The listeners of an asyncio client run on the loop, and may be coroutine
        functions. An exception of a listener is logged.
        """
        check_function(listener, "listener")
        self._driver.check_handler(listener)
        with self._lock:
            if self._started is not None and self._listening is None:
                seen, _ = self._started.states_after(0, 0)[-1]
                self._listening = self._listen(self._started, seen)
            self._listeners.append(listener)

    def remove_state_listener(self, listener: StateListener) -> None:
        """Removes a listener. Does nothing when it was not added."""
        with self._lock:
            if listener in self._listeners:
                self._listeners.remove(listener)

    @property
    def _is_of_parent(self) -> bool:
        """Whether this process was forked after the client was made: the client is that of its parent."""
        return self._started is not None and self._started.is_of_parent

    @property
    def _log_fields(self) -> dict[str, str]:
        """The fields of its log records."""
        return {"quire_client": self.name}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(self._options.urls)}, name={self.name!r})"

    # Connecting

    def _bind(self) -> _quire.Client:
        """The core, which is started at the first use."""
        self._driver.check()
        if self._started is None:
            if self._is_closed:
                raise DisconnectedError("the client is closed", code="closed")
            self._started = self._start_core()
            own_places = self._own_places
            close_stores = _nothing if own_places is None else own_places.close
            self._unclosed = finish_when_dropped(self, self._started, close_stores, self._driver.detach_soon)
            self._driver.attach(self._started)
            if self._listeners:
                # From the first state on: by now it may be connected.
                seen, _ = self._started.states_after(0, 0)[0]
                self._listening = self._listen(self._started, seen)
        return self._started

    def _start_core(self) -> _quire.Client:
        """The running client of the core, which begins to connect, with its stores."""
        places = self._options.bookmark_store
        if places is not None and not isinstance(places, BookmarkStore):
            places = self._own_places = BookmarkStore(places)
        try:
            return _quire.Client(
                self._options.links(),
                self.name,
                self._options.with_source(self._driver.source),
                None if places is None else places._core,
                int.from_bytes(os.urandom(8)),
                self._observes,
            )
        except BaseException:
            self._close_stores()
            raise

    def _close_stores(self) -> None:
        """Nothing of the client is processed any more. The core closes the publish store itself."""
        if self._own_places is not None:
            self._own_places.close()

    async def _connect(self) -> None:
        core = self._bind()
        if self._is_ready:
            return
        options = self._options
        if options.connect == "wait":
            look = partial(core.wait_connected, keeps_trying=options.wait)
            try:
                is_connected = await self._driver.wait(look, options.connect_seconds)
                if is_connected is None:
                    raise options.refused(core.last_error, core.last_error_code)
                if not is_connected:
                    raise options.not_connected(core.last_error, core.last_error_code)
            except BaseException:
                self._leave(core)
                raise
        self._is_ready = True

    async def _ready(self) -> _quire.Client:
        """The core, which was connected unless it connects in the background."""
        if not self._is_ready:
            await self._connect()
        return self._bind()

    async def _answer(self, core: _quire.Client, command: int, timeout: float | None = None) -> bool:
        """Returns whether the command was answered in time, and removes the answer. Raises a refusal."""
        try:
            return await self._driver.wait(partial(core.wait, command), timeout)
        finally:
            # After a timeout, Ctrl-C or a cancellation it is not kept.
            core.abandon(command)

    async def _reply(
        self, core: _quire.Client, command: int, timeout: Duration | float | None, doing: str
    ) -> None:
        """Waits for the answer to a command, `command_timeout` when `timeout` is `None`. Raises what was refused."""
        limit = self._options.command_seconds if timeout is None else timeout_to_core(timeout)
        if not await self._answer(core, command, limit):
            raise self._too_late(core, limit, doing)

    def _too_late(self, core: _quire.Client, limit: float | None, doing: str) -> TimeoutError:
        """What to raise for a command that was not answered in time."""
        because = ""
        if core.state != "connected":
            because = ", because there is no connection"
            because += "" if core.last_error is None else f": {core.last_error}"
        return TimeoutError(f"{doing}: no answer within {limit:g} s{because}")

    # Publishing

    async def _publish_when_room(
        self, core: _quire.Client, publish: Callable[[], T], timeout: Duration | None, doing: str
    ) -> T:
        """The result of a publish, as soon as the publish store has room; waits `command_timeout` when `timeout` is `None`."""
        limit = self._options.command_seconds if timeout is None else timeout_to_core(timeout)
        deadline = None if limit is None else monotonic() + limit
        while True:
            # Read before, so that room that is made in between is not missed.
            seen = core.released
            try:
                return publish()
            except BlockingIOError:
                pass
            left = None if deadline is None else left_until(deadline)
            if not await self._driver.wait(partial(core.wait_room, seen), left):
                raise TimeoutError(f"{doing}: {_no_room(core, limit)}; nothing was published")

    def _publish_rows(self, core: _quire.Client, rows: Sized, after: int, limit: float) -> int:
        """Publishes the rows of a record batch, and returns the sequence of the last one. Waits up to `limit` seconds for room."""
        taken = core.publish_rows(rows, after, limit)
        if taken < len(rows):
            reason = f"{_no_room(core, limit)}; {taken:,} of {counted(len(rows), 'row')} were taken"
            raise TimeoutError(f"publishing rows: {reason}")
        return after + taken

    async def _publish(
        self,
        kind: type[One],
        message: CoreMessage,
        on_persisted: OnPersisted | None,
        timeout: Duration | None,
    ) -> int | None:
        """Publishes one message. With `on_persisted`, it is followed as a receipt of this `kind`."""
        if on_persisted is not None:
            return (await self._publish_one(kind, message, on_persisted, timeout)).sequence
        if timeout is not None:
            check_timeout(timeout)
        # Nearly every publish finds the client ready, and does without one more coroutine.
        core = self._bind() if self._is_ready else await self._ready()
        try:
            return core.publish(*message)
        except BlockingIOError:
            send = partial(core.publish, *message)
            return await self._publish_when_room(core, send, timeout, f"publishing to {message[0]!r}")

    async def _publish_one(
        self,
        kind: type[One],
        message: CoreMessage,
        on_persisted: OnPersisted | None,
        timeout: Duration | None,
    ) -> One:
        """Publishes one message and follows it."""
        check_followed(message)
        _, receipt = await self._publish_batch(
            Batch([message]), kind, on_persisted, timeout, f"publishing to {message[0]!r}"
        )
        assert receipt is not None
        return receipt

    async def _publish_all(
        self,
        kind: type[Q] | None,
        batch: Batch,
        on_persisted: OnPersisted | None,
        timeout: Duration | None,
    ) -> tuple[list[int], Q | None]:
        """Publishes all of the messages or none, and follows them as a receipt of this `kind`."""
        doing = f"publishing {len(batch.messages)} messages"
        return await self._publish_batch(batch, kind, on_persisted, timeout, doing)

    async def _publish_batch(
        self,
        batch: Batch,
        kind: type[Q] | None,
        on_persisted: OnPersisted | None,
        timeout: Duration | None,
        doing: str,
    ) -> tuple[list[int], Q | None]:
        if on_persisted is not None:
            check_function(on_persisted, "on_persisted")
            check_on_persisted(on_persisted)
        core = await self._ready()
        following = self._follow(core)
        is_announced = on_persisted is not None or (kind is not None and issubclass(kind, LoopReceipt))
        if is_announced:
            following.start()
        followed = None if kind is None else "announced" if is_announced else "asked"

        def publish() -> tuple[list[int], Q | None]:
            with following.lock:
                sequences, core_receipt, failure = core.publish_many(*batch, followed)
                if failure is not None:
                    index, error = failure
                    if len(batch.messages) > 1:
                        error.add_note(note_of_batch(index, sequences))
                    raise error
                if kind is None or core_receipt is None:
                    return sequences, None
                named = list(zip(sequences, batch.topics(), strict=True))
                receipt = kind(core_receipt, following, named)
                if is_announced:
                    following.follow(receipt, on_persisted)
                return sequences, receipt

        return await self._publish_when_room(core, publish, timeout, doing)

    def _follow(self, core: _quire.Client) -> Following:
        with self._lock:
            if self._following is None:
                self._following = Following(self._driver, core, self._options, self.name)
            return self._following

    async def _flush(self, timeout: Duration | None) -> None:
        check_timeout(timeout)
        core = await self._ready()
        if not await self._answer(core, core.flush(), timeout_to_core(timeout)):
            raise _not_flushed(core, self._options.unpersisted_reason)
        _raise_refused(core)

    async def _wait_persisted(self, sequence: int, timeout: Duration | None) -> None:
        check_timeout(timeout)
        check_type(sequence, int, "sequence")
        core = await self._ready()
        last = core.last_sequence
        if sequence > last:
            raise ValueError(
                f"sequence: {sequence} was not published, the last sequence of this client is {last}"
            )
        look = partial(core.wait_persisted, max(sequence, 0))
        if not await self._driver.wait(look, timeout_to_core(timeout)):
            raise _not_flushed(core, self._options.unpersisted_reason)
        _raise_refused(core)

    # Subscribing

    async def _enter(
        self, spec: Spec, *, auto_ack: bool, renewal: Renewal | None = None, on_end: OnEnd | None = None
    ) -> S:
        """`renewal`: left out, the client renews leases while a handler runs, and else until the program has the message."""
        spec.check_together()
        handler = spec.on_message
        if handler is not None:
            self._driver.check_handler(handler)
            # Before anything is sent. The handlers start when the server has accepted the
            # subscription.
            self._driver.check_background()
        if renewal is None:
            renewal = "until_begun" if handler is None else "while_handled"
        client = await self._ready()
        with self._lock:
            sub_id = self._new_sub_id(spec)
            is_kept = spec.sub_id is not None
            core = client.subscribe(spec, sub_id, is_kept, handler is not None, auto_ack, renewal)
            subscription = self._subscription_class(self, core, spec, sub_id)
            self._subscriptions[sub_id] = subscription
            if handler is not None:
                self._handled.add(subscription)
                # A table, which has `on_end`, handles its messages itself.
                self._handlers[core.number] = self._observed(handler) if on_end is None else handler
                if on_end is not None:
                    self._on_end[core.number] = on_end
        try:
            await self._reply(client, core.command, spec.timeout, f"subscribing to {spec.topic!r}")
        except BaseException as error:
            with self._lock:
                self._subscriptions.pop(sub_id, None)
                self._handled.discard(subscription)
                self._handlers.pop(core.number, None)
                self._on_end.pop(core.number, None)
            client.forget(core.number)
            if not isinstance(error, QuireError):
                with suppress(QuireError):  # the client was closed meanwhile
                    client.abandon(client.unsubscribe(core.number))
            raise
        if handler is not None:
            try:
                self._start_handlers(client)
            except QuireError:
                await self._unsubscribe([sub_id])
                raise
        return subscription

    async def _subscribe(self, spec: Spec) -> S:
        """`subscribe`: warns of a `max_backlog` without a queue, such as one with a misspelled name. It would wait forever."""
        subscription = await self._enter(spec, auto_ack=self._options.auto_ack)
        if spec.max_backlog and subscription._core.granted_backlog == 0:
            if spec.bookmark is not None:
                reason = "a subscription with a bookmark is a replay"
            else:
                is_name = exact(spec.topic) == spec.topic
                reason = f"no queue has {'the' if is_name else 'a'} name{'' if is_name else ' that matches'}"
                reason += ", and `quire queue ls` lists the queues"
            logger.warning(
                "%r: max_backlog of the subscription to %r has no effect: %s",
                self,
                spec.topic,
                reason,
                extra=self._log_fields,
            )
        return subscription

    def _new_sub_id(self, spec: Spec) -> str:
        sub_id = spec.sub_id
        if sub_id is None:
            if spec.bookmark == MOST_RECENT:
                raise ConfigError(
                    "MOST_RECENT needs a sub_id=, the name under which a place was kept", key="bookmark"
                )
            self._subscription_count += 1
            return f"subscription-{self._subscription_count}"
        if not sub_id:
            raise ConfigError("it is empty", key="sub_id")
        if sub_id in self._subscriptions:
            raise SubscriptionInUseError(f"this client already has a subscription {sub_id!r}", key="sub_id")
        if (
            spec.bookmark == MOST_RECENT
            and self._options.bookmark_store is None
            and sub_id not in self._sub_ids
        ):
            logger.warning(
                "%r: MOST_RECENT of %r begins at the oldest message in each new process: "
                "its place is in memory, and bookmark_store= takes a file",
                self,
                sub_id,
                extra=self._log_fields,
            )
        self._sub_ids.add(sub_id)
        return sub_id

    async def _unsubscribe(
        self, names: Iterable[str] | None, deadline: float | None = None, timeout: Duration | None = None
    ) -> None:
        """Ends the subscriptions with these names; `None`: all of them. Waits for the server until `deadline`; left out, for `timeout`.
        Returns at once without a connection."""
        check_timeout(timeout)
        names = None if names is None else list(names)
        for name in names or ():
            check_type(name, str, "sub_id")
        with self._lock:
            named = list(self._subscriptions) if names is None else names
            ended = [s for name in named if (s := self._subscriptions.pop(name, None)) is not None]
            self._handled.difference_update(ended)
        core = self._started
        if core is None or self._is_of_parent or core.state == "closed":
            return
        commands = []
        for subscription in ended:
            try:
                commands.append(core.unsubscribe(subscription._core.number))
            except QuireError as error:
                if error.code not in ENDED_BEFORE:
                    raise
        self._driver.wake()
        if deadline is not None:
            await self._answer_all(core, commands, deadline)
            return
        limit = self._options.command_seconds if timeout is None else timeout_to_core(timeout)
        if not await self._answer_all(core, commands, None if limit is None else monotonic() + limit):
            raise self._too_late(core, limit, "unsubscribing")

    async def _answer_all(self, core: _quire.Client, commands: list[int], deadline: float | None) -> bool:
        """For commands about subscriptions, which may have ended before. Whether all were answered in time."""
        is_in_time = True
        for command in commands:
            try:
                left = None if deadline is None else left_until(deadline)
                is_in_time &= await self._answer(core, command, left)
            except QuireError as error:
                if error.code not in ENDED_BEFORE:
                    raise
        return is_in_time

    async def _set_paused(
        self, subscriptions: Iterable[S] | None, paused: bool, timeout: Duration | None
    ) -> None:
        """Those that were named; `None`: all that can be paused."""
        check_timeout(timeout)
        if subscriptions is not None:
            subscriptions = list(_pausable(subscriptions))
        core = await self._ready()
        with self._lock:
            known = list(self._subscriptions.values())
        chosen = (
            [s for s in known if s._spec.bookmark is not None and not s._spec.live]
            if subscriptions is None
            else list(subscriptions)
        )
        if chosen:
            command = core.set_paused([s._core.number for s in chosen], paused)
            await self._reply(core, command, timeout, "pausing" if paused else "resuming")
        for subscription in chosen:
            subscription._paused(paused)

    # Queues

    async def _settle(
        self,
        topic: str,
        bookmarks: str | Message | Iterable[str | Message] | None,
        filter: FilterArgument | None,
        cancel: bool,
        expire: bool,
        reason: str | None,
        timeout: Duration | None,
    ) -> int:
        """Returns the number of messages that were settled."""
        check_type(topic, str, "topic")
        check_timeout(timeout)
        verdict = verdict_to_core(cancel, expire)
        why = reason_to_core(reason)
        if why and not (cancel or expire):
            raise ConfigError("it goes only together with cancel or expire", key="reason")
        selected = selection_to_core(bookmarks, filter)
        core = await self._ready()
        doing = f"settling messages of {topic!r}"
        if isinstance(selected, str):
            command = core.settle_matching(topic, verdict, selected, why)
            return int(await self._told(core, command, timeout, doing))
        count = 0
        for start in range(0, len(selected), BOOKMARKS_PER_COMMAND):
            piece = selected[start : start + BOOKMARKS_PER_COMMAND]
            command = core.settle_bookmarks(topic, verdict, piece, why)
            count += int(await self._told(core, command, timeout, doing))
        return count

    async def _queue_stats(self, queue: str | None, timeout: Duration | None) -> QueueStats:
        check_type(queue, str, "queue", optional=True)
        check_timeout(timeout)
        core = await self._ready()
        command = core.queue_stats(queue)
        limit = self._options.command_seconds if timeout is None else timeout_to_core(timeout)
        try:
            if not await self._driver.wait(partial(core.wait, command), limit):
                raise self._too_late(core, limit, "asking for the figures of queues")
            told = core.take_json_replies(command)
            queues = json.loads(told[0])["queues"] if told else {}
            return QueueStats({name: QueueFigures(figures) for name, figures in queues.items()})
        finally:
            core.abandon(command)

    async def _create_queue(self, name: str, settings: QueueSettings, timeout: Duration | None) -> bool:
        check_timeout(timeout)
        text = settings_to_core(name, settings)
        core = await self._ready()
        told = await self._told(core, core.create_queue(text), timeout, f"creating queue {name!r}")
        return not told["queue"]["existed"]

    async def _alter_queue(self, name: str, changes: QueueChanges, timeout: Duration | None) -> bool:
        check_timeout(timeout)
        text = changes_to_core(name, changes)
        core = await self._ready()
        told = await self._told(core, core.alter_queue(name, text), timeout, f"altering queue {name!r}")
        return bool(told["queue"]["altered"])

    async def _drop_queue(self, name: str, timeout: Duration | None) -> DropReport:
        check_type(name, str, "name")
        check_timeout(timeout)
        core = await self._ready()
        told = await self._told(core, core.drop_queue(name), timeout, f"dropping queue {name!r}")
        return DropReport(told["queue"]["dropped"], tuple(told["queue"]["warnings"]))

    async def _define_view(self, name: str, settings: ViewSettings, timeout: Duration | None) -> bool:
        check_timeout(timeout)
        text = definition_to_core(name, settings)
        core = await self._ready()
        told = await self._told(core, core.define_view(text), timeout, f"defining view {name!r}")
        return bool(told["view"]["changed"])

    async def _told(self, core: _quire.Client, command: int, timeout: Duration | None, what: str) -> Any:
        """Waits for the answer to a command, and returns it."""
        limit = self._options.command_seconds if timeout is None else timeout_to_core(timeout)
        try:
            if not await self._driver.wait(partial(core.wait, command), limit):
                raise self._too_late(core, limit, what)
            return json.loads(core.take_json_replies(command)[0])
        finally:
            core.abandon(command)

    async def _server_info(self, timeout: Duration | None) -> ServerInfo:
        told = await self._inspect("server", timeout=timeout)
        return server_info_of(told["server"])

    async def _all_topics(self) -> list[dict[str, Any]]:
        topics: list[dict[str, Any]] = []
        has_more = True
        while has_more:
            told = await self._inspect("topics", after_topic=topics[-1]["topic"] if topics else "")
            topics += told["topics"]
            has_more = told["more"]
        return topics

    async def _unrecorded(self, topics: Collection[str]) -> list[str]:
        """Those of the topics that this client publishes to and that the server does not record, by name."""
        return sorted(topic["topic"] for topic in await self._described(topics) if not topic["recorded"])

    async def _message_type(self, topic: str) -> str:
        """The message type of a topic, JSON when the server does not know the topic. A pattern: those of all topics are known then."""
        if topic not in self._known_types:
            is_pattern = exact(topic) != topic
            described = await (self._all_topics() if is_pattern else self._described([topic]))
            self._known_types.update((each["topic"], each["message_type"]) for each in described)
            self._known_types.setdefault(topic, "json")
        return self._known_types[topic]

    async def _described(self, topics: Collection[str]) -> list[dict[str, Any]]:
        """The topics of the server with these names."""
        if not topics:
            return []
        names = sorted(topics, key=str.encode)
        found: list[dict[str, Any]] = []
        # The names that follow this one begin at the first topic, or shortly before it.
        after, last, has_more = names[0][:-1], names[-1].encode(), True
        while has_more:
            told = await self._inspect("topics", after_topic=after)
            found += [topic for topic in told["topics"] if topic["topic"] in topics]
            if has_more := told["more"]:
                after = told["topics"][-1]["topic"]
                has_more = after.encode() < last
        return found

    async def _all_clients(self) -> list[dict[str, Any]]:
        clients: list[dict[str, Any]] = []
        has_more = True
        while has_more:
            told = await self._inspect(
                "clients", after_connection=clients[-1]["connection"] if clients else 0
            )
            clients += told["clients"]
            has_more = told["more"]
        return clients

    async def _all_subscriptions(self) -> list[dict[str, Any]]:
        subscriptions: list[dict[str, Any]] = []
        has_more = True
        while has_more:
            last = subscriptions[-1] if subscriptions else {"connection": 0, "subscription": 0}
            told = await self._inspect(
                "subscriptions", after_connection=last["connection"], after_subscription=last["subscription"]
            )
            subscriptions += told["subscriptions"]
            has_more = told["more"]
        return subscriptions

    async def _links(self) -> dict[str, Any]:
        """The links of the server to other instances."""
        told = await self._inspect("replication")
        links: dict[str, Any] = told["replication"]
        return links

    async def _messages(self, question: bytes) -> bytes:
        """The answer of the server to a question of a `LogComparison`."""
        core = await self._ready()
        command = core.inspect_messages(question)
        told = await self._told(core, command, None, "comparing the messages")
        return bytes.fromhex(told["messages"])

    async def _change_link(self, destination: str, action: LinkAction) -> dict[str, Any]:
        """Downgrades, upgrades, pauses or resumes a link of the server. Gives its links."""
        core = await self._ready()
        command = core.replicate(destination, action)
        told = await self._told(core, command, None, f"{action} of the destination {destination!r}")
        links: dict[str, Any] = told["replication"]
        return links

    async def _disconnect_client(self, connection: int, block: float) -> int:
        """Ends a connection of the server. Its client name cannot log on for `block` seconds. Returns how many were ended."""
        core = await self._ready()
        command = core.disconnect_client(connection, round(block * 1000))
        told = await self._told(core, command, None, "disconnect")
        count: int = told["disconnected"]
        return count

    async def _reload_server(self) -> list[str]:
        """Makes the server read its configuration again. Gives the keys that have changed."""
        core = await self._ready()
        told = await self._told(core, core.reload(), None, "reload")
        keys: list[str] = told["reloaded"]
        return keys

    async def _explain_access(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """Asks which entry of the server decides about a request."""
        core = await self._ready()
        command = core.inspect_access(json.dumps(question))
        told = await self._told(core, command, None, "explaining a decision")
        explained: dict[str, Any] = told["access"]
        return explained

    async def _ask_statistics(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """Asks the server for a node of its figures, or for samples (docs/protocol.md, `inspect`)."""
        core = await self._ready()
        command = core.inspect_statistics(json.dumps(question))
        told = await self._told(core, command, None, "asking for the statistics")
        answer: dict[str, Any] = told["statistics"]
        return answer

    async def _inspect(
        self,
        subject: Literal["server", "clients", "subscriptions", "topics", "replication"],
        *,
        after_connection: int = 0,
        after_subscription: int = 0,
        after_topic: str = "",
        timeout: Duration | None = None,
    ) -> dict[str, Any]:
        """One answer of the server about itself: JSON as in docs/protocol.md, `stats`."""
        check_timeout(timeout)
        core = await self._ready()
        command = core.inspect(subject, after_connection, after_subscription, after_topic)
        told: dict[str, Any] = await self._told(core, command, timeout, f"asking for the {subject}")
        return told

    async def _process(
        self,
        queue: str,
        handler: Handler,
        concurrency: int,
        max_backlog: int | None,
        extend: bool,
        retry_delay: Duration | Sequence[Duration] | None,
        filter: FilterArgument | None,
    ) -> WorkReport:
        check_type(queue, str, "queue")
        check_function(handler, "handler")
        check_type(concurrency, int, "concurrency")
        self._driver.check_handler(handler)
        delays = delays_of(retry_delay)
        backlog = backlog_of(concurrency, max_backlog)
        spec = Spec(queue, filter=filter, max_backlog=backlog_to_core(backlog))
        # The leases end with their time, unless the handler extends them.
        renewal: Renewal = "while_handled" if extend else "never"
        subscription = await self._enter(spec, auto_ack=False, renewal=renewal)
        if refusal := refusal_of(queue, subscription._core):
            await self._unsubscribe([subscription.sub_id])
            raise refusal
        worker = Worker(self, subscription, self._observed(handler), concurrency, delays)
        with self._lock:
            self._workers.add(worker)
        try:
            with Handling(self):
                return await worker.run()
        finally:
            with self._lock:
                self._workers.discard(worker)
            if self._closing is not None and not is_handling(self):
                # A handler of the worker closes the client.
                await self._closing.join(None)

    def _stop_workers(self) -> list[Worker]:
        """They finish what is in hand."""
        with self._lock:
            workers = list(self._workers)
        for worker in workers:
            worker.stop()
        return workers

    # The end

    async def _drain(self, timeout: Duration) -> DrainReport:
        seconds = timeout_to_core(timeout) or 0.0
        if is_handling(self):
            core = self._bind()
            self._close_later(self._drain_now(seconds))
            unprocessed = self._unprocessed(core, list(self._subscriptions.values()))
            return DrainReport(core.unpersisted_count, unprocessed)
        return await self._drain_now(seconds)

    async def _drain_now(self, timeout: float) -> DrainReport:
        deadline = monotonic() + timeout
        for worker in self._stop_workers():
            await worker.done.wait(left_until(deadline))
        with self._lock:
            subscriptions = list(self._subscriptions.values())
        core = self._started
        if core is None:
            return await self._close_now(0.0)
        # Handlers keep their queue messages until they return.
        leased = [s for s in subscriptions if s._is_leased_to_handler]
        if core.state == "connected":
            commands = [core.replace(s._core.number, s._spec_without_more) for s in leased]
            await self._unsubscribe([s.sub_id for s in subscriptions if s not in leased], deadline)
            await self._answer_all(core, commands, deadline)
        core.end_handled()
        self._driver.wake()
        if self._handling is not None:
            await self._handling.join(left_until(deadline))
        if core.state == "connected":
            await self._unsubscribe([s.sub_id for s in leased], deadline)
        report = await self._close_now(left_until(deadline))
        return replace(report, unprocessed=self._unprocessed(core, subscriptions))

    def _unprocessed(self, core: _quire.Client, subscriptions: Iterable[S]) -> int:
        """Messages of these subscriptions, and of those with handlers, that were received and not processed."""
        return core.handled_count + sum(s._core.outstanding_count for s in subscriptions)

    async def _close(self, timeout: float) -> None:
        if is_handling(self):
            self._is_leaving = True
            self._close_later(self._close_now(timeout))
            return
        if self._closing is not None and not self._is_of_parent:
            await self._closing.join(timeout if self.state == "connected" else 0.0)
        await self._close_now(timeout)

    def _close_later(self, work: Coroutine[Any, Any, DrainReport]) -> None:
        """Closes the client in the background, because that waits for the handler that is the caller."""
        self._stop_workers()

        async def close() -> None:
            await work

        with self._lock:
            if self._closing is not None:
                work.close()
                return
            self._closing = self._driver.run(f"quire-closing-{self.name}", close())

    async def _close_now(self, timeout: float) -> DrainReport:
        """Waits for what is pending, ends the core, and logs what is not persisted."""
        self._is_closed = True
        core = self._started
        if self._is_of_parent:
            # The end of a `with` block in a forked child. The client of the parent continues.
            return DrainReport(0)
        if core is None or self._has_left:
            return DrainReport(unpersisted=0 if core is None else core.unpersisted_count)
        # Does not wait without a connection: reconnecting can take hours, or never succeed.
        deadline = monotonic() + (timeout if core.state == "connected" else 0.0)
        try:
            # The core cannot settle a message after its end, so the handlers that run return before
            # it.
            self._is_leaving = True
            handlers_deadline = monotonic() + left_until(deadline) * HANDLERS_SHARE
            for worker in self._stop_workers():
                await worker.done.wait(left_until(handlers_deadline))
            if self._in_hand is not None:
                await self._returned.wait(left_until(handlers_deadline))
            if core.state == "connected" and (core.unpersisted_count or core.unconfirmed_count):
                is_flushed = await self._flushed_while_connected(core, left_until(deadline))
                if not is_flushed and core.state != "connected":
                    deadline = monotonic()
        except QuireError as error:
            logger.warning(
                "%r: pending publishes were not persisted: %s", self, error, extra=self._log_fields
            )
        except BaseException:
            # Ctrl-C or a cancellation: the caller does not want to wait.
            await self._end(core, monotonic())
            raise
        report = await self._end(core, deadline)
        if report.unpersisted:
            unpersisted = counted(report.unpersisted, "publish", "publishes")
            logger.warning("%r closed with %s not persisted", self, unpersisted, extra=self._log_fields)
        return report

    async def _flushed_while_connected(self, core: _quire.Client, timeout: float) -> bool:
        """Whether everything was persisted in time; false at once when the connection is lost."""
        command = core.flush()
        try:
            return bool(await self._driver.wait(partial(core.wait_while_connected, command), timeout))
        finally:
            core.abandon(command)

    async def _end(self, core: _quire.Client, deadline: float) -> DrainReport:
        """Ends the core; gives what is left of the publishes."""
        left = await self._driver.call(partial(core.close, left_until(deadline)))
        failed = core.take_failed_publishes()
        for sequence, error in failed:
            logger.error("%r: %s", self, text_of_failure(sequence, error), extra=self._log_fields)
        self._driver.wake()
        if self._handling is not None:
            await self._handling.join(left_until(deadline))
            self._handling.abandon()
        if self._following is not None:
            await self._following.join(left_until(deadline))
        self._leave(core)
        failures = tuple(error for _, error in failed if isinstance(error, QuireError))
        return DrainReport(unpersisted=left, failures=failures)

    def _leave(self, core: _quire.Client) -> None:
        """Ends the core at once, and wakes whatever waits for it."""
        self._is_closed = self._has_left = True
        if self._unclosed is not None:
            self._unclosed.detach()
        core.close(0)
        self._close_stores()
        while self._on_end:
            _, on_end = self._on_end.popitem()
            on_end(None)
        self._driver.detach()

    # Background work

    def _start_handlers(self, core: _quire.Client) -> None:
        with self._lock:
            if self._handling is None:
                self._handling = self._driver.run(f"quire-handlers-{self.name}", self._keep_handling(core))

    async def _keep_handling(self, core: _quire.Client) -> None:
        """Runs the handlers until the client ends. A failure that stops them ends the client."""
        try:
            await self._run_handlers(core)
        except BaseException as error:
            if not self._is_closed:
                reason = f"the handlers of the client were ended by {error!r}"
                logger.error("%r: %s", self, reason, extra=self._log_fields)
                core.fail(reason)
            raise

    async def _run_handlers(self, core: _quire.Client) -> None:
        def take(timeout: float | None) -> list[Message] | None:
            # Of subscriptions that have ended, when all that came for them is handled.
            for number, failure in core.handled_ended():
                self._handlers.pop(number, None)
                if on_end := self._on_end.pop(number, None):
                    # A program that closes the client does not ask for an error.
                    on_end(None if self._is_closed else failure)
            return core.handled_batch(DEFAULT_BATCH_COUNT, timeout)

        while (batch := await self._driver.wait(take)) is not None:
            for message in batch:
                handler = self._handlers.get(message._number)
                if handler is None:
                    # Of a subscription that is being entered, which holds the lock until its
                    # handler is known.
                    with self._lock:
                        handler = self._handlers.get(message._number)
                if handler is not None:
                    await self._handle(handler, message)

    def _observed(self, handler: Handler) -> Handler:
        """The handler as it is called. A client that observes its messages adds what it needs."""
        return handler

    async def _handle(self, handler: Handler, message: Message) -> None:
        text = f"the handler of {message.sub_id!r} failed on a message"
        # Set before the look, so that a close either waits for the message or keeps it from being
        # begun.
        self._in_hand = message
        try:
            if (self._is_leaving and message.queue is not None) or not message._begin():
                return
            with Handling(self):
                await self._driver.handle(handler, message)
            text = f"a message of {message.sub_id!r} was handled, and could not be acknowledged or marked as processed"
            message.discard()
        except BaseException as error:
            if self._driver.is_told_to_end(error):
                raise
            # One bad message must not stop the others, `sys.exit()` in its handler included. It
            # stays unprocessed, so that a resumption sees it again.
            self._failures.log(text, message, error)
            if self._options.auto_ack and message.queue is not None:
                # It would keep its place in the backlog as long as its lease lasts. A closed client
                # has lost the lease.
                with suppress(DisconnectedError):
                    message.cancel(reason=reason_of(error))
        finally:
            message._end_handling()
            self._in_hand = None
            if self._is_leaving:
                self._returned.set()

    def _listen(self, core: _quire.Client, seen: int) -> Running:
        return self._driver.run(f"quire-states-{self.name}", self._run_listeners(core, seen))

    async def _run_listeners(self, core: _quire.Client, seen: int) -> None:
        def look(timeout: float | None) -> list[tuple[int, str]]:
            # After the program has left the client, listeners are not called.
            return core.states_after(seen, timeout) or ([(seen + 1, "closed")] if self._has_left else [])

        while True:
            for number, state in await self._driver.wait(look):
                seen = number
                for listener in tuple(self._listeners):
                    try:
                        await self._driver.handle(listener, state)
                    except BaseException as error:
                        if self._driver.is_told_to_end(error):
                            raise
                        logger.exception(
                            "a state listener of %r failed on %r", self, state, extra=self._log_fields
                        )
                if state == "closed":
                    return


def _nothing() -> None:
    """There is no store to close."""


def left_until(deadline: float) -> float:
    """Seconds until then; 0 when it has passed."""
    return max(0.0, deadline - monotonic())


def moment(seconds: float | None) -> datetime | None:
    """A time of the core."""
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


def _no_room(core: _quire.Client, limit: float | None) -> str:
    """Why a message was not taken in time."""
    waiting = counted(core.unpersisted_count, "publish is", "publishes are")
    text = f"the publish store had no room within {limit:g} s, because {waiting} not persisted"
    if core.state == "connected":
        return text
    because = "" if core.last_error is None else f": {core.last_error}"
    return f"{text} and there is no connection{because}"


def _raise_refused(core: _quire.Client) -> None:
    """Raises the error of the publishes that the server refused since the last call."""
    failure = failure_of_publishes(core.take_failed_publishes())
    if failure is not None:
        raise failure


def _not_flushed(core: _quire.Client, reason: str) -> TimeoutError:
    """Returns the error for a wait until publishes are persisted that took too long, with the publishes that wait and the reason.

    - `reason`: why a connected client waits, as `ClientOptions.unpersisted_reason`
    """
    count = core.unpersisted_count
    unpersisted = f"{counted(count, 'publish is', 'publishes are')} not persisted yet"
    waiting = unpersisted if count else "the flush is not answered yet"
    if core.state == "connected":
        return TimeoutError(waiting + reason)
    because = "" if core.last_error is None else f": {core.last_error}"
    return TimeoutError(f"{waiting}, and there is no connection{because}")


def _pausable(subscriptions: Iterable[S]) -> Iterator[S]:
    """The subscriptions. Raises `ConfigError` for what cannot be paused or resumed."""
    named: object = subscriptions
    if not isinstance(named, Iterable) or isinstance(named, str):
        reason = f"expected a list of subscriptions, got `{type(named).__name__}`"
        raise ConfigError(reason, key="subscriptions")
    for subscription in subscriptions:
        if not isinstance(subscription, SubscriptionBase):
            reason = f"expected subscriptions, got `{type(subscription).__name__}`"
            raise ConfigError(reason, key="subscriptions")
        if subscription._spec.bookmark is None or subscription._spec.live:
            reason = f"{subscription.sub_id!r} cannot be paused: it is live, or has no bookmark"
            raise ConfigError(reason, key="subscriptions")
        yield subscription
