"""Taking care of the files of a journal from outside of the process that has it open.

A server whose URL is known is asked as any client asks it for something, for one file after the other. For whoever knows only the
directory of the journal, a running server listens on a socket without a file, named after that: whoever names the directory finds the
server, and nothing is left behind by a kill. A request is one line of JSON; the answer is one line for each file as it is done, and one
at the end. See docs/operations.md.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import struct
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from quire import _quire
from quire._client import Client
from quire._errors import (
    ConfigError,
    DisconnectedError,
    JournalLockedError,
    NotEntitledError,
    ProtocolError,
    QuireError,
    from_code,
)
from quire._journal import Segment, check_is_journal, segment_of, take, which_to_core
from quire._process import start_thread, without_open_files

_log = logging.getLogger("quire.server")

#: Bytes of a request, at most, and seconds that it may take to come.
_REQUEST_SIZE_MAX: Final = 64 * 1024
_REQUEST_TIMEOUT: Final = 5.0

#: Seconds until the next look for a request when there was no open file left for it.
ACCEPT_PAUSE: Final = 1.0


@dataclass(frozen=True)
class Task:
    """What is to be done with which files: the arguments of `ServerJournal.archive` and its like."""

    action: str
    age: str | None
    size_max: str | None
    dry_run: bool
    #: `None`: where the server archives.
    archive_directory: str | None


def take_care(
    directory: Path,
    archive_directory: Path | None,
    action: str,
    age: str | None,
    size_max: str | None,
    dry_run: bool,
) -> Iterator[Segment]:
    """Archives, compresses or removes files in a directory, and gives each when it is done: by the server that runs on it, else here.

    - `archive_directory`: `None` = the one that files of the journal were archived to last

    Raises what `ServerJournal.archive` raises, and `JournalLockedError` when something else has the journal open.
    """
    check_is_journal(directory)
    try:
        upkeep = _quire.Upkeep(directory, archive_directory)
    except JournalLockedError:
        server = _connect(directory)
        if server is None:
            raise
        archive = None if archive_directory is None else str(archive_directory.resolve())
        with server:
            yield from _ask(server, Task(action, age, size_max, dry_run, archive))
        return
    if action == "archive" and upkeep.archive_directory is None:
        raise ConfigError("--archive-directory says where to: this journal was not archived before")
    for fields in take(upkeep, action, age, size_max, dry_run, upkeep.queues_need):
        yield segment_of(fields)


def give_up_missing(directory: Path, archive_directory: Path | None) -> tuple[int | None, int] | None:
    """Gives up the oldest files of a stopped journal that are missing: the log begins after them from now on.

    Returns the numbers of the first file, `None` when it is not known, and of the last file; `None` when no file is missing. Raises
    `JournalLockedError` when a process has the journal open, and `JournalCorruptError` when no file is left.
    """
    check_is_journal(directory)
    return _quire.Upkeep.give_up_missing(directory, archive_directory)


def ask_for_care(
    url: str, action: str, age: str | None, size_max: str | None, dry_run: bool
) -> Iterator[Segment]:
    """Has a server archive, compress or remove files, and gives each when it is done, with its path on the server's machine.

    Raises `ConfigError` for what cannot be meant, `NotEntitledError` when the server does not let clients do that,
    `DisconnectedError` when there is none, or not any more: what was given is done then.
    """
    if not url.startswith(("quire://", "quires://")):
        raise ConfigError(f"{url!r} is not that of a server; for a directory, leave --url out", key="--url")
    older, beyond = which_to_core(age, size_max)
    with Client(url) as client:
        while files := _files_of(client._core, client._core.upkeep(action, older, beyond, dry_run)):
            yield from files
            if dry_run:
                return


def _files_of(core: _quire.Client, command: int) -> list[Segment]:
    try:
        core.wait(command)
        told = [json.loads(text) for text in core.take_told(command)]
    except ProtocolError as error:
        raise ProtocolError(
            f"the server does not understand this: it is older than the command, and takes a directory only ({error.reason})"
        ) from None
    finally:
        core.abandon(command)
    names = ("number", "first", "last", "first_ns", "last_ns", "count", "size", "state")
    return [segment_of((Path(file["path"]), *(file[name] for name in names))) for file in told]


class UpkeepListener:
    """What a running server takes requests with, one after the other, on a thread of its own."""

    def __init__(self, directory: Path, engine: _quire.Engine) -> None:
        self._engine = engine
        self._asking: socket.socket | None = None
        self._closed = threading.Event()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._listener.bind(_address(directory))
            self._listener.listen()
            start_thread(threading.Thread(target=self._run, name="quire-upkeep", daemon=True))
        except BaseException:
            self._listener.close()
            raise

    @classmethod
    def open(cls, directory: Path, engine: _quire.Engine) -> UpkeepListener | None:
        """`None` where the system has no sockets without a file, or another program took the name: a server goes without."""
        try:
            return cls(directory, engine)
        except OSError as error:
            _log.warning("the command line cannot ask for the care of journal files: %s", error)
            return None

    def close(self) -> None:
        """Takes no more requests; a file that is under way is finished."""
        self._closed.set()
        for each in (self._listener, self._asking):
            if each is not None:
                with contextlib.suppress(OSError):  # it is closed already
                    each.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _run(self) -> None:
        while True:
            try:
                asking, _ = self._listener.accept()
            except OSError as error:
                refused = without_open_files(error)
                if refused is None:
                    return
                _log.warning("a request for the care of journal files waits: %s", refused)
                self._closed.wait(ACCEPT_PAUSE)
                continue
            with asking:
                self._asking = asking
                with contextlib.suppress(OSError):  # whoever asked has gone
                    self._answer(asking)
                self._asking = None

    def _answer(self, asking: socket.socket) -> None:
        if _user_of(asking) not in (0, os.geteuid()):
            # Before anything is read: a stranger must not hold up others by saying nothing.
            reason = "only the user that the server runs as, and root, may ask for that"
            asking.sendall(_line(code=NotEntitledError.code, reason=reason))
            return
        asking.settimeout(_REQUEST_TIMEOUT)
        with asking.makefile("rb") as lines:
            request = lines.readline(_REQUEST_SIZE_MAX)
        asking.settimeout(None)
        try:
            task = Task(**json.loads(request))
        except (TypeError, ValueError):
            return
        try:
            for fields in self._take(task):
                asking.sendall(_line(file=[str(fields[0]), *fields[1:]]))
            end = _line(done=True)
        except QuireError as error:
            end = _line(code=error.code, reason=error.reason)
        except OSError:
            raise
        except Exception:
            _log.exception("taking care of the files of the journal failed")
            end = _line(code="internal", reason="the server could not do it, its log says why")
        asking.sendall(end)

    def _take(self, task: Task) -> Iterator[_quire.SegmentFields]:
        upkeep = self._engine.upkeep()
        own = upkeep.archive_directory
        if task.archive_directory is not None and (
            own is None or Path(task.archive_directory) != own.resolve()
        ):
            where = "nowhere" if own is None else f"to {own}"
            raise ConfigError(
                f"the server that runs on this journal archives {where}", key="archive_directory"
            )
        return take(upkeep, task.action, task.age, task.size_max, task.dry_run, self._engine.keep_from)


def _address(directory: Path) -> bytes:
    about = directory.stat()
    return f"\0quire-upkeep-{about.st_dev}-{about.st_ino}".encode()


def _connect(directory: Path) -> socket.socket | None:
    """The server that has the journal of this directory. Somebody else's program under its name is none."""
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        server.connect(_address(directory))
        if _user_of(server) in (0, directory.stat().st_uid):
            return server
    except OSError:  # nobody listens
        pass
    server.close()
    return None


def _ask(server: socket.socket, task: Task) -> Iterator[Segment]:
    with contextlib.suppress(BrokenPipeError):  # refused already, the answer says why
        server.sendall(_line(**asdict(task)))
    with server.makefile("rb") as lines:
        for line in lines:
            answer = json.loads(line)
            if "file" in answer:
                path, *fields = answer["file"]
                yield segment_of((Path(path), *fields))
            elif "done" in answer:
                return
            else:
                raise from_code(answer["code"], answer["reason"])
    raise DisconnectedError("the server that has this journal open stopped before it was done")


def _line(**fields: Any) -> bytes:
    return json.dumps(fields).encode() + b"\n"


def _user_of(peer: socket.socket) -> int:
    credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    user: int = struct.unpack("3i", credentials)[1]
    return user
