"""Describes mistakes in a configuration: the expected value, and the value in the file."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date, time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, get_args

from quire._errors import ConfigError
from quire._text import nearest
from quire.config._locate import keys_of, line_of, path_text, place_of

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError
    from pydantic_core import ErrorDetails

#: Characters of a text that an error repeats.
_SHOWN_MAX: Final = 64

#: The expected value, by the kind of the mistake. Names in braces come from the context of the
#: mistake.
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
    error: ValidationError,
    model: type[BaseModel],
    file: Path | None = None,
    text: str = "",
    place: Place = (),
) -> ConfigError:
    """Returns every mistake that the model found, in the order of the text when there is one.
    `place`: of the model in the text."""
    return together(
        ConfigError(
            _reason(mistake, model),
            key=path_text((*place, *mistake["loc"])) or "configuration",
            file=file,
            line=line_of(text, (*place, *mistake["loc"])),
        )
        for mistake in _separate(error)
    )


def _separate(error: ValidationError) -> list[ErrorDetails]:
    found = error.errors(include_url=False)
    # A list is reported as too short when an entry was refused. This is not a separate mistake.
    return [mistake for mistake in found if mistake["type"] != "too_short"] or found


#: Keys whose mistakes in the core do not depend on other keys.
_STANDALONE: Final = (("filter",), ("priority",), ("barrier_expression",))

#: Tables whose topics read the log, and tables whose topics read those of others.
_READS_LOG: Final = (("queue",), ("sow_topic",), ("view",), ("conflated_topic",))
_READS_SOURCE: Final = (("view",), ("conflated_topic",))
_SOURCES: Final = (("sow_topic",), ("queue",), *_READS_SOURCE)

#: Keys whose mistakes can follow from those of a source.
_OF_SOURCE: Final = (("underlying_topic",), ("message_type",))

#: Values for required keys of tables that were missing or not allowed. The braces are for a number.
_REQUIRED: Final = {"name": "mistake-{}", "message_type": "json"}

#: A path in a configuration: keys, and numbers of entries of lists.
Place = tuple[str | int, ...]


class Mistakes:
    """The mistakes in one file. Each value with a mistake is taken out, so that the rest can be checked.

    A mistake that can follow from another one is not noted.
    """

    def __init__(self, settings: dict[str, Any], file: Path, text: str) -> None:
        self.settings = copy.deepcopy(settings)
        self.found: list[ConfigError] = []
        self._file, self._text = file, text
        #: For each list of tables, the numbers that its remaining entries have in the file.
        self._numbers: dict[Place, list[int]] = {}
        #: The places of the mistakes in the file.
        self._places: list[Place] = []

    def take_out(self, tables: Sequence[str], reason: Callable[[str], str]) -> None:
        """Notes the tables that this version does not have."""
        for table in tables:
            if table in self.settings:
                self._report((table,), reason(table))
                del self.settings[table]

    def note(self, error: ValidationError, model: type[BaseModel]) -> bool:
        """Notes the mistakes that the model found, and takes them out. False when there is nothing
        to take out."""
        found = _separate(error)
        for mistake in found:
            place = self._in_file(mistake["loc"])
            # A key that was taken out is not a missing one.
            if place not in self._places:
                self._add(place, _reason(mistake, model))
        unknown = {mistake["loc"] for mistake in found if mistake["type"] == "extra_forbidden"}
        places = {_place_to_remove(mistake) for mistake in found}
        # Later entries first, so that the numbers of the others stay as they are.
        for place in sorted(places, key=lambda place: [str(part).zfill(9) for part in place], reverse=True):
            is_removed = self._remove(place, is_unknown=place in unknown)
            if not is_removed:
                return False
        return True

    def add_of_core(self, mistakes: Iterable[tuple[str, str]]) -> None:
        """Notes the mistakes that the core found in the rest, except those that may follow from
        other mistakes.

        The core compares queues and last-value topics with the recorded topics, and views and
        conflated topics with their sources.
        """
        tables = {_table_of(place) for place in self._places}
        log = ("transaction_log", "topic")
        is_log_partial = any(place[:2] in (log, log[:1]) for place in self._places)
        is_source_partial = any(place[:1] in _SOURCES for place in self._places)
        for key, reason in mistakes:
            place = self._in_file(place_of(key))
            depends_on_source = place[:1] in _READS_SOURCE and place[-1:] in _OF_SOURCE
            depends_on_others = (is_log_partial and place[:1] in _READS_LOG) or (
                is_source_partial and depends_on_source
            )
            if place[-1:] in _STANDALONE or not (_table_of(place) in tables or depends_on_others):
                self._add(place, reason)

    def _add(self, place: Place, reason: str) -> None:
        self._places.append(place)
        self._report(place, reason)

    def _report(self, place: Place, reason: str) -> None:
        key, line = path_text(place) or "configuration", line_of(self._text, place)
        self.found.append(ConfigError(reason, key=key, file=self._file, line=line))

    def _in_file(self, place: Place) -> Place:
        """The place in the file of a place in what is left."""
        table, number = place[: _size_of_list(place)], _number_of(place)
        if number is None or table not in self._numbers:
            return place
        return (*table, self._numbers[table][number], *place[len(table) + 1 :])

    def _remove(self, place: Place, *, is_unknown: bool = False) -> bool:
        """Takes the place out, or the innermost table that has it. Returns whether there was one."""
        table: Place = ()
        inner: Any = self.settings
        for part, following in zip(place, (*place[1:], None), strict=True):
            if isinstance(inner, dict) and isinstance(inner.get(part), dict) and isinstance(following, int):
                # A single table is accepted as a list with one entry.
                inner[part] = [inner[part]]
            found = inner.get(part) if isinstance(inner, dict) else inner[part]
            if following is None or not isinstance(found, dict | list):
                break
            table, inner = (*table, part), found
        else:
            return False
        if isinstance(inner, dict) and table and part in _REQUIRED and not is_unknown:
            # In its place, so that the other keys of the table can be checked.
            inner[part] = _REQUIRED[part].format(len(self.found))
            return True
        if isinstance(inner, dict):
            return inner.pop(part, None) is not None
        assert isinstance(part, int)
        self._numbers.setdefault(table, list(range(len(inner)))).pop(part)
        del inner[part]
        return bool(inner) or self._remove(table)


def _size_of_list(place: Place) -> int:
    """The number of keys before the first number of an entry."""
    return next((at for at, part in enumerate(place) if isinstance(part, int)), len(place))


def _number_of(place: Place) -> int | None:
    at = _size_of_list(place)
    number = place[at] if at < len(place) else None
    return number if isinstance(number, int) else None


def _table_of(place: Place) -> Place:
    """The table that a place is in: an entry of a list of tables, or a table of the file."""
    return place[: _size_of_list(place) + 1] if _number_of(place) is not None else place[:1]


def _place_to_remove(mistake: ErrorDetails) -> Place:
    """The part to take out so that the rest can be checked: the key of the table, or the table when
    its keys do not fit together."""
    place: Place = mistake["loc"]
    entry = _table_of(place)
    return place if _number_of(place) is None else place[: len(entry) + 1]


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
        close = nearest(key, _keys(model, tables))
        if close:
            return f'unknown key; did you mean "{close}"?'
        outer = next(
            (end for end in range(len(tables) - 1, -1, -1) if key in _keys(model, tables[:end])), None
        )
        if outer is None:
            inner = [] if tables else _tables_with(key, model)
            return f"unknown key; it belongs to {' or '.join(inner)}" if inner else "unknown key"
        place = f"to [{'.'.join(tables[:outer])}]" if outer else "before all tables"
        return f"unknown key; it belongs {place}"
    if kind == "value_error":
        return mistake["msg"].removeprefix("Value error, ")
    if kind in _ENTRIES:
        count, least_or_most = context["actual_length"], _ENTRIES[kind].format(**context)
        return f"expected a list of {least_or_most}, got {count}"
    if kind in _EXPECTED:
        # Literals have the form 'fsync' or 'os'.
        what = _EXPECTED[kind].format(**context).replace("'", '"')
        return f"expected {what}, got {got(mistake['input'])}"
    return f"this value is not allowed: {got(mistake['input'])}"


def _tables_with(key: str, model: type[BaseModel]) -> list[str]:
    """The headings of the tables that have the key."""
    headings = []
    for name, field in model.model_fields.items():
        if key in _keys(model, [name]):
            is_list = isinstance(field.get_default(call_default_factory=True), tuple)
            headings.append(f"[[{name}]]" if is_list else f"[{name}]")
    return headings


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
