"""`spark.read.format("quire")` on a directory: columns, fields, ranges, tasks, and what is refused."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import quire
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StructType
from quire._quire import spark_columns, spark_frame, spark_schema

from spark import journals


def test_every_column_of_every_message(read: Any, trades: Path) -> None:
    rows = read().load(str(trades)).orderBy("position").collect()
    written = journals.trades()
    assert [row.position for row in rows] == list(range(1, journals.COUNT + 1))
    assert [(row.topic, row.data) for row in rows] == [
        (topic, journals.encoded(data)) for topic, data in written
    ]
    assert [row.sequence for row in rows] == list(range(1, journals.COUNT + 1))
    assert {(row.kind, row.message_type, row.correlation_id) for row in rows} == {("publish", "json", None)}
    assert all(row.bookmark == f"{row.publisher}|{row.sequence}|" for row in rows)
    assert all(row.timestamp_ns // 1000 == _microseconds(row.timestamp) for row in rows[:10])


def test_a_schema_names_attributes_and_fields_of_the_data(read: Any, trades: Path) -> None:
    schema = (
        "position long, n int, symbol string, price double, is_buy boolean, at timestamp, "
        "order struct<qty: byte, account: string>, absent long"
    )
    frame = read().schema(schema).load(str(trades)).where("position BETWEEN 4 AND 5").orderBy("position")
    fourth, fifth = frame.collect()
    assert (fourth.n, fourth.symbol, fourth.price, fourth.is_buy) == (3, None, 0.375, False)
    assert (fifth.symbol, fifth.is_buy, fifth.order.qty, fifth.order.account, fifth.absent) == (
        "IBM",
        True,
        4,
        "a4",
        None,
    )
    assert _microseconds(fifth.at) == _microseconds(datetime(2026, 1, 2, 3, 4, 4, tzinfo=UTC))


def test_a_schema_may_say_that_a_column_is_not_null(read: Any, trades: Path) -> None:
    schema = (
        "position long NOT NULL, n int NOT NULL, order struct<qty: byte NOT NULL, account: string> NOT NULL"
    )
    frame = read().schema(schema).load(str(trades))
    assert not frame.schema["n"].nullable
    assert frame.where("position = 5").first() == (5, 4, (4, "a4"))
    assert frame.count() == journals.COUNT


def test_fields_come_on_top_and_may_have_paths_of_their_own(read: Any, trades: Path) -> None:
    frame = (
        read().options(fields="Qty short, topic_length int", **{"field.Qty": "/order/qty"}).load(str(trades))
    )
    row = frame.first()
    assert frame.columns[-2:] == ["Qty", "topic_length"]
    assert (row.Qty, row.topic_length) == (0, None)


def test_attributes_are_read_whatever_the_case_of_their_names(read: Any, trades: Path) -> None:
    schema = "POSITION bigint, Topic string, Data string, Timestamp_NS long, n int"
    frame = read().schema(schema).load(str(trades))
    assert frame.columns == ["POSITION", "Topic", "Data", "Timestamp_NS", "n"]
    row = frame.where("position = 5").first()
    topic, data = journals.trades()[4]
    assert (row.POSITION, row.Topic, row.Data, row.n) == (5, topic, journals.encoded(data), 4)
    pushed = read().option("pushConditions", "true").schema(schema).load(str(trades))
    assert [row.n for row in pushed.where("TOPIC = 'rare' AND Position < 300").collect()] == [0, 100, 200]


def test_a_member_of_the_data_with_the_name_of_an_attribute_is_read_by_its_path(
    read: Any, tmp_path: Path
) -> None:
    journals.write(tmp_path, [("t", {"topic": "inner", "Topic": "other"})])
    reader = read().option("field.topic", "/Topic").schema("position long, topic string")
    assert reader.load(str(tmp_path)).collect() == [(1, "other")]


def test_a_member_with_a_slash_in_its_name_is_read_by_a_path_in_brackets(read: Any, tmp_path: Path) -> None:
    journals.write(tmp_path, [("t", {"a/b": 1, "a": {"b": 2}, "c": [4], "odd name": 5})])

    def value(name: str, **options: str) -> int | None:
        reader = read().options(**options).schema(f"`{name}` int")
        (row,) = reader.load(str(tmp_path)).collect()
        found: int | None = row[0]
        return found

    assert value("a/b", **{"field.a/b": "[/a/b]"}) == 1
    assert value("a/b", **{"field.a/b": "/a/b"}) == 2
    assert value("x", **{"field.x": "/c[0]"}) == 4
    assert value("odd name") == 5
    pushed = {"field.x": "[/a/b]", "pushConditions": "true"}
    reader = read().options(**pushed).schema("x int")
    assert reader.load(str(tmp_path)).where("x = 1").count() == 1


def test_an_array_of_the_data_is_an_array_column(read: Any, tmp_path: Path) -> None:
    arrays = [["a", "", None, 7], [], "a", None, [["b"], "c"]]
    journals.write(tmp_path, [("t", {"tags": tags, "legs": {"sizes": [1, 2.5, 3]}}) for tags in arrays])
    reader = read().option("fields", "tags array<string>, legs struct<sizes: array<int>>")
    rows = reader.load(str(tmp_path)).orderBy("position").collect()
    assert [row.tags for row in rows] == [["a", None, None, "7"], [], None, None, [None, "c"]]
    assert {tuple(row.legs.sizes) for row in rows} == {(1, None, 3)}
    for condition, count in (("array_contains(tags, 'c')", 1), ("tags IS NULL", 2)):
        pushed = reader.option("pushConditions", "true").load(str(tmp_path))
        assert pushed.where(condition).count() == count


def test_an_object_of_the_data_is_a_map_column(read: Any, tmp_path: Path) -> None:
    objects = [{"a": 1, "b": None, "c": "x", "d": [2]}, {}, [{"a": 1}], "a", None]
    journals.write(tmp_path, [("t", {"m": value, "o": {"m": {"é": 2.5}}}) for value in objects])
    reader = read().option("fields", "m map<string, int>, o struct<m: map<string, double>>")
    rows = reader.load(str(tmp_path)).orderBy("position").collect()
    first = {"a": 1, "b": None, "c": None, "d": None}
    assert [row.m for row in rows] == [first, {}, None, None, None]
    assert [row.o.m for row in rows] == [{"é": 2.5}] * len(objects)
    for condition, count in (("m['a'] = 1", 1), ("m IS NULL", 3), ("size(m) = 0", 1)):
        pushed = reader.option("pushConditions", "true").load(str(tmp_path))
        assert pushed.where(condition).count() == count


MAPS = "texts map<string, string>, numbers map<string, bigint>, parts map<string, double>, flags map<string, boolean>"


@pytest.mark.parametrize("seed", [1, pytest.param(random.SystemRandom().randrange(2, 1 << 32), id="random")])
def test_a_map_is_what_from_json_makes_of_the_object(read: Any, tmp_path: Path, seed: int) -> None:
    """The objects have values of the type of the column and null. Other values of the whole map are
    NULL for both."""
    print(f"seed {seed}")
    chance = random.Random(seed)
    values: dict[str, Callable[[], object]] = {
        "texts": lambda: chance.choice(("a", "ä日", '"\\\n', 1.5, 7, True, "x" * 300)),
        "numbers": lambda: chance.randrange(-(2**63), 2**63),
        "parts": lambda: chance.choice((chance.random(), chance.uniform(-1e300, 1e300), 3)),
        "flags": lambda: chance.random() < 0.5,
    }
    names = ("a", "b", "", "é", '"', "\t", "日本", "a b", "/a", "c" * 100)

    def object_of(value: Callable[[], object]) -> object:
        if chance.random() < 0.2:
            return chance.choice((None, 5, "text", False, []))
        members = chance.sample(names, chance.randrange(len(names)))
        return {name: None if chance.random() < 0.2 else value() for name in members}

    def message() -> dict[str, object]:
        return {name: object_of(value) for name, value in values.items() if chance.random() < 0.9}

    journals.write(tmp_path, [("t", message()) for _ in range(300)])
    own = read().schema(f"position bigint, {MAPS}").load(str(tmp_path)).orderBy("position").drop("position")
    data = read().schema("position bigint, data string").load(str(tmp_path)).orderBy("position")
    assert own.collect() == data.select(f.from_json("data", MAPS).alias("j")).select("j.*").collect()


def test_the_options_choose_topics_and_messages(read: Any, trades: Path) -> None:
    def count(**options: Any) -> int:
        return int(read().options(**options).schema("position long").load(str(trades)).count())

    assert count(topics="rare, trades/0") == 30 + 990
    assert count(topicPrefix="trades/") == journals.COUNT - 30
    assert count(topicPattern="^(rare|.*/1)$") == 30 + 990
    assert count(filter="/order/qty = 3 AND /symbol = 'IBM'") == len(
        [n for n in range(journals.COUNT) if n % 7 == 3 and n % 4 == 0]
    )


def test_a_snapshot_holds_what_was_there_when_it_was_made(spark: SparkSession, tmp_path: Path) -> None:
    journals.write(tmp_path, journals.trades(10))
    first = spark.read.format("quire").load(str(tmp_path))
    journals.write(tmp_path, journals.trades(5), name="other")
    second = spark.read.format("quire").load(str(tmp_path))
    assert (first.count(), second.count(), first.count()) == (10, 15, 10)


def test_ranges_begin_and_end_where_the_options_say(read: Any, trades: Path) -> None:
    def positions(**options: Any) -> tuple[int, int, int] | None:
        found = read().options(**options).schema("position long").load(str(trades)).collect()
        return (min(found).position, max(found).position, len(found)) if found else None

    with quire.Client(f"file:{trades}", name="looker") as client:
        message = next(iter(client.subscribe("rare", bookmark=quire.EPOCH)))
        publisher = message.publisher
    count = journals.COUNT
    assert positions(startingOffsets="-10") == (count - 9, count, 10)
    assert positions(startingOffsets="latest") is None
    assert positions(endingOffsets="earliest") is None
    assert positions(startingOffsets=f"{publisher}|100|", endingOffsets=f"{publisher}|200|") == (
        101,
        200,
        100,
    )
    assert positions(startingOffsets="-10 days") == (1, count, count)
    assert positions(startingOffsets="2000-01-01T00:00:00Z", endingOffsets="now") == (1, count, count)
    assert positions(startingOffsets="epoch", endingOffsets="2000-01-01") is None
    assert positions(startingTimestamp="2020-01-01T00:00:00Z") == (1, count, count)
    assert positions(endingTimestamp="2020-01-01") is None
    assert positions(startingTimestamp="2100-01-01", timestampStrategy="latest") is None


def test_parallel_tasks_read_everything_once(read: Any, trades: Path) -> None:
    for options in ({"minPartitions": 4}, {"partitionBytes": "32KB"}, {"partitionBytes": "1g"}):
        frame = read().options(**options).schema("position long").load(str(trades))
        assert sorted(row.position for row in frame.collect()) == list(range(1, journals.COUNT + 1)), options
    assert read().option("minPartitions", 4).load(str(trades)).rdd.getNumPartitions() >= 4
    assert read().load(str(trades)).rdd.getNumPartitions() == 1, "small segments are joined"


def test_several_directories_are_one_frame(read: Any, trades: Path, tmp_path: Path) -> None:
    journals.write(tmp_path, journals.trades(7))
    frame = read().schema("position long").load([str(trades), str(tmp_path)])
    assert frame.count() == journals.COUNT + 7


def test_a_data_directory_of_a_server_will_do(read: Any, trades: Path, tmp_path: Path) -> None:
    shutil.copytree(trades, tmp_path / "data" / "journal")
    assert read().schema("position long").load(str(tmp_path / "data")).count() == journals.COUNT


def test_archived_and_compressed_segments_are_the_same_log(read: Any, trades: Path, tmp_path: Path) -> None:
    shutil.copytree(trades, tmp_path / "j")
    archive = tmp_path / "archive"
    with quire.Journal(tmp_path / "j", archive_directory=archive, journal_size="64KB") as journal:
        assert len(journal.archive(age=0)) > 1
        assert len(journal.compress(age=0)) > 1
    frame = (
        read()
        .option("archiveDirectory", str(archive))
        .schema("position long, n int")
        .load(str(tmp_path / "j"))
    )
    rows = frame.orderBy("position").collect()
    assert [(row.position, row.n) for row in rows] == [(n + 1, n) for n in range(journals.COUNT)]


def test_an_empty_journal_has_no_rows(read: Any, tmp_path: Path) -> None:
    journals.write(tmp_path, [])
    assert read().load(str(tmp_path)).count() == 0


def test_what_holds_no_journal_is_refused(read: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path, reason in (
        (tmp_path, "there is no journal in"),
        (tmp_path / "file", "no directory"),
        (tmp_path / "x", "no directory"),
    ):
        with pytest.raises(PySparkException, match=reason):
            read().load(str(path)).collect()


def test_data_that_is_not_text_is_null_as_text_and_whole_as_binary(read: Any, tmp_path: Path) -> None:
    journals.write(tmp_path, [("t", b"\xff\xfe"), ("t", b"{}"), ("t", b"")])
    rows = read().load(str(tmp_path)).collect()
    assert [row.data for row in rows] == [None, "{}", ""]
    rows = read().schema("data binary, x int").load(str(tmp_path)).collect()
    assert [(bytes(row.data), row.x) for row in rows] == [(b"\xff\xfe", None), (b"{}", None), (b"", None)]


def test_a_message_larger_than_a_batch_comes_whole(read: Any, tmp_path: Path) -> None:
    large = "x" * 300_000
    journals.write(tmp_path, [("t", {"a": large}), ("t", {"a": "y"}), ("t", {"a": large})])
    rows = read().schema("a string").option("batchBytes", "1KB").load(str(tmp_path)).collect()
    assert [row.a for row in rows] == [large, "y", large]


def test_damage_is_an_error_or_left_out(read: Any, trades: Path, tmp_path: Path) -> None:
    shutil.copytree(trades, tmp_path / "j")
    damaged = journals.segments(tmp_path / "j")[2]
    with damaged.open("r+b") as file:
        file.seek(4096 + 300)
        file.write(b"damage")
    with pytest.raises(PySparkException, match=damaged.name):
        # Not its `count`, which need not read messages.
        read().load(str(tmp_path / "j")).collect()
    left = read().option("failOnDataLoss", "false").load(str(tmp_path / "j")).count()
    assert 0 < left < journals.COUNT


def test_files_that_are_removed_under_a_frame_are_an_error_or_left_out(
    spark: SparkSession, trades: Path, tmp_path: Path
) -> None:
    for fails in (True, False):
        directory = tmp_path / str(fails)
        shutil.copytree(trades, directory)
        frame = (
            spark.read.format("quire")
            .options(failOnDataLoss=str(fails), partitionBytes="32KB")
            .schema("position long")
            .load(str(directory))
        )
        assert frame.count() == journals.COUNT
        moved = tmp_path / f"moved-{fails}"
        # Another inode: the workers open the directory again, as on another machine.
        shutil.copytree(directory, moved)
        journals.remove_oldest(moved, 1)
        shutil.rmtree(directory)
        moved.rename(directory)
        if fails:
            with pytest.raises(PySparkException, match="removed"):
                pytest.fail(f"{frame.count()} messages")
        else:
            assert 0 < frame.count() < journals.COUNT


def test_another_journal_under_the_same_path_is_noticed(spark: SparkSession, tmp_path: Path) -> None:
    journals.write(tmp_path / "j", journals.trades(100))
    frame = spark.read.format("quire").load(str(tmp_path / "j"))
    assert frame.count() == 100
    shutil.rmtree(tmp_path / "j")
    journals.write(tmp_path / "j", journals.trades(200), name="another")
    with pytest.raises(PySparkException, match="not the journal"):
        frame.count()


@pytest.mark.parametrize(
    ("options", "schema", "message"),
    [
        ({"startingOfsets": "latest"}, None, "startingOffsets"),
        ({"url": "quire://127.0.0.1:1"}, None, "exactly one"),
        ({"topics": "a", "topicPrefix": "b"}, None, "only one"),
        ({"batchRows": "0"}, None, "batchRows"),
        ({"partitionBytes": "many"}, None, "partitionBytes"),
        ({"failOnDataLoss": "maybe"}, None, "failOnDataLoss"),
        ({"filter": "/n >"}, None, "filter: '/n >': .*column 5"),
        ({"filter": "/n >>> 3"}, None, "filter: '/n >>> 3': .*column 5"),
        ({"fields": "n wat"}, None, "fields: 'n wat' is not a name with a type"),
        ({"fields": "n int, x map<int,int>"}, None, "fields: 'x map<int,int>' cannot be read"),
        ({"fields": "n int, x map<string,array<int>>"}, None, "fields: 'x map<string,array<int>>'"),
        (
            {"fields": "n int, x array<struct<a: int>>"},
            None,
            "fields: 'x array<struct<a:int>>' cannot be read",
        ),
        ({"fields": "n int, N long"}, None, "fields: the column N is defined twice"),
        ({"fields": "n int, Topic string"}, None, "fields: topic is an attribute"),
        ({}, "n int, `a/b` int", r"column a/b: .*field.a/b .*\[/a/b\]"),
        ({}, "order struct<`a/b`: int>", "column order.a/b: "),
        ({"field.n": "/a[x]"}, "n int", "is no path"),
        ({}, "x array<array<int>>", "column x: array<array<int>> .*from_json"),
        ({}, "x map<int,string>", "column x: map<int,string> .*from_json"),
        (
            {},
            "x variant",
            r"column x: only data can be variant; .* variant_get\(data, '\$.x', 'variant'\)",
        ),
        ({}, "x array<variant>", "column x: array<variant>"),
        ({}, "Position string", "column position: it is bigint"),
        ({"topicPattern": "("}, None, "topics"),
        ({"startingOffsets": "yesterday"}, None, "yesterday"),
        ({"startingOffsets": "1|1|"}, None, "does not have"),
        ({"startingTimestamp": "2100-01-01"}, None, "timestampStrategy"),
        ({}, "position int", "position"),
        ({}, "price decimal(10,2)", "decimal"),
        ({"field.x": "/y"}, "n int", "field.x"),
        ({"field.n": "y"}, "n int", "'y'|\"y\""),
        ({}, "n int, symbol string NOT NULL", "symbol: it is NOT NULL"),
    ],
)
def test_what_cannot_be_is_refused_with_its_name(
    read: Any, trades: Path, options: dict[str, str], schema: str | None, message: str
) -> None:
    reader = read().options(**options)
    if schema is not None:
        reader = reader.schema(schema)
    with pytest.raises(PySparkException, match=message):
        reader.load(str(trades)).first()


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n int", ["n"]),
        ("`a, b` LONG NOT NULL , c: string COMMENT 'x, y'", ["a, b", "c"]),
        ("o struct<a: int, i: struct<b double, c date>>, n real", ["o", "n"]),
        ("`a``b` timestamp_ltz", ["a`b"]),
    ],
)
def test_columns_are_defined_as_spark_writes_them(text: str, names: list[str], spark: SparkSession) -> None:
    frame = spark_frame({"path": "/j", "fields": text}, is_stream=True)
    columns = StructType.fromJson(json.loads(spark_schema(frame))).fields[-len(names) :]
    assert [column.name for column in columns] == names
    for column, of_spark in zip(columns, spark.createDataFrame([], text).schema, strict=True):
        assert (column.dataType, column.nullable) == (of_spark.dataType, of_spark.nullable), (
            "Spark reads the same"
        )


@pytest.mark.parametrize(
    "text", ["n", "", "n wat", "n int,", "n int x", "struct<a int>", "n struct<a>", "n int; m int"]
)
def test_columns_that_are_not_written_as_spark_has_them_are_refused(text: str) -> None:
    with pytest.raises(quire.ConfigError, match=r"^fields: "):
        spark_columns("fields", text)


def test_a_directory_that_is_not_there_is_named(read: Any, tmp_path: Path) -> None:
    with pytest.raises(PySparkException, match="no directory"):
        read().load(str(tmp_path / "nowhere"))
    with pytest.raises(PySparkException, match="archive"):
        read().load("s3://bucket/journal")


def _microseconds(moment: datetime) -> int:
    return round(moment.timestamp() * 1_000_000)
