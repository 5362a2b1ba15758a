"""Logons that an HTTP service decides about: only one form of answer accepts a logon, and a service that answers in another
way, or not at all, makes the client try again.
"""

from __future__ import annotations

import json
import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import quire
import quire.testing
from quire.config import Authentication
from quire.server._http_users import ANSWER_SIZE_MAX, HttpUsers
from quire.server._identity import Given, Identity, Refused
from support.waiting import PATIENCE, wait_until

GIVEN = Given(
    "anna", "correct horse", client="loader", address="10.0.0.7:4", transport="clients", instance="east"
)
#: The parts of an answer. The service waits for the client between them.
Answer = bytes | Iterable[bytes]


def answer(value: object, status: str = "200 OK", *headers: str) -> bytes:
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    head = "".join(f"{line}\r\n" for line in (f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers))
    return f"{head}\r\n".encode() + body


class Service:
    """A service on a free port that sends what it is told to, in whatever form."""

    def __init__(
        self, answer: Callable[[dict[str, Any]], Answer], context: ssl.SSLContext | None = None
    ) -> None:
        self.answer = answer
        #: The heads and the objects of the requests.
        self.requests: list[tuple[list[str], dict[str, Any]]] = []
        self._context = context
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._ended = threading.Event()
        self._threads: list[threading.Thread] = []

    @property
    def url(self) -> str:
        return f"{'http' if self._context is None else 'https'}://127.0.0.1:{self.port}/logon?of=quire"

    def __enter__(self) -> Service:
        self._start(self._listen)
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        # A thread that waits for a connection does not notice that the socket is closed.
        socket.create_connection(("127.0.0.1", self.port)).close()
        for thread in self._threads:
            thread.join(PATIENCE)
        self._listener.close()

    def _start(self, function: Callable[..., None], *arguments: Any) -> None:
        thread = threading.Thread(target=function, args=arguments)
        self._threads.append(thread)
        thread.start()

    def _listen(self) -> None:
        while True:
            connection = self._listener.accept()[0]
            if self._ended.is_set():
                return connection.close()
            self._start(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection:
                connection.settimeout(PATIENCE)
                if self._context is not None:
                    connection = self._context.wrap_socket(connection, server_side=True)
                with connection, connection.makefile("rb") as file:
                    head = [line.decode().rstrip() for line in iter(file.readline, b"\r\n")]
                    size = next(
                        int(line.split()[1]) for line in head if line.lower().startswith("content-length")
                    )
                    request = json.loads(file.read(size))
                    self.requests.append((head, request))
                    found = self.answer(request)
                    for part in [found] if isinstance(found, bytes) else found:
                        connection.sendall(part)
        except (OSError, ValueError):
            pass  # the server has closed the connection, or uses TLS where the service does not

    def wait(self, seconds: float) -> None:
        """Until the end of the test, or for this time."""
        self._ended.wait(seconds)


def settings(service: Service, **more: Any) -> Authentication:
    return Authentication(method="http", url=service.url, **more)


def check(found: Answer, **more: Any) -> Identity | Refused:
    """What a logon gets when the service answers this."""
    with Service(lambda _: found) as service:
        return HttpUsers(settings(service, **more)).check(GIVEN)


def unavailable(found: Answer, **more: Any) -> str:
    """The reason why an answer neither accepts nor refuses."""
    result = check(found, **more)
    assert isinstance(result, Refused), result
    assert result.is_unavailable
    assert result.text == "the logon cannot be checked now"
    return result.reason.removeprefix("the service cannot be used: ")


# The question and the answers that the server understands


def test_the_service_gets_the_values_of_the_logon(tmp_path: Path) -> None:
    headers = tmp_path / "headers"
    headers.write_text("Authorization: Bearer s3cret\nX-Place:  east \n\n")
    headers.chmod(0o600)
    with Service(lambda _: answer({"allow": True})) as service:
        users = HttpUsers(settings(service, headers_file=headers))
        assert users.check(GIVEN) == Identity("anna")
        token = Given(None, token="a.b.c", client="loader")
        assert isinstance(users.check(token), Refused)
        [(head, request), (_, of_token)] = service.requests
    assert head[0] == "POST /logon?of=quire HTTP/1.1"
    assert {"Authorization: Bearer s3cret", "X-Place: east", "Content-Type: application/json"} <= set(head)
    assert request == {
        "user": "anna",
        "password": "correct horse",
        "client": "loader",
        "address": "10.0.0.7:4",
        "transport": "clients",
        "instance": "east",
    }
    assert of_token["token"] == "a.b.c"
    assert not {"user", "password"} & set(of_token)


def test_an_acceptance_names_the_user_the_groups_and_the_end() -> None:
    now = time.time()
    result = check(answer({"allow": True, "groups": ["desk", "risk"], "expires_in": 60, "more": [1]}))
    assert isinstance(result, Identity)
    assert (result.user, result.groups) == ("anna", ("desk", "risk"))
    assert result.expires is not None
    assert now + 60 <= result.expires <= time.time() + 60
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b'f\r\n{"allow": true}\r\n0\r\n\r\n'
    assert check(chunked) == Identity("anna")
    until_the_end = b'HTTP/1.0 200 OK\r\n\r\n{"allow": true}'
    assert check(until_the_end) == Identity("anna")
    padded = b'{"allow": true}'.ljust(ANSWER_SIZE_MAX)
    assert check(answer(padded)) == Identity("anna")
    with Service(lambda _: answer({"allow": True, "user": "carl"})) as service:
        assert HttpUsers(settings(service)).check(Given(None, token="t")) == Identity("carl")


@pytest.mark.parametrize(
    "found",
    [
        answer({"allow": False}),
        answer({"allow": False, "user": 7}),
        answer(b"no", "401 Unauthorized"),
        answer({"allow": True}, "403 Forbidden"),
        answer({"allow": True, "user": "bob"}),
    ],
)
def test_a_refusal_is_one(found: bytes) -> None:
    result = check(found)
    assert isinstance(result, Refused)
    assert (result.is_unavailable, result.text) == (False, None)


def test_a_logon_without_one_secret_is_refused_without_a_question() -> None:
    with Service(lambda _: answer({"allow": True})) as service:
        users = HttpUsers(settings(service))
        for given in (Given("anna"), replace(GIVEN, token="a.b.c")):
            result = users.check(given)
            assert isinstance(result, Refused)
            assert not result.is_unavailable
        assert service.requests == []


# Everything else


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({}, "allow is neither"),
        ({"allow": 1}, "allow is neither"),
        ({"allow": "true"}, "allow is neither"),
        ({"Allow": True}, "allow is neither"),
        ([{"allow": True}], "not a JSON object"),
        (True, "not a JSON object"),
        (b"", "not JSON"),
        (b"allow", "not JSON"),
        (b'{"allow": true} {}', "not JSON"),
        (b'{"allow": false, "allow": true}', "not JSON"),
        (b'{"allow": true, "expires_in": NaN}', "not JSON"),
        (b'{"allow": true, "user": "\xff"}', "not JSON"),
        (b'{"allow": true}'.decode().encode("utf-16"), "not JSON"),
        (b"[" * 30_000, "not JSON"),
        (b'{"allow": true, "expires_in": ' + b"9" * 9000 + b"}", "not JSON"),
        ({"allow": True, "user": None}, "no name of a user"),
        ({"allow": True, "user": "anonymous"}, "no name of a user"),
        ({"allow": True, "user": " anna"}, "no name of a user"),
        ({"allow": True, "user": "x" * 256}, "no name of a user"),
        ({"allow": True, "groups": "desk"}, "groups"),
        ({"allow": True, "groups": ["desk", 7]}, "groups"),
        ({"allow": True, "groups": ["desk\nadmins"]}, "groups"),
        ({"allow": True, "expires_in": 0}, "expires_in"),
        ({"allow": True, "expires_in": -1}, "expires_in"),
        ({"allow": True, "expires_in": True}, "expires_in"),
        ({"allow": True, "expires_in": "60"}, "expires_in"),
        (b'{"allow": true}'.ljust(ANSWER_SIZE_MAX + 1), "more than 65,536 bytes"),
        (b'{"allow": true}'.ljust(10 << 20), "more than 65,536 bytes"),
    ],
)
def test_an_answer_of_another_form_accepts_nobody(value: object, reason: str) -> None:
    assert reason in unavailable(answer(value))


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (answer({"allow": True}, "201 Created"), "status 201"),
        (answer({"allow": True}, "204 No Content"), "status 204"),
        (answer({"allow": True}, "500 No"), "status 500"),
        (answer({"allow": True}, "407 No"), "status 407"),
        (b'HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{"allow": true}', "not complete"),
        (b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nf\r\n{"allow": true}\r\n', "IncompleteRead"),
        (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 1000 + b"\r\n", "HTTPException"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000, "LineTooLong"),
        (b"geheim\r\n", "BadStatusLine"),
        (b"", "RemoteDisconnected"),
        (b"HTTP/1.1 100 Continue\r\n\r\n", "RemoteDisconnected"),
    ],
)
def test_an_answer_that_is_not_one_accepts_nobody(found: bytes, reason: str) -> None:
    assert reason in unavailable(found)


def test_a_redirect_is_not_followed() -> None:
    with Service(lambda _: answer({"allow": True})) as other:
        for status in ("301 Moved", "302 Found", "307 Temporary Redirect", "308 Permanent Redirect"):
            assert status[:3] in unavailable(answer({"allow": True}, status, f"Location: {other.url}"))
        assert other.requests == []


def test_a_slow_answer_is_none() -> None:
    """Each part comes in time, and all of them together do not."""

    def slowly(*parts: bytes) -> Iterator[bytes]:
        for part in parts:
            yield part
            service.wait(0.04)

    letters = [bytes([letter]) for letter in answer({"allow": True})]
    heads = [b"HTTP/1.1 200 OK\r\n", *[b"X-More: x\r\n"] * 90]
    continues = [b"HTTP/1.1 100 Continue\r\n\r\n"] * 200
    for parts in (letters, heads, continues):
        with Service(lambda _, parts=parts: slowly(*parts)) as service:  # type: ignore[misc]
            started = time.monotonic()
            result = HttpUsers(settings(service, timeout="300ms")).check(GIVEN)
            assert isinstance(result, Refused)
            assert "no answer within 0.3 s" in result.reason
            assert time.monotonic() - started < 2


def test_a_service_that_is_away_is_unavailable() -> None:
    with Service(lambda _: b"") as service:
        pass
    result = HttpUsers(settings(service)).check(GIVEN)
    assert isinstance(result, Refused)
    assert result.is_unavailable
    assert "refused" in result.reason


def test_only_a_service_with_the_right_certificate_is_asked(tmp_path: Path) -> None:
    files = quire.testing.certificates(tmp_path / "own", names=["127.0.0.1"])
    strange = quire.testing.certificates(tmp_path / "strange", names=["127.0.0.1"])
    named = quire.testing.certificates(tmp_path / "named", names=["db.example"])

    def context(of: quire.testing.Certificates) -> ssl.SSLContext:
        found = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        found.load_cert_chain(of.server["certificate"], of.server["private_key"])
        return found

    with Service(lambda _: answer({"allow": True}), context(files)) as service:
        assert HttpUsers(settings(service, ca=files.ca)).check(GIVEN) == Identity("anna")
        for ca in (None, strange.ca):
            result = HttpUsers(settings(service, ca=ca)).check(GIVEN)
            assert isinstance(result, Refused)
            assert result.is_unavailable
            assert "its certificate is not accepted" in result.reason
        assert len(service.requests) == 1
    with Service(lambda _: answer({"allow": True}), context(named)) as service:
        result = HttpUsers(settings(service, ca=named.ca)).check(GIVEN)
        assert isinstance(result, Refused)
        assert "its certificate is not accepted" in result.reason
    # A service without TLS is not asked without it.
    with Service(lambda _: answer({"allow": True})) as service:
        url = service.url.replace("http:", "https:")
        users = HttpUsers(Authentication(method="http", url=url, timeout="200ms"))
        result = users.check(GIVEN)
        assert isinstance(result, Refused)
        assert result.is_unavailable


# The cache


def test_an_acceptance_is_kept_for_the_exact_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    passed = 0.0
    real = time.monotonic
    monkeypatch.setattr("quire.server._http_users.time.monotonic", lambda: real() + passed)
    allowed = {"allow": True}
    with Service(lambda _: answer(allowed)) as service:
        users = HttpUsers(settings(service, cache="10s"))
        for _ in range(3):
            assert users.check(GIVEN) == Identity("anna")
        assert len(service.requests) == 1
        allowed["allow"] = False
        # Another secret, another user, and a token with the same text are other logons.
        others = [
            replace(GIVEN, password="correct horsf"),
            replace(GIVEN, user="bob"),
            replace(GIVEN, user=None),
        ]
        others.append(replace(GIVEN, password=None, token=GIVEN.password))
        for given in others:
            assert isinstance(users.check(given), Refused)
        assert users.check(GIVEN) == Identity("anna")
        assert len(service.requests) == 5
        passed = 10.1
        assert isinstance(users.check(GIVEN), Refused)
        # Refusals are not kept.
        allowed["allow"] = True
        assert users.check(GIVEN) == Identity("anna")
        allowed["allow"] = False
        users.forget()
        assert isinstance(users.check(GIVEN), Refused)


def test_an_acceptance_is_kept_no_longer_than_it_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    passed = 0.0
    real, wall = time.monotonic, time.time
    monkeypatch.setattr("quire.server._http_users.time.monotonic", lambda: real() + passed)
    with Service(lambda _: answer({"allow": True, "expires_in": 5})) as service:
        users = HttpUsers(settings(service), lambda: wall() + passed)
        users.check(GIVEN)
        passed = 4.0
        users.check(GIVEN)
        assert len(service.requests) == 1
        passed = 5.1
        users.check(GIVEN)
        assert len(service.requests) == 2
    with Service(lambda _: answer({"allow": True})) as service:
        users = HttpUsers(settings(service, cache="0s"))
        users.check(GIVEN)
        users.check(GIVEN)
        assert len(service.requests) == 2


def test_an_answer_to_a_question_before_a_reload_is_not_kept() -> None:
    def reloaded(_: object) -> bytes:
        users.forget()
        return answer({"allow": True})

    with Service(reloaded) as service:
        users = HttpUsers(settings(service))
        users.check(GIVEN)
        users.check(GIVEN)
        assert len(service.requests) == 2


def test_the_cache_has_no_secret() -> None:
    with Service(lambda _: answer({"allow": True})) as service:
        users = HttpUsers(settings(service))
        users.check(GIVEN)
        assert "correct horse" not in repr(vars(users)) + repr(vars(users._cache))


# The configuration


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://db.example/logon", "without encryption"),
        ("http://127.0.0.1.example/", "without encryption"),
        ("https://anna:geheim@db.example", "has a user or a password"),
        ("ftp://db.example", "expected a URL"),
        ("db.example", "expected a URL"),
        ("https://", "expected a URL"),
        ("https://db.example:x", "cannot be read"),
        ("https://db.example/a b", "no space"),
        ("https://db.example/\r\nX: y", "expected a URL"),
        ("https://db.example/#x", "no fragment"),
    ],
)
def test_a_url_that_others_could_read_is_refused(url: str, reason: str) -> None:
    with pytest.raises(quire.ConfigError, match=rf"authentication\.url.*{reason}") as raised:
        quire.Config(authentication={"method": "http", "url": url})
    assert "geheim" not in str(raised.value)


def test_a_file_of_headers_with_a_mistake_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "headers"

    def refusal(text: str, mode: int = 0o600) -> str:
        file.write_text(text)
        file.chmod(mode)
        with pytest.raises(quire.ConfigError) as raised:
            HttpUsers(Authentication(method="http", url="https://h", headers_file=file))
        assert "geheim" not in str(raised.value)
        return str(raised.value)

    assert "authentication.headers_file" in refusal("X-Key: geheim", 0o604)
    assert "every user of this machine may read it" in refusal("X-Key: geheim", 0o604)
    for text in ("geheim", "X Key: geheim", "X-Key: geheim\x00", ": geheim"):
        assert "headers:1: expected `Name: value`" in refusal(text)
    assert "headers:2: the request already has the header x-key" in refusal("X-Key: geheim\nx-key: geheim")
    assert "already has the header Host" in refusal("Host: geheim")
    file.unlink()
    with pytest.raises(quire.ConfigError, match="No such file"):
        HttpUsers(Authentication(method="http", url="https://h", headers_file=file))
    with pytest.raises(quire.ConfigError, match=r"authentication\.ca"):
        HttpUsers(Authentication(method="http", url="https://h", ca=file))


def test_passwords_for_a_service_beyond_loopback_require_tls() -> None:
    config = quire.Config(
        transport=[{"address": "0.0.0.0:9007"}], authentication={"method": "http", "url": "https://h"}
    )
    with pytest.raises(quire.ConfigError, match="without encryption"):
        config.check()


# A server


def test_users_of_a_service_log_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    passwords = {"anna": "correct horse", "bob": "staple by the dozen"}

    def decide(request: dict[str, Any]) -> bytes:
        user = request.get("user", "")
        allow = passwords.get(user) == request.get("password", "\0")
        return answer({"allow": allow, "groups": ["desk"]} if allow else {"allow": False})

    entries = [{"group": "desk", "topic": "^", "allow": ["read", "write"]}]
    with Service(decide) as service, caplog.at_level(logging.INFO, "quire.server"):
        authentication = {"method": "http", "url": service.url}
        with quire.testing.server(
            tmp_path / "data", authentication=authentication, entitlement=entries
        ) as server:
            with quire.Client(server.url, user="anna", password="correct horse") as client:
                client.publish("orders", "1")
                client.flush(timeout=PATIENCE)
            with pytest.raises(quire.AuthenticationError, match="user, password or token are not accepted"):
                quire.Client(server.url, user="anna", password="wrong horse")
            assert service.requests[0][1]["transport"] == server.config.transport[0].name
            assert service.requests[0][1]["instance"] == server.config.name
    assert 'method="http" result="accepted"' in caplog.text
    assert 'result="refused" reason="the service does not accept it"' in caplog.text
    for secret in ("correct horse", "wrong horse"):
        assert secret not in caplog.text


def test_a_client_tries_again_while_the_service_cannot_be_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    status = "503 Away"
    with (
        Service(lambda _: answer({"allow": True}, status)) as service,
        caplog.at_level(logging.INFO, "quire.server"),
    ):
        authentication = {"method": "http", "url": service.url}
        with quire.testing.server(tmp_path / "data", authentication=authentication) as server:
            options: Any = {"user": "anna", "password": "correct horse"}
            with pytest.raises(quire.DisconnectedError, match="the logon cannot be checked now") as raised:
                quire.Client(server.url, **options)
            assert not isinstance(raised.value, quire.AuthenticationError)
            assert raised.value.code == "authentication_unavailable"
            count = len(service.requests)

            def heal() -> None:
                nonlocal status
                wait_until(lambda: len(service.requests) >= count + 2)
                status = "200 OK"

            healing = threading.Thread(target=heal)
            healing.start()
            with quire.Client(server.url, wait=True, connect_timeout=PATIENCE, **options) as client:
                client.publish("orders", "1")
                client.flush(timeout=PATIENCE)
            healing.join()
    assert 'reason="the service cannot be used: it answered with the status 503"' in caplog.text


def test_nobody_waits_for_a_slow_service(tmp_path: Path) -> None:
    def decide(request: dict[str, Any]) -> bytes:
        if request["user"] == "bob":
            begun.set()
            service.wait(PATIENCE)
        return answer({"allow": True})

    begun = threading.Event()
    with Service(decide) as service:
        authentication = {"method": "http", "url": service.url, "timeout": "30s"}
        with quire.testing.server(tmp_path / "data", authentication=authentication) as server:
            store = tmp_path / "publishes"
            with (
                quire.Client(
                    server.url,
                    name="slow",
                    connect="background",
                    publish_store=store,
                    user="bob",
                    password="correct horse",
                ),
                quire.Client(server.url, user="anna", password="correct horse") as client,
            ):
                assert begun.wait(PATIENCE)
                client.publish("orders", "1")
                client.flush(timeout=PATIENCE)
                service._ended.set()


def test_a_reload_asks_the_service_again(tmp_path: Path) -> None:
    with Service(lambda _: answer({"allow": True})) as service:
        file = tmp_path / "quire.toml"
        file.write_text(
            'data_directory = "data"\n[[transport]]\naddress = "127.0.0.1:0"\n'
            f'[authentication]\nmethod = "http"\nurl = "{service.url}"\n'
        )
        with quire.Server(quire.Config.load(file)) as server:
            for expected in (1, 1, 2):
                if expected == 2:
                    server.reload()
                with quire.Client(server.url, user="anna", password="correct horse"):
                    assert len(service.requests) == expected
