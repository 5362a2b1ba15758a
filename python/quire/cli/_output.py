"""Prints messages and tables, for people at a terminal, for pipes, and for machines."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

import quire
from quire import _quire
from quire._units import counted, number_text

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

#: No terminal is as wide.
_WIDTH_MAX = 10_000

#: How messages are printed: an object per line, the data alone, or columns for people.
Format = Literal["json", "raw", "table"]


def data_of(message: quire.Message | quire.Record) -> dict[str, Any]:
    """The field `data`: JSON where it is, else text. Other bytes are the field `base64`, as in a dead letter."""
    try:
        text = message.data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(message.data).decode()}
    try:
        return {"data": json.loads(text)}
    except ValueError:
        return {"data": text}


def headers_of(message: quire.Message | quire.Record) -> dict[str, Any]:
    """The headers for JSON: text as it is, bytes in base64 under a key that says so."""
    return {
        name: value if isinstance(value, str) else {"base64": base64.b64encode(value).decode()}
        for name, value in message.headers.items()
    }


def print_json(**fields: Any) -> None:
    """Prints one object as one line, and flushes: a reader of a pipe gets it at once."""
    print(json.dumps(fields, default=_plain), flush=True)


def print_raw(data: bytes) -> None:
    """The data and nothing else."""
    sys.stdout.buffer.write(data + b"\n")
    sys.stdout.buffer.flush()


def print_published(count: int, size: int, seconds: float, unrecorded: Sequence[str]) -> None:
    """Prints how much was published. Messages on a topic that the server does not record are accepted, not persisted."""
    done = "accepted" if unrecorded else "persisted"
    each = count / seconds if seconds else 0.0
    taken = f"{counted(count, 'message')}, {counted(size, 'byte')}"
    print(f"{taken} {done} in {seconds:.2f} s ({each:,.0f} messages/s)")
    if unrecorded:
        print(f"not persisted, because the server does not record it: {', '.join(unrecorded)}")


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table on a terminal, on its side where it only fits so; in a pipe a line of names and a line per row, separated by tabs."""
    if not sys.stdout.isatty():
        for row in (columns, *rows):
            print(*("" if cell is None else _plain(cell) for cell in row), sep="\t")
        return
    from rich.console import Console

    # Names and data are printed as they are: rich would read "[red]" as markup, and ":smile:" as a picture.
    console = Console(markup=False, emoji=False)
    cells = [["" if cell is None else _pretty(cell) for cell in row] for row in rows]
    table = _table(columns, cells)
    if cells and _width(console, table) > console.width:
        names, *rest = zip(columns, *cells, strict=True)
        sideways = _table(names, rest)
        if _width(console, sideways) <= console.width:
            table = sideways
    console.print(table)


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def _width(console: Console, table: Table) -> int:
    """Of the table where there is room: what is measured is never wider than the room."""
    return console.measure(table, options=console.options.update_width(_WIDTH_MAX)).maximum


def check_count(count: int | None) -> None:
    """Raises `ConfigError` for a negative `--count`."""
    if count is not None and count < 0:
        raise quire.ConfigError(f"{count} is below 0", key="--count")


def show_filter_mistake(text: str | None, error: quire.BadFilterError) -> None:
    """The filter with a caret below the place that is wrong."""
    if text is not None and error.column:
        print(_quire.caret(text, error.column), file=sys.stderr)


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value.isoformat() if isinstance(value, datetime) else str(value)


def _pretty(value: object) -> str:
    if isinstance(value, bool):
        return _plain(value)
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return number_text(value)
    return f"{value:%Y-%m-%d %H:%M:%S}" if isinstance(value, datetime) else str(value)


__all__ = [
    "Format",
    "check_count",
    "data_of",
    "headers_of",
    "print_json",
    "print_published",
    "print_raw",
    "print_table",
    "show_filter_mistake",
]
