"""Strangers attack over the socket while an honest publisher and an honest consumer work: over plain
connections, over TLS to a server with users, and as a user with few rights.

These conditions must hold: the honest consumer gets every message once and in order, the stranger
gets an error and loses its connection, and the server neither ends nor grows. Each attack prints
its seed when it fails.
"""

from __future__ import annotations

import contextlib
import random
import select
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import quire
import quire.testing
from quire.testing._server import write_users
from support.server_process import ServerProcess
from support.stranger import (
    ACK,
    ERROR,
    LOGGED_ON,
    LOGON,
    MESSAGE,
    Stranger,
    fields,
    frame,
    logon,
    publish,
    subscribe,
)
from support.waiting import PATIENCE, Deadline

NOT_ENTITLED, MESSAGE_TOO_LARGE, SLOW_CONSUMER = 7, 16, 21
MESSAGE_SIZE_MAX = 64 << 10
#: The most bytes of a frame in addition to the data (docs/protocol.md section 1).
FRAME_OVERHEAD_MAX = 128 << 10
#: The memory that an attack may add to the server: several times its limits below, and far less
#: than the bytes of the attack.
GROWTH_MAX = 40 << 20


#: What may wait on disk for strangers that do not read. Less than the bytes of an attack.
DISK_MAX = 8 << 20

#: So long that on a slow machine no honest client is cut off.
LOGON_TIMEOUT = "60s"


PASSWORD = "correct horse battery"


@dataclass(frozen=True)
class Way:
    """How honest clients and strangers reach the server."""

    #: Settings of the transport, and of the server.
    transport: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    #: The options of an honest client.
    options: dict[str, Any] = field(default_factory=dict)
    #: Of strangers that have passed the handshake, and their logon.
    tls: ssl.SSLContext | None = None
    logon: Callable[[], bytes] = logon
    #: The bytes that a logon must have to be accepted.
    proof: bytes = b""


#: The honest clients log on as anna. Strangers log on as eve, who has no right on their topic.
ENTITLEMENTS: list[dict[str, Any]] = [
    {"user": "anna", "topic": ["honest", "flood"], "allow": ["read", "replay", "write"]},
    {
        "user": "eve",
        "topic": ["flood", "^noise"],
        "allow": ["read", "replay", "write"],
        "filter": "/x IS NULL",
    },
]


@pytest.fixture(scope="module", params=["plain", "TLS and users", "TLS, users and rights"])
def way(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Way:
    if request.param == "plain":
        return Way()
    directory = tmp_path_factory.mktemp("access")
    files = quire.testing.certificates(directory)
    write_users(directory / "users.toml", {name: {"password": PASSWORD} for name in ("anna", "eve")})
    settings: dict[str, Any] = {
        "authentication": {"method": "users", "users_file": str(directory / "users.toml")}
    }
    stranger = b"anna"
    if request.param == "TLS, users and rights":
        settings["entitlement"] = ENTITLEMENTS
        stranger = b"eve"
    return Way(
        {"tls": files.server},
        settings,
        {"ssl": files.tls, "user": "anna", "password": PASSWORD},
        ssl.create_default_context(cafile=files.ca),
        partial(logon, user=stranger, password=PASSWORD.encode()),
        PASSWORD.encode(),
    )


@pytest.fixture
def server(request: pytest.FixtureRequest, tmp_path: Path, way: Way) -> Iterator[ServerProcess]:
    """A server; its `logon_timeout` is the parameter."""
    transport = {
        **way.transport,
        "max_message_size": MESSAGE_SIZE_MAX,
        "max_client_backlog": "1MB",
        "logon_timeout": getattr(request, "param", LOGON_TIMEOUT),
    }
    limits = {"message_disk_limit": DISK_MAX, "client_max_capacity": 1.0}
    with ServerProcess(tmp_path, transport=transport, limits=limits, **way.settings) as server:
        yield server


class Honest:
    """A publisher and a consumer at work while the block runs. Leaving it checks that nothing was
    lost or doubled."""

    def __init__(self, server: ServerProcess, way: Way) -> None:
        self._server = server
        self._options = way.options
        self._published = 0
        self._stop = threading.Event()
        self._failure: BaseException | None = None

    def __enter__(self) -> Honest:
        # Where the time for a logon is short, a busy machine may need a second one.
        self._publisher = quire.Client(
            self._server.url,
            publish_store=quire.PublishStore(size_max="1MB"),
            wait=True,
            connect_timeout=PATIENCE,
            **self._options,
        )
        self._consumer = quire.Client(self._server.url, wait=True, connect_timeout=PATIENCE, **self._options)
        self._subscription = self._consumer.subscribe("honest", bookmark=quire.EPOCH)
        self._resident_bytes = self._server.resident_bytes()
        self._thread = threading.Thread(target=self._publish)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        with self._publisher, self._consumer:
            if kind is not None:
                return
            assert self._failure is None
            self._publisher.flush(timeout=PATIENCE)
            assert self._published > 0
            for expected in range(1, self._published + 1):
                message = self._subscription.get(timeout=PATIENCE)
                assert int(message.data) == expected
        grown = self._server.resident_bytes() - self._resident_bytes
        assert grown < GROWTH_MAX, f"the server grew by {grown >> 20} MiB"

    def publish_bytes(self, count: int) -> None:
        """Publishes `count` bytes to `flood`, in addition to the publishes of the thread."""
        store = quire.PublishStore(size_max="1MB")
        with quire.Client(self._server.url, publish_store=store, **self._options) as flood:
            for _ in range(count // 4096):
                flood.publish("flood", b'{"p": "' + b"x" * 4087 + b'"}')
            flood.flush(timeout=PATIENCE)

    def _publish(self) -> None:
        try:
            while not self._stop.is_set():
                self._publisher.publish("honest", str(self._published + 1))
                self._published += 1
                if self._published % 500 == 0:
                    self._publisher.flush(timeout=PATIENCE)
        except BaseException as error:
            self._failure = error


def connect(
    server: ServerProcess, way: Way, *, logged_on: bool = False, receive_size: int | None = None
) -> Stranger:
    stranger = Stranger(server.address, timeout=PATIENCE, receive_size=receive_size, tls=way.tls)
    if logged_on:
        stranger.send(way.logon())
        assert stranger.frame() is not None
    return stranger


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_random_bytes_end_the_connection_of_who_sent_them(server: ServerProcess, way: Way, seed: int) -> None:
    dice = random.Random(seed)
    with Honest(server, way):
        for _ in range(60):
            with connect(server, way) as stranger:
                # The length field of random bytes is above the limit nearly always.
                stranger.send(dice.randbytes(dice.randrange(5, 5000)))
                assert stranger.error() != 0


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_damaged_frames_after_a_logon_harm_nobody_else(server: ServerProcess, way: Way, seed: int) -> None:
    dice = random.Random(seed)
    frames = [publish(b"noise", b"x" * 50), subscribe(b"^noise"), subscribe(b"noise", b"0"), logon()]
    with Honest(server, way):
        # The check of a password takes its time.
        for _ in range(150 if way.tls is None else 30):
            with connect(server, way, logged_on=True) as stranger:
                damaged = bytearray(b"".join(dice.choices(frames, k=5)))
                for _ in range(dice.randrange(1, 6)):
                    damaged[dice.randrange(len(damaged))] = dice.randrange(256)
                # What is left may still be a valid frame, so nothing is said here about the answer.
                stranger.send(bytes(damaged[: dice.randrange(1, len(damaged) + 1)]))


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_damaged_logon_is_accepted_only_with_its_password(
    server: ServerProcess, way: Way, seed: int
) -> None:
    dice = random.Random(seed)
    with Honest(server, way), contextlib.ExitStack() as all_of_them:
        sent: list[tuple[Stranger, bytes]] = []
        for _ in range(40):
            damaged = bytearray(way.logon())
            for _ in range(dice.randrange(1, 4)):
                # With another length of the frame, the server would wait for more.
                damaged[dice.randrange(4, len(damaged))] = dice.randrange(256)
            stranger = all_of_them.enter_context(connect(server, way))
            stranger.send(bytes(damaged))
            sent.append((stranger, bytes(damaged)))
        # Refusals are delayed, so all of them wait at the same time.
        for stranger, damaged_logon in sent:
            answer = stranger.frame()
            assert answer is not None
            assert answer[0] == ERROR or (answer[0] == LOGGED_ON and way.proof in damaged_logon)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_random_bytes_before_the_handshake_end_the_connection(
    server: ServerProcess, way: Way, seed: int
) -> None:
    """Also a handshake that was damaged, or that comes in pieces and is not finished."""
    if way.tls is None:
        pytest.skip("there is no handshake")
    dice = random.Random(seed)
    begin = client_hello(way.tls)
    with Honest(server, way):
        for number in range(60):
            damaged = bytearray(begin if number % 2 else dice.randbytes(dice.randrange(1, 600)))
            for _ in range(dice.randrange(1, 8)):
                damaged[dice.randrange(len(damaged))] = dice.randrange(256)
            with Stranger(server.address, timeout=PATIENCE) as stranger:
                stranger.send(bytes(damaged[: dice.randrange(1, len(damaged) + 1)]))
                stranger.stream.shutdown(socket.SHUT_WR)
                while stranger.frame() is not None:
                    pass


def client_hello(context: ssl.SSLContext) -> bytes:
    """The first bytes of a handshake."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1").do_handshake()
    return outgoing.read()


def test_a_user_without_the_right_neither_reads_nor_writes_the_topic_of_others(
    server: ServerProcess, way: Way
) -> None:
    if "entitlement" not in way.settings:
        pytest.skip("every user may do everything")
    with Honest(server, way), connect(server, way, logged_on=True) as stranger:
        for bookmark in (None, b"0"):
            stranger.send(subscribe(b"honest", bookmark))
            refused = stranger.body_of(ACK)
            assert refused is not None
            assert struct.unpack_from("<H", refused, 2) == (NOT_ENTITLED,)
        # The honest consumer would get them.
        for sequence in range(1, 200):
            stranger.send(publish(b"honest", b"0", sequence))
        stranger.send(subscribe(b"noise"))
        while (answer := stranger.frame()) is not None and answer[0] != ACK:
            assert answer[0] != MESSAGE


@pytest.mark.parametrize("server", ["3s"], indirect=True)
def test_who_does_not_finish_its_logon_is_cut_off_in_time(server: ServerProcess, way: Way) -> None:
    whole = way.logon()
    with Honest(server, way):
        strangers = [connect(server, way) for _ in range(100)]
        for number, stranger in enumerate(strangers):
            stranger.send(whole[: number % len(whole)])
        deadline = Deadline()
        for stranger in strangers:
            with stranger:
                assert stranger.error() != 0
                assert deadline.left > 0


@pytest.mark.parametrize("server", ["3s"], indirect=True)
def test_who_sends_its_logon_byte_by_byte_gains_no_time(server: ServerProcess, way: Way) -> None:
    # The field 128, which says who the client is, is as long as the frame before a logon may be.
    endless = frame(LOGON, fields((1, b"QUIR"), (2, b"\1\0"), (3, b"slow"), (128, bytes(60_000))))
    with Honest(server, way), connect(server, way) as stranger:
        deadline = Deadline()
        # A byte each time the server has been silent for a while: all of them would take hours.
        for byte in endless:
            if select.select([stranger.stream], [], [], 0.1)[0]:
                break
            stranger.send(bytes([byte]))
            assert deadline.left > 0
        assert stranger.error() != 0


@pytest.mark.parametrize("size", [MESSAGE_SIZE_MAX + FRAME_OVERHEAD_MAX + 1, 2**31, 2**32 - 1])
@pytest.mark.parametrize("logged_on", [False, True])
def test_a_huge_frame_is_refused_from_its_first_bytes(
    server: ServerProcess, way: Way, logged_on: bool, size: int
) -> None:
    with Honest(server, way), connect(server, way, logged_on=logged_on) as stranger:
        stranger.send(struct.pack("<I", size))
        assert stranger.error() == MESSAGE_TOO_LARGE


def test_a_subscriber_that_never_reads_is_cut_off_and_nobody_waits_for_it(
    server: ServerProcess, way: Way
) -> None:
    with Honest(server, way) as honest, connect(server, way, logged_on=True, receive_size=4096) as stranger:
        stranger.send(subscribe(b"flood"))
        assert stranger.frame() is not None
        honest.publish_bytes(64 << 20)
        received = 0
        while (message := stranger.frame()) is not None and message[0] == MESSAGE:
            received += len(message[1])
        assert received < 16 << 20, "it was cut off long before everything was sent"
        # The reason comes after what the transport held, unless the peer did not read that in time
        # either.
        assert message is None or message == (ERROR, struct.pack("<HH", SLOW_CONSUMER, 0) + message[1][4:])


def test_a_replay_that_nobody_reads_waits_without_growing(server: ServerProcess, way: Way) -> None:
    flood = 64 << 20
    with Honest(server, way) as honest, connect(server, way, logged_on=True, receive_size=4096) as stranger:
        honest.publish_bytes(flood)
        stranger.send(subscribe(b"flood", b"0"))
        honest.publish_bytes(flood)
        # Read at last, it gets everything: it was slow, not lost.
        received = 0
        while received < 2 * flood:
            message = stranger.frame()
            assert message is not None
            received += 4096 if message[0] == MESSAGE else 0
