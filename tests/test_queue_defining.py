"""Queues that are created and dropped at run time, by both clients, the server, and `quire queue` (docs/queues.md section 14)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import quire
from quire.testing import ServerProcess, server
from support.command_line import quire as run
from support.waiting import PATIENCE

SETTINGS: quire.QueueSettings = {
    "underlying_topic": "orders",
    "lease_period": "30s",
    "max_deliveries": 5,
    "retry_delay": ["1s", "10s"],
}


@pytest.fixture(params=["server", "file", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A server, an engine inside the program, and one in memory."""
    if request.param == "server":
        with server(tmp_path) as running:
            yield running.url
    else:
        yield f"{request.param}:{tmp_path / 'journal'}"


def taken(client: quire.Client, queue: str, count: int) -> list[Any]:
    """Takes and acknowledges messages of a queue."""
    with client.subscribe(queue, max_backlog=count) as subscription:
        messages = [subscription.get(timeout=PATIENCE) for _ in range(count)]
        for message in messages:
            message.ack()
        client.flush(PATIENCE)
    return [message.json() for message in messages]


def test_a_client_creates_uses_and_drops_a_queue(url: str) -> None:
    with quire.Client(url) as client:
        client.publish("orders", 0)
        assert client.create_queue("jobs", **SETTINGS) is True
        assert client.create_queue("jobs", timeout=PATIENCE, **SETTINGS) is False
        for number in (1, 2, 3):
            client.publish("orders", number)
        client.flush(PATIENCE)
        assert client.queue_stats("jobs")["jobs"]["created"] is True
        assert taken(client, "jobs", 2) == [1, 2]
        with client.subscribe("jobs", max_backlog=1) as subscription:
            assert subscription.get(timeout=PATIENCE).json() == 3
            report = client.drop_queue("jobs")
            assert report == quire.DropReport(messages=1)
            with pytest.raises(quire.UnknownQueueError, match='"jobs" was dropped'):
                subscription.get(timeout=PATIENCE)
        assert client.queue_stats() == {}
        with client.subscribe("orders", bookmark=quire.EPOCH) as replay:
            assert [replay.get(timeout=PATIENCE).json() for _ in range(4)] == [0, 1, 2, 3]


async def test_the_asyncio_client_creates_and_drops_a_queue(url: str) -> None:
    async with quire.AsyncClient(url) as client:
        assert await client.create_queue("jobs", **SETTINGS) is True
        await client.publish("orders", 1)
        await client.flush(PATIENCE)
        async with await client.subscribe("jobs", max_backlog=1) as subscription:
            assert (await subscription.get(timeout=PATIENCE)).json() == 1
            assert (await client.drop_queue("jobs")).messages == 1
            with pytest.raises(quire.UnknownQueueError):
                await subscription.get(timeout=PATIENCE)


def test_the_server_object_creates_and_drops_a_queue(tmp_path: Path) -> None:
    with server(tmp_path) as running:
        assert running.create_queue("jobs", **SETTINGS) is True
        assert running.create_queue("jobs", **SETTINGS) is False
        with pytest.raises(
            quire.QueueExistsError, match="other settings: lease_period, max_deliveries, retry_delay"
        ):
            running.create_queue("jobs", underlying_topic="orders", lease_period="1m")
        with quire.Client(running.url) as client:
            client.publish("orders", 1)
            client.flush(PATIENCE)
        assert running.drop_queue("jobs").messages == 1
        with pytest.raises(quire.UnknownQueueError):
            running.drop_queue("jobs")
    with pytest.raises(quire.DisconnectedError, match="not running"):
        running.create_queue("jobs")


def test_a_created_queue_survives_a_kill(tmp_path: Path) -> None:
    with ServerProcess(tmp_path) as process:
        with quire.Client(process.url) as client:
            client.create_queue("jobs", **SETTINGS)
            client.create_queue("gone")
            client.publish("orders", 1)
            client.flush(PATIENCE)
            client.drop_queue("gone")
        process.kill()
        process.start()
        with quire.Client(process.url) as client:
            assert list(client.queue_stats()) == ["jobs"]
            assert client.create_queue("jobs", **SETTINGS) is False
            assert taken(client, "jobs", 1) == [1]


CREATIONS: dict[str, tuple[dict[str, Any], str | None, str]] = {
    "unknown key": ({"lease_perod": "1s"}, "lease_perod", 'did you mean "lease_period"'),
    "a duration": ({"lease_period": "soon"}, "lease_period", '"soon"'),
    "a number": ({"max_backlog": 0}, "max_backlog", "at least 1"),
    "a filter": ({"filter": "/a >"}, None, 'filter: queue "jobs": '),
    "a point": ({"recovery_point": "epoch"}, None, "recovery_point: a queue that is created at run time"),
    "a topic": ({"underlying_topic": "a.*"}, None, "default_publish_target: "),
    "a type": ({"message_type": "xml", "filter": "/a = 1"}, None, "message_type|wanted is xml"),
}


@pytest.mark.parametrize("case", CREATIONS)
def test_a_bad_setting_is_an_error_that_names_the_key(tmp_path: Path, case: str) -> None:
    settings, key, reason = CREATIONS[case]
    with server(tmp_path) as running, quire.Client(running.url) as client:
        creations: list[Callable[..., bool]] = [client.create_queue, running.create_queue]
        for create in creations:
            with pytest.raises(quire.ConfigError, match=reason) as raised:
                create("jobs", **settings)
            if key is not None:
                assert raised.value.key == key
        assert client.queue_stats() == {}


def test_arguments_are_checked(url: str) -> None:
    with quire.Client(url) as client:
        wrong: Any = 5
        with pytest.raises(quire.ConfigError, match="name: expected text"):
            client.create_queue(wrong)
        with pytest.raises(quire.ConfigError, match="name: expected text"):
            client.drop_queue(wrong)
        with pytest.raises(quire.ConfigError, match="timeout"):
            client.create_queue("jobs", timeout="soon")
        with pytest.raises(quire.ConfigError, match="name"):
            client.create_queue("")


def test_a_queue_of_the_configuration_stays(tmp_path: Path) -> None:
    configured = {"name": "jobs", "message_type": "json"}
    with server(tmp_path, queue=configured) as running, quire.Client(running.url) as client:
        with pytest.raises(quire.QueueExistsError, match="the configuration of the server defines"):
            client.create_queue("jobs")
        with pytest.raises(quire.QueueExistsError, match="the configuration of the server defines"):
            client.drop_queue("jobs")
        assert client.queue_stats("jobs")["jobs"]["created"] is False


def test_the_limit_of_created_queues_is_configured(tmp_path: Path) -> None:
    with (
        server(tmp_path, limits={"max_created_queues": 0}) as running,
        quire.Client(running.url) as client,
        pytest.raises(quire.LimitExceededError, match=r"raise limits\.max_created_queues"),
    ):
        client.create_queue("jobs")


def test_a_worker_of_a_dropped_queue_ends_with_an_error(tmp_path: Path) -> None:
    with server(tmp_path) as running, quire.Client(running.url) as client:
        client.create_queue("jobs")
        client.publish("jobs", 1)
        client.flush(PATIENCE)

        def handler(message: quire.Message) -> None:
            running.drop_queue("jobs")

        with pytest.raises(quire.UnknownQueueError, match="was dropped"):
            client.process("jobs", handler)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[quire.Server]:
    configured = {"name": "CONFIGURED", "message_type": "json"}
    with server(tmp_path, queue=configured) as running:
        yield running


def test_the_commands_create_list_and_drop_a_queue(running: quire.Server) -> None:
    options = ["--topic", "orders", "--lease-period", "30s", "--max-deliveries", "5"]
    options += ["--retry-delay", "1s", "10s", "--file-backed-metadata"]
    created = run("queue", "create", "RISK", *options, url=running.url)
    assert (created.returncode, created.stdout) == (0, "queue RISK created\n"), created.stderr
    again = run("queue", "create", "RISK", *options, "--json", url=running.url)
    assert json.loads(again.stdout) == {"queue": "RISK", "created": False}
    other = run("queue", "create", "RISK", url=running.url)
    assert other.returncode != 0
    assert re.search("other settings: file_backed_metadata, lease_period, max_deliveries", other.stderr)

    listed = [line.split("\t") for line in run("queue", "ls", url=running.url).stdout.splitlines()]
    assert listed[0][-1] == "created"
    assert [(row[0], row[-1]) for row in listed[1:]] == [
        ("CONFIGURED", "configuration"),
        ("RISK", "run time"),
    ]

    with quire.Client(running.url) as client:
        client.publish("orders", 1)
        client.flush(PATIENCE)
    refused = run("queue", "drop", "RISK", url=running.url)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "drop: queue RISK has 1 message; add --yes to drop it" in refused.stderr
    dropped = run("queue", "drop", "RISK", "--yes", "--json", url=running.url)
    assert json.loads(dropped.stdout) == {"queue": "RISK", "dropped": 1, "warnings": []}
    assert run("queue", "drop", "RISK", url=running.url).returncode == 1
    assert "configuration of the server" in run("queue", "drop", "CONFIGURED", url=running.url).stderr


def test_drop_warns_about_dead_letters(running: quire.Server) -> None:
    assert run("queue", "create", "DEAD", url=running.url).returncode == 0
    create = run("queue", "create", "JOBS", "--dead-letter-topic", "DEAD", url=running.url)
    assert create.returncode == 0, create.stderr
    dropped = run("queue", "drop", "DEAD", url=running.url)
    assert (dropped.returncode, dropped.stdout) == (0, "queue DEAD dropped, 0 messages\n")
    assert 'warning: no queue takes the dead letters of queue "JOBS"' in dropped.stderr
