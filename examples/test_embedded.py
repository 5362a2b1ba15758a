"""Embedded test: a service and its tests, with a real engine in the process of the test.

pytest examples/test_embedded.py
"""

from __future__ import annotations

import quire
import quire.testing


def settle(message: quire.Message) -> None:
    """The handler under test: refuses trades without a quantity."""
    if message.json().get("quantity", 0) <= 0:
        message.expire()


def test_a_trade_without_a_quantity_is_refused() -> None:
    trade = quire.testing.message("trades", {"id": 1}, queue="settlement")
    settle(trade)
    assert quire.testing.verdict(trade) == "expire"


def test_good_trades_leave_the_queue_and_bad_ones_become_dead_letters() -> None:
    queue = {
        "name": "settlement",
        "message_type": "json",
        "underlying_topic": "trades",
        "dead_letter_topic": "trades.failed",
    }
    with quire.testing.server(queue=[queue]) as server, quire.Client(server.url) as client:
        client.publish("trades", {"id": 1, "quantity": 5})
        client.publish("trades", {"id": 2, "quantity": 0})
        client.flush()
        for message in client.subscribe("settlement", max_backlog=2):
            with message:
                settle(message)
            if message.json()["id"] == 2:
                break
        letter = client.subscribe("trades.failed", bookmark=quire.EPOCH).get(timeout=30).json()
        assert letter["message"] == {"id": 2, "quantity": 0}
