"""Where a replay begins or ends: the one reader of bookmarks and times for calls, commands, options
of Spark and the configuration.

docs/replay.md lists the forms.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Final, TypeAlias

from quire._errors import BadBookmarkError, ConfigError
from quire._message import Message
from quire._quire import BOOKMARKS_MAX, Record
from quire._units import seconds

#: The beginning of the log.
EPOCH: Final = "0"
#: The end of the log at the moment of the subscription.
NOW: Final = "0|1|"
#: After the last message that this client processed under the same `sub_id`; EPOCH when there was
#: none. The client never sends it.
MOST_RECENT: Final = "most_recent"

#: A bookmark, a time, or text with one of them.
Point: TypeAlias = str | datetime | Message | Record
#: One of them, or a list: then the oldest counts. A tuple would look like a range.
Bookmark: TypeAlias = Point | list[str] | list[datetime] | list[Message] | list[Record] | list[Point]

_NAMED: Final = {"epoch": EPOCH, "0|0|": EPOCH, "now": NOW, EPOCH: EPOCH, NOW: NOW}
_BOOKMARK: Final = re.compile(r"([0-9]{1,20})\|([0-9]{1,20})\|")
_COMPACT_TIME: Final = re.compile(r"[0-9]{8}T[0-9]{6}(?:\.[0-9]{1,9})?Z?")
#: Text that `datetime` reads and that cannot be a bookmark or another number than a date.
_ISO_TIME: Final = re.compile(r"[0-9]{8}|[0-9]{4}-?[0-9W].*[-T ].*")
#: Digits after the microseconds, which `datetime` drops.
_FINER: Final = re.compile(r"[0-9][.,][0-9]{6}([0-9]{1,3})")

_UNIX_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
#: The first year that a time of the log cannot have.
_YEAR_END: Final = 2554

_EXPECTED: Final = (
    'expected "epoch", "now", a bookmark such as "4711|17|", or a time such as "2026-01-31T12:00:00Z"'
)


def point_to_core(point: Point, key: str, *, is_exact: bool = False) -> str:
    """Returns one bookmark or time as the core reads it. Raises `BadBookmarkError` that names `key`.

    A `datetime` is a whole microsecond of the log, whose times have nanoseconds. It means the end
    of the microsecond: a range up to the `timestamp` of a message has the message, and a range from
    there does not have it. With `is_exact` it is the beginning.
    """
    match point:
        case str():
            return _text_to_core(point.strip(), key)
        case datetime():
            # `NaT` of pandas is not equal to itself, and has no time.
            if point != point:
                raise _not_a_bookmark(point, key)
            if point.utcoffset() is None:
                reason = f"the time {point.isoformat()} has no time zone, add one such as datetime.UTC"
                raise BadBookmarkError(reason, key=key)
            # pandas has datetimes with nanoseconds.
            ns: int | None = getattr(point, "nanosecond", None)
            finer = ("" if is_exact else "999") if ns is None else f"{ns:03}"
            return _time_to_core(point, finer, key)
        case Message() | Record():
            if point.bookmark is None:
                reason = f"the message on {point.topic!r} has no bookmark, because it was not recorded"
                raise BadBookmarkError(reason, key=key)
            return point.bookmark
        case _:
            raise _not_a_bookmark(point, key)


def bookmark_to_core(bookmark: Bookmark, key: str, *, is_exact: bool = False) -> str:
    """Returns one or several bookmarks or times as the core reads them. Raises `BadBookmarkError`
    that names `key`.

    `is_exact`: as of `point_to_core`.
    """
    points: list[Point]
    if isinstance(bookmark, tuple):
        reason = "a tuple is neither a range nor a list: give the end of a range as `until`, and several bookmarks as a list"
        raise BadBookmarkError(reason, key=key)
    if isinstance(bookmark, str):
        points = list(bookmark.split(","))
    elif isinstance(bookmark, (datetime, Message, Record)):
        points = [bookmark]
    else:
        try:
            points = list(bookmark)
        except TypeError:
            points = []
        if not points:
            raise _not_a_bookmark(bookmark, key)
    if len(points) > BOOKMARKS_MAX:
        raise BadBookmarkError(f"a list of {len(points)} bookmarks, the limit is {BOOKMARKS_MAX}", key=key)
    return ",".join(point_to_core(point, key, is_exact=is_exact) for point in points)


def range_to_core(bookmark: Bookmark, key: str, *, keeps_place: bool = True) -> str:
    """As `bookmark_to_core`. Also reads a range, such as "[A:B]", and `MOST_RECENT` if the caller
    `keeps_place`."""
    if not isinstance(bookmark, str):
        return bookmark_to_core(bookmark, key)
    text = bookmark.strip()
    if text == MOST_RECENT:
        if not keeps_place:
            reason = f'"{text}" is the position that a program keeps, and a command keeps none'
            raise BadBookmarkError(f'{reason}: use the last bookmark that it printed, or "epoch"', key=key)
        return text
    if not text.startswith(("[", "(")):
        try:
            return bookmark_to_core(text, key)
        except BadBookmarkError as error:
            if not keeps_place or not str(error).endswith(_EXPECTED):
                raise
            reason = str(error).removeprefix(f"{key}: ")
            raise BadBookmarkError(f'{reason}, or "{MOST_RECENT}" with a sub_id', key=key) from None
    if text.endswith(("]", ")")):
        # Times have colons, too: the range is cut at the first colon that leaves two places.
        inner = text[1:-1]
        for colon in re.finditer(":", inner):
            begin = _side_to_core(inner[: colon.start()], bookmark_to_core)
            end = _side_to_core(inner[colon.end() :], point_to_core)
            if begin is not None and end is not None:
                return f"{text[0]}{begin}:{end}{text[-1]}"
    raise BadBookmarkError(f'{_shown(text)} is not a range such as "[A:B]" of bookmarks or times', key=key)


def until_to_core(bookmark: Bookmark, until: Point, key: str) -> str:
    """Returns the range of the messages after `bookmark` up to `until`, including it.

    Raises `BadBookmarkError` for a `bookmark` that is a range, or `MOST_RECENT`.
    """
    end = point_to_core(until, "until")
    if isinstance(bookmark, str) and bookmark.strip().startswith(("[", "(", MOST_RECENT)):
        reason = f"{_shown(bookmark)} does not go together with `until`: expected a bookmark or a time"
        raise BadBookmarkError(reason, key=key)
    return f"({bookmark_to_core(bookmark, key)}:{end}]"


def message_bookmarks(bookmarks: Point | Iterable[Point], key: str) -> list[str]:
    """Returns bookmarks of messages, without times and `EPOCH`. Raises `BadBookmarkError` that
    names `key`."""
    named = [bookmarks] if isinstance(bookmarks, (str, datetime, Message, Record)) else bookmarks
    try:
        points = [part for each in named for part in (each.split(",") if isinstance(each, str) else [each])]
    except TypeError:
        raise _not_a_bookmark(bookmarks, key) from None
    texts = []
    for point in points:
        is_bookmark = not isinstance(point, str) or _BOOKMARK.fullmatch(point.strip()) is not None
        text = point_to_core(point, key) if is_bookmark else str(point)
        if not is_bookmark or text in (EPOCH, NOW) or is_time(text):
            raise BadBookmarkError(
                f'{_shown(text)} is not the bookmark of a message, such as "4711|17|"', key=key
            )
        texts.append(text)
    return texts


def one_message(bookmark: Point, key: str) -> str:
    """Returns the bookmark of one message. Raises `BadBookmarkError` that names `key`."""
    names = message_bookmarks(bookmark, key)
    if len(names) != 1:
        raise BadBookmarkError(f"{len(names)} bookmarks, where one is expected", key=key)
    return names[0]


def is_time(text: str) -> bool:
    """Whether text of the core is a time, and not a bookmark."""
    return _COMPACT_TIME.fullmatch(text) is not None


def is_as_in_core(text: str) -> bool:
    """Whether the core reads this text of bookmarks and times as it is."""
    parts = [part.strip() for part in text.split(",")]
    return all(
        part in (EPOCH, "0|0|") or is_time(part) or _BOOKMARK.fullmatch(part) is not None for part in parts
    )


def time_ns(text: str) -> int | None:
    """Returns the time in nanoseconds since 1970, which may be below 0; `None` when the text is not
    a time."""
    if (found := _read_time(text.strip())) is None:
        return None
    moment, finer = found
    return (moment - _UNIX_EPOCH) // timedelta(microseconds=1) * 1000 + int(finer.ljust(3, "0"))


def moment_of(text: str) -> datetime | None:
    """Returns the time, UTC when the text names no zone; `None` when the text is not a time."""
    found = _read_time(text.strip())
    return found[0] if found else None


def instant_to_core(ns: int) -> str:
    """Returns nanoseconds since 1970 as a time that the core reads, to the microsecond."""
    return _time_to_core(_UNIX_EPOCH + timedelta(microseconds=ns // 1000), "", "time")


def _text_to_core(text: str, key: str) -> str:
    if (named := _NAMED.get(text.lower())) is not None:
        return named
    if bookmark := _BOOKMARK.fullmatch(text):
        if all(int(number) < 2**64 for number in bookmark.groups()):
            return text
    elif found := _read_time(text):
        return _time_to_core(*found, key)
    elif text.startswith("-"):
        try:
            ns = time.time_ns() - round(seconds(text[1:], key) * 1e9)
        except ConfigError:
            raise _not_a_bookmark(text, key) from None
        return _time_to_core(_UNIX_EPOCH + timedelta(microseconds=ns // 1000), f"{ns % 1000:03}", key)
    raise _not_a_bookmark(text, key)


def _read_time(text: str) -> tuple[datetime, str] | None:
    """Returns the time, and its digits after the microseconds. UTC when the text names no zone."""
    text = text.upper()
    if _COMPACT_TIME.fullmatch(text) is None and _ISO_TIME.fullmatch(text) is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    finer = _FINER.search(text)
    return moment.replace(tzinfo=moment.tzinfo or UTC), finer[1] if finer else ""


def _time_to_core(moment: datetime, finer: str, key: str) -> str:
    try:
        utc = moment.astimezone(UTC)
    except OverflowError:
        utc = datetime.min  # beyond all that a `datetime` holds
    if not 1970 <= utc.year < _YEAR_END:
        reason = f"the time {moment.isoformat()} is not between the years 1970 and {_YEAR_END - 1}"
        raise BadBookmarkError(reason, key=key)
    fraction = f".{utc.microsecond:06}{finer}" if utc.microsecond or finer else ""
    return f"{utc:%Y%m%dT%H%M%S}{fraction}Z"


def _side_to_core(text: str, read: Callable[[str, str], str]) -> str | None:
    """One side of a range, which may be empty; `None` when it is not a place."""
    try:
        return read(text, "") if text.strip() else ""
    except BadBookmarkError:
        return None


def _not_a_bookmark(value: object, key: str) -> BadBookmarkError:
    if isinstance(value, str):
        return BadBookmarkError(f"{_shown(value)} is not a bookmark or a time: {_EXPECTED}", key=key)
    reason = f"expected a bookmark, a time or a Message, or a list of them, got `{type(value).__name__}`"
    return BadBookmarkError(reason, key=key)


def _shown(text: str) -> str:
    """The text as Python writes it; of a long one the beginning."""
    return repr(text if len(text) <= 64 else f"{text[:64]}…")
