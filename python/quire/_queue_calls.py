"""What `Client` says to queues."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator
from time import monotonic
from typing import TYPE_CHECKING, Any, cast

from quire import _quire
from quire._message import Message
from quire._options import Spec, backlog_to_core, count_to_core, selection_to_core, verdict_to_core
from quire._subscription import DEFAULT_BATCH_COUNT, check_count
from quire._worker import Worker, WorkReport, backlog_of, refusal_of

if TYPE_CHECKING:
    from quire._client import Client

#: Bookmarks in one command; more are said in several.
BOOKMARKS_PER_COMMAND = 10_000


class QueueCalls:
    """The part of the blocking client that is about queues."""

    _core: _quire.Client

    def __init__(self) -> None:
        self._workers: set[Worker] = set()
        self._workers_lock = threading.Lock()

    def ack(
        self,
        topic: str,
        bookmarks: str | Message | Iterable[str | Message] | None = None,
        *,
        filter: str | None = None,
        cancel: bool = False,
        expire: bool = False,
    ) -> None:
        """Acknowledges messages of a queue by bookmark, or all active ones that a filter matches; waits for
        the server.

        - `bookmarks`: one, several joined by commas, or any number of them; those that are not in the queue
          (any more) are passed over
        - `filter`: an empty one stands for every message
        - `cancel`: they go back to the queue; `expire`: they are thrown out of it
        """
        verdict = verdict_to_core(cancel, expire)
        selected = selection_to_core(bookmarks, filter)
        if isinstance(selected, str):
            self._answered(self._core.settle_matching(topic, verdict, selected))
            return
        for start in range(0, len(selected), BOOKMARKS_PER_COMMAND):
            piece = selected[start : start + BOOKMARKS_PER_COMMAND]
            self._answered(self._core.settle_bookmarks(topic, verdict, piece))

    def sow(
        self,
        topic: str,
        *,
        filter: str | None = None,
        order_by: str | None = None,
        top_n: int | None = None,
        batch_size: int | None = None,
    ) -> Iterator[Message]:
        """The messages of a queue that could be delivered now, in delivery order; nothing changes by it.

        - `order_by`: a field to sort by instead, with `DESC` behind it for the greatest first
        - `top_n`: the most messages wanted
        - `batch_size`: how many of them to take from the connection at a time
        """
        count = DEFAULT_BATCH_COUNT if batch_size is None else batch_size
        check_count(count)
        core = self._core.query(topic, filter, order_by, count_to_core(top_n, "top_n"))
        self._answered(core.command)
        return _answers(core, count)

    def queue_stats(self, queue: str | None = None) -> dict[str, dict[str, Any]]:
        """The figures of one queue, or of all, by name (docs/queues.md section 10)."""
        command = self._core.queue_stats(queue)
        try:
            self._core.wait(command)
            return queues_of(self._core.take_told(command))
        finally:
            self._core.abandon(command)

    def process(
        self,
        queue: str,
        handler: Callable[[Message], object],
        *,
        concurrency: int = 1,
        max_backlog: int | None = None,
        extend: bool = True,
    ) -> WorkReport:
        """Works on a queue until the client is drained or closed, or SIGTERM comes (in the main thread, when
        nobody else handles it).

        A message is acknowledged when the handler returned and cancelled when it raised, unless the handler
        has settled it. What is in hand is then finished, what was only fetched goes back, and everything said
        is flushed.

        - `concurrency`: handlers at a time, each in a thread of its own; a single one runs in the calling
          thread
        - `max_backlog`: messages that the server may hand out ahead; two for each handler when left out
        - `extend`: renew the lease of what is being handled, every third of its period

        Raises `UnknownQueueError` when no queue has this name.
        """
        backlog = backlog_of(concurrency, max_backlog)
        client = cast("Client", self)
        subscription = client._enter(Spec(topic=queue, max_backlog=backlog_to_core(backlog)), auto_ack=False)
        if refusal := refusal_of(queue, subscription._core, backlog):
            subscription.unsubscribe()
            raise refusal
        worker = Worker(client, subscription, handler, concurrency, extend)
        with self._workers_lock:
            self._workers.add(worker)
        try:
            return worker.run()
        finally:
            with self._workers_lock:
                self._workers.discard(worker)

    def _stop_workers(self, timeout: float) -> None:
        """They finish what is in hand; waits for those that are not the caller."""
        deadline = monotonic() + timeout
        with self._workers_lock:
            workers = list(self._workers)
        for worker in workers:
            worker.stop()
        for worker in workers:
            if not worker.runs_here():
                worker.done.wait(max(0.0, deadline - monotonic()))

    def _answered(self, command: int) -> None:
        try:
            self._core.wait(command)
        finally:
            # After Ctrl-C nobody asks for the answer again.
            self._core.abandon(command)


def queues_of(told: list[str]) -> dict[str, dict[str, Any]]:
    """The figures in an answer of the server."""
    return json.loads(told[0])["queues"] if told else {}


def _answers(core: _quire.Subscription, count: int) -> Iterator[Message]:
    while (batch := core.batch(count)) is not None:
        yield from batch
