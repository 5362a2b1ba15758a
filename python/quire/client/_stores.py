"""What a client keeps so that nothing is lost or repeated when something ends. See docs/stores.md."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from quire import _quire
from quire._arguments import check_path
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


class BookmarkStore:
    """Where it is kept how far the subscriptions of clients were processed. Thread-safe; may be shared by clients.

    - `path`: a file that outlives the process, open until `close`; `None` = in memory
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        #: The file, or `None`.
        self.path = None if path is None else absolute(path, "bookmark_store")
        self._core = _quire.BookmarkStore(self.path)

    @property
    def sub_ids(self) -> list[str]:
        """The names of the subscriptions whose places are kept."""
        return self._core.sub_ids()

    def most_recent(self, sub_id: str) -> str | None:
        """The bookmark behind which a subscription with this name goes on; `None` = nothing of it was processed."""
        return self._core.most_recent(sub_id)

    def forget(self, sub_id: str) -> bool:
        """Keeps the place of a subscription no more; whether it was kept."""
        return self._core.forget(sub_id)

    def close(self) -> None:
        """Lets the file go; what is processed afterwards is not kept. Harmless when it is closed."""
        self._core.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"BookmarkStore({None if self.path is None else str(self.path)!r})"


def absolute(path: str | os.PathLike[str], key: str) -> Path:
    """The file, wherever the program goes later."""
    check_path(path, key)
    if not os.fspath(path):
        raise ConfigError("the path is empty", key=key)
    return Path(path).expanduser().absolute()
