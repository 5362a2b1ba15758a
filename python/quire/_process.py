"""Threads, open files and signals of this process. When the system has no more threads or files,
the error names the limit to raise."""

from __future__ import annotations

import errno
import math
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Final, TypeVar

from quire._errors import LimitExceededError

#: Open files that a server reserves in addition to its connections: about 15 permanent ones, and
#: files of the journal that are open for a short time while they are created, archived or read.
SERVER_FILES: Final = 32
#: Seconds after which a wait of the main thread looks whether a signal has come.
SIGNAL_WAIT: Final = 0.2

_T = TypeVar("_T")


class StopSignals:
    """Waits for SIGTERM and other signals that ask the process to stop. It is made in the main thread.

    A handler runs in the main thread, between any two steps of it. `threading.Event.set` in a
    handler waits forever when the main thread is just inside `Event.wait`, which has the lock of
    the event. `SimpleQueue.put` may be called at any moment.

    A signal does not always end a wait of the main thread: another thread may have received it, or
    it came just before the wait. Its handler runs when the wait is over. So no wait is longer than
    `SIGNAL_WAIT`.
    """

    def __init__(self, *numbers: signal.Signals) -> None:
        self._came: queue.SimpleQueue[None] = queue.SimpleQueue()
        for number in numbers:
            signal.signal(number, lambda *_: self.stop())

    def stop(self) -> None:
        """Does what a signal does. Any thread may call it."""
        self._came.put(None)

    def wait(self, timeout: float | None = None) -> bool:
        """Waits for at most `timeout` seconds; `None` = without a limit. Returns whether the
        process is to stop."""
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        while True:
            left = deadline - time.monotonic()
            try:
                self._came.get(timeout=max(0.0, min(left, SIGNAL_WAIT)))
            except queue.Empty:
                if left <= SIGNAL_WAIT:
                    return False
            else:
                # The next call finds it, too.
                self.stop()
                return True


def check_threads(what: str) -> None:
    """Raises `RuntimeError` where `threading` starts no threads of the system.

    gevent and eventlet can replace it, so that a "thread" runs only while all others wait in
    functions of theirs. `what` would wait in a function of quire, and stop the process for good.
    """
    for library, is_patched in (("gevent", _gevent_has_threads), ("eventlet", _eventlet_has_threads)):
        if is_patched():
            raise RuntimeError(
                f"{library} has replaced the threads of Python, so that {what} would block every other one: leave threads out"
                f" ({_REMEDIES[library]}), or use quire.AsyncClient in a process without {library}"
            )


#: How a program keeps the threads of Python.
_REMEDIES: Final = {
    "gevent": "gevent.monkey.patch_all(thread=False)",
    "eventlet": "eventlet.monkey_patch(thread=False)",
}


def _gevent_has_threads() -> bool:
    monkey = sys.modules.get("gevent.monkey")
    return monkey is not None and monkey.is_module_patched("threading")


def _eventlet_has_threads() -> bool:
    patcher = sys.modules.get("eventlet.patcher")
    return patcher is not None and patcher.is_monkey_patched("thread")


def start_thread(thread: threading.Thread) -> None:
    """Starts the thread.

    Raises `LimitExceededError` when the system has no thread left, and `RuntimeError` where
    `threading` does not use threads of the system.
    """
    check_threads(f"the thread {thread.name!r}")
    with_threads(thread.name, thread.start)


def join_thread(thread: threading.Thread) -> None:
    """Waits until the thread has ended. In the main thread, handlers of signals run meanwhile:
    `StopSignals` says why a wait without a limit is not enough."""
    while thread.is_alive():
        thread.join(SIGNAL_WAIT)


def with_threads(what: str, start: Callable[[], _T]) -> _T:
    """Calls a function that starts a thread for `what`. Raises `LimitExceededError` when the system
    has no thread left."""
    try:
        return start()
    except RuntimeError as error:
        raise LimitExceededError(
            f"no thread for {what}: {error}; raise the number of threads (ulimit -u) or the memory (ulimit -v) that the"
            " process may have"
        ) from error


def connections_max(wanted: int, links: int = 0) -> int:
    """The number of connections, at most `wanted`, that the limit of open files allows in addition
    to `links` connections to other instances.

    Raises `LimitExceededError` when there is no room for one.
    """
    limit = _open_files_max()
    if limit is None:
        return wanted
    used = _open_files(limit)
    room = limit - used - SERVER_FILES - links
    if room < 1:
        raise LimitExceededError(
            f"the process may have {limit} open files and has {used}; a server needs {SERVER_FILES + links} more and one for each"
            " connection: raise the number of open files (ulimit -n)"
        )
    return min(wanted, room)


def without_open_files(error: OSError) -> LimitExceededError | None:
    """The error for a call that failed because the process, or the system, has too many open files;
    `None` when it failed because of something else."""
    if error.errno not in (errno.EMFILE, errno.ENFILE):
        return None
    return LimitExceededError(
        f"{error.strerror}: raise the number of open files that the process may have (ulimit -n)"
    )


def raise_open_files() -> None:
    """Raises the limit of open files as far as the system lets every process do so."""
    try:
        import resource
    except ImportError:  # pragma: no cover - Windows
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):
            # macOS accepts less than the limit that it reports. The current limit stays;
            # `connections_max` follows it.
            return


def _open_files_max() -> int | None:
    """The limit of open files; `None` where there is none."""
    try:
        import resource
    except ImportError:  # pragma: no cover - Windows
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


def _open_files(limit: int) -> int:
    """The number of open files of the process; all, when not even looking is possible."""
    try:
        return len(os.listdir("/dev/fd"))
    except OSError:
        return limit
