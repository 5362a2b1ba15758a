"""`quire stats`, `quire check`, `quire client disconnect` and the files for Prometheus and Grafana."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import quire
import quire.testing
from quire.admin._metrics import NODE_AT, NODES
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


def test_stats_shows_every_node_of_a_running_server(
    server: TestServer, capsys: pytest.CaptureFixture[str]
) -> None:
    def found(path: str) -> Any:
        return json.loads(output(capsys, "stats", path, "--url", server.url, "--format", "json"))

    for node in NODES:
        whole = found(f"/quire/{node.path}")
        assert isinstance(whole, dict if node.id is None else list), node.path
    instance = found("/quire/instance")
    assert {path.split("/")[1] for path in NODE_AT if path.startswith("instance/")} <= instance.keys()
    assert instance["queues"][0]["id"] == "jobs"
    links = {"missing": 0, "accepted": 0, "missing_total": 0, "comparisons": 0}
    assert instance["replication"] == {**links, "destinations": [], "sources": []}
    # Its figures, and those of its links.
    assert found("/quire/instance/replication") == instance["replication"]
    assert found("replication/missing")["value"] == 0
    assert found("journal/size_bytes")["value"] == server.journal.segments()[0].size
    assert found("queues/jobs/details")["value"] == {"subscriptions": [], "leases": []}
    assert found("/quire/host")["name"]


def test_stats_shows_the_samples_of_a_running_server(
    server: TestServer, capsys: pytest.CaptureFixture[str]
) -> None:
    def found(*arguments: str) -> Any:
        return json.loads(output(capsys, "stats", *arguments, "--url", server.url, "--format", "json"))

    wait_until(lambda: len(found("queues/jobs/depth", "--from=-1m")["samples"]) > 1)
    assert {value for _, value in found("queues/jobs/depth", "--from=-1m")["samples"]} == {2}
    assert found("queues/jobs/depth", "--to=-1m")["samples"] == []
    for arguments, code in ((["queues", "--from=-1m"], 2), (["clients/1/sequence", "--from=-1m"], 1)):
        assert run(["stats", *arguments, "--url", server.url]) == code
        assert capsys.readouterr().err


def test_samples_come_in_parts(
    server: TestServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def found() -> Any:
        answer = output(
            capsys, "stats", "instance/uptime_s", "--from=-1m", "--url", server.url, "--format", "json"
        )
        return json.loads(answer)["samples"]

    wait_until(lambda: len(found()) > 2)
    monkeypatch.setattr("quire.admin._questions.SAMPLES_MAX", 1)
    values = [value for _, value in found()]
    assert len(values) > 2
    assert values == sorted(set(values))


def test_a_server_without_the_table_keeps_statistics_in_memory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with quire.testing.server(tmp_path) as server:

        def found(path: str, *more: str) -> Any:
            return json.loads(output(capsys, "stats", path, *more, "--url", server.url, "--format", "json"))

        wait_until(lambda: found("statistics/samples")["value"] == 1)
        assert len(found("journal/size_bytes", "--from=-1h")["samples"]) == 1
        assert server.admin_url is None
    assert not (tmp_path / "statistics.db").exists()


def test_a_question_that_cannot_be_read_is_refused(server: TestServer) -> None:
    with quire.Client(server.url) as client:
        for question in ({}, {"path": 1}, {"path": "journal", "begin": "x"}, {"path": "instance/none"}):
            with pytest.raises(quire.QuireError):
                client._statistics(question)
        with pytest.raises(quire.QuireError, match="subject"):
            client._statistics({"path": "instance/clients"})
        assert client._statistics({"path": "instance/journal"})["value"]["writable"] is True


def test_the_statistics_need_the_right_on_the_server(tmp_path: Path) -> None:
    users = {"anna": {"password": "anna-secret"}, "carl": {"password": "carl-secret"}}
    rights = [
        {"user": "anna", "topic": "^", "allow": ["read", "write"]},
        {"user": "carl", "topic": "/quire/server", "allow": ["monitor"]},
    ]
    with quire.testing.server(tmp_path, users=users, entitlement=rights) as server:
        with (
            quire.Client(server.url, **server.options("anna")) as client,
            pytest.raises(quire.NotEntitledError),
        ):
            client._statistics({"path": "instance/journal"})
        with quire.Client(server.url, **server.options("carl")) as client:
            assert client._statistics({"path": "instance/journal"})["value"]["segments"] == 1


@pytest.mark.parametrize("path", ["none", "queues/none", "queues/jobs/none", "cpu/none"])
def test_stats_of_a_path_that_does_not_exist_fails(
    server: TestServer, path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["stats", path, "--url", server.url]) == 1
    assert path.split("/")[-1] in capsys.readouterr().err


def test_stats_shows_objects_whose_names_have_slashes_and_percent_signs(
    tmp_path: Path, server: TestServer, capsys: pytest.CaptureFixture[str]
) -> None:
    def shown(path: str, *options: str) -> Any:
        return json.loads(output(capsys, "stats", path, "--format", "json", *options))

    names = {"orders/new": "orders%2Fnew", "%2F": "%252F", "a.json": "a%2Ejson"}
    with quire.Client(server.url) as client:
        for name in names:
            client.publish(name, {})
        client.flush()

    def has_samples(leaf: str) -> bool:
        return bool(shown(leaf, "--from=-1h", "--url", server.url)["samples"])

    file = str(tmp_path / "statistics.db")
    for encoded in names.values():
        leaf = f"topics/{encoded}/published"
        assert shown(f"topics/{encoded}", "--url", server.url)["published"] == 1
        wait_until(partial(has_samples, leaf))
        assert shown(leaf, "--url", server.url)["value"] == 1
        assert shown(leaf, "--file", file)["value"] == 1


def test_a_metric_without_samples_has_the_head_of_its_columns(
    tmp_path: Path, server: TestServer, capsys: pytest.CaptureFixture[str]
) -> None:
    for place in (["--url", server.url], ["--file", str(tmp_path / "statistics.db")]):
        arguments = ["stats", "queues/jobs/depth", "--to=-1h", *place]
        assert output(capsys, *arguments) == "timestamp\tdepth\n"
        assert output(capsys, *arguments, "--format", "csv").splitlines() == ["timestamp,depth"]


@pytest.mark.parametrize("content", [b"", b"text" * 5000, None])
def test_stats_says_that_a_file_is_damaged(
    tmp_path: Path, server: TestServer, capsys: pytest.CaptureFixture[str], content: bytes | None
) -> None:
    written = tmp_path / "statistics.db"
    server.close()
    file = tmp_path / "damaged.db"
    # Without content: the first page is as it was, and the others are missing.
    file.write_bytes(written.read_bytes()[:4096] if content is None else content)
    for path in (["queues"], ["queues/jobs/depth", "--from=-1h"]):
        assert f"{file}: it is damaged, or has no statistics" in error(
            capsys, "stats", *path, "--file", str(file), code=1
        )


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


def test_check_says_that_little_room_is_left(server: TestServer, capsys: pytest.CaptureFixture[str]) -> None:
    def line(*limits: str, code: int) -> str:
        arguments = [f"--min-free={limit}" for limit in limits]
        return output(capsys, "check", *arguments, "--url", server.url, code=code)

    assert line("journal=1KB:1", "data=0%", code=0).startswith("OK: ")
    told = line("journal=100%", code=1)
    assert told.startswith("WARNING: the file system of ")
    assert "archive or remove journal files" in told
    assert "'journal available_bytes'=" in told
    assert line("journal=100%:100%", code=2).startswith("CRITICAL: ")
    assert line("journal=8000TB", code=1).startswith("WARNING: ")
    assert "no file system of the kind 'moon'; it has " in line("moon=1GB", code=3)
    for mistake in (
        "journal",
        "=1GB",
        "journal=",
        "journal=1GB:",
        "journal=x",
        "journal=101%",
        "journal=-1%",
        "journal=٢",
        "journal=²",
    ):
        assert line(mistake, code=3).startswith("UNKNOWN: --min-free: ")


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
