"""A few hundred short connections together with honest clients (see `churn.py`).

`make churn MINUTES=20` runs the same for longer.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from churn import VARIANTS, Churn


@pytest.mark.parametrize("variant", VARIANTS)
def test_connections_that_come_and_go_do_not_harm_honest_clients(tmp_path: Path, variant: str) -> None:
    report = Churn(tmp_path, seed=1, connections=400, **VARIANTS[variant]).run()
    print(report)
    assert report.findings == []
    assert report.connections.total() == 400
    assert report.jobs > 0
