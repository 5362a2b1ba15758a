"""Text files that a command replaces."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from pathlib import Path


def replace_text(path: Path, text: str, *, keeps_mode: bool = False) -> None:
    """Replaces a file at once. It keeps its owner. `keeps_mode`: and its mode, otherwise only the owner may read it.
    A symbolic link remains, and the file that it names is replaced."""
    path = Path(os.path.realpath(path))
    # A temporary file is readable by its owner only.
    number, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(number, "w", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            _keep_owner(number, path)
            if keeps_mode:
                os.fchmod(number, os.stat(path).st_mode & 0o7777)
            os.fsync(number)
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def basic_string(text: str) -> str:
    """A basic string of TOML: JSON escapes are those of TOML, except for DEL, which TOML does not allow."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007F")


def _keep_owner(number: int, path: Path) -> None:
    """Gives a new file the owner of the one that it replaces, as far as the system allows: the server may be this user."""
    with contextlib.suppress(OSError):
        replaced = os.stat(path)
        os.fchown(number, replaced.st_uid, replaced.st_gid)


__all__ = ["basic_string", "replace_text"]
