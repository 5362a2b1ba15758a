"""Journal files are archived, compressed and removed by the server, wherever it is:
`quire journal ACTION --url`."""

from __future__ import annotations

import asyncio
import json
import logging
import struct
import threading
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import quire
from quire.cli import run
from quire.cli._output import time_text
from quire.testing import ServerProcess
from support.proxy import Proxy, Step, Strike
from support.scripted_server import ERROR, Connection, ScriptedServer
from support.waiting import PATIENCE, Deadline

SETTINGS: dict[str, Any] = {
    "transaction_log": {
        "journal_size": 128 << 10,
        "journal_archive_directory": "archive",
        "topic": [{"name": "^(orders|jobs)$", "message_type": "json"}],
    },
}
Take = Callable[..., list[dict[str, Any]]]
Refused = Callable[..., str]


def publish(url: str, topic: str = "orders", count: int = 500) -> None:
    with quire.Client(url) as client:
        for n in range(count):
            client.publish(topic, {"n": n, "pad": "x" * 500})
        client.flush(PATIENCE)


def config(directory: Path, **log: Any) -> quire.Config:
    settings = {**SETTINGS["transaction_log"], **log}
    return quire.Config(
        data_directory=directory, transport={"address": "127.0.0.1:0"}, transaction_log=settings
    )


@pytest.fixture
def take(capfd: pytest.CaptureFixture[str]) -> Take:
    """The output of `quire journal ACTION --json`, one file each."""

    def take(action: str, url: str, *arguments: str) -> list[dict[str, Any]]:
        code = run(["journal", action, "--url", url, "--json", *arguments])
        out, err = capfd.readouterr()
        assert (code, err) == (0, "")
        return [json.loads(line) for line in out.splitlines()]

    return take


@pytest.fixture
def refused(capfd: pytest.CaptureFixture[str]) -> Refused:
    """The error of `quire journal ACTION`, which it ends with."""

    def refused(*arguments: str, code: int) -> str:
        assert run(["journal", *arguments]) == code
        out, err = capfd.readouterr()
        assert out == ""
        return err

    return refused


def test_the_server_archives_compresses_and_removes_one_file_after_the_other(
    tmp_path: Path, take: Take, capfd: pytest.CaptureFixture[str]
) -> None:
    journal, archive = tmp_path / "journal", tmp_path / "archive"
    with ServerProcess(tmp_path, **SETTINGS) as process:
        publish(process.url)
        with quire.Journal(journal, read_only=True) as before:
            sealed = before.segments()[:-1]
        assert len(sealed) > 1
        names = [segment.path.name for segment in sealed]
        planned = take("archive", process.url, "--age", "0s", "--dry-run")
        assert [Path(file["path"]) for file in planned] == [journal / name for name in names]
        assert list(archive.glob("*.journal")) == []
        archived = take("archive", process.url, "--age", "0s")
        assert [Path(file["path"]) for file in archived] == [archive / name for name in names]
        compressed = take("compress", process.url, "--size-max", "0")
        assert [file["state"] for file in compressed] == ["compressed"] * len(sealed)
        assert sum(file["size"] for file in compressed) < sum(s.size for s in sealed) / 4
        # The reported properties of a file are equal to those of the journal.
        with quire.Journal(journal, archive_directory=archive, read_only=True) as now:
            for file, segment in zip(compressed, now.segments(), strict=False):
                assert (file["path"], file["size"]) == (str(segment.path), segment.path.stat().st_size)
                assert (file["first"], file["last"], file["count"]) == (
                    segment.first,
                    segment.last,
                    segment.count,
                )
                assert segment.last_timestamp_ns is not None
                assert file["last_timestamp"] == time_text(segment.last_timestamp_ns)
        with quire.Client(process.url) as client, client.subscribe("orders", bookmark=quire.EPOCH) as replay:
            assert [message.json()["n"] for message in islice(replay, 500)] == list(range(500))
        assert take("remove", process.url, "--age", "1h") == []
        removed, deadline = take("remove", process.url, "--age", "0s"), Deadline()
        # The server hears in a while that the subscription is gone.
        while len(removed) < len(sealed):
            assert deadline.left > 0
            removed += take("remove", process.url, "--age", "0s")
        assert [file["number"] for file in removed] == [segment.number for segment in sealed]
        assert list(archive.glob("*.journal")) == []
        assert run(["journal", "compress", "--url", process.url, "--age", "0s"]) == 0
        assert capfd.readouterr().out == "compressed: 0 files of 0 bytes\n"


def test_files_that_a_subscription_needs_stay(tmp_path: Path, take: Take) -> None:
    with ServerProcess(tmp_path, **SETTINGS) as process:
        publish(process.url)
        with (
            quire.Client(process.url) as client,
            client.subscribe("orders", bookmark=quire.EPOCH, paused=True) as replay,
        ):
            assert take("remove", process.url, "--age", "0s", "--dry-run") == []
            assert take("remove", process.url, "--age", "0s") == []
            replay.resume()
            assert [message.json()["n"] for message in islice(replay, 500)] == list(range(500))


def test_files_that_a_queue_needs_stay(tmp_path: Path, take: Take) -> None:
    with ServerProcess(tmp_path, **SETTINGS, queue=[{"name": "jobs", "message_type": "json"}]) as process:
        publish(process.url, "jobs")
        assert take("remove", process.url, "--age", "0s") == []
        with quire.Client(process.url) as client:
            taken = client.subscribe("jobs", max_backlog=500)
            assert [message.json()["n"] for message in islice(taken, 500)] == list(range(500))


@pytest.mark.parametrize("way", ["thread", "loop"])
async def test_a_server_in_this_process_does_it_beside_its_loop_and_says_so_in_its_log(
    tmp_path: Path, take: Take, caplog: pytest.LogCaptureFixture, way: str
) -> None:
    server = quire.Server(config(tmp_path))
    caplog.set_level(logging.INFO, logger="quire.server")
    if way == "loop":
        started = asyncio.Event()
        serving = asyncio.create_task(server.serve(started=started.set))
        await asyncio.wait_for(started.wait(), PATIENCE)
    else:
        server.start()
    await asyncio.to_thread(publish, server.url)
    files = await asyncio.to_thread(take, "compress", server.url, "--age", "0s")
    assert len(files) > 1
    # At its end: the server may log a turn after it has sent the answers of that turn.
    if way == "loop":
        server.close()
        await asyncio.wait_for(serving, PATIENCE)
    else:
        await asyncio.to_thread(server.close)
    said = [record.message for record in caplog.records if "as asked for" in record.message]
    assert len(said) == len(files)
    assert f"{files[0]['path']} compressed, as asked for" in said[0]


def test_two_who_ask_at_once_take_turns(tmp_path: Path) -> None:
    with quire.Server(config(tmp_path)) as server:
        publish(server.url, count=2000)
        count = len(server.journal.segments()) - 1
        with quire.Client(server.url) as one, quire.Client(server.url) as other:
            done: list[str] = []
            cores = (one._core, other._core)
            for _ in range(count):
                for core, command in [(core, core.maintain("compress", None, 0, False)) for core in cores]:
                    assert core.wait(command, PATIENCE)
                    done += core.take_json_replies(command)
        # Each was processed once, by one of the two.
        assert sorted(json.loads(text)["number"] for text in done) == list(range(count))


def test_a_lost_connection_leaves_a_true_account_and_asking_again_goes_on(
    tmp_path: Path, take: Take, capfd: pytest.CaptureFixture[str]
) -> None:
    with ServerProcess(tmp_path, **SETTINGS) as process, Proxy(process.url) as proxy:
        publish(process.url, count=1500)
        count = len(take("compress", process.url, "--age", "0s", "--dry-run"))
        assert count > 2
        proxy.arm([Strike(Step("journal_file", 2), "before", lambda: None)])
        assert run(["journal", "compress", "--url", proxy.url, "--age", "0s"]) == 1
        out, err = capfd.readouterr()
        assert len(out.splitlines()) == 1
        assert "the connection was lost before the server answered" in err
        # The second was under way, and is done.
        assert len(take("compress", process.url, "--age", "0s")) == count - 2


def test_a_server_that_is_killed_meanwhile_is_said_so(
    tmp_path: Path, take: Take, capfd: pytest.CaptureFixture[str]
) -> None:
    with ServerProcess(tmp_path, **SETTINGS) as process, Proxy(process.url) as proxy:
        publish(process.url, count=1500)
        count = len(take("compress", process.url, "--age", "0s", "--dry-run"))
        killed = threading.Event()

        def kill() -> None:
            process.kill()
            killed.set()

        proxy.arm([Strike(Step("maintain", 2), "after", kill)])
        assert run(["journal", "compress", "--url", proxy.url, "--age", "0s"]) == 1
        assert "the connection was lost before the server answered" in capfd.readouterr().err
        assert killed.wait(PATIENCE)
        process.start()
        assert len(take("compress", process.url, "--age", "0s")) in (count - 1, count - 2)
        with quire.Client(process.url) as client, client.subscribe("orders", bookmark=quire.EPOCH) as replay:
            assert [message.json()["n"] for message in islice(replay, 1500)] == list(range(1500))


def test_clients_may_what_the_configuration_says_and_removing_needs_the_same_machine(
    tmp_path: Path, take: Take, refused: Refused
) -> None:
    with quire.Server(config(tmp_path, maintenance={"by_clients": ["compress"]})) as server:
        publish(server.url)
        assert take("compress", server.url, "--age", "0s") != []
        for action in ("archive", "remove"):
            reason = refused(action, "--url", server.url, "--age", "0s", code=1)
            assert f"clients of this server may not {action} journal files" in reason
            assert "transaction_log.maintenance.by_clients" in reason
        # The local way stays open.
        assert run(["journal", "remove", str(tmp_path / "journal"), "--age", "0s"]) == 0

    def allowed(address: str, **maintenance: Any) -> list[str]:
        log = {"maintenance": maintenance} if maintenance else {}
        core = json.loads(quire.Config(transport={"address": address}, transaction_log=log).to_core())
        by_clients: dict[str, bool] = core["transaction_log"]["maintenance"]["by_clients"]
        return [action for action, is_allowed in by_clients.items() if is_allowed]

    everything = ["archive", "compress", "remove"]
    for address in ("127.0.0.1:0", "127.1.2.3:1", "[::1]:9007", "localhost:9007"):
        assert allowed(address) == everything
    for address in ("0.0.0.0:9007", "[::]:9007", "10.0.0.1:9007", "orders.example:9007"):
        assert allowed(address) == ["archive", "compress"]
        assert allowed(address, by_clients=everything) == everything
        assert allowed(address, by_clients=[]) == []
    with pytest.raises(quire.ConfigError, match=r"transaction_log\.maintenance\.by_clients"):
        quire.Config(transaction_log={"maintenance": {"by_clients": ["delete"]}})


def test_mistakes_are_said_before_anything_is_done(
    tmp_path: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = str(tmp_path / "journal")
    with quire.Server(config(tmp_path, journal_archive_directory=None)) as server:
        publish(server.url)
        url = server.url
        monkeypatch.setenv("QUIRE_URL", url)
        for arguments, text in (
            (["remove", "--age", "0s"], "either the directory of the journal or, with --url"),
            (["remove", directory, "--url", url, "--age", "0s"], "either the directory of the journal or"),
            (["remove", "--url", url], "remove: give either --age or --size-max"),
            (["remove", "--url", url, "--age", "0s", "--size-max", "1"], "either --age or --size-max"),
            (["remove", "--url", url, "--age", "soon"], "'soon' is not a duration"),
            (["remove", "--url", url, "--size-max", "much"], "'much' is not a size"),
            (["remove", "--url", f"file:{directory}", "--age", "0s"], "is not that of a server"),
            (
                ["compress", "--url", url, "--age", "0s", "--archive-directory", "x"],
                "the server knows its own",
            ),
            (["archive", "--url", url, "--age", "0s"], "there is nowhere to archive to"),
        ):
            assert text in refused(*arguments, code=2)
        assert {segment.state for segment in server.journal.segments()} == {"sealed", "active"}


def test_an_older_server_is_said_to_be_one(refused: Refused) -> None:
    class Older(ScriptedServer):
        def _frame(self, connection: Connection, kind: int, body: bytes) -> None:
            if kind != 15:
                super()._frame(connection, kind, body)
                return
            connection.send(ERROR, struct.pack("<HH", 1, 0) + b"no frame has the kind 15")
            raise OSError("the connection is closed")

    with Older() as server:
        reason = refused("compress", "--url", server.url, "--age", "0s", code=1)
        assert "it is older than the command" in reason
