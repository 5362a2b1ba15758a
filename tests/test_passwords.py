"""Hashes of passwords: those of another library are read, and checks give way to other work, but end
on a busy machine, too."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from quire._quire import check_password, hash_password, password_cost
from support.waiting import PATIENCE, wait_until

PASSWORD = b"correct horse battery"
#: Made by argon2-cffi 25.1, with two lanes.
OTHER = "$argon2id$v=19$m=256,t=2,p=2$HyeOQuVh7sV0xr77YYSaFQ$2VVKPn9HnDmP4o+dXIla98MSVY9umgiJjnHbR9f20N0"


def test_a_password_matches_its_hash_only() -> None:
    hash = hash_password(PASSWORD, 64, 1, 1)
    assert check_password(hash, PASSWORD)
    assert not check_password(hash, PASSWORD + b"x")
    assert not check_password(hash, b"")
    assert hash_password(PASSWORD, 64, 1, 1) != hash, "the salt is random"
    assert password_cost(hash) == (64, 1, 1)


def test_a_hash_of_another_library_is_read() -> None:
    assert check_password(OTHER, PASSWORD)
    assert not check_password(OTHER, b"another one")
    assert password_cost(OTHER) == (256, 2, 2)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "secret",
        "$argon2id$v=19$m=256,t=2,p=2",
        "$argon2i$v=19$m=256,t=2,p=2$HyeOQuVh7sV0xr77YYSaFQ$2VVKPn9HnDmP4o+dXIla98MSVY9umgiJjnHbR9f20N0",
        OTHER.replace("t=2", "t=0"),
        OTHER.replace("m=256", "m=99999999999"),
        OTHER.replace("v=19", "v=20"),
    ],
)
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^.+$") as caught:
        check_password(text, PASSWORD)
    assert "HyeOQuVh7sV0xr77YYSaFQ" not in str(caught.value)


def test_a_hash_that_needs_more_memory_than_there_is_is_an_error() -> None:
    hash = OTHER.replace("m=256", "m=4294967295")
    with pytest.raises(MemoryError):
        check_password(hash, PASSWORD)


@pytest.mark.skipif(sys.platform != "linux", reason="SCHED_IDLE is a policy of Linux")
def test_a_check_gives_way_to_other_work() -> None:
    hash = hash_password(PASSWORD, 64 << 10, 3, 1)
    is_done = threading.Event()

    def check() -> None:
        while not is_done.is_set():
            assert check_password(hash, PASSWORD)

    thread = threading.Thread(target=check)
    thread.start()
    try:
        wait_until(lambda: os.SCHED_IDLE in policies())
    finally:
        is_done.set()
        thread.join()


def policies() -> set[int]:
    """The policies of the threads in which hashes are computed."""
    found = set()
    for task in Path("/proc/self/task").iterdir():
        try:
            if (task / "comm").read_text().strip() == "quire-hash":
                found.add(os.sched_getscheduler(int(task.name)))
        except OSError:
            # It has ended.
            continue
    return found


@contextmanager
def busy_processors() -> Iterator[None]:
    """Processes with the usual priority want all processors."""
    spin = "import os\nwhile os.getppid() == int(os.environ['PARENT']): pass"
    environment = {**os.environ, "PARENT": str(os.getpid())}
    count = 4 * len(os.sched_getaffinity(0))
    processes = [subprocess.Popen([sys.executable, "-c", spin], env=environment) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def test_checks_end_while_all_processors_are_busy() -> None:
    hash = hash_password(PASSWORD, 16 << 10, 3, 1)
    ended = 0

    def check() -> None:
        nonlocal ended
        assert check_password(hash, PASSWORD)
        ended += 1

    with busy_processors():
        threads = [threading.Thread(target=check, daemon=True) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
    assert ended == len(threads)
