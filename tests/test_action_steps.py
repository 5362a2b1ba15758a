"""Each step and condition does what the table says (docs/actions.md).

A step without a run here fails `test_every_step_has_a_run`.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import quire
import quire.testing
from quire.actions import _steps
from quire.actions._table import STEP_OF
from support.actions import (
    RECORDS,
    carried,
    figures,
    lines_of,
    messages,
    publish,
    running,
    runs,
    seen,
    seen_by,
)
from support.ports import reserve
from support.waiting import wait_until

# Steps: each runs after a publish on the topic `go`, and is compared afterwards.

Carried = Callable[[Path], None]
OF_STEPS: dict[str, Carried] = {}


def step(name: str) -> Callable[[Carried], Carried]:
    def add(run: Carried) -> Carried:
        OF_STEPS[name] = run
        return run

    return add


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
    steps = [
        {"compact_records": topic} for topic in ("orders/a", "^orders/", "^none", "{{NONE:filter}}orders/b")
    ]
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
                # A new instance waits for its destination.
                one.replication.admit()
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
