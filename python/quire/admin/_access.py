"""The user of a request, and its rights. The checks are those of the transports (docs/security.md)."""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import hashlib
import json
import logging
import secrets
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from quire._errors import ConfigError
from quire._quire import explain_entitlement
from quire.admin._errors import HTTPError
from quire.config import Config
from quire.server._guard import Guard
from quire.server._identity import ANONYMOUS, Given, Identity, Refused, Selects, every
from quire.server._log import line
from quire.server._logons import pairs

_log = logging.getLogger("quire.server")

#: Accepted credentials are kept for this time in seconds, and this many of them.
_KEPT_TIME: Final = 60.0
_KEPT_MAX: Final = 1000
#: Decisions that are kept.
_DECISIONS_MAX: Final = 10_000


class Access:
    """Checks credentials, and decides about rights."""

    def __init__(self, config: Callable[[], Config]) -> None:
        """`config`: returns the configuration as it is now."""
        self._config = config
        self._guard: Guard | None = None
        self._guard = self.guard_after(config())
        #: By a hash of the credentials, so that they are not kept: the identity, and until when.
        self._kept: dict[bytes, tuple[Identity, float]] = {}
        self._salt = secrets.token_bytes(32)
        #: The configuration that the decisions follow.
        self._decided_by: Config | None = None
        self._decisions: dict[tuple[str, tuple[str, ...], str, str], bool] = {}

    @property
    def guard(self) -> Guard | None:
        """The check of credentials; `None`: every user is anonymous."""
        return self._guard

    @property
    def config(self) -> Config:
        """The configuration as it is now. A reload makes another one."""
        return self._config()

    def guard_after(self, config: Config) -> Guard | None:
        """Returns the guard for a configuration. Pass it to `replace`. Raises `ConfigError`."""
        settings = config.authentication_of_admin
        if self._guard is not None and self._guard.settings == settings:
            return self._guard
        return None if settings.method == "none" else Guard(settings)

    def replace(self, guard: Guard | None) -> None:
        """Uses another guard. Each request and each stream is checked by it."""
        before, self._guard = self._guard, guard
        if before is not guard:
            self._kept.clear()
            if before is not None:
                before.close()

    async def identify(self, scope: dict[str, Any]) -> Identity:
        """Returns the user of a request. Raises `HTTPError` when its credentials are not accepted."""
        guard = self._guard
        if guard is None:
            return Identity(ANONYMOUS)
        given = _given(scope, guard.settings.method, self._config().name)
        if given is None:
            raise _unauthorized(guard, "the request has no credentials")
        # The result of a service is kept by the guard, as long as the configuration says.
        is_kept = given.certificate is None and guard.settings.method != "http"
        key = hashlib.sha256(self._salt + repr((given.user, given.password, given.token)).encode()).digest()
        if is_kept and (kept := self._kept.get(key)) is not None:
            identity, until = kept
            if time.monotonic() < until and _is_current(identity) and guard.still(identity):
                return identity
            self._kept.pop(key, None)
        result = await _checked(guard, given)
        if isinstance(result, Refused):
            raise await self._refuse(guard, given, result)
        # A reload can have replaced the guard meanwhile.
        if is_kept and guard is self._guard:
            if len(self._kept) >= _KEPT_MAX:
                self._kept.clear()
            self._kept[key] = result, time.monotonic() + _KEPT_TIME
        return result

    async def _refuse(self, guard: Guard, given: Given, refused: Refused) -> HTTPError:
        """Logs that a user is not accepted, and returns the error."""
        _log.warning(
            "audit: logon %s",
            pairs(
                user=given.user or "",
                client="",
                address=given.address,
                transport="admin",
                method=guard.settings.method,
                result="refused",
                reason=refused.reason,
            ),
            extra=line("10-0011"),
        )
        if refused.is_unavailable:
            return _unavailable(refused.text or "users cannot be checked now")
        now = asyncio.get_running_loop().time()
        await asyncio.sleep(guard.delay_of(given.address, now))
        return _unauthorized(guard, refused.text or guard.refused)

    def may(self, identity: Identity, right: str, name: str) -> bool:
        """Whether the user has a right on a topic, queue or resource."""
        config = self._config()
        if not config.entitlement:
            return True
        if config is not self._decided_by or len(self._decisions) >= _DECISIONS_MAX:
            self._decided_by, self._decisions = config, {}
        key = (identity.user, identity.groups, right, name)
        decided = self._decisions.get(key)
        if decided is None:
            explained = explain_entitlement(
                config.to_core(), identity.user, list(identity.groups), right, name
            )
            decided = self._decisions[key] = bool(json.loads(explained)["allowed"])
        return decided

    async def follow_files(self, interval: float) -> None:
        """Reads the files of users when they have changed, until it is cancelled."""
        while True:
            await asyncio.sleep(interval)
            guard = self._guard
            if guard is None or (changed := guard.changed()) is None:
                continue
            [done], _ = await asyncio.wait([asyncio.wrap_future(changed)])
            if done.cancelled():
                continue
            try:
                guard.use(done.result())
            except ConfigError as error:
                _log.warning(
                    "the users of the HTTP server were not changed: %s", error, extra=line("02-0005")
                )

    def forget(self, selects: Selects = every) -> None:
        """Keeps no result of a check of these users any longer."""
        # Each of these results is made again from that of the guard.
        self._kept.clear()
        if self._guard is not None:
            self._guard.forget(selects)

    def close(self) -> None:
        """Checks no more credentials."""
        if self._guard is not None:
            self._guard.close()


async def _checked(guard: Guard, given: Given) -> Identity | Refused:
    """Checks credentials. Raises `HTTPError` when a reload replaces the guard meanwhile."""
    check: asyncio.Future[Identity | Refused] | None = None
    with contextlib.suppress(RuntimeError):  # the guard was closed before
        check = asyncio.wrap_future(guard.check(given))
        await asyncio.wait([check])
    if check is None or check.cancelled():
        raise _unavailable("the authentication of the server has just changed")
    return check.result()


def _unavailable(reason: str) -> HTTPError:
    return HTTPError(503, "authentication_unavailable", reason, "try again", {"Retry-After": "1"})


def _unauthorized(guard: Guard, reason: str) -> HTTPError:
    scheme = "Bearer" if guard.settings.method == "token" else "Basic"
    challenge = f'{scheme} realm="quire"' + (', charset="UTF-8"' if scheme == "Basic" else "")
    hint = "send the Authorization header of a user of the server"
    return HTTPError(401, "authentication_failed", reason, hint, {"WWW-Authenticate": challenge})


def _is_current(identity: Identity) -> bool:
    return identity.expires is None or time.time() < identity.expires


def _given(scope: dict[str, Any], method: str, instance: str) -> Given | None:
    """The credentials of a request."""
    host, port = scope.get("client") or ("?", 0)
    address = f"{host}:{port}"
    certificate = scope.get("state", {}).get("certificate")
    about = Given(None, address=address, transport="admin", instance=instance)
    if method == "certificate":
        return None if certificate is None else replace(about, certificate=certificate)
    header = dict(scope["headers"]).get(b"authorization", b"").decode("latin-1")
    scheme, _, value = header.partition(" ")
    if method in ("token", "http") and scheme.lower() == "bearer":
        return replace(about, token=value.strip())
    if scheme.lower() != "basic":
        return None
    try:
        user, colon, password = base64.b64decode(value, validate=True).decode("utf-8").partition(":")
    except (binascii.Error, UnicodeDecodeError):
        return None
    return replace(about, user=user, password=password) if colon else None
