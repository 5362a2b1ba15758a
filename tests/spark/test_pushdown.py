"""Conditions that Spark passes to the source, and filters: their uses, and that filters select the
same rows as Spark.

`test_conditions.py` compares the result of conditions with that of Spark.
"""

from __future__ import annotations

import random
from datetime import date, datetime
from functools import reduce
from pathlib import Path

import pytest
import quire
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from support.waiting import PATIENCE

from spark import journals

COUNT = 400
#: The name of the second says nothing of the number: processes that share the tests draw one each,
#: and must find the same names.
SEEDS = (1, pytest.param(random.SystemRandom().randrange(2, 1 << 32), id="random"))


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("pushdown")
    journals.write(directory, [(("a/1", "a/2", "b")[number % 3], {"n": number}) for number in range(COUNT)])
    return directory


def _found(frames: list[DataFrame]) -> list[set[int]]:
    """The positions of each frame, by one job."""
    parts = [frame.select(f.lit(number).alias("frame"), "position") for number, frame in enumerate(frames)]
    rows = reduce(DataFrame.unionAll, parts).collect()
    found: list[set[int]] = [set() for _ in frames]
    for row in rows:
        assert row.position not in found[row.frame], "a row came twice"
        found[row.frame].add(row.position)
    return found


def _expected(everything: DataFrame, count: int, conditions: list[str]) -> list[set[int]]:
    """Aggregates that Spark passes to the source: only conditions are passed, and values are
    not."""
    truths = everything.select(
        "position", *[f.expr(text).alias(f"c{number}") for number, text in enumerate(conditions)]
    ).collect()
    assert len(truths) == count
    return [{row.position for row in truths if row[f"c{number}"]} for number in range(len(conditions))]


def test_nan_meets_the_conditions_that_it_meets_in_spark(
    spark: SparkSession, reader: str, tmp_path: Path
) -> None:
    """As a double it comes by MessagePack and BSON."""
    config = quire.Config(transaction_log={"topic": [{"name": "t", "message_type": "msgpack"}]})
    with quire.Client(f"file:{tmp_path / 'j'}", name="p", config=config) as client:
        for bits in ("7ff8000000000000", "3ff0000000000000", "7ff0000000000000"):
            client.publish("t", b"\x81\xa1v\xcb" + bytes.fromhex(bits))
        client.flush(timeout=PATIENCE)
    source = spark.read.format("quire").schema("position long, v double").option("pushConditions", "true")
    for condition, positions in (
        ("v < 5", [2]),
        ("v = 5", []),
        ("v <= 1", [2]),
        ("v > 5", [1, 3]),
        ("v NOT IN (5D, 1D)", [1, 3]),
        ("NOT (v < 5)", [1, 3]),
    ):
        frame = source.load(str(tmp_path / "j")).where(condition)
        assert [row.position for row in frame.collect()] == positions, condition
        assert source.load(str(tmp_path / "j")).where(condition).count() == len(positions), condition


@pytest.mark.usefixtures("reader")
def test_a_condition_is_about_the_column_that_it_names_where_the_case_of_names_matters(
    spark: SparkSession, tmp_path: Path
) -> None:
    journals.write(tmp_path / "j", [("t", {"Name": "a", "name": "b"}), ("t", {"Name": "b", "name": "a"})])
    source = spark.read.format("quire").schema("position long, Name string, name string")
    source = source.option("pushConditions", "true")
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        for condition, position in (("name = 'a'", 2), ("Name = 'a'", 1)):
            frame = source.load(str(tmp_path / "j"))
            assert [row.position for row in frame.where(condition).collect()] == [position]
        with pytest.raises(PySparkException, match=r"field.name: it could be the path of each .* Name, name"):
            source.option("field.name", "/x").load(str(tmp_path / "j")).collect()
    finally:
        spark.conf.unset("spark.sql.caseSensitive")


@pytest.mark.usefixtures("reader")
def test_a_column_is_a_field_when_another_one_has_the_name_of_the_attribute(
    spark: SparkSession, tmp_path: Path
) -> None:
    journals.write(tmp_path / "j", [("t", {"Kind": "a", "kind": "x"}), ("t", {"Kind": "b", "kind": "y"})])
    source = spark.read.format("quire").schema("position long, kind string, Kind string")
    source = source.option("pushConditions", "true")
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        frame = source.load(str(tmp_path / "j"))
        assert [tuple(row) for row in frame.collect()] == [(1, "publish", "a"), (2, "publish", "b")]
        assert [tuple(row) for row in frame.select("Kind").collect()] == [("a",), ("b",)]
        for condition, positions in (("Kind = 'b'", [2]), ("kind = 'publish'", [1, 2]), ("kind = 'x'", [])):
            frame = source.load(str(tmp_path / "j")).where(condition)
            assert [row.position for row in frame.collect()] == positions, condition
    finally:
        spark.conf.unset("spark.sql.caseSensitive")


@pytest.mark.usefixtures("reader")
def test_a_query_need_not_use_the_columns_that_have_a_path(spark: SparkSession, journal: Path) -> None:
    source = spark.read.format("quire").schema("position long, n int, px int").option("field.px", "/n")
    frame = source.load(str(journal))
    assert frame.select("position").count() == COUNT
    assert frame.groupBy().agg(f.max("position")).first() == (COUNT,)
    assert frame.where("n < 3").select("n").count() == 3
    assert frame.select(f.max("px")).first() == (COUNT - 1,)
    mistaken = source.option("field.py", "/n").load(str(journal))
    for query in (mistaken.select("position"), mistaken.where("n < 3"), mistaken):
        with pytest.raises(PySparkException, match=r"field\.py: there is no such column"):
            query.count()


@pytest.mark.usefixtures("reader")
def test_a_table_of_the_catalog_is_refused_with_the_way_out(spark: SparkSession, journal: Path) -> None:
    options = f"USING quire OPTIONS (path '{journal}', fields 'n int')"
    with pytest.raises(PySparkException, match="CREATE TEMPORARY VIEW"):
        spark.sql(f"CREATE TABLE messages_in_catalog {options}")
    # Spark asks for no columns here, so the error comes when the table is used.
    spark.sql(f"CREATE TABLE messages_in_catalog (n INT) {options}")
    try:
        with pytest.raises(PySparkException, match="CREATE TEMPORARY VIEW"):
            spark.sql("SELECT count(*) FROM messages_in_catalog").collect()
    finally:
        spark.sql("DROP TABLE messages_in_catalog")
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW messages_in_view {options}")
    assert spark.sql("SELECT count(*) FROM messages_in_view WHERE n < 3").first() == (3,)


def test_rows_at_the_ends_of_the_calendar_are_collected(
    spark: SparkSession, reader: str, tmp_path: Path
) -> None:
    texts = (
        "0001-01-01T00:00:00Z",
        "0001-01-02T00:00:00Z",
        "9999-12-31T23:59:59.999999Z",
        "10000-01-01T00:00:00Z",
    )
    journals.write(tmp_path / "j", [("t", {"at": text, "day": text}) for text in texts])
    schema = "position long, at timestamp, day date"
    frame = spark.read.format("quire").schema(schema).load(str(tmp_path / "j"))
    rows = [(row.at, row.day) for row in frame.orderBy("position").collect()]
    assert rows == [
        (None, date(1, 1, 1)),
        (datetime(1, 1, 2), date(1, 1, 2)),
        (datetime(9999, 12, 31, 23, 59, 59, 999999), date(9999, 12, 31)),
        (None, None),
    ]


@pytest.mark.usefixtures("reader")
def test_a_frame_may_be_used_with_many_conditions(spark: SparkSession, journal: Path) -> None:
    """Spark keeps what it handed to the Python reader for the whole life of a frame: nothing is,
    unless the frame was made for that."""
    frame = spark.read.format("quire").schema("position long, topic string").load(str(journal))
    few = frame.where("position < 3")
    assert (few.count(), frame.count(), frame.where("position > 10").count(), few.count()) == (
        2,
        COUNT,
        COUNT - 10,
        2,
    )
    assert few.union(frame).count() == COUNT + 2
    assert few.join(frame, "topic").count() > few.count()


def test_what_spark_hands_over_narrows_the_scan(spark: SparkSession, journal: Path) -> None:
    """The reason for the option, seen by what it must not be used for."""
    options = {"pushConditions": "true", "reader": "python"}
    frame = spark.read.format("quire").schema("position long").options(**options).load(str(journal))
    assert frame.where("position < 3").count() == 2
    if frame.count() == COUNT:
        pytest.fail("Spark no longer keeps conditions: the option may become the default")


def test_two_different_conditions_on_one_frame_that_hands_them_over_are_an_error(
    spark: SparkSession, journal: Path
) -> None:
    def load() -> DataFrame:
        options = {"pushConditions": "true", "reader": "python"}
        return spark.read.format("quire").schema("position long").options(**options).load(str(journal))

    load().createOrReplaceTempView("messages")
    twice = "SELECT (SELECT count(*) FROM messages WHERE position < 3), (SELECT count(*) FROM messages WHERE position > 90)"
    with pytest.raises(PySparkException, match=r"pushConditions: .*value=3.*value=90.*another frame"):
        spark.sql(twice).collect()
    frame = load()
    few, same = frame.where("position < 3"), frame.where("position < 3")
    assert (few.count(), same.count(), few.union(same).count()) == (2, 2, 4)
    with pytest.raises(PySparkException, match=r"pushConditions: .*value=3.*value=4"):
        frame.where("position < 4").count()
    assert few.count() == 2, "the condition that it has taken stays usable"
    assert load().where("position < 4").count() == 3, "another frame has other conditions"


def _pair(chance: random.Random) -> tuple[str, str]:
    """A condition in the language of filters and what it is in SQL, on fields that have values of
    one type."""
    number, word = chance.randrange(-1, 8), chance.choice(("IBM", "MSFT", "ORCL", "none"))
    operator = chance.choice(("=", "<>", "<", "<=", ">", ">="))
    return chance.choice(
        (
            (f"/n {operator} {number * 400}", f"n {operator} {number * 400}"),
            (f"/price {operator} {number * 30.5}", f"price {operator} {number * 30.5}D"),
            (f"/symbol {operator} '{word}'", f"symbol {operator} '{word}'"),
            (f"/symbol LIKE '^{word[0]}'", f"symbol LIKE '{word[0]}%'"),
            ("/symbol IS NULL", "symbol IS NULL"),
            (f"/order/qty IN (1, {number})", f"order.qty IN (1, {number})"),
            (f"/order/qty BETWEEN 1 AND {number}", f"order.qty BETWEEN 1 AND {number}"),
            (f"/order/account = 'a{number}'", f"order.account = 'a{number}'"),
        )
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_filters_choose_what_spark_would(spark: SparkSession, trades: Path, seed: int) -> None:
    print(f"seed {seed}")
    chance = random.Random(seed)
    schema = "position long, n int, symbol string, price double, order struct<qty: int, account: string>"
    pairs = []
    for _ in range(24):
        (left, its_sql), (right, other_sql) = _pair(chance), _pair(chance)
        word = chance.choice(("AND", "OR"))
        # NULL compared is false for filters and unknown for SQL, which is the same as long as
        # nothing negates it.
        pairs.append((f"({left}) {word} ({right})", f"(({its_sql}) {word} ({other_sql}))"))
    reader = spark.read.format("quire").schema(schema)
    found = _found([reader.option("filter", text).load(str(trades)) for text, _ in pairs])
    everything = spark.read.format("quire").schema(schema).load(str(trades))
    expected = _expected(everything, journals.COUNT, [sql for _, sql in pairs])
    wrong = [
        (text, len(want), len(got))
        for (text, _), want, got in zip(pairs, expected, found, strict=True)
        if want != got
    ]
    assert not wrong
