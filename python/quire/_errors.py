"""Every error that quire raises.

    QuireError
    ├── ConfigError             A setting, an option or an argument is not allowed.
    │   └── SubscriptionInUseError  The client already has a subscription of this name.
    ├── AuthenticationError     User or password were not accepted.
    ├── NotEntitledError        The user may not do this.
    ├── NameInUseError          Another connection holds the client name, or took it over.
    ├── DisconnectedError       There is no connection to a server. Also a ConnectionError.
    │   ├── ProtocolError       The peer does not use the protocol.
    │   └── TLSError            The connection could not be secured.
    ├── BadFilterError          The filter does not parse. `column` is the position.
    ├── BadTopicError           The topic is empty, too long, or not a valid pattern.
    ├── BadBookmarkError        The text is not a bookmark, or the log does not contain it.
    ├── NotJournaledError       A replay of, or a numbered publish to, a topic that is not recorded.
    ├── UnknownSubscriptionError  The client has no such subscription.
    ├── UnknownQueueError       No queue has this name, or takes messages from this topic.
    ├── QueueExistsError        A queue with this name exists, with other settings or in the configuration.
    ├── NotLastValueError       The topic keeps no last values, and the call needs them.
    ├── BadMessageError         The message is not of the type of its topic, or it has no valid key.
    ├── MessageTooLargeError    The message is above the limit of the server.
    ├── LimitExceededError      A named limit of the server or of the process was reached.
    ├── StorageFullError        The disk is full. The journal takes writes again when there is room.
    ├── StorageFailedError      A write or a sync failed. The journal takes no more writes.
    ├── JournalCorruptError     The journal is damaged, or files of it are missing.
    ├── JournalLockedError      Another process has the journal open.
    ├── StoreLockedError        Another client has the store file open.
    ├── StoreCorruptError       A store file is damaged.
    └── InternalError           A bug in the component that reports it.

Timeouts raise the built-in `TimeoutError`. `code` is the stable name of the case (docs/reference/errors.md).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from typing import Any, NamedTuple


class QuireError(Exception):
    """Base of all errors of quire."""

    #: The stable name of the case.
    code: str = "internal"
    #: The action that solves the problem; empty for some errors.
    hint: str = ""
    #: The sequence of the message that the error is about; `None` when it is not about one message.
    sequence: int | None = None
    #: The topic of that message, where it is known.
    topic: str | None = None

    def __init__(self, reason: str, *, code: str | None = None) -> None:
        #: The mistake, and the input that has it.
        self.reason = reason
        if code is not None:
            self.code = code
        super().__init__(f"{reason} ({self.hint})" if self.hint else reason)

    def __reduce__(self) -> tuple[object, ...]:
        return (from_code, (self.code, self.reason, getattr(self, "column", 0)), self._state())

    def _state(self) -> dict[str, object]:
        """The attributes that pickle keeps."""
        return {"sequence": self.sequence, "topic": self.topic}


class ConfigError(QuireError):
    """A setting, an option or an argument that is not allowed."""

    code = "bad_option"

    def __init__(
        self,
        reason: str,
        *,
        code: str | None = None,
        key: str | None = None,
        file: str | os.PathLike[str] | None = None,
        line: int | None = None,
        others: Sequence[ConfigError] = (),
    ) -> None:
        #: The setting or option, as `queue[0].lease_period`; `None` when it is not one alone. The
        #: first of several mistakes.
        self.key = key
        #: The configuration file, when it is one.
        self.file: str | None = None if file is None else os.fspath(file)
        #: Its line, from 1.
        self.line = line
        self._reason = reason
        self._others = tuple(others)
        place = self.file if self.file is None or line is None else f"{self.file}:{line}"
        text = ": ".join([*(part for part in (place, key) if part is not None), reason])
        super().__init__("\n".join([text, *map(str, others)]), code=code)

    @property
    def mistakes(self) -> tuple[ConfigError, ...]:
        """All mistakes of a configuration, one error each. For any other mistake: only this error."""
        if not self._others:
            return (self,)
        return (ConfigError(self._reason, key=self.key, file=self.file, line=self.line), *self._others)

    def __reduce__(self) -> tuple[object, ...]:
        fields = {
            "code": self.code,
            "key": self.key,
            "file": self.file,
            "line": self.line,
            "others": self._others,
        }
        return (_config_error, (type(self), self._reason, fields), self._state())


class AuthenticationError(QuireError):
    """The server does not accept the user or the password. The client does not try again."""

    code = "authentication_failed"
    hint = "check `user` and `password`"


class NotEntitledError(QuireError):
    """The user may not do this.

    - `action`: the right that is missing, such as `read`; `None` when no right would permit it
    - `topic`: the topic, queue or resource, as the client wrote it
    """

    code = "not_entitled"

    def __init__(self, reason: str, *, code: str | None = None) -> None:
        super().__init__(reason, code=code)
        # docs/protocol.md section 5 has the form of this reason.
        found = re.fullmatch(r'the user may not ([a-z]+) ("(?:[^"\\]|\\.)*")', reason)
        self.action: str | None = None if found is None else found[1]
        self.topic: str | None = None if found is None else json.loads(found[2])


class NameInUseError(QuireError):
    """Another connection holds, or took over, the client name. The client does not connect again.

    Or the server dropped publishes as duplicates, because it has later sequences of the name: `flush` or a receipt raises it.
    """

    code = "name_in_use"
    hint = "give every running instance a separate `name`"


class DisconnectedError(QuireError, ConnectionError):
    """There is no connection to a server, or the client is closed. See `code`."""

    code = "disconnected"


class ProtocolError(DisconnectedError):
    """The peer does not use the protocol, or uses another version of it."""

    code = "invalid_frame"


class TLSError(DisconnectedError):
    """A connection could not be secured: only one side uses TLS, or a certificate is not accepted."""

    code = "tls_failed"


class BadFilterError(QuireError):
    """The content filter does not parse."""

    code = "bad_filter"

    def __init__(self, reason: str, *, code: str | None = None, column: int = 0) -> None:
        #: The position of the mistake, from 1; 0 = not known.
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
        #: The argument or option, such as `bookmark` or `--from`; `None` when the log does not have
        #: the bookmark.
        self.key = key
        self._reason = reason
        super().__init__(reason if key is None else f"{key}: {reason}", code=code)

    def __reduce__(self) -> tuple[object, ...]:
        return (from_code, (self.code, self._reason, 0, self.key), self._state())


class NotJournaledError(QuireError):
    """A bookmark subscription, or a publish with a sequence, to a topic that the transaction log does not record."""

    code = "not_journaled"
    hint = (
        "check the spelling; to record the topic, add it to `transaction_log.topic` of the server. "
        "Otherwise subscribe without `bookmark`, and publish with `sequence=None`"
    )


class BadMessageError(QuireError):
    """A message is not of the type of its topic, or it has no valid key. It was neither recorded nor delivered."""

    code = "bad_message"
    hint = (
        "publish a message of the type of the topic; on a last-value topic without `key` in the configuration of the "
        "server, also give a valid `sow_key`"
    )


class SubscriptionInUseError(ConfigError):
    """The client already has a subscription of this name."""

    code = "subscription_in_use"


class UnknownSubscriptionError(QuireError):
    """The client has no such subscription."""

    code = "unknown_subscription"


class UnknownQueueError(QuireError):
    """No queue has this name, or takes messages from the topic of a delayed message."""

    code = "unknown_queue"
    hint = (
        "`quire queue ls` lists the queues; to have another one, add it to `queue` in the configuration of the server, "
        "or create it with `quire queue create`"
    )


class QueueExistsError(QuireError):
    """A queue with this name exists, with other settings or in the configuration of the server."""

    code = "queue_exists"


class NotLastValueError(QuireError):
    """The topic keeps no last values, and the call needs them."""

    code = "not_last_value"
    hint = "the topics of `sow_topic` in the configuration of the server keep last values; queues do not"


class MessageTooLargeError(QuireError):
    """A message is above the limit of the server."""

    code = "message_too_large"
    hint = "raise `transport.max_message_size` of the server, or publish smaller messages"


class LimitExceededError(QuireError):
    """A named limit of the server, of a client name, or of the process was reached; the reason says which."""

    code = "limit_exceeded"


class StorageFullError(QuireError):
    """A disk is full: that of the server, whose journal takes writes again when there is room, or that of a publish store."""

    code = "storage_full"
    hint = "make room on that disk; unpersisted publishes are then sent again"


class StorageFailedError(QuireError):
    """A write failed: of the server, whose journal takes no more writes, or to a store file."""

    code = "storage_failed"


class JournalCorruptError(QuireError):
    """The journal is damaged at the place that the reason names, or files of it are missing."""

    code = "journal_corrupt"


class JournalLockedError(QuireError):
    """Another process, or another engine of this one, has the journal open."""

    code = "journal_locked"
    hint = (
        "stop it, or use another directory. To read the journal meanwhile, open it with "
        "`quire.Journal(directory, read_only=True)`, or connect to the URL of the server that has it"
    )


class StoreLockedError(QuireError):
    """Another process, or another client of this one, has the store file open."""

    code = "store_locked"
    hint = "give every client a separate store"


class StoreCorruptError(QuireError):
    """The store file is damaged at the place that the reason names; nothing of it was changed."""

    code = "store_corrupt"


class InternalError(QuireError):
    """A bug in the component that reports it."""

    code = "internal"


class Case(NamedTuple):
    """A stable code: docs/reference/errors.md is made of these."""

    #: Raised for it.
    cls: type[QuireError]
    #: The event that the error reports.
    meaning: str
    #: The action that solves the problem. Options, keys, calls and commands are in backticks, and a
    #: test checks them.
    advice: str


#: Every code, those of the wire first.
CASES: dict[str, Case] = {
    "invalid_frame": Case(
        ProtocolError,
        "The bytes are not a frame of the protocol.",
        "Check that the address is that of a quire server. Between a client and a server of quire it is a "
        "bug: report it.",
    ),
    "unsupported_version": Case(
        ProtocolError,
        "Client and server speak different versions of the protocol.",
        "Install the same minor version of quire on both sides. Upgrade the server before its clients.",
    ),
    "logon_required": Case(
        ProtocolError,
        "A command came before the logon.",
        "Does not happen with the clients of quire. If you write a client, send the logon first.",
    ),
    "duplicate_logon": Case(
        ProtocolError,
        "A connection sent a second logon.",
        "Does not happen with the clients of quire. If you write a client, log on once per connection.",
    ),
    "authentication_failed": Case(
        AuthenticationError,
        "The server does not accept the user or the password. The client does not try again.",
        "Correct `user` and `password` of the client.",
    ),
    "name_in_use": Case(
        NameInUseError,
        "Another connection has, or took over, the client name. The client does not connect again. Or a publish was dropped as a "
        "duplicate, because another program published under the name, or the publish store of the name was lost: `flush` or a "
        "receipt raises it.",
        "Give each running instance of the program a separate `name`. Publish dropped messages again, and keep the file of "
        "`publish_store=` as long as the name.",
    ),
    "not_entitled": Case(
        NotEntitledError,
        "The user may not do this.",
        "Ask the administrator of the server.",
    ),
    "bad_topic": Case(
        BadTopicError,
        "A topic is empty, too long, not text, or a pattern that does not compile.",
        "Correct the topic. For a topic whose name has pattern characters, subscribe to `quire.exact`.",
    ),
    "bad_filter": Case(
        BadFilterError,
        "A content filter does not parse. `column` is the position of the mistake, from 1.",
        "Correct the filter at this column. For values in a filter, use parameters or `quire.quote`.",
    ),
    "bad_bookmark": Case(
        BadBookmarkError,
        "The value is not a bookmark, a list of them, a time or a range. `key` names the argument or option. "
        "Or a query asks for a state before the history of its last-value topic.",
        "Give one of the forms of [replay.md](../replay.md#where-it-begins-and-ends).",
    ),
    "bookmark_not_found": Case(
        BadBookmarkError,
        'No bookmark of the list is in the log, and `bookmark_not_found` is `"fail"`. Or a '
        "subscription with this setting was on another instance, and has no place in the log here. Or the next "
        "records were removed from the log before they were read. Or the bookmark of a query is not in the log.",
        "Set `bookmark_not_found` to begin elsewhere, or begin at `quire.EPOCH`. Keep journal files for "
        "longer with `remove_after`.",
    ),
    "not_journaled": Case(
        NotJournaledError,
        "A bookmark subscription on a topic that the transaction log does not record. Or a publish with a "
        "sequence to a topic that no entry of `transaction_log.topic` names: `flush` raises it.",
        "Check the spelling of the topic. To record it, add it to `transaction_log.topic`. Otherwise "
        "subscribe without `bookmark`, and publish with `sequence=None`.",
    ),
    "bad_option": Case(
        ConfigError,
        "An argument, an option, a key of the configuration, or a combination of them is not allowed. "
        "`key` names it; for a file also `file` and `line`. `mistakes` has all mistakes of a "
        "configuration.",
        "Correct the value that the reason names. `quire config check` checks a file, `quire config example` "
        "prints every key.",
    ),
    "unknown_subscription": Case(
        UnknownSubscriptionError,
        "The connection has no such subscription.",
        "Check `sub_id`: the subscription may have ended.",
    ),
    "subscription_in_use": Case(
        SubscriptionInUseError,
        "The client already has a subscription of this name.",
        "Give each subscription of a client a separate `sub_id`, or call `unsubscribe` first.",
    ),
    "message_too_large": Case(
        MessageTooLargeError,
        "The data of a message is above the limit of the server.",
        "Raise `transport.max_message_size` of the server, or publish smaller messages.",
    ),
    "limit_exceeded": Case(
        LimitExceededError,
        "A named limit was reached: of the server, of the sequences of a client name, or of the process "
        "(open files, threads). The reason says which.",
        "Raise the limit. The limits of a connection are keys of `transport`, the limits of all connections "
        "are keys of `limits`, and the limits of the log are keys of `transaction_log`. `quire client ls` "
        "shows the use of each client.",
    ),
    "storage_full": Case(
        StorageFullError,
        "The disk of the server is full. Reading still works. Or the disk of the publish store of the "
        "client is full.",
        "Make room on that disk. The server then takes publishes again, and clients send unpersisted "
        "publishes again. `quire journal remove` and `remove_size_max` remove old journal files.",
    ),
    "storage_failed": Case(
        StorageFailedError,
        "A write or a sync failed. The server takes no more writes until it is started again. Reading "
        "still works. Or the server has no free file descriptor, and the reason says so: it takes publishes "
        "again when it has one. Or a store file of the client cannot be written.",
        "Check the disk, then restart the server. Clients send unpersisted publishes again.",
    ),
    "journal_corrupt": Case(
        JournalCorruptError,
        "The journal is damaged, or the disk cannot read it, at the place that the reason names. Or files "
        "of it are missing.",
        "See what is damaged with `quire journal verify`. Restore the file from a copy. To give up files "
        "that are missing, use `quire journal remove` with `--missing`.",
    ),
    "slow_consumer": Case(
        DisconnectedError,
        "The server closed the connection, because the client did not take its messages fast enough. Or a "
        "`live` subscription ended, because the program did not.",
        "Take messages faster, or use a subscription with `bookmark` and without `live`: its messages "
        "wait in the log. docs/operations.md has the limits of slow clients.",
    ),
    "heartbeat_timeout": Case(
        DisconnectedError,
        "The other side sent nothing for two heartbeat intervals.",
        "The client connects again by itself. Check the network, or raise `heartbeat`.",
    ),
    "shutting_down": Case(
        DisconnectedError,
        "The server is stopping.",
        "The client connects again by itself, unless it is closed. Check that the server runs, with "
        "`quire info`.",
    ),
    "disconnected": Case(
        DisconnectedError,
        "There is no connection, or the connection was lost before the server answered.",
        "The client connects again by itself. The log of the client says why the connection was lost.",
    ),
    "connection_refused": Case(
        DisconnectedError,
        "Nothing listens at the address of the server.",
        "Check the address, and that the server runs, with `quire info`. With `wait` the client keeps trying.",
    ),
    "no_such_host": Case(
        DisconnectedError,
        "The host in the URL has no address, or its name could not be looked up.",
        "Check the spelling of the host in `url`, and the name service of this machine.",
    ),
    "closed": Case(
        DisconnectedError,
        "The client or the subscription is closed.",
        "Make a new client, or subscribe again.",
    ),
    "not_running": Case(
        DisconnectedError,
        "A server of this process was not started, or has stopped.",
        "Use `quire.Server` as a context manager.",
    ),
    "internal": Case(
        InternalError,
        "A bug in the component that reports it.",
        "Report it, with the text of the error and the log.",
    ),
    "unknown_queue": Case(
        UnknownQueueError,
        "The server has no queue of this name. Or a message was published with a delay, and no queue takes "
        "messages from its topic: `flush` raises it.",
        "Check the spelling: `quire queue ls` lists the queues. To have another queue, add it to `queue` in "
        "the configuration of the server, or create it with `quire queue create`. A message for a topic without "
        "a queue must not have `delay` or `deliver_at`.",
    ),
    "queue_exists": Case(
        QueueExistsError,
        "A queue was to be created at run time, and one with this name exists: with other settings, which the reason "
        "names, or in the configuration of the server. Or a queue of the configuration was to be changed or dropped.",
        "Use the same settings, change the queue with `alter_queue`, or drop the queue first. "
        "Change a queue of the configuration in the configuration.",
    ),
    "bad_message": Case(
        BadMessageError,
        "The entry of the topic in `transaction_log.topic` has `validate`, and the message is not JSON. Or the topic "
        "is a last-value topic, and the message has no key: it cannot be parsed, or its `sow_key` is missing or not "
        "valid. It was neither recorded nor delivered; `flush` raises the error.",
        "Publish messages of the type of the topic, or remove `validate` from its entry in `transaction_log.topic`. "
        "A `sow_key` has 1 to 255 characters: letters, digits, and + / = - _.",
    ),
    "not_last_value": Case(
        NotLastValueError,
        "A query or a delete of records, or a publish with a `sow_key`, names a topic that keeps no last values.",
        "Check the spelling: `quire topic ls` lists the topics. To keep the last values of a topic, add it to "
        "`sow_topic` in the configuration of the server.",
    ),
    "tls_required": Case(
        TLSError,
        "The client connected with quire:// to an address whose transport has `tls`.",
        "Connect with quires://.",
    ),
    "entitlement_reset": Case(
        DisconnectedError,
        "The user of the connection was removed, disabled, or has another password or other groups, or its token has expired.",
        "The client connects again by itself. If the server does not accept the user any more, the "
        "logon is refused.",
    ),
    "authentication_unavailable": Case(
        DisconnectedError,
        "The server cannot check the logon now. Other logons wait for their checks, and this one was not checked "
        'within `logon_timeout`. Or the service of `[authentication]` with `method = "http"` does not answer as expected.',
        "The client tries again by itself. The log of the server has the reason.",
    ),
    "not_ready": Case(
        DisconnectedError,
        "The log of the instance may lack messages that other instances have. It takes no clients until they have sent "
        "them. The reason names the instances from which not everything has come.",
        "The client tries the other addresses, and connects again by itself. Start the instances that are named. "
        "`quire replication admit` lets clients in without the missing messages.",
    ),
    "tls_failed": Case(
        TLSError,
        "A connection with quires:// could not be secured. The reason says which side has to be repaired: the server "
        "does not use TLS, its certificate is not accepted, or it does not accept the client's.",
        "For an unknown authority, set `ssl` of the client. For a certificate of the client, use `quire.TLS`. The page "
        "[security.md](../security.md#tls) has every case.",
    ),
    "journal_locked": Case(
        JournalLockedError,
        "Another process, or another engine of this process, has the journal open.",
        "Stop it, or use another directory. To read the journal meanwhile, open it with "
        "`quire.Journal(directory, read_only=True)`, or connect to the URL of the server that has it.",
    ),
    "store_locked": Case(
        StoreLockedError,
        "Another process, or another client of this process, has the store file open.",
        "Give each client separate files as `publish_store` and `bookmark_store`.",
    ),
    "store_corrupt": Case(
        StoreCorruptError,
        "The store file is damaged at the byte that the reason names. Nothing of it was changed "
        "([stores.md](../stores.md)).",
        "Restore the file from a copy, or remove it: unsent messages of a publish store are then lost. After you "
        'removed a publish store, start once without `connect="background"` before you publish, or use another '
        "`name`. Otherwise the server can drop new publishes as duplicates.",
    ),
}

#: The class for every code.
CLASSES: dict[str, type[QuireError]] = {code: case.cls for code, case in CASES.items()}


# Tracebacks show the name to catch. An error is pickled by its code, so the place of its class is
# free.
for _cls in (QuireError, *CLASSES.values()):
    _cls.__module__ = "quire"


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
