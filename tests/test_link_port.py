"""The port for links of a real server: bytes of another program only end its connection."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
import quire
from support.waiting import PATIENCE

WELCOME, REFUSED, MEMBERS = 2, 3, 13


def text(value: bytes) -> bytes:
    return struct.pack("<H", len(value)) + value


def frame(kind: int, body: bytes) -> bytes:
    return struct.pack("<IB", len(body) + 1, kind) + body


def record(
    topic: bytes, data: bytes, *, kind: int = 1, correlation_id: bytes = b"", key: bytes = b""
) -> bytes:
    attributes = struct.pack("<BBB", 1, len(key) % 128 | 128, len(key) // 128) + key if key else b""
    head = struct.pack("<QBBQQB", 1, kind, 1, 5, 1, 0)
    parts = [text(topic), text(correlation_id), text(attributes), struct.pack("<I", len(data)), data]
    mark = struct.pack("<QQQQ", 1, 5, 1, 1)
    return frame(4, struct.pack("<Q", 1) + mark + head + b"".join(parts))


#: The logon of the peer, and the answer.
LOGON = frame(10, struct.pack("<H", 10) + b"".join(map(text, (b"peer", b"", b"", b""))))
LOGGED_ON = frame(11, text(b""))
#: The introduction of the peer, which leaves out the checks of the two configurations, and knows no
#: other instance.
HELLO = frame(
    1,
    struct.pack("<H", 10)
    + b"".join(map(text, (b"peer", b"peer", b"east-1", b"")))
    + struct.pack("<QQQQQQII", 1, 0, 0, 0, 0, 0, 0, 2)
    + text(b"txlog")
    + text(b"replicate")
    + struct.pack("<I", 1)
    + text(b"peer") * 2
    + struct.pack("<QQBIQQ", 1, 1, 0, 0, 0, 0),
)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[quire.Server]:
    config = quire.Config(
        name="east-1",
        data_directory=tmp_path,
        transport={"name": "clients", "address": "127.0.0.1:0"},
        replication={"address": "127.0.0.1:0"},
        limits={"max_unfinished": "8MB"},
        sow_topic={"name": "records", "message_type": "json", "key": ["/k"]},
    )
    with quire.Server(config) as server:
        yield server


def connect(server: quire.Server) -> socket.socket:
    address = server.replication.address
    assert address is not None
    host, port = address.rsplit(":", 1)
    peer = socket.create_connection((host, int(port)), timeout=PATIENCE)
    peer.sendall(LOGON)
    assert receive(peer, len(LOGGED_ON)) == LOGGED_ON
    peer.sendall(HELLO)
    return peer


def receive(peer: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size and (data := peer.recv(size - len(received))):
        received += data
    return received


def kinds(peer: socket.socket) -> list[int]:
    """The kinds of the frames that come until the server closes the connection, without `members`:
    the server may say that it knows the peer now."""
    received = b""
    with contextlib.suppress(ConnectionError):
        while data := peer.recv(1 << 16):
            received += data
    found = []
    while received:
        (size,) = struct.unpack_from("<I", received)
        found.append(received[4])
        received = received[4 + size :]
    return [kind for kind in found if kind != MEMBERS]


@pytest.mark.parametrize(
    "bad",
    [
        record(b"t", b"{}", kind=4),
        record(b"t", b"{}", kind=2),
        record(b"t", b"{}", correlation_id=b"c" * 256),
        record(b"records", b'{"k":1}', key=b"k" * 300),
        record(b"t", b"{}", key=b"k"),
    ],
    ids=["delete", "acknowledge", "correlation_id", "long_key", "key"],
)
def test_a_bad_record_ends_its_link_and_publishers_continue(running: quire.Server, bad: bytes) -> None:
    with quire.Client(running.url, name="honest") as client, connect(running) as peer:
        peer.sendall(bad)
        # The record is refused, and not already the first frame.
        assert kinds(peer) == [WELCOME, REFUSED]
        client.publish("t", {"a": 1})
        client.flush(PATIENCE)
        assert not running.stats()["journal_failed"]


def test_unfinished_frames_of_links_are_limited(running: quire.Server) -> None:
    begun = frame(4, bytes(7 << 20))[: 5 << 20]
    with (
        connect(running) as first,
        connect(running) as second,
        quire.Client(running.url, name="honest") as client,
    ):
        first.sendall(begun)
        with contextlib.suppress(ConnectionError):
            second.sendall(begun)
        # One of the two exceeds the limit. The other one is closed when nothing more comes from it.
        refused = [WELCOME, REFUSED]
        assert kinds(second) == refused or kinds(first) == refused
        client.publish("t", {"a": 1})
        client.flush(PATIENCE)
