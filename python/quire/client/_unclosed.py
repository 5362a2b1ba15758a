"""Flushes the publishes of a client that the program does not close, for a limited time."""

from __future__ import annotations

import logging
import os
import warnings
import weakref
from collections.abc import Callable
from typing import Any, Final

from quire import _quire
from quire._errors import QuireError
from quire._units import counted
from quire.client._reports import text_of_failure

logger = logging.getLogger("quire.client")

#: Seconds that an unclosed client may delay the end of its program.
FLUSH_TIMEOUT: Final = 5.0


def finish_when_dropped(
    client: object, core: _quire.Client, close_stores: Callable[[], None], detach: Callable[[], None]
) -> weakref.finalize[..., Any]:
    """Flushes and ends the core when the client is collected, or at the end of the program, and
    then calls the other two functions.

    Detach it when the client is closed.
    """
    return weakref.finalize(client, _finish, core, close_stores, detach, repr(client), os.getpid())


def _finish(
    core: _quire.Client,
    close_stores: Callable[[], None],
    detach: Callable[[], None],
    name: str,
    process: int,
) -> None:
    if os.getpid() != process:
        return  # The child of a fork: the client belongs to the parent.
    try:
        if core.state == "connected" and (core.unpersisted_count or core.unconfirmed_count):
            core.wait(core.flush(), FLUSH_TIMEOUT)
        reason = (
            f"it was given {FLUSH_TIMEOUT:g} s" if core.state == "connected" else "there is no connection"
        )
    except QuireError as error:
        reason = str(error)
    is_open = core.state != "closed"
    left = core.close(0)
    close_stores()
    detach()
    for sequence, refused in core.take_failed_publishes():
        logger.error("%s was not closed: %s", name, text_of_failure(sequence, refused))
    if left:
        unknown = counted(left, "publish is", "publishes are")
        logger.error("%s was not closed, and %s not known to be persisted: %s", name, unknown, reason)
    if is_open:
        warnings.warn(f"{name} was not closed: use `with`, or call close()", ResourceWarning, stacklevel=2)
