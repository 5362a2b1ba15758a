"""Texts do not become harder to read: `tests/language.py` counts, `tests/language.json` has the limits."""

from __future__ import annotations

import json
from pathlib import Path

import language


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
