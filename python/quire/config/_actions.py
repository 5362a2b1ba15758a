"""The configuration of actions: `[[action]]` (docs/actions.md), and of event topics: `[events]`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

from pydantic import BeforeValidator, Field, field_validator

from quire._errors import QuireError
from quire._filter import Filter
from quire.config._mistakes import expected
from quire.config._model import Model
from quire.config._values import DurationLike, duration_between

_NAME: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,99}")


def _as_list(value: Any) -> Any:
    """A single trigger or step is accepted as a list with one entry."""
    return (value,) if isinstance(value, (str, Mapping)) else value


#: A table with one key, or the name of a trigger or step.
Parts = Annotated[tuple[str | dict[str, Any], ...], BeforeValidator(_as_list), Field(min_length=1)]


class Action(Model):
    """Steps that the server runs when a trigger fires."""

    name: str
    #: Whether the triggers start it.
    enabled: bool = True
    #: The triggers. Each of them starts the action.
    on: Parts
    #: The steps and conditions, in their order.
    do: Parts

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            name: str,
            enabled: bool = ...,
            on: str | Mapping[str, Any] | Sequence[str | Mapping[str, Any]],
            do: str | Mapping[str, Any] | Sequence[str | Mapping[str, Any]],
        ) -> None: ...

    @field_validator("name")
    @classmethod
    def _check_name(cls, value: str) -> str:
        if _NAME.fullmatch(value) is None:
            raise expected('1 to 100 letters, digits, "-", "_" or ".", not beginning with "."', value)
        return value


#: The topics of the messages that left a queue or a last-value topic, for actions.
LEFT_PATTERN: Final = "^/quire/Left/"


#: Triggers that need no events of clients.
_WITHOUT_CLIENTS: Final = (
    *("schedule", "startup", "shutdown", "signal", "admin", "event", "stuck"),
    *("replication_connect", "replication_disconnect", "replication_downgrade", "replication_upgrade"),
    *("replication_resync_complete", "incoming_connect", "incoming_disconnect"),
)


@dataclass(frozen=True)
class Wanted:
    """The events that actions need of the core."""

    #: Queues and last-value topics whose messages expire.
    expired: frozenset[str]
    #: Last-value topics whose records are deleted.
    deleted: frozenset[str]
    #: Deliveries: their names, topics and filters.
    delivered: tuple[tuple[str, str, str | None], ...]
    #: Events of clients: also for the names of publishers.
    clients: bool


def wanted_of(actions: Sequence[Action]) -> Wanted:
    """Returns what actions need of the core. Triggers with mistakes are left out."""
    expired, deleted, delivered, clients = set(), set(), [], False
    triggers = (
        (delivery_name(action.name, index), trigger)
        for action in actions
        if action.enabled
        for index, trigger in enumerate(action.on)
    )
    for delivery, trigger in triggers:
        name, value = (trigger, None) if isinstance(trigger, str) else next(iter(trigger.items()), ("", None))
        topic = value.get("topic") if isinstance(value, Mapping) else value
        clients |= name not in _WITHOUT_CLIENTS
        if isinstance(topic, str) and topic and not topic.startswith("/quire/"):
            if name == "deliver":
                filter = value.get("filter") if isinstance(value, Mapping) else None
                filter = filter if isinstance(filter, str) else None
                if _is_sound(topic, filter):
                    delivered.append((delivery, topic, filter))
            if name == "expire_message":
                expired.add(topic)
            if name == "delete_message":
                deleted.add(topic)
    return Wanted(frozenset(expired), frozenset(deleted), tuple(delivered), clients)


def _is_sound(topic: str, filter: str | None) -> bool:
    """Whether a pattern and a filter can be read. The check of actions reports those that cannot."""
    try:
        re.compile(topic)
        if filter is not None:
            Filter(filter)
    except (re.error, QuireError):
        return False
    return True


def delivery_name(action: str, index: int) -> str:
    """The name of the deliveries that a trigger `deliver` of an action wants."""
    return f"{action}/{index}"


class Events(Model):
    """The topics of the server itself."""

    #: The time between two messages on `/quire/SowStats` about a last-value topic. Default: there
    #: are none.
    sow_stats_interval: Annotated[float, duration_between("100ms")] | None = None

    if TYPE_CHECKING:

        def __init__(self, *, sow_stats_interval: DurationLike | None = ...) -> None: ...

    def to_core(self) -> dict[str, Any]:
        """In nanoseconds."""
        interval = self.sow_stats_interval
        return {"sow_stats_interval_ns": None if interval is None else round(interval * 1e9)}
