"""`quire pipeline`: common Spark jobs on a journal, one command each."""

from __future__ import annotations

import logging
import os
import re
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter

from quire._bookmarks import point_to_core
from quire._errors import ConfigError, QuireError
from quire.cli._app import Destination
from quire.cli._options import Again
from quire.cli._output import print_json, print_table
from quire.cli._replay import destination_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

app = App(
    name="pipeline",
    help="Run a Spark job on a journal: on this machine, on a cluster with --master, or under spark-submit.",
    help_format="plaintext",
)

Journal = Annotated[
    str, Parameter(name="JOURNAL", help="Journal directory, or the data directory of a server.")
]
Topics = Annotated[str | None, Parameter(help="Only these topics, separated by commas.")]
Archive = Annotated[
    str | None,
    Parameter(
        name="--archive-directory",
        help="Directory with the archived files. Default: the directory of the last archiving.",
    ),
]
SkipLost = Annotated[
    bool,
    Parameter(
        name="--skip-lost",
        negative="",
        help="Skip messages that were removed from the journal or cannot be read. Without it they are an error.",
    ),
]
Master = Annotated[
    str | None,
    Parameter(help="Spark master, as in local[4] or spark://HOST:7077. Default: all cores of this machine."),
]
Memory = Annotated[
    str,
    Parameter(
        help="Memory of the Spark driver, as in 512m or 2g. Without --master the driver does all work."
    ),
]
Json = Annotated[bool, Parameter(negative="", help="Print JSON, one object per line.")]
Output = Annotated[
    Path | None,
    Parameter(help="File to write the table to as well: .csv, or .html with a picture and the table."),
]


@app.command
def archive(
    journal: Journal,
    target: str,
    /,
    *,
    topics: Topics = None,
    fields: str | None = None,
    archive_directory: Archive = None,
    skip_lost: SkipLost = False,
    master: Master = None,
    memory: Memory = "1g",
    json: Json = False,
) -> int:
    """Add the new messages of a journal to a Parquet data set, partitioned by topic and date.

    Each run adds the messages since the last run. A run after an interruption completes the interrupted one.

    For example:
      quire pipeline archive quire-data/journal archive
      quire pipeline archive quire-data/journal s3a://bucket/trades --topics trades --fields "price double, qty int"

    Parameters
    ----------
    target
        Data set: a directory, or any URL that Spark can write to.
    fields
        Typed columns from the data, as in a Spark schema: "price double, qty int".
    """
    with _spark(master, memory, json, journal) as spark:
        from quire.spark import archive as run

        done = run(
            spark,
            journal,
            target,
            topics=topics,
            fields=fields,
            archive_directory=archive_directory,
            skip_lost=skip_lost,
        )
        return _summary("archived", asdict(done), json)


@app.command
def compact(target: str, /, *, master: Master = None, memory: Memory = "1g", json: Json = False) -> int:
    """Join the directories of many `archive` runs into one directory for each topic and date.

    For example:
      quire pipeline compact archive

    Parameters
    ----------
    target
        Data set that `archive` has written.
    """
    with _spark(master, memory, json) as spark:
        from quire.spark import compact as run

        return _summary("compacted", asdict(run(spark, target)), json)


@app.command
def last_value(
    journal: Journal,
    target: str,
    /,
    *,
    keys: str,
    topics: Topics = None,
    archive_directory: Archive = None,
    skip_lost: SkipLost = False,
    master: Master = None,
    memory: Memory = "1g",
    json: Json = False,
) -> int:
    """Update a table with the newest message of each key.

    For example:
      quire pipeline last-value quire-data/journal orders-now --topics orders --keys "id string"

    Parameters
    ----------
    target
        Directory or URL of the table (Parquet).
    keys
        Columns of the data that form the key, as in a Spark schema: "id string".
    """
    with _spark(master, memory, json, journal) as spark:
        from quire.spark import last_value as run

        done = run(
            spark,
            journal,
            target,
            keys=keys,
            topics=topics,
            archive_directory=archive_directory,
            skip_lost=skip_lost,
        )
        return _summary("last values", asdict(done), json)


@app.command
def bars(
    journal: Journal,
    /,
    *,
    value: str,
    by: str | None = None,
    size: str | None = None,
    time: str | None = None,
    every: str = "1 minute",
    topics: Topics = None,
    filter: str | None = None,
    output: Output = None,
    archive_directory: Archive = None,
    skip_lost: SkipLost = False,
    master: Master = None,
    memory: Memory = "1g",
    json: Json = False,
) -> int:
    """Compute open, high, low, close and volume of a number for each time window.

    For example:
      quire pipeline bars quire-data/journal --topics trades --value /price --size /qty --by /symbol --every 1h
      quire pipeline bars quire-data/journal --value /dep_delay --by /carrier --time /time_hour --every "1 day" --output bars.html

    Parameters
    ----------
    value
        Path of the number in the data, as in /price.
    by
        Path of the key, as in /symbol. Each key has separate bars.
    size
        Path of the quantity whose sum is the volume.
    time
        Path of the time of the event. Default: the time at which the message was recorded.
    every
        Length of the window: 10s, 15m, 4h, "1 day".
    filter
        Content filter. Only messages that match it.
    """
    _check_output(output)
    with _spark(master, memory, json, journal) as spark:
        from quire.spark import bars as run

        frame = run(
            spark,
            journal,
            value=value,
            by=by,
            size=size,
            time=time,
            every=every,
            topics=topics,
            filter=filter,
            archive_directory=archive_directory,
            skip_lost=skip_lost,
        )
        return _table(frame.orderBy("start", "key"), json, output, "bars")


@app.command
def queue_audit(
    journal: Journal,
    /,
    *,
    queues: str | None = None,
    dead_letters: str | None = None,
    by: Literal["queue", "consumer", "message"] = "queue",
    output: Output = None,
    archive_directory: Archive = None,
    skip_lost: SkipLost = False,
    master: Master = None,
    memory: Memory = "1g",
    json: Json = False,
) -> int:
    """Report for each queue how its messages were settled, by which consumers, and in which time.

    The journal names consumers only for queues with `record_leases`.

    For example:
      quire pipeline queue-audit quire-data/journal --output queues.html
      quire pipeline queue-audit quire-data/journal --by consumer

    Parameters
    ----------
    queues
        Only these queues, separated by commas.
    dead_letters
        Dead letter topics, separated by commas. They contain the expired messages.
    by
        Subject of a row: a queue, a consumer or a message.
    """
    _check_output(output)
    with _spark(master, memory, json, journal) as spark:
        from quire.spark import queue_audit as run

        frame = run(
            spark,
            journal,
            queues=queues,
            dead_letters=dead_letters,
            by=by,
            archive_directory=archive_directory,
            skip_lost=skip_lost,
        )
        rows = _show(frame, json, output, "queues" if by == "queue" else f"queues by {by}")
        unknown = [row["queue"] for row in rows if by == "queue" and row["delivered"] is None]
        if unknown or (by == "consumer" and not rows):
            of = f"messages of {', '.join(unknown)}" if unknown else "messages"
            print(
                f"quire: the journal does not say who held {of}; queues with record_leases do",
                file=sys.stderr,
            )
        return 0


@app.command
def replay(
    journal: Journal,
    /,
    *,
    name: str,
    url: Destination = None,
    topic: Annotated[
        str | None,
        Parameter(
            help="Only this topic. It is a regular expression if it contains any of ^ $ * + ? [ ] ( ) { } | \\."
        ),
    ] = None,
    filter: str | None = None,
    from_: Annotated[
        str, Parameter(name="--from", help="Begin after this place: epoch, a bookmark, or a time (UTC).")
    ] = "epoch",
    until: Annotated[
        str,
        Parameter(
            help="Last place to include: now (the end of the log at the start), a bookmark, or a time."
        ),
    ] = "now",
    rate: str | None = None,
    into: str | None = None,
    again: Again = False,
    archive_directory: Archive = None,
    skip_lost: SkipLost = False,
    master: Master = None,
    memory: Memory = "1g",
    json: Json = False,
) -> int:
    """Publish a range of a journal to a server, in its order, with Spark.

    A second run with the same name completes an interrupted one. After a complete run it changes nothing.
    The messages have no lifetimes: `quire replay` keeps them.

    For example:
      quire pipeline replay quire-data/journal --name rerun-1 --url quire://127.0.0.1:9008 --rate 10X
      quire pipeline replay quire-data/journal --name test-1 --into test --from 2026-01-05T08:00 --until 2026-01-05T09:00

    Parameters
    ----------
    name
        Client name at the destination.
    filter
        Content filter. Only messages that match it are published.
    rate
        Limit: 1000 (messages per second), or 2X (the original pace times 2). Default: no limit.
    into
        Publish all messages to this topic instead of their original topics.
    """
    destination = destination_of(url, into)
    options = {
        "startingOffsets": point_to_core(from_, "--from"),
        "endingOffsets": point_to_core(until, "--until"),
    }
    if topic is not None:
        options["topicPattern" if set(topic) & PATTERN_CHARACTERS else "topics"] = topic
    if filter is not None:
        options["filter"] = filter
    with _spark(master, memory, json, journal) as spark:
        from quire.spark import replay as run

        done = run(
            spark,
            journal,
            destination,
            name=name,
            pace="max" if rate is None else rate,
            topic=into,
            options=options,
            archive_directory=archive_directory,
            skip_lost=skip_lost,
            again=again,
        )
        return _summary("replayed", asdict(done), json)


#: A topic that contains one of these characters is a pattern.
PATTERN_CHARACTERS = frozenset(r"^$*+?[](){}|\\")

#: How the text of an error of Java begins.
_JAVA_CALL = "An error occurred while calling"

#: An error of quire in a text of Spark: after its own words, or in the last line of a traceback.
#: The reader on the JVM gives its code.
_ERROR = re.compile(r"(?:^|: )(?:quire\.(\w+):|\[([a-z_]+)\]) (.*)$", re.MULTILINE)


@contextmanager
def _spark(
    master: str | None, memory: str, as_json: bool, journal: str | None = None
) -> Iterator[SparkSession]:
    """Provides a Spark session for one command, and unwraps errors of quire from errors of Spark.

    A journal that does not exist is reported before Java starts, which takes seconds.
    """
    from quire._quire import SparkJournal
    from quire.spark import session

    if not re.fullmatch("[1-9][0-9]*[kmgtKMGT]", memory):
        raise ConfigError(f"memory: {memory!r} is no size such as 512m or 2g")
    if master is not None and not re.match("(local|spark|k8s)|yarn$", master):
        raise ConfigError(f"master: {master!r} is none of local[4], spark://HOST:7077, yarn, k8s://HOST:PORT")
    if journal is not None:
        SparkJournal(journal)
    is_submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if not is_submitted and "JAVA_HOME" not in os.environ and shutil.which("java") is None:
        raise ConfigError("Spark needs Java 17 or newer: neither is java on the path, nor JAVA_HOME set")
    if master is None and not is_submitted:
        master = "local[*]"
    # It logs the whole stack of an error that is reported in one line.
    logging.getLogger("DataFrameQueryContextLogger").setLevel(logging.CRITICAL)
    shows_progress = sys.stderr.isatty() and not as_json
    config = {"spark.ui.showConsoleProgress": str(shows_progress).lower()}
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    came: list[int] = []
    try:
        # If PySpark is interrupted here, its Java process waits forever.
        with _on_signals(lambda number, _: came.append(number)):
            spark = session(master, memory=memory, name="quire pipeline", quiet=True, config=config)
        try:
            # Spark has set another handler, which calls Java while a call to Java runs.
            with _on_signals(_interrupted):
                if came:
                    _interrupted(came[0], None)
                # A failure is reported in one line at the end, without stack traces of Java before
                # it.
                spark.sparkContext.setLogLevel("OFF")
                yield spark
        except (KeyboardInterrupt, SystemExit):
            # Java logs many lines about stopped jobs.
            with suppress(Exception):
                for query in spark.streams.active:
                    query.stop()
                spark.stop()
            raise
        except BaseException:
            spark.stop()
            raise
        spark.stop()
    except (PySparkException, Py4JError) as error:
        raise _own(error) from None


@contextmanager
def _on_signals(handler: Callable[[int, Any], object]) -> Iterator[None]:
    """Handles Ctrl-C and SIGTERM with `handler` inside the block."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)


def _interrupted(number: int, _: object) -> None:
    """Ends the command. Running calls to Java fail then, and their errors are not shown."""
    logging.disable(logging.CRITICAL)
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    sys.exit(128 + number)


def _own(error: Exception) -> QuireError:
    """Returns the error of quire that an error of Spark contains as text."""
    from quire import _errors

    found = list(_ERROR.finditer(str(error)))
    if not found:
        # Some of Spark's messages begin with an empty line, and those of Java with the call that
        # failed.
        text = (line for line in str(error).splitlines() if line.strip() and not line.startswith(_JAVA_CALL))
        return QuireError(next(text, type(error).__name__).removeprefix(": "))
    name, code, reason = found[-1].groups()
    if code is not None:
        return _errors.from_code(code, reason)
    kind = getattr(_errors, name, QuireError)
    # The text has its hint already.
    own: QuireError = QuireError(reason, code=kind.code) if kind.hint or kind is QuireError else kind(reason)
    return own


def _summary(title: str, fields: dict[str, Any], as_json: bool) -> int:
    if as_json:
        print_json(**fields)
    else:
        print_table((title, ""), fields.items())
    return 0


def _table(frame: DataFrame, as_json: bool, output: Path | None, title: str) -> int:
    _show(frame, as_json, output, title)
    return 0


def _show(frame: DataFrame, as_json: bool, output: Path | None, title: str) -> list[dict[str, Any]]:
    rows = [{name: _in_utc(value) for name, value in row.asDict().items()} for row in frame.collect()]
    if output is not None:
        from quire.spark._picture import write_html

        if output.suffix == ".html":
            write_html(output, title, frame.columns, rows)
        else:
            _write_csv(output, frame.columns, rows)
    if as_json:
        for row in rows:
            print_json(**row)
    else:
        print_table(frame.columns, [tuple(row.values()) for row in rows])
    return rows


def _in_utc(value: Any) -> Any:
    """Converts a time to UTC. Spark returns times in the zone of the machine, without a zone."""
    return value.astimezone(UTC) if isinstance(value, datetime) else value


def _check_output(output: Path | None) -> None:
    """Checks `--output` before the work begins."""
    if output is not None and output.suffix not in (".csv", ".html"):
        raise ConfigError(f"output: {output} ends neither in .csv nor in .html")
    if output is not None and not output.absolute().parent.is_dir():
        raise ConfigError(f"output: {output.absolute().parent} is no directory")


def _write_csv(path: Path, columns: list[str], rows: list[dict[str, Any]]) -> None:
    import csv

    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)


__all__ = ["app"]
