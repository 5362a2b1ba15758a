"""Every program of `examples/` runs and prints what it promises."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.spark import SPARK_TOO_SLOW

EXAMPLES = Path(__file__).parent.parent / "examples"
ORDERS = "id,symbol,quantity\na,IBM,5\nb,HPQ,7\nc,IBM,1\n"


def run(directory: Path, *command: str) -> str:
    for _ in range(5):
        result = subprocess.run(
            [sys.executable, *command], cwd=directory, capture_output=True, text=True, timeout=1000
        )
        if SPARK_TOO_SLOW not in result.stderr:
            break
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.mark.parametrize(
    ("program", "last_lines"),
    [
        (
            "workers.py",
            [
                "done: 98, left: 0",
                "failed: {'id': 0, 'width': 0} after 3 deliveries",
                "failed: {'id': 50, 'width': 0} after 3 deliveries",
            ],
        ),
        ("asyncio_service.py", ["[30, 20, 10]"]),
        ("migrate.py", ["400 messages are in the log", "1000 messages are in the log"]),
    ],
)
def test_an_example_prints_what_it_promises(program: str, last_lines: list[str], tmp_path: Path) -> None:
    output = run(tmp_path, str(EXAMPLES / program)).splitlines()
    # Which of the two bad pictures fails first depends on the workers.
    assert sorted(output[-len(last_lines) :]) == sorted(last_lines)


def test_the_dashboard_shows_every_symbol(tmp_path: Path) -> None:
    last = run(tmp_path, str(EXAMPLES / "dashboard.py")).splitlines()[-1].split()
    assert last[::2] == ["IBM", "HPQ", "SAP"]
    assert all(90 <= int(price) <= 110 for price in last[1::2])


def test_an_intake_that_runs_again_adds_nothing(tmp_path: Path) -> None:
    (tmp_path / "orders.csv").write_text(ORDERS)
    intake = [str(EXAMPLES / "order_intake.py"), "orders.csv", "file:./data"]
    assert run(tmp_path, *intake) == "3 new orders, 0 were there\n"
    assert run(tmp_path, *intake) == "0 new orders, 3 were there\n"


def test_the_embedded_tests_pass(tmp_path: Path) -> None:
    program = (EXAMPLES / "test_embedded.py").read_text()
    (tmp_path / "test_embedded.py").write_text(program)
    run(tmp_path, "-m", "pytest", "-q", "--basetemp=kept", "test_embedded.py")


@pytest.mark.timeout(3600)
def test_the_spark_job_sums_what_the_intake_published(tmp_path: Path) -> None:
    (tmp_path / "orders.csv").write_text(ORDERS)
    run(tmp_path, str(EXAMPLES / "order_intake.py"), "orders.csv", "file:./data")
    table = run(tmp_path, str(EXAMPLES / "spark_job.py"), "data")
    assert [line.split() for line in table.splitlines() if line.startswith("|")][1:] == [
        ["|", "HPQ|", "7|"],
        ["|", "IBM|", "6|"],
    ]
