"""A few hundred short connections together with honest clients (see `churn.py`).

`make churn MINUTES=20` runs the same for longer.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from churn import BACKLOG_MIN, Churn


@pytest.mark.parametrize("transport", [{}, {"max_client_backlog": BACKLOG_MIN}], ids=["default", "smallest"])
def test_connections_that_come_and_go_do_not_harm_honest_clients(
    tmp_path: Path, transport: dict[str, Any]
) -> None:
    report = Churn(tmp_path, seed=1, connections=400, **transport).run()
    print(report)
    assert report.findings == []
    assert report.connections.total() == 400
    assert report.jobs > 0
