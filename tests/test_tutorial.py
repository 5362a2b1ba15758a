"""Every page of the tutorial, and the how-to for TLS and users, works as written: files are created,
commands run, and their output is the one on the page.

A block with a title that is a file name is that file. A `console` block runs in the terminal of its
title: `$` begins a command, `^C` interrupts the command that runs there, other lines are its
output. `...` matches any text, as in doctest.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.ports import reserve
from support.waiting import PATIENCE, wait_until

ROOT = Path(__file__).parent.parent
PAGES = [*sorted((ROOT / "docs" / "tutorial").glob("*.md")), ROOT / "docs" / "how-to" / "secure.md"]
BLOCK = re.compile(r'^```(\w+) title="([^"]+)"\n(.*?)^```', re.S | re.M)


class Terminal:
    """Runs one command at a time."""

    def __init__(self, directory: Path, environment: dict[str, str], output: Path) -> None:
        self._directory = directory
        self._environment = environment
        self._output = output
        self._running: subprocess.Popen[str] | None = None

    def run(self, command: str) -> None:
        self.wait()
        with self._output.open("w") as output:
            self._running = subprocess.Popen(
                f"exec {command}",
                shell=True,
                cwd=self._directory,
                env=self._environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
                # Tests that run in the background ignore Ctrl-C, and a shell could not undo that.
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            )

    def expect(self, lines: list[str]) -> None:
        """Waits until the output of the command has the lines, in their order."""
        parts = (re.escape(line).replace(re.escape("..."), ".*") for line in lines)
        pattern = re.compile("^" + r"\s*\n".join(parts), re.M)

        def is_there() -> bool:
            # Looked at first: a command that has ended writes no more.
            has_ended = self._running is None or self._running.poll() is not None
            output = self._output.read_text()
            is_matched = pattern.search(output) is not None
            assert is_matched or not has_ended, f"expected {lines}, got:\n{output}"
            return is_matched

        wait_until(is_there)

    def wait(self) -> None:
        if self._running is not None:
            self._running.wait(PATIENCE)
            self._running = None

    def interrupt(self) -> None:
        assert self._running is not None
        self._running.send_signal(signal.SIGINT)
        self.wait()

    def kill(self) -> None:
        if self._running is not None:
            self._running.kill()
            self._running.wait(PATIENCE)


@pytest.fixture
def terminals(tmp_path: Path) -> Iterator[dict[str, Terminal]]:
    made: dict[str, Terminal] = {}
    yield made
    for terminal in made.values():
        terminal.kill()


@pytest.fixture
def ports() -> Iterator[dict[str, str]]:
    """Two pages may be tried at the same time: each has ports in place of those that it names, also while its servers
    are stopped."""
    with contextlib.ExitStack() as stack:
        found = {}
        for named in ("9007", "9008", "9107"):
            reserved, number = reserve()
            stack.enter_context(reserved)
            found[named] = str(number)
        yield found


@pytest.mark.parametrize("page", PAGES, ids=[page.stem for page in PAGES])
def test_a_page_works_as_written(
    page: Path, tmp_path: Path, ports: dict[str, str], terminals: dict[str, Terminal]
) -> None:
    if "openssl" in page.read_text() and shutil.which("openssl") is None:
        pytest.skip("the page makes certificates with openssl, which is not installed")
    port = ports["9007"]
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONUNBUFFERED": "1",
        "QUIRE_URL": f"quire://127.0.0.1:{port}",
        "COLUMNS": "200",
    }
    desk = tmp_path / "desk"
    desk.mkdir()
    named = re.compile("|".join(ports))
    blocks = BLOCK.findall(named.sub(lambda found: ports[found[0]], page.read_text()))
    assert blocks
    for language, title, text in blocks:
        if language != "console":
            (desk / title).write_text(text)
            continue
        text = text.replace("quire serve --data", f"quire serve --address 127.0.0.1:{port} --data")
        if title not in terminals:
            terminals[title] = Terminal(desk, environment, tmp_path / f"{title}.txt")
        terminal = terminals[title]
        for step in re.split(r"^(?=\$ |\^C)", text, flags=re.M)[1:]:
            command, *lines = step.rstrip("\n").split("\n")
            if command == "^C":
                terminal.interrupt()
                continue
            terminal.run(command.removeprefix("$ "))
            terminal.expect(lines)
