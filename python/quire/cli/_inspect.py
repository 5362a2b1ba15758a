"""`quire info`, `quire topic` and `quire client`: show the state of a running server."""

from __future__ import annotations

from dataclasses import asdict
from datetime import timedelta

from cyclopts import App

import quire
from quire.cli import default_url
from quire.cli._app import Json, Url
from quire.cli._output import print_json, print_table

topic_app = App(name="topic", help="Show the topics of a server.", help_format="plaintext")
client_app = App(name="client", help="Show the clients of a server.", help_format="plaintext")

#: The columns of `topic ls`: key, heading.
TOPIC_COLUMNS = (
    ("topic", "topic"),
    ("message_type", "type"),
    ("recorded", "recorded"),
    ("subscriptions", "subscriptions"),
    ("queues", "queues"),
)

#: The columns of `client ls`: key, heading.
CLIENT_COLUMNS = (
    ("connection", "connection"),
    ("client_name", "client"),
    ("peer", "address"),
    ("subscriptions", "subscriptions"),
    ("sequence", "last sequence"),
    ("backlog_bytes", "backlog (bytes)"),
)


def info(url: str, *, as_json: bool) -> int:
    with quire.Client(url) as client:
        server = client.server_info()
    fields = asdict(server)
    if as_json:
        print_json(**{**fields, "uptime": server.uptime.total_seconds()})
        return 0
    fields["uptime"] = timedelta(seconds=round(server.uptime.total_seconds()))
    print_table(["server", url], [[name.replace("_", " "), value] for name, value in fields.items()])
    return 0


@topic_app.command(name="ls")
def topic_ls(*, url: Url = None, json: Json = False) -> int:
    """List the topics in the log, and the topics that connected clients publish or subscribe to.

    For example:
      quire topic ls
      quire topic ls --json | jq -r 'select(.recorded | not).topic'
    """
    with quire.Client(url or default_url()) as client:
        topics = client._topics()
    if json:
        for topic in topics:
            print_json(**topic)
        return 0
    rows = [
        {**topic, "recorded": "yes" if topic["recorded"] else "no", "queues": ", ".join(topic["queues"])}
        for topic in topics
    ]
    print_table(
        [heading for _, heading in TOPIC_COLUMNS], [[row[key] for key, _ in TOPIC_COLUMNS] for row in rows]
    )
    return 0


@client_app.command(name="ls")
def client_ls(*, url: Url = None, json: Json = False) -> int:
    """List the connections of a server. The connection of this command is one of them.

    For example:
      quire client ls
      quire client ls --json | jq 'select(.backlog_bytes > 1000000)'
    """
    with quire.Client(url or default_url()) as client:
        clients = client._clients()
    if json:
        for each in clients:
            print_json(**each)
        return 0
    rows = [[each[key] for key, _ in CLIENT_COLUMNS] for each in clients]
    print_table([heading for _, heading in CLIENT_COLUMNS], rows)
    return 0
