"""A live copy of the records of a last-value topic."""

from __future__ import annotations

import logging
import threading
import weakref
from collections import deque
from collections.abc import (
    Awaitable,
    Callable,
    ItemsView,
    Iterable,
    Iterator,
    KeysView,
    Mapping,
    ValuesView,
)
from dataclasses import KW_ONLY, dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, Self, TypeVar

from quire import _quire
from quire._arguments import check_function, check_type, timeout_to_core
from quire._errors import ConfigError, LimitExceededError, NotLastValueError, QuireError
from quire._filter import FilterArgument
from quire._frames import Fields, check_fields, pandas_frame, polars_frame
from quire._message import Message
from quire._units import Duration
from quire.client._query import arrow_of_rows
from quire.client._records import QuerySpec, RecordsSpec, query
from quire.client._spec import fields_to_core
from quire.client._threads import finish

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa

    from quire.client._aio import AsyncClient, AsyncSnapshot, AsyncSubscription  # noqa: F401
    from quire.client._base import ClientBase
    from quire.client._blocking import Client, Snapshot, Subscription  # noqa: F401
    from quire.client._driver import Driver
    from quire.client._subscription import SubscriptionBase

logger = logging.getLogger("quire.client")

S = TypeVar("S", bound="SubscriptionBase")

#: Changes that wait for one `changes()`. A program that takes none would otherwise collect them
#: without a limit.
CHANGES_MAX = 100_000

#: A key of a record. With `key`, the text of the field, or the texts of several fields: `None` for
#: a field that has no text.
TableKey = str | tuple[str | None, ...] | None
#: The topic and the key of a record.
_Name = tuple[str, str]


@dataclass(frozen=True)
class Change:
    """One change of a `Table`."""

    #: `"added"`, `"changed"` or `"removed"`.
    kind: Literal["added", "changed", "removed"]
    #: The key in the table.
    key: TableKey
    #: The new record. For a removed record: the `oof` message with its `reason`.
    message: Message
    #: The record that the table had before; `None` for `"added"`.
    before: Message | None


@dataclass(frozen=True)
class TableSpec:
    """The arguments of `table`, which are documented there."""

    topic: str
    _: KW_ONLY
    filter: FilterArgument | None = None
    key: str | Iterable[str] | None = None
    on_change: Callable[[Change], Awaitable[None] | None] | None = None
    select: str | Iterable[str] | None = None
    conflation: Duration | None = None
    projection: str | Iterable[str] | None = None
    grouping: str | Iterable[str] | None = None
    timeout: Duration | None = None

    def __post_init__(self) -> None:
        check_type(self.topic, str, "topic")
        if self.on_change is not None:
            check_function(self.on_change, "on_change")
        object.__setattr__(self, "timeout", timeout_to_core(self.timeout))
        if self.key is not None and not isinstance(self.key, str):
            given: object = self.key
            fields: list[Any] = list(given) if isinstance(given, Iterable) else [given]
            if not fields:
                raise ConfigError("the list is empty", key="key")
            for each in fields:
                check_type(each, str, "key")
            object.__setattr__(self, "key", tuple(fields))


@dataclass(frozen=True)
class BlockingTableSpec(TableSpec):
    """The arguments of the blocking client's `table`."""

    on_change: Callable[[Change], None] | None = field(default=None, kw_only=True)


class Records:
    """The records of a table by their keys in the table.

    With `key_of`, several records of the topic can have one key. The latest one is shown, and
    another one when that is removed. `take` raises `ConfigError` for the second record of a key in
    which a field has no text, and without `key_of` for the second one of a `sow_key`: such records
    need not have anything in common.
    """

    def __init__(self, key_of: Callable[[Message], TableKey] | None = None) -> None:
        self._key_of = key_of
        #: The records by their keys in the table.
        self.shown: dict[TableKey, Message] = {}
        self._keys: dict[_Name, TableKey] = {}
        #: The records of each key that has more than one, the latest one at the end.
        self._rivals: dict[TableKey, dict[_Name, Message]] = {}

    def take(self, message: Message) -> list[Change]:
        """Applies a message of the subscription, and returns what has changed in the table."""
        name = _name_of(message)
        if message.command == "oof":
            return self._remove(name, message)
        key: TableKey = name[1] if self._key_of is None else self._key_of(message)
        changes: list[Change] = []
        if name in self._keys and self._keys[name] != key:
            changes += self._remove(name, message)
        before = self.shown.get(key)
        if before is not None:
            if self._key_of is None:
                _check_same(
                    key, name, _name_of(before), "two topics have it; make a table of each, or name fields"
                )
            elif None in key if isinstance(key, tuple) else key is None:
                _check_same(key, name, _name_of(before), _NO_TEXT)
            self._note(key, name, message, before)
        self.shown[key] = message
        self._keys[name] = key
        changes.append(Change("added" if before is None else "changed", key, message, before))
        return changes

    def _note(self, key: TableKey, name: _Name, message: Message, before: Message) -> None:
        """Keeps the records of a key that has more than one."""
        rivals = self._rivals.get(key)
        holder = _name_of(before)
        if rivals is None:
            if holder == name:
                return
            rivals = self._rivals[key] = {holder: before}
        rivals.pop(name, None)
        rivals[name] = message

    def _remove(self, name: _Name, message: Message) -> list[Change]:
        if name not in self._keys:
            return []
        key = self._keys.pop(name)
        before = self.shown[key]
        is_shown = _name_of(before) == name
        rivals = self._rivals.get(key)
        if rivals is not None:
            del rivals[name]
            last = next(reversed(rivals.values()))
            if len(rivals) == 1:
                del self._rivals[key]
            if not is_shown:
                return []
            self.shown[key] = last
            return [Change("changed", key, last, before)]
        del self.shown[key]
        return [Change("removed", key, message, before)]


def _name_of(message: Message) -> _Name:
    return message.topic, message.sow_key or ""


_NO_TEXT: Final = "None is a field without a text; name fields in which every record has a text or a number"


def _check_same(key: TableKey, name: _Name, holder: _Name, advice: str) -> None:
    if name == holder:
        return
    (topic, sow_key), (other_topic, other_sow_key) = name, holder
    records = f"the record {sow_key!r} of {topic!r} and the record {other_sow_key!r} of {other_topic!r}"
    raise ConfigError(f"{records} both have the key {key!r}: {advice}", key="key")


class ChangesBase:
    """The changes of a table from one moment on, in their order."""

    def __init__(self, driver: Driver) -> None:
        self._waiting: deque[Change] = deque()
        self._changed = driver.event()
        self._is_ended = False
        self._failure: QuireError | None = None

    def _push(self, change: Change) -> None:
        if self._is_ended:
            return
        if len(self._waiting) >= CHANGES_MAX:
            reason = f"{CHANGES_MAX:,} changes of the table wait to be taken, which is as much as it keeps"
            self._end(LimitExceededError(reason))
            return
        self._waiting.append(change)
        self._changed.set()

    def _end(self, failure: QuireError | None) -> None:
        if not self._is_ended:
            self._failure = failure
            self._is_ended = True
            self._changed.set()

    async def _take(self, timeout: float | None) -> Change | None:
        """The next change, `None` after the last one. Raises `TimeoutError`, and the error that
        ended the table."""
        while not self._waiting:
            if self._is_ended:
                if self._failure is not None:
                    raise self._failure
                return None
            self._changed.clear()
            # A change may have arrived before the flag was cleared.
            if self._waiting or self._is_ended:
                continue
            if not await self._changed.wait(timeout):
                raise TimeoutError("no change came in time")
        return self._waiting.popleft()


class Changes(ChangesBase):
    """The changes of a `Table` since the call of `changes`: an iterator that ends when the table is closed.

    Raises the error with which the server ended the table, and `LimitExceededError` after the last
    change when 100,000 changes waited to be taken.
    """

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Change:
        change = finish(self._take(None))
        if change is None:
            raise StopIteration
        return change

    def get(self, timeout: Duration | None = None) -> Change | None:
        """Returns the next change, or `None` when the table is closed. Raises `TimeoutError` after
        `timeout`."""
        return finish(self._take(timeout_to_core(timeout)))


class AsyncChanges(ChangesBase):
    """The changes of an `AsyncTable` since the call of `changes`. See `Changes`."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Change:
        change = await self._take(None)
        if change is None:
            raise StopAsyncIteration
        return change

    async def get(self, timeout: Duration | None = None) -> Change | None:
        """Returns the next change, or `None` when the table is closed. Raises `TimeoutError` after
        `timeout`."""
        return await self._take(timeout_to_core(timeout))


class TableBase(Mapping[TableKey, Message], Generic[S]):
    """The records, and what both clients do with them."""

    _subscription: S

    def __init__(self, client: ClientBase[S], spec: TableSpec) -> None:
        self._client = client
        self._spec = spec
        self._records = Records()
        #: Held while the records and the followers change or are copied.
        self._lock = threading.Lock()
        self._followers: weakref.WeakSet[ChangesBase] = weakref.WeakSet()
        self._is_ended = False
        self._failure: QuireError | None = None

    async def _open(self, handler: Callable[[Message], Any]) -> None:
        """Subscribes. Raises what the server refuses, and `NotLastValueError` for another topic."""
        client, spec = self._client, self._spec
        key_of = None if spec.key is None else self._reader_of_keys()
        if spec.on_change is not None:
            client._driver.check_handler(spec.on_change)
        # A subscription to a topic without last values is an ordinary one. A query of it is
        # refused.
        try:
            answers = await query(client, QuerySpec(spec.topic, keys=[], timeout=spec.timeout))
        except ConfigError as error:
            # The messages of a queue have no keys, and the program has not set any.
            raise NotLastValueError(f"{spec.topic!r} is a queue, and keeps no last values") from error
        answers.close()
        # Known from now on, also when the client is closed.
        await client._message_type(spec.topic)
        if key_of is not None:
            self._records = Records(key_of)
        arguments = RecordsSpec(
            spec.topic,
            filter=spec.filter,
            select=spec.select,
            oof=True,
            conflation=spec.conflation,
            projection=spec.projection,
            grouping=spec.grouping,
            on_message=handler,
            timeout=spec.timeout,
        )
        self._subscription = await client._enter(arguments.spec, auto_ack=False, on_end=self._end)

    def _reader_of_keys(self) -> Callable[[Message], TableKey]:
        """Raises `ConfigError` when `select` leaves out a field of the key."""
        key, select = self._spec.key, fields_to_core(self._spec.select, "select")
        assert key is not None
        paths = [key] if isinstance(key, str) else list(key)
        fields = _quire.Fields([path if path.startswith(("/", "[/")) else f"/{path}" for path in paths])
        left_out = None if select is None else fields.excluded_by(select)
        if left_out is not None:
            raise ConfigError(f'it leaves out {left_out}, a field of `key`; add "+{left_out}"', key="select")
        types = self._client._known_types

        def key_of(message: Message) -> TableKey:
            texts = fields.texts(message, types.get(message.topic, "json"))
            return texts[0] if isinstance(key, str) else tuple(texts)

        return key_of

    async def _handle(self, message: Message) -> None:
        with self._lock:
            if self._is_ended:
                return
            try:
                # A message keeps its receive buffer in memory. A table keeps its records for a long
                # time.
                changes, failure = self._records.take(message._detached()), None
            except ConfigError as error:
                changes, failure = [], error
            followers = list(self._followers) if changes else []
        if failure is not None:
            fields = {"quire_client": self._client.name}
            logger.error("%r: %r has ended: %s", self._client, self, failure, extra=fields)
            # The call that makes the table may not have its subscription yet.
            subscription = self._client._subscriptions.get(message.sub_id)
            if subscription is not None:
                subscription._snapshot._fail(failure)
            self._end(failure)
            await self._client._unsubscribe([message.sub_id])
        for change in changes:
            for follower in followers:
                follower._push(change)
            if self._spec.on_change is not None:
                await self._client._driver.handle(self._spec.on_change, change)

    def _end(self, failure: QuireError | None = None) -> None:
        """There will be no more."""
        with self._lock:
            if self._is_ended:
                return
            self._is_ended, self._failure = True, failure
            followers = list(self._followers)
        for follower in followers:
            follower._end(failure)

    def _follow(self, follower: ChangesBase) -> None:
        with self._lock:
            self._followers.add(follower)
        if self._is_ended:
            follower._end(self._failure)

    async def _close(self) -> None:
        await self._client._unsubscribe([self._subscription.sub_id])
        self._end()

    async def _arrow(self, fields: Fields) -> pa.Table:
        fields = check_fields(fields)
        with self._lock:
            rows = _quire.Rows(list(self._records.shown.values()))
        return await arrow_of_rows(self._client, rows, self._spec.topic, fields)

    @property
    def topic(self) -> str:
        """The topic or pattern whose records the table has."""
        return self._spec.topic

    @property
    def stale(self) -> bool:
        """Whether the table may miss changes.

        `True` until the first records are complete, while the client is disconnected, until the
        difference after a reconnect has arrived, and when the table is closed.
        """
        return self._is_ended or not self._subscription._core.is_current()

    def __getitem__(self, key: TableKey) -> Message:
        return self._records.shown[key]

    def __len__(self) -> int:
        return len(self._records.shown)

    def __contains__(self, key: object) -> bool:
        return key in self._records.shown

    def __iter__(self) -> Iterator[TableKey]:
        return iter(self._copy())

    def keys(self) -> KeysView[TableKey]:
        """Returns the keys at the time of the call."""
        return self._copy().keys()

    def values(self) -> ValuesView[Message]:
        """Returns the records at the time of the call."""
        return self._copy().values()

    def items(self) -> ItemsView[TableKey, Message]:
        """Returns the keys with their records at the time of the call."""
        return self._copy().items()

    def __repr__(self) -> str:
        return f"{type(self).__name__}(topic={self.topic!r}, {len(self)} records)"

    def _copy(self) -> dict[TableKey, Message]:
        """The table at this moment: it may change while the program iterates."""
        with self._lock:
            return dict(self._records.shown)


class Table(TableBase["Subscription"]):
    """A live copy of the records of a last-value topic: a read-only mapping from keys to messages.

        with client.table("orders", filter="/state = 'open'") as table:
            table.ready.wait("10s")
            print(len(table), table["A-1"].json())
            for change in table.changes():
                print(change.kind, change.key)

    The client keeps the table up to date until `close`, also across reconnects. Threads may read it
    at any time. The table keeps its records in memory. `keys`, `values`, `items` and iterations
    show the table as it is when they begin. A table that has ended is `stale`, and keeps the
    records that it has.
    """

    _client: Client

    def __init__(self, client: Client, spec: TableSpec) -> None:
        super().__init__(client, spec)
        finish(self._open(lambda message: finish(self._handle(message))))

    @property
    def ready(self) -> Snapshot:
        """An event: the table has had all records of one moment. It stays set."""
        return self._subscription.snapshot

    def changes(self) -> Changes:
        """Returns an iterator over the changes from this call on. It ends when the table is closed.

        Changes are kept until the program takes them, at most 100,000. With more, the iteration
        ends with `LimitExceededError`.
        """
        changes = Changes(self._client._driver)
        self._follow(changes)
        return changes

    def to_arrow(self, fields: Fields = None) -> pa.Table:
        """Returns the records as a `pyarrow.Table`, one row for each. See `Query.to_arrow`."""
        return finish(self._arrow(fields))

    def to_pandas(self, fields: Fields = None) -> pd.DataFrame:
        """Returns the records as a pandas data frame. See `Query.to_arrow`."""
        return pandas_frame(self.to_arrow(fields))

    def to_polars(self, fields: Fields = None) -> pl.DataFrame:
        """Returns the records as a polars data frame. See `Query.to_arrow`."""
        return polars_frame(self.to_arrow(fields))

    def close(self) -> None:
        """Ends the table: it stays as it is, and all `changes()` end. Does nothing when it is closed."""
        finish(self._close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncTable(TableBase["AsyncSubscription"]):
    """A live copy of the records of a last-value topic, for asyncio. See `Table`.

    async with await client.table("orders") as table:
        await table.ready.wait("10s")
        async for change in table.changes():
            print(change.kind, change.key)
    """

    _client: AsyncClient

    @property
    def ready(self) -> AsyncSnapshot:
        """An event: the table has had all records of one moment. It stays set."""
        return self._subscription.snapshot

    def changes(self) -> AsyncChanges:
        """Returns an asynchronous iterator over the changes from this call on. See `Table.changes`."""
        changes = AsyncChanges(self._client._driver)
        self._follow(changes)
        return changes

    async def to_arrow(self, fields: Fields = None) -> pa.Table:
        """Returns the records as a `pyarrow.Table`, one row for each. See `Query.to_arrow`."""
        return await self._arrow(fields)

    async def to_pandas(self, fields: Fields = None) -> pd.DataFrame:
        """Returns the records as a pandas data frame. See `Query.to_arrow`."""
        return pandas_frame(await self.to_arrow(fields))

    async def to_polars(self, fields: Fields = None) -> pl.DataFrame:
        """Returns the records as a polars data frame. See `Query.to_arrow`."""
        return polars_frame(await self.to_arrow(fields))

    async def close(self) -> None:
        """Ends the table: it stays as it is, and all `changes()` end. Does nothing when it is closed."""
        await self._close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
