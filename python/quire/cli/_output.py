"""Prints messages and tables, for people at a terminal, for pipes, and for machines."""

from __future__ import annotations

import base64
import json
import re
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import quire
from quire import _quire
from quire._message import datetime_from_ns
from quire._units import counted, number_text

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

#: No terminal is as wide.
_WIDTH_MAX = 10_000

#: Seconds that an interrupted command waits for its last publishes.
_STOP_TIMEOUT = 5.0

#: Characters with an effect on a terminal: controls, line separators, and those that change the
#: direction of text.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
#: Those that JSON allows inside a text.
_INSIDE_JSON_TEXT = re.compile("[\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_WITHOUT_LINE_BREAKS = str.maketrans("", "", "\r\n")


def headers_of(message: quire.Message | quire.Record) -> dict[str, Any]:
    """The headers for JSON: text as it is, bytes in base64 under a key that says so."""
    return {
        name: value if isinstance(value, str) else {"base64": base64.b64encode(value).decode()}
        for name, value in message.headers.items()
    }


def print_json(data: bytes | None = None, /, **fields: Any) -> None:
    """Prints one object as one line, and flushes: a reader of a pipe gets it at once. The members of `data` come last."""
    line = json.dumps(fields, default=_plain)
    if data is not None:
        line = f"{line[:-1]}, {_members_of(data)}}}"
    if sys.stdout.isatty():
        line = _INSIDE_JSON_TEXT.sub(lambda found: f"\\u{ord(found[0]):04x}", line)
    # JSON is UTF-8. The encoding of the terminal does not matter.
    print_raw(line.encode())


def _members_of(data: bytes) -> str:
    """The data of a message as members of an object: the text that was published, so that no number and no name changes.

    docs/how-to/files.md has the forms.
    """
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return f'"base64": "{base64.b64encode(data).decode()}"'
    if not _quire.is_json(text):
        return f'"data": {json.dumps(text)}, "is_json": false'
    # JSON has line breaks between values only. Inside a text they are escapes.
    return f'"data": {text.translate(_WITHOUT_LINE_BREAKS)}'


def print_raw(data: bytes) -> None:
    """The data and nothing else."""
    sys.stdout.buffer.write(data + b"\n")
    sys.stdout.buffer.flush()


def print_row(cells: Sequence[str], widths: Sequence[int]) -> None:
    """Prints one row as one line: columns of these widths on a terminal, separated by tabs in a pipe. The last column has no width."""
    shown = [visible(cell) for cell in cells]
    if sys.stdout.isatty():
        *first, last = shown
        padded = (cell.ljust(width) for cell, width in zip(first, widths, strict=True))
        print(*padded, last, sep="  ", flush=True)
    else:
        print(*shown, sep="\t", flush=True)


def say(text: str) -> None:
    """Prints a result for people."""
    print(visible(text))


def note(text: str) -> None:
    """Prints a note for people to the standard error."""
    print(f"quire: {visible(text)}", file=sys.stderr)


def visible(text: str) -> str:
    """The text with its control characters as escapes such as `\\n` and `\\x1b`.

    Data could otherwise end the row of a table, or give commands to the terminal.
    """
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def time_text(timestamp_ns: int, separator: str = "T") -> str:
    """A time with its nanoseconds, so that a range that ends there has the message of this time. For tables: without its zone."""
    zone = "+00:00" if separator == "T" else ""
    return f"{datetime_from_ns(timestamp_ns):%Y-%m-%d{separator}%H:%M:%S}.{timestamp_ns % 10**9:09}{zone}"


def print_published(count: int, size: int, seconds: float, unrecorded: Sequence[str]) -> None:
    """Prints how much was published. Messages on a topic that the server does not record are accepted, not persisted."""
    done = "accepted" if unrecorded else "persisted"
    each = count / seconds if seconds else 0.0
    taken = f"{counted(count, 'message')}, {counted(size, 'byte')}"
    print(f"{taken} {done} in {seconds:.2f} s ({each:,.0f} messages/s)")
    if unrecorded:
        say(f"not persisted, because the server does not record it: {', '.join(unrecorded)}")


def stopped(client: quire.Client, place: str, count: int) -> None:
    """Waits a moment for the last publishes of a command that ends early, and says how far it came."""
    try:
        client.flush(_STOP_TIMEOUT)
        done = f"{counted(count, 'message is', 'messages are')} published"
    except (quire.QuireError, TimeoutError):
        done = f"of {counted(count, 'message')}, the last ones may not be published"
    note(f"stopped {place}; {done}")


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table on a terminal, on its side where it only fits so; in a pipe a line of names and a line per row, separated by tabs."""
    if not sys.stdout.isatty():
        for row in (columns, *rows):
            print(*("" if cell is None else visible(_plain(cell)) for cell in row), sep="\t")
        return
    from rich.console import Console

    # Names and data are printed as they are: rich would read "[red]" as markup, and ":smile:" as a
    # picture.
    console = Console(markup=False, emoji=False)
    cells = [["" if cell is None else visible(_pretty(cell)) for cell in row] for row in rows]
    table = _table(columns, cells, console.width)
    if cells and _width(console, table) > console.width:
        names, *rest = zip(columns, *cells, strict=True)
        sideways = _table(names, rest, console.width)
        if _width(console, sideways) <= console.width:
            table = sideways
    console.print(table)


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    # A person copies names of the first column: other columns are broken into lines before it. A
    # time can be broken at its blank.
    names = [columns[0], *(row[0] for row in rows)]
    is_whole = max(map(len, names)) <= width // 2 and not any(" " in name for name in names[1:])
    for number, column in enumerate(columns):
        table.add_column(column, overflow="fold", no_wrap=number == 0 and is_whole)
    for row in rows:
        table.add_row(*row)
    return table


def _width(console: Console, table: Table) -> int:
    """The width of the table on a wide console. On the real one, a measured width would not exceed it."""
    return console.measure(table, options=console.options.update_width(_WIDTH_MAX)).maximum


def check_count(count: int | None) -> None:
    """Raises `ConfigError` for a negative `--count`."""
    if count is not None and count < 0:
        raise quire.ConfigError(f"{count} is below 0", key="--count")


def show_filter_mistake(text: str | None, error: quire.BadFilterError) -> None:
    """The filter with a caret below the place that is wrong."""
    if text is not None and error.column:
        shown, _, place = _quire.caret(text, error.column).partition("\n")
        # An escape is longer than its character.
        before, after = visible(shown[: len(place) - 1]), visible(shown[len(place) - 1 :])
        print(f"{before}{after}\n{' ' * len(before)}^", file=sys.stderr)


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
    "check_count",
    "headers_of",
    "note",
    "print_json",
    "print_published",
    "print_raw",
    "print_row",
    "print_table",
    "say",
    "show_filter_mistake",
    "stopped",
    "time_text",
    "visible",
]
