"""The lines of the tables, by family. A table has one family, and the engines that do it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from . import brokers, last_values, replicated, sums
from .engine import Broker, Engine, LastValues, Replicated, Sums
from .roles import Figures, Scale

Line = Callable[[Any, Any, Scale], Figures]

FAMILIES: dict[str, tuple[type[Engine], dict[str, Line]]] = {
    "logs and queues": (Broker, dict(brokers.LINES)),
    "last values": (LastValues, dict(last_values.LINES)),
    "sums of groups": (Sums, dict(sums.LINES)),
    "two synced copies": (Replicated, dict(replicated.LINES)),
}
LINES: dict[str, Line] = {name: line for _, lines in FAMILIES.values() for name, line in lines.items()}

#: The line that writes what a line reads.
_BASES = {
    "replay": "publish-1",
    "update": "insert",
    "get": "insert",
    "query": "insert",
    "watch": "insert",
    "update-indexed": "insert-indexed",
    "query-indexed": "insert-indexed",
    "sums-update": "sums-insert",
}


def with_bases(wanted: Sequence[str]) -> list[str]:
    """Returns the wanted lines and those that they need, in the order in which they run."""
    needed = {*wanted, *(_BASES[name] for name in wanted if name in _BASES)}
    return [name for name in LINES if name in needed]


def lines_of(kind: type, wanted: Sequence[str]) -> list[str]:
    """Returns those of the wanted lines that engines of this kind do."""
    return [
        name
        for family, lines in FAMILIES.values()
        if issubclass(kind, family)
        for name in lines
        if name in wanted
    ]
