"""Messages as data frames: one odd value never breaks the frame, and no reader of it changes a
value on its way.

`test_last_values.py` has the frames of usual records.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import quire
from support.waiting import PATIENCE

pandas = pytest.importorskip("pandas")
polars = pytest.importorskip("polars")

CONFIG = quire.Config(sow_topic=[{"name": "orders", "message_type": "json"}])


@pytest.fixture
def client() -> Iterator[quire.Client]:
    with quire.Client("memory:", config=CONFIG) as client:
        yield client


def frame(client: quire.Client, *records: str | bytes, fields: Any = None) -> pa.Table:
    """The records, which the topic takes as they are, as a table. pandas and polars must take it, too."""
    for number, record in enumerate(records):
        client.publish("orders", record, sow_key=f"{number:05}")
    client.flush(timeout=PATIENCE)

    def query() -> quire.Query:
        return client.sow("orders")

    table = query().to_arrow(fields)
    assert table.num_rows == len(records)
    assert len(query().to_pandas(fields)) == len(query().to_polars(fields)) == len(records)
    return table


async def test_a_frame_that_fails_early_leaves_its_records_to_the_program() -> None:
    class Full:
        def append(self, _messages: object) -> None:
            raise MemoryError

    async with quire.AsyncClient("memory:", config=CONFIG) as client:
        for number in range(3):
            await client.publish("orders", {"n": number}, sow_key=str(number))
        await client.flush(timeout=PATIENCE)
        query = await client.sow("orders", order_by="/n")
        assert (await anext(query)).json() == {"n": 0}
        rows, query._rows = query._rows, Full()  # type: ignore[assignment]
        with pytest.raises(MemoryError):
            await query.to_arrow()
        query._rows = rows
        assert (await query.to_arrow())["n"].to_pylist() == [1, 2]


def test_a_nested_integer_that_no_long_holds_keeps_its_digits(client: quire.Client) -> None:
    table = frame(
        client,
        '{"a": {"n": 9223372036854775808}, "l": [1]}',
        '{"a": {"n": 1}, "l": [2, 18446744073709551616]}',
    )
    assert table.to_pydict() == {
        "a": ['{"n": 9223372036854775808}', '{"n": 1}'],
        "l": ["[1]", "[2, 18446744073709551616]"],
    }
    digits = "9" * 5000
    table = frame(client, f'{{"a": {{"n": {digits}}}, "b": [1]}}', '{"a": {"n": 1}, "b": [2]}')
    assert digits in table["a"][0].as_py()
    assert table["b"].to_pylist() == [[1], [2]]


def test_a_nested_column_that_becomes_text_keeps_the_text_of_its_numbers(client: quire.Client) -> None:
    table = frame(client, '{"a": [1e400, -0, 1.10, 1E2]}', '{"a": {"b": 1.0, "ü": ["x", true, null]}}', "{}")
    assert table["a"].to_pylist() == ["[1e400, -0, 1.10, 1E2]", '{"b": 1.0, "ü": ["x", true, null]}', None]


def test_a_list_of_fields_that_becomes_text_keeps_the_text_of_its_numbers(client: quire.Client) -> None:
    table = frame(client, '{"l": [{"p": 1e400}, {"p": 1.10}]}', fields=["/l/p"])
    assert table["l/p"].to_pylist() == ["[1e400, 1.10]"]


@pytest.mark.parametrize(
    "values",
    [
        ("[1.5]", "[1e400]"),
        ("[1e400]", "[1e401]"),
        ("[1.5]", "[true]"),
        ('{"x": 1.5}', '{"x": false}'),
        ("[9007199254740993]", "[1.5]"),
        (f"[1{'0' * 250}e99]", "[1]"),
        ("[1.5]", "[-2e-400]"),
        (f"[0.{'0' * 400}1]", "[1]"),
    ],
)
def test_a_nested_value_that_arrow_would_change_makes_its_column_text(
    client: quire.Client, values: tuple[str, str]
) -> None:
    table = frame(client, *(f'{{"a": {value}}}' for value in values))
    assert table["a"].to_pylist() == list(values)


@pytest.mark.parametrize(
    "values",
    [
        ("9007199254740993", "1.5"),
        ("1.50", "-9007199254740993"),
        ("1e400", "1.5"),
        ("1e400", "1"),
        ("1e-400", "1"),
    ],
)
def test_a_number_that_a_double_would_change_makes_its_column_text(
    client: quire.Client, values: tuple[str, str]
) -> None:
    table = frame(client, *(f'{{"a": {value}}}' for value in values))
    assert table["a"].to_pylist() == list(values)


def test_a_lone_surrogate_is_a_replacement_character_at_any_depth(client: quire.Client) -> None:
    table = frame(client, r'{"a": "\ud800", "b": {"\udfff": ["x\ud83d"]}, "\ud800c": [1]}', '{"a": "\ufffd"}')
    replaced = "\ufffd"
    assert table.to_pylist() == [
        {"a": replaced, "b": {replaced: [f"x{replaced}"]}, f"{replaced}c": [1]},
        {"a": replaced, "b": None, f"{replaced}c": None},
    ]


def test_bytes_that_are_not_utf_8_leave_the_rest_of_a_message_readable(client: quire.Client) -> None:
    table = frame(client, b'{"a": 1, "b": {"c": "x\xff"}}')
    assert table.to_pylist() == [{"a": 1, "b": {"c": "x\ufffd"}}]


def test_a_name_with_nul_is_a_column(client: quire.Client, tmp_path: Path) -> None:
    table = frame(client, r'{"a\u0000b": 1, "c": {"d\u0000e": 2}}')
    assert table.to_pylist() == [{"a\0b": 1, "c": {"d\0e": 2}}]
    with quire.Journal(tmp_path / "j") as journal:
        journal.append("t", {"a\0b": 7}, publisher="p")
        journal.flush(timeout=PATIENCE)
        (batch,) = journal.read_arrow(fields={"a\0b": "int"})
    assert batch.column("a\0b").to_pylist() == [7]


def test_a_message_nested_deeper_than_the_core_reads_has_no_fields(client: quire.Client) -> None:
    deep = {depth: f'{{"a": {"[" * depth}{"]" * depth}, "b": [1]}}' for depth in (250, 300, 5000)}
    table = frame(client, '{"a": [[]], "b": [2]}', *deep.values())
    assert table["b"].to_pylist() == [[2], [1], None, None]


def test_text_that_is_no_json_is_null(client: quire.Client) -> None:
    table = frame(client, '{"a": [1], "n": 1}', "no JSON", '{"a": [NaN], "n": 2}', '{"a": [2]} x', "[1]", "")
    assert table["a"].to_pylist() == [[1], *[None] * 5]
    assert table["n"].to_pylist() == [1, *[None] * 5]


def test_a_field_of_the_objects_of_a_list_is_a_list(client: quire.Client) -> None:
    records = (
        '{"l": [{"x": 1}, {"y": 2}, {"x": 3, "m": [{"z": 4}, {"z": 5}]}]}',
        '{"l": [{"y": 1}]}',
        '{"l": []}',
        '{"n": 1}',
    )
    table = frame(client, *records, fields=["/l/x", "/l[0]/x", "/n", "/n[0]"])
    assert table.to_pydict() == {
        "l/x": [[1, 3], None, None, None],
        "l[0]/x": [1, None, None, None],
        "n": [None, None, None, 1],
        "n[0]": [None, None, None, 1],
    }
    matching = [message.data for message in client.sow("orders", filter="/l/x = 3")]
    assert matching == [records[0].encode()]


def test_integers_keep_their_digits_in_pandas_when_one_is_missing(client: quire.Client) -> None:
    large = 9007199254740993
    frame(
        client,
        f'{{"n": {large}, "all": 1, "l": [{large}, null], "o": {{"i": {large}}}}}',
        '{"all": 2, "l": [], "o": {}}',
    )
    found = client.sow("orders").to_pandas()
    assert str(found["n"].dtype) == "Int64"
    assert (found["n"][0], found["n"].isna().tolist()) == (large, [False, True])
    assert str(found["all"].dtype) == "int64"
    assert [found["l"][0][0], found["o"][0]["i"]] == [large, large]
    typed = client.sow("orders").to_pandas({"/n": "long", "/all": "byte", "/o": "short"})
    assert [str(kind) for kind in typed.dtypes] == ["Int64", "int8", "Int16"]
    assert typed["n"][0] == large


def test_times_are_read_in_the_forms_of_bookmarks_and_others_are_null(client: quire.Client) -> None:
    forms = {
        "2026-01-02T03:04:05+0200": datetime(2026, 1, 2, 1, 4, 5, tzinfo=UTC),
        "2026-01-02T03:04:05+02": datetime(2026, 1, 2, 1, 4, 5, tzinfo=UTC),
        "2026-01-02T03:04:05+0545": datetime(2026, 1, 1, 21, 19, 5, tzinfo=UTC),
        "20260102T030405Z": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        "20260102": datetime(2026, 1, 2, tzinfo=UTC),
        "2026-01-02t03:04:05z": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        "2026-W01-5": datetime(2026, 1, 2, tzinfo=UTC),
        "9999-12-31T23:59:59.999999Z": datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
        "0001-01-02T00:00:00Z": datetime(1, 1, 2, tzinfo=UTC),
        "0001-01-01T00:00:00Z": None,
        "10000-01-01T00:00:00Z": None,
        "0000-01-01T00:00:00Z": None,
        "-0001-01-01T00:00:00Z": None,
        "soon": None,
    }
    table = frame(client, *(f'{{"at": "{text}"}}' for text in forms), fields={"/at": "timestamp"})
    assert dict(zip(forms, table["at"].to_pylist(), strict=True)) == forms
    days = {
        "0001-01-01": date(1, 1, 1),
        "9999-12-31": date(9999, 12, 31),
        "10000-01-01": None,
        "0000-12-31": None,
    }
    table = frame(
        client,
        *(f'{{"day": "{text}"}}' for text in days),
        *["{}"] * (len(forms) - len(days)),
        fields={"/day": "date"},
    )
    assert table["day"].to_pylist()[: len(days)] == list(days.values())
    with pytest.raises(quire.BadBookmarkError):
        client.subscribe("orders", bookmark="soon")
