"""Directories that only their owner can open."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_MODE: Final = 0o700


def make_directory(path: Path) -> None:
    """Makes a directory, and those above it that are missing, for its owner only. One that exists keeps its mode."""
    # `Path.mkdir` makes those above it with the usual mode.
    missing = []
    while not path.is_dir():
        missing.append(path)
        path = path.parent
    for each in reversed(missing):
        each.mkdir(mode=_MODE, exist_ok=True)


__all__ = ["make_directory"]
