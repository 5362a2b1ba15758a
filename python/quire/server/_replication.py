"""`server.replication`: the links of a running server to other instances."""

from __future__ import annotations

import json
from typing import Any

from quire import _quire
from quire._arguments import LinkAction, check_type


class ServerReplication:
    """The links of a server to other instances (docs/replication.md)."""

    def __init__(self, engine: _quire.Engine, address: str | None) -> None:
        self._engine = engine
        #: `HOST:PORT` where other instances connect; `None` when none can.
        self.address: str | None = address

    def stats(self) -> dict[str, Any]:
        """Returns the state of all links: `destinations` and `sources`, each with its figures."""
        stats: dict[str, Any] = json.loads(self._engine.replication())
        return stats

    def downgrade(self, destination: str) -> None:
        """Lets publishers no longer wait for a sync destination, until `upgrade`.

        Raises `ConfigError` for an unknown or async destination.
        """
        self._act(destination, "downgrade")

    def upgrade(self, destination: str) -> None:
        """Lets publishers wait for a sync destination again. Raises the errors of `downgrade`."""
        self._act(destination, "upgrade")

    def pause(self, destination: str) -> None:
        """Sends nothing to a destination until `resume`, or until the server is restarted.

        The journal keeps the files that the destination needs. Publishers wait for a sync
        destination as before. Raises `ConfigError` for an unknown destination.
        """
        self._act(destination, "pause")

    def resume(self, destination: str) -> None:
        """Connects to a paused destination, and sends what it lacks.

        A destination with a gap gets the records that are still in the journal
        (docs/replication.md, "Journal files"). Raises the errors of `pause`.
        """
        self._act(destination, "resume")

    def admit(self) -> list[dict[str, Any]]:
        """Lets clients in although the log may lack messages of other instances.

        Returns the instances that were not heard, each with `name`, `group` (it is the name of a
        group) and `last`, the bookmark of its last message that is known. Empty when clients were
        let in before.
        """
        stats = self.stats()
        self._engine.replicate("", "admit")
        not_heard: list[dict[str, Any]] = [] if stats["admitted"] else stats["not_heard"]
        return not_heard

    def accept(self, publisher: int | None = None) -> dict[str, Any]:
        """Accepts the messages that are missing as lost: all of them, or those of one publisher.

        Returns the figures of `stats`: `accepted` and `accepted_ranges` have the messages. The
        acceptance survives a restart. Raises `StorageFailedError` when it cannot be written.
        """
        if publisher is not None:
            check_type(publisher, int, "publisher")
        self._engine.replicate("" if publisher is None else str(publisher), "accept")
        return self.stats()

    def _act(self, destination: str, action: LinkAction) -> None:
        check_type(destination, str, "destination")
        self._engine.replicate(destination, action)
