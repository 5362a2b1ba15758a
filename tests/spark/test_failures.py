"""The error that a user of Spark reads: the cause, and no Python frames before it."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from functools import partial
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest
import quire
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from quire.spark import _failures
from support.waiting import PATIENCE

from spark import journals


def text_of(action: Callable[[], Any]) -> str:
    """The text of the error that it raises."""
    with pytest.raises(PySparkException) as error:
        action()
    return str(error.value)


def collect(reader: DataFrameReader, path: str) -> None:
    reader.load(path).collect()


def save(frame: DataFrame, path: str) -> None:
    frame.write.format("quire").mode("append").save(path)


def begins_with_the_cause(text: str) -> bool:
    """Whether nothing but a sentence of Spark comes before the error of quire, and no stack of
    quire after it."""
    found = re.search(r"quire\.[A-Z]\w*Error: |\[[a-z_]+\] ", text.strip())
    return (
        found is not None
        and text.strip().count("\n", 0, found.start()) <= 1
        and "Traceback" not in text
        and "at quire." not in text
    )


def test_an_error_of_a_read_begins_with_its_cause(read: Any, trades: Path, tmp_path: Path) -> None:
    for options, schema in (
        ({"topicz": "t"}, None),
        ({"filter": "/n >"}, None),
        ({"startingOffsets": "yesterday"}, None),
        ({}, "price decimal(10,2)"),
        ({}, "symbol string NOT NULL"),
    ):
        reader = read().options(**options)
        reader = reader if schema is None else reader.schema(schema)
        text = text_of(partial(collect, reader, str(trades)))
        assert begins_with_the_cause(text), text
    text = text_of(partial(collect, read(), str(tmp_path)))
    assert begins_with_the_cause(text), text


def test_an_error_of_a_write_begins_with_its_cause(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.range(3).selectExpr("if(id < 2, 't', null) AS topic", "'{}' AS data")
    for frame in (spark.range(3), rows):
        text = text_of(partial(save, frame, str(tmp_path / "j")))
        assert begins_with_the_cause(text), text
    journals.write(tmp_path / "j", [("t", {})])
    with quire.Journal(tmp_path / "j"):
        good = rows.where("topic = 't'")
        text = text_of(partial(save, good, str(tmp_path / "j")))
    assert begins_with_the_cause(text), text


@pytest.mark.parametrize(
    ("options", "schema"),
    [
        ({"filter": "/n >"}, "n int"),
        ({"startingOffsets": "yesterday"}, "n int"),
        ({}, "symbol string NOT NULL"),
    ],
)
@pytest.mark.usefixtures("reader")
def test_an_error_of_a_streaming_query_begins_with_its_cause(
    spark: SparkSession, trades: Path, tmp_path: Path, options: dict[str, str], schema: str
) -> None:
    reader = spark.readStream.format("quire").schema(schema)
    frame = reader.options(**{"startingOffsets": "earliest", **options}).load(str(trades))
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "c"))

    def run() -> None:
        writer.trigger(availableNow=True).start().awaitTermination(PATIENCE)

    with pytest.raises(StreamingQueryException) as error:
        run()
    assert begins_with_the_cause(str(error.value)), error.value


@pytest.mark.parametrize(
    "raised", [quire.ConfigError("path: no"), FileNotFoundError("no such file"), ValueError("x")]
)
@pytest.mark.parametrize("main", ["pyspark.daemon", "quire.spark._daemon", "app", None])
def test_a_worker_hides_the_traceback_of_errors_of_quire_and_of_the_system_only(
    monkeypatch: pytest.MonkeyPatch, raised: Exception, main: str | None
) -> None:
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", ModuleSpec(main, None) if main else None)
    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "")
    with pytest.raises(type(raised)), _failures.hiding_traceback():
        raise raised
    is_worker = main in ("pyspark.daemon", "quire.spark._daemon")
    assert bool(os.environ["SPARK_HIDE_TRACEBACK"]) == (is_worker and not isinstance(raised, ValueError))
