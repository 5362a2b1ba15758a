"""The page of the command line is up to date, and every command and option has a help text."""

from __future__ import annotations

from pathlib import Path

import command_line_page
import pytest
import quire
from quire.cli import run

COMMANDS = {command.name: command for command in command_line_page.commands()}


def test_the_page_of_the_command_line_is_up_to_date() -> None:
    """After a change: `python tests/command_line_page.py`."""
    assert command_line_page.PAGE.read_text(encoding="utf-8") == command_line_page.text()


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_a_command_and_each_option_of_it_has_a_help_text(name: str) -> None:
    command = COMMANDS[name]
    assert command.help.splitlines()[0].endswith(".")
    assert command.is_group or "For example:" in command.help
    for argument in command.arguments:
        assert command_line_page.help_of(argument).endswith("."), argument.name


def test_the_lines_of_a_help_text_are_whole_sentences() -> None:
    """The help keeps line breaks: a sentence that continues on a second line is broken on a terminal."""
    for name, command in COMMANDS.items():
        texts = [(command.help.split("For example:")[0])]
        texts += [argument.parameter.help or "" for argument in command.arguments]
        for line in "\n".join(texts).splitlines():
            assert not line.strip() or line.rstrip().endswith("."), f"{name}: {line}"


def test_a_command_needs_no_option_of_the_server_in_a_program_with_pydantic(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With pydantic in the process, cyclopts checks the values of options with it, the default ones too."""
    import pydantic

    assert pydantic.VERSION
    with quire.Client(f"file:{tmp_path}") as client:
        client.publish("orders", {"id": 1})
    assert run(["journal", "remove", str(tmp_path), "--missing"]) == 0
    assert capsys.readouterr().out == "no file is missing\n"
