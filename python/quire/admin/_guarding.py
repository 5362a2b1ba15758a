"""The checks of every request before it is answered: host, origin, sizes, times and the user."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from ipaddress import ip_address
from typing import Any, Final
from urllib.parse import urlsplit

from quire.admin._access import Access
from quire.admin._errors import HTTPError, bug
from quire.config._admin import Admin
from quire.server._identity import ANONYMOUS, Identity
from quire.server._log import line
from quire.server._logons import pairs

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_log = logging.getLogger("quire.server")

#: Bytes of all headers of a request.
HEADERS_SIZE_MAX: Final = 16 * 1024
_HEADERS: Final = (
    (
        b"content-security-policy",
        b"default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
)


class Guarding:
    """Refuses requests that must not be answered, and adds the headers that every answer has.

    The user of a request is `scope["state"]["identity"]`.
    """

    def __init__(self, app: App, admin: Admin, access: Access) -> None:
        self._app = app
        self._admin = admin
        self._access = access
        self._names = {"localhost", socket.gethostname().lower(), *map(str.lower, admin.hosts)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        answer = _Answer(send, self._admin.request_timeout)
        try:
            await self._answer(scope, receive, answer)
        finally:
            if scope["method"] == "POST":
                _note_post(scope, answer.status)

    async def _answer(self, scope: Scope, receive: Receive, answer: _Answer) -> None:
        try:
            headers = self._check(scope)
            scope.setdefault("state", {})["identity"] = await self._identity(scope)
            body = _Body(receive, self._admin, headers)
            await self._app(scope, body.receive, answer.send)
        except HTTPError as error:
            if not answer.has_begun:
                await error.response()(scope, receive, answer.send)
        except _SlowReaderError:
            # The server closes the connection, because the answer is not complete.
            return
        except Exception:
            _log.exception("a request was not answered: %s", scope["path"], extra=line("50-0003"))
            if not answer.has_begun:
                await bug().response()(scope, receive, answer.send)

    def _check(self, scope: Scope) -> dict[bytes, bytes]:
        """Checks the head of a request, and returns its headers."""
        headers = dict(scope["headers"])
        if scope.get("state", {}).get("is_over"):
            reason = f"there are more than {self._admin.max_connections} connections"
            raise HTTPError(503, "limit_exceeded", reason, headers={"Connection": "close"})
        if sum(len(name) + len(value) + 4 for name, value in scope["headers"]) > HEADERS_SIZE_MAX:
            reason = f"the headers have more than {HEADERS_SIZE_MAX} bytes"
            raise HTTPError(431, "limit_exceeded", reason)
        host = headers.get(b"host", b"").decode("latin-1")
        if not self._knows(host):
            raise HTTPError(
                421,
                "bad_host",
                f"the server has no name {host[:100]!r}",
                "add the name to `hosts` in [admin]",
            )
        if scope["method"] == "POST":
            self._check_post(scope, headers, host)
        return headers

    def _knows(self, host: str) -> bool:
        name = ""
        try:
            if "]" in host or host.count(":") <= 1:
                name = urlsplit(f"//{host}").hostname or ""
            ip_address(name)
        except ValueError:
            return name.lower() in self._names
        return True

    def _check_post(self, scope: Scope, headers: dict[bytes, bytes], host: str) -> None:
        origin = headers.get(b"origin")
        if origin is not None and origin.decode("latin-1").lower() != f"{scope['scheme']}://{host}".lower():
            raise HTTPError(403, "foreign_origin", "the request comes from a page of another site")
        if headers.get(b"sec-fetch-site", b"none") not in (b"same-origin", b"none"):
            raise HTTPError(403, "foreign_origin", "the request comes from a page of another site")
        kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        if kind != b"application/json":
            hint = "send the header Content-Type: application/json"
            raise HTTPError(415, "bad_content_type", "the body of a request must be JSON", hint)
        if self._admin.read_only:
            raise HTTPError(403, "read_only", "[admin] has read_only = true")
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or int(length) > self._admin.max_body:
            raise self._too_large()

    def _too_large(self) -> HTTPError:
        return _too_large(self._admin)

    async def _identity(self, scope: Scope) -> Identity:
        if scope["path"] in self._admin.anonymous:
            return Identity(ANONYMOUS)
        return await self._access.identify(dict(scope))


def _note_post(scope: Scope, status: int) -> None:
    """Logs a request that may have changed something."""
    identity = scope.get("state", {}).get("identity")
    host, port = scope.get("client") or ("?", 0)
    _log.log(
        logging.INFO if status < 400 else logging.WARNING,
        "audit: admin %s",
        pairs(
            user=identity.user if isinstance(identity, Identity) else "",
            address=f"{host}:{port}",
            action="POST",
            resource=scope["path"],
            result="accepted" if 0 < status < 400 else "refused",
            status=str(status),
        ),
        extra=line("50-0002"),
    )


class _Body:
    """The body of a request, of which there is not too much, and which does not take too long."""

    def __init__(self, receive: Receive, admin: Admin, headers: dict[bytes, bytes]) -> None:
        self._receive = receive
        self._admin = admin
        self._size = 0
        self._is_whole = False

    async def receive(self) -> Message:
        if self._is_whole:
            # Returns when the peer has closed the connection.
            return await self._receive()
        try:
            async with asyncio.timeout(self._admin.request_timeout):
                message = await self._receive()
        except TimeoutError:
            close = {"Connection": "close"}
            reason = "the body did not arrive in time"
            raise HTTPError(408, "timeout", reason, headers=close) from None
        if message["type"] == "http.request":
            self._size += len(message.get("body", b""))
            self._is_whole = not message.get("more_body", False)
            if self._size > self._admin.max_body:
                raise _too_large(self._admin)
        return message


def _too_large(admin: Admin) -> HTTPError:
    reason = f"the body has more than {admin.max_body} bytes"
    return HTTPError(413, "limit_exceeded", reason, headers={"Connection": "close"})


class _SlowReaderError(Exception):
    """The peer does not read the answer."""


class _Answer:
    """Sends an answer with the headers that every answer has, to a peer that reads it."""

    def __init__(self, send: Send, timeout: float) -> None:
        self._send = send
        self._timeout = timeout
        self.has_begun = False
        #: The status of the answer; 0: there is none yet.
        self.status = 0

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.has_begun = True
            self.status = message["status"]
            headers = list(message.get("headers", []))
            names = {name for name, _ in headers}
            headers += [header for header in _HEADERS if header[0] not in names]
            if b"cache-control" not in names:
                headers.append((b"cache-control", b"no-store"))
            message = {**message, "headers": headers}
        try:
            async with asyncio.timeout(self._timeout):
                await self._send(message)
        except TimeoutError:
            raise _SlowReaderError from None
