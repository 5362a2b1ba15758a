"""Where the triggers of messages of the log continue after a restart."""

from __future__ import annotations

import hashlib
import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from quire._directories import make_directory
from quire.actions._check import Part
from quire.client._stores import BookmarkStore

if TYPE_CHECKING:
    from quire.config import Config

_DIRECTORY: Final = "actions"


class Places:
    """The places of triggers, in files below `data_directory`.

    A trigger without a place begins with the messages after its first start.
    """

    def __init__(self, config: Config, wanted: list[str]) -> None:
        """`wanted`: the names of all places. The others are forgotten. Raises `OSError`."""
        directory = config.data_directory / _DIRECTORY
        make_directory(directory)
        self._file = directory / "begun.json"
        self.store = BookmarkStore(directory / "places")
        begun = _read(self._file)
        now = time.time_ns()
        self._begun = {name: begun.get(name, now) for name in wanted}
        for name in set(self.store.sub_ids) - set(wanted):
            self.store.forget(name)
        if self._begun != begun:
            _write(self._file, self._begun)

    def begin(self, name: str) -> int:
        """When a trigger began, in nanoseconds since 1970."""
        return self._begun[name]

    def close(self) -> None:
        """Closes the files."""
        self.store.close()


def place_name(action: str, part: Part) -> str:
    """The name of the place of a trigger. It has another one when its topic, filter or source changes."""
    about = [part.entry.name, part.get("topic"), part.get("filter")]
    if (source := part.get("source")) not in (None, "all"):
        about.append(source)
    return f"{action}-{hashlib.sha256(json.dumps(about).encode()).hexdigest()[:16]}"


def _read(path: Path) -> dict[str, int]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    if not isinstance(found, dict):
        return {}
    return {name: at for name, at in found.items() if isinstance(name, str) and isinstance(at, int)}


def _write(path: Path, begun: dict[str, int]) -> None:
    """Replaces the file at once: after a crash it is the old or the new one."""
    part = path.with_suffix(".part")
    with open(part, "w", encoding="utf-8", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        json.dump(begun, file)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
