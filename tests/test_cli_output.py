"""What commands print on a terminal and in a pipe."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import quire
from quire.cli import run
from quire.cli._messages import _reminder
from quire.cli._output import print_table

COLUMNS = [f"no {number}" for number in range(12)]


def printed(
    rows: list[list[Any]],
    width: int | None,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> list[list[str]]:
    """The lines as words; `width` is that of a terminal, `None` a pipe."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: width is not None, raising=False)
    monkeypatch.setenv("COLUMNS", str(width or 80))
    monkeypatch.setenv("TERM", "xterm")
    print_table(COLUMNS, rows)
    # Without colours.
    text = re.sub("\x1b\\[[0-9;]*m", "", capsys.readouterr().out)
    lines = (line.replace("no ", "no-").split() for line in text.splitlines())
    return [words for words in lines if words and not set(words[0]) <= {"─", "━"}]


def test_a_table_lies_on_its_side_where_it_only_fits_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [[f"a long {name}{number}".replace(" ", "-") for number in range(12)] for name in "ab"]
    upright = [[f"no-{number}" for number in range(12)], *rows]
    assert printed(rows, 200, capsys, monkeypatch) == upright
    assert printed(rows, 80, capsys, monkeypatch) == [list(words) for words in zip(*upright, strict=True)]
    assert printed(rows, None, capsys, monkeypatch) == upright


@pytest.mark.parametrize("name", ["[/red]", "[red]x[/red]", "[link=/x]", ":smile:", "a\\[b]"])
def test_a_name_with_the_markup_of_the_table_is_printed_as_it_is(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    row = [name, *range(11)]
    expected = [name, *map(str, range(11))]
    assert printed([row], 200, capsys, monkeypatch)[-1] == expected
    assert printed([row], None, capsys, monkeypatch)[-1] == expected


def test_times_are_broken_into_lines_before_numbers(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    row = [datetime(2026, 1, 5, 8, tzinfo=UTC), *(100.25 + number for number in range(11))]
    words = [word for line in printed([row] * 100, 92, capsys, monkeypatch) for word in line]
    assert words.count("100.25") == words.count("110.25") == 100
    assert "2026-01-05" not in words


def test_names_are_whole_where_other_columns_are_broken_into_lines(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [[f"payments-retry-europe-{number}", *["1,234,567"] * 11] for number in range(9)]
    lines = printed(rows, 80, capsys, monkeypatch)
    assert [words[0] for words in lines if words[0].startswith("pay")] == [row[0] for row in rows]
    assert sum(word.count(",") for words in lines for word in words) == 9 * 11 * 2


def test_a_table_that_fits_in_no_way_keeps_its_rows(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [["x" * number for number in range(12)] for _ in range(100)]
    lines = printed(rows, 80, capsys, monkeypatch)
    assert sum(word.count("x") for words in lines for word in words) == 100 * sum(range(12))
    assert len(lines) > 100
    assert len(printed([], 200, capsys, monkeypatch)) == 1


ODD = "a\tb\n\x1b[31m\x9b2J\u202e\u2028é"
VISIBLE = r"a\tb\n\x1b[31m\x9b2J\u202e\u2028é"


@pytest.mark.parametrize("is_terminal", [True, False])
def test_control_characters_in_rows_are_escapes(
    is_terminal: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal, raising=False)
    with quire.Journal(tmp_path) as journal:
        journal.append("t", ODD, publisher=1, sequence=1)
    commands = [
        ["journal", "dump", str(tmp_path)],
        ["subscribe", "t", "--bookmark", "[epoch:now]", "--format", "table", "--url", f"file:{tmp_path}"],
    ]
    for command in commands:
        assert run(command) == 0
        head, *rows = capsys.readouterr().out.split("\n")[:-1]
        cells = [re.split(r"  +" if is_terminal else "\t", row) for row in (head, *rows)]
        assert cells[0][-3:] == ["topic", "bookmark", "data"]
        assert [row[-3:] for row in cells[1:]] == [["t", "1|1|", VISIBLE]]
    assert printed([["x", ODD]], 200 if is_terminal else None, capsys, monkeypatch)[-1] == ["x", VISIBLE]


def test_an_error_does_not_control_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (
        ["subscribe", "t", "--bookmark", "\x1b[2J", "--url", "memory:"],
        ["subscribe", "t", "--bogus\x1b[2J"],
        ["subscribe", "t", "--count", "\x1b[2J"],
        ["bogus\x1b[2J"],
        ["subscribe", "t", "more\x1b[2J"],
    ):
        assert run(arguments) == 2
        said = capsys.readouterr()
        assert r"\x1b[2J" in said.err + said.out
        assert "\x1b" not in said.err + said.out


def test_what_the_encoding_of_the_output_does_not_have_is_shown_by_its_number(tmp_path: Path) -> None:
    with quire.Journal(tmp_path) as journal:
        journal.append("übung", "日", publisher="p", sequence=1)
    done = subprocess.run(
        [sys.executable, "-m", "quire", "journal", "dump", str(tmp_path)],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert rb"\xfcbung" in done.stdout
    assert rb"\u65e5" in done.stdout


def test_a_standard_input_that_is_closed_is_said_to_be(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    assert run(["publish", "t", "--url", "memory:"]) == 2
    assert capsys.readouterr().err == "quire: FILE: the standard input is closed\n"


@pytest.mark.parametrize(
    ("command", "what"),
    [
        (["queue", "peek", "q", "--count", "-1"], "--count: -1 is below 0"),
        (["queue", "redrive", "q", "--count", "-1"], "--count: -1 is below 0"),
        (["sow", "q", "--top-n", "-1"], "--top-n: -1 is not between 0 and 2**32 - 1"),
        (["subscribe", "t", "--count", "-1"], "--count: -1 is below 0"),
        (["subscribe", "t", "--timeout", "-1"], "--timeout: -1 is below 0"),
        (["publish", "t", "--data", "1", "--rate", "0"], "--rate: 0 is not above 0"),
        (["publish", "t", "--data", "1", "--rate", "nan"], "--rate: nan is not above 0"),
    ],
)
def test_less_than_nothing_is_a_mistake(
    command: list[str], what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*command, "--url", "memory:"]) == 2
    assert capsys.readouterr().err == f"quire: {what}\n"


def test_the_demo_without_a_flight_is_a_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["demo", "--flights", "0"]) == 2
    assert capsys.readouterr().err == "quire: --flights: 0 is below 1\n"


def test_names_in_notes_and_results_are_shown_with_escapes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = tmp_path / "rows\u202e.jsonl"
    rows.write_text("{}\n")
    command = ["publish", "t", str(rows), "--name", "a\u202e", "--url", f"file:{tmp_path / 'log'}"]
    assert run(command) == 0
    assert run(command) == 0
    assert "1 was there already under the name a\\u202e\n" in capsys.readouterr().out
    rows.write_text("{}\n" + "x" * 17_000_000 + "\n")
    assert run(command) == 1
    assert f"quire: line 2 of {tmp_path}/rows\\u202e.jsonl was not published" in capsys.readouterr().err


def test_a_person_who_waits_for_a_misspelled_topic_is_reminded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not _reminder("tradse").is_alive()  # No terminal: a program reads the output.
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("quire.cli._messages._PATIENCE", 0)
    _reminder("tradse").join()
    assert capsys.readouterr().err == "quire: no message of 'tradse' yet; waiting (Ctrl-C ends)\n"
