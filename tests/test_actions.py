"""Each trigger starts a real action with its variables, and each step does what the table says (docs/actions.md).

A trigger or step without a run here fails `test_every_trigger_has_a_run` and `test_every_step_has_a_run`.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import actions_page
import httpx
import pytest
import quire
import quire.testing
from quire._errors import ConfigError
from quire.actions import _steps, _triggers
from quire.actions._conditions import Conditions
from quire.actions._run import Ended, Run, Runner, State
from quire.actions._schedule import Schedule
from quire.actions._table import STEP_OF, TRIGGER_OF
from quire.actions._text import Value, expanded, to_bytes
from quire.actions._triggers import Timetable
from quire.actions._watchdog import STUCK, Watch, Watchdog
from quire.config import Action
from quire.testing import TestServer
from support.actions import figures, lines_of, messages, publish, running, runs, seen, seen_by
from support.ports import reserve
from support.stranger import ACK, MESSAGE, Stranger, subscribe
from support.waiting import PATIENCE, wait_until

RECORDS: dict[str, Any] = {"sow_topic": {"name": "records", "message_type": "json", "key": "/id"}}
QUEUE: dict[str, Any] = {
    "queue": {"name": "jobs", "message_type": "json", "max_deliveries": 1, "retry_delay": []}
}

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


# Steps: each runs after a publish on the topic `go`, and is compared afterwards.

Carried = Callable[[Path], None]
OF_STEPS: dict[str, Carried] = {}


def step(name: str) -> Callable[[Carried], Carried]:
    def add(run: Carried) -> Carried:
        OF_STEPS[name] = run
        return run

    return add


@contextlib.contextmanager
def carried(directory: Path, *steps: Any, data: Any = None, outcome: str = "ok", **settings: Any) -> Any:
    """A server on which an action with these steps has run once."""
    action = {"name": "act", "on": {"publish": "go"}, "do": list(steps)}
    with running(directory, action, **settings) as server:
        with quire.Client(server.url, name="starter") as client:
            client.publish("go", {"id": 7} if data is None else data)
            client.flush()
        wait_until(lambda: runs(server, "act") == 1)
        assert figures(server, "act")["last_outcome"] == outcome, figures(server, "act")
        yield server


@step("log")
def a_line(directory: Path) -> None:
    with (
        lines_of("60-0001") as lines,
        carried(directory, {"log": {"level": "warning", "text": "got {{DATA}}"}}),
    ):
        pass
    [found] = [each for each in lines if "got" in each.getMessage()]
    assert (found.levelname, found.getMessage()) == ("WARNING", "action 'act': got {\"id\":7}")


@step("publish")
def a_message(directory: Path) -> None:
    options = {
        "topic": "out",
        "data": "{{DATA}}{{BYTE_01}}",
        "headers": {"a": "{{TOPIC}}"},
        "correlation_id": "c",
    }
    with carried(directory, {"publish": options}) as server, quire.Client(server.url) as client:
        [found] = client.subscribe("out", bookmark=quire.EPOCH, until=quire.NOW)
        assert (found.data, found.correlation_id) == (b'{"id":7}\x01', "c")
        assert found.headers == {"a": "go", "quire-actions": "act"}
    steps = [publish("records", '{"id": 1, "n": 1}')]
    for key, number in ((1, 2), (2, 2)):
        data = f'{{"id": {key}, "n": {number}}}'
        steps.append({"publish": {"topic": "records", "data": data, "update_only": True}})
    with carried(directory / "update", *steps, **RECORDS) as server, quire.Client(server.url) as client:
        assert [record.json() for record in client.sow("records")] == [{"id": 1, "n": 2}]
        assert messages(server, "records") == [{"id": 1, "n": 1}, {"id": 1, "n": 2}]
    delta = {"publish": {"topic": "records", "data": "{{DATA}}", "delta": True}}
    with carried(directory / "delta", delta, **RECORDS) as server, quire.Client(server.url) as client:
        assert [record.json() for record in client.sow("records")] == [{"id": 7}]


@step("query_records")
def a_query(directory: Path) -> None:
    fill = [publish("records", f'{{"id": {number}, "n": {number}}}') for number in (1, 2, 3)]
    query = {"topic": "records", "filter": "/n > 1", "order_by": "/n DESC", "top_n": 1, "into": "FOUND"}
    with carried(
        directory, *fill, {"query_records": query}, publish("out", "[{{FOUND}}]"), **RECORDS
    ) as server:
        assert messages(server, "out") == [[{"id": 3, "n": 3}]]


@step("delete_records")
def a_delete(directory: Path) -> None:
    fill = [publish("records", f'{{"id": {number}}}') for number in (1, 2, 3)]
    delete = {"topic": "records", "filter": "/id > 1", "into": "COUNT"}
    everything = {"delete_records": {"topic": "^records$"}}
    steps = (*fill, {"delete_records": delete}, publish("out", "{{COUNT}}"), everything)
    with carried(directory, *steps, **RECORDS) as server, quire.Client(server.url) as client:
        assert messages(server, "out") == [2]
        assert list(client.sow("records")) == []


@step("compact_records")
def records_are_compacted(directory: Path) -> None:
    compact = {"compact_records": {"topic": "^rec", "into": "FREED"}}
    action = {"name": "act", "on": {"publish": "go"}, "do": [compact, publish("out", "{{FREED}}")]}
    with running(directory, action, **RECORDS) as server, quire.Client(server.url) as client:
        client.publish_many("records", [{"id": number, "text": "x" * 1000} for number in range(2000)])
        client.flush()
        client.sow_delete("records", filter="/id % 8 != 0")
        client.publish("go", {})
        wait_until(lambda: runs(server, "act") == 1)
        [freed] = messages(server, "out")
        # An eighth of two million bytes is left, and the pages were half empty or more.
        assert freed > 1_000_000
        assert sorted(record.json()["id"] for record in client.sow("records")) == list(range(0, 2000, 8))
    # A topic of a pattern without records, and patterns without topics, have nothing to move.
    entry = {"name": "all", "message_type": "json", "key": "/id", "pattern": "orders/.*"}
    steps = [{"compact_records": topic} for topic in ("orders/a", "^orders/", "^none", "{{NONE:filter}}orders/b")]
    with carried(directory / "pattern", *steps, sow_topic=entry):
        pass
    with carried(directory / "none", {"compact_records": "no{{NONE:filter}}ne"}, outcome="failed") as server:
        assert "no last-value topic has the name" in figures(server, "act")["last_error"]


def of_journal(verb: str) -> Carried:
    def run(directory: Path) -> None:
        log = {"journal_size": "64KB", "journal_archive_directory": "archive"}
        fill = [publish("filling", "x" * 40_000)] * 6
        steps = [*fill, {f"{verb}_journal": {"age": "{{AGE}}0s"}}]
        with carried(directory, *steps, transaction_log=log) as server:
            states = {each.state for each in server.journal.segments()}
            positions = [each.number for each in server.journal.segments()]
        if verb == "remove":
            assert positions[0] > 1
        else:
            assert {"archive": "archived", "compress": "compressed"}[verb] in states
        with carried(
            directory / "size", *fill, {f"{verb}_journal": {"size_max": "1TB"}}, transaction_log=log
        ):
            pass

    return run


for each in ("archive", "compress", "remove"):
    step(f"{each}_journal")(of_journal(each))


@step("compress_files")
def files_are_compressed(directory: Path) -> None:
    (directory / "old").mkdir()
    (directory / "old/a.txt").write_text("text")
    (directory / "old/b.log").write_text("log")
    with carried(directory, {"compress_files": {"age": "0s", "pattern": "old/*.txt"}}):
        pass
    assert sorted(path.name for path in (directory / "old").iterdir()) == ["a.txt.gz", "b.log"]
    assert gzip.decompress((directory / "old/a.txt.gz").read_bytes()) == b"text"


@step("remove_files")
def files_are_removed(directory: Path) -> None:
    (directory / "old/below").mkdir(parents=True)
    for name, age in (("a.txt", 100), ("b.txt", 10), ("below/a.txt", 100)):
        path = directory / "old" / name
        path.write_text(name)
        os.utime(path, (time.time() - age,) * 2)
    with carried(directory, {"remove_files": {"age": "50s", "pattern": "old/*"}}):
        pass
    assert not (directory / "old/a.txt").exists()
    assert (directory / "old/b.txt").exists()
    assert (directory / "old/below/a.txt").exists()


@step("rotate_logs")
def the_log_is_rotated(directory: Path) -> None:
    log = {"target": "file", "file": "log/%n.log"}
    with carried(directory, "rotate_logs", logging=log):
        pass
    assert len(list((directory / "log").iterdir())) == 2


@step("truncate_statistics")
def samples_are_removed(directory: Path) -> None:
    with carried(directory, {"truncate_statistics": {"age": "0s"}}) as server:
        assert server._administration is not None
        history = server._administration._history()
        assert history is not None


@step("disconnect")
def a_client_is_disconnected(directory: Path) -> None:
    action = {"name": "act", "on": {"publish": "go"}, "do": {"disconnect": "^sho"}}
    watch = seen({"client_disconnect": {"client": "shop"}})
    with (
        running(directory, action, watch) as server,
        quire.Client(server.url, name="shop") as shop,
        quire.Client(server.url, name="starter") as client,
    ):
        client.publish("go", {})
        assert [each["REASON"] for each in seen_by(server)] == ["admin"]
        shop.publish("orders", {})
        shop.flush()


@step("enable_transport")
def a_transport_is_enabled(directory: Path) -> None:
    both = ({"disable_transport": "clients"}, {"enable_transport": "clients"})
    with carried(directory, *both) as server, quire.Client(server.url) as client:
        client.publish("orders", {})
        client.flush()


@step("disable_transport")
def a_transport_is_disabled(directory: Path) -> None:
    with carried(directory, {"disable_transport": "^cli"}) as server:
        assert server._enabled_transports == set()
        with pytest.raises(quire.DisconnectedError):
            quire.Client(server.url, connect_timeout=5)
    with carried(directory / "other", {"disable_transport": "none"}, outcome="failed") as server:
        assert "no transport has the name 'none'" in figures(server, "act")["last_error"]


def of_replication(verb: str) -> Carried:
    def run(directory: Path) -> None:
        topic = {"name": "^orders", "message_type": "json"}
        reserved, port = reserve()
        link = {
            "name": "two",
            "sync_type": "sync",
            "addresses": [f"127.0.0.1:{port}"],
            "topic": topic,
            "exclude_validation": "replicate",
        }
        with reserved, contextlib.ExitStack() as stack:
            if verb == "upgrade":
                far = {"address": f"127.0.0.1:{port}"}
                stack.enter_context(quire.testing.server(directory / "two", name="two", replication=far))
            options = {"destination": "^t", "age": "0s" if verb == "downgrade" else "1h"}
            action = {"name": "act", "on": {"event": "go"}, "do": {f"{verb}_replication": options}}
            one = stack.enter_context(running(directory / "one", action, replication={"destination": [link]}))

            def state() -> dict[str, Any]:
                found: dict[str, Any] = one.replication.stats()["destinations"][0]
                return found

            if verb == "upgrade":
                wait_until(lambda: state()["state"] == "live")
                one.replication.downgrade("two")
            else:
                client = stack.enter_context(quire.Client(one.url))
                client.publish("orders", {})
                wait_until(lambda: (state()["seconds_behind"] or 0) > 0)
            assert one._actions is not None
            one._actions.start("event", {}, (), lambda part: True)
            wait_until(lambda: runs(one, "act") == 1)
            assert state()["sync_type"] == ("async" if verb == "downgrade" else "sync")

    return run


for each in ("downgrade", "upgrade"):
    step(f"{each}_replication")(of_replication(each))


def of_users(name: str) -> Carried:
    def run(directory: Path) -> None:
        users = {"anna": {"password": "a good one"}}
        action = {"name": "act", "on": {"event": "go"}, "do": name}
        with running(directory, action, users=users) as server:
            quire.Client(server.url, **server.options("anna")).close()
            (directory / "users.toml").write_text("")
            assert server._actions is not None
            server._actions.start("event", {})
            wait_until(lambda: runs(server, "act") == 1)
            with pytest.raises(quire.AuthenticationError):
                quire.Client(server.url, **server.options("anna"), connect_timeout=20)

    return run


for each in ("reset_entitlements", "reset_authentication"):
    step(each)(of_users(each))


@pytest.mark.parametrize("name", ["reset_entitlements", "reset_authentication"])
def test_a_reset_of_a_user_forgets_the_results_of_this_user(name: str, tmp_path: Path) -> None:
    action = {"name": "act", "on": {"event": "go"}, "do": {name: "^an"}}
    with running(tmp_path, action) as server:
        forgotten: list[Callable[[str], bool]] = []
        server._forget_results = forgotten.append  # type: ignore[method-assign,assignment]
        assert server._actions is not None
        server._actions.start("event", {})
        wait_until(lambda: runs(server, "act") == 1)
        [selects] = forgotten
        assert [selects(user) for user in ("anna", "bert")] == [True, False]


@step("extract")
def fields_are_extracted(directory: Path) -> None:
    steps = (
        {"extract": {"values": {"ORDER": "/order/id", "NONE": "/none"}}},
        publish("out", '["{{ORDER}}{{NONE}}"]'),
    )
    with carried(directory, *steps, data={"order": {"id": 7}}) as server:
        assert messages(server, "out") == [["7"]]


@step("translate")
def a_message_is_translated(directory: Path) -> None:
    steps = (
        {"translate": {"to": "xml"}},
        {"log": "{{DATA}}"},
        {"translate": {"to": "msgpack"}},
        {"translate": {"to": "bson", "into": "OTHER"}},
        {"translate": {"from": "OTHER", "message_type": "bson", "to": "json", "into": "JSON"}},
        publish("out", "{{JSON}}"),
    )
    order = {"order": {"@id": "7", "line": [{"n": "1"}, {"n": "2"}]}}
    with carried(directory, *steps, data=order) as server:
        assert messages(server, "out") == [order]
    pairs = ({"translate": {"to": "nvfix", "into": "PAIRS"}}, publish("out", "{{PAIRS:json}}"))
    with carried(directory / "pairs", *pairs, data={"id": 7, "name": "a"}) as server:
        assert messages(server, "out") == ["id=7\x01name=a\x01"]
    with carried(directory / "nested", *pairs, data={"a": {"b": 1}}, outcome="failed") as server:
        assert "messages of the type nvfix have none" in figures(server, "act")["last_error"]


@step("increment")
def a_counter_is_incremented(directory: Path) -> None:
    steps = (
        {"increment": "{{TOPIC}}"},
        {"increment": {"counter": "go", "by": 5, "into": "N"}},
        publish("out", "{{N}}"),
    )
    with carried(directory, *steps) as server:
        assert messages(server, "out") == [6]


@step("raise_event")
def an_event_is_raised(directory: Path) -> None:
    heard = {"name": "heard", "on": {"event": "go"}, "do": publish("out", '"{{WHAT}}"')}
    raising = {"raise_event": {"name": "g{{NONE}}o", "variables": {"WHAT": "{{TOPIC}}"}}}
    action = {"name": "act", "on": {"publish": "go"}, "do": raising}
    with running(directory, action, heard) as server, quire.Client(server.url) as client:
        client.publish("go", {})
        wait_until(lambda: runs(server, "heard") == 1)
        assert messages(server, "out") == ["go"]


@step("dump_stacks")
def stacks_are_written(directory: Path) -> None:
    log = {"target": "file", "file": "the.log"}
    with carried(directory, "dump_stacks", logging=log):
        pass
    text = (directory / "the.log").read_text()
    assert "01-0022 stack of thread" in text
    assert "(quire-log)" in text


@step("shutdown")
def the_server_stops(directory: Path) -> None:
    with carried(directory, "shutdown") as server:
        wait_until(lambda: not server.is_running)


@step("execute")
def a_program_runs(directory: Path) -> None:
    run = {"command": ["/bin/sh", "-c", 'printf %s "$1"', "sh", "{{DATA}}; exit 1"], "into": "OUT"}
    with carried(directory, {"execute": run}, publish("out", "{{OUT:json}}"), allow_execute=True) as server:
        assert messages(server, "out") == ['{"id":7}; exit 1']
    for command, error in (
        (["/bin/sh", "-c", "echo why >&2; exit 3"], "/bin/sh ended with the code 3: why"),
        (["/no/such/program"], "No such file or directory"),
        (["/bin/sleep", "60"], "/bin/sleep was ended after 50ms"),
    ):
        step = {"execute": {"command": command, "timeout": "50ms" if "sleep" in command[0] else "10s"}}
        place = directory / command[0].rpartition("/")[2]
        with carried(place, step, publish("out", "0"), outcome="failed", allow_execute=True) as server:
            assert error in figures(server, "act")["last_error"]
            assert messages(server, "out") == []


@step("if")
def a_condition_is_evaluated(directory: Path) -> None:
    for expression, outcome in (("/DATA_LENGTH > 3 AND /TOPIC = 'go'", "ok"), ("/NONE = 'a'", "stopped")):
        place = directory / outcome
        with carried(place, {"if": expression}, publish("out", "1"), outcome=outcome) as server:
            assert messages(server, "out") == ([1] if outcome == "ok" else [])
            assert figures(server, "act")["stopped"] == (outcome == "stopped")


@step("if_free_space")
def free_space_is_compared(directory: Path) -> None:
    for below, outcome in (("100%", "ok"), ("0%", "stopped"), ("1B", "stopped"), ("1000000TB", "ok")):
        place = directory / f"{below[:-1]}-{outcome}"
        condition = {"if_free_space": {"path": ".", "below": below}}
        with carried(place, condition, outcome=outcome):
            pass
    with carried(directory / "none", {"if_free_space": {"path": "none", "below": "5%"}}, outcome="failed"):
        pass


@pytest.mark.parametrize("name", OF_STEPS)
def test_a_step_does_what_the_table_says(name: str, tmp_path: Path) -> None:
    OF_STEPS[name](tmp_path)


def test_every_step_has_a_run() -> None:
    assert set(OF_STEPS) == set(STEP_OF) == set(_steps.STEPS)


def test_the_page_has_the_tables_of_the_code() -> None:
    assert actions_page.PAGE.read_text() == actions_page.page()


# Runs


def test_a_message_of_an_action_starts_no_action_of_its_chain(tmp_path: Path) -> None:
    """The topics are in variables, so the check does not see the cycle."""
    first = {"name": "first", "on": {"publish": "^ping"}, "do": [publish("{{TOPIC}}/pong", "{{DATA}}")]}
    second = {"name": "second", "on": {"publish": "pong$"}, "do": [publish("ping/again{{NONE}}", "{{DATA}}")]}
    with running(tmp_path, first, second) as server, quire.Client(server.url) as client:
        client.publish("ping", {"n": 1})
        client.flush()
        wait_until(lambda: runs(server, "second") == 1)
        client.publish("ping", {"n": 2})
        wait_until(lambda: runs(server, "second") == 2)
        assert [each["n"] for each in messages(server, "ping/again")] == [1, 2]
        assert (runs(server, "first"), runs(server, "second")) == (2, 2)


def test_a_record_that_an_action_deleted_starts_no_action_of_its_chain(tmp_path: Path) -> None:
    again = {
        "name": "again",
        "on": {"delete_message": "records"},
        "do": [
            publish("records{{NONE}}", "{{DATA}}"),
            {"delete_records": {"topic": "records{{NONE:filter}}"}},
        ],
    }
    with running(tmp_path, again, **RECORDS) as server, quire.Client(server.url) as client:
        for number in (1, 2):
            client.publish("records", {"id": number})
            client.sow_delete("records", filter="1 = 1")
            wait_until(lambda number=number: runs(server, "again") == number)  # type: ignore[misc]
        assert list(client.sow("records")) == []
        assert runs(server, "again") == 2


def test_each_way_of_delivery_starts_the_trigger_deliver(tmp_path: Path) -> None:
    action = {
        "name": "told",
        "on": {"deliver": "^(orders|jobs)$"},
        "do": publish("told", '"{{SUBSCRIBER}} {{TOPIC}} {{DATA}}"'),
    }
    with running(tmp_path, action, **QUEUE) as server, contextlib.ExitStack() as stack:

        def client(name: str) -> quire.Client:
            return stack.enter_context(quire.Client(server.url, name=name))

        shop = client("shop")
        shop.publish("orders", 1)
        shop.publish("jobs", 3)
        shop.flush()
        replay = client("replay").subscribe("orders", bookmark=quire.EPOCH)
        assert replay.get(timeout=PATIENCE).json() == 1
        live = client("live").subscribe("orders")
        conflating = client("conflating").subscribe("orders", conflation="100ms", conflation_key="/id")
        client("worker").subscribe("jobs").get(timeout=PATIENCE).ack()
        shop.publish("orders", 2)
        shop.flush()
        for subscription in (replay, live, conflating):
            assert subscription.get(timeout=PATIENCE).json() == 2
        expected = {
            *("replay orders 1", "replay orders 2", "live orders 2", "conflating orders 2", "worker jobs 3"),
        }
        wait_until(lambda: set(messages(server, "told")) == expected)
        # Messages of other topics, and those that the clients of actions receive, do not count.
        assert sorted(messages(server, "told")) == sorted(expected)


def test_a_message_that_an_action_published_is_delivered_without_a_new_run(tmp_path: Path) -> None:
    echo = {"name": "echo", "on": {"deliver": "^orders"}, "do": publish("{{TOPIC}}/echo{{NONE}}", "{{DATA}}")}
    with running(tmp_path, echo) as server, quire.Client(server.url) as client:
        subscription = client.subscribe("^orders")
        for number in (1, 2):
            client.publish("orders", number)
            assert [subscription.get(timeout=PATIENCE).topic for _ in range(2)] == ["orders", "orders/echo"]
            wait_until(lambda number=number: runs(server, "echo") == number)  # type: ignore[misc]
        assert messages(server, "orders/echo") == [1, 2]
        assert messages(server, "orders/echo/echo") == []


def test_a_trigger_takes_the_messages_of_its_source(tmp_path: Path) -> None:
    orders = {"name": "^orders$", "message_type": "json"}
    actions = [
        {
            "name": source,
            "on": {"publish": {"topic": "orders", "source": source}},
            "do": publish(f"seen-{source}", "{{DATA}}"),
        }
        for source in ("all", "local", "replicated")
    ]
    reserved, port = reserve()
    link = {
        "name": "two",
        "sync_type": "sync",
        "addresses": [f"127.0.0.1:{port}"],
        "topic": orders,
        "exclude_validation": "replicate",
    }
    with (
        reserved,
        running(tmp_path / "one", *actions, replication={"destination": [link]}) as one,
        running(tmp_path / "two", *actions, name="two", replication={"address": f"127.0.0.1:{port}"}) as two,
    ):
        for server, numbers in ((one, (1, 2)), (two, (3, 4))):
            with quire.Client(server.url) as client:
                for number in numbers:
                    client.publish("orders", number)
                client.flush()
        wait_until(lambda: runs(two, "all") == 4)
        wait_until(lambda: runs(one, "local") == runs(two, "local") == runs(two, "replicated") == 2)
        assert messages(one, "seen-local") == [1, 2]
        assert messages(one, "seen-replicated") == []
        assert messages(two, "seen-local") == [3, 4]
        assert messages(two, "seen-replicated") == [1, 2]


def test_runs_beyond_the_limit_are_dropped_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quire.actions._run.WAITING_MAX", 3)
    held = threading.Event()
    told: list[str] = []
    runner = Runner({}, lambda *_: void(held.wait()), told.append)
    runner.is_told = lambda: True
    state = State(Action(name="a", on={"event": "x"}, do="dump_stacks"))
    ended: list[Ended] = []
    assert runner.submit(state, Run("event", {}), ended.append)
    wait_until(lambda: state.running == 1)
    assert [runner.submit(state, Run("event", {}), ended.append) for _ in range(5)] == [True] * 3 + [
        False
    ] * 2
    assert state.figures()["dropped"] == 2
    assert [json.loads(text)["outcome"] for text in told] == ["dropped"] * 2
    held.set()
    assert runner.close(60)
    assert [each.outcome for each in ended] == ["ok"] * 4


def void(_: object) -> None: ...


def test_the_runs_of_an_action_follow_each_other_in_order() -> None:
    order: list[tuple[str, int]] = []

    def carry(state: State, run: Run, _: Any) -> None:
        order.append(("begin", int(run.variables["N"])))
        order.append(("end", int(run.variables["N"])))

    runner = Runner({}, carry, void)
    state = State(Action(name="a", on={"event": "x"}, do="dump_stacks"))
    for number in range(200):
        runner.submit(state, Run("event", {"N": number}))
    assert runner.close(60)
    assert order == [(what, number) for number in range(200) for what in ("begin", "end")]


def test_a_disabled_action_is_not_started(tmp_path: Path) -> None:
    action = {**seen("startup"), "enabled": False}
    with running(tmp_path, action) as server:
        assert figures(server)["enabled"] is False
        assert runs(server) == 0


def test_a_failed_step_ends_the_run_and_is_seen_everywhere(tmp_path: Path) -> None:
    fail = {"execute": ["/bin/false"]}
    recorded = {
        "topic": [{"name": "^", "message_type": "json"}, {"name": "/quire/Action", "message_type": "json"}]
    }
    settings: dict[str, Any] = {
        "allow_execute": True,
        "transaction_log": recorded,
        "admin": {"address": "127.0.0.1:0"},
        "logging": {"target": "file", "file": "the.log"},
    }
    with carried(tmp_path, fail, publish("out", "1"), outcome="failed", **settings) as server:
        assert messages(server, "out") == []
        wait_until(lambda: len(messages(server, "/quire/Action")) == 2)
        told = next(each for each in messages(server, "/quire/Action") if each["action"] == "act")
        assert (told["outcome"], told["step"], told["trigger"]) == ("failed", "do[0] execute", "publish")
        assert told["error"] == "/bin/false ended with the code 1"
        metrics = httpx.get(f"{server.admin_url}/metrics").text
        assert 'quire_action_runs_total{action="act",outcome="failed"} 1.0' in metrics
        node = httpx.get(f"{server.admin_url}/quire/instance/actions/act.json").json()
        assert (node["failures"], node["last_outcome"]) == (1, "failed")
    assert (
        "60-0002 action 'act', started by publish: do[0] execute failed" in (tmp_path / "the.log").read_text()
    )


def test_a_trigger_continues_after_the_last_run_when_the_server_starts_again(tmp_path: Path) -> None:
    copy = {"name": "copy", "on": {"publish": "orders"}, "do": publish("copies", "{{DATA}}")}

    def publish_to(server: TestServer, numbers: range) -> None:
        with quire.Client(server.url) as client:
            for number in numbers:
                client.publish("orders", number)
            client.flush()

    with quire.testing.server(tmp_path, name="one") as server:
        publish_to(server, range(3))  # before the trigger was there
    with running(tmp_path, copy) as server:
        publish_to(server, range(3, 6))
        wait_until(lambda: runs(server, "copy") == 3)
    with quire.testing.server(tmp_path, name="one") as server:
        publish_to(server, range(6, 9))  # while the trigger is away
    with running(tmp_path, copy) as server:
        wait_until(lambda: runs(server, "copy") == 3)
        assert messages(server, "copies") == list(range(3, 9))


# Parts without a server


def test_variables_have_the_forms_of_the_page() -> None:
    variables: dict[str, Value] = {"A": "x'\"/é", "N": 7, "RAW": b"\xff\x01"}
    assert expanded("{{A}} {{A:json}} {{A:url}} {{NONE}}{{N}}", variables) == (
        'x\'"/é "x\'\\"/é" x%27%22%2F%C3%A9 7'
    )
    assert expanded("/a = {{A:filter}} AND /n = {{N:filter}}", variables) == "/a = 'x''\"/é' AND /n = 7"
    assert expanded("{{NONE:filter}}", variables) == "''"
    assert expanded("^{{A:filter}}$", {"A": "a.b+"}, is_pattern=True) == r"^a\.b\+$"
    assert (
        to_bytes(expanded("{{RAW}}{{BYTE_E2}}{{BYTE_82}}{{BYTE_AC}}", variables)) == b"\xff\x01\xe2\x82\xac"
    )
    assert expanded("{{RAW:base64}}", variables) == "/wE="
    # A value is not expanded again.
    assert expanded("{{A}}", {"A": "{{B}}", "B": "no"}) == "{{B}}"


@pytest.mark.parametrize(
    ("text", "now", "after"),
    [
        ("4h", "2026-01-05 10:00", "2026-01-05 12:00"),
        ("23:00Z", "2026-01-05 10:00", "2026-01-05 23:00"),
        ("09:59Z", "2026-01-05 10:00", "2026-01-06 09:59"),
        ("Saturday at 00:30Z", "2026-01-05 10:00", "2026-01-10 00:30"),
        ("monday at 10:00Z", "2026-01-05 10:00", "2026-01-12 10:00"),
    ],
)
def test_a_schedule_has_its_next_time(text: str, now: str, after: str) -> None:
    started = at("2026-01-05 08:00")
    assert Schedule.parse(text).after(at(now), started) == at(after)


def at(text: str) -> float:
    import calendar

    return float(calendar.timegm(time.strptime(text, "%Y-%m-%d %H:%M")))


@pytest.mark.parametrize("text", ["24:00", "12:60", "Someday at 10:00", "0s", "noon", "", "100ms"])
def test_a_bad_schedule_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        Schedule.parse(text)


@pytest.mark.parametrize("text", ["02:30", "03:30", "01:59"])
def test_a_local_time_comes_once_a_day_when_the_clocks_change(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        state: Any = None
        for first in ("2026-03-27 22:00", "2026-10-23 22:00"):
            now = at(first)
            timetable = Timetable([(state, Schedule.parse(text))], now)
            days = []
            for minute in range(5 * 24 * 60):
                for _ in timetable.due(now + 60 * minute):
                    days.append(time.localtime(now + 60 * minute).tm_yday)
            assert days == list(range(days[0], days[0] + 5))
    finally:
        monkeypatch.undo()
        time.tzset()


def test_times_that_were_missed_are_skipped() -> None:
    state: Any = None
    timetable = Timetable([(state, Schedule.parse("1m"))], 0.0)
    assert list(timetable.due(59.0)) == []
    assert len(list(timetable.due(1000.0))) == 1
    assert list(timetable.due(1001.0)) == []
    assert len(list(timetable.due(1020.0))) == 1


def test_a_record_is_due_once_and_only_after_its_time() -> None:
    conditions, key = Conditions(10.0), ("t", "k")
    conditions.matched(key, "first", 0.0)
    conditions.matched(key, "second", 5.0)
    assert list(conditions.due(9.9)) == []
    assert list(conditions.due(10.0)) == ["second"]
    assert list(conditions.due(100.0)) == []
    assert conditions.left(key) is False
    conditions.matched(key, "again", 20.0)
    assert conditions.left(key) is True
    conditions.matched(key, "once more", 25.0)
    assert list(conditions.due(30.0)) == []
    assert list(conditions.due(35.0)) == ["once more"]


# The watchdog


def test_the_watchdog_reports_a_part_once_and_when_it_runs_again() -> None:
    watch = Watch()
    answers: list[Callable[[], None]] = []
    watch.add("loop", answers.append)
    assert list(watch.look(0.0)) == []
    answers.pop()()
    assert list(watch.look(1.0)) == []
    assert list(watch.look(1.0 + STUCK - 0.1)) == []
    assert list(watch.look(1.0 + STUCK)) == [("loop", STUCK, True)]
    assert list(watch.look(2.0 + STUCK)) == []
    answers.pop()()
    assert list(watch.look(3.0 + STUCK)) == [("loop", 0.0, False)]


def test_a_stuck_part_is_logged_with_the_stacks_of_all_threads(caplog: pytest.LogCaptureFixture) -> None:
    class Held:
        def call_soon_threadsafe(self, *_: object) -> None: ...

    told: list[tuple[str, float]] = []
    held: Any = Held()
    watchdog = Watchdog(held, lambda *stuck: told.append(stuck))
    with caplog.at_level(logging.INFO, logger="quire.server"):
        watchdog.look(0.0)
        watchdog.look(STUCK)
    assert told == [("event loop", STUCK)]
    ids = [getattr(record, "line_id", "") for record in caplog.records]
    assert ids[0] == "01-0001"
    assert ids.count("01-0022") >= 1
    assert "test_a_stuck_part_is_logged" in caplog.text


# The check


def mistake(tmp_path: Path, text: str) -> str:
    file = tmp_path / "one.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as raised:
        quire.Config.load(file).check()
    return str(raised.value).replace(f"{file}:", "")


#: Triggers, of which each is refused with a text.
BAD_TRIGGERS: dict[str, str] = {
    '{ schedul = "4h" }': 'action[0].on[0].schedul: unknown trigger; did you mean "schedule"?',
    '{ schedule = "25:00" }': "action[0].on[0].schedule: expected a time such as",
    '"schedule"': "action[0].on[0].schedule.at: this key is required",
    '{ signal = "SIGKILL" }': "action[0].on[0].signal: expected",
    '{ publish = { topic = "a", filter = "/a =" } }': "action[0].on[0].publish.filter:",
    '{ publish = { topic = "a", flter = "/a" } }': 'did you mean "filter"?',
    '{ publish = { topic = "a", source = "here" } }': "action[0].on[0].publish.source: expected",
    '{ deliver = { topic = "a", filter = "/a =" } }': "action[0].on[0].deliver.filter:",
    '{ expire_message = "none" }': 'no queue and no last-value topic has the name "none"',
    '{ delete_message = "none" }': 'no last-value topic has the name "none"',
}
#: Steps, of which each is refused with a text.
BAD_STEPS: dict[str, str] = {
    '"rotate_log"': 'action[0].do[0].rotate_log: unknown step; did you mean "rotate_logs"?',
    '{ rotate_logs = "x" }': 'action[0].do[0].rotate_logs: expected no value: write "rotate_logs"',
    "{ archive_journal = {} }": "expected exactly one of age and size_max",
    '{ execute = ["/bin/true"] }': "it requires allow_execute = true",
    '{ log = "{{name}}" }': "{{name}} is no variable",
    '{ log = "{{NAME:xml}}" }': "expected one of json, base64, url, filter",
    '{ delete_records = { topic = "a", filter = "/a = \'{{A}}\'" } }': "write {{A:filter}}",
    '{ publish = { topic = "^a", data = "" } }': "expected a name, and no pattern",
    '{ publish = { topic = "/quire/a", data = "" } }': "only the server publishes",
    '{ publish = { topic = "a", data = "", update_only = true } }': 'no last-value topic has the name "a"',
    '{ compact_records = "a" }': 'no last-value topic has the name "a"',
    '{ if_free_space = { path = ".", below = "many" } }': "below: 'many' is not a size",
}
#: Actions that start themselves.
CYCLES: dict[str, str] = {
    '{ publish = "a" }': '{ publish = { topic = "a", data = "x" } }',
    '{ deliver = "a" }': '{ publish = { topic = "a", data = "x" } }',
    '{ event = "a" }': '{ raise_event = "a" }',
}


@pytest.mark.parametrize(
    ("on", "do", "expected"),
    [
        *((on, '"rotate_logs"', expected) for on, expected in BAD_TRIGGERS.items()),
        *(('"startup"', do, expected) for do, expected in BAD_STEPS.items()),
        *((on, do, "action[0].do[0]: a cycle: a starts a") for on, do in CYCLES.items()),
    ],
)
def test_a_mistake_has_its_key_and_its_line(on: str, do: str, expected: str, tmp_path: Path) -> None:
    text = mistake(tmp_path, f'name = "one"\n\n[[action]]\nname = "a"\non = {on}\ndo = [\n    {do},\n]\n')
    assert expected in text
    line = 7 if ".do[" in text else 5
    assert text.startswith(f"{line}:"), text


@pytest.mark.parametrize(
    ("on", "do"),
    [
        ('"startup"', '{ compact_records = "all" }'),
        ('"startup"', '{ publish = { topic = "all", data = "x", update_only = true } }'),
        ('{ oof_message = "all" }', '"rotate_logs"'),
        ('{ expire_message = "all" }', '"rotate_logs"'),
    ],
)
def test_the_name_of_an_entry_with_a_pattern_is_not_a_topic(on: str, do: str, tmp_path: Path) -> None:
    entry = '[[sow_topic]]\nname = "all"\nmessage_type = "json"\nkey = "/id"\npattern = "orders/.*"\n'
    text = mistake(tmp_path, f'{entry}[[action]]\nname = "a"\non = {on}\ndo = {do}\n')
    assert 'last-value topic has the name "all": it is the name of an entry; write a topic that' in text


def test_actions_that_start_each_other_are_refused(tmp_path: Path) -> None:
    chain = "".join(
        f'[[action]]\nname = "{name}"\non = {{ publish = "{name}" }}\n'
        f'do = [{{ publish = {{ topic = "{to}", data = "x" }} }}]\n'
        for name, to in (("a", "b"), ("b", "c"), ("c", "a"))
    )
    assert "a cycle: a starts b starts c starts a" in mistake(tmp_path, chain)
    open_chain = chain.replace('topic = "a"', 'topic = "d"')
    (tmp_path / "open.toml").write_text(open_chain)
    quire.Config.load(tmp_path / "open.toml").check()


def test_a_message_put_back_into_its_queue_is_a_cycle(tmp_path: Path) -> None:
    text = (
        '[[queue]]\nname = "jobs"\nmessage_type = "json"\n[[action]]\nname = "a"\non = { expire_message = "jobs" }\n'
        'do = [{ publish = { topic = "jobs", data = "{{DATA}}" } }]\n'
    )
    assert "a cycle: a starts a" in mistake(tmp_path, text)


def test_an_engine_in_the_program_refuses_actions() -> None:
    config = quire.Config(action={"name": "a", "on": "startup", "do": "dump_stacks"})
    with pytest.raises(ConfigError, match="an engine in this process runs no actions"):
        quire.Client("memory:actions", config=config)


# Requests about the log


def test_the_log_is_rotated_and_its_level_is_changed_by_requests(tmp_path: Path) -> None:
    log = {"target": "file", "file": "log/%n.log"}
    with quire.testing.server(tmp_path, admin={"address": "127.0.0.1:0"}, logging=log) as server:
        url = f"{server.admin_url}/quire/administrator/logging"
        assert httpx.post(f"{url}/rotate", json={}).json() == {"rotated": True}
        assert len(list((tmp_path / "log").iterdir())) == 2
        assert httpx.post(f"{url}/level", json={"target": 0, "level": "debug"}).status_code == 200
        logging.getLogger("quire.server").debug("very fine")
        for body in (
            {},
            {"target": 1, "level": "info"},
            {"target": 0, "level": "fine"},
            {"target": True, "level": "info"},
        ):
            assert httpx.post(f"{url}/level", json=body).status_code == 400
    assert "very fine" in (tmp_path / "log/2.log").read_text()
