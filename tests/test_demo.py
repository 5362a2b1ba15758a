"""The demo holds its promise, on a part of the data."""

from __future__ import annotations

import io
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from quire.demo import _spark
from rich.console import Console
from support.waiting import PATIENCE, wait_until


def test_the_demo_loses_nothing_over_a_kill() -> None:
    command = [sys.executable, "-m", "quire", "demo", "--flights", "20000", "--no-spark"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert result.returncode == 0, result.stdout + result.stderr
    said = result.stdout.replace("\n", " ")
    assert "no message was lost, duplicated or out of order" in said
    assert "every flight was processed" in said
    assert "both instances have every flight, once and in order" in said
    assert "table and query are equal to the source" in said
    assert "the view is equal to pandas" in said


@pytest.mark.timeout(2 * PATIENCE)
def test_a_demo_that_stays_has_live_traffic_on_its_console() -> None:
    command = [sys.executable, "-m", "quire", "demo", "--flights", "2000", "--no-spark", "--stay"]
    environment = os.environ | {"COLUMNS": "200"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as demo:
        assert demo.stdout is not None
        said = ""
        for line in demo.stdout:
            said += line
            if "live traffic until Ctrl-C" in line:
                break
        found = re.findall(r"console: (http://127\.0\.0\.1:\d+)", said)
        assert found, said
        with httpx.Client(base_url=found[-1], timeout=PATIENCE) as page:
            assert page.get("/").status_code == 200

            def published() -> int:
                count: int = page.get("/quire/instance/messages/published.json").json()["value"]
                return count

            before = published()
            wait_until(lambda: published() > before)
        demo.send_signal(signal.SIGINT)
        assert demo.wait(PATIENCE) == 0


def test_without_spark_the_demo_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    said = io.StringIO()
    assert _spark.act(Console(file=said, width=200), tmp_path, "flights", [], None)
    assert "pip install 'quire-mq[spark]'" in said.getvalue()
