"""The demo holds its promise, on a part of the data."""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from quire.demo import _spark
from rich.console import Console
from support.waiting import PATIENCE


def test_the_demo_loses_nothing_over_a_kill() -> None:
    command = [sys.executable, "-m", "quire", "demo", "--flights", "20000", "--no-spark"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert result.returncode == 0, result.stdout + result.stderr
    said = result.stdout.replace("\n", " ")
    assert "no message was lost, duplicated or out of order" in said
    assert "every flight was processed" in said
    assert "both instances have every flight, once and in order" in said
    assert "table and query are equal to the source" in said


def test_without_spark_the_demo_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    said = io.StringIO()
    assert _spark.act(Console(file=said, width=200), tmp_path, "flights", [], None)
    assert "pip install 'quire-mq[spark]'" in said.getvalue()
