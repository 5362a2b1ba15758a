"""Queues that are created, altered and dropped at run time, by both clients, the server, and
`quire queue` (docs/queues.md section 14)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from datetime import timedelta
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


def test_a_queue_from_the_epoch_has_the_messages_of_the_log(url: str) -> None:
    with quire.Client(url) as client:
        client.publish_many("orders", range(1000))
        client.flush(PATIENCE)
        assert client.create_queue("jobs", underlying_topic="orders", recovery_point="epoch") is True
        client.publish("orders", 1000)
        assert taken(client, "jobs", 1001) == list(range(1001))
        assert client.queue_stats("jobs")["jobs"]["catching_up"] == 0
        with pytest.raises(quire.QueueExistsError, match="other settings: recovery_point"):
            client.create_queue("jobs", underlying_topic="orders")


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


def test_a_client_alters_a_queue(url: str) -> None:
    with quire.Client(url) as client:
        client.create_queue("jobs", **SETTINGS)
        client.publish("orders", 1)
        client.flush(PATIENCE)
        with client.subscribe("jobs", max_backlog=5) as subscription:
            first = subscription.get(timeout=PATIENCE)
            assert first.lease_period == timedelta(seconds=30)
            changes: quire.QueueChanges = {"lease_period": "1m", "retry_delay": None, "leasing": "strict"}
            assert client.alter_queue("jobs", **changes) is True
            assert client.alter_queue("jobs", timeout=PATIENCE, **changes) is False
            assert client.alter_queue("jobs") is False
            client.publish("orders", 2)
            assert subscription.get(timeout=PATIENCE).lease_period == timedelta(minutes=1)
            first.ack()
            client.flush(PATIENCE)
        assert client.queue_stats("jobs")["jobs"]["depth"] == 1
        with pytest.raises(
            quire.QueueExistsError, match="other settings: lease_period, leasing, retry_delay"
        ):
            client.create_queue("jobs", **SETTINGS)


def test_none_is_the_default_that_belongs_to_the_semantics(url: str) -> None:
    with quire.Client(url) as client:
        client.create_queue("once", semantics="at-most-once")
        assert client.alter_queue("once", lease_period=None, retry_delay=None) is False
        assert client.create_queue("once", semantics="at-most-once") is False
        client.create_queue("jobs", lease_period="30s", retry_delay=["1s"])
        assert client.alter_queue("jobs", lease_period=None, retry_delay=None) is True
        assert client.create_queue("jobs") is False, "it has the defaults"
        assert client.alter_queue("jobs", lease_period="disabled", retry_delay=[]) is True
        assert client.create_queue("jobs", lease_period="disabled", retry_delay=[]) is False


async def test_the_asyncio_client_alters_a_queue(url: str) -> None:
    async with quire.AsyncClient(url) as client:
        await client.create_queue("jobs", **SETTINGS)
        assert await client.alter_queue("jobs", max_deliveries=7) is True
        assert await client.alter_queue("jobs", max_deliveries=7) is False
        with pytest.raises(quire.UnknownQueueError):
            await client.alter_queue("none", max_deliveries=7)


def test_the_server_object_alters_a_queue(tmp_path: Path) -> None:
    with server(tmp_path) as running:
        running.create_queue("jobs", **SETTINGS)
        assert running.alter_queue("jobs", max_deliveries=None) is True
        assert running.alter_queue("jobs", max_deliveries=None) is False
        with pytest.raises(quire.UnknownQueueError):
            running.alter_queue("none", max_deliveries=7)


def test_altered_settings_survive_a_kill(tmp_path: Path) -> None:
    with ServerProcess(tmp_path) as process:
        with quire.Client(process.url) as client:
            client.create_queue("jobs", **SETTINGS)
            client.publish("orders", 1)
            client.flush(PATIENCE)
            assert client.alter_queue("jobs", expiration="1h", max_deliveries=9) is True
        process.kill()
        process.start()
        with quire.Client(process.url) as client:
            assert client.alter_queue("jobs", expiration="1h", max_deliveries=9) is False
            assert client.alter_queue("jobs", max_deliveries=5, expiration=None) is True
            assert client.create_queue("jobs", **SETTINGS) is False
            assert taken(client, "jobs", 1) == [1]


ALTERATIONS: dict[str, tuple[dict[str, Any], str | None, str]] = {
    "beginning of a key": ({"lease": "1s"}, "lease", 'did you mean "lease_period"'),
    "unknown key": ({"lease_perod": "1s"}, "lease_perod", 'did you mean "lease_period"'),
    "unknown key without a value": ({"lease_perod": None}, "lease_perod", 'did you mean "lease_period"'),
    "a duration": ({"lease_period": "soon"}, "lease_period", '"soon"'),
    "a number": ({"max_backlog": 0}, "max_backlog", "at least 1"),
    "a topic": ({"dead_letter_topic": "a.*"}, None, "dead_letter_topic: .*is a pattern"),
    "fixed keys": (
        {"priority": "/a", "filter": "/a = 1", "max_backlog": 5},
        None,
        "filter, priority: cannot be changed while the queue exists; drop queue",
    ),
    "a depth": ({"max_queue_depth": 5}, None, "target_queue_depth: cannot be changed"),
    "the state file": ({"file_backed_metadata": "enabled"}, None, "file_backed_metadata: cannot be changed"),
    "the topic": ({"underlying_topic": None}, None, "underlying_topic: cannot be changed"),
}


@pytest.mark.parametrize("case", ALTERATIONS)
def test_a_bad_change_is_an_error_that_names_the_key(tmp_path: Path, case: str) -> None:
    changes, key, reason = ALTERATIONS[case]
    with server(tmp_path) as running, quire.Client(running.url) as client:
        client.create_queue("jobs", **SETTINGS)
        alterations: list[Callable[..., bool]] = [client.alter_queue, running.alter_queue]
        for alter in alterations:
            with pytest.raises(quire.ConfigError, match=reason) as raised:
                alter("jobs", **changes)
            if key is not None:
                assert raised.value.key == key
        assert client.create_queue("jobs", **SETTINGS) is False


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
    "a point": (
        {"recovery_point": "2026-01-01T00:00:00Z"},
        None,
        "recovery_point: a queue that is created at run time",
    ),
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
        with pytest.raises(quire.ConfigError, match="name: expected text"):
            client.alter_queue(wrong, max_backlog=1)
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
        with pytest.raises(quire.QueueExistsError, match="the configuration of the server defines"):
            client.alter_queue("jobs", max_backlog=1)
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
    assert listed[0][-1] == "created at run time"
    assert [(row[0], row[-1]) for row in listed[1:]] == [("CONFIGURED", "no"), ("RISK", "yes")]

    # A mistake in a setting has the name of the option.
    refused = run("queue", "alter", "RISK", "--lease-period", "30", url=running.url)
    assert (refused.returncode, refused.stderr[:33]) == (2, "quire: --lease-period: expected a"), refused

    altered = run("queue", "alter", "RISK", "--lease-period", "1m", "--reset", "retry-delay", url=running.url)
    assert (altered.returncode, altered.stdout) == (0, "queue RISK altered\n"), altered.stderr
    again = run("queue", "alter", "RISK", "--lease-period", "60s", "--json", url=running.url)
    assert json.loads(again.stdout) == {"queue": "RISK", "altered": False}
    for wrong, reason in {
        (): "alter: give at least one setting",
        ("--max-backlog", "5", "--reset", "max-backlog"): "--max-backlog and --reset max-backlog exclude",
    }.items():
        refused = run("queue", "alter", "RISK", *wrong, url=running.url)
        assert (refused.returncode, refused.stdout) == (2, ""), wrong
        assert reason in refused.stderr
    unknown = run("queue", "alter", "RISK", "--filter", "/a = 1", url=running.url)
    assert unknown.returncode != 0

    with quire.Client(running.url) as client:
        client.publish("orders", 1)
        client.flush(PATIENCE)
    whole = run("queue", "create", "ALL", "--topic", "orders", "--recovery-point", "epoch", url=running.url)
    assert (whole.returncode, whole.stdout) == (0, "queue ALL created\n"), whole.stderr
    assert run("queue", "drop", "ALL", "--yes", url=running.url).returncode == 0
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
