"""Logons that an HTTP service decides about: one POST for each logon that is not in the cache.

The service is a part of the trust of the server, its network is not: only one form of answer accepts
a logon, and every other one is "unavailable". An answer that is late, too long or of another form is
never read as an acceptance. Redirects are not followed, and proxies of the environment are not used.
"""

from __future__ import annotations

import hashlib
import http.client
import io
import json
import math
import os
import re
import socket
import ssl
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

from quire._errors import ConfigError
from quire.config._authentication import Authentication
from quire.server._identity import Checker, Given, Identity, Refused, Selects, every, is_name

#: The most bytes of an answer.
ANSWER_SIZE_MAX: Final = 64 * 1024
#: Acceptances that are kept. The oldest one is forgotten.
CACHE_SIZE_MAX: Final = 10_000
#: The text for a client when the service cannot be asked.
UNAVAILABLE: Final = "the logon cannot be checked now"

_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", re.ASCII)
#: Headers that the request has already.
_OWN_HEADERS: Final = ("connection", "content-length", "content-type", "host", "transfer-encoding")


class HttpUsers(Checker):
    """Asks an HTTP service about each logon."""

    def __init__(self, settings: Authentication, clock: Callable[[], float] = time.time) -> None:
        assert settings.url is not None
        self._url = urlsplit(settings.url)
        self._timeout = settings.timeout
        self._context = _context_of(settings) if self._url.scheme == "https" else None
        self._headers = {} if settings.headers_file is None else _headers_of(settings.headers_file)
        self._cache = _Cache(settings.cache)
        self._clock = clock

    def forget(self, selects: Selects = every) -> None:
        """Asks the service about each following logon of these users."""
        self._cache.forget(selects)

    def check(self, given: Given) -> Identity | Refused:
        """Decides about a logon."""
        if (given.password is None) == (given.token is None):
            return Refused("no password and no token" if given.token is None else "a password and a token")
        known, round_number = self._cache.find(given)
        if known is not None:
            return known
        asked_at = self._clock()
        try:
            result = self._result(given, self._answer(given), asked_at)
        except _Unavailable as error:
            return Refused(f"the service cannot be used: {error}", UNAVAILABLE, is_unavailable=True)
        if isinstance(result, Identity):
            lifetime = math.inf if result.expires is None else result.expires - self._clock()
            self._cache.keep(given, result, lifetime, round_number)
        return result

    def _answer(self, given: Given) -> dict[str, Any] | None:
        """The object that the service answers with; `None`: it refuses the logon by its status."""
        values = {
            "user": given.user,
            "password": given.password,
            "token": given.token,
            "client": given.client,
            "address": given.address,
            "transport": given.transport,
            "instance": given.instance,
        }
        body = json.dumps({name: value for name, value in values.items() if value is not None}).encode()
        connection = _Connection(self._url, self._context, self._timeout)
        try:
            headers = {**self._headers, "Content-Type": "application/json", "Connection": "close"}
            connection.request("POST", _target(self._url), body, headers)
            response = connection.getresponse()
            if response.status in (401, 403):
                return None
            if response.status != 200:
                raise _Unavailable(f"it answered with the status {response.status}")
            data = response.read(ANSWER_SIZE_MAX + 1)
            connection.check_time()
            if len(data) <= ANSWER_SIZE_MAX and response.length:
                raise _Unavailable("its answer is not complete")
        except ssl.SSLCertVerificationError as error:
            raise _Unavailable(f"its certificate is not accepted: {error.verify_message}") from None
        except TimeoutError:
            raise _Unavailable(f"no answer within {self._timeout:g} s") from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            # The text of an exception of `http.client` may have a part of the answer.
            text = error.strerror if isinstance(error, OSError) else None
            raise _Unavailable(text or type(error).__name__) from None
        finally:
            connection.end()
        if len(data) > ANSWER_SIZE_MAX:
            raise _Unavailable(f"its answer has more than {ANSWER_SIZE_MAX:,} bytes")
        return _object(data)

    def _result(self, given: Given, answer: dict[str, Any] | None, now: float) -> Identity | Refused:
        if answer is None or answer.get("allow") is False:
            return Refused("the service does not accept it")
        if answer.get("allow") is not True:
            raise _Unavailable("allow is neither true nor false in its answer")
        user = answer.get("user", given.user)
        if user is None or not is_name(user):
            raise _Unavailable("its answer has no name of a user")
        groups = answer.get("groups", [])
        if not isinstance(groups, list) or not all(map(is_name, groups)):
            raise _Unavailable("groups in its answer is not a list of names")
        lifetime = answer.get("expires_in", math.inf)
        if isinstance(lifetime, bool) or not isinstance(lifetime, int | float) or not lifetime > 0:
            raise _Unavailable("expires_in in its answer is not a number of seconds above 0")
        if given.user not in (None, user):
            return Refused("the answer of the service is about another user")
        try:
            expires = now + lifetime
        except OverflowError:
            expires = math.inf
        return Identity(user, tuple(groups), expires=expires if math.isfinite(expires) else None)


class _Unavailable(Exception):
    """The service does not answer as expected. The text is for the log, and has no part of the answer."""


def _object(data: bytes) -> dict[str, Any]:
    """The object of an answer, without doubled names and numbers that JSON does not have."""

    def members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise ValueError
        return found

    def constant(_: str) -> None:
        raise ValueError

    try:
        answer = json.loads(data.decode(), object_pairs_hook=members, parse_constant=constant)
    except (ValueError, RecursionError):
        raise _Unavailable("its answer is not JSON") from None
    if not isinstance(answer, dict):
        raise _Unavailable("its answer is not a JSON object")
    return answer


def _target(url: SplitResult) -> str:
    return (url.path or "/") + (f"?{url.query}" if url.query else "")


def _context_of(settings: Authentication) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=settings.ca)
    except (OSError, ssl.SSLError) as error:
        reason = getattr(error, "strerror", None) or "no certificates in PEM form"
        raise ConfigError(f"{settings.ca}: {reason}", key="authentication.ca") from None


def _headers_of(path: Path) -> dict[str, str]:
    """The headers of a file, one a line. Raises `ConfigError`, which does not repeat a value: it may be a secret."""
    key = "authentication.headers_file"
    try:
        if os.stat(path).st_mode & (stat.S_IROTH | stat.S_IWOTH):
            raise ConfigError(f"every user of this machine may read it: run `chmod o= {path}`", key=key)
        lines = path.read_text(encoding="latin-1").splitlines()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}", key=key) from None
    found: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        name, colon, value = line.partition(":")
        value = value.strip()
        if not colon or not _HEADER_NAME.fullmatch(name) or not all(c == "\t" or c >= " " for c in value):
            raise ConfigError(f"{path}:{number}: expected `Name: value`", key=key)
        if name.lower() in _OWN_HEADERS or name.lower() in map(str.lower, found):
            raise ConfigError(f"{path}:{number}: the request already has the header {name}", key=key)
        found[name] = value
    return found


class _Connection(http.client.HTTPConnection):
    """A connection whose whole exchange has one time limit."""

    def __init__(self, url: SplitResult, context: ssl.SSLContext | None, timeout: float) -> None:
        assert url.hostname is not None
        super().__init__(url.hostname, url.port or (80 if context is None else 443))
        self._context = context
        self._end = time.monotonic() + timeout
        self._socket: socket.socket | None = None

    def check_time(self) -> float:
        """The seconds that are left. Raises `TimeoutError` when there are none."""
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left

    def connect(self) -> None:
        self._socket = _connected(self.host, self.port, self.check_time)
        self._socket.settimeout(self.check_time())
        if self._context is not None:
            self._socket = self._context.wrap_socket(self._socket, server_hostname=self.host)
        # A socket has a time limit for each read, and a slow answer can have many of them.
        self.sock = _Limited(self._socket, self.check_time)

    def end(self) -> None:
        """Closes the socket."""
        if self._socket is not None:
            self._socket.close()


def _connected(host: str, port: int, left: Callable[[], float]) -> socket.socket:
    last: OSError | None = None
    for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        found = socket.socket(family, kind, protocol)
        try:
            found.settimeout(left())
            found.connect(address)
        except OSError as error:
            found.close()
            last = error
        else:
            return found
    raise last or OSError("the name has no address")


class _Limited:
    """A socket as `http.client` uses it, with the time limit of the exchange before each call."""

    def __init__(self, sock: socket.socket, left: Callable[[], float]) -> None:
        self._sock = sock
        self._left = left

    def sendall(self, data: bytes) -> None:
        self._sock.settimeout(self._left())
        self._sock.sendall(data)

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(_Reading(self._sock, self._left))

    def close(self) -> None:
        """`http.client` closes it before it has read the answer. The exchange closes the socket."""


class _Reading(io.RawIOBase):
    """The reading side of a socket."""

    def __init__(self, sock: socket.socket, left: Callable[[], float]) -> None:
        self._sock = sock
        self._left = left

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._sock.settimeout(self._left())
        return self._sock.recv_into(buffer)


class _Cache:
    """The acceptances of a time, by user and secret. It has no secret, only a salted hash."""

    def __init__(self, lifetime: float) -> None:
        self._lifetime = lifetime
        self._salt = os.urandom(32)
        self._lock = threading.Lock()
        #: When each acceptance ends, oldest first.
        self._found: dict[bytes, tuple[float, Identity]] = {}
        #: The number of times that users were forgotten. An answer to an earlier question is not
        #: kept.
        self._round = 0

    def find(self, given: Given) -> tuple[Identity | None, int]:
        """Returns the acceptance of a logon, and the argument `round_number` of `keep`."""
        key = self._key(given)
        with self._lock:
            end, identity = self._found.get(key, (0.0, None))
            if identity is not None and end <= time.monotonic():
                del self._found[key]
                identity = None
            return identity, self._round

    def keep(self, given: Given, identity: Identity, lifetime: float, round_number: int) -> None:
        """Keeps an acceptance for `lifetime` seconds at most."""
        lifetime = min(lifetime, self._lifetime)
        if lifetime <= 0:
            return
        key = self._key(given)
        with self._lock:
            if round_number != self._round:
                return
            self._found.pop(key, None)
            if len(self._found) >= CACHE_SIZE_MAX:
                del self._found[next(iter(self._found))]
            self._found[key] = time.monotonic() + lifetime, identity

    def forget(self, selects: Selects) -> None:
        with self._lock:
            self._found = {key: found for key, found in self._found.items() if not selects(found[1].user)}
            self._round += 1

    def _key(self, given: Given) -> bytes:
        values = json.dumps([given.user, given.password, given.token]).encode()
        return hashlib.blake2b(values, key=self._salt).digest()
