"""`quire bench` measures what it says, and cleans up after its own mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import quire
from quire.cli import run
from quire.testing import server
from support.waiting import PATIENCE


@pytest.mark.parametrize("what", ["publish", "subscribe", "replay"])
def test_a_rate_is_of_the_messages_that_were_asked_for(
    what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"file:{tmp_path}/journal"
    assert run(["bench", what, "--url", url, "--messages", "500", "--size", "100", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["messages"], result["size"]) == (500, 100)
    # Both are rounded.
    assert result["per_second"] * result["seconds"] == pytest.approx(500, rel=0.1)
    with quire.Journal(tmp_path / "journal", read_only=True) as journal:
        sizes = [len(message) for message in journal.read(topic="bench")]
    assert sizes == [100] * (501 if what == "replay" else 500)


def test_a_queue_is_empty_when_all_were_acknowledged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"file:{tmp_path}/journal"
    arguments = ["bench", "queue", "--url", url, "--messages", "500", "--size", "100", "--json"]
    assert run(arguments) == 0
    assert json.loads(capsys.readouterr().out)["messages"] == 500
    config = quire.Config(queue={"name": "BENCH", "message_type": "json", "underlying_topic": "bench"})
    with quire.Client(url, config=config) as client:
        assert client.queue_stats("BENCH")["BENCH"]["depth"] == 0
        client.publish("bench", b"{}")
        client.flush(timeout=PATIENCE)
    assert run(arguments) == 2
    assert "holds 1 message:" in capsys.readouterr().err


def test_a_queue_of_a_server_is_measured_and_an_unknown_one_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    configured = {"name": "JOBS", "message_type": "json", "underlying_topic": "bench"}
    with server(tmp_path, queue=configured) as running:
        arguments = ["bench", "queue", "--url", running.url, "--messages", "50", "--json"]
        assert run([*arguments, "--queue", "JOBS"]) == 0
        assert json.loads(capsys.readouterr().out)["messages"] == 50
        assert run([*arguments, "--queue", "JOBZ"]) != 0
        assert "JOBZ" in capsys.readouterr().err


def test_latency_has_quantiles_in_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["bench", "latency", "--url", f"file:{tmp_path}/journal", "--seconds", "0.2", "--rate", "500"]
    assert run([*arguments, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["messages"] == 100
    for what in ("delivered", "persisted", "disk"):
        quantiles = [result[what][name] for name in ("p50_us", "p99_us", "p999_us", "max_us")]
        assert quantiles == sorted(quantiles)
        assert quantiles[0] > 0
    assert run(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "100 messages of 512 bytes at 500/s"
    assert [line.split()[:2] for line in lines[1:]] == [
        [what, "p50"] for what in ("delivered", "persisted", "disk")
    ]
    # Only the journal is left.
    assert sorted(path.name for path in tmp_path.iterdir()) == ["journal"]


def test_latency_of_an_engine_in_memory_has_no_disk(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["bench", "latency", "--url", "memory:bench", "--seconds", "0.1", "--rate", "500", "--json"]
    assert run(arguments) == 0
    assert "disk" not in json.loads(capsys.readouterr().out)
    assert run([*arguments, "--disk", str(tmp_path)]) == 0
    assert json.loads(capsys.readouterr().out)["disk"]["p50_us"] > 0


@pytest.mark.parametrize("arguments", [("publish", "--messages", "0"), ("latency", "--rate", "0")])
def test_what_cannot_be_measured_is_refused(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["bench", *arguments, "--url", "memory:bench"]) == 2
    assert arguments[1] in capsys.readouterr().err
