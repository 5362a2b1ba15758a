"""Kills of drivers and workers under a copying query; `make spark-kills` runs many more rounds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


# Three drivers, one after the other; each starts a Java machine.
@pytest.mark.timeout(2000)
def test_every_message_is_copied_once_whatever_is_killed() -> None:
    command = [sys.executable, str(Path(__file__).parent / "kills.py"), "2"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=1900)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "each once" in result.stdout
