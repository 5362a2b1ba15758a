"""Filters of Spark in the form of the core (`docs/internals/spark-reader.md`, "Conditions").

Every filter is returned to Spark, which applies it once more.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, date, datetime
from math import isfinite
from typing import Any

from pyspark.sql import datasource as ds

_NAMES: Mapping[type, str] = {
    ds.EqualTo: "=",
    ds.EqualNullSafe: "<=>",
    ds.LessThan: "<",
    ds.LessThanOrEqual: "<=",
    ds.GreaterThan: ">",
    ds.GreaterThanOrEqual: ">=",
    ds.StringStartsWith: "STARTS_WITH",
    ds.StringEndsWith: "ENDS_WITH",
    ds.StringContains: "CONTAINS",
}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def condition(filter: ds.Filter) -> dict[str, Any]:
    """The predicate that a filter is."""
    if isinstance(filter, ds.Not):
        return {"name": "NOT", "children": [condition(filter.child)]}
    attribute = getattr(filter, "attribute", None)
    if attribute is None:
        return {"other": str(filter)}
    column = {"column": list(attribute)}
    if isinstance(filter, ds.IsNull | ds.IsNotNull):
        name = "IS_NULL" if isinstance(filter, ds.IsNull) else "IS_NOT_NULL"
        return {"name": name, "children": [column]}
    if isinstance(filter, ds.In):
        return {"name": "IN", "children": [column, *map(_literal, filter.value)]}
    name = _NAMES.get(type(filter), str(filter))
    return {"name": name, "children": [column, _literal(getattr(filter, "value", None))]}


def _literal(value: object) -> dict[str, Any]:
    match value:
        case datetime() if value.tzinfo is not None:
            elapsed = value - _EPOCH
            return {"literal": (elapsed.days * 86_400 + elapsed.seconds) * 1_000_000 + elapsed.microseconds}
        case date() if not isinstance(value, datetime):
            return {"literal": value.toordinal() - _EPOCH.toordinal()}
        case float() if not isfinite(value):
            return {"other": str(value)}
        # It can be bytes that are not UTF-8, which equal no text.
        case str() if "\ufffd" in value:
            return {"other": value}
        case None | bool() | int() | float() | str():
            return {"literal": value}
        case _:
            return {"other": str(value)}
