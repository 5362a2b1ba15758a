"""Computes queries of Nexmark with quire and other stream engines in turn. Prints medians.

    python -m benches.streams [--events 300000] [--rounds 3] [--query NAME]... [--python PATH]

From the project's root, after `make setup`. `--python` is the interpreter of an environment with
`pathway` and `perspective-python`; an engine that it lacks is left out and named. Each query of each
engine is a process of its own, and keeps everything in memory. The answers of all engines are
compared. Not every engine has every query.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "benches"))
import saved  # noqa: E402

#: In the order of the table, with the module that each needs.
ENGINES = {"quire": "quire", "Pathway": "pathway", "Perspective": "perspective"}
QUERIES = {
    "q1": tuple(ENGINES),
    "q2": tuple(ENGINES),
    "q3": ("quire", "Pathway"),
    "q4": ("quire", "Pathway"),
    "q17": tuple(ENGINES),
    "q18": ("quire", "Pathway"),
    "q20": ("quire", "Pathway"),
}
TIMEOUT = 900


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benches.streams",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--events", type=int, default=300_000, help="persons, auctions and bids")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--query", action="append", choices=list(QUERIES), help="only this one; may be repeated"
    )
    parser.add_argument("--python", default=sys.executable, help="the interpreter of the other engines")
    saved.add_option(parser)
    options = parser.parse_args()
    pythons = {name: sys.executable if name == "quire" else options.python for name in ENGINES}
    installed = [name for name, python in pythons.items() if _has(python, ENGINES[name])]
    rates: defaultdict[str, defaultdict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    with tempfile.TemporaryDirectory(prefix="quire-streams-") as directory:
        events = Path(directory) / "events.jsonl"
        _write_events(events, options.events)
        for _ in range(options.rounds):
            # All engines in each round: other work on the machine meets all of them.
            for query in options.query or QUERIES:
                answers = {}
                for name in QUERIES[query]:
                    if name in installed:
                        figures, answers[name] = _run(pythons[name], ENGINES[name], query, events)
                        rates[query][name].append(figures["events"] / figures["processor_seconds"])
                        print(f"{query} {name}: {json.dumps(figures)}", file=sys.stderr, flush=True)
                for name, rows in answers.items():
                    _compare(rows, answers["quire"], f"{query} by {name}")
    rows = {query: _row(figures) for query, figures in rates.items()}
    print(json.dumps(rows, indent=2))
    saved.save(options.save, rows)


def _row(figures: dict[str, list[float]]) -> dict[str, Any]:
    medians = {name: statistics.median(values) for name, values in figures.items()}
    best = max((rate for name, rate in medians.items() if name != "quire"), default=None)
    row: dict[str, Any] = {name: round(rate) for name, rate in medians.items()}
    return row if best is None else row | {"quire to the best": round(medians["quire"] / best, 2)}


def _has(python: str, module: str) -> bool:
    found = subprocess.run([python, "-c", f"import {module}"], capture_output=True, check=False)
    if found.returncode:
        print(f"{module}: left out, {python} does not have it", file=sys.stderr)
    return not found.returncode


def _write_events(path: Path, count: int) -> None:
    command = ["cargo", "run", "--quiet", "--release", "--locked", "--package", "quire-benches"]
    with path.open("wb") as file:
        subprocess.run(
            [*command, "--example", "nexmark", "--", str(count)], stdout=file, cwd=ROOT, check=True
        )


def _run(python: str, module: str, query: str, events: Path) -> tuple[dict[str, float], list[dict[str, Any]]]:
    program = Path(__file__).parent / f"with_{module}.py"
    command = [python, "-W", "ignore", str(program), query, str(events)]
    ended = subprocess.run(command, capture_output=True, check=False, timeout=TIMEOUT)
    if ended.returncode:
        raise RuntimeError(f"{module} failed with {query}:\n{ended.stderr.decode()}")
    lines = ended.stdout.splitlines()
    return json.loads(lines[0]), [json.loads(line) for line in lines[1:]]


def _compare(rows: list[dict[str, Any]], wanted: list[dict[str, Any]], name: str) -> None:
    """Raises `ValueError` when the answers differ. Sums of floats have another order in each engine."""
    if len(rows) != len(wanted):
        raise ValueError(f"{name} has {len(rows)} rows and not {len(wanted)}")
    for row, other in zip(*(sorted(side, key=_identity) for side in (rows, wanted)), strict=True):
        for field in {*row, *other}:
            one, two = row.get(field), other.get(field)
            if one != two and not (isinstance(one, float) and math.isclose(one, two, rel_tol=1e-9)):
                raise ValueError(f"{name} has {row} and not {other}")


def _identity(row: dict[str, Any]) -> str:
    return json.dumps([row.get(name) for name in ("id", "auction", "day", "category")])


if __name__ == "__main__":
    main()
