"""The arguments of a subscription, and of its changes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from decimal import Decimal
from enum import Enum
from numbers import Real
from typing import TYPE_CHECKING, Any, Final, Literal, Self

from quire import _quire
from quire._arguments import (
    backlog_to_core,
    check_function,
    check_type,
    delta_to_core,
    timeout_to_core,
)
from quire._bookmarks import Bookmark, Point, range_to_core, until_to_core
from quire._errors import ConfigError
from quire._filter import FilterArgument, optional_filter_to_core
from quire._message import Message
from quire._units import Duration
from quire.client._driver import Handler

if TYPE_CHECKING:
    from quire.client._records import Records


class _Kept(Enum):
    KEPT = "kept"

    def __repr__(self) -> str:
        return "..."


#: Left out of a replacement, and so not changed.
KEPT: Final = _Kept.KEPT
Kept = Literal[_Kept.KEPT]
#: Where a replay begins when its bookmark is not in the log; `"fail"`: it is refused.
BookmarkNotFound = Literal["epoch", "now", "fail"]
_NOT_FOUND_OPTIONS: Final[dict[str, int]] = {"epoch": 0, "fail": 1 << 4, "now": 1 << 5}
#: The members of `Change` that belong to the query of a subscription.
_OF_QUERY: Final = ("keys", "order_by", "top_n", "skip_n")
#: The leases of queue messages that a client renews: until the program has the message, also while
#: a handler runs, none.
Renewal = Literal["until_begun", "while_handled", "never"]
#: Text as on the wire, or messages per second.
Rate = str | float | int


#: As many as the core takes without an argument.
AHEAD_COUNT = 1024


@dataclass(frozen=True)
class Spec:
    """The arguments of `subscribe`, which are documented there.

    The members have the form in which the core reads them by their names: bookmarks, rates and
    fields are text, durations are `timedelta`.
    """

    topic: str
    _: KW_ONLY
    filter: FilterArgument | None = None
    bookmark: Bookmark | None = None
    #: `None` after the initialization: it is a part of `bookmark` then.
    until: Point | None = None
    bookmark_not_found: BookmarkNotFound = "epoch"
    max_backlog: int | None = None
    live: bool = False
    fully_durable: bool = False
    paused: bool = False
    completed: bool = False
    deletions: bool = False
    rate: Rate | None = None
    rate_max_gap: Duration | None = None
    conflation: Duration | None = None
    conflation_key: str | Iterable[str] | None = None
    select: str | Iterable[str] | None = None
    on_message: Handler | None = None
    sub_id: str | None = None
    timeout: Duration | None = None

    def __post_init__(self) -> None:
        check_type(self.topic, str, "topic")
        check_type(self.sub_id, str, "sub_id", optional=True)
        for key in ("live", "fully_durable", "paused", "completed", "deletions"):
            check_type(getattr(self, key), bool, key)
        if self.on_message is not None:
            check_function(self.on_message, "on_message")
        if self.bookmark_not_found not in _NOT_FOUND_OPTIONS:
            reason = f"{self.bookmark_not_found!r} is not 'epoch', 'now' or 'fail'"
            raise ConfigError(reason, key="bookmark_not_found")
        for name, value in {
            "filter": optional_filter_to_core(self.filter),
            "bookmark": _range_to_core(self.bookmark, self.until),
            "until": None,
            "max_backlog": backlog_to_core(self.max_backlog),
            "rate": _rate_to_core(self.rate),
            "rate_max_gap": delta_to_core(self.rate_max_gap, "rate_max_gap"),
            "conflation": delta_to_core(self.conflation, "conflation"),
            "conflation_key": fields_to_core(self.conflation_key, "conflation_key"),
            "select": fields_to_core(self.select, "select"),
            "timeout": timeout_to_core(self.timeout),
        }.items():
            object.__setattr__(self, name, value)

    def check_together(self) -> None:
        """Raises `ConfigError` for arguments that do not go together."""
        _quire.check_subscription(self)

    @property
    def ahead(self) -> int:
        """Messages that an iteration takes from the connection at a time."""
        return AHEAD_COUNT

    @property
    def options(self) -> int:
        """The option bits of the wire (docs/protocol.md, `subscribe`)."""
        not_found = _NOT_FOUND_OPTIONS[self.bookmark_not_found]
        return self.live << 1 | self.fully_durable << 2 | self.paused << 3 | self.deletions << 10 | not_found

    @property
    def records(self) -> Records | None:
        """The query with which the subscription begins; `None` for a subscription without one."""
        return None

    def with_query(self, changed: dict[str, Any]) -> Self:
        """The subscription with other members of its query. Raises `ConfigError` when it has no query."""
        for key in changed:
            raise ConfigError("only a subscription that began with a query has it", key=key)
        return self

    @property
    def wants_completed(self) -> bool:
        """Every replay reports when it has caught up, so that `completed` is right."""
        return self.completed or self.bookmark is not None


@dataclass(frozen=True)
class BlockingSpec(Spec):
    """The arguments of the blocking client's `subscribe`: its handlers cannot be coroutine functions."""

    on_message: Callable[[Message], None] | None = field(default=None, kw_only=True)


@dataclass(frozen=True, kw_only=True)
class Change:
    """The arguments of `Subscription.replace`, which are documented there."""

    filter: FilterArgument | Kept | None = KEPT
    topic: str | None = None
    bookmark: Bookmark | None = None
    until: Point | None = None
    live: bool | None = None
    fully_durable: bool | None = None
    max_backlog: int | None = None
    rate: Rate | Kept | None = KEPT
    rate_max_gap: Duration | Kept | None = KEPT
    conflation: Duration | Kept | None = KEPT
    conflation_key: str | Iterable[str] | Kept | None = KEPT
    select: str | Iterable[str] | Kept | None = KEPT
    keys: str | Iterable[str] | Kept | None = KEPT
    order_by: str | Kept | None = KEPT
    top_n: int | None = None
    skip_n: int | None = None
    timeout: Duration | None = None

    def of(self, spec: Spec) -> Spec:
        """Returns the arguments of the subscription after the change."""
        said: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        changed = {
            field.name: said[field.name] for field in fields(self) if said[field.name] is not field.default
        }
        _check_until(self.bookmark, self.until)
        of_query: dict[str, Any] = {key: changed.pop(key) for key in _OF_QUERY if key in changed}
        return replace(spec.with_query(of_query), **changed)


def _range_to_core(bookmark: Bookmark | None, until: Point | None) -> str | None:
    _check_until(bookmark, until)
    if bookmark is None:
        return None
    if until is not None:
        return until_to_core(bookmark, until, "bookmark")
    return range_to_core(bookmark, "bookmark")


def _check_until(bookmark: Bookmark | None, until: Point | None) -> None:
    """The end of a range is a part of the bookmark on the wire, so that the spec does not have it."""
    if until is not None and bookmark is None:
        _quire.check_options(["until"], False)


def _rate_to_core(rate: Rate | None) -> str | None:
    """A number is messages per second."""
    if rate is None:
        return None
    if isinstance(rate, bool) or not isinstance(rate, (str, Real, Decimal)):
        reason = 'expected messages per second, or text such as "500KB" or "2X"'
        raise ConfigError(f"{reason}, got `{type(rate).__name__}`", key="rate")
    text = rate if isinstance(rate, str) else f"{rate:f}"
    try:
        _quire.Pace(text, None)
    except ConfigError as error:
        raise ConfigError(error.reason.removeprefix("rate: "), key="rate") from None
    return text


def fields_to_core(fields: str | Iterable[str] | None, key: str) -> str | None:
    """One text as on the wire, or its parts."""
    return None if fields is None else ",".join(texts_to_core(fields, key))


def texts_to_core(texts: str | Iterable[str], key: str) -> list[str]:
    """One text, or several. Raises `ConfigError` for none."""
    given: object = texts
    parts: list[Any] = list(given) if isinstance(given, Iterable) and not isinstance(given, str) else [given]
    if not parts:
        raise ConfigError("the list is empty", key=key)
    for part in parts:
        check_type(part, str, key)
    return parts
