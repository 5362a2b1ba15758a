"""The blocking client. Every call that waits releases the interpreter lock, and Ctrl-C interrupts it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Self, Unpack

from quire import _quire
from quire._arguments import (
    AUTO,
    Auto,
    LinkAction,
    SequenceArgument,
    check_type,
    sequence_to_core,
    suggests,
    takes,
    timeout_to_core,
)
from quire._filter import FilterArgument
from quire._message import Message, to_bytes
from quire._units import Duration
from quire.client._base import ClientBase
from quire.client._define import DropReport, QueueChanges, QueueSettings, ViewSettings
from quire.client._options import DEFAULT_CLOSE_TIMEOUT, ClientOptions
from quire.client._publish import batch_to_core, check_not_empty, message_to_core
from quire.client._query import Query
from quire.client._receipts import BatchReceipt, Receipt
from quire.client._records import (
    BlockingDeltaRecordsSpec,
    BlockingDeltaSpec,
    BlockingRecordsSpec,
    QuerySpec,
    check_delta_records,
    check_deltas,
    delete,
)
from quire.client._reports import DrainReport, QueueStats, ServerInfo, WorkReport
from quire.client._spec import BlockingSpec, Change, Spec
from quire.client._subscription import (
    DEFAULT_BATCH_COUNT,
    CompletedBase,
    SnapshotBase,
    SubscriptionBase,
    check_count,
)
from quire.client._table import BlockingTableSpec, Table
from quire.client._threads import Threads, finish


class Completed(CompletedBase):
    __doc__ = CompletedBase.__doc__

    def wait(self, timeout: Duration | None = None) -> bool:
        """Waits for the event. Returns `False` after `timeout`, or when the client ended before the event."""
        return bool(self._core.wait_completed(timeout_to_core(timeout)))


class Snapshot(SnapshotBase):
    __doc__ = SnapshotBase.__doc__

    def wait(self, timeout: Duration | None = None) -> bool:
        """Waits for the event. Returns `False` after `timeout`, or when the client ended before the event.

        Of a `Table` that ended before it had its first records, it raises the error.
        """
        is_set = bool(self._core.wait_snapshot(timeout_to_core(timeout)))
        self._check_possible()
        return is_set


# An iterator and not a generator: the exception of a signal handler would end a generator for good.
class _Batches(Iterator[list[Message]]):
    """The messages of a subscription in lists."""

    __slots__ = ("_max_messages", "_seconds", "_subscription")

    def __init__(self, subscription: Subscription, max_messages: int, seconds: float | None) -> None:
        self._subscription = subscription
        self._max_messages = max_messages
        self._seconds = seconds

    def __next__(self) -> list[Message]:
        batch = self._subscription._core.batch(self._max_messages, self._seconds)
        if batch is None:
            raise StopIteration
        return batch


class Subscription(SubscriptionBase):
    """A subscription: iterate over it, or take messages with `get` or `batches`.

    A message counts as processed when the program asks for the next one, or discards it. The iteration ends
    when the subscription or the client is closed. It raises the error with which the server ended it.
    """

    _client: Client

    def __init__(self, client: Client, core: _quire.Subscription, spec: Spec, sub_id: str) -> None:
        super().__init__(client, core, spec, sub_id)
        #: An event: the program has received the replay up to the end of the log at the subscribe
        #: call.
        self.completed: Completed = Completed(core)
        #: An event: the last record of the query has arrived. Only a subscription that begins with
        #: one has it.
        self.snapshot: Snapshot = Snapshot(core)
        self._snapshot = self.snapshot

    def __iter__(self) -> Iterator[Message]:
        self._check_not_handled()
        return self._core.iterate(self, self._spec.ahead)

    def get(self, timeout: Duration | None = None) -> Message:
        """Returns the next message, and waits for it for at most `timeout`.

        The message before it then counts as processed, also when no message comes.

        Raises `TimeoutError` after `timeout`, and `DisconnectedError` when the subscription has ended.
        """
        self._check_not_handled()
        message = self._core.next(timeout_to_core(timeout))
        if message is None:
            raise self._ended()
        return message

    def batches(
        self, max_messages: int = DEFAULT_BATCH_COUNT, timeout: Duration | None = None
    ) -> Iterator[list[Message]]:
        """Yields lists with the messages that have arrived, from one message to `max_messages`.

        When the program asks for the next list, the messages of the list before it count as processed.

        With a `timeout`, it yields an empty list when no message arrives for this long.
        """
        self._check_not_handled()
        check_count(max_messages)
        return _Batches(self, max_messages, timeout_to_core(timeout))

    def pause(self, timeout: Duration | None = None) -> None:
        """Pauses a bookmark subscription until `resume`."""
        self._client.pause([self], timeout=timeout)

    def resume(self, timeout: Duration | None = None) -> None:
        """Continues a paused subscription."""
        self._client.resume([self], timeout=timeout)

    @takes(Change)
    def replace(self, change: Change) -> None:
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
        finish(self._replace(change))

    def unsubscribe(self, timeout: Duration | None = None) -> None:
        """Ends the subscription. Does nothing when it has ended. Returns immediately without a connection."""
        self._client.unsubscribe(self.sub_id, timeout=timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.unsubscribe()


class Client(ClientBase[Subscription]):
    """Connects to a server or an engine in this process, and reconnects when the connection is lost.

        with quire.Client("quire://127.0.0.1:9007", name="shop") as client:
            client.publish("orders", {"id": 1, "item": "book"})
            client.flush()

    Threads can share a client. The constructor returns when the client is logged on. After a lost connection
    the client sends unpersisted publishes again, and its subscriptions resume after the last message that
    they received. Durations are seconds, a `timedelta`, or text such as "500ms". Sizes are bytes, or text
    such as "64MB".

    - `url`: `quire://host:port` (a server), `quires://host:port` (a server, over TLS), `file:DIRECTORY` or `memory:`
      (an engine in this process), or a list of URLs of instances that replicate to each other
    - `config`: settings of an engine in this process; by default it records every topic as JSON
    - `name`: the identity of the publisher. It must be unique, and the same after a restart. Without it, a
      name is generated, and the server cannot drop duplicates that are sent after a restart
    - `publish_store`: where publishes are kept until they are persisted: `None` (in memory), the path of a
      file that survives the process (this requires `name`), or a `PublishStore`
    - `bookmark_store`: where the position of subscriptions is kept, for `MOST_RECENT`: `None` (in memory),
      the path of a file that survives the process, or a `BookmarkStore`
    - `user`: only a client with the same user can take over the name. `password` or `token`: proves the user to a
      server with users; text, or a function that returns it for each connection. Without all three: `$QUIRE_USER`
      with `$QUIRE_PASSWORD` or `$QUIRE_TOKEN`, or the netrc file `$QUIRE_NETRC`. The user can also be in the URL:
      `quires://anna@host`
    - `heartbeat`: interval in which each side sends something. A peer that is silent for two intervals is
      disconnected. `None` switches heartbeats off
    - `connect`: `"wait"` returns when the client is logged on. `"background"` returns immediately and
      connects when a server is available. It requires a publish store in a file
    - `connect_timeout`: limit for the first logon. A client that no server accepts raises immediately. With
      `wait=True` it tries again until this limit
    - `command_timeout`: how long a call without `timeout=` waits for the server, before it raises
      `TimeoutError`. `None` means no limit. `flush`, `get` and iterations wait without a limit
    - `receive_size_max`: limit of received messages that wait for the program, in bytes. Above it, a
      subscription that takes more than its share is paused; the page "Clients" lists all limits, under "Bounds"
    - `encoder`: converts data that JSON does not have to JSON values, or a whole message to bytes or text.
      Without it, dataclasses, pydantic models, times, `Decimal`, `UUID`, `Enum` and sets are converted as
      pydantic does
    - `auto_ack`: acknowledge a queue message when its handler returned, or when the program asks for the next
      one, and return it to its queue when its handler raised
    - `ack_batch_size`, `ack_timeout`: acknowledgements are sent together, when there is this number of them
      or after this time
    - `reconnect`: the delays between attempts to reconnect, as a `Reconnect`
    - `server_chooser`: which of several URLs is tried first, also after a lost connection. `"first"`: the
      first one of the list. `"random"`: any. `"least_loaded"`: the server with the fewest connections; servers
      that do not answer within 2 s are tried last
    - `ssl`: for `quires://`. `True` (default) trusts the authorities in the file `$QUIRE_CA`, or those of the
      system. A path is a file with the certificates of the authorities. A `TLS` has every option. `False` allows a
      `password` or a `token` with `quire://` to another machine, without encryption

    Raises `ConfigError` for an invalid argument, `DisconnectedError` when no server accepts the connection
    (`TLSError` when it cannot be secured), and `TimeoutError` after `connect_timeout`.
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
        delay: Duration | None = None,
        deliver_at: datetime | None = None,
        sow_key: str | None = None,
        on_persisted: Callable[[Receipt], object] | None = None,
        timeout: Duration | None = None,
    ) -> int | None:
        """Sends a message, and returns its sequence number, or `None` with `sequence=None`.

            client.publish("orders", {"id": 1, "item": "book"}, headers={"source": "web"})
            client.flush()  # returns when the message is persisted

        The call does not wait until the message is persisted. It waits only while the publish store is full.

        - `topic`: exact name of the topic
        - `data`: bytes, text (sent as UTF-8), or anything else that can become JSON
        - `sequence`: `AUTO` assigns the next number. A number is sent as given: the server drops the message
          as a duplicate unless the number is above the highest one of this client name. `None` sends without
          a number, and the message is not sent again after a lost connection
        - `expiration`: lifetime in a queue, in whole seconds rounded up; 0 = never expires
        - `correlation_id`: text that subscribers receive with the message
        - `headers`: at most 64 names with text or bytes. A name has 1 to 255 bytes. All names and values
          together have at most 32,768 bytes. Filters read them as ``HEADER('name')``
        - `delay`: queues deliver the message after this time at the earliest. The time begins when the server
          takes the message, and is at most 3,653 days. Other subscriptions get the message at once
        - `deliver_at`: the same as a point in time, a `datetime` with a time zone. A time that has passed
          means no delay
        - `sow_key`: the key of the message in a last-value topic whose keys the publisher supplies: 1 to 255
          letters, digits, `+`, `/`, `=`, `-` and `_`. A topic with key fields ignores it
        - `on_persisted`: function that is called with the `Receipt` of the message when it is persisted,
          refused, or lost with the client. It runs on a thread of the client, one call at a time. Its
          exceptions are logged
        - `timeout`: how long to wait for room in the publish store, instead of `command_timeout`

        Raises `TimeoutError` after `timeout` (the message was not sent), `TypeError` or `ValueError` for data
        that cannot become JSON, and `LimitExceededError` when `AUTO` has used the last number, 2^64 - 1,
        under this name. An error with which the server refuses the message is raised by `flush`: for
        example `UnknownQueueError` for a message with a delay on a topic without a queue.
        """
        # Most messages have no options. This case has as few steps as possible.
        if (
            expiration is None
            and correlation_id is None
            and headers is None
            and delay is None
            and deliver_at is None
            and sow_key is None
            and on_persisted is None
            and timeout is None
        ):
            if type(data) is not bytes:
                check_type(topic, str, "topic")  # the encoder gets it
                data = to_bytes(data, self._options.encoder, topic)
            try:
                return self._core.publish(topic, data, 0 if sequence is AUTO else sequence_to_core(sequence))
            except (TypeError, UnicodeEncodeError):
                # The core takes no other topic. A check before the call would cost every message a
                # tenth more.
                check_type(topic, str, "topic")
                raise
            except BlockingIOError:
                pass  # There is no room. The code below waits for it.
        options = (expiration, correlation_id, headers, delay, deliver_at, sow_key)
        message = message_to_core(topic, data, sequence, *options, self._options.encoder)
        return finish(self._publish(Receipt, message, on_persisted, timeout))

    def delta_publish(
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
        on_persisted: Callable[[Receipt], object] | None = None,
        timeout: Duration | None = None,
    ) -> int | None:
        """Sends the fields of a record that change, and returns the sequence number.

            client.publish("orders", {"id": 1, "item": "book", "qty": 2})
            client.delta_publish("orders", {"id": 1, "qty": 3})  # the item is still "book"

        The server merges `data` into the record of the last-value topic with the same key, and then records
        and delivers the whole message. A field that `data` does not have stays as it is. Nested objects are
        merged field by field, and arrays are replaced. Without such a record, or on a topic that keeps no
        last values, `data` is the whole message.

        The arguments are those of `publish`. A `delay` or `deliver_at` delays the whole message in the queues
        over the topic, and not the merge. `flush` raises `BadMessageError` for a delta that cannot be
        merged. The record then stays as it is.
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
            is_delta=True,
        )
        return finish(self._publish(Receipt, message, on_persisted, timeout))

    def publish_receipt(
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
        on_persisted: Callable[[Receipt], object] | None = None,
        timeout: Duration | None = None,
    ) -> Receipt:
        """Sends a message as `publish` does, and returns its receipt.

        `receipt.wait()` returns when the message is persisted, and raises the error with which the server
        refused it. `flush` then does not raise that error. It raises it if the program has dropped the
        receipt before.
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
        return finish(self._publish_one(Receipt, message, on_persisted, timeout))

    @suggests
    def publish_many(
        self,
        topic: str | None,
        items: Iterable[Any],
        *,
        expiration: Duration | None = None,
        correlation_id: str | None = None,
        headers: Mapping[str, str | bytes] | None = None,
        delay: Duration | None = None,
        deliver_at: datetime | None = None,
        on_persisted: Callable[[BatchReceipt], object] | None = None,
        timeout: Duration | None = None,
    ) -> list[int]:
        """Sends several messages with one call, all of them or none, and returns their sequence numbers.

        - `topic`: topic of the items that do not name one; `None` when all of them do
        - `items`: the data of each message, or a `quire.Publish` with options
        - `on_persisted`: function that is called once, with the `BatchReceipt`
        - `timeout`: how long to wait until the publish store has room for all messages

        Raises the errors of `publish`, with a note that names the item.
        """
        kind = None if on_persisted is None else BatchReceipt
        batch = batch_to_core(
            topic, items, expiration, correlation_id, headers, delay, deliver_at, self._options.encoder
        )
        sequences, _ = finish(self._publish_all(kind, batch, on_persisted, timeout))
        return sequences

    def publish_many_receipt(
        self,
        topic: str | None,
        items: Iterable[Any],
        *,
        expiration: Duration | None = None,
        correlation_id: str | None = None,
        headers: Mapping[str, str | bytes] | None = None,
        delay: Duration | None = None,
        deliver_at: datetime | None = None,
        on_persisted: Callable[[BatchReceipt], object] | None = None,
        timeout: Duration | None = None,
    ) -> BatchReceipt:
        """Sends several messages as `publish_many` does, and returns one receipt. `items` must not be empty."""
        batch = batch_to_core(
            topic, items, expiration, correlation_id, headers, delay, deliver_at, self._options.encoder
        )
        check_not_empty(batch)
        _, receipt = finish(self._publish_all(BatchReceipt, batch, on_persisted, timeout))
        assert receipt is not None
        return receipt

    @suggests
    def flush(self, timeout: Duration | None = None) -> None:
        """Waits until everything published so far is persisted. Continues to wait after a reconnect.

        On a topic that the server is configured not to record (`recorded = false`), publishes are accepted,
        not persisted. `timeout`: the longest wait; without it there is no limit.

        Raises `TimeoutError` after `timeout`, and the error of a publish that the server refused since the
        last flush. Raises `NameInUseError`, once, when the server dropped publishes as duplicates, because it has
        sequences of the client name that this client did not publish.
        """
        finish(self._flush(timeout))

    @suggests
    def wait_persisted(self, sequence: int, timeout: Duration | None = None) -> None:
        """Waits until every publish up to `sequence` is persisted, and does not wait for later ones.

            for order in orders:
                sequence = client.publish("orders", order)
                client.wait_persisted(sequence - 1000)  # at most 1,000 are not persisted
            client.flush()

        - `sequence`: the result of `publish`, or a smaller number. A number below 1 counts as persisted
        - `timeout`: the longest wait; without it there is no limit. Continues to wait after a reconnect

        Raises `ValueError` for a sequence that this client has not published yet, `TimeoutError` after `timeout`,
        and `DisconnectedError` when the client is closed. Like `flush`, it raises the error of a publish that the
        server refused since the last call of either.
        """
        finish(self._wait_persisted(sequence, timeout))

    @takes(BlockingSpec)
    def subscribe(self, spec: BlockingSpec) -> Subscription:
        """Subscribes to a topic or a queue, and returns when the server has accepted the subscription.

            for message in client.subscribe("orders", filter="/qty > 50", bookmark=quire.EPOCH):
                print(message.json())

        - `topic`: exact name, or a regular expression if it contains any of ``^ $ * + ? [ ] ( ) { } | \\``. A
          regular expression matches anywhere in a topic unless it has `^` and `$`
        - `filter`: content filter. The server delivers only messages that match it
        - `bookmark`: where the replay begins: `EPOCH`, `NOW`, `MOST_RECENT`, a bookmark, several bookmarks,
          or a time. The iteration over a range such as "[A:B]" ends. Without it, only new messages are
          delivered
        - `until`: with `bookmark`, the end of the range, including it: a bookmark, a message or a time
        - `bookmark_not_found`: where the replay begins when none of the bookmarks is in the log: `"epoch"`
          (at the oldest message) or `"now"`, both with a warning in the log of this client; with `"fail"`,
          `BadBookmarkError` is raised
        - `max_backlog`: limit of messages from a queue that are delivered and not yet settled. Without it: 1.
          With 0, only barriers are delivered. Where no queue has the name, it is ignored with a warning in the
          log of this client
        - `live`: after the replay, deliver messages before they are persisted
        - `fully_durable`: deliver messages when they are persisted on this server and on all synchronous destinations
        - `paused`: deliver nothing until `resume`
        - `deletions`: with `bookmark`, also deliver the deletes of `sow_delete`: a message with the command
          `"delete"`, the `sow_key` and no data for each deleted record. Not with `live` or `conflation`
        - `completed`: set `subscription.completed` at the end of the replay, also without a `bookmark`
        - `rate`: limit of a replay: messages per second ("1000"), bytes per second ("500KB"), or a multiple
          of the original pace ("2X")
        - `rate_max_gap`: with a multiple, the longest pause before the next message
        - `conflation`, `conflation_key`: of the messages with the same key (a field such as "/symbol", or
          several fields), deliver at most one in each interval of this length: the newest, with the bookmark
          of the first. On a last-value topic the key is that of the record when `conflation_key` is left out
        - `select`: the part of each message to deliver, as entries such as "-/", "+/symbol", "+/price"
        - `on_message`: function that is called with each message. The handlers of one client run one at a
          time, in the order of arrival, on one thread. A coroutine function is a `TypeError`
        - `sub_id`: name under which `MOST_RECENT` finds the position of the subscription after a restart
        - `timeout`: how long to wait for the server, instead of `command_timeout`

        Raises the error with which the server refuses the subscription, such as `BadFilterError`,
        `BadTopicError` or `NotJournaledError`. Raises `TimeoutError` after `timeout`; nothing is subscribed
        then.
        """
        return finish(self._subscribe(spec))

    def _enter_now(self, spec: Spec, *, auto_ack: bool) -> Subscription:
        return finish(self._enter(spec, auto_ack=auto_ack))

    @suggests
    def unsubscribe(self, sub_id: str | None = None, *, timeout: Duration | None = None) -> None:
        """Ends one subscription, or all. Does not wait without a connection: it ended the subscriptions."""
        finish(self._unsubscribe(None if sub_id is None else [sub_id], timeout=timeout))

    def pause(
        self, subscriptions: Iterable[Subscription] | None = None, *, timeout: Duration | None = None
    ) -> None:
        """Pauses bookmark subscriptions with one command; without an argument, all of this client."""
        finish(self._set_paused(subscriptions, True, timeout))

    def resume(
        self, subscriptions: Iterable[Subscription] | None = None, *, timeout: Duration | None = None
    ) -> None:
        """Continues paused subscriptions with one command.

        Those with the same rate share one replay, from the lowest of their positions on: their messages
        arrive in log order across them, and together they do not exceed the rate. They still share it
        after a lost connection. None misses or repeats a message.
        """
        finish(self._set_paused(subscriptions, False, timeout))

    def ack(
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
        """Acknowledges messages of a queue by bookmark, or all active messages that match a filter.

        - `bookmarks`: a bookmark, several bookmarks joined by commas, or an iterable of bookmarks or
          messages. Bookmarks that are not in the queue are ignored
        - `filter`: content filter; an empty filter matches every message
        - `cancel`: return the messages to the queue. `expire`: remove them from the queue
        - `reason`: why, with `cancel` or `expire`: a text of at most 1,024 bytes in UTF-8. The dead letters of
          messages that expire by this call have it
        - `timeout`: how long to wait for the server, instead of `command_timeout`
        """
        finish(self._settle(topic, bookmarks, filter, cancel, expire, reason, timeout))

    @takes(QuerySpec)
    def sow(self, spec: QuerySpec) -> Query:
        """Returns the records of a last-value topic at one instant, or the messages that a queue can deliver now.

            for record in client.sow("orders", filter="/qty > 50", order_by="/price DESC", top_n=10):
                print(record.sow_key, record.json())

        The call returns when the server has accepted the query. The instant is that of the call: later
        publishes do not change the result. The query sees everything that this client published before. The
        messages of a queue come in delivery order, and stay in the queue.

        - `topic`: exact name, or a regular expression that selects several last-value topics
        - `filter`: content filter; only records that match it are returned
        - `order_by`: fields to sort by, such as "/price DESC, /time". Each field sorts in ascending order
          without `DESC`, and by its text with `TEXT`. Without it, the order of records is undefined
        - `top_n`: limit of records. `skip_n`: number of records to leave out first; requires `top_n`
        - `keys`: only the records with these keys
        - `bookmark`: the state after a message (a bookmark or a message), or after a time (a `datetime` or a
          text), within the `history` of the topic. A topic without history has its current state only
        - `select`: the part of each record to deliver, as entries such as "-/", "+/symbol", "+/price"
        - `projection`, `grouping`: instead of the records, one record for each group of them, with computed
          fields: `projection=["/account", "SUM(/price * /qty) AS /notional"], grouping=["/account"]`. Only for
          one last-value topic. Without `grouping` all records are one group. The page "Last-value topics" has
          the aggregates, under "Aggregation"
        - `batch_size`: number of records to take from the connection at a time, at most 10,000
        - `timeout`: how long to wait for the server, instead of `command_timeout`

        Raises `NotLastValueError` for a topic that is not a queue and keeps no last values, `BadFilterError` and
        `BadTopicError`, and `TimeoutError` after `timeout`. Raises `BadBookmarkError` for a state before the
        history of the topic, and for a bookmark that is not in the log. The iteration raises
        `DisconnectedError` when the connection is lost before the last record.
        """
        return Query(self, spec)

    @takes(BlockingRecordsSpec)
    def sow_and_subscribe(self, spec: BlockingRecordsSpec) -> Subscription:
        """Subscribes to last-value topics: first the records, then every change, without a gap or a duplicate.

            with client.sow_and_subscribe("orders", filter="/state = 'open'", oof=True) as orders:
                for message in orders:
                    print(message.command, message.sow_key, message.data)

        The `command` of a message is `"sow"` for a record, `"publish"` for a change, and `"oof"` for a record
        that has left the view. `snapshot` of the subscription is set when the last record has arrived.

        After a reconnect the client runs the query again, and the subscription receives the difference: new
        and changed records as `"publish"`, and lost ones as `"oof"`.

        - `topic`, `filter`, `order_by`, `top_n`, `keys`, `select`: as in `sow`. `filter`, `keys` and `select`
          also apply to the changes. `order_by` and `top_n` apply to the records only
        - `skip_n`: makes the subscription a page, also with 0. The server keeps the order of the records, and
          the subscription receives only the `top_n` records after the first `skip_n`. A record that comes into
          the page arrives as `"publish"`. Requires `top_n`, and an exact topic
        - `oof`: deliver `"oof"` when a record leaves the view. `message.reason` is `"deleted"`, `"expired"`, or
          `"match"` when the filter does not match the new data, or the record left the page, or
          `"entitlement"` when the user may not see the new data
        - `bookmark`: the records are those of the state after a message or a time, as in `sow`. Then every later
          message follows, from the log. With a granularity, the state can be earlier, and the messages begin
          there. The topic must be recorded and have a `history`. Not with `oof` or `skip_n`
        - `rate`, `rate_max_gap`, `live`, `paused`: as in `subscribe`, for the messages after the records. They
          require a `bookmark`
        - `batch_size`: number of messages that an iteration takes from the connection at a time, at most 10,000
        - `completed`: changes nothing. `subscription.completed` is always set with the last record
        - `conflation`: deliver at most one message about each record in each interval of this length: the
          newest. A record that comes and goes within an interval gives no message. The records of the query
          are not delayed
        - `conflation_key`: fields that are the key instead of that of the record. Not with `oof` or `skip_n`
        - `projection`, `grouping`: instead of the records, one record for each group of them, as in `sow`. Each
          change of a record changes its groups. `filter` and `keys` select the records that are aggregated. A
          group without records leaves with `"oof"`. Not with `bookmark`, `skip_n`, `select`, `conflation_key`
          or a pattern, and such a subscription cannot be replaced
        - `on_message`, `sub_id`, `timeout`: as in `subscribe`

        On a topic that keeps no last values, the result is empty and the subscription is an ordinary one.
        Raises the errors of `subscribe`.
        """
        return self._enter_now(spec.spec, auto_ack=self._options.auto_ack)

    @takes(BlockingDeltaSpec, check_deltas)
    def delta_subscribe(self, spec: BlockingDeltaSpec) -> Subscription:
        """Subscribes to a last-value topic. It receives only the fields that differ in each change, and the key fields.

            for message in client.delta_subscribe("orders", filter="/state = 'open'"):
                print(message.sow_key, message.is_delta, message.json())

        `message.is_delta` is `True` for such a message. A field that was removed is NULL in it. A new record,
        and a record that begins to match the filter, is delivered whole, and `is_delta` is `False`.

        - `topic`, `filter`, `select`, `on_message`, `sub_id`, `timeout`: as in `subscribe`. `select` applies to
          the fields that differ, and the key fields are delivered in addition
        - `oof`: deliver `"oof"` when a record leaves the view. See `sow_and_subscribe`
        - `no_empties`: deliver nothing for a publish in which no field differs. Without it, the message has the
          key fields only
        - `conflation`: deliver at most one message about each record in each interval of this length: the
          fields that any of the changes has, with their newest values
        - `completed`: as in `subscribe`
        - the arguments that only `subscribe` has raise `ConfigError`, unless they have their default values

        The difference is that to the record of the topic, also when the subscription has not received this
        record. `sow_and_delta_subscribe` delivers the records first. On a topic that keeps no last values, and
        for `binary` messages, every message is whole. Raises the errors of `subscribe`.
        """
        return self._enter_now(spec.spec, auto_ack=self._options.auto_ack)

    @takes(BlockingDeltaRecordsSpec, check_delta_records)
    def sow_and_delta_subscribe(self, spec: BlockingDeltaRecordsSpec) -> Subscription:
        """Subscribes to last-value topics: first the records, and then of each change only the fields that differ.

            with client.sow_and_delta_subscribe("orders", oof=True) as orders:
                for message in orders:
                    print(message.command, message.is_delta, message.sow_key, message.data)

        The messages of changes are those of `delta_subscribe`. After a reconnect, new and changed records are
        delivered whole. A message whose `is_delta` is `False` replaces the record that the program has.

        - `no_empties`, `conflation`: as in `delta_subscribe`
        - the other arguments: as in `sow_and_subscribe`, which also has pages and bookmarks, and delivers whole
          messages. With `projection` and `grouping`, the fields of groups that differ. With `top_n`, changes of
          the other records are delivered as differences, too
        - the arguments that only `sow_and_subscribe` has raise `ConfigError`, unless they have their default values

        Raises the errors of `subscribe`.
        """
        return self._enter_now(spec.spec, auto_ack=self._options.auto_ack)

    @suggests
    def sow_delete(
        self,
        topic: str,
        *,
        keys: str | Iterable[str] | None = None,
        filter: FilterArgument | None = None,
        data: Any = None,
        bookmarks: str | Message | Iterable[str | Message] | None = None,
        timeout: Duration | None = None,
    ) -> int:
        """Removes records of a last-value topic, and returns their number.

            client.sow_delete("orders", filter="/state = 'done'")

        A record is removed if all given selectors apply to it. The call returns when the records are removed.
        The delete is persisted with the next `flush`. It has a sequence number, and is sent again after a lost
        connection.

        - `topic`: exact name, or a regular expression that selects several last-value topics
        - `keys`: the records with these keys. `filter`: the records that match
        - `data`: a message: the record that a publish of it would replace
        - `bookmarks`: acknowledges messages of a queue, as `ack` does, and returns how many it acknowledged. On
          a queue, `filter` acknowledges the messages that match
        - `timeout`: how long to wait for the server, instead of `command_timeout`

        Raises `ValueError` without a selector, and `NotLastValueError` for a topic that keeps no last values.
        Raises `DisconnectedError` when the connection was lost and the number is unknown: the records are
        then removed.
        """
        return finish(delete(self, topic, keys, filter, data, bookmarks, timeout))

    @takes(BlockingTableSpec)
    def table(self, spec: BlockingTableSpec) -> Table:
        """Returns a live copy of the records of a last-value topic, which the client keeps up to date.

            table = client.table("orders")
            table.ready.wait("10s")
            print(table["A-1"].json())

        - `topic`: exact name, or a regular expression that selects several last-value topics
        - `filter`: content filter; the table has only records that match it
        - `key`: a field such as "/order_id", or several fields: the text of the field, or a tuple of texts, is
          the key in the table. Of two records with one value, the later one is shown. Two records with one key
          in which a field has no text (missing, NULL or an object) end the table with `ConfigError`. Without
          `key`, the `sow_key` of each record is its key. Over a pattern, the same `sow_key` of two topics
          ends the table, too
        - `on_change`: function that is called with each `Change`, on the thread of the handlers
        - `select`: the part of each record to keep, as entries such as "-/", "+/symbol", "+/price"; with the
          fields of `key`
        - `conflation`: shortest time between two changes of one record
        - `projection`, `grouping`: the table has groups of records, as in `sow_and_subscribe`
        - `timeout`: how long to wait for the server, instead of `command_timeout`

        The call returns when the server has accepted the subscription. `table.ready` is set when the table has
        its first records. Raises `NotLastValueError` for a topic that keeps no last values, and the errors of
        `sow_and_subscribe`.
        """
        return Table(self, spec)

    @suggests
    def queue_stats(self, queue: str | None = None, *, timeout: Duration | None = None) -> QueueStats:
        """Returns the figures of one queue, or of all queues, by name (docs/queues.md section 10).

        `queue_stats("jobs")["jobs"].depth` is a figure of one queue. Raises `UnknownQueueError`.
        """
        return finish(self._queue_stats(queue, timeout))

    @suggests
    def create_queue(
        self, name: str, *, timeout: Duration | None = None, **settings: Unpack[QueueSettings]
    ) -> bool:
        """Creates a queue on the server while it runs. Returns when the queue is on stable storage.

        - `name`: of the queue
        - `timeout`: how long to wait for the answer; left out, `command_timeout`
        - `settings`: the keys of `[[queue]]`, as `lease_period="30s"` (docs/queues.md section 14)

        The queue begins with the first message that is recorded after the call, or with `recovery_point="epoch"` with the
        first one of the log. Returns `False` when the queue existed with the same settings. Raises `QueueExistsError` when
        it exists with other settings or in the configuration of the server, and `ConfigError` that names the key of a bad
        setting.
        """
        return finish(self._create_queue(name, settings, timeout))

    @suggests
    def alter_queue(
        self, name: str, *, timeout: Duration | None = None, **settings: Unpack[QueueChanges]
    ) -> bool:
        """Changes settings of a queue that was created with `create_queue`. Returns when they are on stable storage.

        - `name`: of the queue
        - `timeout`: how long to wait for the answer; left out, `command_timeout`
        - `settings`: the new values, as `lease_period="1m"`; `None` for the default. Other settings stay as they are

        The messages and leases of the queue stay as they are (docs/queues.md section 14). Returns `False` when the queue had
        these settings. Raises `ConfigError` that names the keys when a setting cannot be changed or is bad,
        `UnknownQueueError` when there is no such queue, and `QueueExistsError` for a queue of the configuration.
        """
        return finish(self._alter_queue(name, settings, timeout))

    @suggests
    def drop_queue(self, name: str, *, timeout: Duration | None = None) -> DropReport:
        """Drops a queue that was created with `create_queue`. Its messages stay in the log.

        Subscriptions that take messages from the queue end with `UnknownQueueError`. Returns how many messages the queue
        had. Raises `UnknownQueueError` when there is no such queue, and `QueueExistsError` for a queue of the
        configuration.
        """
        return finish(self._drop_queue(name, timeout))

    @suggests
    def define_view(
        self, name: str, *, timeout: Duration | None = None, **settings: Unpack[ViewSettings]
    ) -> bool:
        """Replaces the definition of a view while the server runs. Returns when the view has its new records.

        - `name`: of the view, which exists
        - `timeout`: how long to wait for the answer; left out, `command_timeout`. The server continues after it
        - `settings`: the keys of `[[view]]`, as `projection=["/g", "SUM(/v) AS /sum"]`. A key that is left out has its
          default, and does not keep its value. Only `message_type` stays that of the view

        Subscribers receive the difference between the old records and the new ones (docs/views.md section 8). The
        definition is on stable storage. Returns `False` when the view had this definition. Raises `ConfigError` that names
        the key of a mistake. The view then keeps its definition.
        """
        return finish(self._define_view(name, settings, timeout))

    @suggests
    def server_info(self, *, timeout: Duration | None = None) -> ServerInfo:
        """Returns the name, version and uptime of the server, and the sizes and counts of its parts.

        Raises `TimeoutError` when the server does not answer within `timeout`, or without it
        `command_timeout`.
        """
        return finish(self._server_info(timeout))

    def _topics(self) -> list[dict[str, Any]]:
        """Returns the topics of the server, sorted by name."""
        return finish(self._all_topics())

    def _unrecorded_of(self, topics: Collection[str]) -> list[str]:
        """Returns those of `topics` to which this client published and which the server does not record."""
        return finish(self._unrecorded(topics))

    def _described_of(self, topics: Collection[str]) -> list[dict[str, Any]]:
        """Returns the topics of the server with these names."""
        return finish(self._described(topics))

    def _replication(self) -> dict[str, Any]:
        """Returns the links of the server."""
        return finish(self._links())

    def _messages_of(self, question: bytes) -> bytes:
        """Returns the answer of the server to a question of a `LogComparison`."""
        return finish(self._messages(question))

    def _replicate(self, destination: str, action: LinkAction) -> dict[str, Any]:
        """Changes a link of the server, and returns its links."""
        return finish(self._change_link(destination, action))

    def _disconnect(self, connection: int, block: float = 0.0) -> int:
        """Ends a connection of the server. Its client name cannot log on for `block` seconds. Returns how many were ended."""
        return finish(self._disconnect_client(connection, block))

    def _statistics(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """Returns a node of the figures of the server, or samples."""
        return finish(self._ask_statistics(question))

    def _reload(self) -> list[str]:
        """Makes the server read its configuration again, and returns the keys that have changed."""
        return finish(self._reload_server())

    def _explain(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """Returns which entry of the server decides about a request: the JSON of `quire entitlement check`."""
        return finish(self._explain_access(question))

    def _clients(self) -> list[dict[str, Any]]:
        """Returns the connections of the server, the oldest first."""
        return finish(self._all_clients())

    def _subscription_figures(self) -> list[dict[str, Any]]:
        """Returns the subscriptions of the connections of the server, the oldest connection first."""
        return finish(self._all_subscriptions())

    @suggests
    def process(
        self,
        queue: str,
        handler: Callable[[Message], None],
        *,
        concurrency: int = 1,
        max_backlog: int | None = None,
        extend: bool = True,
        retry_delay: Duration | Sequence[Duration] | None = None,
        filter: FilterArgument | None = None,
    ) -> WorkReport:
        """Calls `handler` with the messages of a queue, until the client is closed or drained, or until SIGTERM.

            def handle(message: quire.Message) -> None:
                print(message.json())

            client.process("jobs", handle, concurrency=4)

        A message is acknowledged when the handler returns, and cancelled when it raises, unless the handler
        has settled it. At the end, running handlers finish, messages without a handler return to the queue,
        and all acknowledgements are flushed. The call handles SIGTERM only in the main thread, and only if
        the program has no handler for it.

        - `concurrency`: number of handlers that run at a time, each in a separate thread. A single handler
          runs in the calling thread
        - `max_backlog`: limit of messages that the server delivers ahead. Without it: two for each handler
        - `extend`: renew the leases of fetched messages, and of a message while its handler runs, every third
          of the lease period. With `False` only the handler extends, and a message that cannot begin before
          its lease ends goes back to the queue without counting as a delivery
        - `retry_delay`: delay before a cancelled message is delivered again: one delay, or one for each
          cancel, of which the last one repeats. Without it: the delay in the configuration of the queue
        - `filter`: content filter. Messages that do not match stay in the queue, for other workers

        Raises `UnknownQueueError` when no queue has this name, and `TypeError` for a coroutine function.
        """
        return finish(self._process(queue, handler, concurrency, max_backlog, extend, retry_delay, filter))

    @suggests
    def drain(self, timeout: Duration = DEFAULT_CLOSE_TIMEOUT) -> DrainReport:
        """Stops taking messages, waits for handlers, workers and publishes, closes, and reports what is left.

        Takes at most `timeout`. Messages that were received before are still handled, and the publishes of
        their handlers are flushed. Called by a handler, it returns at once, and is carried out when the handler
        has returned.
        """
        return finish(self._drain(timeout))

    @suggests
    def close(self, timeout: Duration = DEFAULT_CLOSE_TIMEOUT) -> None:
        """Waits up to `timeout` for running handlers and pending publishes, and closes the client. All iterations end.

        Called by a handler, it returns at once, and is carried out when the handler has returned.

        Does not wait without a connection, or after the connection is lost. Logs the number of publishes that
        are not persisted, and the errors of publishes that `flush` did not raise. Does nothing when the client is closed.
        """
        finish(self._close(timeout_to_core(timeout) or 0.0))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Observer(Client):
    """A client that shows or administers a server. It is let in while the server may lack messages of other instances
    (docs/replication.md, "States"). The server then takes no other commands of it."""

    _observes = True
