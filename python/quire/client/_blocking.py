"""The blocking client. Every call that waits leaves the interpreter to other threads and obeys Ctrl-C."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
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
from quire.client._options import DEFAULT_CLOSE_TIMEOUT, ClientOptions
from quire.client._publish import Publish, batch_to_core, check_not_empty
from quire.client._receipts import BatchReceipt, Receipt
from quire.client._reports import DrainReport, ServerInfo, WorkReport
from quire.client._spec import BlockingSpec, Change, Spec
from quire.client._subscription import DEFAULT_BATCH_COUNT, CompletedBase, SubscriptionBase, check_count
from quire.client._threads import Threads, finish


class Completed(CompletedBase):
    __doc__ = CompletedBase.__doc__

    def wait(self, timeout: Duration | None = None) -> bool:
        """True when it has; false when `timeout` passed first or the client ended before."""
        return bool(self._core.wait_completed(timeout_to_core(timeout)))


class Subscription(SubscriptionBase):
    """A subscription: iterate over it, or take messages with `get` or `batches`.

    A message is processed when the next one is asked for or it was discarded. The iteration ends when the
    subscription or the client is closed, and raises what the server ended it with.
    """

    _client: Client

    def __init__(self, client: Client, core: _quire.Subscription, spec: Spec, sub_id: str) -> None:
        super().__init__(client, core, spec, sub_id)
        #: An event: the program was handed the whole replay, up to what the log held as it was made.
        self.completed = Completed(core)

    def __iter__(self) -> Iterator[Message]:
        self._check_not_handled()
        take = self._core.next
        while (message := take()) is not None:
            yield message

    def get(self, timeout: Duration | None = None) -> Message:
        """The next message.

        Raises `TimeoutError` when none comes in time, `DisconnectedError` when there will be no more.
        """
        self._check_not_handled()
        message = self._core.next(timeout_to_core(timeout))
        if message is None:
            raise self._ended()
        return message

    def batches(
        self, max_messages: int = DEFAULT_BATCH_COUNT, timeout: Duration | None = None
    ) -> Iterator[list[Message]]:
        """Lists of what is there, at least one message each and at most `max_messages`.

        With a `timeout`, an empty list when nothing came for so long, so that the loop gets its turn.
        """
        self._check_not_handled()
        check_count(max_messages)
        return _batches(self._core, max_messages, timeout_to_core(timeout))

    def pause(self, timeout: Duration | None = None) -> None:
        """Stops a bookmark subscription until `resume`."""
        self._client.pause([self], timeout=timeout)

    def resume(self, timeout: Duration | None = None) -> None:
        """Continues after `pause`."""
        self._client.resume([self], timeout=timeout)

    @takes(Change)
    def replace(self, change: Change) -> None:
        """Changes the subscription atomically; what is left out stays as it is, except that the filter is
        taken off. `None` takes rate, conflation and select list off, too.

        It keeps its place in the log unless `bookmark` is given. When the server refuses, nothing has
        changed.
        """
        finish(self._replace(change))

    def unsubscribe(self, timeout: Duration | None = None) -> None:
        """Ends the subscription. Harmless when it has ended. Returns at once without a connection."""
        self._client.unsubscribe(self.sub_id, timeout=timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.unsubscribe()


class Client(ClientBase[Subscription]):
    """A connection to a server that comes back by itself. Thread-safe.

    The constructor returns when the client is logged on. A lost connection is made again: unpersisted
    publishes are sent again and subscriptions go on behind the last message that they received.

    - `url`: `quire://host:port` (a server), `file:DIRECTORY` or `memory:` (an engine in this process), or a list
      of them in the order in which they are tried
    - `config`: settings of an engine in this process; by default every topic is recorded as JSON
    - `name`: the publisher's identity: unique, and the same after a restart. Left out, one is generated,
      and then nothing can be deduplicated across restarts
    - `publish_store`: where publishes are kept until they are persisted: `None` (in memory), the path of a file that
      outlives the process (and then `name` must be given), or a `PublishStore`
    - `bookmark_store`: where it is kept how far subscriptions were processed, for `MOST_RECENT`: `None` (in memory), the
      path of a file that outlives the process, or a `BookmarkStore`
    - `user`: the identity for the rule that a name is taken over by the same user only; `password`: handed to
      the server, which has no list of users yet and checks neither
    - `heartbeat`: how often each side says something; a peer silent for two of them is given up. `None` =
      never
    - `connect`: `"wait"` returns when the client is logged on; `"background"` returns at once and connects when a server
      is there. That requires a publish store in a file
    - `connect_timeout`: how long to wait for the first logon. A client that no server lets in raises at once, unless
      `wait=True`: then it keeps trying for this long
    - `command_timeout`: how long a call waits for the server when its `timeout=` is left out; `None` = without a limit.
      After it the call raises `TimeoutError`. `flush`, `get` and iterations wait without a limit
    - `receive_size_max`: bytes of received messages that may wait for the program; above it a subscription that
      takes more than its share is kept back (docs/clients.md, "Bounds")
    - `encoder`: makes JSON, or for the message itself bytes or text, of data that JSON does not have. Without it,
      dataclasses, pydantic models, times, `Decimal`, `UUID`, `Enum` and sets are published as pydantic writes them
    - `auto_ack`: a queue message is acknowledged when its handler returned, or the next one is asked for
    - `ack_batch_size`, `ack_timeout`: acknowledgements go out together: when there are so many, or after so
      long
    - `reconnect`: how it comes back after a lost connection
    """

    _subscription_class = Subscription

    @takes(ClientOptions)
    def __init__(self, options: ClientOptions) -> None:
        super().__init__(options, Threads())
        self._core: _quire.Client = finish(self._ready())

    def publish(
        self,
        topic: str,
        data: Any,
        *,
        sequence: SequenceArgument = AUTO,
        expiration: Duration | None = None,
        correlation_id: str | None = None,
        headers: Mapping[str, str | bytes] | None = None,
        on_persisted: Callable[[Receipt], object] | None = None,
        timeout: Duration | None = None,
    ) -> int | None:
        """Sends a message and returns its sequence number. Does not wait for persistence; waits when the
        publish store is full.

        - `data`: bytes, text, or anything that is JSON-serialisable
        - `sequence`: `AUTO` counts by itself; a number is sent as given (not above the highest, it is a
          duplicate that the server drops);
          `None` sends without one, and then the message is not sent again after a lost connection
        - `expiration`: lifetime in a queue, in whole seconds rounded up; 0 = never expires
        - `headers`: names with text or bytes, at most 64; a name has 1 to 255 bytes, and all names and values
          together at most 32,768. Filters read them as ``HEADER('name')``
        - `on_persisted`: called with the `Receipt` of the message when it is done: persisted, refused, or lost with the
          client. It runs on a thread of the client, one call at a time. Its exceptions are logged
        - `timeout`: how long to wait for room in the publish store, instead of `command_timeout`. After it
          `TimeoutError` is raised, and the message was not taken

        Raises `LimitExceededError` when `AUTO` has used the last number, 2^64 - 1, under this name.
        """
        if on_persisted is not None:
            message = Publish(
                data,
                topic=topic,
                sequence=sequence,
                expiration=expiration,
                correlation_id=correlation_id,
                headers=headers,
            )
            return finish(self._publish_one(Receipt, message, on_persisted, timeout)).sequence
        if timeout is not None:
            check_timeout(timeout)
        if type(data) is bytes:
            body = data
        else:
            check_type(topic, str, "topic")  # the encoder gets it
            body = to_bytes(data, self._options.encoder, topic)
        number = 0 if sequence is AUTO else sequence_to_core(sequence)
        lifetime = None if expiration is None else expiration_to_core(expiration)
        correlation = None if correlation_id is None else correlation_to_core(correlation_id)
        try:
            return self._core.publish(topic, body, number, lifetime, correlation, headers)
        except (TypeError, UnicodeEncodeError):
            # The core takes no other topic. A check before the call would cost every message a tenth more.
            check_type(topic, str, "topic")
            raise
        except BlockingIOError:
            again = partial(self._core.publish, topic, body, number, lifetime, correlation, headers)
            return finish(self._publish_when_room(self._core, again, timeout, f"publishing to {topic!r}"))

    def publish_receipt(
        self,
        topic: str,
        data: Any,
        *,
        sequence: int | Auto = AUTO,
        expiration: Duration | None = None,
        correlation_id: str | None = None,
        headers: Mapping[str, str | bytes] | None = None,
        on_persisted: Callable[[Receipt], object] | None = None,
        timeout: Duration | None = None,
    ) -> Receipt:
        """Sends a message as `publish` does, and returns its receipt.

        `receipt.wait()` returns when the message is persisted, and raises the error with which the server refused it. `flush` does not
        raise that error, unless the program drops the receipt before.
        """
        message = Publish(
            data,
            topic=topic,
            sequence=sequence,
            expiration=expiration,
            correlation_id=correlation_id,
            headers=headers,
        )
        return finish(self._publish_one(Receipt, message, on_persisted, timeout))

    def publish_many(
        self,
        topic: str | None,
        items: Iterable[Any],
        *,
        expiration: Duration | None = None,
        correlation_id: str | None = None,
        headers: Mapping[str, str | bytes] | None = None,
        on_persisted: Callable[[BatchReceipt], object] | None = None,
        timeout: Duration | None = None,
    ) -> list[int]:
        """Sends several messages with one call, and returns their sequence numbers. They are taken all or not at all.

        - `topic`: of the items that do not name their own; `None` when all of them do
        - `items`: the data of each message, or a `quire.Publish` with options
        - `on_persisted`: called once with the `BatchReceipt`
        - `timeout`: how long to wait until the publish store has room for all of them

        An error has a note that says which item it is about.
        """
        kind = None if on_persisted is None else BatchReceipt
        messages = batch_to_core(topic, items, expiration, correlation_id, headers, self._options.encoder)
        sequences, _ = finish(self._publish_all(kind, messages, on_persisted, timeout))
        return sequences

    def publish_many_receipt(
        self,
        topic: str | None,
        items: Iterable[Any],
        *,
        expiration: Duration | None = None,
        correlation_id: str | None = None,
        headers: Mapping[str, str | bytes] | None = None,
        on_persisted: Callable[[BatchReceipt], object] | None = None,
        timeout: Duration | None = None,
    ) -> BatchReceipt:
        """Sends several messages as `publish_many` does, and returns the receipt of all of them. `items` must not be empty."""
        messages = batch_to_core(topic, items, expiration, correlation_id, headers, self._options.encoder)
        check_not_empty(messages)
        _, receipt = finish(self._publish_all(BatchReceipt, messages, on_persisted, timeout))
        assert receipt is not None
        return receipt

    def flush(self, timeout: Duration | None = None) -> None:
        """Waits until everything published so far is persisted; goes on over reconnects.

        Raises `TimeoutError`, and the error of a publish that the server refused since the last flush.

        On a topic that the server is configured not to record (`recorded = false`), publishes are accepted, not persisted.
        """
        finish(self._flush(timeout))

    @takes(BlockingSpec)
    def subscribe(self, spec: BlockingSpec) -> Subscription:
        """Subscribes and returns when the server has accepted it; raises what the server refuses.

        - `topic`: exact, or a regular expression when it holds any of ``^ $ * + ? [ ] ( ) { } | \\``,
          searched for unanchored
        - `bookmark`: replay from there: `EPOCH`, `NOW`, `MOST_RECENT`, a bookmark, several of them, or a time;
          a range like "[A:B]" of them ends, and with it the iteration
        - `bookmark_not_found`: where the replay begins when none of the bookmarks is in the log: `"epoch"` (with the oldest
          message) or `"now"`, both with a warning in the log of this client; `"fail"`: it is a `BadBookmarkError`
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
          of arrival, on one thread. A coroutine function is a `TypeError`
        - `sub_id`: name under which `MOST_RECENT` finds the place again
        - `timeout`: how long to wait for the server, instead of `command_timeout`. After it nothing is subscribed
        """
        return self._enter_now(spec, auto_ack=self._options.auto_ack)

    def _enter_now(self, spec: Spec, *, auto_ack: bool) -> Subscription:
        return finish(self._enter(spec, auto_ack=auto_ack))

    def unsubscribe(self, sub_id: str | None = None, *, timeout: Duration | None = None) -> None:
        """Ends one subscription, or all of them. Returns at once without a connection: the server ended them with it."""
        finish(self._unsubscribe(None if sub_id is None else [sub_id], timeout=timeout))

    def pause(
        self, subscriptions: Iterable[Subscription] | None = None, *, timeout: Duration | None = None
    ) -> None:
        """Stops bookmark subscriptions, all with one command; left out: all of this client."""
        finish(self._set_paused(subscriptions, True, timeout))

    def resume(
        self, subscriptions: Iterable[Subscription] | None = None, *, timeout: Duration | None = None
    ) -> None:
        """Continues bookmark subscriptions, all with one command (they may then share one replay)."""
        finish(self._set_paused(subscriptions, False, timeout))

    def ack(
        self,
        topic: str,
        bookmarks: str | Message | Iterable[str | Message] | None = None,
        *,
        filter: FilterArgument | None = None,
        cancel: bool = False,
        expire: bool = False,
        timeout: Duration | None = None,
    ) -> None:
        """Acknowledges messages of a queue by bookmark, or all active ones that a filter matches; waits for
        the server.

        - `bookmarks`: one, several joined by commas, or any number of them; those that are not in the queue
          (any more) are passed over
        - `filter`: an empty one stands for every message
        - `cancel`: they go back to the queue; `expire`: they are thrown out of it
        """
        finish(self._settle(topic, bookmarks, filter, cancel, expire, timeout))

    def sow(
        self,
        topic: str,
        *,
        filter: FilterArgument | None = None,
        order_by: str | None = None,
        top_n: int | None = None,
        batch_size: int | None = None,
        timeout: Duration | None = None,
    ) -> Iterator[Message]:
        """The messages of a queue that could be delivered now, in delivery order; nothing changes by it.

        - `order_by`: a field to sort by instead, with `DESC` behind it for the greatest first
        - `top_n`: the most messages wanted
        - `batch_size`: how many of them to take from the connection at a time
        """
        count = DEFAULT_BATCH_COUNT if batch_size is None else batch_size
        check_count(count)
        answers = finish(self._query(topic, filter, order_by, top_n, timeout))
        return (message for batch in _batches(answers, count, None) for message in batch)

    def queue_stats(
        self, queue: str | None = None, *, timeout: Duration | None = None
    ) -> dict[str, dict[str, Any]]:
        """The figures of one queue, or of all, by name (docs/queues.md section 10)."""
        return finish(self._queue_stats(queue, timeout))

    def server_info(self, *, timeout: Duration | None = None) -> ServerInfo:
        """Returns what the server is: name, version, uptime, journal, and how much there is of everything.

        Raises `TimeoutError` when no answer comes within `timeout`; left out, `command_timeout`.
        """
        return finish(self._server_info(timeout))

    def _topics(self) -> list[dict[str, Any]]:
        """The topics of the server, by name."""
        return finish(self._all_topics())

    def _unrecorded_of(self, topics: Collection[str]) -> list[str]:
        """Those of the topics that it published to and that the server does not record."""
        return finish(self._unrecorded(topics))

    def _clients(self) -> list[dict[str, Any]]:
        """The connections of the server, the oldest first."""
        return finish(self._all_clients())

    def process(
        self,
        queue: str,
        handler: Callable[[Message], None],
        *,
        concurrency: int = 1,
        max_backlog: int | None = None,
        extend: bool = True,
        retry_delay: Duration | Sequence[Duration] | None = None,
    ) -> WorkReport:
        """Works on a queue until the client is drained or closed, or SIGTERM comes (in the main thread, when
        nobody else handles it).

        A message is acknowledged when the handler returned and cancelled when it raised, unless the handler
        has settled it. What is in hand is then finished, what was only fetched goes back, and everything said
        is flushed.

        - `concurrency`: handlers at a time, each in a thread of its own; a single one runs in the calling
          thread
        - `max_backlog`: messages that the server may hand out ahead; two for each handler when left out
        - `extend`: renew the lease of what is being handled, every third of its period
        - `retry_delay`: how long a message on which the handler raised waits before it comes again: one
          pause, or one for each cancel, of which the last repeats. Left out: as the queue is configured

        Raises `UnknownQueueError` when no queue has this name, `TypeError` for a coroutine function.
        """
        return finish(self._process(queue, handler, concurrency, max_backlog, extend, retry_delay))

    def drain(self, timeout: Duration = DEFAULT_CLOSE_TIMEOUT) -> DrainReport:
        """Stops taking messages, waits for the handlers, the workers and the publishes, and closes; tells
        what was left.

        Takes no longer than `timeout`. Messages that were received before are still handled, and what their
        handlers publish is flushed. Not to be called by a handler.
        """
        return finish(self._drain(timeout))

    def close(self, timeout: Duration = DEFAULT_CLOSE_TIMEOUT) -> None:
        """Waits up to `timeout` for pending publishes, then leaves. Leaves at once without a connection, and when it is lost
        meanwhile. Logs how many publishes are not persisted.

        Iterations end. Harmless when it is closed.
        """
        finish(self._close(timeout_to_core(timeout) or 0.0))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _batches(core: _quire.Subscription, max_messages: int, timeout: float | None) -> Iterator[list[Message]]:
    take = core.batch
    while (batch := take(max_messages, timeout)) is not None:
        yield batch
