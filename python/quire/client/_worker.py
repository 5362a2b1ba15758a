"""A worker on a queue: takes messages, runs a handler on each, and settles it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from quire._errors import ConfigError, DisconnectedError, QuireError, UnknownQueueError
from quire._message import Message
from quire._reasons import reason_of
from quire._units import Duration, seconds
from quire.client._driver import Handler
from quire.client._handling import Handling
from quire.client._reports import WorkReport

if TYPE_CHECKING:
    from quire import _quire
    from quire.client._base import ClientBase
    from quire.client._subscription import SubscriptionBase

logger = logging.getLogger("quire.client")

#: How long a worker that stops waits until its verdicts are durable, in seconds.
FLUSH_TIMEOUT = 10.0

#: The field of the report for each verdict. A message that cannot be settled any more went back to
#: its queue.
_OUTCOMES = {"ack": "acknowledged", "cancel": "cancelled", "expire": "expired", None: "lost"}


def backlog_of(concurrency: int, max_backlog: int | None) -> int:
    """Returns the backlog of a worker. By default each handler has a next message while it works."""
    if concurrency < 1:
        raise ConfigError(f"{concurrency} is not at least 1", key="concurrency")
    if max_backlog == 0:
        raise ConfigError("it is 0, so the worker would get no message: use at least 1", key="max_backlog")
    return 2 * concurrency if max_backlog is None else max_backlog


def delays_of(retry_delay: Duration | Sequence[Duration] | None) -> list[float]:
    """The pauses before a message is delivered again, in seconds; empty: the configuration of the
    queue."""
    if retry_delay is None:
        return []
    each = [retry_delay] if isinstance(retry_delay, (timedelta, float, int, str)) else list(retry_delay)
    if not each:
        raise ConfigError("the list is empty: leave it out for the pauses of the queue", key="retry_delay")
    return [seconds(delay, "retry_delay") for delay in each]


def refusal_of(queue: str, core: _quire.Subscription) -> UnknownQueueError | None:
    """Returns an error when `queue` is not a queue.

    A topic grants no backlog. A worker on a topic, such as a misspelled queue name, would wait
    forever.
    """
    if core.granted_backlog > 0:
        return None
    return UnknownQueueError(f'no queue has the name "{queue}"')


class Worker:
    """`process`: `concurrency` handlers at a time, in threads or in tasks on the loop.

    A single handler of a blocking client runs in the calling thread.
    """

    def __init__(
        self,
        client: ClientBase[Any],
        subscription: SubscriptionBase,
        handler: Handler,
        concurrency: int,
        retry_delay: Sequence[float],
    ) -> None:
        self._client = client
        self._driver = client._driver
        self._subscription = subscription
        self._handler = handler
        self._concurrency = concurrency
        self._retry_delay = retry_delay
        self._is_stopping = False
        #: Held while the counts change, never during a wait.
        self._lock = threading.Lock()
        self._counts = {"acknowledged": 0, "cancelled": 0, "lost": 0, "expired": 0}
        #: All verdicts are durable.
        self.done = self._driver.event()

    def stop(self) -> None:
        """Stops the worker: running handlers finish, and messages without a handler return to the queue."""
        self._is_stopping = True
        self._driver.wake()

    async def run(self) -> WorkReport:
        try:
            with self._driver.on_sigterm(self.stop):
                works = [self._work() for _ in range(self._concurrency)]
                await self._driver.run_all(f"quire-worker-{self._client.name}", works, self.stop)
        finally:
            try:
                self.stop()
                self._counts["lost"] += self._subscription._core.take_unseen()
                await self._leave()
            finally:
                self.done.set()
        return WorkReport(**self._counts)

    async def _work(self) -> None:
        try:
            with Handling(self._client):
                while not self._is_stopping:
                    for message in await self._driver.wait(self._take, self._driver.stop_latency):
                        if message is None:
                            return
                        await self._handle(message)
        finally:
            # The subscription has ended, or a handler was interrupted: the others stop, too.
            self.stop()

    def _take(self, timeout: float | None) -> tuple[Message | None, ...]:
        """Returns the next message, `None` after the last one, or nothing after the timeout."""
        if self._is_stopping:
            return (None,)
        try:
            return (self._subscription._core.next(timeout),)
        except TimeoutError:
            return ()

    async def _handle(self, message: Message) -> None:
        error: BaseException | None = None
        try:
            await self._driver.handle(self._handler, message)
        except BaseException as raised:
            error = raised
        with self._lock:
            self._settle(message, error)
        if error is not None and not isinstance(error, Exception):
            raise error

    def _settle(self, message: Message, error: BaseException | None) -> None:
        """Acknowledges or cancels a message without a verdict of its handler, and counts the outcome."""
        is_lost, given = message.lease_lost, message._verdict
        if error is None:
            try:
                message.ack()
            except DisconnectedError as closed:
                is_lost = True
                text = "a message was handled, and could not be acknowledged"
                self._client._failures.log(text, message, closed)
        elif isinstance(error, Exception):
            failed = "a handler failed on a message, which goes back to its queue"
            if given is not None:
                failed = f"a handler failed on a message that it had settled with {given}()"
            self._client._failures.log(failed, message, error)
            # Without a connection for good, the message is in its queue already.
            with suppress(DisconnectedError):
                message.cancel(self._delay_of(message), reason_of(error))
        elif given is None:
            # Ctrl-C or a cancelled task: it is released with the subscription, and counts as not
            # handled.
            return
        self._counts["lost" if is_lost else _OUTCOMES[message._verdict]] += 1

    def _delay_of(self, message: Message) -> float | None:
        """How long the message waits when it is cancelled now; `None`: as its queue is configured."""
        if not self._retry_delay:
            return None
        return self._retry_delay[min(message.cancel_count, len(self._retry_delay) - 1)]

    async def _leave(self) -> None:
        """Returns messages without a handler to the queue, and flushes the acknowledgements."""
        if self._client.state == "closed":
            return
        try:
            await self._client._unsubscribe([self._subscription.sub_id])
            await self._client._flush(FLUSH_TIMEOUT)
        except (QuireError, TimeoutError) as error:
            logger.warning(
                "%r: what a worker said may not be durable: %s",
                self._client,
                error,
                extra={"quire_client": self._client.name},
            )
