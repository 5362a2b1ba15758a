"""The notebook of `examples/` runs from its first cell to its last."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from support.waiting import PATIENCE

NOTEBOOK = Path(__file__).parents[2] / "examples/spark.ipynb"

#: Runs the cells as a notebook does: one after the other, with the same names. Then prints values
#: for the test.
RUN = """
import json, sys

names = {}
for number, cell in enumerate(json.loads(sys.argv[1])):
    if "spark.stop()" in cell:
        print("found", json.dumps([list(row) for row in names["totals"].collect()]))
        print("found", json.dumps(names["spark"].read.parquet("notebook-parquet").count()))
    exec(compile(cell, f"cell {number}", "exec"), names)
"""


def cells() -> list[dict[str, Any]]:
    notebook = json.loads(NOTEBOOK.read_text())
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    found: list[dict[str, Any]] = notebook["cells"]
    return found


def test_the_notebook_has_no_outputs() -> None:
    assert len({cell["id"] for cell in cells()}) == len(cells())
    for cell in cells():
        if cell["cell_type"] == "code":
            assert (cell["outputs"], cell["execution_count"]) == ([], None)


def test_the_cells_of_the_notebook_run_in_order(tmp_path: Path) -> None:
    code = ["".join(cell["source"]) for cell in cells() if cell["cell_type"] == "code"]
    environment = {key: value for key, value in os.environ.items() if key != "PYSPARK_GATEWAY_PORT"}
    done = subprocess.run(
        [sys.executable, "-c", RUN, json.dumps(code)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    totals, copied = [
        json.loads(line.removeprefix("found "))
        for line in done.stdout.splitlines()
        if line.startswith("found ")
    ]
    assert [(symbol, count) for symbol, count, *_ in totals] == [("HPQ", 333), ("IBM", 334), ("SAP", 333)]
    assert sum(on_x for *_, on_x in totals) == sum(n % 7 if n % 2 else 1 for n in range(1000))
    assert copied == 1000
    assert "aggregates" in done.stdout, "the plan shows what the scan does"
