"""The files of a log: the next one when it is time for it, compressed and removed afterwards."""

from __future__ import annotations

import gzip
import os
import re
import shutil
import stat
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from quire._directories import make_directory
from quire.config._logging import PLACEHOLDERS, Logging

_MODE: Final = stat.S_IRUSR | stat.S_IWUSR
_COMPRESSED: Final = ".gz"
#: A file that is being compressed. After a crash, it is made again.
_UNFINISHED: Final = ".gz.part"


class LogFiles:
    """Writes lines to the current file. Its methods are for one thread.

    Each method raises `OSError` when the disk refuses.
    """

    def __init__(self, settings: Logging, directory: Path) -> None:
        """`directory`: where relative files are. Opens the first file."""
        assert settings.file is not None
        self._settings = settings
        self._directory = (directory / settings.file).parent
        #: The name of a file, with its placeholders.
        self._pattern = Path(settings.file).name
        self._is_numbered = "%n" in self._pattern.replace("%%", "")
        self._names = re.compile(_regex(self._pattern) + f"({re.escape(_COMPRESSED)})?")
        self._descriptor = -1
        self._size = 0
        #: The name of the current file without its number.
        self._begun = ""
        self.path = Path()
        self._open(datetime.now(UTC), is_next=False)

    def write(self, line: str, at: datetime) -> None:
        """Writes a line with its time in UTC."""
        data = line.encode("utf-8", "backslashreplace") + b"\n"
        rotate = self._settings.rotate
        is_full = rotate is not None and self._size > 0 and self._size + len(data) > rotate
        if self._descriptor < 0 or is_full or self._name_at(at) != self._begun:
            self._open(at, is_next=is_full)
        while data:
            written = os.write(self._descriptor, data)
            self._size += written
            data = data[written:]

    def rotate(self) -> None:
        """Begins the next file. Without `%n`, opens the file of the same name again: another program may have moved it."""
        self._open(datetime.now(UTC), is_next=self._size > 0)

    def tidy(self) -> None:
        """Compresses the files before the current one, and removes those beyond `keep`."""
        earlier = [path for path in self._files() if path != self.path]
        if (keep := self._settings.keep) is not None:
            for path in earlier[: max(len(earlier) - keep, 0)]:
                path.unlink(missing_ok=True)
            earlier = earlier[max(len(earlier) - keep, 0) :]
        if self._settings.compress:
            for path in earlier:
                if path.suffix != _COMPRESSED:
                    _compress(path)

    def close(self) -> None:
        """Closes the current file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _open(self, at: datetime, *, is_next: bool) -> None:
        name, number = self._name_at(at), 1
        if self._is_numbered:
            numbers = _regex(name).replace(PLACEHOLDERS["%n"], f"({PLACEHOLDERS['%n']})")
            pattern = re.compile(f"{numbers}({re.escape(_COMPRESSED)})?")
            found = filter(None, map(pattern.fullmatch, self._entries()))
            taken = [(int(each[1]), bool(each[2])) for each in found]
            number, is_compressed = max(taken, default=(1, False))
            if taken and (is_compressed or is_next or self._is_full(name, number)):
                number += 1
        path = self._directory / _numbered(name, number)
        make_directory(self._directory)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, _MODE)
        self.close()
        self._descriptor, self.path, self._begun = descriptor, path, name
        self._size = os.fstat(descriptor).st_size

    def _is_full(self, name: str, number: int) -> bool:
        rotate, path = self._settings.rotate, self._directory / _numbered(name, number)
        return rotate is not None and path.stat().st_size >= rotate

    def _name_at(self, at: datetime) -> str:
        """The name of a file that begins at a time, still with `%n` and `%%`."""
        return re.sub(
            r"%.",
            lambda found: found[0] if found[0] in ("%n", "%%") else at.strftime(found[0]),
            self._pattern,
        )

    def _files(self) -> list[Path]:
        """All files of the log, the oldest one first."""
        found = [self._directory / name for name in self._entries() if self._names.fullmatch(name)]
        return sorted(found, key=lambda path: (path.stat().st_mtime_ns, path.name))

    def _entries(self) -> list[str]:
        try:
            return os.listdir(self._directory)
        except FileNotFoundError:
            return []


def _numbered(name: str, number: int) -> str:
    return re.sub(r"%.", lambda found: str(number) if found[0] == "%n" else "%", name)


def _regex(name: str) -> str:
    """A pattern of the names of the files."""
    parts = re.split(r"(%.)", name)
    return "".join(PLACEHOLDERS[part] if part in PLACEHOLDERS else re.escape(part) for part in parts)


def _compress(path: Path) -> None:
    """Replaces a file by a compressed one. A crash leaves the file, or both."""
    unfinished = path.with_name(path.name + _UNFINISHED)
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, _MODE)
    with path.open("rb") as source, os.fdopen(descriptor, "wb") as target:
        with gzip.GzipFile(path.name, "wb", fileobj=target) as compressed:
            shutil.copyfileobj(source, compressed)
        target.flush()
        os.fsync(target.fileno())
    times = path.stat()
    os.utime(unfinished, ns=(times.st_atime_ns, times.st_mtime_ns))
    unfinished.rename(path.with_name(path.name + _COMPRESSED))
    path.unlink()
