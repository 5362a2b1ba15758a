"""The lines of the tables, by family. A table has one family, and the engines that do it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import brokers, last_values
from .engine import Broker, Engine, LastValues, NotOffered
from .roles import Figures, Scale
from .server import Server

Line = Callable[[Any, Server, Scale], Figures]


def _of(kind: type, line: Line) -> Line:
    def checked(engine: Engine, server: Server, scale: Scale) -> Figures:
        if not isinstance(engine, kind):
            raise NotOffered(f"{engine.name} is not compared as {kind.__name__}")
        return line(engine, server, scale)

    return checked


FAMILIES: dict[str, dict[str, Line]] = {
    "logs and queues": {name: _of(Broker, line) for name, line in brokers.LINES.items()},
    "last values": {name: _of(LastValues, line) for name, line in last_values.LINES.items()},
}
LINES: dict[str, Line] = {name: line for family in FAMILIES.values() for name, line in family.items()}
