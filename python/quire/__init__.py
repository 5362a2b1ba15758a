"""quire: an append-only, bookmarked transaction log with replayable subscriptions and queues."""

from typing import TYPE_CHECKING, Any

from quire._bookmarks import EPOCH, MOST_RECENT, NOW
from quire._errors import (
    AuthenticationError,
    BadBookmarkError,
    BadFilterError,
    BadTopicError,
    ConfigError,
    DisconnectedError,
    InternalError,
    JournalCorruptError,
    JournalLockedError,
    LimitExceededError,
    MessageTooLargeError,
    NameInUseError,
    NotEntitledError,
    NotJournaledError,
    ProtocolError,
    QuireError,
    StorageFailedError,
    StorageFullError,
    StoreCorruptError,
    StoreLockedError,
    SubscriptionInUseError,
    UnknownQueueError,
    UnknownSubscriptionError,
)
from quire._filter import Filter
from quire._message import Message
from quire._quire import Record, __version__

if TYPE_CHECKING:
    from quire._aio import AsyncClient, AsyncSubscription
    from quire._client import Client
    from quire._config import Config
    from quire._journal import Damage, Journal, JournalReader, Segment
    from quire._options import AUTO, DrainReport, Health, Reconnect, SubscriptionHealth
    from quire._queue import Queue
    from quire._server import Server
    from quire._stores import BookmarkStore, PublishStore
    from quire._subscription import Subscription
    from quire._worker import WorkReport

__all__ = [
    "AUTO",
    "EPOCH",
    "MOST_RECENT",
    "NOW",
    "AsyncClient",
    "AsyncSubscription",
    "AuthenticationError",
    "BadBookmarkError",
    "BadFilterError",
    "BadTopicError",
    "BookmarkStore",
    "Client",
    "Config",
    "ConfigError",
    "Damage",
    "DisconnectedError",
    "DrainReport",
    "Filter",
    "Health",
    "InternalError",
    "Journal",
    "JournalCorruptError",
    "JournalLockedError",
    "JournalReader",
    "LimitExceededError",
    "Message",
    "MessageTooLargeError",
    "NameInUseError",
    "NotEntitledError",
    "NotJournaledError",
    "ProtocolError",
    "PublishStore",
    "Queue",
    "QuireError",
    "Reconnect",
    "Record",
    "Segment",
    "Server",
    "StorageFailedError",
    "StorageFullError",
    "StoreCorruptError",
    "StoreLockedError",
    "Subscription",
    "SubscriptionHealth",
    "SubscriptionInUseError",
    "UnknownQueueError",
    "UnknownSubscriptionError",
    "WorkReport",
    "__version__",
]


#: Where the names are that are imported at their first use: a program pays for the parts that it takes.
_LAZY = {
    "AUTO": "quire._options",
    "AsyncClient": "quire._aio",
    "AsyncSubscription": "quire._aio",
    "BookmarkStore": "quire._stores",
    "Client": "quire._client",
    "Config": "quire._config",
    "Damage": "quire._journal",
    "DrainReport": "quire._options",
    "Health": "quire._options",
    "Journal": "quire._journal",
    "JournalReader": "quire._journal",
    "PublishStore": "quire._stores",
    "Queue": "quire._queue",
    "Reconnect": "quire._options",
    "Segment": "quire._journal",
    "Server": "quire._server",
    "Subscription": "quire._subscription",
    "SubscriptionHealth": "quire._options",
    "WorkReport": "quire._worker",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'quire' has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(_LAZY[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
