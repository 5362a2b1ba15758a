"""Where a client connects: servers by their addresses, engines of this process by their journals."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from quire._arguments import journal_inside
from quire._errors import ConfigError
from quire._text import check_unicode, without_password

DEFAULT_PORT: Final = 9007
#: A host and a port without `quire://`, or with another scheme.
_HOST_AND_PORT: Final = re.compile(r"(?:\w+://)?((?:[\w.-]+|\[[0-9a-fA-F:.]+\]):\d+)")


@dataclass(frozen=True)
class Place:
    """Where an engine inside this process keeps its journal."""

    #: Absolute; `None` = in memory.
    directory: Path | None
    #: In memory: clients of one name share an engine.
    name: str


@dataclass(frozen=True)
class SecuredHost:
    """A server that is reached over TLS."""

    host: str
    port: int


def user_in(url: str) -> str | None:
    """The user in the URL of a server, as `quire://anna@host` has it."""
    from urllib.parse import unquote, urlsplit

    if not url.startswith(("quire://", "quires://")):
        return None
    name = urlsplit(url).username
    return None if name is None else unquote(name)


def directory_of(url: str) -> Path:
    """The directory of `file:DIRECTORY`, as it was written, or of a `file://` URI as `Path.as_uri` makes it.

    Raises `ConfigError` for a URI of another machine.
    """
    rest = url.removeprefix("file:")
    if rest.startswith("//"):
        from urllib.parse import unquote

        host, slash, path = rest[2:].partition("/")
        if host not in ("", "localhost"):
            # `file://user:password@host/directory` is a mistake, too.
            shown, host, rest = map(without_password, (url, host, rest[2:]))
            reason = f"{shown!r} names the host {host!r}; a directory of this machine is file:{rest}"
            raise ConfigError(reason, key="url")
        rest = unquote(slash + path)
    if not rest:
        raise ConfigError(f"{url!r} names no directory, as file:./trades does", key="url")
    return Path(rest).expanduser()


def parse_url(url: str) -> tuple[str, int] | SecuredHost | tuple[Path] | Place:
    """Host and port of `quire://host:port` or `quires://host:port`, the directory of `local:DIRECTORY`, or the place of
    `file:DIRECTORY` and `memory:NAME`.

    Raises `ConfigError` for any other text. The error does not repeat a password.
    """
    scheme, colon, rest = url.partition(":")
    if colon and scheme == "memory":
        return Place(None, rest)
    if colon and scheme == "local":
        directory = Path(rest).expanduser().resolve()
        if (inside := journal_inside(directory)) is not None:
            reason = f"{url!r}: there are no journal files; perhaps you mean local:{inside}"
            raise ConfigError(reason, key="url")
        return (directory,)
    if colon and scheme == "file":
        return Place(directory_of(url).resolve(), "")
    shown = repr(without_password(url))
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(url)
    except ValueError as error:
        # The text of the error may repeat the password.
        reason = str(error) if shown == repr(url) else "it is not a URL"
        raise ConfigError(f"{shown}: {reason}", key="url") from None
    try:
        port = parts.port
    except ValueError:
        port = 0
    if port == 0:
        raise ConfigError(f"{shown}: the port must be a number from 1 to 65535", key="url")
    if parts.scheme not in ("quire", "quires"):
        reason = f"{shown} does not begin with quire://, quires://, file:, memory: or local:"
        if place := _HOST_AND_PORT.fullmatch(url):
            reason += f"; did you mean quire://{place[1]}?"
        raise ConfigError(reason, key="url")
    if not parts.hostname:
        raise ConfigError(f"{shown} names no host, as quire://127.0.0.1:{DEFAULT_PORT} does", key="url")
    check_unicode(parts.hostname, "url")
    if parts.password is not None:
        reason = f"{shown} has a password, which would be shown in logs: use the argument `password`, or $QUIRE_PASSWORD"
        raise ConfigError(reason, key="url")
    if parts.path not in ("", "/") or parts.query or parts.fragment or parts.username == "":
        raise ConfigError(f"{shown} has more than a user, a host and a port", key="url")
    port = DEFAULT_PORT if port is None else port
    return SecuredHost(parts.hostname, port) if parts.scheme == "quires" else (parts.hostname, port)


def is_loopback(host: str) -> bool:
    """Whether only programs of this machine see what is sent to the host."""
    from ipaddress import ip_address

    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
