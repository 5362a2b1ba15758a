"""The reports of a client: its state, its work, and the state of its server."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from quire._errors import QuireError


@dataclass(frozen=True)
class DrainReport:
    """The work that was left when a client was drained."""

    #: Publishes that are not known to be persisted.
    unpersisted: int
    #: Messages that were received and not processed: held by the program, waiting for their handlers, or not taken.
    unprocessed: int = 0

    @property
    def is_clean(self) -> bool:
        """Whether no work was left."""
        return self.unpersisted == 0 and self.unprocessed == 0


@dataclass(frozen=True)
class SubscriptionHealth:
    """The state of one subscription."""

    sub_id: str
    topic: str
    most_recent: str | None
    completed: bool
    #: The time at which a message, or the end of the replay, last arrived (UTC).
    last_heard: datetime | None
    #: Messages of an ordinary subscription that came while those before them were not taken: docs/clients.md, "Bounds".
    missed: int


@dataclass(frozen=True)
class Health:
    """The state of a client."""

    state: str
    persisted: int
    unpersisted: int
    #: Why the last attempt to connect failed, if one did.
    last_error: str | None = None
    #: The time at which the last bytes came from the server (UTC).
    last_heard: datetime | None = None
    subscriptions: tuple[SubscriptionHealth, ...] = ()


@dataclass(frozen=True)
class WorkReport:
    """The numbers of messages that a worker processed, by outcome."""

    #: The handler returned.
    acknowledged: int
    #: The handler raised: the message went back to the queue.
    cancelled: int
    #: The lease was over before the handler returned or raised: another consumer may have the message. An acknowledgement was
    #: still sent (docs/clients.md, Queues). Also messages that were skipped because their lease was over.
    lost: int


@dataclass(frozen=True)
class ServerInfo:
    """The identity of a server, and the sizes and counts of its parts."""

    #: The name of the instance.
    name: str
    #: The version of quire that it runs.
    version: str
    #: When it started (UTC), and how long it has run, both by its own clock.
    started: datetime
    uptime: timedelta
    connections: int
    subscriptions: int
    #: Topics that the log holds.
    topics: int
    queues: int
    #: Messages since the start, refused ones and duplicates included.
    published: int
    #: Messages sent to subscriptions since the start.
    delivered: int
    #: Position of the last record that is persisted: how many records there ever were.
    persisted: int
    #: Bytes that wait to be persisted.
    unpersisted_bytes: int
    journal_files: int
    #: Bytes of the journal files, archived ones included.
    journal_size: int
    #: The journal takes no more writes.
    journal_failed: bool


def server_info_of(figures: dict[str, Any]) -> ServerInfo:
    """From the figures of the server. A newer server may have more of them."""
    started_ns, now_ns = figures["started_ns"], figures["now_ns"]
    names = [name for name in ServerInfo.__dataclass_fields__ if name in figures]
    return ServerInfo(
        started=datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=started_ns // 1000),
        uptime=timedelta(microseconds=(now_ns - started_ns) // 1000),
        **{name: figures[name] for name in names},
    )


def failure_of_publishes(failed: list[tuple[int, BaseException]]) -> BaseException | None:
    """One exception for all refused publishes, the first of them with a note about the others."""
    if not failed:
        return None
    sequence, error = failed[0]
    if isinstance(error, QuireError):
        error.sequence = sequence or None
        error.add_note(f"publish {sequence} was refused, and {len(failed) - 1} more since the last flush")
    return error
