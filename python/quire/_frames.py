"""Messages as data frames: the columns are built by the core, without a Python object per row."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from quire import _quire
from quire._arguments import check_type
from quire._errors import ConfigError

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa

#: The fields of a frame: identifiers, or identifiers with the types of their columns; `None` = every field at the top level.
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
    reader: Any = pa.RecordBatchReader.from_stream(rows.scan(json.dumps(spec), message_type))
    table = reader.read_all()
    nested = [(index, column) for index, column in enumerate(columns) if column[2] == _NESTED]
    if nested and message_type != "json":
        reason = f"{nested[0][1][1]!r} has objects or lists, which only JSON messages have as a column"
        raise ConfigError(reason, key="fields")
    documents = [_document(data) for data in rows.data()] if nested else []
    for index, (name, path, _) in nested:
        values = [_value_at(document, path) for document in documents]
        table = table.add_column(index, name, _nested_array(values))
    return table


def pandas_frame(table: pa.Table) -> pd.DataFrame:
    """Raises `ConfigError` without pandas."""
    try:
        import pandas  # noqa: F401
    except ImportError:
        raise ConfigError("pandas is not installed: pip install pandas") from None
    frame: pd.DataFrame = table.to_pandas()
    return frame


def polars_frame(table: pa.Table) -> pl.DataFrame:
    """Raises `ConfigError` without polars."""
    try:
        import polars
    except ImportError:
        raise ConfigError("polars is not installed: pip install polars") from None
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


def _nested_array(values: list[Any]) -> pa.Array:
    """Objects and lists as they are. Values of which no type of Arrow fits all become JSON text."""
    import pyarrow as pa

    try:
        return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return pa.array(
            [None if value is None else json.dumps(value, ensure_ascii=False) for value in values]
        )


def _document(data: bytes) -> Any:
    """The message, or `None` for one that is not JSON: it has no fields."""
    try:
        return json.loads(data)
    except ValueError:
        return None


def _value_at(document: Any, path: str) -> Any:
    steps: list[str | int] = [path[2:-1]]
    if path.startswith("/"):
        steps = []
        for part in path[1:].split("/"):
            name, *indexes = part.split("[")
            steps += [name, *(int(index.removesuffix("]")) for index in indexes)]
    for step in steps:
        if isinstance(step, str):
            document = document.get(step) if isinstance(document, dict) else None
        else:
            document = document[step] if isinstance(document, list) and step < len(document) else None
    return document
