"""A small server that speaks the protocol, for tests of the clients: its log in memory, a thread for each.

It keeps its log over `stop` and `start`, so that a client sees it killed and started again. It
checks its input: a frame that it does not understand fails the test that sent it.
"""

from __future__ import annotations

import re
import socket
import struct
import threading
from contextlib import suppress
from dataclasses import dataclass, field

from support.ports import reserve

LOGON, PUBLISH, SUBSCRIBE, UNSUBSCRIBE, FLUSH, HEARTBEAT, GOODBYE, PAUSE, RESUME = 1, 2, 4, 5, 6, 7, 8, 9, 10
LOGGED_ON, ACK, PERSISTED, PUBLISH_FAILED, MESSAGE, ERROR = 64, 65, 66, 67, 68, 69
PROCESSED, COMPLETED, PERSISTED_ACK = 1, 2, 3
NAME_IN_USE, BAD_FILTER, NOT_JOURNALED, SHUTTING_DOWN = 6, 9, 12, 23
UNKNOWN_SUBSCRIPTION, INTERNAL = 14, 24
TIMESTAMP_NS = 1_420_202_100_123_456_789
MESSAGE_SIZE_MAX = 1 << 20
PATTERN = re.compile(r"[\^$*+?\[\](){}|\\]")


@dataclass
class Record:
    publisher: int
    sequence: int
    topic: bytes
    correlation_id: bytes
    data: bytes


@dataclass
class Entered:
    topic: str
    filter: str | None
    is_replay: bool
    paused: bool
    #: Index in the log of the next record.
    position: int

    def matches(self, record: Record) -> bool:
        topic = record.topic.decode()
        is_match = bool(re.search(self.topic, topic)) if PATTERN.search(self.topic) else topic == self.topic
        return is_match and (self.filter is None or self.filter.encode() in record.data)


@dataclass
class Connection:
    stream: socket.socket
    name: str = ""
    publisher: int = 0
    subscriptions: dict[int, Entered] = field(default_factory=dict)

    def send(self, kind: int, body: bytes) -> None:
        self.stream.sendall(struct.pack("<IB", len(body) + 1, kind) + body)

    def ack(
        self, ack: int, command: int, code: int = 0, column: int = 0, reason: str = "", about: int = 0
    ) -> None:
        self.send(ACK, struct.pack("<BBHIII", ack, 0, code, command, about, column) + reason.encode())


class ScriptedServer:
    """`with ScriptedServer() as server: quire.Client(server.url)`."""

    def __init__(self) -> None:
        self.log: list[Record] = []
        self.received: list[tuple[str, int]] = []
        #: Whether publishes are persisted as they come.
        self.persists = True
        #: Data that is refused.
        self.refused: bytes | None = None
        #: The code with which every unsubscribe is refused.
        self.unsubscribe_refusal = 0
        #: Subscribe commands as they came: topic, bookmark.
        self.entered: list[tuple[str, str | None]] = []
        self.errors: list[BaseException] = []
        self._lock = threading.RLock()
        self._connections: list[Connection] = []
        self._threads: list[threading.Thread] = []
        # Over `stop` and `start`.
        self._reserved, self._port = reserve()
        self.start()

    @property
    def url(self) -> str:
        return f"quire://127.0.0.1:{self._port}"

    def start(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", self._port))
        thread = threading.Thread(target=self._accept, args=(self._listener,))
        thread.start()
        self._threads.append(thread)

    def stop(self) -> None:
        """As if it were killed: everything is closed without a word."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        for thread in self._threads:
            thread.join()
        self._threads.clear()

    def cut(self) -> None:
        """Breaks all connections."""
        with self._lock:
            for connection in self._connections:
                with suppress(OSError):  # It was broken already.
                    connection.stream.shutdown(socket.SHUT_RDWR)
            self._connections.clear()

    def persist(self) -> None:
        """From now on publishes are persisted, those that wait at once."""
        with self._lock:
            self.persists = True
            for connection in self._connections:
                # The client has left, and its connection is not yet removed.
                with suppress(OSError):
                    self._say_persisted(connection)

    def __enter__(self) -> ScriptedServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._reserved.close()
        assert self.errors == []

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                stream, _ = listener.accept()
            except OSError:
                return
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            thread = threading.Thread(target=self._serve, args=(Connection(stream),))
            thread.start()
            self._threads.append(thread)

    def _serve(self, connection: Connection) -> None:
        buffer = b""
        try:
            with connection.stream:
                while received := connection.stream.recv(1 << 20):
                    buffer += received
                    with self._lock:
                        buffer = self._frames(connection, buffer)
        except OSError:
            pass  # The connection is gone, as happens.
        except BaseException as error:
            self.errors.append(error)
        finally:
            with self._lock:
                if connection in self._connections:
                    self._connections.remove(connection)

    def _frames(self, connection: Connection, buffer: bytes) -> bytes:
        offset = 0
        while len(buffer) - offset >= 4:
            (length,) = struct.unpack_from("<I", buffer, offset)
            if len(buffer) - offset - 4 < length:
                break
            self._frame(connection, buffer[offset + 4], buffer[offset + 5 : offset + 4 + length])
            offset += 4 + length
        self._feed()
        return buffer[offset:]

    def _frame(self, connection: Connection, kind: int, body: bytes) -> None:
        if kind == PUBLISH:
            self._publish(connection, body)
        elif kind == GOODBYE:
            connection.stream.shutdown(socket.SHUT_RDWR)
        elif kind == HEARTBEAT:
            pass
        else:
            self._command(connection, kind, fields(body))

    def _command(self, connection: Connection, kind: int, values: dict[int, bytes]) -> None:
        if kind == LOGON:
            self._log_on(connection, values[3].decode())
            return
        command, acks = number(values[1]), number(values[2])
        if kind == SUBSCRIBE:
            self._subscribe(connection, command, acks, values)
        elif kind == UNSUBSCRIBE:
            del connection.subscriptions[number(values[3])]
            connection.ack(PROCESSED, command, self.unsubscribe_refusal, 0, "refused by the test")
        elif kind == FLUSH:
            connection.ack(PERSISTED_ACK, command)
        elif kind in (PAUSE, RESUME):
            for (subscription,) in struct.iter_unpack("<I", values[3]):
                connection.subscriptions[subscription].paused = kind == PAUSE
            connection.ack(PROCESSED, command)
        else:
            raise AssertionError(f"frame of kind {kind}")

    def _log_on(self, connection: Connection, name: str) -> None:
        for other in [each for each in self._connections if each.name == name]:
            with suppress(OSError):  # It left by itself meanwhile.
                other.send(ERROR, struct.pack("<HH", NAME_IN_USE, 0) + b"another connection took the name")
                other.stream.shutdown(socket.SHUT_RDWR)
            self._connections.remove(other)
        connection.name, connection.publisher = name, sum(name.encode()) + 1
        self._connections.append(connection)
        values = [
            (1, 2, 1),
            (2, 8, connection.publisher),
            (3, 8, self._last(connection)),
            (4, 4, MESSAGE_SIZE_MAX),
        ]
        body = b"".join(
            struct.pack("<BI", tag, size) + value.to_bytes(size, "little") for tag, size, value in values
        )
        connection.send(LOGGED_ON, body + struct.pack("<BI", 5, 4) + b"test")

    def _last(self, connection: Connection) -> int:
        return max((r.sequence for r in self.log if r.publisher == connection.publisher), default=0)

    def _say_persisted(self, connection: Connection) -> None:
        connection.send(PERSISTED, struct.pack("<Q", self._last(connection)))

    def _publish(self, connection: Connection, body: bytes) -> None:
        _, correlation_size, topic_size, _, sequence = struct.unpack_from("<BBHIQ", body)
        topic_end = 16 + topic_size
        topic, correlation_id = body[16:topic_end], body[topic_end : topic_end + correlation_size]
        data = body[topic_end + correlation_size :]
        self.received.append((connection.name, sequence))
        if data == self.refused:
            self._say_persisted(connection)
            connection.send(PUBLISH_FAILED, struct.pack("<QHBB", sequence, 7, 0, 0) + b"refused by the test")
            return
        if self.persists and (sequence == 0 or sequence > self._last(connection)):
            self.log.append(Record(connection.publisher, sequence, topic, correlation_id, data))
        if self.persists and sequence:
            self._say_persisted(connection)

    def _subscribe(self, connection: Connection, command: int, acks: int, values: dict[int, bytes]) -> None:
        subscription, topic, options = number(values[3]), values[4].decode(), number(values.get(7, b"\0"))
        filter = values[5].decode() if 5 in values else None
        bookmark = values[6].decode() if 6 in values else None
        self.entered.append((topic, bookmark))
        if filter == "/qty >":
            connection.ack(PROCESSED, command, BAD_FILTER, 7, "expected a value")
            return
        if topic == "unrecorded" and bookmark is not None:
            connection.ack(PROCESSED, command, NOT_JOURNALED, 0, "topic unrecorded")
            return
        position = len(self.log) if bookmark is None else self._position(bookmark)
        if options & 1 and bookmark is None:
            position = connection.subscriptions[subscription].position
        is_replay = bookmark is not None
        entered = Entered(topic, filter, is_replay, bool(options & 8), position)
        connection.subscriptions[subscription] = entered
        connection.ack(PROCESSED, command)
        self._feed_one(connection, subscription, entered)
        if acks & 4:
            connection.ack(COMPLETED, command, about=subscription)

    def _position(self, bookmark: str) -> int:
        if bookmark == "0":
            return 0
        if bookmark == "0|1|":
            return len(self.log)
        publisher, sequence, _ = bookmark.split(",")[0].split("|")
        names = [(record.publisher, record.sequence) for record in self.log]
        return names.index((int(publisher), int(sequence))) + 1

    def _feed(self) -> None:
        for connection in list(self._connections):
            for subscription, entered in connection.subscriptions.items():
                self._feed_one(connection, subscription, entered)

    def _feed_one(self, connection: Connection, subscription: int, entered: Entered) -> None:
        if entered.paused:
            return
        out = b""
        for record in self.log[entered.position :]:
            if entered.matches(record):
                head = struct.pack(
                    "<BBHIQQQ",
                    1,
                    len(record.correlation_id),
                    len(record.topic),
                    subscription,
                    record.publisher,
                    record.sequence,
                    TIMESTAMP_NS,
                )
                body = head + record.topic + record.correlation_id + record.data
                out += struct.pack("<IB", len(body) + 1, MESSAGE) + body
        entered.position = len(self.log)
        if out:
            with suppress(OSError):  # Its own thread notices.
                connection.stream.sendall(out)


def fields(body: bytes) -> dict[int, bytes]:
    values = {}
    while body:
        tag, size = struct.unpack_from("<BI", body)
        values[tag] = body[5 : 5 + size]
        body = body[5 + size :]
    return values


def number(value: bytes) -> int:
    return int.from_bytes(value, "little")
