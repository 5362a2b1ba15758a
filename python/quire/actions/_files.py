"""The steps about files: which ones they may touch, compressing and removing."""

from __future__ import annotations

import glob
import gzip
import os
import shutil
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from quire.config import Config

_MODE: Final = stat.S_IRUSR | stat.S_IWUSR
_COMPRESSED: Final = ".gz"
_UNFINISHED: Final = ".gz.part"


def directories(config: Config) -> list[Path]:
    """The directories in which files may be compressed and removed."""
    logs = [(config.data_directory / each.file).parent for each in config.logging if each.file is not None]
    return [each.resolve() for each in (config.data_directory, *logs)]


def files_of(config: Config, pattern: str, age: float) -> list[Path]:
    """The files that a pattern selects and that were not changed for `age` seconds.

    Journal files, other files of the server and open ones are left out. Raises `ValueError` for a pattern that
    leads to other directories, and for one with `**`.
    """
    if "**" in pattern:
        raise ValueError(f"{pattern!r}: ** is not allowed, because directories below are left out")
    allowed = directories(config)
    full = (
        pattern if os.path.isabs(pattern) else os.path.join(glob.escape(str(config.data_directory)), pattern)
    )
    own = _own(config)
    open_files = set(_open_files())
    found = []
    for name in sorted(glob.glob(full)):
        path = Path(name)
        place = path.parent.resolve()
        if not any(place == each or each in place.parents for each in allowed):
            raise ValueError(
                f"{pattern!r} leads to {place}, which is not below data_directory or a directory of logs"
            )
        if any(place == each or each in place.parents for each in own) or path.suffix == ".journal":
            raise ValueError(
                f"{pattern!r} selects files of the server in {place}: use the steps about the journal"
            )
        about = path.lstat()
        is_file = stat.S_ISREG(about.st_mode)
        is_open = (about.st_dev, about.st_ino) in open_files
        if is_file and not is_open and time.time() - about.st_mtime >= age:
            found.append(path)
    return found


def _own(config: Config) -> list[Path]:
    """The directories whose files only the server may change."""
    journal, archive = config.journal_directory, config.journal_archive_directory
    places = [journal, config.data_directory / "actions", *([] if archive is None else [archive])]
    return [place.resolve() for place in places]


def _open_files() -> Iterator[tuple[int, int]]:
    """The files that this process has open, by device and number."""
    try:
        numbers = os.listdir("/dev/fd")
    except OSError:
        return
    for number in numbers:
        try:
            about = os.fstat(int(number))
        except (OSError, ValueError):
            continue
        yield about.st_dev, about.st_ino


def compress(path: Path) -> None:
    """Replaces a file by a compressed one. A crash leaves the file, or both. Raises `OSError`."""
    unfinished = path.with_name(path.name + _UNFINISHED)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)
    descriptor = os.open(unfinished, flags, _MODE)
    with path.open("rb") as source, os.fdopen(descriptor, "wb") as target:
        with gzip.GzipFile(path.name, "wb", fileobj=target) as compressed:
            shutil.copyfileobj(source, compressed)
        target.flush()
        os.fsync(target.fileno())
    times = path.stat()
    os.utime(unfinished, ns=(times.st_atime_ns, times.st_mtime_ns))
    unfinished.rename(path.with_name(path.name + _COMPRESSED))
    path.unlink()


def is_compressed(path: Path) -> bool:
    """Whether a file is a compressed one, or one that is being made."""
    return path.name.endswith((_COMPRESSED, _UNFINISHED))
