"""Messages as data frames: the columns are built by the core, without a Python object per row."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from quire import _quire
from quire._arguments import check_type
from quire._errors import ConfigError
from quire._quire import DOCUMENT_DEPTH_MAX

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa

#: The fields of a frame: identifiers, or identifiers with the types of their columns; `None` =
#: every field at the top level.
Fields = str | Iterable[str] | Mapping[str, str] | None

#: The types of columns that the core builds.
TYPES = (
    "boolean",
    "byte",
    "short",
    "int",
    "long",
    "float",
    "double",
    "string",
    "timestamp",
    "date",
)

#: The type of a column whose values are objects or lists: the core does not build it.
_NESTED = "nested"


def arrow_table(rows: _quire.Rows, fields: Fields, message_type: str) -> pa.Table:
    """Returns one row for each message, and one column for each field. Raises `ConfigError` without Arrow."""
    try:
        import pyarrow as pa
    except ImportError:
        raise ConfigError("Arrow is not installed: pip install 'quire-mq[arrow]'") from None
    columns = _columns(rows, fields, message_type)
    flat = [column for column in columns if column[2] != _NESTED]
    spec = {
        "columns": [{"name": name, "field": {"path": path, "type": kind}} for name, path, kind in flat],
    }
    scan = rows.scan(json.dumps(spec), message_type)
    reader: Any = pa.RecordBatchReader.from_stream(scan)
    # The stream cannot have a NUL in a name.
    table = reader.read_all().rename_columns(scan.names)
    nested = [(index, column) for index, column in enumerate(columns) if column[2] == _NESTED]
    if nested and message_type != "json":
        reason = f"{nested[0][1][1]!r} has objects or lists, which only JSON messages have as a column"
        raise ConfigError(reason, key="fields")
    documents = [_document(data) for data in rows.data()] if nested else []
    for index, (name, path, _) in nested:
        column = _nested_array([_value_at(document, path) for document in documents])
        if column is None:
            # Numbers have the text that they have in their messages.
            texts = (_value_at(_document(data, numbers_are_text=True), path) for data in rows.data())
            column = pa.array([None if value is None else _json_text(value) for value in texts], pa.string())
        table = table.add_column(index, name, column)
    return table


def check_pandas() -> None:
    """Raises `ConfigError` without pandas."""
    try:
        import pandas  # noqa: F401
    except ImportError:
        raise ConfigError("pandas is not installed: pip install pandas") from None


def check_polars() -> None:
    """Raises `ConfigError` without polars."""
    try:
        import polars  # noqa: F401
    except ImportError:
        raise ConfigError("polars is not installed: pip install polars") from None


def pandas_frame(table: pa.Table) -> pd.DataFrame:
    """Raises `ConfigError` without pandas."""
    check_pandas()
    import pandas as pd

    # Without these types, integers become floats where one of them is missing, and lose digits.
    nullable = {
        "int8": pd.Int8Dtype(),
        "int16": pd.Int16Dtype(),
        "int32": pd.Int32Dtype(),
        "int64": pd.Int64Dtype(),
    }
    frame: pd.DataFrame = table.to_pandas(integer_object_nulls=True)
    for index, column in enumerate(table.columns):
        if column.null_count and str(column.type) in nullable:
            frame.isetitem(index, column.to_pandas(types_mapper=lambda kind: nullable.get(str(kind))))
    return frame


def polars_frame(table: pa.Table) -> pl.DataFrame:
    """Raises `ConfigError` without polars."""
    check_polars()
    import polars

    return polars.DataFrame(table)


def check_fields(fields: Fields) -> Fields:
    """The fields with iterators as lists. Raises `ConfigError` for anything else."""
    if fields is None or isinstance(fields, (str, Mapping)):
        named = [] if fields is None else [fields] if isinstance(fields, str) else list(fields)
    else:
        given: object = fields
        if isinstance(given, (bytes, bytearray)) or not isinstance(given, Iterable):
            raise ConfigError(f"expected a list of fields, got `{type(given).__name__}`", key="fields")
        fields = named = list(fields)
    for field in named:
        check_type(field, str, "fields")
    if isinstance(fields, Mapping):
        check_types(fields)
    return fields


def check_types(fields: Mapping[str, str]) -> None:
    """Raises `ConfigError` for a type that no column has."""
    for field, kind in fields.items():
        if kind not in TYPES:
            reason = f"{field!r}: {kind!r} is not a type; expected {', '.join(TYPES[:-1])} or {TYPES[-1]}"
            raise ConfigError(reason, key="fields")


def _columns(rows: _quire.Rows, fields: Fields, message_type: str) -> list[tuple[str, str, str]]:
    """The name, the path and the type of each column."""
    if isinstance(fields, Mapping):
        return [(_name(field), _path(field), kind) for field, kind in fields.items()]
    if fields is not None:
        paths = [_path(field) for field in ([fields] if isinstance(fields, str) else fields)]
    elif message_type == "json":
        paths = rows.fields()
    else:
        reason = f"the messages are of type {message_type}, so the fields of the columns must be named"
        raise ConfigError(reason, key="fields")
    kinds = rows.types(paths, message_type)
    return [(_name(path), path, kind) for path, kind in zip(paths, kinds, strict=True)]


def _path(field: str) -> str:
    return field if field.startswith(("/", "[/")) else f"/{field}"


def _name(field: str) -> str:
    """The identifier without its first slash."""
    if field.startswith("[/") and field.endswith("]"):
        return field[2:-1]
    return field.removeprefix("/")


def _nested_array(values: list[Any]) -> pa.Array | None:
    """Objects and lists as they are; `None` when no type of Arrow fits all of them."""
    import pyarrow as pa

    try:
        column = pa.array(values)
    except (pa.ArrowException, OverflowError):
        return None
    has_floats = "double" in str(column.type)
    return None if has_floats and any(_has_boolean(value, column.type) for value in values) else column


def _has_boolean(value: Any, kind: pa.DataType) -> bool:
    """Whether a value has a Boolean where the type has a double: Arrow makes 1.0 of `True`."""
    import pyarrow as pa

    if value is None:
        return False
    if pa.types.is_list(kind):
        return any(_has_boolean(inner, kind.value_type) for inner in value)
    if pa.types.is_struct(kind):
        return any(_has_boolean(value.get(field.name), field.type) for field in kind)
    return isinstance(value, bool) and pa.types.is_floating(kind)


class _Number:
    """The text of a number. Arrow has no type for it."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text


def _json_text(value: Any) -> str:
    """As `json.dumps`, with the text of each number."""
    match value:
        case _Number():
            return value.text
        case dict():
            members = (f"{_json_text(name)}: {_json_text(inner)}" for name, inner in value.items())
            return f"{{{', '.join(members)}}}"
        case list():
            return f"[{', '.join(map(_json_text, value))}]"
        case _:
            return json.dumps(value, ensure_ascii=False)


def _document(data: bytes, *, numbers_are_text: bool = False) -> Any:
    """The message, or `None` for one that is not JSON, or nested deeper than Python reads: it has no fields.

    A number that Python cannot read, or that no double holds, is a `_Number`; with
    `numbers_are_text`, every one.
    """
    # As the core reads it: bytes that are not UTF-8 and lone surrogates are U+FFFD.
    text = data.decode("utf-8", "replace")
    parse_int: Callable[[str], Any] | None = _integer if _LONG.search(text) else None
    parse_float: Callable[[str], Any] | None = _float if _LARGE.search(text) else None
    if numbers_are_text:
        parse_int = parse_float = _Number
    try:
        document = json.loads(text, parse_int=parse_int, parse_float=parse_float, parse_constant=_not_json)
    except (ValueError, RecursionError):
        return None
    if text.count("[") + text.count("{") > DOCUMENT_DEPTH_MAX and _is_deep(document):
        return None
    return _without_surrogates(document) if "\\u" in text else document


#: Python reads no integers of more digits from text.
_DIGITS_MAX = 4300
_LONG = re.compile(f"[0-9]{{{_DIGITS_MAX + 1}}}")
#: A number that no double holds has many digits, or an exponent of two digits.
_LARGE = re.compile("[0-9]{200}|[eE][+-]?[0-9]{2}")


def _not_json(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _integer(digits: str) -> int | _Number:
    return int(digits) if len(digits.removeprefix("-")) <= _DIGITS_MAX else _Number(digits)


def _float(text: str) -> float | _Number:
    number = float(text)
    # A double would make 0 of a small number.
    is_changed = number == 0 and re.match("-?[0.]*[1-9]", text) is not None
    return number if math.isfinite(number) and not is_changed else _Number(text)


def _is_deep(document: Any) -> bool:
    level = [document]
    for _ in range(DOCUMENT_DEPTH_MAX):
        containers = [value.values() if isinstance(value, dict) else value for value in level]
        level = [inner for values in containers for inner in values if isinstance(inner, (dict, list))]
        if not level:
            return False
    return True


def _without_surrogates(value: Any) -> Any:
    match value:
        case str():
            return value if value.isascii() else _SURROGATE.sub("\ufffd", value)
        case dict():
            return {_without_surrogates(name): _without_surrogates(inner) for name, inner in value.items()}
        case list():
            return [_without_surrogates(inner) for inner in value]
        case _:
            return value


_SURROGATE = re.compile("[\ud800-\udfff]")


def _value_at(document: Any, path: str) -> Any:
    """The value as filters find it: a name in a list is the list of the values of its objects."""
    if not isinstance(document, dict):
        return None
    steps: list[str | int] = [path[2:-1]]
    if path.startswith("/"):
        steps = []
        for part in path[1:].split("/"):
            name, *indexes = part.split("[")
            steps += [name, *(int(index.removesuffix("]")) for index in indexes)]
    value: Any = document
    for step in steps:
        match value, step:
            case dict(), str():
                value = value.get(step)
            case list(), str():
                found = [inner[step] for inner in value if isinstance(inner, dict) and step in inner]
                value = found or None
            case list(), int():
                value = value[step] if step < len(value) else None
            case _:
                value = value if step == 0 else None
    return value
