"""Writes the tables of docs/internals/benchmarks.md from the result files: `python benches/page.py`.

A table is between `<!-- figures: NAME -->` and `<!-- end -->`, and shows
`benches/results/NAME.json`. `tests/test_benches.py` checks that the page is up to date.
"""

from __future__ import annotations

import json
import re
import textwrap
from pathlib import Path
from typing import Any

import saved

PAGE = Path(__file__).parent.parent / "docs/internals/benchmarks.md"
_BLOCK = re.compile(r"(<!-- figures: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)
_PROGRAM = re.compile(r"(python (?:-m )?\S+|cargo test)(?: (.*))?")


def text(page: str) -> str:
    """Returns the page with its tables."""
    return _BLOCK.sub(lambda block: f"{block[1]}{table(block[2])}{block[3]}", page)


def names(page: str) -> list[str]:
    """Returns the result files that the page shows."""
    return [block[2] for block in _BLOCK.finditer(page)]


def table(name: str) -> str:
    """Returns the table of a result file, and below it the commands and machines of its runs."""
    runs = json.loads((saved.RESULTS / f"{name}.json").read_text())["runs"]
    columns = list(dict.fromkeys(column for run in runs for row in run["rows"].values() for column in row))
    lines = [_line(["measurement", *map(saved.words, columns)]), _line(["---"] * (len(columns) + 1))]
    for run in runs:
        lines += [
            _line([saved.words(label), *(_cell(row.get(column)) for column in columns)])
            for label, row in run["rows"].items()
        ]
    return "\n".join(["", *lines, "", *_sources(name, runs), "", ""])


def _sources(name: str, runs: list[dict[str, Any]]) -> list[str]:
    """Names the file, and each machine and version with the arguments of its commands."""
    commands: dict[str, list[str]] = {}
    for run in runs:
        version = "" if run["version"] is None else f"; version {run['version']}"
        program, arguments = _PROGRAM.fullmatch(run["command"]).groups()  # type: ignore[union-attr]
        place = f"{program} on {run['machine']}{version}"
        commands.setdefault(place, []).extend([f"`{arguments}`"] if arguments else [])
    source = ". ".join(
        f"`{place.replace(' on ', '` on ', 1)}{': ' * bool(found)}{', '.join(found)}"
        for place, found in commands.items()
    )
    return textwrap.wrap(f"`{name}.json`: {source}.", 100, break_long_words=False, break_on_hyphens=False)


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _cell(value: Any) -> str:
    return "" if value is None else f"{value:,}" if isinstance(value, (int, float)) else str(value)


if __name__ == "__main__":
    PAGE.write_text(text(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
