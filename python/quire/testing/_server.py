"""`quire.testing.server` and `quire.testing.ServerProcess`: real servers for tests."""

from __future__ import annotations

import faulthandler
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Self

from quire._errors import QuireError
from quire._process import StopSignals
from quire.client._tls import TLS
from quire.config import Config
from quire.server._server import Server
from quire.testing._certificates import certificates

#: Seconds that a process may take to listen, or to end, on a loaded machine.
START_TIMEOUT: Final = 60.0


class TestServer(Server):
    """A server of a test, and what its clients need."""

    __test__ = False  # for pytest, to which the name says something else

    def __init__(self, config: Config, tls: TLS | None, passwords: Mapping[str, str]) -> None:
        super().__init__(config)
        self._client_tls = tls
        self._passwords = passwords

    def options(self, user: str | None = None) -> dict[str, Any]:
        """Returns the keyword arguments of a client, as this user: `quire.Client(server.url, **server.options("anna"))`."""
        options: dict[str, Any] = {} if self._client_tls is None else {"ssl": self._client_tls}
        if user is not None:
            options |= {"user": user, "password": self._passwords[user]}
        return options


@contextmanager
def server(
    directory: str | os.PathLike[str] | None = None,
    *,
    tls: bool | Mapping[str, Any] = False,
    users: Mapping[str, Mapping[str, Any]] | None = None,
    **settings: Any,
) -> Iterator[TestServer]:
    """Runs a server in this process on a free port of 127.0.0.1, as a context manager.

        with quire.testing.server() as server, quire.Client(server.url) as client:
            client.publish("orders", {"id": 1})

    - `directory`: the directory for its data. Without it: a temporary directory, which is removed
      at the end
    - `tls`: `True` makes an authority and a certificate in the directory. Or the `tls` of a transport, such as
      `quire.testing.certificates(…).server`
    - `users`: the users, with their passwords: `{"anna": {"password": "…", "groups": ["desk"]}}`. Their hashes are
      cheap, so that a test is fast
    - `settings`: as in `Config`

    `server.options()` are the arguments of a client: `quire.Client(server.url, **server.options())`.
    """
    temporary = tempfile.TemporaryDirectory(prefix="quire-") if directory is None else nullcontext(directory)
    with temporary as place:
        client_tls = None
        if tls is True:
            files = certificates(Path(place) / "certificates")
            tls, client_tls = files.server, files.tls
        elif tls:
            client_tls = None if (ca := tls.get("client_ca")) is None else TLS(ca=ca)
        if tls:
            settings = {**settings, "transport": {**settings.get("transport", {}), "tls": tls}}
        passwords = {}
        if users is not None:
            passwords = {name: user["password"] for name, user in users.items() if "password" in user}
            file = Path(place) / "users.toml"
            write_users(file, users)
            settings = {**settings, "authentication": {"method": "users", "users_file": str(file)}}
        with TestServer(Config(**_settings(place, 0, settings)), client_tls, passwords) as running:
            yield running


def write_users(path: Path, users: Mapping[str, Mapping[str, Any]]) -> None:
    """Writes a file of users whose passwords are checked fast."""
    from quire.server._users import User, Users, hash_of

    path.parent.mkdir(parents=True, exist_ok=True)
    entries = []
    for name, user in users.items():
        password = user.get("password")
        phc = None if password is None else hash_of(password, memory=64, passes=1)
        entries.append(User(name, phc, tuple(user.get("groups", ())), bool(user.get("disabled"))))
    Users(entries).save(path)


class ServerProcess:
    """Runs a server in a separate process, as a context manager. It ends the process with `kill -9`.

    Every start uses the same free port of 127.0.0.1. On Linux, the port is also reserved while the
    server is stopped. The process ends with its parent.

    - `directory`: the directory for its data
    - `environment`: variables of its environment, in addition to those of this process
    - `standard_error`: an open file for its standard error. Without it: the standard error of this
      process
    - `settings`: as in `Config`
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        environment: Mapping[str, str] | None = None,
        standard_error: IO[Any] | None = None,
        **settings: Any,
    ) -> None:
        self._directory = directory
        self._settings = settings
        self._environment = {**os.environ, **(environment or {})}
        self._standard_error = standard_error
        # Elsewhere the first start chooses the port.
        self._port = reserve_port(self) if sys.platform == "linux" else 0
        self._process: subprocess.Popen[str] | None = None

    def __repr__(self) -> str:
        state = f"process {self.pid}" if self.is_running else "not running"
        return f"<ServerProcess {self.url}: {state}, data in {self._directory}>"

    @property
    def url(self) -> str:
        """The URL for clients."""
        scheme = "quires" if self._settings.get("transport", {}).get("tls") else "quire"
        return f"{scheme}://127.0.0.1:{self._port}"

    @property
    def address(self) -> tuple[str, int]:
        """The host and the port."""
        return "127.0.0.1", self._port

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._running().pid

    @property
    def is_running(self) -> bool:
        """Whether the process was started, and has not ended."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Starts the process, and returns when it accepts connections. Raises `QuireError` otherwise."""
        self.launch()
        self.wait_until_listening()

    def launch(self) -> None:
        """Starts the process, and returns immediately."""
        if self._process is not None:
            raise QuireError("the server process was started already", code="bad_option")
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "quire.testing",
                json.dumps(_settings(self._directory, self._port, self._settings)),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._standard_error,
            env=self._environment,
            text=True,
        )

    def wait_until_listening(self) -> None:
        """Returns when the launched process accepts connections. Raises `QuireError` when it does not."""
        process = self._running()
        assert process.stdout is not None
        ready, _, _ = select.select([process.stdout], [], [], START_TIMEOUT)
        line = process.stdout.readline() if ready else ""
        if not line.startswith(("quire://", "quires://")):
            self._end(signal.SIGKILL)
            raise QuireError("the server process did not start; its standard error says why")
        self._port = int(line.rsplit(":", 1)[1])

    def kill(self) -> None:
        """Kills the process with `kill -9`."""
        self._end(signal.SIGKILL)

    def terminate(self) -> int:
        """Asks the process to stop cleanly, and returns its exit status."""
        return self._end(signal.SIGTERM)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._process is not None:
            self.kill()

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None:
            raise QuireError("the server process is not running", code="not_running")
        return self._process

    def _end(self, number: signal.Signals) -> int:
        process = self._running()
        process.send_signal(number)
        try:
            status = process.wait(START_TIMEOUT)
        except subprocess.TimeoutExpired:
            # The standard error of the process then has the stacks of its threads.
            process.send_signal(signal.SIGUSR1)
            raise
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()
        self._process = None
        return status


def reserve_port(owner: object) -> int:
    """Returns a free port of 127.0.0.1. On Linux it is reserved while `owner` exists."""
    reserved = socket.socket()
    if sys.platform == "linux":
        # The system never assigns the port to a socket that asks for any free port. The server may
        # listen on it, because it sets SO_REUSEADDR, too. A connection to a socket that does not
        # listen is refused.
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind(("127.0.0.1", 0))
    port: int = reserved.getsockname()[1]
    if sys.platform == "linux":
        weakref.finalize(owner, reserved.close)
    else:
        # The server could not listen on it.
        reserved.close()
    return port


def _settings(directory: str | os.PathLike[str], port: int, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of `Config` with this directory and port."""
    transport = {**settings.get("transport", {}), "address": f"127.0.0.1:{port}"}
    return {**settings, "data_directory": os.fspath(directory), "transport": transport}


def serve(settings: str) -> None:
    """The program of a `ServerProcess`: serves until SIGTERM, or the end of its standard input,
    which is closed at the end of its parent."""
    stop = StopSignals(signal.SIGTERM)
    faulthandler.register(signal.SIGUSR1)

    def stop_with_the_parent() -> None:
        sys.stdin.read()
        stop.stop()

    threading.Thread(target=stop_with_the_parent, daemon=True).start()
    with Server(Config(**json.loads(settings))) as running:
        print(running.url, flush=True)
        stop.wait()


__all__ = ["START_TIMEOUT", "ServerProcess", "TestServer", "reserve_port", "serve", "server"]
