"""The lines of the tables, by family. A table has one family, and the engines that do it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from . import brokers, last_values, replicated
from .engine import Broker, Engine, LastValues, Replicated
from .roles import Figures, Scale

Line = Callable[[Any, Any, Scale], Figures]

FAMILIES: dict[str, tuple[type[Engine], dict[str, Line]]] = {
    "logs and queues": (Broker, dict(brokers.LINES)),
    "last values": (LastValues, dict(last_values.LINES)),
    "two synced copies": (Replicated, dict(replicated.LINES)),
}
LINES: dict[str, Line] = {name: line for _, lines in FAMILIES.values() for name, line in lines.items()}


def lines_of(kind: type, wanted: Sequence[str]) -> list[str]:
    """Returns those of the wanted lines that engines of this kind do."""
    return [
        name
        for family, lines in FAMILIES.values()
        if issubclass(kind, family)
        for name in lines
        if name in wanted
    ]
