"""The asyncio server. It moves bytes between sockets and the core; the core processes messages.

All bytes that arrive during one turn of the event loop go into the core with one call, which
releases the interpreter lock. The output is written with one `write` per connection. No Python code
runs per message.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import logging
import os
import socket
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, Unpack, cast

from quire._arguments import check_type, suggests
from quire._errors import ConfigError, DisconnectedError, QuireError
from quire._process import connections_max, start_thread, with_threads, without_open_files
from quire._quire import LINKS_ACCEPTED_MAX, Engine, Inside, tls_required
from quire.client._define import DropReport, QueueChanges, QueueSettings, changes_to_core, settings_to_core
from quire.config import Address, Config, LinkTLS, Logging, ServerTLS
from quire.journal._journal import ServerJournal
from quire.server._identity import Given, Identity, Selects, every
from quire.server._link_identity import identity_of
from quire.server._log import LogTargets, line
from quire.server._logons import LINKS, Logons, pairs
from quire.server._maintenance import listen_locally, user_of
from quire.server._reload import reloaded
from quire.server._replication import ServerReplication
from quire.server._tls import RELOAD_INTERVAL, Certificates, Secured

if TYPE_CHECKING:
    from quire.actions._actions import Actions
    from quire.actions._watchdog import Watchdog
    from quire.admin._service import Administration

#: Bytes that may wait in a connection's transport before the core pauses its replays, and the mark
#: at which it continues. The loop writes as much of them at once as the system takes, and a publish
#: waits for that: with four times as much it took twice as long during a replay, and the replay was
#: no faster.
HIGH_WATER: Final = 256 * 1024
LOW_WATER: Final = 64 * 1024
#: Bytes that a turn reads from one connection. An event loop may read 32 times 256 KB from one
#: socket in a turn. The core would keep them, and every other connection would wait.
READ_MAX: Final = 1024 * 1024
#: Seconds that a peer which does not read may hold up the close of its connection.
CLOSE_GRACE: Final = 2.0
#: Seconds that connecting to another instance may take.
LINK_TIMEOUT: Final = 10.0
#: Seconds that a stop may take: after it, connections are cut.
STOP_TIMEOUT: Final = 10.0

_log = logging.getLogger("quire.server")

Progress = Callable[[int, int], None]


class Server:
    """Runs a server in this process.

        with quire.Server(quire.Config(transport={"address": "127.0.0.1:0"})) as server:
            client = quire.Client(server.url)

    As a context manager it runs on a new thread. `await server.serve()` runs it on the event loop
    of the caller, until `close` is called or the task is cancelled. The journal is recovered before
    the first connection is accepted.

    Raises `ConfigError` for an invalid setting, and `OSError` when the address is not available.
    Raises `JournalLockedError` when another process has the journal, and `JournalCorruptError` when
    the journal is damaged. Raises `LimitExceededError` when the limits of the process on open files
    or threads are too low.
    """

    #: The targets of the log when the configuration has no `[[logging]]`, and the name of the
    #: logger whose lines they get.
    _log_default: tuple[Logging, ...] = ()
    _logger_name: str | None = "quire"

    @suggests
    def __init__(self, config: Config | None = None, *, on_progress: Progress | None = None) -> None:
        given: object = config
        if given is not None and not isinstance(given, Config):
            reason = (
                f"expected a quire.Config, got `{type(given).__name__}`; quire.Config.load(path) reads a file"
            )
            raise ConfigError(reason, key="config")
        self.config: Config = config if config is not None else Config()
        self._on_progress = on_progress
        self._engine: Engine | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._connections: dict[int, _Connection] = {}
        self._last_connection = 0
        self._events: list[tuple[int, int, bytes]] = []
        self._turn_is_due = False
        #: Turns so far, and connections that are not read from until the current one is over.
        self._turns = 0
        self._read_enough: list[_Connection] = []
        self._timer: asyncio.TimerHandle | None = None
        self._drained: asyncio.Event | None = None
        self._stop: asyncio.Event | None = None
        #: The certificates of the transports, of the address for links, and of the destinations;
        #: `None`: not secured.
        self._transport_tls: list[Certificates | None] = []
        self._links_tls: Certificates | None = None
        self._destination_tls: list[Certificates | None] = []
        self._reload_timer: asyncio.TimerHandle | None = None
        self._refresh_files: Callable[[], None] | None = None
        #: `None`: the log is only that of the program.
        self._log_targets: LogTargets | None = None
        #: The logons whose passwords are checked.
        self._logons: Logons | None = None
        #: The HTTP server and the statistics; `None` before the start.
        self._administration: Administration | None = None
        #: `None`: there are none, or the server has not started.
        self._actions: Actions | None = None
        self._watchdog: Watchdog | None = None
        #: Attempts to connect to other instances.
        self._links: set[asyncio.Task[Any]] = set()
        self._replication_address: str | None = None
        self._listeners: list[asyncio.AbstractServer] = []
        #: Those of the transports, in the order of the configuration; `None`: it is disabled.
        self._transport_listeners: list[asyncio.AbstractServer | None] = []
        self._process = os.getpid()
        #: By the names of the transports; empty while the server does not run.
        self._urls: dict[str, str] = {}
        self._thread: threading.Thread | None = None
        self._started = threading.Event()
        self._failure: BaseException | None = None
        self._broken: QuireError | None = None
        self._stop_requested = False

    def __repr__(self) -> str:
        state = ", ".join(self._urls.values()) or "not running"
        return f"<{type(self).__name__} {self.config.name!r}: {state}, journal in {self.config.journal_directory}>"

    @property
    def url(self) -> str:
        """The URL for clients, `quire://host:port` or `quires://host:port`, of the first transport."""
        return next(iter(self.urls.values()))

    @property
    def urls(self) -> dict[str, str]:
        """The URLs for clients, by the names of the transports, in the order of the configuration.

        Raises `DisconnectedError` when the server is not running.
        """
        if not self._urls:
            raise DisconnectedError("the server is not running", code="not_running")
        return dict(self._urls)

    @property
    def admin_url(self) -> str | None:
        """The URL of the HTTP server of administration; `None`: `admin.address` is not configured.

        Raises `DisconnectedError` when the server is not running.
        """
        if not self._urls:
            raise DisconnectedError("the server is not running", code="not_running")
        return None if self._administration is None else self._administration.url

    @property
    def is_running(self) -> bool:
        """Whether the server accepts connections."""
        return bool(self._urls)

    def stats(self) -> dict[str, Any]:
        """Returns the counters since the start, and the current numbers."""
        stats: dict[str, Any] = json.loads(self._running_engine.stats())
        return stats

    def _figures(self) -> dict[str, Any]:
        """The figures by the paths of their nodes, at most a second old (docs/admin.md)."""
        if not self.is_running or self._administration is None:
            return {}
        return self._administration.current()

    def create_queue(self, name: str, **settings: Unpack[QueueSettings]) -> bool:
        """Creates a queue while the server runs. See `Client.create_queue`."""
        return self._running_engine.create_queue(settings_to_core(name, settings))

    def alter_queue(self, name: str, **settings: Unpack[QueueChanges]) -> bool:
        """Changes settings of a queue that was created while the server ran. See `Client.alter_queue`."""
        return self._running_engine.alter_queue(name, changes_to_core(name, settings))

    def drop_queue(self, name: str) -> DropReport:
        """Drops a queue that was created while the server ran. See `Client.drop_queue`."""
        check_type(name, str, "name")
        messages, warnings = self._running_engine.drop_queue(name)
        return DropReport(messages, tuple(warnings))

    def reload(self) -> list[str]:
        """Reads the configuration file again. Returns the keys that have changed.

        `entitlement`, `user_limit`, `authentication`, `tls` and `logging` may have changed. The connections of
        users that have other entries or another authentication than before have ended when this
        returns. The files of users and of certificates are read, too.

        Raises `ConfigError` for a mistake in the file, and when another key has changed. Nothing
        changes then.
        """
        return self._reload(None)

    def _reload(self, asker: tuple[int, int] | None) -> list[str]:
        """`asker`: the connection and the command that get the answer before the connection may end."""
        engine = self._running_engine
        assert self._logons is not None
        logons = self._logons
        try:
            config, changed = reloaded(self.config)
            guards = logons.guards_after(config)
            administration = self._administration
            guard = None if administration is None else administration.guard_after(config)
            certificates = self._certificates_for(config)
            core = config.to_core(has_actions=True)
            use_log = self._other_log(config) if "logging" in changed else None
        except (ConfigError, OSError) as error:
            _log.warning(
                "audit: reload %s", pairs(result="refused", reason=str(error)), extra=line("02-0004")
            )
            raise

        def take_over() -> None:
            self.config = config
            self._transport_tls, self._links_tls, self._destination_tls = certificates
            for (name, url), tls in zip(list(self._urls.items()), self._transport_tls, strict=False):
                self._urls[name] = f"{'quire' if tls is None else 'quires'}://{url.partition('://')[2]}"
            logons.replace(guards, None if asker is None else asker[0])
            logons.forget_results()
            if administration is not None:
                administration.replace_guard(guard)
                administration.forget_users()
            # The connections have ended before the answer.
            self._turn()

        def follow() -> None:
            logons.end_replaced()
            self._follow_files()
            if self._refresh_files is not None:
                self._refresh_files()

        self._on_loop(take_over)
        if use_log is not None:
            use_log()
        if changed or asker is not None:
            engine.entitle(core, None if asker is None else (*asker, "\n".join(changed)))
        self._on_loop(follow)
        reason = ", ".join(changed) or "nothing has changed"
        _log.info("audit: reload %s", pairs(result="applied", reason=reason), extra=line("02-0004"))
        return changed

    def _other_log(self, config: Config) -> Callable[[], None]:
        """Opens other targets of the log. Call the result to use them."""
        settings = config.logging or self._log_default
        if self._log_targets is not None:
            return self._log_targets.replace(settings)
        targets = LogTargets(settings, config.data_directory, config.name, self._logger_name)

        def use() -> None:
            targets.start()
            self._log_targets = targets

        return use

    def _on_loop(self, call: Callable[[], None]) -> None:
        """Calls on the thread of the event loop, and waits."""
        loop = self._loop
        assert loop is not None
        with contextlib.suppress(RuntimeError):
            if asyncio.get_running_loop() is loop:
                return call()

        async def run() -> None:
            call()

        coroutine = run()
        try:
            asyncio.run_coroutine_threadsafe(coroutine, loop).result(STOP_TIMEOUT)
        except (RuntimeError, TimeoutError):
            coroutine.close()
            raise DisconnectedError("the server is not running", code="not_running") from None

    @property
    def replication(self) -> ServerReplication:
        """The links to other instances: their state, and whether publishers wait for a destination."""
        return ServerReplication(self._running_engine, self._replication_address)

    @property
    def _running_engine(self) -> Engine:
        if self._engine is None:
            raise DisconnectedError("the server is not running", code="not_running")
        return self._engine

    @property
    def journal(self) -> ServerJournal:
        """The running journal. It can be read, and its full files can be archived, compressed and removed."""
        return ServerJournal(self._running_engine)

    def start(self) -> Self:
        """Starts the server on a new thread. Returns when it accepts connections."""
        if self._thread is not None:
            raise QuireError("the server was started already", code="bad_option")
        thread = threading.Thread(target=self._run, name="quire-server", daemon=True)
        start_thread(thread)
        self._thread = thread
        self._started.wait()
        if self._failure is not None:
            self._thread.join()
            raise self._failure
        if self._actions is not None and threading.current_thread() is threading.main_thread():
            self._actions.handle_signals()
        return self

    def close(self) -> None:
        """Notifies the clients, persists all accepted messages, and closes the journal. Any thread
        may call it.

        In a forked child it does nothing: the server is that of the parent.
        """
        if self._process != os.getpid():
            return
        self._request_stop()
        if self._actions is not None and threading.current_thread() is threading.main_thread():
            self._actions.restore_signals()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
            if self._failure is not None and self._started.is_set():
                failure, self._failure = self._failure, None
                raise failure

    def _request_stop(self) -> None:
        """Lets the server stop, and returns at once. Any thread may call it."""
        self._stop_requested = True
        loop, stop = self._loop, self._stop
        if loop is not None and stop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed already
                loop.call_soon_threadsafe(stop.set)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    async def serve(self, *, started: Callable[[], None] | None = None) -> None:
        """Serves on the running event loop until `close` is called or the task is cancelled.

        Calls `started` when connections are accepted. Raises `InternalError` after a bug in the
        broker ended a turn early. The server has then closed all connections and stopped, and has
        acknowledged nothing of that turn.
        """
        loop = asyncio.get_running_loop()
        self._process = os.getpid()
        _serving.add(self)
        self._loop, self._stop, self._drained = loop, asyncio.Event(), asyncio.Event()
        if self._stop_requested:
            self._stop.set()
        # Before the server opens files: `SERVER_FILES` counts them.
        room = self._connections_max()
        self._log_targets = self._opened_log(self.config)
        try:
            await self._serve_logged(loop, room, started)
        finally:
            if self._log_targets is not None:
                self._log_targets.close()

    def _opened_log(self, config: Config) -> LogTargets | None:
        """The targets of the log; `None`: there are none."""
        settings = config.logging or self._log_default
        if not settings:
            return None
        targets = LogTargets(settings, config.data_directory, config.name, self._logger_name)
        targets.start()
        return targets

    async def _serve_logged(
        self, loop: asyncio.AbstractEventLoop, room: int, started: Callable[[], None] | None
    ) -> None:
        """Serves while the log is open."""
        self.config.check_access()
        self._load_certificates()
        self._logons = Logons(self.config, loop, self._event)
        from quire.actions._watchdog import Watchdog
        from quire.admin._service import Administration

        if self.config.action or self.config.transaction_log.maintenance.rules():
            from quire.actions._actions import Actions

            self._actions = Actions(self)
        self._administration = Administration(self, loop)
        self._watchdog = Watchdog(loop, self._stuck)
        self._watchdog.watch.add("log", self._ask_log)
        if (ask := self._administration.asks()) is not None:
            self._watchdog.watch.add("HTTP server", ask)
        try:
            await self._serve(room, started)
        finally:
            self._watchdog.close()
            self._administration.close()
            if self._actions is not None:
                self._actions.release()
        if self._broken is not None:
            raise self._broken

    async def _serve(self, room: int, started: Callable[[], None] | None) -> None:
        """Serves until the server is to stop. `room`: the connections that it may have."""
        loop = self._loop
        assert loop is not None
        assert self._logons is not None
        assert self._stop is not None
        administration = self._administration
        assert administration is not None
        async with contextlib.AsyncExitStack() as listening:
            # Before the journal is made: a server whose address is taken leaves nothing on the
            # disk.
            listeners = [
                await listening.enter_async_context(await self._listen(number, address))
                for number, address in enumerate(self.config.addresses)
            ]
            if (address := self.config.replication.address) is not None:
                links = await self._listen_for_links(Address.parse(address))
                listeners.append(await listening.enter_async_context(links))
                self._replication_address = _url_of(links, "").removeprefix("://")
            self._listeners += listeners
            self._transport_listeners = [*listeners[: len(self.config.transport)]]
            administration.start()
            self._engine = engine = await self._open_engine(room)
            local = None
            assert self._watchdog is not None
            self._watchdog.start()
            try:
                local = await self._listen_locally()
                if local is not None:
                    self._listeners.append(local)
                names = [transport.name for transport in self.config.transport]
                schemes = ["quire" if tls is None else "quires" for tls in self._transport_tls]
                self._urls = dict(zip(names, map(_url_of, listeners, schemes), strict=False))
                loop.add_reader(engine.wake_fd(), self._woken)
                # The first turn logs what opening the journal found.
                self._schedule()
                if self._actions is not None:
                    self._actions.prepare()
                try:
                    for listener in listeners:
                        await listener.start_serving()
                    if local is not None:
                        await local.start_serving()
                    self._warn_if_open()
                    self._follow_files()
                    administration.listening(self._urls)
                    for name, url in self._urls.items():
                        _log.info("listening at %s", url, extra=line("00-0001", transport=name, url=url))
                    if self._actions is not None:
                        if threading.current_thread() is threading.main_thread():
                            self._actions.handle_signals()
                        self._actions.ready()
                    if started is not None:
                        started()
                    await self._stop.wait()
                    await self._announce_end(administration)
                finally:
                    for each in [*listeners, *self._transport_listeners]:
                        if each is not None:
                            each.close()
                    self._transport_listeners.clear()
                    if local is not None:
                        local.close()
                    await self._shut_down()
                    loop.remove_reader(engine.wake_fd())
                    for timer in (self._timer, self._reload_timer):
                        if timer is not None:
                            timer.cancel()
                    await listening.aclose()
            finally:
                self._urls = {}
                self._listeners.clear()
                if local is not None:
                    local.close()
                self._logons.close()
                # The loop may still report connections that were cut. These reports change nothing.
                self._engine = None
                # Waits for the disk, not for peers: nothing else is left to do on this loop.
                engine.close()

    async def _announce_end(self, administration: Administration) -> None:
        """Says that the server stops, before clients lose their connections."""
        administration.stopping()
        if self._actions is not None:
            assert self._loop is not None
            executor = ThreadPoolExecutor(1, thread_name_prefix="quire-stop")
            is_broken = self._broken is not None
            await self._loop.run_in_executor(executor, partial(self._actions.stop, is_broken=is_broken))
            executor.shutdown(wait=False)
        if self._broken is None and self.config.admin is not None:
            await asyncio.sleep(self.config.admin.shutdown_delay)

    async def _open_engine(self, connections_max: int) -> Engine:
        """Opens the journal and recovers it, on another thread."""
        assert self._loop is not None
        loop = self._loop
        # The executor of the loop would start one more thread at the end, and hide the error when
        # there is none.
        executor = ThreadPoolExecutor(1, thread_name_prefix="quire-open")
        try:
            config = self.config.to_core(max_connections=connections_max, has_actions=True)
            return await with_threads(
                "opening the journal",
                lambda: loop.run_in_executor(executor, Engine, config, self._on_progress),
            )
        except ConfigError as error:
            raise self.config.placed(error) from None
        finally:
            executor.shutdown(wait=False)

    async def _listen(self, transport: int, address: Address) -> asyncio.Server:
        """Binds the address of a transport; accepts nothing yet."""
        assert self._loop is not None
        try:
            return await self._loop.create_server(
                lambda: _secured(
                    _Connection(self, transport), self._transport_tls[transport], tls_required()
                ),
                address.host,
                address.port,
                backlog=1024,
                start_serving=False,
            )
        except OSError as error:
            if (refused := without_open_files(error)) is not None:
                raise refused from None
            raise cannot_listen(address, error, "`transport.address` or `--address`") from None

    @property
    def _enabled_transports(self) -> set[str]:
        """The names of the transports that accept connections."""
        names = (transport.name for transport in self.config.transport)
        listening = zip(names, self._transport_listeners, strict=False)
        return {name for name, listener in listening if listener is not None}

    def _disable_transport(self, number: int) -> int:
        """A transport accepts no more connections, and ends those that it has. Returns their number.

        Any thread may call it.
        """
        engine = self._running_engine

        def stop() -> None:
            if (listener := self._transport_listeners[number]) is not None:
                listener.close()
                self._listeners.remove(listener)
                self._transport_listeners[number] = None

        self._on_loop(stop)
        return engine.disconnect_transport(number)

    def _enable_transport(self, number: int) -> None:
        """A transport accepts connections again, at the same address. Any thread may call it.

        Raises `OSError` when another program uses the address meanwhile.
        """
        loop = self._loop
        if loop is None or not self._urls:
            raise DisconnectedError("the server is not running", code="not_running")
        url = list(self._urls.values())[number]
        address = Address.parse(url.partition("://")[2])

        async def listen() -> None:
            if self._transport_listeners[number] is not None:
                return
            listener = await self._listen(number, address)
            self._transport_listeners[number] = listener
            self._listeners.append(listener)
            await listener.start_serving()

        asyncio.run_coroutine_threadsafe(listen(), loop).result(STOP_TIMEOUT)

    async def _listen_for_links(self, address: Address) -> asyncio.Server:
        """Binds the address for other instances; accepts nothing yet."""
        assert self._loop is not None
        try:
            return await self._loop.create_server(
                lambda: _secured(_Link(self, has_tls=self._links_tls is not None), self._links_tls),
                address.host,
                address.port,
                start_serving=False,
            )
        except OSError as error:
            raise cannot_listen(address, error, "`replication.address`") from None

    async def _open_link(self, destination: int, address: str) -> None:
        """Connects to another instance."""
        assert self._loop is not None
        try:
            target = Address.parse(address)
            # Read for each connection, so that a new secret needs no restart.
            identity = identity_of(self.config.replication.destination[destination])
            async with asyncio.timeout(LINK_TIMEOUT):
                await self._connect_link(destination, target, identity)
        except ConfigError as error:
            self._event(Engine.LINK_NOT_OPENED, destination, str(error).encode())
        except TimeoutError:
            self._event(Engine.LINK_NOT_OPENED, destination, f"{address}: no answer".encode())
        except OSError as error:
            self._event(Engine.LINK_NOT_OPENED, destination, f"{address}: {error.strerror or error}".encode())

    async def _connect_link(self, destination: int, target: Address, identity: bytes) -> None:
        assert self._loop is not None
        tls = self._destination_tls[destination]
        link = _Link(self, has_tls=tls is not None, destination=destination, identity=identity)
        if tls is None:
            await self._loop.create_connection(lambda: link, target.host, target.port)
            return
        name = self.config.replication.destination[destination].tls_name(target)
        secured = Secured(link, tls, server_name=name)
        await self._loop.create_connection(lambda: secured, target.host, target.port)
        assert secured.established is not None
        try:
            await secured.established
        except BaseException:
            secured.abort()
            raise

    def _load_certificates(self) -> None:
        self._transport_tls, self._links_tls, self._destination_tls = self._certificates_for(self.config)

    def _certificates_for(
        self, config: Config
    ) -> tuple[list[Certificates | None], Certificates | None, list[Certificates | None]]:
        """The certificates of the transports, of the address for links, and of the destinations."""
        known = [*self._transport_tls, self._links_tls, *self._destination_tls]

        def of(tls: ServerTLS | LinkTLS | None, what: str) -> Certificates | None:
            if tls is None:
                return None
            same = (each for each in known if each is not None and each.is_for(tls, what))
            return next(same, None) or Certificates(tls, what)

        replication = config.replication
        return (
            [of(each.tls, f"transport {each.name!r}") for each in config.transport],
            of(replication.tls, "replication"),
            [of(each.tls, f"destination {each.name!r}") for each in replication.destination],
        )

    def _expiries(self) -> dict[str, float]:
        """When the certificates of the server expire, in seconds since 1970, by what they are for."""
        config = self.config
        named = [
            *zip((f"transport {each.name}" for each in config.transport), self._transport_tls, strict=False),
            ("replication", self._links_tls),
            *zip(
                (f"destination {each.name}" for each in config.replication.destination),
                self._destination_tls,
                strict=False,
            ),
        ]
        return {name: tls.expires for name, tls in named if tls is not None and tls.expires is not None}

    def _follow_files(self) -> None:
        """Uses new certificates for new connections, and new users, a few seconds after their files have changed."""
        certificates = [*self._transport_tls, self._links_tls, *self._destination_tls]
        secured = [each for each in certificates if each is not None]
        assert self._loop is not None
        assert self._logons is not None
        loop, logons = self._loop, self._logons
        if self._reload_timer is not None:
            self._reload_timer.cancel()
        if not secured and not logons.has_users:
            self._refresh_files = None
            return

        def refresh() -> None:
            for each in secured:
                each.refresh()
            logons.refresh()

        def follow() -> None:
            refresh()
            self._reload_timer = loop.call_later(RELOAD_INTERVAL, follow)

        self._refresh_files = refresh
        self._reload_timer = loop.call_later(RELOAD_INTERVAL, follow)

    async def _listen_locally(self) -> asyncio.AbstractServer | None:
        """Binds the socket of the administrator; `None` when there can be none. Accepts nothing yet."""
        assert self._loop is not None
        listener = listen_locally(self.config.journal_directory)
        if listener is None:
            return None
        return await self._loop.create_unix_server(
            lambda: _Connection(self, 0, is_local=True), sock=listener, start_serving=False
        )

    def _warn_if_open(self) -> None:
        """Says that programs on other machines need no password."""
        open_ = [
            Address.parse(transport.address)
            for transport in self.config.transport
            if self.config.authentication_of(transport).method == "none"
        ]
        if self.config.has_users and not self.config.entitlement:
            _log.warning("there is no [[entitlement]]: every user may do everything", extra=line("02-0002"))
        links = self.config.replication.address
        if links is not None and self.config.authentication_of_links.method == "none":
            open_.append(Address.parse(links))
        if reached := [str(address) for address in open_ if not address.is_loopback]:
            _log.warning(
                "listening on %s without authentication: every program that reaches it can publish, read and delete",
                ", ".join(reached),
                extra=line("02-0003"),
            )

    def _connections_max(self) -> int:
        wanted = sum(transport.max_connections for transport in self.config.transport)
        replication = self.config.replication
        accepted = 0 if replication.address is None else LINKS_ACCEPTED_MAX
        room = connections_max(wanted, links=accepted + len(replication.destination))
        if room < wanted:
            _log.info(
                "the limit of open files (ulimit -n) leaves room for %d connections, max_connections is %d",
                room,
                wanted,
                extra=line("00-0009"),
            )
        return room

    def _run(self) -> None:
        try:
            # Before the loop opens files, so that the error names the limit to raise.
            connections_max(1)
            with asyncio.Runner(loop_factory=_loop_factory()) as runner:
                runner.run(self.serve(started=self._started.set))
        except BaseException as error:
            self._failure = error
        finally:
            self._started.set()

    async def _shut_down(self) -> None:
        assert self._drained is not None
        if self._broken is None:
            self._event(Engine.SHUTDOWN, 0)
            try:
                async with asyncio.timeout(STOP_TIMEOUT):
                    await self._drained.wait()
            except TimeoutError:
                _log.warning(
                    "%d connections were cut, they did not close in time",
                    len(self._connections),
                    extra=line("00-0007"),
                )
        for link in self._links:
            link.cancel()
        for connection in list(self._connections.values()):
            connection.transport.abort()

    def _descriptors(self) -> Iterator[int]:
        """The sockets, by their numbers."""
        for listener in self._listeners:
            # Not a list of the other kind: of uvloop, and of a server that is closed.
            for each in getattr(listener, "sockets", None) or ():
                yield each.fileno()
        if self._administration is not None:
            yield from self._administration.descriptors()
        for connection in self._connections.values():
            if (socket := connection.transport.get_extra_info("socket")) is not None:
                yield socket.fileno()

    def _event(self, event: int, connection: int, data: bytes = b"") -> None:
        self._events.append((event, connection, data))
        self._schedule()

    def _woken(self) -> None:
        """Another thread has something for the next turn."""
        if self._engine is not None:
            self._engine.drain_wake()
        self._schedule()

    def _schedule(self) -> None:
        """A turn after everything that this turn of the loop still brings."""
        if not self._turn_is_due:
            self._turn_is_due = True
            assert self._loop is not None
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._turn_is_due = False
        self._turns += 1
        if self._engine is None or self._broken is not None:
            return
        assert self._loop is not None
        assert self._stop is not None
        assert self._drained is not None
        events, self._events = self._events, []
        try:
            turn = self._engine.turn(events)
        except QuireError as error:
            # The rest of the turn's input is lost, so the server must stop. Connections are cut
            # without another word: clients connect again and send what was not acknowledged.
            _log.critical("%s", error, extra=line("00-0008"))
            self._broken = error
            self._stop.set()
            self._drained.set()
            return
        for number, parts in turn.sends:
            if (connection := self._connections.get(number)) is not None:
                connection.write(parts)
        for number in turn.closes:
            if (connection := self._connections.get(number)) is not None:
                connection.close()
        for destination, address in turn.links:
            link = self._loop.create_task(self._open_link(destination, address))
            self._links.add(link)
            link.add_done_callback(self._links.discard)
        for number, client_name, user, password, token in turn.logons:
            if (connection := self._connections.get(number)) is not None:
                if connection.identity is not None:
                    # Names have no control characters.
                    names = [connection.identity.user, *connection.identity.groups]
                    self._event(Engine.AUTHENTICATED, number, "\n".join(names).encode())
                    continue
                assert self._logons is not None
                given = Given(
                    user, password, token, client_name, connection.peer, certificate=connection.certificate
                )
                self._logons.check(number, connection.transport_number, given)
        for number, command in turn.reloads:
            start_thread(threading.Thread(target=self._reload_for, args=(number, command), daemon=True))
        for number, command, question, shows_clients in turn.questions:
            assert self._administration is not None
            self._administration.answer(question, shows_clients, partial(self._answered, number, command))
        for number in turn.pauses:
            if (connection := self._connections.get(number)) is not None:
                connection.set_paused(True)
        for number in turn.resumes:
            if (connection := self._connections.get(number)) is not None:
                connection.set_paused(False)
        read_enough, self._read_enough = self._read_enough, []
        for connection in read_enough:
            connection.read_on()
        for level, line_id, text, fields in turn.logs:
            _log.log(level, "%s", text, extra={"line_id": line_id, "line_fields": fields})
            if self._actions is not None and self._actions.hears_line(line_id):
                self._actions.line(line_id, fields)
        for signal in turn.signals:
            assert self._actions is not None
            self._actions.client_event(signal)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if turn.sleep == 0:
            self._schedule()
        elif turn.sleep is not None:
            self._timer = self._loop.call_later(turn.sleep, self._schedule)
        if turn.drained:
            self._drained.set()

    def _stuck(self, part: str, seconds: float) -> None:
        """A part of the server makes no progress. Called by the watchdog."""
        if self._actions is not None:
            self._actions.stuck(part, seconds)

    def _ask_log(self, answer: Callable[[], None]) -> None:
        """Lets the thread of the log answer the watchdog."""
        if self._log_targets is None:
            answer()
        else:
            self._log_targets.soon(answer)

    def _rotate_logs(self) -> None:
        """Begins the next file of each log in files. Raises `OSError`."""
        if self._log_targets is not None:
            self._log_targets.rotate()

    def _set_log_level(self, target: int, level: str) -> None:
        """Changes the level of a target of the log until the next start. Raises `ConfigError`."""
        try:
            if self._log_targets is None or target < 0:
                raise IndexError
            self._log_targets.set_level(target, level)
        except IndexError:
            raise ConfigError(f"there is no [[logging]] with the number {target}", key="target") from None

    def _client_names(self, transport: str | None = None) -> dict[int, str]:
        """The names of the clients by their connections, without those of actions."""
        return {
            each["connection"]: each["client_name"]
            for each in self.stats()["clients"]
            if each["transport"] != "actions" and transport in (None, each["transport"])
        }

    def _forget_results(self, selects: Selects = every) -> None:
        """Checks these users again: keeps no result of a check, and reads the files of users."""

        def forget() -> None:
            if self._logons is not None:
                self._logons.forget_results(selects)
                self._logons.refresh()
            if self._administration is not None:
                self._administration.forget_users(selects)

        self._on_loop(forget)

    def _reload_for(self, connection: int, command: int) -> None:
        """Reads the configuration for a command of a connection. A mistake in it is an event."""
        try:
            self._reload((connection, command))
        except (QuireError, OSError) as error:
            data = command.to_bytes(4, "little") + str(error).encode("utf-8", "replace")
        else:
            return
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed already
                self._loop.call_soon_threadsafe(self._event, Engine.NOT_RELOADED, connection, data)

    def _answered(self, connection: int, command: int, answer: str | None, reason: str) -> None:
        """Hands the answer to a question about the statistics to the core. Any thread may call it."""
        kind = Engine.NO_STATISTICS if answer is None else Engine.STATISTICS
        data = command.to_bytes(4, "little") + (reason if answer is None else answer).encode(
            "utf-8", "replace"
        )
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed already
                self._loop.call_soon_threadsafe(self._event, kind, connection, data)

    def _connected(self, connection: _Connection) -> int:
        self._last_connection += 1
        self._connections[self._last_connection] = connection
        return self._last_connection

    def _connect_inside(self, identity: Identity, address: str) -> Inside:
        """Returns a connection for a client inside of this process, which is this user. Any thread may call it.

        - `address`: the address that the request of the user comes from

        Raises `DisconnectedError` when the server is not running.
        """
        return self._connect(lambda: _InsideConnection(self, identity, address))

    def _connect_actions(self) -> Inside:
        """Returns a connection for a client of actions, which has all rights. Any thread may call it.

        Raises `DisconnectedError` when the server is not running.
        """
        return self._connect(lambda: _ActionConnection(self))

    def _connect(self, made: Callable[[], _Connection]) -> Inside:
        """Connects a client inside of this process. `made`: makes the end of the server, on its thread."""
        loop = self._loop
        if loop is None or not self._urls:
            raise DisconnectedError("the server is not running", code="not_running")
        inside = Inside()
        end = socket.socket(fileno=inside.server_end())
        end.setblocking(False)

        def accept() -> None:
            connection = made()
            accepted = loop.create_task(loop.create_unix_connection(lambda: connection, sock=end))
            self._links.add(accepted)
            accepted.add_done_callback(self._links.discard)

        try:
            loop.call_soon_threadsafe(accept)
        except RuntimeError:  # the loop is closed already
            end.close()
            raise DisconnectedError("the server is not running", code="not_running") from None
        return inside

    def _disconnected(self, number: int) -> None:
        self._connections.pop(number, None)
        if self._logons is not None:
            self._logons.forget(number)
        self._event(Engine.DISCONNECTED, number)


class _Connection(asyncio.Protocol):
    """One connection: passes its bytes on, and reports when its transport is full."""

    transport: asyncio.Transport
    #: The user, when it is known without a logon.
    identity: Identity | None = None

    def __init__(self, server: Server, transport: int, *, is_local: bool = False) -> None:
        self._server = server
        #: The transport, by its place in the configuration.
        self.transport_number = transport
        self._is_local = is_local
        self._number = 0
        #: The core does not read from the peer.
        self._is_paused = False
        #: The last turn that got bytes from the peer, and their number.
        self._turn = 0
        self._turn_size = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not subclasses of asyncio's.
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=HIGH_WATER, low=LOW_WATER)
        self._number = self._server._connected(self)
        self._introduce()

    def _introduce(self) -> None:
        """Tells the core of the connection."""
        event, name = self._who()
        place = self.transport_number.to_bytes(2, "little")
        self._server._event(event, self._number, place + name.encode())

    def _who(self) -> tuple[int, str]:
        if self._is_local:
            user = user_of(self.transport.get_extra_info("socket").fileno())
            is_administrator = user in (0, os.geteuid())
            return (
                Engine.ADMINISTRATOR_CONNECTED if is_administrator else Engine.DENIED_CONNECTED,
                f"local user {user}",
            )
        return Engine.CONNECTED, self.peer

    @property
    def peer(self) -> str:
        """Where the connection comes from."""
        peer = self.transport.get_extra_info("peername")
        return f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else "?"

    @property
    def certificate(self) -> dict[str, Any] | None:
        """The certificate of the client, which TLS has checked; `None`: it has none."""
        found: dict[str, Any] | None = self.transport.get_extra_info("peercert")
        return found

    def data_received(self, data: bytes) -> None:
        server = self._server
        server._event(Engine.RECEIVED, self._number, data)
        if self._turn != server._turns:
            self._turn, self._turn_size = server._turns, 0
        self._turn_size += len(data)
        if self._turn_size >= READ_MAX:
            self.transport.pause_reading()
            server._read_enough.append(self)

    def pause_writing(self) -> None:
        self._server._event(Engine.NOT_WRITABLE, self._number)

    def resume_writing(self) -> None:
        self._server._event(Engine.WRITABLE, self._number)

    def connection_lost(self, exc: Exception | None) -> None:
        self._server._disconnected(self._number)

    def set_paused(self, is_paused: bool) -> None:
        """Stops or resumes reading for the core."""
        self._is_paused = is_paused
        if is_paused:
            self.transport.pause_reading()
        else:
            self.read_on()

    def read_on(self) -> None:
        """Resumes reading, unless the core does not read from the peer."""
        if not self._is_paused and not self.transport.is_closing():
            self.transport.resume_reading()

    def write(self, parts: list[bytes]) -> None:
        """Writes the parts one after the other."""
        if len(parts) == 1:
            self.transport.write(parts[0])
        else:
            self.transport.writelines(parts)

    def close(self) -> None:
        """Closes once everything is written, or the peer took too long."""
        self.transport.close()
        assert self._server._loop is not None
        self._server._loop.call_later(CLOSE_GRACE, self.transport.abort)


class _Link(_Connection):
    """A connection to another instance, or from one."""

    def __init__(
        self, server: Server, *, has_tls: bool, destination: int | None = None, identity: bytes = b""
    ) -> None:
        super().__init__(server, LINKS)
        self._has_tls = has_tls
        #: The number of the destination, and the identity to log on with; `None`: the other
        #: instance connected.
        self._destination = destination
        self._identity = identity

    def _introduce(self) -> None:
        tls = bytes([self._has_tls])
        if self._destination is None:
            self._server._event(Engine.LINK_ACCEPTED, self._number, tls + self.peer.encode())
            return
        head = self._destination.to_bytes(4, "little")
        self._server._event(Engine.LINK_OPENED, self._number, head + tls + self._identity)
        # The secret is not kept.
        self._identity = b""


class _InsideConnection(_Connection):
    """A connection of a client inside of this process. Its user is that of a request of the HTTP server."""

    def __init__(self, server: Server, identity: Identity, address: str) -> None:
        # The core has one more transport than the configuration.
        super().__init__(server, len(server.config.transport))
        self.identity = identity
        self._address = address

    @property
    def peer(self) -> str:
        return self._address


class _ActionConnection(_Connection):
    """A connection of a client of actions. It has all rights."""

    def __init__(self, server: Server) -> None:
        config = server.config
        has_admin = config.admin is not None and config.admin.address is not None
        # Its transport is the last one of those inside of the server.
        super().__init__(server, len(config.transport) + has_admin)

    def _who(self) -> tuple[int, str]:
        return Engine.INTERNAL_CONNECTED, "actions"


#: Servers that accept connections, or may.
_serving: weakref.WeakSet[Server] = weakref.WeakSet()
#: In a forked child: the servers of the parent. They are never collected, because their event loops
#: would change those of the parent.
_of_parent: list[Server] = []


def _leave_to_parent() -> None:
    """Called in a forked child, which must not keep the ports and connections of the servers of its
    parent open."""
    _of_parent.extend(_serving)
    _serving.clear()
    numbers = [number for server in _of_parent for number in server._descriptors() if number >= 0]
    if not numbers:
        return
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for number in numbers:
        # The objects of the event loop may still close the number, so it stays taken.
        os.dup2(nothing, number, inheritable=False)
    os.close(nothing)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_parent)


def cannot_listen(address: Address, error: OSError, setting: str) -> OSError:
    """The error for an address; `setting` is where another one can be set."""
    reason = error.strerror or str(error)
    if error.errno == errno.EADDRINUSE:
        reason = f"another program uses the address (stop it, or change {setting})"
    return OSError(error.errno, f"cannot listen on {address}: {reason}")


def _secured(connection: _Connection, tls: Certificates | None, refusal: bytes = b"") -> asyncio.Protocol:
    """The protocol for a new socket of an address. `refusal`: the answer to a peer that does not use TLS."""
    return connection if tls is None else Secured(connection, tls, refusal=refusal)


def _url_of(listener: asyncio.Server, scheme: str) -> str:
    host, port = listener.sockets[0].getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
