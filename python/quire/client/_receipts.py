"""Receipts: the outcome of messages that a program follows."""

from __future__ import annotations

import inspect
import logging
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager
from time import monotonic
from typing import Any, Final, Generic, TypeVar

from quire import _quire
from quire._arguments import timeout_to_core
from quire._errors import QuireError, from_code
from quire._units import Duration, counted
from quire.client._driver import Driver, Running
from quire.client._options import ClientOptions

logger = logging.getLogger("quire.client")

#: Seconds that the functions of `on_persisted` have left when a client is closed.
CLOSING_GRACE: Final = 5.0

R = TypeVar("R", int, list[int])
#: The refused messages by their sequences, and why it is not known what became of the others.
Outcome = tuple[list[tuple[int, QuireError]], QuireError | None]


class ReceiptBase(ABC, Generic[R]):
    """The receipt of one message, or of a batch."""

    def __init__(
        self, core: _quire.Receipt, following: Following, messages: Sequence[tuple[int, str]]
    ) -> None:
        self._core = core
        self._following = following
        #: Sequence and topic of each message.
        self._messages = messages

    def done(self) -> bool:
        """Returns whether every message is persisted, refused, or lost with the client."""
        return self._core.is_settled()

    def result(self) -> R:
        """Returns or raises the same as `wait`, without waiting. Raises `TimeoutError` when not done."""
        if not self._look(self._core.outcome(0)):
            raise TimeoutError(f"{self}: it is not known yet whether that is persisted")
        return self._value()

    # The name that the program uses, for the error about an argument: `wait` takes a timeout, and
    # this does not.
    result.__qualname__ = "Receipt.result"

    @property
    def failures(self) -> list[QuireError]:
        """The errors of messages that are not persisted, with `sequence` and `topic`. Empty until done."""
        return self._failures_of(self._core.outcome(0)) if self.done() else []

    @abstractmethod
    def _value(self) -> R:
        """What is returned when everything is persisted."""

    def _look(self, outcome: Outcome | bool) -> bool:
        """Whether the receipt is done. Raises the first failure."""
        if isinstance(outcome, bool):
            return False
        failures = self._failures_of(outcome)
        if failures:
            if len(failures) > 1:
                others = counted(len(failures) - 1, "more message", "more messages")
                failures[0].add_note(f"{others} of the batch failed: see `failures`")
            raise failures[0]
        return True

    def _failures_of(self, outcome: Outcome | bool) -> list[QuireError]:
        if isinstance(outcome, bool):
            return []
        refusals, unknown = outcome
        topics = dict(self._messages)
        failures = []
        for sequence, error in sorted(refusals, key=lambda refusal: refusal[0]):
            error.sequence, error.topic = sequence, topics.get(sequence)
            failures.append(error)
        if unknown is not None:
            error = from_code(unknown.code, f"it is not known whether {self} is persisted: {unknown.reason}")
            if len(self._messages) == 1:
                [(error.sequence, error.topic)] = self._messages
            failures.append(error)
        return failures

    def _limit(self, timeout: Duration | None) -> float | None:
        return self._following.command_seconds if timeout is None else timeout_to_core(timeout)

    def _too_late(self, limit: float | None) -> TimeoutError:
        text = f"{self}: not persisted within {limit:g} s"
        return TimeoutError(text + self._following.why_not())

    def __str__(self) -> str:
        sequence, topic = self._messages[0]
        if len(self._messages) == 1:
            return f"publish {sequence} on {topic!r}"
        return f"the batch of {len(self._messages)} publishes from {sequence} to {self._messages[-1][0]}"

    def __repr__(self) -> str:
        outcome = self._core.outcome(0)
        state = "waiting" if isinstance(outcome, bool) else "failed" if any(outcome) else "persisted"
        return f"<{type(self).__name__} of {self}: {state}>"


class OneBase(ReceiptBase[int]):
    """The receipt of one message."""

    @property
    def sequence(self) -> int:
        """The sequence number of the message."""
        return self._messages[0][0]

    @property
    def topic(self) -> str:
        """The topic of the message."""
        return self._messages[0][1]

    def _value(self) -> int:
        return self.sequence


class ManyBase(ReceiptBase[list[int]]):
    """The receipt of a batch."""

    @property
    def sequences(self) -> list[int]:
        """The sequence numbers of the messages, in the order of the items."""
        return [sequence for sequence, _ in self._messages]

    def _value(self) -> list[int]:
        return self.sequences


class BlockingReceipt(ReceiptBase[R]):
    """A receipt of the blocking client."""

    def wait(self, timeout: Duration | None = None) -> R:
        """Waits until the receipt is done, also across reconnects. `timeout`: instead of `command_timeout`.

        Raises the error with which the server refused a message, with `sequence` and `topic`.
        Raises `DisconnectedError` when the client was closed before the outcome was known,
        `StorageFullError` or `StorageFailedError` while the server takes no publishes, and
        `TimeoutError` after `timeout`.
        """
        limit = self._limit(timeout)
        if not self._look(self._core.outcome(limit)):
            raise self._too_late(limit)
        return self._value()


class Receipt(OneBase, BlockingReceipt[int]):
    """The receipt of one message, from `publish_receipt`. `wait` and `result` return the sequence."""


class BatchReceipt(ManyBase, BlockingReceipt[list[int]]):
    """The receipt of a batch, from `publish_many_receipt`. `wait` and `result` return the sequences.

    When several messages are not persisted, they raise the error of the first; `failures` has all.
    """


class LoopReceipt(ReceiptBase[R]):
    """A receipt of the asyncio client. It can be awaited."""

    def __init__(
        self, core: _quire.Receipt, following: Following, messages: Sequence[tuple[int, str]]
    ) -> None:
        super().__init__(core, following, messages)
        #: Set when there may be an outcome.
        self._changed = following.driver.event()

    async def wait(self, timeout: Duration | None = None) -> R:
        """Waits until the receipt is done, also over reconnects. `timeout`: instead of
        `command_timeout`. See `Receipt.wait`."""
        limit = self._limit(timeout)
        deadline = None if limit is None else monotonic() + limit
        while True:
            # Before the look, so that no change falls between look and wait.
            self._changed.clear()
            if self._look(self._core.outcome(0)):
                return self._value()
            left = None if deadline is None else deadline - monotonic()
            if left is not None and left <= 0:
                raise self._too_late(limit)
            await self._changed.wait(left)

    def __await__(self) -> Generator[Any, None, R]:
        return self.wait().__await__()


class AsyncReceipt(OneBase, LoopReceipt[int]):
    """The receipt of one message, from `AsyncClient.publish_receipt`. `await` it for the sequence."""


class AsyncBatchReceipt(ManyBase, LoopReceipt[list[int]]):
    """The receipt of a batch, from `AsyncClient.publish_many_receipt`. `await` it for the
    sequences. See `BatchReceipt`."""


#: Called with a receipt that is done.
OnPersisted = Callable[[Any], object]


class Following:
    """The receipts of one client that are announced: those that are awaited, and those for which a
    function is called.

    It has no reference to the client, so that a client ends when the program drops it.
    """

    def __init__(self, driver: Driver, core: _quire.Client, options: ClientOptions, name: str) -> None:
        self.driver = driver
        self.command_seconds: float | None = options.command_seconds
        self._unpersisted_reason = options.unpersisted_reason
        self._core = core
        self._name = name
        #: Held while a receipt is made, so that it is not announced before it is known here. A
        #: signal handler may publish meanwhile.
        self.lock: AbstractContextManager[bool] = threading.RLock()
        self._receipts: weakref.WeakValueDictionary[int, ReceiptBase[Any]] = weakref.WeakValueDictionary()
        self._functions: dict[int, tuple[ReceiptBase[Any], OnPersisted]] = {}
        self._running: Running | None = None

    def follow(self, receipt: ReceiptBase[Any], on_persisted: OnPersisted | None) -> None:
        """A receipt that will be announced. Called with the lock held."""
        if on_persisted is not None:
            self._functions[receipt._core.number] = receipt, on_persisted
        else:
            self._receipts[receipt._core.number] = receipt

    def start(self) -> None:
        """Before the first of them."""
        with self.lock:
            if self._running is None:
                self._running = self.driver.run(f"quire-receipts-{self._name}", self._run())

    async def join(self, timeout: float) -> None:
        """The client has ended: what is left is announced."""
        if self._running is not None:
            await self._running.join(max(timeout, CLOSING_GRACE))

    def why_not(self) -> str:
        """Why nothing is persisted, as the end of a sentence."""
        if self._core.state == "connected":
            return self._unpersisted_reason
        because = self._core.last_error
        return ", because there is no connection" + ("" if because is None else f": {because}")

    async def _run(self) -> None:
        while (numbers := await self.driver.wait(self._core.settled)) is not None:
            for number in numbers:
                self._announce(number)

    def _announce(self, number: int) -> None:
        with self.lock:
            receipt, function = self._functions.get(number, (self._receipts.get(number), None))
            # One that is not done was announced because the server takes no publishes for now: its
            # waiters look.
            if receipt is not None and receipt.done():
                self._functions.pop(number, None)
            else:
                function = None
        if isinstance(receipt, LoopReceipt):
            receipt._changed.set()
        if receipt is None or function is None:
            return
        try:
            result = function(receipt)
            if inspect.isawaitable(result):
                if inspect.iscoroutine(result):
                    result.close()
                raise TypeError(f"on_persisted returned {result!r}: it must be a plain function")
        except BaseException as error:
            if self.driver.is_told_to_end(error):
                raise
            fields = {"quire_client": self._name}
            logger.exception("on_persisted=%r failed on %s", function, receipt, extra=fields)


def check_on_persisted(function: OnPersisted) -> None:
    """Raises `TypeError` for a coroutine function, which would not be awaited."""
    if inspect.iscoroutinefunction(function):
        raise TypeError(
            f"on_persisted={function!r} is a coroutine function: it must be a plain function, which may start a task"
        )
