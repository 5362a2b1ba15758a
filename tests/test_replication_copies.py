"""Servers agree in the end: late messages are recorded, and messages of two runs are conflicts.

docs/replication.md, *What is sent*.
"""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import quire
import quire.testing
from support import command_line
from support.waiting import PATIENCE, wait_until

FIRST_RUN = """
import quire, sys
with quire.Client(sys.argv[1], name="program") as client:
    for number in range(5):
        client.publish("t", {"run": 1, "n": number})
    client.flush()
    print("flushed", flush=True)
    sys.stdin.readline()
    for number in range(5, 10):
        client.publish("t", {"run": 1, "n": number})
    sys.stdin.readline()
"""


def _messages(url: str) -> list[tuple[int, int]]:
    """The run and the number of the messages in the log of a server, in its order."""
    with quire.Client(url) as reader:
        messages = [message.json() for message in reader.subscribe("t", bookmark="[epoch:now]")]
    return [(message["run"], message["n"]) for message in messages]


def _has_conflicts(instance: quire.testing.Instance, count: int) -> bool:
    return _conflicts(instance) == {"to": count, "from": count}


def _conflicts(instance: quire.testing.Instance) -> dict[str, int]:
    """The conflicts of the links of a server: of its destinations, and of its sources."""
    links = instance.links()
    sides = (("to", "destinations"), ("from", "sources"))
    return {side: sum(link["conflicts"] for link in links[key]) for side, key in sides}


def test_a_second_run_that_publishes_before_the_first_one_arrives_is_not_confirmed() -> None:
    with quire.testing.cluster(2) as cluster:
        a, b = cluster[0], cluster[1]
        first = subprocess.Popen(
            [sys.executable, "-c", FIRST_RUN, a.url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert first.stdin is not None
        assert first.stdout is not None
        assert first.stdout.readline() == "flushed\n"
        cluster.partition(0, 1)
        print(file=first.stdin, flush=True)
        wait_until(lambda: len(_messages(a.url)) == 10)
        first.kill()
        first.communicate()
        with quire.Client(b.url, name="program") as second:
            receipts = [second.publish_receipt("t", {"run": 2, "n": number}) for number in range(3)]
            wait_until(lambda: len(_messages(b.url)) == 8)
            cluster.heal()
            for receipt in receipts:
                with pytest.raises(quire.NameInUseError, match="another message with sequence"):
                    receipt.wait(PATIENCE)
        cluster.wait_until_replicated(PATIENCE)
        # Each log has its own messages under the three bookmarks, and the others.
        kept = [(1, number) for number in range(5)]
        assert _messages(a.url) == [*kept, *[(1, number) for number in range(5, 10)]]
        assert _messages(b.url) == [*kept, *[(2, number) for number in range(3)], (1, 8), (1, 9)]
        for instance in cluster:
            wait_until(partial(_has_conflicts, instance, 3))
        cluster.restart(1)
        wait_until(lambda: _conflicts(b) == {"to": 3, "from": 3})
        shown = command_line.quire("replication", "ls", url=b.url).stdout
        heading, *rows = (line.split("\t") for line in shown.splitlines())
        assert [row[heading.index("conflicts")] for row in rows] == ["3", "3"], shown


def test_a_lost_disk_is_filled_although_a_client_was_let_in_before(tmp_path: Path) -> None:
    with quire.testing.cluster(2, "async") as cluster:
        a, b = cluster[0], cluster[1]
        with quire.Client(a.url, name="p", bookmark_store=tmp_path / "places") as client:
            for number in range(300):
                client.publish("t", {"run": 1, "n": number})
            client.flush(PATIENCE)
            cluster.wait_until_replicated(PATIENCE)
            cluster.lose_disk(0)
            cluster.partition(0, 1)
            cluster.start(0)
            command_line.quire("replication", "admit", url=a.url)
            client.publish("t", {"run": 1, "n": 300})
            client.flush(PATIENCE)
            assert _messages(a.url) == [(1, 300)]
            cluster.heal()
            wait_until(lambda: len(_messages(a.url)) == 301)
            assert sorted(_messages(a.url)) == _messages(b.url) == [(1, number) for number in range(301)]
        cluster.kill(0)
        cluster.start(0)
        assert len(_messages(a.url)) == 301


def test_a_named_subscription_gets_messages_that_come_late_once(tmp_path: Path) -> None:
    with quire.testing.cluster(2, "async") as cluster:
        a, b = cluster[0], cluster[1]
        with quire.Client([a.url, b.url], name="p") as client:

            def publish(*numbers: int) -> None:
                for number in numbers:
                    client.publish("t", {"run": 1, "n": number})
                client.flush(PATIENCE)

            def received(count: int) -> list[int]:
                with (
                    quire.Client(b.url, bookmark_store=tmp_path / "places") as reader,
                    reader.subscribe("t", bookmark=quire.MOST_RECENT, sub_id="s") as messages,
                ):
                    found = []
                    for message in messages:
                        found.append(message.json()["n"])
                        message.discard()
                        if len(found) == count:
                            break
                return found

            publish(1, 2, 3)
            cluster.wait_until_replicated(PATIENCE)
            cluster.partition(0, 1)
            publish(4, 5)
            cluster.kill(0)
            publish(6, 7)
            assert received(5) == [1, 2, 3, 6, 7]
            cluster.start(0)
            cluster.heal()
            assert received(2) == [4, 5]
            publish(8)
            assert received(1) == [8]
