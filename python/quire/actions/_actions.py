"""The actions of one server, which calls the methods when it starts, runs and stops."""

from __future__ import annotations

import contextlib
import json
import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from quire._quire import Engine
from quire.actions import _maintenance as maintenance
from quire.actions._check import Part, matches, members_of
from quire.actions._clients import Clients
from quire.actions._places import Places, place_name
from quire.actions._run import Ended, Run, Runner, State
from quire.actions._steps import Steps
from quire.actions._text import Value
from quire.actions._triggers import SOURCES, About, Clock, Names, Watcher
from quire.server._log import line as line_of

if TYPE_CHECKING:
    from quire.server._server import Server

_log = logging.getLogger("quire.server")

#: Seconds that a stop waits for the actions of `shutdown`, and for the runs in progress.
SHUTDOWN_TIMEOUT: Final = 10.0
#: Seconds that the start waits for the subscriptions of triggers, before `startup`.
_READY_TIMEOUT: Final = 10.0
#: Seconds that a request waits for its runs.
REQUEST_TIMEOUT: Final = 8.0

#: The lines of the log that are events of links, and their triggers.
_LINES: Final = {
    "12-0001": "replication_connect",
    "12-0002": "replication_resync_complete",
    "12-0003": "replication_disconnect",
    "12-0004": "replication_downgrade",
    "12-0007": "incoming_connect",
    "12-0010": "incoming_disconnect",
}
_CLIENT_TRIGGERS: Final = {
    "connect": "client_connect",
    "logon": "client_logon",
    "disconnect": "client_disconnect",
    "subscribe": "subscribe",
    "unsubscribe": "unsubscribe",
    "offline": "offline_start",
    "online": "offline_stop",
}


class Actions:
    """Starts the actions of a server, and has their figures."""

    def __init__(self, server: Server) -> None:
        self._server = server
        config = server.config
        actions = (*config.action, *maintenance.actions_of(config.transaction_log.maintenance))
        self.states = {action.name: State(action) for action in actions}
        #: The actions by their triggers, each with the options of the trigger.
        self._by_trigger: dict[str, list[tuple[State, Part]]] = {}
        for state in self._enabled:
            for part in state.triggers:
                self._by_trigger.setdefault(part.entry.name, []).append((state, part))
        self._clients = Clients(server._connect_actions)
        steps = Steps(server, self._clients, self._raise_event)
        always: dict[str, Value] = {
            "INSTANCE_NAME": config.name,
            "INSTANCE_GROUP": config.group or config.name,
        }
        self._runner = Runner(always, steps.carry, self._tell)
        self._runner.is_told = self._is_told
        self._names = Names()
        self._places: Places | None = None
        self._watchers: list[Watcher] = []
        self._clock: Clock | None = None
        #: Destinations that are connected.
        self._connected: set[str] = set()
        #: The last instance at each destination, and its group.
        self._peers: dict[str, tuple[str, str]] = {}
        #: The groups of the instances that have sent records.
        self._groups: dict[str, str] = {}
        self._signals: dict[int, Any] = {}

    @property
    def _enabled(self) -> list[State]:
        return [state for state in self.states.values() if state.action.enabled]

    @property
    def any(self) -> bool:
        """Whether there are actions."""
        return bool(self.states)

    def figures(self) -> dict[str, dict[str, Any]]:
        """The figures by the names of the actions."""
        return {name: state.figures() for name, state in self.states.items()}

    def prepare(self) -> None:
        """Reads the places of triggers, before clients can connect. Raises `OSError`."""
        wanted = [
            place_name(state.name, part)
            for state in self._enabled
            for part in state.triggers
            if SOURCES[part.entry.name] == "log"
        ]
        if wanted:
            self._places = Places(self._server.config, wanted)

    def ready(self) -> None:
        """Clients can connect. Returns at once."""
        if self.any:
            threading.Thread(target=self._begin, name="quire-actions-start", daemon=True).start()

    def _begin(self) -> None:
        config, journal = self._server.config, self._server._running_engine.journal()
        about = About(
            config, self._clients, self._runner, self._names, self._places, self.states, journal.path_of
        )
        for state in self._enabled:
            for index, part in enumerate(state.triggers):
                if SOURCES[part.entry.name] in ("log", "delivered", "records"):
                    watcher = Watcher(state, index, about)
                    self._watchers.append(watcher)
                    watcher.start()
        for watcher in list(self._watchers):
            watcher.is_ready.wait(_READY_TIMEOUT)
        if "schedule" in self._by_trigger:
            self._clock = Clock(self._enabled, self._start_at)
            self._clock.start()
        self.start("startup", {})

    def _start_at(self, state: State, run: Run) -> None:
        """Starts an action at its time. Maintenance that is not done yet needs no other run."""
        if not (state.name.startswith(maintenance.PREFIX) and state.is_scheduled):
            self._runner.submit(state, run)

    def start(
        self,
        trigger: str,
        variables: Mapping[str, Value],
        chain: tuple[str, ...] = (),
        wanted: Callable[[Part], bool] = lambda part: True,
        done: Callable[[State, Ended], None] | None = None,
    ) -> int:
        """Starts the actions with a trigger. Returns how many. Any thread may call it.

        - `wanted`: whether a trigger with these options fires
        - `done`: gets the result of each run
        """
        count = 0
        for state, part in self._by_trigger.get(trigger, ()):
            if state.name in chain or not wanted(part):
                continue
            count += 1
            end = None if done is None else _bound(done, state)
            run = Run(trigger, dict(variables), chain)
            if not self._runner.submit(state, run, end) and done is not None:
                done(state, Ended("dropped"))
        return count

    def _raise_event(self, name: str, run: Run) -> None:
        self.start("event", run.variables, run.chain, lambda part: part.get("name") == name)

    def client_event(self, text: str) -> None:
        """An event of a client, as JSON. Called on the event loop, and raises nothing."""
        with _seen("an event of a client"):
            self._client_event(json.loads(text))

    def _client_event(self, event: dict[str, Any]) -> None:
        name = event["client_name"] or ""
        for publisher in event.get("publishers", ()):
            self._names.add(publisher, name)
        trigger = _CLIENT_TRIGGERS.get(event["event"])
        if trigger is None or trigger not in self._by_trigger:
            return
        connection = event["connection_name"] or ""
        variables: dict[str, Value] = {
            "CLIENT_NAME": name,
            "CONNECTION": connection,
            "REMOTE_ADDRESS": event["remote_address"] or "",
            "USER": event["user"] or "",
            "TRANSPORT": event["transport"] or "",
            "REASON": event["reason"] or "",
            "BYTES": str(event.get("bytes", "")),
            "TOPIC": event["topic"] or "",
            "FILTER": event["filter"] or "",
            "SUB_ID": event["sub_id"] or "",
            "OPTIONS": event["options"] or "",
        }

        def wanted(part: Part) -> bool:
            return matches(part.get("client"), name) and (
                part.entry.option("topic") is None
                or part.get("topic") is None
                or matches(part.get("topic"), str(variables["TOPIC"]))
            )

        number = int(connection) if connection.isdecimal() else -1
        self.start(trigger, variables, self._clients.chain_of(number), wanted)

    def hears_line(self, line_id: str) -> bool:
        """Whether a line of the log may start an action."""
        return self.any and line_id in _LINES

    def line(self, line_id: str, text: str) -> None:
        """A line of the log of the core, with its fields as JSON. Called on the event loop, and raises nothing."""
        with _seen("an event of a link"):
            self._link_event(line_id, json.loads(text))

    def _link_event(self, line_id: str, fields: dict[str, Any]) -> None:
        trigger = _LINES[line_id]
        if line_id == "12-0004" and fields.get("is_waited_for"):
            trigger = "replication_upgrade"
        destination, source = fields.get("destination", ""), fields.get("source", "")
        if line_id == "12-0001":
            self._connected.add(destination)
            self._peers[destination] = fields["instance"], fields["group"]
        if line_id == "12-0007":
            self._groups[source] = fields["group"]
        peer, group = self._peers.get(destination, (destination, ""))
        if source:
            peer, group = source, self._groups.get(source, "")
        if line_id == "12-0003":
            if destination not in self._connected:
                return
            self._connected.discard(destination)
        if trigger not in self._by_trigger:
            return
        variables: dict[str, Value] = {
            "PEER_NAME": peer,
            "PEER_GROUP": group,
            "REMOTE_ADDRESS": fields.get("peer") or self._address_of(destination),
            "REASON": fields.get("reason") or "",
            "DESTINATION": destination,
        }
        changes = trigger in ("replication_downgrade", "replication_upgrade")
        chain = self._clients.chain_of(destination) if changes else ()
        self.start(trigger, variables, chain, lambda part: matches(part.get("destination"), destination))

    def _address_of(self, destination: str) -> str:
        for each in self._server.config.replication.destination:
            if each.name == destination:
                return ", ".join(each.addresses)
        return ""

    def stuck(self, part: str, seconds: float) -> None:
        """A part of the server is stuck."""
        self.start("stuck", {"THREAD": part, "SECONDS": int(seconds)})

    def paths(self) -> dict[str, tuple[list[str], list[str]]]:
        """The paths of requests, with the members that their bodies must and may have."""
        return {part.get("path"): members_of(part) for _, part in self._by_trigger.get("admin", ())}

    def request(self, path: str, members: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Starts the actions of a path, and waits a while. Returns what became of each run."""
        results: dict[str, Ended] = {}
        changed = threading.Condition()

        def done(state: State, ended: Ended) -> None:
            with changed:
                results[state.name] = ended
                changed.notify_all()

        names = [state.name for state, part in self._by_trigger.get("admin", ()) if part.get("path") == path]
        variables: dict[str, Value] = {
            name.upper(): value if isinstance(value, str) else json.dumps(value)
            for name, value in members.items()
        }
        self.start("admin", variables, (), lambda part: part.get("path") == path, done)
        with changed:
            changed.wait_for(lambda: len(results) >= len(names), REQUEST_TIMEOUT)
            return [_result(name, results.get(name)) for name in names]

    def handle_signals(self) -> None:
        """Starts actions when the process gets their signals. Only the main thread may call it."""
        for _, part in self._by_trigger.get("signal", ()):
            name = part.get("name")
            number = getattr(signal, name, None)
            if number is None or number in self._signals:
                continue
            before = signal.getsignal(number)
            self._signals[number] = before

            def handle(*arguments: Any, name: str = name, before: Any = before) -> None:
                # The handler runs between two steps of the main thread, which may hold a lock.
                threading.Thread(target=self._signalled, args=(name,), daemon=True).start()
                if callable(before):
                    before(*arguments)

            signal.signal(number, handle)

    def _signalled(self, name: str) -> None:
        self.start("signal", {"SIGNAL": name}, (), lambda part: part.get("name") == name)

    def _is_told(self) -> bool:
        engine = self._server._engine
        return engine is not None and engine.hears_actions()

    def _tell(self, text: str) -> None:
        loop = self._server._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed already
                loop.call_soon_threadsafe(self._server._event, Engine.ACTION_RAN, 0, text.encode())

    def stop(self, *, is_broken: bool) -> None:
        """The server begins to stop. Waits for the actions of `shutdown`, and then for all others.

        - `is_broken`: the server answers no commands any more
        """
        if is_broken:
            self._clients.close()
        else:
            waiting = threading.Semaphore(0)
            count = self.start("shutdown", {}, done=lambda state, ended: waiting.release())
            deadline = time.monotonic() + SHUTDOWN_TIMEOUT
            for _ in range(count):
                waiting.acquire(timeout=max(deadline - time.monotonic(), 0.0))
        if self._clock is not None:
            self._clock.close()
        for watcher in self._watchers:
            watcher.close()
        if not self._runner.close(SHUTDOWN_TIMEOUT):
            _log.warning(
                "the runs of actions have not ended within %d s and are given up",
                round(SHUTDOWN_TIMEOUT),
                extra=line_of("60-0008"),
            )
        for watcher in self._watchers:
            watcher.join(SHUTDOWN_TIMEOUT)
        self._clients.close()
        self.release()

    def release(self) -> None:
        """Closes the files. Does nothing when they are closed."""
        if self._places is not None:
            self._places.close()

    def restore_signals(self) -> None:
        """Handles signals as before. Only the main thread may call it."""
        for number, before in self._signals.items():
            signal.signal(number, before)
        self._signals.clear()


@contextlib.contextmanager
def _seen(what: str) -> Iterator[None]:
    """Logs a bug: it must not end a turn of the server."""
    try:
        yield
    except Exception:
        _log.exception("%s started no action", what, extra=line_of("60-0006"))


def _bound(done: Callable[[State, Ended], None], state: State) -> Callable[[Ended], None]:
    return lambda ended: done(state, ended)


def _result(name: str, ended: Ended | None) -> dict[str, Any]:
    if ended is None:
        return {"action": name, "outcome": "running"}
    about = {"action": name, "outcome": ended.outcome, "duration_s": round(ended.duration, 6)}
    if ended.step is not None:
        about["step"] = ended.step
    if ended.error is not None:
        about["error"] = ended.error
    return about
