"""Each trigger starts a real action with its variables (docs/actions.md).

A trigger without a run here fails `test_every_trigger_has_a_run`.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
import quire
import quire.testing
from quire.actions import _triggers
from quire.actions._table import TRIGGER_OF
from quire.actions._watchdog import STUCK
from support.actions import QUEUE, RECORDS, messages, running, runs, seen, seen_by
from support.ports import reserve
from support.stranger import ACK, MESSAGE, Stranger, subscribe
from support.waiting import PATIENCE, wait_until

# Triggers: each returns the variables of its first run.

Started = Callable[[Path], dict[str, str]]
OF_TRIGGERS: dict[str, Started] = {}


def trigger(name: str) -> Callable[[Started], Started]:
    def add(run: Started) -> Started:
        OF_TRIGGERS[name] = run
        return run

    return add


@trigger("schedule")
def at_a_time(directory: Path) -> dict[str, str]:
    with running(directory, seen({"schedule": "1s"})) as server:
        first = seen_by(server)[0]
    assert first["SCHEDULE"] == "1s"
    return first


@trigger("startup")
def at_the_start(directory: Path) -> dict[str, str]:
    with running(directory, seen("startup")) as server:
        [first] = seen_by(server)
    assert (first["INSTANCE_NAME"], first["ACTION_NAME"]) == ("one", "seen")
    return first


@trigger("shutdown")
def at_the_stop(directory: Path) -> dict[str, str]:
    with running(directory, seen("shutdown")) as server:
        assert runs(server) == 0
    with quire.testing.server(directory, name="one") as again:
        first: dict[str, str] = messages(again)[0]
    return first


@trigger("signal")
def by_a_signal(directory: Path) -> dict[str, str]:
    before = signal.getsignal(signal.SIGUSR1)
    try:
        with running(directory, seen({"signal": "SIGUSR1"})) as server:
            os.kill(os.getpid(), signal.SIGUSR1)
            [first] = seen_by(server)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert first["SIGNAL"] == "SIGUSR1"
    return first


@trigger("admin")
def by_a_request(directory: Path) -> dict[str, str]:
    on = {"admin": {"path": "run/it", "required": ["age"], "optional": "WHY"}}
    with running(directory, seen(on), admin={"address": "127.0.0.1:0"}) as server:
        url = f"{server.admin_url}/quire/administrator/actions"
        for path, body, status in (
            ("run/it", {}, 400),
            ("run/it", {"age": "1d", "other": 1}, 400),
            ("run", {"age": "1d"}, 404),
        ):
            assert httpx.post(f"{url}/{path}", json=body).status_code == status
        assert runs(server) == 0
        listed = httpx.get(f"{url}.json").json()
        assert [each["members"] for each in listed] == [["age", "WHY"]]
        answer = httpx.post(f"{url}/run/it", json={"age": "1d"}).json()
        [first] = seen_by(server)
    assert [(each["action"], each["outcome"]) for each in answer["runs"]] == [("seen", "ok")]
    return first


@trigger("publish")
def by_a_message(directory: Path) -> dict[str, str]:
    on = {"publish": {"topic": "^orders", "filter": "/id > 1"}}
    with running(directory, seen(on)) as server, quire.Client(server.url, name="shop") as client:
        client.publish("orders/a", {"id": 1})
        client.publish("orders/b", {"id": 2}, correlation_id="c-2")
        [first] = seen_by(server)
    assert (first["TOPIC"], first["DATA"], first["DATA_LENGTH"]) == ("orders/b", '{"id":2}', "8")
    assert (first["CLIENT_NAME"], first["CORRELATION_ID"], first["MESSAGE_TYPE"]) == ("shop", "c-2", "json")
    assert first["BOOKMARK"].endswith("|2|")
    return first


@trigger("deliver")
def by_a_delivery(directory: Path) -> dict[str, str]:
    on = {"deliver": {"topic": "^orders", "filter": "/id > 1"}}
    with (
        running(directory, seen(on)) as server,
        quire.Client(server.url, name="reader") as reader,
        quire.Client(server.url, name="shop") as client,
    ):
        orders = reader.subscribe("^orders")
        for number in (1, 2):
            client.publish("orders/a", {"id": number}, correlation_id=f"c-{number}")
        [first] = seen_by(server)
        assert [orders.get(timeout=PATIENCE).json()["id"] for _ in range(2)] == [1, 2]
    assert (first["TOPIC"], first["DATA"], first["DATA_LENGTH"]) == ("orders/a", '{"id":2}', "8")
    assert (first["SUBSCRIBER"], first["CLIENT_NAME"]) == ("reader", "shop")
    assert (first["CORRELATION_ID"], first["MESSAGE_TYPE"]) == ("c-2", "json")
    assert first["BOOKMARK"].endswith("|2|")
    return first


@trigger("expire_message")
def by_an_expiry(directory: Path) -> dict[str, str]:
    on = {"expire_message": {"topic": "jobs", "reason": "max_deliveries"}}
    with running(directory, seen(on), **QUEUE) as server, quire.Client(server.url, name="shop") as client:
        client.publish("jobs", {"a": 1.0}, correlation_id="c")
        client.subscribe("jobs").get(timeout=20).cancel()
        [first] = seen_by(server)
    assert (first["TOPIC"], first["SOURCE_TOPIC"], first["DATA"]) == ("jobs", "jobs", '{"a":1.0}')
    assert (first["REASON"], first["DELIVERIES"], first["CANCELS"]) == ("max_deliveries", "1", "1")
    assert (first["CLIENT_NAME"], first["CORRELATION_ID"]) == ("shop", "c")
    return first


@trigger("delete_message")
def by_a_delete(directory: Path) -> dict[str, str]:
    with running(directory, seen({"delete_message": "records"}), **RECORDS) as server:
        with quire.Client(server.url) as client:
            client.publish("records", {"id": 7})
            client.sow_delete("records", filter="/id = 7")
        [first] = seen_by(server)
    assert (first["TOPIC"], first["DATA"], first["REASON"]) == ("records", '{"id":7}', "deleted")
    assert first["SOW_KEY"]
    return first


@trigger("oof_message")
def by_a_record_that_leaves(directory: Path) -> dict[str, str]:
    on = {"oof_message": {"topic": "records", "filter": "/open = 1"}}
    with running(directory, seen(on), **RECORDS) as server, quire.Client(server.url) as client:
        client.publish("records", {"id": 7, "open": 1})
        client.publish("records", {"id": 7, "open": 0})
        [first] = seen_by(server)
    assert (first["DATA"], first["REASON"]) == ('{"id":7,"open":0}', "match")
    return first


@trigger("condition_timeout")
def by_a_record_that_matches_for_long(directory: Path) -> dict[str, str]:
    on = {"condition_timeout": {"topic": "records", "filter": "/open = 1", "after": "200ms"}}
    with running(directory, seen(on), **RECORDS) as server, quire.Client(server.url) as client:
        client.publish("records", {"id": 7, "open": 1})
        [first] = seen_by(server)
    assert (first["DATA"], first["REASON"]) == ('{"id":7,"open":1}', "timeout")
    return first


@trigger("alert")
def by_a_record_that_leaves_early(directory: Path) -> dict[str, str]:
    on = {"alert": {"topic": "records", "filter": "/open = 1", "after": "1h"}}
    with running(directory, seen(on), **RECORDS) as server, quire.Client(server.url) as client:
        client.publish("records", {"id": 7, "open": 1})
        client.publish("records", {"id": 7, "open": 0})
        [first] = seen_by(server)
    assert first["REASON"] == "left"
    return first


def by_a_client(directory: Path, name: str, **options: str) -> dict[str, str]:
    with running(directory, seen({name: options})) as server:
        with quire.Client(server.url, name="other") as other, quire.Client(server.url, name="shop") as client:
            other.subscribe("away")
            client.subscribe("^orders", filter="/id = 1", bookmark=quire.EPOCH)
        first = seen_by(server)[0]
    assert first["TRANSPORT"] == "clients"
    assert first["REMOTE_ADDRESS"].startswith("127.0.0.1:")
    assert first["CONNECTION"].isdecimal()
    assert first["CLIENT_NAME"] == ("" if name == "client_connect" else "shop")
    return first


@trigger("client_connect")
def by_a_connection(directory: Path) -> dict[str, str]:
    return by_a_client(directory, "client_connect")


@trigger("client_logon")
def by_a_logon(directory: Path) -> dict[str, str]:
    return by_a_client(directory, "client_logon", client="shop")


@trigger("client_disconnect")
def by_the_end_of_a_connection(directory: Path) -> dict[str, str]:
    first = by_a_client(directory, "client_disconnect", client="^shop$")
    assert first["REASON"] == "closed"
    return first


@trigger("subscribe")
def by_a_subscription(directory: Path) -> dict[str, str]:
    first = by_a_client(directory, "subscribe", topic="^.orders", client="shop")
    assert (first["TOPIC"], first["FILTER"], first["OPTIONS"]) == ("^orders", "/id = 1", "bookmark=0")
    return first


@trigger("unsubscribe")
def by_the_end_of_a_subscription(directory: Path) -> dict[str, str]:
    first = by_a_client(directory, "unsubscribe", client="shop")
    assert (first["TOPIC"], first["FILTER"]) == ("^orders", "/id = 1")
    return first


def by_a_slow_client(directory: Path, name: str) -> dict[str, str]:
    small = {"max_client_backlog": "1MB"}
    with running(directory, seen({name: {"client": "^stranger"}}), transport=small) as server:
        address = ("127.0.0.1", int(server.url.rpartition(":")[2]))
        with (
            quire.Client(server.url) as client,
            Stranger(address, timeout=PATIENCE, logged_on=True, receive_size=4096) as slow,
        ):
            slow.send(subscribe(b"orders"))
            assert slow.body_of(ACK) is not None
            for _number in range(300):
                client.publish("orders", json.dumps("x" * 100_000))
            client.flush()
            for _number in range(300):
                assert slow.body_of(MESSAGE) is not None
            return seen_by(server)[0]


@trigger("offline_start")
def by_a_client_that_is_offlined(directory: Path) -> dict[str, str]:
    first = by_a_slow_client(directory, "offline_start")
    assert int(first["BYTES"]) > 1_000_000
    return first


@trigger("offline_stop")
def by_a_client_that_is_online_again(directory: Path) -> dict[str, str]:
    first = by_a_slow_client(directory, "offline_stop")
    assert first["BYTES"] == "0"
    return first


def by_a_link(directory: Path, name: str) -> dict[str, str]:
    """The first run of a trigger about links in the life of a link: it is made, changed and lost."""
    topic = {"name": "^orders", "message_type": "json"}
    with contextlib.ExitStack() as stack:
        reserved, port = reserve()
        stack.enter_context(reserved)
        link = {
            "name": "two",
            "sync_type": "sync",
            "addresses": [f"127.0.0.1:{port}"],
            "topic": topic,
            "exclude_validation": "replicate",
        }
        is_of_source = name.startswith("replication_")
        one = stack.enter_context(
            running(
                directory / "one",
                *([seen({name: {"destination": "^tw"}})] if is_of_source else []),
                replication={"destination": [link]},
                group="near",
            )
        )
        with running(
            directory / "two",
            *([] if is_of_source else [seen(name)]),
            replication={"address": f"127.0.0.1:{port}"},
            name="two",
            group="far",
        ) as two:
            wait_until(lambda: one.replication.stats()["destinations"][0]["state"] == "live")
            one.replication.downgrade("two")
            one.replication.upgrade("two")
            if name == "incoming_disconnect":
                one.close()
            if not is_of_source:
                return seen_by(two)[0]
        return seen_by(one)[0]


def of_source(name: str) -> Started:
    def run(directory: Path) -> dict[str, str]:
        first = by_a_link(directory, f"replication_{name}")
        assert (first["DESTINATION"], first["PEER_NAME"], first["PEER_GROUP"]) == ("two", "two", "far")
        assert first["REMOTE_ADDRESS"].startswith("127.0.0.1:")
        return first

    return run


for each in ("connect", "disconnect", "downgrade", "upgrade", "resync_complete"):
    trigger(f"replication_{each}")(of_source(each))


def of_destination(name: str) -> Started:
    def run(directory: Path) -> dict[str, str]:
        first = by_a_link(directory, name)
        assert (first["PEER_NAME"], first["PEER_GROUP"]) == ("one", "near")
        assert first["REMOTE_ADDRESS"].startswith("127.0.0.1:")
        return first

    return run


for each in ("incoming_connect", "incoming_disconnect"):
    trigger(each)(of_destination(each))


@trigger("stuck")
def by_the_watchdog(directory: Path) -> dict[str, str]:
    with running(directory, seen("stuck")) as server:
        watchdog = server._watchdog
        assert watchdog is not None
        now = time.monotonic()
        held, release = threading.Event(), threading.Event()

        def hold() -> None:
            held.set()
            release.wait()

        assert server._loop is not None
        server._loop.call_soon_threadsafe(hold)
        held.wait()
        watchdog.look(now + 1000)
        watchdog.look(now + 1000 + 2 * STUCK)
        release.set()
        [first] = seen_by(server)
    assert first["THREAD"] == "event loop"
    assert int(first["SECONDS"]) >= STUCK
    return first


@trigger("event")
def by_a_step(directory: Path) -> dict[str, str]:
    raising = {"name": "raising", "on": "startup", "do": {"raise_event": "go"}}
    other = {"name": "other", "on": {"event": "stay"}, "do": "dump_stacks"}
    with running(directory, seen({"event": "go"}), raising, other) as server:
        [first] = seen_by(server)
        assert runs(server, "other") == 0
    return first


@pytest.mark.parametrize("name", OF_TRIGGERS)
def test_a_trigger_starts_its_action_with_its_variables(name: str, tmp_path: Path) -> None:
    variables = OF_TRIGGERS[name](tmp_path)
    assert set(TRIGGER_OF[name].variables) <= set(variables)
    assert variables["DATETIME"].endswith("Z")
    assert int(variables["UNIX_TIMESTAMP"]) > 1.7e9


def test_every_trigger_has_a_run() -> None:
    assert set(OF_TRIGGERS) == set(TRIGGER_OF) == set(_triggers.SOURCES)
