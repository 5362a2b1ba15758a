"""The stores of a client, which prevent lost and repeated messages after a crash. See docs/stores.md."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from quire import _quire
from quire._arguments import check_path, suggests
from quire._units import Size, size

#: Bytes of unpersisted publishes that a client keeps; above it `publish` waits.
DEFAULT_PUBLISH_STORE_SIZE_MAX: Final = 256 * 1024 * 1024


class PublishStore:
    """Keeps the publishes of a client until they are persisted.

    - `path`: a file that survives the process; `None` = in memory
    - `size_max`: limit in bytes; above it, `publish` waits until messages are persisted
    """

    @suggests
    def __init__(
        self, path: str | os.PathLike[str] | None = None, *, size_max: Size = DEFAULT_PUBLISH_STORE_SIZE_MAX
    ) -> None:
        #: The file, or `None`.
        self.path: Path | None = None if path is None else absolute(path, "publish_store")
        #: Bytes.
        self.size_max: int = size(size_max, "size_max")

    def __repr__(self) -> str:
        return f"PublishStore({None if self.path is None else str(self.path)!r}, size_max={self.size_max})"


class BookmarkStore:
    """Keeps the positions of subscriptions. Threads and clients can share a store.

    - `path`: a file that survives the process, open until `close`; `None` = in memory
    """

    @suggests
    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        #: The file, or `None`.
        self.path: Path | None = None if path is None else absolute(path, "bookmark_store")
        self._core = _quire.BookmarkStore(self.path)

    @property
    def sub_ids(self) -> list[str]:
        """Returns the names of the subscriptions in the store."""
        return self._core.sub_ids()

    def most_recent(self, sub_id: str) -> str | None:
        """Returns the bookmark after which a subscription resumes, or `None` when it has processed
        nothing."""
        return self._core.most_recent(sub_id)

    def forget(self, sub_id: str) -> bool:
        """Removes the position of a subscription. Returns whether the store had it."""
        return self._core.forget(sub_id)

    def close(self) -> None:
        """Closes the file. Later positions are not kept. Does nothing when the store is closed."""
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
    """The absolute path of the file: the program may change its directory later."""
    check_path(path, key)
    return Path(path).expanduser().absolute()
