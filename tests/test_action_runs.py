"""The runs of actions: their order, what starts none, what is seen of them, and their variables (docs/actions.md)."""

from __future__ import annotations

import contextlib
import json
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest
import quire
import quire.testing
from quire.actions._run import Ended, Run, Runner, State
from quire.actions._text import Value, expanded, to_bytes
from quire.config import Action
from quire.testing import TestServer
from support.actions import QUEUE, RECORDS, carried, figures, messages, publish, running, runs, seen
from support.ports import reserve
from support.waiting import PATIENCE, wait_until


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
