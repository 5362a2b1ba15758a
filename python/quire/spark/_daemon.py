"""The process that forks the workers of tasks in a local session. It is that of PySpark, with two changes.

A dismissed worker ends without output. Spark dismisses a worker by closing its socket: after a
minute without work, at the end of the session, and when a task is stopped or needs no more rows
(`limit`). PySpark (up to at least 4.3) handles this as a failure, cannot report it, and prints a
traceback with `BrokenPipeError` for each worker. Spark still gets a failure in a task through the
socket. Only output to a closed socket is dropped.

Spark always forks its planning workers from its own process. Those that have imported quire end in
the same way (`adopt`).

PySpark also collects garbage after each task, which visits every object of every loaded module and
takes 20 ms. Here the collector ignores the objects that exist when the first task has ended.
"""

from __future__ import annotations

import gc
import signal
import socket
from types import ModuleType

from pyspark import daemon

#: The result of a worker that must not be used again.
DISMISSED = 1

_work = daemon.worker


def worker(sock: socket.socket, authenticated: bool) -> int:
    """Waits for one piece of work, and does it. Runs in a forked process."""
    # PySpark does the same when there is work. The wait for work must end with the session, too.
    for number in (signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    try:
        if not sock.recv(1, socket.MSG_PEEK):
            return DISMISSED
        done = _work(sock, authenticated)
    except (BrokenPipeError, ConnectionResetError):
        return DISMISSED
    if gc.get_freeze_count() == 0:
        gc.collect()
        gc.freeze()
    return done


def adopt(forked: ModuleType) -> None:
    """Makes a worker that the daemon of PySpark has forked end like the workers of this one: its
    loop reads this attribute of the module each time it waits for work."""
    forked.worker = worker  # type: ignore[attr-defined]


if __name__ == "__main__":
    daemon.worker = worker
    daemon.manager()
