"""A streaming query whose batches are kept, for tests that check the messages of each batch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from support.waiting import PATIENCE


class Batches:
    """A query that collects its batches as lists of what `numbers` takes from each, until it has
    read what is there."""

    def __init__(
        self,
        spark: SparkSession,
        checkpoint: Path,
        numbers: Callable[[DataFrame], list[int]],
        options: dict[str, Any],
        *,
        schema: str | None = None,
    ) -> None:
        self._spark, self._checkpoint, self._options = spark, checkpoint, options
        self._numbers, self._schema = numbers, schema
        #: By batch, all runs together; a batch that is run again replaces itself.
        self.found: dict[int, list[int]] = {}
        #: The next batch raises.
        self.fails = False

    def run(self) -> list[int]:
        """Runs until nothing is left; gives what all runs found."""
        reader = self._spark.readStream.format("quire").options(**self._options)
        frame = (reader if self._schema is None else reader.schema(self._schema)).load()
        writer = frame.writeStream.foreachBatch(self._take).option(
            "checkpointLocation", str(self._checkpoint)
        )
        query = writer.trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(PATIENCE)
        finally:
            query.stop()
        return [number for batch in sorted(self.found) for number in self.found[batch]]

    def _take(self, frame: DataFrame, batch: int) -> None:
        if self.fails:
            raise RuntimeError("this batch fails")
        self.found[batch] = self._numbers(frame)
