"""The commands and their help."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, Parameter

from quire import __version__
from quire.cli import default_url
from quire.cli._mistakes import panel, refuse_empty
from quire.cli._options import PublishOptions, ReplayOptions, SowOptions, SubscribeOptions, server_options

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
    "quire.cli._view:app", name="view", help="Show what a view reads and keeps, and replace its definition."
)
app.command(
    "quire.cli._replication:app",
    name="replication",
    help="Show and change the links of a server to other instances; add, retire and replace instances.",
)
app.command(
    "quire.cli._inspect:client_app",
    name="client",
    help="Show the clients of a server, and end their connections.",
)
app.command("quire.cli._entitlement:app", name="entitlement", help="Explain the rights of a user.")
app.command("quire.cli._token:app", name="token", help="Show the header and the claims of a token.")
app.command("quire.cli._user:app", name="user", help="Add, change, show and remove the users of a server.")
app.command(
    "quire.cli._generate:app",
    name="generate",
    help="Print files for a server and its monitoring, or the completion of a shell.",
)

_URL_HELP = (
    "Server, file:DIRECTORY, local:DIRECTORY, or memory:NAME. Default: $QUIRE_URL, or quire://127.0.0.1:9007."
)
# A type checker sees the text that the functions get: `ServerOptions.use` returns it.
if TYPE_CHECKING:
    Url = str | None
    UrlWithoutKey = str | None
    Destination = str | None
else:
    Url = server_options(_URL_HELP)
    UrlWithoutKey = server_options(_URL_HELP, has_key=False)
    Destination = server_options(
        "Server to publish to, or file:DIRECTORY. Required without --into. "
        "Default with --into: $QUIRE_URL, or quire://127.0.0.1:9007."
    )
Json = Annotated[bool, Parameter(negative="", help="Print JSON, one object per line.")]
JsonFormat = Annotated[bool, Parameter(negative="", help="The same as --format json.")]


@app.command
def serve(
    config: Path | None = None,
    *,
    address: str | None = None,
    data_directory: Path | None = None,
    insecure: Annotated[bool, Parameter(negative="")] = False,
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
    insecure
        Accept clients of other machines without authentication, or passwords without TLS.
    """
    from quire.cli._serve import serve as run

    return run(config, address=address, data_directory=data_directory, insecure=insecure, as_json=json)


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

    return run(url, as_json=json)


@app.command
def top(
    *,
    interval: str = "2s",
    sort: str | None = None,
    count: int | None = None,
    once: Annotated[bool, Parameter(negative="")] = False,
    url: Url = None,
    json: Json = False,
) -> int:
    """Show the queues, topics, clients and links of a server live, with rates.

    On a terminal: q quits, s sorts by the next column, / filters by name, Tab shows the next table.
    Without a terminal, or with --count, --once or --json, it prints text until Ctrl-C or --count.
    Rates begin with the second sample.

    For example:
      quire top
      quire top --sort=-depth --interval 1s
      quire top --count 2 --json | jq '.queues[] | {queue, entered_per_s}'

    Parameters
    ----------
    interval
        Time between two samples, at least 100ms.
    sort
        Column to sort by, such as depth of the queues or clients.backlog_bytes. --sort=-depth begins with the highest.
        The names are those of --json.
    count
        Number of samples.
    once
        The same as --count 1.
    """
    from quire.cli._top import top as run

    return run(url, interval=interval, sort=sort, count=count, once=once, as_json=json)


@app.command
def doctor(
    directory: Path | None = None,
    *,
    config: Path | None = None,
    output: Path | None = None,
    url: Url = None,
) -> int:
    """Write an archive with the state of a server for a report about a fault, and print its path.

    The archive has figures, versions, the list of journal files, the ends of logs and statistics.
    It has no messages and no secrets: a configuration has `***` in their place, and filters are left out.
    Names of topics, queues, clients and files are in it. Only the owner can read the file.

    For example:
      quire doctor
      quire doctor --url quires://prod:9007 --user operator --config quire.toml
      quire doctor /var/lib/quire --output report.tar.gz

    Parameters
    ----------
    directory
        Data directory of a server, which may be stopped. Without it, the server of --url is asked.
    config
        Configuration file (TOML) to add.
    output
        File to write. It must not exist. Default: quire-doctor-TIME.tar.gz.
    """
    from quire.cli._doctor import doctor as run

    return run(directory, url, config, output)


@app.command
def stats(
    path: str = "/quire/instance",
    *,
    url: Url = None,
    file: Annotated[
        Path | None, Parameter(help="Statistics of a server, which may be stopped. Not with --url.")
    ] = None,
    from_: Annotated[
        str | None, Parameter(name="--from", help="Samples of a metric from this time on.")
    ] = None,
    to: Annotated[str | None, Parameter(help="Samples of a metric before this time.")] = None,
    format: Annotated[
        Literal["table", "json", "csv", "xml"], Parameter(help="Form of the output.")
    ] = "table",
    json: JsonFormat = False,
) -> int:
    """Show a node of the statistics: docs/admin.md lists the tree.

    By URL, it shows the figures of a running server, and with --file those of the last sample of a file.
    With --from and --to, it shows the samples of one metric. Those of clients, subscriptions and links are in the file only.
    By URL, most of them need the right monitor on /quire/server.
    A time is UTC such as 20261127T113000Z or 20261127T11, or a duration before now such as -15m.
    Exit code 1: there is no such path.

    For example:
      quire stats /quire/instance/queues
      quire stats journal
      quire stats queues/jobs/depth --from=-15m
      quire stats /quire/instance/queues/jobs/depth --file quire-data/statistics.db --from=-1h --format csv

    Parameters
    ----------
    path
        Path of a node, such as /quire/instance/queues. The part /quire/instance may be left out.
    """
    from quire.cli._stats import stats as run

    return run(path, url=url, file=file, begin=from_, end=to, form="json" if json else format)


@app.command
def errors(
    id: str | None = None,
    *,
    as_json: Annotated[bool, Parameter(name="--json", negative="", help="JSON objects, one a line.")] = False,
) -> int:
    """Explain a line of the log by its id, or an error by its code.

    Without an id, it lists all. Exit code 1: there is no such id and no such code.

    For example:
      quire errors 20-0002
      quire errors name_in_use

    Parameters
    ----------
    id
        An id such as 20-0002, or a code such as name_in_use.
    """
    from quire.cli._errors import explain

    return explain(id, as_json=as_json)


@app.command(name="check")
def check_server(
    *,
    max_depth: Annotated[
        list[str] | None,
        Parameter(negative="", help="QUEUE=WARNING[:CRITICAL]: messages of a queue. Repeat it for more."),
    ] = None,
    max_age: Annotated[
        list[str] | None,
        Parameter(
            negative="", help="QUEUE=WARNING[:CRITICAL]: age of its oldest message, such as jobs=1m:10m."
        ),
    ] = None,
    max_lag: Annotated[
        list[str] | None,
        Parameter(
            negative="", help="DESTINATION=WARNING[:CRITICAL]: age of the oldest message that it lacks."
        ),
    ] = None,
    min_free: Annotated[
        list[str] | None,
        Parameter(
            negative="",
            help="KIND=WARNING[:CRITICAL]: room of the file system of journal, archive or data, such as journal=10%:2GB.",
        ),
    ] = None,
    url: Url = None,
) -> int:
    """Check a server for a monitoring system: one line, and an exit code.

    The line begins with OK, WARNING, CRITICAL or UNKNOWN, and has the figures after a |.
    A journal that accepts no writes is critical, and a lost destination is a warning.
    Exit codes: 0 ok, 1 warning, 2 critical, 3 no answer or a mistake in the arguments.

    For example:
      quire check
      quire check --max-depth jobs=1000:10000 --max-age jobs=1m:10m
      quire check --max-lag east=10s:1m --min-free journal=20%:5GB
    """
    from quire.cli._check import check as run

    return run(
        url, max_depth=max_depth or [], max_age=max_age or [], max_lag=max_lag or [], min_free=min_free or []
    )


@app.command
def reload(*, url: Url = None) -> int:
    """Make a server read its configuration file again, and show which keys have changed.

    `entitlement`, `user_limit`, `authentication`, `tls` and `logging` may have changed.
    The files of users and certificates are read again, too.
    Every other change needs a restart, and is refused with the name of its key.
    After a mistake in the file nothing changes.

    For example:
      quire reload --url local:/var/lib/quire/journal
      quire reload --url quires://prod:9007 --user operator
    """
    from quire.cli._reload import reload as run

    return run(url)


@app.command
def publish(
    topic: str,
    file: Annotated[str, Parameter(allow_leading_hyphen=True)] = "-",
    *,
    url: UrlWithoutKey = None,
    options: PublishOptions = PublishOptions(),
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
    """
    from quire.cli._messages import publish as run

    return run(topic, file, options, url=url or default_url(), as_json=json)


@app.command
def subscribe(
    topic: str,
    *,
    url: Url = None,
    options: SubscribeOptions = SubscribeOptions(),
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
    """
    from quire.cli._messages import subscribe as run

    return run(topic, options, url=url, as_json=json)


@app.command
def sow(topic: str, *, url: Url = None, options: SowOptions = SowOptions(), json: JsonFormat = False) -> int:
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
    """
    from quire.cli._messages import sow as run

    return run(topic, options, url=url, as_json=json)


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

    return run(topic, url=url, filter=filter, keys=keys, data=data, as_json=json)


@app.command
def replay(
    source: str,
    *,
    url: Destination = None,
    options: ReplayOptions = ReplayOptions(),
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
    """
    from quire.cli._replay import replay as run

    return run(source, options, url=url, as_json=json)


@app.command
def demo(
    *,
    directory: Path | None = None,
    flights: int | None = None,
    spark: bool = True,
    stay: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Publish, filter and replay 336,776 flights, with a kill -9 of the server in the middle.

    For example:
      quire demo
      quire demo --flights 20000 --directory /tmp/flights
      quire demo --flights 20000 --no-spark --stay

    Parameters
    ----------
    directory
        Directory for the journal. Default: a temporary directory, which is removed at the end.
    flights
        Number of flights to use. Default: all.
    spark
        Read the journal with Spark at the end, if Spark is installed.
    stay
        Keep the server and its console running until Ctrl-C, with live traffic.
    """
    from quire.demo._demo import run

    return run(directory, flights, spark, stay)


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
