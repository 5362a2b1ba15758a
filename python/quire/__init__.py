"""quire: an append-only, bookmarked transaction log with replayable subscriptions and queues."""

from typing import TYPE_CHECKING, Any

from quire._bookmarks import EPOCH, MOST_RECENT, NOW
from quire._client import Client
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
from quire._options import AUTO, DrainReport, Health, Reconnect, SubscriptionHealth
from quire._quire import Record, __version__
from quire._stores import PublishStore
from quire._subscription import Subscription

if TYPE_CHECKING:
    from quire._aio import AsyncClient, AsyncSubscription
    from quire._config import Config
    from quire._journal import Damage, Journal, JournalReader, Segment
    from quire._server import Server

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
    "__version__",
]


_LAZY = {
    "AsyncClient": "quire._aio",
    "AsyncSubscription": "quire._aio",
    "Config": "quire._config",
    "Damage": "quire._journal",
    "Journal": "quire._journal",
    "JournalReader": "quire._journal",
    "Segment": "quire._journal",
    "Server": "quire._server",
}


def __getattr__(name: str) -> Any:
    """What asyncio or pydantic would make expensive to import, at its first use."""
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'quire' has no attribute {name!r}")
