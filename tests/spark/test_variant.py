"""A column `data variant` is what Spark's `try_parse_json` makes of the text of the message."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import quire
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from quire.testing import ServerProcess
from support.waiting import PATIENCE

from spark import journals
from spark.batches import Batches

#: Values with rules: numbers, texts, limits, and what is not JSON. Each is tried at the root, in an
#: array, and in an object.
VALUES = (
    *("null", "true", "false", "0", "-0", "-0.0", "1.0", "1.10", "127", "128", "-129", "32768", "2147483648"),
    *("9223372036854775807", "9223372036854775808", "-9223372036854775809", "9" * 38, "9" * 39, "1" * 1000),
    *("1" * 1001, "0." + "0" * 37 + "1", "0." + "0" * 38 + "1", "123456789.123456789", "0.000000001"),
    *("1234567890123456789012345678901234567.8", "12345678901234567890123456789012345678.9", "-1e400"),
    *("1e400", "1e-400", "4.9e-324", "1E5", "0e0", "-0e0", "2e+3", "1.", ".5", "01", "+1", "-", "NaN"),
    *('""', '"a"', '"' + "a" * 63 + '"', '"' + "é" * 32 + '"', '"' + "x" * 70_000 + '"', r'"\u0000\n\/"'),
    *(
        r'"\ud83d\ude00"',
        r'"\ud83d"',
        r'"\ude00\ud83d"',
        '"\t"',
        '"\x7f"',
        "'a'",
        "[]",
        "{}",
        "[1 2]",
        "[1,]",
    ),
    *('{"a":1,"a":2}', '{"a":{"b":1,"b":2}}', '{"a":1,}', '{"":{"":""}}', '{"\ue000":1,"😀":2,"\uffff":3}'),
    *(
        "{" + ",".join(f'"{count}":{count}' for count in range(size)) + "}"
        for size in (31, 32, 255, 256, 700)
    ),
    *("[" + ",".join(["1e1"] * size) + "]" for size in (255, 256, 9000)),
    *("[" * depth + "]" * depth for depth in (2, 150)),
    *('{"a":' * depth + "1" + "}" * depth for depth in (2, 150)),
    *('{"' + "n" * size + '":1}' for size in (50_000, 50_001)),
)
#: Messages with a rule for the root.
ROOTS = (
    *(
        "",
        " ",
        "\ufeff1",
        "1 2",
        "1x",
        "1,",
        "1\n",
        "true,",
        "truex",
        "true_",
        "null#",
        '"a"b',
        "[1]]",
        "{} x",
    ),
)

#: Documents of a random test.
COUNT = 4000
SEEDS = (1, 2)
CHARACTERS = 'aab"\\/ \t\n\x00\x1f\x7f\u00e4\u2028\ud7ff\ue000\uffff\U0001f600\U0010ffff'


class Documents:
    """Random JSON texts. Now and then one has a name twice, a lone surrogate, or another mistake."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)

    def text(self) -> str:
        chance = self._chance
        text = self._value(chance.choice((0, 1, 2, 2, 3, 4)))
        if chance.random() < 0.05 and text:
            at = chance.randrange(len(text))
            text = text[:at] + chance.choice(("", ",", "}", "]", '"', "\\", "0", " ")) + text[at + 1 :]
        return text

    def _value(self, depth: int) -> str:
        chance = self._chance
        kind = chance.randrange(6 if depth == 0 else 10)
        if kind < 2:
            return self._number()
        if kind < 4:
            return self._string(chance.choice((0, 3, 3, 70, 300)))
        if kind < 6:
            return chance.choice(("true", "false", "null"))
        count = chance.choice((0, 1, 2, 3, 5, 12)) if depth > 1 or chance.random() < 0.95 else 300
        comma = chance.choice((",", ", ", " ,\n"))
        if kind < 8:
            return f"[{comma.join(self._value(depth - 1) for _ in range(count))}]"
        members = (f"{self._name(count)}: {self._value(depth - 1)}" for _ in range(count))
        return "{" + comma.join(members) + "}"

    def _name(self, count: int) -> str:
        # Few enough that some come again, in other objects and rarely in the same.
        if self._chance.random() < 0.5:
            return f'"k{self._chance.randrange(40 * count)}"'
        return self._string(12)

    def _number(self) -> str:
        chance = self._chance

        def digits(most: int) -> str:
            return "".join(chance.choices("0123456789", k=chance.randrange(1, most)))

        whole = (
            (digits(chance.choice((2, 4, 12, 21, 42))).lstrip("0") or "0") if chance.random() < 0.8 else "0"
        )
        fraction = "." + digits(chance.choice((3, 12, 42))) if chance.random() < 0.4 else ""
        exponent = f"e{chance.choice(('', '+', '-'))}{digits(4)}" if chance.random() < 0.2 else ""
        return chance.choice(("", "-")) + whole + fraction + exponent

    def _string(self, most: int) -> str:
        chance = self._chance
        text = "".join(chance.choices(CHARACTERS, k=chance.randrange(most + 1)))
        if chance.random() < 0.01:
            text += chance.choice(("\ud83d", "\ude00"))
        return json.dumps(text, ensure_ascii=chance.random() < 0.5)


def write(directory: Path, messages: list[bytes], message_type: str = "json") -> None:
    with quire.Journal(directory) as journal:
        journal.append_many("t", messages, publisher="p", message_type=message_type)


def shown(frame: DataFrame, data: str, expressions: tuple[str, ...]) -> list[Any]:
    """The bytes of each variant, and the values of expressions of it."""
    rows = frame.select("position", f.expr(data).alias("data")).selectExpr("position", "data", *expressions)
    return [
        (position, data and (bytes(data.value), bytes(data.metadata)), *values)
        for position, data, *values in rows.sort("position").collect()
    ]


#: The form of a variant for a user.
SEEN = ("to_json(data)", "schema_of_variant(data)")


def check(read: Any, directory: Path, expressions: tuple[str, ...] = SEEN) -> list[Any]:
    path = str(directory)
    found = shown(read().schema("position long, data variant").load(path), "data", expressions)
    text = read().schema("position long, data string").load(path)
    # One after the other: a difference of many rows cannot be read.
    for one, other in zip(found, shown(text, "try_parse_json(data)", expressions), strict=True):
        assert one == other
    return found


def test_values_with_rules_are_what_spark_parses(read: Any, tmp_path: Path) -> None:
    around = ("{}", '[{}, "after"]', '{{"before": 1, "b": {}}}')
    messages = [text.format(value).encode() for text in around for value in VALUES]
    messages += [text.encode() for text in ROOTS] + [b'"\xff"', b"\xff", b'{"a": "\xc3"}']
    write(tmp_path, messages)
    found = check(read, tmp_path)
    is_there = [variant is not None for _, variant, _, _ in found]
    assert len(messages) / 2 < sum(is_there) < len(messages)


def test_depth_has_the_limit_of_spark(read: Any, tmp_path: Path) -> None:
    messages = ["[" * depth + "]" * depth for depth in (999, 1000, 1001)]
    messages += ['{"a":' * depth + "1" + "}" * depth for depth in (999, 1000, 1001)]
    write(tmp_path, [text.encode() for text in messages])
    # Spark writes values of this depth as text only with a larger stack.
    found = check(read, tmp_path, expressions=())
    assert [variant is not None for _, variant in found] == [True, True, False] * 2


@pytest.mark.parametrize("seed", SEEDS)
def test_any_json_is_what_spark_parses(read: Any, tmp_path: Path, seed: int) -> None:
    documents = Documents(seed)
    write(tmp_path, [documents.text().encode(errors="replace") for _ in range(COUNT)])
    is_there = [variant is not None for _, variant, _, _ in check(read, tmp_path)]
    assert COUNT / 2 < sum(is_there) < COUNT, "texts of both kinds"


def test_a_variant_of_the_data_is_used_as_any_other(read: Any, trades: Path, tmp_path: Path) -> None:
    frame = read().schema("topic string, data variant, n int").load(str(trades))
    qty, price = "variant_get(data, '$.order.qty', 'int')", "variant_get(data, '$.price', 'double')"
    sums = frame.selectExpr(
        f"sum({qty})", f"max({price})", "count(data)", "sum(n)", "min(data::string)"
    ).first()
    assert sums is not None
    expected = (sum(n % 7 for n in range(journals.COUNT)), (journals.COUNT - 1) / 8, journals.COUNT)
    assert sums[:4] == (*expected, sum(range(journals.COUNT)))
    assert json.loads(sums[4])["n"] == 0
    assert frame.where("variant_get(data, '$.n', 'int') < 10 AND topic = 'rare'").count() == 1
    assert (
        frame.where("is_variant_null(variant_get(data, '$.symbol', 'variant'))").count() == journals.COUNT / 4
    )
    assert frame.limit(7).select("data").collect()[6].data.toPython().keys() >= {"n", "order"}
    frame.where("n < 5").write.parquet(str(tmp_path / "p"))
    kept = frame.sparkSession.read.parquet(str(tmp_path / "p")).selectExpr(
        "max(variant_get(data, '$.n', 'int'))"
    )
    assert kept.first() == (4,)


def test_malformed_data_is_null(read: Any, tmp_path: Path) -> None:
    write(tmp_path, [b'{"a": 1}', b"{", b'{"a": 1, "a": 2}', b"null", b"\xff"])
    for options in ({}, {"pushConditions": "true"}):
        for condition, count in (("data IS NULL", 3), ("data IS NOT NULL", 2), ("position = 2", 1)):
            frame = read().options(**options).schema("position long, data variant").load(str(tmp_path))
            assert frame.where(condition).count() == count, condition
    with pytest.raises(PySparkException, match="column data: it is NOT NULL in the schema, but 3 of 5"):
        read().schema("data variant NOT NULL").load(str(tmp_path)).collect()


def test_messages_of_other_types_are_null(read: Any, tmp_path: Path) -> None:
    write(tmp_path, [b"\x81\xa1a\x01"], "msgpack")
    write(tmp_path, [b"<m><a>1</a></m>"], "xml")
    write(tmp_path, [b"a=1\x01", b"1=2\x01"], "nvfix")
    # Only the text counts, not the type that it was published with.
    write(tmp_path, [b'{"a": 1}', b"\x00\x01"], "binary")
    assert [text for _, _, text, _ in check(read, tmp_path)] == [None] * 4 + ['{"a":1}', None]


def test_events_and_deletes_have_no_variant(read: Any, tmp_path: Path) -> None:
    config = quire.Config(sow_topic={"name": "t", "message_type": "json", "key": ["/id"]})
    with quire.Client(f"file:{tmp_path}", name="p", config=config) as client:
        client.publish("t", {"id": 1})
        client.sow_delete("t", filter="/id = 1")
        client.flush(PATIENCE)
    frame = read().option("includeDeletes", "true").schema("kind string, data variant").load(str(tmp_path))
    assert frame.selectExpr("kind", "to_json(data)").collect() == [("publish", '{"id":1}'), ("delete", None)]


def test_a_stream_has_variants(reader: str, spark: SparkSession, trades: Path, tmp_path: Path) -> None:
    batches = Batches(
        spark,
        tmp_path,
        lambda frame: sorted(
            row.n for row in frame.selectExpr("variant_get(data, '$.n', 'int') AS n").collect()
        ),
        {"path": str(trades), "startingOffsets": "earliest", "maxMessagesPerTrigger": "1100"},
        schema="data variant",
    )
    assert sorted(batches.run()) == list(range(journals.COUNT))
    assert len(batches.found) == 3


def test_a_server_gives_variants(spark: SparkSession, tmp_path: Path) -> None:
    with ServerProcess(tmp_path) as server, quire.Client(server.url, name="p") as client:
        for data in ({"a": [1, 2.5]}, "{", {"b": None}):
            client.publish("t", data)
        client.flush(PATIENCE)
        frame = (
            spark.read.format("quire").option("url", server.url).schema("sequence long, data variant").load()
        )
        rows = frame.sort("sequence").selectExpr("to_json(data)").collect()
    assert [text for (text,) in rows] == ['{"a":[1,2.5]}', None, '{"b":null}']


def test_a_sink_names_the_function_that_makes_a_text(
    spark: SparkSession, trades: Path, tmp_path: Path
) -> None:
    frame = spark.read.format("quire").schema("topic string, data variant").load(str(trades))
    with pytest.raises(PySparkException, match=r"column data: it is variant; .* to_json\(data\) AS data"):
        frame.write.format("quire").mode("append").save(str(tmp_path / "j"))
    rows = frame.selectExpr("topic", "to_json(data) AS data")
    rows.write.format("quire").mode("append").save(str(tmp_path / "j"))
    assert check(lambda: spark.read.format("quire"), tmp_path / "j")[0][2].startswith('{"at":"2026-01-02')
