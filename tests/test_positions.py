"""Bookmarks and times have the same forms, and the same words of error, in calls, on the command
line and as options of Spark."""

from __future__ import annotations

import json
import pickle
import shutil
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import quire
import quire.testing
from hypothesis import given
from hypothesis import strategies as st
from quire._bookmarks import bookmark_to_core, instant_to_core, range_to_core, time_ns, until_to_core
from quire.cli import USER_MISTAKE, run
from quire.spark._options import read_options
from support.waiting import PATIENCE

WORDS = '\'yesterday\' is not a bookmark or a time: expected "epoch", "now", a bookmark such as'

#: Where a message is named, and not a position.
ONE_MESSAGE = "'yesterday' is not the bookmark of a message, such as \"4711|17|\""

#: The input of a person, and the input of the core.
FORMS: list[tuple[Any, str]] = [
    ("epoch", "0"),
    ("EPOCH", "0"),
    ("0", "0"),
    ("0|0|", "0"),
    ("now", "0|1|"),
    (quire.NOW, "0|1|"),
    (" 7|1| ", "7|1|"),
    ("7|1|,8|4|", "7|1|,8|4|"),
    (["7|1|", "8|4|"], "7|1|,8|4|"),
    (quire.testing.message("orders", b"", bookmark="7|3|"), "7|3|"),
    (["7|1|", quire.testing.message("orders", b"", bookmark="7|3|")], "7|1|,7|3|"),
    ("20150102T123500Z", "20150102T123500Z"),
    ("20150102T123500", "20150102T123500Z"),
    ("20150102T123500.5", "20150102T123500.500000Z"),
    ("2015-01-02T12:35:00Z", "20150102T123500Z"),
    ("2015-01-02T14:35+02:00", "20150102T123500Z"),
    ("2015-01-02 12:35:00.000005", "20150102T123500.000005Z"),
    ("2015-01-02T12:35:00.123456789Z", "20150102T123500.123456789Z"),
    ("2015-01-02T12:35:00.000000001Z", "20150102T123500.000000001Z"),
    ("2015-01-02", "20150102T000000Z"),
    (datetime(2015, 1, 2, 12, 35, 0, 5, tzinfo=UTC), "20150102T123500.000005999Z"),
    (datetime(2015, 1, 2, 14, 35, tzinfo=timezone(timedelta(hours=2))), "20150102T123500.000000999Z"),
    ([datetime(2015, 1, 2, tzinfo=UTC), "now"], "20150102T000000.000000999Z,0|1|"),
    (pd.Timestamp("2015-01-02T12:35:00.000005Z"), "20150102T123500.000005000Z"),
    ("20150102", "20150102T000000Z"),
    ("2015-01-02t12:35:00z", "20150102T123500Z"),
    ("20150102t123500.5z", "20150102T123500.500000Z"),
    (
        datetime(2015, 1, 2, 12, tzinfo=timezone(timedelta(hours=1, seconds=30))),
        "20150102T105930.000000999Z",
    ),
]

#: What is refused, and a part of the reason.
REFUSED: list[tuple[Any, str]] = [
    ("yesterday", WORDS),
    ("", "'' is not a bookmark or a time"),
    ("7|1", "not a bookmark or a time"),
    ("-1|2|", "not a bookmark or a time"),
    ("18446744073709551616|1|", "not a bookmark or a time"),
    ("7|1|,,8|1|", "'' is not a bookmark or a time"),
    ("20150230", "'20150230' is not a bookmark or a time"),
    ("2015010", "'2015010' is not a bookmark or a time"),
    (("7|1|", "7|2|"), "a tuple is neither a range nor a list: give the end of a range as `until`"),
    ("2015-02-30", "'2015-02-30' is not a bookmark or a time"),
    ("most_recently", "not a bookmark or a time"),
    ("x" * 1000, "xx…'"),
    ("1969-12-31T23:00:00Z", "not between the years 1970 and 2553"),
    (datetime(9999, 1, 1, tzinfo=UTC), "not between the years 1970 and 2553"),
    (datetime.max.replace(tzinfo=timezone(timedelta(hours=-2))), "not between the years 1970 and 2553"),
    (datetime(2015, 1, 2), "has no time zone, add one such as datetime.UTC"),
    (pd.NaT, "expected a bookmark, a time or a Message, or a list of them, got `NaTType`"),
    ([pd.NaT], "got `NaTType`"),
    (quire.testing.message("orders", b"", bookmark=None), "'orders' has no bookmark"),
    (["7|1|"] * 4097, "a list of 4097 bookmarks, the limit is 4096"),
    (5, "expected a bookmark, a time or a Message, or a list of them, got `int`"),
    ([], "got `list`"),
    ([1], "got `int`"),
    (True, "got `bool`"),
    (b"0", "got `"),
]


@pytest.mark.parametrize(("given_", "expected"), FORMS)
def test_every_form_becomes_what_the_core_reads(given_: Any, expected: str) -> None:
    assert bookmark_to_core(given_, "bookmark") == expected
    assert range_to_core(given_, "bookmark") == expected
    assert bookmark_to_core(expected, "bookmark") == expected, "what the core reads stays as it is"


@pytest.mark.parametrize(("given_", "reason"), REFUSED)
def test_everything_else_is_an_error_that_names_the_argument(given_: Any, reason: str) -> None:
    for read in (bookmark_to_core, range_to_core):
        with pytest.raises(quire.BadBookmarkError) as caught:
            read(given_, "until")
        assert caught.value.key == "until"
        assert str(caught.value).startswith("until: ")
        assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[0:0|1|]", "[0:0|1|]"),
        ("[epoch:now]", "[0:0|1|]"),
        ("(7|1|,8|1|:]", "(7|1|,8|1|:]"),
        ("[:now)", "[:0|1|)"),
        ("[2026-01-01T10:30:00Z:2026-01-02]", "[20260101T103000Z:20260102T000000Z]"),
        ("[2026-01-01T10:30:2026-01-01T11:45:10+01:00)", "[20260101T103000Z:20260101T104510Z)"),
        ("[20260101T103000Z:7|9|]", "[20260101T103000Z:7|9|]"),
        ("most_recent", quire.MOST_RECENT),
    ],
)
def test_ranges_have_places_of_every_form_on_both_sides(text: str, expected: str) -> None:
    assert range_to_core(text, "bookmark") == expected
    assert range_to_core(expected, "bookmark") == expected


@pytest.mark.parametrize("text", ["[", "[]", "[0]", "[0:0", "(0|1|", "[:x]", "[yesterday:]", "[0:0|1|,0]"])
def test_what_is_no_range_is_refused(text: str) -> None:
    with pytest.raises(quire.BadBookmarkError, match="is not a range such as"):
        range_to_core(text, "bookmark")


class Instant(datetime):
    """A datetime with nanoseconds, as pandas has."""

    nanosecond = 7


def test_a_datetime_is_the_end_of_its_microsecond_unless_it_has_nanoseconds() -> None:
    at = datetime(2015, 1, 2, 12, 35, 0, 5, tzinfo=UTC)
    assert until_to_core(at, at, "bookmark") == "(20150102T123500.000005999Z:20150102T123500.000005999Z]"
    assert bookmark_to_core("2015-01-02T12:35:00.000005", "until") == "20150102T123500.000005Z"
    exact = Instant(2015, 1, 2, 12, 35, 0, 5, tzinfo=UTC)
    assert bookmark_to_core(exact, "until") == "20150102T123500.000005007Z"


def test_a_duration_before_now_is_a_time(journal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quire._bookmarks.time.time_ns", lambda: time_ns("2026-01-02T03:04:05.000000006Z"))
    for text, expected in {
        "-1h": "20260102T020405.000000006Z",
        "-1.5 d": "20251231T150405.000000006Z",
        "-5ns": "20260102T030405.000000001Z",
        "-0": "20260102T030405.000000006Z",
    }.items():
        assert bookmark_to_core(text, "bookmark") == expected
        assert range_to_core(f"[{text}:now]", "bookmark") == f"[{expected}:0|1|]"
    for text in ("-", "-1", "-1x", "--1h", "-100d -1h", "-400000d"):
        with pytest.raises(quire.BadBookmarkError):
            bookmark_to_core(text, "bookmark")


@pytest.mark.parametrize("options", [["--from", "-1h"], ["--from=-1h"], ["--until", "-0s"]])
def test_the_command_line_takes_a_duration_before_now(
    journal: Path, options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["journal", "dump", str(journal), "--json", *options]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 5


@given(st.integers(0, (1 << 63) - 1))
def test_an_instant_reads_back_to_the_microsecond(ns: int) -> None:
    assert time_ns(instant_to_core(ns)) == ns // 1000 * 1000


def test_the_error_survives_pickle() -> None:
    with pytest.raises(quire.BadBookmarkError) as caught:
        bookmark_to_core("yesterday", "until")
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (str(copy), copy.key) == (str(caught.value), "until")


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    directory = tmp_path / "journal"
    with quire.Journal(directory) as log:
        log.append_many("orders", [b"%d" % number for number in range(1, 6)], publisher="loader")
        log.flush()
    return directory


def test_the_client_the_journal_and_the_testing_module_refuse_with_the_same_words(journal: Path) -> None:
    def refused(call: Any) -> str:
        with pytest.raises(quire.BadBookmarkError) as caught:
            call()
        assert caught.value.key == "bookmark"
        return str(caught.value)

    with quire.Client("memory:positions") as client, quire.Journal(journal, read_only=True) as log:
        texts = {refused(call) for call in (lambda: log.read("yesterday"), lambda: log.records("yesterday"))}
        assert len(texts) == 1
        assert WORDS in (of_a_journal := texts.pop())
        # A client keeps positions, too.
        of_a_client = refused(lambda: client.subscribe("orders", bookmark="yesterday"))
        assert of_a_client == f'{of_a_journal}, or "most_recent" with a sub_id'
        for call in (
            lambda: log.find("yesterday"),
            lambda: quire.testing.message("orders", b"", bookmark="yesterday"),
        ):
            assert refused(call) == f"bookmark: {ONE_MESSAGE}"
        with pytest.raises(quire.BadBookmarkError) as caught:
            log.read(until="yesterday")
        assert caught.value.key == "until"
        with pytest.raises(quire.BadBookmarkError, match="bookmarks: 'yesterday' is not the bookmark of"):
            client.ack("orders", ["yesterday"])
        with pytest.raises(
            quire.BadBookmarkError, match="bookmarks: 'epoch' is not the bookmark of a message"
        ):
            client.ack("orders", "epoch")


def test_a_replay_begins_at_a_message_a_word_or_a_time(journal: Path) -> None:
    with quire.Journal(journal, read_only=True) as log:
        messages = list(log.read("epoch"))
        assert [message.data for message in log.read(messages[1])] == [b"3", b"4", b"5"]
        assert [message.data for message in log.read(until=messages[1])] == [b"1", b"2"]
        assert list(log.read("now")) == []
        assert len(list(log.read("2026-01-01"))) == 5
        assert log.find(messages[1]) == log.find(messages[1].bookmark or "")


def test_a_subscription_begins_at_a_message() -> None:
    with quire.Client("memory:positions-2", name="loader") as client:
        for number in range(1, 6):
            client.publish("orders", b"%d" % number)
        client.flush(PATIENCE)
        with client.subscribe("orders", bookmark="[epoch:now]") as everything:
            messages = list(everything)
        with client.subscribe("orders", bookmark=messages[2]) as rest:
            assert [rest.get(PATIENCE).data for _ in range(2)] == [b"4", b"5"]
        with client.subscribe("orders", bookmark=[messages[4], messages[3]]) as rest:
            assert rest.get(PATIENCE).data == b"5"


def test_a_subscription_ends_at_a_message_or_its_time() -> None:
    with quire.Client("memory:positions-3", name="loader") as client:
        for number in range(1, 6):
            client.publish("orders", b"%d" % number)
            client.flush(PATIENCE)
        messages = list(client.subscribe("orders", bookmark="epoch", until="now"))

        def between(begin: Any, end: Any) -> list[bytes]:
            return [message.data for message in client.subscribe("orders", bookmark=begin, until=end)]

        assert between(messages[0], messages[3]) == [b"2", b"3", b"4"]
        assert between([messages[4], messages[1]], messages[3].bookmark) == [b"3", b"4"]
        for message in messages:
            earlier = [each.data for each in messages if each.timestamp <= message.timestamp]
            later = [each.data for each in messages if each.timestamp > message.timestamp]
            assert (between("epoch", message.timestamp), between(message.timestamp, "now")) == (
                earlier,
                later,
            )
        subscription = client.subscribe("orders", bookmark="now")
        subscription.replace(bookmark=messages[0], until=messages[1])
        assert [message.data for message in subscription] == [b"2"]
        with pytest.raises(quire.ConfigError, match="until: it requires `bookmark`"):
            client.subscribe("orders", until="now")
        for begin in ("[epoch:now]", quire.MOST_RECENT):
            with pytest.raises(quire.BadBookmarkError, match="does not go together with `until`"):
                client.subscribe("orders", bookmark=begin, until="now", sub_id="s")
        with pytest.raises(quire.BadBookmarkError, match="until: expected a bookmark, a time or a Message"):
            client.subscribe("orders", bookmark="epoch", until=["now"])  # type: ignore[arg-type]


def test_a_range_has_the_message_whose_timestamp_is_its_end_and_not_the_one_whose_timestamp_is_its_beginning(
    tmp_path: Path,
) -> None:
    # The times of its messages are 1,000,003 nanoseconds apart.
    golden = shutil.copytree(Path(__file__).parent / "golden" / "journal-v5", tmp_path / "golden")
    with quire.Journal(golden / "journal", archive_directory=golden / "archive", read_only=True) as log:
        messages = list(log.read())
        of_a_journal = [
            (list(log.read(message.timestamp)), list(log.read(until=message.timestamp)))
            for message in messages[:3]
        ]
    assert [message.timestamp_ns % 1000 for message in messages[:3]] == [3, 6, 9]
    assert of_a_journal == [(messages[at + 1 :], messages[: at + 1]) for at in range(3)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("({1}:{1})", []),
        ("[{1}:{1})", []),
        ("({1}:{1}]", []),
        ("[{1}:{1}]", [b"2"]),
        ("({0}:{1})", []),
        ("({0}:{2})", [b"2"]),
        ("[{0}:{1})", [b"1"]),
    ],
)
def test_a_range_may_be_empty(text: str, expected: list[bytes]) -> None:
    with quire.Client("memory:positions-4", name="loader") as client:
        for number in range(1, 4):
            client.publish("orders", b"%d" % number)
        client.flush(PATIENCE)
        bookmarks = [message.bookmark for message in client.subscribe("orders", bookmark="[epoch:now]")]
        subscription = client.subscribe("orders", bookmark=text.format(*bookmarks), completed=True)
        assert [message.data for message in subscription] == expected
        assert subscription.completed.wait(PATIENCE)
        for wrong in ("({1}:{0})", "({2}:{0}]", "[{2}:{0}]"):
            with pytest.raises(quire.BadBookmarkError, match="the end of the range is before its start"):
                client.subscribe("orders", bookmark=wrong.format(*bookmarks))


def test_a_range_that_ends_with_a_printed_time_has_its_message(
    journal: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def printed(*options: str) -> list[dict[str, Any]]:
        assert run(["journal", "dump", str(journal), "--json", *options]) == 0
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    for text in (
        printed()[2]["timestamp"],
        printed()[2]["timestamp"].replace("T", " ").removesuffix("+00:00"),
    ):
        # All messages of one batch have one time.
        assert [record["data"] for record in printed("--until", text)] == [1, 2, 3, 4, 5]
        assert printed("--from", text) == []
    assert run(["journal", "ls", str(journal)]) == 0
    *_, first, last = capsys.readouterr().out.splitlines()[1].split("\t")
    assert len(printed("--until", last)) == len(printed("--until", first)) == 5


@pytest.mark.parametrize(
    ("command", "key"),
    [
        (["subscribe", "orders", "--url", "memory:", "--bookmark", "yesterday"], "--bookmark"),
        (["journal", "dump", "JOURNAL", "--from", "yesterday"], "--from"),
        (["journal", "dump", "JOURNAL", "--until", "yesterday"], "--until"),
        (["replay", "JOURNAL", "--url", "memory:", "--from", "yesterday"], "--from"),
        (["replay", "JOURNAL", "--url", "memory:", "--until", "yesterday"], "--until"),
        (
            ["pipeline", "replay", "JOURNAL", "--name", "x", "--url", "memory:", "--from", "yesterday"],
            "--from",
        ),
    ],
)
def test_the_command_line_refuses_with_the_same_words(
    command: list[str], key: str, journal: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([str(journal) if part == "JOURNAL" else part for part in command]) == USER_MISTAKE
    error = capsys.readouterr().err
    assert error.startswith(f"quire: {key}: {WORDS}")
    assert "most_recent" not in error


def test_a_command_that_needs_a_message_refuses_other_positions(
    journal: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["journal", "find", str(journal), "yesterday"]) == USER_MISTAKE
    assert capsys.readouterr().err == f"quire: BOOKMARK: {ONE_MESSAGE}\n"


def test_the_command_line_has_no_most_recent_position(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["subscribe", "orders", "--url", "memory:", "--bookmark", "most_recent"]) == USER_MISTAKE
    assert "a command keeps none: use the last bookmark that it printed" in capsys.readouterr().err


def test_the_command_line_takes_a_range_of_iso_times(
    journal: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"file:{journal}"
    assert run(["subscribe", "orders", "--url", url, "--bookmark", "[2026-01-01T00:00:00Z:now]"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 5


def test_a_recovery_point_takes_the_same_forms_and_keeps_the_text_that_the_server_knows() -> None:
    def recovery_point(text: object) -> str | None:
        queue = {"name": "jobs", "message_type": "json", "recovery_point": text}
        return quire.Config(queue=queue).queue[0].recovery_point

    for text in ("epoch", "now", "0", "7|1|", "20150102T123500", "7|1|,8|4|"):
        assert recovery_point(text) == text
    assert recovery_point("Epoch") == "epoch"
    assert recovery_point("2015-01-02") == "20150102T000000Z"
    assert recovery_point(datetime(2015, 1, 2, tzinfo=UTC)) == "20150102T000000Z"
    with pytest.raises(quire.ConfigError, match=r"recovery_point: .*'yesterday' is not a bookmark or a time"):
        recovery_point("yesterday")
    # It would be another time at every start.
    with pytest.raises(quire.ConfigError, match=r"recovery_point: .*the same at every start"):
        recovery_point("-1h")


def test_spark_takes_the_same_forms_and_its_own_words() -> None:
    def starting(text: str) -> Any:
        return read_options({"path": "/tmp", "startingOffsets": text}).starting

    assert [starting(text) for text in ("earliest", "EPOCH", "0", "latest", "now")] == [
        *["earliest"] * 3,
        *["latest"] * 2,
    ]
    for text in ("2026-01-31t11:00:00z", "20260131t110000z"):
        assert starting(text) == {"time_ns": time_ns("20260131T110000Z")}
    assert starting("20260131") == {"time_ns": time_ns("20260131T000000Z")}
    for text in ("20260131", "1769817600000"):
        options = read_options({"path": "/tmp", "startingTimestamp": text})
        assert options.starting_ns == time_ns("20260131T000000Z")
    assert starting("2026-01-31T12:00:00+01:00") == {"time_ns": time_ns("20260131T110000Z")}
    assert [starting(text) for text in ("7|1|", "-1000", "-10 minutes")] == [
        {"bookmark": "7|1|"},
        {"back": 1000},
        {"ago_ns": 600 * 10**9},
    ]
    with pytest.raises(quire.BadBookmarkError) as caught:
        starting("yesterday")
    assert str(caught.value).startswith(f"startingOffsets: {WORDS}")
    assert "-10 minutes" in str(caught.value)
    with pytest.raises(quire.BadBookmarkError, match=r"startingOffsets: '-1\.5' is not a bookmark or a time"):
        starting("-1.5")
    with pytest.raises(
        quire.ConfigError, match="startingTimestamp: 'yesterday' cannot be read: expected a time"
    ):
        read_options({"path": "/tmp", "startingTimestamp": "yesterday"})
    assert read_options({"path": "/tmp", "startingTimestamp": "1969-01-01"}).starting_ns == 0
