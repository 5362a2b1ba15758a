"""The input of `quire publish` from files, pipes and its command line, and its output when it
stops."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import quire
from quire.cli import run
from support.command_line import PROGRAMS, serving, url_of
from support.waiting import PATIENCE

LINES = '{"n": 1}\n{"n": 2}\n'


def published(directory: Path) -> list[bytes]:
    if not directory.exists():
        return []
    with quire.Journal(directory, read_only=True) as journal:
        return [message.data for message in journal.read(topic="t")]


def publish(directory: Path, content: bytes, *options: str) -> int:
    file = directory / "lines"
    file.write_bytes(content)
    return run(["publish", "t", str(file), "--url", f"file:{directory / 'log'}", *options])


@pytest.mark.parametrize(
    ("content", "messages"),
    [
        (b"\xef\xbb\xbfone\ntwo", [b"one", b"two"]),
        (b"one\r\n\r\n\ntwo\r\n", [b"one", b"two"]),
        (b"one\r\r\n two \t\n", [b"one\r", b" two \t"]),
        (b"one\n\xef\xbb\xbftwo\n", [b"one", b"\xef\xbb\xbftwo"]),
        (b"a\x00b\n", [b"a\x00b"]),
        (b"BZhang\nPK\n", [b"BZhang", b"PK"]),
        (b"\x16\x00\x00\x00\x02a\x00", [b"\x16\x00\x00\x00\x02a\x00"]),
        ("{\u2028\x85}\n".encode(), ["{\u2028\x85}".encode()]),
    ],
)
def test_a_line_is_published_without_its_line_end_and_nothing_else_changes(
    tmp_path: Path, content: bytes, messages: list[bytes]
) -> None:
    assert publish(tmp_path, content) == 0
    assert published(tmp_path / "log") == messages


@pytest.mark.parametrize("options", [[], ["--csv"], ["--csv", "--csv-types", "text"], ["--records"]])
@pytest.mark.parametrize(
    ("content", "what"),
    [
        (
            gzip.compress(LINES.encode(), mtime=0),
            "the file is compressed (gzip): use gunzip -c FILE | quire publish",
        ),
        (bz2.compress(LINES.encode()), "the file is compressed (bzip2): use bunzip2 -c FILE"),
        (lzma.compress(LINES.encode()), "the file is compressed (xz): use xz -dc FILE"),
        (b"\x28\xb5\x2f\xfd\x24", "the file is compressed (zstd): use zstd -dc FILE"),
        (LINES.encode("utf-16"), "the file is UTF-16: use iconv -f UTF-16 -t UTF-8 FILE"),
        (LINES.encode("utf-16-le"), "the file is UTF-16"),
        (LINES.encode("utf-16-be"), "the file is UTF-16"),
    ],
)
def test_a_file_that_is_no_text_is_refused_before_a_message_is_published(
    tmp_path: Path, content: bytes, what: str, options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert publish(tmp_path, content, *options) == 2
    assert capsys.readouterr().err.startswith(f"quire: {tmp_path / 'lines'}: {what}")
    assert published(tmp_path / "log") == []


def test_one_message_can_be_given_on_the_command_line(tmp_path: Path) -> None:
    url = f"file:{tmp_path / 'log'}"
    for data in ('{"n":\n1}', "", "-1", "\udcff"):
        assert run(["publish", "t", "--data", data, "--url", url]) == 0
    assert published(tmp_path / "log") == [b'{"n":\n1}', b"", b"-1", b"\xff"]


@pytest.mark.parametrize("arguments", [["file"], ["--csv"], ["--records"]])
def test_a_literal_message_has_no_file(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["publish", "t", *arguments, "--data", "1", "--url", "memory:"]) == 2
    assert "--data: it does not go together with" in capsys.readouterr().err


def test_a_named_pipe_is_read_like_the_standard_input(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=("a,b\n1,2\n",))
    writer.start()
    assert run(["publish", "t", str(pipe), "--csv", "--url", f"file:{tmp_path / 'log'}"]) == 0
    writer.join(PATIENCE)
    assert published(tmp_path / "log") == [b'{"a": 1, "b": 2}']


@pytest.mark.parametrize("program", PROGRAMS, ids=["module", "script"])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_publish_says_after_which_line_it_stopped(
    tmp_path: Path, number: signal.Signals, code: int, program: tuple[str, str]
) -> None:
    with serving(tmp_path) as (_, line):
        url = url_of(line)
        command = [sys.executable, *program, "publish", "t", "--url", url]
        # A shell's background job ignores Ctrl-C, and so would whatever it starts.
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        pipe = subprocess.PIPE
        with (
            subprocess.Popen(command, text=True, stdin=pipe, stdout=pipe, stderr=pipe) as process,
            quire.Client(url) as client,
        ):
            assert process.stdin is not None
            assert process.stderr is not None
            process.stdin.write(f"\n{LINES}")
            process.stdin.flush()
            # Both are on the server, and the command waits for another line.
            messages = client.subscribe("t", bookmark="epoch")
            assert [messages.get(PATIENCE).json()["n"] for _ in range(2)] == [1, 2]
            process.send_signal(number)
            said = process.stderr.read()
            assert process.wait(PATIENCE) == code
    assert said == "quire: stopped after line 3 of the standard input; 2 messages are published\n"


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["publish", "", "--data", "1"], "TOPIC"),
        (["publish", "t", "--data", "1", "--url", ""], "--url"),
        (["publish", "t", "--data", "1", "--name", ""], "--name"),
        (["queue", "redrive", "q", "--to", ""], "--to"),
        (["queue", "purge", "q", "--filter", ""], "--filter"),
        (["journal", "dump", ".", "--from", ""], "--from"),
        (["replay", ".", "--into", ""], "--into"),
        (["serve", "--data-directory", ""], "--data-directory"),
        (["serve", "--data-directory="], "--data-directory"),
        (["serve", ""], "CONFIG"),
        (["up", ""], "DIRECTORY"),
        (["up", "--instances", ""], "--instances"),
        (["journal", "ls", ""], "DIR"),
        (["journal", "archive", ".", "--archive-directory", ""], "--archive-directory"),
        (["publish", "t", "", "--csv"], "FILE"),
        (["publish", "t", "--header", "a=1", "--header", ""], "--header"),
        (["queue", "ls", "--url", ""], "--url"),
        (["config", "check", ""], "FILE"),
    ],
)
def test_an_empty_value_is_a_mistake_and_stands_for_nothing_else(
    arguments: list[str], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 2
    assert capsys.readouterr().err == f"quire: {name}: the value is empty\n"


def test_the_report_of_a_publish_is_json_when_it_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert publish(tmp_path, LINES.encode(), "--json") == 0
    assert json.loads(capsys.readouterr().out)["published"] == 2


def test_a_message_that_a_signal_comes_after_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    publish_one = quire.Client.publish

    def interrupted(client: quire.Client, *arguments: Any, **options: Any) -> Any:
        sequence = publish_one(client, *arguments, **options)
        if sequence == interrupted_at:
            raise KeyboardInterrupt
        return sequence

    monkeypatch.setattr(quire.Client, "publish", interrupted)
    for interrupted_at, reported in ((1, "1 message is"), (2, "2 messages are")):
        directory = tmp_path / str(interrupted_at)
        directory.mkdir()
        assert publish(directory, b"{}\n{}\n{}\n") == 130
        place = f"after line {interrupted_at} of {directory / 'lines'}"
        assert capsys.readouterr().err == f"quire: stopped {place}; {reported} published\n"
        assert len(published(directory / "log")) == interrupted_at


def test_a_message_that_is_sent_again_is_counted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert publish(tmp_path, b"{}\n{}\n", "--name", "writer") == 0
    capsys.readouterr()
    publish_one = quire.Client.publish

    def interrupted(client: quire.Client, *arguments: Any, **options: Any) -> Any:
        if options["sequence"] == 2:
            raise KeyboardInterrupt
        return publish_one(client, *arguments, **options)

    # The server has seen two messages of the name, and has persisted none of them.
    monkeypatch.setattr(quire.Client, "persisted", 0)
    monkeypatch.setattr(quire.Client, "publish", interrupted)
    assert publish(tmp_path, b"{}\n{}\n", "--name", "writer") == 130
    place = f"after line 1 of {tmp_path / 'lines'}"
    assert capsys.readouterr().err.startswith(f"quire: stopped {place}; 1 message is published")


def test_a_key_of_the_command_line_is_not_left_out_of_records(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = b'{"topic": "t", "sow_key": "a", "data": {}}\n'
    assert publish(tmp_path, record, "--records", "--key", "b") == 1
    assert "the message has a key" in capsys.readouterr().err
    assert publish(tmp_path, record, "--records") == 0, "the server has no use for the key of the record"
