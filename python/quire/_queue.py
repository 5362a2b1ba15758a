"""`quire.Queue`: the lease and fairness engine on its own, for services that want it without a server."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from quire import _quire
from quire._arguments import backlog_to_core, expiration_to_core, verdict_to_core
from quire._errors import ConfigError
from quire._filter import FilterArgument, optional_filter_to_core
from quire._message import to_bytes
from quire._units import Duration, seconds
from quire.config import Queue as QueueConfig
from quire.config._models import queue_of

#: Deliveries of one `dispatch` when nothing else is asked for.
DEFAULT_DISPATCH_COUNT = 1024


class Delivery(NamedTuple):
    """A message for a subscription."""

    #: Names the message in every other call.
    position: int
    subscription: int
    data: bytes
    #: When the lease ends, on the caller's clock; `None`: it has no end, or there is none.
    lease_deadline: float | None
    #: This delivery included; 0 for a barrier.
    delivery_count: int
    cancel_count: int
    #: Sent to all, not to be acknowledged.
    barrier: bool


class Expired(NamedTuple):
    """A message that left the queue without having been processed."""

    position: int
    data: bytes
    #: `time_limit`, `forced_expire`, `max_cancels`, `max_deliveries`; several can apply.
    reasons: tuple[str, ...]
    delivery_count: int
    cancel_count: int


class Queue:
    """A queue as a value that is driven (docs/queues.md): nothing waits, and nothing reads a clock.

    - `config`: the settings of a `[[queue]]`, as a mapping, as keywords, or as one of `Config.queue`; its
      name and its topics mean nothing here. Raises `ConfigError`

    The time is what the caller says: seconds from wherever it likes, never going back. `tick(now)` moves it,
    and everything that is due by then happens first. After any call, `dispatch` gives what can be delivered.

    A subscription belongs to a `connection`, a number of the caller's choice; with `leasing="strict"` only
    the connection that holds a message may settle it.
    """

    def __init__(self, config: QueueConfig | Mapping[str, Any] | None = None, /, **settings: Any) -> None:
        if config is None or isinstance(config, Mapping):
            known = {"name": "queue", "message_type": "json"}
            config = queue_of({**known, **(config or {}), **settings})
        elif settings:
            raise ConfigError(
                "give the settings as a mapping or as keywords, not beside a whole configuration"
            )
        given: object = config
        if not isinstance(given, QueueConfig):
            reason = f"expected a mapping or a quire.config.Queue, got `{type(given).__name__}`"
            raise ConfigError(reason, key="config")
        self._config = config
        self._core = _quire.Queue(json.dumps(config.to_core()))
        self._now = 0

    @property
    def now(self) -> float:
        """The time, in seconds."""
        return self._now / 1e9

    def tick(self, now: float) -> list[Expired]:
        """Moves the time to `now`: leases end and messages expire. Gives what has expired since the last call.

        A time that is not later than the last one moves nothing.
        """
        self._now = max(self._now, round(now * 1e9))
        return [
            Expired(position, data, tuple(reasons), deliveries, cancels)
            for position, data, reasons, deliveries, cancels in self._core.tick(self._now)
        ]

    @property
    def next_tick(self) -> float | None:
        """When `tick` has something to do though nothing else happens; not later than `now` while there is
        something to `dispatch`."""
        at = self._core.next_timeout
        return None if at is None else at / 1e9

    def enqueue(self, data: Any = b"", *, expiration: Duration | None = None) -> int | None:
        """Takes a message in: bytes, text, or anything JSON-serialisable. Gives its position, counted from 1;
        `None` when the queue's `filter` keeps it out.

        Its priority, and whether it is a barrier, are what the queue's expressions say of it.
        """
        return self._core.enqueue(to_bytes(data), expiration_to_core(expiration), self._now)

    def subscribe(
        self, *, max_backlog: int | None = None, filter: FilterArgument | None = None, connection: int = 0
    ) -> int:
        """Adds a subscription and gives its number. Raises `BadFilterError`.

        - `max_backlog`: the most messages that are not settled; 1 when left out, 0 for barriers only
        """
        return self._core.subscribe(connection, backlog_to_core(max_backlog), optional_filter_to_core(filter))

    def unsubscribe(self, subscription: int) -> None:
        """Ends a subscription, and returns its messages to the queue. Ignores an unknown number."""
        self._core.unsubscribe(subscription, self._now)

    def disconnect(self, connection: int = 0) -> None:
        """Ends all subscriptions of a connection."""
        self._core.disconnect(connection, self._now)

    def dispatch(self, max_messages: int = DEFAULT_DISPATCH_COUNT) -> list[Delivery]:
        """Leases what can be delivered now, each message to the subscription that the fairness model chooses."""
        return [
            Delivery(
                position, subscription, data, end if end is None else end / 1e9, deliveries, cancels, barrier
            )
            for position, subscription, data, end, deliveries, cancels, barrier in self._core.dispatch(
                max_messages, self._now
            )
        ]

    def ack(
        self,
        positions: int | Iterable[int] | None = None,
        *,
        filter: FilterArgument | None = None,
        cancel: bool = False,
        expire: bool = False,
        connection: int = 0,
    ) -> int:
        """Acknowledges messages, or every active one that a filter matches; gives how many it had an effect on.

        Positions that are not in the queue are passed over.
        """
        verdict = verdict_to_core(cancel, expire)
        if (positions is None) == (filter is None):
            raise ConfigError("ack takes positions or a filter (an empty one for every message), one of them")
        if positions is None:
            return self._core.settle_matching(
                connection, verdict, optional_filter_to_core(filter) or "", self._now
            )
        return self._settle(verdict, positions, None, connection)

    def cancel(
        self, positions: int | Iterable[int], delay: Duration | None = None, *, connection: int = 0
    ) -> int:
        """Gives messages back to the queue, which delivers them again after `delay`; left out: after its
        `retry_delay`."""
        delay_ms = None if delay is None else round(seconds(delay, "delay") * 1e3)
        return self._settle("cancel", positions, delay_ms, connection)

    def release(self, positions: int | Iterable[int], *, connection: int = 0) -> int:
        """Gives messages back that their consumer has not begun: their deliveries do not count."""
        return self._settle("release", positions, None, connection)

    def expire(self, positions: int | Iterable[int], *, connection: int = 0) -> int:
        """Throws messages out of the queue, unprocessed; `tick` tells of them."""
        return self.ack(positions, expire=True, connection=connection)

    def _settle(
        self, verdict: str, positions: int | Iterable[int], delay_ms: int | None, connection: int
    ) -> int:
        named = [positions] if isinstance(positions, int) else list(positions)
        return self._core.settle(connection, verdict, named, delay_ms, self._now)

    def extend(self, position: int, period: Duration | None = None, *, connection: int = 0) -> bool:
        """Lets a connection keep a message for another `period` from now on; left out: the queue's own.

        False when it does not hold it.
        """
        length = self._config.lease_period if period is None else seconds(period, "period")
        if length is None:
            raise ConfigError("period: the queue has no lease period of its own to extend by")
        return self._core.extend(connection, position, self._now + round(length * 1e9), self._now)

    def stats(self) -> dict[str, int | float | None]:
        """The figures of the queue (docs/queues.md section 10)."""
        found: dict[str, int | float | None] = {}
        for name, value in self._core.stats(self._now):
            if name.endswith("_ns"):
                found[name.removesuffix("_ns") + "_s"] = None if value is None else value / 1e9
            else:
                found[name] = value
        return found

    def __repr__(self) -> str:
        return f"Queue({self._config.semantics}, depth={self.stats()['depth']})"
