"""The users of links between real servers: every method of authentication, refused logons, rights that
are reloaded, new secrets without a restart, and hostile peers at the address for links.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import quire
import quire.testing
from quire.testing._server import write_users
from support.waiting import PATIENCE, wait_until

PASSWORD, WRONG = "correct horse battery", "marked-wrong-guess"
REFUSED, ENDED, HEARTBEAT, LOGON, LOGGED_ON = 3, 9, 6, 10, 11


def secret_file(path: Path, text: str) -> str:
    path.write_text(f"{text}\n")
    path.chmod(0o600)
    return str(path)


# --- Two servers ---


@contextlib.contextmanager
def accepting(directory: Path, replication: dict[str, Any], **settings: Any) -> Iterator[quire.Server]:
    """The server `b`, which accepts links and records everything."""
    config = quire.Config(
        name="b",
        data_directory=directory / "b",
        transport={"address": "127.0.0.1:0"},
        replication={"address": "127.0.0.1:0", **replication},
        **settings,
    )
    with quire.Server(config) as server:
        yield server


@contextlib.contextmanager
def connecting(directory: Path, to: quire.Server, identity: dict[str, Any]) -> Iterator[quire.Server]:
    """The server `a`, which sends everything to `b`. Its log has one message."""
    config = quire.Config(
        name="a",
        data_directory=directory / "a",
        transport={"address": "127.0.0.1:0"},
        replication={
            "destination": {
                "name": "b",
                "addresses": to.replication.address,
                "sync_type": "async",
                "topic": {"name": "^", "message_type": "json"},
                **identity,
            }
        },
    )
    with quire.Server(config) as server:
        # A link that is refused never says what `b` has, and a new instance waits for that.
        server.replication.admit()
        publish(server, "orders")
        yield server


def publish(server: quire.Server, topic: str, **options: Any) -> None:
    with quire.Client(server.url, **options) as client:
        client.publish(topic, {"a": 1})
        client.flush(PATIENCE)


def link(server: quire.Server) -> dict[str, Any]:
    found: dict[str, Any] = server.replication.stats()["destinations"][0]
    return found


def retry(server: quire.Server) -> None:
    """Lets a link that was refused try again at once, and not only after 20 s."""
    server.replication.pause("b")
    server.replication.resume("b")


def has_all(a: quire.Server, b: quire.Server) -> Callable[[], bool]:
    return lambda: b.stats()["persisted"] == a.stats()["persisted"]


def is_refused(server: quire.Server) -> Callable[[], bool]:
    return lambda: link(server)["state"] == "refused"


# --- Methods ---


@dataclass
class Method:
    """A way to log on: the settings of both servers, those that are refused, and why."""

    replication: dict[str, Any]
    identity: dict[str, Any]
    #: The identities that are refused, with the exact reasons in the log of `b`.
    refused: list[tuple[dict[str, Any], str]] = field(default_factory=list)
    #: The text that `a` gets for each of them, unless the identity has another one.
    text: str = ""
    texts: dict[str, str] = field(default_factory=dict)


@contextlib.contextmanager
def users(directory: Path) -> Iterator[Method]:
    file = directory / "users.toml"
    write_users(file, {"east": {"password": PASSWORD}, "gone": {"password": PASSWORD, "disabled": True}})
    right, wrong = secret_file(directory / "right", PASSWORD), secret_file(directory / "wrong", WRONG)
    files = quire.testing.certificates(directory / "tls")
    tls = {"ca": str(files.ca)}
    yield Method(
        {"tls": files.server, "authentication": {"method": "users", "users_file": str(file)}},
        {"tls": tls, "user": "east", "password_file": right},
        [
            ({"tls": tls, "user": "east", "password_file": wrong}, "wrong password"),
            ({"tls": tls, "user": "west", "password_file": right}, "unknown user"),
            ({"tls": tls, "user": "gone", "password_file": right}, "disabled user"),
            ({"tls": tls, "token_file": right}, "no user"),
            ({"tls": tls}, "no user"),
        ],
        "user or password are not accepted",
    )


@contextlib.contextmanager
def tokens(directory: Path) -> Iterator[Method]:
    issuer = quire.testing.tokens(directory)

    def token(name: str, **claims: Any) -> dict[str, Any]:
        return {"token_file": secret_file(directory / name, issuer.make("east", **claims))}

    expired = token("expired", expires_in=timedelta(hours=-1))
    yield Method(
        {"authentication": issuer.authentication},
        {"user": "east", **token("right")},
        [
            (expired, "the token has expired"),
            (token("other", aud="another"), "wrong audience"),
            ({"user": "west", **token("right")}, "the token is of another user"),
            ({"user": "east", "password_file": secret_file(directory / "password", WRONG)}, "no token"),
        ],
        "user or token are not accepted",
        {expired["token_file"]: "the token has expired"},
    )


@contextlib.contextmanager
def certificates(directory: Path) -> Iterator[Method]:
    files = quire.testing.certificates(directory, clients=["east", "west"])
    file = directory / "users.toml"
    write_users(file, {"east": {"password": PASSWORD}})

    def tls(name: str) -> dict[str, Any]:
        of = files.clients[name]
        return {"tls": {"ca": str(files.ca), "certificate": str(of.certificate), "private_key": str(of.key)}}

    yield Method(
        {
            "tls": {**files.server, "client_certificate": "required"},
            "authentication": {"method": "certificate", "users_file": str(file)},
        },
        tls("east"),
        [
            (tls("west"), "unknown user"),
            ({**tls("east"), "user": "west"}, "the certificate is of another user"),
        ],
        "the user of the certificate is not accepted",
    )


@contextlib.contextmanager
def service(directory: Path) -> Iterator[Method]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            import json

            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            assert (asked["client"], asked["transport"], asked["instance"]) == ("a", "replication", "b")
            self.send_response(200 if asked.get("password") == PASSWORD else 401)
            body = b'{"allow": true, "groups": ["links"]}'
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            right, wrong = secret_file(directory / "right", PASSWORD), secret_file(directory / "wrong", WRONG)
            url = f"http://127.0.0.1:{server.server_address[1]}/"
            yield Method(
                {"authentication": {"method": "http", "url": url}},
                {"user": "east", "password_file": right},
                [({"user": "east", "password_file": wrong}, "the service does not accept it")],
                "user, password or token are not accepted",
            )
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(params=[users, tokens, certificates, service], ids=lambda method: method.__name__)
def method(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Method]:
    (tmp_path / "files").mkdir()
    with request.param(tmp_path / "files") as found:
        yield found


def test_an_instance_logs_on_by_every_method_and_a_refused_one_learns_no_cause(
    tmp_path: Path, method: Method, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    rights = [{"user": "east", "topic": "^", "allow": "replicate"}]
    with accepting(tmp_path, method.replication, entitlement=rights) as b:
        for number, (identity, reason) in enumerate(method.refused):
            caplog.clear()
            with connecting(tmp_path / str(number), b, identity) as a:
                wait_until(is_refused(a))
                expected = method.texts.get(identity.get("token_file", ""), method.text)
                assert link(a)["last_error"] == expected
                assert (link(a)["user"], link(a)["tls"]) == (None, None)
            assert (b.stats()["appended"], b.replication.stats()["sources"]) == (0, [])
            logon = next(line for line in caplog.messages if line.startswith("audit: logon"))
            assert 'client="a"' in logon
            assert 'transport="replication"' in logon
            assert 'result="refused"' in logon
            assert reason in logon, (identity, logon)
            lines = [
                line for line in caplog.messages if line == f'destination "b": not connected: {expected}'
            ]
            assert len(lines) == 1
        caplog.clear()
        with connecting(tmp_path, b, method.identity) as a:
            wait_until(has_all(a, b))
            tls = "tls" in method.replication
            assert (link(a)["state"], link(a)["user"], link(a)["tls"]) == ("live", "east", tls)
            source = b.replication.stats()["sources"][0]
            assert (source["name"], source["user"], source["tls"]) == ("a", "east", tls)
        logon = next(line for line in caplog.messages if line.startswith("audit: logon"))
        assert 'user="east" client="a"' in logon
        assert 'result="accepted"' in logon
    assert not any(WRONG in line or PASSWORD in line for line in caplog.messages)


def test_the_table_of_clients_holds_for_links_without_one_of_their_own(tmp_path: Path) -> None:
    write_users(tmp_path / "users.toml", {"east": {"password": PASSWORD}})
    table = {"method": "users", "users_file": str(tmp_path / "users.toml")}
    with (
        accepting(tmp_path, {}, authentication=table) as b,
        connecting(tmp_path, b, {}) as a,
    ):
        wait_until(is_refused(a))
        assert b.stats()["appended"] == 0


def test_a_new_secret_needs_no_restart(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    users_file = tmp_path / "users.toml"
    write_users(users_file, {"east": {"password": PASSWORD}})
    table = {"method": "users", "users_file": str(users_file)}
    file = tmp_path / "password"
    identity = {"user": "east", "password_file": secret_file(file, PASSWORD)}
    with accepting(tmp_path, {"authentication": table}) as b, connecting(tmp_path, b, identity) as a:
        wait_until(has_all(a, b))
        write_users(users_file, {"east": {"password": "another password"}})
        # The connection ends when the server has read the file.
        wait_until(is_refused(a))
        assert "the user of the connection was removed, disabled or changed" in caplog.text
        publish(a, "orders")
        secret_file(file, "another password")
        retry(a)
        wait_until(has_all(a, b))
        # A file that cannot be used is a reason, too, and not an end of the server.
        file.chmod(0o644)
        retry(a)
        wait_until(lambda: f"run `chmod o= {file}`" in (link(a)["last_error"] or ""))
        file.unlink()
        retry(a)
        wait_until(lambda: "No such file" in (link(a)["last_error"] or ""))
        publish(a, "orders")
        secret_file(file, "another password")
        retry(a)
        wait_until(has_all(a, b))


def test_a_reload_takes_rights_away_and_gives_them_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    write_users(tmp_path / "users.toml", {"east": {"password": PASSWORD}})
    file = tmp_path / "b.toml"

    def write(topic: str) -> None:
        file.write_text(f"""
            name = "b"
            [[transport]]
            address = "127.0.0.1:0"
            [replication]
            address = "127.0.0.1:0"
            authentication = {{ method = "users", users_file = "users.toml" }}
            [[entitlement]]
            user = "east"
            topic = "{topic}"
            allow = ["replicate"]
        """)

    write("^orders")
    identity = {"user": "east", "password_file": secret_file(tmp_path / "password", PASSWORD)}
    with quire.Server(quire.Config.load(file)) as b, connecting(tmp_path, b, identity) as a:
        wait_until(has_all(a, b))
        assert b.reload() == []
        assert link(a)["state"] == "live"
        write("^trades")
        assert b.reload() == ["entitlement"]
        publish(a, "orders")
        wait_until(is_refused(a))
        refusal = 'the user may not replicate "orders"'
        wait_until(lambda: link(a)["last_error"] == refusal)
        assert b.stats()["appended"] == 1
        assert "the rights of the user were changed" in caplog.text
        assert 'audit: refused user="east" client="a" right="replicate" topic="orders"' in caplog.text
        # The other side can hear of the end before the line is written.
        wait_until(lambda: f'source "a": link ended: {refusal}' in caplog.text)
        write("^")
        b.reload()
        retry(a)
        wait_until(has_all(a, b))
        # A topic that appears later.
        publish(a, "later")
        wait_until(has_all(a, b))


def test_the_identity_of_a_destination_can_be_reloaded(tmp_path: Path) -> None:
    write_users(tmp_path / "users.toml", {"east": {"password": PASSWORD}})
    secret_file(tmp_path / "wrong", WRONG)
    secret_file(tmp_path / "right", PASSWORD)
    table = {"method": "users", "users_file": str(tmp_path / "users.toml")}
    file = tmp_path / "a.toml"

    def write(address: str | None, password_file: str) -> None:
        file.write_text(f"""
            name = "a"
            [[transport]]
            address = "127.0.0.1:0"
            [[replication.destination]]
            name = "b"
            addresses = ["{address}"]
            sync_type = "async"
            user = "east"
            password_file = "{password_file}"
            topic = {{ name = "^", message_type = "json" }}
        """)

    with accepting(tmp_path, {"authentication": table}) as b:
        write(b.replication.address, "wrong")
        with quire.Server(quire.Config.load(file)) as a:
            a.replication.admit()
            publish(a, "orders")
            wait_until(is_refused(a))
            write(b.replication.address, "right")
            assert a.reload() == ["replication.destination[0].password_file"]
            retry(a)
            wait_until(has_all(a, b))


# --- Mistakes ---

ADDRESS: dict[str, Any] = {
    "name": "b",
    "sync_type": "async",
    "topic": {"name": "^", "message_type": "json"},
    "addresses": "127.0.0.1:9107",
}
BEYOND = {**ADDRESS, "addresses": ["127.0.0.1:1", "b.example:9107"]}


@pytest.mark.parametrize(
    ("destination", "key", "reason"),
    [
        (
            {**ADDRESS, "user": "east"},
            None,
            "user requires password_file, token_file, or a certificate in tls",
        ),
        ({**ADDRESS, "password_file": "FILE"}, None, "password_file requires user"),
        (
            {**ADDRESS, "user": "east", "password_file": "FILE", "token_file": "FILE"},
            None,
            "password_file and token_file",
        ),
        ({**ADDRESS, "user": "east", "tls": {"ca": "FILE"}}, None, "user requires password_file"),
        (
            {**ADDRESS, "addresses": [], "token_file": "FILE"},
            None,
            "token_file requires addresses",
        ),
        (
            {**BEYOND, "user": "east", "password_file": "FILE"},
            "replication.destination[0].password_file",
            "the secret would be sent to b.example:9107 without encryption: set tls",
        ),
        ({**ADDRESS, "token_file": "MISSING"}, "replication.destination[0].token_file", "No such file"),
        ({**ADDRESS, "token_file": "OPEN"}, "replication.destination[0].token_file", "run `chmod o= "),
        ({**ADDRESS, "token_file": "EMPTY"}, "replication.destination[0].token_file", "must have one line"),
        ({**ADDRESS, "token_file": "LINES"}, "replication.destination[0].token_file", "must have one line"),
        (
            {**ADDRESS, "token_file": "LARGE"},
            "replication.destination[0].token_file",
            "more than 16384 bytes",
        ),
        ({**ADDRESS, "token_file": "BYTES"}, "replication.destination[0].token_file", "is not UTF-8"),
        ({**ADDRESS, "token_file": "."}, "replication.destination[0].token_file", "Is a directory"),
    ],
)
def test_a_mistake_in_an_identity_is_named(
    tmp_path: Path, destination: dict[str, Any], key: str | None, reason: str
) -> None:
    contents = {
        "FILE": b"marked-secret\n",
        "OPEN": b"marked-secret\n",
        "EMPTY": b"\n",
        "LINES": b"marked-secret\nmarked-secret\n",
        "LARGE": b"marked-secret" * 2000,
        "BYTES": b"marked-secret\xff\n",
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
        (tmp_path / name).chmod(0o644 if name == "OPEN" else 0o600)
    destination = {
        name: str(tmp_path / value) if name.endswith("_file") else value
        for name, value in destination.items()
    }
    tmp_path.chmod(0o700)
    with pytest.raises(quire.ConfigError) as raised:
        quire.Config(
            replication={"address": "127.0.0.1:0", "destination": destination},
            transaction_log={"topic": {"name": "^", "message_type": "json"}},
        ).check()
    assert reason in str(raised.value)
    assert "marked" not in str(raised.value)
    if key is not None:
        assert raised.value.key == key


@pytest.mark.parametrize(
    ("replication", "key", "reason"),
    [
        ({"address": "0.0.0.0:0"}, "address", "every program there could add messages"),
        ({"address": "0.0.0.0:0", "authentication": "users"}, "address", "without encryption: set tls"),
        (
            {"address": "127.0.0.1:0", "authentication": {"method": "certificate"}},
            "address",
            "requires tls with",
        ),
        ({"address": "0.0.0.0:0", "insecure": True}, None, ""),
        ({"address": "0.0.0.0:0", "authentication": "users", "insecure": True}, None, ""),
        ({"address": "127.0.0.1:0"}, None, ""),
    ],
)
def test_an_address_that_is_not_safe_is_refused(
    tmp_path: Path, replication: dict[str, Any], key: str | None, reason: str
) -> None:
    write_users(tmp_path / "users.toml", {"east": {"password": PASSWORD}})
    if replication.get("authentication") == "users":
        table = {"method": "users", "users_file": str(tmp_path / "users.toml")}
        replication = {**replication, "authentication": table}
    config = quire.Config(replication=replication)
    if key is None:
        config.check()
        return
    with pytest.raises(quire.ConfigError) as raised:
        config.check()
    assert raised.value.key == f"replication.{key}"
    assert reason in str(raised.value)


def test_a_mistake_in_the_authentication_of_links_is_named() -> None:
    table = {"method": "users", "users_file": "/nonexistent/users.toml"}
    with pytest.raises(quire.ConfigError) as raised:
        quire.Config(replication={"address": "127.0.0.1:0", "authentication": table}).check()
    assert raised.value.key == "replication.authentication.users_file"


# --- Hostile peers ---


def text(value: bytes) -> bytes:
    return struct.pack("<H", len(value)) + value


def frame(kind: int, body: bytes) -> bytes:
    return struct.pack("<IB", len(body) + 1, kind) + body


def logon(user: bytes = b"", password: bytes = b"", *, version: int = 10) -> bytes:
    return frame(LOGON, struct.pack("<H", version) + b"".join(map(text, (b"stranger", user, password, b""))))


def hello(topic: bytes) -> bytes:
    names = b"".join(map(text, (b"stranger", b"stranger", b"b", b"")))
    offer = b"".join(map(text, (topic, b"json", b"")))
    counts = struct.pack("<QQQQQQ", 1, 0, 0, 0, 0, 0) + struct.pack("<I", 1) + offer
    members = struct.pack("<I", 1) + text(b"stranger") * 2 + struct.pack("<QQBIQQ", 1, 1, 0, 0, 0, 0)
    excluded = struct.pack("<I", 1) + text(b"replicate")
    return frame(1, struct.pack("<H", 10) + names + counts + excluded + members)


def record(topic: bytes, publisher: int, sequence: int) -> bytes:
    head = struct.pack("<QBBQQB", 1, 1, 1, publisher, sequence, 0)
    parts = [text(topic), text(b""), text(b""), struct.pack("<I", 2), b"{}"]
    mark = struct.pack("<QQQQ", 1, publisher, sequence, 1)
    return frame(4, struct.pack("<Q", 1) + mark + head + b"".join(parts))


@dataclass
class Guarded:
    server: quire.Server
    tls: ssl.SSLContext | None

    def connect(self) -> socket.socket:
        address = self.server.replication.address
        assert address is not None
        host, port = address.rsplit(":", 1)
        plain = socket.create_connection((host, int(port)), timeout=PATIENCE)
        return plain if self.tls is None else self.tls.wrap_socket(plain, server_hostname="localhost")

    def answers(self, *sent: bytes) -> list[tuple[int, bytes]]:
        """The frames that a stranger gets for its bytes until its connection is closed."""
        with self.connect() as peer:
            received = b""
            with contextlib.suppress(ConnectionError):
                for part in sent:
                    peer.sendall(part)
                    if part[4:5] == bytes([LOGON]) and part is not sent[-1]:
                        received += peer.recv(1 << 16)
            with contextlib.suppress(ConnectionError):
                while data := peer.recv(1 << 16):
                    received += data
        found = []
        while received:
            (size,) = struct.unpack_from("<I", received)
            found.append((received[4], received[5 : 4 + size]))
            received = received[4 + size :]
        return found

    def assert_unharmed(self) -> None:
        assert self.server.stats()["appended"] == 0
        publish(self.server, "orders", name="honest", publish_store=quire.PublishStore(size_max="1MB"))
        assert self.server.stats()["appended"] == 1


@pytest.fixture(params=["plain", "tls"])
def guarded(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Guarded]:
    write_users(tmp_path / "users.toml", {"east": {"password": PASSWORD}, "eve": {"password": PASSWORD}})
    replication: dict[str, Any] = {
        "authentication": {"method": "users", "users_file": str(tmp_path / "users.toml")},
        "logon_timeout": getattr(request.node.callspec, "params", {}).get("logon_timeout", "60s"),
    }
    context = None
    if request.param == "tls":
        files = quire.testing.certificates(tmp_path)
        replication["tls"] = files.server
        context = ssl.create_default_context(cafile=files.ca)
    rights = [
        {"user": "east", "topic": "^", "allow": "replicate"},
        {"user": "eve", "topic": "^noise", "allow": ["replicate", "read"]},
        {"user": "anonymous", "topic": "^", "allow": ["read", "replay", "write"]},
    ]
    with accepting(tmp_path, replication, entitlement=rights) as server:
        yield Guarded(server, context)


STRANGE = [
    pytest.param(b"GET / HTTP/1.1\r\n\r\n", id="another protocol"),
    pytest.param(b"\xff" * 100, id="a large size"),
    pytest.param(frame(99, b""), id="an unknown kind"),
    pytest.param(frame(HEARTBEAT, b""), id="a heartbeat"),
    pytest.param(hello(b"orders"), id="hello"),
    pytest.param(record(b"orders", 5, 1 << 60), id="records"),
    pytest.param(struct.pack("<IB", 1 << 20, LOGON) + bytes(1000), id="a large logon"),
    pytest.param(logon(version=6), id="another version"),
    pytest.param(logon(b"east", PASSWORD.encode()) + hello(b"orders"), id="more than the logon"),
]


@pytest.mark.parametrize("sent", STRANGE)
def test_other_bytes_than_a_logon_get_an_error_and_a_closed_connection(guarded: Guarded, sent: bytes) -> None:
    assert [kind for kind, _ in guarded.answers(sent)] == [REFUSED]
    guarded.assert_unharmed()


def test_a_wrong_password_gets_one_text_and_nothing_that_follows_is_looked_at(guarded: Guarded) -> None:
    expected = [(REFUSED, text(b"user or password are not accepted"))]
    for user, password in ((b"east", WRONG.encode()), (b"nobody", WRONG.encode()), (b"", b"")):
        assert guarded.answers(logon(user, password)) == expected
    guarded.assert_unharmed()


@pytest.mark.parametrize("logon_timeout", ["300ms"])
def test_a_slow_logon_ends_at_its_timeout(guarded: Guarded, logon_timeout: str) -> None:
    del logon_timeout
    answers = guarded.answers(logon(b"east", PASSWORD.encode())[:-1])
    assert answers == [(REFUSED, text(b"no logon within logon_timeout"))]
    guarded.assert_unharmed()


@pytest.mark.parametrize("offered", [b"noise", b"orders"])
def test_a_user_without_the_right_cannot_touch_the_sequences_of_a_publisher(
    guarded: Guarded, offered: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with quire.Client(guarded.server.url, name="honest") as client:
        client.publish("orders", {"a": 0})
        client.flush(PATIENCE)
        message = client.subscribe("orders", bookmark=quire.EPOCH).get(timeout=PATIENCE)
    publisher = int(str(message.bookmark).split("|")[0])
    before = guarded.server.stats()["appended"]
    answers = guarded.answers(
        logon(b"eve", PASSWORD.encode()),
        hello(offered) + record(b"orders", publisher, 1 << 60) + record(b"orders", publisher, (1 << 60) + 1),
    )
    assert answers[0] == (LOGGED_ON, text(b"eve"))
    assert answers[-1] == (REFUSED, text(b'the user may not replicate "orders"'))
    assert guarded.server.stats()["appended"] == before
    line = 'audit: refused user="eve" client="stranger" right="replicate" topic="orders"'
    wait_until(lambda: line in caplog.messages)
    with quire.Client(guarded.server.url, name="honest") as client:
        client.publish("orders", {"a": 1})
        client.flush(PATIENCE)
    assert guarded.server.stats()["appended"] == before + 1
