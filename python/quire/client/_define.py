"""Queues that are created, altered and dropped at run time (docs/queues.md section 14), and views
that get other definitions (docs/views.md section 8): the settings, and the answers of the server."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Required, TypedDict

from quire._arguments import check_type
from quire._filter import MessageType
from quire._units import Duration


class QueueSettings(TypedDict, total=False):
    """The keys of `[[queue]]` without `name` (docs/queues.md section 8)."""

    #: Left out, the message type that the transaction log has for the topic.
    message_type: str
    underlying_topic: str
    default_publish_target: str
    semantics: Literal["at-least-once", "at-most-once"]
    fairness_model: Literal["fast", "round-robin", "proportional"]
    #: `"disabled"`: without end.
    lease_period: Duration
    leasing: Literal["strict", "sublease"]
    max_backlog: int
    max_per_subscription_backlog: int
    max_deliveries: int
    max_cancels: int
    retry_delay: Sequence[Duration]
    expiration: Duration
    expiration_model: Literal["message", "queue", "minimum"]
    filter: str
    priority: str
    barrier_expression: str
    target_queue_depth: int
    #: The queue begins with the next message, or with the first one of the log.
    recovery_point: Literal["now", "epoch"]
    dead_letter_topic: str
    file_backed_metadata: Literal["enabled", "disabled"]
    record_leases: bool


class QueueChanges(TypedDict, total=False):
    """The settings of a queue that `alter_queue` can change (docs/queues.md section 14). `None` is
    the default of the key."""

    lease_period: Duration | None
    leasing: Literal["strict", "sublease"] | None
    max_backlog: int | None
    max_per_subscription_backlog: int | None
    max_deliveries: int | None
    max_cancels: int | None
    retry_delay: Sequence[Duration] | None
    expiration: Duration | None
    expiration_model: Literal["message", "queue", "minimum"] | None
    dead_letter_topic: str | None
    record_leases: bool | None


class ViewSettings(TypedDict, total=False):
    """The keys of `[[view]]` without `name` (docs/views.md section 1)."""

    #: Left out, that of the view. Another one is refused.
    message_type: MessageType
    underlying_topic: str | None
    join: str | Sequence[str]
    projection: Required[str | Sequence[str]]
    grouping: str | Sequence[str]
    filter: str | None
    hash_index: Sequence[str | Sequence[str]]
    index: str | Sequence[str]
    key_domain: str | None
    inline_conflation: bool


@dataclass(frozen=True)
class DropReport:
    """A queue that was dropped."""

    #: Messages that it had: waiting, delayed, leased and inactive ones.
    messages: int
    #: One text for each queue whose dead letters no queue takes any more.
    warnings: tuple[str, ...] = ()


def settings_to_core(name: str, settings: QueueSettings) -> str:
    """Returns the settings as the server reads them: JSON. Raises `ConfigError` that names the key."""
    # The configuration is not needed by clients that create no queue.
    from quire.config._models import queue_of

    check_type(name, str, "name")
    given: dict[str, Any] = {**settings, "name": name}
    core = queue_of({"message_type": "json", **given}).to_core()
    if "message_type" not in given:
        core["message_type"] = ""
    return json.dumps(core)


def changes_to_core(name: str, changes: QueueChanges) -> str:
    """Returns the changes as the server reads them: JSON with the given keys. Raises `ConfigError`
    that names the key."""
    from quire.config._models import Queue, queue_of

    check_type(name, str, "name")
    given: dict[str, Any] = {**changes}
    # Some keys do not take `None`. An unknown key is refused with any value.
    values = {
        key: value for key, value in given.items() if value is not None or key not in Queue.model_fields
    }
    core = queue_of({"message_type": "json", **values, "name": name}).to_core()
    names = {key: key if key in core else f"{key}_ns" for key in given}
    if "max_queue_depth" in names:
        names["max_queue_depth"] = "target_queue_depth"
    # `core` has the default of a key whose value is `None`. The server has the defaults that depend
    # on the semantics.
    of_the_server = {
        key: None for key in ("lease_period", "retry_delay") if key in given and given[key] is None
    }
    return json.dumps(
        {**of_the_server, **{name: core[name] for key, name in names.items() if key not in of_the_server}}
    )


def definition_to_core(name: str, settings: ViewSettings) -> str:
    """Returns the definition as the server reads it: JSON. Raises `ConfigError` that names the key."""
    from quire.config._last_values import view_of

    check_type(name, str, "name")
    given: dict[str, Any] = {**settings, "name": name}
    core = view_of({"message_type": "json", **given}).to_core()
    if "message_type" not in given:
        core["message_type"] = ""
    return json.dumps(core)
