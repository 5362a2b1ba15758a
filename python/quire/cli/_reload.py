"""`quire reload`: a server reads its configuration again."""

from __future__ import annotations

from quire._errors import ConfigError, QuireError
from quire.cli._connect import connect
from quire.cli._output import say


def reload(url: str | None) -> int:
    """Prints the keys that have changed."""
    with connect(url) as client:
        try:
            keys = client._reload()
        except ConfigError as error:
            # The command is right. The configuration of the server is not.
            raise QuireError(error._reason) from None
    say(f"reloaded: {', '.join(keys)}" if keys else "reloaded: nothing has changed")
    return 0
