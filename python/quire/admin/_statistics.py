"""The statistics: samples of the tree in an SQLite file.

One thread writes. Others read meanwhile, also in other processes, and a stopped server leaves the
file as it is. A sample has a row for each object whose figures have changed since its last row,
and for each object every `_REPEATED` samples. So an idle object costs nothing, and the oldest rows
can be removed.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sqlite3
import threading
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from quire._directories import make_directory
from quire.admin._host import timestamp
from quire.admin._metrics import NODES, Metric, Node
from quire.server._log import line

_log = logging.getLogger("quire.server")

#: The version of the tables.
_VERSION: Final = 1
_SCHEMA: Final = """
CREATE TABLE runs (id INTEGER PRIMARY KEY, version TEXT, started REAL, ended REAL);
CREATE TABLE samples (t INTEGER PRIMARY KEY, run INTEGER);
CREATE TABLE objects (
    id INTEGER PRIMARY KEY, node TEXT, key TEXT, names TEXT, fixed TEXT, UNIQUE (node, key)
);
CREATE TABLE figures (
    object INTEGER, t INTEGER, value TEXT, PRIMARY KEY (object, t)
) WITHOUT ROWID;
CREATE INDEX figures_by_time ON figures (t);
"""
#: After this number of samples, an object has a row although nothing has changed.
_REPEATED: Final = 60
#: The share of `max_size` at which the oldest samples are removed. The rest is for the log of
#: SQLite.
_FULL: Final = 0.9
#: Pages of the log of SQLite after which they are moved to the file, and bytes that it keeps then.
_LOG_PAGES: Final = 250
_LOG_SIZE: Final = 1 << 20
#: The errors of a file that stays damaged.
_DAMAGED: Final = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
#: Milliseconds that a reader waits for the writer.
_BUSY_MS: Final = 5000
#: Samples that are removed together.
_REMOVED: Final = 100
#: Entries of the list of starts and stops.
_LIFETIMES_MAX: Final = 100


@dataclass
class _Known:
    """An object of the last sample."""

    id: int
    fixed: str
    value: str
    #: Samples since its last row.
    age: int


class Store:
    """Writes samples. Its methods are for one thread."""

    def __init__(self, path: Path | None, *, max_size: int, retention: float, version: str) -> None:
        """`path`: `None` keeps them in memory. Raises `OSError` when the file cannot be opened."""
        #: Another object when there are other samples.
        self.state: object = object()
        self._max_size = max_size
        self._retention = retention
        self._path = path
        self._version = version
        self._started: float | None = None
        #: Of a store in memory, its readers use the connection, too.
        self._lock = threading.Lock()
        self._connection = _open(path)
        self._known: dict[tuple[str, str], _Known] = {}
        self._names: dict[str, str] = {
            node.path: json.dumps([metric.name for metric in _sampled(node)]) for node in NODES
        }
        try:
            self._begin_run()
            # A server whose statistics are damaged starts without them.
            self.history().lifetimes()
        except sqlite3.DatabaseError as error:
            self._begin_again(error)

    def begin(self, at: float) -> None:
        """Notes the start of the server. `at`: seconds since 1970."""
        self._started = at
        with self._lock, self._connection:
            self._connection.execute("UPDATE runs SET started = ? WHERE id = ?", (at, self._run))

    def _begin_run(self) -> None:
        with self._lock, self._connection:
            cursor = self._connection.execute(
                "INSERT INTO runs (version, started) VALUES (?, ?)", (self._version, self._started)
            )
            self._run = cursor.lastrowid

    def _begin_again(self, error: sqlite3.DatabaseError) -> None:
        """Puts a damaged file aside, and begins another one. Raises any other error again."""
        # The lowest byte is the kind of the error. An error of Python has no code.
        if self._path is None or (getattr(error, "sqlite_errorcode", 0) & 0xFF) not in _DAMAGED:
            raise error
        with self._lock:
            self._connection.close()
            self._connection = _begun_again(self._path, error)
            self._known.clear()
        self._begin_run()

    def write(self, at: float, tree: Mapping[str, Any]) -> None:
        """Writes a sample, and removes those that are too old. Raises `sqlite3.Error`."""
        try:
            self._write(at, tree)
        except sqlite3.DatabaseError as error:
            self._begin_again(error)
            self._write(at, tree)

    def _write(self, at: float, tree: Mapping[str, Any]) -> None:
        t = round(at * 1000)
        with self._lock, self._connection:
            self._connection.execute("INSERT OR IGNORE INTO samples VALUES (?, ?)", (t, self._run))
            self._connection.executemany(
                "INSERT OR REPLACE INTO figures VALUES (?, ?, ?)", list(self._rows(t, tree))
            )
            self._remove_before(t - round(self._retention * 1000))
            if self._size() > self._max_size * _FULL:
                self._remove_oldest()
        self.state = object()

    def truncate(self, before: float) -> int:
        """Removes the samples before a time, in seconds since 1970. Returns their number. Any thread may call it.

        Raises `sqlite3.Error`.
        """
        with self._lock, self._connection:
            count = self._connection.execute(
                "DELETE FROM samples WHERE t < ?", (round(before * 1000),)
            ).rowcount
            # A value that has not changed since keeps its place at the first sample that is left.
            self._connection.execute(
                "INSERT OR IGNORE INTO figures (object, t, value)"
                " SELECT object, first, value FROM (SELECT object, value, first, max(figures.t) FROM figures,"
                " (SELECT min(t) AS first FROM samples) WHERE figures.t < first GROUP BY object)"
            )
            if count:
                self._remove_figures()
        self.state = object()
        return count

    def close(self, at: float) -> None:
        """Notes the end of the server, and closes the file."""
        with self._lock:
            with contextlib.suppress(sqlite3.Error), self._connection:
                self._connection.execute("UPDATE runs SET ended = ? WHERE id = ?", (at, self._run))
            self._connection.close()

    def history(self) -> History:
        """Returns a reader."""
        return History(self._path, self._connection, self._lock, self.state)

    @property
    def is_in_memory(self) -> bool:
        """Whether there is no file."""
        return self._path is None

    @property
    def size(self) -> int:
        """Bytes of the file, or of the memory."""
        if self._path is None:
            with self._lock:
                return self._size()
        files = (self._path, self._path.with_name(self._path.name + "-wal"))
        return sum(file.stat().st_size for file in files if file.exists())

    def _rows(self, t: int, tree: Mapping[str, Any]) -> Iterator[tuple[int, int, str | None]]:
        """The rows of a sample: object, time, and values. No values: the object no longer exists."""
        seen: set[tuple[str, str]] = set()
        for node in NODES:
            metrics = _sampled(node)
            found = tree.get(node.path) or {}
            for key, values in found.items() if node.id is not None else [("", found)]:
                place = (node.path, key)
                seen.add(place)
                value = json.dumps([values.get(metric.name) for metric in metrics], separators=(",", ":"))
                known = self._object(node, key, values)
                known.age += 1
                if known.value != value or known.age >= _REPEATED:
                    known.value, known.age = value, 0
                    yield known.id, t, value
        for place in self._known.keys() - seen:
            yield self._known.pop(place).id, t, None

    def _object(self, node: Node, key: str, values: Mapping[str, Any]) -> _Known:
        known = self._known.get((node.path, key))
        fixed = json.dumps({each.name: values.get(each.name) for each in node.metrics if each.kind == "F"})
        if known is not None and known.fixed == fixed:
            return known
        cursor = self._connection.execute(
            "INSERT INTO objects (node, key, names, fixed) VALUES (?, ?, ?, ?)"
            " ON CONFLICT (node, key) DO UPDATE SET names = excluded.names, fixed = excluded.fixed"
            " RETURNING id",
            (node.path, key, self._names[node.path], fixed),
        )
        known = self._known[node.path, key] = _Known(cursor.fetchone()[0], fixed, "", 0)
        return known

    def _remove_before(self, t: int) -> None:
        cursor = self._connection.execute(
            "DELETE FROM samples WHERE t IN (SELECT t FROM samples WHERE t < ? ORDER BY t LIMIT ?)",
            (t, _REMOVED),
        )
        if cursor.rowcount:
            self._remove_figures()

    def _remove_oldest(self) -> None:
        self._connection.execute(
            "DELETE FROM samples WHERE t IN (SELECT t FROM samples ORDER BY t LIMIT ?)"
            " AND t < (SELECT max(t) FROM samples)",
            (_REMOVED,),
        )
        self._remove_figures()

    def _remove_figures(self) -> None:
        """Removes the rows before the first sample, and the objects that have none left."""
        self._connection.execute(
            "DELETE FROM figures WHERE t < (SELECT coalesce(min(t), 1 << 62) FROM samples)"
        )
        self._connection.execute(
            "DELETE FROM objects WHERE NOT EXISTS (SELECT 1 FROM figures WHERE object = objects.id)"
        )
        left = {row[0] for row in self._connection.execute("SELECT id FROM objects")}
        for place in [place for place, known in self._known.items() if known.id not in left]:
            del self._known[place]

    def _size(self) -> int:
        pages, free, size = (
            self._connection.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("page_count", "freelist_count", "page_size")
        )
        return int((pages - free) * size)


class History:
    """Reads samples, on any thread."""

    def __init__(
        self,
        path: Path | None,
        connection: sqlite3.Connection | None,
        lock: threading.Lock,
        state: object = None,
    ) -> None:
        """`state`: another object when there are other samples."""
        self.state: object = state
        self._lock = lock if path is None else threading.Lock()
        self._connection = connection if path is None else None
        self._path = path

    @classmethod
    def of_file(cls, path: Path) -> History:
        """Reads the file of a server, which may run or not. Raises `OSError` when there is none."""
        if not path.is_file():
            raise FileNotFoundError(2, "there are no statistics", str(path))
        return cls(path, None, threading.Lock())

    def samples(
        self, node: Node, key: str, metric: Metric, *, is_rate: bool, begin: int | None, end: int | None
    ) -> list[tuple[str, Any]]:
        """Returns the values of a metric from `begin` to before `end`, in milliseconds since 1970.

        `key`: the id of an object of a collection, else an empty text.
        """
        with self._reading() as connection:
            found = connection.execute(
                "SELECT id, names FROM objects WHERE node = ? AND key = ?", (node.path, key)
            ).fetchone()
            if found is None:
                return []
            number, names = found[0], json.loads(found[1])
            low = -1 if begin is None else begin
            high = 1 << 62 if end is None else end
            # A rate needs the sample before.
            before = "SELECT max(t) FROM samples WHERE t < ?"
            first = connection.execute(before, (low,)).fetchone()[0] if is_rate else None
            times = connection.execute(
                "SELECT t, run FROM samples WHERE t >= ? AND t < ? ORDER BY t",
                (low if first is None else first, high),
            ).fetchall()
            if metric.name not in names or not times:
                return []
            rows = connection.execute(
                "SELECT t, value FROM figures WHERE object = ? AND t < ? AND t >= coalesce("
                "(SELECT max(t) FROM figures WHERE object = ? AND t <= ?), 0) ORDER BY t",
                (number, high, number, times[0][0]),
            ).fetchall()
            starts = dict(connection.execute("SELECT run, min(t) FROM samples GROUP BY run"))
        place = names.index(metric.name)
        values = _values_at(times, rows, starts, place)
        if is_rate:
            values = [each for each in _rates(values) if each[0] >= low]
        return [(timestamp(t / 1000), value) for t, _, value in values]

    def latest(self) -> tuple[str, dict[str, Any]]:
        """Returns the time of the last sample, and its tree. Raises `LookupError` when there is none."""
        with self._reading() as connection:
            last = connection.execute("SELECT max(t) FROM samples").fetchone()[0]
            if last is None:
                raise LookupError("there are no samples")
            rows = connection.execute(
                "SELECT node, key, names, fixed, (SELECT value FROM figures WHERE object = objects.id"
                " ORDER BY t DESC LIMIT 1) FROM objects ORDER BY id"
            ).fetchall()
        tree: dict[str, Any] = {node.path: {} for node in NODES}
        collections = {node.path for node in NODES if node.id is not None}
        for node, key, names, fixed, value in rows:
            if value is None or node not in tree:
                continue
            figures = json.loads(fixed) | dict(zip(json.loads(names), json.loads(value), strict=False))
            if node in collections:
                tree[node][key] = figures
            else:
                tree[node] = figures
        return timestamp(last / 1000), tree

    def lifetimes(self) -> list[dict[str, str]]:
        """Returns the starts, stops and crashes, oldest first."""
        with self._reading() as connection:
            runs = connection.execute(
                "SELECT version, started, ended, (SELECT max(t) / 1000.0 FROM samples WHERE run = runs.id)"
                " FROM runs WHERE started IS NOT NULL ORDER BY id DESC LIMIT ?",
                (_LIFETIMES_MAX,),
            ).fetchall()
        events = []
        for number, (version, started, ended, last) in enumerate(reversed(runs)):
            events.append({"event": "start", "timestamp": timestamp(started), "version": version})
            if ended is not None:
                events.append({"event": "stop", "timestamp": timestamp(ended), "version": version})
            elif number + 1 < len(runs):
                events.append({"event": "crash", "timestamp": timestamp(last or started), "version": version})
        return events

    @contextlib.contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            if self._connection is not None:
                yield self._connection
                return
            connection = sqlite3.connect(f"{_uri(self._path)}?mode=ro", uri=True, timeout=_BUSY_MS / 1000)
            try:
                # All rows of an answer are from the same time.
                connection.execute("BEGIN")
                yield connection
            finally:
                connection.close()


def _sampled(node: Node) -> list[Metric]:
    """The metrics that change."""
    return [metric for metric in node.metrics if metric.kind != "F" and metric.unit != "list"]


def _values_at(
    times: list[tuple[int, int]], rows: list[tuple[int, str | None]], starts: dict[int, int], place: int
) -> list[tuple[int, int, Any]]:
    """The value at each time: that of the last row of the same run. Time, run and value."""
    row_times = [t for t, _ in rows]
    values = []
    found, read = [], -1
    for t, run in times:
        index = bisect_right(row_times, t) - 1
        if index < 0 or row_times[index] < starts[run] or (text := rows[index][1]) is None:
            continue
        # The samples up to the next row have the same values.
        if index != read:
            found, read = json.loads(text), index
        if place < len(found):
            values.append((t, run, found[place]))
    return values


def _rates(values: list[tuple[int, int, Any]]) -> Iterator[tuple[int, int, Any]]:
    for (before, run_before, old), (t, run, new) in pairwise(values):
        if run == run_before and old is not None and new is not None:
            growth = new - old if new >= old else new
            yield t, run, round(growth * 1000 / (t - before), 6)


def _uri(path: Path | None) -> str:
    assert path is not None
    return path.absolute().as_uri()


def _open(path: Path | None) -> sqlite3.Connection:
    if path is None:
        connection = sqlite3.connect(":memory:", check_same_thread=False)
        connection.executescript(_SCHEMA)
        return connection
    # The names of clients and topics are in it. The files that SQLite adds have the same mode.
    make_directory(path.parent)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    try:
        return _opened(path)
    except sqlite3.DatabaseError as error:
        if isinstance(error, sqlite3.OperationalError):
            raise OSError(f"cannot open the statistics in {path}: {error}") from None
        # It is damaged, or of another version.
        return _begun_again(path, error)


def _begun_again(path: Path, error: sqlite3.DatabaseError) -> sqlite3.Connection:
    """Puts a file aside, and opens another one."""
    aside = path.with_name(path.name + ".unreadable")
    _log.warning(
        "the statistics in %s cannot be read (%s); they are now in %s",
        path,
        error,
        aside,
        extra=line("70-0001"),
    )
    path.replace(aside)
    for end in ("-wal", "-shm"):
        path.with_name(path.name + end).unlink(missing_ok=True)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    return _opened(path)


def _opened(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, check_same_thread=False, timeout=_BUSY_MS / 1000)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute(f"PRAGMA wal_autocheckpoint = {_LOG_PAGES}")
        connection.execute(f"PRAGMA journal_size_limit = {_LOG_SIZE}")
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version == 0:
            connection.executescript(f"BEGIN;{_SCHEMA}PRAGMA user_version = {_VERSION};COMMIT;")
        elif version != _VERSION:
            raise sqlite3.DatabaseError(f"their version is {version}, and this one writes {_VERSION}")
    except BaseException:
        connection.close()
        raise
    return connection
