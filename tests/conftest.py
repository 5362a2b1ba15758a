"""The fixtures of all tests, and the check that the tests leave no files and processes."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from datetime import timedelta
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Final

import pytest
from quire.client._options import ClientOptions
from support.waiting import PATIENCE
from support.ways_in import url, way_in

__all__ = ["url", "way_in"]

#: The directory of all temporary files of a run, including those of killed processes. The
#: directories of pytest are next to it.
_SCRATCH: Final = pytest.StashKey[Path]()
_LEFT: Final = pytest.StashKey[list[str]]()


def pytest_configure(config: pytest.Config) -> None:
    # A busy machine may stop a test or its server for the 10 s that clients wait otherwise.
    defaults = ClientOptions.__init__.__kwdefaults__
    assert defaults is not None
    for timeout in ("connect_timeout", "command_timeout"):
        assert defaults[timeout] == timedelta(seconds=10)
        defaults[timeout] = timedelta(seconds=PATIENCE)
    # A worker of xdist has the directory from the process that started it.
    if not hasattr(config, "workerinput"):
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
        # Those of runs that were killed.
        for old in Path(tempfile.gettempdir()).glob("quire-tests-*-*"):
            if not Path("/proc", old.name.split("-")[2]).exists():
                shutil.rmtree(old, ignore_errors=True)
        config.stash[_SCRATCH] = scratch = Path(tempfile.mkdtemp(prefix=f"quire-tests-{os.getpid()}-"))
        os.environ["TMPDIR"] = tempfile.tempdir = str(scratch)
        # After the directory of the forkserver, which Python removes at the end of the process.
        Finalize(None, shutil.rmtree, (scratch,), {"ignore_errors": True}, exitpriority=-200)


@pytest.fixture(autouse=True)
def _identity() -> Iterator[None]:
    """Takes back what a command that runs in this process has set: the user and the files of TLS."""
    before = {name: value for name, value in os.environ.items() if name.startswith("QUIRE_")}
    yield
    for name in [name for name in os.environ if name.startswith("QUIRE_")]:
        del os.environ[name]
    os.environ.update(before)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fails the run when a test has left something in the directory."""
    scratch = session.config.stash.get(_SCRATCH, None)
    if scratch is None:
        return
    left = [path.name for path in scratch.iterdir() if not path.name.startswith("pymp-")]
    session.config.stash[_LEFT] = sorted(left)
    if left and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if left := config.stash.get(_LEFT, []):
        terminalreporter.section("left behind")
        terminalreporter.write_line(f"the tests left files in the temporary directory: {', '.join(left)}")
