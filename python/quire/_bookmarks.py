"""Where a replay begins: the forms in which a bookmark may be given."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final

from quire._errors import BadBookmarkError

#: The beginning of the log.
EPOCH: Final = "0"
#: The end of the log at the moment of the subscription.
NOW: Final = "0|1|"
#: Behind the last message that this client processed under the same `sub_id`; EPOCH when there was none.
#: Never sent.
MOST_RECENT: Final = "most_recent"

Bookmark = str | datetime | Iterable[str]


def to_text(bookmark: Bookmark) -> str:
    """The text for the wire.

    - text as it is: a bookmark, a comma-separated list, or a time such as "20150102T123500Z"
    - an aware `datetime` (a naive one could mean two moments)
    - several bookmarks: replay starts after the oldest
    """
    if isinstance(bookmark, str):
        return bookmark
    if isinstance(bookmark, datetime):
        if bookmark.tzinfo is None:
            raise BadBookmarkError(f"the time {bookmark.isoformat()} has no time zone")
        utc = bookmark.astimezone(UTC)
        fraction = f".{utc.microsecond:06}" if utc.microsecond else ""
        return f"{utc:%Y%m%dT%H%M%S}{fraction}Z"
    try:
        parts = list(bookmark)
    except TypeError:
        parts = []
    if parts and all(isinstance(part, str) for part in parts):
        return ",".join(parts)
    raise BadBookmarkError(f"{bookmark!r} is not a bookmark: text, an aware datetime, or a list of bookmarks")
