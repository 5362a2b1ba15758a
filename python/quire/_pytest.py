"""The pytest fixtures of quire. pytest finds them where quire is installed. Every test run loads this module.

It imports other modules in the fixtures, so that a test run without quire starts fast.
"""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from pytest_asyncio import fixture as _async_fixture

    from quire.client._aio import AsyncClient
    from quire.client._blocking import Client
    from quire.server._server import Server
    from quire.testing import ServerProcess
else:
    try:
        # Its strict mode needs this decorator. Other plugins for asynchronous tests take the one of
        # pytest.
        from pytest_asyncio import fixture as _async_fixture
    except ImportError:
        _async_fixture = pytest.fixture

_HAS_FAILED: Final = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        item.stash[_HAS_FAILED] = True
    return report


@pytest.fixture
def quire_settings() -> dict[str, Any]:
    """The settings of `quire.Config` for the servers below. Override this fixture to change them."""
    return {}


@pytest.fixture
def quire_server(
    request: pytest.FixtureRequest, tmp_path: Path, quire_settings: dict[str, Any]
) -> Iterator[Server]:
    """A running server of this process. Its data is below `tmp_path` until the test has passed."""
    from quire.testing import server

    with _data(request.node, tmp_path) as directory, server(directory, **quire_settings) as running:
        yield running


@pytest.fixture
def quire_server_process(
    request: pytest.FixtureRequest, tmp_path: Path, quire_settings: dict[str, Any]
) -> Iterator[ServerProcess]:
    """A running server in a separate process that can be killed and started again.

    Its data is below `tmp_path` until the test has passed.
    """
    from quire.testing import ServerProcess

    with _data(request.node, tmp_path) as directory, ServerProcess(directory, **quire_settings) as running:
        yield running


@pytest.fixture
def quire_client(quire_server: Server) -> Iterator[Client]:
    """A client of `quire_server`, closed after the test."""
    from quire.client._blocking import Client

    with Client(quire_server.url) as client:
        yield client


@_async_fixture
async def quire_async_client(quire_server: Server) -> AsyncIterator[AsyncClient]:
    """An asyncio client of `quire_server`, closed after the test. Requires a plugin such as
    pytest-asyncio."""
    from quire.client._aio import AsyncClient

    async with AsyncClient(quire_server.url) as client:
        yield client


@contextmanager
def _data(test: pytest.Item, tmp_path: Path) -> Iterator[Path]:
    """Removes the data of a test that passed: pytest keeps the directories of three runs, and a
    journal reserves space."""
    directory = tmp_path / "quire-data"
    yield directory
    if not test.stash.get(_HAS_FAILED, False):
        shutil.rmtree(directory, ignore_errors=True)
