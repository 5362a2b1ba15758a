"""`format("quire")` with `url`: the log of a running server, in batches and in streams, as it is
read from its directory."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import quire
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from quire.testing import ServerProcess
from support.waiting import PATIENCE, Deadline

from spark import journals
from spark.batches import Batches

#: More than a range that is one task.
MANY = 60_000


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data directory of `server`."""
    return tmp_path_factory.mktemp("server")


@pytest.fixture(scope="module")
def server(data: Path) -> Iterator[ServerProcess]:
    """Has `journals.trades()`. Nothing more is published to it."""
    with ServerProcess(data) as process:
        publish(process.url, journals.trades())
        yield process


def publish(url: str, messages: list[tuple[str, Any]], *, name: str = journals.NAME) -> None:
    with quire.Client(url, name=name) as client:
        for topic, data in messages:
            client.publish(topic, data)
        client.flush(PATIENCE)


def begin_anew(process: ServerProcess, directory: Path) -> None:
    """Another log, at the same address."""
    process.kill()
    shutil.rmtree(directory)
    process.start()


def sequences(frame: DataFrame) -> list[int]:
    return sorted(row.sequence for row in frame.select("sequence").collect())


def test_a_server_gives_the_rows_of_its_directory(read: Any, server: ServerProcess, data: Path) -> None:
    by_url = read().option("url", server.url).load()
    by_path = read().load(str(data)).drop("position", "message_type")
    assert by_url.columns == by_path.columns
    assert by_url.count() == journals.COUNT
    assert sorted(map(tuple, by_url.collect())) == sorted(map(tuple, by_path.collect()))


def test_fields_topics_and_filters(read: Any, server: ServerProcess) -> None:
    def count(schema: str = "sequence long", where: str = "true", **options: Any) -> int:
        counts = []
        for takes in ("false", "true"):
            reader = read().options(url=server.url, pushConditions=takes, **options).schema(schema)
            counts.append(int(reader.load().where(where).count()))
        assert counts[0] == counts[1], "with conditions handed over and without"
        return counts[0]

    assert count(topics="rare, trades/0") == 30 + 990
    assert count(topicPrefix="trades/") == journals.COUNT - 30
    assert count(topicPattern="^(rare|.*/1)$") == 30 + 990
    assert count(filter="/order/qty = 3 AND /symbol = 'IBM'") == len(
        [n for n in range(journals.COUNT) if n % 7 == 3 and n % 4 == 0]
    )
    assert count("topic string, n int", "topic = 'rare' AND n < 1000") == 10
    assert count("topic string", "topic IN ('rare', 'trades/0') AND topic LIKE 'r%'") == 30
    assert count("order struct<qty: byte>, symbol string", "order.qty = 3 AND symbol IS NULL") == len(
        [n for n in range(journals.COUNT) if n % 7 == 3 and n % 4 == 3]
    )


def test_ranges_begin_and_end_where_the_options_say(read: Any, server: ServerProcess) -> None:
    def found(**options: Any) -> list[int]:
        return sequences(read().options(url=server.url, **options).load())

    everything = read().option("url", server.url).load().orderBy("sequence").collect()
    count = journals.COUNT
    assert found(startingOffsets="latest") == found(endingOffsets="earliest") == []
    assert found(startingOffsets=everything[99].bookmark, endingOffsets=everything[199].bookmark) == list(
        range(101, 201)
    )
    assert found(startingOffsets="-10 days") == list(range(1, count + 1))
    assert found(startingOffsets="2000-01-01T00:00:00Z", endingOffsets="now") == list(range(1, count + 1))
    assert found(startingOffsets="epoch", endingOffsets="2000-01-01") == []
    assert found(startingTimestamp="2020-01-01", endingTimestamp="2100-01-01") == list(range(1, count + 1))
    assert found(endingTimestamp="2020-01-01") == []
    assert found(startingTimestamp="2100-01-01", timestampStrategy="latest") == []
    middle = everything[1500]
    after = [row.sequence for row in everything if row.timestamp >= middle.timestamp]
    until = [row.sequence for row in everything if row.timestamp_ns <= middle.timestamp_ns // 1000 * 1000]
    instant = middle.timestamp.astimezone(UTC).isoformat()
    assert found(startingTimestamp=instant) == after
    assert found(endingTimestamp=instant) == until
    assert found(startingTimestamp=instant, endingTimestamp="2020-01-01") == []


def test_many_messages_are_many_tasks_and_each_comes_once(read: Any, tmp_path: Path) -> None:
    with ServerProcess(tmp_path) as process:
        assert read().option("url", process.url).load().count() == 0
        publish(process.url, [(f"t/{n % 5}", {"n": n}) for n in range(MANY)])
        frame = read().options(url=process.url, minPartitions=4).schema("n int, sequence long").load()
        assert frame.rdd.getNumPartitions() > 1
        assert sequences(frame) == list(range(1, MANY + 1))
        publish(process.url, [("t/0", {"n": -1})])
        assert frame.count() == MANY, "a frame is a snapshot"
        small = read().options(url=process.url, minPartitions=4, topics="t/9").load()
        assert (small.rdd.getNumPartitions(), small.count()) == (1, 0)


@pytest.mark.parametrize(
    ("options", "schema", "message"),
    [
        ({"url": "quire://127.0.0.1:1"}, None, "127.0.0.1:1"),
        ({"url": "http://127.0.0.1:1"}, None, "quire://host:port"),
        ({"path": "/tmp"}, None, "exactly one"),
        ({"archiveDirectory": "/tmp"}, None, "archiveDirectory"),
        ({"includeQueueEvents": "true"}, None, "includeQueueEvents"),
        ({"startingOffsets": "-10"}, None, "how many"),
        ({"startingOffsets": "1|1|"}, None, "does not have"),
        ({"startingOffsets": "yesterday"}, None, "yesterday"),
        ({"startingTimestamp": "2100-01-01"}, None, "timestampStrategy"),
        ({"filter": "/n >"}, None, "filter: '/n >': .*column 5"),
        ({"topicPattern": "("}, None, "topics"),
        ({}, "position long", "position"),
    ],
)
def test_what_cannot_be_is_refused_with_its_name(
    read: Any, server: ServerProcess, options: dict[str, str], schema: str | None, message: str
) -> None:
    reader = read().options(**{"url": server.url, **options})
    if schema is not None:
        reader = reader.schema(schema)
    with pytest.raises(PySparkException, match=message):
        reader.load().first()


def test_another_log_under_the_same_url_is_noticed(read: Any, tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "a") as process:
        publish(process.url, journals.trades(100))
        frame = read().option("url", process.url).load()
        lenient = read().options(url=process.url, failOnDataLoss="false").load()
        assert frame.count() == 100
        begin_anew(process, tmp_path / "a")
        publish(process.url, journals.trades(200), name="another")
        with pytest.raises(PySparkException, match="does not have all"):
            frame.count()
        assert lenient.count() == 0


def batches_of(spark: SparkSession, checkpoint: Path, url: str, **options: Any) -> Batches:
    """The sequences of the journal of a server."""
    return Batches(spark, checkpoint, sequences, {"url": url, **options})


def test_a_stream_reads_everything_once_within_its_limits(spark: SparkSession, tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "s") as process:
        publish(process.url, journals.trades(250))
        batches = batches_of(
            spark, tmp_path / "c", process.url, startingOffsets="earliest", maxMessagesPerTrigger=100
        )
        assert batches.run() == list(range(1, 251))
        assert [len(found) for found in batches.found.values()] == [100, 100, 50]
        assert batches.run() == list(range(1, 251)), "a restart with nothing new reads nothing"
        publish(process.url, journals.trades(50))
        batches.fails = True
        with pytest.raises(StreamingQueryException, match="this batch fails"):
            batches.run()
        process.kill()
        process.start()
        publish(process.url, journals.trades(50))
        batches.fails = False
        assert batches.run() == list(range(1, 351))
        assert batches.found[3] == list(range(251, 301)), "the batch that failed has the same range again"


def test_a_first_batch_that_failed_begins_again_where_it_began(spark: SparkSession, tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "s") as process:
        publish(process.url, journals.trades(10))
        begun = datetime.now(UTC).isoformat()
        publish(process.url, journals.trades(5))
        batches = batches_of(
            spark, tmp_path / "c", process.url, startingTimestamp=begun, topicPrefix="trades/"
        )
        batches.fails = True
        with pytest.raises(StreamingQueryException):
            batches.run()
        publish(process.url, journals.trades(3))
        batches.fails = False
        # The first of each run is on another topic.
        assert batches.run() == [12, 13, 14, 15, 17, 18]
        assert len(batches.found) == 2


def test_a_running_query_follows_the_server(spark: SparkSession, tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "s") as process:
        publish(process.url, journals.trades(20))
        found: list[int] = []
        frame = spark.readStream.format("quire").options(url=process.url, maxBytesPerTrigger="20KB").load()
        query = (
            frame.writeStream.foreachBatch(lambda batch, _number: found.extend(sequences(batch)))
            .option("checkpointLocation", str(tmp_path / "c"))
            .trigger(processingTime="100 milliseconds")
            .start()
        )
        try:
            query.processAllAvailable()
            for round in range(1, 3):
                publish(process.url, journals.trades(300))
                deadline = Deadline()
                # A trigger that asked the server before may still end with "nothing new" once.
                while len(found) < 300 * round and deadline.left:
                    query.processAllAvailable()
                assert found == list(range(21, 21 + 300 * round)), "what comes, and nothing from before"
        finally:
            query.stop()


def test_another_log_under_the_url_of_a_query_is_noticed(spark: SparkSession, tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "a") as process:
        publish(process.url, journals.trades(20))
        batches = batches_of(spark, tmp_path / "c", process.url, startingOffsets="earliest")
        assert batches.run() == list(range(1, 21))
        begin_anew(process, tmp_path / "a")
        # The same bookmarks: only the times tell them apart.
        publish(process.url, journals.trades(40))
        with pytest.raises(StreamingQueryException, match="not the journal"):
            batches.run()
