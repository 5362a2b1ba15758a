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
    LimitExceededError,
    MessageTooLargeError,
    NameInUseError,
    NotEntitledError,
    NotJournaledError,
    ProtocolError,
    QuireError,
    StorageFailedError,
    StorageFullError,
    UnknownSubscriptionError,
)
from quire._message import Message
from quire._options import AUTO, DrainReport, Health, Reconnect, SubscriptionHealth
from quire._subscription import Subscription

if TYPE_CHECKING:
    from quire._aio import AsyncClient, AsyncSubscription

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
    "ConfigError",
    "DisconnectedError",
    "DrainReport",
    "Health",
    "InternalError",
    "JournalCorruptError",
    "LimitExceededError",
    "Message",
    "MessageTooLargeError",
    "NameInUseError",
    "NotEntitledError",
    "NotJournaledError",
    "ProtocolError",
    "QuireError",
    "Reconnect",
    "StorageFailedError",
    "StorageFullError",
    "Subscription",
    "SubscriptionHealth",
    "UnknownSubscriptionError",
]


def __getattr__(name: str) -> Any:
    """The asyncio client, imported at its first use: asyncio is most of what an import would cost."""
    if name in ("AsyncClient", "AsyncSubscription"):
        from quire import _aio

        return getattr(_aio, name)
    raise AttributeError(f"module 'quire' has no attribute {name!r}")
