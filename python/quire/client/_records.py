"""The arguments of the calls on last-value topics, and the logic of these calls for both clients."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from inspect import signature
from typing import TYPE_CHECKING, Any, Final, Self

from quire import _quire
from quire._arguments import check_function, check_timeout, check_type, count_to_core, timeout_to_core
from quire._bookmarks import Point, point_to_core
from quire._errors import ConfigError, NotLastValueError, UnknownQueueError
from quire._filter import FilterArgument, optional_filter_to_core
from quire._message import Message, to_bytes
from quire._units import Duration
from quire.client._driver import Handler
from quire.client._spec import Rate, Spec, fields_to_core, texts_to_core

if TYPE_CHECKING:
    from quire.client._base import ClientBase


@dataclass(frozen=True)
class QuerySpec:
    """The arguments of `sow`, which are documented there. The core reads the members by their names."""

    topic: str
    _: KW_ONLY
    filter: FilterArgument | None = None
    order_by: str | None = None
    top_n: int | None = None
    skip_n: int | None = None
    keys: str | Iterable[str] | None = None
    bookmark: Point | None = None
    select: str | Iterable[str] | None = None
    projection: str | Iterable[str] | None = None
    grouping: str | Iterable[str] | None = None
    batch_size: int | None = None
    timeout: Duration | None = None

    def __post_init__(self) -> None:
        check_type(self.topic, str, "topic")
        check_type(self.order_by, str, "order_by", optional=True)
        # Most members are left out, and a query by key takes some microseconds.
        for name, to_core in _QUERY_TO_CORE.items():
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, to_core(value))
        _check_skip(self.skip_n, self.top_n)
        if self.projection is None and self.grouping is not None:
            raise ConfigError("it requires `projection`", key="grouping")
        if self.projection is not None and self.select is not None:
            raise ConfigError("a projection has its own fields: leave it out", key="select")


#: The members of `QuerySpec` that the core reads in another form.
_QUERY_TO_CORE: Final[dict[str, Callable[[Any], Any]]] = {
    "filter": optional_filter_to_core,
    "top_n": lambda count: count_to_core(count, "top_n"),
    "skip_n": lambda count: count_to_core(count, "skip_n"),
    "keys": lambda keys: keys_to_core(keys),
    "bookmark": lambda point: point_to_core(point, "bookmark"),
    "select": lambda fields: fields_to_core(fields, "select"),
    "projection": lambda entries: texts_to_core(entries, "projection"),
    "grouping": lambda fields: texts_to_core(fields, "grouping"),
    "batch_size": lambda count: _batch_size(count),
    "timeout": timeout_to_core,
}


@dataclass(frozen=True)
class Records:
    """The query of a subscription. The core reads the members by their names."""

    order_by: str | None = None
    top_n: int | None = None
    skip_n: int | None = None
    keys: list[str] | None = None
    oof: bool = False
    projection: list[str] | None = None
    grouping: list[str] | None = None

    def with_changes(self, changed: dict[str, Any]) -> Records:
        """The query with other members. Raises `ConfigError` for those that only a page can change."""
        for key in ("order_by", "top_n", "skip_n"):
            if key in changed and self.skip_n is None:
                raise ConfigError("only a page, a subscription with `skip_n`, can change it", key=key)
            if key in changed and key != "order_by":
                changed[key] = count_to_core(changed[key], key)
        check_type(changed.get("order_by"), str, "order_by", optional=True)
        if "keys" in changed:
            changed["keys"] = keys_to_core(changed["keys"])
        return replace(self, **changed)


@dataclass(frozen=True)
class Differences:
    """Only the fields that differ in each change."""

    no_empties: bool

    @property
    def options(self) -> int:
        """The option bits of the wire."""
        return 1 << 8 | self.no_empties << 9


@dataclass(frozen=True)
class SpecWithRecords(Spec):
    """The arguments of a subscription that begins with a query."""

    query: Records = field(default_factory=Records, kw_only=True)
    delta: Differences | None = field(default=None, kw_only=True)
    batch_size: int | None = field(default=None, kw_only=True)

    @property
    def ahead(self) -> int:
        return self.batch_size or super().ahead

    @property
    def records(self) -> Records | None:
        return self.query

    def with_query(self, changed: dict[str, Any]) -> Self:
        return replace(self, query=self.query.with_changes(changed))

    @property
    def wants_completed(self) -> bool:
        """The end of the query is reported anyway."""
        return False

    @property
    def options(self) -> int:
        delta = 0 if self.delta is None else self.delta.options
        return super().options | 1 << 6 | self.query.oof << 7 | delta


@dataclass(frozen=True)
class SpecOfDeltas(Spec):
    """The arguments of a subscription to differences that does not begin with a query."""

    oof: bool = field(default=False, kw_only=True)
    delta: Differences = field(kw_only=True)

    @property
    def options(self) -> int:
        return super().options | self.oof << 7 | self.delta.options


@dataclass(frozen=True)
class DeltaSpec:
    """The arguments of `delta_subscribe`, which are documented there."""

    topic: str
    _: KW_ONLY
    filter: FilterArgument | None = None
    select: str | Iterable[str] | None = None
    oof: bool = False
    no_empties: bool = False
    conflation: Duration | None = None
    completed: bool = False
    on_message: Handler | None = None
    sub_id: str | None = None
    timeout: Duration | None = None

    def __post_init__(self) -> None:
        check_type(self.oof, bool, "oof")
        check_type(self.no_empties, bool, "no_empties")

    @property
    def spec(self) -> SpecOfDeltas:
        """The arguments of the subscription."""
        return SpecOfDeltas(
            self.topic,
            filter=self.filter,
            select=self.select,
            completed=self.completed,
            on_message=self.on_message,
            sub_id=self.sub_id,
            timeout=self.timeout,
            conflation=self.conflation,
            oof=self.oof,
            delta=Differences(self.no_empties),
        )


@dataclass(frozen=True)
class BlockingDeltaSpec(DeltaSpec):
    """The arguments of the blocking client's `delta_subscribe`: its handlers cannot be coroutine
    functions."""

    on_message: Callable[[Message], None] | None = field(default=None, kw_only=True)


@dataclass(frozen=True)
class _RecordsSpec:
    """The arguments that `sow_and_subscribe` and `sow_and_delta_subscribe` have in common."""

    topic: str
    _: KW_ONLY
    filter: FilterArgument | None = None
    order_by: str | None = None
    top_n: int | None = None
    keys: str | Iterable[str] | None = None
    select: str | Iterable[str] | None = None
    projection: str | Iterable[str] | None = None
    grouping: str | Iterable[str] | None = None
    batch_size: int | None = None
    oof: bool = False
    conflation: Duration | None = None
    completed: bool = False
    on_message: Handler | None = None
    sub_id: str | None = None
    timeout: Duration | None = None

    def __post_init__(self) -> None:
        check_type(self.topic, str, "topic")
        check_type(self.order_by, str, "order_by", optional=True)
        check_type(self.oof, bool, "oof")
        if self.on_message is not None:
            check_function(self.on_message, "on_message")
        _set(
            self,
            top_n=count_to_core(self.top_n, "top_n"),
            keys=keys_to_core(self.keys),
            batch_size=_batch_size(self.batch_size),
        )
        if self.projection is not None:
            _set(self, projection=texts_to_core(self.projection, "projection"))
        if self.grouping is not None:
            _set(self, grouping=texts_to_core(self.grouping, "grouping"))

    @property
    def spec(self) -> SpecWithRecords:
        """The arguments of the subscription."""
        keys: Any = self.keys
        groups: Any = {"projection": self.projection, "grouping": self.grouping}
        return SpecWithRecords(
            self.topic,
            filter=self.filter,
            select=self.select,
            completed=self.completed,
            on_message=self.on_message,
            sub_id=self.sub_id,
            timeout=self.timeout,
            conflation=self.conflation,
            query=Records(self.order_by, self.top_n, None, keys, self.oof, **groups),
            batch_size=self.batch_size,
        )


@dataclass(frozen=True)
class RecordsSpec(_RecordsSpec):
    """The arguments of `sow_and_subscribe`, which are documented there."""

    _: KW_ONLY
    skip_n: int | None = None
    bookmark: Point | None = None
    live: bool = False
    paused: bool = False
    rate: Rate | None = None
    rate_max_gap: Duration | None = None
    conflation_key: str | Iterable[str] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _set(
            self,
            skip_n=count_to_core(self.skip_n, "skip_n"),
            bookmark=None if self.bookmark is None else point_to_core(self.bookmark, "bookmark"),
        )

    @property
    def spec(self) -> SpecWithRecords:
        """The arguments of the subscription."""
        spec = super().spec
        return replace(
            spec,
            query=replace(spec.query, skip_n=self.skip_n),
            bookmark=self.bookmark,
            live=self.live,
            paused=self.paused,
            rate=self.rate,
            rate_max_gap=self.rate_max_gap,
            conflation_key=self.conflation_key,
        )


@dataclass(frozen=True)
class BlockingRecordsSpec(RecordsSpec):
    """The arguments of the blocking client's `sow_and_subscribe`: its handlers cannot be coroutine
    functions."""

    on_message: Callable[[Message], None] | None = field(default=None, kw_only=True)


def _check_skip(skip_n: int | None, top_n: int | None) -> None:
    if skip_n is not None:
        _quire.check_options(["sow", "skip_n", *(["top_n"] if top_n is not None else [])], False)


@dataclass(frozen=True)
class DeltaRecordsSpec(_RecordsSpec):
    """The arguments of `sow_and_delta_subscribe`, which are documented there."""

    no_empties: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_type(self.no_empties, bool, "no_empties")

    @property
    def spec(self) -> SpecWithRecords:
        """The arguments of the subscription."""
        return replace(super().spec, delta=Differences(self.no_empties))


@dataclass(frozen=True)
class BlockingDeltaRecordsSpec(DeltaRecordsSpec):
    """The arguments of the blocking client's `sow_and_delta_subscribe`."""

    on_message: Callable[[Message], None] | None = field(default=None, kw_only=True)


def _check_whole(
    call: str, whole: type[object], delta: type[object], *kind: str
) -> Callable[[dict[str, Any]], None]:
    """Returns a check of the arguments that `call` takes as `whole`, and its delta subscription
    does not take as `delta`.

    The check removes an argument with its default value: programs pass on the arguments that they
    have. It raises `ConfigError` for another value, with the rule that the options `kind` of the
    subscription break with it.
    """
    own = signature(delta).parameters
    others = {name: each.default for name, each in signature(whole).parameters.items() if name not in own}

    def check(given: dict[str, Any]) -> None:
        said = [name for name in others if name in given]
        for name in said:
            value, default = given[name], others[name]
            if value is default or (type(value) is type(default) and value == default):
                del given[name]
        if refused := [name for name in said if name in given]:
            try:
                _quire.check_options([*kind, *refused], False)
            except ConfigError as error:
                reason = error.reason.removeprefix(f"{error.key}: ")
                reason = f"{reason}. Use `{call}`, which delivers whole messages"
                raise ConfigError(reason, key=error.key) from None

    return check


#: The checks of the arguments that only `subscribe`, and only `sow_and_subscribe`, can have.
check_deltas: Final = _check_whole("subscribe", Spec, DeltaSpec, "delta")
check_delta_records: Final = _check_whole("sow_and_subscribe", RecordsSpec, DeltaRecordsSpec, "sow", "delta")


def keys_to_core(keys: str | Iterable[str] | None) -> list[str] | None:
    """The keys of records. Raises `ConfigError` for anything but texts."""
    if keys is None:
        return None
    given: object = keys
    if isinstance(given, (bytes, bytearray)) or not isinstance(given, Iterable):
        raise ConfigError(f"expected a list of texts, got `{type(given).__name__}`", key="keys")
    listed: list[Any] = [keys] if isinstance(keys, str) else list(keys)
    for key in listed:
        check_type(key, str, "keys")
    return listed


#: The most messages that an iteration takes from the connection at a time (reference 5.2).
BATCH_SIZE_MAX: Final = 10_000


def _batch_size(count: int | None) -> int | None:
    check_type(count, int, "batch_size", optional=True)
    if count is not None and not 1 <= count <= BATCH_SIZE_MAX:
        raise ConfigError(f"{count} is not between 1 and {BATCH_SIZE_MAX}", key="batch_size")
    return count_to_core(count, "batch_size")


def _set(spec: object, **members: object) -> None:
    """Converts the members of a frozen object to the form of the core."""
    for name, value in members.items():
        object.__setattr__(spec, name, value)


async def query(client: ClientBase[Any], spec: QuerySpec) -> _quire.Subscription:
    """Starts a query. Returns when the server has accepted it."""
    core = await client._ready()
    answers = core.query(spec)
    await client._reply(core, answers.command, spec.timeout, f"querying {spec.topic!r}")
    return answers


async def delete(
    client: ClientBase[Any],
    topic: str,
    keys: str | Iterable[str] | None,
    filter: FilterArgument | None,
    data: Any,
    bookmarks: str | Message | Iterable[str | Message] | None,
    timeout: Duration | None,
) -> int:
    """Deletes records, and returns their number. By bookmark, it acknowledges messages of a
    queue."""
    check_type(topic, str, "topic")
    check_timeout(timeout)
    listed, condition = keys_to_core(keys), optional_filter_to_core(filter)
    is_of_records = listed is not None or condition is not None or data is not None
    if bookmarks is not None:
        if is_of_records:
            raise ConfigError("it does not go together with keys, filter and data", key="bookmarks")
        return await client._settle(topic, bookmarks, None, False, False, None, timeout)
    if not is_of_records:
        raise ValueError("sow_delete: give at least one of keys, filter, data or bookmarks")
    core = await client._ready()
    body = None if data is None else to_bytes(data, client._options.encoder, topic)
    doing = f"deleting records of {topic!r}"
    send = partial(core.delete, topic, condition, listed, body)
    command = await client._publish_when_room(core, send, timeout, doing)
    try:
        return int(await client._told(core, command, timeout, doing))
    except NotLastValueError as error:
        if condition is None or listed is not None or data is not None:
            raise
        # The messages of a queue that match are acknowledged.
        try:
            return await client._settle(topic, None, condition, False, False, None, timeout)
        except UnknownQueueError:
            raise error from None
