"""Every error code has one class, one line in docs/errors.md, and errors survive pickling."""

import pickle
import re
from pathlib import Path

import pytest
import quire
import quire._errors as errors

ROOT = Path(__file__).parent.parent


def wire_codes() -> list[str]:
    """The names that crates/quire-command declares, without `ok`."""
    source = (ROOT / "crates/quire-command/src/code.rs").read_text(encoding="utf-8")
    return [name for name in re.findall(r'^ +\w+ = \d+, "(\w+)";', source, re.MULTILINE) if name != "ok"]


def test_every_code_of_the_wire_has_a_class() -> None:
    assert len(wire_codes()) >= 24
    assert [code for code in wire_codes() if code not in errors.CLASSES] == []


def test_every_code_has_a_line_in_the_documentation_that_names_its_class() -> None:
    page = (ROOT / "docs/errors.md").read_text(encoding="utf-8")
    documented = dict(re.findall(r"^\| `(\w+)` \| `(\w+)` \|", page, re.MULTILINE))
    assert documented == {code: cls.__name__ for code, cls in errors.CLASSES.items()}


def test_every_class_is_exported_documented_and_in_the_tree_at_the_top_of_the_module() -> None:
    assert errors.__doc__ is not None
    classes: set[type[quire.QuireError]] = {quire.QuireError, *errors.CLASSES.values()}
    for cls in classes:
        assert getattr(quire, cls.__name__) is cls
        assert cls.__name__ in quire.__all__
        assert cls.__doc__
        assert re.search(rf"\b{cls.__name__}\b", errors.__doc__)


@pytest.mark.parametrize("code", sorted(errors.CLASSES))
def test_an_error_survives_pickling(code: str) -> None:
    error = errors.from_code(code, "what was wrong", column=7)
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), copy.code, copy.reason, str(copy)) == (type(error), code, error.reason, str(error))
    assert getattr(copy, "column", 0) == getattr(error, "column", 0)


def test_a_code_of_a_newer_server_keeps_its_code() -> None:
    error = errors.from_code("from_the_future", "a reason")
    assert isinstance(error, quire.QuireError)
    assert error.code == "from_the_future"
    assert "a reason" in str(error)


def test_a_filter_error_says_where_and_a_hint_says_how_to_mend() -> None:
    error = errors.from_code("bad_filter", "unexpected ')'", column=7)
    assert isinstance(error, quire.BadFilterError)
    assert (error.column, str(error)) == (7, "unexpected ')', at column 7")
    assert str(errors.from_code("journal_locked", "in use")) == f"in use ({quire.JournalLockedError.hint})"
