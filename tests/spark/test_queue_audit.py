"""The audit of queues whose leases are recorded: the holder of each message, the end and the
duration of its lease, compared with the actions of the consumers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import quire
import quire.spark
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from quire.cli import run as command
from quire.spark._queue_audit import _moment
from quire.testing import ServerProcess
from support.waiting import PATIENCE

CONFIG: dict[str, Any] = {
    "queue": [
        {"name": "work", "message_type": "json", "record_leases": True},
        {"name": "short", "message_type": "json", "record_leases": True, "lease_period": "50ms"},
        {"name": "silent", "message_type": "json"},
    ]
}
#: What is compared of a consumer.
COUNTS = (
    "delivered",
    "redelivered",
    "acknowledged",
    "cancelled",
    "expired",
    "ran_out",
    "left",
    "lost",
    "held",
)


def take(jobs: quire.Subscription, count: int) -> dict[int, quire.Message]:
    return {job.json()["n"]: job for job in (jobs.get(PATIENCE) for _ in range(count))}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A journal of which the tests know what it must say. The server is killed while `bob` holds
    message 7."""
    place = tmp_path_factory.mktemp("audit")
    with (
        ServerProcess(place, **CONFIG) as server,
        quire.Client(server.url, name="bob") as bob,
        quire.Client(server.url, name="cat") as cat,
    ):
        with quire.Client(server.url, name="ann") as ann:
            for n in range(6):
                bob.publish("work", {"n": n})
            bob.flush(PATIENCE)
            held = take(ann.subscribe("work", max_backlog=6), 6)
            jobs = bob.subscribe("work", max_backlog=20)
            held[3].cancel()
            ann.flush(PATIENCE)
            # The subscription with the most room gets it.
            given = take(jobs, 1)
            for n in range(3):
                held[n].ack()
            held[4].expire()
            ann.flush(PATIENCE)
        given |= take(jobs, 1)
        assert sorted(given) == [3, 5]
        for job in given.values():
            job.ack()
        for n in (6, 7):
            bob.publish("work", {"n": n})
        bob.flush(PATIENCE)
        given = take(jobs, 2)
        _work_late(bob)
        bob.publish("silent", {"n": 0})
        bob.flush(PATIENCE)
        take(bob.subscribe("silent"), 1)[0].ack()
        bob.flush(PATIENCE)
        cat.ack("work", given[6])
        cat.flush(PATIENCE)
        server.kill()
    return place


def _work_late(client: quire.Client) -> None:
    """Lets the lease of a message run out, and acknowledges it when it comes again."""
    client.publish("short", {"n": 0})
    jobs = client.subscribe("short")
    assert jobs.get(PATIENCE).delivery_count == 1
    while client.queue_stats("short")["short"]["depth"]:
        # Of one that comes after the first it is said in time, or it comes again.
        jobs.get(PATIENCE).ack()
        client.flush(PATIENCE)


def audit(spark: SparkSession, place: Path, by: Any, queues: str = "work") -> list[dict[str, Any]]:
    frame = quire.spark.queue_audit(spark, str(place), queues=queues, by=by)
    return [row.asDict() for row in frame.collect()]


def test_consumers_have_what_they_got_and_what_became_of_it(spark: SparkSession, place: Path) -> None:
    rows = audit(spark, place, "consumer")
    assert {row["consumer"]: tuple(row[name] for name in COUNTS) for row in rows} == {
        "ann": (6, 0, 3, 1, 1, 0, 1, 0, 0),
        "bob": (4, 2, 2, 0, 0, 0, 0, 1, 1),
        "cat": (0, 0, 1, 0, 0, 0, 0, 0, 0),
    }
    for row in rows[:2]:
        assert 0 < row["p50"] <= row["p99"] <= row["longest"] < 3600
    assert rows[2]["longest"] is None


def test_a_queue_has_the_sums_of_its_consumers(spark: SparkSession, place: Path) -> None:
    (row,) = audit(spark, place, "queue")
    sums = [sum(one[name] for one in audit(spark, place, "consumer")) for name in COUNTS]
    assert [row["delivered"], row["acknowledged"], row["expired"], row["held"]] == [10, 6, 1, 1]
    assert (sums[0], sums[2], sums[4], sums[8]) == (10, 6, 1, 1)
    assert (row["redelivered"], row["cancels"], row["ran_out"], row["reasons"]) == (2, 1, 0, "forced_expire")
    assert 0 < row["wait_p50"] <= row["wait_longest"] <= row["longest"]
    assert 0 < row["lease_p50"] <= row["lease_longest"] <= row["longest"] < 3600


def test_every_message_has_its_holders_and_who_settled_it(spark: SparkSession, place: Path) -> None:
    rows = audit(spark, place, "message")
    names = ("outcome", "reasons", "cancels", "deliveries", "consumers", "settled_by")
    alone = ("acknowledged", None, 0, 1, "ann", "ann")
    assert [tuple(row[name] for name in names) for row in rows] == [
        alone,
        alone,
        alone,
        ("acknowledged", None, 1, 2, "ann,bob", "bob"),
        ("expired", "forced_expire", 0, 1, "ann", "ann"),
        ("acknowledged", None, 0, 2, "ann,bob", "bob"),
        ("acknowledged", None, 0, 1, "bob", "cat"),
        (None, None, 0, 1, "bob", None),
    ]
    for row in rows:
        assert row["published"] <= row["delivered"]
        assert row["wait"] <= (row["stay"] or 60)
        assert row["ended"] is None or row["delivered"] <= row["ended"]
    with quire.Journal(place / "journal", read_only=True) as journal:
        published = [record.bookmark for record in journal.records(topic="work") if record.kind == "publish"]
    assert [row["bookmark"] for row in rows] == published
    # An at-least-once message is with one consumer at a time.
    assert all(row["leased"] <= row["stay"] for row in rows if row["outcome"])


def test_a_lease_that_ran_out_is_counted_and_the_message_comes_again(
    spark: SparkSession, place: Path
) -> None:
    (row,) = audit(spark, place, "queue", "short")
    (bob,) = audit(spark, place, "consumer", "short")
    assert (row["acknowledged"], bob["acknowledged"]) == (1, 1)
    assert row["ran_out"] == bob["ran_out"] == bob["redelivered"] == bob["delivered"] - 1 >= 1
    assert bob["longest"] >= 0.05


def test_a_queue_without_recorded_leases_shows_what_it_knows_and_says_so(
    spark: SparkSession, place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (row,) = audit(spark, place, "queue", "silent")
    assert (row["acknowledged"], row["delivered"], row["held"]) == (1, None, None)
    assert row["lease_p50"] is row["wait_p50"] is None
    assert audit(spark, place, "consumer", "silent") == []
    (message,) = audit(spark, place, "message", "silent")
    assert (message["outcome"], message["deliveries"], message["consumers"]) == ("acknowledged", 0, "")
    monkeypatch.setattr(SparkSession, "stop", lambda _self: None)
    for by in ("queue", "consumer"):
        assert command(["pipeline", "queue-audit", str(place), "--queues", "silent", "--by", by]) == 0
        assert "does not say who held messages" in capsys.readouterr().err


def test_the_command_shows_consumers_and_draws_their_leases(
    spark: SparkSession,
    place: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(SparkSession, "stop", lambda _self: None)
    page = tmp_path / "consumers.html"
    arguments = ["pipeline", "queue-audit", str(place), "--queues", "work", "--by", "consumer"]
    assert command([*arguments, "--json", "--output", str(page)]) == 0
    output = capsys.readouterr()
    rows = [json.loads(line) for line in output.out.splitlines()]
    assert [(row["consumer"], row["delivered"]) for row in rows] == [("ann", 6), ("bob", 4), ("cat", 0)]
    assert output.err == ""
    text = page.read_text()
    assert text.count("<svg") == 1
    assert "Leases" in text
    assert "work: ann" in text
    with pytest.raises(quire.ConfigError, match="by: 'topic'"):
        quire.spark.queue_audit(spark, str(place), by="topic")  # type: ignore[arg-type]


def test_moments_are_cut_to_the_microsecond(spark: SparkSession) -> None:
    ns = 1_767_225_600_123_456_000
    moments = [_moment(f.lit(ns + rest)) for rest in (0, 999)]
    cut = spark.range(1).select(*[f.unix_micros(moment) for moment in moments]).first()
    assert cut == (ns // 1000, ns // 1000), "as the column timestamp of the message"
