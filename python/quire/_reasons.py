"""The reasons of cancels and expiries, which dead letters show."""

from __future__ import annotations

from quire._arguments import check_type
from quire._errors import ConfigError

#: The longest reason, in bytes of UTF-8. The limit of the protocol.
SIZE_MAX = 1024


def reason_to_core(reason: object) -> str:
    """Returns the reason of a command; an empty text for none. Raises `ConfigError` for a reason
    that no command has."""
    if reason is None:
        return ""
    check_type(reason, str, "reason")
    text = str(reason)
    size = len(text.encode())
    if size > SIZE_MAX:
        raise ConfigError(f"the text has {size:,} bytes in UTF-8, the limit is {SIZE_MAX:,}", key="reason")
    return text


def reason_of(error: BaseException) -> str:
    """Returns an exception as a reason: the name of its class and its text, cut to `SIZE_MAX` bytes."""
    kind = type(error)
    name = kind.__qualname__
    if kind.__module__ not in ("builtins", "__main__"):
        name = f"{kind.__module__}.{name}"
    try:
        text = str(error)
    except Exception:
        text = "<its text cannot be read: str() of the exception failed>"
    whole = f"{name}: {text}" if text else name
    # UTF-8 has no lone surrogates. The first `SIZE_MAX` characters have at least that many bytes.
    return whole[:SIZE_MAX].encode(errors="backslashreplace")[:SIZE_MAX].decode(errors="ignore")
