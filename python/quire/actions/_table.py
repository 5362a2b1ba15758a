"""The tables of triggers, steps and variables. The check of the configuration, the engine and docs/actions.md
use them.

A new trigger or step is an entry here and its code in `_triggers.py` or `_steps.py`. The tests of the same
names (`test_action_triggers.py`, `test_action_steps.py`) fail until they have run it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

#: How the value of an option is written.
#:
#: - `text`: text. `data`: text that becomes the data of a message. `command`: a list of texts
#: - `topic`: a name. `topics`: a name, or a pattern. `names`: the same for other names
#: - `filter`: a content filter
#: - `duration`, `size`, `count`, `flag`: as in the rest of the configuration
#: - `room`: a size, or a share such as "5%"
#: - `at`: a time of a schedule
#: - `words`: a list of the words of `choices`. `word`: one of them
#: - `variables`: a list of names of variables. `variable`: one
#: - `values`: a table of texts
Kind = Literal[
    "text",
    "data",
    "command",
    "topic",
    "topics",
    "names",
    "filter",
    "duration",
    "size",
    "count",
    "flag",
    "room",
    "at",
    "word",
    "words",
    "variable",
    "variables",
    "values",
]


@dataclass(frozen=True)
class Option:
    """An option of a trigger or step."""

    name: str
    kind: Kind
    text: str
    required: bool = False
    #: The words that it may have.
    choices: tuple[str, ...] = ()
    default: object = None


@dataclass(frozen=True)
class Entry:
    """A trigger or a step."""

    name: str
    text: str
    options: tuple[Option, ...] = ()
    #: The option that a value without a table sets: `schedule = "23:00"`.
    short: str | None = None
    #: The variables that it sets.
    variables: tuple[str, ...] = ()
    #: Exactly one of these options is required.
    one_of: tuple[str, ...] = ()
    is_condition: bool = False

    def option(self, name: str) -> Option | None:
        """The option with a name."""
        return next((option for option in self.options if option.name == name), None)


#: The variables that every run has.
ALWAYS: Final = {
    "INSTANCE_NAME": "the name of the instance",
    "INSTANCE_GROUP": "its group",
    "ACTION_NAME": "the name of the action",
    "DATETIME": "the time at which the run was requested, as `2026-11-27T11:22:33.123456Z`",
    "UNIX_TIMESTAMP": "the same in seconds since 1970, a whole number",
    "BYTE_XX": "the byte with the hexadecimal number XX: `{{BYTE_01}}`",
}

#: Those of triggers.
VARIABLES: Final = {
    "SCHEDULE": "the schedule as it is configured",
    "SIGNAL": "the name of the signal",
    "TOPIC": "the topic: that of the message, or the topic or pattern of the subscription",
    "DATA": "the data of the message, unchanged",
    "DATA_LENGTH": "their number of bytes",
    "MESSAGE_TYPE": "the type of the message",
    "BOOKMARK": "its bookmark; empty when the log does not record the topic",
    "TIMESTAMP": "when the server received it, as DATETIME",
    "CLIENT_NAME": "the name of the client; of a message: of its publisher, if it has been connected since the start",
    "CORRELATION_ID": "its correlation id",
    "SOW_KEY": "the key of the record",
    "REASON": "why: of an end of a connection (see [Event topics](operations.md#event-topics)), of an expiry, of a lost link",
    "SUBSCRIBER": "the name of the client to which the message is delivered",
    "SOURCE_TOPIC": "of a message of a queue: the topic to which it was published",
    "DELIVERIES": "of a message of a queue: how often it was delivered",
    "CANCELS": "of a message of a queue: how often it was cancelled",
    "CONNECTION": "the number of the connection",
    "REMOTE_ADDRESS": "the address of the client, or of the other instance",
    "USER": "the user of the client",
    "TRANSPORT": "the transport of the client",
    "FILTER": "the filter of the subscription",
    "BYTES": "the bytes that wait for the client",
    "SUB_ID": "the number of the subscription on its connection",
    "OPTIONS": "its options, separated by commas",
    "PEER_NAME": "the name of the other instance; of a destination before its first connection: its name here",
    "PEER_GROUP": "its group; empty before the first connection",
    "DESTINATION": "the name of the destination",
    "THREAD": "the part that is stuck",
    "SECONDS": "for how long, in whole seconds",
}

_MESSAGE: Final = (
    *("TOPIC", "DATA", "DATA_LENGTH", "MESSAGE_TYPE", "BOOKMARK", "TIMESTAMP", "CLIENT_NAME"),
    "CORRELATION_ID",
)
_CLIENT: Final = ("CLIENT_NAME", "CONNECTION", "REMOTE_ADDRESS", "USER", "TRANSPORT")
_LINK: Final = ("PEER_NAME", "PEER_GROUP", "REMOTE_ADDRESS", "REASON", "DESTINATION")
_RECORD: Final = (*_MESSAGE, "SOW_KEY", "REASON")

_TOPIC: Final = Option("topic", "topic", "the topic, a name", required=True)
_TOPICS: Final = Option("topic", "topics", "the topic, or a pattern", required=True)
_FILTER: Final = Option("filter", "filter", "only messages that match")
_CLIENTS: Final = Option("client", "names", "the client name, or a pattern. Default: every client")
_DESTINATIONS: Final = Option("destination", "names", "the destination, or a pattern. Default: each")
_AFTER: Final = Option("after", "duration", "how long a record must match", required=True)

#: Messages of a topic of the log, and what happens to records and messages of queues.
TRIGGERS: Final[tuple[Entry, ...]] = (
    Entry(
        "schedule",
        'at a time: `"4h"` (again and again, from the start of the server), `"23:00"` (each day), or '
        '`"Saturday at 00:30"` (each week). The time is local; with `Z` at the end, as in `"23:00Z"`, it is UTC',
        (Option("at", "at", "when", required=True),),
        short="at",
        variables=("SCHEDULE",),
    ),
    Entry("startup", "clients can connect"),
    Entry("shutdown", "the server begins to stop. It waits for these runs, for 10 s at most"),
    Entry(
        "signal",
        "the process receives a signal",
        (Option("name", "word", "the signal", required=True, choices=("SIGUSR1", "SIGUSR2", "SIGHUP")),),
        short="name",
        variables=("SIGNAL",),
    ),
    Entry(
        "admin",
        "a POST to `/quire/administrator/actions/PATH`. Each member of the body becomes a variable, with its name in "
        "capitals",
        (
            Option("path", "text", "the path", required=True),
            Option("required", "variables", "members that the body must have"),
            Option("optional", "variables", "members that it may have"),
        ),
        short="path",
    ),
    Entry(
        "publish",
        "a message is published. For a queue, name its underlying topic",
        (
            _TOPICS,
            _FILTER,
            Option(
                "source",
                "word",
                "only messages that clients of this server published, or only those of other instances",
                choices=("all", "local", "replicated"),
                default="all",
            ),
        ),
        short="topic",
        variables=_MESSAGE,
    ),
    Entry(
        "deliver",
        "a message is delivered to a subscriber of a client: one run for each message and subscription. Records of "
        "queries, and messages about records that leave, do not count",
        (_TOPICS, _FILTER),
        short="topic",
        variables=(*_MESSAGE, "SUBSCRIBER"),
    ),
    Entry(
        "expire_message",
        "a message of a queue expires, or the lifetime of a record of a last-value topic is over",
        (
            Option("topic", "topic", "the queue or the last-value topic, a name", required=True),
            Option(
                "reason",
                "words",
                "only these reasons. Records have `time_limit`. Default: each",
                choices=("time_limit", "forced_expire", "max_cancels", "max_deliveries"),
            ),
        ),
        short="topic",
        variables=(*_RECORD, "SOURCE_TOPIC", "DELIVERIES", "CANCELS"),
    ),
    Entry(
        "delete_message",
        "a record of a last-value topic is deleted",
        (Option("topic", "topic", "the last-value topic, a name", required=True),),
        short="topic",
        variables=_RECORD,
    ),
    Entry(
        "oof_message",
        "a record of a last-value topic or a view leaves the records that match the filter",
        (_TOPIC, _FILTER),
        short="topic",
        variables=_RECORD,
    ),
    Entry(
        "condition_timeout",
        "a record of a last-value topic or a view has matched for some time",
        (_TOPIC, _FILTER, _AFTER),
        variables=_RECORD,
    ),
    Entry(
        "alert",
        "as `condition_timeout` (REASON is `timeout`), or a record no longer matches before that (`left`). Of one time "
        "that a record matches, there is one run",
        (_TOPIC, _FILTER, _AFTER),
        variables=_RECORD,
    ),
    Entry("client_connect", "a client connects. It has not logged on", (_CLIENTS,), variables=_CLIENT),
    Entry("client_logon", "a client logs on", (_CLIENTS,), variables=_CLIENT),
    Entry(
        "client_disconnect",
        "the connection of a client ends",
        (_CLIENTS,),
        variables=(*_CLIENT, "REASON"),
    ),
    Entry(
        "offline_start",
        "a client does not read fast enough: its messages move to disk",
        (_CLIENTS,),
        variables=(*_CLIENT, "BYTES"),
    ),
    Entry(
        "offline_stop",
        "a client has read its messages on disk",
        (_CLIENTS,),
        variables=(*_CLIENT, "BYTES"),
    ),
    *(
        Entry(
            name,
            text,
            (_CLIENTS, Option("topic", "names", "the topic or pattern of the subscription. Default: each")),
            variables=(*_CLIENT, "TOPIC", "FILTER", "SUB_ID", *options),
        )
        for name, text, options in (
            ("subscribe", "a client subscribes", ("OPTIONS",)),
            ("unsubscribe", "a subscription ends, also with its connection", ()),
        )
    ),
    *(
        Entry(f"replication_{name}", text, (_DESTINATIONS,), variables=_LINK)
        for name, text in (
            ("connect", "a destination is connected"),
            ("disconnect", "a destination is not connected any more"),
            ("downgrade", "publishers no longer wait for a destination"),
            ("upgrade", "publishers wait for a destination again"),
            ("resync_complete", "a destination has everything that was in the log when it was connected"),
        )
    ),
    Entry("incoming_connect", "another instance begins to send its records", variables=_LINK[:-1]),
    Entry("incoming_disconnect", "an instance that sent its records is gone", variables=_LINK[:-1]),
    Entry(
        "stuck",
        "for 10 s, the event loop, the thread of the log or the HTTP server makes no progress",
        variables=("THREAD", "SECONDS"),
    ),
    Entry(
        "event",
        "a `raise_event` with this name",
        (Option("name", "text", "the name", required=True),),
        short="name",
    ),
)

_AGE: Final = Option("age", "duration", "those whose last message is older")
_SIZE_MAX: Final = Option("size_max", "size", "the oldest, until the others have this size")
_FILE_AGE: Final = Option("age", "duration", "those that were not changed for so long", required=True)
_PATTERN: Final = Option("pattern", "text", "the files, such as `log/*.log`", required=True)
_INTO: Final = Option("into", "variable", "the variable that gets the result")
_TRANSPORT: Final = Option("name", "names", "the transport, or a pattern", required=True)
_LINKS: Final = (
    Option("destination", "names", "the destination, or a pattern. Default: each"),
    Option("age", "duration", "of the oldest message that is not acknowledged", required=True),
)

_WITH_FIELDS: Final = ("json", "nvfix", "fix", "msgpack", "bson", "xml")

STEPS: Final[tuple[Entry, ...]] = (
    Entry(
        "log",
        "writes a line to the log, with the id 60-0001",
        (
            Option("text", "text", "the line", required=True),
            Option(
                "level",
                "word",
                "its level",
                choices=("trace", "debug", "info", "warning", "error", "critical"),
                default="info",
            ),
        ),
        short="text",
    ),
    Entry(
        "publish",
        "publishes a message, and waits until it is persisted",
        (
            Option("topic", "topic", "the topic, a name", required=True),
            Option("data", "data", "the data", required=True),
            Option("delta", "flag", "publishes a delta", default=False),
            Option(
                "update_only",
                "flag",
                "for a last-value topic: publishes nothing when there is no record with the key of the message",
                default=False,
            ),
            Option("headers", "values", "the headers"),
            Option("correlation_id", "text", "the correlation id"),
        ),
    ),
    Entry(
        "query_records",
        "queries a last-value topic. The variable gets the data of the records, one a line",
        (
            Option("topic", "topics", "the topic, or a pattern", required=True),
            _FILTER,
            Option("order_by", "text", "the order"),
            Option("top_n", "count", "the most records"),
            Option("into", "variable", "the variable that gets the result", required=True),
        ),
    ),
    Entry(
        "delete_records",
        "deletes records of last-value topics",
        (Option("topic", "topics", "the topic, or a pattern", required=True), _FILTER, _INTO),
    ),
    Entry(
        "compact_records",
        "moves the records of last-value topics together in memory, and frees the rest. The variable gets the number of "
        "bytes",
        (_TOPICS, _INTO),
        short="topic",
    ),
    *(
        Entry(
            f"{verb}_journal",
            f"{verb}{'es' if verb.endswith('s') else 's'} full journal files, as `quire journal {verb}` does",
            (_AGE, _SIZE_MAX),
            one_of=("age", "size_max"),
        )
        for verb in ("archive", "compress", "remove")
    ),
    Entry("compress_files", "compresses files (`.gz`), and removes the originals", (_FILE_AGE, _PATTERN)),
    Entry("remove_files", "removes files", (_FILE_AGE, _PATTERN)),
    Entry("rotate_logs", "begins the next file of each log in files"),
    Entry(
        "truncate_statistics",
        "removes samples of the statistics",
        (Option("age", "duration", "the older ones", required=True),),
    ),
    Entry(
        "disconnect",
        "ends the connections of clients. They connect again",
        (Option("client", "names", "the client name, or a pattern", required=True),),
        short="client",
    ),
    Entry(
        "enable_transport", "accepts connections at the address of a transport", (_TRANSPORT,), short="name"
    ),
    Entry(
        "disable_transport",
        "accepts no more connections at the address of a transport, and ends those of its clients",
        (_TRANSPORT,),
        short="name",
    ),
    Entry(
        "downgrade_replication",
        "lets publishers no longer wait for the destinations whose oldest message that is not acknowledged is older "
        "than `age`",
        (
            *_LINKS,
            Option("grace_period", "duration", "does nothing for so long after the start", default="0s"),
        ),
    ),
    Entry(
        "upgrade_replication",
        "lets publishers wait again for the destinations that were downgraded, are connected, and whose oldest message "
        "that is not acknowledged is younger than `age`",
        _LINKS,
    ),
    *(
        Entry(
            name,
            "checks users again: forgets the results of earlier checks, and reads the files of users",
            (Option("user", "names", "the user, or a pattern. Default: every user"),),
            short="user",
        )
        for name in ("reset_entitlements", "reset_authentication")
    ),
    Entry(
        "extract",
        "sets variables to values of fields",
        (
            Option("from", "variable", "the variable with the message", default="DATA"),
            Option("values", "values", 'a field for each variable: `{ ORDER = "/id" }`', required=True),
        ),
    ),
    Entry(
        "translate",
        "writes a message in another type. The fields keep their paths",
        (
            Option("from", "variable", "the variable with the message", default="DATA"),
            Option(
                "message_type",
                "word",
                "its type. Default: MESSAGE_TYPE",
                choices=_WITH_FIELDS,
            ),
            Option("to", "word", "the other type", required=True, choices=_WITH_FIELDS),
            Option("into", "variable", "the variable that gets the result", default="DATA"),
        ),
    ),
    Entry(
        "increment",
        "adds to a counter, which begins at 0 with the start of the server. All actions share the counters",
        (
            Option("counter", "text", "its name", required=True),
            Option("by", "count", "the number to add", default=1),
            _INTO,
        ),
        short="counter",
    ),
    Entry(
        "raise_event",
        "starts the actions that have the trigger `event` with this name",
        (
            Option("name", "text", "the name", required=True),
            Option("variables", "values", "the variables of their runs"),
        ),
        short="name",
    ),
    Entry("dump_stacks", "writes the stacks of all threads to the log (01-0022)"),
    Entry("shutdown", "stops the server"),
    Entry(
        "execute",
        "runs a program, without a shell. An exit code other than 0 is a failure. It requires `allow_execute = true` "
        "before all tables",
        (
            Option("command", "command", "the program and its arguments", required=True),
            Option("timeout", "duration", "how long it may run", default="10s"),
            Option("into", "variable", "the variable that gets its output"),
        ),
        short="command",
    ),
    Entry(
        "if",
        "continues when the expression is true. It is a filter whose fields are the variables: `/DELIVERIES > 3`",
        (Option("expression", "filter", "the expression", required=True),),
        short="expression",
        is_condition=True,
    ),
    Entry(
        "if_free_space",
        "continues when a file system has less room",
        (
            Option(
                "path", "text", "a directory, below `data_directory` unless it begins with `/`", required=True
            ),
            Option("below", "room", 'a size, or a share such as "5%"', required=True),
        ),
        is_condition=True,
    ),
)

TRIGGER_OF: Final = {entry.name: entry for entry in TRIGGERS}
STEP_OF: Final = {entry.name: entry for entry in STEPS}

#: Triggers and steps of the promise that need parts which this version does not have.
LATER: Final = {
    "enable_proxied_transfer": "queues over several instances are not in this version",
    "disable_proxied_transfer": "queues over several instances are not in this version",
}
