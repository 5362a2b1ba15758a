"""The HTTP server: its thread and event loop, and the connections."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Final, cast

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from quire._process import start_thread
from quire.admin._guarding import HEADERS_SIZE_MAX, App
from quire.config import Address
from quire.config._admin import Admin
from quire.server._tls import RELOAD_INTERVAL, Certificates

#: Seconds that a connection may be without a request.
_KEEP_ALIVE: Final = 30
#: Connections beyond `max_connections` get an answer. Those beyond this many times as many are
#: closed at once.
_CONNECTIONS_FACTOR: Final = 2
#: Seconds that answers may take at the end.
_CLOSE_TIMEOUT: Final = 2.0


class HTTPServer:
    """Answers requests on its own thread, so that a slow page never delays the transports."""

    def __init__(self, admin: Admin, app: App, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """`work`: a coroutine function that runs on the loop meanwhile."""
        assert admin.address is not None
        self._admin = admin
        self._app = app
        self._work = work
        self._address = Address.parse(admin.address)
        self._certificates = None if admin.tls is None else Certificates(admin.tls, "admin")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._started = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="quire-admin", daemon=True)
        self._socket: socket.socket | None = None
        #: The URL, when it listens.
        self.url: str = ""

    def start(self) -> None:
        """Listens on the address. Raises `OSError` when it is not available."""
        self._socket = _listening(self._address)
        host, port = self._socket.getsockname()[:2]
        scheme = "http" if self._certificates is None else "https"
        self.url = f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
        start_thread(self._thread)
        self._started.wait()
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """Ends the connections and the thread. A second call does nothing."""
        if self._loop is not None and self._stop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed already
                self._loop.call_soon_threadsafe(self._stop.set)
        if self._thread.is_alive():
            self._thread.join()
        elif self._socket is not None:
            self._socket.close()

    @property
    def expires(self) -> float | None:
        """When its certificate expires, in seconds since 1970; `None`: it has none."""
        return None if self._certificates is None else self._certificates.expires

    def soon(self, call: Callable[[], None]) -> None:
        """Calls on the thread of the server, if it runs. Any thread may call it."""
        if self._loop is None:
            call()
        else:
            with contextlib.suppress(RuntimeError):  # the loop is closed already
                self._loop.call_soon_threadsafe(call)

    def descriptors(self) -> list[int]:
        """The sockets, by their numbers, that a forked child must not keep open."""
        return [] if self._socket is None else [self._socket.fileno()]

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            self._failure = error
        finally:
            self._started.set()

    async def _serve(self) -> None:
        assert self._socket is not None
        self._loop = loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        config = uvicorn.Config(
            cast(Any, self._app),
            http=_Connection,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            timeout_keep_alive=_KEEP_ALIVE,
            h11_max_incomplete_event_size=HEADERS_SIZE_MAX,
        )
        config.load()
        state = ServerState()

        def connection() -> _Connection:
            made = _Connection(config, state, {}, loop)
            made.admin = self._admin
            return made

        listener = await loop.create_server(connection, sock=self._socket, ssl=self._context())
        work = loop.create_task(self._work())
        follow = loop.create_task(self._follow_certificates())
        self._started.set()
        await self._stop.wait()
        listener.close()
        for made in list(state.connections):
            made.shutdown()
        for task in (work, follow):
            task.cancel()
        if state.tasks:
            await asyncio.wait(state.tasks, timeout=_CLOSE_TIMEOUT)
        for made in list(state.connections):
            cast(_Connection, made).transport.abort()
        # Lets the loop close the transports.
        await asyncio.sleep(0)

    def _context(self) -> ssl.SSLContext | None:
        certificates = self._certificates
        if certificates is None:
            return None
        context = certificates.context

        def newest(connection: Any, name: str | None, first: ssl.SSLContext) -> None:
            connection.context = certificates.context

        context.sni_callback = newest
        return context

    async def _follow_certificates(self) -> None:
        while self._certificates is not None:
            await asyncio.sleep(RELOAD_INTERVAL)
            self._certificates.refresh()


class _Connection(H11Protocol):
    """A connection that must send its request, and read its answer, in time."""

    admin: Admin
    transport: asyncio.Transport

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._deadline: asyncio.TimerHandle | None = None
        count = len(self.connections)
        if count > _CONNECTIONS_FACTOR * self.admin.max_connections:
            transport.abort()
            return
        certificate = transport.get_extra_info("peercert")
        self.app_state = {"certificate": certificate, "is_over": count > self.admin.max_connections}
        self._must_end()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._has_request():
            self._in_time()
        elif self._deadline is None:
            self._must_end()

    def connection_lost(self, exc: Exception | None) -> None:
        self._in_time()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._must_end()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._in_time()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.get_write_buffer_size():
            self._must_end()

    def send_400_response(self, msg: str) -> None:
        is_too_large = len(self.conn.trailing_data[0]) > HEADERS_SIZE_MAX
        code, status = ("limit_exceeded", 431) if is_too_large else ("bad_request", 400)
        reason = (
            f"the headers have more than {HEADERS_SIZE_MAX} bytes" if is_too_large else "this is not HTTP"
        )
        body = json.dumps({"error": {"code": code, "reason": reason, "hint": ""}}).encode()
        head = (
            f"HTTP/1.1 {status} {'Request Header Fields Too Large' if is_too_large else 'Bad Request'}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
            "content-security-policy: default-src 'self'; frame-ancestors 'none'\r\n"
            "x-content-type-options: nosniff\r\ncache-control: no-store\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()

    def _has_request(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _must_end(self) -> None:
        self._in_time()
        self._deadline = self.loop.call_later(self.admin.request_timeout, self.transport.abort)

    def _in_time(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def _listening(address: Address) -> socket.socket:
    """A socket that is bound to the address."""
    from quire.server._server import cannot_listen

    try:
        found = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        family, kind, protocol, _, place = found[0]
        made = socket.socket(family, kind, protocol)
    except OSError as error:
        raise cannot_listen(address, error, "`admin.address`") from None
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind(place)
        made.setblocking(False)
    except OSError as error:
        made.close()
        raise cannot_listen(address, error, "`admin.address`") from None
    return made
