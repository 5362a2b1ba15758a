"""`df.write` and `df.writeStream`: every row is in the log once, after any failure and
repetition."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import quire
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from quire.spark import _sink
from quire.spark._options import WriteOptions
from quire.spark._staging import StagedBatch
from support.waiting import PATIENCE

from spark import journals


def rows(spark: SparkSession, count: int, partitions: int = 2) -> DataFrame:
    """Numbers as messages on `even` and `odd`."""
    return spark.range(0, count, 1, partitions).select(
        f.when(f.col("id") % 2 == 0, "even").otherwise("odd").alias("topic"),
        f.to_json(f.struct("id")).alias("data"),
    )


def written(directory: Path, topic: str | None = None) -> list[int]:
    with quire.Journal(directory, read_only=True) as journal:
        return [message.json()["id"] for message in journal.read(topic=topic)]


def test_a_frame_becomes_messages_in_its_order(spark: SparkSession, tmp_path: Path) -> None:
    rows(spark, 100).write.format("quire").mode("append").save(str(tmp_path / "j"))
    assert written(tmp_path / "j") == list(range(100))
    assert written(tmp_path / "j", "odd") == list(range(1, 100, 2))
    assert not list(tmp_path.glob("j.staging/*")), "nothing is left behind"


def test_columns_of_a_sink_are_found_whatever_the_case_of_their_names(
    spark: SparkSession, tmp_path: Path
) -> None:
    frame = rows(spark, 10).selectExpr("topic AS Topic", "data AS DATA", "'c-1' AS Correlation_Id")
    frame.write.format("quire").mode("append").save(str(tmp_path / "j"))
    assert written(tmp_path / "j", "odd") == list(range(1, 10, 2))
    with quire.Journal(tmp_path / "j", read_only=True) as journal:
        assert {message.correlation_id for message in journal.read()} == {"c-1"}
    with pytest.raises(PySparkException, match="column data: 2 columns have this name"):
        frame.selectExpr("*", "data AS data").write.format("quire").mode("append").save(str(tmp_path / "k"))
    both = frame.selectExpr("*", "topic AS topic").write.format("quire").mode("append")
    both.option("topic", "all").save(str(tmp_path / "k"))
    assert written(tmp_path / "k", "all") == list(range(10)), "the option wins"


def test_a_frame_goes_to_a_running_server(spark: SparkSession, tmp_path: Path) -> None:
    config = quire.Config(data_directory=tmp_path, transport={"address": "127.0.0.1:0"})
    with quire.Server(config) as server:
        frame = rows(spark, 50).select("data", f.lit("c-1").alias("correlation_id"))
        frame.write.format("quire").mode("append").options(
            url=server.url, topic="all", stagingDirectory=str(tmp_path / "staging")
        ).save()
        messages = list(server.journal.read(topic="all"))
    assert [message.json()["id"] for message in messages] == list(range(50))
    assert {message.correlation_id for message in messages} == {"c-1"}


def test_a_transaction_that_is_written_again_changes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    def write(count: int, transaction: str) -> None:
        rows(spark, count).write.format("quire").mode("append").option("txnId", transaction).save(
            str(tmp_path / "j")
        )

    write(10, "monday")
    write(10, "monday")
    write(20, "monday")
    assert written(tmp_path / "j") == list(range(10))
    write(5, "tuesday")
    assert len(written(tmp_path / "j")) == 15


def test_a_lost_staging_directory_is_an_error_and_no_repetition(spark: SparkSession, tmp_path: Path) -> None:
    def write(staging: str) -> None:
        options = {"txnId": "monday", "stagingDirectory": str(tmp_path / staging)}
        rows(spark, 10).write.format("quire").mode("append").options(**options).save(str(tmp_path / "j"))

    write("a")
    with pytest.raises(PySparkException, match="staging directory"):
        write("b")
    assert written(tmp_path / "j") == list(range(10))


def test_what_cannot_be_a_message_is_refused_before_anything_is_written(
    spark: SparkSession, tmp_path: Path
) -> None:
    def write(frame: DataFrame, mode: str = "append", **options: Any) -> None:
        frame.write.format("quire").mode(mode).options(**options).save(str(tmp_path / "j"))

    good = rows(spark, 10)
    for frame, message in (
        (spark.range(3), "column data"),
        (good.select("data"), "topic"),
        (good.withColumn("data", f.lit(1)), "column data: it is int"),
        (good.withColumn("correlation_id", f.lit(1)), "correlation_id"),
        (good.withColumn("topic", f.when(f.col("topic") == "odd", "odd")), "column topic: a row has NULL"),
    ):
        with pytest.raises(PySparkException, match=message):
            write(frame)
    with pytest.raises(PySparkException, match="append"):
        write(good, mode="overwrite")
    with pytest.raises(PySparkException, match="txnId"):
        write(good, txnID2="x")
    assert not (tmp_path / "j").exists()


@pytest.mark.parametrize(
    ("column", "text"),
    [
        ("topic", ""),
        ("topic", "ü" * 513),
        ("topic", "a\nb"),
        ("topic", "a\0"),
        ("topic", "a\x85b"),
        ("correlation_id", "x" * 256),
        ("topic", None),
    ],
)
def test_a_row_that_cannot_be_a_message_is_refused_before_any_other_is_published(
    spark: SparkSession, tmp_path: Path, column: str, text: str | None
) -> None:
    frame = rows(spark, 100, partitions=1).withColumn("correlation_id", f.lit("x" * 255))
    bad = frame.withColumn(column, f.when(f.col("data") == '{"id":70}', f.lit(text)).otherwise(f.col(column)))
    with pytest.raises(PySparkException, match=f"column {column}: a row has"):
        bad.write.format("quire").mode("append").save(str(tmp_path / "j"))
    assert not (tmp_path / "j").exists()
    assert not list(tmp_path.glob("j.staging/*")), "nothing is left behind"


@pytest.mark.parametrize("size", [(1 << 20), 17 << 20])
def test_a_row_above_the_limit_of_the_server_is_refused_before_any_other_is_published(
    spark: SparkSession, tmp_path: Path, size: int
) -> None:
    transport = {"address": "127.0.0.1:0", "max_message_size": "64KB" if size < 16 << 20 else "16MB"}
    config = quire.Config(data_directory=tmp_path / "data", transport=transport)
    with quire.Server(config) as server:

        def write(size: int) -> None:
            large = f.expr(f"concat('{{\"id\":', id, ',\"x\":\"', repeat('x', {size}), '\"}}')")
            data = f.when(f.col("id") == 3, large).otherwise(f.to_json(f.struct("id")))
            options = {
                "url": server.url,
                "topic": "t",
                "txnId": "monday",
                "stagingDirectory": str(tmp_path / "s"),
            }
            frame = spark.range(0, 5, 1, 1).select(data.alias("data"))
            frame.write.format("quire").mode("append").options(**options).save()

        with pytest.raises(PySparkException, match=r"column data: a row has \d+ bytes, the server takes"):
            write(size)
        assert not list(server.journal.read())
        # The rows of a batch that was refused are not those of the batch for ever.
        write(10)
        assert [message.json()["id"] for message in server.journal.read()] == list(range(5))


def test_a_write_without_an_identity_that_fails_leaves_nothing_behind(
    spark: SparkSession, tmp_path: Path
) -> None:
    journals.write(tmp_path / "j", [("t", {"id": 0})])
    with quire.Journal(tmp_path / "j"), pytest.raises(PySparkException, match="JournalLockedError"):
        rows(spark, 10).write.format("quire").mode("append").save(str(tmp_path / "j"))
    assert not list(tmp_path.glob("j.staging/*"))


def test_a_publisher_whose_name_is_too_long_is_refused_before_anything_is_staged(
    spark: SparkSession, tmp_path: Path
) -> None:
    frame = rows(spark, 10)
    with pytest.raises(PySparkException, match=r"publisher, txnId: .* 256 bytes"):
        frame.write.format("quire").mode("append").options(publisher="p" * 253, txnId="tx").save(
            str(tmp_path / "j")
        )
    with pytest.raises(quire.ConfigError, match=r"publisher: .* 256 bytes"):
        _sink.StreamWriter(WriteOptions(url="memory:", publisher="p" * 219), frame.schema, False)
    with pytest.raises(quire.BadTopicError, match=r"topic: .* 1024"):
        _sink.BatchWriter(WriteOptions(url="memory:", topic="x" * 1025), frame.schema, False)
    with pytest.raises(quire.BadTopicError, match=r"topic: .* control character"):
        _sink.BatchWriter(WriteOptions(url="memory:", topic="a\tb"), frame.schema, False)
    assert not list(tmp_path.iterdir())


class Copy:
    """A query from one journal into another."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self._spark, self._directory = spark, directory

    @property
    def target(self) -> Path:
        return self._directory / "target"

    def run(self, frame: DataFrame | None = None, **options: Any) -> None:
        """Copies what is there; the rows of a batch come in any order and number of tasks."""
        if frame is None:
            frame = (
                self._spark.readStream.format("quire")
                .options(startingOffsets="earliest", maxMessagesPerTrigger=700, partitionBytes="32KB")
                .load(str(self._directory / "source"))
                .select("topic", "data")
            )
        writer = frame.writeStream.format("quire").options(
            checkpointLocation=str(self._directory / "checkpoint"), **options
        )
        query = writer.trigger(availableNow=True).start(str(self.target))
        assert query.awaitTermination(PATIENCE)

    def numbers(self) -> Counter[int]:
        with quire.Journal(self.target, read_only=True) as journal:
            return Counter(message.json()["n"] for message in journal.read())


def test_a_query_copies_every_message_once(spark: SparkSession, tmp_path: Path) -> None:
    copy = Copy(spark, tmp_path)
    journals.write(tmp_path / "source", journals.trades(2000))
    copy.run()
    copy.run()
    assert copy.numbers() == Counter(range(2000))


def test_a_batch_whose_commit_was_forgotten_is_not_published_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    copy = Copy(spark, tmp_path)
    journals.write(tmp_path / "source", journals.trades(1000))
    copy.run()
    # As a crash between the commit of the sink and Spark's own log of it leaves the checkpoint.
    commits = tmp_path / "checkpoint" / "commits"
    last = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
    for path in commits.glob(f"*{last}*"):
        path.unlink()
    copy.run()
    assert copy.numbers() == Counter(range(1000))


def test_a_sink_only_appends(spark: SparkSession, tmp_path: Path) -> None:
    journals.write(tmp_path / "source", journals.trades(10))
    frame = (
        spark.readStream.format("quire")
        .option("startingOffsets", "earliest")
        .load(str(tmp_path / "source"))
        .groupBy("topic")
        .count()
        .selectExpr("topic", "to_json(struct(*)) AS data")
    )
    writer = frame.writeStream.format("quire").option("checkpointLocation", str(tmp_path / "checkpoint"))
    with pytest.raises(StreamingQueryException, match="append"):
        writer.outputMode("complete").trigger(availableNow=True).start(
            str(tmp_path / "target")
        ).awaitTermination(PATIENCE)


def test_a_batch_is_what_its_first_manifest_says(tmp_path: Path) -> None:
    import pyarrow as pa

    def stage(*ids: int) -> Any:
        batch = StagedBatch(tmp_path, "sink/query", "7")
        table = pa.record_batch(
            [[json.dumps({"id": number}) for number in ids]], schema=pa.schema([("data", pa.string())])
        )
        return batch, [batch.write(0, [table], table.schema)]

    def ids(batch: StagedBatch, parts: Any) -> list[int]:
        return [json.loads(text)["id"] for rows in batch.read(parts) for text in rows.column(0).to_pylist()]

    batch, parts = stage(1, 2, 3)
    assert ids(batch, batch.settle(parts)) == [1, 2, 3]
    again, others = stage(3, 1)
    assert ids(again, again.settle(others)) == [1, 2, 3], "the second run publishes what the first one did"
    assert len(list(tmp_path.rglob("part-*"))) == 1
    again.discard(parts)
    assert ids(again, again.settle(others)) == [1, 2, 3], "what is settled is not discarded"
    next(tmp_path.rglob("part-*")).write_bytes(b"damage")
    with pytest.raises(quire.QuireError, match="not what the task wrote"):
        ids(again, parts)


def test_nothing_of_a_batch_is_given_when_one_of_its_parts_is_damaged(tmp_path: Path) -> None:
    import pyarrow as pa

    batch = StagedBatch(tmp_path, "sink", "batch")
    rows = pa.record_batch([["one", "two"]], names=["data"])
    parts = batch.settle([batch.write(partition, [rows], rows.schema) for partition in range(9)])
    assert sum(rows.num_rows for rows in batch.read(parts)) == 18
    path = next(tmp_path.rglob(parts[-1].name))
    path.write_bytes(path.read_bytes().replace(b"two", b"six"))
    given = batch.read(parts)
    with pytest.raises(quire.QuireError, match=f"{path.name}: it is not what the task wrote"):
        next(given)
    batch.discard_parts()
    assert not list(tmp_path.rglob("part-*"))


def test_a_publish_that_stops_anywhere_is_completed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pyarrow as pa

    options = WriteOptions(url=f"file:{tmp_path / 'j'}", staging=str(tmp_path / "staging"))
    batch = StagedBatch(options.staging_directory, "spark/query", "3")
    schema = pa.schema([("topic", pa.string()), ("data", pa.binary()), ("correlation_id", pa.string())])
    data = [json.dumps({"id": number}).encode() for number in range(100)]
    table = pa.record_batch([["t"] * 100, data, [None] * 100], schema=schema)
    parts = [batch.write(0, [table], schema)]
    send = _sink._send

    def stops(client: quire.Client, batches: Any, first: int, deadline: float) -> None:
        send(client, [next(iter(batches)).slice(0, 40)], first, deadline)
        client.flush(timeout=PATIENCE)
        raise KeyboardInterrupt

    monkeypatch.setattr(_sink, "_send", stops)
    with pytest.raises(KeyboardInterrupt):
        _sink._publish(options, "spark/query", batch, parts, 3 << 32)
    assert written(tmp_path / "j") == list(range(40))
    monkeypatch.setattr(_sink, "_send", send)
    _sink._publish(options, "spark/query", batch, [], 3 << 32)
    _sink._publish(options, "spark/query", batch, [], 3 << 32)
    assert written(tmp_path / "j") == list(range(100))


def test_headers_are_written_read_and_copied(spark: SparkSession, tmp_path: Path) -> None:
    sql = "SELECT 't' AS topic, to_json(struct(id)) AS data, IF(id = 1, NULL, map('n', CAST(id AS STRING))) AS headers"
    frame = spark.sql(f"{sql} FROM range(0, 3, 1, 1)")
    frame.write.format("quire").mode("append").save(str(tmp_path / "a"))
    read = spark.read.format("quire").option("includeHeaders", "true").load(str(tmp_path / "a"))
    assert dict(read.dtypes)["headers"] == "map<string,binary>"
    found = [row.headers for row in read.orderBy("position").collect()]
    assert found == [{"n": bytearray(b"0")}, None, {"n": bytearray(b"2")}]
    assert read.where("CAST(headers['n'] AS STRING) = '2'").count() == 1
    assert "headers" not in spark.read.format("quire").load(str(tmp_path / "a")).columns
    # A frame that was read is written as it is, its bytes and all.
    raw = read.selectExpr("topic", "data", "map('raw', unhex('ff00')) AS headers")
    raw.write.format("quire").mode("append").save(str(tmp_path / "b"))
    quire.spark.replay(spark, str(tmp_path / "a"), f"file:{tmp_path / 'c'}", name="copy")
    with (
        quire.Journal(tmp_path / "b", read_only=True) as b,
        quire.Journal(tmp_path / "c", read_only=True) as c,
    ):
        assert [message.headers for message in b.read()] == [{"raw": b"\xff\x00"}] * 3
        assert [message.headers for message in c.read()] == [{"n": "0"}, {}, {"n": "2"}]


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        ("map('', 'x')", "a name has 1 to 255"),
        ("map('a', CAST(NULL AS STRING))", "must be text or bytes"),
        ("map('a', 1)", "column headers: it is map<string,int>"),
    ],
)
def test_headers_that_no_message_can_have_fail_the_write(
    spark: SparkSession, tmp_path: Path, headers: str, reason: str
) -> None:
    frame = rows(spark, 3).selectExpr("*", f"{headers} AS headers")
    with pytest.raises(PySparkException, match=reason):
        frame.write.format("quire").mode("append").save(str(tmp_path / "j"))
