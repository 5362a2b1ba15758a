"""`quire publish --csv`: the conversion of cells and rows, and the errors for files that are not
CSV."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import quire
from hypothesis import given
from hypothesis import strategies as st
from quire.cli import run
from quire.cli._csv import json_rows, number_columns
from support.waiting import PATIENCE


def published(directory: Path) -> list[str]:
    if not directory.exists():
        return []
    with quire.Journal(directory, read_only=True) as journal:
        return [message.data.decode() for message in journal.read(topic="rows")]


def publish(directory: Path, content: bytes, *options: str) -> int:
    file = directory / "rows.csv"
    file.write_bytes(content)
    return run(["publish", "rows", str(file), "--csv", "--url", f"file:{directory / 'data'}", *options])


def column(directory: Path, *cells: str, types: str = "infer") -> list[str]:
    """The text of the values of a column with these cells."""
    rows = "".join(f"{cell},x\n" for cell in cells)
    assert publish(directory, f"\ufeffv,w\n{rows}".encode(), "--csv-types", types) == 0
    texts = published(directory / "data")
    assert [json.loads(text)["w"] for text in texts] == ["x"] * len(cells)
    return [text.removeprefix('{"v": ').removesuffix(', "w": "x"}') for text in texts]


def test_a_number_keeps_its_text(tmp_path: Path) -> None:
    cells = ["1.10", "-0", "5E3", "1e-7", "0.12345678901234567890", "9007199254740993", "1234567890123456789"]
    assert column(tmp_path, *cells) == cells


@pytest.mark.parametrize(
    "odd", ["+491234", "007", ".5", "5.", "1_000", "0x10", "nan", "Infinity", "1e999", "1" * 400, "x", "٣"]
)
def test_one_cell_that_is_no_number_of_json_makes_its_column_text(tmp_path: Path, odd: str) -> None:
    assert [json.loads(text) for text in column(tmp_path, "1.10", odd, " 4", "")] == ["1.10", odd, " 4", None]


def test_a_number_that_a_double_would_make_0_makes_its_column_text(tmp_path: Path) -> None:
    for name in "123":
        (tmp_path / name).mkdir()
    assert column(tmp_path / "1", "1", "1e-400") == ['"1"', '"1e-400"']
    assert column(tmp_path / "2", "-1.5E-500") == ['"-1.5E-500"']
    zeros = ["0", "-0", "0.00", "-0.0e-400", "0E5", "4e-324"]
    assert column(tmp_path / "3", *zeros) == zeros


def test_an_empty_cell_is_null_beside_numbers_and_beside_text(tmp_path: Path) -> None:
    assert column(tmp_path, "", " 4 ", "") == ["null", "4", "null"]
    assert publish(tmp_path, b"a,b\n,\n", "--name", "empty") == 0
    assert published(tmp_path / "data")[-1] == '{"a": null, "b": null}'


def test_every_cell_is_text_when_that_is_asked_for(tmp_path: Path) -> None:
    assert column(tmp_path, "1.10", "", "007", "é\u20ac", types="text") == ['"1.10"', '""', '"007"', '"é€"']


@pytest.mark.parametrize(
    ("content", "values"),
    [
        (b'a,b\r\n"x,1","y ""z"""\r\n', [("x,1", 'y "z"')]),
        (b'a,b\n"two\r\nlines","\n"\n', [("two\r\nlines", "\n")]),
        (b'a,b\n5" pipe,x\n', [('5" pipe', "x")]),
        (b"a,b\n x , y \n", [(" x ", " y ")]),
        (b'"a","b"\n"",\n', [(None, None)]),
        (b"a,b\nx,y", [("x", "y")]),
        (b"a,b\n\nx,y\n\r\n", [("x", "y")]),
        ('\ufeff"a",b\nü,\u2028\x85\n'.encode(), [("ü", "\u2028\x85")]),
        (b"a,b\n" + b"x" * 200_000 + b",y\n", [("x" * 200_000, "y")]),
    ],
)
def test_a_row_is_read_as_rfc_4180_defines_it(
    tmp_path: Path, content: bytes, values: list[tuple[object, object]]
) -> None:
    assert publish(tmp_path, content) == 0
    assert [tuple(json.loads(text).values()) for text in published(tmp_path / "data")] == values


MISTAKES = [
    # An unclosed quote would take all the lines after it into one cell.
    (b'id,name\n1,"ann\n2,bob\n3,cid\n', "2: the quote that opens here is not closed; write a quote inside"),
    (b'id,name\n1,ann\n2,"bob\n3,"cid"\n', "3: the quoted cell that opens here is followed by text"),
    (b'id,name\n"1\n2","ann\n3,bob\n', "3: the quote that opens here is not closed"),
    (b'id,name\n1,"ann"x\n', "2: the quoted cell that opens here is followed by text"),
    (b'id,"name\n1,ann\n', "1: the quote that opens here is not closed"),
    (b"id,v\n1,2\n3,4,5\n", "3: a row of 3 cells below a header of 2"),
    (b"id,v\n1,2\n\n3\n", "4: a row of 1 cell below a header of 2"),
    (b"id,v\n1,2\n3,\xff\n", "3: not UTF-8: invalid start byte"),
    (b"id,id\n1,2\n", "1: the header names column 'id' twice"),
    (b"id,v\r1,2\r3,4\r", "1: a carriage return inside a line"),
    (b"id;v\n1;2\n", "1: the header has no comma: give --delimiter ';'"),
    (b"id\tv\n1\t2\n", "1: the header has no comma: give --delimiter tab"),
    (
        b"id,v\n1," + b"x" * (16 * 1024**2 + 1) + b"\n",
        "2: a cell of more than 16,777,216 characters begins here",
    ),
]


@pytest.mark.parametrize(("content", "what"), MISTAKES)
def test_a_file_with_a_mistake_publishes_nothing_and_names_the_line(
    tmp_path: Path, content: bytes, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert publish(tmp_path, content) == 2
    assert capsys.readouterr().err.startswith(f"quire: {tmp_path / 'rows.csv'}:{what}")
    assert published(tmp_path / "data") == []


def test_rows_before_a_mistake_are_published_when_cells_are_text_and_the_command_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert publish(tmp_path, b'id,v\n1,a\n2,b\n3,"c\n4,d\n', "--csv-types", "text") == 2
    stopped, mistake = capsys.readouterr().err.splitlines()
    assert stopped == f"quire: stopped after line 3 of {tmp_path / 'rows.csv'}; 2 messages are published"
    assert mistake.startswith(f"quire: {tmp_path / 'rows.csv'}:4: the quote that opens here is not closed")
    assert [json.loads(text)["id"] for text in published(tmp_path / "data")] == ["1", "2"]


@pytest.mark.parametrize(
    ("content", "delimiter"), [(b"a;b\n1;x,y\n", ";"), (b"a\tb\n1\tx,y\n", "tab"), (b"a|b\n1|x,y\n", "|")]
)
def test_another_delimiter_can_be_given(tmp_path: Path, content: bytes, delimiter: str) -> None:
    assert publish(tmp_path, content, "--delimiter", delimiter) == 0
    assert published(tmp_path / "data") == ['{"a": 1, "b": "x,y"}']


def test_a_delimiter_that_the_header_does_not_have_is_a_mistake(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert publish(tmp_path, b"a,b\n1,2\n", "--delimiter", "tab") == 2
    assert "1: the header has no tab: give --delimiter ','" in capsys.readouterr().err
    assert published(tmp_path / "data") == []


def test_one_column_may_have_another_delimiter_in_its_name(tmp_path: Path) -> None:
    assert publish(tmp_path, b"a;b\n1;2\n", "--delimiter", ",") == 0
    assert published(tmp_path / "data") == ['{"a;b": "1;2"}']


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (["--csv", "--delimiter", "ab"], "--delimiter: expected one character, or \"tab\", got 'ab'"),
        (["--csv", "--delimiter", '"'], "--delimiter: expected one character"),
        (["--delimiter", ";"], "--delimiter: it requires --csv"),
        (["--csv-types", "text"], "--csv-types: it requires --csv"),
        (["--csv", "--records"], "--records: it does not go together with --csv"),
    ],
)
def test_options_of_csv_are_checked(
    options: list[str], what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["publish", "rows", "missing.csv", "--url", "memory:", *options]) == 2
    assert capsys.readouterr().err.startswith(f"quire: {what}")


def test_the_columns_of_a_pipe_are_decided_by_all_rows(tmp_path: Path) -> None:
    # The first cell is a number, and the last one is not.
    command = [
        sys.executable,
        "-m",
        "quire",
        "publish",
        "rows",
        "--csv",
        "--url",
        f"file:{tmp_path / 'data'}",
    ]
    rows = b"a,b\n" + b"1,1\n" * 3 + b"1,x\n"
    done = subprocess.run(command, input=rows, capture_output=True, check=False, timeout=PATIENCE)
    assert (done.returncode, done.stderr) == (0, b"")
    assert published(tmp_path / "data") == ['{"a": 1, "b": "1"}'] * 3 + ['{"a": 1, "b": "x"}']


def test_a_redirected_file_is_read_from_where_another_program_left_it(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_bytes(b"a comment\na,b\n1,x\n")
    # The shell has read the first line, byte by byte.
    command = f'{{ read -r skipped; "$0" -m quire publish rows --csv --url file:{tmp_path / "data"}; }}'
    with file.open("rb") as stream:
        done = subprocess.run(
            ["sh", "-c", command, sys.executable],
            stdin=stream,
            capture_output=True,
            check=False,
            timeout=PATIENCE,
        )
    assert (done.returncode, done.stderr) == (0, b"")
    assert published(tmp_path / "data") == ['{"a": 1, "b": "x"}']


def test_a_file_that_changes_after_its_columns_were_decided_is_a_mistake() -> None:
    lines = [b"a\n", b"1\n"]
    numbers = number_columns(lines, file="f")
    with pytest.raises(quire.ConfigError, match="column 'a' had numbers only when the file was read first"):
        list(json_rows([*lines, b"x\n"], file="f", numbers=numbers))


#: Text of cells: text that CSV quotes, text that looks like a number, and text with an effect in
#: other programs.
CELLS = st.one_of(
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8),
    st.sampled_from(
        ["1", "-0", "1.10", "5E3", "+4", "007", " ", '"', "a,b", "x\r\ny", "\ufeff", "\u2028", ""]
    ),
)
TABLES = st.integers(1, 3).flatmap(
    lambda width: st.lists(st.lists(CELLS, min_size=width, max_size=width), min_size=1, max_size=4)
)


@given(TABLES)
def test_what_the_csv_module_writes_is_published_cell_by_cell(rows: list[list[str]]) -> None:
    names = [f"c{number}" for number in range(len(rows[0]))]
    file = io.StringIO(newline="")
    csv.writer(file, quoting=csv.QUOTE_ALL).writerows([names, *rows])
    lines = io.BytesIO(file.getvalue().encode()).readlines()
    assert [list(json.loads(row).values()) for row in json_rows(lines, file="f")] == rows
    texts = [json.loads(row, parse_float=str, parse_int=str) for row in inferred(lines)]
    # A number has its own text, apart from blanks around it. An empty cell is NULL.
    found = [["" if value is None else value for value in text.values()] for text in texts]
    assert [[cell.strip(" ") for cell in row] for row in found] == [
        [cell.strip(" ") for cell in row] for row in rows
    ]


def inferred(lines: list[bytes]) -> list[bytes]:
    numbers: Any = number_columns(lines, file="f")
    return list(json_rows(lines, file="f", numbers=numbers))
