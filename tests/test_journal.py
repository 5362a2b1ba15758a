"""`quire.Journal`: the log without a broker: writing, reading, and reading while another process
writes it."""

from __future__ import annotations

import multiprocessing
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import quire
from support.waiting import PATIENCE

#: The smallest segments, so that a test has several.
SMALL = "64KB"


def filled(directory: Path, count: int, *, size: int = 500) -> list[str]:
    """A journal with that many messages on topics `even` and `odd`; gives their bookmarks."""
    with quire.Journal(directory, journal_size=SMALL) as journal:
        bookmarks = []
        for n in range(count):
            data = {"n": n, "pad": "x" * size}
            bookmark = journal.append("odd" if n % 2 else "even", data, publisher="p")
            assert bookmark is not None
            bookmarks.append(bookmark)
        return bookmarks


def numbers(
    journal: quire.JournalReader, bookmark: str | datetime = quire.EPOCH, **options: Any
) -> list[int]:
    return [message.json()["n"] for message in journal.read(bookmark, **options)]


def test_what_is_appended_is_read_back_after_a_reopen(tmp_path: Path) -> None:
    with quire.Journal(tmp_path / "j") as journal:
        first = journal.append("orders", {"qty": 1}, publisher="desk", correlation_id="c-1", expiration="5s")
        assert journal.append("orders", b"\x00\xff", publisher="desk", message_type="binary") is not None
        journal.flush(timeout=PATIENCE)
        assert (journal.persisted, journal.appended) == (2, 2)
    assert (tmp_path / "j" / "quire.0000000000.journal").is_file()
    with quire.Journal(tmp_path / "j") as journal:
        one, two = journal.read()
        assert (one.topic, one.json(), one.correlation_id) == ("orders", {"qty": 1}, "c-1")
        assert (one.bookmark, one.sequence, two.sequence) == (first, 1, 2)
        assert one.bookmark == f"{one.publisher}|1|"
        assert two.data == b"\x00\xff"
        assert abs(one.timestamp - datetime.now(UTC)) < timedelta(minutes=5)
        record = next(journal.records())
        assert (record.position, record.kind, record.message_type, record.expiration_s) == (
            1,
            "publish",
            "json",
            5,
        )
        assert journal.append("orders", "3", publisher="desk") == f"{one.publisher}|3|"


def test_a_number_that_is_not_above_the_highest_is_a_duplicate(tmp_path: Path) -> None:
    with quire.Journal(tmp_path) as journal:
        assert journal.append("t", "a", publisher=7, sequence=5) == "7|5|"
        assert journal.append("t", "a", publisher=7, sequence=5) is None
        assert journal.append("t", "b", publisher=8, sequence=5) == "8|5|"
        assert journal.append_many("t", ["a", "c", "d"], publisher=7, sequence=5) == [None, "7|6|", "7|7|"]
        assert journal.append("t", "e", publisher=7) == "7|8|"
        assert [journal.highest_sequence(publisher) for publisher in (7, 8, 9)] == [8, 5, 0]
        journal.flush(timeout=PATIENCE)
        assert [message.data for message in journal.read()] == [b"a", b"b", b"c", b"d", b"e"]
    with quire.Journal(tmp_path) as journal:
        assert journal.append("t", "a", publisher=7, sequence=8) is None


def test_a_range_begins_behind_one_place_and_ends_with_another(tmp_path: Path) -> None:
    bookmarks = filled(tmp_path, 1000)
    with quire.Journal(tmp_path, read_only=True) as journal:
        assert numbers(journal) == list(range(1000))
        assert numbers(journal, bookmarks[989]) == list(range(990, 1000))
        assert numbers(journal, bookmarks[9], until=bookmarks[19]) == list(range(10, 20))
        assert numbers(journal, f"{bookmarks[500]},{bookmarks[20]}", until=bookmarks[21]) == [21]
        assert numbers(journal, topic="odd", until=bookmarks[8]) == [1, 3, 5, 7]
        assert numbers(journal, topic="^o.d$", filter="/n > 995") == [997, 999]
        assert numbers(journal, quire.NOW) == []
        moment = list(journal.read())[600].timestamp
        moment_ns = round((moment - datetime(1970, 1, 1, tzinfo=UTC)) / timedelta(microseconds=1)) * 1000
        # It is the end of its microsecond, to which the time of the message was cut.
        end_ns = moment_ns + 999
        later = [record.position - 1 for record in journal.records() if record.timestamp_ns > end_ns]
        assert 300 < len(later) < 400
        assert numbers(journal, moment) == later
        until = [record.position - 1 for record in journal.records() if record.timestamp_ns <= end_ns]
        assert until[-1] >= 600
        assert numbers(journal, until=moment) == until
        assert numbers(journal, datetime(2000, 1, 1, tzinfo=UTC)) == list(range(1000))
        assert numbers(journal, until=datetime(2000, 1, 1, tzinfo=UTC)) == []


def test_a_message_is_found_in_the_segment_that_holds_it(tmp_path: Path) -> None:
    bookmarks = filled(tmp_path, 1000)
    with quire.Journal(tmp_path, read_only=True) as journal:
        segments = journal.segments()
        assert [segment.number for segment in segments] == list(range(len(segments)))
        assert len(segments) >= 8
        assert {segment.state for segment in segments[:-1]} == {"sealed"}
        assert segments[-1].state == "active"
        assert sum(segment.count for segment in segments) == 1000
        assert (segments[0].first, segments[-1].last) == (bookmarks[0], bookmarks[-1])
        times = [time for s in segments for time in (s.first_timestamp, s.last_timestamp) if time is not None]
        assert len(times) == 2 * len(segments)
        assert times == sorted(times)
        before = 0
        for segment in segments:
            assert segment.size == segment.path.stat().st_size
            for n in (before, before + segment.count - 1):
                found = journal.find(bookmarks[n])
                assert found is not None
                assert found[0] == segment
                with open(found[0], "rb") as file:
                    file.seek(found[1])
                    assert file.read(4) == b"QBAT"
            before += segment.count
        assert journal.find("1|1|") is None


def test_a_sound_journal_verifies_and_a_flipped_bit_is_named(tmp_path: Path) -> None:
    filled(tmp_path, 1000)
    with quire.Journal(tmp_path, read_only=True) as journal:
        assert journal.verify() == []
        segment = journal.segments()[2]
    with open(segment.path, "r+b") as file:
        file.seek(20_000)
        byte = file.read(1)
        file.seek(20_000)
        file.write(bytes([byte[0] ^ 1]))
    with quire.Journal(tmp_path, read_only=True) as journal:
        damages = journal.verify()
        assert [damage.path for damage in damages] == [segment.path]
        assert damages[0].segment is not None
        assert damages[0].segment.number == 2
        assert damages[0].offset <= 20_000
        assert damages[0].reason
        seen: list[int] = []
        with pytest.raises(quire.JournalCorruptError, match=segment.path.name):
            seen.extend(message.json()["n"] for message in journal.read())
        assert seen == list(range(len(seen)))
        assert len(seen) >= 100


def test_one_process_writes_and_others_read_as_it_grows(tmp_path: Path) -> None:
    with quire.Journal(tmp_path, journal_size=SMALL) as journal:
        with pytest.raises(quire.JournalLockedError):
            quire.Journal(tmp_path)
        with quire.Journal(tmp_path, read_only=True) as other:
            assert list(other.read()) == []
            for n in range(0, 1000, 100):
                journal.append_many("t", [{"n": n + i, "pad": "x" * 300} for i in range(100)], publisher="p")
                journal.flush(timeout=PATIENCE)
                assert numbers(other) == list(range(n + 100))
                assert other.persisted == n + 100
            assert len(other.segments()) == len(journal.segments()) > 3
            with pytest.raises(quire.ConfigError, match="to be read"):
                other.append("t", b"", publisher="p")


def test_a_reader_goes_on_behind_files_that_another_process_removed(tmp_path: Path) -> None:
    with quire.Journal(tmp_path, journal_size="64KB") as journal:
        journal.append_many("orders", [{"n": n, "pad": "x" * 500} for n in range(50)], publisher="loader")
        journal.flush(PATIENCE)
        reader = quire.Journal(tmp_path, read_only=True)
        assert reader.persisted == 50
        journal.append_many(
            "orders", [{"n": n, "pad": "x" * 500} for n in range(50, 1000)], publisher="loader"
        )
        journal.flush(PATIENCE)
        # With a reader in this process they would stay.
        assert len(journal.remove(age=0)) > 2
        left = [message.json()["n"] for message in journal.read()]
        assert (reader.persisted, left[-1]) == (1000, 999)
        assert [message.json()["n"] for message in reader.read()] == left
        assert reader.segments() == journal.segments()
        assert reader.verify() == []


def test_a_running_server_shows_its_journal(tmp_path: Path) -> None:
    config = quire.Config(data_directory=tmp_path, transport={"address": "127.0.0.1:0"})
    server = quire.Server(config)
    with pytest.raises(quire.QuireError, match="not running"):
        _ = server.journal
    with server, quire.Client(server.url, name="p") as client:
        for n in range(100):
            client.publish("t", {"n": n})
        client.flush(timeout=PATIENCE)
        journal = server.journal
        assert numbers(journal, filter="/n >= 90") == list(range(90, 100))
        assert journal.persisted == 100
        assert journal.verify() == []
        assert [segment.count for segment in journal.segments()] == [100]
        last = journal.segments()[0].last
        assert last is not None
        assert journal.find(last) is not None
        with quire.Journal(config.journal_directory, read_only=True) as beside:
            assert numbers(beside) == list(range(100))
    with pytest.raises(quire.DisconnectedError, match="the server is not running"):
        _ = server.journal


def test_threads_share_a_journal(tmp_path: Path) -> None:
    with quire.Journal(tmp_path) as journal:

        def write(publisher: int) -> None:
            for n in range(200):
                assert journal.append("t", {"n": n}, publisher=publisher) == f"{publisher}|{n + 1}|"

        threads = [threading.Thread(target=write, args=(publisher,)) for publisher in range(1, 5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        journal.flush(timeout=PATIENCE)
        for publisher in "1234":
            mine = [message for message in journal.read() if message.publisher == publisher]
            assert [message.json()["n"] for message in mine] == list(range(200))


def test_more_than_may_wait_for_the_disk_is_appended_all_the_same(tmp_path: Path) -> None:
    count, data = 80, b"x" * (1 << 20)
    with quire.Journal(tmp_path) as journal:
        assert None not in journal.append_many("t", [data] * count, publisher="p")
        journal.flush(timeout=PATIENCE)
        assert sum(len(message) for message in journal.read()) == count * len(data)


def test_a_closed_journal_says_so(tmp_path: Path) -> None:
    journal = quire.Journal(tmp_path)
    journal.append("t", b"1", publisher="p")
    journal.close()
    journal.close()
    for use in (journal.read, journal.segments, journal.verify, journal.flush, lambda: journal.persisted):
        with pytest.raises(ValueError, match="the journal is closed"):
            use()
    with pytest.raises(ValueError, match="the journal is closed"):
        journal.append("t", b"2", publisher="p")
    with quire.Journal(tmp_path) as again:
        assert [message.data for message in again.read()] == [b"1"]


def test_mistakes_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no such directory"):
        quire.Journal(tmp_path / "nowhere", read_only=True)
    filled(tmp_path / "data" / "journal", 1)
    with pytest.raises(FileNotFoundError, match=r"perhaps you mean .*data/journal"):
        quire.Journal(tmp_path / "data", read_only=True)
    with pytest.raises(quire.ConfigError, match="journal_size: 1024 bytes, the smallest is 65536") as refused:
        quire.Journal(tmp_path / "new", journal_size="1KB")
    assert refused.value.key == "journal_size"
    with pytest.raises(quire.ConfigError, match="durability"):
        quire.Journal(tmp_path / "new", durability="disk")  # type: ignore[arg-type]
    with pytest.raises(quire.ConfigError, match="flush_interval"):
        quire.Journal(tmp_path / "new", flush_interval="1s")
    with quire.Journal(tmp_path / "new") as journal:
        with pytest.raises(quire.BadFilterError) as unparsed:
            journal.read(filter="/a = ")
        assert unparsed.value.column == 6
        with pytest.raises(quire.BadTopicError):
            journal.read(topic="(")
        with pytest.raises(quire.BadBookmarkError, match="yesterday"):
            journal.read("yesterday")
        with pytest.raises(quire.BadBookmarkError, match="not in this journal"):
            journal.read("12|34|")
        with pytest.raises(quire.BadBookmarkError):
            journal.find("0")
        with pytest.raises(quire.ConfigError, match="message_type"):
            journal.append("t", b"", publisher="p", message_type="yaml")
        for topic in ("", "t" * 1025, "a\nb", "a\x00"):
            with pytest.raises(quire.BadTopicError, match="topic"):
                journal.append(topic, b"", publisher="p")
        with pytest.raises(quire.ConfigError, match="sequence"):
            journal.append("t", b"", publisher="p", sequence=0)
        assert journal.appended == 0


def _use_after_fork(journal: quire.Journal, answer: multiprocessing.connection.Connection) -> None:
    try:
        journal.append("t", b"child", publisher="p")
    except RuntimeError as error:
        answer.send(str(error))
    journal.close()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_is_noticed_and_harms_nothing(tmp_path: Path) -> None:
    with quire.Journal(tmp_path) as journal:
        journal.append("t", b"parent", publisher="p")
        context = multiprocessing.get_context("fork")
        answers, answer = context.Pipe(duplex=False)
        child = context.Process(target=_use_after_fork, args=(journal, answer))
        child.start()
        assert answers.poll(PATIENCE)
        assert "before a fork" in answers.recv()
        child.join(PATIENCE)
        assert child.exitcode == 0
        journal.append("t", b"parent again", publisher="p")
        journal.flush(timeout=PATIENCE)
        assert [message.data for message in journal.read()] == [b"parent", b"parent again"]


def test_a_delete_passes_every_filter(tmp_path: Path) -> None:
    topic = {"name": "orders", "message_type": "json"}
    queue = {"name": "jobs", "message_type": "json", "underlying_topic": "orders"}
    config = quire.Config(sow_topic=topic, queue=queue)
    with quire.Client(f"file:{tmp_path}", config=config) as client:
        for key in ("a", "b"):
            client.publish("orders", {"v": key}, sow_key=key)
        client.flush(timeout=PATIENCE)
        client.subscribe("jobs", max_backlog=1).get(PATIENCE).ack()
        client.sow_delete("orders", keys=["a"])
        client.flush(timeout=PATIENCE)
    with quire.Journal(tmp_path, read_only=True) as journal:
        found = [(record.kind, record.deleted_keys) for record in journal.records(filter="/v = 'b'")]
        assert found == [("publish", []), ("delete", [b"a"])]
        assert [record.deleted_keys for record in journal.records(filter="/v = 'no'")] == [[b"a"]]
        assert [message.data for message in journal.read(filter="/v = 'b'")] == [b'{"v":"b"}']
