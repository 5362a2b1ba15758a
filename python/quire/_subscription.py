"""A subscription of a blocking client: where its messages are taken."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Self

from quire import _quire
from quire._bookmarks import EPOCH, MOST_RECENT, Bookmark
from quire._errors import ConfigError, DisconnectedError
from quire._message import Message
from quire._options import (
    KEPT,
    Kept,
    Rate,
    Spec,
    SubscriptionHealth,
    backlog_to_core,
    bookmark_to_core,
    delta_to_core,
    fields_to_core,
    rate_to_core,
)
from quire._units import Duration, seconds

if TYPE_CHECKING:
    from quire._client import Client

#: Messages of a list of `batches()` when nothing else is asked for.
DEFAULT_BATCH_COUNT = 1024


class Completed:
    """An event: the replay of a subscription has caught up with what the log held as it was made."""

    def __init__(self, core: _quire.Subscription) -> None:
        self._core = core

    def is_set(self) -> bool:
        return self._core.is_completed()

    def wait(self, timeout: Duration | None = None) -> bool:
        """True when it has; false when `timeout` passed first or the subscription ended before."""
        return self._core.wait_completed(timeout_to_core(timeout))


class SubscriptionBase:
    """What the subscriptions of both clients share."""

    def __init__(self, core: _quire.Subscription, spec: Spec, sub_id: str, handled: bool) -> None:
        self._core = core
        self._spec = spec
        self._sub_id = sub_id
        self._handled = handled

    @property
    def sub_id(self) -> str:
        """The name of the subscription, under which its place in the log is kept."""
        return self._sub_id

    @property
    def topic(self) -> str:
        """What it is subscribed to."""
        return self._spec.topic

    @property
    def filter(self) -> str | None:
        """The content filter in force."""
        return self._spec.filter

    @property
    def most_recent(self) -> str | None:
        """The bookmark to resume at: behind the last message before which, itself included, all are
        processed.

        The bookmark that the subscription began with, when none was processed yet.
        """
        begun_with = EPOCH if self._spec.bookmark == MOST_RECENT else self._spec.bookmark
        return self._core.most_recent or begun_with

    def __repr__(self) -> str:
        return f"{type(self).__name__}(topic={self.topic!r}, sub_id={self.sub_id!r})"

    def _check_not_handled(self) -> None:
        if self._handled:
            raise ConfigError("the messages of this subscription go to its on_message handler")

    @property
    def _is_leased_to_handler(self) -> bool:
        """Its handler has messages of a queue, which go to others when the subscription ends."""
        return self._handled and self._core.granted_backlog > 0

    @property
    def _spec_without_more(self) -> Spec:
        """With which a queue delivers nothing more, and leaves what it delivered."""
        return replace(self._spec, max_backlog=0)

    def _paused(self, paused: bool) -> None:
        """Remembered, because a replacement says it again."""
        self._spec = replace(self._spec, paused=paused)

    def _health(self, last_heard: datetime | None, missed: int) -> SubscriptionHealth:
        return SubscriptionHealth(
            sub_id=self.sub_id,
            topic=self.topic,
            most_recent=self.most_recent,
            completed=self._core.is_completed(),
            last_heard=last_heard,
            missed=missed,
        )

    def _replaced(
        self,
        topic: str | None,
        filter: str | None,
        bookmark: Bookmark | None,
        live: bool | None,
        fully_durable: bool | None,
        max_backlog: int | None,
        rate: Rate | Kept | None,
        rate_max_gap: Duration | Kept | None,
        conflation: Duration | Kept | None,
        conflation_key: str | Iterable[str] | Kept | None,
        select: str | Iterable[str] | Kept | None,
    ) -> tuple[Spec, Spec]:
        """What the subscription will be, and what the server is told."""
        old = self._spec
        spec = replace(
            old,
            topic=old.topic if topic is None else topic,
            filter=filter,
            live=old.live if live is None else live,
            fully_durable=old.fully_durable if fully_durable is None else fully_durable,
            max_backlog=old.max_backlog if max_backlog is None else backlog_to_core(max_backlog),
            rate=old.rate if rate is KEPT else rate_to_core(rate),
            rate_max_gap=old.rate_max_gap
            if rate_max_gap is KEPT
            else delta_to_core(rate_max_gap, "rate_max_gap"),
            conflation=old.conflation if conflation is KEPT else delta_to_core(conflation, "conflation"),
            conflation_key=old.conflation_key if conflation_key is KEPT else fields_to_core(conflation_key),
            select=old.select if select is KEPT else fields_to_core(select),
        )
        new_bookmark = bookmark_to_core(bookmark)
        if new_bookmark == MOST_RECENT:
            new_bookmark = self.most_recent or EPOCH
        kept = old.bookmark if new_bookmark is None else new_bookmark
        return replace(spec, bookmark=kept), replace(spec, bookmark=new_bookmark)


class Subscription(SubscriptionBase):
    """A subscription: iterate over it, or take messages with `get` or `batches`.

    A message is processed when the next one is asked for or it was discarded. The iteration ends when the
    subscription or the client is
    closed, and raises what the server ended it with.
    """

    def __init__(
        self, client: Client, core: _quire.Subscription, spec: Spec, sub_id: str, handled: bool
    ) -> None:
        super().__init__(core, spec, sub_id, handled)
        self._client = client
        self.completed = Completed(core)

    def __iter__(self) -> Iterator[Message]:
        self._check_not_handled()
        take = self._core.next
        while (message := take()) is not None:
            yield message

    def get(self, timeout: Duration | None = None) -> Message:
        """The next message.

        Raises `TimeoutError` when none comes in time, `DisconnectedError` when there will be no more.
        """
        self._check_not_handled()
        message = self._core.next(timeout_to_core(timeout))
        if message is None:
            raise DisconnectedError(f"the subscription {self.sub_id!r} is closed")
        return message

    def batches(
        self, max_messages: int = DEFAULT_BATCH_COUNT, timeout: Duration | None = None
    ) -> Iterator[list[Message]]:
        """Lists of what is there, at least one message each and at most `max_messages`.

        With a `timeout`, an empty list when nothing came for so long, so that the loop gets its turn.
        """
        self._check_not_handled()
        check_count(max_messages)
        seconds_or_none = timeout_to_core(timeout)
        return self._batches(max_messages, seconds_or_none)

    def _batches(self, max_messages: int, timeout: float | None) -> Iterator[list[Message]]:
        take = self._core.batch
        while (batch := take(max_messages, timeout)) is not None:
            yield batch

    def pause(self) -> None:
        """Stops a bookmark subscription until `resume`."""
        self._client.pause([self])

    def resume(self) -> None:
        """Continues after `pause`."""
        self._client.resume([self])

    def replace(
        self,
        *,
        filter: str | None = None,
        topic: str | None = None,
        bookmark: Bookmark | None = None,
        live: bool | None = None,
        fully_durable: bool | None = None,
        max_backlog: int | None = None,
        rate: Rate | Kept | None = KEPT,
        rate_max_gap: Duration | Kept | None = KEPT,
        conflation: Duration | Kept | None = KEPT,
        conflation_key: str | Iterable[str] | Kept | None = KEPT,
        select: str | Iterable[str] | Kept | None = KEPT,
    ) -> None:
        """Changes the subscription atomically; what is left out stays as it is, except that the filter is
        taken off. `None` takes rate, conflation and select list off, too.

        It keeps its place in the log unless `bookmark` is given. When the server refuses, nothing has
        changed.
        """
        spec, told = self._replaced(
            topic,
            filter,
            bookmark,
            live,
            fully_durable,
            max_backlog,
            rate,
            rate_max_gap,
            conflation,
            conflation_key,
            select,
        )
        self._client._replace(self._core, told)
        self._spec = spec

    def unsubscribe(self) -> None:
        """Ends the subscription. Harmless when it has ended."""
        self._client.unsubscribe(self.sub_id)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.unsubscribe()


def check_count(max_messages: int) -> None:
    if max_messages < 1:
        raise ConfigError(f"{max_messages} is not at least 1", key="max_messages")


def timeout_to_core(timeout: Duration | None) -> float | None:
    return None if timeout is None else seconds(timeout, "timeout")
