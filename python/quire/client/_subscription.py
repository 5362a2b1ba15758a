"""The common part of the subscriptions of both clients."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from quire import _quire
from quire._arguments import check_timeout, check_type
from quire._bookmarks import EPOCH, MOST_RECENT, range_to_core
from quire._errors import ConfigError, DisconnectedError, QuireError
from quire._filter import optional_filter_to_core
from quire.client._reports import SubscriptionHealth
from quire.client._spec import Change, Spec

if TYPE_CHECKING:
    from quire.client._base import ClientBase

#: Messages of a list of `batches()` by default.
DEFAULT_BATCH_COUNT = 1024


class SubscriptionBase:
    """A subscription: its core, and its arguments."""

    _snapshot: SnapshotBase

    def __init__(self, client: ClientBase[Any], core: _quire.Subscription, spec: Spec, sub_id: str) -> None:
        self._client = client
        self._core = core
        self._spec = spec
        self._sub_id = sub_id

    @property
    def sub_id(self) -> str:
        """The name of the subscription, under which its place in the log is kept."""
        return self._sub_id

    @property
    def topic(self) -> str:
        """The topic, pattern or queue of the subscription."""
        return self._spec.topic

    @property
    def filter(self) -> str | None:
        """The current content filter, or `None`."""
        return optional_filter_to_core(self._spec.filter)

    @property
    def most_recent(self) -> str | None:
        """The bookmark to resume after: of the last message up to which all messages are processed.

        While no message is processed, it is the bookmark with which the subscription began.
        """
        begun_with = EPOCH if self._spec.bookmark == MOST_RECENT else self._spec.bookmark
        return self._core.most_recent or (
            None if begun_with is None else range_to_core(begun_with, "bookmark")
        )

    @property
    def bookmark_found(self) -> bool:
        """Whether one of the bookmarks was in the log, also after each reconnect. Else
        `bookmark_not_found` applied.

        `True` for times, `EPOCH` and `NOW`, and without a bookmark.
        """
        return self._core.bookmark_found

    def __repr__(self) -> str:
        return f"{type(self).__name__}(topic={self.topic!r}, sub_id={self.sub_id!r})"

    async def _replace(self, change: Change) -> None:
        """When the server refuses, nothing has changed."""
        check_timeout(change.timeout)
        spec = change.of(self._spec)
        if change.bookmark is not None and spec.bookmark == MOST_RECENT:
            spec = replace(spec, bookmark=self.most_recent or EPOCH)
        spec.check_together()
        # Without a bookmark it keeps its place in the log.
        told = replace(spec, bookmark=None if change.bookmark is None else spec.bookmark)
        core = await self._client._ready()
        command = core.replace(self._core.number, told)
        await self._client._reply(core, command, change.timeout, f"replacing {self.sub_id!r}")
        self._spec = spec

    def _check_not_handled(self) -> None:
        if self._spec.on_message is not None:
            raise ConfigError("the messages of this subscription go to its on_message handler")

    def _ended(self) -> DisconnectedError:
        """Returns the error for a subscription that has ended."""
        return DisconnectedError(f"the subscription {self.sub_id!r} is closed", code="closed")

    @property
    def _is_leased_to_handler(self) -> bool:
        """Its handler has messages of a queue, which go to others when the subscription ends."""
        return self._spec.on_message is not None and self._core.granted_backlog > 0

    @property
    def _spec_without_more(self) -> Spec:
        """With which a queue delivers nothing more, and leaves what it delivered."""
        return replace(self._spec, max_backlog=0)

    def _paused(self, paused: bool) -> None:
        """Kept, because a replacement contains it again."""
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


class CompletedBase:
    """An event: the program has received the replay up to the end of the log at the subscribe call.

    With a handler: the handler returned from that message.
    """

    def __init__(self, core: _quire.Subscription) -> None:
        self._core = core

    def is_set(self) -> bool:
        """Returns whether the event has happened."""
        return self._core.is_completed()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {'set' if self.is_set() else 'not set'}>"


class SnapshotBase:
    """An event: the last record of the query has arrived. It stays set.

    With a handler: the handler returned from that record.
    """

    def __init__(self, core: _quire.Subscription) -> None:
        self._core = core
        self._failure: QuireError | None = None

    def is_set(self) -> bool:
        """Returns whether the event has happened."""
        return self._failure is None and self._core.is_snapshot()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {'set' if self.is_set() else 'not set'}>"

    def _fail(self, failure: QuireError) -> None:
        """The event cannot happen any more. Nothing changes when it has happened."""
        if not self.is_set():
            self._failure = failure

    def _check_possible(self) -> None:
        if self._failure is not None:
            raise self._failure


def check_count(max_messages: int) -> None:
    check_type(max_messages, int, "max_messages")
    if max_messages < 1:
        raise ConfigError(f"{max_messages} is not at least 1", key="max_messages")
