"""The options of the data source: the core reads them, each with the unit and meaning that
`docs/spark.md` describes."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from quire._quire import spark_read_options, spark_write_options
from quire.client._blocking import Client
from quire.client._links import directory_of
from quire.client._tls import TLS

#: Where a read begins or ends, as the core writes it: `"earliest"`, `"latest"`, `{"back": 1000}`,
#: `{"ago_ns": 1}`, `{"time_ns": 1}`, `{"bookmark": "1|2|"}`.
Place = str | Mapping[str, Any]


@dataclass(frozen=True)
class Access:
    """How a read or a write connects to a server."""

    #: The user where the server asks for one. The password or the token comes from the environment
    #: or a file.
    user: str | None = None
    password_file: str | None = None
    token_file: str | None = None
    #: Files of TLS: the authorities of the server, the certificate of the client and its key.
    ca: str | None = None
    certificate: str | None = None
    key: str | None = None

    def connect(self, url: str, **options: Any) -> Client:
        """Returns a client with these options, too."""
        tls = TLS(ca=self.ca, certificate=self.certificate, key=self.key)
        return Client(
            url,
            user=self.user,
            **self._secret(),
            ssl=tls if url.startswith("quires:") else None,
            wait=True,
            **options,
        )

    def _secret(self) -> dict[str, Any]:
        """The password or the token from its file, else from the environment: an option would show it in plans and logs."""
        for name, file in (("password", self.password_file), ("token", self.token_file)):
            if file is not None:
                return {name: Path(file).read_text(encoding="utf-8").strip()}
        if self.user is None:
            return {}  # the client looks for the user, too
        found = {name: os.environ.get(f"QUIRE_{name.upper()}") for name in ("password", "token")}
        return {name: secret for name, secret in found.items() if secret}


@dataclass(frozen=True)
class ReadOptions:
    """The options of `spark.read` and `spark.readStream` that a connection to a server needs."""

    #: Journal directories, absolute.
    directories: tuple[str, ...]
    #: Where older segments of the journal were moved to.
    archive: str | None
    #: A running server instead of directories.
    url: str | None
    access: Access
    #: `{"names": [...]}`, `{"pattern": ...}` or `{"prefix": ...}`.
    topics: Mapping[str, Any] | None
    filter: str | None
    starting: Place | None
    ending: Place
    #: Nanoseconds since 1970; they win over `starting` and `ending`.
    starting_ns: int | None
    ending_ns: int | None
    #: A starting time after the last message means the end. Otherwise it is an error.
    starts_at_latest: bool
    fail_on_data_loss: bool
    max_messages: int
    max_bytes: int | None
    min_messages: int | None
    max_trigger_delay: timedelta
    min_partitions: int | None
    #: Conditions of Spark are applied, for all later uses of the frame.
    takes_conditions: bool
    last_values: str | None


@dataclass(frozen=True)
class WriteOptions:
    """The options of `df.write` and `df.writeStream`."""

    #: A server, or `file:` and a directory.
    url: str
    access: Access = field(default_factory=Access)
    #: The topic of all rows; otherwise the column `topic` has it.
    topic: str | None = None
    #: The identity of the sink among those that write into this log.
    publisher: str = "spark"
    #: The identity of a batch write: written again, it changes nothing.
    transaction: str | None = None
    #: Raised when a name is to be used again after its checkpoint was deleted on purpose.
    epoch: int = 0
    #: Where tasks leave their rows until the batch is complete. All executors and the driver see
    #: it.
    staging: str | None = None
    checkpoint: str | None = None
    flush_timeout: timedelta = timedelta(minutes=5)

    @property
    def staging_directory(self) -> Path:
        """Returns the directory in the options, or one near the checkpoint, the journal, or
        temporary files."""
        if self.staging is not None:
            return Path(self.staging)
        if self.checkpoint is not None:
            return Path(self.checkpoint) / "quire-staging"
        if self.url.startswith("file:"):
            return Path(f"{directory_of(self.url)}.staging")
        return Path(tempfile.gettempdir()) / f"quire-staging-{os.getuid()}"


def read_options(options: Mapping[str, str]) -> ReadOptions:
    """Reads the options of a source. `ConfigError` names what is wrong."""
    return options_of(json.loads(spark_read_options(dict(options))))


def options_of(read: Mapping[str, Any]) -> ReadOptions:
    """The options in a frame."""
    known = {name: value for name, value in read.items() if name in ReadOptions.__dataclass_fields__}
    known["directories"] = tuple(read["directories"])
    known["access"] = Access(**read["access"])
    known["max_trigger_delay"] = _duration(read["max_trigger_delay_ns"])
    return ReadOptions(**known)


def write_options(options: Mapping[str, str]) -> WriteOptions:
    """Reads the options of a sink. `ConfigError` names what is wrong."""
    # The setting of a session that chooses the reader is an option of its writes, too: Spark cannot
    # distinguish them.
    own = {key: value for key, value in options.items() if key.lower() != "reader"}
    read = json.loads(spark_write_options(own))
    access = Access(**read.pop("access"))
    return WriteOptions(access=access, flush_timeout=_duration(read.pop("flush_timeout_ns")), **read)


def job_options(archive_directory: str | None, skip_lost: bool) -> dict[str, str]:
    """The options that every read of a job has."""
    archive = {} if archive_directory is None else {"archiveDirectory": archive_directory}
    return archive | ({"failOnDataLoss": "false"} if skip_lost else {})


def _duration(ns: int) -> timedelta:
    return timedelta(microseconds=ns / 1000)
