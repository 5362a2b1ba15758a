"""The jobs, as functions and as commands: their results for a journal. A second run has no
effect."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import quire
import quire.spark
from pyspark.sql import DataFrameReader, SparkSession
from quire.cli import run as command
from quire.cli._pipeline import _own
from quire.spark import _archive, _replay
from quire.spark._files import Files
from support.waiting import PATIENCE, Deadline

from spark import journals, kills


def test_an_archive_grows_by_what_is_new(spark: SparkSession, tmp_path: Path) -> None:
    journal, target = tmp_path / "j", str(tmp_path / "archive")
    journals.write(journal, journals.trades(300))
    first = quire.spark.archive(spark, str(journal), target, fields="price double", max_messages=200)
    assert (first.messages, first.batches) == (300, 2)
    assert quire.spark.archive(spark, str(journal), target, fields="price double").messages == 0
    journals.write(journal, journals.trades(50), name="later")
    assert quire.spark.archive(spark, str(journal), target, fields="price double").messages == 50
    frame = spark.read.parquet(target)
    assert sorted(row.position for row in frame.select("position").collect()) == list(range(1, 351))
    assert {"topic", "date", "price", "data"} <= set(frame.columns)
    rare = frame.where("topic = 'rare'").collect()
    assert [json.loads(row.data)["price"] for row in rare] == [row.price for row in rare]
    compacted = quire.spark.compact(spark, target)
    assert (compacted.joined, compacted.messages) == (2, 300)
    assert spark.read.parquet(target).select("position").distinct().count() == 350
    assert spark.read.parquet(target).count() == 350
    assert quire.spark.compact(spark, target).joined == 0


def test_a_batch_of_an_archive_has_a_message_at_least(
    spark: SparkSession, trades: Path, tmp_path: Path
) -> None:
    for count in (0, -1, 1 << 63):
        with pytest.raises(quire.ConfigError, match="max_messages"):
            quire.spark.archive(spark, str(trades), str(tmp_path / "archive"), max_messages=count)
    assert not (tmp_path / "archive").exists()


LONGEST = "/" * 82 + "abc"


def test_a_topic_whose_directory_would_have_too_long_a_name_is_refused_before_anything_is_written(
    spark: SparkSession, tmp_path: Path
) -> None:
    journal, target = tmp_path / "j", tmp_path / "archive"
    journals.write(journal, [("t", {"n": 1}), (LONGEST, {"n": 2}), ("ü" * 124, {"n": 3})])
    assert quire.spark.archive(spark, str(journal), str(target)).messages == 3
    rows = spark.read.parquet(str(target)).collect()
    assert {row.topic for row in rows} == {"t", LONGEST, "ü" * 124}
    for topic in (LONGEST + "d", "ü" * 125, "日" * 83 + "a"):
        with pytest.raises(quire.ConfigError, match=r"topics: .* name of 25[67] bytes"):
            quire.spark.archive(spark, str(journal), str(tmp_path / "new"), topics=f"t, {topic}")
    journals.write(journal, [("t", {"n": 4}), ("x:" * 500, {"n": 5})], name="later")
    for new in (target, tmp_path / "new"):
        before = sorted(new.rglob("*"))
        with pytest.raises(quire.ConfigError, match=r"topics: .* name of 2006 bytes"):
            quire.spark.archive(spark, str(journal), str(new))
        assert sorted(new.rglob("*")) == before
    assert quire.spark.archive(spark, str(journal), str(target), topics="t").messages == 1
    # Later runs ignore what a run has skipped.
    assert quire.spark.archive(spark, str(journal), str(target)).messages == 0


def test_names_of_topics_are_measured_as_spark_writes_them(spark: SparkSession) -> None:
    session: Any = spark
    utils = session._jvm.org.apache.spark.sql.catalyst.catalog.ExternalCatalogUtils
    for number in (*range(1, 0x180), 0x2028, 0xD7FF, 0xE000, 0x1F600):
        character = chr(number)
        spark_writes = utils.escapePathName(character)
        assert (spark_writes != character) == bool(_archive._ESCAPED.match(character)), hex(number)
        assert spark_writes == character or len(spark_writes) == 3


def test_a_topic_that_java_cannot_write_as_a_name_is_refused_before_anything_is_written(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert Files(spark, str(tmp_path)).encoding() is None
    monkeypatch.setattr(Files, "encoding", lambda _self: "ANSI_X3.4-1968")
    journals.write(tmp_path / "j", [("t", {"n": 1}), ("übung", {"n": 2})])
    for target in (tmp_path / "archive", tmp_path / "Archiv für Übungen"):
        with pytest.raises(quire.ConfigError, match=r"target: .* ANSI_X3.4-1968, .* LC_ALL=C.UTF-8"):
            quire.spark.archive(spark, str(tmp_path / "j"), str(target))
        assert not target.exists()
    assert (
        quire.spark.archive(spark, str(tmp_path / "j"), str(tmp_path / "archive"), topics="t").messages == 1
    )


def test_topics_in_any_language_are_archived_in_any_locale(tmp_path: Path) -> None:
    journals.write(tmp_path / "j", [("übung/日本", {"n": 1, "s": "日"})])
    environment = {key: value for key, value in os.environ.items() if not key.startswith("LC_")}
    arguments = [
        sys.executable,
        "-m",
        "quire",
        "pipeline",
        "archive",
        "j",
        "archiv-ü",
        "--master",
        "local[1]",
    ]
    environment |= {"LC_ALL": "C"}
    done = subprocess.run(arguments, cwd=tmp_path, env=environment, capture_output=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr.decode()
    assert "archiv-ü" in done.stdout.decode()
    # Spark says nothing while it starts and ends: this is the Java machine itself.
    assert done.stderr.decode() in ("", "WARNING: Using incubator modules: jdk.incubator.vector\n")
    assert list((tmp_path / "archiv-ü").glob("batch=*/topic=übung%2F日本/date=*/*.parquet"))


@pytest.mark.parametrize(
    ("place", "number", "code"),
    [("java", signal.SIGINT, 130), ("batch", signal.SIGINT, 130), ("batch", signal.SIGTERM, 143)],
)
def test_a_command_that_is_interrupted_ends_and_is_completed_by_the_next(
    spark: SparkSession,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    place: str,
    number: signal.Signals,
    code: int,
) -> None:
    journals.write(tmp_path / "j", [("t", {"n": n}) for n in range(2000)])
    target = tmp_path / "archive"
    arguments = ["archive", str(tmp_path / "j"), str(target), "--master", "local[1]"]
    # The files of a killed Java machine are removed with the test. The names of sockets must be
    # short.
    left = tmp_path_factory.mktemp("java")
    environment = {"JAVA_TOOL_OPTIONS": f"-Djava.io.tmpdir={left}", "SPARK_LOCAL_DIRS": str(left)}
    process = subprocess.Popen(
        [sys.executable, "-m", "quire", "pipeline", *arguments],
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        deadline = Deadline()
        while not (
            kills.is_running(process.pid, "java") if place == "java" else list(target.glob("batch=*"))
        ):
            assert deadline.left
            assert process.poll() is None
        # As a terminal does: everything that runs there gets it. Others ask the command alone.
        (os.killpg if number == signal.SIGINT else os.kill)(process.pid, number)
        # Ends when nothing that it has started holds its output any more.
        out, err = process.communicate(timeout=PATIENCE)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == code, err
    assert out == ""
    # A terminal interrupts what Spark plans with, too, and Java prints the stack of the query that
    # fails by that.
    is_planner_gone = place == "batch" and number == signal.SIGINT
    assert is_planner_gone or "\tat " not in err
    assert "Traceback" not in err or is_planner_gone
    quire.spark.archive(spark, str(tmp_path / "j"), str(target))
    found = sorted(row.position for row in spark.read.parquet(str(target)).select("position").collect())
    assert found == list(range(1, 2001))


def test_a_compaction_that_was_stopped_is_completed(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, target = tmp_path / "j", str(tmp_path / "archive")
    # Topics that look like one number, and fields that only some batches have.
    journals.write(journal, [(("7", "007")[n % 2], {"n": n}) for n in range(30)])
    quire.spark.archive(spark, str(journal), target, fields="n int")
    journals.write(journal, [(("7", "007")[n % 2], {"n": n}) for n in range(30, 90)], name="later")
    quire.spark.archive(spark, str(journal), target, max_messages=30)
    remove = Files.remove

    def stops(files: Files, name: str) -> None:
        remove(files, name)
        if name.startswith("batch="):
            raise KeyboardInterrupt

    monkeypatch.setattr(Files, "remove", stops)
    with pytest.raises(KeyboardInterrupt):
        quire.spark.compact(spark, target)
    monkeypatch.setattr(Files, "remove", remove)
    assert quire.spark.compact(spark, target).joined == 0
    rows = (
        spark.read.schema("position long, topic string, n int").parquet(target).orderBy("position").collect()
    )
    assert [(row.position, row.topic, row.n) for row in rows] == [
        (n + 1, ("7", "007")[n % 2], n if n < 30 else None) for n in range(90)
    ]


def test_dates_of_an_archive_are_those_of_utc(spark: SparkSession, tmp_path: Path) -> None:
    journal, target = tmp_path / "j", tmp_path / "archive"
    journals.write(journal, [("t", {"n": 1})])
    with quire.Journal(journal, read_only=True) as written:
        (message,) = written.read()
    own = spark.conf.get("spark.sql.session.timeZone")
    try:
        # Somewhere it is always another day than in UTC.
        for zone in ("Etc/GMT+12", "Etc/GMT-12"):
            spark.conf.set("spark.sql.session.timeZone", zone)
            quire.spark.archive(spark, str(journal), str(target / zone[-3:]))
    finally:
        spark.conf.set("spark.sql.session.timeZone", str(own))
    found = {path.name for path in target.glob("*/batch=*/topic=*/date=*")}
    assert found == {f"date={message.timestamp:%Y-%m-%d}"}


def test_batches_without_messages_are_compacted(spark: SparkSession, tmp_path: Path) -> None:
    journal, target = tmp_path / "j", str(tmp_path / "archive")
    counts = []
    for number, topics in enumerate(("none", "none", "none", "t", "none")):
        journals.write(journal, [("t", {"n": number})], name=f"p{number}")
        quire.spark.archive(spark, str(journal), target, topics=topics)
        if number >= 2:
            counts.append(quire.spark.compact(spark, target).messages)
    assert counts == [0, 0, 1]
    assert [row.position for row in spark.read.parquet(target).select("position").collect()] == [4]


def test_the_last_value_of_every_key(spark: SparkSession, tmp_path: Path) -> None:
    journal, target = tmp_path / "j", str(tmp_path / "last")
    journals.write(journal, [("t", {"id": n % 3, "v": n}) for n in range(10)] + [("t", {"v": 1})])

    def table(path: str) -> dict[int, int]:
        return {row.id: json.loads(row.data)["v"] for row in spark.read.parquet(path).collect()}

    first = quire.spark.last_value(spark, str(journal), target, keys="id int")
    assert (first.messages, first.keys) == (10, 3)
    assert table(first.path) == {0: 9, 1: 7, 2: 8}
    journals.write(journal, [("t", {"id": 1, "v": 100}), ("t", {"id": 7, "v": 101})], name="later")
    second = quire.spark.last_value(spark, str(journal), target, keys="id int")
    assert second.messages == 2, "only what is new is looked at"
    assert table(second.path) == {0: 9, 1: 100, 2: 8, 7: 101}
    with pytest.raises(quire.ConfigError, match="keys"):
        quire.spark.last_value(spark, str(journal), target, keys="v int")


def test_last_values_are_found_before_what_queues_write_behind_them(
    spark: SparkSession, tmp_path: Path
) -> None:
    config = quire.Config.model_validate({"queue": [{"name": "work", "message_type": "json"}]})
    with quire.Client(f"file:{tmp_path / 'j'}", name="worker", config=config) as client:
        for n in range(4):
            client.publish("work", {"id": n % 2})
        client.flush(timeout=PATIENCE)
        jobs = client.subscribe("work", max_backlog=4)
        for _ in range(4):
            jobs.get(timeout=PATIENCE).ack()
        client.flush(timeout=PATIENCE)
    found = quire.spark.last_value(spark, str(tmp_path / "j"), str(tmp_path / "last"), keys="id int")
    assert (found.messages, found.keys) == (4, 2)


def test_last_values_of_another_journal_under_the_same_path_are_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    journal, target = tmp_path / "j", str(tmp_path / "last")
    journals.write(journal, [("t", {"id": n}) for n in range(3)])
    quire.spark.last_value(spark, str(journal), target, keys="id int")
    shutil.rmtree(journal)
    journals.write(journal, [("t", {"id": n}) for n in range(5)], name="another")
    with pytest.raises(quire.BadBookmarkError, match="not the journal"):
        quire.spark.last_value(spark, str(journal), target, keys="id int")


def test_last_values_miss_nothing_of_a_journal_that_grows(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, target = tmp_path / "j", str(tmp_path / "last")
    journals.write(journal, [("t", {"id": 1})])
    load = DataFrameReader.load

    def grows(reader: DataFrameReader, *arguments: Any) -> Any:
        frame = load(reader, *arguments)
        monkeypatch.setattr(DataFrameReader, "load", load)
        journals.write(journal, [("t", {"id": 2})], name="meanwhile")
        return frame

    monkeypatch.setattr(DataFrameReader, "load", grows)
    runs = [quire.spark.last_value(spark, str(journal), target, keys="id int") for _ in range(2)]
    assert [run.messages for run in runs] == [1, 1]
    assert runs[-1].keys == 2


@pytest.mark.parametrize("text", ["id", "", "string", "id strin", "id int; x int"])
def test_columns_that_are_not_written_as_spark_has_them_are_named(
    spark: SparkSession, trades: Path, tmp_path: Path, text: str
) -> None:
    with pytest.raises(quire.ConfigError, match="keys"):
        quire.spark.last_value(spark, str(trades), str(tmp_path / "last"), keys=text)
    for fields in filter(None, (text, "n int, Date date")):
        with pytest.raises(quire.ConfigError, match="fields"):
            quire.spark.archive(spark, str(trades), str(tmp_path / "archive"), fields=fields)


def test_bars_open_and_close_in_the_order_of_the_journal(spark: SparkSession, tmp_path: Path) -> None:
    def trade(symbol: str, second: int, price: float, qty: int) -> tuple[str, dict[str, Any]]:
        return "trades", {"s": symbol, "at": f"2026-01-02T03:04:{second:02d}Z", "p": price, "q": qty}

    journals.write(
        tmp_path,
        [
            trade("A", 5, 10, 1),
            trade("A", 5, 12, 2),
            trade("B", 5, 7, 3),
            trade("A", 5, 9, 4),
            trade("A", 31, 11, 5),
            ("trades", {"s": "A", "at": "2026-01-02T03:04:05Z"}),
        ],
    )
    frame = quire.spark.bars(
        spark, str(tmp_path), value="/p", by="/s", size="/q", time="/at", every="30 seconds"
    )
    rows = [
        (row.key, row.start.second, row.open, row.high, row.low, row.close, row.volume, row["count"])
        for row in frame.orderBy("key", "start").collect()
    ]
    assert rows == [
        ("A", 0, 10, 12, 9, 9, 7, 3),
        ("A", 30, 11, 11, 11, 11, 5, 1),
        ("B", 0, 7, 7, 7, 7, 3, 1),
    ]
    for every in ("30s", timedelta(seconds=30)):
        same = quire.spark.bars(spark, str(tmp_path), value="/p", by="/s", size="/q", time="/at", every=every)
        assert same.orderBy("key", "start").collect() == frame.orderBy("key", "start").collect()
    with pytest.raises(quire.ConfigError, match="value"):
        quire.spark.bars(spark, str(tmp_path), value="p")


def test_a_replay_keeps_the_order_and_can_be_run_again(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    journals.write(source, journals.trades(300))
    for _ in range(2):
        done = quire.spark.replay(
            spark,
            str(source),
            f"file:{target}",
            name="replay-1",
            options={"topicPrefix": "trades/", "minPartitions": "3"},
        )
        assert done.messages == 297
    assert "not persisted" not in caplog.text
    with quire.Journal(target, read_only=True) as journal:
        found = [(message.topic, message.json()["n"]) for message in journal.read()]
    assert found == [(topic, data["n"]) for topic, data in journals.trades(300) if topic != "rare"]
    with pytest.raises(quire.ConfigError, match="pace"):
        quire.spark.replay(spark, str(source), f"file:{target}", name="replay-2", pace="fast")


def test_a_replay_keeps_the_keys_that_publishers_supplied_and_counts_the_deletions(
    spark: SparkSession, tmp_path: Path
) -> None:
    config = quire.Config(sow_topic={"name": "supplied", "message_type": "json"})
    source, target = tmp_path / "source", tmp_path / "target"
    with quire.Client(f"file:{source}", name="loader", config=config) as client:
        for key in ("a", "b", "c"):
            client.publish("supplied", {"v": key}, sow_key=key)
        client.sow_delete("supplied", keys=["b", "c"])
        client.flush(timeout=PATIENCE)
    with quire.Client(f"file:{target}", config=config) as client:
        done = quire.spark.replay(spark, str(source), f"file:{target}", name="copy")
        assert (done.messages, done.deletions) == (3, 2)
        records = {record.sow_key: record.json() for record in client.sow("supplied")}
    assert records == {key: {"v": key} for key in ("a", "b", "c")}


@pytest.mark.parametrize("pace", ["2", "0.5X"])
def test_a_pace_is_that_from_the_first_message_on(pace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(_replay, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    wait = _replay._pace(pace)
    now[0] += 60  # Spark looks for the first message
    gone = []
    for count in range(4):
        wait(count, 7_000_000_000 + count * 250_000_000)
        gone.append(now[0])
        now[0] += 0.1
    assert gone == pytest.approx([160, 160.5, 161, 161.5])


@pytest.mark.parametrize("pace", ["٢", "٢X"])
def test_a_pace_with_other_digits_is_refused(pace: str) -> None:
    with pytest.raises(quire.ConfigError, match="pace"):
        _replay._pace(pace)


def test_a_pace_may_be_next_to_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(_replay, "time", SimpleNamespace(monotonic=lambda: 0.0, sleep=sleep))
    wait = _replay._pace("0.000000000000001")
    wait(0, 0)
    with pytest.raises(KeyboardInterrupt):
        wait(1, 0)
    assert slept == [3600.0] * 3, "the system takes no sleep of centuries"


def test_a_replay_keeps_its_pace(spark: SparkSession, tmp_path: Path) -> None:
    journals.write(tmp_path / "source", journals.trades(20))
    done = quire.spark.replay(
        spark, str(tmp_path / "source"), f"file:{tmp_path / 'target'}", name="slow", pace="100"
    )
    # Nineteen steps of 10 ms follow the first message.
    assert done.seconds >= 0.19


def test_an_audit_counts_what_left_a_queue_and_how(spark: SparkSession, tmp_path: Path) -> None:
    config = quire.Config.model_validate({"queue": [{"name": "work", "message_type": "json"}]})
    with quire.Client(f"file:{tmp_path}", name="worker", config=config) as client:
        for n in range(20):
            client.publish("work", {"n": n})
        client.flush(timeout=PATIENCE)
        jobs = client.subscribe("work", max_backlog=20)
        for n in range(20):
            job = jobs.get(timeout=PATIENCE)
            if n < 15:
                job.ack()
            elif n == 15:
                job.cancel()
            else:
                job.expire()
        client.flush(timeout=PATIENCE)
    (row,) = quire.spark.queue_audit(spark, str(tmp_path)).collect()
    assert (row.queue, row.acknowledged, row.expired, row.taken) == ("work", 15, 4, 0)
    assert row.cancels >= 1
    assert row.reasons == "forced_expire"
    assert 0 <= row.p50 <= row.p99 <= row.longest < 3600


def test_what_happened_to_messages_that_were_removed_is_counted(spark: SparkSession, tmp_path: Path) -> None:
    config = quire.Config.model_validate(
        {
            "transaction_log": {"journal_size": "64KB", "topic": [{"name": "work", "message_type": "json"}]},
            "queue": [{"name": "work", "message_type": "json"}],
        }
    )
    with quire.Client(f"file:{tmp_path}", name="worker", config=config) as client:
        for n in range(40):
            client.publish("work", {"n": n, "text": "x" * 8000})
        client.flush(timeout=PATIENCE)
        jobs = client.subscribe("work", max_backlog=40)
        for _ in range(40):
            jobs.get(timeout=PATIENCE).ack()
        client.flush(timeout=PATIENCE)
    journals.remove_oldest(tmp_path, 3)
    (row,) = quire.spark.queue_audit(spark, str(tmp_path)).collect()
    assert row.acknowledged == 40
    assert 0 < row.p50 <= row.longest < 3600
    messages = quire.spark.queue_audit(spark, str(tmp_path), by="message").collect()
    assert [each.outcome for each in messages] == ["acknowledged"] * 40
    of_removed = [each for each in messages if each.published is None]
    assert of_removed
    assert {each.stay for each in of_removed} == {None}, "nobody knows how long it took"


def test_dead_letters_are_expiries_of_their_queue(spark: SparkSession, tmp_path: Path) -> None:
    def letter(position: int, reason: str) -> tuple[str, dict[str, Any]]:
        return "dead", {"queue": "work", "position": position, "reason": [reason], "deliveries": 5}

    journals.write(tmp_path, [("work", {"n": n}) for n in range(5)])
    journals.write(tmp_path, [letter(2, "max_deliveries"), letter(4, "time_limit")], name="broker")
    (row,) = quire.spark.queue_audit(spark, str(tmp_path), dead_letters="dead").collect()
    assert (row.queue, row.expired, row.acknowledged) == ("work", 2, 0)
    assert row.reasons == "max_deliveries,time_limit"
    assert 0 < row.p50 <= row.longest < 3600
    assert quire.spark.queue_audit(spark, str(tmp_path)).collect() == []
    # Others may publish there too.
    journals.write(tmp_path, [("dead", {"n": 1}), ("dead", {"queue": "work"})], name="other")
    (row,) = quire.spark.queue_audit(spark, str(tmp_path), dead_letters="dead").collect()
    assert (row.queue, row.expired) == ("work", 2)


def test_commands_print_what_they_did(
    spark: SparkSession, trades: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    # The commands share the session of the tests, which they must not stop.
    monkeypatch.setattr(SparkSession, "stop", lambda _self: None)
    page = tmp_path / "bars.html"
    arguments = ["bars", str(trades), "--value", "/price", "--by", "/symbol", "--every", "1 day"]
    assert command(["pipeline", *arguments, "--output", str(page), "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert sorted(line["key"] or "" for line in lines) == ["", "IBM", "MSFT", "ORCL"]
    assert sum(line["count"] for line in lines) == journals.COUNT
    text = page.read_text()
    assert text.count("<svg") == 4
    assert "IBM" in text
    # Spark cannot write there. The error of Java is reported in one line.
    assert command(["pipeline", "archive", str(trades), "nowhere://x/y"]) == 1
    assert 'No FileSystem for scheme "nowhere"' in capsys.readouterr().err
    assert command(["pipeline", "compact", "nowhere://x/y"]) == 1
    assert 'No FileSystem for scheme "nowhere"' in capsys.readouterr().err
    assert command(["pipeline", "archive", str(trades), str(tmp_path / "archive"), "--topics", "rare"]) == 0
    assert "30" in capsys.readouterr().out
    assert all(line["start"].endswith("T00:00:00+00:00") for line in lines)
    for nowhere in (trades / "nowhere", tmp_path):
        assert command(["pipeline", "bars", str(nowhere), "--value", "/price"]) == 2
        assert capsys.readouterr().err.startswith("quire: path: ")
    for window in ("soon", "1 month", "0 seconds", "0s"):
        assert command(["pipeline", "bars", str(trades), "--value", "/price", "--every", window]) == 2
        assert capsys.readouterr().err.startswith("quire: every: ")
    assert command(["pipeline", "bars", str(trades), "--value", "/price", "--filter", "/n >"]) == 2
    assert "column 5" in capsys.readouterr().err


def test_commands_say_what_is_missing_before_they_work(
    trades: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["pipeline", "queue-audit", str(trades)]
    for output in (tmp_path / "page.pdf", tmp_path / "nowhere" / "page.html"):
        assert command([*arguments, "--output", str(output)]) == 2
        assert capsys.readouterr().err.startswith("quire: output: ")
    for option, value in (("memory", "lots"), ("memory", "2gb"), ("master", "nonsense")):
        assert command([*arguments, f"--{option}", value]) == 2
        assert capsys.readouterr().err.startswith(f"quire: {option}: ")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    assert command(arguments) == 2
    assert "Java 17" in capsys.readouterr().err


def test_an_error_of_quire_is_found_in_that_of_spark() -> None:
    error = _own(Exception("[X] Failed\n  File ...\nquire.BadTopicError: topics: no\n SQLSTATE: 38000"))
    assert (type(error), error.reason) == (quire.BadTopicError, "topics: no")
    assert _own(Exception("java.lang.Oops\n at x")).reason == "java.lang.Oops"
    assert _own(Exception("\n[PARSE] Syntax error\n at x")).reason == "[PARSE] Syntax error"
    assert _own(Exception("An error occurred while calling o1.x.\n: a.B: why\n\tat x")).reason == "a.B: why"
    assert _own(ValueError("")).reason == "ValueError"


def test_what_is_no_archive_is_not_compacted(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(quire.ConfigError, match="no archive"):
        quire.spark.compact(spark, str(tmp_path / "nowhere"))


def test_a_small_file_is_replaced_at_once(spark: SparkSession, tmp_path: Path) -> None:
    files = Files(spark, str(tmp_path))
    files.write("_state.json", "before")
    system = files._system

    class Watched:
        """A kill after any of these calls leaves a state."""

        def __getattr__(self, name: str) -> Any:
            def call(*arguments: Any) -> Any:
                result = getattr(system, name)(*arguments)
                assert (tmp_path / "_state.json").read_text() in ("before", "after"), name
                return result

            return call

    files._system = Watched()
    files.write("_state.json", "after")
    assert files.read("_state.json") == "after"
    assert files.names() == ["_state.json"]
