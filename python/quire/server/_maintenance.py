"""Maintenance of journal files from another process: by the server that has the journal open, else here.

A server is reached by its URL, as a client, or by the directory of its journal, as its
administrator: it then listens on a socket without a file that is named after the directory. Both
ways speak the ordinary protocol. See docs/operations.md.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

from quire import _quire
from quire._errors import ConfigError, JournalLockedError, ProtocolError
from quire._text import without_password
from quire.client._blocking import Client
from quire.journal._journal import Segment, check_is_journal, maintain, segment_of, which_to_core
from quire.server._log import line

_log = logging.getLogger("quire.server")


def maintain_directory(
    directory: Path,
    archive_directory: Path | None,
    action: str,
    age: str | None,
    size_max: str | None,
    dry_run: bool,
) -> Iterator[Segment]:
    """Archives, compresses or removes files in a directory, and yields each when it is done: by the
    server that runs on it, else here.

    - `archive_directory`: `None` = the one that files of the journal were archived to last

    Raises what `ServerJournal.archive` raises, and `JournalLockedError` when another program has
    the journal open.
    """
    check_is_journal(directory)
    try:
        maintenance = _quire.JournalMaintenance(directory, archive_directory)
    except JournalLockedError:
        if not _quire.runs_locally(directory):
            raise
        archive = None if archive_directory is None else str(archive_directory.resolve())
        yield from _ask(f"local:{directory}", action, age, size_max, dry_run, archive)
        return
    if action == "archive" and maintenance.archive_directory is None:
        reason = "it is required, because this journal was not archived before"
        raise ConfigError(reason, key="--archive-directory")
    for fields in maintain(maintenance, action, age, size_max, dry_run):
        yield segment_of(fields)


def give_up_missing(directory: Path, archive_directory: Path | None) -> tuple[int | None, int] | None:
    """Accepts that the oldest files of a stopped journal are missing: the log begins after them
    from now on.

    Returns the numbers of the first file, `None` when it is not known, and of the last file; `None`
    when no file is missing. Raises `JournalLockedError` when a process has the journal open, and
    `JournalCorruptError` when no file is left.
    """
    check_is_journal(directory)
    return _quire.JournalMaintenance.give_up_missing(directory, archive_directory)


def maintain_server(
    url: str, action: str, age: str | None, size_max: str | None, dry_run: bool
) -> Iterator[Segment]:
    """Tells a server to archive, compress or remove files. Yields each finished file, by its path there.

    Raises `ConfigError` for arguments that contradict each other, `NotEntitledError` when the
    server does not allow clients to do this, and `DisconnectedError` without a server or when it
    stops. All files yielded before are done.
    """
    if not url.startswith(("quire://", "quires://")):
        reason = f"{without_password(url)!r} is not that of a server; for a directory, leave --url out"
        raise ConfigError(reason, key="--url")
    yield from _ask(url, action, age, size_max, dry_run, None)


def _ask(
    url: str, action: str, age: str | None, size_max: str | None, dry_run: bool, archive_directory: str | None
) -> Iterator[Segment]:
    older, beyond = which_to_core(age, size_max)
    with Client(url) as client:
        core = client._core
        while files := _files_of(core, core.maintain(action, older, beyond, dry_run, archive_directory)):
            yield from files
            if dry_run:
                return


def _files_of(core: _quire.Client, command: int) -> list[Segment]:
    try:
        core.wait(command)
        told = [json.loads(text) for text in core.take_json_replies(command)]
    except ProtocolError as error:
        raise ProtocolError(
            f"the server does not understand this: it is older than the command, and takes a directory only ({error.reason})"
        ) from None
    finally:
        core.abandon(command)
    names = ("number", "first", "last", "first_ns", "last_ns", "count", "size", "state")
    return [segment_of((Path(file["path"]), *(file[name] for name in names))) for file in told]


def listen_locally(directory: Path) -> socket.socket | None:
    """The socket of the administrator, bound; `None` where the system has no sockets without a
    file, or another program has the name. A server works without it."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(b"\0" + _quire.local_socket_name(directory).encode())
    except OSError as error:
        listener.close()
        _log.warning(
            "the command line cannot ask for maintenance of journal files by their directory: %s",
            error,
            extra=line("20-0009"),
        )
        return None
    return listener


def user_of(descriptor: int) -> int:
    """The user of the process at the other end of a Unix socket."""
    with socket.socket(fileno=os.dup(descriptor)) as peer:
        credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    user: int = struct.unpack("3i", credentials)[1]
    return user
