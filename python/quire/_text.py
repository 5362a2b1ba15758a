"""Texts: those that go into the core, which reads UTF-8, and those that people read."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import Final

from quire._errors import ConfigError

#: A password may contain every character, so it ends at the last `@`. A path has one slash of two.
_PASSWORD: Final = re.compile(
    r"\A((?:[a-z][\w+.-]*://|(?:quires?|tcp):/)?+[^:]*:).*@", re.DOTALL | re.IGNORECASE
)


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
        raise ConfigError(
            f"expected Unicode text, got the lone surrogate {text[error.start]!r}", key=key
        ) from None
