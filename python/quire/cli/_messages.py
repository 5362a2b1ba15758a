"""`quire publish`, `quire subscribe`, `quire sow` and `quire sow-delete`."""

from __future__ import annotations

import json
import os
import re
import sys
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime
from operator import itemgetter
from typing import Any, Self

import quire
from quire import _quire
from quire._bookmarks import moment_of, point_to_core, range_to_core
from quire._process import start_thread
from quire._topics import is_pattern
from quire._units import counted, seconds
from quire.cli._connect import connect
from quire.cli._csv import delimiter_of
from quire.cli._options import Format, PublishOptions, SowOptions, SubscribeOptions, given
from quire.cli._output import (
    check_count,
    headers_of,
    note,
    print_json,
    print_published,
    print_raw,
    print_row,
    say,
    show_filter_mistake,
    stopped,
    time_text,
)
from quire.cli._source import opened
from quire.client._again import takes_keys
from quire.client._worker import refusal_of

#: Seconds that `subscribe` waits for the server, when `--timeout` is not less.
CONNECT_TIMEOUT = 10.0
#: Seconds without a message, after which `subscribe` tells a person what it waits for.
_PATIENCE = 2.0
#: The widths of the columns of a message on a terminal: time, topic, bookmark or key.
_WIDTHS = (29, 24, 30)


def publish(topic: str, file: str, options: PublishOptions, *, url: str, as_json: bool) -> int:
    rate, name = options.rate, options.name
    if rate is not None and not rate > 0:
        raise quire.ConfigError(f"{rate:g} is not above 0", key="--rate")
    headers = _headers(options.header or [])
    wait, moment = _delay(options.delay, options.deliver_at)
    lifetime = None if options.expiration is None else seconds(options.expiration, "--expiration")
    if options.data is not None and (file != "-" or options.csv or options.records):
        other = "FILE" if file != "-" else "--csv" if options.csv else "--records"
        raise quire.ConfigError(f"it does not go together with {other}", key="--data")
    if options.csv and options.records:
        raise quire.ConfigError("it does not go together with --csv", key="--records")
    for_csv = {"--csv-types": options.csv_types, "--delimiter": options.delimiter}
    if not options.csv and (lonely := [option for option, value in for_csv.items() if value is not None]):
        raise quire.ConfigError("it requires --csv", key=lonely[0])
    options = replace(options, delimiter=delimiter_of(options.delimiter))
    # The options of the command come before those that a record has.
    said = {
        "expiration": lifetime,
        "correlation_id": options.correlation_id,
        "sow_key": options.key,
        "headers": headers or None,
    }
    common: dict[str, Any] = {option: value for option, value in said.items() if value is not None}
    common |= {"delay": wait, "deliver_at": moment}
    started = time.perf_counter()
    count = size = skipped = 0
    with (
        opened(file, options) as source,
        quire.Client(url, name=name) as client,
        _Places(source.name, client) as places,
    ):
        send = client.delta_publish if options.delta else client.publish
        # With a client name, the number of a line is its sequence. The server has the lines up to
        # this one.
        known = 0 if name is None else client.persisted
        has_keys = options.records and takes_keys(client, topic)
        with _progress(source.size) as advance:
            for number, item in enumerate(source.items(), start=1):
                if number % 1000 == 0:
                    advance(item.position)
                if number <= known:
                    skipped += 1
                    continue
                if rate is not None:
                    _wait_until(started + count / rate)
                arguments = common
                if item.options:
                    own = {
                        option: value
                        for option, value in item.options.items()
                        if has_keys or option != "sow_key"
                    }
                    all_headers = {**item.options.get("headers", {}), **headers}
                    arguments = {**own, **common, "headers": all_headers}
                places.line = item.line
                places.note(
                    send(topic, item.data, sequence=quire.AUTO if name is None else number, **arguments)
                )
                count += 1
                size += len(item.data)
        client.flush()
        duration = time.perf_counter() - started
        unrecorded = client._unrecorded_of([topic]) if count else []
    if as_json:
        report = {"published": count, "skipped": skipped, "bytes": size, "seconds": round(duration, 3)}
        print(json.dumps({**report, "left_out": source.left_out, "unrecorded": unrecorded}))
        return 0
    print_published(count, size, duration, unrecorded)
    if skipped:
        say(f"{counted(skipped, 'was', 'were')} there already under the name {name}")
    if source.left_out:
        print(f"{counted(source.left_out, 'record')} left out that are no messages")
    return 0


def _delay(delay: str | None, deliver_at: str | None) -> tuple[float | None, datetime | None]:
    """The delay in seconds, or the time, of which at most one is given."""
    if delay is not None and deliver_at is not None:
        raise quire.ConfigError("it does not go together with --delay", key="--deliver-at")
    moment = None
    if deliver_at is not None:
        moment = moment_of(deliver_at)
        if moment is None:
            reason = f"{deliver_at!r} is not a time such as 2030-01-01T08:00:00Z"
            raise quire.ConfigError(reason, key="--deliver-at")
    return None if delay is None else seconds(delay, "--delay"), moment


def _headers(options: list[str]) -> dict[str, str]:
    """The headers of options such as `trace=abc`."""
    headers: dict[str, str] = {}
    for option in options:
        name, separator, value = option.partition("=")
        if not separator or not name:
            raise quire.ConfigError(f"expected name=value, got {option!r}", key="--header")
        if name in headers:
            raise quire.ConfigError(f"the name {name!r} is given twice", key="--header")
        headers[name] = value
    return headers


#: Options of `subscribe` that say what the command does, and not what it subscribes to.
_OF_THE_COMMAND = frozenset({"ack", "sow", "delta", "count", "timeout", "format"})
#: Options of `subscribe` that `check_options` of the core does not get: those of the command, those
#: that go together with every other one, and `bookmark`, which it gets as a value.
_WITHOUT_RULES = frozenset({"ack", "filter", "bookmark", "count", "timeout", "format"})


def subscribe(topic: str, options: SubscribeOptions, *, url: str | None, as_json: bool) -> int:
    count, ack, sow, delta = options.count, options.ack, options.sow, options.delta
    style: Format = "json" if as_json else options.format
    said = _checked(options)
    patience = None if options.timeout is None else _seconds(options.timeout, "--timeout")
    browses = not ack and options.bookmark is None and not sow and not delta
    connect_timeout = CONNECT_TIMEOUT if patience is None else min(patience, CONNECT_TIMEOUT)
    with connect(url, connect_timeout=connect_timeout) as client:
        if browses and _is_queue(client, topic):
            # A message that is delivered and handed back counts as delivered, and may expire by
            # that.
            of_deliveries = ("select", "max_backlog", "conflation")
            if refused := [option for option in of_deliveries if option in said]:
                option = f"--{refused[0].replace('_', '-')}"
                raise quire.ConfigError(f"{topic} is a queue, and {option} requires --ack")
            note(f"{topic} is a queue: this shows its messages and takes none; --ack takes them")
            _show_all(client, topic, {"filter": options.filter, "top_n": count}, style)
            return 0
        if browses and options.max_backlog is None:
            said["max_backlog"] = 0  # Queues that a pattern finds deliver nothing.
        calls: dict[tuple[bool, bool], Callable[..., quire.Subscription]] = {
            (False, False): client.subscribe,
            (True, False): client.sow_and_subscribe,
            (False, True): client.delta_subscribe,
            (True, True): client.sow_and_delta_subscribe,
        }
        arguments = {option: value for option, value in said.items() if option not in _OF_THE_COMMAND}
        try:
            subscription = calls[sow, delta](topic, **arguments)
        except quire.BadFilterError as error:
            # The column may be one of the order.
            mistaken = options.order_by if error.reason.startswith("order_by") else options.filter
            show_filter_mistake(mistaken, error)
            raise
        if ack and (refusal := refusal_of(topic, subscription._core)):
            raise refusal
        if browses and (queues := _queues_among(client, topic)):
            names = ", ".join(queues[:3]) + (f" and {len(queues) - 3} more" if len(queues) > 3 else "")
            note(
                f"{topic} also matches {counted(len(queues), 'queue')}: {names}. Messages of topics with these names are not "
                f"shown: consumers take them. quire subscribe {queues[0]} shows them"
            )
        for message in _until_end(client, subscription, count, patience, _reminder(topic), style):
            if ack:
                message.ack()
    return 0


def _checked(options: SubscribeOptions) -> dict[str, Any]:
    """Returns the options that were given, with values for the client. Raises `ConfigError` for those that do not go together."""
    said = given(options)
    check_count(options.count)
    begin = None
    if options.bookmark is not None:
        begin = said["bookmark"] = range_to_core(options.bookmark, "--bookmark", keeps_place=False)
    if options.keys is not None and not options.sow:
        # The rules also allow keys with a bookmark alone: a subscription to records continues so.
        raise quire.ConfigError("it requires --sow", key="--keys")
    _quire.check_options([option for option in said if option not in _WITHOUT_RULES], True, begin)
    if options.ack:
        if begin is not None:
            reason = "it does not go together with --ack: it reads the log, not a queue"
            raise quire.ConfigError(reason, key="--bookmark")
        if options.max_backlog == 0:
            raise quire.ConfigError("with 0, a queue delivers no messages to --ack", key="--max-backlog")
        if options.sow or options.delta:
            reason = f"it does not go together with {'--sow' if options.sow else '--delta'}"
            raise quire.ConfigError(reason, key="--ack")
    if options.conflation is not None:
        said["conflation"] = seconds(options.conflation, "--conflation")
    if options.keys is not None:
        said["keys"] = _keys(options.keys)
    return said


def _until_end(
    client: quire.Client,
    subscription: quire.Subscription,
    count: int | None,
    patience: float | None,
    reminder: threading.Timer,
    style: Format,
) -> Iterator[quire.Message]:
    """Prints messages, up to `count` of them, and yields each one that was printed.

    Ends after a range, and `patience` seconds after the last message. Raises `TimeoutError` if `count` messages
    were expected then.
    """
    shown = 0
    while count is None or shown < count:
        try:
            message = subscription.get(timeout=patience)
        except quire.DisconnectedError:
            if count is None and client.state == "connected":
                break  # the end of a range
            raise
        except TimeoutError:
            if count is None:
                break
            raise TimeoutError(
                f"{shown} of {counted(count, 'message')} came, and nothing for {patience:g} s"
            ) from None
        reminder.cancel()
        print_message(message, style, is_first=shown == 0)
        shown += 1
        yield message
    reminder.cancel()


def _seconds(text: str, key: str) -> float:
    """A number of seconds, or a duration with a unit."""
    try:
        # `float` would read the digits of every language.
        number = float(text if text.isascii() else "")
    except ValueError:
        return seconds(text, key)
    if number < 0:
        raise quire.ConfigError(f"{text} is below 0", key=key)
    return seconds(number, key)


def _reminder(topic: str) -> threading.Timer:
    """Says after some seconds without a message what the command waits for: a person may have misspelled the topic."""
    reminder = threading.Timer(_PATIENCE, note, [f"no message of {topic!r} yet; waiting (Ctrl-C ends)"])
    reminder.daemon = True
    if sys.stderr.isatty():
        start_thread(reminder)
    return reminder


def sow(topic: str, options: SowOptions, *, url: str | None, as_json: bool, is_queue: bool = False) -> int:
    said = given(options)
    del said["format"]
    _quire.check_options(["sow", *(option for option in ("skip_n", "top_n") if option in said)], True)
    if options.bookmark is not None:
        said["bookmark"] = point_to_core(options.bookmark, "--bookmark")
    if options.keys is not None:
        said["keys"] = _keys(options.keys)
    with connect(url) as client:
        if is_queue and not _is_queue(client, topic):
            client.queue_stats(topic)  # raises the error
        _show_all(client, topic, said, "json" if as_json else options.format)
    return 0


def sow_delete(
    topic: str, *, url: str | None, filter: str | None, keys: str | None, data: str | None, as_json: bool
) -> int:
    if filter is None and keys is None and data is None:
        raise quire.ConfigError("give at least one of --filter, --keys and --data", key="sow-delete")
    with connect(url) as client:
        try:
            named = None if keys is None else _keys(keys)
            message = None if data is None else os.fsencode(data)
            count = client.sow_delete(topic, filter=filter, keys=named, data=message)
        except quire.BadFilterError as error:
            show_filter_mistake(filter, error)
            raise
        client.flush()
    print(json.dumps({"deleted": count}) if as_json else count)
    return 0


def _keys(text: str) -> list[str]:
    """No key has a comma."""
    return [key for part in text.split(",") if (key := part.strip())]


def _show_all(client: quire.Client, topic: str, arguments: dict[str, Any], style: Format) -> None:
    """Prints the records of a topic, or the messages that a queue could deliver now."""
    try:
        for number, message in enumerate(client.sow(topic, **arguments)):
            print_message(message, style, is_first=number == 0)
    except quire.BadFilterError as error:
        # The column may be one of the order.
        mistaken = "order_by" if error.reason.startswith("order_by") else "filter"
        show_filter_mistake(arguments.get(mistaken), error)
        raise


def _queues_among(client: quire.Client, pattern: str) -> list[str]:
    """The queues whose names a pattern matches; none for a plain topic, and for a pattern that only the server understands."""
    if not is_pattern(pattern):
        return []
    with suppress(re.error):
        found = re.compile(pattern)
        return [name for name in client.queue_stats() if found.search(name)]
    return []


def _is_queue(client: quire.Client, topic: str) -> bool:
    # The list has each queue on which the user has any right. The figures of one need `monitor`.
    return topic in client.queue_stats()


def print_message(message: quire.Message, style: Format, *, is_first: bool) -> None:
    if style == "raw":
        print_raw(message.data)
        return
    if style == "json":
        source = {} if message.queue is None else {"source_topic": message.source_topic}
        headers = {"headers": headers_of(message)} if message.headers else {}
        record = {} if message.sow_key is None else _record_of(message)
        correlated = {} if message.correlation_id is None else {"correlation_id": message.correlation_id}
        delivered = {} if message.queue is None else {"delivery_count": message.delivery_count}
        print_json(
            message.data,
            topic=message.topic,
            **source,
            **record,
            bookmark=message.bookmark,
            timestamp=time_text(message.timestamp_ns),
            **correlated,
            **delivered,
            **headers,
        )
        return
    # A record is known by its key.
    name = message.bookmark or "" if message.sow_key is None else message.sow_key
    if is_first:
        title = "bookmark" if message.sow_key is None else "key"
        print_row(("time (UTC)", "topic", title, "data"), _WIDTHS)
    left = "(delta) " if message.is_delta else ""
    if message.reason is not None:
        left = f"({message.command}: {message.reason}) "
    text = message.data.decode(errors="replace")
    print_row((time_text(message.timestamp_ns, " "), message.topic, name, left + text), _WIDTHS)


def _record_of(message: quire.Message) -> dict[str, str | bool | None]:
    """The fields of a message of a last-value topic."""
    reason = {} if message.reason is None else {"reason": message.reason}
    delta = {"is_delta": True} if message.is_delta else {}
    return {"command": message.command, **delta, **reason, "sow_key": message.sow_key}


class _Places:
    """The lines of published messages. Around the publishes, it names the line of the message that an error is about, and the line
    at which the command stopped."""

    def __init__(self, source: str, client: quire.Client) -> None:
        self._source = source
        self._client = client
        #: The line of the message that is published now; 0 = there is none.
        self.line = 0
        #: The line and the sequence of the last message that was published, and how many there are.
        self._last = 0
        self._sequence = client._last_sequence
        self._count = 0
        #: A sequence and its line. Those after it have the next lines, up to the next entry.
        self._first: list[tuple[int, int]] = []

    def note(self, sequence: int | None) -> None:
        """The message of the current line has this sequence."""
        line, self.line = self.line, 0
        self._last = line
        self._count += 1
        if sequence is not None:
            # With a client name, the messages that the server has seen and not persisted are sent
            # again.
            self._sequence = max(self._sequence, sequence)
        if sequence is None or (self._first and sequence - self._first[-1][0] == line - self._first[-1][1]):
            return
        self._first.append((sequence, line))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        is_refusal = isinstance(error, quire.QuireError) and not isinstance(error, quire.NameInUseError)
        sequence = getattr(error, "sequence", None) if is_refusal else None
        if sequence is not None and (place := bisect_right(self._first, sequence, key=itemgetter(0))):
            first, line = self._first[place - 1]
            # The client has flushed the others before it raised the error.
            refused = f"line {line + sequence - first} of {self._source}"
            note(f"{refused} was refused; the lines that were not refused are published")
            return
        if is_refusal and self.line:
            note(f"line {self.line} of {self._source} was not published, nor were the lines after it")
            return
        if not isinstance(error, (KeyboardInterrupt, SystemExit, quire.ConfigError)):
            return
        # A signal handler can raise when the client has the message, and the command does not have
        # its sequence.
        if self.line and self._client._last_sequence > self._sequence:
            self.note(self._client._last_sequence)
        if self._count:
            stopped(self._client, f"after line {self._last} of {self._source}", self._count)


def _wait_until(instant: float) -> None:
    left = instant - time.perf_counter()
    if left > 0:
        time.sleep(left)


@contextmanager
def _progress(total: int | None) -> Iterator[Any]:
    """A bar on the terminal for a file of known size, else nothing."""
    if total is None or not sys.stderr.isatty():
        yield lambda _position: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    with Progress(
        "publishing", BarColumn(), TransferSpeedColumn(), TimeRemainingColumn(), console=Console(stderr=True)
    ) as bar:
        task = bar.add_task("publishing", total=total)
        yield lambda position: bar.update(task, completed=position)
