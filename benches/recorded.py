"""The bytes that a server sent to a client, recorded, and sent again by a program that only sends.

A client that gets the same bytes from such a sender shows what it takes by itself, and so what the
server adds.
"""

from __future__ import annotations

import contextlib
import mmap
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

_CHUNK_SIZE = 256 * 1024
#: The frames of a client before the bulk: its logon and its subscription.
_QUESTIONS = 2


class Recorded:
    """The bytes of one connection, in a file, and how many of them answered the logon."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._answer_size = 0

    @contextlib.contextmanager
    def recording(self, url: str) -> Iterator[str]:
        """A URL that leads to the server at `url`, for one client, and is recorded."""
        target = urlsplit(url)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            thread = threading.Thread(target=self._record, args=(listener, (target.hostname, target.port)))
            thread.start()
            yield _url(listener)
            thread.join()

    @contextlib.contextmanager
    def sending(self) -> Iterator[str]:
        """A URL where one client gets what was recorded, as fast as it takes it."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            thread = threading.Thread(target=self._send, args=(listener,))
            thread.start()
            yield _url(listener)
            thread.join()

    def _record(self, listener: socket.socket, target: tuple[str | None, int | None]) -> None:
        client, _ = listener.accept()
        with client, socket.create_connection(target) as server, self._path.open("wb") as file:
            asking = threading.Thread(target=self._pass_on_questions, args=(client, server, file.tell))
            asking.start()
            with contextlib.suppress(OSError):  # the client has what it wants
                while chunk := server.recv(_CHUNK_SIZE):
                    file.write(chunk)
                    client.sendall(chunk)
            asking.join()

    def _pass_on_questions(
        self, client: socket.socket, server: socket.socket, sent: Callable[[], int]
    ) -> None:
        questions = 0
        with contextlib.suppress(OSError):
            while chunk := client.recv(_CHUNK_SIZE):
                questions += 1
                if questions == _QUESTIONS:
                    self._answer_size = sent()
                server.sendall(chunk)
            server.shutdown(socket.SHUT_RDWR)

    def _send(self, listener: socket.socket) -> None:
        client, _ = listener.accept()
        with (
            client,
            self._path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as bytes_,
        ):
            everything = memoryview(bytes_)
            client.recv(_CHUNK_SIZE)
            client.sendall(everything[: self._answer_size])
            client.recv(_CHUNK_SIZE)
            with contextlib.suppress(OSError):  # the client has what it wants
                for start in range(self._answer_size, len(everything), _CHUNK_SIZE):
                    client.sendall(everything[start : start + _CHUNK_SIZE])
                # A socket that is closed with unread bytes resets the connection, and the client
                # would lose the last messages.
                client.shutdown(socket.SHUT_WR)
                while client.recv(_CHUNK_SIZE):
                    pass
            everything.release()


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()
    return f"quire://{host}:{port}"
