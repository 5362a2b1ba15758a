"""`quire queue`: shows, creates, alters and drops queues, removes messages from them, and publishes dead letters again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from cyclopts import App, Parameter

import quire
from quire._units import counted
from quire.cli import default_url
from quire.cli._app import Json, JsonFormat, Url
from quire.cli._connect import connect
from quire.cli._messages import sow
from quire.cli._options import Format, SowOptions
from quire.cli._output import check_count, note, print_json, print_table, say
from quire.cli._queue_define import alter, create, drop
from quire.client._redrive import purge as remove
from quire.client._redrive import redrive as put_back

app = App(
    name="queue",
    help="Show, create, alter and drop queues, remove messages from them, and publish dead letters again.",
    help_format="plaintext",
)

#: The columns of `ls`: figure, heading.
COLUMNS = (
    ("depth", "depth"),
    ("waiting", "waiting"),
    ("delayed", "delayed"),
    ("backlog", "leased"),
    ("subscriptions", "subscribers"),
    ("age_of_oldest_s", "oldest (s)"),
    ("expired_leases", "expired leases"),
)


@app.command
def ls(*, url: Url = None, json: Json = False) -> int:
    """List the queues of a server, with their main figures.

    For example:
      quire queue ls
      quire queue ls --json | jq .depth
    """
    with connect(url) as client:
        queues = client.queue_stats()
    _note_hidden(queues)
    if json:
        for name, figures in queues.items():
            print_json(queue=name, **figures)
        return 0
    print_table(
        ["queue", *(heading for _, heading in COLUMNS), "created at run time"],
        [
            # A server from before queues could be created at run time does not say whether this one
            # was.
            # Without the right `monitor`, a queue has no figures.
            [name, *(_shown(key, figures.get(key, "")) for key, _ in COLUMNS), figures.get("created", "")]
            for name, figures in queues.items()
        ],
    )
    return 0


def _note_hidden(queues: Mapping[str, Mapping[str, Any]]) -> None:
    """Says why queues have no figures."""
    if hidden := [name for name, figures in queues.items() if not figures]:
        note(f"the user may not monitor {', '.join(hidden)}: the figures are left out")


def _shown(key: str, value: Any) -> Any:
    """A figure as the table of `ls` shows it."""
    return f"{value:.1f}" if key == "age_of_oldest_s" and isinstance(value, float) else value


@app.command
def stats(queue: str | None = None, *, url: Url = None, json: Json = False) -> int:
    """Show all figures of one queue or of all queues.

    For example:
      quire queue stats ORDERS_RISK

    Parameters
    ----------
    queue
        Name of the queue. Default: all queues.
    """
    with connect(url) as client:
        queues = client.queue_stats(queue)
    _note_hidden(queues)
    if json:
        for name, figures in queues.items():
            print_json(queue=name, **figures)
        return 0
    rows = [[name, key, value] for name, figures in queues.items() for key, value in figures.items()]
    print_table(["queue", "figure", "value"], rows)
    return 0


@app.command
def peek(
    queue: str,
    *,
    url: Url = None,
    filter: str | None = None,
    order_by: str | None = None,
    count: int = 10,
    format: Format = "json",
    json: JsonFormat = False,
) -> int:
    """Print the messages that a queue delivers next. The queue is not changed.

    `quire sow` prints the same for a queue. It is for last-value topics, and prints all messages by default.

    For example:
      quire queue peek ORDERS_RISK --count 3
      quire queue peek ORDERS_RISK --filter "/qty > 50" --order-by "/price DESC" --format table

    Parameters
    ----------
    queue
        Name of the queue.
    filter
        Content filter. Only messages that match it are printed.
    order_by
        Field to sort by, as in /price. Add DESC for descending order. Default: delivery order.
    count
        Limit of printed messages.
    format
        json: one object per line. raw: the data and a line end. table: columns.
    """
    check_count(count)
    options = SowOptions(filter=filter, order_by=order_by, top_n=count, format=format)
    return sow(queue, options, url=url, as_json=json, is_queue=True)


app.command(create)
app.command(alter)
app.command(drop)


@app.command
def purge(
    queue: str,
    *,
    url: Url = None,
    filter: str | None = None,
    all: Annotated[bool, Parameter(negative="", help="Remove all messages.")] = False,
    reason: str | None = None,
    json: Json = False,
) -> int:
    """Remove messages from a queue. The log keeps them, and the dead letter topic of the queue gets them.

    Messages of a queue with leasing = "strict" can be removed by their holder only, so purge fails there.

    For example:
      quire queue purge ORDERS_RISK --filter "/qty < 1"
      quire queue purge ORDERS_RISK --all --reason "orders of the load test"

    Parameters
    ----------
    queue
        Name of the queue.
    filter
        Content filter. Only messages that match it are removed.
    reason
        Why. The dead letters of the messages have this text, of at most 1,024 bytes.
    """
    if (filter is None) != all:
        raise quire.ConfigError("purge: say which messages, by --filter or --all")
    with connect(url) as client:
        count = remove(client, queue, filter, reason)
    if json:
        print_json(queue=queue, purged=count)
    else:
        say(f"{counted(count, 'message')} purged from {queue}")
    return 0


@app.command
def redrive(
    queue: str,
    *,
    url: Url = None,
    to: str | None = None,
    filter: str | None = None,
    count: int | None = None,
    json: Json = False,
) -> int:
    """Publish dead letters again to the topics of their messages.

    The queue must be over the dead letter topic of another queue.
    The command stops at the first message that is not a dead letter.
    Each letter is published under a separate client name, and acknowledged when it is persisted.
    Run the command again after an interruption: no letter is lost or published twice.

    For example:
      quire queue redrive DEAD_ORDERS --filter "/reason = 'max_cancels'"
      quire queue redrive DEAD_ORDERS --to orders/retry --count 100

    Parameters
    ----------
    queue
        Name of a queue over the dead letter topic.
    to
        Topic or queue to publish to. Default: the topic that the letter names.
    filter
        Content filter. Only letters that match it are published.
    count
        Limit of letters to publish. Default: all letters that are in the queue at the start.
    """
    check_count(count)
    place = url or default_url()

    def open_client(name: str | None) -> quire.Client:
        return connect(place) if name is None else quire.Client(place, name=name)

    redriven = put_back(open_client, queue, to=to, filter=filter, count=count, note=note)
    left, refused = redriven.left, redriven.refused
    if json:
        print_json(queue=queue, redriven=redriven.done, left=left + refused)
    else:
        unusable = f", {counted(left, 'holds', 'hold')} no message" if left else ""
        unwanted = f", {counted(refused, 'was', 'were')} refused" if refused else ""
        say(f"{counted(redriven.done, 'dead letter')} put back from {queue}{unusable}{unwanted}")
    return 1 if left or refused else 0
