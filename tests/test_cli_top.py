"""`quire top`: samples of a server as text and JSON, and the live screen on a real terminal."""

from __future__ import annotations

import json
import os
import select
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic

import pytest
import quire
import quire.testing
from quire.cli import _samples
from quire.cli._samples import COLUMNS, Sample, Sampler, View, cell
from support.command_line import quire as run
from support.waiting import PATIENCE

JOBS = {"name": "jobs", "message_type": "json", "underlying_topic": "orders"}


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    with quire.testing.server(tmp_path, queue=[JOBS, {"name": "audit", "message_type": "json"}]) as server:
        with quire.Client(server.url) as client:
            client.publish_many("orders", [{"id": id} for id in range(5)])
            client.flush(PATIENCE)
        yield server.url


def test_rates_are_the_growth_since_the_sample_before(monkeypatch: pytest.MonkeyPatch) -> None:
    config = quire.Config(queue=JOBS)
    with quire.Client("memory:", config=config, name="shop") as client:
        now = 100.0
        monkeypatch.setattr(_samples, "monotonic", lambda: now)
        sampler = Sampler(client)
        first = sampler.take()
        assert [row["entered_per_s"] for row in first.tables["queues"]] == [None]
        client.publish_many("orders", [{"id": id} for id in range(40)])
        client.flush(PATIENCE)
        now = 110.0
        second = sampler.take()
        [jobs] = second.tables["queues"]
        assert (jobs["queue"], jobs["depth"], jobs["entered_per_s"], jobs["delivered_per_s"]) == (
            "jobs",
            40,
            4,
            0,
        )
        [shop] = second.tables["clients"]
        assert (shop["client_name"], shop["published_per_s"]) == ("shop", 4)
        assert second.server["published_per_s"] == 4
        assert sampler.take().server["published_per_s"] is None  # no time has passed


def test_rows_are_sorted_and_filtered() -> None:
    rows = [{"queue": name, "depth": depth} for name, depth in (("b", 1), ("a", None), ("ab", 3), ("c", 3))]
    sample = Sample(datetime.now(UTC), {}, {"queues": rows})
    names = [row["queue"] for row in View(sort={"queues": "-depth"}).rows(sample)]
    assert sorted(names[:2]) == ["ab", "c"]
    assert names[2:] == ["b", "a"]
    assert [row["queue"] for row in View(sort={"queues": "depth"}).rows(sample)] == ["b", "ab", "c", "a"]
    assert [row["queue"] for row in View(filter="b").rows(sample)] == ["b", "ab"]
    view = View()
    seen = []
    for _ in COLUMNS["queues"]:
        view.next_sort()
        seen.append(view.sort["queues"].removeprefix("-"))
    assert seen == [column.key for column in COLUMNS["queues"]]
    assert [cell(value) for value in (None, True, 12345, 1.234, 1234.5)] == [
        "",
        "yes",
        "12,345",
        "1.2",
        "1,234",
    ]


def test_text_and_json_have_every_table(url: str) -> None:
    text = run("top", "--once", "--sort=-depth", url=url)
    assert text.returncode == 0, text.stderr
    lines = [line.split("\t") for line in text.stdout.splitlines()]
    queues = lines.index([column.heading for column in COLUMNS["queues"]])
    assert [row[:2] for row in lines[queues + 1 : queues + 3]] == [["jobs", "5"], ["audit", "0"]]
    assert [column.heading for column in COLUMNS["topics"]] in lines
    told = run("top", "--count", "2", "--interval", "100ms", "--json", url=url)
    first, second = (json.loads(line) for line in told.stdout.splitlines())
    assert {row["queue"]: row["depth"] for row in first["queues"]} == {"jobs": 5, "audit": 0}
    assert (first["server"]["published_per_s"], second["server"]["published_per_s"]) == (None, 0)
    assert set(first) == {"time", "server", "queues", "topics", "clients", "replication"}


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--sort", "foo"], "the column 'foo' of queues is not one of queue, depth,"),
        (["--sort=-foo.depth"], "the table 'foo' is not one of queues, topics,"),
        (["--interval", "1ms"], "1ms is below 0.1 s"),
        (["--count", "0"], "0 is not at least 1"),
    ],
)
def test_a_mistake_is_named(arguments: list[str], text: str) -> None:
    done = run("top", *arguments, url="quire://127.0.0.1:1")
    assert (done.returncode, done.stdout) == (2, "")
    assert text in done.stderr


def test_a_user_without_rights_sees_what_is_missing() -> None:
    users = {"anna": {"password": "password of anna"}}
    entries = {"user": "anna", "topic": "orders", "allow": "write"}
    with (
        quire.testing.server(users=users, entitlement=entries) as server,
        quire.Client(server.url, **server.options("anna")) as client,
    ):
        sample = Sampler(client).take()
    assert "monitor" in sample.refused["clients"]
    assert "/quire/clients" in sample.refused["clients"]
    assert set(sample.refused) >= {"clients", "replication"}
    assert "uptime_s" not in sample.server


@pytest.mark.skipif(sys.platform == "win32", reason="there are no terminals like this")
def test_the_screen_follows_keys_and_leaves_the_terminal_as_it_was(url: str) -> None:
    import pty
    import termios

    pid, terminal = pty.fork()
    if pid == 0:
        os.environ.update(TERM="xterm", COLUMNS="120", LINES="30")
        command = ["-m", "quire", "top", "--interval", "100ms", "--url", url]
        os.execv(sys.executable, [sys.executable, *command])
    try:
        seen = ""

        def wait_for(text: str) -> None:
            nonlocal seen
            deadline = monotonic() + PATIENCE
            while text not in seen:
                assert select.select([terminal], [], [], deadline - monotonic())[0], seen
                seen += os.read(terminal, 65_536).decode(errors="replace")
            seen = seen[seen.index(text) + len(text) :]

        wait_for("audit")
        before = termios.tcgetattr(terminal)
        assert not before[3] & termios.ECHO
        os.write(terminal, b"ss")
        wait_for("depth ▼")
        os.write(terminal, b"/job")
        wait_for("/job_")
        os.write(terminal, b"\r\t")
        wait_for("recorded")
        os.write(terminal, b"\x1b[Z")
        wait_for("entered/s")
        os.write(terminal, b"q")
        _, status = os.waitpid(pid, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert termios.tcgetattr(terminal)[3] & termios.ECHO
    except BaseException:
        os.kill(pid, 9)
        raise
    finally:
        os.close(terminal)
