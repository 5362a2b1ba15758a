"""CSV with a header (RFC 4180): each row as a JSON object whose values have the text of their cells."""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from quire._errors import ConfigError

#: Characters of a cell: no message has more bytes. An unclosed quote ends here at the latest, and
#: so does the memory that it takes.
CELL_SIZE_MAX: Final = 16 * 1024**2

#: A number of JSON, with blanks around it. Not `007`, `+49` and `.5`, which are codes as often as
#: numbers.
_NUMBER: Final = re.compile(r" *(-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?) *")
_QUOTED: Final = re.compile(r'"[^"]*(?:""[^"]*)*"')
#: Those that are looked for in a header of one column.
_DELIMITERS: Final = ";\t|,"

_text = json.JSONEncoder(ensure_ascii=False).encode


def delimiter_of(option: str | None) -> str | None:
    """Returns the delimiter of `--delimiter`. Raises `ConfigError` for anything but one character, or the word "tab"."""
    if option is None:
        return None
    delimiter = "\t" if option in ("tab", "\\t") else option
    if len(delimiter) != 1 or delimiter in '"\r\n':
        raise ConfigError(f'expected one character, or "tab", got {option!r}', key="--delimiter")
    return delimiter


def number_columns(lines: Iterable[bytes], *, file: str, delimiter: str | None = None) -> list[bool]:
    """Reads all rows, and returns for each column whether its cells are numbers.

    Raises `ConfigError` as `json_rows` does.
    """
    rows = _rows(lines, file, delimiter)
    header = next(rows, [])
    candidates = set(range(len(header)))
    seen: set[int] = set()
    for row in rows:
        for column in tuple(candidates):
            if cell := row[column]:
                seen.add(column)
                if _number(cell) is None:
                    candidates.discard(column)
    return [column in candidates and column in seen for column in range(len(header))]


def json_rows(
    lines: Iterable[bytes],
    *,
    file: str,
    delimiter: str | None = None,
    numbers: Sequence[bool] | None = None,
) -> Iterator[bytes]:
    """Yields the rows below the header.

    `numbers` is the result of `number_columns`: then an empty cell is NULL. With `None`, every cell
    is text.

    Raises `ConfigError`, with `file` and line, for lines that are not UTF-8 or not CSV. The same
    for a header that names a column twice or has another delimiter, and for a row with more or
    fewer cells than the header.
    """
    rows = _rows(lines, file, delimiter)
    header = next(rows, [])
    names = [f"{_text(name)}: " for name in header]
    for row in rows:
        values = map(_text, row) if numbers is None else map(_value, row, numbers, header)
        yield f"{{{', '.join(map(str.__add__, names, values))}}}".encode()


def _value(cell: str, is_number: bool, name: str) -> str:
    if not cell:
        return "null"
    if not is_number:
        return _text(cell)
    number = _number(cell)
    if number is None:
        raise ConfigError(
            f"column {name!r} had numbers only when the file was read first, and now has {cell!r}"
        )
    return number


def _number(cell: str) -> str | None:
    """The number in a cell as its text; `None` for other text. A number that no `double` holds is text, because readers would change it:
    they make an infinity of a large one, and 0 of a small one."""
    found = _NUMBER.fullmatch(cell)
    if found is None:
        return None
    number = float(found[1])
    is_zero = re.match("-?[0.]*(?:[eE]|$)", found[1]) is not None
    return found[1] if math.isfinite(number) and (number != 0 or is_zero) else None


def _rows(lines: Iterable[bytes], file: str, delimiter: str | None) -> Iterator[list[str]]:
    """The header, and then the rows below it. Blank lines are left out."""
    # One setting for the whole process: a command has no other reader.
    csv.field_size_limit(CELL_SIZE_MAX)
    pulled: list[str] = []
    separator = delimiter or ","
    reader = csv.reader(_texts(lines, file, pulled), delimiter=separator, strict=True)
    header: list[str] | None = None
    while True:
        # The lines of one row are kept until it is whole.
        begin = reader.line_num + 1
        pulled.clear()
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            offset, reason = _mistake("".join(pulled), separator) or (len(pulled) - 1, str(error))
            raise ConfigError(reason, file=file, line=begin + offset) from None
        if not row:
            continue
        if header is None:
            header = row
            if mistake := _mistake_of_header(row, delimiter):
                raise ConfigError(mistake, file=file, line=begin)
        elif len(row) != len(header):
            cells = f"{len(row)} {'cell' if len(row) == 1 else 'cells'}"
            reason = f"a row of {cells} below a header of {len(header)}"
            raise ConfigError(reason, file=file, line=begin)
        yield row


def _mistake_of_header(header: list[str], delimiter: str | None) -> str | None:
    if twice := [name for name in header if header.count(name) > 1]:
        return f"the header names column {twice[0]!r} twice"
    # A comma that is given says that there is one column.
    if len(header) == 1 and delimiter != ",":
        for other in _DELIMITERS:
            if other in header[0]:
                used = "comma" if delimiter is None else "tab" if delimiter == "\t" else f"'{delimiter}'"
                option = "tab" if other == "\t" else f"'{other}'"
                return f"the header has no {used}: give --delimiter {option}, or --delimiter , for one column"
    return None


def _mistake(record: str, delimiter: str) -> tuple[int, str] | None:
    """Why lines are not a row: after how many line ends, and what to do about it."""
    at = 0
    while at < len(record):
        end = at
        if record[at] == '"':
            quoted = _QUOTED.match(record, at)
            line = record.count("\n", 0, at)
            if quoted is None:
                size = f" within {CELL_SIZE_MAX:,} characters" if len(record) - at > CELL_SIZE_MAX else ""
                return (
                    line,
                    f"the quote that opens here is not closed{size}; write a quote inside a cell twice",
                )
            end = quoted.end()
            if len(quoted[0]) > CELL_SIZE_MAX:
                return line, f"a cell of more than {CELL_SIZE_MAX:,} characters begins here"
            if not record.startswith((delimiter, "\n", "\r\n"), end) and end < len(record):
                return line, (
                    "the quoted cell that opens here is followed by text; write a quote inside a cell twice"
                )
        rest = re.compile(f"[^{re.escape(delimiter)}\n]*").match(record, end)
        assert rest is not None
        if "\r" in rest[0].removesuffix("\r"):
            reason = "a carriage return inside a line; end lines with a line feed, or quote the cell"
            return record.count("\n", 0, end), reason
        if rest.end() - end > CELL_SIZE_MAX:
            return record.count("\n", 0, end), f"a cell of more than {CELL_SIZE_MAX:,} characters begins here"
        at = rest.end() + 1
    return None


def _texts(lines: Iterable[bytes], file: str, pulled: list[str]) -> Iterator[str]:
    """The lines as text, each of which is noted in `pulled`."""
    for number, line in enumerate(lines, 1):
        try:
            text = line.decode()
        except UnicodeDecodeError as error:
            raise ConfigError(f"not UTF-8: {error.reason}", file=file, line=number) from None
        pulled.append(text)
        yield text


__all__ = ["delimiter_of", "json_rows", "number_columns"]
