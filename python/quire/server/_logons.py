"""The logons of a server whose passwords are checked, and the connections of each user."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from quire._errors import ConfigError
from quire._quire import Engine
from quire.config import Config

_log = logging.getLogger("quire.server")

#: Hands an event to the core: kind, connection, data.
_Event = Callable[[int, int, bytes], None]

_RESET: Final = b"the user of the connection was removed, disabled or changed"


@dataclass(frozen=True)
class _Logon:
    """The parts of a logon for the log."""

    user: str | None
    client: str
    address: str
    transport: str


class Logons:
    """Checks the passwords of logons, and ends the connections of users that have changed."""

    def __init__(self, config: Config, loop: asyncio.AbstractEventLoop, event: _Event) -> None:
        self._loop = loop
        self._event = event
        self._transports = [transport.name for transport in config.transport]
        #: The users of each transport. Transports with one file share them.
        self._guards: list[Any] = []
        known: dict[object, Any] = {}
        for transport in config.transport:
            settings = config.authentication_of(transport)
            if settings.method == "none":
                self._guards.append(None)
                continue
            from quire.server._users import Guard

            if settings not in known:
                known[settings] = Guard(settings)
            self._guards.append(known[settings])
        self._distinct = list(known.values())
        #: The checks that are not done, by their connections.
        self._checks: dict[int, Future[str | None]] = {}
        #: The guard and the user of each connection that was accepted.
        self._users: dict[int, tuple[Any, str]] = {}

    @property
    def has_users(self) -> bool:
        """Whether any transport has users."""
        return bool(self._distinct)

    def check(
        self, number: int, address: str, transport: int, client: str, user: str | None, password: str | None
    ) -> None:
        """Begins to check the password of a connection. Its result is an event."""
        guard = self._guards[transport]
        logon = _Logon(user, client, address, self._transports[transport])
        users = guard.users
        check = self._checks[number] = guard.check(user, password)
        check.add_done_callback(partial(self._soon, self._checked, number, logon, guard, users))

    def forget(self, number: int) -> None:
        """The connection has ended: a check that has not begun is left out."""
        self._users.pop(number, None)
        if (check := self._checks.pop(number, None)) is not None:
            check.cancel()

    def refresh(self) -> None:
        """Reads the files of users that have changed."""
        for guard in self._distinct:
            if (changed := guard.changed()) is not None:
                changed.add_done_callback(partial(self._soon, self._changed, guard))

    def close(self) -> None:
        """Begins no further check."""
        for guard in self._distinct:
            guard.close()

    def _soon(self, call: Callable[..., None], *arguments: Any) -> None:
        """On the loop, which may have ended."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(call, *arguments)

    def _checked(self, number: int, logon: _Logon, guard: Any, users: Any, check: Future[str | None]) -> None:
        if self._checks.get(number) is not check:
            return
        del self._checks[number]
        try:
            reason = check.result()
        except Exception as error:
            # No memory for the hash, for example.
            _log.error("the password of a logon could not be checked: %s", error)
            reason = "the check failed"
        if reason is None and guard.users.by_name.get(logon.user) != users.by_name.get(logon.user):
            reason = "the user has changed"
        level = logging.INFO if reason is None else logging.WARNING
        _log.log(
            level,
            "audit: logon %s",
            pairs(
                user=logon.user or "",
                client=logon.client,
                address=logon.address,
                transport=logon.transport,
                method="users",
                result="accepted" if reason is None else "refused",
                reason=reason or "",
            ),
        )
        if reason is None:
            assert logon.user is not None
            self._users[number] = guard, logon.user
            # Names have no control characters.
            names = [logon.user, *guard.users.by_name[logon.user].groups]
            self._event(Engine.AUTHENTICATED, number, "\n".join(names).encode())
            return
        delay = guard.delay_of(logon.address.rpartition(":")[0], self._loop.time())
        refuse = partial(self._event, Engine.NOT_AUTHENTICATED, number, guard.REFUSED.encode())
        if delay:
            self._loop.call_later(delay, refuse)
        else:
            refuse()

    def _changed(self, guard: Any, changed: Future[Any]) -> None:
        if changed.cancelled():
            return
        try:
            names = guard.use(changed.result())
        except ConfigError as error:
            _log.warning("the users were not changed: %s", error)
            return
        _log.info("audit: reload %s", pairs(result="applied", reason=f"{guard.path} has changed"))
        for number, (its_guard, user) in list(self._users.items()):
            if its_guard is guard and user in names:
                del self._users[number]
                self._event(Engine.RESET, number, _RESET)


def pairs(**values: str) -> str:
    """Returns the pairs of a line for an audit. Each value is quoted as JSON."""
    return " ".join(f"{name}={json.dumps(value)}" for name, value in values.items())
