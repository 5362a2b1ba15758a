"""`quire replay`: a range of a journal, published again."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Protocol

import quire
from quire import _quire
from quire._arguments import delta_to_core
from quire._bookmarks import bookmark_to_core, point_to_core
from quire._units import counted
from quire.cli import default_url
from quire.cli._connect import connect
from quire.cli._options import ReplayOptions
from quire.cli._output import note, print_published, show_filter_mistake, stopped
from quire.client._again import check_not_again, takes_keys


class Replayed(Protocol):
    """The common attributes of messages and records."""

    @property
    def topic(self) -> str: ...
    @property
    def data(self) -> bytes: ...
    @property
    def bookmark(self) -> str | None: ...
    @property
    def timestamp_ns(self) -> int: ...
    @property
    def correlation_id(self) -> str | None: ...
    @property
    def headers(self) -> dict[str, str | bytes]: ...


class Deletions:
    """The deletions of last-value records in the range. They are not published."""

    count = 0


def replay(source: str, options: ReplayOptions, *, url: str | None, as_json: bool) -> int:
    into = options.into
    destination = destination_of(url, into)
    if _is_server(source) and options.archive_directory is not None:
        raise quire.ConfigError("--archive-directory: a server knows its own")
    begin, until = bookmark_to_core(options.from_, "--from"), point_to_core(options.until, "--until")
    range = replace(options, from_=begin, until=until)
    started = time.perf_counter()
    count = size = skipped = 0
    last: str | None = None
    #: The topics of the destination, and whether their publishers supply keys.
    topics: dict[str, bool] = {}
    deletions = Deletions()
    total: int | None = None
    message: Replayed | None = None
    with _opened(source, range) as steps, quire.Client(destination, name=options.name) as client:
        sequence = client._last_sequence
        try:
            with _progress() as advance:
                for message, position, total in steps(client.persisted, deletions):
                    if message is None:
                        skipped += 1
                    else:
                        if not count and not options.again and message.bookmark is not None:
                            bookmark, at = message.bookmark, message.timestamp_ns
                            check_not_again(client, message.topic, bookmark, at, into)
                        target = message.topic if into is None else into
                        if target not in topics:
                            topics[target] = takes_keys(client, target)
                        client.publish(
                            target,
                            message.data,
                            sequence=quire.AUTO if position is None else position,
                            expiration=getattr(message, "expiration_s", None),
                            correlation_id=message.correlation_id,
                            headers=message.headers,
                            sow_key=_key_of(message) if topics[target] else None,
                        )
                        last, sequence = message.bookmark, client._last_sequence
                        count += 1
                        size += len(message.data)
                    if (count + skipped) % 1000 == 0:
                        advance(position, total)
                advance(total, total)
        except quire.BadFilterError as error:
            show_filter_mistake(options.filter, error)
            raise
        except (KeyboardInterrupt, SystemExit):
            # A signal handler can raise when the client has the message, and before it is counted.
            if message is not None and client._last_sequence > sequence:
                count, last = count + 1, message.bookmark
            if last is not None:
                stopped(client, f"after {last}; --from '{last}' continues there", count)
            raise
        client.flush()
        seconds = time.perf_counter() - started
        unrecorded = client._unrecorded_of(topics)
    if not count and not skipped:
        note(f"no message with {_sought(options)}")
    if as_json:
        report = {"published": count, "skipped": skipped, "bytes": size, "seconds": round(seconds, 3)}
        left_out = {"deletions": deletions.count}
        print(json.dumps({**report, **left_out, "last": last, "unrecorded": unrecorded}))
        return 0
    print_published(count, size, seconds, unrecorded)
    if skipped:
        print(f"{counted(skipped, 'was', 'were')} there already")
    if deletions.count:
        print(f"{counted(deletions.count, 'deletion')} of last-value records left out")
    if last is not None:
        print(f"last: {last}")
    return 0


def _key_of(message: Replayed) -> str | None:
    """The key of the record that the message is in a last-value topic."""
    if isinstance(message, quire.Record):
        # No server takes a key with U+FFFD. The error then names the message, as for any other key
        # that is not valid.
        return None if message.key is None else message.key.decode(errors="replace")
    return message.sow_key if isinstance(message, quire.Message) else None


def destination_of(url: str | None, into: str | None) -> str:
    """Where a replay publishes. Raises `ConfigError` when the command line does not say it: a replay into the server that it reads from
    would repeat everything."""
    if url is None and into is None:
        raise quire.ConfigError(
            "say where to publish: --url for the server, or --into for another topic of the default server"
        )
    return url or default_url()


def _sought(options: ReplayOptions) -> str:
    """Describes the selection in the words of the command line."""
    said = {
        "--topic": options.topic,
        "--filter": options.filter,
        "--from": options.from_,
        "--until": options.until,
    }
    return " ".join(f"{name} {value!r}" for name, value in said.items() if value is not None)


#: A message, or none for one that is there already; its position and the last position, where they
#: are known.
Step = tuple[Replayed | None, int | None, int | None]


def _is_server(source: str) -> bool:
    return "://" in source or source.startswith("file:")


@contextmanager
def _opened(source: str, range: ReplayOptions) -> Iterator[Callable[[int, Deletions], Iterator[Step]]]:
    """Opens the source. It is opened before the destination, where a client may create a journal."""
    if _is_server(source):
        with connect(source, key="SOURCE") as client:
            yield partial(_from_server, client, range)
        return
    with quire.Journal(Path(source), archive_directory=range.archive_directory, read_only=True) as journal:
        yield partial(_from_directory, journal, range)


def _from_directory(
    journal: quire.Journal, range: ReplayOptions, persisted: int, deletions: Deletions
) -> Iterator[Step]:
    """Publishes with positions as sequences. Messages that the destination has under this name are skipped without waiting."""
    gap = delta_to_core(range.rate_max_gap, "rate_max_gap")
    if range.rate is None and gap is not None:
        raise quire.ConfigError("--rate-max-gap: it is for a multiple of the original pace, as in --rate 2X")
    pace = None if range.rate is None else _quire.Pace(range.rate, gap)
    total = journal.persisted
    begin = _begin_in(journal, range)
    records = journal.records(begin, until=range.until, topic=range.topic, filter=range.filter)
    for record in records:
        if record.kind != "publish":
            deletions.count += len(record.deleted_keys)
            continue
        if record.position <= persisted:
            yield None, record.position, total
            continue
        if pace is not None:
            pace.wait(record.timestamp_ns, len(record.data))
        yield record, record.position, total


def _begin_in(journal: quire.Journal, range: ReplayOptions) -> str:
    """Where to begin in a journal that may not have the bookmark."""
    try:
        journal.records(range.from_)
    except quire.BadBookmarkError as error:
        if range.bookmark_not_found == "fail":
            raise quire.BadBookmarkError(error.reason, code=error.code, key="--from") from None
        begins = "with the oldest message" if range.bookmark_not_found == "epoch" else "now"
        note(f"--from: {error.reason}; the replay begins {begins}")
        return quire.EPOCH if range.bookmark_not_found == "epoch" else quire.NOW
    return range.from_


def _from_server(
    client: quire.Client, range: ReplayOptions, _persisted: int, deletions: Deletions
) -> Iterator[Step]:
    """The server keeps the pace. Messages do not tell their positions, so that they are counted."""
    place = f"({range.from_}:{range.until}]"
    subscription = client.subscribe(
        "^" if range.topic is None else range.topic,
        filter=range.filter,
        bookmark=place,
        bookmark_not_found=range.bookmark_not_found,
        rate=range.rate,
        rate_max_gap=range.rate_max_gap,
        deletions=True,
    )
    for batch in subscription.batches():
        for message in batch:
            if message.command == "delete":
                deletions.count += 1
            else:
                yield message, None, None


class Advance(Protocol):
    def __call__(self, position: int | None, total: int | None, /) -> None: ...


@contextmanager
def _progress() -> Iterator[Advance]:
    """A bar on the terminal, by positions where they are known, else nothing."""
    if not sys.stderr.isatty():
        yield lambda _position, _total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn, TimeRemainingColumn

    with Progress(
        "replaying",
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    ) as bar:
        task = bar.add_task("replaying", total=None)
        yield lambda position, total: bar.update(task, completed=position or 0, total=total)
