"""A forked child has nothing of its parent's clients, engines, journals, stores and servers: no
descriptor, no lock, no port, no lease.

Each test runs a program in a process without other threads of Python: a fork may not return in the
child while such a thread begins or ends.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import quire
from support.server_process import ServerProcess
from support.waiting import PATIENCE

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")

#: The common part of the programs. `ask` runs a function in a child, and returns its output. The
#: child lives until the parent ends it.
_COMMON = """
import asyncio, contextlib, os, signal, sys
import quire

place = sys.argv[1]
children = []

def descriptors():
    found = {}
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # that of the list
            found[int(number)] = os.readlink(f"/proc/self/fd/{number}")
    return found

def ask(function):
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reads)
        try:
            answer = function()
        except BaseException as error:
            answer = f"{type(error).__name__}: {error}"
        os.write(writes, str(answer).encode() or b"-")
        signal.pause()
        os._exit(0)
    children.append(child)
    os.close(writes)
    return os.read(reads, 1 << 16).decode()

before = descriptors()

def inherited():
    # Those of a pipe of `ask` are not counted.
    return sorted(name for number, name in descriptors().items() if before.get(number) != name and not name.startswith("pipe:"))

def end():
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
"""


def run(program: str, *arguments: object, timeout: float = PATIENCE) -> str:
    """The output of the program."""
    command = [sys.executable, "-W", "ignore", "-c", _COMMON + program, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, timeout=timeout, check=False, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


_CLIENT = """
with quire.Client(place, name="c", publish_store=sys.argv[2] + "/publishes", bookmark_store=sys.argv[2] + "/places") as client:
    client.publish("orders", b"1")
    client.flush(60)
    subscription = client.subscribe("orders", bookmark=quire.EPOCH)
    subscription.get(timeout=60)
    assert inherited()
    print(ask(inherited))
    client.publish("orders", b"2")
    client.flush(60)
    assert bytes(subscription.get(timeout=60).data) == b"2", "the parent continues"
    end()
"""

_ASYNC_CLIENT = """
async def main():
    global before
    before = descriptors()
    async with quire.AsyncClient(place, name="c") as client:
        await client.publish("orders", b"1")
        await client.flush(60)
        subscription = await client.subscribe("orders", bookmark=quire.EPOCH)
        await subscription.get(timeout=60)
        assert inherited()
        print(ask(inherited))
        await client.publish("orders", b"2")
        await client.flush(60)
        assert bytes((await subscription.get(timeout=60)).data) == b"2", "the parent continues"
        end()

asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
@pytest.mark.parametrize("program", [_CLIENT, _ASYNC_CLIENT], ids=["client", "asyncio client"])
@pytest.mark.parametrize("way_in", ["quire", "file", "memory"])
def test_a_child_has_no_descriptor_of_a_client(way_in: str, program: str, tmp_path: Path) -> None:
    if way_in == "quire":
        with ServerProcess(tmp_path / "data") as server:
            assert run(program, server.url, tmp_path) == "[]"
    else:
        place = f"file:{tmp_path}/trades" if way_in == "file" else "memory:"
        assert run(program, place, tmp_path) == "[]"


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
def test_a_child_has_no_descriptor_of_a_journal_and_can_read_it(tmp_path: Path) -> None:
    program = """
with quire.Journal(place, journal_size="64KB") as journal:
    for number in range(3):
        journal.append("orders", b"x" * 40_000, publisher="p")
    journal.flush()
    assert len(list(journal.read())) == 3
    assert inherited()
    print(ask(inherited), ask(lambda: len(list(journal.read()))), ask(lambda: journal.append("orders", b"1", publisher="p")))
    end()
"""
    assert run(program, tmp_path / "trades") == (
        "[] 3 RuntimeError: it was made before a fork, and its threads do not exist in this process: make a new one here"
    )


def test_the_message_of_a_killed_worker_with_a_pool_is_delivered_again_at_once(tmp_path: Path) -> None:
    queue = {"name": "JOBS", "message_type": "json", "underlying_topic": "tasks", "lease_period": "1h"}
    program = """
from concurrent.futures import ProcessPoolExecutor
import multiprocessing, time

client = quire.Client(place, name="worker")
jobs = client.subscribe("JOBS", max_backlog=1)
pool = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork"))
message = jobs.get(timeout=60)
print(pool.submit(os.getpid).result(), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    with (
        ServerProcess(tmp_path, queue=queue) as server,
        quire.Client(server.url, name="other") as client,
    ):
        client.publish("tasks", {"n": 1})
        client.flush(PATIENCE)
        command = [sys.executable, "-W", "ignore", "-c", _COMMON + program, server.url]
        # Its output is not read to the end: the child of the pool has it, too.
        with subprocess.Popen(command, stdout=subprocess.PIPE) as worker:
            assert worker.stdout is not None
            child = int(worker.stdout.readline())
            worker.wait(PATIENCE)
            try:
                with client.subscribe("JOBS", max_backlog=1) as jobs:
                    assert jobs.get(timeout=PATIENCE).json() == {"n": 1}
            finally:
                os.kill(child, 9)


@pytest.mark.parametrize(
    "make",
    [
        "quire.Client('file:' + place, name='c')",
        "quire.Server(quire.Config(data_directory=place, transport={'address': '127.0.0.1:0'})).start()",
        "quire.Journal(place + '/journal')",
        "quire.Client('memory:', name='c', publish_store=place + '/store')",
        "quire.BookmarkStore(place + '/store')",
    ],
)
def test_a_child_holds_no_lock(make: str, tmp_path: Path) -> None:
    program = f"""
os.makedirs(place, exist_ok=True)
made = {make}
ask(lambda: "")
made.close()
again = {make}
again.close()
end()
print("free")
"""
    assert run(program, tmp_path) == "free"


def test_the_port_of_a_stopped_server_refuses_connections_while_a_child_lives(tmp_path: Path) -> None:
    program = """
import socket
server = quire.Server(quire.Config(data_directory=place, transport={"address": "127.0.0.1:0"})).start()
client = socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])))
url = server.url
with quire.Client(url, name="c") as quick:
    quick.publish("orders", b"1")
    quick.flush(60)
ask(lambda: "")
with quire.Client(url, name="c") as quick:
    quick.publish("orders", b"2")
    quick.flush(60)
server.close()
client.settimeout(60)
while client.recv(1000):
    pass
print("ended")
try:
    socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])))
except ConnectionRefusedError:
    print("refused")
end()
"""
    assert run(program, tmp_path).split() == ["ended", "refused"]


def test_a_child_that_opens_the_directory_of_its_parents_engine_gets_the_error_at_once(
    tmp_path: Path,
) -> None:
    program = """
with quire.Client(place, name="c") as client:
    print(ask(lambda: quire.Client(place, name="d")))
    end()
"""
    assert run(program, f"file:{tmp_path}").startswith("JournalLockedError: ")


def test_a_child_has_memory_engines_of_its_own() -> None:
    program = """
def publish():
    with quire.Client(place, name="d") as client:
        with client.subscribe("orders", bookmark=quire.EPOCH) as replay:
            client.publish("orders", b"of the child")
            client.flush(60)
            return bytes(replay.get(timeout=60).data).decode()

with quire.Client(place, name="c") as client:
    client.publish("orders", b"of the parent")
    client.flush(60)
    print(ask(publish))
    end()
"""
    assert run(program, "memory:trades") == "of the child"


@pytest.mark.parametrize(
    "use",
    [
        "client.state",
        "client.persisted",
        "client.health()",
        "client.publish('orders', b'')",
        "message.ack()",
        "message.lease_lost",
        "message.lease_deadline",
        "subscription.get(timeout=0)",
        "subscription.most_recent",
        "subscription.completed.is_set()",
        "subscription._core.outstanding_count",
        "subscription._core.take_unseen()",
        "query.total",
        "query._core.is_snapshot()",
        "query._core.is_current()",
        "client._core.message_size_max",
        "client._core.handled_count",
        "client._core.handled_ended()",
        "client._core.end_handled()",
        "message._begin()",
        "receipt.done()",
        "store.sub_ids",
        "server.stats()",
    ],
)
def test_a_child_that_uses_what_its_parent_made_gets_an_error(use: str) -> None:
    program = f"""
queue = {{"name": "JOBS", "message_type": "json", "underlying_topic": "tasks"}}
server = quire.Server(quire.Config(transport={{"address": "127.0.0.1:0"}}, queue=queue)).start()
store = quire.BookmarkStore(None)
client = quire.Client(server.url, name="c", bookmark_store=store)
subscription = client.subscribe("JOBS")
receipt = client.publish_receipt("tasks", {{"n": 1}})
message = subscription.get(timeout=60)
query = client.sow("JOBS")
print(ask(lambda: {use}))
end()
message.ack()
client.close()
server.close()
"""
    assert run(program, "").startswith("RuntimeError: it was made before a fork")


def test_a_child_can_leave_and_drop_what_its_parent_made(tmp_path: Path) -> None:
    program = """
queue = {"name": "JOBS", "message_type": "json", "underlying_topic": "tasks"}
client = quire.Client(place, name="c", config=quire.Config(queue=queue))
handled = [client.subscribe("other", on_message=lambda message: None)]
subscription = client.subscribe("JOBS")
client.publish("tasks", {"n": 1})
message = subscription.get(timeout=60)

def leave():
    global subscription
    with contextlib.suppress(ValueError), message:
        raise ValueError
    shown = repr(client.sow), repr(subscription), repr(client), repr(message)
    handled.clear()
    client._subscriptions.clear()
    subscription = None
    return message._verdict

print(ask(leave))
end()
message.ack()
client.flush(60)
print(client.queue_stats("JOBS")["JOBS"]["depth"])
client.close()
"""
    assert run(program, f"file:{tmp_path}").split() == ["None", "0"]


@pytest.mark.parametrize("way_in", ["file", "memory"])
def test_the_end_of_a_with_block_in_a_child_changes_nothing_in_the_parent(
    way_in: str, tmp_path: Path
) -> None:
    program = """
with quire.Client(place, name="c") as client:
    with client.subscribe("orders") as subscription:
        child = os.fork()
        if child == 0:
            sys.exit(7)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        client.publish("orders", b"1")
        print(bytes(subscription.get(timeout=60).data).decode())
"""
    assert run(program, f"file:{tmp_path}" if way_in == "file" else "memory:").split() == ["7", "1"]


def test_descriptors_that_are_opened_while_a_program_forks_do_not_reach_the_children(tmp_path: Path) -> None:
    """Clients that connect and journals that open and close files, on separate threads, during
    hundreds of forks."""
    program = """
import threading
stops = threading.Event()

def connect():
    while not stops.is_set():
        with contextlib.suppress(quire.DisconnectedError):
            quire.Client("quire://127.0.0.1:1", name="c")
        with quire.BookmarkStore(place + "/store"):
            pass

threads = [threading.Thread(target=connect) for _ in range(1)]
[thread.start() for thread in threads]
left = []
for _ in range(200):
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writes, repr([name for name in inherited() if name.startswith((place, "anon", "socket"))]).encode())
        os._exit(0)
    os.close(writes)
    left.append(os.read(reads, 1 << 16).decode())
    os.close(reads)
    os.waitpid(child, 0)
stops.set()
[thread.join() for thread in threads]
print(set(left))
"""
    assert run(program, tmp_path) == "{'[]'}"
