"""`quire pipeline`: the everyday jobs of Spark on a journal, each as one command."""

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
from quire.cli._app import Again, Destination
from quire.cli._output import print_json, print_table
from quire.cli._replay import destination_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

app = App(
    name="pipeline",
    help="Jobs of Spark on a journal. They run on this machine, on a cluster with --master, or under spark-submit.",
    help_format="plaintext",
)

Journal = Annotated[
    str, Parameter(name="JOURNAL", help="The journal directory, or the data directory of a server.")
]
Topics = Annotated[str | None, Parameter(help="Only these topics, separated by commas.")]
Archive = Annotated[
    str | None,
    Parameter(
        name="--archive-directory",
        help="Where older files of the journal were moved to. Default: where the journal says.",
    ),
]
SkipLost = Annotated[
    bool,
    Parameter(
        name="--skip-lost",
        negative="",
        help="Continue without messages that were removed from the journal or cannot be read.",
    ),
]
Master = Annotated[
    str | None,
    Parameter(help="Where Spark runs: local[4], spark://HOST:7077. Default: all cores of this machine."),
]
Memory = Annotated[str, Parameter(help="Memory of the driver, which on this machine does all the work.")]
Json = Annotated[bool, Parameter(negative="", help="Output for machines: one JSON object per line.")]
Output = Annotated[
    Path | None, Parameter(help="Where the table goes as well: .csv, or .html for a picture and the table.")
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
    """Add what the journal has gained to a Parquet data set, by topic and date.

    Run again, it adds what is new; killed, it is completed by the next run.

    For example:
      quire pipeline archive quire-data/journal archive
      quire pipeline archive quire-data/journal s3a://bucket/trades --topics trades --fields "price double, qty int"

    Parameters
    ----------
    target
        The data set: a directory, or any place that Spark can write to.
    fields
        Typed columns from the data, as in a schema of Spark.
    """
    with _spark(master, memory, json) as spark:
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
    """Join the directories that many runs of archive have left into one.

    For example:
      quire pipeline compact archive

    Parameters
    ----------
    target
        The data set.
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
    """Bring a table with the newest message of every key up to date.

    For example:
      quire pipeline last-value quire-data/journal orders-now --topics orders --keys "id string"

    Parameters
    ----------
    target
        Where the table is kept, as Parquet.
    keys
        Columns from the data that make the key, as in a schema of Spark.
    """
    with _spark(master, memory, json) as spark:
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
    """Open, high, low, close and volume of a number, by window.

    For example:
      quire pipeline bars quire-data/journal --topics trades --value /price --size /qty --by /symbol --every 1h
      quire pipeline bars quire-data/journal --value /dep_delay --by /carrier --time /time_hour --every "1 day" --output bars.html

    Parameters
    ----------
    value
        Path of the number in the data.
    by
        Path of what bars are kept apart by.
    size
        Path of what adds up to the volume.
    time
        Path of the time of the event; the time of the journal without it.
    every
        The window: 10s, 15m, 4h, "1 day".
    filter
        Only messages that match.
    """
    _check_output(output)
    with _spark(master, memory, json) as spark:
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
    """Report for every queue how its messages were settled, which consumers had them, and how long it took.

    Consumers are known for queues with record_leases.

    For example:
      quire pipeline queue-audit quire-data/journal --output queues.html
      quire pipeline queue-audit quire-data/journal --by consumer

    Parameters
    ----------
    queues
        Only these, separated by commas.
    dead_letters
        The dead letter topics, separated by commas: an expired message leaves its trace there.
    by
        What a row is about.
    """
    _check_output(output)
    with _spark(master, memory, json) as spark:
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
        Parameter(help="Only this topic; a pattern when it holds any of ^ $ * + ? [ ] ( ) { } | \\."),
    ] = None,
    filter: str | None = None,
    from_: Annotated[
        str, Parameter(name="--from", help="Begin after this: epoch, a bookmark, or a time (UTC).")
    ] = "epoch",
    until: Annotated[
        str, Parameter(help="Up to and including this; now = what is there when the command begins.")
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
    """Publish a range of the journal into a server, in its order.

    Run again under the same name it changes nothing, or completes what was stopped. The options are those of `quire replay`.

    For example:
      quire pipeline replay quire-data/journal --name rerun-1 --url quire://127.0.0.1:9008 --rate 10X
      quire pipeline replay quire-data/journal --name test-1 --into test --from 2026-01-05T08:00 --until 2026-01-05T09:00

    Parameters
    ----------
    name
        The publisher's identity.
    filter
        Only messages that match.
    rate
        The fastest pace: 1000 messages per second, or 2X, a multiple of the original pace. Without it: as fast as it goes.
    into
        Publish every message to this topic instead of its original topic.
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
    with _spark(master, memory, json) as spark:
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


#: A topic that holds one of these is a pattern.
PATTERN_CHARACTERS = frozenset(r"^$*+?[](){}|\\")

#: How the text of an error of Java begins.
_JAVA_CALL = "An error occurred while calling"

#: An error of quire in a text of Spark: after its own words, or in the last line of a traceback.
_ERROR = re.compile(r"(?:^|: )quire\._errors\.(\w+): (.*)$", re.MULTILINE)


@contextmanager
def _spark(master: str | None, memory: str, as_json: bool) -> Iterator[SparkSession]:
    """A session for one command; mistakes that Spark wraps in its own errors come out as they were."""
    from quire.spark import session

    if not re.fullmatch("[1-9][0-9]*[kmgtKMGT]", memory):
        raise ConfigError(f"memory: {memory!r} is no size such as 512m or 2g")
    if master is not None and not re.match("(local|spark|k8s)|yarn$", master):
        raise ConfigError(f"master: {master!r} is none of local[4], spark://HOST:7077, yarn, k8s://HOST:PORT")
    is_submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if not is_submitted and "JAVA_HOME" not in os.environ and shutil.which("java") is None:
        raise ConfigError("Spark needs Java 17 or newer: neither is java on the path, nor JAVA_HOME set")
    if master is None and not is_submitted:
        master = "local[*]"
    # It writes the whole stack of an error that is about to be told in one line.
    logging.getLogger("DataFrameQueryContextLogger").setLevel(logging.CRITICAL)
    shows_progress = sys.stderr.isatty() and not as_json
    config = {"spark.ui.showConsoleProgress": str(shows_progress).lower()}
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    came: list[int] = []
    try:
        # PySpark that is interrupted here leaves a Java that waits for ever.
        with _on_signals(lambda number, _: came.append(number)):
            spark = session(master, memory=memory, name="quire pipeline", quiet=True, config=config)
        try:
            # Spark has set another handler, which calls Java while a call to Java runs.
            with _on_signals(_interrupted):
                if came:
                    _interrupted(came[0], None)
                # A failure is reported in one line at the end, without stack traces of Java before it.
                spark.sparkContext.setLogLevel("OFF")
                yield spark
        except (KeyboardInterrupt, SystemExit):
            # Java has a lot to say about jobs that are stopped.
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
    """Ctrl-C and SIGTERM go there meanwhile."""
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
    """The error of quire inside one of Spark, which carries it as text."""
    from quire import _errors

    found = list(_ERROR.finditer(str(error)))
    if not found:
        # Some of Spark's messages begin with an empty line, and those of Java with the call that failed.
        text = (line for line in str(error).splitlines() if line.strip() and not line.startswith(_JAVA_CALL))
        return QuireError(next(text, type(error).__name__).removeprefix(": "))
    name, reason = found[-1].groups()
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
    """Spark gives times as those of the machine's zone, without saying so."""
    return value.astimezone(UTC) if isinstance(value, datetime) else value


def _check_output(output: Path | None) -> None:
    """Before the work, not after it."""
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
