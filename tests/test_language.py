"""Texts do not become harder to read: `tests/language.py` counts, `tests/language.json` has the limits."""

from __future__ import annotations

import json
from pathlib import Path

import language
import pytest


def test_no_file_has_more_idioms_and_long_sentences_than_its_limit() -> None:
    limits = json.loads(language.LIMITS.read_text())
    worse = {
        name: language.faults(language.ROOT / name)[-5:]
        for name, count in language.counts().items()
        if count > limits.get(name, 0)
    }
    assert not worse, f"rewrite, with `python tests/language.py FILE`: {worse}"


def test_idioms_and_long_sentences_are_counted(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "Nobody waits.\n\nThe queue goes on behind it. "
        + "Words " * 36
        + ".\n\n```\nnobody\n```\n\n| nobody | fine |\n"
    )
    # The last line of prose is too long, too.
    assert len(language.faults(page)) == 6
    module = tmp_path / "module.py"
    module.write_text('"""What nobody takes."""\n\nx = 1  # It stands\n# beside it.\n')
    assert len(language.faults(module)) == 4


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("The file was written anew with the name of now.", 2),
        ("There while anybody follows.", 2),
        ("More ways in than the driver has.", 1),
        ("The replay goes on, a message goes out, and the next one comes late.", 3),
        ("It names the transport where the session came in.", 1),
        ("The bytes are no record, or the key is none.", 2),
        ("Returns `None` when there is no record, or there is none.", 0),
        ("The message goes back to its queue, and is no longer leased.", 0),
    ],
)
def test_idioms_are_told_from_plain_words(text: str, count: int, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"{text}\n")
    assert len(language.faults(page)) == count


def test_comments_stay_as_narrow_as_prose() -> None:
    files = language.wrapped_files()
    assert {path.suffix for path in files} == language.SOURCES
    wide = {str(path): found for path in files if (found := language.wide_comments(path))}
    assert not wide, f"wrap these comments at 100 columns: {wide}"


def test_a_wide_comment_is_found(tmp_path: Path) -> None:
    module = tmp_path / "module.rs"
    module.write_text(f"    // {'a' * 94}\n    //! {'a' * 92}\nlet text = {'1' * 99}; // a\n")
    assert language.wide_comments(module) == ["module.rs:1: 101 columns"]
    script = tmp_path / "script.py"
    wide = f"# {'a' * 99}\n"
    script.write_text(f"{wide}one = 1  {wide}# {'a' * 98}\ntext = '''\n{wide}'''\n")
    assert language.wide_comments(script) == ["script.py:1: 101 columns"]
