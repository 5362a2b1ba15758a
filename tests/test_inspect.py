"""The information of a server about itself: `client.server_info()`, `quire info`, `quire topic ls`,
`quire client ls`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import quire
from quire.client._threads import finish
from quire.testing import server
from support.command_line import quire as run
from support.waiting import PATIENCE

TOPICS = [
    {"name": "^events", "recorded": False, "message_type": "json"},
    {"name": "^", "message_type": "json"},
]


@pytest.fixture
def running(tmp_path: Path) -> Iterator[quire.Server]:
    queue = {"name": "JOBS", "message_type": "json", "underlying_topic": "tasks"}
    with server(tmp_path, name="east", queue=queue, transaction_log={"topic": TOPICS}) as running:
        yield running


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_a_server_says_what_it_is(url: str) -> None:
    with quire.Client(url) as client:
        before = client.server_info(timeout=PATIENCE)
        client.publish("orders", {"n": 1})
        client.flush(PATIENCE)
        with client.subscribe("orders"):
            info = client.server_info(timeout=PATIENCE)
    assert info.version == quire.__version__
    assert info.started is not None
    assert info.uptime is not None
    assert before.uptime is not None
    assert (info.started, info.started.tzinfo) == (before.started, UTC)
    assert timedelta(0) <= before.uptime <= info.uptime
    assert abs(datetime.now(UTC) - info.started - info.uptime) < timedelta(seconds=PATIENCE)
    assert (info.connections, info.subscriptions, info.topics, info.queues) == (1, 1, 1, 0)
    assert (info.published, info.persisted, info.unpersisted_bytes) == (1, 1, 0)
    assert (info.journal_files, info.journal_failed) == (1, False)
    assert info.journal_size is not None
    assert info.journal_size > 0


async def test_the_asyncio_client_asks_in_the_same_way(url: str) -> None:
    async with quire.AsyncClient(url) as client:
        assert (await client.server_info(timeout=PATIENCE)).connections == 1


def test_the_commands_show_the_server_its_topics_and_its_clients(running: quire.Server) -> None:
    with (
        quire.Client(running.url, name="loader") as client,
        client.subscribe("^orders"),
        client.subscribe("events/live"),
    ):
        client.publish("orders", {"n": 1})
        client.publish("tasks", {"n": 1})
        client.flush(PATIENCE)

        [info] = lines(run("info", "--json", url=running.url).stdout)
        assert (info["name"], info["topics"], info["queues"], info["connections"]) == ("east", 2, 1, 2)
        shown = run("info", url=running.url)
        assert shown.returncode == 0, shown.stderr
        assert "name\teast" in shown.stdout.splitlines()
        assert "messages published since the start\t2" in shown.stdout.splitlines()
        assert "records persisted since the log began\t2" in shown.stdout.splitlines()
        assert "journal failed\tno" in shown.stdout.splitlines()

        assert lines(run("topic", "ls", "--json", url=running.url).stdout) == [
            {
                "topic": "events/live",
                "message_type": "json",
                "recorded": False,
                "queues": [],
                "subscriptions": 1,
                "published": 0,
                "published_bytes": 0,
                "last_values": None,
            },
            {
                "topic": "orders",
                "message_type": "json",
                "recorded": True,
                "queues": [],
                "subscriptions": 1,
                "published": 1,
                "published_bytes": 7,
                "last_values": None,
            },
            {
                "topic": "tasks",
                "message_type": "json",
                "recorded": True,
                "queues": ["JOBS"],
                "subscriptions": 0,
                "published": 1,
                "published_bytes": 7,
                "last_values": None,
            },
        ]
        table = [line.split("\t") for line in run("topic", "ls", url=running.url).stdout.splitlines()]
        assert table[0] == ["topic", "type", "recorded", "subscriptions", "queues", "records"]
        assert table[1] == ["events/live", "json", "no", "1", "", ""]

        loader, asking = lines(run("client", "ls", "--json", url=running.url).stdout)
        assert (loader["client_name"], loader["subscriptions"], loader["sequence"]) == ("loader", 2, 2)
        assert asking["subscriptions"] == 0
        table = [line.split("\t") for line in run("client", "ls", url=running.url).stdout.splitlines()]
        assert table[0][:3] == ["connection", "client", "address"]
        assert table[1][1] == "loader"


def test_topics_of_the_log_are_listed_after_a_restart_and_in_several_answers(tmp_path: Path) -> None:
    names = [f"topic/{number:04}/{'x' * 100}" for number in range(1500)]
    with server(tmp_path) as first, quire.Client(first.url) as client:
        for name in names:
            client.publish(name, b"1")
        client.flush(PATIENCE)
    with server(tmp_path) as second, quire.Client(second.url) as client:
        assert [topic["topic"] for topic in client._topics()] == names
        assert len(finish(client._inspect("topics"))["topics"]) < len(names)


def test_the_subscriptions_of_a_server_are_listed_with_their_lag(running: quire.Server) -> None:
    with quire.Client(running.url, name="loader") as client:
        for number in range(10):
            client.publish("orders", {"n": number})
        client.publish("tasks", {"n": 1})
        client.flush(PATIENCE)
        late = client.subscribe("orders", bookmark=quire.EPOCH, paused=True, filter="/n > 1")
        worker = client.subscribe("JOBS", max_backlog=5)
        worker.get(PATIENCE)
        [replay, queued] = lines(run("client", "ls", "--subscriptions", "--json", url=running.url).stdout)
        assert replay.pop("lag_s") > 0
        assert replay == {
            "connection": replay["connection"],
            "client_name": "loader",
            "subscription": replay["subscription"],
            "topic": "orders",
            "filter": "/n > 1",
            "kind": "replay",
            "position": 0,
            "lag": 11,
            "backlog": None,
            "max_backlog": None,
            "paused": True,
            "messages_out": 0,
            "bytes_out": 0,
        }
        assert (queued["kind"], queued["topic"]) == ("queue", "JOBS")
        assert (queued["backlog"], queued["max_backlog"], queued["lag"]) == (1, 5, None)
        shown = run("client", "ls", "--subscriptions", url=running.url).stdout.splitlines()
        assert shown[0].split("\t")[-3:] == ["lag (s)", "backlog", "paused"]
        assert shown[2].split("\t")[-2:] == ["1 of 5", "no"]
        assert client.server_info().replay_lag == 0  # a paused replay is meant to wait
        assert running.stats()["replay_lag"] == 0
        [orders] = lines(run("topic", "stats", "orders", "--json", url=running.url).stdout)
        assert orders["subscriptions"] == 1
        late.unsubscribe()
