"""Text that goes into the core, which reads UTF-8."""

from __future__ import annotations

from quire._errors import ConfigError


def check_unicode(text: str, key: str) -> None:
    """Raises `ConfigError` for text that has no bytes: Python keeps a byte that it cannot decode as a lone surrogate."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(
            f"expected Unicode text, got the lone surrogate {text[error.start]!r}", key=key
        ) from None
