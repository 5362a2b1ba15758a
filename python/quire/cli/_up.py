"""`quire up`: instances on this machine that replicate to each other.

The configuration files stay in the directory, and each instance is a process that runs one of them. The first
run writes the files. Later runs start what the files say.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, Final, Literal

from quire._directories import make_directory
from quire._errors import ConfigError, QuireError
from quire._process import StopSignals
from quire.client._blocking import Observer
from quire.config import Address, Config

#: More instances than a trial needs. Each one has its ports among these.
INSTANCES_MAX: Final = 9
#: The port of the first instance for clients, and how far those for links are above it.
PORT: Final = 9007
LINKS_ABOVE: Final = 100
#: Seconds that the instances have to stop.
STOP_TIMEOUT: Final = 30.0
#: Seconds that the links have to come up.
LINKS_TIMEOUT: Final = 10.0

SyncType = Literal["sync", "async"]


@dataclass
class _Instance:
    file: Path
    config: Config
    process: subprocess.Popen[str] | None = None
    url: str = ""
    #: The end of the process was reported.
    has_ended: bool = False

    @property
    def log(self) -> Path:
        return self.file.with_suffix(".log")


def up(
    directory: Path, *, instances: int | None, port: int | None, sync_type: SyncType | None, as_json: bool
) -> int:
    """Runs the instances until a signal; gives 1 when all of them ended without one."""
    if instances is not None and not 2 <= instances <= INSTANCES_MAX:
        raise ConfigError(f"{instances} is not between 2 and {INSTANCES_MAX}", key="--instances")
    if port is not None and not 0 <= port <= 65535 - LINKS_ABOVE - INSTANCES_MAX:
        raise ConfigError(f"{port} is not between 0 and {65535 - LINKS_ABOVE - INSTANCES_MAX}", key="--port")
    with _locked(directory):
        files = sorted(directory.glob("instance-*.toml"))
        is_new = not files
        if is_new:
            files = _write(directory, instances or 2, PORT if port is None else port, sync_type or "sync")
        found = [_Instance(file, Config.load(file)) for file in files]
        for instance in found:
            # Before anything starts, and with the line of the mistake.
            instance.config.check()
        if not is_new:
            _check_same(directory, found, instances, port, sync_type)
        for instance in found:
            _check_ports(instance, can_choose=port is not None or instances is not None)
        return _run(directory, found, as_json=as_json)


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Lets one `quire up` at a time run the instances of a directory."""
    if directory.exists() and not directory.is_dir():
        raise ConfigError(f"{directory} is a file: name a directory", key="directory")
    if directory.is_dir() and any(directory.iterdir()) and not any(directory.glob("instance-*.toml")):
        raise ConfigError(f"{directory} has other files, and no instances: name another one", key="directory")
    make_directory(directory)
    with open(directory / "up.lock", "w") as lock:
        try:
            import fcntl
        except ImportError:  # pragma: no cover - Windows
            yield
            return
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise QuireError(
                f"another quire up runs the instances in {directory}: stop it, or name another directory"
            ) from None
        yield


def _check_same(
    directory: Path,
    found: list[_Instance],
    instances: int | None,
    port: int | None,
    sync_type: SyncType | None,
) -> None:
    """An option that says other than the files would have no effect. Port 0 takes any ports, so it takes those of the files."""
    if instances is not None and instances != len(found):
        reason = f"{directory} has {len(found)} instances: leave the option out, or name another directory"
        raise ConfigError(reason, key="--instances")
    first = found[0]
    ports = {address.port for address in first.config.addresses}
    if port and port not in ports:
        shown = " and ".join(map(str, sorted(ports)))
        reason = f"{first.file} has the port {shown}: change the files, or name another directory"
        raise ConfigError(reason, key="--port")
    for instance in found:
        for destination in instance.config.replication.destination:
            if sync_type is not None and destination.sync_type != sync_type:
                reason = f"{instance.file} has {destination.sync_type}: change the files, or name another directory"
                raise ConfigError(reason, key="--sync-type")


def _write(directory: Path, count: int, port: int, sync_type: SyncType) -> list[Path]:
    """Writes the configuration files."""
    if port == 0:
        ports = _free_ports(2 * count)
        clients, links = ports[:count], ports[count:]
    else:
        clients = list(range(port, port + count))
        links = [number + LINKS_ABOVE for number in clients]
    files = []
    for number in range(count):
        text = [
            f"# Instance {number + 1} of {count}, written by `quire up`. You can change it: later runs use it as it is.",
            f"# `quire serve instance-{number + 1}.toml` runs this instance alone.",
            f'name = "instance-{number + 1}"',
            f'data_directory = "instance-{number + 1}"',
            "",
            "[[transport]]",
            'name = "clients"',
            f'address = "127.0.0.1:{clients[number]}"',
            "",
            "[replication]",
            f'address = "127.0.0.1:{links[number]}"',
        ]
        for other in range(count):
            if other == number:
                continue
            text += [
                "",
                "[[replication.destination]]",
                f'name = "instance-{other + 1}"',
                f'addresses = ["127.0.0.1:{links[other]}"]',
                f'sync_type = "{sync_type}"',
            ]
            if sync_type == "sync":
                text += [
                    'downgrade_after = "10s"  # publishers continue without an instance that is down',
                    'upgrade_below = "5s"',
                ]
            if count > 2:
                text.append('pass_through = [".*"]  # a message can come to a third instance on two paths')
            text += ["", "[[replication.destination.topic]]", 'name = "^"', 'message_type = "json"']
        file = directory / f"instance-{number + 1}.toml"
        file.write_text("\n".join(text) + "\n")
        files.append(file)
    return files


def _free_ports(count: int) -> list[int]:
    """Returns different ports that are free now."""
    with contextlib.ExitStack() as stack:
        found = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [int(listener.getsockname()[1]) for listener in found]


def _check_ports(instance: _Instance, *, can_choose: bool) -> None:
    """Says before anything starts that a port is in use."""
    addresses = [*instance.config.addresses]
    if instance.config.replication.address is not None:
        addresses.append(Address.parse(instance.config.replication.address))
    for address in addresses:
        try:
            socket.create_server((address.host, address.port)).close()
        except OSError as error:
            reason = error.strerror or str(error)
            if error.errno == errno.EADDRINUSE:
                advice = f"another program listens there; stop it, or change {instance.file}"
                if can_choose:
                    advice += ", or give --port and another directory"
                reason = advice
            raise OSError(
                error.errno, f"cannot listen on {address} for {instance.file.stem}: {reason}"
            ) from None


def _run(directory: Path, instances: list[_Instance], *, as_json: bool) -> int:
    stopping = StopSignals(signal.SIGTERM, signal.SIGINT)
    with contextlib.ExitStack() as stack:
        stack.callback(_stop, instances)
        for instance in instances:
            log = stack.enter_context(instance.log.open("a"))
            instance.process = _launch(instance.file, log)
        for instance in instances:
            instance.url = _url_of(instance)
        links = _await_links(instances, stopping)
        _introduce(directory, instances, links, as_json=as_json)
        while not stopping.wait(0.2):
            for instance in instances:
                _look_at(instance)
            if all(instance.has_ended for instance in instances):
                return 1
    return 0


def _launch(file: Path, log: IO[str]) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "quire.cli._up", str(file)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)


def _url_of(instance: _Instance) -> str:
    """Waits until the instance listens. Raises `QuireError` with the end of its log when it does not."""
    process = instance.process
    assert process is not None
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        process.wait()
        lines = instance.log.read_text().splitlines() or ["its process ended"]
        raise QuireError(f"{instance.file.stem} did not start: {lines[-1].removeprefix('quire: ')}")
    url: str = json.loads(line)["url"]
    return url


@dataclass(frozen=True)
class _Link:
    source: str
    destination: str
    state: str
    last_error: str | None


def _await_links(instances: list[_Instance], stopping: StopSignals) -> list[_Link]:
    """Waits until every link is live, for at most `LINKS_TIMEOUT`; gives the links."""
    deadline = time.monotonic() + LINKS_TIMEOUT
    while True:
        links = [link for instance in instances for link in _links_of(instance)]
        is_up = all(link.state == "live" for link in links)
        if is_up or time.monotonic() > deadline or stopping.wait(0.1):
            return links


def _links_of(instance: _Instance) -> list[_Link]:
    """The links of an instance to others."""
    if not instance.config.replication.destination:
        return []
    try:
        with Observer(instance.url) as client:
            found = client._replication()["destinations"]
    except QuireError as error:
        return [
            _Link(instance.file.stem, destination.name, "unknown", str(error))
            for destination in instance.config.replication.destination
        ]
    return [_Link(instance.file.stem, link["name"], link["state"], link["last_error"]) for link in found]


def _introduce(directory: Path, instances: list[_Instance], links: list[_Link], *, as_json: bool) -> None:
    """Prints where the instances are, the state of their links, and how to connect."""
    for link in links:
        if link.state != "live":
            reason = f": {link.last_error}" if link.last_error else ""
            print(
                f"quire: the link from {link.source} to {link.destination} is not live ({link.state}{reason})",
                file=sys.stderr,
                flush=True,
            )
    urls = [instance.url for instance in instances]
    if as_json:
        said: dict[str, Any] = {
            "urls": {instance.file.stem: instance.url for instance in instances},
            "pids": {instance.file.stem: _pid(instance) for instance in instances},
            "directory": str(directory),
            "links": [asdict(link) for link in links],
        }
        print(json.dumps(said), flush=True)
        return
    for instance in instances:
        print(f"{instance.file.stem}: {instance.url}, process {_pid(instance)}, log in {instance.log}")
    print(f'connect: quire.Client({json.dumps(urls)}, name="my-program")')
    live = sum(link.state == "live" for link in links)
    print(f"links: {live} of {len(links)} live; quire replication ls --url {urls[0]}")
    print(f"an instance that was killed: quire serve {instances[0].file}")
    print("stop: Ctrl-C", flush=True)


def _pid(instance: _Instance) -> int:
    assert instance.process is not None
    return instance.process.pid


def _look_at(instance: _Instance) -> None:
    """Reports the end of an instance, once."""
    assert instance.process is not None
    if not instance.has_ended and (status := instance.process.poll()) is not None:
        instance.has_ended = True
        print(
            f"quire: {instance.file.stem} ended with status {status}; start it again: quire serve {instance.file}",
            file=sys.stderr,
            flush=True,
        )


def _stop(instances: list[_Instance]) -> None:
    """Asks all instances to stop, and waits for them."""
    processes = [instance.process for instance in instances if instance.process is not None]
    for process in processes:
        process.terminate()
    for process in processes:
        try:
            process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()


def _serve(file: str) -> int:
    """The program of an instance: `quire serve`, until the process that started it ends."""
    from quire.cli import run

    def stop_with_the_parent() -> None:
        sys.stdin.read()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=stop_with_the_parent, daemon=True).start()
    return run(["serve", file, "--json"])


if __name__ == "__main__":
    sys.exit(_serve(sys.argv[1]))


__all__ = ["up"]
