"""Secrets and messages stay where they belong.

A program publishes marked messages and logs on with marked secrets, by every method of a logon, and
fails with others. Then everything that the processes have written is searched: logs, errors,
tracebacks, `repr`, pickles, statistics, the output of commands, archives of `quire doctor`, command
lines, and all files.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import subprocess
import sys
import tarfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import quire
import quire.testing
from quire.client._blocking import Observer
from quire.testing._server import reserve_port, write_users
from support.server_process import ServerProcess
from support.waiting import PATIENCE, wait_until

#: In every message.
PAYLOAD = "marked-payload-4711"
#: The methods, with the options of a client that is accepted: its user and its secret.
PASSWORD, WRONG = "marked-password-0815", "marked-wrong-guess-0816"
SERVICE_KEY = "marked-service-key-0817"
SIGNING_KEY = "marked-signing-key-0818-0123456789"
KEY_PASSWORD = "marked-key-password-0819"

#: It logs on with `OPTIONS`, publishes, fails, and writes everything that it can to its output.
PROGRAM = """
import logging, pickle, sys, traceback, quire
logging.basicConfig(level=1, stream=sys.stderr)

def show(value):
    print(repr(value), str(value))
    try:
        print(pickle.dumps(value))
    except Exception:
        traceback.print_exc()

def fail(*arguments, **options):
    try:
        quire.Client(*arguments, **options).close()
    except (quire.QuireError, OSError):
        traceback.print_exc()

def secret():
    return next(iter(OPTIONS.get(name) for name in ("password", "token") if name in OPTIONS))

with quire.Client(URL, name="loader", **OPTIONS) as client:
    show(client), show(client.health()), show(client.server_info()), show(vars(client)), show(client._options)
    show(client._options.credentials), show(client._options.tls)
    client.publish("orders", {"text": PAYLOAD})
    client.publish("state", {"id": 1, "text": PAYLOAD})
    client.flush(10)
    subscription = client.subscribe("orders", bookmark=quire.EPOCH)
    message = subscription.get(timeout="10s")
    print(repr(message), message, repr(subscription))
    try:
        client.sow("state", filter="/text = 'x' AND (").get(timeout="1s")
    except Exception:
        traceback.print_exc()
    def handler(message):
        raise ValueError("on purpose")
    # The log of the client has its failures.
    client.subscribe("orders", on_message=handler, bookmark=quire.EPOCH)
    client.publish("jobs", {"text": PAYLOAD})
    client.flush(10)
    print(client.drain(timeout="10s"))

for guess in WRONGS:
    fail(URL, **{**OPTIONS, **guess})
if "ssl" not in OPTIONS:
    for text in (f"quire://anna:{secret()}@127.0.0.1:9", f"quire://anna:{secret()}@db.example"):
        fail(text)
    fail("quire://db.example:9", **OPTIONS)
    fail("quire://127.0.0.1:9", **{**OPTIONS, "name": secret() * 100})
    fail("quire://127.0.0.1:9", password=lambda: {secret(): 1})
    fail("quire://127.0.0.1:9", password=secret(), token=secret())
"""


def hs256(secret: str, claims: dict[str, Any]) -> str:
    """A token that is signed with a secret."""

    def encoded(value: bytes) -> str:
        return base64.urlsafe_b64encode(value).decode().rstrip("=")

    head = {"alg": "HS256", "kid": "marked"}
    text = ".".join(encoded(json.dumps(part).encode()) for part in (head, claims))
    return f"{text}.{encoded(hmac.digest(secret.encode(), text.encode(), hashlib.sha256))}"


@contextmanager
def service(status: Callable[[dict[str, Any]], int]) -> Iterator[str]:
    """A service that decides about logons, and its URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            assert self.headers["X-Key"] == SERVICE_KEY
            self.send_response(status(request))
            body = json.dumps({"allow": True, "text": request.get("password")}).encode()
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/"
        finally:
            server.shutdown()
            thread.join()


class Written:
    """Everything that processes have written."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._texts: dict[str, bytes] = {}
        self._environments: list[bytes] = []

    def add(self, name: str, text: str | bytes) -> None:
        self._texts[name] = text.encode() if isinstance(text, str) else text

    def run(self, *command: str, stdin: str | None = None, accepts: int = 0, **environment: str) -> str:
        done = subprocess.run(
            command,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            env={**os.environ, **environment},
        )
        assert done.returncode == accepts, done.stderr
        self.add(" ".join(command), done.stdout + done.stderr)
        return done.stdout + done.stderr

    def search(self, *secrets: str, payload: bool = True, beside: tuple[str, ...] = ()) -> None:
        """`beside`: the ends of the names of files that have secrets."""
        for path in self._directory.rglob("*"):
            if path.is_file() and not path.name.endswith(beside):
                self._texts[str(path)] = path.read_bytes()
        for name, text in self._texts.items():
            for secret in secrets:
                assert secret.encode() not in text, f"{secret} is in {name}"
            # The log and the files of last-value topics have messages. Nothing else has.
            if payload and "journal" not in Path(name).parts:
                assert PAYLOAD.encode() not in text, f"a message is in {name}"


def watch(
    directory: Path, written: Written, options: dict[str, Any], wrongs: list[dict[str, Any]], **settings: Any
) -> None:
    """A server, a program and commands of the command line, whose output is collected."""
    log_file = directory / "server.log"
    keys = {
        "queue": [{"name": "jobs", "message_type": "json"}],
        "sow_topic": [{"name": "state", "message_type": "json", "key": "/id"}],
    }
    with log_file.open("w+") as log:
        with ServerProcess(
            directory / "data",
            standard_error=log,
            environment={"PYTHONWARNINGS": "default"},
            **keys,
            **settings,
        ) as server:
            values = {
                "URL": repr(server.url),
                "PAYLOAD": repr(PAYLOAD),
                "OPTIONS": repr(options),
                "WRONGS": repr(wrongs),
            }
            head = "".join(f"{name} = {value}\n" for name, value in values.items())
            written.run(
                sys.executable,
                "-c",
                "import sys; exec(sys.stdin.read())",
                stdin=f"import quire\n{head}{PROGRAM}",
            )
            local = ["--url", f"local:{directory / 'data' / 'journal'}"]
            for command in (
                ["client", "ls", "--json"],
                ["info", "--json"],
                ["queue", "ls", "--json"],
                ["topic", "ls", "--json"],
            ):
                written.run(sys.executable, "-m", "quire", *command, *local)
            archive = directory / "report"
            if (found := doctor(archive, local, written)) is not None:
                written.add("the archive of quire doctor", found)
            written.add("/proc/PID/cmdline", Path(f"/proc/{server.pid}/cmdline").read_bytes())
            server.terminate()
        log.seek(0)
        written.add("the log of the server", log.read())


def doctor(archive: Path, local: list[str], written: Written) -> bytes | None:
    """Everything in the archive of `quire doctor`."""
    written.run(sys.executable, "-m", "quire", "doctor", "--output", f"{archive}.tar.gz", *local)
    whole = b""
    path = Path(f"{archive}.tar.gz")
    if tarfile.is_tarfile(path):
        with tarfile.open(path) as tar:
            for member in tar.getmembers():
                if (file := tar.extractfile(member)) is not None:
                    whole += file.read()
    elif zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as compressed:
            whole = b"".join(compressed.read(name) for name in compressed.namelist())
    path.unlink()
    return whole


def test_passwords_stay_where_they_belong(tmp_path: Path) -> None:
    file = tmp_path / "users.toml"
    write_users(file, {"anna": {"password": PASSWORD}})
    written = Written(tmp_path)
    wrongs: list[dict[str, Any]] = [
        {"user": "bob"},
        {"password": WRONG},
        {"password": WRONG * 100},
        {"password": None, "token": WRONG},
    ]
    options = {"user": "anna", "password": PASSWORD}
    watch(tmp_path, written, options, wrongs, authentication={"method": "users", "users_file": str(file)})
    written.run(
        sys.executable,
        "-m",
        "quire",
        "publish",
        "orders",
        "--data",
        "{}",
        "--url",
        "quire://127.0.0.1:9",
        accepts=1,
        QUIRE_USER="anna",
        QUIRE_PASSWORD=PASSWORD,
    )
    written.run(
        sys.executable, "-m", "quire", "publish", "orders", "--data", "{}", "--url", "quire://db.example:9", accepts=2,
        QUIRE_USER="anna", QUIRE_TOKEN=WRONG,
    )  # fmt: skip
    written.search(PASSWORD, WRONG)


def test_tokens_and_signing_keys_stay_where_they_belong(tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    encoded = base64.urlsafe_b64encode(SIGNING_KEY.encode()).decode().rstrip("=")
    keys.write_text(json.dumps({"keys": [{"kty": "oct", "kid": "marked", "alg": "HS256", "k": encoded}]}))
    keys.chmod(0o600)
    claims = {"iss": "issuer", "aud": "quire", "sub": "anna", "exp": int(time.time()) + 3600}
    token = hs256(SIGNING_KEY, claims)
    others = [
        hs256(WRONG, claims),
        hs256(SIGNING_KEY, {**claims, "exp": 1}),
        hs256(SIGNING_KEY, {**claims, "aud": "x"}),
    ]
    settings = {"method": "token", "keys": str(keys), "issuer": "issuer", "audience": "quire"}
    written = Written(tmp_path)
    wrongs: list[dict[str, Any]] = [{"token": other} for other in others]
    wrongs += [{"token": None, "password": WRONG}, {"token": WRONG * 1000}]
    watch(tmp_path, written, {"token": token}, wrongs, authentication=settings)
    keys.write_text(keys.read_text().replace('"HS256"', '"RS256"'))
    with pytest.raises(quire.ConfigError) as raised:
        quire.Config(authentication=settings).check()
    written.add("the error", str(raised.value))
    signatures = [each.rpartition(".")[2] for each in (token, *others)]
    written.search(token, *others, *signatures, WRONG, SIGNING_KEY, encoded, beside=("keys.json",))


def test_secrets_of_a_service_stay_where_they_belong(tmp_path: Path) -> None:
    headers = tmp_path / "headers"
    headers.write_text(f"X-Key: {SERVICE_KEY}\n")
    headers.chmod(0o600)
    statuses = {PASSWORD: 200, WRONG: 401, f"{WRONG}-302": 302, f"{WRONG}-500": 500}
    with service(lambda request: statuses.get(request.get("password") or request["token"], 401)) as url:
        settings = {"method": "http", "url": url, "headers_file": str(headers)}
        written = Written(tmp_path)
        wrongs: list[dict[str, Any]] = [
            {"password": password} for password in statuses if password != PASSWORD
        ]
        wrongs.append({"password": None, "token": WRONG})
        options = {"user": "anna", "password": PASSWORD}
        watch(tmp_path, written, options, wrongs, authentication=settings)
    headers.write_text(f"X Key {SERVICE_KEY}\n")
    with pytest.raises(quire.ConfigError) as raised:
        quire.Config(authentication=settings).check()
    written.add("the error", str(raised.value))
    written.search(PASSWORD, WRONG, SERVICE_KEY, beside=("headers",))


def test_private_keys_stay_where_they_belong(tmp_path: Path) -> None:
    files = quire.testing.certificates(tmp_path / "files", clients=["anna"])
    anna = files.clients["anna"]
    assert anna.ca is not None
    assert anna.certificate is not None
    assert anna.key is not None
    ssl = quire.TLS(
        ca=str(anna.ca), certificate=str(anna.certificate), key=str(anna.key), key_password=KEY_PASSWORD
    )
    written = Written(tmp_path)
    options: dict[str, Any] = {"ssl": ssl}
    # The `repr` of a quire.TLS has no password, so the program makes it anew.
    text = (
        f"quire.TLS(ca={str(anna.ca)!r}, certificate={str(anna.certificate)!r}, key={str(anna.key)!r},"
        f" key_password={KEY_PASSWORD!r})"
    )

    class Source(dict[str, Any]):
        def __repr__(self) -> str:
            return f"{{'ssl': {text}}}"

    watch(
        tmp_path,
        written,
        Source(options),
        [{"user": "bob"}, {"ssl": str(anna.ca)}],
        transport={"tls": {**files.server, "client_ca": str(files.ca), "client_certificate": "required"}},
        authentication={"method": "certificate"},
    )
    keys = [path for path in (tmp_path / "files").rglob("*") if b"PRIVATE KEY" in path.read_bytes()]
    assert len(keys) >= 2
    lines = [line for key in keys for line in key.read_text().splitlines() if not line.startswith("-----")]
    written.search(KEY_PASSWORD, *lines, beside=tuple(key.name for key in keys))


def test_secrets_of_links_stay_where_they_belong(tmp_path: Path) -> None:
    """Three servers: `a` logs on to `b`, and `c` is refused. They write everything to their logs."""
    users = tmp_path / "users.toml"
    write_users(users, {"east": {"password": PASSWORD}})
    written = Written(tmp_path)
    port = reserve_port(written)

    files = ExitStack()

    def server(name: str, replication: dict[str, Any]) -> ServerProcess:
        return ServerProcess(
            tmp_path / name,
            standard_error=files.enter_context((tmp_path / f"{name}.stderr").open("w")),
            name=name,
            replication=replication,
            logging={"target": "file", "file": str(tmp_path / f"{name}.log"), "level": "trace"},
        )

    def identity(number: int, secret: str, key: str) -> dict[str, Any]:
        file = tmp_path / f"{number}.secret"
        file.write_text(secret)
        file.chmod(0o600)
        topic = {"name": "^", "message_type": "json"}
        to = {"name": "b", "addresses": f"127.0.0.1:{port}", "sync_type": "async", "topic": topic}
        return {"destination": {**to, **({"user": "east"} if key == "password_file" else {}), key: str(file)}}

    with files:
        b = server(
            "b",
            {
                "address": f"127.0.0.1:{port}",
                "authentication": {"method": "users", "users_file": str(users), "max_hashing": 1},
            },
        )
        a = server("a", identity(1, PASSWORD, "password_file"))
        c = server("c", identity(2, WRONG, "password_file"))
        d = server("d", identity(3, f"{WRONG}-token", "token_file"))
        with b, a, c, d:
            with quire.Client(a.url) as client, quire.Client(b.url) as other:
                client.publish("orders", {"text": PAYLOAD})
                client.flush(PATIENCE)
                other.subscribe("orders", bookmark=quire.EPOCH).get(timeout=PATIENCE)
            for running in (a, b, c, d):
                local = ["--url", running.url]
                states = ["live"] if running is a else ["refused"] if running in (c, d) else []
                wait_until(lambda url=running.url, states=states: states == states_of(url))  # type: ignore[misc]
                for command in (
                    ["replication", "ls", "--json"],
                    ["info", "--json"],
                    ["stats", "/", "--format", "json"],
                ):
                    written.run(sys.executable, "-m", "quire", *command, *local)
                written.add("the archive of quire doctor", doctor(tmp_path / "report", local, written) or b"")
                written.add("/proc/PID/cmdline", Path(f"/proc/{running.pid}/cmdline").read_bytes())
            for running in (a, b, c, d):
                running.terminate()
    logs = [(tmp_path / f"{name}.log").read_text() for name in "abcd"]
    assert "wrong password" in logs[1]
    written.search(PASSWORD, WRONG, beside=(".secret",))


def states_of(url: str) -> list[str]:
    """The states of the links of a server to its destinations."""
    with Observer(url) as client:
        return [each["state"] for each in client._replication()["destinations"]]
