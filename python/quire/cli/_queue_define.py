"""`quire queue create`, `alter` and `drop`: queues that are defined while the server runs."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from cyclopts import Parameter

import quire
from quire._units import counted
from quire.cli import default_url
from quire.cli._app import Json, Url
from quire.cli._connect import connect
from quire.cli._options import Flag, given
from quire.cli._output import print_json, say, visible

_Texts = Annotated[list[str] | None, Parameter(consume_multiple=True, negative="")]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Settings:
    """The options of `create`.

    Parameters
    ----------
    underlying_topic
        Topic whose messages enter, or a pattern. Default: the topic with the name of the queue.
    message_type
        Type of the messages. Default: the message type that the log has for the topic.
    default_publish_target
        Topic of messages that are published to the queue. Default: the underlying topic.
    semantics
        at-least-once or at-most-once.
    fairness_model
        Rule that chooses the consumer of a message: fast, round-robin or proportional.
    lease_period
        Time for which a consumer may hold a message, such as 30s, or disabled. Default: 5m.
    leasing
        With strict, only the holder of a message can acknowledge it. With sublease, every consumer can.
    max_backlog
        Limit of leased messages of the queue.
    max_per_subscription_backlog
        Limit of leased messages of one subscription.
    max_deliveries
        Limit of deliveries of a message. Then the message expires.
    max_cancels
        Limit of cancels of a message. One more, and the message expires.
    retry_delay
        Times that a message waits after its first cancel, its second, and so on, or 0s. Default: 100ms 1s 10s 1m.
    expiration
        Lifetime of a message in the queue, such as 1h.
    expiration_model
        Rule for a message that has its own expiration.
    filter
        Content filter. Only messages that match it enter.
    priority
        Expression that gives the priority of a message. Higher values come first.
    barrier_expression
        Filter. A message that matches waits until all messages before it are settled.
    target_queue_depth
        Limit of messages that the queue looks at. The others wait in the log.
    recovery_point
        now: the queue begins with the next message. epoch: it begins with the first message of the log. Default: now.
    dead_letter_topic
        Topic, or queue, that gets the messages that expire.
    file_backed_metadata
        Keep the state in a file, for a faster restart.
    record_leases
        Record in the log which consumer had which message.
    """

    underlying_topic: Annotated[str | None, Parameter(name=["--underlying-topic", "--topic"])] = None
    message_type: str | None = None
    default_publish_target: str | None = None
    semantics: Literal["at-least-once", "at-most-once"] | None = None
    fairness_model: Literal["fast", "round-robin", "proportional"] | None = None
    lease_period: str | None = None
    leasing: Literal["strict", "sublease"] | None = None
    max_backlog: int | None = None
    max_per_subscription_backlog: int | None = None
    max_deliveries: int | None = None
    max_cancels: int | None = None
    retry_delay: _Texts = None
    expiration: str | None = None
    expiration_model: Literal["message", "queue", "minimum"] | None = None
    filter: str | None = None
    priority: str | None = None
    barrier_expression: str | None = None
    target_queue_depth: int | None = None
    recovery_point: Literal["now", "epoch"] | None = None
    dead_letter_topic: str | None = None
    file_backed_metadata: Flag = False
    record_leases: Flag = False


def create(queue: str, *, url: Url = None, settings: Settings = Settings(), json: Json = False) -> int:
    """Create a queue on a running server. It survives a restart.

    When the queue exists with the same settings, nothing changes.
    The options are the keys of [[queue]] in a configuration.

    For example:
      quire queue create RISK --topic orders --lease-period 30s --max-deliveries 5
      quire queue create RISK --topic orders --retry-delay 1s 10s 1m --dead-letter-topic dead

    Parameters
    ----------
    queue
        Name of the queue.
    """
    said: Any = given(settings)
    if settings.file_backed_metadata:
        said["file_backed_metadata"] = "enabled"
    with quire.Client(url or default_url()) as client:
        created = client.create_queue(queue, **said)
    if json:
        print_json(queue=queue, created=created)
    else:
        say(f"queue {queue} created" if created else f"queue {queue} exists with these settings")
    return 0


#: The settings that `alter` can change.
Alterable = Literal[
    "lease-period",
    "leasing",
    "max-backlog",
    "max-per-subscription-backlog",
    "max-deliveries",
    "max-cancels",
    "retry-delay",
    "expiration",
    "expiration-model",
    "dead-letter-topic",
    "record-leases",
]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Changes:
    """The options of `alter`.

    Parameters
    ----------
    lease_period
        Time for which a consumer may hold a message, such as 30s, or disabled. It applies to the next deliveries.
    leasing
        With strict, only the holder of a message can acknowledge it. With sublease, every consumer can.
    max_backlog
        Limit of leased messages of the queue.
    max_per_subscription_backlog
        Limit of leased messages of one subscription. It applies to subscriptions that begin later.
    max_deliveries
        Limit of deliveries of a message. Then the message expires.
    max_cancels
        Limit of cancels of a message. One more, and the message expires.
    retry_delay
        Times that a message waits after its first cancel, its second, and so on.
    expiration
        Lifetime of a message in the queue, such as 1h. It applies to messages that are recorded later.
    expiration_model
        Rule for a message that has its own expiration. It applies to messages that are recorded later.
    dead_letter_topic
        Topic, or queue, that gets the messages that expire.
    record_leases
        Record in the log which consumer had which message.
    reset
        Settings that get their defaults.
    """

    lease_period: str | None = None
    leasing: Literal["strict", "sublease"] | None = None
    max_backlog: int | None = None
    max_per_subscription_backlog: int | None = None
    max_deliveries: int | None = None
    max_cancels: int | None = None
    retry_delay: _Texts = None
    expiration: str | None = None
    expiration_model: Literal["message", "queue", "minimum"] | None = None
    dead_letter_topic: str | None = None
    record_leases: Flag = False
    reset: Annotated[list[Alterable] | None, Parameter(consume_multiple=True, negative="")] = None


def alter(queue: str, *, url: Url = None, changes: Changes = Changes(), json: Json = False) -> int:
    """Change settings of a queue that was created with create. Its messages and leases stay as they are.

    Settings that are not named stay as they are. The other options of create cannot be changed.

    For example:
      quire queue alter RISK --lease-period 1m --max-deliveries 10
      quire queue alter RISK --retry-delay 1s 30s --reset dead-letter-topic expiration

    Parameters
    ----------
    queue
        Name of the queue.
    """
    said: Any = given(changes)
    for name in said.pop("reset", ()):
        key = name.replace("-", "_")
        if key in said:
            raise quire.ConfigError(f"alter: --{name} and --reset {name} exclude each other")
        said[key] = None
    if not said:
        raise quire.ConfigError("alter: give at least one setting, such as --lease-period 1m")
    with connect(url) as client:
        altered = client.alter_queue(queue, **said)
    if json:
        print_json(queue=queue, altered=altered)
    else:
        say(f"queue {queue} altered" if altered else f"queue {queue} has these settings")
    return 0


def drop(
    queue: str,
    *,
    url: Url = None,
    yes: Annotated[bool, Parameter(negative="", help="Drop the queue also when it has messages.")] = False,
    json: Json = False,
) -> int:
    """Drop a queue that was created with create. Its subscriptions end, and its messages stay in the log.

    Also drops the messages of a queue that left the configuration, which the server still keeps.

    For example:
      quire queue drop RISK
      quire queue drop RISK --yes

    Parameters
    ----------
    queue
        Name of the queue.
    """
    with connect(url) as client:
        # Without figures, the queue left the configuration with messages, or there is no such
        # queue.
        figures = client.queue_stats().get(queue)
        # A user without the right `monitor` does not see how many messages it has.
        if figures is not None and not figures and not yes:
            raise quire.ConfigError(
                f"drop: you may not see whether queue {queue} has messages; add --yes to drop it with its messages"
            )
        count = figures["depth"] + figures["inactive"] if figures else 0
        if figures and figures.get("created", True) and count and not yes:
            raise quire.ConfigError(
                f"drop: queue {queue} has {counted(count, 'message')}; add --yes to drop it with its messages"
            )
        if not figures and not yes:
            raise quire.UnknownQueueError(
                f"drop: no queue has the name {queue!r}. If the server keeps messages of a queue that left the configuration, "
                "add --yes to give them up"
            )
        report = client.drop_queue(queue)
    if json:
        print_json(queue=queue, dropped=report.messages, warnings=list(report.warnings))
        return 0
    say(f"queue {queue} dropped, {counted(report.messages, 'message')}")
    for warning in report.warnings:
        print(f"warning: {visible(warning)}", file=sys.stderr)
    return 0
