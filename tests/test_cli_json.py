"""The text of a message is the same from `publish` to the JSON lines that commands print, and back."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import quire
from hypothesis import given
from hypothesis import strategies as st
from quire import _quire
from quire.cli import run
from quire.cli._output import _members_of
from support.waiting import PATIENCE

#: Messages that a reader of JSON would write in another way.
TEXTS = [
    '{"price":1.10,"id":1234567890123456789,"zero":-0,"big":1e400,"exp":5E3,"long":0.1234567890123456789}',
    '{"a":1,"a":2}',
    '{ "a" : [ 1 ,\t2 ] , "b":{} }',
    r'{"e":"\u00e9\/\ud83d\ude00","lone":"\ud800","del":"\u007f"}',
    '{"é":"\u2028\x7f\x85 日本"}',
    '"text"',
    "null",
    " 1.0 ",
    "9" * 5000,
    "[" * 5000 + "]" * 5000,
]
#: Messages that are not JSON, and the members that show them.
OTHERS = [
    (b"plain text", {"data": "plain text", "is_json": False}),
    (b"NaN", {"data": "NaN", "is_json": False}),
    (b'{"a":01}', {"data": '{"a":01}', "is_json": False}),
    (b'{"a":"\x01"}', {"data": '{"a":"\x01"}', "is_json": False}),
    (b"\xef\xbb\xbf{}", {"data": "\ufeff{}", "is_json": False}),
    (b"a\tb\x1b[31m\\n", {"data": "a\tb\x1b[31m\\n", "is_json": False}),
    (b'{"a":"\xff"}', {"base64": "eyJhIjoi/yJ9"}),
]

Printed = Callable[..., list[str]]


@pytest.fixture
def printed(capfdbinary: pytest.CaptureFixture[bytes]) -> Printed:
    """Runs a command, and returns the lines that it printed."""

    def printed(*arguments: object) -> list[str]:
        capfdbinary.readouterr()
        assert run([*map(str, arguments)]) == 0
        return capfdbinary.readouterr().out.decode().split("\n")[:-1]

    return printed


def data_of(line: str) -> str:
    """The text of the member `data`."""
    members = _quire.json_members(line)
    assert members is not None
    return dict(members)["data"]


def test_every_command_prints_the_text_of_a_message(tmp_path: Path, printed: Printed) -> None:
    config = quire.Config(
        queue=[
            {"name": name, "message_type": "json", "underlying_topic": "t", "max_backlog": 100}
            for name in ("jobs", "work")
        ],
        sow_topic={"name": "values", "message_type": "json"},
    )
    url = "memory:json-lines"
    with quire.Client(url, config=config) as client:
        for number, text in enumerate(TEXTS):
            client.publish("t", text)
            client.publish("values", text, sow_key=str(number))
        client.flush(PATIENCE)
        commands = [
            ("subscribe", "t", "--bookmark", "[epoch:now]"),
            ("subscribe", "jobs", "--count", len(TEXTS)),
            ("subscribe", "work", "--ack", "--count", len(TEXTS)),
            ("queue", "peek", "jobs"),
            ("sow", "jobs"),
            ("sow", "values"),
            ("journal", "dump", tmp_path, "--json"),
            ("journal", "grep", tmp_path, "1 = 1", "--json"),
        ]
        with quire.Journal(tmp_path) as journal:
            journal.append_many("t", TEXTS, publisher=1)

        for command in commands:
            at = () if command[0] == "journal" else ("--url", url)
            lines = sorted(printed(*command, *at))
            assert all(_quire.is_json(line) for line in lines)
            assert sorted(data_of(line) for line in lines) == sorted(text.strip() for text in TEXTS), command


def test_line_breaks_between_the_values_of_json_are_left_out(tmp_path: Path, printed: Printed) -> None:
    with quire.Journal(tmp_path) as journal:
        journal.append("t", '{\r\n  "a": 1.10,\n\n"b": "\\n"\r}\n', publisher=1)
    (line,) = printed("journal", "dump", tmp_path, "--json")
    assert data_of(line) == '{  "a": 1.10,"b": "\\n"}'


@pytest.mark.parametrize(("data", "members"), OTHERS)
def test_a_message_that_is_not_json_is_text_or_base64(
    tmp_path: Path, printed: Printed, data: bytes, members: dict[str, object]
) -> None:
    with quire.Journal(tmp_path) as journal:
        journal.append("t", data, publisher=1)
    shown = json.loads(printed("journal", "dump", tmp_path, "--json")[0])
    assert {name: shown[name] for name in ("data", "is_json", "base64") if name in shown} == members


def test_json_lines_are_utf_8_whatever_the_encoding_of_the_output_is(tmp_path: Path) -> None:
    with quire.Journal(tmp_path) as journal:
        journal.append("t", '{"a":"é日"}', publisher=1)
    done = subprocess.run(
        [sys.executable, "-m", "quire", "journal", "dump", str(tmp_path), "--json"],
        env={"PYTHONIOENCODING": "ascii"},
        capture_output=True,
        check=True,
        timeout=PATIENCE,
    )
    assert data_of(done.stdout.decode()) == '{"a":"é日"}'


def test_a_terminal_gets_the_controls_inside_json_as_escapes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, printed: Printed
) -> None:
    text = '{"a":\t"\x9b31m\u202e\x7f"}'
    with quire.Journal(tmp_path) as journal:
        journal.append("t", text, publisher=1)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    (line,) = printed("journal", "dump", tmp_path, "--json")
    assert data_of(line) == '{"a":\t"\\u009b31m\\u202e\\u007f"}'
    assert json.loads(line)["data"] == json.loads(text)


def test_records_that_a_command_printed_are_published_as_they_were(tmp_path: Path, printed: Printed) -> None:
    headers: dict[str, str | bytes] = {"trace": "é", "raw": b"\xff"}
    messages = [*(text.strip().encode() for text in TEXTS), *(data for data, _ in OTHERS), b"", b"two\nlines"]
    source, copy = tmp_path / "source", tmp_path / "copy"
    with quire.Journal(source) as journal:
        for data in messages:
            journal.append("t", data, publisher=1, correlation_id="c", headers=headers)
    saved = tmp_path / "saved.jsonl"
    saved.write_text("\n".join(printed("journal", "dump", source, "--json")) + "\n")
    printed("publish", "t", saved, "--records", "--url", f"file:{copy}")
    with quire.Journal(copy, read_only=True) as journal:
        found = list(journal.read(topic="t"))
    assert [message.data for message in found] == messages
    assert all((message.correlation_id, message.headers) == ("c", headers) for message in found)


def test_records_of_a_last_value_topic_keep_the_keys_that_publishers_supplied(
    tmp_path: Path, printed: Printed
) -> None:
    topics = [
        {"name": "supplied", "message_type": "json"},
        {"name": "computed", "message_type": "json", "key": "/id"},
    ]
    saved, url = tmp_path / "saved.jsonl", "memory:json-keys"
    with quire.Client(url, config=quire.Config(sow_topic=topics)) as client:
        for key in ("a", "b"):
            client.publish("supplied", {"id": 1}, sow_key=key)
        client.flush(PATIENCE)
        saved.write_text("\n".join(printed("sow", "supplied", "--url", url)) + "\n")
        client.sow_delete("supplied", keys=["a", "b"])
        for topic, keys in {"supplied": {"a", "b"}, "computed": None, "plain": None}.items():
            printed("publish", topic, saved, "--records", "--url", url)
            if keys is not None:
                assert {record.sow_key for record in client.sow(topic)} == keys
        assert client.sow("computed").to_arrow().num_rows == 1


@pytest.mark.parametrize("data", ["[" * 100_000 + "]" * 100_000, "9" * 5000, "NaN_", "{", "\ud800"])
def test_data_that_python_cannot_decode_is_a_value_error(data: str) -> None:
    with quire.Client("memory:") as client:
        client.publish("t", data.encode(errors="surrogatepass"))
        client.flush(PATIENCE)
        message = client.subscribe("t", bookmark="epoch").get(PATIENCE)
    with pytest.raises(ValueError, match=r"[a-z]") as caught:
        message.json()
    said = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", [])])
    assert f'topic "t", bookmark {message.bookmark}' in said


def test_options_of_the_command_come_before_those_of_a_record(tmp_path: Path, printed: Printed) -> None:
    line = {"kind": "publish", "data": 1, "correlation_id": "of the record", "headers": {"a": "1", "b": "1"}}
    saved = tmp_path / "saved.jsonl"
    saved.write_text(json.dumps({**line, "kind": "delete"}) + "\n" + json.dumps(line) + "\n")
    options = ("--correlation-id", "given", "--header", "b=2")
    said = printed("publish", "t", saved, "--records", "--url", f"file:{tmp_path / 'log'}", *options)
    assert said[-1] == "1 record left out that are no messages"
    with quire.Journal(tmp_path / "log", read_only=True) as journal:
        (message,) = journal.read(topic="t")
    assert (message.data, message.correlation_id, message.headers) == (b"1", "given", {"a": "1", "b": "2"})


@pytest.mark.parametrize(
    "line",
    ['{"qty": 1}', "[]", "text", '{"base64": "?"}', '{"data": 1, "headers": {"a": 1}}', '{"base64": 1}'],
)
def test_a_line_that_is_no_record_is_named(
    tmp_path: Path, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = tmp_path / "saved.jsonl"
    saved.write_text(f'{{"data": 1}}\n{line}\n')
    assert run(["publish", "t", str(saved), "--records", "--url", f"file:{tmp_path / 'log'}"]) == 2
    assert f"quire: {saved}:2: not an object as --json of journal dump" in capsys.readouterr().err


class Number(str):
    """A number as its text."""


class Members(list[tuple[str, Any]]):
    """The members of an object; a name may be there twice."""


JSON = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.text(max_size=5),
        st.from_regex(r"-?(0|[1-9][0-9]{0,30})(\.[0-9]{1,30})?([eE][+-]?[0-9]{1,4})?", fullmatch=True).map(
            Number
        ),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.lists(st.tuples(st.text(max_size=2), inner), max_size=3).map(Members)
    ),
    max_leaves=8,
)
BLANKS = st.sampled_from(["", " ", "\t", "  "])


def written(value: Any, draw: Callable[[], str]) -> str:
    """The value as JSON, with blanks between its tokens, and texts with or without escapes."""
    if isinstance(value, Number):
        return str(value)
    if isinstance(value, Members):
        members = (
            f"{draw()}{json.dumps(name)}{draw()}:{draw()}{written(inner, draw)}{draw()}"
            for name, inner in value
        )
        return f"{{{draw()}{','.join(members)}}}"
    if isinstance(value, list):
        return f"[{draw()}{','.join(draw() + written(inner, draw) + draw() for inner in value)}]"
    is_escaped = not isinstance(value, str) or bool(draw()) or not encodable(value)
    return json.dumps(value, ensure_ascii=is_escaped)


def encodable(text: str) -> bool:
    try:
        return bool(text.encode()) or True
    except UnicodeEncodeError:
        return False


@given(JSON, st.data())
def test_any_json_is_printed_as_the_text_that_it_is(value: Any, data: st.DataObject) -> None:
    text = written(value, lambda: data.draw(BLANKS))
    assert _members_of(text.encode()) == f'"data": {text}'
    assert _quire.json_members(f'{{"x": 1, "data": {text}}}') == [("x", "1"), ("data", text)]


@given(st.one_of(st.binary(max_size=50), st.text(max_size=50).map(lambda t: t.encode(errors="replace"))))
def test_any_bytes_are_printed_as_one_object_on_one_line(data: bytes) -> None:
    line = f"{{{_members_of(data)}}}"
    assert not {"\n", "\r"} & set(line)
    json.loads(line)
