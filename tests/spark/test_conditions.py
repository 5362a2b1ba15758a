"""Both readers answer as Spark does: random conditions, columns and aggregates over values at the
ends of every type.

A model in Python says which value each column has. Spark evaluates every query on a frame of these
values, which no reader has touched. The readers evaluate the same query on a journal. All queries
of a round are one job each: a job costs more than the rows.
"""

from __future__ import annotations

import os
import random
import re
import struct
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, date, datetime
from functools import partial, reduce
from pathlib import Path
from typing import Any

import pytest
import quire
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from support.waiting import PATIENCE

COUNT = 300
#: Rounds with different seeds: more for a long run by hand.
ROUNDS = int(os.environ.get("QUIRE_CONDITION_ROUNDS", "1"))
#: Queries of a round. The Python reader takes conditions once for each frame, which costs a frame
#: for each.
QUERIES = {"jvm": 60, "python": 12}
#: The name of the last says nothing of the number: processes that share the tests draw one each,
#: and must find the same names.
SEEDS = (*range(1, ROUNDS), pytest.param(random.SystemRandom().randrange(2, 1 << 32), id="random"))

NAN, INF = float("nan"), float("inf")
CONFIG = quire.Config(transaction_log={"topic": [{"name": ".*", "message_type": "msgpack"}]})


class Extension(bytes):
    """A MessagePack extension: its type, then its bytes."""


def packed(value: Any) -> bytes:
    """MessagePack of the value."""
    match value:
        case None | False | True:
            return {None: b"\xc0", False: b"\xc2", True: b"\xc3"}[value]
        case int() if -(2**63) <= value < 2**63:
            return b"\xd3" + value.to_bytes(8, "big", signed=True)
        case int():
            return b"\xcf" + value.to_bytes(8, "big")
        case float():
            return b"\xcb" + struct.pack(">d", value)
        case Extension():
            return b"\xc7" + bytes([len(value) - 1]) + value
        case str():
            return b"\xdb" + len(value.encode()).to_bytes(4, "big") + value.encode()
        case bytes():
            return b"\xc6" + len(value).to_bytes(4, "big") + value
        case list():
            return b"\xdd" + len(value).to_bytes(4, "big") + b"".join(map(packed, value))
        case dict():
            pairs = b"".join(packed(name) + packed(inner) for name, inner in value.items())
            return b"\xdf" + len(value).to_bytes(4, "big") + pairs
    raise TypeError(value)


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def stamp(seconds: int, ns: int = 0) -> Extension:
    return Extension(b"\xff" + ns.to_bytes(4, "big") + seconds.to_bytes(8, "big", signed=True))


def single(value: float) -> float:
    """The nearest float of 32 bits."""
    try:
        found: float = struct.unpack("f", struct.pack("f", value))[0]
    except OverflowError:
        return INF if value > 0 else -INF
    return found


FLOATS = (NAN, INF, -INF, 0.0, -0.0, 1.5, -1.5, 5.0, 1e300, 0.1, 16777217.0, 2.0**63)
WORDS = ("a", "ab", "b", "IBM", "ibm", "ä", "日本", "x y", " x", "%", "_", "'", "\\", "a\0b", "😀", "\ufffd")

#: By type: a value in a message, and the value of the column.
VALUES: Mapping[str, list[tuple[Any, Any]]] = {
    "double": [(value, value) for value in FLOATS] + [(5, 5.0), (2**64 - 1, 2.0**64), ("5", None), (True, None)],
    "float": [(value, single(value)) for value in FLOATS] + [(5, 5.0), ("5", None)],
    "int": [(n, n) for n in (0, 1, 2, -5, 2**31 - 1, -(2**31))] + [(2**31, None), (2.5, None), ("1", None)],
    "tinyint": [(n, n) for n in (0, 1, 127, -128)] + [(128, None), (True, None)],
    "bigint": [(n, n) for n in (0, 1, 2**63 - 1, -(2**63), 2**53 + 1)] + [(2**63, None), (1.0, None)],
    "boolean": [(True, True), (False, False), (1, None), ("true", None)],
    "string": [(word, word) for word in WORDS] + [("", None), (7, "7"), (True, "true"), (b"\xff\xfe", None), ({}, None)],
    "date": [
        ("0001-01-01", date(1, 1, 1)),
        ("9999-12-31", date(9999, 12, 31)),
        ("2026-01-02T23:00:00-05:00", date(2026, 1, 2)),
        ("20260103", date(2026, 1, 3)),
        ("10000-01-01", None),
        ("2026-02-30", None),
        (5, None),
    ],
    "time": [
        ("0001-01-01T23:59:59Z", None),
        ("0001-01-02T00:00:00Z", moment("0001-01-02T00:00:00")),
        ("9999-12-31T23:59:59.999999Z", moment("9999-12-31T23:59:59.999999")),
        ("9999-12-31T23:59:59.999999-00:01", None),
        ("10000-01-01T00:00:00Z", None),
        ("2026-01-02T03:04:05+0200", moment("2026-01-02T01:04:05")),
        ("2026-01-02T03:04:05+02", moment("2026-01-02T01:04:05")),
        ("20260102T010405Z", moment("2026-01-02T01:04:05")),
        ("2026-01-02", moment("2026-01-02T00:00:00")),
        (1767323045, moment("2026-01-02T03:04:05")),
        (1767323045.5, moment("2026-01-02T03:04:05.5")),
        (stamp(1767323045, 123456789), moment("2026-01-02T03:04:05.123456")),
        (stamp(-62135596801), None),
        (NAN, None),
        (-INF, None),
        ("soon", None),
    ],
}  # fmt: skip

#: Names of types in SQL, where the tables here have another.
SQL = {"time": "timestamp"}

#: Columns of the data with their types and the places of their values; of a struct, the members.
COLUMNS: Mapping[str, str] = {
    "v": "double",
    "r": "float",
    "n": "int",
    "small": "tinyint",
    "big": "bigint",
    "b": "boolean",
    "s": "string",
    "day": "date",
    "at": "time",
    "px": "double",
    "slash/name": "int",
    "a.b": "int",
    "a`b": "string",
    " blank ": "int",
    "nul\0name": "int",
    "Größe€": "double",
}
ATTRIBUTES: Mapping[str, str] = {
    "position": "bigint",
    "topic": "string",
    "sequence": "bigint",
    "kind": "string",
    "correlation_id": "string",
    "bookmark": "string",
    "timestamp": "timestamp",
    "timestamp_ns": "bigint",
}
#: Twins in case, which only a session that looks at the case can name.
TWINS: Mapping[str, str] = {"Name": "string", "name": "string", "V": "double"}
MEMBERS: Mapping[str, str] = {"qty": "int", "x": "double", "o.dd": "string"}
MEMBER_TWINS: Mapping[str, str] = {"Qty": "int"}
#: Where columns are that do not have the name of their member.
PATHS = {"px": "/order/price", "slash/name": "[/slash/name]"}
OPTIONS = {f"field.{name}": path for name, path in PATHS.items()}


def quoted(*names: str) -> str:
    return ".".join("`" + name.replace("`", "``") + "`" for name in names)


class World:
    """A journal, and the values of its columns."""

    def __init__(self, directory: Path, *, has_twins: bool) -> None:
        self.directory = directory
        self.columns = {**COLUMNS, **(TWINS if has_twins else {})}
        self.members = {**MEMBERS, **(MEMBER_TWINS if has_twins else {})}
        members = ", ".join(f"{quoted(name)}: {kind}" for name, kind in self.members.items())
        fields = [f"{quoted(name)} {SQL.get(kind, kind)}" for name, kind in self.columns.items()]
        self.schema = ", ".join(
            (*(f"{name} {kind}" for name, kind in ATTRIBUTES.items()), *fields, f"`order` struct<{members}>")
        )
        #: Every column that a condition can name, with its type.
        self.named = {
            **{name: name for name in ATTRIBUTES},
            **{quoted(name): kind for name, kind in self.columns.items()},
            **{quoted("order", name): kind for name, kind in self.members.items()},
        }
        chance = random.Random(7)
        self.rows: list[tuple[Any, ...]] = []
        values: list[tuple[Any, ...]] = []
        with quire.Client(f"file:{directory}", name="loader", config=CONFIG) as client:
            for number in range(1, COUNT + 1):
                topic, correlation_id = chance.choice(("a/1", "a/2", "b")), chance.choice(("", "c-1", "ä"))
                data, row = self._message(chance)
                client.publish(topic, packed(data), correlation_id=correlation_id)
                # Times that differ.
                if number % 50 == 0:
                    client.flush(timeout=PATIENCE)
                values.append((number, topic, number, "publish", correlation_id or None, row))
            client.flush(timeout=PATIENCE)
        with quire.Journal(directory, read_only=True) as journal:
            for message, (*attributes, row) in zip(journal.read(), values, strict=True):
                self.rows.append(
                    (*attributes, message.bookmark, message.timestamp, message.timestamp_ns, *row)
                )
        places = [self.rows[at] for at in (0, COUNT // 3, COUNT // 2, COUNT - 1)]
        #: Those of the attributes are values of messages.
        self.literals = {
            **LITERALS,
            "bookmark": (*(f"'{row[5]}'" for row in places), "'1|1|'", "''", "NULL"),
            "timestamp": tuple(
                f"timestamp_micros({row[7] // 1000 + more})" for row in places for more in (-1, 0, 1)
            ),
            "timestamp_ns": tuple(str(row[7] + more) for row in places for more in (-1, 0, 1)),
        }

    def _message(self, chance: random.Random) -> tuple[dict[str, Any], list[Any]]:
        data: dict[str, Any] = {}
        order: dict[str, Any] = {}
        row: list[Any] = []

        def draw(kind: str, put: Callable[[Any], None]) -> Any:
            if chance.random() < 0.1:
                return None
            given, value = chance.choice(VALUES[kind])
            put(given)
            return value

        for name, kind in self.columns.items():
            into, key = (order, "price") if name == "px" else (data, name)
            row.append(draw(kind, partial(into.__setitem__, key)))
        inner = [draw(kind, partial(order.__setitem__, name)) for name, kind in self.members.items()]
        data["order"] = order
        return data, [*row, tuple(inner)]

    def frame(self, spark: SparkSession) -> DataFrame:
        """The values of the model."""
        return spark.createDataFrame(self.rows, self.schema, verifySchema=False)


@pytest.fixture(scope="module", params=(False, True), ids=("any-case", "case-sensitive"))
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("conditions") / "j", has_twins=request.param)


@pytest.fixture
def sensitivity(spark: SparkSession, world: World) -> Iterable[None]:
    spark.conf.set("spark.sql.caseSensitive", "true" if "name" in world.columns else "false")
    yield
    spark.conf.unset("spark.sql.caseSensitive")


LITERALS: Mapping[str, tuple[str, ...]] = {
    "double": ("0D", "-0.0D", "1.5D", "5", "1.5BD", "double('NaN')", "double('inf')", "double('-inf')", "0.1D", "NULL"),
    "float": ("0F", "-0.0F", "1.5F", "0.1D", "float('0.1')", "16777217", "float('NaN')", "double('inf')", "5"),
    "int": ("0", "1", "-5", "2147483647", "3000000000", "1.5BD", "2D", "NULL", "'1'"),
    "tinyint": ("0", "1", "127", "128", "-128", "1BD", "NULL"),
    "bigint": ("0", "9223372036854775807", "-9223372036854775808L", "9007199254740993", "9223372036854775808BD", "1e300D"),
    "boolean": ("true", "false", "NULL"),
    "date": ("date'0001-01-01'", "date'9999-12-31'", "date'2026-01-02'", "timestamp'2026-01-03 00:00:00Z'", "NULL"),
    "time": (
        "timestamp'0001-01-02 00:00:00Z'",
        "timestamp'9999-12-31 23:59:59.999999Z'",
        "timestamp'2026-01-02 03:04:05Z'",
        "timestamp'2026-01-02 01:04:05Z'",
        "timestamp_ntz'2026-01-02 03:04:05'",
        "date'2026-01-02'",
        "NULL",
    ),
    "position": ("0", "1", "17", str(COUNT // 2), str(COUNT), str(COUNT + 1), "-3", "1.5BD", "9223372036854775807"),
    "sequence": ("0", "1", str(COUNT // 2), "18446744073709551615BD"),
    "kind": ("'publish'", "'delete'", "NULL"),
    "correlation_id": ("'c-1'", "'ä'", "''", "NULL"),
    "topic": ("'a/1'", "'a/2'", "'b'", "''", "'none'", "NULL"),
}  # fmt: skip


def text(word: str) -> str:
    """A literal of SQL."""
    units = word.encode("utf-16-be")
    return "'" + "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2)) + "'"


def condition(chance: random.Random, world: World, depth: int = 2) -> str:
    if depth and chance.random() < 0.5:
        one, other = (condition(chance, world, depth - 1) for _ in range(2))
        return chance.choice((f"({one}) AND ({other})", f"({one}) OR ({other})", f"NOT ({one})"))
    column, kind = chance.choice(list(world.named.items()))
    literals = world.literals.get(kind) or (*map(text, WORDS), "NULL")
    if "name" not in world.columns and chance.random() < 0.3:
        column = re.sub("[A-Za-z]", lambda letter: letter[0].swapcase(), column)
    one, two = chance.choice(literals), chance.choice(literals)
    some = ", ".join(chance.choice(literals) for _ in range(chance.choice((2, 12))))
    forms = [f"{column} {operator} {one}" for operator in ("=", "<", "<=", ">", ">=", "<>", "<=>")]
    forms += [f"{one} < {column}", f"{column} IN ({some})", f"{column} NOT IN ({some})"]
    forms += [f"{column} BETWEEN {one} AND {two}", f"{column} IS NULL", f"{column} IS NOT NULL"]
    if kind in ("double", "float"):
        forms += [f"isnan({column})", f"{column} = {column}", f"{column} + 0 < {one}"]
    if kind in ("string", "topic", "bookmark", "correlation_id"):
        word = chance.choice(("a", "ä", "%", "_", "x ", "IB", "c-", "|"))
        forms += [f"{column} LIKE '{pattern}'" for pattern in (f"{word}%", f"%{word}", f"%{word}%", word)]
        forms += [
            f"startswith({column}, {one})",
            f"contains({column}, {one})",
            f"{column} = cast(x'ff' AS STRING)",
        ]
    if kind == "boolean":
        forms += [column] * 3
    return chance.choice(forms)


def projection(chance: random.Random, world: World) -> str:
    """Some columns of each row as JSON."""
    names = chance.sample(sorted(world.named), chance.randrange(5))
    columns = ", ".join(f"{name} AS c{number}" for number, name in enumerate(names))
    return f"to_json(struct({columns or '1 AS one'}))"


AGGREGATES = ("count(*)", "count(position)", "min(position)", "max(position)", "count(topic)")
OTHER_AGGREGATES = ("count(v)", "min(v)", "max(v)", "max(r)", "min(at)", "count(DISTINCT topic)")


def aggregate(chance: random.Random) -> tuple[str, bool]:
    """The functions of a query as JSON, and whether they are by topic."""
    few = chance.sample(AGGREGATES, chance.randrange(1, 4)) + chance.sample(
        OTHER_AGGREGATES, chance.choice((0, 0, 1))
    )
    return (
        f"to_json(struct({', '.join(f'{each} AS f{number}' for number, each in enumerate(few))}))",
        chance.random() < 0.4,
    )


def found(frames: Iterable[DataFrame]) -> list[list[tuple[Any, ...]]]:
    """The rows of each frame, by one job."""
    parts = [frame.select(f.lit(number).alias("frame"), "*") for number, frame in enumerate(frames)]
    rows: list[list[tuple[Any, ...]]] = [[] for _ in parts]
    for number, *values in reduce(DataFrame.unionAll, parts).collect():
        rows[number].append(tuple(values))
    return [sorted(each, key=repr) for each in rows]


def loaded(spark: SparkSession, reader: str, world: World) -> Callable[[], DataFrame]:
    """Gives the journal as a frame that takes conditions."""
    source = spark.read.format("quire").schema(world.schema).options(**OPTIONS)
    if reader == "python":
        taking = source.option("pushConditions", "true")
        return lambda: taking.load(str(world.directory))
    frame = source.load(str(world.directory))
    return lambda: frame


@pytest.mark.usefixtures("sensitivity")
def test_both_readers_give_the_values_of_the_model(spark: SparkSession, reader: str, world: World) -> None:
    columns = f"to_json(struct({', '.join(f'{name} AS c{n}' for n, name in enumerate(world.named))})) AS row"
    expected, rows = found(
        [
            world.frame(spark).selectExpr("position", columns),
            loaded(spark, reader, world)().selectExpr("position", columns),
        ]
    )
    wrong = [(want, got) for want, got in zip(expected, rows, strict=True) if want != got]
    assert not wrong


@pytest.mark.usefixtures("sensitivity")
@pytest.mark.parametrize("seed", SEEDS)
def test_conditions_choose_the_rows_that_spark_chooses(
    spark: SparkSession, reader: str, world: World, seed: int
) -> None:
    print(f"seed {seed}")
    chance = random.Random(seed)
    queries = [(condition(chance, world), projection(chance, world)) for _ in range(QUERIES[reader])]

    def select(frame: DataFrame, query: tuple[str, str]) -> DataFrame:
        return frame.where(query[0]).selectExpr("position", f"{query[1]} AS row")

    model, load = world.frame(spark), loaded(spark, reader, world)
    expected = found(select(model, query) for query in queries)
    rows = found(select(load(), query) for query in queries)
    wrong = [
        (query, sorted(set(want) ^ set(got), key=repr)[:4])
        for query, want, got in zip(queries, expected, rows, strict=True)
        if want != got
    ]
    assert not wrong
    assert sum(0 < len(want) < COUNT for want in expected) > len(queries) / 5, "conditions that choose"


@pytest.mark.usefixtures("sensitivity")
@pytest.mark.parametrize("seed", SEEDS)
def test_aggregates_are_those_of_spark(spark: SparkSession, reader: str, world: World, seed: int) -> None:
    print(f"seed {seed}")
    chance = random.Random(seed)
    queries = [
        (condition(chance, world, depth=1) if chance.random() < 0.7 else "true", aggregate(chance))
        for _ in range(QUERIES[reader] // 3)
    ]

    def select(frame: DataFrame, query: tuple[str, tuple[str, bool]]) -> DataFrame:
        where, (functions, by_topic) = query
        chosen = frame.where(where)
        grouped = chosen.groupBy("topic") if by_topic else chosen.groupBy()
        return grouped.agg(f.expr(functions).alias("row")).select("row")

    model, load = world.frame(spark), loaded(spark, reader, world)
    expected = found(select(model, query) for query in queries)
    rows = found(select(load(), query) for query in queries)
    wrong = [
        (query, want, got) for query, want, got in zip(queries, expected, rows, strict=True) if want != got
    ]
    assert not wrong
