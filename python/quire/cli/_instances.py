"""`quire replication add`, `retire` and `replace`: the steps of docs/replication.md, *Steps of an operator*.

A command looks at the servers, does the steps that are left, and waits for the steps of a person or of a server.
The servers and the files show which steps were done before, so a command can be repeated at any time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NoReturn

from cyclopts import Parameter

import quire
from quire._units import counted, seconds
from quire.cli._compare import Compared, Differences, compared, described
from quire.cli._connect import connect
from quire.cli._options import server_options
from quire.cli._output import note, print_table, say
from quire.config import Address
from quire.config._edit import ConfigFile, lines_of

if TYPE_CHECKING:
    Urls = list[str]
else:
    Urls = server_options("Server of an instance that stays. Name all of them.", has_many=True)

Files = Annotated[
    tuple[Path, ...],
    Parameter(
        name="--config",
        help="Configuration file of an instance, which the command changes. May be repeated. "
        "Without the file of an instance, the command prints the lines to write.",
        negative="",
    ),
]
Timeout = Annotated[str, Parameter(help="Time after which the command ends. Repeat it to continue.")]

#: Seconds between two looks at the servers, and that a connection may take.
_POLL: Final = 0.2
_CONNECT_TIMEOUT: Final = 5.0
#: Messages that differ after which a comparison ends.
_LIMIT: Final = 100_000
#: A link whose oldest message is younger has everything, as far as publishers let it.
_BEHIND_MAX: Final = 1.0


def add(
    name: str,
    *,
    address: Annotated[str, Parameter(help="HOST:PORT where the other instances connect to the new one.")],
    url: Urls,
    new_url: Annotated[
        str | None, Parameter(help="URL of the new instance, whose messages are then compared.")
    ] = None,
    config: Files = (),
    sync_type: Annotated[
        Literal["sync", "async"], Parameter(help="Whether publishers wait for it when it has everything.")
    ] = "sync",
    timeout: Timeout = "10m",
) -> int:
    """Add an instance to those that replicate to each other.

    The command adds an async destination for the new instance to each instance, and waits until they are restarted.
    Then it waits until the new instance has everything, and compares its messages with those of the others.
    With the sync type sync, it sets this type at the end, and waits for another restart.
    It can be repeated at any time, and continues. A name that has another address is refused.

    For example:
      quire replication add east-3 --address 10.0.0.3:9107 --url quire://east-1 --url quire://east-2 --new-url quire://east-3
      quire replication add c --address 127.0.0.1:9307 --url quire://127.0.0.1:9007 --config a.toml --config c.toml

    Parameters
    ----------
    name
        Name of the new instance.
    """
    Address.parse(address)
    run = _Run(url, name, new_url, config, timeout, "--new-url")
    for server in run.servers:
        file, link = run.files.get(server.name), server.link_to(name)
        entry = None if file is None else file.destination(name)
        addresses = list(entry.addresses) if entry is not None else (link or {}).get("addresses")
        if addresses is not None and addresses != [address]:
            raise quire.QuireError(
                f"{server.name} has a destination {name!r} with the addresses {', '.join(addresses) or 'none'}: "
                f"give this address, another name, or use `quire replication replace {name}`"
            )
        if entry is None and link is None:
            run.write(server, file, address)
    run.write_for_new()
    run.wait(lambda: run.without(lambda link: link is not None), "read the new destination")
    run.await_whole()
    if not run.compare():
        return 1
    if sync_type == "sync":
        for server in run.servers:
            run.set(server, "sync_type", "sync", "configured_sync_type")
        run.wait(
            lambda: run.without(lambda link: link is not None and link["configured_sync_type"] == "sync"),
            "read the sync type",
        )
        run.await_whole()
    say(f"{name}: added; its links have the sync type {sync_type}")
    return 0


def retire(
    name: str,
    *,
    url: Urls,
    retired_url: Annotated[
        str | None, Parameter(help="URL of the instance that is retired. Required, except with --lost.")
    ] = None,
    config: Files = (),
    lost: Annotated[
        bool,
        Parameter(
            help="The instance and its data do not exist any more. Messages that only it had are lost.",
            negative="",
        ),
    ] = False,
    timeout: Timeout = "10m",
) -> int:
    """Remove an instance from those that replicate to each other.

    The command waits until the instance has no clients, and until the others have all its messages.
    It refuses an instance with messages that no other one has, and one that required_acks needs.
    Then it waits until the instance is stopped, removes it from the other configurations, and waits for their restart.
    It can be repeated at any time, and continues.

    For example:
      quire replication retire east-2 --url quire://east-1 --url quire://east-3 --retired-url quire://east-2
      quire replication retire east-2 --url quire://east-1 --config east-1.toml --lost

    Parameters
    ----------
    name
        Name of the instance.
    """
    run = _Run(url, name, retired_url, config, timeout, "--retired-url")
    named = [server for server in run.servers if server.link_to(name) is not None]
    in_files = [file for file in run.files.values() if file.destination(name) is not None]
    for server in named:
        run.refuse_too_few_copies(server)
    # A file is changed after the checks only. Its server is to be restarted.
    is_checked = lost or any(
        (file := run.files.get(server.name)) is not None and file.destination(name) is None
        for server in named
    )
    if not named and not in_files:
        say(f"{name}: retired before; no instance has it as a destination")
        return 0
    if not is_checked or (run.new is not None and run.new.look()):
        run.await_drained()
        run.refuse_lost_messages("retire")
        say(f"{name}: each of its messages is on another instance; stop it now")
    if run.new is not None:
        run.wait(lambda: [name] if run.new is not None and run.new.look() else [], "stop")
    for server in run.servers:
        if (file := run.files.get(server.name)) is not None:
            if file.destination(name) is not None:
                file.remove(name)
                say(f"{file.path}: removed the destination {name}")
        elif server.link_to(name) is not None:
            say(
                f"{server.name}: remove the [[replication.destination]] with the name {name!r} from its configuration"
            )
    run.wait(lambda: run.without(lambda link: link is None), f"forget {name}")
    say(f"{name}: retired")
    return 0


def replace(
    name: str,
    *,
    url: Urls,
    new_url: Annotated[str, Parameter(help="URL of the instance, before and after.")],
    address: Annotated[
        str | None,
        Parameter(help="HOST:PORT where the other instances connect to it, when it changes."),
    ] = None,
    config: Files = (),
    timeout: Timeout = "10m",
) -> int:
    """Fill an instance again that lost its disk, or that moves to another machine.

    While the instance runs with its old data, the command says whether each of its messages is on another instance.
    It refuses an instance with messages that no other one has. Otherwise stop it, and start it with an empty directory.
    The command then waits until it has everything, and compares its messages with those of the others.
    It can be repeated at any time, and continues.

    For example:
      quire replication replace east-2 --url quire://east-1 --new-url quire://east-2
      quire replication replace east-2 --url quire://east-1 --new-url quire://east-2 --address 10.0.0.9:9107 --config east-1.toml

    Parameters
    ----------
    name
        Name of the instance.
    """
    if address is not None:
        Address.parse(address)
    run = _Run(url, name, new_url, config, timeout, "--new-url")
    if not any(server.link_to(name) for server in run.servers):
        raise quire.QuireError(
            f"no instance has a destination {name!r}: `quire replication add {name}` adds one"
        )
    if not any(server.links["state"] != "filling" for server in run.servers):
        raise quire.QuireError(
            f"no other instance has its whole log: each of them is filling. Keep the data of {name}"
        )
    assert run.new is not None
    if run.new.look():
        if run.new.links["state"] != "filling":
            run.refuse_lost_messages("replace")
    else:
        note(f"{name} is not reached, so its messages were not compared: messages that only it had are lost")
    if address is not None:
        for server in run.servers:
            run.set(server, "addresses", [address], "addresses")
        run.wait(
            lambda: run.without(lambda link: link is None or link["addresses"] == [address]),
            "read the new address",
        )
    run.await_whole()
    if not run.compare():
        return 1
    began = datetime.fromtimestamp(run.new.links["log"] / 1e9, UTC)
    say(f"{name}: has everything that the others have; its log began at {began:%Y-%m-%dT%H:%M:%SZ}")
    say(
        f"If you have not replaced it yet: stop {name}, start it with an empty data directory, and repeat the command"
    )
    return 0


class _Server:
    """A server, as it was seen last."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.name = url
        self.links: dict[str, Any] = {}
        #: Why it was not reached.
        self.error = ""

    def look(self) -> bool:
        """Looks at the server. False: it is not reached. It may be starting."""
        try:
            with connect(self.url, connect_timeout=_CONNECT_TIMEOUT) as client:
                self.links = client._replication()
        except (quire.ProtocolError, quire.TLSError):
            raise
        except (quire.DisconnectedError, TimeoutError) as error:
            self.error = str(error)
            return False
        self.name = self.links["name"]
        return True

    def link_to(self, name: str) -> dict[str, Any] | None:
        """The link to a destination."""
        return next((link for link in self.links["destinations"] if link["name"] == name), None)

    def clients(self) -> list[str]:
        """The names of its clients."""
        with connect(self.url) as client:
            return [each["client_name"] for each in client._clients() if each["client_name"] != client.name]


class _Run:
    """One run of a command: the instances that stay, the one that it is about, and the time that is left."""

    def __init__(
        self,
        urls: Sequence[str],
        name: str,
        new_url: str | None,
        config: Sequence[Path],
        timeout: str,
        option: str,
    ) -> None:
        self.name = name
        self._timeout = timeout
        self._deadline = time.monotonic() + seconds(timeout, "--timeout")
        self._said = ""
        self.servers = [_Server(url) for url in urls]
        self.new = None if new_url is None else _Server(new_url)
        self._option = option
        for server in self.servers:
            if not server.look():
                raise quire.QuireError(f"{server.url}: not reached: {server.error}")
            if server.name == name:
                raise quire.ConfigError(
                    f"{server.url} is the server of {name}: give it with {option}", key="--url"
                )
        if self.new is not None and self.new.look():
            self._check_new()
        self.files: dict[str, ConfigFile] = {}
        known = {name, *(server.name for server in self.servers)}
        for path in config:
            file = ConfigFile(path)
            if file.name not in known:
                raise quire.ConfigError(
                    f"{path} is the file of {file.name!r}, and no --url leads to this instance",
                    key="--config",
                )
            self.files[file.name] = file

    def _check_new(self) -> None:
        assert self.new is not None
        if self.new.name != self.name:
            raise quire.ConfigError(f"{self.new.url} is the server of {self.new.name}", key=self._option)

    def write(self, server: _Server, file: ConfigFile | None, address: str) -> None:
        """Adds the destination to the file of a server, or says what to write."""
        if file is None:
            entry = {"name": self.name, "addresses": [address], "sync_type": "async"}
            topics = [{"name": "^", "message_type": "json"}]
            say(
                f"{server.name}: add these lines to its configuration, with the settings of its other destinations:"
            )
            say_lines(lines_of({**entry, "topic": topics}))
            return
        file.add(file.entry(self.name, address))
        say(f"{file.path}: added the destination {self.name}")

    def write_for_new(self) -> None:
        """Adds the other instances to the file of the new one."""
        file = self.files.get(self.name)
        if file is None:
            return
        for server in self.servers:
            if file.destination(server.name) is None:
                address = self._address_of(server)
                if address is None:
                    say(
                        f"{file.path}: add a [[replication.destination]] for {server.name}; its address is not known"
                    )
                    continue
                file.add(file.entry(server.name, address))
                say(f"{file.path}: added the destination {server.name}")

    def _address_of(self, server: _Server) -> str | None:
        """The address where other instances connect to a server, from the other servers or from its file."""
        for other in self.servers:
            if (link := other.link_to(server.name)) is not None and link["addresses"]:
                return str(link["addresses"][0])
        file = self.files.get(server.name)
        own = None if file is None else file.config.replication.address
        return None if own is None or Address.parse(own).host in ("0.0.0.0", "::") else own

    def set(self, server: _Server, key: str, value: str | list[str], link_key: str) -> None:
        """Changes a key of the destination in the file of a server, or says what to write."""
        link, file = server.link_to(self.name), self.files.get(server.name)
        entry = None if file is None else file.destination(self.name)
        if entry is not None and file is not None:
            now = getattr(entry, key)
            if (list(now) if isinstance(value, list) else now) != value:
                file.change(self.name, file.as_sync() if key == "sync_type" else {key: value})
                say(f"{file.path}: set {key} of the destination {self.name}")
        elif link is not None and link[link_key] != value:
            said = f"{key} = {value!r}".replace("'", '"')
            say(f"{server.name}: set {said} of the destination {self.name} in its configuration")

    def without(self, is_so: Callable[[dict[str, Any] | None], bool]) -> list[str]:
        """The servers whose link to the instance is not as it is to be. One that is not reached is restarting."""
        return [
            server.name
            for server in self.servers
            if not server.look() or not is_so(server.link_to(self.name))
        ]

    def wait(self, missing: Callable[[], list[str]], what: str) -> None:
        """Waits until no instance is missing."""
        while names := missing():
            verb = "stop" if what == "stop" else "restart"
            aim = "" if what == "stop" else f", one after the other, so that they {what}"
            self.pause(f"{verb} {_joined(names)}{aim}")

    def pause(self, waiting: str) -> None:
        """Says what the command waits for, once, and waits a moment. Raises `QuireError` when the time is over."""
        if time.monotonic() >= self._deadline:
            self._end(waiting)
        if waiting != self._said:
            note(f"waiting: {waiting}")
            self._said = waiting
        time.sleep(_POLL)

    def _end(self, waiting: str) -> NoReturn:
        raise quire.QuireError(f"not done after {self._timeout}; next: {waiting}. Then repeat the command")

    def await_whole(self) -> None:
        """Waits until the instance has everything, and each link has sent everything."""
        while waiting := self._lacks():
            self.pause(waiting)

    def _lacks(self) -> str | None:
        name = self.name
        for server in self.servers:
            if not server.look():
                return f"{server.name} is not reached"
        if self.new is not None:
            others = _joined([server.name for server in self.servers])
            if not self.new.look():
                if self.new.links.get("state", "filling") != "filling":
                    return f"{name} is not reached: start it"
                return f"start {name} with an empty data directory and with destinations for {others}"
            self._check_new()
            for server in self.servers:
                if server.link_to(name) is not None and self.new.link_to(server.name) is None:
                    return f"add a [[replication.destination]] for {server.name} to the configuration of {name}, and restart it"
            if self.new.links["state"] == "filling":
                heard = described(self.new.links["not_heard"])
                return (
                    f"{name} is filling; not heard: {heard}. If they do not return: "
                    f"quire replication admit --url {self.new.url}"
                )
        ends = [(server, server.link_to(name), name) for server in self.servers]
        if self.new is not None:
            ends += [(self.new, self.new.link_to(server.name), server.name) for server in self.servers]
        for server, link, to in ends:
            if link is not None and (link["state"] != "live" or link["seconds_behind"] >= _BEHIND_MAX):
                error = f" ({link['last_error']})" if link["state"] != "live" and link["last_error"] else ""
                state = link["state"] if link["state"] != "live" else "behind"
                return f"the link from {server.name} to {to} is {state}{error}"
        return None

    def await_drained(self) -> None:
        """Waits until the instance has no clients, and the others have what it has sent."""
        if self.new is None:
            raise quire.ConfigError(
                f"required, so that {self.name} can be checked for messages that no other instance has. "
                "If its data does not exist any more, give --lost",
                key=self._option,
            )
        if not self.new.look():
            raise quire.QuireError(
                f"{self.name} is not reached at {self.new.url}, so it cannot be checked for messages that no other "
                "instance has: start it. If its data does not exist any more, or the command has said before that it may be "
                f"stopped, give --lost ({self.new.error})"
            )
        self._check_new()
        while True:
            if self.new.look() and (clients := self.new.clients()):
                self.pause(f"stop the clients of {self.name}, or move them: {_joined(sorted(clients))}")
            elif waiting := self._lacks():
                self.pause(waiting)
            else:
                return

    def refuse_lost_messages(self, verb: str) -> None:
        """Raises `QuireError` when the instance has messages that no other one has."""
        assert self.new is not None
        before: list[dict[str, Any]] | None = None
        while True:
            lost = self._only_here(self.new)
            if not lost:
                return
            # Those on their way have arrived by then.
            if lost == before:
                print_table(list(lost[0]), [list(row.values()) for row in lost])
                raise quire.QuireError(
                    f"{self.name} has messages that no other instance has: these would be lost. Do not {verb} it. "
                    "`quire replication ls` shows its links; with other runs under the same bookmarks, publish the "
                    "messages again under another name"
                )
            before = lost
            self.pause(f"{self.name} has messages that no other instance has yet")

    def _only_here(self, server: _Server) -> list[dict[str, Any]]:
        """The ranges of messages that each other server lacks."""
        only: list[tuple[int, int, int]] | None = None
        for other in self.servers:
            found = _differences(server, other)
            if not found.is_complete:
                raise quire.QuireError(
                    f"more than {_LIMIT:,} messages of {server.name} and {other.name} differ"
                )
            found.note_removed()
            lacking = [
                (publisher, first, last)
                for publisher, first, last, missing_at_first in found.ranges
                if missing_at_first is not True
            ]
            only = lacking if only is None else _in_both(only, lacking)
        return [
            {"publisher": publisher, "first": first, "last": last, "messages": last - first + 1}
            for publisher, first, last in only or ()
        ]

    def compare(self) -> bool:
        """Compares the messages of the instance with those of each other one, until they agree or stay different."""
        if self.new is None:
            note(f"the messages of {self.name} are not compared without {self._option}")
            return True
        for server in self.servers:
            before = None
            while (found := _differences(server, self.new)).ranges:
                # Messages that were on their way have arrived by then.
                if found.ranges == before:
                    found.show(_LIMIT, json=False)
                    note(
                        f"{server.name} and {self.name} differ: quire replication verify --repair fetches what links send"
                    )
                    return False
                before = found.ranges
                self.pause(f"{server.name} and {self.name} are compared again")
            found.note_removed()
            say(f"{server.name} and {self.name}: no message differs")
        return True

    def refuse_too_few_copies(self, server: _Server) -> None:
        """Raises `QuireError` when a server then has fewer sync destinations than messages must have copies."""
        required = server.links["required_acks"]
        sync = [
            link["name"]
            for link in server.links["destinations"]
            if link["configured_sync_type"] == "sync" and link["name"] != self.name
        ]
        if required is not None and len(sync) < required:
            raise quire.QuireError(
                f"{server.name} has required_acks = {required}, and without {self.name} it has "
                f"{counted(len(sync), 'sync destination')}: add an instance before, or lower required_acks"
            )
        if len(server.links["destinations"]) == 1:
            note(f"{server.name} then sends to no other instance: its messages have no copy")


def _differences(one: _Server, two: _Server) -> Differences:
    with connect(one.url) as first, connect(two.url) as second:
        return compared(Compared(one.url, first), Compared(two.url, second), _LIMIT)


def _in_both(
    some: Sequence[tuple[int, int, int]], others: Sequence[tuple[int, int, int]]
) -> list[tuple[int, int, int]]:
    """The parts of ranges of publishers that are in both lists."""
    parts = [
        (publisher, max(first, begin), min(last, end))
        for publisher, first, last in some
        for other, begin, end in others
        if publisher == other
    ]
    return [part for part in parts if part[1] <= part[2]]


def _joined(names: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def say_lines(text: str) -> None:
    """Prints lines for a file."""
    for line in text.splitlines():
        say(f"    {line}" if line else "")


__all__ = ["add", "replace", "retire"]
