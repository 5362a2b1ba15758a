"""`quire replay` and `quire subscribe --rate` as a person uses them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest
import quire
from quire.cli import run
from quire.cli._replay import _key_of
from quire.testing import server
from support.command_line import quire as command
from support.command_line import serving, url_of
from support.waiting import PATIENCE


def filled(url: str, count: int, *, start: int = 1) -> None:
    lines = "".join(f'{{"n": {n}, "odd": {n % 2}}}\n' for n in range(start, start + count))
    assert command("publish", "ticks", stdin=lines, url=url).returncode == 0


def numbers(url: str, topic: str) -> list[int]:
    read = command("subscribe", topic, "--bookmark", "[0:0|1|]", "--format", "raw", url=url)
    assert read.returncode == 0, read.stderr
    return [json.loads(line)["n"] for line in read.stdout.splitlines()]


def test_a_directory_is_replayed_to_a_server_and_goes_on_where_it_was(tmp_path: Path) -> None:
    journal = str(tmp_path / "source" / "journal")
    with serving(tmp_path / "source") as (_, source), serving(tmp_path / "target") as (_, target):
        filled(url_of(source), 100)
        url = url_of(target)
        first = command("replay", journal, "--name", "copy", "--json", "--url", url)
        assert first.returncode == 0, first.stderr
        report = json.loads(first.stdout)
        assert (report["published"], report["skipped"]) == (100, 0)
        filled(url_of(source), 50, start=101)
        again = command("replay", journal, "--name", "copy", "--url", url)
        assert again.stdout.startswith("50 messages, "), again.stderr
        assert "100 were there already" in again.stdout
        assert numbers(url, "ticks") == list(range(1, 151))
        # Without a name it is another publisher, and everything comes again.
        into = command("replay", journal, "--into", "again", "--filter", "/odd = 1", url=url)
        assert into.stdout.startswith("75 messages, "), into.stderr
        assert numbers(url, "again") == list(range(1, 151, 2))


def test_a_topic_that_is_not_utf8_is_refused_before_a_message_is_replayed(tmp_path: Path) -> None:
    source, target = f"file:{tmp_path / 'source'}", f"file:{tmp_path / 'target'}"
    filled(source, 1)
    result = command("replay", str(tmp_path / "source"), "--into", "caf\udce9", url=target)
    assert (result.returncode, result.stdout) == (2, "")
    assert "quire: --into: " in result.stderr
    assert "the byte 0xE9 is not UTF-8" in result.stderr
    assert not (tmp_path / "target").exists()


def test_a_server_is_replayed_at_a_pace(tmp_path: Path) -> None:
    with serving(tmp_path) as (_, line):
        url = url_of(line)
        filled(url, 60)
        result = command(
            "replay", url, "--topic", "ticks", "--into", "slow", "--rate", "50", "--json", url=url
        )
        assert result.returncode == 0, result.stderr
        report = json.loads(result.stdout)
        assert report["published"] == 60
        assert report["seconds"] >= 59 / 50
        directory = tmp_path / "journal"
        with quire.Journal(directory, read_only=True) as journal:
            times = [message.timestamp for message in journal.read(topic="slow")]
        paced = command(
            "replay", str(directory), "--topic", "slow", "--into", "fast", "--rate", "10X", "--json", url=url
        )
        seconds = json.loads(paced.stdout)["seconds"]
        assert seconds >= (times[-1] - times[0]).total_seconds() / 10 * 0.9, paced.stderr
        assert numbers(url, "fast") == numbers(url, "slow") == list(range(1, 61))


def test_a_directory_is_replayed_at_a_rate_above_one_message_a_millisecond(tmp_path: Path) -> None:
    count = 100_000
    with quire.Journal(tmp_path / "source") as journal:
        journal.append_many("ticks", [{"n": n} for n in range(count)], publisher="loader")
        journal.flush(PATIENCE)
    with serving(tmp_path / "target") as (_, line):
        for rate in ("100000", "10000000X"):
            result = command(
                "replay", str(tmp_path / "source"), "--rate", rate, "--json", "--url", url_of(line)
            )
            report = json.loads(result.stdout)
            assert report["published"] == count, result.stderr
            # A wait for each message would take 100 seconds.
            assert report["seconds"] < 90
            if rate == "100000":
                assert report["seconds"] >= (count - 1) / 100_000


def test_a_replay_of_nothing_says_what_was_looked_for(tmp_path: Path) -> None:
    with serving(tmp_path) as (_, line):
        url = url_of(line)
        filled(url, 10)
        for source in (url, str(tmp_path / "journal")):
            result = command("replay", source, "--topic", "tick", "--filter", "/n > 3", "--url", url)
            assert (result.returncode, result.stdout[:11]) == (0, "0 messages,")
            expected = "quire: no message with --topic 'tick' --filter '/n > 3' --from 'epoch' --until 'now'"
            assert result.stderr.strip() == expected


def test_a_range_of_a_journal(tmp_path: Path) -> None:
    with serving(tmp_path) as (_, line):
        url = url_of(line)
        filled(url, 10)
        read = command("subscribe", "ticks", "--bookmark", "[0:0|1|]", url=url)
        bookmarks = [json.loads(text)["bookmark"] for text in read.stdout.splitlines()]
        for number, source in enumerate([url, str(tmp_path / "journal")]):
            arguments = ["--topic", "ticks", "--from", bookmarks[2], "--until", bookmarks[5]]
            result = command("replay", source, *arguments, "--into", f"part-{number}", url=url)
            assert result.stdout.splitlines()[-1] == f"last: {bookmarks[5]}", result.stderr
            assert numbers(url, f"part-{number}") == [4, 5, 6]


def test_archived_files_are_part_of_the_journal(tmp_path: Path) -> None:
    directory, archive = tmp_path / "journal", tmp_path / "archive"
    with quire.Journal(directory, archive_directory=archive, journal_size="64KB") as journal:
        for n in range(1, 301):
            journal.append("ticks", {"n": n, "pad": "x" * 500}, publisher="loader")
        journal.flush(PATIENCE)
        assert len(journal.archive(age=0)) > 1
    arguments = [str(directory), "--archive-directory", str(archive), "--name", "copy"]
    with serving(tmp_path / "target") as (_, line):
        url = url_of(line)
        whole = command("replay", *arguments, "--json", "--url", url)
        assert json.loads(whole.stdout)["published"] == 300, whole.stderr
        assert numbers(url, "ticks") == list(range(1, 301))
        refused = command("replay", url, *arguments[1:], "--url", url)
        assert "a server knows its own" in refused.stderr


def test_mistakes_are_told_without_a_traceback(tmp_path: Path) -> None:
    with serving(tmp_path) as (_, line):
        url = url_of(line)
        for arguments in (
            [str(tmp_path / "nowhere")],
            [str(tmp_path / "journal"), "--rate", "fast"],
            [str(tmp_path / "journal"), "--rate-max-gap", "1s"],
            [str(tmp_path / "journal"), "--filter", "/a ="],
            [url, "--rate", "fast"],
            [url, "--from", "yesterday"],
        ):
            result = command("replay", *arguments, "--url", url)
            assert result.returncode != 0, arguments
            assert result.stderr, arguments
            assert "Traceback" not in result.stderr


def test_a_replay_says_where_it_publishes(tmp_path: Path) -> None:
    with serving(tmp_path) as (_, line):
        url = url_of(line)
        filled(url, 4)
        for source in (url, str(tmp_path / "journal")):
            # The variable may be meant for another command.
            refused = command("replay", source, url=url)
            assert refused.returncode == 2
            assert "say where to publish: --url" in refused.stderr
        assert numbers(url, "ticks") == [1, 2, 3, 4]


def test_a_replay_into_its_own_source_needs_another_topic_or_again(tmp_path: Path) -> None:
    with serving(tmp_path) as (_, line):
        url = url_of(line)
        filled(url, 4)
        for source in (url, str(tmp_path / "journal")):
            for into in ([], ["--into", "ticks"], ["--name", "copy"]):
                refused = command("replay", source, "--url", url, *into)
                assert refused.returncode == 2
                assert "the destination has the first message already" in refused.stderr
                assert "--again" in refused.stderr
        assert numbers(url, "ticks") == [1, 2, 3, 4]
        other = command("replay", url, "--into", "other", url=url)
        assert other.stdout.startswith("4 messages, "), other.stderr
        again = command("replay", url, "--topic", "ticks", "--url", url, "--again")
        assert again.stdout.startswith("4 messages, "), again.stderr
        assert numbers(url, "ticks") == [1, 2, 3, 4, 1, 2, 3, 4]


def test_a_message_with_the_same_bookmark_in_another_log_is_no_reason_to_refuse(tmp_path: Path) -> None:
    with serving(tmp_path / "source") as (_, source), serving(tmp_path / "target") as (_, target):
        for url in (url_of(source), url_of(target)):
            published = command("publish", "ticks", "--name", "loader", stdin='{"n": 1}\n', url=url)
            assert published.returncode == 0
        result = command("replay", url_of(source), "--url", url_of(target))
        assert result.stdout.startswith("1 message, "), result.stderr
        assert numbers(url_of(target), "ticks") == [1, 1]


def test_a_bookmark_that_is_not_there_fails_a_replay_unless_the_option_says_where_to_begin(
    tmp_path: Path,
) -> None:
    missing = "4711|1|"
    with serving(tmp_path / "source") as (_, source), serving(tmp_path / "target") as (_, target):
        filled(url_of(source), 3)
        journal = str(tmp_path / "source" / "journal")
        to = ("--url", url_of(target), "--from", missing, "--json")
        for place in (url_of(source), journal):
            failed = command("replay", place, *to)
            assert (failed.returncode, failed.stdout) == (2, ""), failed.stderr
            assert missing in failed.stderr or "bookmark" in failed.stderr
            begun = command("replay", place, *to, "--bookmark-not-found", "epoch", "--again")
            assert begun.returncode == 0, begun.stderr
            assert json.loads(begun.stdout)["published"] == 3
            assert "begins with the oldest message" in begun.stderr
            later = command("replay", place, *to, "--bookmark-not-found", "now")
            assert json.loads(later.stdout)["published"] == 0, later.stderr
        assert numbers(url_of(target), "ticks") == [1, 2, 3] * 2


def test_a_subscription_of_the_command_line_says_where_it_begins_without_its_bookmark(tmp_path: Path) -> None:
    with serving(tmp_path) as (_, line):
        url = url_of(line)
        filled(url, 2)
        at = ("subscribe", "ticks", "--bookmark", "[4711|1|:now]", "--format", "raw")
        assert len(command(*at, url=url).stdout.splitlines()) == 2
        failed = command(*at, "--bookmark-not-found", "fail", url=url)
        assert (failed.returncode, failed.stdout) == (2, "")
        later = command(*at, "--bookmark-not-found", "now", url=url)
        assert (later.returncode, later.stdout) == (0, ""), later.stderr
        alone = command("subscribe", "ticks", "--bookmark-not-found", "fail", url=url)
        assert alone.returncode == 2
        assert "--bookmark-not-found: it requires --bookmark" in alone.stderr


def test_what_is_published_to_a_topic_that_is_not_recorded_is_accepted_not_persisted(tmp_path: Path) -> None:
    topics = [
        {"name": "prices", "recorded": False, "message_type": "json"},
        {"name": "^", "message_type": "json"},
    ]
    with server(tmp_path / "target", transaction_log={"topic": topics}) as running:
        url = running.url
        prices = command("publish", "prices", stdin="1\n2\n", url=url)
        assert prices.stdout.startswith("2 messages, 2 bytes accepted in "), prices.stderr
        assert prices.stdout.splitlines()[1:] == [
            "not persisted, because the server does not record it: prices"
        ]
        ticks = command("publish", "ticks", stdin="1\n", url=url)
        assert ticks.stdout.startswith("1 message, 1 byte persisted in ")
        assert len(ticks.stdout.splitlines()) == 1
        assert json.loads(command("publish", "prices", "--json", stdin="1\n", url=url).stdout)[
            "unrecorded"
        ] == ["prices"]
        assert (
            json.loads(command("publish", "ticks", "--json", stdin="1\n", url=url).stdout)["unrecorded"] == []
        )
        again = command("replay", url, "--topic", "ticks", "--into", "prices", "--url", url)
        assert again.stdout.splitlines()[1] == "not persisted, because the server does not record it: prices"


def test_a_replay_keeps_the_keys_that_publishers_supplied_and_counts_the_deletions(tmp_path: Path) -> None:
    topics = [
        {"name": "supplied", "message_type": "json"},
        {"name": "computed", "message_type": "json", "key": "/id"},
    ]
    with server(tmp_path / "source", sow_topic=topics) as source, server(sow_topic=topics) as target:
        with quire.Client(source.url, name="loader") as client:
            for key in ("a", "b", "c"):
                client.publish("supplied", {"v": key}, sow_key=key)
            client.publish("computed", {"id": 1})
            client.sow_delete("supplied", keys=["c"])
            client.flush(PATIENCE)
        options = ("--topic", "^(supplied|computed)$", "--until", "now", "--json", "--url", target.url)
        for place, count, again in (
            (source.url, 1, ()),
            (str(tmp_path / "source" / "journal"), 1, ("--again",)),
        ):
            done = command("replay", place, *options, *again)
            assert done.returncode == 0, done.stderr
            report = json.loads(done.stdout)
            assert (report["published"], report["deletions"]) == (4, count)
            with quire.Client(target.url) as client:
                records = {record.sow_key: record.json() for record in client.sow("supplied")}
                assert records == {key: {"v": key} for key in ("a", "b", "c")}
                assert len(list(client.sow("computed"))) == 1


def test_a_key_that_is_not_utf_8_is_one_that_no_server_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    class Record:
        """As another program may have written it: servers record keys that are text only."""

        key = b"a\xff"

    monkeypatch.setattr(quire, "Record", Record)
    key = _key_of(cast("Any", Record()))
    assert key == "a\ufffd"
    config = quire.Config(sow_topic=[{"name": "orders", "message_type": "json"}])
    with quire.Client("memory:", config=config) as client:
        client.publish("orders", b"1", sow_key=key)
        with pytest.raises(quire.BadMessageError, match="key"):
            client.flush(PATIENCE)


def test_an_interrupted_replay_says_after_which_message_it_stopped(tmp_path: Path) -> None:
    with serving(tmp_path) as (_, line):
        url = url_of(line)
        filled(url, 3)
        for source in (url, str(tmp_path / "journal")):
            into = f"copy of {source[0]}"
            options = ["--topic", "ticks", "--into", into, "--rate", "0.001", "--url", url]
            process = subprocess.Popen(
                [sys.executable, "-m", "quire", "replay", source, *options], stderr=subprocess.PIPE, text=True
            )
            with process, quire.Client(url) as client:
                # The first message is published at once, and the next one after a thousand seconds.
                first = client.subscribe("ticks", bookmark="epoch").get(PATIENCE).bookmark
                client.subscribe(into, bookmark="epoch").get(PATIENCE)
                process.send_signal(signal.SIGTERM)
                assert process.stderr is not None
                said = process.stderr.read()
                assert process.wait(PATIENCE) == 143
            place = f"after {first}; --from '{first}' continues there"
            assert said == f"quire: stopped {place}; 1 message is published\n"


def test_a_replay_counts_the_same_deletions_of_a_server_and_of_its_directory(tmp_path: Path) -> None:
    topic = {"name": "supplied", "message_type": "json"}
    with server(tmp_path / "source", sow_topic=topic) as source, server(sow_topic=topic) as target:
        with quire.Client(source.url) as client:
            for key in ("a", "b", "c"):
                client.publish("supplied", {"v": key}, sow_key=key)
            client.sow_delete("supplied", keys=["a", "b"])
            client.flush(PATIENCE)
        options = ("--topic", "supplied", "--filter", "/v = 'c'", "--again", "--json", "--url", target.url)
        for place in (source.url, str(tmp_path / "source" / "journal")):
            done = command("replay", place, *options)
            assert done.returncode == 0, done.stderr
            report = json.loads(done.stdout)
            assert (report["published"], report["deletions"]) == (1, 2), place


def test_a_message_that_a_signal_comes_after_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with quire.Client(f"file:{tmp_path / 'source'}") as client:
        client.publish_many("ticks", [{"n": n} for n in range(3)])
        client.flush(PATIENCE)
        with client.subscribe("ticks", bookmark=quire.EPOCH) as messages:
            bookmarks = [messages.get(PATIENCE).bookmark for _ in range(3)]
    publish = quire.Client.publish

    def interrupted(client: quire.Client, *arguments: Any, **options: Any) -> Any:
        sequence = publish(client, *arguments, **options)
        if sequence == 2:
            raise KeyboardInterrupt
        return sequence

    monkeypatch.setattr(quire.Client, "publish", interrupted)
    assert run(["replay", f"file:{tmp_path / 'source'}", "--url", f"file:{tmp_path / 'target'}"]) == 130
    place = f"after {bookmarks[1]}; --from '{bookmarks[1]}' continues there"
    assert capsys.readouterr().err == f"quire: stopped {place}; 2 messages are published\n"
