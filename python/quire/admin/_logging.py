"""Counts the records of the log by their level."""

from __future__ import annotations

import logging
from typing import Final

from quire.admin._metrics import NODE_AT

#: The levels of Python, from above, and their names in the tree.
_LEVELS: Final = ((50, "critical"), (40, "error"), (30, "warning"), (20, "info"), (10, "debug"), (0, "trace"))


_log = logging.getLogger("quire.server")


class LogCounter:
    """Counts from its creation to its end.

    It is a filter of the logger, and not a handler: without a handler, Python prints warnings to
    the standard error stream, and still does.
    """

    def __init__(self) -> None:
        self._counts = {metric.name: 0 for metric in NODE_AT["instance/logging"].metrics}
        _log.addFilter(self._count)

    def close(self) -> None:
        """Counts no more records."""
        _log.removeFilter(self._count)

    def _count(self, record: logging.LogRecord) -> bool:
        self._counts[next(name for level, name in _LEVELS if record.levelno >= level)] += 1
        return True

    def figures(self) -> dict[str, int]:
        """The numbers of records."""
        return dict(self._counts)
