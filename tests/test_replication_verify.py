"""`quire replication verify` names the messages that one of several servers lacks.

docs/replication.md, *Comparing instances*.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import quire
import quire.testing
from support import command_line
from support.scripted_server import ERROR, Connection, ScriptedServer
from support.waiting import PATIENCE

#: The kind of the frames that ask for the name and the messages of a server.
INSPECT = 16


def _verify(*urls: str) -> tuple[list[dict[str, Any]], int, str]:
    """The ranges that the command names, its exit code, and its notes."""
    shown = command_line.quire(
        "replication", "verify", "--json", *[part for url in urls for part in ("--url", url)]
    )
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
