"""The format `quire`: where Spark comes in."""

from __future__ import annotations

import sys
import uuid
from collections.abc import MutableMapping
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql import datasource as ds
from pyspark.sql import types as t

from quire._errors import ConfigError, DisconnectedError, QuireError
from quire.spark import _jar
from quire.spark._failures import hiding_traceback

if TYPE_CHECKING:
    from quire.spark._directory import Range
    from quire.spark._options import ReadOptions
    from quire.spark._server import ServerRange

# Spark imports this module in every worker: the compiled core, pyarrow and the rest are imported where used.
_main = sys.modules["__main__"]
if _main.__spec__ is not None and _main.__spec__.name == "pyspark.daemon":
    from quire.spark import _daemon

    _daemon.adopt(_main)

#: Options that only a sink has: nothing is looked up for it.
_OF_A_SINK = frozenset(
    {"topic", "txnid", "sinkepoch", "stagingdirectory", "flushtimeout", "checkpointlocation"}
)


class QuireDataSource(ds.DataSource):
    """Messages of journals or of a server as rows, and rows as messages."""

    @hiding_traceback()
    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        #: The name of the frame: all that Spark plans for it has this object.
        self._frame = uuid.uuid4().hex
        self._ranges: list[Range] | ServerRange | None = None
        if not _OF_A_SINK & {key.lower() for key in options}:
            # Here, because Spark keeps this object for the life of the frame: two actions on it read the same. What is wrong is said when
            # the frame is read: it may as well be a sink, whose directory is made by the write. A server that does not answer would not
            # answer that either.
            try:
                self._ranges = self._snapshot(self._read_options())
            except (DisconnectedError, TimeoutError):
                raise
            except (QuireError, OSError):
                pass

    @classmethod
    def name(cls) -> str:
        return "quire"

    @hiding_traceback()
    def schema(self) -> str:
        from quire.spark._columns import ddl

        options = self._read_options()
        if self._ranges is None:
            self._snapshot(options)  # says what is wrong
        return ddl(options)

    @hiding_traceback()
    def reader(self, schema: t.StructType) -> ds.DataSourceReader:
        _jar.check_choice(self.options)
        options = self._read_options()
        ranges = self._ranges if self._ranges is not None else self._snapshot(options)
        if isinstance(ranges, list):
            from quire.spark._batch import BatchReader

            return BatchReader(options, schema, ranges, self._frame)
        from quire.spark._server_batch import ServerReader

        return ServerReader(options, schema, ranges, self._frame)

    def streamReader(self, schema: t.StructType) -> ds.DataSourceStreamReader:
        try:
            return self._stream_reader(schema)
        except (QuireError, OSError) as error:
            from quire.spark._stream import FailedStreamReader

            return FailedStreamReader(error)

    def _stream_reader(self, schema: t.StructType) -> ds.DataSourceStreamReader:
        from quire.spark._options import LATEST

        _jar.check_choice(self.options)
        given = {key.lower() for key in self.options}
        # A query that was not told where to begin begins with what comes.
        options = self._read_options()
        if options.last_values is not None:
            raise ConfigError(
                "lastValues: spark.read has it, spark.readStream does not; a query over the stream gets each change, "
                "also with includeDeletes"
            )
        if "startingoffsets" not in given:
            options = replace(options, starting=LATEST)
        if options.url is not None:
            from quire.spark._server_stream import ServerStreamReader

            return ServerStreamReader(options, schema)
        from quire.spark._stream import StreamReader

        return StreamReader(options, schema)

    @hiding_traceback()
    def writer(self, schema: t.StructType, overwrite: bool) -> ds.DataSourceWriter:
        from quire.spark._options import write_options
        from quire.spark._sink import BatchWriter

        return BatchWriter(write_options(self.options), schema, overwrite)

    @hiding_traceback()
    def streamWriter(self, schema: t.StructType, overwrite: bool) -> ds.DataSourceStreamWriter:
        from quire.spark._options import write_options
        from quire.spark._sink import StreamWriter

        return StreamWriter(write_options(self.options), schema, overwrite)

    def _read_options(self) -> ReadOptions:
        from quire.spark._options import read_options

        return read_options(self.options)

    def _snapshot(self, options: ReadOptions) -> list[Range] | ServerRange:
        if options.url is not None:
            from quire.spark import _server

            with _server.Connection(options) as connection:
                return _server.span(connection, options)
        from quire.spark._directory import locate, span

        return [span(locate(directory), options) for directory in options.directories]
