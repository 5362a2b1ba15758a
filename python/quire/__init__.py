"""A messaging engine: an append-only transaction log with subscriptions, replays and queues.

    import quire

    with quire.Client("file:./data", name="shop") as client:
        client.publish("orders", {"id": 1, "item": "book"})
        client.flush()  # returns when the message is persisted

        for message in client.subscribe("orders", bookmark=quire.EPOCH):
            print(message.json())
            break

- `Client`, or `AsyncClient` with asyncio: publish, subscribe, query, and work on queues.
- `Server`, with a `Config`: run a server in this process.
- `Journal`: read and write a log without a server.
- `quire.testing`: test your code.

Every error is a `QuireError`: an argument of a wrong type, for example, raises `ConfigError`. The
exceptions are `TimeoutError` for a call that takes longer than its `timeout`, and `TypeError` or
`ValueError` for data that cannot be published.
"""

import os
from typing import TYPE_CHECKING

# `_distribution` checks the installation when it is imported.
from quire import _distribution, _quire  # noqa: F401
from quire._bookmarks import EPOCH, MOST_RECENT, NOW
from quire._errors import (
    AuthenticationError,
    BadBookmarkError,
    BadFilterError,
    BadMessageError,
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
    NotLastValueError,
    ProtocolError,
    QueueExistsError,
    QuireError,
    StorageFailedError,
    StorageFullError,
    StoreCorruptError,
    StoreLockedError,
    SubscriptionInUseError,
    TLSError,
    UnknownQueueError,
    UnknownSubscriptionError,
)
from quire._filter import Filter, quote
from quire._message import Message
from quire._quire import Record, __version__
from quire._topics import exact

if TYPE_CHECKING:
    from quire import config as config
    from quire._arguments import AUTO
    from quire._bookmarks import Bookmark
    from quire._queue import Queue
    from quire._units import Duration, Size
    from quire.client._aio import AsyncClient, AsyncSubscription
    from quire.client._blocking import Client, Subscription
    from quire.client._define import DropReport, QueueChanges, QueueSettings
    from quire.client._driver import Handler
    from quire.client._options import Reconnect
    from quire.client._publish import Publish
    from quire.client._query import AsyncQuery, Query
    from quire.client._receipts import AsyncBatchReceipt, AsyncReceipt, BatchReceipt, Receipt
    from quire.client._reports import (
        DrainReport,
        Health,
        QueueFigures,
        QueueStats,
        ServerInfo,
        SubscriptionHealth,
        WorkReport,
    )
    from quire.client._spec import Rate
    from quire.client._stores import BookmarkStore, PublishStore
    from quire.client._table import AsyncChanges, AsyncTable, Change, Changes, Table
    from quire.client._tls import TLS
    from quire.config import Config
    from quire.journal._journal import Damage, Journal, JournalReader, Segment
    from quire.server._server import Server

__all__ = [
    "AUTO",
    "EPOCH",
    "MOST_RECENT",
    "NOW",
    "TLS",
    "AsyncBatchReceipt",
    "AsyncChanges",
    "AsyncClient",
    "AsyncQuery",
    "AsyncReceipt",
    "AsyncSubscription",
    "AsyncTable",
    "AuthenticationError",
    "BadBookmarkError",
    "BadFilterError",
    "BadMessageError",
    "BadTopicError",
    "BatchReceipt",
    "Bookmark",
    "BookmarkStore",
    "Change",
    "Changes",
    "Client",
    "Config",
    "ConfigError",
    "Damage",
    "DisconnectedError",
    "DrainReport",
    "DropReport",
    "Duration",
    "Filter",
    "Handler",
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
    "NotLastValueError",
    "ProtocolError",
    "Publish",
    "PublishStore",
    "Query",
    "Queue",
    "QueueChanges",
    "QueueExistsError",
    "QueueFigures",
    "QueueSettings",
    "QueueStats",
    "QuireError",
    "Rate",
    "Receipt",
    "Reconnect",
    "Record",
    "Segment",
    "Server",
    "ServerInfo",
    "Size",
    "StorageFailedError",
    "StorageFullError",
    "StoreCorruptError",
    "StoreLockedError",
    "Subscription",
    "SubscriptionHealth",
    "SubscriptionInUseError",
    "TLSError",
    "Table",
    "UnknownQueueError",
    "UnknownSubscriptionError",
    "WorkReport",
    "__version__",
    "exact",
    "quote",
]


# A forked child has none of the threads of its parent, so it must not use clients that the parent
# created, and closes their descriptors.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_quire.before_fork,
        after_in_parent=_quire.after_fork_in_parent,
        after_in_child=_quire.after_fork_in_child,
    )

#: The modules of names that are imported at their first use: a program loads only the parts that it
#: uses.
_LAZY = {
    "AUTO": "quire._arguments",
    "Bookmark": "quire._bookmarks",
    "Duration": "quire._units",
    "Handler": "quire.client._driver",
    "Rate": "quire.client._spec",
    "Size": "quire._units",
    "AsyncBatchReceipt": "quire.client._receipts",
    "AsyncReceipt": "quire.client._receipts",
    "BatchReceipt": "quire.client._receipts",
    "Publish": "quire.client._publish",
    "Receipt": "quire.client._receipts",
    "AsyncChanges": "quire.client._table",
    "AsyncClient": "quire.client._aio",
    "AsyncQuery": "quire.client._query",
    "AsyncSubscription": "quire.client._aio",
    "AsyncTable": "quire.client._table",
    "BookmarkStore": "quire.client._stores",
    "Change": "quire.client._table",
    "Changes": "quire.client._table",
    "Client": "quire.client._blocking",
    "Config": "quire.config",
    "Damage": "quire.journal._journal",
    "DrainReport": "quire.client._reports",
    "DropReport": "quire.client._define",
    "Health": "quire.client._reports",
    "Journal": "quire.journal._journal",
    "JournalReader": "quire.journal._journal",
    "PublishStore": "quire.client._stores",
    "Query": "quire.client._query",
    "Queue": "quire._queue",
    "QueueChanges": "quire.client._define",
    "QueueFigures": "quire.client._reports",
    "QueueStats": "quire.client._reports",
    "QueueSettings": "quire.client._define",
    "Reconnect": "quire.client._options",
    "Segment": "quire.journal._journal",
    "Server": "quire.server._server",
    "ServerInfo": "quire.client._reports",
    "Subscription": "quire.client._blocking",
    "SubscriptionHealth": "quire.client._reports",
    "TLS": "quire.client._tls",
    "Table": "quire.client._table",
    "WorkReport": "quire.client._reports",
}


#: Modules that are imported at their first use.
_LAZY_MODULES = {"config"}

# Type checkers know the names from the imports above. With this function they would take any other
# name, too.
if not TYPE_CHECKING:

    def __getattr__(name):
        from importlib import import_module

        if name in _LAZY_MODULES:
            return import_module(f"quire.{name}")
        if name not in _LAZY:
            raise AttributeError(f"module 'quire' has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(_LAZY[name]), name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY, *_LAZY_MODULES} - {"TYPE_CHECKING", "os"})
