"""Which column of a Spark schema is read from where: attributes of the record by their name, all else from the fields of the data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pyspark.sql import types as t

from quire._errors import ConfigError

#: The columns that every message has, with their types (reference: spark, "Columns").
ATTRIBUTES = (
    "position bigint, bookmark string, timestamp timestamp, timestamp_ns bigint, topic string, publisher string, sequence bigint, "
    "kind string, correlation_id string, message_type string, data string"
)

_ATTRIBUTE_TYPES: Mapping[str, str] = {item.split()[0]: item.split()[1] for item in ATTRIBUTES.split(", ")}
_FIELD_TYPES: Mapping[str, str] = {
    "boolean": "boolean",
    "tinyint": "byte",
    "smallint": "short",
    "int": "int",
    "bigint": "long",
    "float": "float",
    "double": "double",
    "string": "string",
    "timestamp": "timestamp",
    "date": "date",
}


def ddl(fields: str | None) -> str:
    """The schema of a read that was given none."""
    return ATTRIBUTES if fields is None else f"{ATTRIBUTES}, {fields}"


def sources(schema: t.StructType, field_paths: Mapping[str, str]) -> list[dict[str, Any]]:
    """The columns of the scan. `ConfigError` names a column that cannot be read so."""
    unused = {path.lower() for path in field_paths} - {name.lower() for name in schema.names}
    if unused:
        raise ConfigError(f"field.{min(unused)}: there is no such column")
    return [_column(column, field_paths) for column in schema.fields]


def source(
    schema: t.StructType, path: tuple[str, ...], field_paths: Mapping[str, str]
) -> tuple[dict[str, Any], t.DataType] | None:
    """Where a column of a filter is read from, with its type; `None` when it is no column with one value."""
    column: t.StructField | None = None
    inner: t.DataType = schema
    for name in path:
        column = (
            next((field for field in inner.fields if field.name.lower() == name.lower()), None)
            if isinstance(inner, t.StructType)
            else None
        )
        if column is None:
            return None
        inner = column.dataType
    if column is None or isinstance(inner, t.StructType):
        return None
    if len(path) == 1:
        read = _column(column, field_paths)
        return {key: value for key, value in read.items() if key != "name"}, inner
    root = _root(schema[path[0]], field_paths)
    return {"field": {"path": "/".join([root, *path[1:]]), "type": _field_type(column, column.name)}}, inner


def _column(column: t.StructField, field_paths: Mapping[str, str]) -> dict[str, Any]:
    name, data_type = column.name, column.dataType
    if name in _ATTRIBUTE_TYPES and name.lower() not in field_paths:
        return {"name": name, "attribute": _attribute(name, data_type)}
    return {"name": name, **_field(column, _root(column, field_paths), name)}


def _root(column: t.StructField, field_paths: Mapping[str, str]) -> str:
    return field_paths.get(column.name.lower(), f"/{column.name}")


def _attribute(name: str, data_type: t.DataType) -> str:
    given = data_type.simpleString()
    if name == "data" and given == "binary":
        return "data_binary"
    if given != _ATTRIBUTE_TYPES[name]:
        raise ConfigError(
            f"column {name}: it is {_ATTRIBUTE_TYPES[name]}, not {given}; to read a field of the data with this name "
            f"give option field.{name} its path"
        )
    return name


def _field(column: t.StructField, path: str, whole: str) -> dict[str, Any]:
    if isinstance(column.dataType, t.StructType):
        return {"struct": list(_inner(column.dataType, path, whole))}
    return {"field": {"path": path, "type": _field_type(column, whole)}}


def _inner(struct: t.StructType, path: str, whole: str) -> Iterator[dict[str, Any]]:
    for column in struct.fields:
        yield {"name": column.name, **_field(column, f"{path}/{column.name}", f"{whole}.{column.name}")}


def _field_type(column: t.StructField, whole: str) -> str:
    known = _FIELD_TYPES.get(column.dataType.simpleString())
    if known is None:
        raise ConfigError(
            f"column {whole}: {column.dataType.simpleString()} cannot be read from the data; the types are "
            f"{', '.join(_FIELD_TYPES)} and struct"
        )
    return known
