"""The guard of a transport: it checks logons by the method of the configuration, and follows the files of the method."""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from quire._errors import ConfigError
from quire.config import Config
from quire.config._authentication import Authentication
from quire.server._identity import Checker, Given, Identity, Refused, Selects, every
from quire.server._tls import mark_of

#: Logons about which a service is asked at the same time. The threads only wait.
_ASKING_MAX: Final = 16

#: The text that a client receives for every reason.
_REFUSED: Final = {
    "users": "user or password are not accepted",
    "token": "user or token are not accepted",
    "certificate": "the user of the certificate is not accepted",
    "http": "user, password or token are not accepted",
}


def checker_of(settings: Authentication) -> Checker:
    """Reads the files of a method. Raises `ConfigError` when they cannot be used."""
    match settings.method:
        case "token":
            from quire.server._tokens import Tokens

            return Tokens(settings)
        case "certificate":
            from quire.server._certificate_users import CertificateUsers

            return CertificateUsers(settings)
        case "http":
            from quire.server._http_users import HttpUsers

            return HttpUsers(settings)
        case _:
            from quire.server._users import Passwords

            return Passwords(settings)


def _prepared(settings: Authentication) -> Checker:
    checker = checker_of(settings)
    checker.prepare()
    return checker


@dataclass(frozen=True)
class Check:
    """A logon to be checked."""

    given: Given
    result: Future[Identity | Refused] = field(default_factory=Future)


class Guard:
    """Checks the logons of the transports with one table of authentication."""

    def __init__(self, settings: Authentication) -> None:
        self.settings = settings
        #: The text that a client receives for every reason.
        self.refused: str = _REFUSED[settings.method]
        self._seen = self._marks()
        self._checker = _prepared(settings)
        thread_count = _ASKING_MAX if settings.method == "http" else settings.max_hashing
        self._threads = ThreadPoolExecutor(thread_count, thread_name_prefix="quire-logon")
        self._checks = Checks()
        self._failures = Failures()

    @property
    def files(self) -> str:
        """The files that it follows, for the log."""
        return ", ".join(map(str, self._paths()))

    def check(self, given: Given) -> Future[Identity | Refused]:
        """Begins a check on another thread. Addresses take turns, so that one which sends many
        logons delays only its own."""
        check = Check(given)
        self._checks.add(check)
        self._threads.submit(self._check_next)
        return check.result

    def _check_next(self) -> None:
        check = self._checks.take()
        if check is None or not check.result.set_running_or_notify_cancel():
            return
        try:
            result = self._checker.check(check.given)
        except BaseException as error:
            check.result.set_exception(error)
        else:
            check.result.set_result(result)

    def still(self, identity: Identity) -> bool:
        """Whether the connection of a user that was accepted may stay, by the files as they are now."""
        return self._checker.still(identity)

    def delay_of(self, address: str, now: float) -> float:
        """Counts a failed logon from an address. Returns the seconds after which it is answered."""
        return self._failures.note(host_of(address), now)

    def changed(self) -> Future[Checker] | None:
        """Begins to read the files when they have changed. Pass the result to `use`."""
        marks = self._marks()
        if marks == self._seen:
            return None
        self._seen = marks
        return self._threads.submit(_prepared, self.settings)

    def use(self, checker: Checker) -> None:
        """Uses files that have changed. Ask `still` about each connection afterwards."""
        self._checker = checker

    def forget(self, selects: Selects = every) -> None:
        """Keeps no result of a check of these users any longer."""
        self._checker.forget(selects)

    def close(self) -> None:
        """Begins no further check."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._checks.cancel()

    def _paths(self) -> list[Path]:
        return [value for _, value in self.settings if isinstance(value, Path)]

    def _marks(self) -> list[tuple[int, int, int] | None]:
        return [mark_of(path) for path in self._paths()]


def host_of(address: str) -> str:
    """The address without its port."""
    return address.rpartition(":")[0]


class Checks:
    """Checks that wait for a thread. Each method may be called on any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: By address. The one whose turn it is comes first, and each has checks.
        self._waiting: dict[str, deque[Check]] = {}

    def add(self, check: Check) -> None:
        """Adds a check. The checks of its address come first."""
        with self._lock:
            self._waiting.setdefault(host_of(check.given.address), deque()).append(check)

    def take(self) -> Check | None:
        """Removes the next check."""
        with self._lock:
            address = next(iter(self._waiting), None)
            if address is None:
                return None
            checks = self._waiting.pop(address)
            check = checks.popleft()
            if checks:
                self._waiting[address] = checks
            return check

    def cancel(self) -> None:
        """Removes all checks."""
        while (check := self.take()) is not None:
            check.result.cancel()


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


#: The key of the file of each method.
_FILE_KEYS: Final = {"users": "users_file", "token": "keys", "certificate": "users_file"}


def mistakes_of_logons(config: Config) -> list[tuple[str, str]]:
    """Returns the keys of authentication that cannot be used, with the reasons."""
    found: list[tuple[str, str]] = []
    tables = [("authentication", config.authentication)]
    tables += [
        (f"transport[{number}].authentication", transport.authentication)
        for number, transport in enumerate(config.transport)
        if transport.authentication is not None
    ]
    if config.replication.authentication is not None:
        tables.append(("replication.authentication", config.replication.authentication))
    if config.admin is not None and config.admin.authentication is not None:
        tables.append(("admin.authentication", config.admin.authentication))
    for place, settings in tables:
        if settings.method == "none":
            continue
        try:
            checker_of(settings)
        except ConfigError as error:
            found.append(_mistake(place, settings, error))
    return found


def _mistake(place: str, settings: Authentication, error: ConfigError) -> tuple[str, str]:
    if error.key is not None and error.file is None:
        return f"{place}.{error.key.removeprefix('authentication.')}", error._reason
    # A mistake in a file is one of the key that names the file.
    return f"{place}.{_FILE_KEYS[settings.method]}", str(error)
