"""The format `quire`: the classes that Spark calls."""

from __future__ import annotations

import json
import sys
import uuid
from collections.abc import MutableMapping
from typing import TYPE_CHECKING

from pyspark.sql import datasource as ds
from pyspark.sql import types as t

from quire._errors import DisconnectedError, QuireError
from quire.spark import _jar
from quire.spark._failures import hiding_traceback

if TYPE_CHECKING:
    from quire.spark._server import ServerRange

# Spark imports this module in every worker: the compiled core, pyarrow and the rest are imported
# where used.
_main = sys.modules["__main__"]
if _main.__spec__ is not None and _main.__spec__.name == "pyspark.daemon":
    from quire.spark import _daemon

    _daemon.adopt(_main)

#: Options that only a sink has: no journal is searched for it.
_OF_A_SINK = frozenset(
    {"topic", "txnid", "sinkepoch", "stagingdirectory", "flushtimeout", "checkpointlocation"}
)


class QuireDataSource(ds.DataSource):
    """Messages of journals or of a server as rows, and rows as messages."""

    @hiding_traceback()
    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        #: The name of the frame: all that Spark plans for it has this object.
        self._name = uuid.uuid4().hex
        #: The frame of the core, and the range of a server.
        self._frame: tuple[str, ServerRange | None] | None = None
        if not _OF_A_SINK & {key.lower() for key in options}:
            # Here, because Spark keeps this object for the life of the frame: two actions on it
            # read the same. What is wrong is said when the frame is read: it may as well be a sink,
            # whose directory is made by the write. A server that does not answer would not answer
            # that either.
            try:
                self._frame = self._snapshot()
            except (DisconnectedError, TimeoutError):
                raise
            except (QuireError, OSError):
                pass

    @classmethod
    def name(cls) -> str:
        return "quire"

    @hiding_traceback()
    def schema(self) -> t.StructType:
        from quire._quire import spark_schema

        frame, _ = self._frame or self._snapshot()  # says what is wrong
        return t.StructType.fromJson(json.loads(spark_schema(frame)))

    @hiding_traceback()
    def reader(self, schema: t.StructType) -> ds.DataSourceReader:
        _jar.check_choice(self.options)
        frame, server_range = self._frame or self._snapshot()
        if server_range is not None:
            from quire.spark._server_batch import ServerReader

            return ServerReader(frame, schema, server_range, self._name)
        from quire.spark._batch import BatchReader

        takes_conditions = json.loads(frame)["options"]["takes_conditions"]
        return BatchReader(frame, schema, self._name, takes_conditions)

    def streamReader(self, schema: t.StructType) -> ds.DataSourceStreamReader:
        try:
            return self._stream_reader(schema)
        except (QuireError, OSError) as error:
            from quire.spark._stream import FailedStreamReader

            return FailedStreamReader(error)

    def _stream_reader(self, schema: t.StructType) -> ds.DataSourceStreamReader:
        from quire._quire import spark_frame

        _jar.check_choice(self.options)
        frame = spark_frame(dict(self.options), is_stream=True)
        if json.loads(frame)["options"]["url"] is not None:
            from quire.spark._server_stream import ServerStreamReader

            return ServerStreamReader(frame, schema)
        from quire.spark._stream import StreamReader

        return StreamReader(frame, schema)

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

    def _snapshot(self) -> tuple[str, ServerRange | None]:
        from quire._quire import spark_frame
        from quire.spark._options import options_of

        frame = spark_frame(dict(self.options))
        options = options_of(json.loads(frame)["options"])
        if options.url is None:
            return frame, None
        from quire.spark import _server

        with _server.Connection(options) as connection:
            return frame, _server.span(connection, options)
