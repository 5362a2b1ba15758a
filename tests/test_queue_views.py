"""Views of queues for programs: the counts that they show while workers take messages, on all three
kinds of server, and after a restart and a `kill -9`.

`queue_views.rs` of the broker compares views with a model of the queue.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import quire
from quire.cli import run
from support.server_process import ServerProcess
from support.waiting import PATIENCE, wait_until
from support.ways_in import configured

JOBS = {
    "name": "jobs",
    "message_type": "json",
    "underlying_topic": "tasks",
    "dead_letter_topic": "dead",
}
ACCOUNTS = {"name": "accounts", "message_type": "json", "key": ["/id"]}
BACKLOG = {
    "name": "backlog",
    "message_type": "json",
    "underlying_topic": "jobs",
    "projection": ["/kind", "COUNT(1) AS /jobs", "SUM(/size) AS /size"],
    "grouping": ["/kind"],
}
#: A queue with a last-value topic.
OWNERS = {
    "name": "owners",
    "message_type": "json",
    "join": ["[jobs].[/account] = [accounts].[/id]"],
    "projection": ["[jobs].[/id] AS /id", "[accounts].[/name] AS /name"],
}
KINDS = {
    "name": "kinds",
    "message_type": "json",
    "underlying_topic": "backlog",
    "projection": ["COUNT(1) AS /kinds", "SUM(/jobs) AS /jobs"],
}
SETTINGS: dict[str, Any] = {
    "queue": JOBS,
    "sow_topic": ACCOUNTS,
    "view": [KINDS, BACKLOG, OWNERS],
    "conflated_topic": {
        "name": "backlog-C",
        "message_type": "json",
        "underlying_topic": "backlog",
        "interval": "100ms",
    },
}


def job(number: int, kind: str) -> dict[str, Any]:
    return {"id": number, "kind": kind, "size": number, "account": kind}


def records(client: quire.Client, topic: str = "backlog") -> list[dict[str, Any]]:
    found = [record.json() for record in client.sow(topic)]
    return sorted(found, key=lambda record: str(list(record.values())))


def backlog(kind: str, jobs: int, size: int) -> dict[str, Any]:
    return {"kind": kind, "jobs": jobs, "size": size}


def shows(client: quire.Client, *expected: dict[str, Any]) -> None:
    wait_until(lambda: records(client) == list(expected))


def test_a_view_of_a_queue_follows_workers(way_in: str, tmp_path: Path) -> None:
    with configured(way_in, tmp_path, **SETTINGS) as place, quire.Client(**place) as client:
        aggregated = client.sow_and_subscribe(
            "backlog", projection=["SUM(/jobs) AS /jobs"], oof=True, completed=True
        )
        for number, kind in enumerate("aab", start=1):
            client.publish("tasks", job(number, kind))
        client.publish("accounts", {"id": "a", "name": "Ann"})
        client.flush(PATIENCE)
        shows(client, backlog("a", 2, 3), backlog("b", 1, 3))
        owners = [{"id": 1, "name": "Ann"}, {"id": 2, "name": "Ann"}, {"id": 3, "name": None}]
        wait_until(lambda: records(client, "owners") == owners)
        wait_until(lambda: records(client, "kinds") == [{"kinds": 2, "jobs": 3}])
        wait_until(lambda: len(records(client, "backlog-C")) == 2)
        with client.subscribe("jobs", max_backlog=3) as jobs:
            first, second, third = (jobs.get(timeout=PATIENCE) for _ in range(3))
            assert records(client) == [backlog("a", 2, 3), backlog("b", 1, 3)], "leased messages stay"
            first.ack()
            shows(client, backlog("a", 1, 2), backlog("b", 1, 3))
            third.expire()
            shows(client, backlog("a", 1, 2))
            second.cancel(delay=0)
        shows(client, backlog("a", 1, 2))
        wait_until(lambda: records(client, "owners") == owners[1:2])
        wait_until(lambda: records(client, "kinds") == [{"kinds": 1, "jobs": 1}])
        wait_until(lambda: any(_jobs(message) == 1 for message in aggregated.batches(timeout=PATIENCE)))
        assert client.queue_stats("jobs")["jobs"]["depth"] == 1


def _jobs(batch: list[quire.Message]) -> int | None:
    values = [message.json().get("jobs") for message in batch if message.data]
    return values[-1] if values else None


def test_a_view_of_a_queue_is_the_same_after_a_restart_and_a_kill(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "server", **SETTINGS) as server:
        with quire.Client(server.url) as client:
            client.publish_many(
                "tasks", [quire.Publish(job(number, "ab"[number % 2])) for number in range(40)]
            )
            client.flush(PATIENCE)
            with client.subscribe("jobs", max_backlog=20) as jobs:
                for number in range(20):
                    message = jobs.get(timeout=PATIENCE)
                    if number % 2:
                        message.ack()
                client.flush(PATIENCE)
                expected = [backlog("a", 20, sum(range(0, 40, 2))), backlog("b", 10, sum(range(21, 40, 2)))]
                shows(client, *expected)
        for end in (server.kill, server.terminate):
            end()
            server.start()
            with quire.Client(server.url) as client:
                assert records(client) == expected
                assert records(client, "kinds") == [{"kinds": 2, "jobs": 30}]
                assert len(records(client, "owners")) == 30


def test_a_view_can_be_defined_over_a_created_queue(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "server", **SETTINGS) as server:
        with quire.Client(server.url) as client:
            client.create_queue("later", underlying_topic="tasks")
            client.publish("tasks", job(1, "a"))
            client.flush(PATIENCE)
            assert client.define_view(
                "kinds",
                underlying_topic="later",
                projection=["/kind", "COUNT(1) AS /jobs"],
                grouping="/kind",
            )
            assert records(client, "kinds") == [{"kind": "a", "jobs": 1}]
            with pytest.raises(quire.ConfigError, match='queue "later" is a source of the view "kinds"'):
                client.drop_queue("later")
        server.kill()
        server.start()
        with quire.Client(server.url) as client:
            assert records(client, "kinds") == [{"kind": "a", "jobs": 1}]
            with pytest.raises(quire.BadBookmarkError, match='"kinds" is a view of the queue "later"'):
                list(client.sow("kinds", bookmark=quire.EPOCH))
            client.define_view("kinds", underlying_topic="backlog", projection=["COUNT(1) AS /kinds"])
            assert client.drop_queue("later").messages == 1


def test_explain_names_the_queue_of_a_view(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with ServerProcess(tmp_path / "server", **SETTINGS) as server, quire.Client(server.url) as client:
        client.publish("tasks", job(1, "a"))
        client.flush(PATIENCE)
        shows(client, backlog("a", 1, 1))
        assert run(["view", "explain", "backlog", "--url", server.url]) == 0
    assert "jobs" in capsys.readouterr().out


def test_a_view_of_a_queue_has_its_own_rights(tmp_path: Path) -> None:
    entitlement = [
        {"user": "worker", "topic": "jobs", "allow": ["read", "write"]},
        {"user": "desk", "topic": "backlog", "allow": ["read", "query", "admin"], "filter": "/kind = 'a'"},
        {"user": "desk", "topic": "jobs", "allow": "query"},
    ]
    users = {name: {"password": f"{name}-password"} for name in ("worker", "desk")}
    with (
        quire.testing.server(tmp_path, users=users, entitlement=entitlement, **SETTINGS) as server,
        quire.Client(server.url, **server.options("desk")) as desk,
        quire.Client(server.url, **server.options("worker")) as worker,
    ):
        for number, kind in enumerate("ab"):
            worker.publish("jobs", job(number, kind))
        worker.flush(PATIENCE)
        shows(desk, backlog("a", 1, 0))
        with pytest.raises(quire.NotEntitledError):
            worker.sow("backlog")
        with pytest.raises(quire.NotEntitledError) as raised:
            desk.define_view("backlog", underlying_topic="jobs", projection="COUNT(1) AS /n")
        assert (raised.value.action, raised.value.topic) == ("read", "jobs")


MISTAKES = [
    ("jobs", "binary", 'the messages on "jobs" have no fields: binary'),
    ("job", "json", '"job" keeps no last values: no sow_topic, no view, no queue and no conflated_topic'),
]


@pytest.mark.parametrize(("source", "message_type", "reason"), MISTAKES)
def test_a_mistake_is_named_with_its_key_and_line(
    tmp_path: Path, source: str, message_type: str, reason: str
) -> None:
    path = tmp_path / "quire.toml"
    path.write_text(
        f"[[transaction_log.topic]]\nname = 'tasks'\nmessage_type = '{message_type}'\n"
        f"[[queue]]\nname = 'jobs'\nmessage_type = '{message_type}'\nunderlying_topic = 'tasks'\n"
        "[[view]]\nname = 'backlog'\nmessage_type = 'json'\n"
        f"underlying_topic = '{source}'\nprojection = ['COUNT(1) AS /jobs']\n"
    )
    with pytest.raises(quire.ConfigError) as raised:
        quire.Config.load(path).check()
    (mistake,) = raised.value.mistakes
    assert (mistake.key, mistake.line) == ("view[0].underlying_topic", 11)
    assert reason in str(mistake)


def test_a_view_gets_a_queue_as_its_source_from_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "kinds.toml"
    path.write_text(
        "message_type = 'json'\nunderlying_topic = 'jobs'\ngrouping = ['/kind']\n"
        "projection = ['/kind', 'COUNT(1) AS /jobs']\n"
    )
    with ServerProcess(tmp_path / "server", **SETTINGS) as server, quire.Client(server.url) as client:
        client.publish("tasks", job(1, "a"))
        client.flush(PATIENCE)
        assert run(["view", "replace", "kinds", str(path), "--url", server.url]) == 0
        assert records(client, "kinds") == [{"kind": "a", "jobs": 1}]
        path.write_text(path.read_text().replace("'jobs'", "'dead'"))
        assert run(["view", "replace", "kinds", str(path), "--url", server.url]) != 0
        assert "underlying_topic" in capsys.readouterr().err
