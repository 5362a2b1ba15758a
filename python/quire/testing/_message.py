"""`quire.testing.message` and `quire.testing.verdict`: messages for the test of a handler, without
a server."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal

from quire import _quire
from quire._arguments import correlation_to_core
from quire._bookmarks import Point, one_message
from quire._errors import ConfigError
from quire._message import Message, to_bytes
from quire._units import Duration, seconds

#: The default time at which the messages of `message` were received.
TIMESTAMP: Final = datetime(2026, 1, 1, tzinfo=UTC)

#: The lease period of a lease without end.
_UNLIMITED_MS: Final = 2**64 - 1


def message(
    topic: str,
    data: Any,
    *,
    bookmark: Point | None = "1|1|",
    timestamp: datetime = TIMESTAMP,
    correlation_id: str | None = None,
    headers: Mapping[str, str | bytes] | None = None,
    sub_id: str = "test",
    queue: str | None = None,
    lease_period: Duration | None = None,
    delivery_count: int = 1,
    cancel_count: int = 0,
    command: Literal["publish", "sow", "oof", "delete"] = "publish",
    reason: Literal["deleted", "expired", "match"] | None = None,
    sow_key: str | None = None,
    is_delta: bool = False,
) -> Message:
    """Returns a message for the test of a handler, without a server.

        message = quire.testing.message("orders", {"id": 1}, queue="shipping")

    - `topic`: the topic of the message
    - `data`, `headers`: as in `Client.publish`
    - `bookmark`: its bookmark, or a `Message` that has it; `None` for a message that was not
      recorded
    - `queue`: the queue that delivered the message; `Message.topic` is then this queue
    - `lease_period`, `delivery_count`, `cancel_count`: of a message from a queue
    - `command`, `reason`, `sow_key`, `is_delta`: of a message of a last-value topic

    `ack`, `cancel` and `expire` of this message send nothing. `verdict` returns which one the
    handler called. Two calls with the same arguments return equal messages. Raises `ConfigError` or
    `BadBookmarkError` for an invalid argument.
    """
    for key, text, limit in (
        ("topic", topic, 1024),
        ("queue", queue, 1024),
    ):
        if text is not None and not 1 <= len(text.encode()) <= limit:
            raise ConfigError(f"{text!r} does not have 1 to {limit} bytes", key=key)
    if timestamp.tzinfo is None:
        mistake = f"the time {timestamp.isoformat()} has no time zone, add one such as datetime.UTC"
        raise ConfigError(mistake, key="timestamp")
    period_ms = None if lease_period is None else round(seconds(lease_period, "lease_period") * 1000)
    return _quire.test_message(
        topic,
        to_bytes(data),
        bookmark=None if bookmark is None else one_message(bookmark, "bookmark"),
        timestamp_ns=(timestamp - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1) * 1000,
        correlation_id=correlation_to_core(correlation_id) or "",
        headers=headers,
        sub_id=sub_id,
        queue=queue,
        lease_ms=_UNLIMITED_MS if period_ms is None else period_ms,
        delivery_count=delivery_count,
        cancel_count=cancel_count,
        kind=command,
        reason=reason,
        sow_key=sow_key,
        is_delta=is_delta,
    )


def verdict(message: Message) -> Literal["ack", "cancel", "expire"] | None:
    """Returns the first of `ack`, `cancel` and `expire` that was called on a test message, or `None`."""
    return message._verdict


__all__ = ["message", "verdict"]
