"""The commands and their help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

from quire import __version__
from quire.cli import default_url

app = App(
    name="quire",
    version=__version__,
    help="A messaging engine: one append-only, bookmarked transaction log, and everything else a reader of it.",
    # Examples keep their lines, and a backslash stays one.
    help_format="plaintext",
)
config_app = App(name="config", help="Check a configuration file, or print an example.")
app.command(config_app)
app.command("quire.cli._bench:app", name="bench", help="Measure a server as clients see it.")
app.command(
    "quire.cli._queue:app",
    name="queue",
    help="Look at queues, empty them, put dead letters back: ls, peek, stats, purge, redrive.",
)
app.command(
    "quire.cli._journal:app",
    name="journal",
    help="Look at the files of a journal: ls, dump, grep, find, verify.",
)
app.command(
    "quire.cli._pipeline:app",
    name="pipeline",
    help="Spark on a journal: archive, compact, last-value, bars, queue-audit, replay.",
)

app.command("quire.cli._inspect:topic_app", name="topic", help="Look at the topics of a server: ls.")
app.command("quire.cli._inspect:client_app", name="client", help="Look at the clients of a server: ls.")
app.command(
    "quire.cli._generate:app",
    name="generate",
    help="Print a file for running a server: dockerfile, systemd.",
)

Url = Annotated[
    str | None, Parameter(help="Server, or file:DIRECTORY. Default: $QUIRE_URL, else quire://127.0.0.1:9007.")
]
Destination = Annotated[
    str | None,
    Parameter(
        help="Server to publish to, or file:DIRECTORY. Required without --into; with it, default: $QUIRE_URL, else quire://127.0.0.1:9007."
    ),
]
Again = Annotated[
    bool,
    Parameter(negative="", help="Publish also what the destination has in its log under the same topic."),
]
Json = Annotated[bool, Parameter(negative="", help="Output for machines: one JSON object per line.")]
JsonFormat = Annotated[bool, Parameter(negative="", help="The same as --format json.")]


@app.command
def serve(
    config: Path | None = None,
    *,
    address: str | None = None,
    data_directory: Path | None = None,
    json: Json = False,
) -> int:
    """Run a server until Ctrl-C or SIGTERM.

    Without a file everything is recorded as JSON below ./quire-data, on 127.0.0.1:9007.

    For example:
      quire serve
      quire serve orders.toml
      quire serve --address 127.0.0.1:0 --data-directory /tmp/trial --json

    Parameters
    ----------
    config
        A TOML file; `quire config example` prints one.
    address
        HOST:PORT to listen on instead of that of the file; port 0 = a free one.
    data_directory
        Where the journal goes instead of where the file says.
    """
    from quire.cli._serve import serve as run

    return run(config, address=address, data_directory=data_directory, as_json=json)


@app.command
def info(*, url: Url = None, json: Json = False) -> int:
    """Show what a server is: version, uptime, journal, and how much there is of everything.

    For example:
      quire info
      quire info --url quire://prod:9007 --json | jq .journal_size
    """
    from quire.cli._inspect import info as run

    return run(url or default_url(), as_json=json)


@app.command
def publish(
    topic: str,
    file: Annotated[str, Parameter(allow_leading_hyphen=True)] = "-",
    *,
    url: Url = None,
    name: str | None = None,
    rate: float | None = None,
    header: Annotated[list[str] | None, Parameter(negative="")] = None,
    csv: Annotated[
        bool, Parameter(negative="", help="The file is CSV with a header: each row becomes a JSON object.")
    ] = False,
    json: Json = False,
) -> int:
    """Publish every line of a file, or of the standard input, and wait until all of it is persisted.

    For example:
      quire publish orders orders.jsonl
      quire publish orders orders.jsonl --name orders.jsonl
      quire publish orders orders.jsonl --header source=import --header run=7
      quire publish flights flights.csv --csv --rate 1000
      echo '{"qty": 1}' | quire publish orders

    Parameters
    ----------
    topic
        Where to publish.
    file
        One message per line; - = standard input.
    name
        The publisher's identity, used for this file only. The lines are numbered from 1, so that the same command, run again,
        publishes only the lines that are not there yet.
    rate
        Messages per second, at most.
    header
        A header of every message, as name=value. May be given several times.
    """
    from quire.cli._messages import publish as run

    return run(
        topic,
        file,
        url=url or default_url(),
        name=name,
        rate=rate,
        as_csv=csv,
        as_json=json,
        headers=header or [],
    )


@app.command
def subscribe(
    topic: str,
    *,
    url: Url = None,
    filter: str | None = None,
    bookmark: str | None = None,
    bookmark_not_found: Literal["epoch", "now", "fail"] | None = None,
    live: Annotated[bool, Parameter(negative="")] = False,
    max_backlog: int | None = None,
    ack: Annotated[
        bool,
        Parameter(
            negative="",
            help="Take messages from a queue, and acknowledge them when they were shown. Without it a queue is only looked at.",
        ),
    ] = False,
    rate: str | None = None,
    select: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    count: int | None = None,
    timeout: float | None = None,
    format: Literal["json", "raw", "table"] = "json",
    json: JsonFormat = False,
) -> int:
    """Print messages as they come, or from any point of the log.

    For example:
      quire subscribe orders --filter "/qty > 50"
      quire subscribe "^orders/" --bookmark epoch --count 10
      quire subscribe orders --bookmark 2026-01-01T00:00:00Z --format raw | head
      quire subscribe ORDERS_RISK --ack --max-backlog 100
      quire subscribe orders --bookmark "[0:0|1|]" --rate 2X
      quire subscribe orders --select "-/,+/symbol,+/price"

    Parameters
    ----------
    topic
        Exact, or a regular expression when it holds any of ^ $ * + ? [ ] ( ) { } | \\.
    filter
        Only messages that match.
    bookmark
        Where to begin: epoch, now, a bookmark, a comma-separated list, a time, or a range [A:B] of them, behind which the command
        ends. Without it: what is published from now on.
    bookmark_not_found
        Where to begin when the log does not have the bookmark: epoch (the oldest message, the default), now, or fail with an error.
    live
        After the replay, show messages before they are persisted.
    max_backlog
        From a queue, with --ack: the most messages that are not acknowledged; 1 by default.
    rate
        The fastest pace of a replay: 1000 messages or 500KB per second, 2X the original pace.
    select
        Show a part of each message, like -/,+/symbol,+/price.
    count
        Stop after this many.
    timeout
        Stop when no server answered, or nothing came, for this many seconds.
    format
        json: one object per line; raw: the data alone; table: for people.
    """
    from quire.cli._messages import subscribe as run

    return run(
        topic,
        url=url or default_url(),
        filter=filter,
        bookmark=bookmark,
        bookmark_not_found=bookmark_not_found,
        live=live,
        rate=rate,
        select=select,
        count=count,
        timeout=timeout,
        style="json" if json else format,
        max_backlog=max_backlog,
        ack=ack,
    )


@app.command
def sow(
    topic: str,
    *,
    url: Url = None,
    filter: str | None = None,
    order_by: str | None = None,
    top_n: int | None = None,
    format: Literal["json", "raw", "table"] = "json",
    json: JsonFormat = False,
) -> int:
    """Print the messages that a queue could deliver now, in the order of their delivery; nothing changes by it.

    For example:
      quire sow ORDERS_RISK
      quire sow ORDERS_RISK --filter "/qty > 50" --order-by "/price DESC" --top-n 10

    Parameters
    ----------
    topic
        The queue.
    filter
        Only messages that match.
    order_by
        A field to sort by. Add DESC for the greatest first.
    top_n
        The most messages to print.
    format
        json: one object per line; raw: the data alone; table: for people.
    """
    from quire.cli._messages import sow as run

    style = "json" if json else format
    return run(topic, url=url or default_url(), filter=filter, order_by=order_by, top_n=top_n, style=style)


@app.command
def replay(
    source: str,
    *,
    url: Destination = None,
    topic: Annotated[
        str | None,
        Parameter(help="Only this topic; a pattern when it holds any of ^ $ * + ? [ ] ( ) { } | \\."),
    ] = None,
    filter: str | None = None,
    from_: Annotated[
        str,
        Parameter(
            name="--from", help="Begin after this: epoch, a bookmark, a list of them, or a time (UTC)."
        ),
    ] = "epoch",
    until: Annotated[
        str, Parameter(help="Up to and including this; now = what is there when the command begins.")
    ] = "now",
    bookmark_not_found: Literal["epoch", "now", "fail"] = "fail",
    rate: str | None = None,
    rate_max_gap: str | None = None,
    into: str | None = None,
    again: Again = False,
    name: str | None = None,
    archive_directory: Path | None = None,
    json: Json = False,
) -> int:
    """Publish a range of a journal again, in its order, to another server or topic: backtests, copies, moves.

    For example:
      quire replay quire-data/journal --topic orders --rate 10X --url quire://test:9007
      quire replay quire://prod:9007 --topic "^orders" --from 2026-01-05 --until 2026-01-06 --url file:./backtest
      quire replay quire-data/journal --into orders.again --filter "/symbol = 'IBM'" --name copy-1

    Parameters
    ----------
    source
        A journal directory (its server may run), or the URL of a server.
    filter
        Only messages that match.
    bookmark_not_found
        Where to begin when the source does not have the bookmark of --from: epoch (the oldest message), now, or fail with an error.
    rate
        The fastest pace: 1000 messages or 500KB per second, 2X the original pace. Without it: as fast as it goes.
    rate_max_gap
        With a multiple as rate: the longest wait for the next message, as in 5s.
    into
        Publish every message to this topic instead of its original topic.
    name
        The publisher's identity at the destination. From a directory the sequences are the positions in the journal, so that under the
        same name a replay that was interrupted goes on where it was, and nothing is there twice.
    archive_directory
        Where older files of the journal directory are, when that is not where they were archived last.
    """
    from quire.cli._replay import replay as run

    return run(
        source,
        url=url,
        topic=topic,
        filter=filter,
        begin=from_,
        until=until,
        bookmark_not_found=bookmark_not_found,
        rate=rate,
        rate_max_gap=rate_max_gap,
        into=into,
        again=again,
        name=name,
        archive_directory=archive_directory,
        as_json=json,
    )


@app.command
def demo(*, directory: Path | None = None, flights: int | None = None, spark: bool = True) -> int:
    """A real server on real data: 336,776 flights published, filtered, replayed, with a kill -9 in the middle.

    For example:
      quire demo
      quire demo --flights 20000 --directory /tmp/flights

    Parameters
    ----------
    directory
        Where the journal goes; by default a temporary directory that is removed at the end.
    flights
        Use only this many, from the first.
    spark
        At the end, read the journal with Spark, where it is installed.
    """
    from quire.demo._demo import run

    return run(directory, flights, spark)


@config_app.command
def check(file: Path, *, json: Json = False) -> int:
    """Say what is wrong with a configuration file, without starting anything. Exit code 2 when something is.

    For example:
      quire config check orders.toml
      quire config check orders.toml --json | jq .line
    """
    from quire.cli._config import check as run

    return run(file, as_json=json)


@config_app.command
def example() -> int:
    """Print a configuration file with every key.

    For example:
      quire config example > quire.toml
    """
    from quire.config._example import EXAMPLE

    print(EXAMPLE, end="")
    return 0
