"""The commands and their help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

from quire import __version__
from quire.cli import default_url
from quire.cli._mistakes import panel, refuse_empty

app = App(
    name="quire",
    version=__version__,
    help="Run, use and inspect a quire server: a transaction log with subscriptions, replays and queues.",
    # Plain text keeps the lines of examples, and backslashes. It keeps every other line break as
    # well, so each line of a description is one whole sentence.
    help_format="plaintext",
    error_formatter=panel,
    config=refuse_empty,
)
config_app = App(name="config", help="Check a configuration file, or print an example.")
app.command(config_app)
app.command("quire.cli._bench:app", name="bench", help="Measure the speed of a server from clients.")
app.command(
    "quire.cli._queue:app",
    name="queue",
    help="Show, create, alter and drop queues, remove messages from them, and publish dead letters again.",
)
app.command(
    "quire.cli._journal:app",
    name="journal",
    help="Show and verify the files of a journal; archive, compress and remove old files.",
)
app.command(
    "quire.cli._pipeline:app",
    name="pipeline",
    help="Run a Spark job on a journal: Parquet archive, newest value of each key, bars, queue report, replay.",
)

app.command("quire.cli._inspect:topic_app", name="topic", help="Show the topics of a server.")
app.command(
    "quire.cli._replication:app",
    name="replication",
    help="Show the links of a server to other instances; downgrade, upgrade, pause and resume destinations.",
)
app.command("quire.cli._inspect:client_app", name="client", help="Show the clients of a server.")
app.command(
    "quire.cli._generate:app",
    name="generate",
    help="Print a Dockerfile or a systemd unit for a server, or the completion of a shell.",
)

Url = Annotated[
    str | None,
    Parameter(
        help="Server, file:DIRECTORY, local:DIRECTORY, or memory:NAME. Default: $QUIRE_URL, or quire://127.0.0.1:9007."
    ),
]
Destination = Annotated[
    str | None,
    Parameter(
        help="Server to publish to, or file:DIRECTORY. Required without --into. "
        "Default with --into: $QUIRE_URL, or quire://127.0.0.1:9007."
    ),
]
Again = Annotated[
    bool,
    Parameter(
        negative="",
        help="Publish even if the destination already has the first message under the same topic. "
        "Without it, such a replay is an error.",
    ),
]
Json = Annotated[bool, Parameter(negative="", help="Print JSON, one object per line.")]
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

    Without a configuration file, every topic is recorded as JSON in ./quire-data, on 127.0.0.1:9007.

    For example:
      quire serve
      quire serve orders.toml
      quire serve --address 127.0.0.1:0 --data-directory /tmp/trial --json

    Parameters
    ----------
    config
        Configuration file (TOML). `quire config example` prints one.
    address
        HOST:PORT to listen on, instead of all transports in the file. The limits are those of the first transport.
        Port 0 selects a free port.
    data_directory
        Directory for the data of the server, instead of the directory in the file.
    """
    from quire.cli._serve import serve as run

    return run(config, address=address, data_directory=data_directory, as_json=json)


@app.command
def up(
    directory: Path = Path("quire-instances"),
    *,
    instances: int | None = None,
    port: int | None = None,
    sync_type: Literal["sync", "async"] | None = None,
    json: Json = False,
) -> int:
    """Run instances on this machine that replicate to each other, until Ctrl-C or SIGTERM.

    The first run writes a configuration file for each instance into the directory.
    Later runs start the same instances with their data. An option that the files contradict is refused.
    The configuration files can be changed, and `quire serve` runs each of them alone.

    For example:
      quire up --instances 2
      quire up trial --instances 3 --port 9500
      quire up trial

    Parameters
    ----------
    directory
        Directory for the configuration files, the logs and the data.
    instances
        Number of instances, 2 to 9. Default: 2, or those in the directory.
    port
        Port of the first instance for clients, 9007 by default. The others have the next ports.
        The ports for the links are 100 higher. Port 0 selects free ports.
    sync_type
        Whether publishers wait for the other instances. Default: sync.
    """
    from quire.cli._up import up as run

    return run(directory, instances=instances, port=port, sync_type=sync_type, as_json=json)


@app.command
def info(*, url: Url = None, json: Json = False) -> int:
    """Show the version and uptime of a server, and the sizes and counts of its parts.

    `published` and `delivered` count messages since the start of the server.
    `persisted` counts all records that the log ever had: messages, and records about the state of queues and topics.
    So it can be higher than `published`, for example after a restart.

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
    delay: str | None = None,
    deliver_at: str | None = None,
    correlation_id: str | None = None,
    expiration: str | None = None,
    key: str | None = None,
    delta: Annotated[
        bool,
        Parameter(
            negative="",
            help="Each message has only the fields that change. The server merges it into the record with its key.",
        ),
    ] = False,
    data: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    csv: Annotated[
        bool,
        Parameter(
            negative="", help="The file is CSV with a header line. Each row is published as a JSON object."
        ),
    ] = False,
    csv_types: Literal["infer", "text"] | None = None,
    delimiter: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    records: Annotated[
        bool,
        Parameter(
            negative="",
            help="Each line is an object that --json of journal dump, subscribe or sow printed. "
            "Its message is published, with its headers, correlation id and lifetime.",
        ),
    ] = False,
    json: Json = False,
) -> int:
    """Publish each line of a file or of the standard input, and wait until all messages are persisted.

    For example:
      quire publish orders orders.jsonl
      quire publish orders orders.jsonl --name orders.jsonl
      quire publish orders orders.jsonl --header source=import --header run=7
      quire publish orders --data '{"qty": 1}'
      quire publish flights flights.csv --csv --rate 1000
      quire publish orders saved.jsonl --records
      quire publish prices --data '{"price": 9.5}' --key IBM
      quire publish orders --data '{"id": 1, "qty": 2}' --delta

    Parameters
    ----------
    topic
        Topic of the messages.
    file
        File with one message per line, in UTF-8. Empty lines are skipped. - is the standard input.
    data
        Message to publish, instead of a file.
    csv_types
        Types of the cells. Requires --csv.
        infer (default): a column has numbers if each of its cells is a JSON number or empty. Otherwise it has text.
        An empty cell is null then, and the file is read to its end before the first message is published.
        text: each cell is text.
    delimiter
        Character between the cells, or tab. Requires --csv. Default: a comma.
    name
        Client name, used for this file only. The number of a line is its sequence.
        When the command runs again with this name, it publishes only the lines that the server does not have.
    rate
        Limit in messages per second.
    header
        Header of every message, as name=value. Repeat the option for more headers.
    delay
        Queues deliver each message after this time at the earliest, such as --delay 10m.
    deliver_at
        Queues deliver the messages at this time at the earliest, such as 2030-01-01T08:00:00Z. UTC without a zone.
    correlation_id
        Text that subscribers receive with every message.
    expiration
        Lifetime of every message in a queue or a last-value topic, such as 1h.
    key
        Key of every message, for a last-value topic whose keys are supplied by the publisher.
    """
    from quire.cli._messages import publish as run

    return run(
        topic,
        file,
        url=url or default_url(),
        name=name,
        rate=rate,
        data=data,
        as_csv=csv,
        csv_types=csv_types,
        delimiter=delimiter,
        as_records=records,
        as_json=json,
        header=header or [],
        delay=delay,
        deliver_at=deliver_at,
        key=key,
        delta=delta,
        correlation_id=correlation_id,
        expiration=expiration,
    )


@app.command
def subscribe(
    topic: str,
    *,
    url: Url = None,
    filter: str | None = None,
    bookmark: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    bookmark_not_found: Literal["epoch", "now", "fail"] | None = None,
    live: Annotated[bool, Parameter(negative="")] = False,
    max_backlog: int | None = None,
    ack: Annotated[
        bool,
        Parameter(
            negative="",
            help="Take the messages from a queue, and acknowledge each one after it was printed. "
            "Without this option, the messages of a queue are printed and stay in it.",
        ),
    ] = False,
    rate: str | None = None,
    select: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    sow: Annotated[
        bool,
        Parameter(
            negative="",
            help="Print the records of a last-value topic first, and then every change.",
        ),
    ] = False,
    oof: Annotated[
        bool,
        Parameter(
            negative="",
            help="Also print a message for each record that no longer exists or no longer matches the filter. "
            "Requires --sow or --delta.",
        ),
    ] = False,
    delta: Annotated[
        bool,
        Parameter(
            negative="",
            help="Of each change of a record, print only the fields that differ, and the key fields.",
        ),
    ] = False,
    no_empties: Annotated[
        bool,
        Parameter(
            negative="",
            help="Print nothing for a publish in which no field differs. Requires --delta.",
        ),
    ] = False,
    order_by: str | None = None,
    top_n: int | None = None,
    skip_n: int | None = None,
    keys: str | None = None,
    conflation: str | None = None,
    conflation_key: str | None = None,
    count: int | None = None,
    timeout: str | None = None,
    format: Literal["json", "raw", "table"] = "json",
    json: JsonFormat = False,
) -> int:
    """Print new messages of a topic, or messages from any place of the log.

    For example:
      quire subscribe orders --filter "/qty > 50"
      quire subscribe "^orders/" --bookmark 2026-01-01T00:00:00Z
      quire subscribe ORDERS_RISK --ack --max-backlog 100
      quire subscribe orders --bookmark "[0:0|1|]" --rate 2X
      quire subscribe orders --select "-/,+/symbol,+/price"
      quire subscribe orders --sow --delta

    Parameters
    ----------
    topic
        Topic. It is a regular expression if it contains any of ^ $ * + ? [ ] ( ) { } | \\.
    filter
        Content filter. Only messages that match it are printed.
    bookmark
        Where to begin: epoch, now, a bookmark, a comma-separated list of bookmarks, a time, or a range [A:B].
        -1h is the time one hour ago.
        After the end of a range the command ends.
        Without this option, only messages that are published from now on are printed.
        With --sow: a bookmark or a time. The records of that state are printed first.
    bookmark_not_found
        Where to begin if the log does not contain the bookmark. Requires --bookmark.
        epoch (default): at the oldest message. now: at the end of the log. fail: end with an error.
    live
        After the replay, print messages before they are persisted. Requires --bookmark.
    max_backlog
        With --ack: limit of messages that are delivered and not yet acknowledged. Default: 1.
    rate
        Limit of the replay: 1000 (messages per second), 500KB (per second), or 2X (the original pace times 2).
        Requires --bookmark.
    select
        Fields to print of each message, as in -/,+/symbol,+/price.
    order_by
        Order of the records, as in "/price DESC, /time". Requires --sow.
    top_n
        Limit of the records that are printed first. Default: all. Requires --sow.
    skip_n
        Number of records before the page that is printed. Requires --top-n.
        Only records at these places of the order are printed, also later.
    keys
        Keys of the records to print, separated by commas. Default: all. Requires --sow.
    conflation
        Of the messages with the same key, print at most one in each interval of this length, such as 500ms.
    conflation_key
        Fields that are the key, as in /symbol,/side. Default: the key of the record in a last-value topic.
        Requires --conflation.
    count
        Stop after this number of messages.
    timeout
        Stop after this time without a message, or without an answer of a server: seconds, or a duration such as 500ms.
    format
        json: one object per line. raw: the data and a line end. table: columns.
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
        sow=sow,
        oof=oof,
        order_by=order_by,
        top_n=top_n,
        skip_n=skip_n,
        keys=keys,
        conflation=conflation,
        conflation_key=conflation_key,
        delta=delta,
        no_empties=no_empties,
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
    skip_n: int | None = None,
    keys: str | None = None,
    bookmark: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    select: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    format: Literal["json", "raw", "table"] = "json",
    json: JsonFormat = False,
) -> int:
    """Print the records of a last-value topic, or the messages that a queue can deliver now.

    The command changes nothing. The messages of a queue stay in the queue.

    For example:
      quire sow orders --filter "/state = 'open'" --order-by "/price DESC, /time" --top-n 10
      quire sow orders --filter "/order_id IN ('A-1', 'A-2')"
      quire sow prices --keys IBM,HPQ
      quire sow ORDERS_RISK --filter "/qty > 50"

    Parameters
    ----------
    topic
        Topic or queue. It is a regular expression if it contains any of ^ $ * + ? [ ] ( ) { } | \\.
    filter
        Content filter. Only records that match it are printed.
    order_by
        Fields to sort by, as in "/price DESC, /time". Default: no order, and delivery order for a queue.
    top_n
        Limit of printed records. Default: all.
    skip_n
        Number of records to leave out first. Requires --top-n.
    keys
        Keys of the records to print, separated by commas. Default: all.
        Keys are those of sow_key in the output.
        On a topic with `key` in its configuration, the keys are generated: use --filter for the values of fields.
    bookmark
        Print the state after a message or a time: a bookmark, or a time such as 2026-01-01T12:00:00Z.
        The topic must keep a history that reaches back to it. Without history, the current state is printed.
    select
        Fields to print of each record, as in -/,+/symbol,+/price.
    format
        json: one object per line. raw: the data and a line end. table: columns.
    """
    from quire.cli._messages import sow as run

    return run(
        topic,
        url=url or default_url(),
        filter=filter,
        order_by=order_by,
        top_n=top_n,
        skip_n=skip_n,
        keys=keys,
        bookmark=bookmark,
        select=select,
        style="json" if json else format,
    )


@app.command
def sow_delete(
    topic: str,
    *,
    url: Url = None,
    filter: str | None = None,
    keys: str | None = None,
    data: str | None = None,
    json: Json = False,
) -> int:
    """Delete records of a last-value topic, and print their number. At least one of the options is required.

    A record is deleted if all of the given options apply to it.

    For example:
      quire sow-delete orders --filter "/state = 'done'"
      quire sow-delete prices --keys IBM,HPQ
      quire sow-delete orders --data '{"order_id": "A-1"}'

    Parameters
    ----------
    topic
        Last-value topic. It is a regular expression if it contains any of ^ $ * + ? [ ] ( ) { } | \\.
    filter
        Content filter of the records to delete.
    keys
        Keys of the records to delete, separated by commas.
        Keys are those of sow_key in the output of quire sow.
        On a topic with `key` in its configuration, the keys are generated: use --filter or --data.
    data
        Message. The record that a publish of this message would replace is deleted.
    """
    from quire.cli._messages import sow_delete as run

    return run(topic, url=url or default_url(), filter=filter, keys=keys, data=data, as_json=json)


@app.command
def replay(
    source: str,
    *,
    url: Destination = None,
    topic: Annotated[
        str | None,
        Parameter(
            help="Only this topic. It is a regular expression if it contains any of ^ $ * + ? [ ] ( ) { } | \\."
        ),
    ] = None,
    filter: str | None = None,
    from_: Annotated[
        str,
        Parameter(
            name="--from",
            allow_leading_hyphen=True,
            help="Begin after this place: epoch, a bookmark, a list of bookmarks, or a time (UTC).",
        ),
    ] = "epoch",
    until: Annotated[
        str,
        Parameter(
            allow_leading_hyphen=True,
            help="Last place to include: now (the end of the log at the start), a bookmark, or a time.",
        ),
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
    """Publish a range of a journal again, in its order, to another server or topic.

    For example:
      quire replay quire-data/journal --topic orders --rate 10X --url quire://test:9007
      quire replay quire://prod:9007 --topic "^orders" --from 2026-01-05 --until 2026-01-06 --url file:./backtest
      quire replay quire-data/journal --into orders.again --filter "/symbol = 'IBM'" --name copy-1

    Parameters
    ----------
    source
        Journal directory (its server may be running), or the URL of a server.
    filter
        Content filter. Only messages that match it are published.
    bookmark_not_found
        Where to begin if the source does not contain the bookmark of --from.
        epoch: at the oldest message. now: at the end of the log. fail: end with an error.
    rate
        Limit: 1000 (messages per second), 500KB (per second), or 2X (the original pace times 2).
        Default: no limit.
    rate_max_gap
        With a multiple as --rate: longest pause before the next message, as in 5s.
    into
        Publish all messages to this topic instead of their original topics.
    name
        Client name at the destination. From a directory, the sequence is the position in the journal.
        An interrupted replay with the same name then continues at the same place, without duplicates.
    archive_directory
        Directory with the archived files of the journal. Default: the directory of the last archiving.
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
    """Publish, filter and replay 336,776 flights, with a kill -9 of the server in the middle.

    For example:
      quire demo
      quire demo --flights 20000 --directory /tmp/flights

    Parameters
    ----------
    directory
        Directory for the journal. Default: a temporary directory, which is removed at the end.
    flights
        Number of flights to use. Default: all.
    spark
        Read the journal with Spark at the end, if Spark is installed.
    """
    from quire.demo._demo import run

    return run(directory, flights, spark)


@config_app.command
def check(file: Path, *, json: Json = False) -> int:
    """Check a configuration file, and report all mistakes with their lines. Exit code 2 if there are any.

    For example:
      quire config check orders.toml
      quire config check orders.toml --json | jq .line

    Parameters
    ----------
    file
        Configuration file (TOML).
    """
    from quire.cli._config import check as run

    return run(file, as_json=json)


@config_app.command
def example() -> int:
    """Print a configuration file with every key and its default.

    For example:
      quire config example > quire.toml
    """
    from quire.config._example import EXAMPLE

    print(EXAMPLE, end="")
    return 0
