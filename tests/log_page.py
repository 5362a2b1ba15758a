"""Writes docs/reference/log.md from the lines of the log: `python tests/log_page.py`.

`tests/test_log.py` checks that the page is up to date.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from quire._log_lines import LINES, PARTS

PAGE: Final = Path(__file__).parent.parent / "docs/reference/log.md"

_HEAD: Final = """\
# Lines of the log

This page is generated from `python/quire/_log_lines.py` by `python tests/log_page.py`.

Each line of the log of a server has an id. It never changes its meaning, so a monitor can search
for it. `quire errors ID` shows the row of a line. [operations.md](../operations.md#the-log) has
the targets and the form of the lines.
"""


def text() -> str:
    """Returns the page."""
    parts = [_HEAD]
    for number, name in PARTS.items():
        parts.append(f"\n## {name}\n\n| id | meaning | what to do |\n| --- | --- | --- |\n")
        parts += [
            f"| `{id}` | {line.meaning} | {line.advice} |\n"
            for id, line in sorted(LINES.items())
            if id.startswith(number)
        ]
    return "".join(parts)


if __name__ == "__main__":
    PAGE.write_text(text(), encoding="utf-8")
