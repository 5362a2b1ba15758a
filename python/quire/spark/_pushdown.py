"""Filters of Spark as conditions of the scan.

Every filter goes back to Spark, which applies it once more: the scan only leaves out early what cannot match. So a condition may be wider
than its filter, never narrower.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime
from typing import Any

from pyspark.sql import datasource as ds
from pyspark.sql import types as t

from quire.spark import _columns
from quire.spark._options import ReadOptions

_COMPARISONS: Mapping[type, str] = {
    ds.EqualTo: "in",
    ds.LessThan: "less",
    ds.LessThanOrEqual: "less_or_equal",
    ds.GreaterThan: "greater",
    ds.GreaterThanOrEqual: "greater_or_equal",
    ds.StringStartsWith: "starts_with",
    ds.StringEndsWith: "ends_with",
    ds.StringContains: "contains",
}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def predicates(
    filters: Iterable[ds.Filter], schema: t.StructType, options: ReadOptions
) -> list[dict[str, Any]]:
    """The conditions that follow from the filters; a filter from which none follows gives none."""
    found = (_predicate(filter, schema, options) for filter in filters)
    return [predicate for predicate in found if predicate is not None]


def _predicate(filter: ds.Filter, schema: t.StructType, options: ReadOptions) -> dict[str, Any] | None:
    negated = isinstance(filter, ds.Not)
    inner: Any = filter.child if isinstance(filter, ds.Not) else filter
    if isinstance(inner, ds.Not):
        return None
    source = _columns.source(schema, tuple(getattr(inner, "attribute", ())), options)
    if source is None:
        return None
    place, data_type = source
    if isinstance(inner, ds.IsNull | ds.IsNotNull):
        is_negated = negated != isinstance(inner, ds.IsNotNull)
        return {"source": place, "operator": "is_null", "negated": is_negated}
    if isinstance(inner, ds.EqualNullSafe):
        if inner.value is None:
            return {"source": place, "operator": "is_null", "negated": negated}
        # Its opposite is true of NULL, which no comparison here is.
        operator, values = "in", None if negated else (inner.value,)
    elif isinstance(inner, ds.In):
        operator, values = "in", _without_null(inner.value, negated)
    elif type(inner) in _COMPARISONS:
        operator, values = _COMPARISONS[type(inner)], (inner.value,)
    else:
        return None
    if values is None:
        return None
    literals = [_literal(value, data_type) for value in values]
    if not literals or None in literals:
        return None
    return {"source": place, "operator": operator, "values": literals, "negated": negated}


def _without_null(values: tuple[Any, ...], negated: bool) -> tuple[Any, ...] | None:
    """`IN` never finds NULL; `NOT IN` with a NULL is never true, which is for Spark to say."""
    if None not in values:
        return values
    return None if negated else tuple(value for value in values if value is not None)


def _literal(value: object, data_type: t.DataType) -> bool | int | float | str | None:
    """The value as the scan compares it with a column of this type; `None` when it cannot."""
    match data_type:
        case t.BooleanType():
            return value if isinstance(value, bool) else None
        case t.ByteType() | t.ShortType() | t.IntegerType() | t.LongType():
            return value if isinstance(value, int) and not isinstance(value, bool) else None
        case t.FloatType() | t.DoubleType():
            is_number = isinstance(value, float) and value == value and abs(value) != float("inf")
            return value if is_number and isinstance(value, float) else None
        case t.StringType():
            return value if isinstance(value, str) else None
        case t.TimestampType():
            if isinstance(value, datetime) and value.tzinfo is not None:
                elapsed = value - _EPOCH
                return (elapsed.days * 86_400 + elapsed.seconds) * 1_000_000 + elapsed.microseconds
            return None
        case t.DateType():
            is_date = isinstance(value, date) and not isinstance(value, datetime)
            return value.toordinal() - _EPOCH.toordinal() if is_date and isinstance(value, date) else None
        case _:
            return None
