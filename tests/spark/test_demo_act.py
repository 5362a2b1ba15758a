"""The act of the demo with Spark: right on the journal of the flights, and not content with any other."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
import quire
from pyspark.sql import SparkSession
from quire import _demo_spark
from rich.console import Console


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
    assert _demo_spark.act(console, tmp_path / "journal", "flights", flights(200), None)
    assert "every sum is that of the data set" in page.getvalue()
    assert not _demo_spark.act(console, tmp_path / "journal", "flights", flights(201), None)
