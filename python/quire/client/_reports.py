"""The reports of a client: its state, its work, the figures of queues, and the state of its server."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from quire._errors import NameInUseError, QuireError
from quire._units import counted


@dataclass(frozen=True)
class DrainReport:
    """The work that was left when a client was drained.

    - `unpersisted`: publishes that are not known to be persisted; counted as in `Health`
    - `unprocessed`: messages that were received and not processed: held by the program, waiting for
      their handlers, or not taken
    - `failures`: the errors of publishes that the server refused or dropped, and that neither
      `flush` nor a receipt has raised
    """

    unpersisted: int
    unprocessed: int = 0
    failures: tuple[QuireError, ...] = ()

    @property
    def is_clean(self) -> bool:
        """Whether no work was left."""
        return self.unpersisted == 0 and self.unprocessed == 0 and not self.failures


@dataclass(frozen=True)
class SubscriptionHealth:
    """The state of one subscription.

    - `sub_id`, `topic`: the subscription
    - `most_recent`: the bookmark to resume after
    - `completed`: whether the replay has caught up with new messages
    - `last_heard`: the time at which a message, or the end of the replay, last arrived (UTC)
    - `missed`: messages of an ordinary subscription that came while earlier ones were not taken
    """

    sub_id: str
    topic: str
    most_recent: str | None
    completed: bool
    last_heard: datetime | None
    missed: int


@dataclass(frozen=True)
class Health:
    """The state of a client.

    - `state`: `"connecting"`, `"connected"`, `"reconnecting"` or `"closed"`
    - `persisted`: the highest sequence that is persisted
    - `unpersisted`: publishes that are not known to be persisted, and persisted ones of the same
      piece of 256 KiB, which the client keeps until all of it is persisted
    - `last_error`: why the last attempt to connect failed, if one did
    - `last_heard`: the time at which the last bytes came from the server (UTC)
    - `subscriptions`: the state of each subscription
    - `instance`: the name of the instance that the client is connected to
    """

    state: str
    persisted: int
    unpersisted: int
    last_error: str | None = None
    last_heard: datetime | None = None
    subscriptions: tuple[SubscriptionHealth, ...] = ()
    instance: str | None = None


@dataclass(frozen=True)
class WorkReport:
    """The numbers of deliveries that a worker processed, by outcome. Each delivery counts once.

    A message that is delivered again counts again. The outcome is the first verdict on the
    delivery: that of the handler (`ack`, `cancel` or `expire`), otherwise that of the worker, which
    acknowledges when the handler returns and cancels when it raises.

    - `acknowledged`: messages that were acknowledged
    - `cancelled`: messages that went back to their queue
    - `lost`: messages whose lease was over before their first verdict, so that another consumer may
      have them. An acknowledgement or an expiry was still sent. Also messages that the worker
      skipped, because their lease was over
    - `expired`: messages that the handler expired: they left their queue unprocessed
    """

    acknowledged: int
    cancelled: int
    lost: int
    expired: int = 0


@dataclass(frozen=True)
class ServerInfo:
    """The identity of a server, and the sizes and counts of its parts.

    - `name`: the name of the instance
    - `version`: the version of quire that it runs
    - `started`, `uptime`: when it started (UTC), and how long it has run, both by its own clock
    - `connections`, `subscriptions`, `queues`: how many there are now
    - `replay_lag`: the records of the log that the slowest replay has not received yet; paused
      replays do not count. `quire client ls --subscriptions` lists the lag of each replay
    - `topics`: topics that the log holds
    - `published`: messages since the start, refused ones and duplicates included
    - `delivered`: messages sent to subscriptions since the start
    - `persisted`: the position of the last persisted record, which is the number of records that
      there ever were
    - `unpersisted_bytes`: bytes that wait to be persisted
    - `journal_files`, `journal_size`: the files of the journal and their bytes, archived files
      included
    - `journal_failed`: whether the journal takes no more writes
    - `unreadable`: how often a message could not be read for a filter since the start
      (docs/filters.md section 12)
    - `user`: the user of this connection, if it has one

    Without the right `monitor` on `/quire/server`, only `name`, `version` and `user` are there.
    """

    name: str
    version: str
    started: datetime | None = None
    uptime: timedelta | None = None
    connections: int | None = None
    subscriptions: int | None = None
    replay_lag: int | None = None
    topics: int | None = None
    queues: int | None = None
    published: int | None = None
    delivered: int | None = None
    persisted: int | None = None
    unpersisted_bytes: int | None = None
    journal_files: int | None = None
    journal_size: int | None = None
    journal_failed: bool | None = None
    unreadable: int | None = None
    user: str | None = None


def server_info_of(figures: dict[str, Any]) -> ServerInfo:
    """From the figures of the server. A newer server may have more of them."""
    known = {name: figures[name] for name in ServerInfo.__dataclass_fields__ if name in figures}
    if "started_ns" in figures:
        started_ns, now_ns = figures["started_ns"], figures["now_ns"]
        known["started"] = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=started_ns // 1000)
        known["uptime"] = timedelta(microseconds=(now_ns - started_ns) // 1000)
    return ServerInfo(**known)


def failure_of_publishes(failed: list[tuple[int, BaseException]]) -> BaseException | None:
    """One exception for all refused or dropped publishes, with a note about the others.

    It is the error of dropped publishes if there is one, otherwise that of the first refused
    publish.
    """
    if not failed:
        return None
    dropped = (one for one in failed if isinstance(one[1], NameInUseError))
    sequence, error = next(dropped, failed[0])
    if isinstance(error, QuireError):
        error.sequence = sequence or None
        others = len(failed) - 1
        if not isinstance(error, NameInUseError):
            more = f", and {others:,} more since the last flush" if others else ""
            error.add_note(f"publish {sequence} was refused{more}")
        elif others:
            failed_too = counted(others, "more publish", "more publishes")
            error.add_note(f"{failed_too} failed since the last flush")
    return error


def text_of_failure(sequence: int, error: BaseException) -> str:
    """The failure of a publish for the log."""
    # The text of this error contains the number of publishes.
    return str(error) if isinstance(error, NameInUseError) else f"publish {sequence} was refused: {error}"


class QueueFigures(dict[str, Any]):
    """The figures of one queue (docs/queues.md section 10): a mapping from names to values, and its
    attributes.

        figures = client.queue_stats("jobs")["jobs"]
        assert figures.depth == figures["depth"]

    An attribute that the server does not have, because it is older, raises `AttributeError`.
    """

    message_type: str
    depth: int
    waiting: int
    delayed: int
    backlog: int
    max_backlog: int | None
    owned: int
    subscriptions: int
    age_of_oldest_lease_s: float | None
    age_of_oldest_s: float | None
    expired_leases: int
    inactive: int
    target_queue_depth: int | None
    deferred_acks: int
    catching_up: int
    takes_dead_letters: bool
    settled: int
    left_out: int
    strict: bool
    created: bool
    entered: int
    delivered: int
    acknowledged: int
    cancelled: int
    expired: int
    expired_time_limit: int
    expired_max_deliveries: int
    expired_max_cancels: int
    expired_forced_expire: int
    taken: int
    released: int
    dead_letters: int

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"the server has no figure {name!r} of queues") from None


class QueueStats(dict[str, QueueFigures]):
    """The figures of queues by the names of the queues. A missing name raises `KeyError` that says so."""

    def __missing__(self, name: str) -> QueueFigures:
        reason = f"no queue here has the name {name!r}"
        if name in QueueFigures.__annotations__:
            queue = next(iter(self), "QUEUE")
            reason = f"{name!r} is a figure, and the keys are names of queues: queue_stats({queue!r})[{queue!r}].{name}"
        raise KeyError(reason)
