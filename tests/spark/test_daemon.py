"""A worker that Spark dismisses ends without output. A failure in its work is still reported."""

from __future__ import annotations

import gc
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark.sql import SparkSession
from quire.spark import _daemon


@pytest.fixture
def sockets(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[socket.socket, socket.socket]]:
    """That of Spark, and that of the worker."""
    monkeypatch.setattr("signal.signal", lambda number, handler: None)
    spark, worker = socket.socketpair()
    with spark, worker:
        yield spark, worker
    gc.unfreeze()


def work(monkeypatch: pytest.MonkeyPatch, does: Callable[[socket.socket], int]) -> list[Any]:
    """Has the worker do this; gives what it is called with."""
    calls: list[Any] = []

    def worker(sock: socket.socket, authenticated: bool) -> int:
        calls.append(authenticated)
        return does(sock)

    monkeypatch.setattr(_daemon, "_work", worker)
    return calls


def test_a_worker_finds_all_of_its_work_and_is_used_again(
    monkeypatch: pytest.MonkeyPatch, sockets: tuple[socket.socket, socket.socket]
) -> None:
    spark, mine = sockets
    found: list[bytes] = []

    def does(sock: socket.socket) -> int:
        found.append(sock.recv(100))
        return 0

    calls = work(monkeypatch, does)
    for piece in (b"one", b"two"):
        spark.sendall(piece)
        assert _daemon.worker(mine, True) == 0
    assert found == [b"one", b"two"]
    assert calls == [True, True]


def test_what_the_first_task_loaded_is_no_garbage_to_look_for(
    monkeypatch: pytest.MonkeyPatch, sockets: tuple[socket.socket, socket.socket]
) -> None:
    spark, mine = sockets
    kept: list[Any] = []

    def does(sock: socket.socket) -> int:
        kept.append([sock.recv(100)])
        return 0

    work(monkeypatch, does)
    assert gc.get_freeze_count() == 0
    for piece in (b"one", b"two"):
        spark.sendall(piece)
        _daemon.worker(mine, True)
    # The test compares no counts. The count of frozen objects falls when one of them ends, and the
    # tasks do not decide when that happens.
    assert not any(found is kept[0] for found in gc.get_objects())
    assert any(found is kept[1] for found in gc.get_objects()), (
        "once, so that garbage of later tasks is found"
    )


def test_a_worker_without_more_work_ends(
    monkeypatch: pytest.MonkeyPatch, sockets: tuple[socket.socket, socket.socket]
) -> None:
    spark, mine = sockets
    calls = work(monkeypatch, lambda sock: 0)
    spark.close()
    assert _daemon.worker(mine, True) == _daemon.DISMISSED
    assert not calls, "there is nothing to be done"


def test_a_worker_that_nobody_listens_to_ends(
    monkeypatch: pytest.MonkeyPatch, sockets: tuple[socket.socket, socket.socket]
) -> None:
    spark, mine = sockets

    def does(sock: socket.socket) -> int:
        sock.recv(100)
        spark.close()
        sock.sendall(b"rows")
        return 0

    calls = work(monkeypatch, does)
    spark.sendall(b"work")
    assert _daemon.worker(mine, False) == _daemon.DISMISSED
    assert calls == [False]


def test_what_else_fails_is_not_hidden(
    monkeypatch: pytest.MonkeyPatch, sockets: tuple[socket.socket, socket.socket]
) -> None:
    spark, mine = sockets

    def does(sock: socket.socket) -> int:
        raise FileNotFoundError("no such directory")

    work(monkeypatch, does)
    spark.sendall(b"work")
    with pytest.raises(FileNotFoundError):
        _daemon.worker(mine, True)


@pytest.mark.parametrize("name", ["pyspark.daemon", "quire.spark._daemon", None])
def test_a_worker_that_spark_plans_with_is_adopted(name: str | None) -> None:
    script = """
import sys
from importlib.machinery import ModuleSpec

main, name = sys.modules["__main__"], sys.argv[1]
main.__spec__ = ModuleSpec(name, None) if name else None
main.worker = "their own"
import quire.spark._source
from quire.spark import _daemon

print(main.worker is _daemon.worker, main.worker)
"""
    run = [sys.executable, "-c", script, name or ""]
    said = subprocess.run(run, check=True, capture_output=True, text=True).stdout
    assert said.startswith("True") if name == "pyspark.daemon" else said == "False their own\n"


def test_a_local_session_has_it(spark: SparkSession) -> None:
    assert spark.conf.get("spark.python.daemon.module") == _daemon.__name__
    assert spark.sparkContext.parallelize([1, 2, 3]).map(lambda number: number + 1).collect() == [2, 3, 4]
