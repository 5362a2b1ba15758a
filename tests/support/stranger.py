"""A bare socket that uses the wire protocol (docs/protocol.md), for actions that `quire.Client`
does not allow."""

from __future__ import annotations

import itertools
import socket
import ssl
import struct
from typing import Self

LOGON, PUBLISH, PUBLISH_BATCH, SUBSCRIBE, GOODBYE = 1, 2, 3, 4, 8
LOGGED_ON, ACK, PERSISTED, MESSAGE, ERROR = 64, 65, 66, 68, 69

_numbers = itertools.count(1)


class Stranger:
    """A connection. A wait for the server that takes longer than `timeout` seconds is a `TimeoutError`."""

    def __init__(
        self,
        address: tuple[str, int],
        *,
        timeout: float,
        logged_on: bool = False,
        receive_size: int | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.stream = socket.socket()
        if receive_size is not None:
            self.stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_size)
        self.stream.settimeout(timeout)
        self.stream.connect(address)
        if tls is not None:
            self.stream = tls.wrap_socket(self.stream, server_hostname=address[0])
        self._received = b""
        if logged_on:
            self.send(logon())
            assert self.frame() is not None

    def send(self, data: bytes) -> None:
        self.stream.sendall(data)

    def frame(self) -> tuple[int, bytes] | None:
        """Returns kind and body of the next frame, or `None` when the server closed the connection."""
        while True:
            if len(self._received) >= 4:
                (size,) = struct.unpack_from("<I", self._received)
                if len(self._received) >= 4 + size:
                    frame = self._received[4 : 4 + size]
                    self._received = self._received[4 + size :]
                    return frame[0], frame[1:]
            try:
                data = self.stream.recv(1 << 20)
            except ConnectionError:
                return None
            if not data:
                return None
            self._received += data

    def body_of(self, kind: int) -> bytes | None:
        """Reads up to the next frame of this kind; returns its body, or `None` when the connection
        ended before."""
        while (frame := self.frame()) is not None:
            if frame[0] == kind:
                return frame[1]
        return None

    def error(self) -> int:
        """Returns the code of the error that ends the connection."""
        code = 0
        while (frame := self.frame()) is not None:
            if frame[0] == ERROR:
                (code,) = struct.unpack_from("<H", frame[1])
        assert code != 0, "the connection ended without an error frame"
        return code

    def close(self) -> None:
        self.stream.close()

    def reset(self) -> None:
        """Closes the connection with a reset, as the kernel does for a process that was killed."""
        self.stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def frame(kind: int, body: bytes = b"") -> bytes:
    return struct.pack("<IB", len(body) + 1, kind) + body


def fields(*values: tuple[int, bytes]) -> bytes:
    return b"".join(struct.pack("<BI", tag, len(value)) + value for tag, value in values)


def logon(name: bytes | None = None, *, user: bytes | None = None, password: bytes = b"") -> bytes:
    """Logs on with this client name; without one, with a name that no other connection of this
    process has."""
    given = [(1, b"QUIR"), (2, b"\1\0"), (3, name or b"stranger-%d" % next(_numbers))]
    return frame(LOGON, fields(*given, *([] if user is None else [(4, user), (5, password)])))


def publish(topic: bytes, data: bytes, sequence: int = 0) -> bytes:
    return frame(PUBLISH, struct.pack("<BBHIQ", 0, 0, len(topic), 0, sequence) + topic + data)


def publish_batch(topic: bytes, messages: list[bytes], sequence: int) -> bytes:
    items = b"".join(struct.pack("<I", len(data)) + data for data in messages)
    return frame(PUBLISH_BATCH, struct.pack("<BBHIQ", 0, 0, len(topic), 0, sequence) + topic + items)


def subscribe(topic: bytes, bookmark: bytes | None = None, *, max_backlog: int | None = None) -> bytes:
    """Subscribes under the number 1, and asks for the `processed` acknowledgement."""
    number = struct.pack("<I", 1)
    given = [(1, number), (2, b"\2"), (3, number), (4, topic)]
    if bookmark is not None:
        given.append((6, bookmark))
    if max_backlog is not None:
        given.append((8, struct.pack("<I", max_backlog)))
    return frame(SUBSCRIBE, fields(*given))
