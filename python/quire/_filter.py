"""Content filters: `quire.Filter`, filters with parameters, and `quire.quote`."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from typing import Any, Literal
from uuid import UUID

from quire import _quire
from quire._errors import ConfigError
from quire._message import plain, to_bytes
from quire._text import check_unicode
from quire._units import counted

#: The formats that messages can have (docs/filters.md section 3).
MessageType = Literal["json", "binary", "nvfix", "fix", "msgpack", "bson", "xml"]

_INTEGERS = range(-(2**63), 2**64)
#: A text in quotes, a field in brackets, or the place of a parameter.
_PARTS = re.compile(r"""'[^']*'|"[^"]*"|\[/[^]]*\]|\?""")


class Filter:
    """Parses a content filter (docs/filters.md). Threads can share it.

        quire.Filter(("/symbol = ? AND /qty > ?", "IBM", 50)).matches({"symbol": "IBM", "qty": 100})  # True

    `filter` is text, or text with parameters. `allow_backtracking` allows patterns with
    back-references and look-around, under a limit of steps. Raises `BadFilterError` with the column
    of the mistake.
    """

    def __init__(self, filter: FilterArgument, *, allow_backtracking: bool = False) -> None:
        self._text = filter_to_core(filter)
        self._core = _quire.Filter(self._text, allow_backtracking)

    def matches(
        self,
        data: Any,
        message_type: MessageType = "json",
        *,
        headers: Mapping[str, str | bytes] | None = None,
    ) -> bool:
        """Returns whether a message with this data and these headers matches.

        `data` is bytes, text, or anything that can become JSON. Data that is not of its type
        matches no filter that reads fields.
        """
        return self._core.matches(to_bytes(data), message_type, headers)

    @property
    def fields(self) -> list[str]:
        """The fields that the filter reads, each once, as they are written."""
        return self._core.fields

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"Filter({self._text!r})"


#: A filter as text, a `Filter`, or text with a `?` for each parameter and the parameters:
#: `("/symbol = ?", symbol)`.
FilterArgument = str | Filter | tuple[Any, ...]


def quote(value: object) -> str:
    """Returns the value as text for a filter. No value can change the meaning of the filter.

    Accepts texts, numbers, booleans, and lists of them for `IN`. A `datetime`, `date`, `time`,
    `Decimal`, `UUID` and `Enum` is written as `publish` writes it in JSON. Raises `ConfigError` for
    anything else, including `None` and the empty text, which is NULL. No value is equal to NULL, so
    use `/field IS NULL`.
    """
    match value:
        case Enum():
            return quote(value.value)
        case bool():
            return "TRUE" if value else "FALSE"
        case int() if value in _INTEGERS:
            # The parentheses keep the sign from joining the text before it.
            return str(value) if value >= 0 else f"({value})"
        case float() if math.isfinite(value):
            return repr(value) if math.copysign(1, value) > 0 else f"({value!r})"
        case str() if value:
            return "'{}'".format(value.replace("'", "''"))
        case datetime() | date() | time() | Decimal() | UUID():
            return quote(plain(value))
        case list() | tuple() | set() | frozenset() if value:
            return f"({', '.join(quote(each) for each in value)})"
        case "":
            reason = "an empty text is NULL, to which nothing is equal: write /field IS NULL, or /field IS NOT NULL"
        case None:
            reason = "None cannot be compared: write /field IS NULL, or /field IS NOT NULL"
        case _:
            reason = f"{value!r} cannot be written in a filter: expected a text, a finite number, a boolean, a time, or a list of them"
    raise ConfigError(reason, key="filter")


def filter_to_core(filter: FilterArgument) -> str:
    """The text of a filter, with its parameters written into it."""
    match filter:
        case str() as text:
            pass
        case Filter():
            return str(filter)
        case (str() as template, *parameters):
            text = _filled(template, parameters)
        case _:
            raise _not_a_filter(filter)
    check_unicode(text, "filter")
    return text


def _not_a_filter(filter: object) -> ConfigError:
    return ConfigError(
        f"expected text, a quire.Filter or a tuple (text, parameter, ...), got `{type(filter).__name__}`",
        key="filter",
    )


def optional_filter_to_core(filter: FilterArgument | None) -> str | None:
    """The same, where a filter may be left out."""
    return None if filter is None else filter_to_core(filter)


def _filled(text: str, parameters: list[Any]) -> str:
    count = sum(part == "?" for part in _PARTS.findall(text))
    if count != len(parameters):
        found = f"{counted(count, 'question mark')} for {counted(len(parameters), 'parameter')}"
        raise ConfigError(f"{text!r} has {found}", key="filter")
    left = iter(parameters)
    return _PARTS.sub(lambda part: quote(next(left)) if part[0] == "?" else part[0], text)
