"""The act of the demo with Spark: right on the journal of the flights, and not content with any other."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
import quire
from pyspark.sql import SparkSession
from quire.demo import _spark
from rich.console import Console
from support.waiting import PATIENCE


def flights(count: int) -> list[bytes]:
    return [
        json.dumps(
            {"carrier": ("UA", "AA")[n % 2], "sched_dep_time": n % 24 * 100 + 15, "dep_delay": n % 7 or None}
        ).encode()
        for n in range(count)
    ]


def test_the_numbers_are_those_of_the_data_set(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The act shares the session of the tests, which it must not stop.
    monkeypatch.setattr(SparkSession, "stop", lambda _self: None)
    with quire.Journal(tmp_path / "journal") as journal:
        journal.append_many("flights", flights(200), publisher="demo")
    page = io.StringIO()
    console = Console(file=page, width=100)
    assert _spark.act(console, tmp_path / "journal", "flights", flights(200), None)
    assert "every sum is that of the data set" in page.getvalue()
    assert not _spark.act(console, tmp_path / "journal", "flights", flights(201), None)


def test_the_jobs_are_those_that_the_workers_acknowledged(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SparkSession, "stop", lambda _self: None)
    for number, records_leases in enumerate((True, False)):
        place = tmp_path / str(number)
        settings = {"name": "JOBS", "message_type": "json", "underlying_topic": "flights"}
        config = quire.Config(queue=settings | {"record_leases": records_leases})
        with quire.Client(f"file:{place}/journal", name="worker-1", config=config) as client:
            for flight in flights(50):
                client.publish("flights", flight)
            jobs = client.subscribe("JOBS", max_backlog=50)
            for _ in range(50):
                jobs.get(timeout=PATIENCE).ack()
            client.flush(timeout=PATIENCE)
        page = io.StringIO()
        console = Console(file=page, width=100)
        is_right = _spark.act(console, place / "journal", "flights", flights(50), "JOBS")
        # Without leases the workers have done nothing, as far as the journal says.
        assert (is_right, "worker-1" in page.getvalue()) == (records_leases, records_leases)
