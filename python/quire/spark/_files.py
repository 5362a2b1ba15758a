"""Files where Spark has them: any file system that it can write to, local or not."""

from __future__ import annotations

from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

#: The property of Java with the encoding of the names of files.
_ENCODING = "sun.jnu.encoding"


class Files:
    """The file system below one path."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        # The classes of Spark have no Python interface for this.
        session: Any = spark
        self._spark = spark
        self._jvm, self._gateway = session._jvm, session.sparkContext._gateway
        self._configuration = session._jsc.hadoopConfiguration()
        self._root = self._path(root)
        self._system = self._root.getFileSystem(self._configuration)

    def encoding(self) -> str | None:
        """In which encoding names are written, where that is another than UTF-8: on this machine
        and on those of the executors, Java does it as the locale says that it was started in. File
        systems of other kinds always take UTF-8."""
        if str(self._system.getUri().getScheme()) != "file":
            return None
        of_driver = str(self._jvm.java.lang.System.getProperty(_ENCODING))
        tasks = self._spark.sparkContext.defaultParallelism
        said = f.java_method(f.lit("java.lang.System"), f.lit("getProperty"), f.lit(_ENCODING))
        of_executors = {str(row[0]) for row in self._spark.range(0, tasks, 1, tasks).select(said).collect()}
        return min((name for name in {of_driver, *of_executors} if name.upper() != "UTF-8"), default=None)

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
        """Writes a small file under another name first: a reader finds all of it, or what was there
        before."""
        temporary = self._below(f"_{name.lstrip('_')}.new")
        stream = self._system.create(temporary, True)
        try:
            stream.write(bytearray(text.encode()))
            stream.hsync()
        finally:
            stream.close()
        self._replace(temporary, self._below(name))

    def path(self, name: str) -> str:
        """The whole path of a name."""
        return str(self._below(name).toString())

    def _replace(self, old: Any, new: Any) -> None:
        """Moves a file to a name that may be taken: in one step, where the file system has such a thing."""
        hadoop = self._jvm.org.apache.hadoop.fs
        try:
            context = hadoop.FileContext.getFileContext(self._system.getUri(), self._configuration)
        except Py4JJavaError:  # it has no other face than that of `_system`
            self._system.delete(new, False)
            if not self._system.rename(old, new):
                raise OSError(f"{new.toString()} cannot be written") from None
            return
        option = getattr(self._jvm, "org.apache.hadoop.fs.Options$Rename")
        options = self._gateway.new_array(option, 1)
        options[0] = option.OVERWRITE
        context.rename(self._system.makeQualified(old), self._system.makeQualified(new), options)

    def _below(self, name: str) -> Any:
        path = self._jvm.org.apache.hadoop.fs.Path
        return path(self._root, name) if name else self._root

    def _path(self, text: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(text)
