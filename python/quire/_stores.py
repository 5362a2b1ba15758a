"""What a client keeps so that nothing is lost or repeated when something ends. See docs/stores.md."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from quire._errors import ConfigError
from quire._units import Size, size

#: Bytes of unpersisted publishes that a client keeps; above it `publish` waits.
DEFAULT_PUBLISH_STORE_SIZE_MAX: Final = 256 * 1024 * 1024


class PublishStore:
    """Where a client keeps publishes until they are persisted, and how many bytes of them at the most.

    - `path`: a file that outlives the process; `None` = in memory
    - `size_max`: above it `publish` waits until something is persisted
    """

    def __init__(
        self, path: str | os.PathLike[str] | None = None, *, size_max: Size = DEFAULT_PUBLISH_STORE_SIZE_MAX
    ) -> None:
        #: The file, or `None`.
        self.path = None if path is None else absolute(path, "publish_store")
        #: Bytes.
        self.size_max = size(size_max, "size_max")

    def __repr__(self) -> str:
        return f"PublishStore({None if self.path is None else str(self.path)!r}, size_max={self.size_max})"


def absolute(path: str | os.PathLike[str], key: str) -> Path:
    """The file, wherever the program goes later."""
    if not os.fspath(path):
        raise ConfigError("the path is empty", key=key)
    return Path(path).expanduser().absolute()
