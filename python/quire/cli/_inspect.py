"""`quire info`, `quire topic` and `quire client`: show the state of a running server."""

from __future__ import annotations

import contextlib
import re
from dataclasses import asdict
from datetime import timedelta
from typing import Annotated, Any, Final

from cyclopts import App, Parameter

import quire
from quire._errors import ConfigError
from quire._units import seconds
from quire.cli import default_url
from quire.cli._app import Json, Url
from quire.cli._connect import connect
from quire.cli._output import print_json, print_table, say
from quire.cli._replication import note_filling

topic_app = App(name="topic", help="Show the topics of a server.", help_format="plaintext")
client_app = App(
    name="client", help="Show the clients of a server, and end their connections.", help_format="plaintext"
)

#: The longest time in seconds that a client name can be blocked: milliseconds in 32 bits.
_BLOCK_MAX: Final = 49 * 86400.0

#: Figures of `info` that need more than the name of their key.
INFO_NAMES = {
    "published": "messages published since the start",
    "delivered": "messages delivered since the start",
    "persisted": "records persisted since the log began",
    "unreadable": "messages not readable for a filter",
}

#: The columns of `topic ls`: key, heading.
TOPIC_COLUMNS = (
    ("topic", "topic"),
    ("message_type", "type"),
    ("recorded", "recorded"),
    ("subscriptions", "subscriptions"),
    ("queues", "queues"),
    ("records", "records"),
)

#: The columns of `client ls`: key, heading.
CLIENT_COLUMNS = (
    ("connection", "connection"),
    ("client_name", "client"),
    ("peer", "address"),
    ("subscriptions", "subscriptions"),
    ("sequence", "last sequence"),
    ("backlog_bytes", "backlog (bytes)"),
    ("offlined_bytes", "on disk (bytes)"),
)


#: The columns of `client ls --subscriptions`: key, heading.
SUBSCRIPTION_COLUMNS = (
    ("connection", "connection"),
    ("client_name", "client"),
    ("subscription", "subscription"),
    ("kind", "kind"),
    ("topic", "topic"),
    ("filter", "filter"),
    ("position", "position"),
    ("lag", "lag (records)"),
    ("lag_s", "lag (s)"),
    ("backlog", "backlog"),
    ("paused", "paused"),
)


def info(url: str | None, *, as_json: bool) -> int:
    with connect(url) as client:
        server = client.server_info()
        # Only an addition, for users who may see the links.
        with contextlib.suppress(quire.NotEntitledError):
            if not as_json:
                note_filling(client._replication())
    fields = {name: value for name, value in asdict(server).items() if value is not None}
    if as_json:
        if server.uptime is not None:
            fields["uptime"] = server.uptime.total_seconds()
        print_json(**fields)
        return 0
    if server.uptime is not None:
        fields["uptime"] = timedelta(seconds=round(server.uptime.total_seconds()))
    rows = [[INFO_NAMES.get(name, name.replace("_", " ")), value] for name, value in fields.items()]
    print_table(["server", url or default_url()], rows)
    return 0


@topic_app.command(name="ls")
def topic_ls(*, url: Url = None, json: Json = False) -> int:
    """List the topics of the log, the last-value topics, and the topics that clients publish or subscribe to.

    The name of a queue with another topic is listed, too: the log records acknowledgements under it.
    A queue without underlying_topic is over the topic with its own name.
    This topic is listed, and stays in the log when the queue is dropped.
    `quire queue ls` lists the queues.

    For example:
      quire topic ls
      quire topic ls --json | jq -r 'select(.recorded | not).topic'
      quire topic ls --json | jq 'select(.last_values) | {topic, records: .last_values.records}'
    """
    with connect(url) as client:
        topics = client._topics()
    if json:
        for topic in topics:
            print_json(**topic)
        return 0
    rows = [
        {
            **topic,
            "queues": ", ".join(topic["queues"]),
            "records": (topic.get("last_values") or {"records": ""})["records"],
        }
        for topic in topics
    ]
    print_table(
        [heading for _, heading in TOPIC_COLUMNS], [[row[key] for key, _ in TOPIC_COLUMNS] for row in rows]
    )
    return 0


@topic_app.command(name="stats")
def topic_stats(name: str, *, url: Url = None, json: Json = False) -> int:
    """Show one topic: whether it is recorded, its queues and subscriptions, and the records of a last-value topic.

    For example:
      quire topic stats orders
      quire topic stats orders --json | jq .last_values.memory

    Parameters
    ----------
    name
        Name of the topic.
    """
    with connect(url) as client:
        described = client._described_of([name])
    if not described:
        raise quire.QuireError(f"the server has no topic {name!r}; `quire topic ls` lists the topics")
    (topic,) = described
    if json:
        print_json(**topic)
        return 0
    values = topic.pop("last_values", None)
    topic["recorded"] = "yes" if topic["recorded"] else "no"
    topic["queues"] = ", ".join(topic["queues"]) or "none"
    topic["last values"] = "no" if values is None else "yes"
    if values is not None:
        without_key = (
            "none" if values.pop("view", None) or "underlying_topic" in values else "supplied by publishers"
        )
        if "join" in values:
            values["join"] = ", ".join(values["join"])
        values["key"] = ", ".join(values["key"]) or without_key
        topic |= values
    print_table(
        ["topic", topic.pop("topic")], [[key.replace("_", " "), value] for key, value in topic.items()]
    )
    return 0


@client_app.command(name="ls")
def client_ls(*, subscriptions: bool = False, url: Url = None, json: Json = False) -> int:
    """List the connections of a server. The connection of this command is one of them.

    For example:
      quire client ls
      quire client ls --json | jq 'select(.backlog_bytes > 1000000)'
      quire client ls --subscriptions
      quire client ls --subscriptions --json | jq 'select(.lag > 100000)'

    Parameters
    ----------
    subscriptions
        List the subscriptions of the connections, with the lag of replays and the messages that queues have sent.
        The lag counts the records of all topics.
    """
    with connect(url) as client:
        found = client._subscription_figures() if subscriptions else client._clients()
    if json:
        for each in found:
            print_json(**each)
        return 0
    columns = SUBSCRIPTION_COLUMNS if subscriptions else CLIENT_COLUMNS
    if subscriptions:
        found = [_with_texts(each) for each in found]
    rows = [[each[key] for key, _ in columns] for each in found]
    print_table([heading for _, heading in columns], rows)
    return 0


@client_app.command
def disconnect(
    name: str | None = None,
    /,
    *,
    pattern: Annotated[
        str | None,
        Parameter(help="Regular expression, instead of NAME. It must match the whole client name."),
    ] = None,
    block: Annotated[
        str | None,
        Parameter(help="Time in which the clients cannot log on again, such as 5m. The longest is 49d."),
    ] = None,
    url: Url = None,
) -> int:
    """End connections of clients, and show how many.

    The clients connect again, with --block after this time.
    The command needs the rights monitor and admin on /quire/clients.
    Exit code 1: no connection has the name.

    For example:
      quire client disconnect orders-worker
      quire client disconnect 17
      quire client disconnect --pattern 'batch-.*' --block 10m

    Parameters
    ----------
    name
        Client name, or the number of a connection.
    """
    if (name is None) == (pattern is None):
        raise ConfigError("name a client, or use --pattern", key="NAME")
    blocked = 0.0 if block is None else seconds(block, "--block")
    if blocked > _BLOCK_MAX:
        raise ConfigError(f"{block!r} is longer than 49 days", key="--block")
    try:
        wanted = re.compile(re.escape(name) if pattern is None and name is not None else pattern or "")
    except re.error as error:
        raise ConfigError(f"no regular expression: {error}", key="--pattern") from None
    with connect(url) as client:
        found = [
            each["connection"]
            for each in client._clients()
            if each["client_name"] != client.name
            and (wanted.fullmatch(each["client_name"]) or str(each["connection"]) == name)
        ]
        count = sum(client._disconnect(connection, blocked) for connection in found)
    say(f"disconnected: {count}")
    return 0 if count else 1


def _with_texts(subscription: dict[str, Any]) -> dict[str, Any]:
    """Replaces figures that a subscription does not have by empty text."""
    shown = {key: "" if value is None else value for key, value in subscription.items()}
    if subscription["lag_s"] is not None:
        shown["lag_s"] = round(subscription["lag_s"], 1)
    if subscription["max_backlog"] is not None:
        shown["backlog"] = f"{subscription['backlog']} of {subscription['max_backlog']}"
    return shown | {"paused": "yes" if subscription["paused"] else "no"}
