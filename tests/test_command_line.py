"""The page of the command line is up to date, and every command and option has a help text."""

from __future__ import annotations

import command_line_page
import pytest

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
