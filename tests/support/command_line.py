"""The command `quire` as a person runs it: in separate processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.waiting import PATIENCE

#: The command as a module, and as `pyproject.toml` installs it.
PROGRAMS = (("-m", "quire"), ("-c", "from quire_command import main; main()"))


def quire(*arguments: str, stdin: str = "", url: str | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **({} if url is None else {"QUIRE_URL": url})}
    command = [sys.executable, "-m", "quire", *arguments]
    return subprocess.run(
        command, input=stdin, capture_output=True, text=True, timeout=PATIENCE, env=environment
    )


@contextmanager
def started(*arguments: str, url: str) -> Iterator[subprocess.Popen[str]]:
    """The command while it runs."""
    environment = {**os.environ, "QUIRE_URL": url}
    command = [sys.executable, "-m", "quire", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def serving(directory: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = [
        sys.executable,
        "-m",
        "quire",
        "serve",
        "--address",
        "127.0.0.1:0",
        "--data-directory",
        str(directory),
    ]
    with subprocess.Popen(
        [*command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline()
        finally:
            process.kill()


def url_of(line: str) -> str:
    return line.removeprefix("listening on ").split(",")[0]
