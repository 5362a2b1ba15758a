"""Runs the benches of the parts of quire, and saves their figures like the other benches.

    python benches/parts.py instructions --save instructions
    python benches/parts.py broker|filter|frame|journal|merge|queue|queue_broker|table|views [--save NAME]
    python benches/parts.py python [--save NAME]

`instructions` is `make instructions`, `python` is `make bench`, and the others are
`cargo bench -p quire-benches --bench NAME`. The time of a bench is Criterion's median, and the rate
is the messages of a call divided by it. Ratios and shares are those that the bench prints.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import saved

ROOT = Path(__file__).parent.parent
BENCHES = ("broker", "filter", "frame", "journal", "merge", "queue", "queue_broker", "table", "views")
_INSTRUCTIONS = re.compile(r"^(.+): (\d+) instructions a message, at most (\d+)", re.MULTILINE)
_PRINTED = re.compile(r"^([a-z][^:]*): ([\d.]+)( %)?", re.MULTILINE)

Rows = dict[str, dict[str, Any]]


def main() -> None:
    kinds: dict[str, Callable[[], Rows]] = {"instructions": instructions, "python": python}
    kinds |= {name: lambda name=name: criterion(name) for name in BENCHES}  # type: ignore[misc]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("bench", choices=kinds)
    saved.add_option(parser)
    options = parser.parse_args()
    rows = kinds[options.bench]()
    if not rows:
        raise SystemExit(f"{options.bench}: no figures, see its output")
    saved.save(options.save, rows)


def instructions() -> Rows:
    output = _run("cargo", "test", "--package", "quire-benches", "--test", "instructions", "--locked")
    return {
        name: {"instructions per message": int(counted), "limit": int(limit)}
        for name, counted, limit in _INSTRUCTIONS.findall(output)
    }


def criterion(bench: str) -> Rows:
    """The output of the bench, and the files that Criterion has written since it began."""
    begun = time.time()
    output = _run("cargo", "bench", "--package", "quire-benches", "--bench", bench)
    rows: Rows = {
        name: {"ratio": float(figure) / 100 if percent else float(figure)}
        for name, figure, percent in _PRINTED.findall(output)
    }
    for path in sorted((ROOT / "target/criterion").rglob("new/estimates.json")):
        if path.stat().st_mtime < begun:
            continue
        about = json.loads((path.parent / "benchmark.json").read_text())
        took_ns = json.loads(path.read_text())["median"]["point_estimate"]
        row = {"time_ns": float(f"{took_ns:.3g}")}
        if elements := (about["throughput"] or {}).get("Elements"):
            row["messages_per_s"] = float(f"{elements / took_ns * 1e9:.3g}")
        rows[about["title"]] = row
    return rows


def python() -> Rows:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "figures.json"
        files = map(str, sorted(Path(__file__).parent.glob("test_bench_*.py")))
        short = ["--benchmark-max-time", "0.3", "--benchmark-min-rounds", "3"]
        _run(
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:xdist",
            *short,
            "--benchmark-json",
            str(path),
            *files,
        )
        found = json.loads(path.read_text())["benchmarks"]
    return {each["name"]: {"time_us": float(f"{each['stats']['min'] * 1e6:.3g}")} for each in found}


def _run(*command: str) -> str:
    """Returns what the command prints, and prints it. A command that fails ends this program."""
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        print(line, end="", flush=True)
        lines.append(line)
    if process.wait():
        raise SystemExit(process.returncode)
    return "".join(lines)


if __name__ == "__main__":
    main()
