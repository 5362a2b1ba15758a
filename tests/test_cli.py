"""The command line as a person uses it: real processes over loopback, exit codes, messages without tracebacks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from quire import Client
from quire.cli import USER_MISTAKE, run
from support.command_line import PROGRAMS, quire, serving, url_of
from support.waiting import PATIENCE

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("program", PROGRAMS, ids=["module", "script"])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_command_that_is_told_to_stop_closes_its_client(
    tmp_path: Path, number: signal.Signals, code: int, program: tuple[str, str]
) -> None:
    with serving(tmp_path) as (_, line):
        url = url_of(line)
        assert quire("publish", "t", "-", stdin="1\n", url=url).returncode == 0
        command = [sys.executable, *program, "subscribe", "t", "--bookmark", "epoch", "--url", url]
        # A shell's background job ignores Ctrl-C, and so would whatever it starts.
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline()
            process.send_signal(number)
            assert process.communicate(timeout=PATIENCE) == ("", "")
            assert process.returncode == code


def test_ctrl_c_during_the_import_of_the_package_ends_the_command_without_a_traceback(tmp_path: Path) -> None:
    """A package that interrupts its import is in the place of `quire`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    module, _, function = project["scripts"]["quire"].partition(":")
    (tmp_path / "quire").mkdir()
    (tmp_path / "quire/__init__.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    program = f"from {module} import {function}; {function}()"
    # A shell's background job ignores Ctrl-C, and so would whatever it starts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    result = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT / "python")])},
    )
    assert (result.stdout, result.stderr, result.returncode) == ("", "", 130)


READERS = [
    ["info"],
    ["topic", "ls"],
    ["topic", "stats", "t"],
    ["client", "ls"],
    ["replication", "ls"],
    ["replication", "stats", "east-2"],
    ["replication", "pause", "east-2"],
    ["queue", "ls"],
    ["queue", "stats"],
    ["queue", "peek", "Q"],
    ["queue", "alter", "Q", "--lease-period", "1m"],
    ["queue", "drop", "Q"],
    ["queue", "purge", "Q", "--all"],
    ["queue", "redrive", "Q"],
    ["sow", "t"],
    ["sow-delete", "t", "--keys", "a"],
    ["subscribe", "t", "--timeout", "1"],
]


@pytest.mark.parametrize("command", READERS, ids=" ".join)
def test_a_command_that_needs_a_journal_creates_none(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = tmp_path / "misspelt"
    assert run([*command, "--url", f"file:{directory}"]) == USER_MISTAKE
    assert capsys.readouterr() == ("", f"quire: --url: there is no directory {directory}\n")
    assert list(tmp_path.iterdir()) == []
    assert run([*command, "--url", f"file:{tmp_path}"]) == USER_MISTAKE
    assert capsys.readouterr() == ("", f"quire: --url: there is no journal in {tmp_path}\n")
    assert list(tmp_path.iterdir()) == []


def test_a_replay_from_a_directory_without_a_journal_creates_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = tmp_path / "misspelt", tmp_path / "target"
    assert run(["replay", f"file:{source}", "--url", f"file:{target}"]) == USER_MISTAKE
    assert capsys.readouterr() == ("", f"quire: SOURCE: there is no directory {source}\n")
    assert list(tmp_path.iterdir()) == []
    assert run(["replay", str(source), "--url", f"file:{target}"]) == USER_MISTAKE
    assert str(source) in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_command_on_a_data_directory_names_the_journal_in_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Client(f"file:{tmp_path / 'journal'}"):
        pass
    assert run(["info", "--url", f"file:{tmp_path}"]) == USER_MISTAKE
    note = f"quire: --url: there is no journal in {tmp_path}; perhaps you mean file:{tmp_path}/journal\n"
    assert capsys.readouterr() == ("", note)


def test_serve_publish_subscribe_and_a_clean_stop(tmp_path: Path) -> None:
    with serving(tmp_path) as (process, line):
        assert line == f"listening on {url_of(line)}, journal in {tmp_path}/journal\n"
        url = url_of(line)
        published = quire("publish", "orders", "-", stdin='{"qty": 1}\n\n{"qty": 99}\n', url=url)
        assert published.returncode == 0, published.stderr
        assert published.stdout.startswith("2 messages, ")
        read = quire(
            "subscribe", "orders", "--bookmark", "epoch", "--filter", "/qty > 50", "--count", "1", url=url
        )
        assert read.returncode == 0, read.stderr
        message = json.loads(read.stdout)
        assert (message["topic"], message["data"]) == ("orders", {"qty": 99})
        part = quire(
            "subscribe", "orders", "--bookmark", "[0:0|1|]", "--select", "-/qty", "--format", "raw", url=url
        )
        assert (part.stdout, part.returncode) == ("{}\n{}\n", 0), part.stderr
        list_of_nothing = quire("subscribe", "orders", "--select", "qty", url=url)
        assert (list_of_nothing.returncode, "select" in list_of_nothing.stderr) == (2, True)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=PATIENCE) == 0
    with serving(tmp_path, "--json") as (_, line):
        answer = json.loads(line)
        assert answer["journal"] == f"{tmp_path}/journal"
        raw = quire(
            "subscribe", "orders", "--bookmark", "epoch", "--count", "2", "--format", "raw", url=answer["url"]
        )
        assert raw.stdout == '{"qty": 1}\n{"qty": 99}\n'


#: Runs `quire serve`. SIGTERM comes while the main thread is inside the function in which it waits
#: for this signal.
_SIGNALLED_SERVER = """
import os, signal, sys
from quire.cli import _serve, main

def trace(frame, event, argument):
    waits_in = frame.f_back.f_code if frame.f_code.co_name == "wait" and frame.f_back else None
    if waits_in is not _serve.serve.__code__:
        return None
    def at_line(frame, event, argument):
        if event == "line":
            os.kill(os.getpid(), signal.SIGTERM)
        return at_line
    return at_line

sys.settrace(trace)
main()
"""


def test_a_signal_at_any_step_of_the_wait_stops_a_server(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _SIGNALLED_SERVER, "serve", "--address", "127.0.0.1:0"]
    result = subprocess.run(
        [*command, "--data-directory", str(tmp_path)], capture_output=True, text=True, timeout=PATIENCE
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("listening on ")


def test_what_was_flushed_survives_a_kill(tmp_path: Path) -> None:
    with serving(tmp_path) as (process, line):
        lines = "".join(f'{{"n": {n}}}\n' for n in range(2000))
        assert quire("publish", "t", stdin=lines, url=url_of(line)).returncode == 0
        process.kill()
        process.wait(timeout=PATIENCE)
    with serving(tmp_path) as (_, line):
        read = quire("subscribe", "t", "--bookmark", "epoch", "--count", "2000", url=url_of(line))
        assert [json.loads(text)["data"]["n"] for text in read.stdout.splitlines()] == list(range(2000))


def test_machines_may_ask_for_json_where_it_is_the_rule_anyway(tmp_path: Path) -> None:
    url = f"file:{tmp_path / 'log'}"
    assert quire("publish", "t", stdin='{"n": 1}\n', url=url).returncode == 0
    read = ("subscribe", "t", "--bookmark", "epoch", "--count", "1")
    plain = quire(*read, url=url)
    assert json.loads(plain.stdout)["data"] == {"n": 1}
    assert quire(*read, "--json", url=url).stdout == plain.stdout
    assert quire(*read, "--json", "--format", "table", url=url).stdout == plain.stdout


def test_csv_rows_become_json_objects(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("symbol,qty,price,note\nIBM,100,1.5,7\nHPQ,,1.50,x\n")
    with serving(tmp_path) as (_, line):
        url = url_of(line)
        assert quire("publish", "rows", str(tmp_path / "rows.csv"), "--csv", url=url).returncode == 0
        read = quire("subscribe", "rows", "--bookmark", "epoch", "--count", "2", url=url)
        data = [json.loads(text)["data"] for text in read.stdout.splitlines()]
        assert data == [
            {"symbol": "IBM", "qty": 100, "price": 1.5, "note": "7"},
            {"symbol": "HPQ", "qty": None, "price": 1.5, "note": "x"},
        ]


def test_a_character_that_changes_the_direction_of_a_filter_is_shown_as_an_escape(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Client(f"file:{tmp_path}"):
        pass
    text = "/a = '\u202e' AND > '\u2066'"
    assert run(["subscribe", "t", "--filter", text, "--url", f"file:{tmp_path}"]) == USER_MISTAKE
    shown, mark = capsys.readouterr().err.splitlines()[:2]
    assert shown == r"/a = '\u202e' AND > '\u2066'"
    assert mark.index("^") == shown.index(">")


def test_a_bad_filter_is_shown_with_a_caret(tmp_path: Path) -> None:
    with serving(tmp_path) as (_, line):
        result = quire("subscribe", "t", "--filter", "/qty > > 5", url=url_of(line))
    assert result.returncode == 2
    assert "/qty > > 5\n       ^\n" in result.stderr
    # Of a long filter the place is shown, and what would move the caret is a blank.
    long = "/a = 1 OR\t" * 100 + "/a = = 1"
    with serving(tmp_path) as (_, line):
        result = quire("subscribe", "t", "--filter", long, url=url_of(line))
    shown, mark = result.stderr.splitlines()[:2]
    assert shown.endswith("OR /a = = 1")
    assert (len(shown) < 80, mark.index("^")) == (True, len(shown) - len("= 1"))
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("subscribe", "t", "--url", "quire://127.0.0.1:1", "--timeout", "1"), 1, "no connection"),
        (("subscribe", "t", "--url", "http://x"), 2, "quire://"),
        (
            ("publish", "t", "/no/file", "--url", "memory:"),
            2,
            "quire: /no/file: there is no such file; check",
        ),
        (
            ("config", "check", "/no/file"),
            2,
            "quire: /no/file: there is no such file; check the path; `quire",
        ),
        (("serve", "/no/file"), 2, "quire: /no/file: there is no such file; check the path; `quire config"),
        (("publish",), 2, "Missing argument: TOPIC. `quire publish --help` shows what"),
        (("queue", "alter"), 2, "Missing argument: QUEUE. `quire queue alter --help`"),
        (("publish", "t", "file", "more", "words"), 2, "Unexpected arguments: more, words."),
        (("subscribe", "t", "--count", "three"), 2, '--count: expected a whole number, got "three".'),
        (("subscribe", "t", "--timeout", "long"), 2, "--timeout: 'long' is not a duration such as"),
        (("subscribe", "t", "--timeout", "٣"), 2, "--timeout: '٣' is not a duration such as"),
        (("publish", "t", "--rate", "fast"), 2, '--rate: expected a number, got "fast".'),
        (("subscribe", "t", "--from", "epoch"), 2, "Unknown option: --from. Did you mean --bookmark?"),
        (("serve", "--port", "9008"), 2, "Unknown option: --port. Did you mean --address?"),
        (("serve", "--data-directory"), 2, "Missing value: --data-directory requires one."),
        (("config", "shop.toml"), 2, "Did you mean `quire config check shop.toml`?"),
        (("info", "--url", "quire://h:99999"), 2, "quire: --url: 'quire://h:99999': the port must be a"),
        (
            ("info", "--url", "quire://nobody.invalid"),
            1,
            "check the spelling of the host, and the name service of this machine",
        ),
        (("publish", "t", "--url", "quire://127.0.0.1:1"), 1, "Connection refused; check the address"),
        (
            ("subscribe", "t", "--url", "memory:", "--timeout", "10", "--count", "1"),
            1,
            "0 of 1 message came",
        ),
        (("serve", "--address", "nowhere"), 2, "--address: expected an address such as"),
        (("nonsense",), 2, "nonsense"),
        (("info", "tcp://h:1"), 2, "Unexpected argument: 'tcp://h:1' is the URL of a server; write --url"),
        (("queue", "ls", "quire://h:1"), 2, "is the URL of a server; write --url"),
        (
            ("subscribe", "quire://h:1"),
            2,
            "quire: 'quire://h:1' is the URL of a server; write --url quire://h:1",
        ),
        (("journal", "compress", "tcp://h:1"), 2, "quire: 'tcp://h:1' is the URL of a server; write --url"),
        (
            ("journal", "ls", "quire://h:1"),
            2,
            "quire: 'quire://h:1' is the URL of a server, and this command connects to none",
        ),
        (("serve", "quire://h:1"), 2, "quire: 'quire://h:1' is the URL of a server, and this command"),
        (("replay", "quire://127.0.0.1:1", "--into", "t", "--url", "memory:"), 1, "Connection refused"),
    ],
)
def test_a_mistake_is_said_without_a_traceback(arguments: tuple[str, ...], code: int, text: str) -> None:
    result = quire(*arguments)
    assert result.returncode == code, result.stderr
    assert text in result.stderr + result.stdout
    assert "Traceback" not in result.stderr


#: An argument with a byte that is not UTF-8, as Python decodes it.
CAFE = "caf\udce9"


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (("publish", CAFE), "TOPIC"),
        (("publish", "t", "--data", "x", "--header", f"a={CAFE}"), "--header"),
        (("publish", "t", "--data", "x", "--url", f"file:{CAFE}"), "--url"),
        (("sow", "t", "--url", f"quire://{CAFE}:1"), "--url"),
        (("journal", "dump", ".", "--from", CAFE), "--from"),
        (("queue", "create", CAFE), "QUEUE"),
        (("pipeline", "replay", ".", "--name", "copy", "--into", CAFE, "--url", "memory:"), "--into"),
        (("serve", "--data-directory", CAFE), "transaction_log.journal_directory"),
    ],
)
def test_an_argument_that_is_not_utf8_is_refused_by_its_name(arguments: tuple[str, ...], name: str) -> None:
    result = quire(*arguments)
    assert result.returncode == USER_MISTAKE, result.stderr
    assert f"quire: {name}: " in result.stderr
    assert "the byte 0xE9 is not UTF-8" in result.stderr
    assert "Traceback" not in result.stderr


def test_files_and_messages_may_have_bytes_that_are_not_utf8(tmp_path: Path) -> None:
    url = f"file:{tmp_path / 'journal'}"
    (tmp_path / CAFE).write_text('{"n": 1}\n')
    for arguments in (("publish", "t", str(tmp_path / CAFE)), ("publish", "t", "--data", CAFE)):
        result = quire(*arguments, url=url)
        assert result.stdout.startswith("1 message, "), result.stderr
    with Client(url) as client, client.subscribe("t", bookmark="epoch") as messages:
        received = iter(messages)
        assert [next(received).data for _ in range(2)] == [b'{"n": 1}', b"caf\xe9"]
    # The topic keeps no records to delete.
    result = quire("sow-delete", "t", "--data", CAFE, url=url)
    assert 'the topic "t" keeps no last values' in result.stderr
    assert "Traceback" not in result.stderr


#: Commands that take a topic, a file or a directory.
FILES = [
    ("publish", "URL"),
    ("journal", "ls", "URL"),
    ("config", "check", "URL"),
    ("replay", "URL", "--url", "memory:"),
]


#: Arguments in which a URL is a mistake, or has one.
MISTAKES: list[tuple[str, ...]] = [
    *FILES,
    ("info", "URL"),
    ("info", "--url", "URL"),
    ("info", "--url=URL"),
    ("info", "--server", "URL"),
    ("info", "--server=URL"),
    ("publish", "t", "file", "more", "URL"),
    ("publish", "t", "--rate", "URL"),
    ("journal", "archive", "--url", "URL"),
    ("config", "URL"),
    ("URL",),
    ("replay", ".", "--url", "URL"),
    ("serve", "--address", "URL"),
    ("bench", "publish", "--url", "URL"),
]


def is_name(scheme: str, arguments: tuple[str, ...]) -> bool:
    """Whether the text is no mistake in this place: a topic and a file can have such a name."""
    return arguments == ("publish", "URL") if scheme == "http://" else scheme == "" and arguments in FILES


@pytest.mark.parametrize(
    ("scheme", "arguments"),
    [
        (scheme, arguments)
        for scheme in ("quire://", "http://", "")
        for arguments in MISTAKES
        if not is_name(scheme, arguments)
    ],
)
@pytest.mark.parametrize("password", ["geheim", "x/geheim", "x?geheim", "x#geheim", "x@geheim/y", "geheim:x"])
def test_no_mistake_repeats_a_password(
    scheme: str,
    password: str,
    arguments: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    url = f"{scheme}user:{password}@h:9007"
    assert run([argument.replace("URL", url) for argument in arguments]) == USER_MISTAKE
    captured = capsys.readouterr()
    assert "geheim" not in captured.out + captured.err
    assert list(tmp_path.iterdir()) == []


def test_a_subscription_with_a_timeout_ends_when_nothing_comes() -> None:
    # The engine in the process of the command has to start within the timeout, too.
    result = quire("subscribe", "t", "--url", "memory:", "--timeout", "10")
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_a_publish_under_a_name_is_not_repeated(tmp_path: Path) -> None:
    with serving(tmp_path) as (_, line):
        url = url_of(line)
        file = tmp_path / "orders.jsonl"
        file.write_text('{"n": 1}\n\n{"n": 2}\n')
        first = quire("publish", "orders", str(file), "--name", "orders.jsonl", url=url)
        assert first.stdout.startswith("2 messages, ")
        assert "were there already" not in first.stdout
        file.write_text('{"n": 1}\n\n{"n": 2}\n{"n": 3}\n')
        second = quire("publish", "orders", str(file), "--name", "orders.jsonl", url=url)
        assert second.stdout.startswith("1 message, ")
        assert "2 were there already under the name orders.jsonl" in second.stdout
        third = quire("publish", "orders", str(file), "--name", "orders.jsonl", "--json", url=url)
        report = json.loads(third.stdout)
        assert (report["published"], report["skipped"]) == (0, 3)
        # Without a name each run is a publisher of its own.
        assert quire("publish", "orders", str(file), url=url).stdout.startswith("3 messages, ")
        read = quire("subscribe", "orders", "--bookmark", "[0:0|1|]", "--format", "raw", url=url)
        assert [json.loads(text)["n"] for text in read.stdout.splitlines()] == [1, 2, 3, 1, 2, 3]


def test_a_configuration_is_checked_without_starting_anything(tmp_path: Path) -> None:
    example = quire("config", "example")
    good, bad = tmp_path / "good.toml", tmp_path / "bad.toml"
    good.write_text(example.stdout)
    assert quire("config", "check", str(good)).returncode == 0
    bad.write_text("[transaction_log]\njournal_sise = '64MB'\n")
    result = quire("config", "check", str(bad))
    assert result.returncode == 2
    assert result.stderr.splitlines() == [
        f'quire: {bad}:2: transaction_log.journal_sise: unknown key; did you mean "journal_size"?'
    ]
    told = json.loads(quire("config", "check", str(bad), "--json").stdout)
    assert (told["is_sound"], told["line"], told["key"]) == (False, 2, "transaction_log.journal_sise")
    assert [(mistake["line"], mistake["key"]) for mistake in told["mistakes"]] == [
        (2, "transaction_log.journal_sise")
    ]
    told = quire("config", "check", str(good), "--json")
    assert (told.returncode, json.loads(told.stdout)["is_sound"]) == (0, True)
    bad.write_text("[[transaction_log.topic]]\nname = 't'\nmessage_type = 'json'\nfilter = '/a ='\n")
    result = quire("config", "check", str(bad))
    assert result.returncode == 2
    assert "filter" in result.stderr
    assert not (tmp_path / "quire-data").exists()


def test_output_that_is_not_wanted_any_more_ends_quietly(tmp_path: Path) -> None:
    with serving(tmp_path) as (_, line):
        url = url_of(line)
        assert quire("publish", "t", stdin="x\n" * 5000, url=url).returncode == 0
        shell = f"{sys.executable} -m quire subscribe t --bookmark epoch --count 5000 --format raw --url {url} | head -n 3"
        result = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, timeout=PATIENCE)
    assert result.stdout == "x\nx\nx\n"
    assert result.stderr == ""


def test_what_was_published_with_options_is_printed_with_them(tmp_path: Path) -> None:
    with serving(tmp_path) as (_, line):
        url = url_of(line)
        options = ("--correlation-id", "batch-7", "--expiration", "1h", "--header", "run=7")
        assert quire("publish", "t", "-", *options, stdin='{"n": 1}\n', url=url).returncode == 0
        with Client(url) as client:
            client.publish("t", b"\xff\x00")
            client.flush(timeout=PATIENCE)
        shown = quire("subscribe", "t", "--bookmark", "epoch", "--count", "2", url=url)
        first, second = (json.loads(printed) for printed in shown.stdout.splitlines())
    assert (first["correlation_id"], first["headers"], first["data"]) == ("batch-7", {"run": "7"}, {"n": 1})
    assert (second["base64"], "data" in second) == ("/wA=", False)


def test_a_pipeline_reports_a_missing_journal_before_it_starts_java(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    command = [sys.executable, "-m", "quire", "pipeline", "archive", str(missing), str(tmp_path / "out")]
    environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    # Java is not found, and would be reported first.
    done = subprocess.run(
        command, env={**environment, "PATH": str(tmp_path)}, capture_output=True, text=True, timeout=PATIENCE
    )
    assert (done.returncode, done.stderr) == (
        2,
        f"quire: path: {str(missing)!r} is no directory on this machine\n",
    )


def test_a_mistake_of_a_record_is_not_named_as_an_option_that_was_not_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records = tmp_path / "dump.jsonl"
    records.write_text('{"data": 1, "expiration_s": 3600}\n')
    url = f"file:{tmp_path / 'log'}"
    assert run(["publish", "t", str(records), "--records", "--delay", "2h", "--url", url]) == USER_MISTAKE
    assert "quire: expiration: " in capsys.readouterr().err
    assert run(["publish", "t", "--data", "1", "--delay", "2h", "--expiration", "1h", "--url", url]) == 2
    assert "quire: --expiration: " in capsys.readouterr().err
