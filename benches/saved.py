"""Result files of benches: `benches/results/NAME.json`, which `page.py` shows on the page of benchmarks.

A file has a list of runs. A run is one command, and replaces the earlier run of the same command.
It has

    command    the command, to be called in the project's root
    machine    the processors and the system
    version    the version and the commit of quire. `null`: the figures were copied from a page that had no result files
    rows       the figures of each row of the table by column: numbers, or short texts such as "33 to 40"
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
_ROOT = Path(__file__).parent.parent
_UNITS = {"_us": ", µs", "_ms": ", ms", "_ns": ", ns", "_mb": ", MB", "_gb": ", GB", "_seconds": ", s"}

#: Options that do not change the figures.
_LEFT_OUT = ("--save", "--directory", "--python")

Rows = Mapping[str, Mapping[str, Any]]


def add_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--save", metavar="NAME", help="also write the figures to benches/results/NAME.json")


def save(name: str | None, rows: Rows) -> None:
    """Writes the figures of this program to the result file. Without a name, it does nothing."""
    if name is None:
        return
    command = command_of(sys.argv)
    path = RESULTS / f"{name}.json"
    runs = json.loads(path.read_text())["runs"] if path.exists() else []
    run = {"command": command, "machine": machine(), "version": version(), "rows": rows}
    places = [number for number, earlier in enumerate(runs) if earlier["command"] == command]
    if places:
        runs[places[0]] = run
    else:
        runs.append(run)
    path.write_text(json.dumps({"runs": runs}, indent=1, ensure_ascii=False) + "\n")


def rows_of(row: str, figures: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Makes rows from the object that a bench prints: one, or one for each object in it. Lists are
    single rounds."""
    inner = {f"{row}, {name}": value for name, value in figures.items() if isinstance(value, dict)}
    return inner or {row: {name: value for name, value in figures.items() if not isinstance(value, list)}}


def listed(prefix: str, figures: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Makes a row from each figure of the object that a bench prints, for tables of different figures."""
    return {
        f"`{prefix}`, {words(name)}": {"figure": value}
        for name, value in figures.items()
        if not isinstance(value, (dict, list))
    }


def words(name: str) -> str:
    """Writes names such as `p50_us` and `messages_per_s` as words. Other texts stay as they are."""
    if not re.fullmatch(r"\w*_\w*", name):
        return name
    for ending, unit in _UNITS.items():
        if name.endswith(ending):
            name = name.removesuffix(ending) + unit
    return name.replace("_per_s", "/s").replace("_", " ")


def command_of(arguments: list[str]) -> str:
    """Returns the command without the options that do not change the figures."""
    program = Path(arguments[0]).resolve().relative_to(_ROOT)
    module = " ".join(["-m", *program.parent.parts]).replace(" benches ", " benches.")
    words = ["python", *(module.split() if program.name == "__main__.py" else [str(program)])]
    left = iter(arguments[1:])
    for word in left:
        if word in _LEFT_OUT:
            next(left)
        elif word.partition("=")[0] not in _LEFT_OUT:
            words.append(word)
    return shlex.join(words)


def machine() -> str:
    names = [
        line.split(":", 1)[1].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    processors = len(os.sched_getaffinity(0))
    return f"{processors} processors, {names[0] if names else platform.machine()}, {platform.system()}"


def version() -> str:
    """Returns the version with the commit. A `+` means that the tree had changes."""
    import quire

    commit = _git("rev-parse", "--short=12", "HEAD")
    changes = _git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!benches/results")
    return f"{quire.__version__}, {commit}{'+' if changes else ''}"


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(_ROOT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
