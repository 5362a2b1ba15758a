"""CSV with a header: each row as a JSON object."""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Iterable, Iterator

from quire._errors import ConfigError

#: A cell that is taken as a number. One with leading zeros is a code, and `nan` is a word: JSON has no such number.
_NUMBER = re.compile(r"[+-]?(?!0[0-9])([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")


def json_rows(lines: Iterable[bytes], *, file: str) -> Iterator[bytes]:
    """Yields the rows below the header. Raises `ConfigError`, with `file` and line, for a header that names a column twice, and for a
    line that is not a row of the file."""
    reader = csv.DictReader(_texts(lines, file))
    try:
        header = list(reader.fieldnames or ())
        if twice := [name for name in header if header.count(name) > 1]:
            raise ConfigError(f"the header names column {twice[0]!r} twice", file=file, line=reader.line_num)
        for row in reader:
            if None in row:
                columns = len(header)
                reason = f"a row of {columns + len(row[None])} cells below a header of {columns}"
                raise ConfigError(reason, file=file, line=reader.line_num)
            yield json.dumps({key: _value(text) for key, text in row.items()}).encode()
    except csv.Error as error:
        raise ConfigError(str(error), file=file, line=reader.line_num + 1) from None


def _texts(lines: Iterable[bytes], file: str) -> Iterator[str]:
    for number, line in enumerate(lines, 1):
        try:
            # Spreadsheets begin a file with a mark of its encoding, which belongs to no column.
            yield line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise ConfigError(f"not UTF-8: {error.reason}", file=file, line=number) from None


def _value(text: str | None) -> str | int | float | None:
    """A cell as the number that it is, NULL when it is empty, else the text."""
    if not text:
        return None
    if _NUMBER.fullmatch(text.strip()) is None:
        return text
    try:
        return int(text)
    except ValueError:
        number = float(text)
    return number if math.isfinite(number) else text


__all__ = ["json_rows"]
