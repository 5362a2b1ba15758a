"""A program that does not close its client loses no message that can be saved in a bounded time,
and gets a report of lost messages."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import quire
from quire.testing import ServerProcess, server
from support.waiting import PATIENCE, wait_until

COUNT = 5_000

#: A client at the end of a program, and one that ends with its function.
PROGRAMS = {
    "global": """
import quire
client = quire.Client({url!r}, name="loader")
for number in range({count}):
    client.publish("orders", {{"n": number}})
""",
    "function": """
import quire
def load():
    client = quire.Client({url!r}, name="loader")
    for number in range({count}):
        client.publish("orders", {{"n": number}})
load()
""",
    "asyncio": """
import asyncio, quire
async def load():
    client = quire.AsyncClient({url!r}, name="loader")
    for number in range({count}):
        await client.publish("orders", {{"n": number}})
asyncio.run(load())
""",
}


#: On a slow machine a flush takes longer than an unclosed client may delay its program.
PATIENT = f"import quire.client._unclosed\nquire.client._unclosed.FLUSH_TIMEOUT = {PATIENCE}\n"


def run(program: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *options, "-c", PATIENT + program]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)


@pytest.fixture(params=["server", "file"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Kinds of server that outlive a program."""
    if request.param == "server":
        with server(tmp_path) as running:
            yield running.url
    else:
        yield f"file:{tmp_path}/journal"


@pytest.mark.parametrize("program", PROGRAMS)
def test_an_unclosed_client_flushes_at_the_end(place: str, program: str) -> None:
    ended = run(PROGRAMS[program].format(url=place, count=COUNT), "-X", "dev")
    assert ended.returncode == 0, ended.stderr
    assert "ResourceWarning" in ended.stderr
    assert "name='loader') was not closed" in ended.stderr
    with quire.Client(place, name="loader") as client:
        assert client.persisted == COUNT


def test_an_unclosed_client_says_what_was_lost(tmp_path: Path) -> None:
    with ServerProcess(tmp_path) as process:
        program = f"""
import os, signal, quire, time
client = quire.Client({process.url!r}, name="loader")
os.kill({process.pid}, signal.SIGKILL)
while client.state == "connected":
    time.sleep(0.001)
for number in range(7):
    client.publish("orders", b"1")
"""
        ended = run(program)
        assert ended.returncode == 0, ended.stderr
        assert (
            "was not closed, and 7 publishes are not known to be persisted: there is no connection"
            in ended.stderr
        )


def test_log_lines_that_wait_at_the_end_of_the_program_are_passed_on(tmp_path: Path) -> None:
    with ServerProcess(tmp_path) as process:
        program = f"""
import atexit, logging, os, signal, subprocess, sys, threading, quire
waits, ends = threading.Event(), threading.Event()
atexit.register(ends.set)
class Handler(logging.Handler):
    def filter(self, record):
        if threading.current_thread() is not threading.main_thread():
            waits.set()
            ends.wait()
            subprocess.run([sys.executable, "-c", ""])  # The program ends meanwhile.
            print(record.levelname, record.name, file=sys.stderr)
        return False
logging.getLogger("quire").addHandler(Handler())
client = quire.Client({process.url!r}, name="loader")
os.kill({process.pid}, signal.SIGKILL)
waits.wait()
client.close(0)
"""
        ended = run(program)
        assert ended.returncode == 0, ended.stderr
        assert "WARNING quire" in ended.stderr


def test_a_closed_client_says_nothing(place: str) -> None:
    closed = PROGRAMS["global"].format(url=place, count=10) + "client.close()\n"
    ended = run(closed, "-X", "dev")
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_client_that_is_collected_flushes_and_warns() -> None:
    url = "memory:unclosed"
    with quire.Client(url) as other:
        subscription = other.subscribe("orders")
        clients = [quire.Client(url, name="loader")]
        clients[0].publish("orders", b"1")
        with pytest.warns(ResourceWarning, match=r"name='loader'\) was not closed"):
            clients.clear()
        assert subscription.get(PATIENCE).data == b"1"


def test_a_client_that_never_connected_says_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        client = quire.AsyncClient("memory:never")
        del client
        gc.collect()


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("ends", ["dropped", "lost its name"])
async def test_an_asyncio_client_that_is_dropped_leaves_no_descriptor_in_a_running_loop(ends: str) -> None:
    def count() -> int:
        gc.collect()
        return len(os.listdir("/proc/self/fd"))

    async def flush_for_ever(client: quire.AsyncClient) -> None:
        while True:
            await client.flush(PATIENCE)

    async def use(name: str) -> None:
        client = quire.AsyncClient(running.url, name=name)
        await client.publish("orders", b"1")
        await client.flush(PATIENCE)
        if ends == "lost its name":
            async with quire.AsyncClient(running.url, name=name) as successor:
                await successor.flush(PATIENCE)
                with pytest.raises(quire.NameInUseError):
                    await flush_for_ever(client)

    with server() as running:
        before = count()
        for number in range(3):
            await use(f"client-{number}")
        # The thread of a client ends after the client was dropped, and the loop then forgets it.
        await asyncio.to_thread(wait_until, lambda: count() <= before)
