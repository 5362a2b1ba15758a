"""The logons of a server that checks its users, and the connections of each user.

Users are clients, and other instances, which log on at the address for links.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from quire._errors import ConfigError
from quire._quire import Engine
from quire.config import Config
from quire.config._authentication import Authentication
from quire.server._identity import Checker, Given, Identity, Refused, Selects, every
from quire.server._log import line

if TYPE_CHECKING:
    from quire.server._guard import Guard

_log = logging.getLogger("quire.server")

#: The place of the address for links among the transports: the last one.
LINKS: Final = -1

#: Hands an event to the core: kind, connection, data.
_Event = Callable[[int, int, bytes], None]

_CHANGED: Final = "the user of the connection was removed, disabled or changed"
_REPLACED: Final = "the authentication of the server was changed"
#: Seconds between two looks at the clock for a token that expires later.
_CLOCK_INTERVAL: Final = 600.0


@dataclass
class _LoggedOn:
    """A connection that was accepted."""

    guard: Guard
    identity: Identity
    #: It ends the connection when its token expires.
    timer: asyncio.TimerHandle | None = None


class Logons:
    """Checks logons, and ends the connections of users that have changed or whose token has expired."""

    def __init__(self, config: Config, loop: asyncio.AbstractEventLoop, event: _Event) -> None:
        self._loop = loop
        self._event = event
        self._instance = config.name
        self._transports = [*(transport.name for transport in config.transport), "replication"]
        #: The guard of each transport, and of the address for links. Those with the same table
        #: share it.
        self._guards: list[Guard | None] = self.guards_for(config, [])
        self._distinct = _distinct(self._guards)
        #: The checks that are not done, by their connections.
        self._checks: dict[int, Future[Identity | Refused]] = {}
        #: The connections that were accepted.
        self._users: dict[int, _LoggedOn] = {}

    @staticmethod
    def guards_for(config: Config, known: Sequence[Guard]) -> list[Guard | None]:
        """Returns the guard of each transport, and of the address for links: one of those that are known, or a new one.

        Raises `ConfigError` when a file cannot be used.
        """
        known = list(known)
        guards: list[Guard | None] = []
        tables = [config.authentication_of(transport) for transport in config.transport]
        has_links = config.replication.address is not None
        for settings in [*tables, config.authentication_of_links if has_links else Authentication()]:
            if settings.method == "none":
                guards.append(None)
                continue
            from quire.server._guard import Guard

            guard = next((each for each in known if each.settings == settings), None)
            if guard is None:
                guard = Guard(settings)
                known.append(guard)
            guards.append(guard)
        return guards

    def guards_after(self, config: Config) -> list[Guard | None]:
        """Returns the guards for another configuration. Pass them to `replace`."""
        return self.guards_for(config, self._distinct)

    def replace(self, guards: list[Guard | None], asker: int | None) -> None:
        """Uses other guards. A connection whose user another guard has accepted ends, unless it asked for this."""
        before, self._guards, self._distinct = self._distinct, guards, _distinct(guards)
        for number, logged_on in list(self._users.items()):
            if logged_on.guard not in self._distinct and number != asker:
                self._reset(number, logged_on, _REPLACED)
        for guard in before:
            if guard not in self._distinct:
                guard.close()

    def end_replaced(self) -> None:
        """Ends the connection that `replace` has left."""
        for number, logged_on in list(self._users.items()):
            if logged_on.guard not in self._distinct:
                self._reset(number, logged_on, _REPLACED)

    @property
    def has_users(self) -> bool:
        """Whether any transport has users."""
        return bool(self._distinct)

    def check(self, number: int, transport: int, given: Given) -> None:
        """Begins to check a logon. Its result is an event."""
        guard = self._guards[transport]
        if guard is None:
            # A reload has just removed the authentication of the transport.
            self._event(Engine.NOT_CHECKED, number, _REPLACED.encode())
            return
        given = replace(given, transport=self._transports[transport], instance=self._instance)
        check = self._checks[number] = guard.check(given)
        check.add_done_callback(partial(self._soon, self._checked, number, given, guard))

    def forget(self, number: int) -> None:
        """The connection has ended: a check that has not begun is left out."""
        if (logged_on := self._users.pop(number, None)) is not None and logged_on.timer is not None:
            logged_on.timer.cancel()
        if (check := self._checks.pop(number, None)) is not None:
            check.cancel()

    def refresh(self) -> None:
        """Reads the files of users that have changed."""
        for guard in self._distinct:
            if (changed := guard.changed()) is not None:
                changed.add_done_callback(partial(self._soon, self._changed, guard))

    def forget_results(self, selects: Selects = every) -> None:
        """Keeps no result of a check of these users any longer."""
        for guard in self._distinct:
            guard.forget(selects)

    def close(self) -> None:
        """Begins no further check."""
        for guard in self._distinct:
            guard.close()

    def _soon(self, call: Callable[..., None], *arguments: Any) -> None:
        """On the loop, which may have ended."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(call, *arguments)

    def _checked(self, number: int, given: Given, guard: Guard, check: Future[Identity | Refused]) -> None:
        if self._checks.get(number) is not check:
            return
        del self._checks[number]
        try:
            result = check.result()
        except Exception as error:
            # No memory for the hash, for example. The text of the error is not known to be free of
            # secrets.
            _log.error("a logon could not be checked: %s", type(error).__name__, extra=line("10-0012"))
            result = Refused("the check failed")
        if guard not in self._distinct:
            text = "the authentication of the server has changed"
            result = Refused(text, text, is_unavailable=True)
        if isinstance(result, Identity) and not guard.still(result):
            result = Refused("the user has changed")
        is_accepted = isinstance(result, Identity)
        _log.log(
            logging.INFO if is_accepted else logging.WARNING,
            "audit: logon %s",
            pairs(
                user=result.user if isinstance(result, Identity) else given.user or "",
                client=given.client,
                address=given.address,
                transport=given.transport,
                method=guard.settings.method,
                result="accepted" if is_accepted else "refused",
                reason=result.reason if isinstance(result, Refused) else "",
            ),
            extra=line("10-0011"),
        )
        if isinstance(result, Identity):
            self._users[number] = logged_on = _LoggedOn(guard, result)
            # Names have no control characters.
            names = [result.user, *result.groups]
            self._event(Engine.AUTHENTICATED, number, "\n".join(names).encode())
            if result.expires is not None:
                self._end_at(number, logged_on, result.expires)
        else:
            self._refuse(number, given, guard, result)

    def _refuse(self, number: int, given: Given, guard: Guard, refused: Refused) -> None:
        text = guard.refused if refused.text is None else refused.text
        if refused.is_unavailable:
            self._event(Engine.NOT_CHECKED, number, text.encode())
            return
        delay = guard.delay_of(given.address, self._loop.time())
        refuse = partial(self._event, Engine.NOT_AUTHENTICATED, number, text.encode())
        if delay:
            self._loop.call_later(delay, refuse)
        else:
            refuse()

    def _end_at(self, number: int, logged_on: _LoggedOn, expires: float) -> None:
        """Ends a connection at a time by the clock of the system, which may be set meanwhile."""
        if self._users.get(number) is not logged_on:
            return
        left = expires - time.time()
        if left <= 0:
            self._reset(number, logged_on, "the token has expired")
        else:
            wait = min(left, _CLOCK_INTERVAL)
            logged_on.timer = self._loop.call_later(wait, self._end_at, number, logged_on, expires)

    def _reset(self, number: int, logged_on: _LoggedOn, reason: str) -> None:
        del self._users[number]
        self._event(Engine.RESET, number, reason.encode())

    def _changed(self, guard: Guard, changed: Future[Checker]) -> None:
        if changed.cancelled():
            return
        try:
            guard.use(changed.result())
        except ConfigError as error:
            _log.warning("the users were not changed: %s", error, extra=line("02-0005"))
            return
        _log.info(
            "audit: reload %s",
            pairs(result="applied", reason=f"{guard.files} has changed"),
            extra=line("02-0004"),
        )
        for number, logged_on in list(self._users.items()):
            if logged_on.guard is guard and not guard.still(logged_on.identity):
                self._reset(number, logged_on, _CHANGED)


def _distinct(guards: Sequence[Guard | None]) -> list[Guard]:
    """Each guard once."""
    return list(dict.fromkeys(guard for guard in guards if guard is not None))


def pairs(**values: str) -> str:
    """Returns the pairs of a line for an audit. Each value is quoted as JSON."""
    return " ".join(f"{name}={json.dumps(value)}" for name, value in values.items())
