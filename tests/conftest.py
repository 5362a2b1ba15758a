"""What several test files share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import quire


@pytest.fixture(params=["server", "file", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """All three ways in, one after the other."""
    if request.param == "server":
        config = quire.Config(data_directory=tmp_path, transport={"address": "127.0.0.1:0"})
        with quire.Server(config) as server:
            yield server.url
    else:
        yield f"file:{tmp_path}/journal" if request.param == "file" else f"memory:{tmp_path}"
