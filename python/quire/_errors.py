"""Every error that quire raises.

    QuireError
    ├── ConfigError             a setting or an option that cannot be; `key`, `file` and `line` say which
    │   └── SubscriptionInUseError  the client already has a subscription of this name
    ├── AuthenticationError     user or password were not accepted
    ├── NotEntitledError        the user may not do this
    ├── NameInUseError          another connection holds, or took over, the client name
    ├── DisconnectedError       no server, or not any more (also a ConnectionError)
    │   └── ProtocolError       the peer does not speak the protocol
    ├── BadFilterError          the filter does not parse; `column` says where
    ├── BadTopicError           the topic is empty, too long or not a valid pattern
    ├── BadBookmarkError        not a bookmark, or one that the log does not have
    ├── NotJournaledError       a replay of, or a numbered publish to, a topic that is not recorded
    ├── UnknownSubscriptionError
    ├── UnknownQueueError       no queue has this name
    ├── BadMessageError         the message is not JSON, and its topic is validated
    ├── MessageTooLargeError
    ├── LimitExceededError      a named limit of the server, or of the process, was reached
    ├── StorageFullError        the disk is full; the journal takes writes again when there is room
    ├── StorageFailedError      a write or a sync failed; the journal takes no more writes
    ├── JournalCorruptError     the journal is damaged, or files of it are missing
    ├── JournalLockedError      another process has the journal open
    ├── StoreLockedError        another client has the store file open
    ├── StoreCorruptError       a store file is damaged
    └── InternalError           a bug on the side that says so

Timeouts raise the built-in `TimeoutError`. `code` is the stable name of the case (docs/protocol.md section
5).
"""

from __future__ import annotations

import os
from typing import Any


class QuireError(Exception):
    """Base of all errors of quire."""

    #: The stable name of the case.
    code: str = "internal"
    #: How to mend it.
    hint: str = ""

    def __init__(self, reason: str, *, code: str | None = None) -> None:
        #: What was wrong with what.
        self.reason = reason
        if code is not None:
            self.code = code
        super().__init__(f"{reason} ({self.hint})" if self.hint else reason)

    def __reduce__(self) -> tuple[object, ...]:
        return (from_code, (self.code, self.reason, getattr(self, "column", 0)))


class ConfigError(QuireError):
    """A setting or an option that cannot be."""

    code = "bad_option"

    def __init__(
        self,
        reason: str,
        *,
        code: str | None = None,
        key: str | None = None,
        file: str | os.PathLike[str] | None = None,
        line: int | None = None,
    ) -> None:
        #: The setting or option, as `transaction_log.journal_size`; `None` when it is not one alone. Of several
        #: mistakes in a file the first.
        self.key = key
        #: The configuration file, when it is one.
        self.file = None if file is None else os.fspath(file)
        #: Its line, from 1.
        self.line = line
        self._reason = reason
        where = (self.file, None if line is None else f"line {line}", key)
        super().__init__(": ".join([part for part in where if part is not None] + [reason]), code=code)

    def __reduce__(self) -> tuple[object, ...]:
        fields = {"code": self.code, "key": self.key, "file": self.file, "line": self.line}
        return (_config_error, (type(self), self._reason, fields))


class AuthenticationError(QuireError):
    """User or password were not accepted. The client does not try again."""

    code = "authentication_failed"
    hint = "check user= and password="


class NotEntitledError(QuireError):
    """The user may not do this."""

    code = "not_entitled"


class NameInUseError(QuireError):
    """Another connection holds, or took over, the client name. The client does not come back by itself."""

    code = "name_in_use"
    hint = "give every running instance a name= of its own"


class DisconnectedError(QuireError, ConnectionError):
    """There is no server, or not any more."""

    code = "shutting_down"


class ProtocolError(DisconnectedError):
    """The peer does not speak the protocol, or not this version of it."""

    code = "invalid_frame"


class BadFilterError(QuireError):
    """The content filter does not parse."""

    code = "bad_filter"

    def __init__(self, reason: str, *, code: str | None = None, column: int = 0) -> None:
        #: Where, from 1; 0 = not known.
        self.column = column
        super().__init__(f"{reason}, at column {column}" if column else reason, code=code)
        self.reason = reason


class BadTopicError(QuireError):
    """The topic is empty, too long, not text, or a pattern that does not compile."""

    code = "bad_topic"


class BadBookmarkError(QuireError):
    """The text is not a bookmark, a list of them or a time, or the log does not have it."""

    code = "bad_bookmark"

    def __init__(self, reason: str, *, code: str | None = None, key: str | None = None) -> None:
        #: The argument or option, such as `bookmark` or `--from`; `None` when the log does not have the bookmark.
        self.key = key
        self._reason = reason
        super().__init__(reason if key is None else f"{key}: {reason}", code=code)

    def __reduce__(self) -> tuple[object, ...]:
        return (from_code, (self.code, self._reason, 0, self.key))


class NotJournaledError(QuireError):
    """A bookmark subscription, or a publish with a sequence, to a topic that the transaction log does not record."""

    code = "not_journaled"
    hint = (
        "check the spelling; to record the topic, add it to transaction_log.topic of the server. "
        "Without it, subscribe without bookmark=, and publish with sequence=None"
    )


class BadMessageError(QuireError):
    """A message is not of the type of its topic. The topic is validated, so the message was neither recorded nor delivered."""

    code = "bad_message"
    hint = (
        "publish JSON on this topic, or remove `validate` from its entry in the configuration of the server"
    )


class SubscriptionInUseError(ConfigError):
    """The client already has a subscription of this name."""

    code = "subscription_in_use"


class UnknownSubscriptionError(QuireError):
    """The client has no such subscription."""

    code = "unknown_subscription"


class UnknownQueueError(QuireError):
    """No queue has this name."""

    code = "unknown_queue"
    hint = "add a [[queue]] with this name to the server's configuration"


class MessageTooLargeError(QuireError):
    """A message is above the limit of the server."""

    code = "message_too_large"
    hint = "raise max_message_size of the server's transport, or publish smaller messages"


class LimitExceededError(QuireError):
    """A named limit of the server, of a client name, or of the process was reached; the reason says which."""

    code = "limit_exceeded"


class StorageFullError(QuireError):
    """A disk is full: that of the server, whose journal takes writes again when there is room, or that of a publish store."""

    code = "storage_full"
    hint = "make room on that disk; a server has to be restarted, and unpersisted publishes are sent again"


class StorageFailedError(QuireError):
    """A write failed: of the server, whose journal takes no more writes, or to a store file."""

    code = "storage_failed"


class JournalCorruptError(QuireError):
    """The journal is damaged at the place that the reason names, or files of it are missing."""

    code = "journal_corrupt"


class JournalLockedError(QuireError):
    """Another process, or another engine of this one, has the journal open."""

    code = "journal_locked"
    hint = "stop it, or use another directory"


class StoreLockedError(QuireError):
    """Another process, or another client of this one, has the store file open."""

    code = "store_locked"
    hint = "give every client a store of its own"


class StoreCorruptError(QuireError):
    """The store file is damaged at the place that the reason names; nothing of it was changed."""

    code = "store_corrupt"


class InternalError(QuireError):
    """A bug on the side that says so."""

    code = "internal"


#: The class for every code that can come over the wire.
CLASSES: dict[str, type[QuireError]] = {
    "invalid_frame": ProtocolError,
    "unsupported_version": ProtocolError,
    "logon_required": ProtocolError,
    "duplicate_logon": ProtocolError,
    "authentication_failed": AuthenticationError,
    "name_in_use": NameInUseError,
    "not_entitled": NotEntitledError,
    "bad_topic": BadTopicError,
    "bad_filter": BadFilterError,
    "bad_bookmark": BadBookmarkError,
    "bookmark_not_found": BadBookmarkError,
    "not_journaled": NotJournaledError,
    "bad_option": ConfigError,
    "unknown_subscription": UnknownSubscriptionError,
    "subscription_in_use": SubscriptionInUseError,
    "unknown_queue": UnknownQueueError,
    "bad_message": BadMessageError,
    "message_too_large": MessageTooLargeError,
    "limit_exceeded": LimitExceededError,
    "storage_full": StorageFullError,
    "storage_failed": StorageFailedError,
    "journal_corrupt": JournalCorruptError,
    "journal_locked": JournalLockedError,
    "store_locked": StoreLockedError,
    "store_corrupt": StoreCorruptError,
    "slow_consumer": DisconnectedError,
    "heartbeat_timeout": DisconnectedError,
    "shutting_down": DisconnectedError,
    "internal": InternalError,
}


def from_code(code: str, reason: str, column: int = 0, key: str | None = None) -> QuireError:
    """The error for a stable code."""
    cls = CLASSES.get(code, InternalError)
    if issubclass(cls, (ConfigError, BadBookmarkError)):
        return cls(reason, code=code, key=key)
    if issubclass(cls, BadFilterError):
        return cls(reason, code=code, column=column)
    return cls(reason, code=code)


def _config_error(cls: type[ConfigError], reason: str, fields: dict[str, Any]) -> ConfigError:
    """For pickle, which cannot give keywords."""
    return cls(reason, **fields)
