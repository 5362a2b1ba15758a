"""Converts the arguments of calls to the form of the core. Clients, journals and queues share it."""

from __future__ import annotations

import functools
import inspect
import math
import os
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from enum import Enum
from pathlib import Path
from typing import Any, Concatenate, Final, Literal, ParamSpec, TypeVar, cast

from quire._bookmarks import Point, message_bookmarks
from quire._errors import ConfigError
from quire._filter import FilterArgument, optional_filter_to_core
from quire._quire import CORRELATION_SIZE_MAX, DELAY_MAX_NS
from quire._text import check_unicode, nearest
from quire._units import Duration, seconds

_P = ParamSpec("_P")
_S = TypeVar("_S")
_A = TypeVar("_A")
_R = TypeVar("_R")


class _Auto(Enum):
    AUTO = "auto"

    def __repr__(self) -> str:
        return "quire.AUTO"


#: The next sequence number.
AUTO: Final = _Auto.AUTO
Auto = Literal[_Auto.AUTO]
SequenceArgument = int | Auto | None

#: A change of a link to another instance.
LinkAction = Literal["downgrade", "upgrade", "pause", "resume", "admit", "accept", "compare"]


def suggests(method: Callable[_P, _R]) -> Callable[_P, _R]:
    """Lets the error of a call with an unknown argument name the one that is probably meant.

    Each call takes a tenth of a microsecond longer, so `publish` and other calls for single
    messages do without it.
    """

    def explained(error: TypeError, given: Iterable[str]) -> TypeError:
        names = inspect.signature(method).parameters
        unknown = next((name for name in given if name not in names), None)
        close = nearest(unknown, names) if unknown else None
        return TypeError(f'{error}; did you mean "{close}"?') if close else error

    # By this, programs and frameworks recognize whether a function is to be awaited.
    if inspect.iscoroutinefunction(method):

        @functools.wraps(method)
        async def suggesting_later(*args: _P.args, **kwargs: _P.kwargs) -> Any:
            try:
                return await method(*args, **kwargs)
            except TypeError as error:
                raise explained(error, kwargs) from None

        return cast("Callable[_P, _R]", suggesting_later)

    @functools.wraps(method)
    def suggesting(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return method(*args, **kwargs)
        except TypeError as error:
            raise explained(error, kwargs) from None

    return suggesting


def takes(
    arguments: Callable[_P, _A],
    check_others: Callable[[dict[str, Any]], None] | None = None,
) -> Callable[[Callable[[_S, _A], _R]], Callable[Concatenate[_S, _P], _R]]:
    """Adds the arguments of a dataclass to a method, so that calls with many arguments have one
    list of them.

    The method itself takes the dataclass. `check_others` examines the arguments by name before: it
    removes those without an effect, and raises an error that explains others.
    """

    def decorate(method: Callable[[_S, _A], _R]) -> Callable[Concatenate[_S, _P], _R]:
        @functools.wraps(method)
        def taking(self: _S, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
            if check_others is not None:
                check_others(kwargs)
            try:
                taken = arguments(*args, **kwargs)
            except TypeError as error:
                # The caller uses the method, and not the dataclass.
                text = str(error).replace(f"{arguments.__qualname__}.__init__()", f"{method.__qualname__}()")
                if text == str(error):
                    raise
                unknown = next((name for name in kwargs if name not in names), None)
                close = nearest(unknown, names) if unknown else None
                raise TypeError(f'{text}; did you mean "{close}"?' if close else text) from None
            return method(self, taken)

        own = inspect.signature(method)
        names = inspect.signature(arguments).parameters
        parameters = [*list(own.parameters.values())[:1], *names.values()]
        taking.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
        return taking

    return decorate


_WORDS: Final = {str: "text", int: "a whole number", bool: "True or False"}


def check_type(value: object, kind: type[str | int], key: str, *, optional: bool = False) -> None:
    """Raises `ConfigError` that names the argument for a value of another type. `optional`: `None`
    is allowed."""
    if optional and value is None:
        return
    # NumPy's whole numbers are not `int`, and `True` is.
    is_whole = hasattr(type(value), "__index__") and not isinstance(value, bool)
    if not (is_whole if kind is int else isinstance(value, kind)):
        raise ConfigError(f"expected {_WORDS[kind]}, got `{type(value).__name__}`", key=key)
    if isinstance(value, str) and not value.isascii():
        check_unicode(value, key)


def check_path(value: object, key: str, *, optional: bool = False) -> None:
    """Raises `ConfigError` for what is not the path of a file or directory. An empty text would be
    the working directory."""
    if optional and value is None:
        return
    if not isinstance(value, (str, os.PathLike)):
        raise ConfigError(f"expected a path, got `{type(value).__name__}`", key=key)
    if not os.fspath(value):
        raise ConfigError("the path is empty", key=key)


def journal_inside(directory: Path) -> Path | None:
    """The journal in a data directory, for a hint where a journal directory was expected; `None`
    when the directory itself is one."""
    if any(directory.glob("*.journal")):
        return None
    return next((path.parent for path in sorted(directory.glob("*/*.journal"))), None)


def check_function(value: object, key: str) -> None:
    """Raises `ConfigError` for what cannot be called."""
    if not callable(value):
        raise ConfigError(f"expected a function, got `{type(value).__name__}`", key=key)


def sequence_to_core(sequence: SequenceArgument) -> int | None:
    """0 = the next one, `None` = without one."""
    if sequence is AUTO:
        return 0
    check_type(sequence, int, "sequence", optional=True)
    if sequence is not None and not 0 < sequence < 2**64:
        raise ConfigError(f"{sequence} is not between 1 and 2**64 - 1", key="sequence")
    return sequence


def correlation_to_core(correlation_id: str | None) -> str | None:
    """The correlation id of a message. Raises `ConfigError` for what cannot be one."""
    check_type(correlation_id, str, "correlation_id", optional=True)
    if correlation_id is None:
        return None
    size = len(correlation_id.encode())
    if size > CORRELATION_SIZE_MAX:
        raise ConfigError(f"expected at most {CORRELATION_SIZE_MAX} bytes, got {size}", key="correlation_id")
    return correlation_id


def expiration_to_core(expiration: Duration | None) -> int | None:
    """Whole seconds, rounded up: a message never expires early. 0 = never."""
    if expiration is None:
        return None
    result = math.ceil(seconds(expiration, "expiration"))
    return min(result, 2**32 - 1)


#: The longest delay of a message: ten years with their leap days.
DELAY_DAYS_MAX: Final = DELAY_MAX_NS // (86_400 * 10**9)
_UNIX_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

#: The end of a delay by the clock of the client, in nanoseconds since 1970. Then its length in
#: nanoseconds; `None` when the program named the end.
CoreDelay = tuple[int, int | None]


def delay_to_core(
    delay: Duration | None, deliver_at: datetime | None, lifetime: int | None
) -> CoreDelay | None:
    """The delay of a message; `None` when it has none. `lifetime`: as of `expiration_to_core`.

    Raises `ConfigError` for both arguments at once, a time without a time zone, a delay of more
    than ten years, and a message that would expire before its delay ends.
    """
    if delay is None and deliver_at is None:
        return None
    now = time.time_ns()
    length = None
    if deliver_at is None:
        assert delay is not None
        key, length = "delay", round(seconds(delay, "delay") * 1e9)
        if length == 0:
            return None
        end = now + length
    else:
        key = "deliver_at"
        if delay is not None:
            raise ConfigError("it does not go together with delay", key=key)
        given: object = deliver_at
        if not isinstance(given, datetime):
            raise ConfigError(f"expected a datetime, got `{type(given).__name__}`", key=key)
        if deliver_at.utcoffset() is None:
            reason = f"the time {deliver_at.isoformat()} has no time zone, add one such as datetime.UTC"
            raise ConfigError(reason, key=key)
        # A time before 1970 has passed like any other.
        end = max((deliver_at - _UNIX_EPOCH) // timedelta(microseconds=1) * 1000, 1)
    if end - now > DELAY_MAX_NS:
        shown = deliver_at.isoformat() if deliver_at is not None else repr(delay)
        raise ConfigError(f"{shown} is more than 10 years ({DELAY_DAYS_MAX:,} days) ahead", key=key)
    if lifetime and lifetime * 10**9 <= end - now:
        reason = f"the message would expire after {lifetime:,} s, before its delay ends ({key})"
        raise ConfigError(reason, key="expiration")
    return end, length


def delta_to_core(value: Duration | None, key: str) -> timedelta | None:
    """`None` is not converted: it means "not set"."""
    return None if value is None else delta_of(value, key)


def backlog_to_core(max_backlog: int | None) -> int | None:
    """The most messages of queues that a subscription may have outstanding; the server takes 1 for `None`."""
    return count_to_core(max_backlog, "max_backlog")


def count_to_core(count: int | None, key: str) -> int | None:
    """A number of messages as the protocol has it."""
    check_type(count, int, key, optional=True)
    if count is not None and not 0 <= count < 2**32:
        raise ConfigError(f"{count} is not between 0 and 2**32 - 1", key=key)
    return count


def verdict_to_core(cancel: bool, expire: bool) -> str:
    if cancel and expire:
        raise ConfigError("it does not go together with cancel", key="expire")
    return "cancel" if cancel else "expire" if expire else "acknowledge"


def selection_to_core(
    bookmarks: Point | Iterable[Point] | None, filter: FilterArgument | None
) -> list[str] | str:
    """Bookmarks, or a filter: the one of the two that was given."""
    if (bookmarks is None) == (filter is None):
        raise ConfigError(
            "expected bookmarks or a filter, one of them; an empty filter means every message",
            key="bookmarks",
        )
    if bookmarks is None:
        return optional_filter_to_core(filter) or ""
    return message_bookmarks(bookmarks, "bookmarks")


def check_timeout(timeout: Duration | None) -> None:
    """Raises `ConfigError` for what is not a duration, before anything is sent."""
    timeout_to_core(timeout)


def timeout_to_core(timeout: Duration | None) -> float | None:
    return None if timeout is None else seconds(timeout, "timeout")


def delta_of(value: Duration, key: str) -> timedelta:
    return timedelta(seconds=seconds(value, key))
