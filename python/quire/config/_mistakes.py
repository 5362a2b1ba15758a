"""Describes mistakes in a configuration: the expected value, and the value in the file."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from datetime import date, time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, get_args

from quire._errors import ConfigError
from quire.config._locate import keys_of, line_of, path_text

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError
    from pydantic_core import ErrorDetails

#: Characters of a text that an error repeats.
_SHOWN_MAX: Final = 64

#: The expected value, by the kind of the mistake. Names in braces come from the context of the mistake.
_EXPECTED: Final = {
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "dict_type": "a table",
    "finite_number": "a finite number",
    "greater_than_equal": "a whole number of at least {ge}",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "int_parsing_size": "a whole number",
    "int_type": "a whole number",
    "less_than_equal": "a whole number of at most {le}",
    "literal_error": "{expected}",
    "model_attributes_type": "a table",
    "model_type": "a table",
    "path_type": "a path, as text",
    "string_sub_type": "text",
    "string_too_short": "text that is not empty",
    "string_type": "text",
    "string_unicode": "text",
    "tuple_type": "a list",
}
_ENTRIES: Final = {"too_short": "at least {min_length}", "too_long": "at most {max_length}"}


def refused(
    error: ValidationError, model: type[BaseModel], file: Path | None = None, text: str = ""
) -> ConfigError:
    """Returns every mistake that the model found, in the order of the text when there is one."""
    found = error.errors(include_url=False)
    # A list is reported as too short when an entry was refused. This is not a separate mistake.
    several = [mistake for mistake in found if mistake["type"] != "too_short"] or found
    return together(
        ConfigError(
            _reason(mistake, model),
            key=path_text(mistake["loc"]) or "configuration",
            file=file,
            line=line_of(text, mistake["loc"]),
        )
        for mistake in several
    )


def together(mistakes: Iterator[ConfigError] | list[ConfigError]) -> ConfigError:
    """Returns one error for all of them, in the order of their lines."""
    first, *others = sorted(mistakes, key=lambda mistake: mistake.line or 0)
    return ConfigError(first._reason, key=first.key, file=first.file, line=first.line, others=others)


def got(value: object) -> str:
    """A value as an error shows it: as TOML writes it, or what it is."""
    match value:
        case str():
            text = value if len(value) <= _SHOWN_MAX else f"{value[:_SHOWN_MAX]}…"
            return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
        case bool():
            return str(value).lower()
        case int() | float():
            return _number_text(value)
        case Mapping():
            return "a table"
        case list() | tuple():
            return "a list"
        case date() | time():
            return value.isoformat()
        case None:
            return "nothing"
    return f"`{type(value).__name__}`"


def expected(what: str, value: object) -> ValueError:
    """The error for a validator to raise."""
    return ValueError(f"expected {what}, got {got(value)}")


def _reason(mistake: ErrorDetails, model: type[BaseModel]) -> str:
    kind, context = mistake["type"], mistake.get("ctx", {})
    if kind == "missing":
        return "this key is required"
    if kind == "extra_forbidden":
        *tables, key = keys_of(mistake["loc"])
        close = difflib.get_close_matches(key, _keys(model, tables), n=1)
        return f'unknown key; did you mean "{close[0]}"?' if close else "unknown key"
    if kind == "value_error":
        return mistake["msg"].removeprefix("Value error, ")
    if kind in _ENTRIES:
        count, least_or_most = context["actual_length"], _ENTRIES[kind].format(**context)
        return f"expected a list of {least_or_most}, got {count}"
    if kind in _EXPECTED:
        # Literals come as 'fsync' or 'os'.
        what = _EXPECTED[kind].format(**context).replace("'", '"')
        return f"expected {what}, got {got(mistake['input'])}"
    return f"this value is not allowed: {got(mistake['input'])}"


def _keys(model: type[BaseModel], tables: list[str]) -> list[str]:
    """The keys of the table that the path names."""
    for table in tables:
        field = model.model_fields.get(table)
        inner = None if field is None else next(_models(field.annotation), None)
        if inner is None:
            return []
        model = inner
    return [field.alias or name for name, field in model.model_fields.items()]


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if hasattr(annotation, "model_fields"):
        yield annotation
    for part in get_args(annotation):
        yield from _models(part)


def _number_text(value: float) -> str:
    text = (
        repr(value)
        if isinstance(value, float) or abs(value) < 10**_SHOWN_MAX
        else f"a number of {value.bit_length()} bits"
    )
    return re.sub(r"\.0$", "", text)
