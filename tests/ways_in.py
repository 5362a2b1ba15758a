"""A fixture for tests that must hold in all three ways in: name this module in `pytest_plugins`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import quire.testing


@pytest.fixture(params=["server", "file", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """All three ways in, one after the other."""
    if request.param == "server":
        with quire.testing.server(tmp_path) as server:
            yield server.url
    else:
        yield f"file:{tmp_path}/journal" if request.param == "file" else f"memory:{tmp_path}"
