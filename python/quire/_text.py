"""Text that goes into the core, which reads UTF-8."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from quire._errors import ConfigError


def nearest(word: str, names: Iterable[str]) -> str | None:
    """Returns the name that was probably meant: the shortest one that begins with the word, or else one with few other letters."""
    all_names = list(names)
    longer = [name for name in all_names if len(word) > 1 and name.startswith(word)]
    close = [min(longer, key=len)] if longer else difflib.get_close_matches(word, all_names, 1)
    return close[0] if close else None


def check_unicode(text: str, key: str) -> None:
    """Raises `ConfigError` for text that has no bytes: Python keeps a byte that it cannot decode as a lone surrogate."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(
            f"expected Unicode text, got the lone surrogate {text[error.start]!r}", key=key
        ) from None
