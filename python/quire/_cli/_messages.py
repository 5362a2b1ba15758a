"""`quire publish` and `quire subscribe`."""

from __future__ import annotations

import csv
import json
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

import quire
from quire import _quire
from quire._message import Message


def publish(
    topic: str, file: str, *, url: str, name: str | None, rate: float | None, as_csv: bool, as_json: bool
) -> int:
    if rate is not None and rate <= 0:
        raise quire.ConfigError(f"--rate: {rate:g} is not above 0")
    started = time.perf_counter()
    count = size = 0
    with _opened(file) as (source, total), quire.Client(url, name=name) as client:
        with _progress(total) as advance:
            for data, position in _lines(source, as_csv):
                if rate is not None:
                    _wait_until(started + count / rate)
                client.publish(topic, data)
                count += 1
                size += len(data)
                if count % 1000 == 0:
                    advance(position)
        client.flush()
    seconds = time.perf_counter() - started
    if as_json:
        print(json.dumps({"published": count, "bytes": size, "seconds": round(seconds, 3)}))
    else:
        each = count / seconds if seconds else 0.0
        print(f"{count:,} messages, {size:,} bytes persisted in {seconds:.2f} s ({each:,.0f} messages/s)")
    return 0


def subscribe(
    topic: str,
    *,
    url: str,
    filter: str | None,
    bookmark: str | None,
    live: bool,
    count: int | None,
    timeout: float | None,
    style: str,
) -> int:
    if bookmark is not None:
        bookmark = {"epoch": quire.EPOCH, "now": quire.NOW}.get(bookmark.lower(), bookmark)
    with quire.Client(url) as client:
        try:
            subscription = client.subscribe(topic, filter=filter, bookmark=bookmark, live=live)
        except quire.BadFilterError as error:
            if filter is not None and error.column:
                print(_quire.caret(filter, error.column), file=sys.stderr)
            raise
        shown = 0
        while count is None or shown < count:
            message = subscription.get(timeout=timeout)
            if message is None:
                break
            _print(message, style, is_first=shown == 0)
            shown += 1
    return 0


def _print(message: Message, style: str, *, is_first: bool) -> None:
    if style == "raw":
        sys.stdout.buffer.write(message.data + b"\n")
        sys.stdout.buffer.flush()
        return
    if style == "json":
        line = {
            "topic": message.topic,
            "bookmark": message.bookmark,
            "timestamp": message.timestamp.isoformat(),
        }
        print(json.dumps({**line, "data": _data(message)}), flush=True)
        return
    if is_first:
        print(f"{'time':<26} {'topic':<24} {'bookmark':<30} data")
    text = message.data.decode(errors="replace")
    print(
        f"{message.timestamp:%Y-%m-%d %H:%M:%S.%f} {message.topic:<24} {message.bookmark or '':<30} {text}",
        flush=True,
    )


def _data(message: Message) -> Any:
    """The data as JSON where it is, else as text."""
    try:
        return message.json()
    except ValueError:
        return message.data.decode(errors="replace")


@contextmanager
def _opened(file: str) -> Iterator[tuple[BinaryIO, int | None]]:
    """The source and its size; that of the standard input is not known."""
    if file == "-":
        yield sys.stdin.buffer, None
        return
    with open(file, "rb") as source:
        source.seek(0, 2)
        total = source.tell()
        source.seek(0)
        yield source, total


def _lines(source: BinaryIO, as_csv: bool) -> Iterator[tuple[bytes, int]]:
    """Messages, and how far into the source they reach. Empty lines are skipped."""
    position = 0

    def read() -> Iterator[bytes]:
        nonlocal position
        for line in source:
            position += len(line)
            yield line

    if as_csv:
        rows: Iterable[dict[str, str | None]] = csv.DictReader(line.decode() for line in read())
        for row in rows:
            yield json.dumps({key: _value(text) for key, text in row.items()}).encode(), position
        return
    for line in read():
        if data := line.rstrip(b"\r\n"):
            yield data, position


def _value(text: str | None) -> str | int | float | None:
    """A cell as the number that it is, NULL when it is empty, else the text."""
    if not text:
        return None
    for convert in (int, float):
        try:
            return convert(text)
        except ValueError:
            continue
    return text


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
