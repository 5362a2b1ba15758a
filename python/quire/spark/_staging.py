"""Stores the rows of a batch until all tasks are done, and publishes each row exactly once.

Each task writes its rows to separate files. When all tasks are done, the driver writes a
**manifest** with the files of the batch and their order. From then on the manifest defines the
batch. One publisher publishes it, with sequence numbers that follow from the batch. So the journal
drops every row that is published again:

- A task that runs again leaves another file, which no manifest names.
- A batch that runs again after a crash finds the manifest. It publishes the rows of the first run,
  because the rows of the second run may have another order.
- A batch that was published finds its mark, and is skipped.

Sequence numbers alone are not sufficient. Without the manifest, a second run with another order
would lose some rows and duplicate others.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TypeVar

from quire._errors import QuireError

if TYPE_CHECKING:
    import pyarrow as pa
    from _typeshed import ReadableBuffer

T = TypeVar("T")

#: The number of files that are checked or removed at a time. More are not faster on a local disk,
#: and each needs a megabyte of memory.
FILES_AT_ONCE = 4

_MANIFEST = "manifest.json"
_DONE = "done.json"


@dataclass(frozen=True)
class Part:
    """The rows of one task, in a file."""

    #: Its place among the parts of the batch.
    partition: int
    name: str
    rows: int
    bytes: int
    checksum: int
    #: Bytes of its largest message.
    largest: int = 0


class StagedBatch:
    """The staging directory of one batch, of which all tasks and the driver have the same idea."""

    def __init__(self, root: Path, sink: str, batch: str) -> None:
        self._sink = root / _file_name(sink)
        self._directory = self._sink / _file_name(batch)

    def write(self, partition: int, batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Part:
        """Writes the rows of a task; durable when it returns."""
        import pyarrow as pa

        self._directory.mkdir(parents=True, exist_ok=True)
        # Each attempt has a separate name, because two attempts may run at the same time.
        name = f"part-{partition:05d}-{uuid.uuid4().hex}.arrow"
        rows = 0
        # Every byte is synced, checked and removed: fewer of them are worth more than what making
        # them fewer takes.
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        try:
            with open(self._directory / name, "xb") as file:
                counted = _CountedFile(file)
                with pa.ipc.new_stream(counted, schema, options=options) as stream:
                    for batch in batches:
                        stream.write_batch(batch)
                        rows += batch.num_rows
                file.flush()
                os.fsync(file.fileno())
        except BaseException:
            (self._directory / name).unlink(missing_ok=True)
            raise
        _sync_directory(self._directory)
        return Part(partition, name, rows, counted.size, counted.checksum)

    @property
    def is_done(self) -> bool:
        """Whether it was published."""
        return (self._directory / _DONE).exists()

    @property
    def is_settled(self) -> bool:
        """Whether it was decided what the batch is."""
        return (self._directory / _MANIFEST).exists()

    def settle(self, parts: Sequence[Part]) -> list[Part]:
        """Decides that these are the parts of the batch, unless that was decided before. Returns
        the parts of the batch."""
        if not self.is_settled:
            self._directory.mkdir(parents=True, exist_ok=True)
            ordered = sorted(parts, key=lambda part: part.partition)
            _write_durably(self._directory / _MANIFEST, json.dumps([asdict(part) for part in ordered]))
        kept = [Part(**part) for part in json.loads((self._directory / _MANIFEST).read_text())]
        self._remove_parts(except_for={part.name for part in kept})
        return kept

    def read(self, parts: Sequence[Part]) -> Iterator[pa.RecordBatch]:
        """The rows of the batch in their order. Raises before the first row when a part is not what
        was written."""
        import pyarrow as pa

        _for_each(self._check, parts)
        for part in parts:
            path = self._directory / part.name
            with pa.OSFile(os.fspath(path)) as file, pa.ipc.open_stream(file) as stream:
                yield from stream

    def _check(self, part: Part) -> None:
        path = self._directory / part.name
        if not path.exists() or _checksum(path) != (part.bytes, part.checksum):
            raise QuireError(f"{path}: it is not what the task wrote; the batch cannot be published from it")

    def finish(self, rows: int) -> None:
        """Notes that everything is in the log, and lets go of the rows."""
        _write_durably(self._directory / _DONE, json.dumps({"rows": rows}))
        self.discard_parts()

    def discard_parts(self) -> None:
        """Lets go of all rows that are left."""
        self._remove_parts(except_for=set())

    def remove(self) -> None:
        """Forgets the batch, and a sink that has no other."""
        shutil.rmtree(self._directory, ignore_errors=True)
        with suppress(OSError):
            self._sink.rmdir()

    def discard(self, parts: Iterable[Part]) -> None:
        """Lets go of what a failed write left, unless it was settled to be the batch."""
        if not self.is_settled:
            for part in parts:
                (self._directory / part.name).unlink(missing_ok=True)

    def remove_others(self) -> None:
        """Removes the files of the other batches of the sink. They are not needed after this one."""
        for other in self._sink.iterdir():
            if other != self._directory:
                shutil.rmtree(other, ignore_errors=True)

    def _remove_parts(self, except_for: set[str]) -> None:
        unwanted = [path for path in self._directory.glob("part-*.arrow") if path.name not in except_for]
        _for_each(lambda path: path.unlink(missing_ok=True), unwanted)


class _CountedFile(io.RawIOBase):
    """A file with a checksum of the written bytes: reading it back would take as long as writing
    it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.size, self.checksum = 0, 0

    def writable(self) -> bool:
        return True

    def write(self, data: ReadableBuffer) -> int:
        self.checksum = zlib.crc32(data, self.checksum)
        written = self._file.write(data)
        self.size += written
        return written


def _for_each(call: Callable[[T], object], items: Sequence[T]) -> None:
    """Calls it for all of them, some at a time: a large file takes long to read or to remove, and
    so does a round trip to a file server."""
    if len(items) < 2:
        for item in items:
            call(item)
        return
    with ThreadPoolExecutor(min(len(items), FILES_AT_ONCE)) as pool:
        for _ in pool.map(call, items):
            pass


def _checksum(path: Path) -> tuple[int, int]:
    """Bytes of the file and the CRC-32 of them, as read back."""
    size, checksum = 0, 0
    with open(path, "rb") as file:
        while chunk := file.read(1 << 20):
            size, checksum = size + len(chunk), zlib.crc32(chunk, checksum)
    return size, checksum


def _write_durably(path: Path, text: str) -> None:
    """Writes the whole file or nothing, also after a crash of the process or the machine."""
    temporary = path.with_name(f".{path.name}-{uuid.uuid4().hex}")
    with open(temporary, "x") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    _sync_directory(path.parent)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _file_name(text: str) -> str:
    """Names of sinks are for people; this one is for file systems, and no two names share it."""
    readable = re.sub(r"[^A-Za-z0-9._-]", "_", text)
    return (
        readable
        if readable == text and not text.startswith(".")
        else f"{readable.lstrip('.')}-{zlib.crc32(text.encode()):08x}"
    )
