"""Any bytes for the decoders that are written in Python: a value, or an error that says what is wrong.

`make fuzz` runs these tests with many inputs (`QUIRE_FUZZ_CASES`). Other such tests are in the
crates (Makefile, `fuzz`).
"""

from __future__ import annotations

import csv
import io
import json
import os

import quire
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from quire._bookmarks import bookmark_to_core, range_to_core, time_ns
from quire.cli._csv import json_rows, number_columns

_CASES = os.environ.get("QUIRE_FUZZ_CASES")
many = settings(
    max_examples=int(_CASES) if _CASES else settings().max_examples,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


def no_constant(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


_CELLS = st.one_of(
    st.text(max_size=8),
    st.from_regex(r"[+-]?[0-9_]{0,6}\.?[0-9]{0,3}([eE][+-]?[0-9]{1,4})?", fullmatch=True),
    st.sampled_from(["nan", "inf", "1e999", "\u0663", "\xa04", "9" * 5000, '"', '""', "a\rb", "\0"]),
)
_TABLES = st.lists(st.lists(_CELLS, max_size=4).map(",".join), max_size=5).map("\n".join).map(str.encode)


@given(st.one_of(st.binary(max_size=100), _TABLES), st.booleans())
@example(b"a,a\n1,2\n", False)
@many
def test_any_bytes_are_rows_with_every_column_or_a_mistake_with_its_line(
    content: bytes, is_inferred: bool
) -> None:
    lines = io.BytesIO(content).readlines()
    count = 0
    try:
        numbers = number_columns(lines, file="rows.csv") if is_inferred else None
        for row in json_rows(lines, file="rows.csv", numbers=numbers):
            values = json.loads(row, parse_constant=no_constant, parse_int=float)
            header = next(row for row in csv.reader(line.decode() for line in lines) if row)
            assert list(values) == header
            assert all(value is None or type(value) in (str, int, float) for value in values.values())
            count += 1
    except quire.ConfigError as error:
        mistake = error
    else:
        return
    assert mistake.file == "rows.csv"
    assert mistake.line is not None
    assert count < mistake.line <= len(lines) + 1


_POSITIONS = st.one_of(
    st.text(max_size=40),
    st.text(alphabet="[](){}:|,0123456789TZW-+. epochnw", max_size=40),
    st.datetimes().map(str),
    st.lists(st.sampled_from(["[", "]", "(", ")", ":", ",", "0", "now", "7|1|", "2026-01-31T12:00:00Z"])).map(
        "".join
    ),
)


@given(_POSITIONS)
@many
def test_any_text_is_a_place_in_the_log_or_a_mistake_that_names_its_argument(text: str) -> None:
    for read in (bookmark_to_core, range_to_core):
        try:
            core = read(text, "bookmark")
        except quire.BadBookmarkError as error:
            mistake = error
        else:
            # Input of the core is not changed.
            assert read(core, "bookmark") == core
            continue
        assert mistake.key == "bookmark"
    time_ns(text)
