"""Settings and helpers of the tests of last-value topics."""

from __future__ import annotations

import json
from typing import Any

import quire

from support.waiting import PATIENCE

ORDERS = {"name": "orders", "message_type": "json", "key": ["/id"], "expiration": "enabled"}
#: Publishers supply the keys.
PRICES = {"name": "prices", "message_type": "json"}
#: Keeps its history.
KEPT = {"name": "kept", "message_type": "json", "key": ["/id"], "history": {"window": "1d"}}
SETTINGS: dict[str, Any] = {
    "sow_topic": [ORDERS, PRICES, {**ORDERS, "name": "other/orders"}, KEPT],
    "queue": [
        {"name": "JOBS", "message_type": "json", "underlying_topic": "tasks"},
        {"name": "PRICED", "message_type": "json", "underlying_topic": "prices"},
    ],
}


def publish(client: quire.Client, *records: dict[str, Any], topic: str = "orders") -> None:
    for record in records:
        client.publish(topic, record)


def order(id: int, qty: float = 1, **more: Any) -> dict[str, Any]:
    return {"id": id, "qty": qty, **more}


#: The current records of the log.
LOG = "[epoch:now]"


def ids(messages: Any) -> list[int]:
    return [message.json()["id"] for message in messages]


def received(subscription: quire.Subscription, count: int) -> list[tuple[str, str | None, Any]]:
    messages = [subscription.get(timeout=PATIENCE) for _ in range(count)]
    return [(m.command, m.reason, json.loads(m.data)["id"] if m.data else None) for m in messages]


def changes_of(subscription: quire.Subscription, count: int) -> list[tuple[str, bool, Any]]:
    messages = [subscription.get(timeout=PATIENCE) for _ in range(count)]
    return [(message.command, message.is_delta, message.json()) for message in messages]
