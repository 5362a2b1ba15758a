"""The users of a server: their file, and the check of a password.

A password is stored as its argon2id hash. The check takes tens of milliseconds and much memory on
purpose, so it runs on separate threads, a few at a time, and only logons wait for it.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import tempfile
import threading
import tomllib
import unicodedata
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from quire._errors import ConfigError
from quire.config import Config
from quire.config._authentication import Authentication
from quire.config._locate import line_of
from quire.server._tls import mark_of

#: A name has at most this number of bytes.
NAME_SIZE_MAX: Final = 255
#: A password has from and up to this number of bytes.
PASSWORD_SIZE_MIN: Final = 8
PASSWORD_SIZE_MAX: Final = 1024
#: The most memory of a hash, in KiB: 1 GiB.
_MEMORY_MAX: Final = 1 << 20
#: The user of every connection of a server without authentication. No other user has this name.
ANONYMOUS: Final = "anonymous"
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
        """Replaces a file at once. Only its owner may read it."""
        text = "# Users of a quire server. `quire user add`, `passwd` and `remove` write this file anew.\n"
        for user in self.by_name.values():
            text += f"\n[[user]]\nname = {_toml(user.name)}\n"
            if user.password is not None:
                text += f"password = {_toml(user.password)}\n"
            if user.groups:
                text += f"groups = [{', '.join(map(_toml, user.groups))}]\n"
            if user.disabled:
                text += "disabled = true\n"
        # A temporary file is readable by its owner only.
        number, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(number, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(number)
            os.replace(name, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds the lock of a file of users, so that two commands do not overwrite each other's change."""
    import fcntl

    # The file itself is replaced, so its directory is locked.
    number = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(number, fcntl.LOCK_EX)
        yield
    finally:
        os.close(number)


def _toml(text: str) -> str:
    """A basic string: JSON escapes are those of TOML, except for DEL, which TOML does not allow."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007F")


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
    argon2 = _argon2()
    try:
        parameters = argon2.extract_parameters(password)
    except argon2.exceptions.InvalidHash:
        parameters = None
    if parameters is None or parameters.type is not argon2.Type.ID:
        raise ConfigError(
            "expected the argon2id hash of a password, as `quire user passwd` writes it", key="password"
        )
    if parameters.memory_cost > _MEMORY_MAX:
        raise ConfigError("the hash requires more than 1 GiB of memory", key="password")


def hash_of(password: str, *, memory: int = _MEMORY, passes: int = _PASSES) -> str:
    """Returns the hash of a password. Raises `ConfigError` for one that is too short or too long.

    `memory`: of a check, in KiB. `passes`: over this memory.
    """
    text = normal(password)
    if text is None:
        reason = f"expected {PASSWORD_SIZE_MIN} to {PASSWORD_SIZE_MAX} bytes"
        raise ConfigError(reason, key="password")
    argon2 = _argon2()
    hasher = argon2.PasswordHasher(time_cost=passes, memory_cost=memory, parallelism=_LANES)
    return str(hasher.hash(text))


def _argon2() -> Any:
    try:
        import argon2
    except ModuleNotFoundError:
        reason = "users require argon2-cffi: pip install 'quire-mq[auth]'"
        raise ConfigError(reason, key="authentication.method") from None
    return argon2


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
        argon2 = _argon2()
        user = self.users.by_name.get(name or "")
        text = None if password is None else normal(password)
        if name is None or password is None:
            reason = "no user" if name is None else "no password"
        elif user is None:
            reason = "unknown user"
        elif user.disabled:
            reason = "disabled user"
        elif user.password is None:
            reason = "the user has no password"
        else:
            reason = "wrong password"
        if password is not None and len(password.encode("utf-8", "surrogatepass")) > PASSWORD_SIZE_MAX:
            # Before hashing: a long text would be hashed for longer.
            return "the password is too long"
        compared = self._dummy if reason != "wrong password" or user is None else user.password
        try:
            argon2.PasswordHasher().verify(compared, text or "")
        except argon2.exceptions.VerificationError:
            return reason
        return None if reason == "wrong password" and text is not None else reason

    @cached_property
    def _dummy(self) -> str:
        """A hash of no password, as expensive as the most expensive one."""
        argon2 = _argon2()
        costs = [
            argon2.extract_parameters(user.password)
            for user in self.users.by_name.values()
            if user.password is not None
        ]
        dearest = max(costs, key=lambda each: each.memory_cost * each.time_cost, default=None)
        memory, passes, lanes = (_MEMORY, _PASSES, _LANES)
        if dearest is not None:
            memory, passes, lanes = dearest.memory_cost, dearest.time_cost, dearest.parallelism
        hasher = argon2.PasswordHasher(time_cost=passes, memory_cost=memory, parallelism=lanes)
        return str(hasher.hash(os.urandom(32)))


#: Seconds in which the failures of an address are counted, and the number of them that delays the
#: next ones.
_FAILURES_WINDOW: Final = 10.0
_FAILURES_MAX: Final = 5
#: Seconds after which a refusal is answered then.
_REFUSED_DELAY: Final = 1.0
#: Addresses whose failures are kept. The oldest one is forgotten.
_ADDRESSES_MAX: Final = 10_000


class Failures:
    """The failed logons of each address, so that guesses are slow. It never delays a right password."""

    def __init__(self) -> None:
        self._times: dict[str, deque[float]] = {}

    def note(self, address: str, now: float) -> float:
        """Counts a failure, and returns the seconds after which it is answered."""
        times = self._times.pop(address, None)
        if times is None:
            times = deque(maxlen=_FAILURES_MAX)
            if len(self._times) >= _ADDRESSES_MAX:
                del self._times[next(iter(self._times))]
        # The last entry is the latest one.
        self._times[address] = times
        is_many = len(times) == _FAILURES_MAX and now - times[0] < _FAILURES_WINDOW
        times.append(now)
        return _REFUSED_DELAY if is_many else 0.0


class Guard:
    """The users of one transport. It follows their file."""

    #: The text that a client receives for every reason.
    REFUSED: Final = "user or password are not accepted"

    def __init__(self, settings: Authentication) -> None:
        assert settings.users_file is not None
        self.path: Path = settings.users_file
        self._seen = mark_of(self.path)
        self._verifier = _prepared(self.path)
        self._threads = ThreadPoolExecutor(
            settings.max_hashing, thread_name_prefix="quire-logon", initializer=_in_the_background
        )
        self._failures = Failures()

    @property
    def users(self) -> Users:
        """The current users."""
        return self._verifier.users

    def check(self, user: str | None, password: str | None) -> Future[str | None]:
        """Begins a check on another thread. The result is the reason for a refusal, or `None`."""
        return self._threads.submit(self._verifier.check, user, password)

    def delay_of(self, address: str, now: float) -> float:
        """Counts a failed logon from an address. Returns the seconds after which it is answered."""
        return self._failures.note(address, now)

    def changed(self) -> Future[Verifier] | None:
        """Begins to read the file when it has changed. Pass the result to `use`."""
        mark = mark_of(self.path)
        if mark == self._seen:
            return None
        self._seen = mark
        return self._threads.submit(_prepared, self.path)

    def use(self, verifier: Verifier) -> set[str]:
        """Uses the users of a file that has changed. Returns those whose connections must end."""
        before, after = self._verifier.users.by_name, verifier.users.by_name
        self._verifier = verifier
        return {name for name, user in before.items() if after.get(name) != user}

    def close(self) -> None:
        """Begins no further check."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def _prepared(path: Path) -> Verifier:
    verifier = Verifier(Users.load(path))
    verifier.prepare()
    return verifier


def _in_the_background() -> None:
    """Lets the calling thread give way to the event loop, where the system can do so for one thread."""
    with contextlib.suppress(AttributeError, OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)


def mistakes_of_users(config: Config) -> list[tuple[str, str]]:
    """Returns the keys of files of users that cannot be used, with the reasons."""
    found = []
    tables = [("authentication", config.authentication)]
    tables += [
        (f"transport[{number}].authentication", transport.authentication)
        for number, transport in enumerate(config.transport)
        if transport.authentication is not None
    ]
    for key, authentication in tables:
        if authentication.users_file is not None:
            try:
                Users.load(authentication.users_file)
            except ConfigError as error:
                found.append((f"{key}.users_file", str(error)))
    return found
