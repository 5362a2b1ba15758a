"""The connections between the instances of a cluster: each uses a forwarder, which can hold it."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from typing import Final

#: Bytes that a forwarder reads at once.
_CHUNK: Final = 256 * 1024


class Forwarder:
    """Forwards the connections that come in on a free port of 127.0.0.1 to another port.

    While it is held, it forwards nothing: it accepts connections, and what they send waits. A
    connection that ended meanwhile ends at the other side after `release`. The peers of a network
    without a route see the same.
    """

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: Final[int] = self._listener.getsockname()[1]
        #: Set while bytes pass.
        self._gate = threading.Event()
        self._gate.set()
        self._is_closed = False
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._start(self._accept)

    def hold(self) -> None:
        """Forwards nothing that is sent after this call, until `release`."""
        self._gate.clear()

    def release(self) -> None:
        """Forwards what waits, and all that follows."""
        self._gate.set()

    def close(self) -> None:
        """Ends all connections, and accepts no more."""
        self._is_closed = True
        # Wakes the thread that accepts.
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port)):
            pass
        self._listener.close()
        with self._lock:
            connections = list(self._open)
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._gate.set()

    def _start(self, run: Callable[..., None], *arguments: socket.socket) -> threading.Thread:
        thread = threading.Thread(target=run, args=arguments, name="quire-forwarder", daemon=True)
        thread.start()
        return thread

    def _accept(self) -> None:
        while not self._is_closed:
            with contextlib.suppress(OSError):
                source, _ = self._listener.accept()
                self._start(self._connect, source)

    def _connect(self, source: socket.socket) -> None:
        with source:
            self._gate.wait()
            try:
                target = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                return
            with target:
                self._forward(source, target)

    def _forward(self, source: socket.socket, target: socket.socket) -> None:
        """Forwards both directions until both have ended."""
        ends = {source, target}
        with self._lock:
            self._open |= ends
        try:
            if self._is_closed:
                return
            back = self._start(self._copy, target, source)
            self._copy(source, target)
            back.join()
        finally:
            with self._lock:
                self._open -= ends

    def _copy(self, source: socket.socket, target: socket.socket) -> None:
        """Forwards one direction until it ends."""
        for end in (source, target):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        data = b"?"
        while data:
            try:
                data = source.recv(_CHUNK)
                self._gate.wait()
                target.sendall(data)
            except OSError:
                # The connection broke: the other direction ends, too.
                self._gate.wait()
                for end in (source, target):
                    with contextlib.suppress(OSError):
                        end.shutdown(socket.SHUT_RDWR)
                return
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)


__all__ = ["Forwarder"]
