"""How a client stands to its server, and what its user sees of it: states, health, what was left at the end."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
import quire
from scripted_server import ScriptedServer

SOON = 10.0
FAST = quire.Reconnect(initial=0.01, maximum=0.05, jitter=0.0)


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer() as server:
        yield server


@pytest.fixture
def client(server: ScriptedServer) -> Iterator[quire.Client]:
    with quire.Client(server.url, name="client", reconnect=FAST) as client:
        yield client


def test_health_says_when_the_server_and_each_subscription_last_said_something(client: quire.Client) -> None:
    before = datetime.now(UTC)
    quiet = client.subscribe("quiet", sub_id="quiet")
    busy = client.subscribe("orders", sub_id="busy")
    client.publish("orders", b"1")
    busy.get(SOON)
    health = client.health()
    heard = {subscription.sub_id: subscription.last_heard for subscription in health.subscriptions}
    assert heard["quiet"] is None
    assert heard["busy"] is not None
    assert before <= heard["busy"] <= datetime.now(UTC)
    assert health.last_heard is not None
    assert heard["busy"] <= health.last_heard
    quiet.unsubscribe()
    assert [subscription.sub_id for subscription in client.health().subscriptions] == ["busy"]
