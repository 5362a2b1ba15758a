"""The triggers. `SOURCES` has one entry for each trigger of the table: where its events come from."""

from __future__ import annotations

import base64
import contextlib
import json
import logging
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from quire._errors import NotJournaledError, QuireError
from quire._filter import quote
from quire._message import Message
from quire.actions._check import matches, target_of
from quire.actions._clients import USER, Clients
from quire.actions._conditions import Conditions
from quire.actions._places import Places, place_name
from quire.actions._run import Run, Runner, State, time_text
from quire.actions._schedule import Schedule
from quire.actions._steps import CHAIN_HEADER
from quire.actions._text import Value
from quire.config._actions import delivery_name
from quire.server._log import line

if TYPE_CHECKING:
    from quire.client._blocking import Client, Subscription
    from quire.config import Config

_log = logging.getLogger("quire.server")

#: The triggers by the source of their events.
SOURCES: Final[Mapping[str, str]] = {
    "schedule": "clock",
    "startup": "server",
    "shutdown": "server",
    "signal": "signal",
    "admin": "request",
    "publish": "log",
    "deliver": "delivered",
    "expire_message": "log",
    "delete_message": "log",
    "oof_message": "records",
    "condition_timeout": "records",
    "alert": "records",
    "client_connect": "client",
    "client_logon": "client",
    "client_disconnect": "client",
    "subscribe": "client",
    "unsubscribe": "client",
    "offline_start": "client",
    "offline_stop": "client",
    "replication_connect": "line",
    "replication_disconnect": "line",
    "replication_downgrade": "line",
    "replication_upgrade": "line",
    "replication_resync_complete": "line",
    "incoming_connect": "line",
    "incoming_disconnect": "line",
    "stuck": "watchdog",
    "event": "step",
}

#: Topics whose message types are kept.
_TYPES_MAX: Final = 4096
#: Publishers whose names are kept.
_NAMES_MAX: Final = 100_000
#: Seconds until a trigger tries again after its connection inside of the server has ended.
_AGAIN: Final = 1.0
#: Nanoseconds between the clock of the engine and that of the log, at most.
_SLACK: Final = 50_000_000
#: Seconds that a thread of a trigger waits for a message, before it looks at the clock.
_TICK: Final = 0.2


class Names:
    """The names of publishers, by their ids in bookmarks."""

    def __init__(self) -> None:
        self._names: OrderedDict[str, str] = OrderedDict()

    def add(self, publisher: str, name: str) -> None:
        """A client has this publisher. The names of those that logged on last are kept."""
        self._names[publisher] = name
        self._names.move_to_end(publisher)
        while len(self._names) > _NAMES_MAX:
            self._names.popitem(last=False)

    def of(self, publisher: str | None) -> str:
        """The client name of a publisher; empty: it is not known."""
        return self._names.get(publisher or "", "")


def chain_of(message: Message) -> tuple[str, ...]:
    """The actions that led to a message."""
    header = message.headers.get(CHAIN_HEADER, "") if message.headers else ""
    return tuple(header.split(",")) if isinstance(header, str) and header else ()


def variables_of(message: Message, message_type: str, names: Names) -> dict[str, Value]:
    """The variables of a message."""
    data = message.data
    return {
        "TOPIC": message.source_topic,
        "DATA": data,
        "DATA_LENGTH": len(data),
        "MESSAGE_TYPE": message_type,
        "BOOKMARK": message.bookmark or "",
        "TIMESTAMP": time_text(message.timestamp_ns / 1e9),
        "CLIENT_NAME": names.of(message.publisher),
        "CORRELATION_ID": message.correlation_id or "",
    }


def types_of(config: Config) -> Callable[[str], str]:
    """Returns the types of the messages of topics."""
    tables: dict[str, str] = {each.name: each.message_type for each in config.sow_topic}
    tables |= {each.name: each.message_type for each in config.view}

    @lru_cache(maxsize=_TYPES_MAX)
    def of(topic: str) -> str:
        if topic in tables:
            return tables[topic]
        entries = (each for each in config.transaction_log.topic if matches(each.name, topic))
        found = next(entries, None)
        return "json" if found is None else found.message_type

    return of


def left_of(config: Config, name: str) -> tuple[str, str | None]:
    """The topic with the messages that left a queue or a last-value topic, and a filter for them."""
    for queue in (*config.queue, *config.local_queue):
        if queue.name == name and queue.dead_letter_topic is not None:
            return target_of(config, queue.dead_letter_topic), f"/queue = {quote(name)}"
    return f"/quire/Left/{name}", None


class Watcher(threading.Thread):
    """A thread that takes the messages of one trigger."""

    def __init__(self, state: State, index: int, about: About) -> None:
        super().__init__(name=f"quire-action-{state.name}", daemon=True)
        self._state = state
        self._part = state.triggers[index]
        self._index = index
        self._about = about
        self._client: Client | None = None
        self._is_closing = threading.Event()
        #: Set when the trigger has subscribed, or cannot.
        self.is_ready = threading.Event()

    def run(self) -> None:
        """Takes messages until `close`. After a lost connection it begins again."""
        while not self._is_closing.is_set():
            try:
                self._watch()
            except (QuireError, TimeoutError) as error:
                if self._is_closing.is_set():
                    return
                fields = {"action": self._state.name, "trigger": self._part.entry.name}
                _log.error(
                    "action %r: the trigger %s gets no messages, and tries again: %s",
                    *(self._state.name, self._part.entry.name, error),
                    extra=line("60-0007", **fields, error=str(error)),
                )
            finally:
                self.is_ready.set()
                if (client := self._client) is not None:
                    client.close(0)
            self._is_closing.wait(_AGAIN)

    def close(self) -> None:
        """Ends the subscription. A run in progress is not interrupted."""
        self._is_closing.set()
        with contextlib.suppress(QuireError):
            if self._client is not None:
                self._client.close(0)

    def _watch(self) -> None:
        about, store = self._about, None
        if SOURCES[self._part.entry.name] == "log":
            store = about.places.store if about.places is not None else None
        name = f"{USER}/{self._state.name}/{self._index}"
        self._client = client = about.clients.made(name, store)
        match SOURCES[self._part.entry.name]:
            case "log":
                self._follow_log(client)
            case "delivered":
                self._follow_delivered(client)
            case _:
                self._follow_records(client)

    def _follow_log(self, client: Client) -> None:
        """Runs the action for each message, one after the other. The place moves on after each run."""
        part, about = self._part, self._about
        topic, filter = part.get("topic"), part.get("filter")
        if part.entry.name != "publish":
            topic, filter = left_of(about.config, topic)
        place = place_name(self._state.name, part)
        assert about.places is not None
        is_known = about.places.store.most_recent(place) is not None
        begin = datetime.fromtimestamp(about.places.begin(place) / 1e9, UTC)
        bookmark: Any = "most_recent" if is_known else begin
        try:
            subscription = client.subscribe(topic, filter=filter, bookmark=bookmark, sub_id=place)
        except NotJournaledError:
            return self._follow_live(client, topic)
        self.is_ready.set()
        take = self._published if part.entry.name == "publish" else self._left
        for message in subscription:
            for run in take(message):
                # A run that begins now ends before its place moves on.
                about.runner.run(self._state, run)
            message.discard()
            if self._is_closing.is_set():
                return None
        return None

    def _follow_live(self, client: Client, topic: str) -> None:
        """Messages of a topic that the log does not record. They have no place."""
        subscription = client.subscribe(topic, filter=self._part.get("filter"))
        self.is_ready.set()
        for message in subscription:
            for run in self._published(message):
                self._about.runner.submit(self._state, run)

    def _is_from_wanted_source(self, message: Message) -> bool:
        source = self._part.get("source")
        if source == "all":
            return True
        bookmark = message.bookmark
        # Other instances send messages of the log only.
        path = [] if bookmark is None else self._about.path_of(bookmark)
        # The file of a message that the log does not have any more was removed just now.
        is_replicated: bool = source == "replicated"
        return bool(path) is is_replicated

    def _published(self, message: Message) -> Iterator[Run]:
        chain = chain_of(message)
        if self._state.name not in chain and self._is_from_wanted_source(message):
            about = self._about
            variables = variables_of(message, about.type_of(message.source_topic), about.names)
            yield Run(self._part.entry.name, variables, chain)

    def _left(self, message: Message) -> Iterator[Run]:
        """A message about a record or a message that has left its topic or queue."""
        about, part = self._about, self._part
        found = json.loads(message.data)
        reasons = found.get("reason", [])
        wanted = part.get("reason")
        wanted = [wanted] if isinstance(wanted, str) else wanted
        is_delete = "deleted" in reasons
        if is_delete is not (part.entry.name == "delete_message"):
            return
        if wanted is not None and not set(wanted) & set(reasons):
            return
        chain = chain_of(message) if not is_delete else ()
        if (action := found.get("action")) is not None:
            chain = about.chain_at(action.removeprefix(f"{USER}/"), found["left"])
        if self._state.name in chain:
            return
        topic, is_queue = found.get("source_topic") or found.get("topic", ""), "queue" in found
        data, message_type = _data_in(message.data, found), about.type_of(topic)
        yield Run(
            part.entry.name,
            {
                "TOPIC": found["queue"] if is_queue else topic,
                "DATA": data,
                "DATA_LENGTH": len(data),
                "MESSAGE_TYPE": message_type,
                "BOOKMARK": found.get("bookmark", ""),
                "TIMESTAMP": time_text(found.get("timestamp", 0) / 1e9),
                "CLIENT_NAME": about.names.of(found.get("bookmark", "").partition("|")[0]),
                "CORRELATION_ID": message.correlation_id or "",
                "SOW_KEY": found.get("sow_key", ""),
                "REASON": ",".join(reasons),
                "SOURCE_TOPIC": topic if is_queue else "",
                "DELIVERIES": found.get("deliveries", ""),
                "CANCELS": found.get("cancels", ""),
            },
            chain,
        )

    def _follow_delivered(self, client: Client) -> None:
        """The core publishes each delivery. A delivery has no place."""
        part, about = self._part, self._about
        subscription = client.subscribe(f"/quire/Delivered/{delivery_name(self._state.name, self._index)}")
        self.is_ready.set()
        for message in subscription:
            chain = chain_of(message)
            if self._state.name in chain:
                continue
            found = json.loads(message.data)
            data, bookmark = _data_in(message.data, found), found["bookmark"] or ""
            variables: dict[str, Value] = {
                "TOPIC": found["topic"],
                "DATA": data,
                "DATA_LENGTH": len(data),
                "MESSAGE_TYPE": found["message_type"],
                "BOOKMARK": bookmark,
                "TIMESTAMP": time_text(found["timestamp"] / 1e9),
                "CLIENT_NAME": about.names.of(bookmark.partition("|")[0]),
                "CORRELATION_ID": message.correlation_id or "",
                "SUBSCRIBER": found["subscriber"] or "",
            }
            about.runner.submit(self._state, Run(part.entry.name, variables, chain))

    def _follow_records(self, client: Client) -> None:
        """The records that match, and those that match no longer."""
        part = self._part
        after = None if part.entry.name == "oof_message" else self._about.seconds(part.get("after"))
        conditions = None if after is None else Conditions(after)
        subscription = client.sow_and_subscribe(part.get("topic"), filter=part.get("filter"), oof=True)
        self.is_ready.set()
        while not self._is_closing.is_set():
            message = _next(subscription, conditions)
            if conditions is not None:
                for due in conditions.due(time.time()):
                    self._start(due, "timeout")
            if message is not None:
                self._take(message, conditions)

    def _take(self, message: Message, conditions: Conditions | None) -> None:
        key = message.source_topic, message.sow_key or ""
        if message.command != "oof":
            if conditions is not None:
                # A record of the query may have matched for longer. Its last change is known.
                since = message.timestamp_ns / 1e9 if message.command == "sow" else time.time()
                conditions.matched(key, message, since)
            return
        if conditions is None:
            self._start(message, message.reason or "")
        elif conditions.left(key) and self._part.entry.name == "alert":
            self._start(message, "left")

    def _start(self, message: Message, reason: str) -> None:
        about, chain = self._about, chain_of(message)
        if message.command == "oof" and message.reason == "deleted":
            chain = about.chain_of_delete(message.timestamp_ns)
        if self._state.name in chain:
            return
        variables = variables_of(message, about.type_of(message.source_topic), about.names)
        variables |= {"SOW_KEY": message.sow_key or "", "REASON": reason}
        about.runner.submit(self._state, Run(self._part.entry.name, variables, chain))


def _next(subscription: Subscription, conditions: Conditions | None) -> Message | None:
    """The next message; `None`: it is time to look at the records."""
    due = None if conditions is None else conditions.next
    wait = _TICK if due is None else min(max(due - time.time(), 0.0), _TICK)
    try:
        return subscription.get(timeout=wait)
    except TimeoutError:
        return None


def _data_in(data: bytes, found: Mapping[str, Any]) -> bytes:
    """The data of the message inside of a message about it."""
    if "message" in found:
        # As it was written: a quote in a text before it has a backslash.
        return data.partition(b',"message":')[2][:-1]
    if "text" in found:
        return str(found["text"]).encode()
    return base64.b64decode(found.get("base64", ""))


class About:
    """The parts of the engine that the threads of triggers need."""

    def __init__(
        self,
        config: Config,
        clients: Clients,
        runner: Runner,
        names: Names,
        places: Places | None,
        states: Mapping[str, State],
        path_of: Callable[[str], list[str] | None],
    ) -> None:
        """`path_of`: the instances that a message has passed before this one, by its bookmark; `None`: the log does
        not have it."""
        from quire._units import seconds

        self.config = config
        self.path_of = path_of
        self.clients = clients
        self.runner = runner
        self.names = names
        self.places = places
        self.type_of = types_of(config)
        self.seconds: Callable[[Any], float] = lambda value: seconds(value, "after")
        self._states = states

    def chain_at(self, action: str, at_ns: int) -> tuple[str, ...]:
        """The actions that led to what an action did at a time, and itself."""
        state = self._states.get(action)
        if state is None:
            return (action,)
        for began, ended, chain in reversed(state.recent):
            if began - _SLACK <= at_ns <= ended + _SLACK:
                return (*chain, action)
        # The run is in progress, or too long ago.
        return (*state.chain, action)

    def chain_of_delete(self, at_ns: int) -> tuple[str, ...]:
        """The actions that may have led to a delete at a time."""
        found: list[str] = []
        for state in self._states.values():
            if not any(step.entry.name == "delete_records" for step in state.steps):
                continue
            for began, ended, chain in reversed(state.recent):
                if began - _SLACK <= at_ns <= ended + _SLACK:
                    found += (*chain, state.name)
            if state.running and at_ns >= state.began_ns - _SLACK:
                found += (*state.chain, state.name)
        return tuple(found)


class Clock(threading.Thread):
    """A thread that starts actions at their times."""

    def __init__(self, states: list[State], start: Callable[[State, Run], object]) -> None:
        super().__init__(name="quire-action-clock", daemon=True)
        self._is_closing = threading.Event()
        self._start_run = start
        self._timetable = Timetable(
            [
                (state, Schedule.of(part.get("at")))
                for state in states
                for part in state.triggers
                if part.entry.name == "schedule"
            ],
            time.time(),
        )

    def run(self) -> None:
        """Starts actions until `close`."""
        while True:
            now = time.time()
            for state, schedule in self._timetable.due(now):
                self._start_run(state, Run("schedule", {"SCHEDULE": schedule.text}))
            # The clock of the machine may be set meanwhile.
            wait = min(max(self._timetable.next - time.time(), 0.0), 1.0)
            if self._is_closing.wait(wait):
                return

    def close(self) -> None:
        """Starts no more actions."""
        self._is_closing.set()


class Timetable:
    """The next times of schedules. It has no thread and no clock."""

    def __init__(self, entries: list[tuple[State, Schedule]], now: float) -> None:
        self._started = now
        self._entries = entries
        self._next = [schedule.after(now, now) for _, schedule in entries]

    @property
    def next(self) -> float:
        """When the next action is due."""
        return min(self._next, default=math.inf)

    def due(self, now: float) -> Iterator[tuple[State, Schedule]]:
        """The actions whose time has come. Times that were missed are skipped."""
        for index, (state, schedule) in enumerate(self._entries):
            at = self._next[index]
            if at <= now:
                self._next[index] = schedule.after(max(now, at), self._started, at)
                yield state, schedule
