"""Connections that speak the wire protocol over bare sockets (docs/protocol.md), as the Python
client would not do it."""

from __future__ import annotations

import asyncio
import struct
from dataclasses import dataclass

LOGON, PUBLISH, SUBSCRIBE, UNSUBSCRIBE, HEARTBEAT, STATS = 1, 2, 4, 5, 7, 14
ACK, MESSAGE, ERROR, FIGURES = 65, 68, 69, 72


class CutOffError(Exception):
    """The server ended the connection. The text is its reason."""


class Stranger:
    """A connection that is logged on."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def frame(self) -> tuple[int, bytes]:
        """Reads the next frame; returns its kind and body. Raises `CutOffError`."""
        try:
            size = int.from_bytes(await self.reader.readexactly(4), "little")
            kind, *_ = body = await self.reader.readexactly(size)
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise CutOffError("the connection was closed without a reason") from error
        if kind == ERROR:
            (code,) = struct.unpack_from("<H", body, 1)
            raise CutOffError(f"code {code}: {body[5:].decode()}")
        return kind, body[1:]

    async def expect(self, kind: int) -> bytes:
        """Reads on to a frame of this kind; returns its body. Raises `CutOffError`, also for a
        command that is refused."""
        while True:
            found, body = await self.frame()
            if found == ACK and (code := int.from_bytes(body[2:4], "little")) != 0:
                raise CutOffError(f"command refused with code {code}: {body[16:].decode()}")
            if found == kind:
                return body

    async def send(self, *frames: bytes) -> None:
        """Returns when the system has taken nearly everything. Raises `CutOffError`."""
        try:
            for sent in frames:
                self.writer.write(sent)
                await self.writer.drain()
        except ConnectionError:
            while True:  # The reason may still be there to be read.
                await self.frame()

    def close(self) -> None:
        self.writer.close()


@dataclass
class Strangers:
    """Makes connections, each with a different client name."""

    host: str
    port: int
    number: int
    _made: int = 0

    async def logged_on(self, limit: int = 1 << 16) -> Stranger:
        stranger = Stranger(*await asyncio.open_connection(self.host, self.port, limit=limit))
        self._made += 1
        name = b"stranger-%d-%d" % (self.number, self._made)
        await stranger.send(frame(LOGON, fields((1, b"QUIR"), (2, b"\1\0"), (3, name))))
        await stranger.frame()
        return stranger


def frame(kind: int, body: bytes = b"") -> bytes:
    return struct.pack("<IB", len(body) + 1, kind) + body


def fields(*values: tuple[int, bytes]) -> bytes:
    return b"".join(struct.pack("<BI", tag, len(value)) + value for tag, value in values)


def number(value: int) -> bytes:
    return struct.pack("<I", value)


def publish(topic: bytes, data: bytes) -> bytes:
    """A message without a sequence."""
    return frame(PUBLISH, struct.pack("<BBHIQ", 0, 0, len(topic), 0, 0) + topic + data)


def subscribe(subscription: int, topic: bytes, filter_text: bytes | None = None) -> bytes:
    """Asks for the `processed` acknowledgement."""
    given = [(1, number(2 * subscription)), (2, b"\2"), (3, number(subscription)), (4, topic)]
    if filter_text is not None:
        given.append((5, filter_text))
    return frame(SUBSCRIBE, fields(*given))


def unsubscribe(subscription: int) -> bytes:
    return frame(
        UNSUBSCRIBE, fields((1, number(2 * subscription + 1)), (2, b"\2"), (3, number(subscription)))
    )


def stats(command: int) -> bytes:
    """Asks for the figures of all queues."""
    return frame(STATS, fields((1, number(command))))
