"""Connections over TLS, between real processes: messages, reconnects, the text of each failure,
hostile peers before and after the handshake, new certificates, and links.

The peers that are not quire's own use Python's `ssl`, so the client in Rust and the server are each
tested against another implementation, too.
"""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import random
import shutil
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import quire
import quire.testing
import trustme
from quire.testing import Certificates
from support.ports import reserve
from support.server_process import ServerProcess
from support.stranger import LOGGED_ON, Stranger, frame, logon
from support.waiting import PATIENCE, Deadline, wait_until

TLS_REQUIRED = 29


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return quire.testing.certificates(tmp_path_factory.mktemp("certificates"), clients=["anna"])


@pytest.fixture
def server(tmp_path: Path, files: Certificates) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path, transport={"tls": files.server}) as server:
        yield server


def client(server: ServerProcess, files: Certificates, **options: Any) -> quire.Client:
    return quire.Client(server.url, ssl=files.tls, **options)


def context(files: Certificates) -> ssl.SSLContext:
    """The context of a peer that uses OpenSSL."""
    return ssl.create_default_context(cafile=files.ca)


def test_messages_of_every_size_arrive(server: ServerProcess, files: Certificates) -> None:
    assert server.url.startswith("quires://")
    sizes = [0, 1, 100, 16_383, 16_384, 16_385, 65_536, 1 << 20, 8 << 20]
    with client(server, files) as publisher, client(server, files) as subscriber:
        live = subscriber.subscribe("sizes")
        for size in sizes:
            publisher.publish("sizes", bytes([size % 251]) * size)
        publisher.flush(timeout=PATIENCE)
        replay = subscriber.subscribe("sizes", bookmark=quire.EPOCH)
        for subscription in (live, replay):
            for size in sizes:
                assert subscription.get(timeout=PATIENCE).data == bytes([size % 251]) * size


def test_a_replay_of_100_000_messages_is_whole_and_in_order(
    server: ServerProcess, files: Certificates
) -> None:
    count = 100_000
    with client(server, files) as publisher:
        for _ in range(0, count, 1000):
            publisher.publish_many("flood", [b"%06d" % n + bytes(94) for n in range(_, _ + 1000)])
        publisher.flush(timeout=PATIENCE)
        # A window that is much smaller than the replay pauses reading again and again.
        for receive_size_max in ("64MB", "256KB"):
            with client(server, files, receive_size_max=receive_size_max) as reader:
                replay = reader.subscribe("flood", bookmark=quire.EPOCH)
                for n in range(count):
                    assert replay.get(timeout=PATIENCE).data[:6] == b"%06d" % n


async def test_the_asyncio_client_publishes_and_replays(server: ServerProcess, files: Certificates) -> None:
    count = 20_000
    async with quire.AsyncClient(server.url, ssl=files.tls) as client:
        live = await client.subscribe("aio")
        await client.publish_many("aio", [str(n) for n in range(count)])
        await client.publish("aio", b"x" * (4 << 20))
        await client.flush(timeout=PATIENCE)
        replay = await client.subscribe("aio", bookmark=quire.EPOCH)
        for subscription in (live, replay):
            async with asyncio.timeout(PATIENCE):
                for n in range(count):
                    assert (await subscription.get()).data == b"%d" % n
                assert len((await subscription.get()).data) == 4 << 20


async def test_an_asyncio_client_that_answers_each_message_waits_for_no_other(
    server: ServerProcess, files: Certificates
) -> None:
    # The loop reads the socket itself: bytes that are decrypted already must not be forgotten.
    async with (
        quire.AsyncClient(server.url, ssl=files.tls) as one,
        quire.AsyncClient(server.url, ssl=files.tls) as other,
        asyncio.timeout(PATIENCE),
    ):
        questions, answers = await other.subscribe("question"), await one.subscribe("answer")
        for n in range(500):
            await one.publish("question", str(n) * (1 + n % 7 * 3000))
            question = await questions.get()
            await other.publish("answer", question.data)
            assert (await answers.get()).data == question.data


def test_a_client_connects_again_after_a_kill_and_loses_nothing(
    server: ServerProcess, files: Certificates
) -> None:
    with client(server, files, name="loader") as publisher, client(server, files) as reader:
        received = reader.subscribe("orders", bookmark=quire.EPOCH)
        for round in range(3):
            for n in range(1000):
                publisher.publish("orders", str(round * 1000 + n))
            if round == 1:
                server.kill()
                server.start()
        publisher.flush(timeout=PATIENCE)
        for n in range(3000):
            assert received.get(timeout=PATIENCE).data == b"%d" % n


def test_a_fork_leaves_the_connection_to_the_parent(server: ServerProcess, files: Certificates) -> None:
    program = """
import os, sys, quire
with quire.Client(sys.argv[1], ssl=sys.argv[2]) as client:
    subscription = client.subscribe("forked")
    child = os.fork()
    if child == 0:
        try:
            client.publish("forked", "child")
        except RuntimeError:
            os._exit(0)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    client.publish("forked", "parent")
    assert subscription.get(timeout=60).data == b"parent"
"""
    command = [sys.executable, "-c", program, server.url, str(files.ca)]
    subprocess.run(command, check=True, timeout=PATIENCE)


def test_the_variable_names_the_authority(
    server: ServerProcess, files: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUIRE_CA", str(files.ca))
    for given in (None, True):
        with quire.Client(server.url, ssl=given) as client:
            assert client.state == "connected"


def test_a_test_server_makes_its_certificates() -> None:
    with (
        quire.testing.server(tls=True) as server,
        quire.Client(server.url, **server.options()) as client,
    ):
        client.publish("orders", "1")
        client.flush(timeout=PATIENCE)
        assert server.url.startswith("quires://127.0.0.1:")


# Failures


def failure_of(url: str, **options: Any) -> quire.TLSError:
    """The error of the first connection, which comes at once."""
    with pytest.raises(quire.TLSError) as raised:
        quire.Client(url, connect_timeout=PATIENCE, **options)
    assert isinstance(raised.value, quire.DisconnectedError)
    return raised.value


def test_a_client_without_tls_is_told_to_use_it(server: ServerProcess) -> None:
    error = failure_of(server.url.replace("quires", "quire"))
    assert error.code == "tls_required"
    assert "connect with quires://" in str(error)


def test_a_client_is_told_that_only_it_uses_tls(tmp_path: Path, files: Certificates) -> None:
    with ServerProcess(tmp_path) as server:
        error = failure_of(server.url.replace("quire", "quires"), ssl=files.ca)
    assert error.code == "tls_failed"
    assert "does not use TLS at this address: connect with quire://" in str(error)


def test_an_unknown_authority_is_named(
    server: ServerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = quire.testing.certificates(tmp_path / "other")
    text = "the authority of the server's certificate is unknown: set `ssl` or $QUIRE_CA"
    assert text in str(failure_of(server.url, ssl=other.tls))
    # The authorities of the system do not know it either.
    monkeypatch.delenv("QUIRE_CA", raising=False)
    monkeypatch.setenv("SSL_CERT_FILE", str(other.ca))
    assert text in str(failure_of(server.url))


def test_a_wrong_host_name_is_named(tmp_path: Path) -> None:
    files = quire.testing.certificates(tmp_path / "files", names=["quire.example", "other.example"])
    with ServerProcess(tmp_path / "data", transport={"tls": files.server}) as server:
        text = str(failure_of(server.url, ssl=files.tls))
        assert "is not for 127.0.0.1, but for quire.example, other.example" in text
        tls = quire.TLS(ca=files.ca, server_name="quire.example")
        with quire.Client(server.url, ssl=tls) as client:
            assert client.state == "connected"


def test_an_expired_certificate_is_named_with_its_day(tmp_path: Path) -> None:
    files = quire.testing.certificates(tmp_path / "files", expires_in=timedelta(days=-2))
    with ServerProcess(tmp_path / "data", transport={"tls": files.server}) as server:
        assert "the certificate of the server has expired on 20" in str(failure_of(server.url, ssl=files.tls))


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_client_without_a_certificate_is_told_to_have_one(
    tmp_path: Path, files: Certificates, version: ssl.TLSVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    tls = {**files.server, "client_certificate": "required"}
    # In TLS 1.2 the server refuses within the handshake, in TLS 1.3 after it.
    environment = {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    if version is ssl.TLSVersion.TLSv1_2:
        settings = tmp_path / "openssl.cnf"
        settings.write_text(
            "openssl_conf=a\n[a]\nssl_conf=b\n[b]\nsystem_default=c\n[c]\nMaxProtocol=TLSv1.2\n"
        )
        environment["OPENSSL_CONF"] = str(settings)
    with ServerProcess(tmp_path / "data", environment=environment, transport={"tls": tls}) as server:
        assert "certificate of the client: set `certificate` and `key`" in str(
            failure_of(server.url, ssl=files.tls)
        )
        with quire.Client(server.url, ssl=files.clients["anna"]) as client:
            client.publish("orders", "1")
            client.flush(timeout=PATIENCE)


@pytest.mark.parametrize("wanted", ["required", "optional"])
def test_a_certificate_of_another_authority_is_refused(
    tmp_path: Path, files: Certificates, wanted: str
) -> None:
    other = quire.testing.certificates(tmp_path / "other", clients=["anna"]).clients["anna"]
    tls = quire.TLS(ca=files.ca, certificate=other.certificate, key=other.key)
    with ServerProcess(
        tmp_path / "data", transport={"tls": {**files.server, "client_certificate": wanted}}
    ) as server:
        text = str(failure_of(server.url, ssl=tls))
        assert "does not accept the certificate of the client: its authority is not in `client_ca`" in text


def test_a_lost_connection_is_not_given_up_for_a_certificate_that_is_wrong_now(
    server: ServerProcess, files: Certificates, tmp_path: Path
) -> None:
    ca = tmp_path / "ca.pem"
    shutil.copy(files.ca, ca)
    with quire.Client(server.url, ssl=ca, name="loader") as client:
        shutil.copy(quire.testing.certificates(tmp_path / "other").ca, ca)
        server.kill()
        server.start()
        wait_until(lambda: "authority" in (client.health().last_error or ""))
        client.publish("orders", "1")
        shutil.copy(files.ca, ca)
        client.flush(timeout=PATIENCE)


# Peers that do not speak TLS as they should


def drained(stream: socket.socket) -> bytes:
    """Everything up to the end of the connection."""
    received = b""
    try:
        while part := stream.recv(65536):
            received += part
    except ConnectionError:
        pass
    return received


@pytest.fixture
def hasty(tmp_path: Path, files: Certificates) -> Iterator[ServerProcess]:
    """A server whose clients have a second to log on."""
    with ServerProcess(tmp_path, transport={"tls": files.server, "logon_timeout": "1s"}) as server:
        yield server


def hello(files: Certificates) -> bytes:
    """The first bytes of a handshake."""
    outgoing = ssl.MemoryBIO()
    tls = context(files).wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="127.0.0.1")
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


def test_a_plain_logon_is_answered_in_the_protocol(server: ServerProcess) -> None:
    with Stranger(server.address, timeout=PATIENCE) as stranger:
        stranger.send(logon())
        assert stranger.error() == TLS_REQUIRED


def test_a_frame_as_long_as_a_record_of_tls_begins_is_no_handshake(server: ServerProcess) -> None:
    # Its length has the bytes 0x16 0x03 0x00 0x00.
    with Stranger(server.address, timeout=PATIENCE) as stranger:
        stranger.send(frame(1, bytes(0x0316 - 1)))
        assert stranger.error() == TLS_REQUIRED


def test_refused_connections_do_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    strangers = 200

    def counted() -> int:
        lines = [record.message for record in caplog.records if record.message.startswith("TLS: ")]
        return sum(int(line.split()[1]) if "more connections" in line else 1 for line in lines)

    with quire.testing.server(tls=True) as server, caplog.at_level(logging.WARNING, "quire.server"):
        host, port = server.url.removeprefix("quires://").split(":")
        begun = time.monotonic()
        for _ in range(strangers):
            with Stranger((host, int(port)), timeout=PATIENCE) as stranger:
                stranger.send(logon())
                assert stranger.error() == TLS_REQUIRED
        wait_until(lambda: counted() == strangers)
        took = time.monotonic() - begun
    lines = [record.message for record in caplog.records if record.message.startswith("TLS: ")]
    assert len(lines) <= took + 2, "a line a second"
    assert all("the client does not use TLS" in line for line in lines)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_random_bytes_end_their_own_connection_only(
    server: ServerProcess, files: Certificates, seed: int
) -> None:
    dice = random.Random(seed)
    begin = hello(files)
    with client(server, files) as honest:
        for n in range(40):
            with Stranger(server.address, timeout=PATIENCE) as stranger:
                damaged = bytearray(begin)
                for _ in range(dice.randrange(1, 20)):
                    damaged[dice.randrange(len(damaged))] = dice.randrange(256)
                stranger.send(bytes(damaged[: dice.randrange(1, len(damaged) + 1)]))
                stranger.send(dice.randbytes(dice.randrange(1, 20_000)))
                stranger.stream.shutdown(socket.SHUT_WR)
                drained(stranger.stream)
            honest.publish("honest", str(n))
        honest.flush(timeout=PATIENCE)
        assert honest.state == "connected"


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_random_frames_after_the_handshake_end_their_own_connection_only(
    server: ServerProcess, files: Certificates, seed: int
) -> None:
    dice = random.Random(seed)
    with client(server, files) as honest:
        for n in range(40):
            with Stranger(server.address, timeout=PATIENCE, tls=context(files)) as stranger:
                stranger.send(dice.randbytes(dice.randrange(5, 5000)))
                assert stranger.error() != 0
            honest.publish("honest", str(n))
        honest.flush(timeout=PATIENCE)


Attack = Callable[[Stranger, Certificates], None]


def nothing(stranger: Stranger, files: Certificates) -> None:
    pass


def half_a_hello(stranger: Stranger, files: Certificates) -> None:
    begin = hello(files)
    stranger.send(begin[: len(begin) // 2])


def a_hello(stranger: Stranger, files: Certificates) -> None:
    stranger.send(hello(files))


def one_byte(stranger: Stranger, files: Certificates) -> None:
    stranger.send(b"\x16")


def a_handshake(stranger: Stranger, files: Certificates) -> None:
    stranger.stream = context(files).wrap_socket(stranger.stream, server_hostname="127.0.0.1")


@pytest.mark.parametrize("attack", [nothing, one_byte, half_a_hello, a_hello, a_handshake])
def test_who_does_not_log_on_in_time_is_cut_off_at_any_point_of_the_handshake(
    hasty: ServerProcess, files: Certificates, attack: Attack
) -> None:
    strangers = [Stranger(hasty.address, timeout=PATIENCE) for _ in range(20)]
    for stranger in strangers:
        attack(stranger, files)
    for stranger in strangers:
        with stranger:
            drained(stranger.stream)
    with client(hasty, files, wait=True, connect_timeout=PATIENCE) as honest:
        # They hold nothing.
        wait_until(lambda: honest.server_info().connections == 1)


def test_a_handshake_byte_by_byte_gains_no_time(hasty: ServerProcess, files: Certificates) -> None:
    begin = hello(files)
    deadline = Deadline()
    with Stranger(hasty.address, timeout=0.05) as stranger:
        sent = 0
        while deadline.left:
            try:
                stranger.send(begin[sent : sent + 1])
                sent += 1
                if not stranger.stream.recv(1):
                    break
            except TimeoutError:
                continue
            except ConnectionError:
                break
        assert sent < len(begin), "the whole hello was taken, and the time was not over"


def test_connections_within_their_handshake_count(tmp_path: Path, files: Certificates) -> None:
    transport = {"tls": files.server, "max_connections": 3, "logon_timeout": "60s"}
    with ServerProcess(tmp_path, transport=transport) as server:
        strangers = [Stranger(server.address, timeout=PATIENCE) for _ in range(3)]
        for stranger in strangers:
            half_a_hello(stranger, files)
        with pytest.raises(quire.LimitExceededError, match="max_connections"):
            client(server, files)
        for stranger in strangers:
            stranger.close()
        with client(server, files, wait=True, connect_timeout=PATIENCE) as honest:
            assert honest.state == "connected"


@pytest.mark.parametrize("says_so", [False, True])
def test_a_peer_that_closes_its_half_is_closed(
    server: ServerProcess, files: Certificates, says_so: bool
) -> None:
    with (
        client(server, files) as honest,
        Stranger(server.address, timeout=PATIENCE, tls=context(files)) as stranger,
    ):
        stranger.send(logon())
        answer = stranger.frame()
        assert answer is not None
        assert answer[0] == LOGGED_ON
        assert isinstance(stranger.stream, ssl.SSLSocket)
        if says_so:
            # It says that it sends no more, and waits for the server to say so.
            stranger.stream.unwrap()
        else:
            stranger.stream.shutdown(socket.SHUT_WR)
        wait_until(lambda: honest.server_info().connections == 1)


def test_the_server_says_that_it_closes(server: ServerProcess, files: Certificates) -> None:
    with Stranger(server.address, timeout=PATIENCE, tls=context(files)) as stranger:
        stranger.send(logon())
        assert stranger.frame() is not None
        server.terminate()
        # An end without the last word of TLS would be an `SSLEOFError`.
        while stranger.frame() is not None:
            pass
        assert stranger.stream.recv(1) == b""


def peer(
    server: ServerProcess, files: Certificates, change: Callable[[ssl.SSLContext], None]
) -> ssl.SSLSocket:
    tls = context(files)
    change(tls)
    stream = socket.create_connection(server.address, timeout=PATIENCE)
    try:
        return tls.wrap_socket(stream, server_hostname="127.0.0.1")
    except BaseException:
        stream.close()
        raise


def test_only_algorithms_with_forward_secrecy_are_accepted(
    server: ServerProcess, files: Certificates
) -> None:
    def old(tls: ssl.SSLContext) -> None:
        tls.maximum_version = ssl.TLSVersion.TLSv1_2

    def without_secrecy(tls: ssl.SSLContext) -> None:
        old(tls)
        tls.set_ciphers("AES128-GCM-SHA256:AES256-GCM-SHA384")

    with peer(server, files, old) as stream:
        cipher = stream.cipher()
        assert cipher is not None
        assert stream.version() == "TLSv1.2"
        assert cipher[0].startswith("ECDHE-")
    with pytest.raises(ssl.SSLError):
        peer(server, files, without_secrecy)


def test_min_version_refuses_older_versions(tmp_path: Path, files: Certificates) -> None:
    def old(tls: ssl.SSLContext) -> None:
        tls.maximum_version = ssl.TLSVersion.TLSv1_2

    with ServerProcess(tmp_path, transport={"tls": {**files.server, "min_version": "1.3"}}) as server:
        with pytest.raises(ssl.SSLError):
            peer(server, files, old)
        with client(server, files) as honest:
            assert honest.state == "connected"


# New certificates


def test_a_new_certificate_is_used_without_a_restart_and_a_wrong_one_never(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = tmp_path / "files"
    files = quire.testing.certificates(place)
    old = quire.TLS(ca=shutil.copy(files.ca, tmp_path / "old.pem"))
    other = quire.testing.certificates(tmp_path / "other")

    def replace(name: str, source: Path) -> None:
        copy = tmp_path / "copy"
        shutil.copy2(source, copy)
        copy.replace(place / name)

    def is_accepted(tls: quire.TLS) -> bool:
        try:
            quire.Client(running.url, ssl=tls).close()
        except quire.TLSError:
            return False
        return True

    with (
        caplog.at_level(logging.INFO, "quire.server"),
        quire.testing.server(tmp_path / "data", tls=files.server) as running,
        quire.Client(running.url, ssl=old) as before,
    ):
        replace("server.pem", other.certificate)
        wait_until(lambda: "the certificate was not changed" in caplog.text)
        assert is_accepted(old)
        replace("server.key", other.private_key)
        wait_until(lambda: is_accepted(other.tls))
        assert not is_accepted(old)
        assert "new connections use the new certificate" in caplog.text
        # A connection stays as it is.
        before.publish("orders", "1")
        before.flush(timeout=PATIENCE)
        assert before.health().last_error is None


# The configuration of the server


def mistake(tmp_path: Path, files: Certificates, **changes: str | Path) -> quire.ConfigError:
    tls = {"certificate": files.certificate, "private_key": files.private_key, **changes}
    path = tmp_path / "quire.toml"
    path.write_text(
        '[[transport]]\naddress = "127.0.0.1:0"\n[transport.tls]\n'
        + "".join(f'{key} = "{value}"\n' for key, value in tls.items())
    )
    config = quire.Config.load(path)
    with pytest.raises(quire.ConfigError) as checked:
        config.check()
    with pytest.raises(quire.ConfigError) as started:
        quire.Server(config).start()
    assert str(started.value) == str(checked.value)
    assert started.value.file == str(path)
    assert not (tmp_path / "quire-data").exists(), "nothing starts half-configured"
    return checked.value


def test_a_private_key_that_every_user_may_read_is_refused(tmp_path: Path, files: Certificates) -> None:
    key = tmp_path / "server.key"
    shutil.copy(files.private_key, key)
    key.chmod(0o644)
    # A relative file is below the directory of the configuration file.
    error = mistake(tmp_path, files, private_key="server.key")
    assert (error.key, error.line) == ("transport[0].tls.private_key", 5)
    assert f"every user of this machine may read {key}: run `chmod o= {key}`" in str(error)


def test_a_key_of_another_certificate_is_refused(tmp_path: Path, files: Certificates) -> None:
    other = quire.testing.certificates(tmp_path / "other")
    error = mistake(tmp_path, files, private_key=other.private_key)
    assert error.key == "transport[0].tls.private_key"
    assert f"{other.private_key} is not the private key of the certificate in {files.certificate}" in str(
        error
    )


def test_a_file_that_is_not_there_or_not_pem_is_named(tmp_path: Path, files: Certificates) -> None:
    error = mistake(tmp_path, files, certificate="none.pem")
    assert error.key == "transport[0].tls.certificate"
    assert "none.pem: No such file or directory" in str(error)
    (tmp_path / "text.pem").write_text("no certificate")
    error = mistake(tmp_path, files, certificate="text.pem")
    assert "text.pem has no certificate in PEM form" in str(error)
    error = mistake(tmp_path, files, client_ca="text.pem")
    assert error.key == "transport[0].tls.client_ca"


def encrypted(tmp_path: Path, files: quire.TLS | Certificates, password: str) -> Path:
    from cryptography.hazmat.primitives import serialization

    source = files.private_key if isinstance(files, Certificates) else files.key
    assert source is not None
    key = serialization.load_pem_private_key(Path(source).read_bytes(), None)
    path = tmp_path / "encrypted.key"
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(password.encode()),
        )
    )
    path.chmod(0o600)
    return path


def test_an_encrypted_key_of_the_server_is_refused_without_a_question(
    tmp_path: Path, files: Certificates
) -> None:
    error = mistake(tmp_path, files, private_key=encrypted(tmp_path, files, "secret"))
    assert "encrypted.key is encrypted" in str(error)


def test_a_client_certificate_requires_an_authority(files: Certificates) -> None:
    tls = {"certificate": files.certificate, "private_key": files.private_key}
    with pytest.raises(quire.ConfigError, match="requires client_ca"):
        quire.Config(transport={"tls": {**tls, "client_certificate": "required"}})


# The options of the client


def refusal(**tls: Any) -> quire.ConfigError:
    with pytest.raises(quire.ConfigError) as raised:
        quire.Client("quires://127.0.0.1:1", ssl=quire.TLS(**tls))
    return raised.value


def test_an_encrypted_key_of_a_client_requires_its_password(tmp_path: Path, files: Certificates) -> None:
    anna = files.clients["anna"]
    key = encrypted(tmp_path, anna, "correct horse")
    options: dict[str, Any] = {"ca": files.ca, "certificate": anna.certificate, "key": key}
    assert refusal(**options).key == "ssl.key_password"
    error = refusal(**options, key_password="wrong horse")
    assert "cannot be decrypted" in str(error)
    assert "horse" not in str(error)
    tls = {**files.server, "client_certificate": "required"}
    with (
        ServerProcess(tmp_path / "data", transport={"tls": tls}) as server,
        quire.Client(server.url, ssl=quire.TLS(**options, key_password="correct horse")) as client,
    ):
        assert client.state == "connected"


def test_the_password_of_a_key_is_in_no_repr_and_no_pickle(files: Certificates) -> None:
    tls = quire.TLS(ca=files.ca, key_password="correct horse")
    assert "horse" not in repr(tls)
    with pytest.raises(TypeError, match="key_password") as raised:
        pickle.dumps(tls)
    assert "horse" not in str(raised.value)
    assert pickle.loads(pickle.dumps(files.tls)) == files.tls


def test_files_of_a_client_that_cannot_be_used_are_named(tmp_path: Path, files: Certificates) -> None:
    anna = files.clients["anna"]
    assert refusal(ca=tmp_path / "none").key == "ssl.ca"
    assert refusal(ca=files.ca, key=anna.key).key == "ssl.certificate"
    other = quire.testing.certificates(tmp_path / "other").private_key
    assert "is not the private key of the certificate" in str(
        refusal(ca=files.ca, certificate=anna.certificate, key=other)
    )
    other.chmod(0o604)
    error = refusal(ca=files.ca, certificate=anna.certificate, key=other)
    assert error.key == "ssl.key"
    assert "every user of this machine" in str(error)


def test_options_that_contradict_the_url_are_refused(files: Certificates) -> None:
    def key_of(url: str, **options: Any) -> str | None:
        with pytest.raises(quire.ConfigError) as raised:
            quire.Client(url, **options)
        assert "geheim" not in str(raised.value)
        return raised.value.key

    assert key_of("quire://127.0.0.1:1", ssl=files.ca) == "ssl"
    assert key_of("quires://127.0.0.1:1", ssl=False) == "ssl"
    assert key_of("quires://127.0.0.1:1", ssl=3) == "ssl"
    assert key_of("quire://db.example:1", password="geheim") == "password"
    # An engine in this process has no connection to secure.
    with quire.Client("memory:ignored", ssl=True, password="geheim") as client:
        assert client.state == "connected"


# Links


def linked(tmp_path: Path, files: Certificates, tls: Any, port: int) -> tuple[quire.Config, quire.Config]:
    topic = {"name": "^", "message_type": "json"}
    log = {"topic": topic}
    source = quire.Config(
        name="one",
        data_directory=tmp_path / "one",
        transaction_log=log,
        transport={"address": "127.0.0.1:0"},
        replication={
            "destination": {
                "name": "two",
                "addresses": f"127.0.0.1:{port}",
                "sync_type": "async",
                "topic": topic,
                "tls": tls,
            }
        },
    )
    destination = quire.Config(
        name="two",
        data_directory=tmp_path / "two",
        transaction_log=log,
        transport={"address": "127.0.0.1:0"},
        replication={
            "address": f"127.0.0.1:{port}",
            "tls": {**files.server, "client_certificate": "required"},
        },
    )
    return source, destination


def test_instances_replicate_over_tls(tmp_path: Path, files: Certificates) -> None:
    anna = files.clients["anna"]
    tls = {"ca": files.ca, "certificate": anna.certificate, "private_key": anna.key}
    reserved, port = reserve()
    with reserved:
        source, destination = linked(tmp_path, files, tls, port)
        with (
            quire.Server(destination) as two,
            quire.Server(source) as one,
            quire.Client(one.url) as publisher,
            quire.Client(two.url) as reader,
        ):
            received = reader.subscribe("orders", bookmark=quire.EPOCH)
            for n in range(5000):
                publisher.publish("orders", str(n))
            for n in range(5000):
                assert received.get(timeout=PATIENCE).data == b"%d" % n


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"ca": None}, "certificate of the server was not accepted"),
        ({"server_name": "elsewhere"}, "certificate of the server was not accepted"),
        ({"certificate": None, "private_key": None}, "no certificate"),
        (None, "does not use TLS"),
    ],
)
def test_a_link_that_cannot_be_secured_says_why(
    tmp_path: Path,
    files: Certificates,
    caplog: pytest.LogCaptureFixture,
    change: dict[str, Any] | None,
    reason: str,
) -> None:
    anna = files.clients["anna"]
    whole = {"ca": files.ca, "certificate": anna.certificate, "private_key": anna.key}
    tls = None if change is None else {**whole, **change}
    reserved, port = reserve()
    with reserved, caplog.at_level(logging.INFO, "quire.server"):
        source, destination = linked(tmp_path, files, tls, port)
        with quire.Server(destination), quire.Server(source):
            wait_until(lambda: reason in caplog.text)


# The files of the tests themselves


def test_the_files_of_a_test_are_what_other_libraries_read(tmp_path: Path) -> None:
    files = quire.testing.certificates(tmp_path, names=["a.example"], clients=["anna"])
    for key in (files.private_key, tmp_path / "client-anna.key"):
        assert key.stat().st_mode & 0o077 == 0
    trustme.CA()  # another authority does not know them
    ssl.create_default_context(cafile=files.ca)
