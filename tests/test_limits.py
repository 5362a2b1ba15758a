"""Reaching a limit is an error that names it: topics, sequences, open files, threads."""

from __future__ import annotations

import logging
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import quire
from quire.testing import server
from support.waiting import PATIENCE, wait_until

LAST = 2**64 - 1
#: The stack of a thread that no machine has the address space for: the system gives no thread.
NO_STACK = 1 << 47


def run(program: str, *arguments: object, **environment: str) -> str:
    """The output of a process that this program is run in."""
    command = [sys.executable, "-c", textwrap.dedent(program), *map(str, arguments)]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env={**environment, "PATH": ""},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def topics_at_most(count: int) -> dict[str, object]:
    return {"max_topics": count, "topic": [{"name": "^", "message_type": "json"}]}


def test_a_publish_to_one_topic_too_many_is_refused(tmp_path: Path) -> None:
    with server(tmp_path, transaction_log=topics_at_most(2)) as running, quire.Client(running.url) as client:
        for topic in ("a", "b", "c"):
            client.publish(topic, 1)
        with pytest.raises(quire.LimitExceededError, match=r"raise transaction_log\.max_topics"):
            client.flush(PATIENCE)
        client.subscribe("c", bookmark=quire.EPOCH).unsubscribe()
        client.publish("a", 2)
        client.flush(PATIENCE)


@pytest.mark.parametrize("way", ["server", "memory"])
def test_after_the_last_sequence_publish_raises(tmp_path: Path, way: str) -> None:
    with server(tmp_path) as running:
        url = running.url if way == "server" else "memory:the-last-sequence"
        with quire.Client(url, name="loader-9") as client:
            assert client.publish("t", 1, sequence=LAST) == LAST
            with pytest.raises(quire.LimitExceededError, match="has used the last number"):
                client.publish("t", 2)
            client.flush(PATIENCE)
            assert client.persisted == LAST
            client.publish("t", 3, sequence=None)


def test_after_the_last_sequence_append_raises(tmp_path: Path) -> None:
    with quire.Journal(tmp_path) as journal:
        assert journal.append("t", 1, publisher="p", sequence=LAST) is not None
        for more in ([2], [2, 3]):
            with pytest.raises(quire.LimitExceededError, match="has used the last number"):
                journal.append_many("t", more, publisher="p")
        with pytest.raises(quire.LimitExceededError, match="has used the last number"):
            journal.append_many("t", [4, 5, 6], publisher="other", sequence=LAST - 1)
        assert journal.highest_sequence("other") == LAST
        journal.flush(PATIENCE)
        assert [message.json() for message in journal.read()] == [1, 4, 5]


def test_an_owner_whose_name_was_used_is_warned(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = tmp_path / "publishes"
    with server(tmp_path / "server") as running:
        with quire.Client(running.url, name="loader-9", publish_store=store) as owner:
            owner.publish("t", 1)
            owner.flush(PATIENCE)
        with caplog.at_level(logging.WARNING), quire.Client(running.url, name="loader-9") as other:
            other.publish("t", 2, sequence=2_000_000)
            other.flush(PATIENCE)
            (shown,) = running.stats()["clients"]
            assert (shown["sequence"], shown["sequence_jumps"]) == (2_000_000, 1)
        # The line may follow the answer of the same turn.
        wait_until(lambda: "its sequence jumped from 1 to 2000000" in caplog.text)
        with (
            caplog.at_level(logging.WARNING),
            quire.Client(running.url, name="loader-9", publish_store=store) as owner,
        ):
            assert owner.publish("t", 3) == 2_000_001
            # A thread hands the lines of the extension to `logging`.
            wait_until(lambda: "the server has sequence 2000000" in caplog.text)
        assert "its last sequence is 1)" in caplog.text


LOW_ON_FILES = """
    import resource, sys
    import quire
    limit = int(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    config = quire.Config(data_directory=sys.argv[2], transport={"address": "127.0.0.1:0"})
    try:
        quire.Server(config).start()
    except quire.LimitExceededError as error:
        print(error)
"""


@pytest.mark.parametrize("limit", [12, 18, 22, 30])
def test_too_few_open_files_for_a_server_say_what_to_raise(tmp_path: Path, limit: int) -> None:
    said = run(LOW_ON_FILES, limit, tmp_path)
    assert f"the process may have {limit} open files" in said
    assert "ulimit -n" in said


CROWDED = """
    import resource, subprocess, sys
    import quire
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (70, most))
    config = quire.Config(
        data_directory=sys.argv[1],
        # No connection of the crowd ends, and makes room for another one, before the crowd wants it to.
        transport={"address": "127.0.0.1:0", "logon_timeout": "1h"},
        transaction_log={"journal_size": "64KB", "topic": [{"name": "^", "message_type": "binary"}]},
    )
    with quire.Server(config) as running, quire.Client(running.url, name="honest") as honest:
        crowd = subprocess.Popen(
            [sys.executable, "-c", sys.argv[2], running.url, str(most)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        crowd.stdout.readline()
        # Journal files are begun while every connection that there is room for is taken.
        for _ in range(200):
            honest.publish("t", b"x" * 4096)
        honest.flush()
        print(honest.persisted)
        print(crowd.communicate("end")[0])
"""

CROWD = """
import resource, socket, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[2]),) * 2)
host, port = sys.argv[1].removeprefix("quire://").split(":")
sockets = [socket.create_connection((host, int(port))) for _ in range(100)]
# The server accepts them in their order: when it has refused the last one, it has decided about all.
last = sockets[-1].makefile("rb").read()
print("connected", flush=True)
sys.stdin.read()
for each in sockets[:-1]:
    try:
        each.shutdown(socket.SHUT_WR)
    except OSError:
        pass  # The server has refused it.
said = [last, *(each.makefile("rb").read() for each in sockets[:-1])]
print(sum(b"max_connections" in each for each in said))
"""


def test_connections_leave_the_open_files_that_the_journal_needs(tmp_path: Path) -> None:
    persisted, refused = map(int, run(CROWDED, tmp_path, CROWD).split())
    assert persisted == 200
    assert 60 < refused < 100


def test_a_thread_that_cannot_be_started_is_an_error_that_says_what_to_raise(tmp_path: Path) -> None:
    program = """
        import sys, threading
        import quire
        handled = threading.Event()
        config = quire.Config(data_directory=sys.argv[1], transport={"address": "127.0.0.1:0"})
        with quire.Server(config) as running, quire.Client(running.url) as client:
            threading.stack_size(int(sys.argv[2]))
            calls = [
                lambda: quire.Server(config).start(),
                lambda: client.subscribe("t", on_message=print),
                lambda: client.add_state_listener(print),
            ]
            for call in calls:
                try:
                    call()
                except quire.LimitExceededError as error:
                    print(error)
            threading.stack_size(0)
            with client.subscribe("t", on_message=lambda message: handled.set()):
                client.publish("t", 1)
                print(handled.wait())
    """
    *said, is_handled = run(program, tmp_path, NO_STACK).splitlines()
    assert ["ulimit -u" in line for line in said] == [True] * 3
    assert is_handled == "True"


@pytest.mark.parametrize("way", ["memory:", "quire://127.0.0.1:9"])
def test_a_thread_of_the_core_that_cannot_be_started_says_what_to_raise(way: str) -> None:
    program = """
        import sys
        import quire
        try:
            quire.Client(sys.argv[1])
        except quire.LimitExceededError as error:
            print(error)
    """
    assert "ulimit -u" in run(program, way, RUST_MIN_STACK=str(NO_STACK))
