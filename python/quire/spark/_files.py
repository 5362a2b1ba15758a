"""Files where Spark has them: any file system that it can write to, local or not."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession


class Files:
    """The file system below one path."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        # Spark's own classes have no Python face for this.
        session: Any = spark
        self._jvm = session._jvm
        self._root = self._path(root)
        self._system = self._root.getFileSystem(session._jsc.hadoopConfiguration())

    def exists(self, name: str) -> bool:
        """Whether there is something of this name."""
        return bool(self._system.exists(self._below(name)))

    def names(self, name: str = "") -> list[str]:
        """What is in a directory; nothing when it is not there."""
        path = self._below(name)
        if not self._system.exists(path):
            return []
        return sorted(status.getPath().getName() for status in self._system.listStatus(path))

    def rename(self, old: str, new: str) -> None:
        """Moves a directory to a name that is not taken."""
        if not self._system.rename(self._below(old), self._below(new)):
            raise OSError(f"{self.path(old)} cannot be renamed to {self.path(new)}")

    def remove(self, name: str) -> None:
        """Removes a directory and all in it; harmless when it is not there."""
        self._system.delete(self._below(name), True)

    def read(self, name: str) -> str | None:
        """The text of a small file, `None` when it is not there."""
        path = self._below(name)
        if not self._system.exists(path):
            return None
        stream = self._system.open(path)
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def write(self, name: str, text: str) -> None:
        """Writes a small file under another name first: a reader finds all of it, or what was there before."""
        temporary = self._below(f"_{name.lstrip('_')}.new")
        stream = self._system.create(temporary, True)
        try:
            stream.write(bytearray(text.encode()))
            stream.hsync()
        finally:
            stream.close()
        self._system.delete(self._below(name), False)
        if not self._system.rename(temporary, self._below(name)):
            raise OSError(f"{self.path(name)} cannot be written")

    def path(self, name: str) -> str:
        """The whole path of a name."""
        return str(self._below(name).toString())

    def _below(self, name: str) -> Any:
        path = self._jvm.org.apache.hadoop.fs.Path
        return path(self._root, name) if name else self._root

    def _path(self, text: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(text)
