"""What a scan leaves out, Spark would have left out: random conditions, evaluated by Spark on all rows and handed over to the scan.

Expected is what Spark says of every row when nothing is handed over. All conditions of a round are one job each way: a job costs more than
the rows.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import reduce
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from spark import journals

#: Conditions of a test.
ROUNDS = 48
COUNT = 400
#: The name of the second says nothing of the number: processes that share the tests draw one each, and must find the same names.
SEEDS = (1, pytest.param(random.SystemRandom().randrange(2, 1 << 32), id="random"))
SCHEMA = (
    "position long, bookmark string, timestamp timestamp, timestamp_ns long, topic string, sequence long, kind string, "
    "correlation_id string, data string, n int, small tinyint, price double, ratio float, is_buy boolean, symbol string, "
    "at timestamp, day date, order struct<qty: int, account: string>"
)
WORDS = ("", "a", "ab", "b", "IBM", "ibm", "ä", "日本", "x y", "%", "'")


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Messages of which every field is missing, NULL, of another type or at an end of its range now and then."""
    chance = random.Random(7)
    directory = tmp_path_factory.mktemp("pushdown")
    journals.write(directory, [(chance.choice(("a/1", "a/2", "b")), _message(chance)) for _ in range(COUNT)])
    return directory


def _message(chance: random.Random) -> dict[str, object]:
    strange: tuple[object, ...] = (None, "text", 2.5, True, [], {"a": 1}, 1 << 70)
    fields: dict[str, Callable[[], object]] = {
        "n": lambda: chance.choice((-5, 0, 1, 2, 2**31 - 1, -(2**31), 2**31)),
        "small": lambda: chance.choice((-128, 0, 127, 128)),
        "price": lambda: chance.choice((-1.5, -0.0, 0, 1e300, 2.5, 7)),
        "ratio": lambda: chance.choice((0.1, 0.5, 2.5, 16777217)),
        "is_buy": lambda: chance.random() < 0.5,
        "symbol": lambda: chance.choice(WORDS),
        "at": lambda: f"2026-01-0{chance.randrange(1, 4)}T00:00:00{chance.choice(('Z', '.5Z', '+01:00'))}",
        "day": lambda: f"2026-01-0{chance.randrange(1, 4)}",
        "order": lambda: {"qty": chance.randrange(4), "account": chance.choice(WORDS)},
    }
    draw = {name: chance.random() for name in fields}
    return {
        name: chance.choice(strange) if draw[name] < 0.1 else make()
        for name, make in fields.items()
        if draw[name] > 0.05
    }


def _literal(kind: str, chance: random.Random) -> str:
    match kind:
        case "number":
            return chance.choice(
                ("0", "1", "2", "-5", "127", "128", "2147483647", "-2147483648", "3000000000")
            )
        case "position":
            return str(chance.choice((0, 1, 17, COUNT // 2, COUNT, COUNT + 1, -3)))
        case "double":
            return chance.choice(("0D", "-0.0D", "2.5D", "7D", "1e300D", "double('NaN')", "double('inf')"))
        case "float":
            return chance.choice(("float('0.1')", "0.5F", "2.5F", "0.1D", "1.6777216E7D"))
        case "boolean":
            return chance.choice(("true", "false"))
        case "timestamp":
            return f"timestamp'2026-01-0{chance.randrange(1, 4)} 00:00:00{chance.choice(('', '.5'))}Z'"
        case "date":
            return f"date'2026-01-0{chance.randrange(1, 4)}'"
        case _:
            return "'" + chance.choice((*WORDS, "a/1", "b", "publish")).replace("'", "\\'") + "'"


COLUMNS = (
    ("position", "position"),
    ("sequence", "position"),
    ("topic", "string"),
    ("kind", "string"),
    ("correlation_id", "string"),
    ("data", "string"),
    ("bookmark", "string"),
    ("timestamp", "timestamp"),
    ("n", "number"),
    ("small", "number"),
    ("price", "double"),
    ("ratio", "float"),
    ("is_buy", "boolean"),
    ("symbol", "string"),
    ("at", "timestamp"),
    ("day", "date"),
    ("order.qty", "number"),
    ("order.account", "string"),
)


def _condition(chance: random.Random) -> str:
    column, kind = chance.choice(COLUMNS)
    one, two, three = (_literal(kind, chance) for _ in range(3))
    forms = [f"{column} {operator} {one}" for operator in ("=", "<", "<=", ">", ">=", "<>", "<=>")]
    forms += [f"{column} IN ({one}, {two}, {three})", f"{column} IN ({one}, NULL)"]
    forms += [f"{column} BETWEEN {one} AND {two}", f"{column} IS NULL", f"{column} <=> NULL"]
    if kind == "string":
        word = one[1:-1]
        forms += [f"{column} LIKE '{pattern}'" for pattern in (f"{word}%", f"%{word}", f"%{word}%")] * 2
    if kind == "boolean":
        forms += [column] * 3
    chosen = chance.choice(forms)
    return f"NOT ({chosen})" if chance.random() < 0.3 else chosen


def _conditions(seed: int, *, ors: bool) -> list[str]:
    chance = random.Random(seed)

    def some() -> str:
        return " AND ".join(_condition(chance) for _ in range(chance.randrange(1, 4)))

    return [f"({some()}) OR ({some()})" if ors and chance.random() < 0.3 else some() for _ in range(ROUNDS)]


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
    """What Spark says of all rows: values are not handed over, only conditions are."""
    truths = everything.select(
        "position", *[f.expr(text).alias(f"c{number}") for number, text in enumerate(conditions)]
    ).collect()
    assert len(truths) == count
    return [{row.position for row in truths if row[f"c{number}"]} for number in range(len(conditions))]


@pytest.mark.parametrize("seed", SEEDS)
def test_conditions_that_are_handed_over_change_nothing(
    spark: SparkSession, reader: str, journal: Path, seed: int
) -> None:
    print(f"seed {seed}")
    conditions = _conditions(seed, ors=reader == "jvm")
    source = spark.read.format("quire").schema(SCHEMA)
    expected = _expected(source.load(str(journal)), COUNT, conditions)
    # The reader on the JVM takes conditions for each use of a frame, and Python those of a frame that it may.
    whole = source.load(str(journal))
    taking = source.option("pushConditions", "true")
    found = _found(
        [
            (whole if reader == "jvm" else taking.load(str(journal))).where(condition)
            for condition in conditions
        ]
    )
    wrong = [
        (condition, sorted(want ^ got)[:5])
        for condition, want, got in zip(conditions, expected, found, strict=True)
        if want != got
    ]
    assert not wrong
    assert sum(0 < len(want) < COUNT for want in expected) > ROUNDS / 10, "conditions that choose"


@pytest.mark.usefixtures("reader")
def test_a_frame_may_be_used_with_many_conditions(spark: SparkSession, journal: Path) -> None:
    """Spark keeps what it handed to the Python reader for the whole life of a frame: nothing is, unless the frame was made for that."""
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
    """A condition in the language of filters and what it is in SQL, on fields that have values of one type."""
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
        # NULL compared is false for filters and unknown for SQL, which is the same as long as nothing negates it.
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
