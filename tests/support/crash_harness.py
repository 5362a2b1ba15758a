"""The harnesses that kill processes with `kill -9` at random moments, and compare what is left.

A harness is a load, and a check of what must hold after its kills. This module has the rest:
clients that outlive a server, processes that are started again, and the rounds of a program:

    python tests/queue_crashes.py [ROUNDS] [--seed SEED]

or `make crash KIND=queue ROUNDS=200`. The tests run a few rounds of each harness.
"""

from __future__ import annotations

import argparse
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import quire

#: A client finds a server that was started again at once.
RECONNECT: Final = quire.Reconnect(initial="5ms", maximum="50ms")


@dataclass(frozen=True, kw_only=True)
class Harness:
    """A load that is killed."""

    #: Takes an empty directory, the number of rounds and a seed. Raises `AssertionError` when
    #: something does not hold, and describes what happened otherwise.
    run: Callable[[Path, int, int], str]
    #: The rounds of the program, unless the command line has another number.
    rounds: int
    #: Rounds on one directory; `None`: all of them.
    rounds_per_directory: int | None = None


def main(harness: Harness) -> None:
    """Runs the rounds that the command line asks for. Each directory has the next seed.

    The files of a directory that fails are kept, and those of one that Ctrl-C ends.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("rounds", type=int, nargs="?", default=harness.rounds)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    options = parser.parse_args()
    repeat(harness, options.rounds, options.seed)


def repeat(harness: Harness, rounds: int, seed: int) -> None:
    """Runs `rounds`, and prints a line for each directory."""
    done = 0
    while done < rounds:
        count = min(harness.rounds_per_directory or rounds, rounds - done)
        print(f"seed {seed}: ", end="", flush=True)
        directory = tempfile.mkdtemp(prefix="quire-kills-")
        try:
            report = harness.run(Path(directory), count, seed)
        except BaseException as error:
            how = "failed" if isinstance(error, Exception) else "interrupted"
            print(f"{how}, and the files are in {directory}", flush=True)
            raise
        shutil.rmtree(directory)
        done += count
        print(f"{report} ({done}/{rounds})", flush=True)
        seed += 1


def client(url: str | list[str], **options: Any) -> quire.Client:
    """A client that outlives its server: it waits for the next one without a limit."""
    defaults: dict[str, Any] = {"reconnect": RECONNECT, "wait": True, "command_timeout": None}
    return quire.Client(url, **{**defaults, **options})


class Server(Protocol):
    """A server in a process."""

    def launch(self) -> None: ...
    def start(self) -> None: ...
    def kill(self) -> None: ...


def start_again(server: Server, dice: random.Random, *, seconds_max: float) -> None:
    """Starts a server that was killed; now and then it is killed once more while it starts."""
    while dice.random() < 0.2:
        server.launch()
        time.sleep(dice.uniform(0, seconds_max))
        server.kill()
    server.start()


class Program:
    """A process that runs a harness with other arguments; `start` begins its next life."""

    def __init__(self, file: str, *arguments: str) -> None:
        self._command = [sys.executable, file, *arguments]
        self._process: subprocess.Popen[str] | None = None

    def start(self, *arguments: str) -> None:
        """Starts the process, with these arguments in addition."""
        self._process = subprocess.Popen(
            [*self._command, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, line: str) -> str:
        """Sends a line, and returns the line that the process answers."""
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        return self._process.stdout.readline()

    def kill(self) -> None:
        """`kill -9`."""
        assert self._process is not None
        self._process.kill()
        self._process.communicate()
