"""`quire replication add`, `retire` and `replace`, with real servers and their configuration files.

docs/replication.md, *Steps of an operator*. A test does what the command waits for.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import quire
from quire.client._blocking import Observer
from support import command_line
from support.ports import reserve
from support.waiting import PATIENCE, wait_until


class Instance:
    """A server that runs a configuration file."""

    def __init__(self, directory: Path, name: str, port: int, link_port: int) -> None:
        self.name, self.url = name, f"quire://127.0.0.1:{port}"
        self.file, self.data = directory / f"{name}.toml", directory / name
        self.address = f"127.0.0.1:{link_port}"
        self._process: subprocess.Popen[str] | None = None
        self.file.write_text(
            f'# The instance {name}.\nname = "{name}"\ndata_directory = "{name}"\n\n[[transport]]\n'
            f'name = "clients"\naddress = "127.0.0.1:{port}"\n\n[replication]\naddress = "{self.address}"\n'
        )

    def add_destination(self, other: Instance, sync_type: str, topic: str) -> None:
        with self.file.open("a") as file:
            file.write(
                f'\n# To {other.name}.\n[[replication.destination]]\nname = "{other.name}"\n'
                f'addresses = ["{other.address}"]\nsync_type = "{sync_type}"\n'
                f'\n[[replication.destination.topic]]\nname = "{topic}"\nmessage_type = "json"\n'
            )

    def change(self, old: str, new: str) -> None:
        text = self.file.read_text()
        assert old in text
        self.file.write_text(text.replace(old, new))

    def start(self) -> None:
        command = [sys.executable, "-m", "quire", "serve", str(self.file), "--json"]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        assert self._process.stdout.readline()

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.communicate()
            self._process = None

    def restart(self) -> None:
        self.stop()
        self.start()

    def links(self) -> dict[str, Any]:
        with Observer(self.url) as client:
            return client._replication()

    def publish(self, count: int, topic: str = "orders") -> None:
        with quire.Client(self.url, name=f"loader-{self.name}-{topic}") as client:
            client.publish_many(topic, ({"n": number} for number in range(count)))
            client.flush(PATIENCE)

    def count(self) -> int:
        with quire.Client(self.url) as client:
            return sum(1 for _ in client.subscribe("^", bookmark="[epoch:now]"))


class Running:
    """A command while it waits for the test."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "quire", "replication", *arguments]
        self.notes = ""
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def await_note(self, text: str) -> None:
        """Reads its notes until one has the text."""
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self.notes += line
            if text in line:
                return
        raise AssertionError(f"ended without a note {text!r}: {self.end()}")

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()

    def end(self) -> tuple[int, str]:
        """Its exit code, and its results."""
        results, notes = self._process.communicate(timeout=PATIENCE)
        self.notes += notes
        return self._process.returncode, results


Set = dict[str, Instance]


@pytest.fixture
def instances(tmp_path: Path) -> Iterator[Set]:
    """Three instances without destinations, which do not run."""
    with contextlib.ExitStack() as stack:
        found = {}
        for name in "abc":
            ports = []
            for _ in range(2):
                reserved, port = reserve()
                stack.enter_context(reserved)
                ports.append(port)
            found[name] = Instance(tmp_path, name, *ports)
            stack.callback(found[name].stop)
        yield found


def _linked(instances: Set, names: str, sync_type: str = "sync", topic: str = "^") -> list[Instance]:
    """Starts these instances, each of which sends to the others."""
    members = [instances[name] for name in names]
    for one in members:
        for other in members:
            if one is not other:
                one.add_destination(other, sync_type, topic)
    for one in members:
        one.start()
    for one in members:
        wait_until(lambda one=one: one.links()["state"] == "live")  # type: ignore[misc]
    return members


def _arguments(members: list[Instance], files: list[Instance] = []) -> list[str]:  # noqa: B006
    urls = [part for each in members for part in ("--url", each.url)]
    return [*urls, *(part for each in files for part in ("--config", str(each.file)))]


def test_an_instance_is_added_and_the_command_can_be_repeated(instances: Set) -> None:
    a, b = _linked(instances, "ab")
    c = instances["c"]
    a.publish(100)
    b.publish(50)
    arguments = ["add", "c", "--address", c.address, "--new-url", c.url, *_arguments([a, b], [a, b, c])]
    command = Running(*arguments)
    command.await_note("waiting: restart a and b, one after the other, so that they read the new destination")
    a.restart()
    command.await_note("waiting: restart b, ")
    b.restart()
    command.await_note("waiting: start c with an empty data directory and with destinations for a and b")
    c.start()
    command.await_note("waiting: restart a and b, one after the other, so that they read the sync type")
    assert c.count() == 150
    a.restart()
    b.restart()
    code, results = command.end()
    assert (code, results.splitlines()[-1]) == (0, "c: added; its links have the sync type sync"), (
        command.notes
    )
    assert "a and c: no message differs" in results
    for one in (a, b):
        assert one.file.read_text().startswith(f"# The instance {one.name}.")
        assert {link["configured_sync_type"] for link in one.links()["destinations"]} == {"sync"}
    assert {link["name"] for link in c.links()["destinations"]} == {"a", "b"}
    files = [each.file.read_text() for each in (a, b, c)]
    again = command_line.quire("replication", *arguments)
    assert again.returncode == 0, again.stderr
    assert "waiting: restart" not in again.stderr
    assert [each.file.read_text() for each in (a, b, c)] == files


def test_without_the_files_the_command_says_what_to_write_and_what_is_next(instances: Set) -> None:
    (a,) = _linked(instances, "a")
    shown = command_line.quire(
        "replication", "add", "c", "--address", "10.0.0.3:9107", "--timeout", "0s", *_arguments([a])
    )
    assert shown.returncode == 1
    assert 'name = "c"' in shown.stdout
    assert 'addresses = ["10.0.0.3:9107"]' in shown.stdout
    expected = (
        "not done after 0s; next: restart a, one after the other, so that they read the new destination"
    )
    assert expected in shown.stderr
    assert "[[replication.destination]]" not in a.file.read_text()


@pytest.mark.parametrize("has_file", [True, False])
def test_a_name_with_another_address_is_not_added(instances: Set, has_file: bool) -> None:
    a, b = _linked(instances, "ab")
    files = [a] if has_file else []
    shown = command_line.quire(
        "replication", "add", "b", "--address", "10.0.0.3:9107", *_arguments([a], files)
    )
    assert shown.returncode == 1
    assert f"a has a destination 'b' with the addresses {b.address}" in shown.stderr
    shown = command_line.quire("replication", "add", "a", "--address", b.address, *_arguments([a]))
    assert shown.returncode == 2
    assert "is the server of a" in shown.stderr


def test_an_instance_is_retired_and_the_command_can_be_repeated(instances: Set) -> None:
    a, b, c = _linked(instances, "abc")
    c.publish(100)
    arguments = ["retire", "c", "--retired-url", c.url, *_arguments([a, b], [a, b])]
    with quire.Client(c.url, name="worker"):
        command = Running(*arguments)
        command.await_note("waiting: stop the clients of c, or move them: worker")
    command.await_note("waiting: stop c")
    assert 'name = "c"' in a.file.read_text(), "it is still running"
    c.stop()
    command.await_note("waiting: restart a and b, one after the other, so that they forget c")
    a.restart()
    # It may be repeated here, too: c was compared before its destination was removed from a file.
    command.kill()
    command = Running(*arguments)
    command.await_note("waiting: restart b, one after the other, so that they forget c")
    b.restart()
    code, results = command.end()
    assert (code, results.splitlines()[-1]) == (0, "c: retired"), command.notes
    for one in (a, b):
        assert 'name = "c"' not in one.file.read_text()
        assert "# To c.\n" in one.file.read_text()
        assert one.count() == 100
    again = command_line.quire("replication", *arguments)
    assert (again.returncode, again.stdout) == (0, "c: retired before; no instance has it as a destination\n")


def test_an_instance_with_messages_that_no_other_one_has_is_not_retired_and_not_replaced(
    instances: Set,
) -> None:
    a, b = _linked(instances, "ab", "async", "^orders")
    b.publish(10)
    b.publish(3, "local")
    files = a.file.read_text()
    for arguments in (["retire", "b", "--retired-url", b.url], ["replace", "b", "--new-url", b.url]):
        shown = command_line.quire("replication", *arguments, *_arguments([a], [a]))
        assert shown.returncode == 1
        assert "b has messages that no other instance has: these would be lost" in shown.stderr
        heading, row = shown.stdout.splitlines()
        assert heading.split("\t") == ["publisher", "first", "last", "messages"]
        assert row.split("\t")[1:] == ["1", "3", "3"]
    assert a.file.read_text() == files


def test_an_instance_that_required_acks_needs_is_not_retired(instances: Set) -> None:
    a, b = instances["a"], instances["b"]
    a.change("[replication]\n", "[replication]\nrequired_acks = 1\n")
    _linked(instances, "ab")
    shown = command_line.quire("replication", "retire", "b", "--retired-url", b.url, *_arguments([a], [a]))
    assert shown.returncode == 1
    assert "a has required_acks = 1, and without b it has 0 sync destinations" in shown.stderr


def test_an_instance_that_is_away_is_retired_only_when_it_is_said_to_be_lost(instances: Set) -> None:
    a, b = _linked(instances, "ab", "async")
    b.stop()
    retire = ["retire", "b", *_arguments([a], [a])]
    shown = command_line.quire("replication", *retire)
    assert shown.returncode == 2
    assert "--retired-url: required, so that b can be checked" in shown.stderr
    shown = command_line.quire("replication", *retire, "--retired-url", b.url)
    assert shown.returncode == 1
    assert "b is not reached" in shown.stderr
    assert 'name = "b"' in a.file.read_text()
    command = Running(*retire, "--lost")
    command.await_note("a then sends to no other instance: its messages have no copy")
    command.await_note("waiting: restart a")
    a.restart()
    code, results = command.end()
    assert (code, results.splitlines()[-1]) == (0, "b: retired"), command.notes


def test_an_instance_is_replaced_and_the_command_can_be_repeated(instances: Set) -> None:
    a, b = _linked(instances, "ab")
    a.publish(100)
    replace = ["replace", "b", "--new-url", b.url, *_arguments([a], [a])]
    shown = command_line.quire("replication", *replace)
    assert shown.returncode == 0, shown.stderr
    assert "b: has everything that the others have; its log began at" in shown.stdout
    log = b.links()["log"]
    b.stop()
    shutil.rmtree(b.data)
    reserved, port = reserve()
    with reserved:
        # On another machine.
        b.change(f'address = "{b.address}"', f'address = "127.0.0.1:{port}"')
        command = Running(*replace, "--address", f"127.0.0.1:{port}")
        command.await_note("b is not reached, so its messages were not compared")
        command.await_note("waiting: restart a, one after the other, so that they read the new address")
        a.restart()
        command.await_note("waiting: start b with an empty data directory and with destinations for a")
        b.start()
        code, results = command.end()
        assert (code, "a and b: no message differs" in results) == (0, True), command.notes
        assert b.count() == 100
        assert b.links()["log"] > log
        assert f'addresses = ["127.0.0.1:{port}"]' in a.file.read_text()
        b.stop()


def test_an_instance_is_not_replaced_while_no_other_one_has_its_whole_log(instances: Set) -> None:
    a, b = _linked(instances, "ab", "async")
    b.stop()
    a.stop()
    shutil.rmtree(a.data)
    a.start()
    shown = command_line.quire("replication", "replace", "b", "--new-url", b.url, *_arguments([a]))
    assert shown.returncode == 1
    assert "each of them is filling. Keep the data of b" in shown.stderr
    shown = command_line.quire("replication", "replace", "c", "--new-url", b.url, *_arguments([a]))
    assert shown.returncode == 1
    assert "no instance has a destination 'c': `quire replication add c` adds one" in shown.stderr
