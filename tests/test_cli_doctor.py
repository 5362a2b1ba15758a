"""`quire doctor`: the archive has what a report needs, and neither data nor secrets."""

from __future__ import annotations

import json
import sqlite3
import tarfile
from pathlib import Path
from typing import Any

import pytest
import quire
import quire.testing
from quire.admin._statistics import History
from quire.cli import _doctor
from support.command_line import quire as run
from support.waiting import PATIENCE, wait_until

MARK = "Mark-7b1d"
CONFIG = f"""
[transaction_log]
journal_directory = "journal"

[authentication]
method = "users"
users_file = "users.toml"

[[replication.destination]]
name = "east"
url = "quires://link:{MARK}@east:9107"
password = "{MARK}"
password_file = "east.secret"
headers = {{ authorization = "{MARK}" }}
tokens = ["{MARK}"]
"""


def content(archive: Path) -> dict[str, bytes]:
    """The files of the archive by their names below its directory."""
    with tarfile.open(archive) as opened:
        found = {}
        for member in opened:
            file = opened.extractfile(member)
            assert file is not None
            assert member.mode == 0o600
            found[member.name.partition("/")[2]] = file.read()
        return found


def lines(text: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_a_running_server_is_described_without_data(tmp_path: Path) -> None:
    config = tmp_path / "quire.toml"
    config.write_text(CONFIG)
    archive = tmp_path / "report.tar.gz"
    queue = {"name": "jobs", "message_type": "json", "underlying_topic": "orders"}
    with quire.testing.server(queue=queue) as server, quire.Client(server.url, name="shop") as client:
        orders = client.subscribe("orders", filter=f"/text = '{MARK}'")
        client.publish("orders", {"text": MARK}, headers={"source": MARK}, correlation_id=MARK)
        client.flush(PATIENCE)
        orders.get(PATIENCE)
        done = run("doctor", "--config", str(config), "--output", str(archive), url=server.url)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{archive}\n", "")
    assert archive.stat().st_mode & 0o777 == 0o600
    found = content(archive)
    assert MARK not in str(found)
    assert json.loads(found["versions.json"])["quire"] == quire.__version__
    assert json.loads(found["server/server.json"])["connections"] == 2
    assert [(each["queue"], each["depth"]) for each in lines(found["server/queues.jsonl"])] == [("jobs", 1)]
    assert "shop" in [each["client_name"] for each in lines(found["server/clients.jsonl"])]
    subscriptions = [each["filter"] for each in lines(found["server/subscriptions.jsonl"])]
    assert subscriptions == ["*** (19 characters)"]
    [destination] = json.loads(found["configuration/quire.toml.json"])["replication"]["destination"]
    assert destination == {
        "name": "east",
        "url": "quires://link:***@east:9107",
        "password": "***",
        "password_file": "east.secret",
        "headers": {"authorization": "***"},
        "tokens": "***",
    }


def test_a_stopped_server_is_described_from_its_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_doctor, "LOG_TAIL", 100)
    data = tmp_path / "data"
    with quire.Client(f"file:{data / 'journal'}") as client:
        client.publish("orders", {"text": MARK})
        client.flush(PATIENCE)
    (data / "quire.toml").write_text(CONFIG)
    (data / "broken.toml").write_text(f"password = '{MARK}\n")
    (data / "latin.toml").write_bytes(b"name = '\xff'")
    (data / "users.toml").write_text(f'[[user]]\nname = "anna"\npassword = "$argon2id${MARK}"\n')
    (data / "server.log").write_text("".join(f"line {number}\n" for number in range(100)))
    (data / "server.key").write_text(MARK)
    with sqlite3.connect(data / "statistics.db") as statistics:
        statistics.execute("CREATE TABLE sample (value)")
    statistics.close()
    archive = tmp_path / "report.tar.gz"
    assert _doctor.doctor(data, None, None, archive) == 0
    found = content(archive)
    assert MARK not in str(found)
    assert [each["count"] for each in lines(found["journal/journal.jsonl"])] == [1]
    assert found["logs/server.log"].splitlines()[-1] == b"line 99"
    assert 80 < len(found["logs/server.log"]) <= 100
    assert found["logs/server.log"].startswith(b"line ")
    assert found["statistics/statistics.db"].startswith(b"SQLite format 3")
    listed = {each["file"]: each for each in lines(found["files.jsonl"])}
    assert listed["server.key"]["bytes"] == len(MARK)
    assert found["missing.txt"].decode().splitlines() == [
        "configuration/broken.toml.json: it is not TOML (at end of document)",
        "configuration/latin.toml.json: it is not UTF-8",
    ]


def test_the_statistics_and_the_log_in_the_archive_have_no_data(tmp_path: Path) -> None:
    data = tmp_path / "data"
    headers = {"authorization": MARK}
    tell: dict[str, Any] = {
        "name": "tell",
        "on": {"publish": {"topic": "orders"}},
        "do": [
            {"log": {"text": "got {{DATA}}"}},
            {"publish": {"topic": "told", "data": "{}", "headers": headers}},
        ],
    }
    targets = [
        {"target": "file", "file": "text.log"},
        {"target": "file", "file": "lines.log", "format": "json"},
    ]
    settings: dict[str, Any] = {"admin": {"interval": "1s"}, "logging": targets, "action": tell}
    with (
        quire.testing.server(data, **settings) as server,
        quire.Client(server.url) as client,
    ):
        told = client.subscribe("told")
        orders = client.subscribe("orders", filter=f"/text = '{MARK}'")
        client.publish("orders", {"text": MARK})
        client.flush(PATIENCE)
        orders.get(PATIENCE)
        told.get(PATIENCE)
        wait_until(lambda: MARK in str((data / "statistics.db-wal").read_bytes()))
    assert all(MARK in (data / name).read_text() for name in ("text.log", "lines.log"))
    archive = tmp_path / "report.tar.gz"
    assert _doctor.doctor(data, None, None, archive) == 0
    found = content(archive)
    assert not [name for name, text in found.items() if MARK.encode() in text]
    assert "missing.txt" not in found
    assert b" 60-0001 ***\n" in found["logs/text.log"]
    assert "60-0001" in [each["id"] for each in lines(found["logs/lines.log"])]
    file = tmp_path / "statistics.db"
    file.write_bytes(found["statistics/statistics.db"])
    at, last = History.of_file(file).latest()
    assert at
    assert json.loads(last["instance"]["config"])["action"][0]["do"][1]["publish"]["headers"] == {
        "authorization": "***"
    }


def test_what_is_no_server_ends_with_a_reason_and_no_file(tmp_path: Path) -> None:
    (tmp_path / "other.log").write_text("not of quire")
    archive = tmp_path / "report.tar.gz"
    for arguments, reason in (
        ([str(tmp_path)], f"{tmp_path} is not the data directory of a server"),
        ([str(tmp_path / "none")], "there is no directory"),
        (["--url", "quire://127.0.0.1:1"], "no connection"),
    ):
        done = run("doctor", *arguments, "--output", str(archive))
        assert (done.returncode, done.stdout) == (1, "")
        assert reason in done.stderr
        assert not archive.exists()
    both = run("doctor", str(tmp_path), "--url", "quire://127.0.0.1:1")
    assert both.returncode == 2


def test_a_file_that_exists_stays_as_it_is(tmp_path: Path) -> None:
    archive = tmp_path / "report.tar.gz"
    archive.write_text("mine")
    done = run("doctor", "--output", str(archive), "--url", "memory:")
    assert (done.returncode, done.stderr) == (1, f"quire: {archive}: File exists\n")
    assert archive.read_text() == "mine"


def test_a_part_that_the_user_may_not_see_is_named(tmp_path: Path) -> None:
    users = {"anna": {"password": "password of anna"}}
    entries = {"user": "anna", "topic": "orders", "allow": "write"}
    archive = tmp_path / "report.tar.gz"
    with quire.testing.server(users=users, entitlement=entries) as server:
        parts = _doctor._Parts()
        with quire.Client(server.url, **server.options("anna")) as client:
            _doctor._add_server(parts, client)
    assert "server/server.json" in parts.files
    assert any(line.startswith("server/clients.jsonl: ") and "monitor" in line for line in parts.missing)
    assert not archive.exists()
