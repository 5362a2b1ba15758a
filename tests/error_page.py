"""Writes docs/reference/errors.md from the error classes and codes: `python tests/error_page.py`.

`tests/test_errors.py` checks that the page is up to date.
"""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Final

from quire import _errors as errors

PAGE: Final = Path(__file__).parent.parent / "docs/reference/errors.md"

_HEAD: Final = """\
# Errors

This page is generated from `python/quire/_errors.py` by `python tests/error_page.py`.

Every error is a `quire.QuireError`. The exceptions are the built-in `TimeoutError` for a call that
takes longer than its `timeout`, `TypeError` or `ValueError` for data that cannot be published, and
`TypeError` for an argument that a function does not have. A `QuireError` has these attributes:

| attribute | is |
| --- | --- |
| `code` | the stable name of the case. Programs may compare it |
| `reason` | the mistake, and the input that has it |
| `hint` | the action that solves the problem; empty for some errors. `str(error)` is the reason, with the hint in parentheses |
| `key` of a `ConfigError` or `BadBookmarkError` | the argument, option or key of the configuration, or `None` |
| `file`, `line`, `mistakes` of a `ConfigError` | the place in a configuration file, and all mistakes in it, one error each |
| `column` of a `BadFilterError` | the position in the filter, from 1 |
| `sequence`, `topic` | of the published message that the error is about, where they are known, or `None` |

[protocol.md](../protocol.md) section 5 describes the reaction of a client to each code.

## Classes

"""

_CODES: Final = """
`DisconnectedError` is also a `ConnectionError`.

## Codes

| code and class | meaning | what to do |
| --- | --- | --- |
"""


def text() -> str:
    """Returns the page."""
    rows = [
        f"| `{code}` `{case.cls.__name__}` | {case.meaning} | {case.advice} |\n"
        for code, case in sorted(errors.CASES.items())
    ]
    return "".join([_HEAD, *_tree(errors.QuireError, ""), _CODES, *rows])


def _tree(cls: type[BaseException], indent: str) -> list[str]:
    """Returns a list of the class and its subclasses, each with the first line of its docstring."""
    about = (cls.__doc__ or "").strip().splitlines()[0]
    lines = [
        *textwrap.wrap(
            f"- `{cls.__name__}`: {about}", 98, initial_indent=indent, subsequent_indent=f"{indent}  "
        )
    ]
    lines = [f"{line}\n" for line in lines]
    for inner in cls.__subclasses__():
        if inner.__module__ == "quire":  # not of a test or a program
            lines += _tree(inner, f"{indent}    ")
    return lines


if __name__ == "__main__":
    PAGE.write_text(text(), encoding="utf-8")
