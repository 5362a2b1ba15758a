"""Full journal files are archived, compressed and removed: from Python, of a running server, on a
schedule."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import quire
import quire.config
from support.actions import lines_of
from support.waiting import PATIENCE, Deadline, wait_until

SIZE = 128 << 10


def fill(journal: quire.Journal, count: int = 500) -> None:
    journal.append_many("orders", [{"n": n, "pad": "x" * 500} for n in range(count)], publisher="loader")
    journal.flush(PATIENCE)


def numbers(journal: quire.Journal) -> list[int]:
    return [message.json()["n"] for message in journal.read()]


def states(journal: quire.Journal) -> list[str]:
    return [segment.state for segment in journal.segments()]


def test_a_journal_with_archived_and_compressed_files_reads_as_before(tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    with quire.Journal(tmp_path / "journal", archive_directory=archive, journal_size=SIZE) as journal:
        fill(journal)
        count = len(journal.segments())
        assert journal.archive(age="1h") == []
        planned = journal.archive(age=0, dry_run=True)
        assert len(planned) == count - 1
        assert states(journal) == ["sealed"] * (count - 1) + ["active"]
        archived = journal.archive(age=0)
        assert [segment.number for segment in archived] == [segment.number for segment in planned]
        assert {segment.path.parent for segment in archived} == {archive}
        assert states(journal) == ["archived"] * (count - 1) + ["active"]
        before = sum(segment.size for segment in archived)
        compressed = journal.compress(age=0)
        assert sum(segment.size for segment in compressed) < before / 4
        assert states(journal) == ["compressed"] * (count - 1) + ["active"]
        assert numbers(journal) == list(range(500))
        assert journal.verify() == []
    with quire.Journal(tmp_path / "journal", archive_directory=archive, read_only=True) as journal:
        assert numbers(journal) == list(range(500))
        assert journal.find(next(iter(journal.read())).bookmark or "") is not None
        with pytest.raises(quire.ConfigError):
            journal.remove(age=0)
    with quire.Journal(tmp_path / "journal", read_only=True) as journal:
        assert len(journal.segments()) == count, "the journal knows where its archive is"
        assert numbers(journal) == list(range(500))


def test_removed_files_are_gone_and_an_iterator_keeps_what_it_has_not_passed(tmp_path: Path) -> None:
    with quire.Journal(tmp_path, journal_size=SIZE) as journal:
        fill(journal, 3000)
        count = len(journal.segments())
        messages = journal.read()
        assert next(messages).json()["n"] == 0
        removed = journal.remove(age=0)
        assert len(removed) < count - 1
        assert [message.json()["n"] for message in messages] == list(range(1, 3000))
        removed += journal.remove(age=0)
        assert len(removed) == count - 1
        assert not any(segment.path.exists() for segment in removed)
        assert 0 < len(numbers(journal)) < 3000
        assert journal.highest_sequence("loader") == 3000
        with pytest.raises(quire.ConfigError, match="journal_archive_directory"):
            journal.archive(age=0)


def config(tmp_path: Path, **maintenance: str | int) -> quire.Config:
    return quire.Config(
        data_directory=tmp_path,
        transport=[{"address": "127.0.0.1:0"}],
        transaction_log={
            "journal_size": SIZE,
            "journal_archive_directory": "archive",
            "maintenance": maintenance,
            "topic": [{"name": "^", "message_type": "json"}],
        },
    )


def publish(client: quire.Client, count: int) -> None:
    for n in range(count):
        client.publish("orders", {"n": n, "pad": "x" * 500})
    client.flush(PATIENCE)


def test_a_running_server_maintains_its_journal_while_replays_go_on(tmp_path: Path) -> None:
    with quire.Server(config(tmp_path)) as server, quire.Client(server.url, name="loader") as client:
        publish(client, 400)
        journal = server.journal
        sealed = len(journal.segments()) - 1
        assert len(journal.archive(age=0)) == sealed
        assert len(journal.compress(age=0)) == sealed
        with client.subscribe("orders", bookmark=quire.EPOCH) as replay:
            found = [message.json()["n"] for message in islice(replay, 400)]
        assert found == list(range(400))
        deadline = Deadline()
        # The server hears in a while that the subscription is gone.
        while not (removed := journal.remove(age=0)):
            assert deadline.left > 0
        assert 0 < len(removed) <= sealed
        assert not any(segment.path.exists() for segment in removed)


def test_what_a_paused_subscription_has_not_passed_stays(tmp_path: Path) -> None:
    with quire.Server(config(tmp_path)) as server, quire.Client(server.url, name="loader") as client:
        publish(client, 400)
        with client.subscribe("orders", bookmark=quire.EPOCH, paused=True) as replay:
            assert server.journal.remove(age=0) == []
            replay.resume()
            found = [message.json()["n"] for message in islice(replay, 400)]
        assert found == list(range(400))


def test_a_server_keeps_its_schedule(tmp_path: Path) -> None:
    plan = config(
        tmp_path, archive_after="0.01s", compress_after="0.01s", remove_after="1h", interval="0.05s"
    )
    with quire.Server(plan) as server, quire.Client(server.url, name="loader") as client:
        publish(client, 400)
        journal = server.journal
        deadline = Deadline()
        # A file that became old enough between the two actions is compressed in one look and
        # archived in the next.
        while {segment.state for segment in journal.segments()} != {"compressed", "active"} or len(
            list((tmp_path / "archive").glob("*.journal"))
        ) != len(journal.segments()) - 1:
            assert deadline.left > 0
        assert [message.json()["n"] for message in journal.read()] == list(range(400))


def test_the_rules_of_a_server_are_actions(tmp_path: Path) -> None:
    plan = config(tmp_path, archive_after="10ms", compress_size_max=0, remove_after="1h", interval="0.05s")
    names = [f"maintenance.{verb}" for verb in ("archive", "compress", "remove")]
    with (
        lines_of("60-0002") as failures,
        lines_of("20-0004") as lines,
        quire.Server(plan) as server,
        quire.Client(server.url, name="loader") as client,
    ):
        # There is no archive: its rule fails at each interval, and the others do their work.
        (tmp_path / "archive").write_text("not a directory")
        runs = client.subscribe("/quire/Action", filter="/outcome = 'failed'")
        publish(client, 400)
        told = runs.get(timeout=PATIENCE).json()
        assert (told["action"], told["trigger"]) == ("maintenance.archive", "schedule")
        assert server._actions is not None
        figures = server._actions.figures
        wait_until(lambda: {each.state for each in server.journal.segments()} == {"compressed", "active"})
        wait_until(lambda: figures()["maintenance.remove"]["ok"] > 1)
        assert list(figures()) == names
        assert figures()["maintenance.archive"]["failures"] > 0
        assert figures()["maintenance.archive"]["last_error"] == told["error"]
        assert figures()["maintenance.compress"]["failures"] == 0
        assert failures[0].getMessage().startswith("action 'maintenance.archive', started by schedule: ")
    assert {line.getMessage().partition(" ")[2] for line in lines} == {"journal files compressed"}


def test_an_action_with_the_name_of_a_rule_is_a_mistake() -> None:
    action = {"name": "maintenance.remove", "on": "startup", "do": "rotate_logs"}
    for rule, is_refused in (("remove_after", True), ("compress_after", False)):
        mistaken = quire.Config(action=action, transaction_log={"maintenance": {rule: "1d"}})
        if is_refused:
            with pytest.raises(quire.ConfigError, match="another action has the name"):
                mistaken.check()
        else:
            mistaken.check()


def test_a_stop_ends_maintenance_after_the_current_file(tmp_path: Path) -> None:
    remove = {"remove_journal": {"age": "0s"}}
    settings = config(tmp_path).model_copy(
        update={"action": (quire.config.Action(name="act", on={"event": "go"}, do=remove),)}
    )
    with quire.Server(settings) as server, quire.Client(server.url, name="loader") as client:
        publish(client, 400)
        before = len(server.journal.segments())
        assert server._actions is not None
        server._stop_requested = True
        server._actions.start("event", {})
        wait_until(lambda: figures_of(server)["failures"] == 1)
        assert len(server.journal.segments()) == before - 1
        assert "the server stops" in figures_of(server)["last_error"]


def figures_of(server: quire.Server) -> dict[str, Any]:
    assert server._actions is not None
    found: dict[str, Any] = server._actions.figures()["act"]
    return found


def test_the_oldest_files_go_until_the_rest_is_small_enough(tmp_path: Path) -> None:
    with quire.Journal(
        tmp_path / "journal", archive_directory=tmp_path / "archive", journal_size=SIZE
    ) as journal:
        fill(journal, 1500)
        count = len(journal.segments())
        total = sum(segment.size for segment in journal.segments())
        assert count > 4
        assert journal.archive(size_max=total) == []
        assert [segment.number for segment in journal.archive(size_max=total - 1)] == [0]
        assert [segment.number for segment in journal.archive(size_max=2 * SIZE)] == list(range(1, count - 2))
        compressed = journal.compress(size_max=f"{3 * SIZE // 1024}KB")
        assert [segment.number for segment in compressed] == list(range(count - 3))
        kept = sum(segment.size for segment in journal.segments()[1:])
        assert [segment.number for segment in journal.remove(size_max=kept, dry_run=True)] == [0]
        assert [segment.number for segment in journal.remove(size_max=kept)] == [0]
        with pytest.raises(quire.ConfigError, match="either"):
            journal.remove()
        with pytest.raises(quire.ConfigError, match="either"):
            journal.remove(age=0, size_max=0)


def test_a_server_keeps_its_schedule_by_size(tmp_path: Path) -> None:
    # The active file has 128 KB, and so have the others, or a little more: one of them may stay as
    # it is, none where it is.
    plan = config(tmp_path, archive_size_max="200KB", compress_size_max="300KB", interval="0.05s")
    with quire.Server(plan) as server, quire.Client(server.url, name="loader") as client:
        publish(client, 1200)
        journal = server.journal
        deadline = Deadline()
        while [segment.state for segment in journal.segments()][-3:] != ["compressed", "archived", "active"]:
            assert deadline.left > 0
        assert [message.json()["n"] for message in journal.read()] == list(range(1200))


def test_the_journal_directory_is_no_archive_directory(tmp_path: Path) -> None:
    for archive in ("journal", "../data/journal"):
        log = {"journal_archive_directory": archive, "topic": [{"name": "^", "message_type": "json"}]}
        mistaken = quire.Config(
            data_directory=tmp_path / "data", transport=[{"address": "127.0.0.1:0"}], transaction_log=log
        )
        (tmp_path / "data" / "journal").mkdir(parents=True, exist_ok=True)
        with (
            pytest.raises(quire.ConfigError, match="is the journal directory itself"),
            quire.Server(mistaken),
        ):
            pass
    with pytest.raises(quire.ConfigError, match=r"journal_archive_directory.*itself"):
        quire.Config(transaction_log={"journal_directory": "j", "journal_archive_directory": "j"}).check()


def test_a_schedule_without_an_archive_directory_is_a_mistake() -> None:
    mistaken = quire.Config(transaction_log={"maintenance": {"archive_after": "1d"}})
    with pytest.raises(quire.ConfigError, match="archive"):
        mistaken.check()
