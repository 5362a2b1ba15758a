"""Writes the tables of docs/actions.md: `python tests/actions_page.py`.

`tests/test_action_check.py` checks that the page is up to date.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from quire.actions._table import ALWAYS, STEPS, TRIGGERS, VARIABLES, Entry, Option

PAGE: Final = Path(__file__).parent.parent / "docs/actions.md"

_KINDS: Final = {
    "text": "text",
    "data": "text",
    "command": "list of texts",
    "topic": "topic",
    "topics": "topic or pattern",
    "names": "name or pattern",
    "filter": "filter",
    "duration": "duration",
    "size": "size",
    "count": "number",
    "flag": "`true` or `false`",
    "room": 'size or share such as `"5%"`',
    "at": "time",
    "word": "word",
    "words": "list of words",
    "variable": "name of a variable",
    "variables": "list of names",
    "values": "table of texts",
}


def _option(entry: Entry, option: Option) -> str:
    about = [_KINDS[option.kind]]
    if option.choices:
        about = [", ".join(f"`{word}`" for word in option.choices)]
    if option.required:
        about.append("required")
    elif option.default is not None:
        shown = str(option.default).lower() if isinstance(option.default, bool) else option.default
        about.append(f"default `{shown}`")
    if option.name == entry.short:
        about.append("or without a table")
    return f"| | `{option.name}` | {option.text} ({'; '.join(about)}) |"


def _table(entries: Sequence[Entry]) -> str:
    rows = ["| name | option | meaning |", "| --- | --- | --- |"]
    for entry in entries:
        text = entry.text[0].upper() + entry.text[1:] if entry.text[0].islower() else entry.text
        variables = (
            f". Variables: {' '.join(f'`{name}`' for name in entry.variables)}" if entry.variables else ""
        )
        rows.append(f"| `{entry.name}` | | {text}{variables} |")
        rows += [_option(entry, option) for option in entry.options]
    return "\n".join(rows) + "\n"


def _variables(variables: Mapping[str, str]) -> str:
    rows = ["| variable | value |", "| --- | --- |"]
    rows += [f"| `{name}` | {text} |" for name, text in variables.items()]
    return "\n".join(rows) + "\n"


_PARTS: Final[dict[str, Callable[[], str]]] = {
    "triggers": lambda: _table(TRIGGERS),
    "steps": lambda: _table(STEPS),
    "always": lambda: _variables(ALWAYS),
    "variables": lambda: _variables(VARIABLES),
}


def page() -> str:
    """The page with the tables as they are in the code."""
    text = PAGE.read_text(encoding="utf-8")
    for name, made in _PARTS.items():
        begin = f"<!-- {name}: generated from python/quire/actions/_table.py by tests/actions_page.py -->\n"
        end = f"<!-- end of {name} -->\n"
        before, _, rest = text.partition(begin)
        text = before + begin + "\n" + made() + "\n" + end + rest.partition(end)[2]
    return text


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
