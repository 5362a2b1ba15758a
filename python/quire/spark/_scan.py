"""The scan that the options, the schema and the filters of a read ask of the Rust core."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

from pyspark.sql import datasource as ds
from pyspark.sql import types as t

from quire._quire import check_scan
from quire.spark import _columns, _pushdown
from quire.spark._options import ReadOptions


class ScanBuilder:
    """Checked as soon as it is made: a mistake is the driver's to show, not that of a task."""

    def __init__(self, options: ReadOptions, schema: t.StructType) -> None:
        self._options = options
        self._schema = schema
        self._spec: dict[str, Any] = {
            "columns": _columns.sources(schema, options),
            "topics": options.topics,
            "filter": options.filter,
            "includes_events": options.includes_events,
            "skips_damage": not options.fail_on_data_loss,
            "batch_rows": options.batch_rows,
            "batch_bytes": options.batch_bytes,
            "now_ns": time.time_ns(),
        }
        check_scan(self.spec)

    def push(self, filters: Sequence[ds.Filter]) -> None:
        """Leaves rows out early that do not pass."""
        self._spec["predicates"] = _pushdown.predicates(filters, self._schema, self._options)

    @property
    def spec(self) -> str:
        """What `ArrowReader` takes."""
        return json.dumps(self._spec)
