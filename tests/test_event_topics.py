"""The topics of the server itself: `/quire/ClientStatus`, `/quire/SowStats` and `/quire/Action` (docs/operations.md)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import quire
import quire.testing
from quire._errors import ConfigError
from quire.testing import TestServer
from support.actions import messages
from support.waiting import wait_until

STATUS, STATS = "/quire/ClientStatus", "/quire/SowStats"
RECORDED = {"topic": [{"name": "^", "message_type": "json"}, {"name": "^/quire/", "message_type": "json"}]}
MEMBERS = (
    *("event", "timestamp", "client_name", "connection_name", "remote_address", "user", "reason", "topic"),
    *("filter", "sub_id", "options", "query_id", "correlation_id"),
)


def events(server: TestServer, client_name: str) -> list[dict[str, Any]]:
    return [each for each in messages(server, STATUS) if each["client_name"] == client_name]


def test_the_life_of_a_client_is_told(tmp_path: Path) -> None:
    topic = {"name": "records", "message_type": "json", "key": "/id"}
    with quire.testing.server(tmp_path, transaction_log=RECORDED, sow_topic=topic) as server:
        with quire.Client(server.url, name="shop") as client:
            client.subscribe("^orders", filter="/id = 1", bookmark=quire.EPOCH).unsubscribe()
            kept = client.subscribe("other")
            list(client.sow("records", filter="/id = 2"))
            client.sow_delete("records", filter="/id = 3")
        del kept
        wait_until(lambda: len(events(server, "shop")) == 8)
        told = events(server, "shop")
        connects = [each for each in messages(server, STATUS) if each["event"] == "connect"]
    names = [
        "logon",
        "subscribe",
        "unsubscribe",
        "subscribe",
        "query",
        "sow_delete",
        "unsubscribe",
        "disconnect",
    ]
    assert [each["event"] for each in told] == names
    assert all(tuple(each) == MEMBERS for each in told)
    assert len({each["connection_name"] for each in told}) == 1
    assert {each["remote_address"].partition(":")[0] for each in told} == {"127.0.0.1"}
    logon, subscribe, unsubscribe, other, query, delete, _, disconnect = told
    assert [logon[name] for name in ("reason", "topic", "sub_id", "user")] == [None] * 4
    assert (subscribe["topic"], subscribe["filter"], subscribe["options"]) == (
        "^orders",
        "/id = 1",
        "bookmark=0",
    )
    assert (unsubscribe["topic"], unsubscribe["sub_id"]) == ("^orders", subscribe["sub_id"])
    assert (other["topic"], other["filter"], other["options"]) == ("other", None, None)
    assert (query["topic"], query["filter"], query["query_id"].isdecimal()) == ("records", "/id = 2", True)
    assert (delete["topic"], delete["filter"]) == ("records", "/id = 3")
    assert disconnect["reason"] == "closed"
    assert connects[0]["client_name"] is None


def test_a_failed_logon_and_an_end_by_the_server_have_their_reasons(tmp_path: Path) -> None:
    users = {"anna": {"password": "a good one"}}
    with quire.testing.server(tmp_path, transaction_log=RECORDED, users=users) as server:
        with pytest.raises(quire.AuthenticationError):
            quire.Client(server.url, name="shop", user="anna", password="a bad one", connect_timeout=20)
        options = server.options("anna")
        with quire.Client(server.url, name="first", **options) as first:
            with quire.Client(server.url, name="watch", **options) as watch:
                found = watch.subscribe(STATUS, bookmark=quire.EPOCH)
                quire.Client(server.url, name="first", **options).close()
                told: list[dict[str, Any]] = []
                while sum(each["reason"] == "name_in_use" for each in told) == 0:
                    told.append(json.loads(found.get(timeout=20).data))
            del first
    failed = next(each for each in told if each["event"] == "logon_failed")
    assert (failed["client_name"], bool(failed["reason"])) == ("shop", True)
    assert any(each["event"] == "disconnect" and each["reason"] == "authentication" for each in told)


def test_a_stop_of_the_server_is_recorded(tmp_path: Path) -> None:
    with quire.testing.server(tmp_path, transaction_log=RECORDED) as server:
        client = quire.Client(server.url, name="shop", reconnect=quire.Reconnect(give_up_after=0))
        client.subscribe("orders")
    client.close()
    with quire.testing.server(tmp_path, transaction_log=RECORDED) as server:
        told = [(each["event"], each["reason"]) for each in events(server, "shop")]
    assert ("disconnect", "shutdown") in told
    assert ("unsubscribe", None) in told


def test_the_number_of_records_is_told_in_each_interval(tmp_path: Path) -> None:
    topics = [
        {"name": "records", "message_type": "json", "key": "/id"},
        {"name": STATS, "message_type": "json", "key": "/topic"},
    ]
    settings: dict[str, Any] = {"transaction_log": RECORDED, "sow_topic": topics}
    interval = {"sow_stats_interval": "100ms"}
    with (
        quire.testing.server(tmp_path, events=interval, **settings) as server,
        quire.Client(server.url) as client,
    ):
        client.publish("records", {"id": 1})
        client.publish("records", {"id": 2})
        client.flush()

        def counts() -> dict[str, int]:
            return {each.json()["topic"]: each.json()["record_count"] for each in client.sow(STATS)}

        wait_until(lambda: counts() == {"records": 2, STATS: 2})
        [record] = client.sow(STATS, filter="/topic = 'records'")
        assert list(record.json()) == ["topic", "message_type", "record_count", "timestamp"]


def test_only_what_begins_with_the_prefix_takes_the_topics_of_the_server(tmp_path: Path) -> None:
    with quire.testing.server(tmp_path) as server, quire.Client(server.url, name="watch") as watch:
        everything, meant = watch.subscribe("^"), watch.subscribe("^/quire/Client")
        with quire.Client(server.url, name="shop") as client:
            client.publish("orders", {"id": 1})
            client.flush()
        assert everything.get(timeout=20).topic == "orders"
        while json.loads(meant.get(timeout=20).data)["client_name"] != "shop":
            pass
        with pytest.raises(TimeoutError):
            everything.get(timeout=0.05)
        # The log records them only when an entry begins with the prefix.
        with pytest.raises(quire.NotJournaledError):
            watch.subscribe(STATUS, bookmark=quire.EPOCH)


@pytest.mark.parametrize("topic", [STATUS, "/quire/anything"])
def test_clients_cannot_publish_to_the_topics_of_the_server(topic: str, tmp_path: Path) -> None:
    with (
        quire.testing.server(tmp_path, transaction_log=RECORDED) as server,
        quire.Client(server.url) as client,
    ):
        client.publish(topic, {})
        with pytest.raises(quire.BadTopicError, match="only the server publishes"):
            client.flush()
        client.publish("orders", {})
        client.flush()


def test_the_rights_are_those_of_other_topics(tmp_path: Path) -> None:
    users = {name: {"password": "a good one"} for name in ("anna", "ben")}
    entitlement = [
        {"user": "anna", "topic": ["^/quire/ClientStatus$"], "allow": ["read"]},
        {"user": "ben", "topic": ["^"], "allow": ["read"]},
    ]
    with (
        quire.testing.server(tmp_path, users=users, entitlement=entitlement) as server,
        quire.Client(server.url, name="a", **server.options("anna")) as anna,
    ):
        found = anna.subscribe(STATUS, filter="/event = 'logon'")
        with (
            quire.Client(server.url, name="b", **server.options("ben")) as ben,
            pytest.raises(quire.NotEntitledError),
        ):
            ben.subscribe(STATUS)
        assert json.loads(found.get(timeout=20).data)["user"] == "ben"


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        (
            {"transaction_log": {"topic": {"name": "^/quire/", "message_type": "xml"}}},
            "transaction_log.topic",
        ),
        ({"sow_topic": {"name": STATS, "message_type": "fix", "key": "/1"}}, "sow_topic"),
        ({"queue": {"name": "/quire/jobs", "message_type": "json"}}, "queue"),
        ({"queue": {"name": "a", "message_type": "json", "dead_letter_topic": "/quire/a"}}, "queue"),
    ],
)
def test_a_configuration_that_uses_them_otherwise_is_refused(settings: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as raised:
        quire.Config(**settings).check()
    assert str(raised.value).startswith(key)
