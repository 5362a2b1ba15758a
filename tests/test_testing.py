"""`quire.testing` for tests of other projects: servers and fixtures."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import quire
import quire.testing
from support.waiting import PATIENCE, wait_until


@pytest.fixture
def quire_settings() -> dict[str, Any]:
    return {"transport": {"max_message_size": "1KB"}}


def test_a_server_is_there_with_the_settings_of_the_test(quire_server: quire.Server, tmp_path: Path) -> None:
    with quire.Client(quire_server.url) as client:
        client.publish("t", b"1")
        client.flush(timeout=PATIENCE)
        with pytest.raises(quire.MessageTooLargeError):
            client.publish("t", b"x" * 2000)
    assert [message.data for message in quire_server.journal.read()] == [b"1"]
    assert list((tmp_path / "quire-data" / "journal").glob("*.journal"))


def test_a_client_of_the_server_is_there(quire_server: quire.Server, quire_client: quire.Client) -> None:
    quire_client.publish("t", b"1")
    quire_client.flush(timeout=PATIENCE)
    assert [message.data for message in quire_server.journal.read()] == [b"1"]


async def test_an_asyncio_client_of_the_server_is_there(
    quire_server: quire.Server, quire_async_client: quire.AsyncClient
) -> None:
    await quire_async_client.publish("t", b"1")
    await quire_async_client.flush(timeout=PATIENCE)
    assert [message.data for message in quire_server.journal.read()] == [b"1"]


def test_a_server_process_is_killed_and_comes_back_where_it_was(
    quire_server_process: quire.testing.ServerProcess,
) -> None:
    url, pid = quire_server_process.url, quire_server_process.pid
    with quire.Client(url, name="p", reconnect=quire.Reconnect(initial="10ms", maximum="100ms")) as client:
        client.publish("t", b"1")
        client.flush(timeout=PATIENCE)
        quire_server_process.kill()
        assert not quire_server_process.is_running
        client.publish("t", b"2")
        quire_server_process.start()
        assert quire_server_process.is_running
        assert (quire_server_process.url, quire_server_process.pid != pid) == (url, True)
        client.flush(timeout=PATIENCE)
        subscription = client.subscribe("t", bookmark=quire.EPOCH)
        assert [subscription.get(timeout=PATIENCE).data for _ in range(2)] == [b"1", b"2"]
    assert quire_server_process.terminate() == 0


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not reserve ports")
def test_the_port_of_a_server_that_is_stopped_is_reserved(
    quire_server_process: quire.testing.ServerProcess,
) -> None:
    address = quire_server_process.address
    quire_server_process.kill()
    with socket.socket() as other, pytest.raises(OSError, match="Address already in use"):
        other.bind(address)
    with socket.socket() as client, pytest.raises(ConnectionRefusedError):
        client.connect(address)
    quire_server_process.start()
    assert quire_server_process.address == address


def test_without_a_directory_nothing_is_left_behind() -> None:
    with quire.testing.server() as server:
        directory = server.config.data_directory
        assert directory.is_dir()
    assert not directory.exists()


def test_a_process_that_cannot_start_says_so(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    process = quire.testing.ServerProcess(tmp_path, name="no/name")
    with pytest.raises(quire.QuireError, match="did not start"), process:
        pass
    assert "name" in capfd.readouterr().err
    assert not process.is_running


def test_the_standard_error_of_a_process_goes_to_the_file_that_it_is_given(tmp_path: Path) -> None:
    with (
        (tmp_path / "said").open("w") as said,
        pytest.raises(quire.QuireError, match="did not start"),
        quire.testing.ServerProcess(tmp_path / "data", standard_error=said, name="no/name"),
    ):
        pass
    assert "name" in (tmp_path / "said").read_text()


#: Run by a separate pytest: one test passes, the other fails.
TESTS = """
import pathlib
import pytest

@pytest.mark.parametrize("passes", [True, False])
@pytest.mark.parametrize("fixture", ["quire_server", "quire_server_process"])
def test(request, tmp_path, fixture, passes):
    request.getfixturevalue(fixture)
    assert list(tmp_path.glob("quire-data/journal/*.journal"))
    assert passes
"""


def test_a_server_of_a_fixture_leaves_its_data_only_when_the_test_fails(tmp_path: Path) -> None:
    (tmp_path / "test_both.py").write_text(TESTS)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--basetemp=kept",
        "test_both.py",
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE)
    assert "2 failed, 2 passed" in done.stdout, done.stdout + done.stderr
    # pytest makes links to some directories.
    kept = {path.resolve().parent.name for path in tmp_path.glob("kept/*/quire-data")}
    assert len(kept) == 2
    assert all("Fals" in name for name in kept)


def test_a_process_that_does_not_end_shows_its_stacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = tmp_path / "errors"
    with (
        errors.open("w") as file,
        quire.testing.ServerProcess(tmp_path / "data", standard_error=file) as server,
    ):
        os.kill(server.pid, signal.SIGSTOP)
        monkeypatch.setattr("quire.testing._server.START_TIMEOUT", 0.1)
        with pytest.raises(subprocess.TimeoutExpired):
            server.terminate()
        monkeypatch.undo()
        os.kill(server.pid, signal.SIGCONT)
        # The main thread waits for the signal, or stops the server already.
        wait_until(lambda: "testing/_server.py" in errors.read_text())
