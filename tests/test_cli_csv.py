"""`quire publish --csv`: what becomes of cells and rows, and of files that are none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import quire
from quire.cli import run


def published(directory: Path) -> list[str]:
    with quire.Journal(directory, read_only=True) as journal:
        return [message.data.decode() for message in journal.read(topic="rows")]


def publish(directory: Path, content: bytes) -> int:
    file = directory / "rows.csv"
    file.write_bytes(content)
    return run(["publish", "rows", str(file), "--csv", "--url", f"file:{directory / 'data'}"])


def test_every_row_is_json_and_no_cell_changes_its_meaning(tmp_path: Path) -> None:
    cells = ["nan", "inf", "-Infinity", "1e999", "1_000", "007", "0", "-1.5", "+2", ".5", "0.25", "1e3", " 4"]
    rows = "".join(f"{cell}\n" for cell in cells)
    assert publish(tmp_path, f"\ufeffvalue\n{rows}".encode()) == 0

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    values = [json.loads(text, parse_constant=refuse) for text in published(tmp_path / "data")]
    expected = ["nan", "inf", "-Infinity", "1e999", "1_000", "007", 0, -1.5, 2, 0.5, 0.25, 1000.0, 4]
    assert values == [{"value": value} for value in expected]


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"id,v\n1,2\n3,4,5\n", "3: a row of 3 cells below a header of 2"),
        (b"id,v\n1,2\n3,\xff\n", "3: not UTF-8: invalid start byte"),
        (b"id,v\n1,2\n3," + b"x" * 200_000 + b"\n", "3: field larger than field limit (131072)"),
    ],
)
def test_a_row_that_is_none_is_named_by_file_and_line(
    tmp_path: Path, content: bytes, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert publish(tmp_path, content) == 2
    assert capsys.readouterr().err == f"quire: {tmp_path / 'rows.csv'}:{what}\n"
    # What stands before it is published.
    assert published(tmp_path / "data") == ['{"id": 1, "v": 2}']
