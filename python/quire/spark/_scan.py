"""The scan that a frame, a schema and the filters of a read ask of the core."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark import SparkFiles
from pyspark.sql import datasource as ds
from pyspark.sql import types as t

from quire._errors import BadFilterError, ConfigError
from quire._quire import SparkRead, spark_scan
from quire.journal._arrow import RecordBatches
from quire.spark import _pushdown
from quire.spark._failures import hiding_traceback

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger("quire.spark")


class Task(ds.InputPartition):
    """The part of a read for one task: a text of the core."""

    def __init__(self, task: str) -> None:
        super().__init__(task)


class ScanBuilder:
    """Checked as soon as it is made: a mistake is the driver's to show, not that of a task."""

    def __init__(self, frame: str, schema: t.StructType) -> None:
        self._frame = frame
        self._schema = schema.json()
        self._conditions: list[dict[str, Any]] = []
        self.read.spec()

    def push(self, filters: Sequence[ds.Filter]) -> None:
        """Leaves rows out early that do not pass."""
        self._conditions = [_pushdown.condition(filter) for filter in filters]

    @property
    def text(self) -> str:
        """The read as the core takes it."""
        conditions = json.dumps(self._conditions)
        return f'{{"frame": {self._frame}, "schema": {self._schema}, "conditions": {conditions}}}'

    @property
    def read(self) -> SparkRead:
        """The read."""
        return SparkRead(self.text)

    @property
    def conditions(self) -> str:
        """A name for the filters: the same for the same ones in any order."""
        conditions = sorted(json.dumps(condition, sort_keys=True) for condition in self._conditions)
        return hashlib.sha256("\n".join(conditions).encode()).hexdigest()[:32]

    def tasks(self) -> list[Task]:
        """Cuts the read into tasks."""
        return tasks_of(*self.read.plan())


def tasks_of(tasks: Sequence[str], warnings: Sequence[str]) -> list[Task]:
    """The tasks of a plan, of which the warnings are logged."""
    for warning in warnings:
        log.warning("%s", warning)
    return list(map(Task, tasks))


def scan(task: ds.InputPartition) -> Iterator[pa.RecordBatch]:
    """Yields the batches of a task. An unreadable message is an error, or logged if it may be skipped."""
    # Without a partition, Spark passes an empty one.
    if not isinstance(task.value, str):
        return
    with hiding_traceback():
        directory = json.loads(task.value)["range"]["directory"]
        yield from RecordBatches(spark_scan(task.value), partial(_tell, directory))


def _tell(directory: str, first: int, last: int, reason: str) -> None:
    log.warning("%s: messages %d to %d are left out: %s", directory, first, last, reason)


def in_filter(error: BadFilterError, text: str | None) -> BadFilterError:
    """The error with the option and its text before it."""
    return BadFilterError(f"filter: {text!r}: {error.reason}", code=error.code, column=error.column)


class PushFilters:
    """Replaces the method `pushFilters` of a reader.

    Spark refuses a reader that overrides this method while pushdown is switched off, which is the
    default. With this object as an attribute of the instance, no method is overridden, and filters
    are accepted when Spark passes them.

    Spark (up to at least 4.3) plans each use of a frame with a separate reader, but runs all uses
    with the reader that accepted filters last. A use with other conditions would then miss rows. So
    a frame accepts conditions only once. Spark does not report a use without conditions, so an
    option is needed: without it, no filters are accepted.
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
        # Two workers may plan at the same time. Each continues after it has seen the result of the
        # other.
        _refuse_others(directory, self._frame, given, filters)
        return filters


def _refuse_others(directory: Path, frame: str, given: str, filters: list[ds.Filter]) -> None:
    """Raises when the frame was given other conditions. They are in the directory that Spark keeps
    for the files of a session, which all workers that plan see, and which Spark removes."""
    others = [path for path in directory.glob(f"{frame}-*") if path.name != given]
    if others:
        before = others[0].read_text(encoding="utf-8")
        raise ConfigError(
            f"pushConditions: this frame has taken the conditions [{before}], and now there are others, [{_text(filters)}]; Spark would "
            "apply one of them to both uses. Load another frame for each condition, or leave pushConditions out"
        )


def _text(filters: list[ds.Filter]) -> str:
    return ", ".join(map(str, filters))
