"""What both clients share and what needs no waiting: the options, the book of subscriptions, the places in
the log."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Generic, TypeVar

from quire import _quire
from quire._bookmarks import EPOCH, MOST_RECENT
from quire._errors import ConfigError, SubscriptionInUseError
from quire._options import ClientOptions, Health, Spec
from quire._subscription import SubscriptionBase

logger = logging.getLogger("quire.client")

S = TypeVar("S", bound=SubscriptionBase)


class ClientBase(Generic[S]):
    """The state of a client beside its core."""

    def __init__(self, options: ClientOptions) -> None:
        self._options = options
        self._subscriptions: dict[str, S] = {}
        #: The places of the subscriptions that have ended, for MOST_RECENT.
        self._most_recent: dict[str, str] = {}
        self._subscription_count = 0

    @property
    def name(self) -> str:
        """The publisher's identity."""
        return self._options.name

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(self._options.urls)}, name={self.name!r})"

    def _new_sub_id(self, sub_id: str | None) -> str:
        if sub_id is None:
            self._subscription_count += 1
            return f"subscription-{self._subscription_count}"
        if not sub_id:
            raise ConfigError("it is empty", key="sub_id")
        if sub_id in self._subscriptions:
            raise SubscriptionInUseError(f"this client already has a subscription {sub_id!r}", key="sub_id")
        return sub_id

    def _located(self, spec: Spec, sub_id: str) -> Spec:
        """The same with the bookmark that `MOST_RECENT` stands for."""
        if spec.bookmark != MOST_RECENT:
            return spec
        return replace(spec, bookmark=self._most_recent.get(sub_id, EPOCH))

    def _forget(self, sub_id: str) -> S | None:
        """Takes a subscription out of the book and keeps its place."""
        subscription = self._subscriptions.pop(sub_id, None)
        if subscription is not None and subscription.most_recent is not None:
            self._most_recent[sub_id] = subscription.most_recent
        return subscription

    def _chosen(self, subscriptions: Iterable[S] | None) -> list[S]:
        """Those that were named; left out: all that can be paused."""
        if subscriptions is not None:
            return list(subscriptions)
        return [s for s in self._subscriptions.values() if s._spec.bookmark is not None]

    def _health_of(self, core: _quire.Client) -> Health:
        heard, by_number = core.heard()
        return Health(
            state=core.state,
            persisted=core.persisted,
            unpersisted=core.unpersisted_count,
            last_error=core.last_error,
            last_heard=moment(heard),
            subscriptions=tuple(
                s._health(moment(by_number.get(s._core.number))) for s in list(self._subscriptions.values())
            ),
        )


def moment(seconds: float | None) -> datetime | None:
    """A time of the core."""
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)
