"""The log of a server: the targets of `[[logging]]`, and the thread that writes to them.

A line is a record of `logging` below the logger `quire`. Its id and its fields are in the attributes
that `line` makes. The records are written on a separate thread: a full disk, a terminal that is
stopped, or a slow syslog does not delay the clients.
"""

from __future__ import annotations

import contextlib
import json
import logging
import logging.handlers
import queue
import re
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Protocol, TextIO

from quire._errors import ConfigError
from quire.config._logging import LEVELS, Logging
from quire.config._values import Address
from quire.server._log_files import LogFiles

logging.addLevelName(LEVELS["trace"], "TRACE")

#: The ids of the lines of other libraries, and of parts that write lines without ids.
_FOREIGN: Final = "00-0000"
_OF_LOGGERS: Final = {"quire.engine": "00-0010", "quire.client": "10-0001"}
#: Lines that wait to be written. More are left out, and counted.
_WAITING_MAX: Final = 10_000
#: Seconds that the end of a server, and a critical line, wait for the lines to be written.
_FLUSH_TIMEOUT: Final = 2.0
#: Seconds between two reports that a target cannot be written.
_REPORTED: Final = 60.0
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_NAMES: Final = {level: name for name, level in LEVELS.items()}


def line(line_id: str, **fields: object) -> dict[str, Any]:
    """The attributes of a record: `_log.info(text, extra=line("00-0001", port=80))`."""
    return {"line_id": line_id, "line_fields": fields}


def level_name(level: int) -> str:
    """The name of a level of `logging`, or of the next lower one."""
    return next((name for least, name in sorted(_NAMES.items(), reverse=True) if level >= least), "trace")


def id_of(record: logging.LogRecord) -> str:
    """The id of a line."""
    found: str = getattr(record, "line_id", "") or _OF_LOGGERS.get(record.name, _FOREIGN)
    return found


def fields_of(record: logging.LogRecord) -> Mapping[str, Any]:
    """The fields of a line."""
    fields = getattr(record, "line_fields", {})
    return json.loads(fields) if isinstance(fields, str) else fields


def text_line(record: logging.LogRecord) -> str:
    """A line as text. Control characters are escapes, so that a value cannot begin another line."""
    at = datetime.fromtimestamp(record.created, UTC)
    head = f"{at:%Y-%m-%dT%H:%M:%S.%f}Z [{_visible(record.threadName or '')}] {level_name(record.levelno)} {id_of(record)}"
    return f"{head} {_visible(_text(record))}"


def json_line(record: logging.LogRecord, instance: str) -> str:
    """A line as a JSON object."""
    at = datetime.fromtimestamp(record.created, UTC)
    own = {
        "timestamp": f"{at:%Y-%m-%dT%H:%M:%S.%f}Z",
        "level": level_name(record.levelno),
        "id": id_of(record),
        "thread": record.threadName,
        "instance": instance,
        "text": _text(record),
    }
    # The names of the line itself come first, and no field replaces them.
    return json.dumps(
        own | {name: value for name, value in fields_of(record).items() if name not in own}, default=str
    )


def _text(record: logging.LogRecord) -> str:
    text = record.getMessage()
    return text if not record.exc_text else f"{text}\n{record.exc_text}"


def _visible(text: str) -> str:
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


class _Target(Protocol):
    """Where lines go. Its methods are for one thread, and raise `OSError`."""

    def write(self, text: str, record: logging.LogRecord) -> None: ...
    def rotate(self) -> None: ...
    def tidy(self) -> None: ...
    def close(self) -> None: ...


class _Stream:
    """Standard output or standard error, as it is at the time of a line."""

    def __init__(self, stream: Callable[[], TextIO | None]) -> None:
        self._stream = stream

    def write(self, text: str, record: logging.LogRecord) -> None:
        stream = self._stream()
        if stream is not None:
            try:
                stream.write(text + "\n")
                stream.flush()
            except ValueError as error:  # It is closed.
                raise OSError(str(error)) from None

    def rotate(self) -> None:
        return

    tidy = close = rotate


class _File:
    """The files of a log."""

    def __init__(self, settings: Logging, directory: Path) -> None:
        self._files = LogFiles(settings, directory)
        self._path: Path | None = None

    def write(self, text: str, record: logging.LogRecord) -> None:
        self._files.write(text, datetime.fromtimestamp(record.created, UTC))

    def rotate(self) -> None:
        self._files.rotate()

    def tidy(self) -> None:
        if self._path != self._files.path:
            self._path = self._files.path
            self._files.tidy()

    def close(self) -> None:
        self._files.close()


class _Syslog:
    """The syslog of this machine, or of another one."""

    def __init__(self, settings: Logging) -> None:
        address: str | tuple[str, int] = settings.address
        if not settings.address.startswith("/"):
            try:
                parsed = Address.parse(settings.address)
            except ValueError as error:
                raise ConfigError(str(error), key="logging.address") from None
            address = (parsed.host, parsed.port)
        facility = logging.handlers.SysLogHandler.facility_names[settings.facility]
        self._handler = _SyslogHandler(address, facility)
        self._handler.ident = f"{settings.ident}: "

    def write(self, text: str, record: logging.LogRecord) -> None:
        copy = logging.LogRecord(record.name, record.levelno, "", 0, "%s", (text,), None)
        self._handler.emit(copy)

    def rotate(self) -> None:
        return

    tidy = rotate

    def close(self) -> None:
        self._handler.close()


class _SyslogHandler(logging.handlers.SysLogHandler):
    """Raises what goes wrong."""

    def handleError(self, record: logging.LogRecord) -> None:
        error = sys.exception()
        raise error if isinstance(error, OSError) else OSError(str(error))


class _Place:
    """A target with its settings."""

    def __init__(self, settings: Logging, directory: Path, instance: str) -> None:
        self.settings = settings
        self._instance = instance
        self.target = _target_of(settings, directory)
        self._failed: float | None = None
        self._left_out = 0

    def write(self, record: logging.LogRecord) -> None:
        """Writes a record if the target has it. A failure is reported on standard error, at intervals."""
        settings = self.settings
        if not settings.takes(record.levelno, id_of(record)):
            return
        try:
            self.target.write(
                text_line(record) if settings.format == "text" else json_line(record, self._instance), record
            )
            self.target.tidy()
        except OSError as error:
            self._left_out += 1
            now = time.monotonic()
            if self._failed is None or now - self._failed >= _REPORTED:
                self._failed = now
                _complain(f"{self._left_out} lines of the log were not written to {self}: {error}")
                self._left_out = 0

    def __str__(self) -> str:
        return self.settings.file or self.settings.target


def _target_of(settings: Logging, directory: Path) -> _Target:
    match settings.target:
        case "file":
            return _File(settings, directory)
        case "syslog":
            return _Syslog(settings)
        case "stdout":
            return _Stream(lambda: sys.stdout)
        case _:
            return _Stream(lambda: sys.stderr)


def _complain(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):
        if sys.stderr is not None:
            sys.stderr.write(f"quire: {text}\n")
            sys.stderr.flush()


class LogTargets(logging.Handler):
    """Writes the records of a logger to the targets, on a separate thread."""

    def __init__(
        self, settings: Sequence[Logging], directory: Path, instance: str, logger: str | None
    ) -> None:
        """Opens the targets. `logger`: whose lines they get; `None`: those of all loggers. Raises
        `ConfigError` when a target cannot be opened."""
        super().__init__()
        self._directory, self._instance = directory, instance
        self._places = self._opened(settings)
        self._records: queue.Queue[logging.LogRecord | Callable[[], None]] = queue.Queue(_WAITING_MAX)
        self._left_out = 0
        self._logger = logging.getLogger(logger)
        self._level_before = self._logger.level
        self._thread = threading.Thread(target=self._run, name="quire-log", daemon=True)

    def start(self) -> None:
        """From here on, lines are written."""
        self._thread.start()
        self._logger.addHandler(self)
        self._set_level()

    def emit(self, record: logging.LogRecord) -> None:
        """Queues a record. It waits for a critical one, because the process may end then."""
        # Its arguments may change, and a traceback keeps the frames alive.
        if record.exc_info and not record.exc_text:
            record.exc_text = logging.Formatter().formatException(record.exc_info)
        copy = logging.makeLogRecord(
            record.__dict__ | {"msg": record.getMessage(), "args": None, "exc_info": None}
        )
        try:
            self._records.put_nowait(copy)
        except queue.Full:
            self._left_out += 1
            return
        if record.levelno >= LEVELS["critical"]:
            self.flush()

    def flush(self) -> None:
        """Waits a moment until the lines before this call are written."""
        if threading.current_thread() is not self._thread:
            self._ask(lambda: None)

    def soon(self, call: Callable[[], None]) -> None:
        """Calls on the thread of the log, after the lines that wait. Not when too many lines wait."""
        with contextlib.suppress(queue.Full):
            self._records.put_nowait(call)

    def rotate(self) -> None:
        """Begins the next file of each log in files. Raises `OSError`."""

        def rotate() -> None:
            for place in self._places:
                place.target.rotate()

        self._ask(rotate)

    def replace(self, settings: Sequence[Logging]) -> Callable[[], None]:
        """Opens other targets. Call the result to use them. Raises `ConfigError` when one cannot be opened."""
        places = self._opened(settings)

        def use() -> None:
            before, self._places = self._places, places
            self._set_level()
            self._ask(lambda: _close(before))

        return use

    def set_level(self, target: int, level: str) -> None:
        """Changes the level of a target until the next start. Raises `IndexError` and `ConfigError`."""
        place = self._places[target]
        place.settings = Logging.model_validate(
            place.settings.model_dump(exclude_unset=True) | {"level": level}
        )
        self._set_level()

    def close(self) -> None:
        """Writes the lines that wait, and closes the targets."""
        self._logger.removeHandler(self)
        self._logger.setLevel(self._level_before)
        if self._thread.is_alive():
            self.flush()
            with contextlib.suppress(queue.Full):
                self._records.put_nowait(_End())
            self._thread.join(_FLUSH_TIMEOUT)
        super().close()

    def _set_level(self) -> None:
        self._logger.setLevel(
            min((place.settings.lowest for place in self._places), default=LEVELS["critical"])
        )

    def _opened(self, settings: Sequence[Logging]) -> list[_Place]:
        places: list[_Place] = []
        for number, each in enumerate(settings):
            try:
                places.append(_Place(each, self._directory, self._instance))
            except OSError as error:
                _close(places)
                reason = f"{each.file or each.address} cannot be opened: {error.strerror or error}"
                raise ConfigError(reason, key=f"logging[{number}]") from None
        return places

    def _ask(self, call: Callable[[], None]) -> None:
        """Calls on the thread of the log, after the lines that wait. Raises what the call raises."""
        done = threading.Event()
        failure: list[OSError] = []

        def run() -> None:
            try:
                call()
            except OSError as error:
                failure.append(error)
            finally:
                done.set()

        if not self._thread.is_alive():
            return run()
        try:
            self._records.put(run, timeout=_FLUSH_TIMEOUT)
        except queue.Full:
            return None
        done.wait(_FLUSH_TIMEOUT)
        if failure:
            raise failure[0]
        return None

    def _run(self) -> None:
        while not isinstance(record := self._records.get(), _End):
            if isinstance(record, logging.LogRecord):
                self._write(record)
            else:
                # The caller also waits for the report of the lines before.
                self._report_left_out()
                record()
            if self._records.empty():
                self._report_left_out()
        _close(self._places)

    def _report_left_out(self) -> None:
        if self._left_out == 0:
            return
        count, self._left_out = self._left_out, 0
        text = f"{count} lines were left out, because {_WAITING_MAX:,} waited to be written"
        own = {"name": "quire.server", "levelno": logging.WARNING, "levelname": "WARNING", "msg": text}
        self._write(logging.makeLogRecord(own | line("00-0006", count=count)))

    def _write(self, record: logging.LogRecord) -> None:
        for place in self._places:
            place.write(record)


def _close(places: Sequence[_Place]) -> None:
    for place in places:
        place.target.close()


class _End:
    """The last entry of the queue."""

    def __call__(self) -> None:
        return
