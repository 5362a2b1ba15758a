"""Ranges and rates of replays, the same on all three kinds of server and in both clients
(docs/replay.md)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from time import monotonic

import pytest
import quire
from support.scripted_server import INTERNAL, UNKNOWN_SUBSCRIPTION, ScriptedServer
from support.waiting import PATIENCE


def filled(url: str, count: int) -> quire.Client:
    client = quire.Client(url, name="publisher")
    for number in range(1, count + 1):
        client.publish("ticks", {"n": number})
    client.flush(timeout=PATIENCE)
    return client


def numbers(messages: Iterator[quire.Message]) -> list[int]:
    return [message.json()["n"] for message in messages]


def test_a_range_ends_the_iteration(url: str) -> None:
    with filled(url, 6) as client:
        everything = list(client.subscribe("ticks", bookmark=f"[{quire.EPOCH}:{quire.NOW}]"))
        assert [message.sequence for message in everything] == [1, 2, 3, 4, 5, 6]
        second, fourth = everything[1].bookmark, everything[3].bookmark
        assert numbers(iter(client.subscribe("ticks", bookmark=f"({second}:{fourth}]"))) == [3, 4]
        assert numbers(iter(client.subscribe("ticks", bookmark=f"[{second}:{fourth})"))) == [2, 3]
        subscription = client.subscribe("ticks", bookmark=f"[{second}:{second}]")
        assert [len(batch) for batch in subscription.batches()] == [1]
        with pytest.raises(quire.DisconnectedError):
            subscription.get(timeout=PATIENCE)
        with pytest.raises(quire.BadBookmarkError):
            client.subscribe("ticks", bookmark=f"[{fourth}:{second}]")


@pytest.fixture
def scripted_server() -> Iterator[ScriptedServer]:
    with ScriptedServer() as server:
        yield server


def test_a_subscription_that_the_server_has_ended_can_be_left(scripted_server: ScriptedServer) -> None:
    """The server refuses the unsubscribe of a range that ended before the command arrived."""
    scripted_server.unsubscribe_refusal = UNKNOWN_SUBSCRIPTION
    with quire.Client(scripted_server.url) as client:
        client.subscribe("ticks", bookmark=quire.EPOCH).unsubscribe()
        assert client.health().subscriptions == ()


async def test_the_asyncio_client_can_leave_it_too(scripted_server: ScriptedServer) -> None:
    scripted_server.unsubscribe_refusal = UNKNOWN_SUBSCRIPTION
    async with quire.AsyncClient(scripted_server.url) as client:
        subscription = await client.subscribe("ticks", bookmark=quire.EPOCH)
        await subscription.unsubscribe()
        assert client.health().subscriptions == ()


async def test_any_other_refusal_of_an_unsubscribe_is_raised(scripted_server: ScriptedServer) -> None:
    scripted_server.unsubscribe_refusal = INTERNAL
    with quire.Client(scripted_server.url) as client:
        subscription = client.subscribe("ticks", bookmark=quire.EPOCH)
        with pytest.raises(quire.InternalError, match="refused by the test"):
            subscription.unsubscribe()
    async with quire.AsyncClient(scripted_server.url) as other:
        its = await other.subscribe("ticks", bookmark=quire.EPOCH)
        with pytest.raises(quire.InternalError, match="refused by the test"):
            await its.unsubscribe()


def test_a_range_of_time_waits_for_its_end(url: str) -> None:
    with filled(url, 2) as client:
        end = datetime.now(UTC) + timedelta(seconds=1)
        subscription = client.subscribe("ticks", bookmark=f"[0:{end:%Y%m%dT%H%M%S.%fZ}]")
        client.publish("ticks", {"n": 3})
        found = numbers(iter(subscription))
        assert datetime.now(UTC) >= end
        # On a slow machine the third is published after the end.
        everything = client.subscribe("ticks", bookmark=f"[{quire.EPOCH}:{quire.NOW}]")
        assert found == numbers(message for message in everything if message.timestamp <= end)
        assert found[:2] == [1, 2]


def test_a_rate_holds(url: str) -> None:
    with filled(url, 500) as client:
        started = monotonic()
        replay = client.subscribe("ticks", bookmark=quire.EPOCH, rate=400)
        times = [monotonic() - started for _, _ in zip(replay, range(401), strict=False)]
        assert times[-1] >= 1.0 * 0.98, "400 intervals at 400 per second"


def test_an_option_that_does_not_fit_is_refused(url: str) -> None:
    with quire.Client(url) as client:
        for options in (
            {"rate": "fast", "bookmark": quire.EPOCH},
            {"rate": "10"},
            {"rate": "10", "live": True, "bookmark": quire.EPOCH},
            {"rate_max_gap": "1s", "bookmark": quire.EPOCH},
        ):
            with pytest.raises(quire.ConfigError):
                client.subscribe("ticks", **options)


def test_the_async_client_does_the_same(url: str) -> None:
    async def run() -> None:
        async with quire.AsyncClient(url, name="publisher") as client:
            for number in range(1, 5):
                await client.publish("ticks", {"n": number})
            await client.flush(timeout=PATIENCE)
            replay = await client.subscribe("ticks", bookmark="[0:0|1|]", rate="2X", rate_max_gap="10ms")
            assert [message.json()["n"] async for message in replay] == [1, 2, 3, 4]

    asyncio.run(run())


def test_conflation_gives_the_newest_of_each_key(url: str) -> None:
    with quire.Client(url, name="publisher") as client:
        for number in range(1, 101):
            client.publish("quotes", {"symbol": ["IBM", "HPQ"][number % 2], "n": number})
        client.flush(timeout=PATIENCE)
        replay = client.subscribe("quotes", bookmark="[0:0|1|]", conflation="1h", conflation_key="/symbol")
        got = [(message.sequence, message.json()["n"]) for message in replay]
        assert got == [(1, 99), (2, 100)], "the bookmarks of the first, the data of the newest"
        ordinary = client.subscribe("quotes", conflation=0.05, conflation_key=["/symbol", "/n"])
        for _ in range(3):
            client.publish("quotes", {"symbol": "IBM", "n": 1})
        assert ordinary.get(timeout=PATIENCE).json() == {"symbol": "IBM", "n": 1}
        with pytest.raises(quire.ConfigError):
            client.subscribe("quotes", conflation="1s")


def test_a_select_list_delivers_a_part(url: str) -> None:
    with quire.Client(url, name="publisher") as client:
        client.publish("quotes", {"symbol": "IBM", "bid": 1, "ask": 2})
        client.flush(timeout=PATIENCE)
        replay = client.subscribe(
            "quotes", bookmark=quire.EPOCH, select="-/,+/symbol,+/bid", filter="/ask = 2"
        )
        assert replay.get(timeout=PATIENCE).data == b'{"symbol":"IBM","bid":1}'
        replay.replace(select=["-/bid", "-/ask"], filter=None)
        client.publish("quotes", {"symbol": "HPQ", "bid": 3, "ask": 4})
        assert replay.get(timeout=PATIENCE).data == b'{"symbol":"HPQ"}'
        replay.replace(select=None, filter="/bid > 0")
        client.publish("quotes", {"symbol": "AA", "bid": 5, "ask": 6})
        assert replay.get(timeout=PATIENCE).json() == {"symbol": "AA", "bid": 5, "ask": 6}
        with pytest.raises(quire.ConfigError, match="select"):
            client.subscribe("quotes", select="symbol")

    async def run() -> None:
        async with quire.AsyncClient(url, name="both") as client:
            await client.publish("trades", {"symbol": "IBM", "qty": 1})
            await client.flush(timeout=PATIENCE)
            subscription = await client.subscribe("trades", bookmark="[0:0|1|]", select="-/,+/symbol")
            assert [message.json() async for message in subscription] == [{"symbol": "IBM"}]

    asyncio.run(run())


def publish_numbers(client: quire.Client, numbers: range) -> None:
    for number in numbers:
        client.publish("quotes", {"symbol": "IBM", "n": number})
    client.flush(timeout=PATIENCE)


def test_replace_changes_rate_and_conflation_and_keeps_what_is_left_out(url: str) -> None:
    with quire.Client(url, name="publisher") as client:
        publish_numbers(client, range(200))
        replay = client.subscribe("quotes", bookmark=quire.EPOCH, rate="0.001")
        assert replay.get(timeout=PATIENCE).json()["n"] == 0
        with pytest.raises(TimeoutError):
            replay.get(timeout=0.1)
        replay.replace(filter="/n > 100")
        assert replay.get(timeout=PATIENCE).json()["n"] == 101, "a new pace lets the first go at once"
        with pytest.raises(TimeoutError):
            replay.get(timeout=0.1)
        replay.replace(rate=None)
        assert [replay.get(timeout=PATIENCE).json()["n"] for _ in range(98)] == list(range(102, 200))
        # Only intervals that are all longer than the publishing of one message would not conflate.
        replay.replace(conflation="500ms", conflation_key="/symbol")
        publish_numbers(client, range(200, 300))
        seen = [replay.get(timeout=PATIENCE).json()["n"]]
        while seen[-1] != 299:
            seen.append(replay.get(timeout=PATIENCE).json()["n"])
        assert len(seen) < 100
        with pytest.raises(quire.ConfigError):
            replay.replace(live=True, rate="5")
        replay.replace(conflation=None, conflation_key=None)
        publish_numbers(client, range(300, 310))
        assert [replay.get(timeout=PATIENCE).json()["n"] for _ in range(10)] == list(range(300, 310))
