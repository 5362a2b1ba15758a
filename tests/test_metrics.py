"""Each metric has a scenario that changes it by a known amount. A metric without one fails.

A scenario does something to a real server, and returns the metrics that it has compared, as
`node/metric`. Figures of the machine are read from texts instead.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import socket
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import quire
import quire.testing
from quire._quire import Engine
from quire.admin import _host
from quire.admin._figures import Tree
from quire.admin._generated import ALERTS, dashboard, prometheus
from quire.admin._host import Host
from quire.admin._metrics import every_metric, series_names
from quire.admin._pulse import Pulse
from quire.testing import TestServer
from support.ports import reserve
from support.stranger import ACK, Stranger, subscribe
from support.waiting import PATIENCE, wait_until

Scenario = Callable[[Path, pytest.MonkeyPatch], set[str]]
SCENARIOS: dict[str, Scenario] = {}


def scenario(run: Scenario) -> Scenario:
    SCENARIOS[run.__name__] = run
    return run


def started(directory: Path, name: str = "one", **settings: Any) -> Any:
    return quire.testing.server(directory / name, name=name, **({"admin": {"interval": "1h"}} | settings))


def tree_of(server: TestServer) -> Tree:
    assert server._administration is not None
    return server._administration._figures.take()


def compared(tree: Tree, path: str, id: str | None = None, /, **expected: Any) -> set[str]:
    """Compares metrics with their values, and returns their names."""
    values = tree[path] if id is None else tree[path][id]
    found = {name: values.get(name, "missing") for name in expected}
    assert found == expected, (path, found)
    return {f"{path}/{name}" for name in expected}


def grown(before: Tree, after: Tree, path: str, id: str | None = None, /, **expected: int) -> set[str]:
    """Compares by how much metrics have grown, and returns their names."""
    then, now = (tree[path] if id is None else tree[path].get(id, {}) for tree in (before, after))
    found = {name: now[name] - then.get(name, 0) for name in expected}
    assert found == expected, (path, found)
    return {f"{path}/{name}" for name in expected}


@scenario
def messages_are_published_and_delivered(directory: Path, _: pytest.MonkeyPatch) -> set[str]:
    names: set[str] = set()
    with started(directory) as server, quire.Client(server.url, name="shop") as client:
        with client.subscribe("orders") as orders:
            before = tree_of(server)
            for _number in range(3):
                client.publish("orders", "1234567890")
            client.flush()
            for _number in range(3):
                orders.get(timeout=10)
            after = tree_of(server)
        [(id, shop)] = after["instance/clients"].items()
        names |= grown(before, after, "instance/messages", published=3, delivered=3)
        names |= compared(after, "instance/messages", connections=1, subscriptions=1, publishers=1)
        names |= grown(before, after, "instance/topics", "orders", published=3, published_bytes=30)
        names |= compared(after, "instance/topics", "orders", message_type="json", recorded=True)
        names |= compared(after, "instance/topics", "orders", subscriptions=1)
        names |= grown(before, after, "instance/transports", "clients", messages_in=3, messages_out=3)
        names |= compared(after, "instance/transports", "clients", connections=1, accepted=1, enabled=True)
        names |= compared(after, "instance/transports", "clients", address=server.url)
        names |= grown(before, after, "instance/clients", id, messages_in=3, messages_out=3)
        names |= compared(after, "instance/clients", id, client_name="shop", transport="clients", user=None)
        names |= compared(after, "instance/clients", id, client_version=quire.__version__)
        [(reader, sent)] = after["instance/subscriptions"].items()
        names |= grown(before, after, "instance/subscriptions", reader, messages_out=3)
        # The data of three messages, and what a frame has besides.
        assert 30 < sent["bytes_out"] - before["instance/subscriptions"][reader]["bytes_out"] < 300
        names.add("instance/subscriptions/bytes_out")
        names |= compared(after, "instance/subscriptions", reader, sub_id=int(reader.partition("-")[2]))
        names |= compared(after, "instance/clients", id, subscriptions=1, writable=True, sequence=3)
        # Every byte of the transport is one of this client.
        traffic = {name: shop[name] for name in ("bytes_in", "bytes_out")}
        assert min(traffic.values()) > 30
        names |= compared(after, "instance/transports", "clients", **traffic)
        sums = {"received_bytes": shop["bytes_in"], "sent_bytes": shop["bytes_out"]}
        names |= compared(after, "instance/messages", **sums)
        names |= compared(after, "instance/clients", id, peer=shop["peer"], **traffic)
        assert shop["peer"].startswith("127.0.0.1:")
        assert shop["connected"].endswith("Z")
        names.add("instance/clients/connected")
    return names


@scenario
def records_are_appended_and_synced(directory: Path, _: pytest.MonkeyPatch) -> set[str]:
    with started(directory) as server, quire.Client(server.url) as client:
        before = tree_of(server)
        for _number in range(3):
            client.publish("orders", {})
            client.flush()
        after, server_files = tree_of(server), server.journal.segments()
    names = grown(before, after, "instance/journal", appended=3, last=3)
    then, now = before["instance/journal"], after["instance/journal"]
    assert 3 * 2 < now["appended_bytes"] - then["appended_bytes"] < 3 * 500
    assert 1 <= now["syncs"] - then["syncs"] <= 6
    assert 0 < now["sync_p50_s"] <= now["sync_p99_s"] <= 1
    names |= {f"instance/journal/{name}" for name in ("appended_bytes", "syncs", "sync_p50_s", "sync_p99_s")}
    messages = after["instance/messages"]
    # Each publish waits for one sync.
    assert 0 < messages["persisted_p50_s"] <= messages["persisted_p99_s"] <= 1
    names |= {f"instance/messages/{name}" for name in ("persisted_p50_s", "persisted_p99_s")}
    names |= compared(after, "instance/journal", unpersisted_bytes=0, writable=True, first=1, segments=1)
    [file] = server_files
    names |= compared(after, "instance/journal", active_bytes=file.size, size_bytes=file.size)
    return names


@scenario
def full_files_are_kept_compressed_and_archived(directory: Path, _: pytest.MonkeyPatch) -> set[str]:
    log = {
        "journal_size": "64KB",
        "journal_archive_directory": "archive",
        "topic": {"name": "^", "message_type": "json"},
    }
    queue = {"name": "jobs", "message_type": "json"}
    names: set[str] = set()
    with started(directory, transaction_log=log, queue=queue) as server, quire.Client(server.url) as client:
        client.publish("jobs", {})
        while tree_of(server)["instance/journal"]["segments"] < 3:
            for _number in range(20):
                client.publish("orders", json.dumps("x" * 10_000))
            client.flush()
        tree = tree_of(server)
        names |= compared(tree, "instance/journal", kept_by="queues", compressed_bytes=0, archived_bytes=0)
        sealed = sum(each.size for each in server.journal.segments() if each.state == "sealed")
        names |= compared(tree, "instance/journal", sealed_bytes=sealed)
        server.journal.archive(age=0)
        archived = sum(each.size for each in server.journal.segments() if each.state == "archived")
        names |= compared(tree_of(server), "instance/journal", archived_bytes=archived, sealed_bytes=0)
        server.journal.compress(age=0)
        compressed = sum(each.size for each in server.journal.segments() if each.state == "compressed")
        names |= compared(tree_of(server), "instance/journal", compressed_bytes=compressed)
        assert min(sealed, archived, compressed) > 0
        with client.subscribe("jobs") as jobs:
            jobs.get(timeout=10).ack()
            client.flush()
        wait_until(lambda: tree_of(server)["instance/journal"]["kept_by"] == "")
    return names


@scenario
def publishes_are_refused_repeated_and_unreadable(directory: Path, _: pytest.MonkeyPatch) -> set[str]:
    prices = {"name": "prices", "key": "/id", "message_type": "json"}
    with started(directory, sow_topic=prices) as server:
        with quire.Client(server.url, name="one") as client, client.subscribe("orders", filter="/a = 1"):
            refused = client.publish_receipt("prices", "no JSON")
            client.publish("orders", "no JSON")
            client.flush()
            with pytest.raises(quire.BadMessageError):
                refused.wait(10)
        with quire.Client(server.url, name="two") as client:
            client.publish("orders", {}, sequence=7)
            client.flush()
        with quire.Client(server.url, name="two") as client:
            client.publish("orders", {}, sequence=7)
            client.flush()
        tree = tree_of(server)
    return compared(tree, "instance/messages", refused=1, unreadable=1, duplicates=1)


@scenario
def a_replay_is_paused(directory: Path, _: pytest.MonkeyPatch) -> set[str]:
    path = "instance/subscriptions"
    names: set[str] = set()
    with started(directory) as server, quire.Client(server.url, name="reader") as client:
        for _number in range(5):
            client.publish("orders", {})
        client.flush()
        with client.subscribe("orders", bookmark="epoch", filter="/a IS NULL") as orders:
            for _number in range(5):
                orders.get(timeout=10)
            wait_until(lambda: next(iter(tree_of(server)[path].values()))["lag"] == 0)
            orders.pause()
            for _number in range(4):
                client.publish("orders", {})
            client.flush()
            tree = tree_of(server)
        [(id, found)] = tree[path].items()
        names |= compared(tree, path, id, client_name="reader", topic="orders", kind="replay", paused=True)
        names |= compared(tree, path, id, filter="/a IS NULL", lag=4, position=5)
        names |= compared(tree, path, id, connection=int(next(iter(tree["instance/clients"]))))
        assert 0 <= found["lag_s"] < 60
        names.add(f"{path}/lag_s")
        # Paused replays do not count.
        names |= compared(tree, "instance/messages", replay_lag=0, replays=0)
    return names


@scenario
def a_queue_is_worked(directory: Path, _: pytest.MonkeyPatch) -> set[str]:
    path = "instance/queues"
    jobs = {"name": "jobs", "message_type": "json", "max_backlog": 50, "dead_letter_topic": "dead"}
    jobs |= {"retry_delay": "1h", "target_queue_depth": 4, "max_deliveries": 2}
    dead = {"name": "letters", "underlying_topic": "dead", "message_type": "json"}
    names: set[str] = set()
    with started(directory, queue=[jobs, dead]) as server, quire.Client(server.url) as client:
        for number in range(6):
            client.publish("jobs", {"id": number})
        client.flush()
        names |= compared(tree_of(server), path, "jobs", depth=4, waiting=4, inactive=2, entered=4)
        assert tree_of(server)["instance/topics"]["jobs"]["queues"] == 1
        names.add("instance/topics/queues")
        with client.subscribe("jobs", max_backlog=2) as taken:
            first, second = taken.get(timeout=10), taken.get(timeout=10)
            tree = tree_of(server)
            names |= compared(tree, path, "jobs", backlog=2, subscriptions=1, delivered=2)
            names |= compared(tree, path, "jobs", message_type="json", kind="queue")
            names |= details_are_right(server, client, [first, second])
            [id] = tree["instance/subscriptions"]
            names |= compared(tree, "instance/subscriptions", id, backlog=2, max_backlog=2)
            assert 0 <= tree[path]["jobs"]["age_of_oldest_lease_s"] < 60
            assert 0 <= tree[path]["jobs"]["age_of_oldest_s"] < 60
            names |= {f"{path}/age_of_oldest_lease_s", f"{path}/age_of_oldest_s"}
            first.ack()
            second.cancel()
            client.flush()
            third = taken.get(timeout=10)
            client.ack("jobs", third.bookmark, expire=True)
            client.flush()
            wait_until(lambda: tree_of(server)[path]["letters"]["depth"] == 1)
            tree = tree_of(server)
        names |= compared(tree, path, "letters", takes_dead_letters=True)
        names |= compared(
            tree, path, "jobs", acknowledged=1, cancelled=1, delayed=1, expired=1, dead_letters=1
        )
        names |= compared(tree, path, "jobs", expired_forced_expire=1)
        names |= compared(tree, path, "jobs", max_backlog=50, target_queue_depth=4, deferred_acks=0)
        names |= compared(
            tree, path, "jobs", owned=tree[path]["jobs"]["depth"] + tree[path]["jobs"]["inactive"]
        )
    return names


def details_are_right(server: TestServer, client: quire.Client, held: list[quire.Message]) -> set[str]:
    assert server._administration is not None
    details = server._administration._figures.details("jobs")
    [subscription] = details["subscriptions"]
    assert (subscription["topic"], subscription["backlog"]) == ("jobs", 2)
    for lease, message in zip(details["leases"], held, strict=True):
        assert 0 <= lease.pop("age_s") < 60
        assert 0 < lease.pop("left_s") < 600
        assert lease == {
            "bookmark": message.bookmark,
            "position": lease["position"],
            "connection": subscription["connection"],
            "client_name": client.name,
            "sub_id": subscription["sub_id"],
            "deliveries": 1,
            "cancels": 0,
        }
    return {"instance/queues/details"}


@scenario
def messages_expire(directory: Path, _: pytest.MonkeyPatch) -> set[str]:
    path = "instance/queues"
    queues: list[dict[str, Any]] = [
        {"name": "late", "message_type": "json", "expiration": "1ms"},
        {"name": "tried", "message_type": "json", "max_deliveries": 1},
        {"name": "returned", "message_type": "json", "max_cancels": 1, "retry_delay": "0"},
        {"name": "both", "message_type": "json", "max_deliveries": 1, "max_cancels": 0},
    ]
    names: set[str] = set()
    with started(directory, queue=queues) as server, quire.Client(server.url) as client:
        for queue in queues:
            client.publish(queue["name"], {})
        client.flush()
        for name, cancels in (("tried", 1), ("returned", 2), ("both", 1)):
            with client.subscribe(name) as taken:
                for _number in range(cancels):
                    taken.get(timeout=10).cancel()
                client.flush()
        wait_until(lambda: all(tree_of(server)[path][each["name"]]["expired"] for each in queues))
        tree = tree_of(server)
        names |= compared(tree, path, "late", expired=1, expired_time_limit=1)
        names |= compared(tree, path, "tried", expired=1, expired_max_deliveries=1, expired_max_cancels=0)
        names |= compared(tree, path, "returned", expired=1, expired_max_cancels=1)
        # A message counts for each of its reasons.
        names |= compared(tree, path, "both", expired=1, expired_max_deliveries=1, expired_max_cancels=1)
    return names


@scenario
def leases_run_out_and_messages_are_taken_and_released(directory: Path, _: pytest.MonkeyPatch) -> set[str]:
    path = "instance/queues"
    queues = [
        {"name": "short", "message_type": "json", "lease_period": "50ms", "retry_delay": "1h"},
        {"name": "once", "message_type": "json", "semantics": "at-most-once"},
        {"name": "phases", "message_type": "json", "barrier_expression": "/end = 1"},
    ]
    names: set[str] = set()
    with started(directory, queue=queues) as server, quire.Client(server.url) as client:
        for name in ("short", "once"):
            client.publish(name, {})
        client.publish("phases", {"end": 1})
        client.flush()
        with (
            client.subscribe("short") as short,
            client.subscribe("once") as once,
            client.subscribe("phases") as phases,
        ):
            for each in (short, once, phases):
                each.get(timeout=10)
            wait_until(lambda: tree_of(server)[path]["short"]["expired_leases"] >= 1)
            tree = tree_of(server)
            names |= compared(tree, path, "once", taken=1)
            names |= compared(tree, path, "phases", released=1)
            names.add(f"{path}/expired_leases")
    return names


@scenario
def records_of_a_last_value_topic_are_kept(directory: Path, _: pytest.MonkeyPatch) -> set[str]:
    path = "instance/last_values"
    prices = {"name": "prices", "key": "/id", "message_type": "json"}
    short = prices | {"name": "short", "expiration": "10ms"}
    with started(directory, sow_topic=[prices, short]) as server, quire.Client(server.url) as client:
        for id in (1, 2, 1):
            client.publish("prices", {"id": id})
        client.flush()
        wait_until(lambda: tree_of(server)[path]["prices"]["records"] == 2)
        tree = tree_of(server)
        found = tree[path]["prices"]
        assert 2 * 8 <= found["bytes"] <= 2 * 200
        assert found["memory_bytes"] >= found["bytes"]
        names = compared(tree, path, "prices", records=2) | {f"{path}/bytes", f"{path}/memory_bytes"}
        names |= compared(tree, path, "prices", inserts=2, updates=1, deletes=0, expiries=0, queries=0)
        assert len(list(client.sow("prices"))) == 2
        client.sow_delete("prices", filter="/id = 2")
        client.publish("short", {"id": 3})
        client.flush()
        wait_until(lambda: tree_of(server)[path]["short"]["expiries"] == 1)
        names |= compared(tree_of(server), path, "prices", records=1, inserts=2, deletes=1, queries=1)
    # Those of the log count no more.
    with started(directory, sow_topic=[prices, short]) as server:
        tree = tree_of(server)
        names |= compared(tree, path, "prices", records=1, inserts=0, updates=0, deletes=0, queries=0)
    return names


@scenario
def views_follow_their_sources(directory: Path, _: pytest.MonkeyPatch) -> set[str]:
    path = "instance/views"
    topics = [{"name": name, "key": "/id", "message_type": "json"} for name in ("orders", "accounts")]
    view = {
        "name": "named",
        "message_type": "json",
        "join": "[orders].[/account] = [accounts].[/id]",
        "projection": ["[orders].[/id]", "[accounts].[/name]"],
    }
    with started(directory, sow_topic=topics, view=view) as server, quire.Client(server.url) as client:
        for id in range(5_000):
            client.publish("orders", {"id": id, "account": 1})
        client.flush()
        wait_until(lambda: tree_of(server)[path]["named"]["updates"] == 5_000)
        tree = tree_of(server)
        assert "named" not in tree["instance/last_values"]
        assert tree[path]["named"]["memory_bytes"] > 5_000 * 100
        names = compared(tree, path, "named", records=5_000, updates=5_000, waiting_changes=0, behind_s=0)

        def is_behind() -> bool:
            client.publish("accounts", {"id": 1, "name": "a"})
            found = tree_of(server)[path]["named"]
            return bool(found["waiting_changes"] > 0 and found["behind_s"] > 0)

        wait_until(is_behind)
    return names | {f"{path}/memory_bytes"}


@scenario
def an_instance_sends_to_another_one(directory: Path, _: pytest.MonkeyPatch) -> set[str]:
    to, of = "instance/replication/destinations", "instance/replication/sources"
    names: set[str] = set()
    topic = {"name": "^", "message_type": "json"}
    with contextlib.ExitStack() as stack:
        ports = {}
        for name in ("one", "two"):
            reserved, ports[name] = reserve()
            stack.enter_context(reserved)
        servers = {}
        for own, far in (("one", "two"), ("two", "one")):
            address = f"127.0.0.1:{ports[far]}"
            link = {"name": far, "sync_type": "sync", "addresses": [address], "topic": topic}
            replication = {"address": f"127.0.0.1:{ports[own]}", "destination": [link]}
            servers[own] = stack.enter_context(started(directory, own, replication=replication))
        one, two = servers["one"], servers["two"]
        wait_until(
            lambda: all(next(iter(tree_of(each)[to].values()))["state"] == "live" for each in (one, two))
        )
        with quire.Client(one.url) as client:
            for _number in range(3):
                client.publish("orders", {})
            client.flush()
        wait_until(lambda: tree_of(one)[to]["two"]["unacknowledged_bytes"] == 0)
        tree, other = tree_of(one), tree_of(two)
        names |= compared(tree, to, "two", state="live", connected=True, sync=True, sync_type="sync")
        names |= compared(tree, to, "two", configured_sync_type="sync", seconds_behind=0.0, sent=3)
        names |= compared(tree, to, "two", unacknowledged_bytes=0, instance="two", user=None, tls=False)
        assert tree[to]["two"]["address"].startswith("127.0.0.1:")
        names.add(f"{to}/address")
        names |= compared(
            tree, to, "two", last_error=None, conflicts=0, acknowledged=tree[to]["two"]["acknowledged"]
        )
        assert tree[to]["two"]["acknowledged"] >= 3
        assert tree[to]["two"]["connects"] >= 1
        names.add(f"{to}/connects")
        assert tree[to]["two"]["sent_bytes"] > 3 * 2
        names.add(f"{to}/sent_bytes")
        names |= compared(other, of, "one", state="live", records=3, duplicates=0, conflicts=0)
        names |= compared(other, of, "one", user=None, tls=False)
        assert other[of]["one"]["received"] >= 3
        assert other[of]["one"]["peer"].startswith("127.0.0.1:")
        names |= {f"{of}/received", f"{of}/peer"}
        names |= compared(tree, "instance/replication", missing=0, accepted=0, missing_total=0)
        # When the link was made.
        assert tree["instance/replication"]["comparisons"] >= 1
        names.add("instance/replication/comparisons")
        one.replication.downgrade("two")
        assert compared(tree_of(one), to, "two", sync=False, sync_type="async")
        one.replication.pause("two")
        assert compared(tree_of(one), to, "two", connected=False, state="paused")
    return names


@scenario
def an_instance_is_filled(directory: Path, _: pytest.MonkeyPatch) -> set[str]:
    path = "instance/copies"
    topic = {"name": "^", "message_type": "json"}
    with contextlib.ExitStack() as stack:
        ports = {}
        for name in ("one", "two"):
            reserved, ports[name] = reserve()
            stack.enter_context(reserved)

        def start(own: str, far: str) -> TestServer:
            address = f"127.0.0.1:{ports[far]}"
            link = {"name": far, "sync_type": "async", "addresses": [address], "topic": topic}
            replication = {"address": f"127.0.0.1:{ports[own]}", "destination": [link]}
            server: TestServer = stack.enter_context(started(directory, own, replication=replication))
            return server

        one = start("one", "two")
        names = compared(tree_of(one), path, state="filling", filling=True, admitted=False, not_heard=1)
        one.replication.admit()
        assert compared(tree_of(one), path, state="filling", filling=True, admitted=True, not_heard=1)
        start("two", "one")
        wait_until(lambda: tree_of(one)[path]["state"] == "live")
        assert compared(tree_of(one), path, filling=False, admitted=False, not_heard=0)
    return names


@scenario
def connections_end(directory: Path, _: pytest.MonkeyPatch) -> set[str]:
    transport = {"max_connections": 2, "max_client_backlog": "64KB", "logon_timeout": "5s"}
    path = "instance/disconnects"
    users = {"anna": {"password": "anna-secret"}}
    rights = [{"user": "anna", "topic": "^", "allow": ["read", "write"]}]
    counted: set[str] = set()

    def seen(server: TestServer, reason: str) -> None:
        wait_until(lambda: tree_of(server)[path][reason] == 1)
        counted.add(f"{path}/{reason}")

    with started(directory, transport=transport) as server:
        with quire.Client(server.url, name="shop"):
            pass
        seen(server, "closed")
        place = server.config.address.host, int(server.url.rsplit(":", 1)[1])
        socket.create_connection(place).close()
        seen(server, "lost")
        with socket.create_connection(place) as raw:
            # A command before the logon.
            raw.sendall(bytes.fromhex("0a000000140104000000010000" + "00"))
            seen(server, "protocol")
        with quire.Client(server.url, name="shop") as client:
            [id] = tree_of(server)["instance/clients"]
            assert server._running_engine.disconnect(int(id))
            seen(server, "admin")
            # The client connects again.
            wait_until(lambda: [*tree_of(server)["instance/clients"]] not in ([], [id]))
            server._disable_transport(0)
            server._enable_transport(0)
            seen(server, "transport_disabled")
            wait_until(lambda: len(tree_of(server)["instance/clients"]) == 1)
            client.publish("orders", {})
            client.flush()
            with quire.Client(server.url, name="second"):
                with socket.create_connection(place):
                    seen(server, "limit")
                counted |= compared(tree_of(server), "instance/transports", "clients", refused=1)
    with started(directory, "users", users=users, entitlement=rights) as server:
        with pytest.raises(quire.QuireError):
            quire.Client(server.url, user="anna", password="wrong-secret").close()
        seen(server, "authentication")
        with quire.Client(server.url, name="shop", **server.options("anna")):
            [id] = tree_of(server)["instance/clients"]
            assert server._loop is not None
            server._loop.call_soon_threadsafe(server._event, Engine.RESET, int(id), b"test")
            seen(server, "entitlement_reset")
    return counted


def test_other_ends_of_connections_have_their_reasons() -> None:
    """The rest of the reasons: their causes take minutes, or end the server."""
    source = (Path(__file__).parent.parent / "crates/quire-kernel/src/context.rs").read_text()
    body = source[source.index("pub const fn reason_of_end") :]
    reasons = set(re.findall(r'"(\w+)"', body[: body.index("\n}\n")]))
    assert reasons | {"closed", "lost", "admin", "transport_disabled"} == {
        metric.name for node, metric in every_metric() if node.path == "instance/disconnects"
    }


@scenario
def reasons_that_take_minutes(directory: Path, _: pytest.MonkeyPatch) -> set[str]:
    # `test_other_ends_of_connections_have_their_reasons` compares them with the code.
    with started(directory) as server:
        tree = tree_of(server)
    return compared(tree, "instance/disconnects", name_in_use=0, heartbeat=0, slow_consumer=0, shutdown=0)


@scenario
def a_client_does_not_read(directory: Path, _: pytest.MonkeyPatch) -> set[str]:
    data = json.dumps("x" * 100_000)

    def backlogs(server: TestServer) -> list[int]:
        return [each["backlog_bytes"] for each in tree_of(server)["instance/clients"].values()]

    with started(directory) as server, quire.Client(server.url) as client:
        address = ("127.0.0.1", int(server.url.rpartition(":")[2]))
        with Stranger(address, timeout=PATIENCE, logged_on=True, receive_size=4096) as slow:
            slow.send(subscribe(b"orders"))
            assert slow.body_of(ACK) is not None
            assert backlogs(server) == [0, 0]
            # The buffers of the system take some megabytes. A client that reads would take all.
            for _number in range(300):
                client.publish("orders", data)
            client.flush()
            wait_until(lambda: any(backlogs(server)))
    return {"instance/clients/backlog_bytes"}


@scenario
def the_messages_of_a_client_wait_on_disk(directory: Path, _: pytest.MonkeyPatch) -> set[str]:
    data = json.dumps("x" * 100_000)

    def offlined(tree: dict[str, Any]) -> list[tuple[bool, bool]]:
        clients = tree["instance/clients"].values()
        return sorted((each["offlined"], each["offlined_bytes"] > 1_000_000) for each in clients)

    with (
        started(directory, transport={"max_client_backlog": "1MB"}) as server,
        quire.Client(server.url) as client,
    ):
        address = ("127.0.0.1", int(server.url.rpartition(":")[2]))
        with Stranger(address, timeout=PATIENCE, logged_on=True, receive_size=4096) as slow:
            slow.send(subscribe(b"orders"))
            assert slow.body_of(ACK) is not None
            tree = tree_of(server)
            assert offlined(tree) == [(False, False), (False, False)]
            compared(tree, "instance/messages", offlined_clients=0, offlined_bytes=0)
            for _number in range(300):
                client.publish("orders", data)
            client.flush()
            wait_until(lambda: offlined(tree_of(server)) == [(False, False), (True, True)])
            tree = tree_of(server)
            assert tree["instance/messages"]["offlined_bytes"] > 1_000_000
            compared(tree, "instance/messages", offlined_clients=1)
        wait_until(lambda: tree_of(server)["instance/messages"]["offlined_bytes"] == 0)
    return {
        "instance/clients/offlined",
        "instance/clients/offlined_bytes",
        "instance/messages/offlined_clients",
        "instance/messages/offlined_bytes",
    }


@scenario
def rights_are_missing(directory: Path, _: pytest.MonkeyPatch) -> set[str]:
    users = {"anna": {"password": "anna-secret"}}
    rights = [{"user": "anna", "topic": "mine", "allow": ["read", "write"]}]
    with (
        started(directory, users=users, entitlement=rights) as server,
        quire.Client(server.url, **server.options("anna")) as client,
    ):
        for _number in range(2):
            with pytest.raises(quire.NotEntitledError):
                client.subscribe("other")
        client.publish("other", {})
        with pytest.raises(quire.NotEntitledError):
            client.flush()
        tree = tree_of(server)
    [id] = tree["instance/clients"]
    return compared(tree, "instance/clients", id, denied_reads=2, denied_writes=1, user="anna")


@scenario
def an_instance_runs(directory: Path, _: pytest.MonkeyPatch) -> set[str]:
    names: set[str] = set()
    with started(directory, group="shops") as server:
        tree = tree_of(server)
        names |= compared(tree, "instance", name="one", group="shops", version=quire.__version__)
        names |= compared(tree, "instance", pid=os.getpid(), cwd=os.getcwd(), config_path="", state="running")
        found = tree["instance"]
        assert json.loads(found["config"])["group"] == "shops"
        assert found["user"]
        assert found["started"] < found["timestamp"]
        assert 0 < found["uptime_s"] < 600
        assert [each["event"] for each in found["lifetimes"]] == ["start"]
        names |= {
            f"instance/{name}" for name in ("config", "user", "started", "timestamp", "uptime_s", "lifetimes")
        }
        wait_until(lambda: tree_of(server)["instance/statistics"]["samples"] == 1)
        statistics = tree_of(server)["instance/statistics"]
        assert statistics["file_bytes"] >= (directory / "one/statistics.db").stat().st_size > 0
        names |= compared(tree_of(server), "instance/statistics", samples=1, missed=0)
        names.add("instance/statistics/file_bytes")
    return names


@scenario
def certificates_expire(directory: Path, _: pytest.MonkeyPatch) -> set[str]:
    path, day = "instance/certificates", 86400
    files = [
        quire.testing.certificates(directory / f"{days}", expires_in=f"{days}d").server
        for days in (2, 4, 6, 8)
    ]
    tls = [{"certificate": each["certificate"], "private_key": each["private_key"]} for each in files]
    link = {"name": "two", "tls": tls[2], "topic": {"name": "^", "message_type": "json"}}
    link |= {"addresses": ["127.0.0.1:1"], "sync_type": "async"}
    replication = {"address": "127.0.0.1:0", "tls": tls[1], "destination": [link]}
    admin = {"address": "127.0.0.1:0", "tls": tls[3], "interval": "1h"}
    with started(directory, tls=tls[0], replication=replication, admin=admin) as server:
        tree = tree_of(server)
    for number, name in enumerate(("transport clients", "replication", "destination two", "admin")):
        left = tree[path][name]["expires_s"]
        assert (2 * number + 2) * day - 600 < left < (2 * number + 2) * day
        expires = datetime.fromisoformat(tree[path][name]["expires"]).timestamp()
        assert expires == pytest.approx(time.time() + left, abs=600)
    return {f"{path}/expires", f"{path}/expires_s"}


@scenario
def records_of_the_log_are_counted(directory: Path, _: pytest.MonkeyPatch) -> set[str]:
    levels = {"trace": 5, "debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}
    log = logging.getLogger("quire.server")
    log.setLevel(1)
    with started(directory) as server:
        before = tree_of(server)
        for level in levels.values():
            log.log(level, "a test")
        after = tree_of(server)
    return grown(before, after, "instance/logging", **dict.fromkeys(levels, 1))


@scenario
def actions_run(directory: Path, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    path = "instance/actions"
    monkeypatch.setattr("quire.actions._run.WAITING_MAX", 0)
    stop, fail = {"if": "/NONE = 'a'"}, {"execute": ["/bin/false"]}
    action = [
        {"name": name, "on": {"publish": name}, "do": do}
        for name, do in (("works", {"log": "done"}), ("stops", stop), ("fails", fail))
    ]
    dropped = {"name": "drops", "on": "startup", "do": "dump_stacks", "enabled": True}
    with started(directory, action=[*action, dropped], allow_execute=True) as server:
        with quire.Client(server.url) as client:
            for topic in ("works", "stops", "fails"):
                client.publish(topic, {})
            client.flush()
        for name in ("works", "stops", "fails"):
            wait_until(lambda name=name: tree_of(server)[path][name]["runs"] == 1)  # type: ignore[misc]
        wait_until(lambda: tree_of(server)[path]["drops"]["dropped"] == 1)
        tree = tree_of(server)
    names = compared(tree, path, "works", ok=1, failures=0, stopped=0, dropped=0, last_outcome="ok")
    names |= compared(tree, path, "stops", stopped=1, failures=0, ok=0, last_outcome="stopped")
    names |= compared(tree, path, "fails", failures=1, ok=0, last_outcome="failed")
    names |= compared(
        tree,
        path,
        "works",
        admin_path=None,
        admin_members=[],
        enabled=True,
        running=0,
        waiting=0,
        runs=1,
        last_error="",
    )
    assert tree[path]["fails"]["last_error"] == "/bin/false ended with the code 1"
    assert datetime.fromisoformat(tree[path]["works"]["last_run"]).timestamp() > 1.7e9
    return names | {f"{path}/last_run"}


@scenario
def the_loop_lets_calls_wait(directory: Path, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    now = [0.0]
    monkeypatch.setattr("quire.admin._pulse.time.monotonic", lambda: now[0])
    loop: Any = None
    pulse = Pulse(loop)
    for number in range(100):
        now[0] = number + (0.7 if number == 99 else 0.002)
        pulse._answer(number)
    figures = {name: round(value, 3) for name, value in pulse.figures().items()}
    assert pulse.durations.counts == [0, 0, 99, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0]
    return compared(
        {"instance/loop": figures}, "instance/loop", delay_p50_s=0.002, delay_p99_s=0.7, delay_max_s=0.7
    )


#: Two states of the files of Linux.
FILES = {
    "/proc/stat": (
        "cpu  100 0 100 800 0 0 0 0 0 0\ncpu0 100 0 100 800 0 0 0 0 0 0",
        "cpu  125 0 150 825 0 0 0 0 0 0\ncpu0 125 0 150 825 0 0 0 0 0 0",
    ),
    "/proc/meminfo": ("MemTotal: 1000 kB\nMemAvailable: 400 kB\nSwapTotal: 50 kB\nSwapFree: 20 kB",) * 2,
    "/proc/diskstats": ("8 0 sda 1 0 10 0 1 0 20 0 0 0 0", "8 0 sda 1 0 12 0 1 0 25 0 0 0 0"),
    "/proc/net/dev": ("a\nb\n eth0: 100 0 0 0 0 0 0 0 200 0", "a\nb\n eth0: 150 0 0 0 0 0 0 0 260 0"),
    "/proc/self/statm": ("10 3 0", "10 5 0"),
    "/proc/self/task/7/stat": (
        "7 (a) b) S 0 0 0 0 0 0 0 0 0 0 100 200",
        "7 (a) b) S 0 0 0 0 0 0 0 0 0 0 150 250",
    ),
}


@scenario
def the_machine_works(directory: Path, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    state = [0]
    monkeypatch.setattr(_host, "_lines", lambda path: FILES[path][state[0]].splitlines())
    monkeypatch.setattr(os, "listdir", lambda path: ["7"])
    monkeypatch.setattr(_host, "_is_disk", lambda name: True)
    monkeypatch.setattr(_host, "_TICKS", 100)
    monkeypatch.setattr(_host, "_PAGE_SIZE", 4096)
    times = [os.times_result((float(number), 2.0 * number, 0, 0, 0)) for number in (1, 4)]
    monkeypatch.setattr(os, "times", lambda: times[state[0]])
    host, places = Host(), {"journal": directory, "data": directory / "made/later"}
    before = host.read(places) | host.process()
    state[0] = 1
    after = host.read(places) | host.process()
    names = compared(after, "host", name=socket.gethostname())
    names |= compared(after, "host/cpus", "all", user_ratio=0.25, system_ratio=0.5, idle_ratio=0.25)
    assert after["host/cpus"]["0"] == after["host/cpus"]["all"]
    names |= compared(
        after, "host/memory", total_bytes=1024000, available_bytes=409600, swap_used_bytes=30720
    )
    names |= grown(before, after, "host/disks", "sda", read_bytes=1024, written_bytes=2560)
    names |= grown(before, after, "host/network", "eth0", received_bytes=50, sent_bytes=60)
    found = os.statvfs(directory)
    size = found.f_blocks * found.f_frsize
    for kind, place in places.items():
        names |= compared(after, "host/filesystems", kind, path=str(place), total_bytes=size)
    assert 0 < after["host/filesystems"]["data"]["available_bytes"] <= size
    names.add("host/filesystems/available_bytes")
    names |= grown(before, after, "instance/cpu", user_s=3, system_s=6)
    names |= grown(before, after, "instance/memory", resident_bytes=2 * 4096)
    names |= compared(after, "instance/threads", "7", name="a) b", cpu_s=4.0, last_active_s=0.0)
    now = time.monotonic()
    monkeypatch.setattr("quire.admin._host.time.monotonic", lambda: now + 60)
    assert host.process()["instance/threads"]["7"]["last_active_s"] == pytest.approx(60, abs=10)
    return names


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_scenario_changes_its_metrics(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert SCENARIOS[name](tmp_path, monkeypatch) == declared()[name]


def declared() -> dict[str, set[str]]:
    """The metrics of each scenario, as they were when it last passed."""
    found: dict[str, list[str]] = json.loads((Path(__file__).parent / "metrics.json").read_text())
    return {name: set(metrics) for name, metrics in found.items()}


def test_every_metric_has_a_scenario() -> None:
    of_scenarios = set().union(*(declared()[name] for name in SCENARIOS))
    assert of_scenarios == {f"{node.path}/{metric.name}" for node, metric in every_metric()}


# What is generated


def test_the_dashboard_has_every_series_and_no_other() -> None:
    panels = json.loads(dashboard())["panels"]
    queries = " ".join(target["expr"] for panel in panels for target in panel["targets"])
    names = {re.sub("_bucket$", "", name) for name in re.findall(r"\bquire_\w+", queries)}
    assert names == series_names() - {"quire_build_info", "quire_ready"}
    places = [tuple(panel["gridPos"][key] for key in ("x", "y")) for panel in panels]
    assert len(set(places)) == len(panels)


def test_the_alerts_name_series_that_exist() -> None:
    for name, query, *_ in ALERTS:
        used = {re.sub("_bucket$", "", found) for found in re.findall(r"\bquire_\w+", query)}
        assert used, name
        assert used <= series_names(), name


def test_the_configuration_of_prometheus_is_yaml() -> None:
    yaml = pytest.importorskip("yaml")
    scrape, rules = (yaml.safe_load(text) for text in prometheus("prod:9080", "https"))
    assert scrape["scrape_configs"][0]["static_configs"] == [{"targets": ["prod:9080"]}]
    assert [rule["alert"] for rule in rules["groups"][0]["rules"]] == [alert[0] for alert in ALERTS]
