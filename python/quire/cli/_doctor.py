"""`quire doctor`: one archive with what a report about a fault needs, without data and without secrets."""

from __future__ import annotations

import contextlib
import io
import json
import os
import platform
import re
import sys
import tarfile
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import quire
from quire._text import without_secrets
from quire.cli._connect import connect
from quire.cli._journal import _shown
from quire.cli._output import _plain, note, say

#: The end of each log that the archive has, in bytes.
LOG_TAIL: Final = 1 << 20
#: The default of `admin.file`.
STATISTICS: Final = "statistics.db"
#: A larger file of statistics is left out.
STATISTICS_SIZE_MAX: Final = 256 << 20
#: Directories below the given one that are looked at: of the data, of one instance of several.
DEPTH: Final = 2
#: Files of one kind. A directory that is not of a server can have very many.
FILES_MAX: Final = 100

#: A line of an action, as text or JSON. It can have the data of messages.
_TEXT_OF_ACTION: Final = re.compile(rb'(?m)^(\S+ \[[^\]\n]*\] \w+ 60-0001 |\{.*?"id": ?"60-0001").*')

_REPORTED: Final = (
    *("quire-mq", "pydantic", "cyclopts", "rich", "pyjwt", "cryptography"),
    *("starlette", "uvicorn", "prometheus-client", "pyarrow", "pyspark"),
)


def doctor(directory: Path | None, url: str | None, config: Path | None, output: Path | None) -> int:
    if directory is not None and url is not None:
        raise quire.ConfigError("a directory and --url are given: use one of them", key="--url")
    now = datetime.now(UTC)
    name = f"quire-doctor-{now:%Y%m%dT%H%M%SZ}"
    path = Path(f"{name}.tar.gz") if output is None else output
    parts = _Parts()
    parts.add("versions.json", lambda: _json(_versions(now)))
    if directory is not None:
        if not directory.is_dir():
            raise quire.QuireError(f"there is no directory {directory}")
        _add_directory(parts, directory)
    else:
        # Without a server there is nothing to report, and the error of the connection says why.
        with connect(url) as client:
            _add_server(parts, client)
    if config is not None:
        parts.add(f"configuration/{config.name}.json", lambda: _json(_configuration(config)))
    if parts.missing:
        parts.files["missing.txt"] = "".join(f"{line}\n" for line in parts.missing).encode()
        for line in parts.missing:
            note(f"left out: {line}")
    _write(path, name, parts.files, now)
    say(str(path))
    return 0


class _Parts:
    """The files of the archive. A part that cannot be made is named in it, with the reason."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.missing: list[str] = []

    def add(self, name: str, make: Callable[[], bytes]) -> None:
        try:
            self.files[name] = make()
        except (quire.QuireError, OSError, TimeoutError, ValueError) as error:
            self.missing.append(f"{name}: {error}")


def _json(value: object) -> bytes:
    return (json.dumps(value, indent=2, default=_plain) + "\n").encode()


def _lines(values: Iterator[Mapping[str, Any]] | list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(value, default=_plain) + "\n" for value in values).encode()


def _versions(now: datetime) -> dict[str, Any]:
    def version(name: str) -> str | None:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            return None

    memory = None
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "time": now,
        "quire": quire.__version__,
        "python": sys.version,
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "memory_bytes": memory,
        "packages": {name: version(name) for name in _REPORTED},
    }


def _add_server(parts: _Parts, client: quire.Client) -> None:
    questions: dict[str, Callable[[], bytes]] = {
        "server.json": lambda: _json(asdict(client.server_info())),
        "topics.jsonl": lambda: _lines(client._topics()),
        "queues.jsonl": lambda: _lines(
            [{"queue": name, **figures} for name, figures in client.queue_stats().items()]
        ),
        "clients.jsonl": lambda: _lines(client._clients()),
        "subscriptions.jsonl": lambda: _lines(list(map(_without_filter, client._subscription_figures()))),
        "replication.json": lambda: _json(client._replication()),
    }
    for name, ask in questions.items():
        parts.add(f"server/{name}", ask)


def _without_filter(subscription: dict[str, Any]) -> dict[str, Any]:
    """A filter can have values of messages. Only its length remains."""
    text = subscription.get("filter")
    return {**subscription, "filter": None if text is None else f"*** ({len(text)} characters)"}


def _add_directory(parts: _Parts, directory: Path) -> None:
    files = list(_files(directory))
    if not any(file.suffix == ".journal" or file.name == STATISTICS for file in files):
        raise quire.QuireError(f"{directory} is not the data directory of a server: it has no journal")
    parts.add(
        "files.jsonl",
        lambda: _lines([_described(file, directory) for file in files]),
    )
    for place in sorted({file.parent for file in files if file.suffix == ".journal"}):
        parts.add(f"journal/{_label(place, directory)}.jsonl", lambda place=place: _lines(_segments(place)))  # type: ignore[misc]
    for file in _some(files, ".toml", parts):
        label = _label(file, directory)
        parts.add(f"configuration/{label}.json", lambda file=file: _json(_configuration(file)))  # type: ignore[misc]
    for file in _some(files, ".log", parts):
        parts.add(f"logs/{_label(file, directory)}", lambda file=file: _tail(file))  # type: ignore[misc]
    for file in files:
        if file.name == STATISTICS:
            parts.add(f"statistics/{_label(file, directory)}", lambda file=file: _statistics(file))  # type: ignore[misc]


def _files(directory: Path) -> Iterator[Path]:
    for root, directories, names in os.walk(directory):
        depth = len(Path(root).relative_to(directory).parts)
        directories[:] = sorted(directories) if depth < DEPTH else []
        for name in sorted(names):
            yield Path(root, name)


def _some(files: list[Path], suffix: str, parts: _Parts) -> list[Path]:
    found = [file for file in files if file.suffix == suffix]
    if len(found) > FILES_MAX:
        parts.missing.append(f"{len(found) - FILES_MAX} further files that end in {suffix}")
    return found[:FILES_MAX]


def _label(path: Path, directory: Path) -> str:
    return "-".join(path.relative_to(directory).parts) or "journal"


def _described(file: Path, directory: Path) -> dict[str, Any]:
    try:
        status = file.lstat()
    except OSError as error:
        return {"file": str(file.relative_to(directory)), "error": error.strerror}
    written = datetime.fromtimestamp(status.st_mtime, UTC)
    return {
        "file": str(file.relative_to(directory)),
        "bytes": status.st_size,
        "mode": f"{status.st_mode & 0o7777:o}",
        "written": written,
    }


def _segments(directory: Path) -> list[dict[str, Any]]:
    with quire.Journal(directory) as journal:
        return [_shown(segment) for segment in journal.segments()]


def _tail(file: Path) -> bytes:
    with file.open("rb") as log:
        size = log.seek(0, os.SEEK_END)
        log.seek(max(size - LOG_TAIL, 0))
        tail = log.read()
    # The first line may be a part.
    whole = tail if size <= LOG_TAIL else tail.partition(b"\n")[2]
    return _TEXT_OF_ACTION.sub(lambda found: found[1] + (b"}" if found[1][:1] == b"{" else b"***"), whole)


def _statistics(file: Path) -> bytes:
    if (size := file.stat().st_size) > STATISTICS_SIZE_MAX:
        raise ValueError(f"it has {size:,} bytes, and the limit is {STATISTICS_SIZE_MAX:,}")
    import sqlite3

    # A server may be writing it.
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as copy:
        with contextlib.closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)) as source:
            source.backup(copy)
        has_objects = "SELECT 1 FROM sqlite_master WHERE name = 'objects'"
        if copy.execute(has_objects).fetchone() is not None:
            fixed = copy.execute("SELECT fixed, id FROM objects").fetchall()
            shown = [(_shown_fixed(json.loads(text)), number) for text, number in fixed]
            copy.executemany("UPDATE objects SET fixed = ? WHERE id = ?", shown)
        # Without the bytes of rows that were replaced or removed.
        copy.execute("VACUUM")
        return copy.serialize()


def _shown_fixed(figures: dict[str, Any]) -> str:
    """The figures of an object that do not change, without values of messages and without secrets."""
    if "filter" in figures:
        figures = _without_filter(figures)
    if "config" in figures:
        figures["config"] = json.dumps(without_secrets(json.loads(figures["config"])))
    return json.dumps(figures)


def _configuration(file: Path) -> dict[str, Any]:
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        # Its text quotes the file.
        place = re.search(r"\(at [^)]*\)\Z", str(error))
        raise ValueError(f"it is not TOML {place[0] if place else ''}".rstrip()) from None
    masked: dict[str, Any] = without_secrets(content)
    return masked


def _write(path: Path, name: str, files: dict[str, bytes], now: datetime) -> None:
    # Names of topics and clients are not for every user of the machine.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as raw, tarfile.open(fileobj=raw, mode="w:gz") as archive:
            for each, content in sorted(files.items()):
                member = tarfile.TarInfo(f"{name}/{each}")
                member.size, member.mtime, member.mode = len(content), int(now.timestamp()), 0o600
                archive.addfile(member, io.BytesIO(content))
    except BaseException:
        path.unlink()
        raise


__all__ = ["doctor"]
