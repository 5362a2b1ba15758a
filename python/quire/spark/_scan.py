"""The scan that the options, the schema and the filters of a read ask of the Rust core."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyspark import SparkFiles
from pyspark.sql import datasource as ds
from pyspark.sql import types as t

from quire._errors import BadFilterError, ConfigError
from quire._quire import check_scan
from quire.spark import _columns, _pushdown
from quire.spark._failures import hiding_traceback
from quire.spark._options import ReadOptions


class ScanBuilder:
    """Checked as soon as it is made: a mistake is the driver's to show, not that of a task."""

    def __init__(self, options: ReadOptions, schema: t.StructType) -> None:
        self._options = options
        self._schema = schema
        self._spec: dict[str, Any] = {
            "columns": _columns.sources(schema, options),
            "topics": options.topics,
            # A server filters by itself: it knows the types of the messages.
            "filter": None if options.url else options.filter,
            "includes_events": options.includes_events,
            "includes_deletes": options.includes_deletes,
            "skips_damage": not options.fail_on_data_loss,
            "batch_rows": options.batch_rows,
            "batch_bytes": options.batch_bytes,
            "now_ns": time.time_ns(),
        }
        try:
            check_scan(self.spec)
        except BadFilterError as error:
            raise in_filter(error, options.filter) from None

    def push(self, filters: Sequence[ds.Filter]) -> None:
        """Leaves rows out early that do not pass."""
        self._spec["predicates"] = _pushdown.predicates(filters, self._schema, self._options)

    @property
    def conditions(self) -> str:
        """A name for the filters: the same for the same ones in any order."""
        predicates = sorted(json.dumps(predicate, sort_keys=True) for predicate in self._spec["predicates"])
        return hashlib.sha256("\n".join(predicates).encode()).hexdigest()[:32]

    @property
    def topics(self) -> Sequence[str] | None:
        """The topics that the filters leave, when they name some."""
        for predicate in self._spec.get("predicates", ()):
            is_topic = predicate["source"] == {"attribute": "topic"}
            if is_topic and predicate["operator"] == "in" and not predicate["negated"]:
                return [str(value) for value in predicate["values"]]
        return None

    @property
    def spec(self) -> str:
        """Returns the argument of `ArrowReader`."""
        return json.dumps(self._spec)


def in_filter(error: BadFilterError, text: str | None) -> BadFilterError:
    """The error with the option and its text before it."""
    return BadFilterError(f"filter: {text!r}: {error.reason}", code=error.code, column=error.column)


class PushFilters:
    """Replaces the method `pushFilters` of a reader.

    Spark refuses a reader that overrides this method while pushdown is switched off, which is the default.
    With this object as an attribute of the instance, no method is overridden, and filters are accepted when
    Spark passes them.

    Spark (up to at least 4.3) plans each use of a frame with a separate reader, but runs all uses with the
    reader that accepted filters last. A use with other conditions would then miss rows. So a frame accepts
    conditions only once. Spark does not report a use without conditions, so an option is needed: without it,
    no filters are accepted.
    """

    __func__ = ds.DataSourceReader.pushFilters

    def __init__(self, scan: ScanBuilder, frame: str) -> None:
        self._scan, self._frame = scan, frame

    @hiding_traceback()
    def __call__(self, filters: list[ds.Filter]) -> list[ds.Filter]:
        self._scan.push(filters)
        given = f"{self._frame}-{self._scan.conditions}"
        directory = Path(SparkFiles.getRootDirectory())
        _refuse_others(directory, self._frame, given, filters)
        (directory / given).write_text(_text(filters), encoding="utf-8")
        # Two workers may plan at the same time. Each continues after it has seen the result of the other.
        _refuse_others(directory, self._frame, given, filters)
        return filters


def _refuse_others(directory: Path, frame: str, given: str, filters: list[ds.Filter]) -> None:
    """Raises when the frame was given other conditions. They are in the directory that Spark keeps for the files of a session, which all
    workers that plan see, and which Spark removes."""
    others = [path for path in directory.glob(f"{frame}-*") if path.name != given]
    if others:
        before = others[0].read_text(encoding="utf-8")
        raise ConfigError(
            f"pushConditions: this frame has taken the conditions [{before}], and now there are others, [{_text(filters)}]; Spark would "
            "apply one of them to both uses. Load another frame for each condition, or leave pushConditions out"
        )


def _text(filters: list[ds.Filter]) -> str:
    return ", ".join(map(str, filters))
