"""Where a client gets its user and its password: arguments, the URL, the environment, or a netrc file."""

from __future__ import annotations

import os
import stat
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from quire._errors import ConfigError

USER_VARIABLE: Final = "QUIRE_USER"
PASSWORD_VARIABLE: Final = "QUIRE_PASSWORD"
NETRC_VARIABLE: Final = "QUIRE_NETRC"


#: A password, or a function that returns it for each connection. An asyncio client also takes a
#: coroutine function.
Password = str | Callable[[], str] | Callable[[], Awaitable[str]]


@dataclass(frozen=True)
class Credentials:
    """The identity of a client."""

    user: str | None = None
    password: Password | None = field(default=None, repr=False)


def credentials_of(
    user: str | None, password: Password | None, users: Sequence[str], hosts: Sequence[str]
) -> Credentials:
    """Returns the identity of the arguments, or else that of the URLs, the environment or the netrc file.

    `users`: those in the URLs. `hosts`: the servers, of which the first one that the netrc file has counts.

    Raises `ConfigError` for URLs with different users, and for a netrc file that cannot be used.
    """
    if len(set(users)) > 1:
        names = ", ".join(map(repr, sorted(set(users))))
        raise ConfigError(f"the URLs name different users: {names}", key="url")
    of_url = users[0] if users else None
    if user is not None or password is not None:
        return Credentials(of_url if user is None else user, password)
    of_variable = os.environ.get(USER_VARIABLE)
    user = of_variable if of_url is None else of_url
    if PASSWORD_VARIABLE in os.environ and user in (None, of_variable or user):
        return Credentials(user, os.environ[PASSWORD_VARIABLE])
    if hosts and (path := os.environ.get(NETRC_VARIABLE)):
        return _of_netrc(path, user, hosts)
    return Credentials(user)


def _of_netrc(path: str, user: str | None, hosts: Sequence[str]) -> Credentials:
    import netrc

    key = f"${NETRC_VARIABLE}"
    try:
        if os.stat(path).st_mode & (stat.S_IROTH | stat.S_IWOTH):
            raise ConfigError(f"every user of this machine may read {path}: run `chmod o= {path}`", key=key)
        entries = netrc.netrc(path)
    except netrc.NetrcParseError as error:
        raise ConfigError(f"{path}:{error.lineno}: {error.msg}", key=key) from None
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}", key=key) from None
    for host in hosts:
        if (found := entries.authenticators(host)) is not None:
            login, _, password = found
            if user in (None, login):
                return Credentials(login, password)
    return Credentials(user)
