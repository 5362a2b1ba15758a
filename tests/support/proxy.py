"""A proxy on the loopback that tells frames apart, and strikes at the one it was told to
(docs/protocol.md, sections 1, 3 and 4)."""

from __future__ import annotations

import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, NamedTuple

#: Before any byte of the frame is passed on; in its middle; after it.
Moment = Literal["before", "within", "after"]

#: Where a connection begins: the frame before the first.
CONNECT = "connect"
_NAMES = {
    1: "logon",
    2: "publish",
    3: "publish_batch",
    4: "subscribe",
    5: "unsubscribe",
    6: "flush",
    7: "heartbeat",
    8: "goodbye",
    9: "pause",
    10: "resume",
    11: "settle",
    12: "extend",
    13: "query",
    14: "stats",
    15: "maintain",
    16: "inspect",
    64: "logged_on",
    66: "persisted",
    67: "publish_failed",
    69: "error",
    70: "heartbeat_back",
    71: "subscription_ended",
    72: "figures",
    73: "lease_lost",
    74: "resume_position",
    76: "places",
    75: "journal_file",
}
_ACK, _MESSAGE, _SETTLE = 65, 68, 11
_ACKS = ("received", "processed", "completed", "persisted")
_VERDICTS = ("acknowledge", "cancel", "expire")


class Step(NamedTuple):
    """The `number`-th frame (from 1) with this name."""

    name: str
    number: int


@dataclass
class Strike:
    """The event at a step, once."""

    step: Step
    moment: Moment
    act: Callable[[], None]


class Proxy:
    """`with Proxy(url) as proxy`: clients connect to `proxy.url`, and are handed on to `url`.

    Frames are handed on one by one. At that of the next strike its connection ends, on both sides,
    and the act is called; nothing else is handed on meanwhile. Then numbers begin at 1 again.
    """

    def __init__(self, url: str) -> None:
        host, port = url.removeprefix("quire://").rsplit(":", 1)
        self._address = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self._strikes: list[Strike] = []
        self._counts: Counter[str] = Counter()
        self._threads: list[threading.Thread] = []
        #: New connections are refused until `arm`.
        self.is_closed = False
        #: Frames handed on since `arm`.
        self.seen: list[Step] = []
        #: The errors in its threads.
        self.errors: list[BaseException] = []
        self._thread = threading.Thread(target=self._accept)
        self._thread.start()

    @property
    def url(self) -> str:
        host, port = self._listener.getsockname()
        return f"quire://{host}:{port}"

    def arm(self, strikes: list[Strike]) -> None:
        """Begins to count, and strikes one after the other."""
        with self._lock:
            self._strikes = list(strikes)
            self.is_closed = False
            self._counts.clear()
            self.seen = []

    def reached(self, name: str) -> bool:
        """A step that is not a frame, reported by the client. Returns whether a strike was due
        there."""
        with self._lock:
            strike = self._due(name)
            if strike is not None:
                strike.act()
            return strike is not None

    @property
    def left(self) -> list[Strike]:
        """The strikes whose step has not come."""
        with self._lock:
            return list(self._strikes)

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        # Ends `accept`, which closing alone does not.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        for thread in self._threads:
            thread.join()
        self._listener.close()
        assert self.errors == []

    def _due(self, name: str) -> Strike | None:
        """Counts a step; the strike that is due there."""
        self._counts[name] += 1
        step = Step(name, self._counts[name])
        self.seen.append(step)
        if not self._strikes or self._strikes[0].step != step:
            return None
        self._counts.clear()
        return self._strikes.pop(0)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(client,))
            thread.start()
            self._threads.append(thread)

    def _serve(self, client: socket.socket) -> None:
        """One connection, with a thread for each direction."""
        with client:
            with self._lock:
                if self.is_closed:
                    return
                strike = self._due(CONNECT)
                if strike is not None and strike.moment == "before":
                    self._act(strike)
                    return
                try:
                    server = socket.create_connection(self._address)
                except ConnectionRefusedError:
                    return  # It is down; the client comes again.
                if strike is not None:
                    server.close()
                    self._act(strike)
                    return
            with server:
                pair = _Pair(client, server)
                back = threading.Thread(target=self._hand_on, args=(pair, server, client))
                back.start()
                self._hand_on(pair, client, server)
                back.join()

    def _hand_on(self, pair: _Pair, source: socket.socket, target: socket.socket) -> None:
        try:
            for frame in _frames(source):
                with self._lock:
                    if not pair.is_over:
                        self._pass(pair, frame, target)
            # The remaining side reads all bytes that were passed on, and then the end.
            _end(target)
        except BaseException as error:
            self.errors.append(error)

    def _pass(self, pair: _Pair, frame: bytes, target: socket.socket) -> None:
        """Hands a frame on, and strikes if it is time."""
        strike = self._due(name_of(frame))
        size = {"before": 0, "within": len(frame) // 2, "after": len(frame)}
        with suppress(OSError):  # The other side has left.
            target.sendall(frame[: size[strike.moment]] if strike else frame)
        if strike is not None:
            pair.is_over = True
            self._act(strike)
            _end(pair.client)
            _end(pair.server)

    def _act(self, strike: Strike) -> None:
        try:
            strike.act()
        except BaseException as error:
            self.errors.append(error)


class _Pair:
    """The two ends of what a client takes for one connection."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.client, self.server = client, server
        #: Struck: later bytes are read and dropped.
        self.is_over = False
        for end in (client, server):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def name_of(frame: bytes) -> str:
    """The name of the frame in a `Step`."""
    kind = frame[4]
    if kind == _ACK:
        return f"ack_{_ACKS[frame[5]]}"
    if kind == _MESSAGE:
        return "delivery" if frame[5] & 2 else "message"
    if kind == _SETTLE:
        return f"settle_{_VERDICTS[frame[5]]}"
    return _NAMES[kind]


def _frames(stream: socket.socket) -> Iterator[bytes]:
    """Whole frames until the stream ends or breaks."""
    buffer = b""
    while True:
        while len(buffer) >= 4 and len(buffer) >= (size := 4 + struct.unpack_from("<I", buffer)[0]):
            yield buffer[:size]
            buffer = buffer[size:]
        try:
            received = stream.recv(1 << 16)
        except OSError:
            return
        if not received:
            return
        buffer += received


def _end(stream: socket.socket) -> None:
    with suppress(OSError):  # It is gone already.
        stream.shutdown(socket.SHUT_WR)
