"""Each file of `examples/actions` is a sound configuration, and its actions do what its head says."""

from __future__ import annotations

import gzip
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import quire
import quire.testing
from quire.actions._run import Ended, Run
from quire.server._server import Server
from quire.testing import TestServer
from support.actions import lines_of, messages
from support.ports import reserve
from support.waiting import wait_until

EXAMPLES = Path(__file__).parent.parent / "examples/actions"
Example = Callable[[Path, pytest.MonkeyPatch], None]
OF_EXAMPLES: dict[str, Example] = {}


def example(name: str) -> Callable[[Example], Example]:
    def add(run: Example) -> Example:
        OF_EXAMPLES[name] = run
        return run

    return add


@contextmanager
def serving(name: str, directory: Path, ports: tuple[int, int] = (0, 0)) -> Iterator[TestServer]:
    """A server with the configuration of an example, on free ports, whose triggers have subscribed.

    `ports`: of the address for links, and of the other instance
    """
    config = quire.Config.load(EXAMPLES / f"{name}.toml")
    assert config.check() == []
    config = config.replace(address="127.0.0.1:0", data_directory=directory)
    update: dict[str, Any] = {}
    if config.admin is not None and config.admin.address is not None:
        update["admin"] = config.admin.model_copy(update={"address": "127.0.0.1:0"})
    if config.replication.address is not None:
        destinations = tuple(
            each.model_copy(update={"addresses": (f"127.0.0.1:{ports[1]}",)})
            for each in config.replication.destination
        )
        links = {"address": f"127.0.0.1:{ports[0]}", "destination": destinations}
        update["replication"] = config.replication.model_copy(update=links)
    with TestServer(config.model_copy(update=update), None, {}) as server:
        assert server._actions is not None
        wait_until(lambda: all(each.is_ready.is_set() for each in watchers(server)))
        yield server


def watchers(server: Server) -> list[Any]:
    assert server._actions is not None
    wanted = [part for state in server._actions.states.values() for part in state.triggers]
    found = list(server._actions._watchers)
    kinds = ("publish", "expire_message", "condition_timeout")
    return found if len(found) >= sum(part.entry.name in kinds for part in wanted) else [_NotYet()]


class _NotYet:
    """A trigger whose thread has not begun."""

    class is_ready:
        @staticmethod
        def is_set() -> bool:
            return False


def run(server: Server, name: str, trigger: str = "schedule") -> Ended:
    """Runs an action, as its trigger does."""
    actions = server._actions
    assert actions is not None
    return actions._runner.run(actions.states[name], Run(trigger, {}))


@example("dead-letters")
def failed_jobs_are_published(directory: Path, _: pytest.MonkeyPatch) -> None:
    with serving("dead-letters", directory) as server, quire.Client(server.url) as client:
        client.publish("jobs", {"id": 7})
        jobs = client.subscribe("jobs")
        for _number in range(3):
            jobs.get(timeout=60).cancel(delay="0s")
        wait_until(lambda: len(messages(server, "failed-jobs")) == 1)
        [letter] = messages(server, "failed-jobs")
        assert (letter["reason"], letter["deliveries"], letter["job"]) == ("max_cancels", 3, '{"id":7}')


@example("daily")
def files_and_records_are_kept_for_their_time(directory: Path, _: pytest.MonkeyPatch) -> None:
    with serving("daily", directory) as server, quire.Client(server.url) as client:
        log = directory / "log"
        for name, days in (("2020-01-01-1.log", 3), ("2020-01-02-1.log.gz", 9), ("2020-01-03-1.log.gz", 1)):
            (log / name).write_bytes(b"a line\n")
            os.utime(log / name, (time.time() - 86400 * days,) * 2)
        for number, state, age in ((1, "open", 9e5), (2, "cancelled", 9e5), (3, "cancelled", 10)):
            client.publish("orders", {"id": number, "state": state, "time": int(time.time() - age)})
        client.flush()
        assert run(server, "daily").outcome == "ok"
        assert sorted(record.json()["id"] for record in client.sow("orders")) == [1, 3]
        names = {path.name for path in log.iterdir()}
        assert {"2020-01-01-1.log.gz", "2020-01-03-1.log.gz"} <= names
        assert "2020-01-02-1.log.gz" not in names
        assert gzip.decompress((log / "2020-01-01-1.log.gz").read_bytes()) == b"a line\n"


@example("archive-on-request")
def a_post_archives_journal_files(directory: Path, _: pytest.MonkeyPatch) -> None:
    with serving("archive-on-request", directory) as server:
        url = f"{server.admin_url}/quire/administrator/actions/archive"
        assert httpx.post(url, json={}).status_code == 400
        [bad] = httpx.post(url, json={"AGE": "soon"}).json()["runs"]
        assert (bad["outcome"], bad["step"]) == ("failed", "do[0] archive_journal")
        [good] = httpx.post(url, json={"AGE": "0s"}).json()["runs"]
        assert good["outcome"] == "ok"


@example("disk-full")
def the_server_stops_before_its_disk_is_full(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving("disk-full", directory) as server:
        assert run(server, "disk-full").outcome == "stopped"
        usage = type("Usage", (), {"total": 100, "free": 4})
        monkeypatch.setattr("quire.actions._steps._usage", lambda path: usage)
        assert run(server, "disk-full").outcome == "ok"
        wait_until(lambda: not server.is_running)


@example("not-answered")
def late_orders_are_copied(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quire._units.seconds", lambda value, key: {"30s": 0.2}[value])
    with serving("not-answered", directory) as server, quire.Client(server.url) as client:
        client.publish("orders", {"id": 1, "state": "open"})
        client.publish("orders", {"id": 2, "state": "done"})
        client.flush()
        wait_until(lambda: len(messages(server, "late-orders")) == 1)
        assert messages(server, "late-orders") == [{"id": 1, "state": "open"}]


@example("peer-gone")
def an_alert_is_published_and_publishers_do_not_wait(directory: Path, _: pytest.MonkeyPatch) -> None:
    (reserved, port), (far_reserved, far_port) = reserve(), reserve()
    back = {
        "name": "orders-1",
        "sync_type": "sync",
        "addresses": [f"127.0.0.1:{port}"],
        "topic": {"name": "^orders", "message_type": "json"},
    }
    far = {"address": f"127.0.0.1:{far_port}", "destination": [back]}
    with reserved, far_reserved, serving("peer-gone", directory / "one", (port, far_port)) as server:

        def state() -> str:
            found: str = server.replication.stats()["destinations"][0]["state"]
            return found

        with quire.testing.server(directory / "two", name="orders-2", replication=far):
            wait_until(lambda: state() == "live")
            assert messages(server, "alerts") == []
        wait_until(lambda: len(messages(server, "alerts")) == 1)
        [alert] = messages(server, "alerts")
        assert alert["peer"] == "orders-2"
        assert alert["reason"]
        assert run(server, "downgrade").outcome == "ok"
        assert run(server, "upgrade").outcome == "ok"


@example("nightly-job")
def a_program_runs_and_its_output_is_in_the_log(directory: Path, _: pytest.MonkeyPatch) -> None:
    with lines_of("60-0001") as lines, serving("nightly-job", directory) as server:
        assert run(server, "report").outcome == "ok"
    assert [line.getMessage() for line in lines] == ["action 'report': the report says: orders of orders-1\n"]


@pytest.mark.parametrize("name", OF_EXAMPLES)
def test_an_example_does_what_its_head_says(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    OF_EXAMPLES[name](tmp_path, monkeypatch)


def test_every_example_has_a_run() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.toml")} == set(OF_EXAMPLES)
