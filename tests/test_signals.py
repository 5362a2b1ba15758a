"""SIGTERM and Ctrl-C end a program, whatever its main thread just does."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

#: A signal that another thread of the process receives does not end a wait of the main thread. A
#: signal that comes just before the wait does not, either.
WITHOUT_THE_MAIN_THREAD = """
import signal, sys, threading

threading.Thread(target=sys.stdin.read, daemon=True).start()
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
"""
SERVER = """
from quire._process import StopSignals

stop = StopSignals(signal.SIGTERM)
print("ready", flush=True)
assert stop.wait()
assert stop.wait(0), "the next call finds it, too"
"""
WORKERS = """
import quire, quire.testing

with quire.testing.server(queue=[{"name": "jobs", "message_type": "json"}]) as server, quire.Client(server.url) as client:
    client.publish("jobs", {"n": 1})
    client.process("jobs", lambda message: print("ready", flush=True), concurrency=2)
"""


@pytest.mark.parametrize("program", [SERVER, WORKERS], ids=["a server", "two workers"])
def test_a_signal_that_does_not_interrupt_the_main_thread_ends_the_program(program: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WITHOUT_THE_MAIN_THREAD + program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        try:
            assert process.wait(20) == 0
        finally:
            process.kill()
