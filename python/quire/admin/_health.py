"""The values for `/healthz` and `/readyz`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

#: Seconds without a turn of the server after which it is stuck.
STUCK_AFTER: Final = 10.0


class Health:
    """The values for `/healthz` and `/readyz`. The server sets them, and any thread reads them."""

    def __init__(self) -> None:
        self.recovered = False
        self.listening = False
        self.stopping = False
        #: Seconds since the loop of the server has run last.
        self.idle: Callable[[], float] = lambda: 0.0

    @property
    def is_stuck(self) -> bool:
        """Whether the loop of the server does not run."""
        return self.idle() > STUCK_AFTER
