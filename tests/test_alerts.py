"""Each alert of `quire generate prometheus --rules` fires when its cause happens, and not before.

The causes are real: a disk that is full, a consumer that hangs, a peer that is gone, a certificate
that has expired. The rules are evaluated over real scrapes. Only the times of the scrapes are those
of the test, so that a rule which must hold for five minutes needs no five minutes.
"""

from __future__ import annotations

import contextlib
import errno
import shutil
import sqlite3
import threading
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import quire
import quire.testing
from quire.admin._generated import ALERTS, prometheus
from support.faulty_server import FaultyServer
from support.ports import reserve
from support.promql import Prometheus, Rule, evaluate, rules_of
from support.waiting import PATIENCE, wait_until

#: Seconds between two scrapes, as the rules see them.
STEP = 30.0
#: Further scrapes for a rule whose figure needs real seconds to change.
STEPS = {"QuireLoopSlow": 2.0}
#: Scrapes before the cause.
HEALTHY = 4

#: A server, and what makes the alert fire.
Cause = Callable[[Path], "contextlib.AbstractContextManager[tuple[str, Callable[[], None]]]"]
CAUSES: dict[str, Cause] = {}

#: Ages in rules that a test does not wait for, and shorter ones.
SHORTER = {"QuireReplicationBehind": ("> 60", "> 0.05"), "QuireQueueNotWorked": ("> 600", "> 0.05")}


def cause_of(*alerts: str) -> Callable[[Callable[[Path], Iterator[Any]]], None]:
    def add(cause: Callable[[Path], Iterator[Any]]) -> None:
        for alert in alerts:
            CAUSES[alert] = contextlib.contextmanager(cause)

    return add


def admin(port: int) -> dict[str, Any]:
    return {"address": f"127.0.0.1:{port}", "anonymous": ["/metrics"], "interval": "1s"}


@contextlib.contextmanager
def ports(count: int) -> Iterator[list[int]]:
    with contextlib.ExitStack() as stack:
        found = []
        for _number in range(count):
            reserved, port = reserve()
            stack.enter_context(reserved)
            found.append(port)
        yield found


@contextlib.contextmanager
def faulty(directory: Path, **settings: Any) -> Iterator[tuple[str, FaultyServer]]:
    """A server whose disk can misbehave, and its URL for scrapes."""
    with ports(1) as [port], FaultyServer(directory, admin=admin(port), **settings) as server:
        yield f"http://127.0.0.1:{port}", server


@contextlib.contextmanager
def local(directory: Path, **settings: Any) -> Iterator[tuple[str, quire.testing.TestServer]]:
    """A server in this process, and its URL for scrapes."""
    with quire.testing.server(directory, admin=admin(0), **settings) as server:
        assert server.admin_url is not None
        yield server.admin_url, server


@cause_of("QuireNotReady", "QuireJournalNotWritable")
def the_disk_is_full(directory: Path) -> Iterator[Any]:
    with faulty(directory) as (url, server), quire.Client(server.url) as client:

        def fill() -> None:
            server.fail_writes(errno.ENOSPC)
            client.publish("orders", {})

        yield url, fill


@cause_of("QuireDiskFillsUp")
def little_room_is_left(directory: Path) -> Iterator[Any]:
    with faulty(directory) as (url, server):
        server.leave_room(500)
        yield url, lambda: server.leave_room(50)


@cause_of("QuireCertificateExpires")
def a_certificate_expires(directory: Path) -> Iterator[Any]:
    files = directory / "certificates"
    tls = quire.testing.certificates(files, expires_in="30d").server
    with local(directory / "data", tls=tls) as (url, _):
        yield url, lambda: quire.testing.certificates(files, expires_in=timedelta(seconds=-1)) and None


@cause_of("QuireReplicationLost")
def a_peer_is_lost(directory: Path) -> Iterator[Any]:
    with pair(directory) as (url, _, peer):
        yield url, peer.kill


@cause_of("QuireReplicationBehind")
def a_peer_is_slow(directory: Path) -> Iterator[Any]:
    with pair(directory) as (url, one, peer), quire.Client(one.url) as client:

        def hang() -> None:
            peer.hang_syncs()
            client.publish("orders", {})

        yield url, hang
        # A process whose sync hangs is not killed by the system either.
        peer.heal()


@cause_of("QuireMessagesMissing")
def a_disk_is_lost_with_a_message_that_was_not_sent(directory: Path) -> Iterator[Any]:
    with (
        pair(directory) as (url, one, peer),
        quire.Client([peer.url, one.url], name="p") as client,
    ):
        client.publish("orders", {"n": 1})
        client.flush(PATIENCE)
        wait_until(lambda: one.replication.stats()["sources"][0]["records"] == 1)
        with quire.Client(peer.url) as operator:
            operator._replicate("one", "pause")
        client.publish("orders", {"n": 2})
        client.flush(PATIENCE)

        def lose() -> None:
            peer.kill()
            shutil.rmtree(directory / "two" / "data")
            client.publish("orders", {"n": 3})
            client.flush(PATIENCE)
            peer.start()

        yield url, lose


@contextlib.contextmanager
def pair(directory: Path) -> Iterator[tuple[str, quire.testing.TestServer, FaultyServer]]:
    """An instance, and one that it sends to."""
    topic = {"name": "^", "message_type": "json"}
    with ports(2) as own:

        def link(number: int, name: str) -> dict[str, Any]:
            far = {"name": name, "addresses": [f"127.0.0.1:{own[1 - number]}"], "topic": topic}
            far |= {"sync_type": "async"}
            return {"address": f"127.0.0.1:{own[number]}", "destination": [far]}

        peer = FaultyServer(directory / "two", name="two", replication=link(1, "one"))
        with peer, local(directory / "one", name="one", replication=link(0, "two")) as (url, one):
            wait_until(lambda: one.replication.stats()["destinations"][0]["state"] == "live")
            yield url, one, peer


@cause_of("QuireQueueNotWorked")
def a_consumer_hangs(directory: Path) -> Iterator[Any]:
    with (
        local(directory, queue={"name": "jobs", "message_type": "json"}) as (url, server),
        quire.Client(server.url) as client,
        client.subscribe("jobs") as jobs,
    ):

        def hang() -> None:
            client.publish("jobs", {})
            jobs.get(timeout=PATIENCE)

        yield url, hang


@cause_of("QuireDeadLetters")
def a_message_cannot_be_processed(directory: Path) -> Iterator[Any]:
    jobs = {"name": "jobs", "message_type": "json", "max_deliveries": 1, "dead_letter_topic": "dead"}
    dead = {"name": "letters", "underlying_topic": "dead", "message_type": "json"}
    with (
        local(directory, queue=[jobs, dead]) as (url, server),
        quire.Client(server.url) as client,
        client.subscribe("jobs") as taken,
    ):

        def fail() -> None:
            client.publish("jobs", {})
            taken.get(timeout=PATIENCE).cancel()

        yield url, fail


@cause_of("QuireLoopSlow")
def a_callback_blocks_the_loop(directory: Path) -> Iterator[Any]:
    with local(directory) as (url, server):
        assert server._loop is not None
        loop, is_over = server._loop, threading.Event()

        def block() -> None:
            is_over.wait(1.2)
            if not is_over.is_set():
                loop.call_later(0.05, block)

        yield url, lambda: loop.call_soon_threadsafe(block) and None
        is_over.set()


@cause_of("QuireStatisticsMissed")
def the_file_of_the_statistics_is_damaged(directory: Path) -> Iterator[Any]:
    with local(directory) as (url, _):

        def damage() -> None:
            with contextlib.closing(sqlite3.connect(directory / "statistics.db", timeout=PATIENCE)) as file:
                file.execute("DROP TABLE figures")

        yield url, damage


def rule_of(alert: str) -> Rule:
    rule = rules_of(prometheus("127.0.0.1:9080", "http")[1])[alert]
    if alert in SHORTER:
        age, shorter = SHORTER[alert]
        assert age in rule.query
        rule = replace(rule, query=rule.query.replace(age, shorter))
    return rule


@pytest.mark.parametrize("alert", [alert[0] for alert in ALERTS])
def test_an_alert_fires_when_its_cause_happens_and_not_before(alert: str, tmp_path: Path) -> None:
    server = Prometheus(rule_of(alert))
    times = iter(range(1_000_000))

    def fires(url: str) -> bool:
        with urllib.request.urlopen(f"{url}/metrics", timeout=PATIENCE) as answer:
            return server.take(next(times) * STEPS.get(alert, STEP), answer.read().decode())

    with CAUSES[alert](tmp_path) as (url, happen):
        for _number in range(HEALTHY):
            assert not fires(url)
            assert server.pending is None, server.scrapes[-1]
        happen()
        wait_until(lambda: fires(url))


def test_every_alert_has_a_cause() -> None:
    assert CAUSES.keys() == {alert[0] for alert in ALERTS}
    assert rules_of(prometheus("127.0.0.1:9080", "http")[1]).keys() == CAUSES.keys()


def test_a_rule_fires_after_the_time_that_it_must_hold() -> None:
    server = Prometheus(Rule("Test", "quire_test > 1", 60.0))
    values = [2.0, 2.0, 1.0, 2.0, 2.0, 2.0]
    fired = [server.take(number * STEP, f"quire_test {value}\n") for number, value in enumerate(values)]
    assert fired == [False, False, False, False, False, True]


def test_queries_have_the_results_of_prometheus() -> None:
    def result(query: str, *texts: str) -> dict[str, float]:
        server = Prometheus(Rule("Test", query, 0.0))
        for number, text in enumerate(texts):
            server.take(number * STEP, text)
        return {
            ",".join(value for _, value in key): each for key, each in evaluate(query, server.scrapes).items()
        }

    two = 'quire_a{queue="x"} 4\nquire_a{queue="y"} 8\nquire_b{queue="x"} 40\n'
    assert result('quire_a{queue="x"} * 2 < 9', two) == {"x": 8.0}
    assert result("quire_a < 0.2 * quire_b", two) == {"x": 4.0}
    assert result("quire_a > 1 and quire_b > 1", two) == {"x": 4.0}
    # The counter began at 0 again.
    counters = [f"quire_c_total {value}\n" for value in (10, 16, 3)]
    assert result("rate(quire_c_total[5m])", *counters) == {"": 9 / 60}
    assert result("increase(quire_c_total[5m])", *counters) == {"": 45.0}
    buckets = [
        f'quire_d_bucket{{le="1"}} {low}\nquire_d_bucket{{le="2"}} {all}\nquire_d_bucket{{le="+Inf"}} {all}\n'
        for low, all in ((0, 0), (30, 60))
    ]
    assert result("histogram_quantile(0.75, rate(quire_d_bucket[5m]))", *buckets) == {"": 1.5}
