"""Counts the records of the log by their level."""

from __future__ import annotations

import logging
from typing import Final

from quire.admin._metrics import NODE_AT

#: The levels of Python, from above, and their names in the tree.
_LEVELS: Final = ((50, "critical"), (40, "error"), (30, "warning"), (20, "info"), (10, "debug"), (0, "trace"))


class LogCounter(logging.Handler):
    """A handler that writes nothing."""

    def __init__(self) -> None:
        super().__init__()
        self._counts = {metric.name: 0 for metric in NODE_AT["instance/logging"].metrics}

    def emit(self, record: logging.LogRecord) -> None:
        """Counts a record."""
        self._counts[next(name for level, name in _LEVELS if record.levelno >= level)] += 1

    def figures(self) -> dict[str, int]:
        """The numbers of records."""
        return dict(self._counts)
