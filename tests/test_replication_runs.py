"""A program starts again on another server while messages of its earlier run are on their way there.

Nothing is confirmed that no server has (docs/replication.md, *The cost of a fault*).
"""

from __future__ import annotations

import subprocess
import sys

import pytest
import quire
import quire.testing
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


def _runs(url: str) -> list[int]:
    """The runs of the messages in the log of a server."""
    with quire.Client(url) as reader:
        return [message.json()["run"] for message in reader.subscribe("t", bookmark="[epoch:now]")]


def test_a_second_run_on_another_server_is_refused_and_not_confirmed_with_sequences_of_the_first() -> None:
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
        wait_until(lambda: len(_runs(a.url)) == 10)
        first.kill()
        first.communicate()
        with quire.Client(b.url, name="program") as second:
            assert len(_runs(b.url)) == 5
            cluster.heal()
            wait_until(lambda: len(_runs(b.url)) == 10)
            receipts = [second.publish_receipt("t", {"run": 2, "n": number}) for number in range(3)]
            for receipt in receipts:
                with pytest.raises(quire.NameInUseError, match="another message with sequence"):
                    receipt.wait(PATIENCE)
            second.publish("t", {"run": 2, "n": 3})
            with pytest.raises(quire.NameInUseError):
                second.flush(PATIENCE)
            for number in range(4, 8):
                second.publish("t", {"run": 2, "n": number})
            with pytest.raises(quire.NameInUseError):
                second.flush(PATIENCE)
            second.publish("t", {"run": 2, "n": 8})
            second.flush(PATIENCE)
        cluster.wait_until_replicated(PATIENCE)
        runs = _runs(a.url)
        assert (runs, _runs(b.url)) == ([1] * 10 + [2] * 4, runs)
