"""For tests that must hold for all three kinds of server.

They ask for the fixture `url`, or have the fixture `client` parametrized by `everywhere`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import quire.testing

WAYS_IN = ("server", "file", "memory")


@pytest.fixture(params=WAYS_IN)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """All three kinds of server, one after the other."""
    with _place(request.param, tmp_path) as url:
        yield url


@pytest.fixture(params=WAYS_IN)
def way_in(request: pytest.FixtureRequest) -> str:
    """All three kinds of server, one after the other, for `configured`."""
    way: str = request.param
    return way


@contextmanager
def configured(way_in: str, directory: Path, **settings: Any) -> Iterator[dict[str, Any]]:
    """The arguments of a client for an engine with these settings."""
    if way_in == "server":
        with quire.testing.server(directory, **settings) as server:
            yield {"url": server.url}
    else:
        url = f"file:{directory}/journal" if way_in == "file" else f"memory:{directory}"
        yield {"url": url, "config": quire.Config(**settings)}


def everywhere(metafunc: pytest.Metafunc) -> None:
    """For `pytest_generate_tests`: tests with `client` run on all three kinds of server, unless
    they use a separate `server`."""
    if "client" in metafunc.fixturenames and "server" not in metafunc.fixturenames:
        metafunc.parametrize("client", WAYS_IN, indirect=True)


@contextmanager
def url_of(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Where the fixture `client` of such a module connects."""
    way_in = getattr(request, "param", None)
    if way_in is None:
        yield request.getfixturevalue("server").url
    else:
        with _place(way_in, tmp_path) as url:
            yield url


@contextmanager
def _place(way_in: str, directory: Path) -> Iterator[str]:
    if way_in == "server":
        with quire.testing.server(directory) as server:
            yield server.url
    else:
        yield f"file:{directory}/journal" if way_in == "file" else f"memory:{directory}"
