"""Headers: delivered on every kind of subscription, kept in the log, in dead letters and through
the command line."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import quire
import quire.testing
from support.command_line import quire as command
from support.waiting import PATIENCE
from support.ways_in import configured

HEADERS: dict[str, str | bytes] = {"trace": "abc", "größe": "ü", "raw": b"\x00\xff", "empty": ""}

JOBS = {"name": "JOBS", "message_type": "json", "underlying_topic": "jobs", "dead_letter_topic": "dead"}


def test_every_kind_of_subscription_delivers_headers(url: str) -> None:
    with quire.Client(url) as client:
        ordinary = client.subscribe("t")
        filtered = client.subscribe("t", filter="HEADER('trace') = 'abc' AND HEADER('none') IS NULL")
        live = client.subscribe("t", bookmark=quire.EPOCH, live=True)
        selected = client.subscribe("t", select="-/,+/n")
        client.publish("t", {"n": 1, "m": 2}, headers=HEADERS)
        client.publish("t", {"n": 2})
        client.flush(timeout=PATIENCE)
        replay = client.subscribe("t", bookmark=quire.EPOCH)
        for subscription in (ordinary, live, selected, replay):
            first, second = (subscription.get(timeout=PATIENCE) for _ in range(2))
            assert (first.headers, second.headers) == (HEADERS, {})
        assert filtered.get(timeout=PATIENCE).json()["n"] == 1
        replayed = client.subscribe("t", bookmark=quire.EPOCH, filter="HEADER('raw') IS NULL")
        assert replayed.get(timeout=PATIENCE).json()["n"] == 2


async def test_the_asyncio_client_publishes_and_receives_headers(url: str) -> None:
    async with quire.AsyncClient(url) as client:
        subscription = await client.subscribe("t")
        await client.publish("t", b"1", headers=HEADERS)
        assert (await subscription.get(timeout=PATIENCE)).headers == HEADERS
        with pytest.raises(quire.ConfigError) as caught:
            await client.publish("t", b"1", headers={"": "x"})
        assert caught.value.key == "headers"


def test_headers_go_through_queues_queries_and_dead_letters(way_in: str, tmp_path: Path) -> None:
    with configured(way_in, tmp_path, queue=[JOBS]) as reached, quire.Client(**reached) as client:
        client.publish("jobs", {"n": 1}, headers=HEADERS)
        client.flush(timeout=PATIENCE)
        [browsed] = client.sow("JOBS", filter="HEADER('trace') = 'abc'")
        assert browsed.headers == HEADERS
        assert list(client.sow("JOBS", filter="HEADER('trace') = 'other'")) == []
        with client.subscribe("JOBS") as jobs:
            message = jobs.get(timeout=PATIENCE)
            assert message.headers == HEADERS
            message.expire()
        letter = client.subscribe("dead", bookmark=quire.EPOCH).get(timeout=PATIENCE)
        assert letter.headers == HEADERS


def test_headers_survive_a_restart_and_the_publish_store_in_a_file(tmp_path: Path) -> None:
    store = quire.PublishStore(tmp_path / "store")
    with quire.Client(
        "quire://127.0.0.1:1", name="loader", publish_store=store, connect="background"
    ) as client:
        client.publish("t", b"1", headers=HEADERS)
        client.close(timeout=0)
    with quire.testing.server(tmp_path / "data") as server:
        store = quire.PublishStore(tmp_path / "store")
        with quire.Client(server.url, name="loader", publish_store=store) as client:
            client.flush(timeout=PATIENCE)
            assert client.subscribe("t", bookmark=quire.EPOCH).get(timeout=PATIENCE).headers == HEADERS
    with quire.testing.server(tmp_path / "data") as server, quire.Client(server.url) as client:
        assert client.subscribe("t", bookmark=quire.EPOCH).get(timeout=PATIENCE).headers == HEADERS


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        ({"": "x"}, "the name '' has 0 bytes, a name has 1 to 255"),
        ({"n" * 256: "x"}, "has 256 bytes, a name has 1 to 255"),
        ({"a\nb": "x"}, "contains a control character"),
        ({"a": "x" * 32_768}, "names and values have 32769 bytes together, the limit is 32768"),
        ({str(number): "" for number in range(65)}, "65 headers, the limit is 64"),
        ({"a": 1}, "the value of 'a' must be text or bytes, got `int`"),
        ({"a": None}, "the value of 'a' must be text or bytes, got `NoneType`"),
        ({1: "a"}, "a name must be text, got `int`"),
        ({"a": "\ud800"}, "the value of 'a' is not valid Unicode"),
        ([("a", "b")], "expected a mapping of names to text or bytes, got `list`"),
        ("a=b", "expected a mapping of names to text or bytes, got `str`"),
    ],
)
def test_what_headers_cannot_be_is_refused_at_the_door(headers: Any, reason: str, tmp_path: Path) -> None:
    with quire.Client(f"memory:{tmp_path}") as client:
        with pytest.raises(quire.ConfigError) as caught:
            client.publish("t", b"1", headers=headers)
        assert caught.value.key == "headers"
        assert reason.replace("'", '"') in str(caught.value).replace("'", '"')
        # Nothing was sent.
        assert client.publish("t", b"1", headers={}) == 1


def test_headers_at_their_limits_are_delivered(tmp_path: Path) -> None:
    headers: list[Mapping[str, str | bytes]] = [
        {"n" * 255: b"x" * (32_768 - 255)},
        {f"{number:02}": "" for number in range(64)},
        {"a": bytearray(b"b")},  # type: ignore[dict-item]
    ]
    with quire.Client(f"memory:{tmp_path}") as client:
        subscription = client.subscribe("t")
        for each in headers:
            client.publish("t", b"1", headers=each)
            assert subscription.get(timeout=PATIENCE).headers == each


def test_a_message_keeps_its_headers_when_it_is_pickled() -> None:
    message = quire.testing.message("t", {"n": 1}, headers=HEADERS)
    assert message.headers == HEADERS
    copy = pickle.loads(pickle.dumps(message))
    assert (copy, copy.headers) == (message, HEADERS)
    assert message != quire.testing.message("t", {"n": 1})


def test_a_filter_alone_reads_headers() -> None:
    wanted = quire.Filter("HEADER('trace') LIKE '^a' AND HEADER(CONCAT('ra', 'w')) IS NOT NULL")
    assert wanted.matches({}, headers=HEADERS)
    assert not wanted.matches({})
    assert quire.Filter("HEADER('a') = 'x'").matches({}, headers={"a": b"x"})


def test_the_journal_keeps_headers_and_reads_them_as_arrow(tmp_path: Path) -> None:
    with quire.Journal(tmp_path) as journal:
        journal.append("t", {"n": 1}, publisher="p", headers=HEADERS)
        journal.append_many("t", [{"n": 2}, {"n": 3}], publisher="p")
        journal.flush(timeout=PATIENCE)
        assert [record.headers for record in journal.records()] == [HEADERS, {}, {}]
        assert [message.headers for message in journal.read()] == [HEADERS, {}, {}]
        [batch] = journal.read_arrow()
        assert batch.schema.field("headers").type == pa.map_(pa.string(), pa.binary())
        first, *rest = batch.column("headers").to_pylist()
        values = {
            name: value.encode() if isinstance(value, str) else value for name, value in HEADERS.items()
        }
        assert (dict(first), rest) == (values, [None, None])
        [found] = journal.read_arrow(filter="HEADER('trace') = 'abc'")
        assert found.num_rows == 1


def test_the_command_line_publishes_shows_and_replays_headers(tmp_path: Path) -> None:
    with quire.testing.server(tmp_path / "source") as source, quire.testing.server(tmp_path / "to") as to:
        given = ("--header", "trace=a=b", "--header", "größe=")
        published = command("publish", "t", *given, stdin="{}\n", url=source.url)
        assert published.returncode == 0, published.stderr
        with quire.Client(source.url) as client:
            client.publish("t", b"{}", headers={"raw": b"\xff"})
            client.publish("t", b"{}")
            client.flush(timeout=PATIENCE)
        shown = [{"größe": "", "trace": "a=b"}, {"raw": {"base64": "/w=="}}]
        for url, arguments in (
            (source.url, ("subscribe", "t", "--bookmark", "epoch", "--count", "3")),
            (None, ("journal", "dump", str(tmp_path / "source" / "journal"))),
        ):
            lines = command(*arguments, "--format", "json", url=url)
            assert lines.returncode == 0, lines.stderr
            found = [json.loads(line).get("headers") or None for line in lines.stdout.splitlines()]
            assert found == [*shown, None]
        for place in (source.url, str(tmp_path / "source" / "journal")):
            copied = command("replay", place, "--url", to.url, "--into", "copy")
            assert copied.returncode == 0, copied.stderr
        with quire.Client(to.url) as client:
            copy = client.subscribe("copy", bookmark=quire.EPOCH)
            expected = [{"trace": "a=b", "größe": ""}, {"raw": b"\xff"}, {}]
            assert [copy.get(timeout=PATIENCE).headers for _ in range(6)] == expected * 2
        for wrong, reason in (("trace", "expected name=value"), ("=x", "expected name=value")):
            refused = command("publish", "t", "--header", wrong, stdin="{}\n", url=source.url)
            assert refused.returncode != 0
            assert f"--header: {reason}" in refused.stderr


def test_publishes_that_are_followed_and_batches_carry_headers(url: str) -> None:
    with quire.Client(url) as client:
        messages = client.subscribe("t")
        client.publish_receipt("t", b"1", headers=HEADERS).wait(PATIENCE)
        client.publish("t", b"2", headers=HEADERS, on_persisted=lambda _: None)
        client.publish_many("t", [b"3", quire.Publish(b"4", headers={"own": "x"})], headers=HEADERS)
        received = [messages.get(timeout=PATIENCE) for _ in range(4)]
        assert [message.headers for message in received] == [HEADERS, HEADERS, HEADERS, {"own": "x"}]
        with pytest.raises(quire.ConfigError) as caught:
            client.publish_many("t", [b"5", quire.Publish(b"6", headers={"n": 1})])  # type: ignore[dict-item]
        assert caught.value.key == "headers"
        assert "item 1" in caught.value.__notes__[0]
