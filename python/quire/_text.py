"""Texts: those that go into the core, which reads UTF-8, and those that people read."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from quire._errors import ConfigError

#: A password may contain every character, so it ends at the last `@`. A path has one slash of two.
_PASSWORD: Final = re.compile(
    r"\A((?:[a-z][\w+.-]*://|(?:quires?|tcp):/)?+[^:]*:).*@", re.DOTALL | re.IGNORECASE
)

#: The name of a setting that has a secret, and not the name of a file with it.
_SECRET: Final = re.compile(r"password|passwd|secret|token|credential|authorization|api_?key", re.IGNORECASE)
_OF_FILE: Final = re.compile(r"(_file|_env|_path)\Z", re.IGNORECASE)


def without_secrets(value: Any, name: str = "") -> Any:
    """Returns a setting, or a whole configuration, with `***` in the place of secrets."""
    if _SECRET.search(name) and not _OF_FILE.search(name) and not isinstance(value, (bool, dict)):
        return "***"
    match value:
        case dict():
            return {key: without_secrets(each, key) for key, each in value.items()}
        case list() | tuple():
            return [without_secrets(each, name) for each in value]
        case str():
            return without_password(value) if "@" in value else value
    return value


def without_password(text: str) -> str:
    """Returns a URL, or text that should be one, with `***` instead of its password."""
    return _PASSWORD.sub(r"\1***@", text)


def nearest(word: str, names: Iterable[str]) -> str | None:
    """Returns the name that was probably meant: the shortest one that begins with the word, or else
    one with few other letters."""
    all_names = list(names)
    longer = [name for name in all_names if len(word) > 1 and name.startswith(word)]
    close = [min(longer, key=len)] if longer else difflib.get_close_matches(word, all_names, 1)
    return close[0] if close else None


def check_unicode(text: str, key: str) -> None:
    """Raises `ConfigError` for text that has no bytes: Python keeps a byte that it cannot decode as
    a lone surrogate."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        character = text[error.start]
        reason = f"expected Unicode text, got the lone surrogate {character!r}"
        # Python keeps the bytes of arguments and of names of files as these characters.
        if "\udc80" <= character <= "\udcff":
            reason += f": the byte 0x{ord(character) - 0xDC00:02X} is not UTF-8"
        raise ConfigError(reason, key=key) from None


def path_to_core(path: Path, key: str) -> str:
    """The path of a directory, for a configuration that the core reads. Raises `ConfigError` for a
    path that is not UTF-8: this configuration is JSON."""
    text = str(path)
    try:
        check_unicode(text, key)
    except ConfigError as error:
        raise ConfigError(f"{text!r}: {error._reason}; rename the directory", key=key) from None
    return text
