"""The least that a server with a synced queue does: it reads, writes, syncs, hands on and answers.
It checks and keeps nothing else.

    python benches/bare_server.py PORT FILE

`latency.py --engine bare` measures it. No engine on the same machine can be much faster, because
the rest is the disk, the system and the program that publishes. A connection says `p` or `c` first.
A publisher sends messages of `SIZE` bytes, and gets one byte for each when the disk has it.
Consumers get the messages in turn.
"""

from __future__ import annotations

import os
import selectors
import socket
import sys
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

SIZE = 512

#: Written again and again, so that a sync never waits for new blocks of the file.
_FILE_SIZE = 64 << 20


@dataclass
class _Connection:
    socket: socket.socket
    kind: bytes = b""
    input: bytearray = field(default_factory=bytearray)


def main(port: int, path: Path) -> None:
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY)
    os.pwrite(descriptor, bytes(_FILE_SIZE), 0)
    os.fsync(descriptor)
    selector = selectors.DefaultSelector()
    consumers: deque[socket.socket] = deque()
    end = 0
    with socket.create_server(("127.0.0.1", port)) as listener:
        selector.register(listener, selectors.EVENT_READ)
        while True:
            came: list[tuple[_Connection, bytes]] = []
            for key, _ in selector.select():
                if key.data is None:
                    connection = _Connection(listener.accept()[0])
                    connection.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    selector.register(connection.socket, selectors.EVENT_READ, connection)
                    continue
                connection = key.data
                data = connection.socket.recv(1 << 20)
                if not data:
                    selector.unregister(connection.socket)
                    continue
                if not connection.kind:
                    connection.kind, data = data[:1], data[1:]
                    if connection.kind == b"c":
                        consumers.append(connection.socket)
                connection.input += data
                whole = len(connection.input) // SIZE * SIZE
                if whole and connection.kind == b"p":
                    came.append((connection, bytes(connection.input[:whole])))
                    del connection.input[:whole]
            if not came:
                continue
            messages = b"".join(data for _, data in came)
            end = end if end + len(messages) <= _FILE_SIZE else 0
            os.pwrite(descriptor, messages, end)
            os.fdatasync(descriptor)
            end += len(messages)
            if consumers:
                consumers[0].sendall(messages)
                consumers.rotate()
            for connection, data in came:
                connection.socket.sendall(b"." * (len(data) // SIZE))


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
