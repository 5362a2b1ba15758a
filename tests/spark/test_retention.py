"""Spark during maintenance: older files are archived or removed while sessions read the journal and
jobs run again and again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import quire
import quire.spark
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrameReader, SparkSession
from pyspark.sql.types import LongType, StructField, StructType
from quire._quire import spark_frame
from quire.cli import run as command
from quire.spark._scan import ScanBuilder, scan
from support.waiting import PATIENCE

from spark import journals
from spark.batches import Batches

Read = Callable[[], DataFrameReader]

#: Messages of 100 bytes and more, so that a hundred of them fill several files.
FILLER = "x" * 1000


class Kept:
    """A journal of messages `{"n": 1}` and so on, whose full files a test archives or removes."""

    def __init__(self, directory: Path, archive: Path) -> None:
        self.directory, self.archived_to = directory, archive
        self.count = 0

    def publish(self, count: int) -> None:
        with self._open() as journal:
            for _ in range(count):
                self.count += 1
                data = {"n": self.count, "id": self.count % 7, "price": self.count / 4, "text": FILLER}
                journal.append("t", data, publisher="p")
                # One large flush would leave the first file empty, and would be a separate file.
                if self.count % 20 == 0:
                    journal.flush(timeout=PATIENCE)
            journal.flush(timeout=PATIENCE)

    def archive(self) -> int:
        """Archives all full files; the last position that went."""
        with self._open() as journal:
            taken = journal.archive(age=0)
            assert taken
        return self._last_of(taken)

    def remove(self) -> int:
        """Removes all full files, the archived ones too; the last position that went."""
        with self._open() as journal:
            taken = journal.remove(age=0)
            assert taken
        return self._last_of(taken)

    def rows(self, since: int = 0) -> list[int]:
        """The positions after this one."""
        return list(range(since + 1, self.count + 1))

    def _open(self) -> quire.Journal:
        return quire.Journal(self.directory, archive_directory=self.archived_to, journal_size="64KB")

    @staticmethod
    def _last_of(segments: list[quire.Segment]) -> int:
        bookmark = segments[-1].last
        assert bookmark is not None
        # There is one publisher: its numbers are the positions.
        return int(bookmark.split("|")[1])


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    """A journal of 300 messages."""
    journal = Kept(tmp_path / "journal", tmp_path / "archived")
    journal.publish(300)
    return journal


def positions(reader: DataFrameReader, journal: Kept) -> list[int]:
    frame = reader.schema("position long").load(str(journal.directory))
    return sorted(row.position for row in frame.collect())


def test_a_session_that_read_the_journal_reads_the_rest_after_files_were_removed(
    read: Read, kept: Kept
) -> None:
    assert positions(read(), kept) == kept.rows()
    kept.publish(300)
    gone = kept.remove()
    assert gone > 300, "all that the session knows is gone, and more"
    for _ in range(2):
        assert positions(read(), kept) == kept.rows(gone)


def span(kept: Kept) -> tuple[int, int]:
    """The range that a read covers now: after and limit."""
    (found,) = json.loads(spark_frame({"path": str(kept.directory)}))["ranges"]
    return found["after"], found["limit"]


def test_a_cached_reader_follows_removed_and_archived_files(kept: Kept) -> None:
    assert span(kept)[0] == 0
    kept.publish(300)
    kept.archive()
    assert span(kept) == (0, 600)
    kept.publish(300)
    gone = kept.remove()
    assert span(kept) == (gone, 900)


def test_a_range_that_was_planned_before_its_files_were_archived_is_read_whole(kept: Kept) -> None:
    schema = StructType([StructField("position", LongType())])
    for _ in range(2):
        frame = spark_frame({"path": str(kept.directory)})
        kept.archive()
        tasks = ScanBuilder(frame, schema).tasks()
        found = [
            position for task in tasks for batch in scan(task) for position in batch.column(0).to_pylist()
        ]
        assert found == kept.rows()
        kept.publish(100)


def test_a_cached_reader_finds_another_journal_in_the_directory(kept: Kept) -> None:
    kept.remove()
    assert span(kept)[1] == 300
    for path in kept.directory.iterdir():
        path.unlink()
    kept.count = 0
    kept.publish(40)
    assert span(kept)[1] == 40


def test_a_query_that_is_restarted_after_files_were_removed_fails_or_leaves_them_out(
    spark: SparkSession, kept: Kept, tmp_path: Path
) -> None:
    def query(**options: str) -> Batches:
        return Batches(
            spark,
            tmp_path / "checkpoint",
            lambda frame: sorted(row.position for row in frame.collect()),
            {"path": str(kept.directory), "startingOffsets": "earliest", **options},
            schema="position long",
        )

    assert query().run() == kept.rows()
    kept.publish(300)
    gone = kept.remove()
    with pytest.raises(StreamingQueryException, match=f"messages 301 to {gone} were removed"):
        query().run()
    assert query(failOnDataLoss="false").run() == kept.rows(gone)


def test_archived_files_are_found_without_being_named(
    spark: SparkSession, read: Read, kept: Kept, tmp_path: Path
) -> None:
    kept.archive()
    assert positions(read(), kept) == kept.rows()
    batches = Batches(
        spark,
        tmp_path / "checkpoint",
        lambda frame: sorted(row.position for row in frame.collect()),
        {"path": str(kept.directory), "startingOffsets": "earliest"},
        schema="position long",
    )
    assert batches.run() == kept.rows()


def test_files_that_were_lost_are_an_error_that_says_how_to_give_them_up(
    read: Read, kept: Kept, spark: SparkSession
) -> None:
    oldest, *_ = journals.segments(kept.directory)
    for path in kept.directory.glob(f"{oldest.stem}.*"):
        path.unlink()
    for fails in ("true", "false"):
        with pytest.raises(PySparkException, match=r"quire journal remove .* --missing"):
            positions(read().option("failOnDataLoss", fails), kept)
    assert command(["journal", "remove", str(kept.directory), "--missing"]) == 0
    found = positions(read(), kept)
    assert found == kept.rows(found[0] - 1)


def move_archive(kept: Kept) -> Path:
    kept.archive()
    return kept.archived_to.rename(kept.archived_to.with_name("elsewhere"))


def test_an_archive_that_was_moved_is_an_error_that_says_how_to_name_it(read: Read, kept: Kept) -> None:
    moved = move_archive(kept)
    with pytest.raises(PySparkException, match="archiveDirectory") as error:
        positions(read(), kept)
    assert str(kept.archived_to) in str(error.value)
    assert positions(read().option("archiveDirectory", str(moved)), kept) == kept.rows()


JOBS: dict[str, Callable[..., int]] = {
    "archive": lambda spark, journal, place, **given: (
        quire.spark.archive(spark, journal, str(place / "parquet"), **given).messages
    ),
    "last_value": lambda spark, journal, place, **given: (
        quire.spark.last_value(spark, journal, str(place / "last"), keys="id int", **given).messages
    ),
    "bars": lambda spark, journal, place, **given: int(
        quire.spark.bars(spark, journal, value="/price", every="1 day", **given)
        .agg({"count": "sum"})
        .collect()[0][0]
    ),
    "replay": lambda spark, journal, place, **given: (
        quire.spark.replay(spark, journal, f"file:{place / 'replayed'}", name="again", **given).messages
    ),
    "queue_audit": lambda spark, journal, place, **given: quire.spark.queue_audit(
        spark, journal, dead_letters="t", **given
    ).count(),
}


@pytest.mark.parametrize("job", JOBS)
def test_a_job_finds_archived_files_and_says_how_to_name_those_that_were_moved(
    spark: SparkSession, kept: Kept, tmp_path: Path, job: str
) -> None:
    run = JOBS[job]
    if job == "queue_audit":
        with kept._open() as journal:
            letter = {"queue": "work", "position": 2, "reason": ["time_limit"], "deliveries": 5}
            journal.append("t", letter, publisher="broker")
    kept.publish(100)
    expected = run(spark, str(kept.directory), tmp_path / "whole")
    assert expected > 0
    moved = move_archive(kept)
    with pytest.raises((quire.QuireError, PySparkException), match="archive_directory"):
        run(spark, str(kept.directory), tmp_path / "moved")
    given = {"archive_directory": str(moved)}
    assert run(spark, str(kept.directory), tmp_path / "moved", **given) == expected
    moved.rename(kept.archived_to)
    assert run(spark, str(kept.directory), tmp_path / "back") == expected


@pytest.fixture
def pipeline(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Runs a command in the session of the tests: exit status, and what it printed."""
    monkeypatch.setattr(SparkSession, "stop", lambda _self: None)

    def run(*arguments: object) -> tuple[int, str, str]:
        capfd.readouterr()
        status = command(["pipeline", *map(str, arguments)])
        out, err = capfd.readouterr()
        return status, out, err

    return run


def archived_positions(spark: SparkSession, target: Path) -> list[int]:
    return sorted(row.position for row in spark.read.parquet(str(target)).select("position").collect())


def test_a_scheduled_archive_runs_beside_maintenance_and_names_the_option_to_pass_removed_messages(
    spark: SparkSession, kept: Kept, tmp_path: Path, pipeline: Callable[..., tuple[int, str, str]]
) -> None:
    target = tmp_path / "parquet"
    job = ("archive", kept.directory, target, "--json")
    assert pipeline(*job)[0] == 0
    for _ in range(2):
        kept.publish(300)
        kept.archive()
        status, out, _ = pipeline(*job)
        assert (status, json.loads(out)["messages"], json.loads(out)["lost"]) == (0, 300, 0)
    assert archived_positions(spark, target) == kept.rows()
    kept.publish(300)
    gone = kept.remove()
    before = sorted(target.rglob("*"))
    status, out, err = pipeline(*job)
    assert (status, out) == (2, "")
    assert f"messages 901 to {gone} were removed" in err
    assert "--skip-lost" in err
    assert err.count("\n") == 1, "nothing else is printed"
    assert sorted(target.rglob("*")) == before
    status, out, _ = pipeline(*job, "--skip-lost")
    assert (status, json.loads(out)["messages"], json.loads(out)["lost"]) == (0, 1200 - gone, gone - 900)
    assert archived_positions(spark, target) == [*range(1, 901), *kept.rows(gone)]
    assert pipeline(*job)[0] == 0, "once is enough"


@pytest.mark.parametrize("job", ["archive", "last_value", "replay"])
def test_a_job_that_is_run_again_names_the_messages_that_were_removed_since(
    spark: SparkSession, kept: Kept, tmp_path: Path, job: str
) -> None:
    run = JOBS[job]
    assert run(spark, str(kept.directory), tmp_path) == 300
    kept.publish(300)
    gone = kept.remove()
    with pytest.raises(quire.BadBookmarkError, match=f"messages 301 to {gone} were removed.*skip_lost=True"):
        run(spark, str(kept.directory), tmp_path)
    assert run(spark, str(kept.directory), tmp_path, skip_lost=True) == 600 - gone


def test_the_first_run_of_a_job_starts_at_the_first_message_of_the_journal(
    spark: SparkSession, kept: Kept, tmp_path: Path
) -> None:
    gone = kept.remove()
    for job in ("archive", "last_value", "bars", "replay"):
        assert JOBS[job](spark, str(kept.directory), tmp_path) == kept.count - gone, job


def test_a_replay_of_a_later_range_has_lost_nothing(spark: SparkSession, kept: Kept, tmp_path: Path) -> None:
    def run(**options: Any) -> quire.spark.Replayed:
        return quire.spark.replay(
            spark, str(kept.directory), f"file:{tmp_path / 'replayed'}", name="again", **options
        )

    assert run().messages == 300
    kept.publish(300)
    kept.remove()
    later = run(options={"startingOffsets": "-5"})
    assert (later.messages, later.lost) == (5, 0)
