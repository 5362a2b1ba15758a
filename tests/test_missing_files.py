"""A server without its archive does not start, because the archive has messages that its queues
have to deliver."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import quire
from quire.cli import run
from support.waiting import PATIENCE

JOBS = 1000


def config(directory: Path, kept: str, **log: Any) -> quire.Config:
    return quire.Config(
        data_directory=directory,
        transport={"address": "127.0.0.1:0"},
        transaction_log={
            "journal_size": 128 << 10,
            "topic": [{"name": "jobs", "message_type": "json"}],
            **log,
        },
        queue=[{"name": "jobs", "message_type": "json", "file_backed_metadata": kept}],
    )


@pytest.mark.parametrize("is_configured", [True, False], ids=["configured", "noted"])
@pytest.mark.parametrize("kept", ["enabled", "disabled"])
def test_no_job_is_lost_when_the_archive_is_not_there_at_a_start(
    tmp_path: Path, kept: str, is_configured: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    plan = config(tmp_path, kept, journal_archive_directory="archive")
    with quire.Server(plan) as server, quire.Client(server.url, name="loader") as client:
        for n in range(JOBS):
            client.publish("jobs", {"n": n, "pad": "x" * 500})
        client.flush(PATIENCE)
        assert len(server.journal.archive(age=0)) >= 3
    again = plan if is_configured else config(tmp_path, kept)
    archive = tmp_path / "archive"
    moved = archive.rename(tmp_path / "moved")
    for is_mount_point in (False, True):
        if is_mount_point:
            archive.mkdir()
        with pytest.raises(
            quire.JournalCorruptError, match=r"journal files 0+ to \d+ are missing"
        ) as refused:
            quire.Server(again).start()
        assert str(archive) in refused.value.reason
        assert run(["journal", "verify", str(tmp_path / "journal")]) == 1
        assert refused.value.reason in capfd.readouterr().err
    archive.rmdir()
    moved.rename(archive)
    with quire.Server(again) as server, quire.Client(server.url, name="worker") as client:
        assert client.queue_stats("jobs")["jobs"]["depth"] == JOBS
        found = []
        with client.subscribe("jobs", max_backlog=100) as jobs:
            for job in islice(jobs, JOBS):
                found.append(job.json()["n"])
                job.ack()
        assert sorted(found) == list(range(JOBS))


def test_a_program_appends_to_the_journal_of_a_server_with_a_name_and_the_server_goes_on(
    tmp_path: Path,
) -> None:
    plan = quire.Config(
        name="orders-1",
        data_directory=tmp_path,
        transport={"address": "127.0.0.1:0"},
        transaction_log={"journal_size": 128 << 10, "topic": [{"name": "orders", "message_type": "json"}]},
    )
    for n in range(0, 900, 300):
        with quire.Server(plan) as server, quire.Client(server.url, name="loader") as client:
            client.publish("orders", {"n": n, "pad": "x" * 500})
            client.flush(PATIENCE)
        with quire.Journal(tmp_path / "journal", journal_size="128KB") as journal:
            journal.append_many(
                "orders", [{"n": n + m, "pad": "x" * 500} for m in range(1, 300)], publisher="program"
            )
            journal.flush(PATIENCE)
            assert [message.json()["n"] for message in journal.read()] == list(range(n + 300))
            assert journal.verify() == []


def test_an_embedded_engine_does_not_start_on_a_journal_whose_files_were_deleted(tmp_path: Path) -> None:
    with quire.Client(f"file:{tmp_path}", name="loader") as client:
        client.publish("orders", {"n": 1})
        client.flush(PATIENCE)
    journal = tmp_path / "journal" if (tmp_path / "journal").is_dir() else tmp_path
    for path in journal.glob("*.journal"):
        path.unlink()
    with (
        pytest.raises(quire.JournalCorruptError, match="all later ones are missing"),
        quire.Client(f"file:{tmp_path}"),
    ):
        pass


def test_the_first_file_of_a_journal_that_was_deleted_by_hand_is_named(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with quire.Journal(tmp_path / "journal", journal_size="64KB") as journal:
        journal.append_many("orders", [{"pad": "x" * 500}] * 500, publisher="loader")
    sorted((tmp_path / "journal").glob("*.journal"))[0].unlink()
    assert run(["journal", "verify", str(tmp_path / "journal"), "--json"]) == 1
    assert "journal file 0000000000 is missing" in capfd.readouterr().err
    assert run(["journal", "remove", str(tmp_path / "journal"), "--missing", "--json"]) == 0
    assert json.loads(capfd.readouterr().out) == {"first": 0, "last": 0}
