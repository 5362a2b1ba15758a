"""Every error code has one class and one row in docs/reference/errors.md, hints name what exists,
and errors survive pickling."""

import inspect
import pickle
import re
from pathlib import Path

import error_page
import pytest
import quire
import quire._errors as errors
import quire.config
from quire.cli import run
from quire.config import Config
from quire.config._mistakes import _keys

ROOT = Path(__file__).parent.parent


def wire_codes() -> list[str]:
    """The names that crates/quire-command declares, without `ok`."""
    source = (ROOT / "crates/quire-command/src/code.rs").read_text(encoding="utf-8")
    return [name for name in re.findall(r'^ +\w+ = \d+, "(\w+)";', source, re.MULTILINE) if name != "ok"]


def test_every_code_of_the_wire_has_a_class() -> None:
    assert len(wire_codes()) >= 24
    assert [code for code in wire_codes() if code not in errors.CLASSES] == []


def test_the_page_of_errors_is_up_to_date() -> None:
    """After a change: `python tests/error_page.py`."""
    assert error_page.PAGE.read_text(encoding="utf-8") == error_page.text()


def test_every_code_has_a_row_with_a_meaning_and_what_to_do() -> None:
    page = error_page.PAGE.read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` `(\w+)` \| (.+) \| (.+) \|$", page, re.MULTILINE)
    assert {code: cls for code, cls, _, _ in rows} == {
        code: cls.__name__ for code, cls in errors.CLASSES.items()
    }
    for code, _, *texts in rows:
        assert all(text.endswith(".") for text in texts), code
    for target in re.findall(r"\]\(([^)#]+)", page):
        assert (error_page.PAGE.parent / target).resolve().is_file(), target


ADVICE = {
    **{f"hint of {cls.__name__}": cls.hint for cls in {*errors.CLASSES.values()} if cls.hint},
    **{f"advice for {code}": case.advice for code, case in errors.CASES.items()},
}


def names() -> set[str]:
    """The names that may be in backticks: arguments and methods of calls, keys of the
    configuration, attributes of errors."""
    calls = (quire.Client, quire.Client.subscribe, quire.Client.publish, quire.Journal)
    arguments = {name for call in calls for name in inspect.signature(call).parameters}
    fields = {"key", "file", "line", "mistakes", "column"}
    methods = {name for name in dir(quire.Client) if not name.startswith("_")}
    tables = {model for model in vars(quire.config).values() if hasattr(model, "model_fields")}
    keys = {field.alias or name for model in tables for name, field in model.model_fields.items()}
    return arguments | fields | methods | keys


def is_key(path: str) -> bool:
    """Whether it is the path of a key of the configuration."""
    keys = path.split(".")
    return keys[-1] in _keys(Config, keys[:-1])


@pytest.mark.parametrize("where", sorted(ADVICE))
def test_what_a_hint_names_exists(where: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = ADVICE[where]
    commands = re.findall(r"`quire ([a-z -]+)`", text)
    helps = []
    for command in commands:
        assert run([*command.split(), "--help"]) == 0
        helps.append(capsys.readouterr().out)
    for name in re.findall(r"`([^`]+)`", text):
        if name.startswith("quire "):
            continue
        if name.startswith("--"):
            assert any(name in shown for shown in helps), name
        elif name.startswith("quire."):
            called, _, arguments = name.removeprefix("quire.").partition("(")
            assert hasattr(quire, called), name
            taken = inspect.signature(getattr(quire, called)).parameters if arguments else {}
            assert all(word in taken for word in re.findall(r"\w+(?==)", arguments)), name
        else:
            assert is_key(name) if "." in name else name.split("=")[0] in names(), name
    # Names outside of backticks are not looked for.
    assert not re.search(r"\w+=|\b\w+_\w+\b|--\w", re.sub(r"`[^`]+`|\]\([^)]+\)", "", text)), text


def test_every_class_is_exported_documented_and_in_the_tree_at_the_top_of_the_module() -> None:
    assert errors.__doc__ is not None
    classes: set[type[quire.QuireError]] = {quire.QuireError, *errors.CLASSES.values()}
    for cls in classes:
        assert getattr(quire, cls.__name__) is cls
        assert cls.__module__ == "quire", "a traceback shows the name to catch"
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
