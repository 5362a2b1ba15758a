"""PostgreSQL: a primary and a synchronous standby, and rows of a table as the log."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from ...engine import Replicated, own_directory
from ...server import Server, free_port
from ..postgresql import accepted, as_account, initialize, own, program, server_version

_INSERT = "INSERT INTO log (data) SELECT unnest(%b::bytea[])"


@dataclass
class Standby(Replicated):
    name = "PostgreSQL"

    def version(self) -> str:
        return f"{server_version()}, psycopg {version('psycopg')}"

    def settings(self) -> str:
        return "primary and standby, synchronous_commit on, synchronous_standby_names 'standby'; a transaction for each window, with unnest"

    @contextmanager
    def servers(self, directory: Path) -> Iterator[None]:
        primary, standby = own_directory(directory, "primary"), own_directory(directory, "standby")
        directory.chmod(0o711)
        initialize(primary)
        settings = {"synchronous_standby_names": "standby"}
        with self._server(primary, self.port, settings):
            accepted(self.port).close()
            _copy(self.port, standby)
            with self._server(standby, free_port(), {"cluster_name": "standby"}):
                yield

    def _server(self, directory: Path, port: int, more: dict[str, str]) -> Server:
        options = {
            "listen_addresses": "127.0.0.1",
            "port": str(port),
            "unix_socket_directories": "",
            "synchronous_commit": "on",
            **more,
        }
        words = [word for key, value in options.items() for word in ("-c", f"{key}={value}")]
        command = [*as_account(), program("postgres"), "-D", str(directory / "cluster"), *words]
        return Server(command, {}, directory, port)

    def prepare(self) -> None:
        # It is committed when the standby has it, and waits for the standby's connection.
        with accepted(self.port) as connection:
            connection.execute(
                "CREATE TABLE log (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, data bytea NOT NULL)"
            )

    def publish(self, more: Callable[[], bool], size: int, window: int) -> int:
        batch = [b"x" * size] * window
        count = 0
        with accepted(self.port) as connection:
            while more():
                connection.execute(_INSERT, (batch,), prepare=True)
                count += window
        return count

    def publish_alone(self, messages: Iterator[bytes]) -> None:
        with accepted(self.port) as connection:
            for data in messages:
                connection.execute("INSERT INTO log (data) VALUES (%b)", (data,), prepare=True)


def _copy(port: int, directory: Path) -> None:
    """Copies the files of the primary, and makes them those of a standby with the name that the
    primary waits for."""
    own(directory)
    target = directory / "cluster"
    words = [
        "-h",
        "127.0.0.1",
        "-p",
        str(port),
        "-U",
        "peers",
        "-D",
        str(target),
        "-X",
        "stream",
        "-c",
        "fast",
    ]
    subprocess.run(
        [*as_account(), program("pg_basebackup"), *words, "-R"],
        check=True,
        capture_output=True,
        cwd=directory,
    )
