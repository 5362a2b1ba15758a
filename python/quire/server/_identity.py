"""The values of a logon, and the result of its check."""

from __future__ import annotations

import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from quire._errors import ConfigError

#: A name has at most this number of bytes.
NAME_SIZE_MAX: Final = 255
#: The user of every connection of a server without authentication. No other user has this name.
ANONYMOUS: Final = "anonymous"


@dataclass(frozen=True)
class Given:
    """The values that a client gave at its logon."""

    user: str | None
    #: Its password and its token.
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    #: The name of the client, the address of its connection, and the name of the transport.
    client: str = ""
    address: str = ""
    transport: str = ""
    #: The name of the server.
    instance: str = ""
    #: The parts of the certificate of its TLS connection, as `ssl` returns them.
    certificate: Mapping[str, Any] | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Identity:
    """The user that a client is."""

    user: str
    groups: tuple[str, ...] = ()
    #: The time at which its connection ends, in seconds since 1970; `None`: never.
    expires: float | None = None
    #: The entry of a file that accepted it: with another entry, its connection ends.
    entry: object = field(default=None, repr=False)


@dataclass(frozen=True)
class Refused:
    """A logon is not accepted."""

    #: The exact reason, for the log.
    reason: str
    #: The text for the client, if it is another one than that of the method.
    text: str | None = None
    #: The logon cannot be checked now, so the client tries again.
    is_unavailable: bool = False


#: Whether a user is meant, by its name.
Selects = Callable[[str], bool]


def every(user: str) -> bool:
    """Selects each user."""
    return True


class Checker(ABC):
    """Checks logons against files as they were at one time."""

    def prepare(self) -> None:
        """Computes the values that each check needs, so that the first one takes no longer."""
        return

    @abstractmethod
    def check(self, given: Given) -> Identity | Refused:
        """Decides about a logon. It may take long, and runs on any thread."""

    def forget(self, selects: Selects = every) -> None:
        """Keeps no result of a check of these users any longer."""
        return

    def still(self, identity: Identity) -> bool:
        """Whether a connection that was accepted earlier may stay."""
        return True


def check_name(name: object, key: str = "name") -> str:
    """Returns the name of a user or group. Raises `ConfigError` when it cannot be one."""
    if not isinstance(name, str):
        raise ConfigError(f"expected text, got `{type(name).__name__}`", key=key)
    if not 1 <= len(name.encode("utf-8", "surrogatepass")) <= NAME_SIZE_MAX:
        raise ConfigError(f"expected 1 to {NAME_SIZE_MAX} bytes, got {name[:40]!r}", key=key)
    if any(unicodedata.category(c) in ("Cc", "Cs") for c in name) or name != name.strip():
        raise ConfigError(f"{name!r} has a control character, or a space at its begin or end", key=key)
    if unicodedata.normalize("NFC", name) != name:
        raise ConfigError(f"{name!r} is not in the normal form NFC of Unicode", key=key)
    if name == ANONYMOUS:
        raise ConfigError(f"{name!r} is the name of users without authentication", key=key)
    return name


def is_name(name: object) -> bool:
    """Whether it can be the name of a user or group."""
    try:
        check_name(name)
    except ConfigError:
        return False
    return True
