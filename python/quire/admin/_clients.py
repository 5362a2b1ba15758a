"""Clients inside of the server, which have the rights of the user of a request, and no more."""

from __future__ import annotations

import asyncio
import inspect
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import KW_ONLY, dataclass
from typing import Any, Final, TypeVar

from starlette.requests import Request

from quire._errors import (
    DisconnectedError,
    LimitExceededError,
    NotEntitledError,
    QuireError,
    StorageFailedError,
    StorageFullError,
)
from quire._quire import Inside
from quire.admin._errors import HTTPError
from quire.client._aio import AsyncClient
from quire.client._blocking import Client
from quire.client._options import ClientOptions, Reconnect
from quire.server._identity import Identity

_C = TypeVar("_C", AsyncClient, Client)

#: Makes a connection for a user; the second argument is the address of the request.
Connect = Callable[[Identity, str], Inside]

#: Requests that have a client at the same time: streams, and others.
STREAMS_MAX: Final = 64
REQUESTS_MAX: Final = 16
#: Bytes of messages that wait in a client for a slow reader. Beyond it, a stream misses messages.
_RECEIVED_MAX: Final = 1 << 20
#: Seconds that one command may take.
_COMMAND_TIMEOUT: Final = 10.0


@dataclass(frozen=True)
class _Options(ClientOptions):
    """Options of a client that has a connection already. It reads no credentials from the environment."""

    _: KW_ONLY
    inside: Inside

    def links(self) -> list[Any]:
        return [self.inside]


class Clients:
    """Makes clients inside of the server."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._streams = 0
        self._requests = 0

    @asynccontextmanager
    async def stream(self, identity: Identity, address: str) -> AsyncIterator[AsyncClient]:
        """A client for an answer that does not end. Raises `HTTPError` when there are too many."""
        if self._streams >= STREAMS_MAX:
            raise _busy(f"{STREAMS_MAX} pages follow messages already")
        self._streams += 1
        try:
            async with self._client(identity, address) as client:
                yield client
        finally:
            self._streams -= 1

    @asynccontextmanager
    async def request(self, identity: Identity, address: str) -> AsyncIterator[AsyncClient]:
        """A client for one answer. Raises `HTTPError` when there are too many."""
        if self._requests >= REQUESTS_MAX:
            raise _busy(f"{REQUESTS_MAX} requests for messages are being answered")
        self._requests += 1
        try:
            async with self._client(identity, address) as client:
                yield client
        finally:
            self._requests -= 1

    @asynccontextmanager
    async def _client(self, identity: Identity, address: str) -> AsyncIterator[AsyncClient]:
        client = _made(AsyncClient, self._options(identity, address, None))
        try:
            await client.connect()
            yield client
        finally:
            # A reader that has left must not wait for a goodbye.
            await asyncio.shield(client.close(1.0))

    def blocking(self, identity: Identity, address: str, name: str | None = None) -> Client:
        """Returns a client for another thread, which has to close it."""
        return _made(Client, self._options(identity, address, name))

    def _options(self, identity: Identity, address: str, name: str | None) -> _Options:
        return _Options(
            "memory:",
            name=name or f"console-{secrets.token_hex(4)}",
            inside=self._connect(identity, address),
            receive_size_max=_RECEIVED_MAX,
            command_timeout=_COMMAND_TIMEOUT,
            connect_timeout=_COMMAND_TIMEOUT,
            # There is no second connection: the answer ends with the first one.
            reconnect=Reconnect(give_up_after=0),
        )


def _made(kind: type[_C], options: ClientOptions) -> _C:
    """A client with these options. The public constructors make them from a URL."""
    client = kind.__new__(kind)
    inspect.unwrap(kind.__init__)(client, options)
    return client


def refusal(error: QuireError | TimeoutError) -> HTTPError:
    """The answer to a request whose client got an error."""
    match error:
        case TimeoutError():
            return HTTPError(503, "timeout", str(error), "try again")
        case NotEntitledError():
            return HTTPError(403, error.code, error.reason, error.hint)
        case DisconnectedError() | LimitExceededError() | StorageFullError() | StorageFailedError():
            return HTTPError(503, error.code, error.reason, error.hint)
        case _:
            return HTTPError(400, error.code, error.reason, error.hint)


def address_of(request: Request) -> str:
    """The address that a request comes from."""
    return "console" if request.client is None else f"{request.client.host}:{request.client.port}"


def _busy(reason: str) -> HTTPError:
    return HTTPError(503, "limit_exceeded", reason, "close some pages, and try again")
