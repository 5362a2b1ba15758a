"""What both clients share and what needs no waiting: the options, the book of subscriptions, the places in
the log."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Generic, TypeVar

from quire import _quire
from quire._bookmarks import MOST_RECENT
from quire._errors import ConfigError, SubscriptionInUseError
from quire._options import ClientOptions, Health
from quire._stores import BookmarkStore
from quire._subscription import SubscriptionBase

logger = logging.getLogger("quire.client")

S = TypeVar("S", bound=SubscriptionBase)
H = TypeVar("H")

#: Refusals of an `unsubscribe` that change nothing: the server ended the subscription before, so that what was asked for is so.
ENDED_BEFORE = ("unknown_subscription", "shutting_down")


class ClientBase(Generic[S, H]):
    """The state of a client beside its core."""

    def __init__(self, options: ClientOptions) -> None:
        self._options = options
        self._subscriptions: dict[str, S] = {}
        self._subscription_count = 0
        self._handlers: dict[int, H] = {}
        #: A bookmark store that was opened for this client alone, and is closed with it.
        self._own_places: BookmarkStore | None = None

    @property
    def name(self) -> str:
        """The publisher's identity."""
        return self._options.name

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(self._options.urls)}, name={self.name!r})"

    def _start_core(self) -> _quire.Client:
        """The running client of the core, which begins to connect, with its stores."""
        places = self._options.bookmark_store
        if places is not None and not isinstance(places, BookmarkStore):
            places = self._own_places = BookmarkStore(places)
        try:
            return self._options.start(places)
        except BaseException:
            self._close_stores()
            raise

    def _close_stores(self) -> None:
        """Nothing of the client is processed any more. The core closes the publish store itself."""
        if self._own_places is not None:
            self._own_places.close()

    def _new_sub_id(self, sub_id: str | None, bookmark: str | None) -> str:
        if sub_id is None:
            if bookmark == MOST_RECENT:
                raise ConfigError(
                    "MOST_RECENT needs a sub_id=, the name under which a place was kept", key="bookmark"
                )
            self._subscription_count += 1
            return f"subscription-{self._subscription_count}"
        if not sub_id:
            raise ConfigError("it is empty", key="sub_id")
        if sub_id in self._subscriptions:
            raise SubscriptionInUseError(f"this client already has a subscription {sub_id!r}", key="sub_id")
        return sub_id

    def _forget(self, sub_id: str) -> S | None:
        """Takes a subscription out of the book."""
        return self._subscriptions.pop(sub_id, None)

    def _forget_handlers(self, core: _quire.Client) -> None:
        """Of subscriptions that have ended, when all that came for them is handled."""
        for number in core.handled_ended():
            self._handlers.pop(number, None)

    def _unprocessed(self, core: _quire.Client, subscriptions: Iterable[S]) -> int:
        """Messages of these subscriptions, and of those with handlers, that were received and not processed."""
        return core.handled_count + sum(s._core.outstanding_count for s in subscriptions)

    def _chosen(self, subscriptions: Iterable[S] | None) -> list[S]:
        """Those that were named; left out: all that can be paused."""
        if subscriptions is not None:
            return list(subscriptions)
        return [s for s in self._subscriptions.values() if s._spec.bookmark is not None]

    def _not_flushed(self, core: _quire.Client) -> TimeoutError:
        """What to raise when a flush was not answered in time: what waits, and for what."""
        count = core.unpersisted_count
        waiting = f"{count} publishes are not persisted yet" if count else "the flush is not answered yet"
        if core.state == "connected":
            return TimeoutError(waiting)
        because = "" if core.last_error is None else f": {core.last_error}"
        return TimeoutError(f"{waiting}, and there is no connection{because}")

    def _health_of(self, core: _quire.Client) -> Health:
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
        )


def moment(seconds: float | None) -> datetime | None:
    """A time of the core."""
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)
