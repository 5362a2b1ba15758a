"""The users of a server: their file, and the check of a password.

A password is stored as its argon2id hash. The check takes tens of milliseconds and much memory on
purpose, so it runs on separate threads, a few at a time, and only logons wait for it.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tomllib
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from quire._errors import ConfigError
from quire._quire import check_password, hash_password, password_cost
from quire._text_files import basic_string, replace_text
from quire.config._authentication import Authentication
from quire.config._locate import line_of
from quire.server._identity import Checker, Given, Identity, Refused, check_name

#: A password has from and up to this number of bytes.
PASSWORD_SIZE_MIN: Final = 8
PASSWORD_SIZE_MAX: Final = 1024
#: The most memory of a hash, in KiB: 1 GiB.
_MEMORY_MAX: Final = 1 << 20
#: The cost of new hashes: 64 MiB, three passes, one thread.
_MEMORY, _PASSES, _LANES = 1 << 16, 3, 1

_KEYS: Final = ("name", "password", "groups", "disabled")


@dataclass(frozen=True)
class User:
    """An entry of the file."""

    name: str
    #: The argon2id hash of the password, as a PHC string; `None`: the user has none.
    password: str | None = None
    groups: tuple[str, ...] = ()
    disabled: bool = False

    def __repr__(self) -> str:
        return f"User({self.name!r}, groups={self.groups!r}, disabled={self.disabled})"


class Users:
    """The users of a file, as it is now."""

    def __init__(self, users: Iterable[User]) -> None:
        self.by_name: dict[str, User] = {user.name: user for user in users}

    @classmethod
    def load(cls, path: Path) -> Users:
        """Reads a file. Raises `ConfigError` with its line for a mistake, also when others may read the file."""
        try:
            if os.stat(path).st_mode & (stat.S_IROTH | stat.S_IWOTH):
                raise ConfigError(f"every user of this machine may read it: run `chmod o= {path}`", file=path)
            text = path.read_text(encoding="utf-8")
            entries = tomllib.loads(text)
        except OSError as error:
            hint = "; `quire user add` makes it" if isinstance(error, FileNotFoundError) else ""
            raise ConfigError(f"{error.strerror or error}{hint}", file=path) from None
        except UnicodeDecodeError as error:
            raise ConfigError(f"not UTF-8: {error.reason} at byte {error.start}", file=path) from None
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(f"not TOML: {error}", file=path) from None
        users = entries.pop("user", [])
        if entries or not isinstance(users, list) or not all(isinstance(each, dict) for each in users):
            key = next(iter(entries), "user")
            raise ConfigError("expected only [[user]] tables", key=key, file=path)
        found: dict[str, User] = {}
        for number, entry in enumerate(users):
            key, reason = "user", ""
            try:
                user = _user_of(entry)
                if user.name in found:
                    raise ConfigError(f"{user.name!r} is there twice", key="name")
                found[user.name] = user
            except ConfigError as error:
                key, reason = error.key or "user", error._reason
            if reason:
                line = line_of(text, ("user", number, key))
                raise ConfigError(reason, key=f"user[{number}].{key}", file=path, line=line)
        return cls(found.values())

    def save(self, path: Path) -> None:
        """Replaces a file at once. It keeps its owner, and only the owner may read it."""
        text = "# Users of a quire server. `quire user add`, `passwd` and `remove` write this file anew.\n"
        for user in self.by_name.values():
            text += f"\n[[user]]\nname = {basic_string(user.name)}\n"
            if user.password is not None:
                text += f"password = {basic_string(user.password)}\n"
            if user.groups:
                text += f"groups = [{', '.join(map(basic_string, user.groups))}]\n"
            if user.disabled:
                text += "disabled = true\n"
        replace_text(path, text)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds the lock of a file of users, so that two commands do not overwrite each other's change."""
    import fcntl

    # The file itself is replaced, so its directory is locked.
    number = os.open(os.path.dirname(os.path.realpath(path)), os.O_RDONLY)
    try:
        fcntl.flock(number, fcntl.LOCK_EX)
        yield
    finally:
        os.close(number)


def _user_of(entry: dict[str, Any]) -> User:
    for key in entry:
        if key not in _KEYS:
            raise ConfigError(f"unknown key; expected {', '.join(_KEYS)}", key=key)
    name = check_name(entry.get("name"))
    password = entry.get("password")
    if password is not None:
        check_hash(password)
    groups = entry.get("groups", [])
    if isinstance(groups, str):
        groups = [groups]
    if not isinstance(groups, list):
        raise ConfigError("expected a list of names", key="groups")
    disabled = entry.get("disabled", False)
    if not isinstance(disabled, bool):
        raise ConfigError("expected true or false", key="disabled")
    return User(name, password, tuple(check_name(group, "groups") for group in groups), disabled)


def normal(password: str) -> str | None:
    """Returns a password in the form that is hashed; `None`: no user has such a password."""
    try:
        text = unicodedata.normalize("NFC", password)
        size = len(text.encode())
    except UnicodeEncodeError:
        return None
    return text if PASSWORD_SIZE_MIN <= size <= PASSWORD_SIZE_MAX else None


def check_hash(password: object) -> None:
    """Raises `ConfigError` for text that is not the hash of a password. The error does not repeat the text."""
    if not isinstance(password, str):
        raise ConfigError(
            "expected the argon2id hash of a password, as `quire user passwd` writes it", key="password"
        )
    try:
        memory, _, _ = password_cost(password)
    except ValueError:
        raise ConfigError(
            "expected the argon2id hash of a password, as `quire user passwd` writes it", key="password"
        ) from None
    if memory > _MEMORY_MAX:
        raise ConfigError("the hash requires more than 1 GiB of memory", key="password")


def hash_of(password: str, *, memory: int = _MEMORY, passes: int = _PASSES) -> str:
    """Returns the hash of a password. Raises `ConfigError` for one that is too short or too long.

    `memory`: of a check, in KiB. `passes`: over this memory.
    """
    text = normal(password)
    if text is None:
        reason = f"expected {PASSWORD_SIZE_MIN} to {PASSWORD_SIZE_MAX} bytes"
        raise ConfigError(reason, key="password")
    return hash_password(text.encode(), memory, passes, _LANES)


class Verifier:
    """Checks passwords against the users of a file. `check` may run on any thread."""

    def __init__(self, users: Users) -> None:
        self.users = users

    def prepare(self) -> None:
        """Computes what each check of an unknown user needs, so that the first one takes no longer."""
        if self.users.by_name:
            _ = self._dummy

    def check(self, name: str | None, password: str | None) -> str | None:
        """Returns why a logon is refused; `None`: it is accepted.

        An unknown user, and one that may not log on, takes as long as the most expensive hash of the file.
        """
        user = self.users.by_name.get(name or "")
        text = None if password is None else normal(password)
        compared = self._dummy
        if name is None or password is None:
            reason = "no user" if name is None else "no password"
        elif user is None:
            reason = "unknown user"
        elif user.disabled:
            reason = "disabled user"
        elif user.password is None:
            reason = "the user has no password"
        else:
            reason, compared = "wrong password", user.password
        if password is not None and len(password.encode("utf-8", "surrogatepass")) > PASSWORD_SIZE_MAX:
            # Before hashing: a long text would be hashed for longer.
            return "the password is too long"
        if not check_password(compared, (text or "").encode()):
            return reason
        return None if reason == "wrong password" and text is not None else reason

    @cached_property
    def _dummy(self) -> str:
        """A hash of no password, as expensive as the most expensive one."""
        costs = [
            password_cost(user.password) for user in self.users.by_name.values() if user.password is not None
        ]
        default = (_MEMORY, _PASSES, _LANES)
        memory, passes, lanes = max(costs, key=lambda cost: cost[0] * cost[1], default=default)
        return hash_password(os.urandom(32), memory, passes, lanes)


class Passwords(Checker):
    """Checks logons with a name and a password."""

    def __init__(self, settings: Authentication) -> None:
        assert settings.users_file is not None
        self._verifier = Verifier(Users.load(settings.users_file))

    def prepare(self) -> None:
        """Computes the hash that each check of an unknown user needs."""
        self._verifier.prepare()

    def check(self, given: Given) -> Identity | Refused:
        """Decides about a logon."""
        reason = self._verifier.check(given.user, given.password)
        if reason is not None:
            return Refused(reason)
        assert given.user is not None
        user = self._verifier.users.by_name[given.user]
        return Identity(user.name, user.groups, entry=user)

    def still(self, identity: Identity) -> bool:
        """Whether the entry of the user is as it was."""
        return self._verifier.users.by_name.get(identity.user) == identity.entry
