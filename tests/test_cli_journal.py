"""`quire journal`: its output for people and pipes, while a server writes the files, and its exit
codes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import quire
import quire.testing
from quire.cli import run
from support.waiting import PATIENCE


class Result(NamedTuple):
    code: int
    out: str
    err: str


Command = Callable[..., Result]


@pytest.fixture
def command(capfd: pytest.CaptureFixture[str]) -> Command:
    """Runs `quire journal` in this process: a new one for each would take a second."""

    def command(*arguments: object) -> Result:
        code = run(["journal", *map(str, arguments)])
        return Result(code, *capfd.readouterr())

    return command


def lines(result: Result) -> list[Any]:
    assert result.code == 0, result.err
    return [json.loads(line) for line in result.out.splitlines()]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A journal of several segments: 600 messages, numbered from 0, on the topics even and odd."""
    with quire.Journal(tmp_path / "journal", journal_size="64KB") as journal:
        for n in range(600):
            journal.append("odd" if n % 2 else "even", {"n": n, "pad": "x" * 200}, publisher=17)
    return tmp_path / "journal"


def test_ls_lists_the_segments(command: Command, directory: Path) -> None:
    segments = lines(command("ls", directory, "--json"))
    assert sum(segment["count"] for segment in segments) == 600
    assert [segment["state"] for segment in segments] == ["sealed"] * (len(segments) - 1) + ["active"]
    assert (segments[0]["first"], segments[-1]["last"]) == ("17|1|", "17|600|")
    table = command("ls", directory).out.splitlines()
    assert table[0].split("\t") == ["file", "state", "records", "bytes", "from", "to"]
    assert [row.split("\t")[2] for row in table[1:]] == [str(segment["count"]) for segment in segments]


def test_dump_shows_what_queues_write_by_its_kind_and_size(command: Command, tmp_path: Path) -> None:
    config = quire.Config(queue={"name": "work", "message_type": "json", "record_leases": True})
    with quire.Client(f"file:{tmp_path}", name="worker", config=config) as client:
        client.publish("work", {"n": 1})
        client.subscribe("work").get(timeout=PATIENCE).ack()
        client.flush(timeout=PATIENCE)
    rows = [row.split() for row in command("dump", tmp_path).out.splitlines()[1:]]
    # The holder is shown together with the result. The name of the consumer does not look like a
    # message.
    assert [(row[3], row[4]) for row in rows] == [
        ("publish", "work"),
        ("acknowledge", "work"),
        ("lease", "work"),
    ]
    assert [row[6:] for row in rows[:2]] == [['{"n":1}'], ["(14", "bytes)"]]
    assert rows[2][7:] == ["bytes)"]


def test_dump_shows_where_records_came_from_their_keys_and_deletes(command: Command) -> None:
    golden = Path(__file__).parent / "golden" / "journal-v2"
    stored = ("--archive-directory", golden / "archive", "--json")
    # The twelfth was received and has a key; the seventh deletes three.
    rows = lines(command("dump", golden / "journal", *stored, "--count", "12"))
    shown = [(row["kind"], row["key"], row["deleted_keys"], row["source_position"]) for row in rows]
    assert shown[0] == ("publish", None, [], None)
    assert shown[6] == ("delete", None, ["key-1", "key-2", "key-3"], None)
    assert shown[11] == ("publish", "key-12", [], 1012)
    assert rows[0]["path"] == []
    assert rows[11]["path"] == [
        {"instance": "west-1", "group": "west"},
        {"instance": "hub", "group": "hub"},
    ]
    assert command("verify", golden / "journal", "--archive-directory", golden / "archive").code == 0


def test_a_filter_prints_messages_only(command: Command) -> None:
    golden = Path(__file__).parent / "golden" / "journal-v2"
    stored = (golden / "journal", "--archive-directory", golden / "archive", "--json")
    # The seventh of its records is a delete.
    dumped = lines(command("dump", *stored, "--filter", "1 = 1"))
    assert dumped
    assert {row["kind"] for row in dumped} == {"publish"}
    assert lines(command("grep", golden / "journal", "1 = 1", *stored[1:])) == dumped


def test_dump_prints_a_range(command: Command, directory: Path) -> None:
    records = lines(
        command("dump", directory, "--topic", "odd", "--from", "17|10|", "--until", "17|16|", "--json")
    )
    assert [(r["position"], r["topic"], r["data"]["n"]) for r in records] == [
        (n + 1, "odd", n) for n in (11, 13, 15)
    ]
    first = lines(command("dump", directory, "--count", "1", "--json"))[0]
    assert (first["bookmark"], first["kind"], first["message_type"]) == ("17|1|", "publish", "json")
    assert (directory / first["segment"]).read_bytes()[first["offset"] :].startswith(b"QBAT")
    assert lines(command("dump", directory, "--from", "2001-02-03", "--json"))[0] == first
    assert lines(command("dump", directory, "--until", "2001-02-03T04:05", "--json")) == []
    raw = command("dump", directory, "--format", "raw", "--filter", "/n >= 598")
    assert [json.loads(line)["n"] for line in raw.out.splitlines()] == [598, 599]
    table = command("dump", directory, "--count", "2").out.splitlines()
    assert table[0].split()[0] == "position"
    assert table[2].split()[-1].startswith('{"n":1,')


def test_grep_prints_what_matches_and_says_when_nothing_does(command: Command, directory: Path) -> None:
    assert [
        record["data"]["n"]
        for record in lines(command("grep", directory, "/n > 596", "--topic", "^o", "--json"))
    ] == [
        597,
        599,
    ]
    assert command("grep", directory, "/n > 1000").code == 1
    wrong = command("grep", directory, "/n > > 5")
    assert wrong.code == 2
    assert "/n > > 5\n     ^\n" in wrong.err


def test_grep_lists_the_messages_that_no_filter_can_read(command: Command, tmp_path: Path) -> None:
    directory = tmp_path / "odd"
    config = quire.Config(
        transaction_log={
            "topic": [{"name": "x", "message_type": "xml"}, {"name": "^", "message_type": "json"}],
        }
    )
    with quire.Client(f"file:{directory}", config=config) as client:
        client.publish("x", b"\xef\xbb\xbf<o><id>1</id></o>")
        client.publish("x", b"<o><id>2</o>")
        client.publish("j", {"id": 3})
        client.publish("j", b'{"id":4,"qty":10')
        client.flush()
    found = lines(command("grep", directory, "--unreadable", "--json"))
    assert [(record["topic"], record["unreadable"].partition(":")[0]) for record in found] == [
        ("x", "malformed at byte 8"),
        ("j", "malformed at byte 16"),
    ]
    assert found[0]["bookmark"]
    table = command("grep", directory, "--unreadable", "--topic", "x")
    assert table.code == 0
    assert "cause" in table.out.splitlines()[0]
    assert "well-formed XML expected (xml, 12 bytes)" in table.out
    assert len(lines(command("grep", directory, "--unreadable", "--json", "--count", "1"))) == 1
    assert command("grep", directory, "/o/id = 1").code == 0
    assert command("grep", directory, "--unreadable", "--topic", "other").code == 1
    for arguments in (["/id = 1", "--unreadable"], []):
        refused = command("grep", directory, *arguments)
        assert refused.code == 2
        assert "give either FILTER or --unreadable" in refused.err


def test_find_names_file_and_offset(command: Command, directory: Path) -> None:
    found = lines(command("find", directory, "17|300|", "--json"))[0]
    plain = command("find", directory, "17|300|")
    assert plain.out == f"{found['segment']} {found['offset']}\n"
    assert any(
        r["offset"] == found["offset"]
        for r in lines(command("dump", directory, "--from", "17|299|", "--count", "1", "--json"))
    )
    missing = command("find", directory, "17|601|", "--json")
    assert (missing.code, json.loads(missing.out)["segment"]) == (1, None)


def test_verify_fails_for_one_wrong_bit(command: Command, directory: Path) -> None:
    assert lines(command("verify", directory, "--json")) == [
        {"is_sound": True, "segments": 4, "records": 600, "damages": []}
    ]
    sound = command("verify", directory)
    assert sound.out == "sound: 600 records in 4 journal files\n"
    path = sorted(directory.glob("*.journal"))[1]
    content = bytearray(path.read_bytes())
    content[9000] ^= 4
    path.write_bytes(content)
    damaged = command("verify", directory)
    assert damaged.code == 1
    assert damaged.out.splitlines()[1].startswith(str(path))
    dump = command("dump", directory, "--format", "raw")
    assert dump.code == 1
    assert path.name in dump.err
    assert "Traceback" not in dump.err
    assert len(dump.out.splitlines()) >= 100


def test_a_journal_is_read_beside_the_server_that_writes_it(command: Command, tmp_path: Path) -> None:
    with (
        quire.testing.server(tmp_path) as server,
        quire.Client(server.url) as client,
    ):
        for n in range(2):
            client.publish("orders", {"n": n})
            client.flush(timeout=PATIENCE)
            records = lines(command("dump", tmp_path / "journal", "--json"))
            assert [record["data"]["n"] for record in records] == list(range(n + 1))
            assert lines(command("verify", tmp_path / "journal", "--json"))[0]["is_sound"]


def test_a_place_without_a_journal_is_said_so(command: Command, tmp_path: Path, directory: Path) -> None:
    for place, text in (
        (tmp_path / "nowhere", "there is no such directory"),
        (directory.parent, f"perhaps you mean {directory}"),
        (next(directory.glob("*.journal")), "a journal is a directory"),
    ):
        result = command("ls", place)
        assert result.code == 2
        assert text in result.err
        assert "Errno" not in result.err


@pytest.mark.parametrize("action", ["archive", "compress", "remove"])
def test_the_command_line_takes_care_of_a_stopped_journal(
    command: Command, tmp_path: Path, action: str
) -> None:
    directory, archive = tmp_path / "journal", tmp_path / "archive"
    (tmp_path / "other").mkdir()
    with quire.Journal(directory, journal_size="64KB") as journal:
        journal.append_many("orders", [{"pad": "x" * 500}] * 500, publisher="loader")
        journal.flush(PATIENCE)
        count = len(journal.segments())
        locked = command(action, directory, "--age", "0s", "--archive-directory", archive)
        assert locked.code != 0
        assert "another process" in locked.err
    arguments = (directory, "--age", "0s", "--archive-directory", archive, "--json")
    planned = command(action, *arguments, "--dry-run")
    assert len(planned.out.splitlines()) == count - 1
    by_size = (directory, "--archive-directory", archive, "--json", "--dry-run", "--size-max")
    # The active file, which cannot be processed, counts: of files of about 68 KB each, two others
    # stay.
    assert len(command(action, *by_size, "220KB").out.splitlines()) == count - 3
    assert command(action, *by_size, "1GB").out == ""
    assert command(action, directory, "--archive-directory", archive).code == 2
    for itself in (directory, tmp_path / "other" / ".." / "journal"):
        refused = command(action, directory, "--age", "0s", "--archive-directory", itself)
        assert (refused.code, "is the journal directory itself" in refused.err) == (2, True)
    with quire.Journal(directory, read_only=True) as journal:
        assert [segment.state for segment in journal.segments()] == ["sealed"] * (count - 1) + ["active"]
    done = command(action, *arguments)
    assert done.code == 0
    assert [json.loads(line)["number"] for line in done.out.splitlines()] == list(range(count - 1))
    listed = command("ls", directory, "--archive-directory", archive, "--json")
    shown = [json.loads(line)["state"] for line in listed.out.splitlines()]
    expected = {"archive": ["archived"], "compress": ["compressed"], "remove": []}[action]
    assert shown == expected * (count - 1) + ["active"]
    assert command("verify", directory, "--archive-directory", archive).code == 0


@pytest.fixture
def archived(tmp_path: Path) -> tuple[Path, Path]:
    """A journal, and the archive that its oldest files are in."""
    directory, archive = tmp_path / "journal", tmp_path / "archive"
    with quire.Journal(directory, journal_size="64KB", archive_directory=archive) as journal:
        journal.append_many("orders", [{"n": n, "pad": "x" * 500} for n in range(500)], publisher="loader")
        journal.flush(PATIENCE)
        assert len(journal.archive(size_max="220KB")) > 1
    return directory, archive


def test_every_command_finds_archived_files_by_itself(
    command: Command, archived: tuple[Path, Path], capfd: pytest.CaptureFixture[str]
) -> None:
    directory, archive = archived
    with quire.Journal(directory) as journal:
        count = len(journal.segments())
        assert [message.json()["n"] for message in journal.read()] == list(range(500))
    assert len(lines(command("ls", directory, "--json"))) == count
    assert len(lines(command("dump", directory, "--json"))) == 500
    assert len(lines(command("grep", directory, "/n < 3", "--json"))) == 3
    (first,) = lines(command("dump", directory, "--count", 1, "--json"))
    (found,) = lines(command("find", directory, first["bookmark"], "--json"))
    assert Path(found["segment"]).parent == archive
    assert lines(command("verify", directory, "--json"))[0]["records"] == 500
    copy = str(directory.with_name("copy"))
    assert run(["replay", str(directory), "--url", f"file:{copy}", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["published"] == 500
    # More goes where the rest is.
    assert {
        Path(file["path"]).parent for file in lines(command("archive", directory, "--age", "0s", "--json"))
    } == {archive}
    assert len(lines(command("compress", directory, "--age", "0s", "--json"))) == count - 1
    assert len(lines(command("remove", directory, "--age", "0s", "--json"))) == count - 1
    assert list(archive.glob("*.journal")) == []
    assert command("verify", directory).code == 0


def test_missing_files_are_named_and_can_be_given_up(command: Command, archived: tuple[Path, Path]) -> None:
    directory, archive = archived
    missing = sorted(path.name.split(".")[1] for path in archive.glob("*.journal"))
    moved = archive.rename(archive.with_name("moved"))
    files = f"journal files {missing[0]} to {missing[-1]} are missing"
    for action, *arguments in (
        ["ls"],
        ["verify"],
        ["dump"],
        ["archive", "--age", "0s"],
        ["compress", "--age", "0s"],
        ["remove", "--age", "0s"],
        ["verify", "--archive-directory", archive.with_name("elsewhere")],
    ):
        refused = command(action, directory, *arguments)
        assert (refused.code, refused.out) == (1, ""), action
        assert files in refused.err
        assert str(archive) in refused.err
    for read_only in (True, False):
        with pytest.raises(quire.JournalCorruptError, match=files):
            quire.Journal(directory, read_only=read_only)
    assert command("verify", directory, "--archive-directory", moved).code == 0
    for mistake in (["--age", "0s"], ["--size-max", "1MB"], ["--dry-run"], ["--url", "quire://127.0.0.1:1"]):
        assert command("remove", directory, "--missing", *mistake).code == 2
    copy = directory.with_name("copy")
    shutil.copytree(directory, copy)
    shown = command("remove", copy, "--missing").out
    assert shown == f"the log no longer contains journal files {missing[0]} to {missing[-1]}\n"
    given_up = lines(command("remove", directory, "--missing", "--json"))
    assert given_up == [{"first": int(missing[0]), "last": int(missing[-1])}]
    assert command("remove", directory, "--missing").out == "no file is missing\n"
    with quire.Journal(directory) as journal:
        assert len(list(journal.read())) < 500
        assert journal.highest_sequence("loader") == 500
    assert command("verify", directory).code == 0


def test_the_archive_of_a_journal_that_was_never_archived_has_to_be_named(
    command: Command, directory: Path
) -> None:
    refused = command("archive", directory, "--age", "0s")
    assert (refused.code, refused.out) == (2, "")
    assert "--archive-directory: it is required, because this journal was not archived before" in refused.err
