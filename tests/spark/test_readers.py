"""The reader on the JVM: when it is chosen, which parts it does not read, and that it ends with its
task.

Its rows and errors are those of the Python reader: the tests that use the fixture `reader` run with
both.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import quire.spark
from py4j.protocol import Py4JJavaError
from pyspark import InheritableThread
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from support.waiting import PATIENCE, wait_until

from spark import journals


def load(spark: SparkSession, path: Path, **options: Any) -> DataFrame:
    return spark.read.format("quire").options(**options).load(str(path))


def plan(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().executedPlan().toString())


def test_a_session_with_the_jar_reads_columns_unless_python_is_wanted(
    spark: SparkSession, trades: Path
) -> None:
    assert "ColumnarToRow" in plan(load(spark, trades))
    assert "ColumnarToRow" in plan(load(spark, trades, reader="JVM"))
    assert "ColumnarToRow" not in plan(load(spark, trades, reader="python"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"reader": "java"}, "reader: 'java' is not one of jvm, python"),
        (
            {"reader": "jvm", "url": "quire://127.0.0.1:1"},
            "reader: jvm reads a directory, and url names a server",
        ),
    ],
)
def test_a_reader_that_cannot_be_is_refused(
    spark: SparkSession, options: dict[str, str], message: str
) -> None:
    with pytest.raises(PySparkException, match=message):
        spark.read.format("quire").options(**options).load()


def test_both_readers_give_the_same_schema_and_rows(spark: SparkSession, trades: Path) -> None:
    options: dict[str, Any] = {
        "fields": "n int, price double, is_buy boolean, at timestamp, order struct<qty: tinyint, account: string>",
        "includeHeaders": "true",
        "includeQueueEvents": "true",
        "batchRows": "700",
        "partitionBytes": "64KB",
    }
    jvm, python = load(spark, trades, **options), load(spark, trades, reader="python", **options)
    assert jvm.schema == python.schema
    # A map cannot be compared.
    text = f.to_json("headers").alias("headers")
    jvm, python = (
        frame.select(*[c for c in frame.columns if c != "headers"], text) for frame in (jvm, python)
    )
    assert jvm.count() == journals.COUNT
    assert jvm.exceptAll(python).isEmpty()
    assert python.exceptAll(jvm).isEmpty()


def test_only_the_columns_that_a_query_uses_are_read(spark: SparkSession, trades: Path) -> None:
    frame = load(spark, trades, fields="n int, order struct<qty: int, account: string>")
    assert "columns [topic, n]" in plan(frame.groupBy("topic").agg(f.sum("n")))
    assert "columns [order]" in plan(frame.select(f.sum("order.qty")))
    assert frame.select(f.sum("order.qty")).first() == (sum(n % 7 for n in range(journals.COUNT)),)
    assert "columns []" in plan(frame.groupBy().agg(f.sum(f.lit(2))))
    assert frame.groupBy().agg(f.sum(f.lit(2))).first() == (2 * journals.COUNT,)


AGGREGATIONS = (
    "SELECT count(*) FROM messages",
    "SELECT topic, count(*) FROM messages GROUP BY topic ORDER BY topic",
    "SELECT min(position), max(position), min(timestamp), max(timestamp_ns), count(topic) FROM messages",
    "SELECT topic, max(position), count(*) FROM messages GROUP BY topic ORDER BY topic",
    "SELECT count(*), max(position) FROM messages WHERE position BETWEEN 50 AND 2100",
    "SELECT count(*) FROM messages WHERE topic = 'rare'",
    "SELECT count(*), min(position) FROM messages WHERE topic = 'none'",
)


@pytest.mark.parametrize("query", AGGREGATIONS)
def test_counts_and_ends_are_computed_by_the_scan(spark: SparkSession, trades: Path, query: str) -> None:
    load(spark, trades, partitionBytes="64KB").createOrReplaceTempView("messages")
    frame = spark.sql(query)
    assert "aggregates" in plan(frame)
    found = frame.collect()
    load(spark, trades, reader="python").createOrReplaceTempView("messages")
    assert found == spark.sql(query).collect()


def test_what_a_scan_cannot_compute_exactly_is_computed_by_spark(spark: SparkSession, trades: Path) -> None:
    frame = load(spark, trades, fields="n int")
    for query in (
        frame.agg(f.max("n")),
        frame.agg(f.count_distinct("topic")),
        frame.groupBy(f.length("topic")).count(),
        frame.where(f.length("topic") > 4).groupBy().count(),
    ):
        assert "aggregates" not in plan(query)
        query.collect()
    assert frame.where(f.length("topic") > 4).count() == journals.COUNT - 30


def test_a_view_is_used_with_many_conditions_in_one_query(spark: SparkSession, trades: Path) -> None:
    load(spark, trades, fields="n int").createOrReplaceTempView("messages")
    query = (
        "SELECT (SELECT count(*) FROM messages WHERE n < 3), (SELECT count(*) FROM messages), "
        "(SELECT count(*) FROM messages WHERE n > 2990), (SELECT count(*) FROM messages a JOIN messages b "
        "ON a.n = b.n WHERE a.n < 7 AND b.n > 2)"
    )
    assert spark.sql(query).collect() == [(3, journals.COUNT, 9, 4)]


def test_a_limit_leaves_the_rest_unread(spark: SparkSession, trades: Path) -> None:
    frame = load(spark, trades, partitionBytes="64KB").limit(7)
    assert "limit 7" in plan(frame)
    assert len(frame.collect()) == 7
    assert frame.count() == 7
    assert load(spark, trades).where("topic = 'rare'").limit(50).count() == 30


def test_the_page_of_a_query_shows_what_was_read_and_skipped(spark: SparkSession, trades: Path) -> None:
    frame = load(spark, trades).where("position > 2900")
    assert len(frame.collect()) == 100
    store = spark._jsparkSession.sharedState().statusStore()
    spark._jsparkSession.sparkContext().listenerBus().waitUntilEmpty()
    execution = store.executionsList().last()
    values = store.executionMetrics(execution.executionId())
    found: dict[str, Any] = {}
    for index in range(execution.metrics().size()):
        metric = execution.metrics().apply(index)
        value = values.get(metric.accumulatorId())
        found[metric.name()] = value.get() if value.isDefined() else None
    assert found["rows returned"] == "100"
    assert int(found["blocks read"]) > 0
    assert int(found["records read"]) < journals.COUNT


def test_a_task_that_is_killed_ends_while_it_reads(spark: SparkSession, trades: Path) -> None:
    """Spark tells the reader from the thread that kills the task. Here that is the same one."""
    scan = load(spark, trades, batchRows=100)._jdf.queryExecution().optimizedPlan().scan()
    batch = scan.toBatch()
    (task,) = batch.planInputPartitions()
    assert spark._jvm is not None
    contexts = getattr(getattr(spark._jvm.org.apache.spark, "TaskContext$"), "MODULE$")
    context = contexts.empty()
    contexts.setTaskContext(context)
    try:
        reader = batch.createReaderFactory().createColumnarReader(task)
        assert reader.next()
        context.markInterrupted("test")
        with pytest.raises(Py4JJavaError, match="TaskKilledException"):
            reader.next()
        reader.close()
        reader.close()
        assert 100 <= [metric.value() for metric in reader.currentMetricsValues()][1] < journals.COUNT
    finally:
        contexts.unset()


def test_a_job_that_is_cancelled_ends_inside_of_a_batch(spark: SparkSession, tmp_path: Path) -> None:
    """The whole journal is one batch. Building it takes many seconds, and the cancellation milliseconds."""
    count = 200_000
    with quire.Journal(tmp_path / "j") as journal:
        for _ in range(0, count, 1000):
            journal.append_many("t", [journals.encoded({"note": "x" * 200}).encode()] * 1000, publisher="p")
    filter = " OR ".join(f"/note LIKE '[0-9].*a{number}'" for number in range(500)) + " OR TRUE"
    options = {"filter": filter, "batchRows": count, "batchBytes": "256MB", "partitionBytes": "1g"}
    frame = load(spark, tmp_path / "j", **options).select("position")
    failures = []

    def job() -> None:
        spark.sparkContext.setJobGroup("long", "a long scan")
        try:
            frame.write.format("noop").mode("overwrite").save()
        except Py4JJavaError as error:
            failures.append(str(error))

    thread = InheritableThread(target=job)
    thread.start()
    wait_until(lambda: scanning(spark) or not thread.is_alive())
    spark.sparkContext.cancelJobGroup("long")
    thread.join(PATIENCE)
    assert "cancelled part of cancelled job group long" in failures[0]
    wait_until(lambda: not scanning(spark))
    tracker = spark.sparkContext.statusTracker()
    (number,) = tracker.getJobIdsForGroup("long")
    information = tracker.getJobInfo(number)
    assert information is not None

    def stage() -> Any:
        return spark._jsparkSession.sparkContext().statusStore().lastStageAttempt(information.stageIds[0])

    wait_until(lambda: stage().numKilledTasks() == 1)
    # Rows of a killed task count: all of them, if its batch was built.
    assert stage().inputRecords() == 0


def scanning(spark: SparkSession) -> bool:
    """Whether a task is in the core."""
    assert spark._jvm is not None
    threads = spark._jvm.java.lang.management.ManagementFactory.getThreadMXBean().dumpAllThreads(False, False)
    return any("quire.Core.scanNext" in str(thread) for thread in threads)


def test_a_session_with_the_jar_writes_as_before(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.range(5).selectExpr("'t' AS topic", "to_json(struct(id)) AS data")
    rows.write.format("quire").mode("append").save(str(tmp_path / "j"))
    assert load(spark, tmp_path / "j", fields="id int").agg(f.sum("id")).first() == (10,)
    stream = spark.readStream.format("quire").option("startingOffsets", "earliest").load(str(tmp_path / "j"))
    writer = stream.select("topic", "data").writeStream.format("quire")
    query = writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True)
    assert query.start(str(tmp_path / "k")).awaitTermination(PATIENCE)
    assert load(spark, tmp_path / "k", fields="id int").agg(f.sum("id")).first() == (10,)


def test_a_query_changes_its_reader_between_two_runs(spark: SparkSession, tmp_path: Path) -> None:
    from spark.test_stream import batches_of

    journals.write(tmp_path / "j", journals.trades(100))
    first = batches_of(spark, tmp_path / "c", tmp_path / "j", startingOffsets="earliest", reader="python")
    assert first.run() == list(range(1, 101))
    journals.write(tmp_path / "j", journals.trades(20), name="later")
    second = batches_of(spark, tmp_path / "c", tmp_path / "j", startingOffsets="earliest", reader="jvm")
    assert second.run() == list(range(101, 121))
    journals.write(tmp_path / "j", journals.trades(20), name="latest")
    third = batches_of(spark, tmp_path / "c", tmp_path / "j", startingOffsets="earliest", reader="python")
    assert third.run() == list(range(121, 141))


class Copying:
    """A query from one journal into another, whose reader changes between its runs."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self._spark, self._directory = spark, directory
        # A name that JSON in Python spells in ASCII.
        self._source = directory / "Quelle ä\U0001f600"
        self._count = 0

    def add(self, count: int) -> None:
        rows = [("t", {"n": self._count + number}) for number in range(count)]
        journals.write(self._source, rows, name=f"writer-{self._count}")
        self._count += count

    def run(self, reader: str) -> None:
        source = self._spark.readStream.format("quire").options(
            reader=reader, startingOffsets="earliest", maxMessagesPerTrigger=7
        )
        frame = source.load(str(self._source)).select("topic", "data")
        writer = frame.writeStream.format("quire").option("checkpointLocation", str(self._checkpoint))
        query = writer.trigger(availableNow=True).start(str(self._directory / "target"))
        assert query.awaitTermination(PATIENCE)

    @property
    def _checkpoint(self) -> Path:
        return self._directory / "checkpoint"

    def batches(self) -> int:
        return sum(path.name.isdigit() for path in (self._checkpoint / "offsets").iterdir())

    def forget_the_last_commit(self) -> None:
        """Leaves the checkpoint as a crash before Spark's own log of the last batch does."""
        commits = self._checkpoint / "commits"
        last = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
        for path in (commits / str(last), commits / f".{last}.crc"):
            path.unlink(missing_ok=True)

    def spell(self, separators: tuple[str, str]) -> None:
        """Writes the offsets of the checkpoint with other blanks, and with characters beyond ASCII."""
        for path in (self._checkpoint / "offsets").iterdir():
            if path.name.isdigit():
                *head, offset = path.read_text().splitlines()
                spelled = json.dumps(json.loads(offset), separators=separators, ensure_ascii=False)
                path.write_text("\n".join([*head, spelled]))
                path.with_name(f".{path.name}.crc").unlink(missing_ok=True)

    def check(self) -> None:
        with quire.Journal(self._directory / "target", read_only=True) as journal:
            numbers = [message.json()["n"] for message in journal.read()]
        assert numbers == list(range(self._count))


@pytest.mark.parametrize("crashes", [False, True], ids=["complete", "crashed"])
@pytest.mark.parametrize("first", ["jvm", "python"])
def test_a_query_that_changes_its_reader_publishes_nothing_twice(
    spark: SparkSession, tmp_path: Path, first: str, crashes: bool
) -> None:
    copying, other = Copying(spark, tmp_path), {"jvm": "python", "python": "jvm"}[first]
    copying.add(10)
    copying.run(first)
    for reader in (other, first):
        if crashes:
            copying.forget_the_last_commit()
        batches = copying.batches()
        copying.run(reader)
        copying.check()
        assert copying.batches() == batches, "nothing is new, so there is no batch"
        copying.add(5)
        copying.run(reader)
        copying.check()


@pytest.mark.parametrize("separators", [(",", ":"), (" , ", " :  ")])
@pytest.mark.parametrize("reader", ["jvm", "python"])
def test_a_checkpoint_with_offsets_of_another_spelling_is_continued(
    spark: SparkSession, tmp_path: Path, reader: str, separators: tuple[str, str]
) -> None:
    copying = Copying(spark, tmp_path)
    copying.add(10)
    copying.run("jvm")
    copying.spell(separators)
    copying.run(reader)
    copying.check()
    copying.add(3)
    copying.spell(separators)
    copying.run(reader)
    copying.check()


def test_progress_says_how_far_a_query_is_behind_in_the_form_of_its_offsets(
    spark: SparkSession, reader: str, tmp_path: Path
) -> None:
    journals.write(tmp_path / "j", journals.trades(30))
    source = spark.readStream.format("quire").options(startingOffsets="earliest", maxMessagesPerTrigger=20)
    query = source.load(str(tmp_path / "j")).writeStream.format("noop").trigger(processingTime="0 seconds")
    running = query.option("checkpointLocation", str(tmp_path / "c")).start()
    try:
        running.processAllAvailable()
        first = json.loads(running.recentProgress[0].json)["sources"][0]
    finally:
        running.stop()
    (end,), (latest,) = (
        json.loads(json.dumps(first[name]))["journals"].values() for name in ("endOffset", "latestOffset")
    )
    assert (end["to"], latest["to"]) == (20, 30)
    assert end.keys() == latest.keys()


@pytest.mark.parametrize(
    ("option", "value"), [("endingOffsets", "-3"), ("endingTimestamp", "2026-01-02"), ("lastValues", "t")]
)
def test_a_stream_refuses_the_options_of_a_batch(
    spark: SparkSession, reader: str, trades: Path, option: str, value: str
) -> None:
    stream = spark.readStream.format("quire").schema("position long").option(option, value).load(str(trades))
    query = stream.writeStream.format("noop").trigger(availableNow=True).start()
    with pytest.raises(PySparkException, match=f"{option}: spark.read has it, spark.readStream does not"):
        query.awaitTermination(PATIENCE)


#: The jar is a setting of a process, so this session runs in a separate one.
WITHOUT_JAR = """
import sys
from pyspark.sql import SparkSession
import quire.spark

journal = sys.argv[1]
settings = {"spark.master": "local[1]", "spark.ui.enabled": "false", "spark.driver.memory": "600m",
            "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
builder = SparkSession.builder
for key, value in settings.items():
    builder = builder.config(key, value)
spark = builder.getOrCreate()

def count(**options):
    return spark.read.format("quire").options(**options).load(journal).where("position > 10").count()

found = [count(), count()]
try:
    count(reader="jvm")
except Exception as error:
    found.append(str(error))
spark.sql(f"ADD JAR {quire.spark.jar()}")
found.append(count(reader="jvm"))
import json
print("found", json.dumps(found))
spark.stop()
"""


def run(script: str, *arguments: str) -> tuple[list[Any], str]:
    """The results of the script, and its log."""
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    environment.pop("PYSPARK_GATEWAY_PORT", None)
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("found ")]
    found: list[Any] = json.loads(line.removeprefix("found "))
    return found, done.stderr


def test_a_session_without_the_jar_reads_with_python_says_so_once_and_takes_the_jar_later(
    trades: Path,
) -> None:
    (first, second, refused, later), log = run(WITHOUT_JAR, str(trades))
    assert (first, second, later) == (journals.COUNT - 10,) * 3
    assert "reader: jvm needs the jar of quire" in refused
    assert log.count("does not have the faster one in the jar") == 1


def test_an_installation_without_the_jar_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert quire.spark.jar().is_file()
    monkeypatch.setattr("quire.spark._jar._JAR", tmp_path / "quire-spark.jar")
    with pytest.raises(quire.ConfigError, match="was built without Java"):
        quire.spark.jar()
