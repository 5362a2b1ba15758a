"""Where a client gets its user, and its password or token: arguments, the URL, the environment, or a netrc file."""

from __future__ import annotations

import os
import stat
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from quire._errors import ConfigError

USER_VARIABLE: Final = "QUIRE_USER"
PASSWORD_VARIABLE: Final = "QUIRE_PASSWORD"
TOKEN_VARIABLE: Final = "QUIRE_TOKEN"
NETRC_VARIABLE: Final = "QUIRE_NETRC"


#: A password or a token, or a function that returns it for each connection. An asyncio client also
#: takes a coroutine function.
Secret = str | Callable[[], str] | Callable[[], Awaitable[str]]


@dataclass(frozen=True)
class Credentials:
    """The identity of a client, which has a password or a token at most."""

    user: str | None = None
    password: Secret | None = field(default=None, repr=False)
    token: Secret | None = field(default=None, repr=False)

    @property
    def secret(self) -> tuple[str, Secret] | None:
        """The name of the argument for the password or the token, and its value."""
        if self.password is not None:
            return "password", self.password
        return None if self.token is None else ("token", self.token)

    def __getstate__(self) -> dict[str, Any]:
        if self.secret is not None:
            raise TypeError("a password or a token cannot be pickled: it would be in the result")
        return dict(self.__dict__)


def credentials_of(given: Credentials, users: Sequence[str], hosts: Sequence[str]) -> Credentials:
    """Returns the identity of the arguments, or else that of the URLs, the environment or the netrc file.

    `users`: those in the URLs. `hosts`: the servers, of which the first one that the netrc file has counts.

    Raises `ConfigError` for URLs with different users, for a password and a token together, and for a netrc file
    that cannot be used.
    """
    if len(set(users)) > 1:
        names = ", ".join(map(repr, sorted(set(users))))
        raise ConfigError(f"the URLs name different users: {names}", key="url")
    of_url = users[0] if users else None
    if given != Credentials():
        return replace(given, user=of_url) if given.user is None else given
    # A variable without a text counts as not set.
    of_variable = os.environ.get(USER_VARIABLE) or None
    user = of_variable if of_url is None else of_url
    password, token = (os.environ.get(name) or None for name in (PASSWORD_VARIABLE, TOKEN_VARIABLE))
    if user in (None, of_variable or user) and (password is not None or token is not None):
        if password is not None and token is not None:
            reason = f"${PASSWORD_VARIABLE} and ${TOKEN_VARIABLE} are both set: unset one of them"
            raise ConfigError(reason, key="token")
        return Credentials(user, password, token)
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
