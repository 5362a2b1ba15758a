"""`quire journal`: shows the files of a journal, and archives, compresses and removes old ones.

Reading takes no lock and changes nothing, so it is safe while a server runs. Archiving, compressing and removing are done by the server
that the URL names, or by the server that runs on the directory. Without a server the command does them.
"""

from __future__ import annotations

from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

import quire
from quire._bookmarks import bookmark_to_core, one_message
from quire._units import counted
from quire.cli import FAILURE
from quire.cli._options import Format, server_options
from quire.cli._output import (
    check_count,
    headers_of,
    print_json,
    print_raw,
    print_row,
    print_table,
    show_filter_mistake,
    time_text,
)
from quire.server._maintenance import give_up_missing, maintain_directory, maintain_server

app = App(
    name="journal",
    help="Show and verify the files of a journal; archive, compress and remove old files. "
    "All commands are safe while the server runs. The journal is in the data directory of the server.",
    help_format="plaintext",
)

#: The widths of the columns of a record on a terminal: position, time, kind, topic, bookmark.
_WIDTHS = (10, 29, 11, 24, 30)

Directory = Annotated[Path, Parameter(name="DIR", help="Directory with the .journal files.")]
Archive = Annotated[
    Path | None,
    Parameter(
        name="--archive-directory",
        help="Directory with the archived files. Default: the directory of the last archiving.",
    ),
]
Age = Annotated[
    str | None,
    Parameter(help='Files whose last write is older than this, as in "7d". 0s: all files but the newest.'),
]
SizeMax = Annotated[
    str | None,
    Parameter(help='Instead of --age: the oldest files, until the rest has at most this size, as in "50GB".'),
]
if TYPE_CHECKING:
    Url = str | None
else:
    Url = server_options(
        "Instead of DIR: URL of the server whose files to use, as in quire://127.0.0.1:9007."
    )
DryRun = Annotated[bool, Parameter(negative="", help="Only print the files that the command would process.")]
Json = Annotated[bool, Parameter(negative="", help="Print JSON, one object per line.")]
Topic = Annotated[
    str | None,
    Parameter(
        help="Only this topic. It is a regular expression if it contains any of ^ $ * + ? [ ] ( ) { } | \\."
    ),
]
From = Annotated[
    str,
    Parameter(
        name="--from",
        allow_leading_hyphen=True,
        help="Begin after this place: epoch, a bookmark, a list of bookmarks, or a time (UTC).",
    ),
]
Until = Annotated[
    str | None,
    Parameter(
        allow_leading_hyphen=True,
        help="Last place to include: a bookmark or a time (UTC). Default: the end.",
    ),
]
Count = Annotated[int | None, Parameter(help="Stop after this number of records.")]
Style = Annotated[
    Format, Parameter(help="table: columns. json: one object per line. raw: the data and a line end.")
]


@app.command
def ls(directory: Directory, /, *, archive_directory: Archive = None, json: Json = False) -> int:
    """List the files of a journal with their sizes, counts and times. With --json also their bookmarks.

    For example:
      quire journal ls quire-data/journal
      quire journal ls quire-data/journal --json | jq .count
    """
    with _open(directory, archive_directory) as journal:
        segments = journal.segments()
    if json:
        for segment in segments:
            print_json(**_shown(segment))
        return 0
    columns = ("file", "state", "records", "bytes", "from", "to")
    rows = [
        (s.path.name, s.state, s.count, s.size, _time(s.first_timestamp_ns), _time(s.last_timestamp_ns))
        for s in segments
    ]
    print_table(columns, rows)
    return 0


def _shown(segment: quire.Segment) -> dict[str, Any]:
    """The members of a segment for JSON. Its times have nanoseconds."""
    members = asdict(segment)
    for name in ("first_timestamp", "last_timestamp"):
        ns = members.pop(f"{name}_ns")
        members[name] = None if ns is None else time_text(ns)
    return members


def _time(timestamp_ns: int | None) -> str | None:
    return None if timestamp_ns is None else time_text(timestamp_ns, " ")


@app.command
def dump(
    directory: Directory,
    /,
    *,
    topic: Topic = None,
    filter: Annotated[str | None, Parameter(help="Content filter. Only messages that match it.")] = None,
    from_: From = "epoch",
    until: Until = None,
    count: Count = None,
    archive_directory: Archive = None,
    format: Style = "table",
    json: Json = False,
) -> int:
    """Print the records of a journal, or a range of them.

    For example:
      quire journal dump quire-data/journal --count 10
      quire journal dump quire-data/journal --topic orders --from 2026-01-01 --until 2026-01-02T12:00
      quire journal dump quire-data/journal --topic orders --json > orders.saved
    """
    _dump(_open(directory, archive_directory), topic, filter, from_, until, count, "json" if json else format)
    return 0


@app.command
def grep(
    directory: Directory,
    filter: Annotated[str | None, Parameter(name="FILTER", help="Content filter.")] = None,
    /,
    *,
    unreadable: Annotated[
        bool,
        Parameter(
            negative="",
            help="Instead of FILTER: only messages whose content filters cannot read, with the cause.",
        ),
    ] = False,
    topic: Topic = None,
    from_: From = "epoch",
    until: Until = None,
    count: Count = None,
    archive_directory: Archive = None,
    format: Style = "table",
    json: Json = False,
) -> int:
    """Print the messages that match a content filter, or that no filter can read. Exit code 1 if there are none.

    For example:
      quire journal grep quire-data/journal "/symbol = 'IBM' AND /qty > 50"
      quire journal grep quire-data/journal "/qty > 50" --topic "^orders" --json | jq .data
      quire journal grep quire-data/journal --unreadable
    """
    if unreadable == (filter is not None):
        raise quire.ConfigError("grep: give either FILTER or --unreadable")
    journal = _open(directory, archive_directory)
    style: Format = "json" if json else format
    shown = _dump(journal, topic, filter, from_, until, count, style, unreadable=unreadable)
    return 0 if shown else FAILURE


@app.command
def find(
    directory: Directory,
    bookmark: Annotated[str, Parameter(name="BOOKMARK", help='Bookmark of the message, as in "4711|17|".')],
    /,
    *,
    archive_directory: Archive = None,
    json: Json = False,
) -> int:
    """Print the file that contains a message, and the byte where its batch begins. Exit code 1 if none does.

    For example:
      quire journal find quire-data/journal "4711|17|"
    """
    with _open(directory, archive_directory) as journal:
        found = journal.find(one_message(bookmark, "BOOKMARK"))
    if json:
        segment, offset = found or (None, None)
        print_json(bookmark=bookmark, segment=segment and segment.path, offset=offset)
    elif found is not None:
        print(found[0].path, found[1])
    return FAILURE if found is None else 0


@app.command
def verify(directory: Directory, /, *, archive_directory: Archive = None, json: Json = False) -> int:
    """Check all bytes of a journal. Exit code 1 if there is damage.

    For example:
      quire journal verify quire-data/journal && echo sound
    """
    with _open(directory, archive_directory) as journal:
        damages = journal.verify()
        segments = journal.segments()
    count = sum(segment.count for segment in segments)
    if json:
        found = [
            {"path": damage.path, "offset": damage.offset, "reason": damage.reason} for damage in damages
        ]
        print_json(is_sound=not damages, segments=len(segments), records=count, damages=found)
    elif damages:
        print_table(("file", "byte", "damage"), [(d.path, f"{d.offset}", d.reason) for d in damages])
    else:
        print(f"sound: {counted(count, 'record')} in {counted(len(segments), 'journal file')}")
    return FAILURE if damages else 0


@app.command
def archive(
    directory: Directory | None = None,
    /,
    *,
    url: Url = None,
    archive_directory: Annotated[
        Path | None,
        Parameter(
            name="--archive-directory",
            help="Directory to move the files to. Default: the directory in the configuration of the running "
            "server, or without a server the directory of the last archiving.",
        ),
    ] = None,
    age: Age = None,
    size_max: SizeMax = None,
    dry_run: DryRun = False,
    json: Json = False,
) -> int:
    """Move old files to another directory. They stay part of the journal.

    For example:
      quire journal archive quire-data/journal --archive-directory /archive/quire --age 1d
      quire journal archive --url quire://orders:9007 --age 1d
    """
    return _maintain("archive", directory, url, archive_directory, age, size_max, dry_run, json)


@app.command
def compress(
    directory: Directory | None = None,
    /,
    *,
    url: Url = None,
    archive_directory: Archive = None,
    age: Age = None,
    size_max: SizeMax = None,
    dry_run: DryRun = False,
    json: Json = False,
) -> int:
    """Compress old files in their directory. They stay part of the journal.

    For example:
      quire journal compress quire-data/journal --age 7d
      quire journal compress --url quire://orders:9007 --size-max 50GB
    """
    return _maintain("compress", directory, url, archive_directory, age, size_max, dry_run, json)


@app.command
def remove(
    directory: Directory | None = None,
    /,
    *,
    url: Url = None,
    archive_directory: Archive = None,
    age: Age = None,
    size_max: SizeMax = None,
    missing: Annotated[
        bool,
        Parameter(
            negative="",
            help="Instead of --age: accept that the oldest files are missing. The server must be stopped.",
        ),
    ] = False,
    dry_run: DryRun = False,
    json: Json = False,
) -> int:
    """Remove old files and their messages, except files that a queue, a subscription or a reader needs.

    For example:
      quire journal remove quire-data/journal --age 30d --dry-run
      quire journal remove --url quire://orders:9007 --age 30d --dry-run
      quire journal remove quire-data/journal --size-max 50GB
      quire journal remove quire-data/journal --missing
    """
    if missing:
        if directory is None or url is not None or age is not None or size_max is not None or dry_run:
            raise quire.ConfigError(
                "it takes a directory, and no --url, --age, --size-max or --dry-run", key="--missing"
            )
        return _give_up(directory, archive_directory, json)
    return _maintain("remove", directory, url, archive_directory, age, size_max, dry_run, json)


def _maintain(
    action: str,
    directory: Path | None,
    url: str | None,
    archive_directory: Path | None,
    age: str | None,
    size_max: str | None,
    dry_run: bool,
    json: bool,
) -> int:
    """Processes the files, and prints each one when it is done, so that the output is correct after an interruption."""
    if (age is None) == (size_max is None):
        raise quire.ConfigError(f"{action}: give either --age or --size-max")
    if age is not None and age.strip().isdecimal():
        raise quire.ConfigError(f"{age!r} has no unit, as 7d and 0s have", key="--age")
    if url is not None and directory is None:
        if archive_directory is not None:
            raise quire.ConfigError(
                "the server knows its own; leave it out with --url", key="--archive-directory"
            )
        taken = maintain_server(url, action, age, size_max, dry_run)
    elif directory is not None and url is None:
        taken = maintain_directory(directory, archive_directory, action, age, size_max, dry_run)
    else:
        # $QUIRE_URL is not used here: it may have been set for another command, and removed
        # messages cannot be restored.
        raise quire.ConfigError(
            f"say either the directory of the journal or, with --url, which server is to {action} its files"
        )
    count = total = 0
    for segment in taken:
        count, total = count + 1, total + segment.size
        if json:
            print_json(**_shown(segment))
        else:
            print(segment.path)
    if not json:
        done = {"archive": "archived", "compress": "compressed", "remove": "removed"}[action]
        done = f"would be {done}" if dry_run else done
        print(f"{done}: {counted(count, 'file')} of {counted(total, 'byte')}")
    return 0


def _give_up(directory: Path, archive_directory: Path | None, json: bool) -> int:
    given_up = give_up_missing(directory, archive_directory)
    first, last = (None, None) if given_up is None else given_up
    if json:
        print_json(first=first, last=last)
    elif last is None:
        print("no file is missing")
    else:
        begin = "up" if first is None else f"{first:010}"
        files = f"file {last:010}" if first == last else f"files {begin} to {last:010}"
        print(f"the log no longer contains journal {files}")
    return 0


def _open(directory: Path, archive_directory: Path | None) -> quire.Journal:
    return quire.Journal(directory, archive_directory=archive_directory, read_only=True)


def _dump(
    journal: quire.Journal,
    topic: str | None,
    filter: str | None,
    begin: str,
    until: str | None,
    count: int | None,
    style: Format,
    *,
    unreadable: bool = False,
) -> int:
    """Prints records, or only those that cannot be read, and returns their number."""
    check_count(count)
    after = bookmark_to_core(begin, "--from")
    end = None if until is None else bookmark_to_core(until, "--until")
    shown = 0
    with journal:
        try:
            records = journal.records(after, until=end, topic=topic, filter=filter)
        except quire.BadFilterError as error:
            show_filter_mistake(filter, error)
            raise
        # With a filter, `records` also has deletes.
        chosen = (record for record in records if filter is None or record.kind == "publish")
        causes = ((record, record.unreadable if unreadable else None) for record in chosen)
        wanted = ((record, cause) for record, cause in causes if cause is not None or not unreadable)
        for shown, (record, cause) in enumerate(islice(wanted, count), start=1):
            _print(record, style, cause, is_first=shown == 1)
    return shown


def _print(record: quire.Record, style: Format, cause: str | None, *, is_first: bool) -> None:
    if style == "raw":
        print_raw(record.data)
        return
    if style == "json":
        keys = [key.decode(errors="replace") for key in record.deleted_keys]
        path = [{"instance": instance, "group": group} for instance, group in record.path]
        print_json(
            record.data,
            position=record.position,
            kind=record.kind,
            topic=record.topic,
            message_type=record.message_type,
            bookmark=record.bookmark,
            timestamp=time_text(record.timestamp_ns),
            correlation_id=record.correlation_id,
            headers=headers_of(record),
            expiration_s=record.expiration_s,
            key=None if record.key is None else record.key.decode(errors="replace"),
            deleted_keys=keys,
            path=path,
            source_position=record.source_position,
            segment=record.segment.name,
            offset=record.offset,
            **({} if cause is None else {"unreadable": cause}),
        )
        return
    if is_first:
        last = "data" if cause is None else "cause"
        print_row(("position", "time (UTC)", "kind", "topic", "bookmark", last), _WIDTHS)
    # Only queues read their own records. `quire pipeline queue-audit` shows them.
    kind, size = record.kind, len(record.data)
    text = record.data.decode(errors="replace") if kind == "publish" else f"({size:,} bytes)"
    text = text if cause is None else f"{cause} ({record.message_type}, {size:,} bytes)"
    time = time_text(record.timestamp_ns, " ")
    print_row((str(record.position), time, kind, record.topic, record.bookmark, text), _WIDTHS)


__all__ = ["app"]
