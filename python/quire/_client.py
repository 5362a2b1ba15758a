"""The blocking client. Every call that waits leaves the interpreter to other threads and obeys Ctrl-C."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from quire import _quire
from quire._bookmarks import Bookmark
from quire._client_base import ENDED_BEFORE, ClientBase, logger
from quire._errors import QuireError
from quire._message import Message, to_bytes
from quire._options import (
    AUTO,
    DEFAULT_ACK_TIMEOUT,
    DEFAULT_CLOSE_TIMEOUT,
    DEFAULT_CONNECT_TIMEOUT,
    DEFAULT_RECEIVE_SIZE_MAX,
    BookmarkStoreArgument,
    ClientOptions,
    DrainReport,
    Health,
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
from quire._process import start_thread
from quire._queue_calls import QueueCalls
from quire._subscription import DEFAULT_BATCH_COUNT, Subscription, timeout_to_core
from quire._units import Duration, Size

if TYPE_CHECKING:
    from quire._config import Config

Handler = Callable[[Message], object]
#: Called with `"connected"`, `"reconnecting"` or `"closed"`.
StateListener = Callable[[str], object]


class Client(QueueCalls, ClientBase[Subscription, Handler]):
    """A connection to a server that comes back by itself. Thread-safe.

    The constructor returns when the client is logged on. A lost connection is made again: unpersisted
    publishes are sent again and
    subscriptions go on behind the last message that they received.

    - `url`: `quire://host:port` (a server), `file:DIRECTORY` or `memory:` (an engine in this process), or a list
      of them in the order in which they are tried
    - `config`: settings of an engine in this process; by default every topic is recorded as JSON
    - `name`: the publisher's identity: unique, and the same after a restart. Left out, one is generated,
      and then nothing can be
      deduplicated across restarts
    - `publish_store`: where publishes are kept until they are persisted: `None` (in memory), the path of a file that
      outlives the process (and then `name` must be given), or a `PublishStore`
    - `bookmark_store`: where it is kept how far subscriptions were processed, for `MOST_RECENT`: `None` (in memory), the
      path of a file that outlives the process, or a `BookmarkStore`
    - `user`: the identity for the rule that a name is taken over by the same user only; `password`: handed to
      the server, which has no list of users yet and checks neither
    - `heartbeat`: how often each side says something; a peer silent for two of them is given up. `None` =
      never
    - `connect_timeout`: how long to wait for the first logon
    - `receive_size_max`: bytes of received messages that may wait for the program; above it a subscription that
      takes more than its share is kept back (docs/clients.md, "Bounds")
    - `auto_ack`: a queue message is acknowledged when its handler returned, or the next one is asked for
    - `ack_batch_size`, `ack_timeout`: acknowledgements go out together: when there are so many, or after so
      long
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
        QueueCalls.__init__(self)
        self._lock = threading.Lock()
        self._handler_thread: threading.Thread | None = None
        self._listeners: list[StateListener] = []
        self._listener_thread: threading.Thread | None = None
        self._core: _quire.Client = self._start_core()
        try:
            connected = self._core.wait_connected(options.connect_timeout)
            if not connected:
                raise options.not_connected(self._core.last_error)
        except BaseException:
            self._core.close(0)
            self._close_stores()
            raise

    def publish(
        self,
        topic: str,
        data: Any,
        *,
        sequence: SequenceArgument = AUTO,
        expiration: Duration | None = None,
        correlation_id: str | None = None,
    ) -> int | None:
        """Sends a message and returns its sequence number. Does not wait for persistence; waits when the
        publish store is full.

        - `data`: bytes, text, or anything that is JSON-serialisable
        - `sequence`: `AUTO` counts by itself; a number is sent as given (not above the highest, it is a
          duplicate that the server drops);
          `None` sends without one, and then the message is not sent again after a lost connection
        - `expiration`: lifetime in a queue, in whole seconds rounded up; 0 = never expires

        Raises `LimitExceededError` when `AUTO` has used the last number, 2^64 - 1, under this name.
        """
        return self._core.publish(
            topic,
            data if type(data) is bytes else to_bytes(data),
            0 if sequence is AUTO else sequence_to_core(sequence),
            None if expiration is None else expiration_to_core(expiration),
            correlation_id,
        )

    def flush(self, timeout: Duration | None = None) -> None:
        """Waits until everything published so far is persisted; goes on over reconnects.

        Raises `TimeoutError`, and the error of a publish that the server refused since the last flush.
        """
        if not self._flush(timeout_to_core(timeout)):
            raise self._not_flushed(self._core)
        failure = failure_of_publishes(self._core.take_failed_publishes())
        if failure is not None:
            raise failure

    @property
    def persisted(self) -> int:
        """The highest sequence number acknowledged as persisted."""
        return self._core.persisted

    def subscribe(
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
        on_message: Handler | None = None,
        sub_id: str | None = None,
    ) -> Subscription:
        """Subscribes and returns when the server has accepted it; raises what the server refuses.

        - `topic`: exact, or a regular expression when it holds any of ``^ $ * + ? [ ] ( ) { } | \\``,
          searched for unanchored
        - `bookmark`: replay from there: `EPOCH`, `NOW`, `MOST_RECENT`, a bookmark, several of them, or a time;
          a range like "[A:B]" of them ends, and with it the iteration
        - `max_backlog`: from queues, the most messages that are not settled; 1 when left out, 0 for barriers
          only
        - `live`: after the replay, messages come before they are persisted
        - `paused`: created without delivering until `resume`
        - `rate`: the fastest pace of a replay: messages per second ("1000"), bytes per second ("500KB"), or a
          multiple of the original pace ("2X")
        - `rate_max_gap`: with a multiple, the longest wait for the next message
        - `conflation`, `conflation_key`: of the messages that agree in the key (a field like "/symbol", or several),
          at most one in each such interval is delivered, the newest, with the bookmark of the first
        - `select`: the part of each message to deliver, as entries like "-/", "+/symbol", "+/price"
        - `on_message`: called with each message. The handlers of one client run one at a time, in the order
          of arrival, on one thread
        - `sub_id`: name under which `MOST_RECENT` finds the place again
        """
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
        return self._enter(spec, on_message, sub_id, auto_ack=self._options.auto_ack)

    def _enter(
        self, spec: Spec, on_message: Handler | None = None, sub_id: str | None = None, *, auto_ack: bool
    ) -> Subscription:
        with self._lock:
            is_kept = sub_id is not None
            sub_id = self._new_sub_id(sub_id, spec.bookmark)
            core = self._core.subscribe(spec, sub_id, is_kept, on_message is not None, auto_ack)
            subscription = Subscription(self, core, spec, sub_id, on_message is not None)
            self._subscriptions[sub_id] = subscription
            if on_message is not None:
                self._handlers[core.number] = on_message
        try:
            self._core.wait(core.command)
        except BaseException as error:
            with self._lock:
                self._subscriptions.pop(sub_id, None)
                self._handlers.pop(core.number, None)
            self._core.forget(core.number)
            self._core.abandon(core.command)
            if not isinstance(error, QuireError):
                self._core.unsubscribe(core.number)
            raise
        if on_message is not None:
            try:
                self._start_handlers()
            except QuireError:
                subscription.unsubscribe()
                raise
        return subscription

    def unsubscribe(self, sub_id: str | None = None) -> None:
        """Ends one subscription, or all of them."""
        with self._lock:
            names = list(self._subscriptions) if sub_id is None else [sub_id]
        self._unsubscribe(names, None)

    def _unsubscribe(self, names: list[str], deadline: float | None) -> None:
        with self._lock:
            ended = [s for s in map(self._forget, names) if s is not None]
        if self._core.state == "closed":
            return
        commands = []
        for subscription in ended:
            try:
                commands.append(self._core.unsubscribe(subscription._core.number))
            except QuireError as error:
                if error.code not in ENDED_BEFORE:
                    raise
        self._wait_all(commands, deadline)

    def _wait_all(self, commands: list[int], deadline: float | None) -> None:
        """For commands about subscriptions, which may have ended before."""
        for command in commands:
            left = None if deadline is None else max(0.0, deadline - monotonic())
            try:
                if not self._core.wait(command, left):
                    self._core.abandon(command)
            except QuireError as error:
                if error.code not in ENDED_BEFORE:
                    raise

    def pause(self, subscriptions: Iterable[Subscription] | None = None) -> None:
        """Stops bookmark subscriptions, all with one command; left out: all of this client."""
        self._set_paused(subscriptions, True)

    def resume(self, subscriptions: Iterable[Subscription] | None = None) -> None:
        """Continues bookmark subscriptions, all with one command (they may then share one replay)."""
        self._set_paused(subscriptions, False)

    @property
    def state(self) -> str:
        """`"connecting"`, `"connected"`, `"reconnecting"` or `"closed"`."""
        return self._core.state

    def add_state_listener(self, listener: StateListener) -> None:
        """Calls `listener` with each state that the client comes into from now on, in their order.

        The listeners run one at a time on a thread of their own, so that they may use the client. What one
        raises is logged.
        """
        with self._lock:
            if self._listener_thread is None:
                seen = self._core.states_after(0, 0)[-1][0]
                thread = threading.Thread(
                    target=self._run_listeners, args=(seen,), name=f"quire-states-{self.name}", daemon=True
                )
                start_thread(thread)
                self._listener_thread = thread
            self._listeners.append(listener)

    def remove_state_listener(self, listener: StateListener) -> None:
        """Calls it no more. Harmless when it is not called."""
        with self._lock:
            if listener in self._listeners:
                self._listeners.remove(listener)

    def health(self) -> Health:
        """How the client and its subscriptions stand."""
        return self._health_of(self._core)

    def drain(self, timeout: Duration = DEFAULT_CLOSE_TIMEOUT) -> DrainReport:
        """Stops taking messages, waits for the handlers, the workers and the publishes, and closes; tells
        what was left.

        Takes no longer than `timeout`. Messages that were received before are still handled, and what their
        handlers publish is flushed. Not to be called by a handler.
        """
        deadline = monotonic() + (timeout_to_core(timeout) or 0)
        self._stop_workers(max(0.0, deadline - monotonic()))
        with self._lock:
            subscriptions = list(self._subscriptions.values())
        # What handlers have of queues stays theirs until they are done.
        leased = [s for s in subscriptions if s._is_leased_to_handler]
        if self._core.state == "connected":
            commands = [self._core.replace(s._core.number, s._spec_without_more) for s in leased]
            self._unsubscribe([s.sub_id for s in subscriptions if s not in leased], deadline)
            self._wait_all(commands, deadline)
        self._core.end_handled()
        self._join_handlers(deadline)
        if self._core.state == "connected":
            self._unsubscribe([s.sub_id for s in leased], deadline)
        report = self._close(max(0.0, deadline - monotonic()))
        return replace(report, unprocessed=self._unprocessed(self._core, subscriptions))

    def close(self, timeout: Duration = DEFAULT_CLOSE_TIMEOUT) -> None:
        """Waits up to `timeout` for pending publishes, then leaves.

        Iterations end. Harmless when it is closed.
        """
        report = self._close(timeout_to_core(timeout) or 0.0)
        if report.unpersisted:
            logger.warning("%r closed with %d publishes not persisted", self, report.unpersisted)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _close(self, timeout: float) -> DrainReport:
        deadline = monotonic() + timeout
        try:
            waiting = self._core.unpersisted_count or self._core.unconfirmed_count
            if self._core.state != "closed" and waiting:
                self._flush(timeout)
        except QuireError as error:
            logger.warning("%r: pending publishes were not persisted: %s", self, error)
        finally:
            left = self._core.close(max(0.0, deadline - monotonic()))
            for sequence, refused in self._core.take_failed_publishes():
                logger.error("%r: publish %d was refused: %s", self, sequence, refused)
        self._join_handlers(deadline)
        self._close_stores()
        return DrainReport(unpersisted=left)

    def _join_handlers(self, deadline: float) -> None:
        thread = self._handler_thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(max(0.0, deadline - monotonic()))

    def _flush(self, timeout: float | None) -> bool:
        command = self._core.flush()
        try:
            return self._core.wait(command, timeout)
        finally:
            # After a timeout or Ctrl-C nobody asks for the answer again.
            self._core.abandon(command)

    def _set_paused(self, subscriptions: Iterable[Subscription] | None, paused: bool) -> None:
        with self._lock:
            chosen = self._chosen(subscriptions)
        if chosen:
            self._core.wait(self._core.set_paused([s._core.number for s in chosen], paused))
        for subscription in chosen:
            subscription._paused(paused)

    def _replace(self, core: _quire.Subscription, spec: Spec) -> None:
        self._core.wait(self._core.replace(core.number, spec))

    def _run_listeners(self, seen: int) -> None:
        while True:
            for number, state in self._core.states_after(seen):
                seen = number
                for listener in tuple(self._listeners):
                    try:
                        listener(state)
                    except Exception:
                        logger.exception("a state listener of %r failed on %r", self, state)
                if state == "closed":
                    return

    def _start_handlers(self) -> None:
        with self._lock:
            if self._handler_thread is None:
                thread = threading.Thread(
                    target=self._run_handlers, name=f"quire-handlers-{self.name}", daemon=True
                )
                start_thread(thread)
                self._handler_thread = thread

    def _run_handlers(self) -> None:
        while (batch := self._core.handled_batch(DEFAULT_BATCH_COUNT)) is not None:
            for message in batch:
                handler = self._handlers.get(message._number)
                if handler is None:
                    continue
                try:
                    handler(message)
                    message.discard()
                except Exception:
                    # One bad message must not stop the others; it stays unprocessed, so that a resumption
                    # sees it again.
                    logger.exception("the handler of %r failed on %r", message.sub_id, message)
            self._forget_handlers(self._core)
