"""`quire.Queue`: the engine for leases and fairness, for services that use it without a server."""

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

#: Deliveries of one `dispatch` by default.
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
    """A message that left the queue unprocessed."""

    position: int
    data: bytes
    #: `time_limit`, `forced_expire`, `max_cancels`, `max_deliveries`; several can apply.
    reasons: tuple[str, ...]
    delivery_count: int
    cancel_count: int


class Queue:
    """A queue as a state machine (docs/queues.md). No call waits, and no call reads a clock.

    - `config`: the settings of a `[[queue]]`, as a mapping, as keywords, or as a queue of
      `Config.queue`. Its name and its topics are ignored. Raises `ConfigError`

    The caller supplies the time, in seconds from any start, and never less than before. `tick(now)`
    sets it, and first processes everything that is due until then. After any call, `dispatch`
    returns the messages that can be delivered.

    A subscription belongs to a `connection`, a number that the caller chooses. With
    `leasing="strict"`, only the connection that has a message can settle it.
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
        """Sets the time to `now`: leases end, and messages expire. Returns those that expired since
        the last call.

        A time that is not later than the last one changes nothing.
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

    def enqueue(
        self, data: Any = b"", *, expiration: Duration | None = None, delay: Duration | None = None
    ) -> int | None:
        """Adds a message. Returns its position, from 1, or `None` when the `filter` of the queue excludes it.

        The data is bytes, text, or anything that can become JSON. The expressions of the queue
        decide its priority, and whether it is a barrier. With `delay` it is not delivered before
        this time is over.
        """
        delay_ns = 0 if delay is None else round(seconds(delay, "delay") * 1e9)
        return self._core.enqueue(to_bytes(data), expiration_to_core(expiration), delay_ns, self._now)

    def subscribe(
        self, *, max_backlog: int | None = None, filter: FilterArgument | None = None, connection: int = 0
    ) -> int:
        """Adds a subscription, and returns its number. Raises `BadFilterError`.

        - `max_backlog`: limit of messages that are delivered and not settled. Without it: 1. With
          0, only barriers
        """
        return self._core.subscribe(connection, backlog_to_core(max_backlog), optional_filter_to_core(filter))

    def unsubscribe(self, subscription: int) -> None:
        """Ends a subscription, and returns its messages to the queue. Ignores an unknown number."""
        self._core.unsubscribe(subscription, self._now)

    def disconnect(self, connection: int = 0) -> None:
        """Ends all subscriptions of a connection."""
        self._core.disconnect(connection, self._now)

    def dispatch(self, max_messages: int = DEFAULT_DISPATCH_COUNT) -> list[Delivery]:
        """Leases the messages that can be delivered now. The fairness model chooses their subscriptions."""
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
        """Acknowledges messages, or all active messages that match a filter. Returns the number of
        changed messages.

        Positions that are not in the queue are ignored.
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
        """Returns messages to the queue, which delivers them again after `delay`, or its `retry_delay`."""
        delay_ms = None if delay is None else round(seconds(delay, "delay") * 1e3)
        return self._settle("cancel", positions, delay_ms, connection)

    def release(self, positions: int | Iterable[int], *, connection: int = 0) -> int:
        """Returns messages that their consumer has not begun. Their deliveries do not count."""
        return self._settle("release", positions, None, connection)

    def expire(self, positions: int | Iterable[int], *, connection: int = 0) -> int:
        """Removes messages from the queue, unprocessed. `tick` returns them."""
        return self.ack(positions, expire=True, connection=connection)

    def _settle(
        self, verdict: str, positions: int | Iterable[int], delay_ms: int | None, connection: int
    ) -> int:
        named = [positions] if isinstance(positions, int) else list(positions)
        return self._core.settle(connection, verdict, named, delay_ms, self._now)

    def extend(self, position: int, period: Duration | None = None, *, connection: int = 0) -> bool:
        """Renews the lease of a message for `period` from now. Without it: for the period of the queue.

        Returns `False` when the connection does not have the message.
        """
        length = self._config.lease_seconds if period is None else seconds(period, "period")
        if length is None:
            raise ConfigError("period: the queue has no lease period of its own to extend by")
        return self._core.extend(connection, position, self._now + round(length * 1e9), self._now)

    def stats(self) -> dict[str, int | float | None]:
        """Returns the figures of the queue (docs/queues.md section 10)."""
        found: dict[str, int | float | None] = {}
        for name, value in self._core.stats(self._now):
            if name.endswith("_ns"):
                found[name.removesuffix("_ns") + "_s"] = None if value is None else value / 1e9
            else:
                found[name] = value
        return found

    def __repr__(self) -> str:
        return f"Queue({self._config.semantics}, depth={self.stats()['depth']})"
