"""An instance that lost its disk takes no clients until the others have sent what they have
(docs/replication.md, "States"): with real processes."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import quire
import quire.testing
from quire.client._blocking import Observer
from support import command_line
from support.ports import reserve
from support.server_process import ServerProcess
from support.waiting import PATIENCE, wait_until

TOPIC = {"name": "^", "message_type": "json"}


def _links(url: str) -> dict[str, Any]:
    with Observer(url) as operator:
        return operator._replication()


def _numbers(url: str) -> list[int]:
    """The messages of a server, in the order of its log."""
    numbers = []
    with quire.Client(url) as client:
        replay = client.subscribe("orders", bookmark=quire.EPOCH)
        # The replay is over after its last message was taken.
        while not replay.completed.wait(0):
            with contextlib.suppress(TimeoutError):
                numbers.append(replay.get(0.01).json()["n"])
    return numbers


@pytest.fixture
def ring(tmp_path: Path) -> Iterator[dict[str, ServerProcess]]:
    """Three instances, each of which sends everything to the next one."""
    with contextlib.ExitStack() as stack:
        ports = {}
        for name in "abc":
            reserved, ports[name] = reserve()
            stack.enter_context(reserved)
        servers = {}
        for name, following in (("a", "b"), ("b", "c"), ("c", "a")):
            destination = {
                "name": following,
                "addresses": [f"127.0.0.1:{ports[following]}"],
                "sync_type": "sync",
                "pass_through": ".*",
                "exclude_validation": "replicate",
                "topic": TOPIC,
            }
            settings: dict[str, Any] = {
                "name": name,
                "transaction_log": {"topic": TOPIC},
                "replication": {"address": f"127.0.0.1:{ports[name]}", "destination": destination},
            }
            servers[name] = stack.enter_context(ServerProcess(tmp_path / name, **settings))
        for server in servers.values():
            wait_until(lambda url=server.url: _links(url)["state"] == "live")  # type: ignore[misc]
        yield servers


def test_a_ring_lets_no_client_in_to_a_lost_disk_before_its_source_was_heard(
    ring: dict[str, ServerProcess], tmp_path: Path
) -> None:
    urls = [ring[name].url for name in "abc"]
    with quire.Client(urls[0], name="p") as publisher:
        publisher.publish_many("orders", ({"n": number} for number in range(3000)))
        publisher.flush(PATIENCE)
        ring["c"].terminate()
        ring["a"].kill()
        shutil.rmtree(tmp_path / "a")
        ring["a"].start()
        shown = command_line.quire("replication", "ls", url=urls[0])
        assert "state: filling" in shown.stderr
        with pytest.raises(quire.DisconnectedError, match='"c"') as refused:
            quire.Client(urls[0], name="q")
        assert refused.value.code == "not_ready"
        assert "that the server is running" not in str(refused.value)
        ring["c"].start()
        publisher.publish("orders", {"n": 3000})
        publisher.flush(PATIENCE)
    assert [_numbers(url) for url in urls] == [list(range(3001))] * 3


def test_an_async_pair_lets_no_client_in_to_a_lost_disk_before_the_other_one_was_heard() -> None:
    with quire.testing.cluster(2, "async", transaction_log={"topic": TOPIC}) as cluster:
        first, second = cluster
        with quire.Client(first.url, name="p") as publisher:
            publisher.publish_many("orders", ({"n": number} for number in range(3000)))
            publisher.flush(PATIENCE)
            cluster.wait_until_replicated(PATIENCE)
            cluster.lose_disk(first)
            cluster.partition(first)
            cluster.start(first)
            with pytest.raises(quire.DisconnectedError, match='"instance-2"'):
                quire.Client(first.url, name="q")
            cluster.heal()
            publisher.publish("orders", {"n": 3000})
            publisher.flush(PATIENCE)
        cluster.wait_until_replicated(PATIENCE)
        assert [_numbers(each.url) for each in (first, second)] == [list(range(3001))] * 2
        assert _links(first.url)["state"] == "live"


def test_the_command_line_lets_clients_in_and_names_what_may_be_missing() -> None:
    with quire.testing.cluster(2, transaction_log={"topic": TOPIC}) as cluster:
        first, second = cluster
        shown = command_line.quire("replication", "admit", url=first.url)
        assert shown.stdout == "instance-1: clients were let in before\n", shown.stderr
        cluster.kill(second)
        cluster.lose_disk(first)
        cluster.start(first)
        shown = command_line.quire("replication", "ls", url=first.url)
        assert "state: filling" in shown.stderr
        assert "not heard: instance-2 (last known message: none)" in shown.stderr
        shown = command_line.quire("info", url=first.url)
        assert "not heard: instance-2 (last known message: none)" in shown.stderr
        shown = command_line.quire("stats", "instance/copies", "--json", url=first.url)
        copies = json.loads(shown.stdout)
        assert (copies["state"], copies["filling"], copies["not_heard"]) == ("filling", True, 1), shown.stderr
        shown = command_line.quire("replication", "admit", url=first.url)
        expected = "instance-1: clients are let in; messages may be missing of instance-2 (last known message: none)\n"
        assert shown.stdout == expected, shown.stderr
        with quire.Client(first.url, name="p") as client:
            client.publish("orders", {"n": 1})
        cluster.start(second)
        wait_until(lambda: _links(first.url)["state"] == "live")
        assert _numbers(first.url) == [1]
