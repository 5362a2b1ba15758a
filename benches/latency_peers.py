"""The work of `latency.py` through Redis and PostgreSQL, as a program with their Python clients does it.

A call of either client waits for the answer, which comes after the sync. So a publisher sends all
messages that became due during one call together with the next one: Redis gets them in one
pipeline, PostgreSQL in one statement.
"""

from __future__ import annotations

import os
import socket
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import bare_server
import psycopg
import redis
from peers.engine import Engine, Single
from peers.engines.postgresql import PostgreSQL
from peers.engines.redis import Redis


class Session(ABC):
    """A connection. `send` and `settle` return when the disk has what they sent, unless the engine
    runs without syncs."""

    @abstractmethod
    def send(self, messages: Sequence[bytes]) -> None:
        """Stores messages in the queue."""

    @abstractmethod
    def take(self, count: int, timeout: float) -> Sequence[bytes]:
        """Up to `count` messages for this consumer; none when `timeout` seconds have passed."""

    @abstractmethod
    def settle(self) -> None:
        """Acknowledges the messages that were taken last, which removes them from the queue."""


class Peer(Engine):
    """An engine that `latency.py` measures."""

    @abstractmethod
    @contextmanager
    def session(self) -> Iterator[Session]:
        """A connection for one process."""


class RedisPeer(Redis, Peer):
    """A stream with a consumer group. An acknowledged message is deleted, as a queue does it."""

    @contextmanager
    def session(self) -> Iterator[Session]:
        with self._connected() as client:
            yield _RedisSession(client)


class _RedisSession(Session):
    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self._name = str(os.getpid())
        self._taken: list[bytes] = []

    def send(self, messages: Sequence[bytes]) -> None:
        if len(messages) == 1:
            self._client.xadd("work", {b"d": messages[0]})
            return
        pipeline = self._client.pipeline(transaction=False)
        for data in messages:
            pipeline.xadd("work", {b"d": data})
        pipeline.execute()

    def take(self, count: int, timeout: float) -> Sequence[bytes]:
        found: Any = self._client.xreadgroup(
            "workers", self._name, {"work": ">"}, count=count, block=max(1, int(timeout * 1000))
        )
        entries = found[0][1] if found else []
        self._taken = [name for name, _ in entries]
        return [fields[b"d"] for _, fields in entries]

    def settle(self) -> None:
        if self._taken:
            pipeline = self._client.pipeline(transaction=False)
            pipeline.xack("work", "workers", *self._taken)
            pipeline.xdel("work", *self._taken)
            pipeline.execute()


class PostgreSQLPeer(PostgreSQL, Peer):
    """A table. A consumer deletes the messages that it takes, and commits when it has handled them."""

    def prepare(self) -> None:
        super().prepare()
        with self._connected() as connection:
            connection.execute(
                "CREATE TABLE work (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, data bytea NOT NULL)"
            )

    @contextmanager
    def session(self) -> Iterator[Session]:
        with self._connected() as connection:
            yield _PostgreSQLSession(connection)


#: A consumer that found no message waits for the notification. Notifications of one transaction are
#: sent once.
_INSERT = (
    "WITH added AS (INSERT INTO work (data) SELECT * FROM unnest(%b::bytea[])) SELECT pg_notify('work', '')"
)
_DELETE = "DELETE FROM work WHERE id IN (SELECT id FROM work ORDER BY id LIMIT %s FOR UPDATE SKIP LOCKED) RETURNING data"


class _PostgreSQLSession(Session):
    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection
        self._listens = False

    def send(self, messages: Sequence[bytes]) -> None:
        self._connection.execute(_INSERT, (list(messages),), prepare=True)

    def take(self, count: int, timeout: float) -> Sequence[bytes]:
        if not self._listens:
            self._connection.execute("LISTEN work")
            self._listens = True
        found = self._begin_and_delete(count)
        if not found:
            self._connection.execute("COMMIT")
            for _ in self._connection.notifies(timeout=timeout, stop_after=1):
                pass
            found = self._begin_and_delete(count)
        return found

    def _begin_and_delete(self, count: int) -> Sequence[bytes]:
        # Both statements in one round trip.
        with self._connection.pipeline():
            self._connection.execute("BEGIN")
            cursor = self._connection.execute(_DELETE, (count,), prepare=True, binary=True)
        return [data for (data,) in cursor.fetchall()]

    def settle(self) -> None:
        self._connection.execute("COMMIT")


@dataclass
class BarePeer(Single, Peer):
    """No engine: the time of the machine for the same steps."""

    name = "bare"

    def version(self) -> str:
        return "benches/bare_server.py"

    def settings(self) -> str:
        return "one sync for what came together"

    def command(self, directory: Path) -> Sequence[str]:
        return [sys.executable, bare_server.__file__, str(self.port), str(directory / "log")]

    @contextmanager
    def session(self) -> Iterator[Session]:
        with socket.create_connection(("127.0.0.1", self.port)) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            yield _BareSession(connection)


class _BareSession(Session):
    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._has_begun = False
        self._input = b""

    def send(self, messages: Sequence[bytes]) -> None:
        self._begin(b"p")
        self._connection.sendall(b"".join(messages))
        left = len(messages)
        while left:
            left -= len(self._received(left))

    def take(self, count: int, timeout: float) -> Sequence[bytes]:
        self._begin(b"c")
        self._connection.settimeout(timeout)
        with suppress(TimeoutError):
            self._input += self._received(count * bare_server.SIZE)
        whole = len(self._input) // bare_server.SIZE * bare_server.SIZE
        taken, self._input = self._input[:whole], self._input[whole:]
        return [taken[at : at + bare_server.SIZE] for at in range(0, whole, bare_server.SIZE)]

    def settle(self) -> None:
        pass

    def _received(self, size: int) -> bytes:
        data = self._connection.recv(size)
        if not data:
            raise ConnectionError("the bare server has ended")
        return data

    def _begin(self, kind: bytes) -> None:
        if not self._has_begun:
            self._has_begun = True
            self._connection.sendall(kind)


PEERS: dict[str, type[Peer]] = {"redis": RedisPeer, "postgresql": PostgreSQLPeer, "bare": BarePeer}
