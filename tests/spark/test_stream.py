"""`spark.readStream.format("quire")`: nothing twice and nothing missed, over triggers, restarts and
a journal that grows or shrinks."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType
from quire import BadBookmarkError
from quire._quire import spark_frame
from quire.spark import _stream
from support.waiting import Deadline

from spark import journals
from spark.batches import Batches

pytestmark = pytest.mark.usefixtures("reader")


def batches_of(spark: SparkSession, checkpoint: Path, *paths: Path, **options: Any) -> Batches:
    """The positions of journals in directories."""
    options["paths"] = json.dumps([str(path) for path in paths])
    return Batches(
        spark,
        checkpoint,
        lambda frame: sorted(row.position for row in frame.collect()),
        options,
        schema="position long",
    )


def everything(count: int = journals.COUNT, first: int = 1) -> list[int]:
    return list(range(first, count + 1))


def test_batches_obey_their_limit_and_miss_nothing(spark: SparkSession, trades: Path, tmp_path: Path) -> None:
    batches = batches_of(
        spark, tmp_path, trades, startingOffsets="earliest", maxMessagesPerTrigger=1100, partitionBytes="64KB"
    )
    assert batches.run() == everything()
    assert [len(found) for found in batches.found.values()] == [1100, 1100, 800]
    assert batches.run() == everything(), "a restart with nothing new reads nothing"
    assert len(batches.found) == 3


def test_bytes_limit_a_batch(spark: SparkSession, trades: Path, tmp_path: Path) -> None:
    batches = batches_of(spark, tmp_path, trades, startingOffsets="earliest", maxBytesPerTrigger="200KB")
    assert batches.run() == everything()
    assert len(batches.found) > 1


def test_a_restart_goes_on_where_the_query_stopped(spark: SparkSession, tmp_path: Path) -> None:
    journals.write(tmp_path / "j", journals.trades(100))
    batches = batches_of(spark, tmp_path / "c", tmp_path / "j", startingOffsets="earliest")
    assert batches.run() == everything(100)
    journals.write(tmp_path / "j", journals.trades(50), name="later")
    batches.fails = True
    with pytest.raises(StreamingQueryException, match="this batch fails"):
        batches.run()
    journals.write(tmp_path / "j", journals.trades(25), name="latest")
    batches.fails = False
    assert batches.run() == everything(175)
    assert batches.found[1] == everything(150, 101), "the batch that failed has the same range again"


def test_a_first_batch_that_failed_begins_again_where_it_began(spark: SparkSession, tmp_path: Path) -> None:
    journals.write(tmp_path / "j", journals.trades(10))
    batches = batches_of(spark, tmp_path / "c", tmp_path / "j", startingOffsets="-3")
    batches.fails = True
    with pytest.raises(StreamingQueryException):
        batches.run()
    journals.write(tmp_path / "j", journals.trades(10), name="later")
    batches.fails = False
    assert batches.run() == everything(20, 8), "not three before the end as it is now"


def test_a_query_begins_with_what_comes_if_it_is_not_told_otherwise(
    spark: SparkSession, tmp_path: Path
) -> None:
    journals.write(tmp_path / "j", journals.trades(10))
    batches = batches_of(spark, tmp_path / "c", tmp_path / "j")
    assert batches.run() == []


def test_several_journals_share_the_limit(spark: SparkSession, tmp_path: Path) -> None:
    for name, count in (("a", 10), ("b", 50)):
        journals.write(tmp_path / name, journals.trades(count))
    batches = batches_of(
        spark,
        tmp_path / "c",
        tmp_path / "a",
        tmp_path / "b",
        startingOffsets="earliest",
        maxMessagesPerTrigger=30,
    )
    assert sorted(batches.run()) == sorted(everything(10) + everything(50))
    assert [len(found) for found in batches.found.values()] == [30, 30]


def test_a_running_query_follows_a_journal_that_grows(spark: SparkSession, tmp_path: Path) -> None:
    journals.write(tmp_path / "j", journals.trades(100))
    found: set[int] = set()
    frame = (
        spark.readStream.format("quire")
        .schema("position long")
        .option("startingOffsets", "earliest")
        .load(str(tmp_path / "j"))
    )

    def take(batch: DataFrame, _number: int) -> None:
        positions = [row.position for row in batch.collect()]
        assert not found & set(positions), "twice"
        found.update(positions)

    query = frame.writeStream.foreachBatch(take).trigger(processingTime="100 milliseconds").start()
    try:
        for round in range(3):
            journals.write(tmp_path / "j", journals.trades(400), name=f"writer-{round}")
            count, deadline = 100 + 400 * (round + 1), Deadline()
            # A trigger that looked before may still end with "nothing new" once.
            while len(found) < count and deadline.left:
                query.processAllAvailable()
            assert found == set(everything(count))
    finally:
        query.stop()


def test_removed_messages_are_an_error_or_a_stated_gap(
    spark: SparkSession, trades: Path, tmp_path: Path
) -> None:
    shutil.copytree(trades, tmp_path / "j")
    batches = batches_of(
        spark, tmp_path / "c", tmp_path / "j", startingOffsets="earliest", maxMessagesPerTrigger=10
    )
    batches.fails = True
    with pytest.raises(StreamingQueryException):
        batches.run()
    batches.fails = False
    journals.remove_oldest(tmp_path / "j", 1)
    with pytest.raises(StreamingQueryException, match="removed"):
        batches.run()
    lenient = batches_of(
        spark,
        tmp_path / "c",
        tmp_path / "j",
        startingOffsets="earliest",
        failOnDataLoss="false",
        maxMessagesPerTrigger=5000,
    )
    found = lenient.run()
    assert found == everything(journals.COUNT, found[0])
    assert 1 < found[0] < journals.COUNT


def test_another_journal_under_the_same_path_is_noticed(spark: SparkSession, tmp_path: Path) -> None:
    journals.write(tmp_path / "j", journals.trades(20))
    batches = batches_of(spark, tmp_path / "c", tmp_path / "j", startingOffsets="earliest")
    assert batches.run() == everything(20)
    shutil.rmtree(tmp_path / "j")
    journals.write(tmp_path / "j", journals.trades(40), name="another")
    with pytest.raises(StreamingQueryException, match="not the journal"):
        batches.run()


def test_a_checkpoint_that_was_made_with_a_server_is_refused(trades: Path) -> None:
    frame = spark_frame({"path": str(trades), "startingOffsets": "earliest"}, is_stream=True)
    reader = _stream.StreamReader(frame, StructType().add("position", "long"))
    of_a_server = {"v": 1, "from": "(0", "to": "(1|1|", "at": 1}
    with pytest.raises(BadBookmarkError, match="another source"):
        reader.latestOffset(of_a_server, reader.getDefaultReadLimit())


def test_a_stream_says_what_is_wrong_with_its_options(spark: SparkSession, trades: Path) -> None:
    with pytest.raises(PySparkException, match="maxMessagesPerTrigger"):
        spark.readStream.format("quire").option("maxMesagesPerTrigger", 1).load(str(trades))
