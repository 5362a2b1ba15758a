"""The format `quire`: where Spark comes in."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import TYPE_CHECKING

from pyspark.sql import datasource as ds
from pyspark.sql import types as t

if TYPE_CHECKING:
    from quire.spark._directory import Range
    from quire.spark._options import ReadOptions

# Spark imports this module in every worker: what needs the compiled core, pyarrow or the rest is imported where it is used.

#: Options that only a sink has: nothing is looked up for it.
_OF_A_SINK = frozenset({"topic", "txnid", "sinkepoch", "stagingdirectory", "flushtimeout"})


class QuireDataSource(ds.DataSource):
    """Messages of journals or of a server as rows, and rows as messages."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._ranges: list[Range] | None = None
        if self._is_readable():
            # Here, because Spark keeps this object for the life of the frame: two actions on it read the same.
            self._ranges = self._snapshot(self._read_options())

    @classmethod
    def name(cls) -> str:
        return "quire"

    def schema(self) -> str:
        from quire.spark._columns import ddl

        return ddl(self._read_options().fields)

    def reader(self, schema: t.StructType) -> ds.DataSourceReader:
        from quire.spark._batch import BatchReader

        options = self._read_options()
        ranges = self._ranges if self._ranges is not None else self._snapshot(options)
        return BatchReader(options, schema, ranges)

    def _read_options(self) -> ReadOptions:
        from quire.spark._options import read_options

        return read_options(self.options)

    def _is_readable(self) -> bool:
        from quire._errors import ConfigError

        if _OF_A_SINK & {key.lower() for key in self.options}:
            return False
        try:
            self._read_options()
        except ConfigError:
            return False  # schema() or reader() says so; a sink has other options
        return True

    def _snapshot(self, options: ReadOptions) -> list[Range]:
        from quire.spark._directory import locate, span

        return [span(locate(directory), options) for directory in options.directories]
