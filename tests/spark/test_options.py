"""Options that no test of their subject needs: each does what docs/spark.md says."""

from __future__ import annotations

import json
import shutil
from datetime import datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import quire
import quire.testing
from hypothesis import assume, given
from hypothesis import strategies as st
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from pyspark.sql import types as t
from quire._bookmarks import time_ns
from quire._quire import spark_frame
from quire.spark import _sink
from quire.spark._batch import BatchReader
from quire.spark._options import read_options, write_options
from quire.testing import ServerProcess
from support.waiting import PATIENCE

from spark import journals


def span(**options: str) -> tuple[int, int]:
    """The range that a read covers: after and limit."""
    (found,) = json.loads(spark_frame(options))["ranges"]
    return found["after"], found["limit"]


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("2026-01-02T03:04:05.123456789Z", 1_767_323_045_123_456_789),
        ("2026-01-02T04:04:05.1234567+01:00", 1_767_323_045_123_456_700),
        ("2026-01-02 03:04:05.12", 1_767_323_045_120_000_000),
        ("2999-01-01", (1 << 63) - 1),
        ("9" * 30, (1 << 63) - 1),
    ],
)
def test_a_time_is_read_to_the_nanosecond(trades: Path, text: str, ns: int) -> None:
    given = {"path": str(trades), "endingTimestamp": text}
    assert read_options(given).ending_ns == ns
    assert span(**given)[1] == (journals.COUNT if ns == (1 << 63) - 1 else 0)


@given(st.datetimes(datetime(1970, 1, 2), datetime(2553, 12, 30)), st.timezones() | st.none())
def test_the_core_reads_times_as_python_does(moment: datetime, zone: tzinfo | None) -> None:
    at = moment if zone is None else moment.replace(tzinfo=zone)
    assume((at.utcoffset() or timedelta()) % timedelta(seconds=1) == timedelta())
    for text in (
        at.isoformat(),
        at.isoformat(" "),
        at.isoformat(timespec="seconds"),
        at.strftime("%Y%m%dT%H%M%S.%fZ"),
    ):
        expected = time_ns(text)
        assert expected is not None
        assert read_options({"path": "/j", "startingOffsets": text}).starting == {"time_ns": expected}


def test_an_unknown_unit_of_a_relative_time_is_named_with_its_option() -> None:
    for unit in ("weeks", "month", "mss", "us s"):
        with pytest.raises(quire.QuireError, match=f"startingOffsets: .*{unit}"):
            read_options({"path": "/j", "startingOffsets": f"-5 {unit}"})


def test_a_stream_reads_archived_segments(spark: SparkSession, trades: Path, tmp_path: Path) -> None:
    shutil.copytree(trades, tmp_path / "j")
    with quire.Journal(tmp_path / "j", archive_directory=tmp_path / "a", journal_size="64KB") as journal:
        assert len(journal.archive(age=0)) > 1
    frame = (
        spark.readStream.format("quire")
        .schema("position long")
        .options(archiveDirectory=str(tmp_path / "a"), startingOffsets="earliest")
        .load(str(tmp_path / "j"))
    )
    found: list[int] = []
    query = (
        frame.writeStream.foreachBatch(lambda batch, _: found.extend(row.position for row in batch.collect()))
        .option("checkpointLocation", str(tmp_path / "c"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(PATIENCE)
    assert sorted(found) == list(range(1, journals.COUNT + 1))


def test_batches_have_so_many_rows(trades: Path) -> None:
    schema = t.StructType([t.StructField("position", t.LongType())])
    for rows, size, least in (("700", "64MB", 3), ("1000000", "1KB", 10), ("1000000", "64MB", 1)):
        options = {"path": str(trades), "batchRows": rows, "batchBytes": size, "partitionBytes": "1g"}
        reader = BatchReader(spark_frame(options), schema)
        (partition,) = reader.partitions()
        counts = [batch.num_rows for batch in reader.read(partition)]
        assert sum(counts) == journals.COUNT
        assert len(counts) >= least
        assert (len(counts) == 1) == (least == 1)


def test_the_publisher_of_a_sink_is_named(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.range(3).select(f.to_json(f.struct("id")).alias("data"))
    for publisher in ("loads", "loads", "others"):
        frame.write.format("quire").mode("append").options(
            topic="t", publisher=publisher, txnId="monday"
        ).save(str(tmp_path / "j"))
    with quire.Journal(tmp_path / "j", read_only=True) as journal:
        messages = list(journal.read())
    assert len(messages) == 6, "the same write of the same publisher is in the log once"
    with quire.Client("memory:", name="loads/monday") as client:
        client.publish("t", "{}")
        client.flush("10s")
        assert next(iter(client.subscribe("t", bookmark=quire.EPOCH))).publisher == messages[0].publisher


def test_another_epoch_publishes_everything_again(tmp_path: Path) -> None:
    """Two lives of one query: only the context of Spark is staged, as a batch of a query cannot be
    run again on purpose."""
    schema = t.StructType([t.StructField("data", t.StringType())])
    rows = pa.record_batch([["{}", "{}"]], ["data"])

    def write(epoch: str) -> None:
        options = write_options(
            {
                "path": str(tmp_path / "j"),
                "topic": "t",
                "sinkEpoch": epoch,
                "stagingDirectory": str(tmp_path / epoch),
            }
        )
        writer = _sink.StreamWriter(options, schema, False)
        sink = f"spark/query/{options.epoch}"
        writer.commit([_sink._stage(options, sink, "0", iter([rows]))], 0)

    write("1")
    write("1")
    with quire.Journal(tmp_path / "j", read_only=True) as journal:
        assert len(list(journal.read())) == 2
    write("2")
    with quire.Journal(tmp_path / "j", read_only=True) as journal:
        assert len(list(journal.read())) == 4


#: No option has numbers like these.
HUGE = ("9" * 20, "9" * 400, "9" * 5000)
COUNTS = (
    "maxMessagesPerTrigger",
    "minMessagesPerTrigger",
    "minPartitions",
    "batchRows",
    "maxBytesPerTrigger",
    "partitionBytes",
    "batchBytes",
)


@pytest.mark.parametrize("key", [*COUNTS, "sinkEpoch", "maxTriggerDelay", "flushTimeout"])
def test_a_number_that_cannot_be_is_refused_with_its_name(key: str) -> None:
    is_written = key in ("sinkEpoch", "flushTimeout")
    for text in ("-1", *HUGE, "-" + HUGE[0], "many", "1e3", "nan", *(["0"] if key != "sinkEpoch" else [])):
        with pytest.raises(quire.ConfigError, match=key):
            (write_options if is_written else read_options)({"path": "/j", key: text})


def test_what_is_left_empty_and_numbers_at_their_bounds_are_taken() -> None:
    bounds = dict.fromkeys(COUNTS[:2], str((1 << 63) - 1)) | {"minPartitions": "100000"}
    options = read_options({"path": "/j", **bounds, "batchRows": str((1 << 31) - 1), "batchBytes": "256MB"})
    assert (options.max_messages, options.min_partitions) == ((1 << 63) - 1, 100_000)
    assert read_options({"path": "/j", **dict.fromkeys(COUNTS, "")}) == read_options({"path": "/j"})
    assert write_options({"path": "/j", "sinkEpoch": "0"}).epoch == 0


def test_a_place_before_or_behind_all_messages_is_the_first_or_the_last(trades: Path) -> None:
    def bounds(**options: str) -> tuple[int, int]:
        return span(path=str(trades), **options)

    count = journals.COUNT
    for huge in HUGE:
        assert bounds(startingOffsets=f"-{huge}") == (0, count)
        assert bounds(endingOffsets=f"-{huge}") == (0, 0)
        assert bounds(startingTimestamp=f"-{huge}", endingTimestamp=huge) == (0, count)
        with pytest.raises(quire.ConfigError, match="startingOffsets"):
            bounds(startingOffsets=f"-{huge} days")
    assert bounds(startingTimestamp="0001-01-01", endingTimestamp="0001-01-01") == (0, 0)


def test_durations_are_more_than_nothing() -> None:
    assert write_options({"path": "/j", "flushTimeout": "90s"}).flush_timeout.total_seconds() == 90
    for wrong in ("soon", "0s"):
        with pytest.raises(quire.ConfigError, match="flushTimeout"):
            write_options({"path": "/j", "flushTimeout": wrong})
        with pytest.raises(quire.ConfigError, match="maxTriggerDelay"):
            read_options({"path": "/j", "maxTriggerDelay": wrong})


def test_a_batch_that_is_not_persistent_in_time_fails_the_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = t.StructType([t.StructField("data", t.StringType())])
    rows = pa.record_batch([["{}"]], ["data"])
    options = write_options(
        {"path": str(tmp_path / "j"), "topic": "t", "flushTimeout": "70s", "txnId": "once"}
    )
    writer = _sink.BatchWriter(options, schema, False)
    staged = writer.write(iter([rows]))
    waited: list[float] = []

    def too_late(_client: quire.Client, timeout: float) -> None:
        waited.append(timeout)
        raise TimeoutError("1 publishes are not persisted yet")

    with monkeypatch.context() as patch:
        patch.setattr(quire.Client, "flush", too_late)
        with pytest.raises(TimeoutError, match="not persisted"):
            writer.commit([staged])
    # The rest of the time, after the rows were taken.
    assert len(waited) == 1
    assert 0 < waited[0] < 70
    writer.commit([staged])
    with quire.Journal(tmp_path / "j", read_only=True) as journal:
        assert len(list(journal.read())) == 1, "run again it is complete, and nothing is twice"


def test_a_user_and_the_file_of_a_password_are_handed_on(
    read: Any, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    password = tmp_path / "password"
    with ServerProcess(tmp_path / "s") as server:
        options = {"url": server.url, "user": "alice", "passwordFile": str(password)}
        with pytest.raises(PySparkException, match="password"):
            read().options(**options).load().count()
        password.write_text("secret\n")
        frame = spark.range(3).select(f.lit("{}").alias("data"))
        frame.write.format("quire").mode("append").options(
            topic="t", stagingDirectory=str(tmp_path / "staging"), **options
        ).save()
        assert read().options(**options).load().count() == 3


def test_a_read_and_a_write_connect_over_tls_as_a_user(
    read: Any, spark: SparkSession, tmp_path: Path
) -> None:
    password = tmp_path / "password"
    password.write_text("correct horse\n")
    with quire.testing.server(tls=True, users={"anna": {"password": "correct horse"}}) as server:
        tls = server.options("anna")["ssl"]
        options = {"url": server.url, "user": "anna", "passwordFile": str(password), "sslCa": str(tls.ca)}
        frame = spark.range(3).select(f.lit("{}").alias("data"))
        frame.write.format("quire").mode("append").options(
            topic="t", stagingDirectory=str(tmp_path / "staging"), **options
        ).save()
        assert read().options(**options).load().count() == 3
        del options["sslCa"]
        with pytest.raises(PySparkException, match="the authority of the server's certificate is unknown"):
            read().options(**options).load().count()
