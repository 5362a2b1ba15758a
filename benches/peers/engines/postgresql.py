"""PostgreSQL: `INSERT … ON CONFLICT` into one table with an index and one without, `NOTIFY` for
subscribers, a table of sums that triggers keep."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psycopg

from ..engine import WINDOW, Amount, Durability, LastValues, Record, Sums, Table

_START_TIMEOUT_S = 60.0

#: A trigger for each statement, which is faster than one for each row. A window of records is one
#: statement.
_SUMS = """
CREATE TABLE amounts (id text PRIMARY KEY, part text NOT NULL, amount bigint NOT NULL, data text NOT NULL);
CREATE TABLE sums (part text PRIMARY KEY, records bigint NOT NULL, total bigint NOT NULL) WITH (fillfactor = 50);
CREATE FUNCTION inserted() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO sums SELECT part, count(*), sum(amount) FROM new_rows GROUP BY part
        ON CONFLICT (part) DO UPDATE
        SET records = sums.records + excluded.records, total = sums.total + excluded.total;
    RETURN NULL;
END $$;
CREATE FUNCTION updated() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO sums SELECT part, sum(records), sum(amount) FROM (
            SELECT part, 1 AS records, amount FROM new_rows
            UNION ALL SELECT part, -1, -amount FROM old_rows
        ) AS changes GROUP BY part
        ON CONFLICT (part) DO UPDATE
        SET records = sums.records + excluded.records, total = sums.total + excluded.total;
    RETURN NULL;
END $$;
CREATE TRIGGER inserted AFTER INSERT ON amounts REFERENCING NEW TABLE AS new_rows
    FOR EACH STATEMENT EXECUTE FUNCTION inserted();
CREATE TRIGGER updated AFTER UPDATE ON amounts REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows
    FOR EACH STATEMENT EXECUTE FUNCTION updated();
"""


@dataclass
class PostgreSQL(LastValues, Sums):
    name = "PostgreSQL"

    def version(self) -> str:
        return f"{server_version()}, psycopg {version('psycopg')}"

    def settings(self) -> str:
        return (
            f"synchronous_commit on, fsync {self._sync}; transactions of {WINDOW:,} records with unnest, text columns"
            " for key, group and JSON; B-tree index on the group; pg_notify in the same transaction"
        )

    @property
    def _sync(self) -> str:
        return "on" if self.durability is Durability.SYNCED else "off"

    def command(self, directory: Path) -> Sequence[str]:
        initialize(directory)
        options = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": "",
            "fsync": self._sync,
        }
        words = [word for key, value in options.items() for word in ("-c", f"{key}={value}")]
        return [*as_account(), program("postgres"), "-D", str(directory / "cluster"), *words]

    def _connected(self) -> psycopg.Connection[Any]:
        return connected(self.port)

    def prepare(self) -> None:
        with accepted(self.port) as connection:
            for table in Table:
                connection.execute(
                    f"CREATE TABLE {table.value} (id text PRIMARY KEY, part text NOT NULL, data text NOT NULL)"
                )
            connection.execute(f"CREATE INDEX ON {Table.INDEXED.value} (part)")
            connection.execute(_SUMS)

    def upsert(self, table: Table, records: Sequence[Record], *, watched: bool = False) -> None:
        statement = (
            f"INSERT INTO {table.value} SELECT * FROM unnest(%s::text[], %s::text[], %s::text[])"
            " ON CONFLICT (id) DO UPDATE SET part = excluded.part, data = excluded.data"
        )
        if watched:
            statement = f"WITH changed AS ({statement} RETURNING data) SELECT count(pg_notify('changes', data)) FROM changed"
        with self._connected() as connection, connection.pipeline() as pipeline:
            for start in range(0, len(records), WINDOW):
                batch = records[start : start + WINDOW]
                columns = (
                    [record.key for record in batch],
                    [record.group for record in batch],
                    [record.data.decode() for record in batch],
                )
                # The next transaction is sent before this one is committed.
                with connection.transaction():
                    connection.execute(statement, columns)
            pipeline.sync()

    def get(self, table: Table, keys: Iterator[str], came: Callable[[bytes], None]) -> None:
        statement = f"SELECT data FROM {table.value} WHERE id = %s"
        with self._connected() as connection:
            for key in keys:
                ((data,),) = connection.execute(statement, (key,), prepare=True, binary=True).fetchall()
                came(data.encode())

    def query(self, table: Table, groups: Iterator[str], came: Callable[[Sequence[bytes]], None]) -> None:
        statement = f"SELECT data FROM {table.value} WHERE part = %s"
        with self._connected() as connection:
            for group in groups:
                rows = connection.execute(statement, (group,), prepare=True, binary=True).fetchall()
                came([data.encode() for (data,) in rows])

    def watch(self, ready: Callable[[int], None], came: Callable[[int], bool]) -> None:
        with self._connected() as connection:
            # A change between the two statements is in the state, and is also notified.
            connection.execute("LISTEN changes")
            ready(len(connection.execute(f"SELECT data FROM {Table.PLAIN.value}").fetchall()))
            for _ in connection.notifies():
                if came(1):
                    return

    def update(self, records: Sequence[Amount]) -> None:
        statement = (
            "INSERT INTO amounts SELECT * FROM unnest(%s::text[], %s::text[], %s::bigint[], %s::text[])"
            " ON CONFLICT (id) DO UPDATE SET part = excluded.part, amount = excluded.amount, data = excluded.data"
        )
        with self._connected() as connection, connection.pipeline() as pipeline:
            for start in range(0, len(records), WINDOW):
                batch = records[start : start + WINDOW]
                columns = (
                    [record.key for record in batch],
                    [record.group for record in batch],
                    [record.amount for record in batch],
                    [record.data.decode() for record in batch],
                )
                with connection.transaction():
                    connection.execute(statement, columns)
            pipeline.sync()

    def sums(self) -> dict[str, tuple[int, int]]:
        with self._connected() as connection:
            rows = connection.execute("SELECT part, records, total FROM sums").fetchall()
        return {part: (records, total) for part, records, total in rows}


def connected(port: int) -> psycopg.Connection[Any]:
    return psycopg.connect(
        f"host=127.0.0.1 port={port} user=peers dbname=postgres", autocommit=True, connect_timeout=60
    )


def accepted(port: int) -> psycopg.Connection[Any]:
    """Connects again until the server is ready: it refuses logins while it starts."""
    deadline = time.monotonic() + _START_TIMEOUT_S
    while True:
        try:
            return connected(port)
        except psycopg.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def initialize(directory: Path) -> None:
    """Creates the files of a server, in `cluster`."""
    own(directory)
    options = ["-U", "peers", "-A", "trust", "-E", "UTF8", "--no-locale"]
    subprocess.run(
        [*as_account(), program("initdb"), "-D", str(directory / "cluster"), *options],
        check=True,
        capture_output=True,
        cwd=directory,
    )


def own(directory: Path) -> None:
    """Creates the directory of the files of a server, for the account that it runs with."""
    cluster = directory / "cluster"
    cluster.mkdir(mode=0o700)
    if _is_root():
        account = _account()
        os.chown(cluster, account.pw_uid, account.pw_gid)
        directory.chmod(0o711)


def as_account() -> list[str]:
    """The beginning of a command that runs with the account of the server, which refuses to run as root."""
    if not _is_root():
        return []
    account = _account()
    return ["setpriv", f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups"]


def server_version() -> str:
    answer = subprocess.run([program("postgres"), "--version"], capture_output=True, text=True, check=True)
    return answer.stdout.split()[2]


def _is_root() -> bool:
    return os.geteuid() == 0


def _account() -> pwd.struct_passwd:
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise FileNotFoundError("an account for PostgreSQL")


def program(name: str) -> str:
    # Debian has a directory for the programs of each version, which is not on the path.
    versions = sorted(
        Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=lambda path: float(path.parts[4])
    )
    found = shutil.which(name) or (versions and str(versions[-1]))
    if not found:
        raise FileNotFoundError(name)
    return found
