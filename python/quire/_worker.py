"""A worker on a queue: takes messages, runs a handler on each, and says what became of it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

from quire._client_base import logger
from quire._errors import ConfigError, QuireError, UnknownQueueError
from quire._message import Message
from quire._process import start_thread

if TYPE_CHECKING:
    from quire import _quire
    from quire._client import Client
    from quire._subscription import Subscription

#: How long a worker that waits for a message needs to notice that it is to stop, in seconds.
STOP_LATENCY = 0.1

#: How long a worker that stops waits until what it said is durable, in seconds.
FLUSH_TIMEOUT = 10.0

#: Leases are renewed so many times in each of their periods: two renewals may be late before one is lost.
RENEWALS_PER_PERIOD = 3


@dataclass(frozen=True)
class WorkReport:
    """What a worker did with the messages that it was given."""

    #: The handler returned.
    acknowledged: int
    #: The handler raised: the message went back to the queue.
    cancelled: int
    #: The lease was over before the handler returned or raised: another consumer may have the message. An acknowledgement was
    #: still sent (docs/clients.md, Queues). Also messages that were skipped because their lease was over.
    lost: int


def backlog_of(concurrency: int, max_backlog: int | None) -> int:
    """The backlog of a worker: every handler has the next message at hand while it works."""
    if concurrency < 1:
        raise ConfigError(f"concurrency: {concurrency} is not at least 1")
    return 2 * concurrency if max_backlog is None else max_backlog


def refusal_of(queue: str, core: _quire.Subscription, backlog: int) -> UnknownQueueError | None:
    """Why a worker cannot work on what it has subscribed to: a topic grants no backlog, and a worker on one, perhaps a
    queue's name that is misspelt, would settle messages that nobody asked it to settle, or wait for ever."""
    if backlog == 0 or core.granted_backlog > 0:
        return None
    return UnknownQueueError(f'no queue has the name "{queue}"')


class WorkerBase:
    """What the workers of both clients share: the messages in hand, and the count of what became of them."""

    def __init__(self, concurrency: int) -> None:
        self.concurrency = concurrency
        self._in_hand: dict[int, Message] = {}
        self._counts = {"acknowledged": 0, "cancelled": 0, "lost": 0}

    @property
    def report(self) -> WorkReport:
        return WorkReport(**self._counts)

    def _begin(self, message: Message) -> bool:
        """False for a message that was lost before it was begun: somebody else may have it."""
        if message.lease_lost:
            self._counts["lost"] += 1
            return False
        self._in_hand[id(message)] = message
        return True

    def _end(self, message: Message, error: BaseException | None) -> None:
        """Acknowledges or cancels, unless the handler has said what becomes of the message."""
        self._in_hand.pop(id(message), None)
        is_lost = message.lease_lost
        if error is None:
            message.ack()
        elif isinstance(error, Exception):
            logger.error("a handler failed on %r, which goes back to its queue", message, exc_info=error)
            message.cancel()
        else:
            # Ctrl-C or a cancelled task: it goes back with the subscription, and counts as not handled.
            return
        self._counts["lost" if is_lost else "acknowledged" if error is None else "cancelled"] += 1

    def _renewal(self) -> tuple[list[Message], float | None]:
        """The messages in hand whose leases end, and after how many seconds to look again."""
        held = [m for m in list(self._in_hand.values()) if m.lease_period is not None]
        periods = [m.lease_period.total_seconds() for m in held if m.lease_period is not None]
        return held, min(periods) / RENEWALS_PER_PERIOD if periods else None


class Worker(WorkerBase):
    """`Client.process`: `concurrency` handlers at a time, one of them in the calling thread when it is the
    only one."""

    def __init__(
        self,
        client: Client,
        subscription: Subscription,
        handler: Callable[[Message], object],
        concurrency: int,
        extend: bool,
    ) -> None:
        super().__init__(concurrency)
        self._client = client
        self._subscription = subscription
        self._handler = handler
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        #: Set when the first message is in hand, so that the renewals begin, and at the end.
        self._changed = threading.Event()
        self._is_renewing = not extend
        self._is_over = False
        self._failure: BaseException | None = None
        self._threads: list[threading.Thread] = []
        #: Everything is said and done.
        self.done = threading.Event()

    def stop(self) -> None:
        """What is in hand is finished, what was only fetched goes back."""
        self._stopping.set()

    def runs_here(self) -> bool:
        """Whether the caller is one of the handlers, which must not wait for itself."""
        current = threading.current_thread()
        return current in self._threads

    def run(self) -> WorkReport:
        renewals = threading.Thread(target=self._renew, name=f"quire-leases-{self._client.name}", daemon=True)
        is_renewing = False
        try:
            with _on_sigterm(self.stop):
                start_thread(renewals)
                is_renewing = True
                if self.concurrency == 1:
                    self._threads = [threading.current_thread()]
                    self._work()
                else:
                    self._work_in_threads()
                if self._failure is not None:
                    raise self._failure
        finally:
            self.stop()
            self._is_over = True
            self._changed.set()
            if is_renewing:
                renewals.join()
            self._leave()
            self.done.set()
        return self.report

    def _work_in_threads(self) -> None:
        name = f"quire-worker-{self._client.name}"
        self._threads = [
            threading.Thread(target=self._work, name=f"{name}-{number}", daemon=True)
            for number in range(self.concurrency)
        ]
        started: list[threading.Thread] = []
        try:
            for thread in self._threads:
                start_thread(thread)
                started.append(thread)
            for thread in started:
                thread.join()
        finally:
            # Ctrl-C in this thread, or no thread for all of them: the handlers that run are finished.
            self._stopping.set()
            for thread in started:
                thread.join()

    def _work(self) -> None:
        take = self._subscription._core.next
        try:
            while not self._stopping.is_set():
                try:
                    message = take(STOP_LATENCY)
                except TimeoutError:
                    continue
                if message is None:
                    break
                self._handle(message)
        except BaseException as error:
            if self.concurrency == 1:
                raise
            self._failure = self._failure or error
        finally:
            self._stopping.set()

    def _handle(self, message: Message) -> None:
        with self._lock:
            if not self._begin(message):
                return
            if not self._is_renewing:
                self._is_renewing = True
                self._changed.set()
        error: BaseException | None = None
        try:
            self._handler(message)
        except BaseException as raised:
            error = raised
        with self._lock:
            self._end(message, error)
        if error is not None and not isinstance(error, Exception):
            raise error

    def _renew(self) -> None:
        interval: float | None = None
        while not self._is_over:
            woken = self._changed.wait(interval)
            self._changed.clear()
            with self._lock:
                held, interval = self._renewal()
                self._is_renewing = interval is not None
            if held and not woken:
                self._client._core.extend(held, None)

    def _leave(self) -> None:
        """What was only fetched goes back, and what was said is made durable."""
        if self._client.state == "closed":
            return
        try:
            self._subscription.unsubscribe()
            self._client.flush(FLUSH_TIMEOUT)
        except (QuireError, TimeoutError) as error:
            logger.warning("%r: what a worker said may not be durable: %s", self._client, error)


@contextmanager
def _sigterm(stop: Callable[[], None]) -> Iterator[None]:
    before = signal.signal(signal.SIGTERM, lambda _signal, _frame: stop())
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _on_sigterm(stop: Callable[[], None]) -> AbstractContextManager[None]:
    """Calls `stop` on SIGTERM, unless the program handles it itself or this is not its main thread."""
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        return _sigterm(stop)
    return nullcontext()
