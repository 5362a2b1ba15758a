"""Last-value topics on the command line: `quire sow`, `subscribe --sow`, `publish --key`,
`sow-delete` and `topic`."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import quire
from quire.testing import server
from support.command_line import quire as run
from support.command_line import started
from support.waiting import PATIENCE

SETTINGS: dict[str, Any] = {
    "sow_topic": [
        {"name": "orders", "message_type": "json", "key": ["/id"]},
        {"name": "kept", "message_type": "json", "key": ["/id"], "history": {"window": "1d"}},
        {"name": "prices", "message_type": "json", "durability": "transient"},
        {"name": "all-parts", "message_type": "json", "key": "/id", "pattern": "parts/.*"},
    ]
}


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    with server(tmp_path, **SETTINGS) as running:
        yield running.url


def lines(result: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    assert result.returncode == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def next_line(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    line: dict[str, Any] = json.loads(process.stdout.readline())
    return line


def publish(url: str, count: int) -> None:
    rows = "".join(f'{{"id": {number}, "qty": {number % 2}}}\n' for number in range(1, count + 1))
    assert run("publish", "orders", stdin=rows, url=url).returncode == 0


def test_records_are_printed_with_their_keys(url: str) -> None:
    publish(url, 5)
    found = lines(
        run("sow", "orders", "--order-by", "/qty DESC, /id", "--top-n", "2", "--skip-n", "1", url=url)
    )
    assert [each["data"]["id"] for each in found] == [3, 5]
    assert {each["command"] for each in found} == {"sow"}
    assert "reason" not in found[0]
    keys = ",".join(each["sow_key"] for each in found)
    assert len(lines(run("sow", "orders", "--keys", keys, url=url))) == 2
    (one,) = lines(run("sow", "orders", "--filter", "/id = 4", "--select", "-/,+/qty", url=url))
    assert one["data"] == {"qty": 0}
    earlier = run("sow", "kept", "--bookmark", "2020-01-01T00:00:00Z", url=url)
    assert 'the history of "kept" begins at' in earlier.stderr
    assert lines(run("sow", "kept", "--bookmark", "now", url=url)) == []
    shown = run("sow", "orders", "--filter", "/id = 4", "--format", "table", url=url).stdout.splitlines()
    assert shown[0].split()[-2:] == ["key", "data"]
    assert one["sow_key"] in shown[1]


def test_a_subscription_prints_the_records_and_their_changes(url: str) -> None:
    publish(url, 1)
    with quire.Client(url) as client:
        command = ["subscribe", "orders", "--sow", "--count", "1", "--timeout", str(PATIENCE)]
        (record,) = lines(run(*command, url=url))
        assert (record["command"], record["data"]["id"]) == ("sow", 1)
        client.sow_delete("orders", data={"id": 1})
    refused = run("subscribe", "orders", "--oof", url=url)
    assert refused.returncode == 2
    assert "--oof: it requires --sow or --delta" in refused.stderr
    publish(url, 3)
    page = ["--order-by", "/id DESC", "--top-n", "1", "--skip-n", "1", "--conflation", "1ms"]
    (record,) = lines(run(*command, *page, url=url))
    assert record["data"]["id"] == 2
    refused = run("subscribe", "orders", "--top-n", "0", url=url)
    assert "--top-n: it requires --sow" in refused.stderr
    refused = run("subscribe", "orders", "--sow", "--skip-n", "0", url=url)
    assert "--skip-n: it requires --top-n" in refused.stderr
    refused = run("subscribe", "orders", "--conflation-key", "/id", url=url)
    assert "--conflation-key: it requires --conflation" in refused.stderr
    refused = run("subscribe", "orders", "--sow", "--bookmark", "epoch", url=url)
    assert '"orders" keeps no history' in refused.stderr


def test_the_messages_after_an_earlier_state_have_a_rate(url: str) -> None:
    with quire.Client(url) as client, client.subscribe("kept") as kept:
        for number in range(4):
            client.publish("kept", {"id": number % 2, "n": number})
        second = [kept.get(timeout=PATIENCE) for _ in range(4)][1]
    options = ["subscribe", "kept", "--sow", "--bookmark", str(second.bookmark), "--count", "4"]
    for paced in (["--rate", "100000"], ["--live"]):
        printed = lines(run(*options, *paced, "--timeout", str(PATIENCE), url=url))
        assert sorted((line["command"], line["data"]["n"]) for line in printed) == [
            ("publish", 2),
            ("publish", 3),
            ("sow", 0),
            ("sow", 1),
        ]
    for option in (["--rate", "5"], ["--live"]):
        refused = run("subscribe", "kept", "--sow", *option, url=url)
        assert f"{option[0]}: it requires --bookmark" in refused.stderr
        refused = run("subscribe", "kept", "--delta", *option, url=url)
        assert f"{option[0]}: it does not go together with a delta subscription" in refused.stderr
    refused = run("subscribe", "kept", "--sow", "--oof", "--bookmark", "epoch", url=url)
    assert "--oof: it does not go together with --bookmark" in refused.stderr


def test_a_delta_can_be_delayed(tmp_path: Path) -> None:
    queue = {"name": "work", "message_type": "json", "underlying_topic": "orders"}
    with server(tmp_path, queue=queue, **SETTINGS) as running:
        tomorrow = (datetime.now(UTC) + timedelta(days=1)).isoformat()
        for options in (["--delay", "1h"], ["--deliver-at", tomorrow]):
            delta = run("publish", "orders", "--delta", "--data", '{"id": 1}', *options, url=running.url)
            assert delta.returncode == 0, delta.stderr
        with quire.Client(running.url) as client:
            assert client.queue_stats("work")["work"]["delayed"] == 2
            assert len(list(client.sow("orders"))) == 1


def test_a_delta_subscription_prints_the_fields_that_differ(url: str) -> None:
    publish(url, 1)
    command = ["subscribe", "orders", "--sow", "--delta", "--no-empties"]
    with quire.Client(url) as client, started(*command, url=url) as printing:
        assert next_line(printing)["command"] == "sow"
        client.publish("orders", {"id": 1, "qty": 1})
        client.publish("orders", {"id": 1, "qty": 7})
        change = next_line(printing)
        assert (change["command"], change["is_delta"], change["data"]) == (
            "publish",
            True,
            {"id": 1, "qty": 7},
        )
    refused = run("subscribe", "orders", "--no-empties", url=url)
    assert refused.returncode == 2
    assert "--no-empties: it requires --delta" in refused.stderr
    for sow in ([], ["--sow"]):
        refused = run("subscribe", "orders", *sow, "--delta", "--bookmark", "epoch", url=url)
        assert "--bookmark: it does not go together with a delta subscription" in refused.stderr


def test_records_are_published_with_keys_and_deleted(url: str) -> None:
    for key, price in (("IBM", 1), ("HPQ", 2), ("IBM", 3)):
        assert (
            run("publish", "prices", "--key", key, stdin=f'{{"price": {price}}}\n', url=url).returncode == 0
        )
    assert {each["sow_key"]: each["data"]["price"] for each in lines(run("sow", "prices", url=url))} == {
        "IBM": 3,
        "HPQ": 2,
    }
    assert run("sow-delete", "prices", "--keys", "IBM,XYZ", url=url).stdout == "1\n"
    assert lines(run("sow-delete", "prices", "--filter", "/price > 0", "--json", url=url)) == [{"deleted": 1}]
    publish(url, 2)
    assert run("sow-delete", "orders", "--data", '{"id": 2}', url=url).stdout == "1\n"
    refused = run("sow-delete", "orders", url=url)
    assert refused.returncode == 2
    assert "at least one of --filter, --keys and --data" in refused.stderr
    refused = run("sow", "elsewhere", url=url)
    assert "elsewhere" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_topics_show_their_records(url: str) -> None:
    publish(url, 3)
    (orders,) = [each for each in lines(run("topic", "ls", "--json", url=url)) if each["topic"] == "orders"]
    assert (orders["last_values"]["records"], orders["last_values"]["key"]) == (3, ["/id"])
    assert lines(run("topic", "stats", "orders", "--json", url=url)) == [orders]
    table = dict(line.split("\t") for line in run("topic", "stats", "orders", url=url).stdout.splitlines())
    assert (table["topic"], table["last values"], table["records"], table["key"]) == (
        "orders",
        "yes",
        "3",
        "/id",
    )
    assert "the server has no topic" in run("topic", "stats", "nothing", url=url).stderr


def test_the_entry_of_a_pattern_shows_its_topics_together(url: str) -> None:
    with quire.Client(url) as client:
        for topic in ("parts/a", "parts/b"):
            client.publish(topic, {"id": 1})
    listed = {each["topic"]: each["last_values"] for each in lines(run("topic", "ls", "--json", url=url))}
    assert listed["parts/a"]["records"] == listed["parts/b"]["records"] == 1
    entry = listed["all-parts"]
    assert (entry["records"], entry["topics"], entry["pattern"]) == (2, 2, "parts/.*")
    shown = run("topic", "stats", "all-parts", url=url).stdout.splitlines()
    table = dict(line.split("\t") for line in shown)
    assert (table["records"], table["topics"], table["pattern"]) == ("2", "2", "parts/.*")
    assert (
        "parts/none" in run("sow", "parts/none", url=url).stderr
        or not run("sow", "parts/none", url=url).stdout
    )


@pytest.mark.parametrize("name", [(), ("--name", "loader")])
def test_publish_names_the_line_that_was_refused(name: tuple[str, ...], url: str, tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"id": 1}\n\n{"id": 2}\n\n{bad\n{"id": 3}\n')
    result = run("publish", "orders", str(rows), *name, url=url)
    assert result.returncode == 1
    assert result.stderr.startswith(f"quire: line 5 of {rows} was refused; the lines that were not refused")
    assert len(lines(run("sow", "orders", url=url))) == 3


def test_publish_names_the_line_that_is_too_large(url: str, tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text(f'{{"id": 1}}\n\n{"x" * 17_000_000}\n{{"id": 3}}\n')
    result = run("publish", "orders", str(rows), url=url)
    assert result.returncode == 1
    assert result.stderr.startswith(f"quire: line 3 of {rows} was not published, nor were the lines after it")
    assert len(lines(run("sow", "orders", url=url))) == 1
    result = run("publish", "orders", stdin="{bad\n", url=url)
    assert result.stderr.startswith("quire: line 1 of the standard input was refused")


def test_a_query_of_a_directory_that_is_none_makes_no_journal(tmp_path: Path) -> None:
    result = run("sow", "orders", url=f"file:{tmp_path / 'typo'}")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == f"quire: --url: there is no directory {tmp_path / 'typo'}\n"
    assert list(tmp_path.iterdir()) == []
