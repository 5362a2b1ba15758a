"""`quire replication verify` names the messages that a server lacks. With `--repair`, links fetch them.

docs/replication.md, *Comparing instances* and *Messages that are missing*.
"""

from __future__ import annotations

import json
import struct
from functools import partial
from pathlib import Path
from typing import Any

import quire
import quire.testing
from support import command_line
from support.ports import reserve
from support.scripted_server import ERROR, Connection, ScriptedServer
from support.server_process import ServerProcess
from support.waiting import PATIENCE, wait_until

#: The kind of the frames that ask for the name and the messages of a server.
INSPECT = 16


def _verify(*arguments: str) -> tuple[list[dict[str, Any]], int, str]:
    """The ranges that the command names, its exit code, and its notes. The arguments are URLs and flags."""
    given = [each if each.startswith("--") else f"--url={each}" for each in arguments]
    shown = command_line.quire("replication", "verify", "--json", *given)
    return [json.loads(line) for line in shown.stdout.splitlines()], shown.returncode, shown.stderr


def _publish(url: str, name: str, count: int) -> None:
    with quire.Client(url, name=name) as client:
        client.publish_many("t", ({"name": name, "n": number} for number in range(count)))
        client.flush(PATIENCE)


def test_missing_messages_are_named_by_publisher_range_and_instance() -> None:
    with quire.testing.cluster(3, "async") as cluster:
        a, b, c = cluster
        _publish(a.url, "p", 2500)
        cluster.wait_until_replicated(PATIENCE)
        assert _verify(a.url, b.url, c.url)[:2] == ([], 0)
        cluster.partition(0, 2)
        cluster.partition(1, 2)
        _publish(a.url, "p", 100)
        _publish(c.url, "q", 10)
        rows, code, _ = _verify(a.url, c.url)
        found = {(row["first"], row["last"], row["messages"], row["instance"], row["server"]) for row in rows}
        assert found == {(2501, 2600, 100, c.name, c.url), (1, 10, 10, a.name, a.url)}
        assert {row["difference"] for row in rows} == {"missing"}
        assert code == 1
        table = command_line.quire(
            "replication", "verify", "--url", a.url, "--url", c.url
        ).stdout.splitlines()
        assert table[0].split("\t") == list(rows[0])
        assert len(table) == 3
        cluster.heal()
        cluster.wait_until_replicated(PATIENCE)
        assert _verify(a.url, b.url, c.url)[:2] == ([], 0)


def test_messages_of_two_runs_are_named() -> None:
    with quire.testing.cluster(2, "async") as cluster:
        a, b = cluster
        cluster.partition(0, 1)
        _publish(a.url, "p", 3)
        _publish(b.url, "p", 3)
        rows, code, _ = _verify(a.url, b.url)
        assert [(row["first"], row["last"], row["difference"]) for row in rows] == [(1, 3, "another run")]
        assert code == 1


def test_a_server_that_is_away_is_named() -> None:
    with quire.testing.cluster(2, "async") as cluster:
        url = cluster[1].url
        cluster.kill(1)
        rows, code, notes = _verify(cluster[0].url, url)
    assert (rows, code) == ([], 1)
    assert url.removeprefix("quire://") in notes


def test_an_older_server_is_named(tmp_path: Path) -> None:
    class Older(ScriptedServer):
        def _frame(self, connection: Connection, kind: int, body: bytes) -> None:
            if kind != INSPECT:
                super()._frame(connection, kind, body)
                return
            connection.send(ERROR, struct.pack("<HH", 1, 0) + b"no frame has the kind 16")
            raise OSError("the connection is closed")

    with Older() as older, quire.testing.ServerProcess(tmp_path) as server:
        rows, code, notes = _verify(server.url, older.url)
    assert (rows, code) == ([], 1)
    assert f"{older.url}: the server is older than this command" in notes


def _pair(port: int, topics: list[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The settings of `a`, which sends these topics to `b` at this port, and those of `b`, which sends nothing."""
    log = {"topic": {"name": "^", "message_type": "json"}}
    destination = {
        "name": "b",
        "addresses": [f"127.0.0.1:{port}"],
        "sync_type": "async",
        "topic": [{"name": name, "message_type": "json"} for name in topics],
        "exclude_validation": ["replicate"],
    }
    return (
        {"name": "a", "transaction_log": log, "replication": {"destination": destination}},
        {"name": "b", "transaction_log": log, "replication": {"address": f"127.0.0.1:{port}"}},
    )


def _data(url: str) -> list[int]:
    with quire.Client(url) as reader:
        return sorted(message.json()["n"] for message in reader.subscribe("^", bookmark="[epoch:now]"))


def _lacks(url: str, count: int) -> bool:
    return bool(_links(url)["missing"] == count)


def _links(url: str) -> dict[str, Any]:
    with quire.Client(url) as client:
        return client._replication()


def test_repair_fetches_what_a_link_left_out_before_it_was_made_wider(tmp_path: Path) -> None:
    reserved, port = reserve()
    narrow, settings = _pair(port, ["orders"])
    wide, _ = _pair(port, ["orders", "trades"])
    with reserved, ServerProcess(tmp_path / "b", **settings) as b:
        with ServerProcess(tmp_path / "a", **narrow) as a:
            with quire.Client(a.url, name="p") as client:
                for number in range(100):
                    client.publish("trades" if number % 2 else "orders", {"n": number})
                client.flush(PATIENCE)
            wait_until(lambda: _data(b.url) == list(range(0, 100, 2)))
            rows, code, _ = _verify(a.url, b.url)
            assert (len(rows), code, {row["instance"] for row in rows}) == (50, 1, {"b"})
            # What the link does not send is not fetched, and is no gap.
            rows, code, _ = _verify("--repair", a.url, b.url)
            assert (len(rows), code) == (50, 1)
            assert [_links(b.url)["missing"], _links(b.url)["sources"][0]["state"]] == [0, "live"]
            assert a.terminate() == 0
        with ServerProcess(tmp_path / "a", **wide) as a:
            wait_until(lambda: _links(a.url)["destinations"][0]["state"] == "live")
            assert _verify("--repair", a.url, b.url)[:2] == ([], 0)
            assert _data(b.url) == list(range(100))
            assert "no instance sends to 'a' now" in _verify("--repair", a.url, b.url)[2]


def _lose_a_message(cluster: quire.testing.Cluster) -> None:
    """The second of three messages is on the first instance only, and its disk is lost."""
    a, b = cluster
    with quire.Client([a.url, b.url], name="p") as client:
        client.publish("t", {"n": 0})
        client.flush(PATIENCE)
        cluster.wait_until_replicated(PATIENCE)
        # A partition would hold what was sent, and it would arrive later.
        command_line.quire("replication", "pause", b.name, url=a.url)
        client.publish("t", {"n": 1})
        client.flush(PATIENCE)
        cluster.lose_disk(0)
        client.publish("t", {"n": 2})
        client.flush(PATIENCE)
    cluster.start(0)
    cluster.wait_until_replicated(PATIENCE)


def test_messages_of_a_lost_disk_are_a_gap_that_repair_names() -> None:
    with quire.testing.cluster(2, "async") as cluster:
        a, b = cluster
        _lose_a_message(cluster)
        # Both have the same messages, and both lack one.
        assert _verify("--repair", a.url, b.url)[:2] == ([], 0)
        for instance in cluster:
            wait_until(partial(_lacks, instance.url, 1))
            (missing,) = _links(instance.url)["missing_ranges"]
            assert (missing["first"], missing["last"]) == (2, 2)
            shown = command_line.quire("replication", "ls", url=instance.url).stdout
            heading, _, source = (line.split("\t") for line in shown.splitlines())
            assert source[heading.index("state")] == "gap"
        assert (
            "lacks 1 message that no instance which sends to it has" in _verify("--repair", a.url, b.url)[2]
        )


def test_a_gap_is_accepted_by_command_and_stays_accepted_after_a_restart() -> None:
    with quire.testing.cluster(2, "async") as cluster:
        a, b = cluster
        nothing = command_line.quire("replication", "accept", url=b.url)
        assert nothing.stdout == f"{b.name}: nothing to accept; 0 messages missing\n", nothing.stderr
        _lose_a_message(cluster)
        wait_until(partial(_lacks, b.url, 1))
        (missing,) = _links(b.url)["missing_ranges"]
        # Another publisher has no gap.
        shown = command_line.quire("replication", "accept", "--publisher", "7", url=b.url)
        assert shown.stdout == f"{b.name}: nothing to accept; 1 message missing\n", shown.stderr
        shown = command_line.quire(
            "replication", "accept", "--json", "--publisher", str(missing["publisher"]), url=b.url
        )
        assert [json.loads(line) for line in shown.stdout.splitlines()] == [{**missing, "messages": 1}]
        assert f"{b.name}: 1 message accepted as lost; state: live" in shown.stderr
        cluster.kill(1)
        cluster.start(1)
        cluster.wait_until_replicated(PATIENCE)
        links = _links(b.url)
        assert (links["state"], links["missing"], links["accepted"]) == ("live", 0, 1)
        assert links["accepted_ranges"] == [missing]
        # Each instance has its own gap.
        wait_until(partial(_lacks, a.url, 1))
        shown = command_line.quire("replication", "accept", url=a.url)
        heading, row, line = shown.stdout.splitlines()
        assert heading.split("\t") == ["publisher", "first", "last", "messages"]
        assert row.split("\t") == [str(missing["publisher"]), "2", "2", "1"]
        assert line == f"{a.name}: 1 message accepted as lost; state: live"
