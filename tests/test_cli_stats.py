"""`quire stats`, `quire check`, `quire client disconnect` and the files for Prometheus and Grafana."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import quire
import quire.testing
from quire.cli import run
from quire.testing import TestServer
from support.waiting import wait_until


@pytest.fixture
def server(tmp_path: Path) -> Iterator[TestServer]:
    settings: dict[str, Any] = {
        "queue": {"name": "jobs", "message_type": "json"},
        "admin": {"interval": "1s"},
    }
    with (
        quire.testing.server(tmp_path, **settings) as server,
        quire.Client(server.url, name="shop") as client,
    ):
        client.publish("jobs", {"id": 1})
        client.publish("jobs", {"id": 2})
        client.flush()
        yield server


def output(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    assert run(list(arguments)) == code
    return capsys.readouterr().out


def test_stats_shows_a_node_of_a_running_server(
    server: TestServer, capsys: pytest.CaptureFixture[str]
) -> None:
    def shown(*arguments: str) -> str:
        return output(capsys, "stats", *arguments, "--url", server.url)

    assert "jobs" in shown("/quire/instance/queues")
    depth = json.loads(shown("queues/jobs/depth", "--format", "json"))
    assert (depth["path"], depth["value"]) == ("/quire/instance/queues/jobs/depth", 2)
    assert json.loads(shown("queues/jobs", "--format", "json"))["entered"] == 2
    assert shown("queues", "--format", "csv").splitlines()[1].startswith("jobs,")
    assert '<item id="jobs">' in shown("queues", "--format", "xml")
    assert json.loads(shown("clients", "--format", "json"))[0]["client_name"] == "shop"


@pytest.mark.parametrize("path", ["none", "queues/none", "queues/jobs/none", "cpu"])
def test_stats_of_a_path_that_does_not_exist_fails(
    server: TestServer, path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["stats", path, "--url", server.url]) == 1
    assert path.split("/")[-1] in capsys.readouterr().err


def test_stats_reads_the_file_of_a_running_and_of_a_stopped_server(
    tmp_path: Path, server: TestServer, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(tmp_path / "statistics.db")

    def samples() -> list[list[object]]:
        text = output(capsys, "stats", "queues/jobs/depth", "--file", file, "--from=-1h", "--format", "json")
        found: list[list[object]] = json.loads(text)["samples"]
        return found

    wait_until(lambda: 2 in [value for _, value in samples()])
    server.close()
    assert samples()[-1][1] == 2
    assert json.loads(output(capsys, "stats", "queues", "--file", file, "--format", "json"))[0]["depth"] == 2
    table = output(capsys, "stats", "queues/jobs/depth", "--file", file, "--from=-1h", "--format", "csv")
    assert table.splitlines()[0] == "timestamp,depth"
    assert "one metric" in error(capsys, "stats", "queues", "--file", file, "--from=-1h", code=2)
    assert "--from" in error(capsys, "stats", "queues/jobs/depth", "--file", file, "--from", "x", code=2)


def error(capsys: pytest.CaptureFixture[str], *arguments: str, code: int) -> str:
    assert run(list(arguments)) == code
    return capsys.readouterr().err


def test_check_says_what_is_wrong_in_one_line(server: TestServer, capsys: pytest.CaptureFixture[str]) -> None:
    def checked(*arguments: str, code: int) -> str:
        text = output(capsys, "check", *arguments, "--url", server.url, code=code)
        assert text.count("\n") == 1
        return text

    assert checked(code=0).startswith("OK: the server is ready | connections=")
    assert checked("--max-depth", "jobs=5", code=0).startswith("OK: ")
    assert "'jobs depth'=2;1;" in checked("--max-depth", "jobs=1", code=1)
    assert checked("--max-depth", "jobs=0:1", code=2).startswith("CRITICAL: queue jobs has 2 messages")
    assert checked("--max-age", "jobs=0", code=1).startswith("WARNING: the oldest message of queue jobs")
    assert checked("--max-depth", "none=1", code=3).startswith("UNKNOWN: ")
    assert checked("--max-depth", "none", code=3).startswith("UNKNOWN: ")
    assert checked("--max-lag", "east=1s", code=3).startswith("UNKNOWN: ")


def test_check_of_a_server_that_does_not_answer_is_unknown(capsys: pytest.CaptureFixture[str]) -> None:
    assert output(capsys, "check", "--url", "quire://127.0.0.1:1", code=3).startswith("UNKNOWN: ")


def test_check_of_a_lost_destination_is_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    link = {
        "name": "east",
        "sync_type": "async",
        "addresses": ["127.0.0.1:1"],
        "topic": {"name": "^", "message_type": "json"},
    }
    with quire.testing.server(tmp_path, replication={"destination": [link]}) as server:
        text = output(capsys, "check", "--url", server.url, code=1)
    assert text.startswith("WARNING: destination east is not connected")


def test_a_client_is_disconnected_by_name_number_and_pattern(
    server: TestServer, capsys: pytest.CaptureFixture[str]
) -> None:
    def disconnected(*arguments: str, code: int = 0) -> str:
        return output(capsys, "client", "disconnect", *arguments, "--url", server.url, code=code)

    def number() -> int:
        wait_until(lambda: [each["client_name"] for each in server.stats()["clients"]] == ["shop"])
        connection: int = server.stats()["clients"][0]["connection"]
        return connection

    for how in (["shop"], [str(number())], ["--pattern", "sh.*"]):
        before = number()
        how = [str(before)] if how[0].isdigit() else how
        assert disconnected(*how) == "disconnected: 1\n"
        wait_until(lambda before=before: number() != before)  # type: ignore[misc]
    assert disconnected("sho", code=1) == "disconnected: 0\n"
    assert disconnected("--pattern", "hop", code=1) == "disconnected: 0\n"
    assert run(["client", "disconnect", "--url", server.url]) == 2
    assert run(["client", "disconnect", "--pattern", "(", "--url", server.url]) == 2


def test_the_files_for_monitoring_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert json.loads(output(capsys, "generate", "grafana"))["title"] == "quire"
    assert "prod:9080" in output(capsys, "generate", "prometheus", "--target", "prod:9080")
    assert "QuireNotReady" in output(capsys, "generate", "prometheus", "--rules")


def test_a_container_with_the_table_installs_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "quire.toml").write_text('[admin]\naddress = "127.0.0.1:9080"\n')
    monkeypatch.chdir(tmp_path)
    assert '"$(ls /tmp/wheels/*.whl)[admin]"' in output(
        capsys, "generate", "dockerfile", "--config", "quire.toml"
    )
