"""The log of failures of handlers: a message that fails again and again does not flood it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from time import monotonic

from quire._message import Message

logger = logging.getLogger("quire.client")

#: The shortest time between two log lines about one message, in seconds.
INTERVAL = 60.0

#: Messages whose failures are counted. Those that were logged least recently are dropped first, and
#: are logged again at once.
MESSAGES_MAX = 1024


class FailureLog:
    """Logs the failures of handlers of one client: each message once per minute at most."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        #: By topic and bookmark: when the message was logged last, and its failures since then. In
        #: the order of these times.
        self._logged: dict[tuple[str, str], tuple[float, int]] = {}

    def log(self, text: str, message: Message, error: BaseException) -> None:
        """Logs `text` and the error, unless the message was logged less than a minute ago."""
        left_out = self._left_out(message)
        if left_out is None:
            return
        if left_out:
            text += f" ({left_out} more failures of this message were not logged)"
        fields = {
            "quire_topic": message.topic,
            "quire_bookmark": message.bookmark,
            "quire_sub_id": message.sub_id,
        }
        logger.error("%s: %r", text, message, exc_info=error, extra=fields)

    def _left_out(self, message: Message) -> int | None:
        """The failures that were not logged, to be logged with this one; `None`: this one is not
        logged either."""
        if message.bookmark is None:
            return 0
        key, now = (message.topic, message.bookmark), self._clock()
        with self._lock:
            at, left_out = self._logged.get(key, (now - INTERVAL, 0))
            if now - at < INTERVAL:
                self._logged[key] = (at, left_out + 1)
                return None
            self._logged.pop(key, None)
            self._logged[key] = (now, 0)
            if len(self._logged) > MESSAGES_MAX:
                del self._logged[next(iter(self._logged))]
            return left_out
