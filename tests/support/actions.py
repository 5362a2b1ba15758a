"""A server with actions, and an action that publishes the variables of its runs."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import quire
import quire.testing
from quire.actions._table import ALWAYS, TRIGGER_OF
from quire.testing import TestServer

from support.waiting import wait_until

#: The topic to which the action `seen` publishes.
SEEN = "seen"
#: Settings of a server with records, and of one with a queue.
RECORDS: dict[str, Any] = {"sow_topic": {"name": "records", "message_type": "json", "key": "/id"}}
QUEUE: dict[str, Any] = {
    "queue": {"name": "jobs", "message_type": "json", "max_deliveries": 1, "retry_delay": []}
}


def seen(on: Any, *steps: Any, name: str = "seen") -> dict[str, Any]:
    """An action that publishes every variable of its runs as JSON, after other steps."""
    trigger = on if isinstance(on, str) else next(iter(on))
    names = [*(each for each in ALWAYS if each != "BYTE_XX"), *TRIGGER_OF[trigger].variables]
    members = ", ".join(f'"{each}": {{{{{each}:json}}}}' for each in names)
    return {"name": name, "on": on, "do": [*steps, publish(SEEN, f"{{{members}}}")]}


def publish(topic: str, data: str) -> dict[str, Any]:
    return {"publish": {"topic": topic, "data": data}}


@contextmanager
def running(
    directory: Path, *actions: Mapping[str, Any], name: str = "one", **settings: Any
) -> Iterator[TestServer]:
    """A server with these actions, whose triggers have subscribed."""
    started = {"name": "started", "on": "startup", "do": {"log": "started"}}
    with quire.testing.server(directory, name=name, action=[*actions, started], **settings) as server:
        wait_until(lambda: runs(server, "started") == 1)
        yield server


@contextmanager
def lines_of(line_id: str) -> Iterator[list[logging.LogRecord]]:
    """The lines of the log of servers with this id, from now on. Other lines come at any time."""
    found: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = found.append  # type: ignore[method-assign,assignment]
    handler.addFilter(lambda record: getattr(record, "line_id", "") == line_id)
    logger = logging.getLogger("quire.server")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        yield found
    finally:
        logger.setLevel(level)
        logger.removeHandler(handler)


def figures(server: TestServer, name: str = "seen") -> dict[str, Any]:
    assert server._actions is not None
    return server._actions.figures()[name]


def runs(server: TestServer, name: str = "seen") -> int:
    """The runs of an action that have ended."""
    count: int = figures(server, name)["runs"]
    return count


def messages(server: TestServer, topic: str = SEEN) -> list[Any]:
    """The messages of a topic of the log, decoded from JSON."""
    with quire.Client(server.url) as client:
        found = client.subscribe(topic, bookmark=quire.EPOCH, until=quire.NOW)
        return [json.loads(message.data) for message in found]


def seen_by(server: TestServer, count: int = 1, name: str = "seen") -> list[dict[str, str]]:
    """The variables of the first runs of the action `seen`, when there are as many."""
    wait_until(lambda: runs(server, name) >= count)
    assert figures(server, name)["last_error"] == ""
    return messages(server)


@contextmanager
def carried(
    directory: Path, *steps: Any, data: Any = None, outcome: str = "ok", **settings: Any
) -> Iterator[TestServer]:
    """A server on which an action with these steps has run once."""
    action = {"name": "act", "on": {"publish": "go"}, "do": list(steps)}
    with running(directory, action, **settings) as server:
        with quire.Client(server.url, name="starter") as client:
            client.publish("go", {"id": 7} if data is None else data)
            client.flush()
        wait_until(lambda: runs(server, "act") == 1)
        assert figures(server, "act")["last_outcome"] == outcome, figures(server, "act")
        yield server
