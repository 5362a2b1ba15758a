"""The process from which the workers of tasks are forked in a local session: that of PySpark, but a worker that Spark has no more use for
ends without a word.

Spark dismisses a worker by closing its socket: after a minute without work, at the end of the session, and when a task is stopped or needs
no more rows (`limit`). PySpark (up to 4.3 at least) takes that for a failure, cannot tell anybody, and prints a traceback that ends in
`BrokenPipeError` for each of them. What fails in a task goes to Spark through that socket, as ever: only what is said into a closed one is
dropped.

The workers that Spark plans with always come from its own; those in which quire was imported end like the others (`adopt`).

PySpark also collects garbage after each task, which is to look at every object of every module that is loaded: 20 ms. Here those that are
there when the first task has ended are never looked at again.
"""

from __future__ import annotations

import gc
import signal
import socket
from types import ModuleType

from pyspark import daemon

#: What a worker returns that shall not be used again.
DISMISSED = 1

_work = daemon.worker


def worker(sock: socket.socket, authenticated: bool) -> int:
    """Does one piece of work, in a process of its own, when there is one."""
    # PySpark does the same when the work is there; the wait for it shall end with the session, too.
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
    """Has a worker that PySpark's own daemon has forked end like those of this one: the loop in which it waits for work looks there, each
    time, for what does it."""
    forked.worker = worker  # type: ignore[attr-defined]


if __name__ == "__main__":
    daemon.worker = worker
    daemon.manager()
