"""Writes docs/reference/command-line.md from the commands of `quire`: `python tests/command_line_page.py`.

`tests/test_command_line.py` checks that the page is up to date, and that every command and option has a help text.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from cyclopts import App
from cyclopts.argument import Argument
from quire.cli._app import app

PAGE: Final = Path(__file__).parent.parent / "docs/reference/command-line.md"

_HEAD: Final = """\
# Command line

This page is generated from the help texts in `python/quire/cli` by
`python tests/command_line_page.py`. `quire COMMAND --help` prints the same texts, and
`quire --version` prints the version.

An option can be written as `--rate 5` or `--rate=5`. An argument before the options can also be
given by its name: `quire publish --topic orders`. Arguments in square brackets can be left out.

| in all commands | meaning |
| --- | --- |
| the environment variable `QUIRE_URL` | URL of the server for commands without `--url` |
| a server URL | `quire://HOST:PORT` |
| a `file:` URL | `file:DIRECTORY`: a log with its files in this directory, without a server. No other process may write to it |
| a `local:` URL | `local:DIRECTORY`: the server on this machine that runs on the journal in this directory, as administrator |
| a bookmark | names one message of the log, such as <code>4711&#124;17&#124;</code> ([replay](../replay.md)) |
| a time | in UTC: `2026-01-05`, `20260105`, `2026-01-05T08:00` or `2026-01-05T08:00:00Z`. `-1h` is one hour ago |
| a duration | a number with a unit: `500ms`, `5s`, `15m`, `4h`, `7d` |
| a size | a number with a unit: `500KB`, `50GB`. 1 KB is 1,024 bytes |
| a content filter | such as `/qty > 50` ([filters](../filters.md)) |

| exit code | meaning |
| --- | --- |
| 0 | The command has done its work. |
| 1 | The command failed: no server, a full disk, a damaged journal, an unknown queue, topic, link or message. |
| 2 | There is a mistake in the arguments or in the configuration. |
| 130, 143 | Ctrl-C or SIGTERM ended the command. After its start, `quire serve` ends with 0. |

An empty value, as of `--url "$UNSET"`, is a mistake. Only `--data` can be empty. Text must be
UTF-8. Names of files and `--data` can have other bytes, apart from the data directory of a server
and the directory of a `file:` URL.

Results go to the standard output. Errors and notes go to the standard error.

"""


#: Characters that are markup in a table.
_MARKUP: Final = r"[|*<>\[\]{}\\_]"


@dataclass(frozen=True, kw_only=True)
class Command:
    """One command: its words after `quire`, its help, and its arguments and options."""

    words: tuple[str, ...]
    help: str
    is_group: bool
    arguments: list[Argument]

    @property
    def name(self) -> str:
        return " ".join(("quire", *self.words))


def commands(parent: App = app, words: tuple[str, ...] = ()) -> Iterator[Command]:
    """Yields every command: those without subcommands first, then each group before its commands."""
    children = [(name, parent[name]) for name in parent if not name.startswith("-")]
    for name, child in sorted(children, key=lambda item: item[1].default_command is None):
        path = (*words, name)
        is_group = child.default_command is None
        arguments = [] if is_group else [*child.assemble_argument_collection(parse_docstring=True)]
        # The members of an object are the options.
        arguments = [argument for argument in arguments if argument.name != "*"]
        # What cyclopts documents by the docstring of the parameters is a part of the docstring, not
        # of the help.
        text = re.sub(r"\n\s*Parameters\n\s*---.*", "", child.help, flags=re.S)
        yield Command(words=path, help=_dedented(text), is_group=is_group, arguments=arguments)
        if is_group:
            yield from commands(child, path)


def text() -> str:
    """Returns the page."""
    found = list(commands())
    return _HEAD + _overview(found) + "".join(map(_section, found))


def _overview(found: list[Command]) -> str:
    rows = [
        f"| [`{command.name}`](#{'-'.join(('quire', *command.words))}) | {_cell(_summary(command))} |\n"
        for command in found
        if not command.is_group
    ]
    return "## All commands\n\n| command | purpose |\n| --- | --- |\n" + "".join(rows)


def _section(command: Command) -> str:
    about, _, examples = command.help.partition("For example:\n")
    parts = [f"{'#' * (len(command.words) + 1)} {command.name}", _prose(about)]
    if not command.is_group:
        parts.append(f"```text\n{_synopsis(command)}\n```")
    if command.arguments:
        rows = "".join(map(_row, command.arguments))
        parts.append(f"| argument or option | default | meaning |\n| --- | --- | --- |\n{rows}".rstrip())
    if examples:
        parts.append(f"```sh\n{_dedented(examples)}\n```")
    return "\n" + "\n\n".join(parts) + "\n"


def _synopsis(command: Command) -> str:
    """The command with its arguments, and with the options that it requires."""
    words = [command.name]
    for argument in command.arguments:
        if _is_positional(argument):
            name = _placeholder(argument)
            words.append(name if argument.required else f"[{name}]")
        elif argument.required:
            words.append(f"{argument.name} {_value(argument)}")
    if not all(map(_is_positional, command.arguments)):
        words.append("[OPTIONS]")
    return " ".join(words)


def _row(argument: Argument) -> str:
    if _is_positional(argument):
        name = f"`{_placeholder(argument)}`"
    else:
        name = "`, `".join(argument.names)
        name = f"`{name}`" if _is_flag(argument) else f"`{name} {_value(argument)}`"
    default, meaning = _default(argument)
    return f"| {name} | {_cell(default)} | {_cell(meaning)} |\n"


def help_of(argument: Argument) -> str:
    """Returns the help of an argument or option, in one line; empty when it has none."""
    return " ".join((argument.parameter.help or "").split())


def _default(argument: Argument) -> tuple[str, str]:
    """The default, and the rest of the help. A default that the signature does not show is in the help text."""
    value: Any = argument.field_info.default
    meaning = help_of(argument)
    if argument.required:
        return "required", meaning
    if _is_flag(argument):
        return "on" if value else "off", meaning
    if value is not None:
        return str(value), meaning
    told = re.search(r"\s*Default: (.+?)\.(?=\s|$)", meaning)
    return ("", meaning) if told is None else (told.group(1), meaning.replace(told.group(), ""))


def _is_positional(argument: Argument) -> bool:
    return argument.index is not None


def _is_flag(argument: Argument) -> bool:
    return argument.hint is bool


def _placeholder(argument: Argument) -> str:
    return str(argument.name).removeprefix("--").replace("-", "_").upper()


def _value(argument: Argument) -> str:
    """What stands for the value of an option: its choices, or a word for its type."""
    choices = argument.get_choices(force=True)
    if choices:
        return "/".join(choices)
    kind = (
        str(getattr(argument.hint, "__name__", "")) if isinstance(argument.hint, type) else str(argument.hint)
    )
    for known, word in (("Path", "PATH"), ("int", "N"), ("float", "NUMBER")):
        if known in kind:
            return word
    return "TEXT"


def _summary(command: Command) -> str:
    return command.help.strip().splitlines()[0]


def _prose(text: str) -> str:
    """The paragraphs of a help text, wrapped as the other pages are."""
    return "\n\n".join(
        textwrap.fill(" ".join(block.split()), 98, break_on_hyphens=False)
        for block in text.strip().split("\n\n")
    )


def _cell(text: str) -> str:
    """A text in a cell of a table: options, URLs and files as code, and characters of the markup as text."""
    parts = re.split(
        r"(`[^`]+`|--delay 10m|--[\w-]+|\$\w+|quire://[\w.:]*\w|\b(?:file|local|memory):[A-Z]*|dist/\S+|\^ \$ .+ \\)",
        text,
    )
    parts[::2] = [re.sub(_MARKUP, _entity, part) for part in parts[::2]]
    parts[1::2] = [_code(part.strip("`")) for part in parts[1::2]]
    return "".join(parts)


def _code(text: str) -> str:
    """A text as code. `|` in backticks ends the cell on GitHub, and its escape is shown on the site."""
    return f"<code>{re.sub(_MARKUP, _entity, text)}</code>" if "|" in text else f"`{text}`"


def _entity(match: re.Match[str]) -> str:
    """The character as an entity, which GitHub and the site show as it is."""
    return f"&#{ord(match.group())};"


def _dedented(text: str) -> str:
    return inspect.cleandoc("\n" + text if text.startswith(" ") else text).strip()


if __name__ == "__main__":
    PAGE.write_text(text(), encoding="utf-8")
