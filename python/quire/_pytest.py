"""The pytest fixtures of quire; pytest finds them where quire is installed. Imports little: every test run loads this."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from quire._server import Server
    from quire.testing import ServerProcess


@pytest.fixture
def quire_settings() -> dict[str, Any]:
    """The settings of `quire.Config` for the servers below: to be overridden."""
    return {}


@pytest.fixture
def quire_server(tmp_path: Path, quire_settings: dict[str, Any]) -> Iterator[Server]:
    """A running server of this process, its data below `tmp_path`."""
    from quire.testing import server

    with server(tmp_path / "quire-data", **quire_settings) as running:
        yield running


@pytest.fixture
def quire_server_process(tmp_path: Path, quire_settings: dict[str, Any]) -> Iterator[ServerProcess]:
    """A running server in a process of its own that can be killed and started again."""
    from quire.testing import ServerProcess

    with ServerProcess(tmp_path / "quire-data", **quire_settings) as running:
        yield running
