"""Administration of one server, which calls the methods when it starts, runs and stops."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from quire._errors import QuireError
from quire._quire import __version__
from quire.admin._figures import Durations, Figures, Tree
from quire.admin._health import Health
from quire.admin._host import timestamp
from quire.admin._logging import LogCounter
from quire.admin._metrics import LOOP_DELAY, PERSISTED_DURATION, SYNC_DURATION
from quire.admin._pulse import Pulse
from quire.admin._questions import Questions
from quire.admin._sampler import Sampler
from quire.admin._statistics import History, Store
from quire.config._admin import IN_MEMORY, Admin
from quire.server._identity import Selects, every
from quire.server._tls import RELOAD_INTERVAL

if TYPE_CHECKING:
    from quire.admin._access import Access
    from quire.admin._http import HTTPServer
    from quire.config import Config
    from quire.server._guard import Guard
    from quire.server._server import Server

#: Bytes of the statistics of a server without `[admin]`: some hours of a small server.
MEMORY_SIZE: Final = 16 << 20


class Administration:
    """The statistics of a server, and its HTTP server.

    The server calls `start` before it opens its journal, `listening` when clients can connect,
    `stopping` when it begins to stop, and `close` after its last connection has ended. Without
    `[admin]`, the statistics are in memory, and there is no HTTP server.
    """

    def __init__(self, server: Server, loop: asyncio.AbstractEventLoop) -> None:
        self._server = server
        self._settings = server.config.admin or Admin(file=IN_MEMORY, max_size=MEMORY_SIZE)
        self._pulse = Pulse(loop)
        self._health = Health()
        self._health.idle = lambda: self._pulse.idle
        self._figures = Figures(server.config, self._ask_core)
        self._figures.more = self._more
        self._figures.ask_held = self._ask_held
        self._figures.enabled = lambda: server._enabled_transports
        self._log_counter = LogCounter()
        self._sampler: Sampler | None = None
        self._questions = Questions(self._figures, self._history)
        self._access: Access | None = None
        self._http: HTTPServer | None = None
        if self._settings.address is not None:
            self._make_http(self._settings)

    def _make_http(self, admin: Admin) -> None:
        # Only the extra has their packages.
        from quire.admin import _console
        from quire.admin._access import Access
        from quire.admin._app import AdminApp
        from quire.admin._http import HTTPServer
        from quire.admin._prometheus import Exposition
        from quire.admin._requests import Requests

        server = self._server
        self._access = Access(lambda: server.config)
        app = AdminApp(admin, self._access, self._figures, self._health, self._history)
        exposition = Exposition(
            self._figures.current,
            self._durations,
            app.is_ready,
            version=__version__,
            objects_max=admin.metrics_max_objects,
        )
        app.expose(exposition)
        Requests(app, server)
        _console.add_routes(app, server)
        self._http = HTTPServer(admin, app.asgi(), self._work)

    @property
    def url(self) -> str | None:
        """The URL of the HTTP server; `None`: there is none."""
        return None if self._http is None else self._http.url

    def start(self) -> None:
        """Listens. Raises `OSError` when the address is not available."""
        if self._http is not None:
            self._http.start()
        store = Store(
            self._server.config.statistics_file,
            max_size=self._settings.max_size,
            retention=self._settings.retention,
            version=__version__,
        )
        store.begin(time.time())
        self._figures.lifetimes = store.history().lifetimes()
        self._sampler = Sampler(self._figures, store, self._settings.interval)
        self._sampler.start()
        self._figures.state = "recovering"

    def listening(self, urls: dict[str, str]) -> None:
        """Clients can connect."""
        self._figures.transports = urls
        self._figures.state = "running"
        self._health.recovered = self._health.listening = True

    def stopping(self) -> None:
        """The server begins to stop."""
        self._figures.state = "stopping"
        self._health.stopping = True

    def close(self) -> None:
        """The last connection has ended."""
        self._log_counter.close()
        self._questions.close()
        # An answer may need the statistics.
        if self._http is not None:
            self._http.close()
        if self._sampler is not None:
            self._sampler.close()
        if self._access is not None:
            self._access.close()

    def current(self) -> Tree:
        """Returns the figures, at most a second old."""
        return self._figures.current()

    def truncate(self, age: float) -> int:
        """Removes the samples that are older than `age` seconds. Returns their number."""
        return 0 if self._sampler is None else self._sampler.truncate(age)

    def guard_after(self, config: Config) -> Guard | None:
        """Returns the guard of the HTTP server for a configuration. Pass it to `replace_guard`. Raises `ConfigError`."""
        return None if self._access is None else self._access.guard_after(config)

    def replace_guard(self, guard: Guard | None) -> None:
        """Checks the users of the HTTP server by another guard."""
        if self._access is not None:
            self._access.replace(guard)

    def forget_users(self, selects: Selects = every) -> None:
        """Checks these users again."""
        if self._access is not None:
            self._access.forget(selects)

    def answer(self, question: bytes, shows_clients: bool, done: Callable[[str | None, str], None]) -> None:
        """Answers a question of a client about the statistics, on another thread.

        `shows_clients`: the user has the right `monitor` on `/quire/clients`. `done`: gets the answer
        as JSON, or `None` and the reason why there is none.
        """
        self._questions.answer(question, shows_clients, done)

    def asks(self) -> Callable[[Callable[[], None]], None] | None:
        """Lets the HTTP server call a function soon, for the watchdog; `None`: there is none."""
        return None if self._http is None else self._http.soon

    def descriptors(self) -> list[int]:
        """The sockets, by their numbers."""
        return [] if self._http is None else self._http.descriptors()

    def _ask_core(self) -> str | None:
        engine = self._server._engine
        try:
            return None if engine is None else engine.figures()
        except QuireError:
            return None  # it was closed meanwhile

    def _ask_held(self, queue: str, limit: int) -> str:
        return self._server._running_engine.held(queue, limit)

    def _more(self) -> Tree:
        statistics = {} if self._sampler is None else self._sampler.figures()
        return {
            "instance/loop": self._pulse.figures(),
            "instance/statistics": statistics,
            "instance/logging": self._log_counter.figures(),
            "instance/certificates": self._certificates(),
            "instance/actions": {} if self._server._actions is None else self._server._actions.figures(),
        }

    def _certificates(self) -> Tree:
        expiries = self._server._expiries()
        if self._http is not None and self._http.expires is not None:
            expiries["admin"] = self._http.expires
        now = time.time()
        return {
            name: {"expires": timestamp(at), "expires_s": round(at - now, 3)} for name, at in expiries.items()
        }

    def _durations(self) -> dict[str, Durations]:
        return {
            SYNC_DURATION.name: self._figures.syncs,
            PERSISTED_DURATION.name: self._figures.persisted,
            LOOP_DELAY.name: self._pulse.durations,
        }

    def _history(self) -> History | None:
        return None if self._sampler is None else self._sampler.history()

    async def _work(self) -> None:
        """Runs on the loop of the HTTP server."""
        assert self._access is not None
        await asyncio.gather(self._pulse.run(), self._access.follow_files(RELOAD_INTERVAL))
