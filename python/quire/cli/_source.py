"""The input of `quire publish`: lines of a file, rows of CSV, records that another command printed, or one literal message."""

from __future__ import annotations

import base64
import io
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import IO, Any, BinaryIO, Final, NamedTuple, cast

from quire import _quire
from quire._errors import ConfigError
from quire.cli._csv import json_rows, number_columns
from quire.cli._options import PublishOptions

#: Bytes of the standard input that are kept in memory, while its columns are looked at. More of it
#: goes to a temporary file.
_SPOOL_SIZE: Final = 16 * 1024**2

#: How compressed files begin, and the command that makes text of them.
_COMPRESSED: Final = {
    re.compile(rb"\x1f\x8b"): ("gzip", "gunzip -c"),
    re.compile(rb"BZh[1-9]1AY&SY"): ("bzip2", "bunzip2 -c"),
    re.compile(rb"\xfd7zXZ\0"): ("xz", "xz -dc"),
    re.compile(rb"\x28\xb5\x2f\xfd"): ("zstd", "zstd -dc"),
    re.compile(rb"PK\x03\x04"): ("zip", "unzip -p"),
}
_UTF8_MARK: Final = b"\xef\xbb\xbf"
_UTF16_MARKS: Final = (b"\xff\xfe", b"\xfe\xff")


class Item(NamedTuple):
    """A message to publish."""

    data: bytes
    #: The line at which it ends, and the bytes of the source up to there.
    line: int
    position: int
    #: Arguments of `publish` that the source names for this message.
    options: Mapping[str, Any]


class Source:
    """A source that is open."""

    def __init__(self, name: str, stream: IO[bytes], size: int | None, options: PublishOptions) -> None:
        #: As errors name it.
        self.name = name
        #: Its bytes; `None` where that is not known.
        self.size = size
        #: Lines of records that are not messages.
        self.left_out = 0
        self._stream = stream
        self._is_csv = options.csv
        self._is_records = options.records
        self._has_text_only = options.csv_types == "text"
        self._delimiter = options.delimiter
        self._line = self._position = 0
        #: Which columns of CSV have numbers; `None` when all have text.
        self._numbers: Sequence[bool] | None = None

    def check(self, spool: IO[bytes]) -> None:
        """Reads CSV whose types are inferred once before the messages are read: all rows of a column decide on its type.

        A pipe, which can be read only once, is copied into `spool`. Raises `ConfigError` for a mistake in any row.
        """
        if not self._is_csv or self._has_text_only:
            return
        if not self._stream.seekable():
            shutil.copyfileobj(self._stream, spool)
            spool.seek(0)
            self._stream = spool
        # Another program may have read the first lines of a redirected file.
        begin = self._stream.tell()
        self._numbers = number_columns(self._lines(), file=self.name, delimiter=self._delimiter)
        self._stream.seek(begin)
        self._line = self._position = 0

    def items(self) -> Iterator[Item]:
        """Yields the messages. Empty lines are skipped. Raises `ConfigError`, with file and line, for a line that has none."""
        if self._is_csv:
            rows = json_rows(self._lines(), file=self.name, delimiter=self._delimiter, numbers=self._numbers)
            for row in rows:
                yield Item(row, self._line, self._position, {})
            return
        for line in self._lines():
            data = line.removesuffix(b"\n").removesuffix(b"\r")
            if data and self._is_records:
                record = _record(data, self.name, self._line)
                if record is None:
                    self.left_out += 1
                else:
                    yield Item(record[0], self._line, self._position, record[1])
            elif data:
                yield Item(data, self._line, self._position, {})

    def _lines(self) -> Iterator[bytes]:
        for line in self._stream:
            self._line += 1
            self._position += len(line)
            yield _first(line, self.name) if self._line == 1 else line


class Literal(Source):
    """One message, which is not cut into lines."""

    def __init__(self, data: bytes, options: PublishOptions) -> None:
        super().__init__("--data", io.BytesIO(data), None, options)

    def items(self) -> Iterator[Item]:
        data = self._stream.read()
        yield Item(data, 1, len(data), {})


@contextmanager
def opened(file: str, options: PublishOptions) -> Iterator[Source]:
    """Opens the file, the standard input for `-`, or the literal message, and checks it."""
    if options.data is not None:
        yield Literal(os.fsencode(options.data), options)
        return
    name = "the standard input" if file == "-" else file
    with _stream(file) as stream, tempfile.SpooledTemporaryFile(_SPOOL_SIZE) as spool:
        size = os.fstat(stream.fileno()).st_size if file != "-" and stream.seekable() else None
        source = Source(name, stream, size, options)
        source.check(spool)
        yield source


def _stream(file: str) -> AbstractContextManager[BinaryIO]:
    if file != "-":
        return open(file, "rb")
    # Python leaves out what is closed when it starts.
    if cast("object", sys.stdin) is None:
        raise ConfigError("the standard input is closed", key="FILE")
    return nullcontext(sys.stdin.buffer)


def _first(line: bytes, file: str) -> bytes:
    """The first line without the mark of its encoding, which belongs to the file. Raises `ConfigError` for other files than text."""
    for mark, (name, command) in _COMPRESSED.items():
        if mark.match(line):
            raise ConfigError(
                f"the file is compressed ({name}): use {command} FILE | quire publish", file=file
            )
    # Every second byte of Latin text is NUL in UTF-16. BSON begins with its length, and so with two
    # of them together.
    nul = [byte == 0 for byte in line[:4]]
    if line.startswith(_UTF16_MARKS) or nul in ([True, False] * 2, [False, True] * 2):
        raise ConfigError("the file is UTF-16: use iconv -f UTF-16 -t UTF-8 FILE | quire publish", file=file)
    return line.removeprefix(_UTF8_MARK)


def _record(line: bytes, file: str, number: int) -> tuple[bytes, dict[str, Any]] | None:
    """The data of a line that `--json` printed, and the arguments of `publish` that it names; `None` for what is not a message.

    The data is taken as the text that it is in the line.
    """
    try:
        members = dict(_quire.json_members(line.decode()) or ())
        fields = {name: json.loads(text) for name, text in members.items() if name != "data"}
        data = base64.b64decode(fields["base64"], validate=True) if "base64" in fields else None
        if data is None:
            text = members["data"]
            data = (json.loads(text) if fields.get("is_json") is False else text).encode()
        if fields.get("kind", "publish") != "publish" or fields.get("command") in ("oof", "delete"):
            return None
        if fields.get("is_delta"):
            reason = "it has only the fields that changed (is_delta), and is not a message"
            raise ConfigError(reason, file=file, line=number)
        headers = {
            name: value if isinstance(value, str) else base64.b64decode(value["base64"], validate=True)
            for name, value in (fields.get("headers") or {}).items()
        }
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        reason = "not an object as --json of journal dump, subscribe and sow prints it"
        raise ConfigError(reason, file=file, line=number) from None
    options = {
        "headers": headers or None,
        "correlation_id": fields.get("correlation_id"),
        "expiration": fields.get("expiration_s"),
        "sow_key": fields.get("key", fields.get("sow_key")),
    }
    return data, {name: value for name, value in options.items() if value is not None}


__all__ = ["Item", "Source", "opened"]
