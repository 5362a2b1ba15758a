"""Files of a journal are archived, compressed and removed from the command line while a server runs
on it: the server does it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import quire
import quire.server._server
from quire import _quire
from quire.cli import run
from quire.testing import ServerProcess, server
from support.command_line import quire as quire_command
from support.waiting import PATIENCE, Deadline

SETTINGS: dict[str, Any] = {
    "transaction_log": {
        "journal_size": 128 << 10,
        "journal_archive_directory": "archive",
        "topic": [{"name": "^(orders|jobs)$", "message_type": "json"}],
    },
}


def publish(url: str, topic: str, count: int = 500) -> None:
    with quire.Client(url) as client:
        for n in range(count):
            client.publish(topic, {"n": n, "pad": "x" * 500})
        client.flush(PATIENCE)


def files(out: str) -> list[Path]:
    return [Path(json.loads(line)["path"]) for line in out.splitlines()]


def test_the_server_that_runs_does_the_work(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    journal = tmp_path / "journal"
    with ServerProcess(tmp_path, **SETTINGS) as process:
        publish(process.url, "orders")
        sealed = sorted(journal.glob("*.journal"))[:-1]

        def take(action: str, *arguments: str) -> list[Path]:
            assert run(["journal", action, str(journal), "--json", *arguments]) == 0
            return files(capfd.readouterr().out)

        count = len(take("archive", "--age", "0s", "--dry-run"))
        assert count > 1
        assert list((tmp_path / "archive").glob("*.journal")) == []
        archived = take("archive", "--age", "0s", "--archive-directory", str(tmp_path / "archive"))
        assert archived == sorted((tmp_path / "archive").glob("*.journal"))
        assert [path.name for path in archived] == [path.name for path in sealed[:count]]
        assert len(take("compress", "--age", "0s")) == count
        with quire.Client(process.url) as client, client.subscribe("orders", bookmark=quire.EPOCH) as replay:
            assert [message.json()["n"] for message in islice(replay, 500)] == list(range(500))
        deadline = Deadline()
        # The server hears in a while that the subscription is gone.
        while not take("remove", "--age", "0s"):
            assert deadline.left > 0
        assert not archived[0].exists()
        # A kill leaves no file, and the next server is found again.
        process.kill()
        process.start()
        assert take("compress", "--age", "0s", "--dry-run") == []


def test_what_a_queue_needs_stays(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with ServerProcess(tmp_path, **SETTINGS, queue=[{"name": "jobs", "message_type": "json"}]) as process:
        publish(process.url, "jobs")
        assert run(["journal", "remove", str(tmp_path / "journal"), "--age", "0s"]) == 0
        assert "removed: 0 files" in capfd.readouterr().out


def test_mistakes_are_the_servers_to_name(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    journal = str(tmp_path / "journal")
    with ServerProcess(tmp_path, **SETTINGS):
        for arguments, text in (
            (["archive", journal], "archive: give either --age or --size-max"),
            (["remove", journal, "--age", "0"], "--age: '0' has no unit, as 7d and 0s have"),
            (["compress", journal, "--age", "soon"], "soon"),
            (["archive", journal, "--age", "0s", "--archive-directory", str(tmp_path)], "archives to"),
        ):
            assert run(["journal", *arguments]) != 0
            assert text in capfd.readouterr().err


def test_who_is_not_the_user_of_the_server_is_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quire.server._server, "user_of", lambda _: os.geteuid() + 1)
    config = quire.Config.model_validate(
        {"data_directory": tmp_path, "transport": [{"address": "127.0.0.1:0"}], **SETTINGS}
    )
    with quire.Server(config):
        assert run(["journal", "remove", str(tmp_path / "journal"), "--age", "0s"]) != 0
        assert "only the user that the server runs as" in capfd.readouterr().err


def test_a_journal_that_another_program_writes_is_in_use(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with quire.Journal(tmp_path) as journal:
        journal.append("orders", {}, publisher="p")
        assert run(["journal", "remove", str(tmp_path), "--age", "0s"]) != 0
        assert "another process has this journal open" in capfd.readouterr().err
    assert run(["journal", "archive", str(tmp_path), "--age", "0s"]) != 0
    assert "this journal was not archived before" in capfd.readouterr().err


def test_a_server_starts_though_another_program_took_the_name(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "journal").mkdir()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as taken:
        taken.bind(b"\0" + _quire.local_socket_name(tmp_path / "journal").encode())
        with ServerProcess(tmp_path, **SETTINGS) as process:
            publish(process.url, "orders", 1)
            assert run(["journal", "remove", str(tmp_path / "journal"), "--age", "0s"]) != 0
            assert "another process has this journal open" in capfd.readouterr().err


def test_the_data_directory_instead_of_the_journal_directory_is_refused_with_the_right_one(
    tmp_path: Path,
) -> None:
    with ServerProcess(tmp_path, **SETTINGS):
        reason = f"perhaps you mean local:{tmp_path / 'journal'}"
        with pytest.raises(quire.ConfigError, match=re.escape(reason)):
            quire.Client(f"local:{tmp_path}")


def test_a_client_is_the_administrator_of_the_server_of_a_directory(tmp_path: Path) -> None:
    nothing: dict[str, Any] = {
        "transaction_log": {**SETTINGS["transaction_log"], "maintenance": {"by_clients": []}}
    }
    with ServerProcess(tmp_path, **nothing) as process:
        publish(process.url, "orders")
        with quire.Client(f"local:{tmp_path / 'journal'}") as client:
            core = client._core
            command = core.maintain("compress", None, 0, False)
            assert core.wait(command, PATIENCE)
            assert len(core.take_json_replies(command)) == 1
            client.publish("orders", {"n": 500})
            client.flush(PATIENCE)
    with pytest.raises(quire.DisconnectedError, match="local:"):
        quire.Client(f"local:{tmp_path / 'journal'}", connect_timeout=0.1)


def test_the_administrator_reaches_a_server_whose_transport_is_full(tmp_path: Path) -> None:
    with (
        server(tmp_path, transport={"address": "127.0.0.1:0", "max_connections": 1}) as running,
        quire.Client(running.url),
    ):
        refused = quire_command("queue", "ls", url=running.url)
        assert refused.returncode != 0
        assert "max_connections is reached" in refused.stderr
        local = f"local:{tmp_path / 'journal'}"
        for arguments in [("queue", "create", "JOBS"), ("queue", "ls"), ("info",), ("client", "ls")]:
            done = quire_command(*arguments, url=local)
            assert done.returncode == 0, done.stderr
        # A connection of an administrator takes no place of a client.
        assert running.stats()["connections"] == 1


def test_the_event_loop_of_a_server_may_maintain_its_own_journal(tmp_path: Path) -> None:
    """The loop takes no turns while it waits for the reply."""

    async def main() -> None:
        server = quire.Server(
            quire.Config.model_validate(
                {"data_directory": tmp_path, "transport": [{"address": "127.0.0.1:0"}], **SETTINGS}
            )
        )
        started = asyncio.Event()
        serving = asyncio.create_task(server.serve(started=started.set))
        await started.wait()
        await asyncio.to_thread(publish, server.url, "orders")
        sealed = len(server.journal.segments()) - 1
        assert sealed > 1
        assert len(server.journal.compress(age=0)) == sealed
        assert server.stats()["published"] == 500
        # Connections continue.
        await asyncio.to_thread(publish, server.url, "orders", 1)
        server.close()
        await serving

    asyncio.run(asyncio.wait_for(main(), PATIENCE))
