"""Mistakes in the arguments of a command, named as the user typed them."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, Final

from cyclopts import UNSET, App, ArgumentCollection, CycloptsError, CycloptsPanel
from cyclopts.exceptions import (
    CoercionError,
    MissingArgumentError,
    UnknownCommandError,
    UnknownOptionError,
    UnusedCliTokensError,
)

from quire._errors import ConfigError
from quire._text import check_unicode, without_password

#: The beginning of the URL of a server. `Path` leaves one slash of two.
_SERVER: Final = re.compile(r"(quires?|tcp):/+")

#: Options of other commands, and what a command that lacks them may have instead.
_RELATED: Final = {"--from": "--bookmark", "--host": "--url", "--port": "--address", "--server": "--url"}

#: The argument that is a message.
_MAY_BE_EMPTY: Final = "--data"

#: Arguments of type `str` that may have bytes that are not UTF-8: files, directories, URLs with
#: them, and messages.
_ANY_BYTES: Final = {"archive_directory", "data", "file", "journal", "source", "target", "url", "wheel"}

#: The kinds of values, in the words of the errors of the library.
_KINDS: Final[dict[object, str]] = {int: "a whole number", float: "a number"}


def panel(error: CycloptsError) -> object:
    """Shows a mistake in the arguments, with the option that is meant where that can be told."""
    from quire.cli._output import visible

    text = without_passwords(_text(error) or str(error), error.root_input_tokens or ())
    text = "\n".join(map(visible, text.split("\n")))
    if not text.endswith("?"):
        text += f" `{' '.join(['quire', *(error.command_chain or ()), '--help'])}` shows what is possible."
    return CycloptsPanel(text)


def _text(error: CycloptsError) -> str | None:
    """The text of a mistake; `None` where the text of the library is right."""
    if isinstance(error, UnusedCliTokensError):
        unused = error.unused_tokens or []
        advice = _server_advice(next(iter(unused), ""), error.target)
        if advice is not None:
            return f"Unexpected argument: {advice}."
        return f"Unexpected {'argument' if len(unused) == 1 else 'arguments'}: {', '.join(unused)}."
    if isinstance(error, UnknownOptionError) and (word := error.token.keyword or error.token.value):
        names = [name for argument in error.argument_collection for name in argument.names]
        meant: list[str] = sorted((name for name in names if name.startswith(f"{word}-")), key=len)
        if (related := _RELATED.get(word)) in names and related is not None:
            meant = [related]
        return f"Unknown option: {word}. Did you mean {meant[0]}?" if meant else None
    if isinstance(error, UnknownCommandError) and (words := error.unused_tokens):
        if error.command_chain == ("config",) and Path(words[0]).suffix == ".toml":
            return f"Unknown command: {words[0]}. Did you mean `quire config check {words[0]}`?"
        return None
    if isinstance(error, CoercionError) and error.token is not None and error.token.keyword is not None:
        kind = _KINDS.get(error.target_type)
        return kind and f'{error.token.keyword}: expected {kind}, got "{error.token.value}".'
    if isinstance(error, MissingArgumentError) and error.argument is not None:
        if error.keyword is None and error.argument.field_info.is_positional:
            return f"Missing argument: {error.argument.name.lstrip('-').upper()}."
        if error.argument.token_count()[0] == 1:
            return f"Missing value: {error.keyword or error.argument.name} requires one."
    return None


def without_passwords(text: str, arguments: Iterable[str]) -> str:
    """Returns the text with `***` in the place of the password of each argument that has one as a URL has it."""
    for argument in arguments:
        # The value of `--option=value`, too. `Path` leaves one slash of two.
        for value in {argument, argument.partition("=")[2]}:
            for url in (value, str(Path(value))):
                text = text.replace(url, without_password(url))
    return text


def refuse_empty(_: App, __: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Raises `ConfigError` for an empty value, before it becomes the path of the working directory, for one.

    It is mostly a variable of the shell without a value. It must not select another server or
    directory, or every message.
    """
    for argument in arguments:
        is_option = argument.field_info.kind is inspect.Parameter.KEYWORD_ONLY
        # An option that is a switch has no value.
        is_empty = any(token.value == "" and token.implicit_value is UNSET for token in argument.tokens)
        if is_empty and argument.name != _MAY_BE_EMPTY:
            key = argument.name if is_option else argument.name.lstrip("-").upper()
            raise ConfigError("the value is empty", key=key)


def check_arguments(command: Callable[..., Any], bound: inspect.BoundArguments) -> None:
    """Raises `ConfigError` for text that is not UTF-8, and for the URL of a server in the place of a topic, a name, a
    file or a directory."""
    for name, (value, is_option) in _given(bound).items():
        if name not in _ANY_BYTES:
            key = f"--{name.strip('_').replace('_', '-')}" if is_option else name.upper()
            for text in value if isinstance(value, (list, tuple)) else [value]:
                if isinstance(text, str):
                    check_unicode(text, key)
        if is_option or name == "source" or not isinstance(value, (str, Path)):
            continue
        if (advice := _server_advice(str(value), command)) is not None:
            raise ConfigError(advice)


def as_option(error: ConfigError, bound: inspect.BoundArguments) -> ConfigError:
    """The mistake in an argument of a call of the library, named as the option of the command that set it."""
    key = error.key
    if key is not None and key.startswith("ssl."):
        # A member of `quire.TLS`.
        return ConfigError(error._reason, code=error.code, key=f"--{key.removeprefix('ssl.')}")
    if key is None or error.file is not None or not _given(bound).get(key, (None, False))[1]:
        return error
    return ConfigError(error._reason, code=error.code, key=f"--{key.replace('_', '-')}")


def is_argument(value: object, bound: inspect.BoundArguments) -> bool:
    """Whether the user typed this file or directory as an argument of the command."""
    return any(str(value) == str(given) for given, _ in _given(bound).values())


def _given(bound: inspect.BoundArguments) -> dict[str, tuple[Any, bool]]:
    """The arguments by name, and whether each is an option.

    The members of an object are options of the command. One with its default counts as left out.
    """
    given: dict[str, tuple[Any, bool]] = {}
    for name, value in bound.arguments.items():
        if is_dataclass(value):
            members = ((field, getattr(value, field.name)) for field in fields(value))
            given |= {field.name: (member, True) for field, member in members if member != field.default}
        else:
            kind = bound.signature.parameters[name].kind
            given[name] = (value, kind is inspect.Parameter.KEYWORD_ONLY)
    return given


def _server_advice(argument: str, command: Callable[..., Any] | None) -> str | None:
    """How to name a server to a command that got its URL as an argument; `None` for any other argument."""
    scheme = _SERVER.match(argument)
    if scheme is None:
        return None
    place = argument[scheme.end() :]
    url = without_password(f"{scheme[1]}://{place}")
    # A URL has neither a user nor a password.
    place = place.rpartition("@")[2]
    if command is not None and "url" in inspect.signature(command).parameters:
        return f"{url!r} is the URL of a server; write --url quire://{place}"
    return f"{url!r} is the URL of a server, and this command connects to none"


__all__ = ["as_option", "check_arguments", "is_argument", "panel", "refuse_empty", "without_passwords"]
