"""Which column of a Spark schema is read from where: attributes of the record by their name, all else from the fields of the data."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from pyspark.sql import types as t

from quire._errors import ConfigError
from quire.spark._options import ReadOptions

#: The columns that every message has, with their types (docs/spark.md, "Columns").
ATTRIBUTES = (
    "position bigint, bookmark string, timestamp timestamp, timestamp_ns bigint, topic string, publisher string, sequence bigint, "
    "kind string, correlation_id string, sow_key string, message_type string, data string"
)

#: The additional attributes of queue events.
EVENT_ATTRIBUTES = "first_position bigint, last_position bigint, deliveries int, cancels int, reasons string, consumer string"

#: The column that a read with `includeHeaders` adds.
HEADER_ATTRIBUTES = "headers map<string,binary>"

#: The attributes that only the log has.
NOT_FROM_A_SERVER = frozenset({"position", "message_type"})

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
#: Other names that Spark has for these types.
_FIELD_TYPE_ALIASES = ("byte", "short", "integer", "long", "real", "timestamp_ltz")

#: The characters with a meaning in a path.
_PATH_MARKS = re.compile(r"[/\[]")


def ddl(options: ReadOptions) -> str:
    """The schema of a read that was given none. `ConfigError` says what is wrong with the option `fields`."""
    if options.fields:
        taken = _attributes(options).keys() & {name.lower() for name in defined("fields", options.fields)}
        if taken:
            name = min(taken)
            raise ConfigError(
                f"fields: {name} is an attribute of every message; give the column another name, such as {name}_field, "
                f"and option field.{name}_field the path /{name}"
            )
    events = EVENT_ATTRIBUTES if options.includes_events else None
    attributes = ATTRIBUTES
    if options.url is not None:
        known = [column for column in ATTRIBUTES.split(", ") if column.split()[0] not in NOT_FROM_A_SERVER]
        attributes = ", ".join(known)
    headers = HEADER_ATTRIBUTES if options.includes_headers else None
    return ", ".join(part for part in (attributes, headers, events, options.fields) if part)


def sources(schema: t.StructType, options: ReadOptions) -> list[dict[str, Any]]:
    """The columns of the scan. `ConfigError` names a column that cannot be read so."""
    unused = {path.lower() for path in options.field_paths} - {name.lower() for name in schema.names}
    if unused:
        raise ConfigError(f"field.{min(unused)}: there is no such column")
    return [_column(column, options) for column in schema.fields]


def source(
    schema: t.StructType, path: tuple[str, ...], options: ReadOptions
) -> tuple[dict[str, Any], t.DataType] | None:
    """Where a column of a filter is read from, with its type; `None` when it is no column with one value."""
    columns: list[t.StructField] = []
    inner: t.DataType = schema
    for name in path:
        found = (
            next((field for field in inner.fields if field.name.lower() == name.lower()), None)
            if isinstance(inner, t.StructType)
            else None
        )
        if found is None:
            return None
        columns.append(found)
        inner = found.dataType
    if not columns or isinstance(inner, t.StructType | t.MapType):
        return None
    if len(columns) == 1:
        read = _column(columns[0], options)
        return {key: value for key, value in read.items() if key not in ("name", "nullable")}, inner
    steps = [_root(columns[0], options), *(column.name for column in columns[1:])]
    return {"field": {"path": "/".join(steps), "type": _field_type(columns[-1], columns[-1].name)}}, inner


def defined(option: str, ddl: str) -> list[str]:
    """The names of the columns that an option defines. `ConfigError` names the option and the column that is not as Spark writes it, of a
    type that cannot be read, or defined twice.

    Spark parses them only together with all other columns, and names neither."""
    names: list[str] = []
    for part in _parts(ddl):
        name = _defined_name(part)
        if name is None:
            raise ConfigError(
                f"{option}: {part.strip()!r} is not a name with a type, such as 'price double'; the types are "
                f"{', '.join(_FIELD_TYPES)} and struct<...>"
            )
        if name.lower() in (known.lower() for known in names):
            raise ConfigError(f"{option}: the column {name} is defined twice")
        names.append(name)
    return names


_DEFINITION = re.compile(
    r"\s*(\w+|`(?:[^`]|``)+`)\s*[\s:]\s*(?:(\w+)|struct\s*<(.*)>)(?:\s+not\s+null)?(?:\s+comment\s*(?:'[^']*'|\"[^\"]*\"))?\s*",
    re.IGNORECASE | re.DOTALL,
)


def _defined_name(definition: str) -> str | None:
    """The name of a column that is written as Spark has it."""
    match = _DEFINITION.fullmatch(definition)
    if match is None:
        return None
    name, data_type, inner = match.groups()
    if inner is not None:
        is_known = all(_defined_name(part) is not None for part in _parts(inner))
    else:
        is_known = data_type.lower() in (*_FIELD_TYPES, *_FIELD_TYPE_ALIASES)
    if not is_known:
        return None
    return name[1:-1].replace("``", "`") if name.startswith("`") else name


def _parts(definitions: str) -> list[str]:
    """Cuts at the commas that are outside of structs and quotes."""
    parts, depth = [""], 0
    for piece in re.findall(r"`[^`]*`|'[^']*'|\"[^\"]*\"|.", definitions, re.DOTALL):
        depth += (piece == "<") - (piece == ">")
        if piece == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += piece
    return parts


def _attributes(options: ReadOptions) -> dict[str, str]:
    """The type of every attribute that a message has for these options, by its name."""
    events = _types(EVENT_ATTRIBUTES) if options.includes_events else {}
    headers = _types(HEADER_ATTRIBUTES) if options.includes_headers else {}
    return _types(ATTRIBUTES) | events | headers


def _column(column: t.StructField, options: ReadOptions) -> dict[str, Any]:
    data_type = column.dataType
    # Spark does not distinguish names by their case.
    name = column.name.lower()
    known = _attributes(options)
    if name in known and name not in options.field_paths:
        if options.url is not None and name in NOT_FROM_A_SERVER:
            raise ConfigError(f"column {name}: a server does not say it; read its directory")
        return _named(column, {"attribute": _attribute(name, data_type, known[name])})
    return _named(column, _field(column, _root(column, options), column.name))


def _named(column: t.StructField, source: dict[str, Any]) -> dict[str, Any]:
    return {"name": column.name, "nullable": column.nullable, **source}


def _root(column: t.StructField, options: ReadOptions) -> str:
    """The path of a column. `ConfigError` for a name that could be a path as well as the name of a member."""
    name = column.name
    path = options.field_paths.get(name.lower())
    if path is None and _PATH_MARKS.search(name):
        raise ConfigError(
            f"column {name}: it could be a path or the name of a member; give option field.{name} the path /{name}, or [/{name}] for the "
            f"member named {name}"
        )
    return f"/{name}" if path is None else path


def _types(ddl: str) -> dict[str, str]:
    return {item.split()[0]: item.split()[1] for item in ddl.split(", ")}


def _attribute(name: str, data_type: t.DataType, expected: str) -> str:
    given = data_type.simpleString()
    if name == "data" and given == "binary":
        return "data_binary"
    if given != expected:
        raise ConfigError(
            f"column {name}: it is {expected}, not {given}; to read a field of the data with this name "
            f"give option field.{name} its path"
        )
    return name


def _field(column: t.StructField, path: str, whole: str) -> dict[str, Any]:
    if isinstance(column.dataType, t.StructType):
        return {"struct": list(_inner(column.dataType, path, whole))}
    return {"field": {"path": path, "type": _field_type(column, whole)}}


def _inner(struct: t.StructType, path: str, whole: str) -> Iterator[dict[str, Any]]:
    for column in struct.fields:
        if _PATH_MARKS.search(column.name):
            raise ConfigError(
                f"column {whole}.{column.name}: a member with / or [ in its name can only be read from the root of the data, by option "
                "field.<column> with a path such as [/a/b]"
            )
        yield _named(column, _field(column, f"{path}/{column.name}", f"{whole}.{column.name}"))


def _field_type(column: t.StructField, whole: str) -> str:
    known = _FIELD_TYPES.get(column.dataType.simpleString())
    if known is None:
        raise ConfigError(
            f"column {whole}: {column.dataType.simpleString()} cannot be read from the data; the types are "
            f"{', '.join(_FIELD_TYPES)} and struct; for any other read data, and use from_json(data, ...)"
        )
    return known
