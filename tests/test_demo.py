"""The demo holds its promise, on a part of the data."""

from __future__ import annotations

import subprocess
import sys


def test_the_demo_loses_nothing_over_a_kill() -> None:
    command = [sys.executable, "-m", "quire", "demo", "--flights", "20000", "--no-spark"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=110)
    assert result.returncode == 0, result.stdout + result.stderr
    said = result.stdout.replace("\n", " ")
    assert "nothing was lost, doubled or out of order" in said
    assert "every flight was processed" in said
