"""The table of every metric: the tree, `/metrics`, their help texts and the Grafana dashboard come from it.

docs/admin.md has the same table, and a test compares both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

#: F: it does not change. S: as it is now. C: a sum since the start, which has a rate.
Kind = Literal["F", "S", "C"]
#: The words for the kinds in answers.
KINDS: Final = {"F": "fixed", "S": "snapshot", "C": "cumulative", "R": "rate"}
#: The end of the name of a rate.
RATE: Final = "_per_s"


@dataclass(frozen=True)
class Series:
    """A series of `/metrics` that has the same value as a metric of the tree."""

    #: The name, without `_total`.
    name: str
    #: The label with the `id` of the object, if the metric is one of a collection.
    label: str | None = None
    #: Further labels.
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Metric:
    """A leaf of the tree."""

    name: str
    kind: Kind
    #: `s`, `bytes`, `ratio`, the things that are counted, or `text`, `bool`, `list`.
    unit: str
    text: str
    series: Series | None = None


@dataclass(frozen=True)
class Node:
    """A node of the tree: one object, or a collection of objects."""

    #: Its place below `/quire`.
    path: str
    text: str
    metrics: tuple[Metric, ...]
    #: The name of the id in the path, when it is a collection.
    id: str | None = None

    @property
    def pattern(self) -> str:
        """The path, with the id of a collection."""
        return self.path if self.id is None else f"{self.path}/{{{self.id}}}"

    def metric(self, name: str) -> tuple[Metric, bool] | None:
        """The metric with a name, and whether the name is that of its rate."""
        for metric in self.metrics:
            if metric.name == name:
                return metric, False
            if metric.kind == "C" and metric.name + RATE == name:
                return metric, True
        return None


def _queue(name: str, **labels: str) -> Series:
    return Series(f"quire_queue_{name}", "queue", labels)


#: It is asked for when a request wants it.
DETAILS: Final = Metric("details", "S", "list", "its subscriptions, and the messages that they hold")

NODES: Final[tuple[Node, ...]] = (
    Node(
        "host",
        "the machine",
        (Metric("name", "F", "text", "name of the machine"),),
    ),
    Node(
        "host/cpus",
        "each processor, and `all` of them together",
        (
            Metric("user_ratio", "S", "ratio", "time for programs, in the last interval"),
            Metric("system_ratio", "S", "ratio", "time for the system, in the last interval"),
            Metric("idle_ratio", "S", "ratio", "time without work, in the last interval"),
        ),
        id="CPU",
    ),
    Node(
        "host/memory",
        "the memory of the machine",
        (
            Metric("total_bytes", "F", "bytes", "size"),
            Metric("available_bytes", "S", "bytes", "memory that programs can still use"),
            Metric("swap_used_bytes", "S", "bytes", "memory that was written out"),
        ),
    ),
    Node(
        "host/filesystems",
        "the file systems of `journal`, `archive`, `data` and `offline`",
        (
            Metric("path", "F", "text", "the directory"),
            Metric("total_bytes", "F", "bytes", "size", Series("quire_filesystem_size_bytes", "kind")),
            Metric(
                "available_bytes", "S", "bytes", "room", Series("quire_filesystem_available_bytes", "kind")
            ),
        ),
        id="KIND",
    ),
    Node(
        "host/disks",
        "the disks of the machine",
        (
            Metric("read_bytes", "C", "bytes", "read from it"),
            Metric("written_bytes", "C", "bytes", "written to it"),
        ),
        id="DISK",
    ),
    Node(
        "host/network",
        "the network interfaces of the machine",
        (
            Metric("received_bytes", "C", "bytes", "received"),
            Metric("sent_bytes", "C", "bytes", "sent"),
        ),
        id="INTERFACE",
    ),
    Node(
        "instance",
        "the server",
        (
            Metric("name", "F", "text", "name of the instance"),
            Metric("group", "F", "text", "group of the instance"),
            Metric("version", "F", "text", "version of quire"),
            Metric("pid", "F", "number", "id of the process"),
            Metric("cwd", "F", "text", "working directory"),
            Metric("user", "F", "text", "user of the system that runs it"),
            Metric("config_path", "F", "text", "configuration file"),
            Metric("config", "F", "text", "the configuration, as JSON, without secrets"),
            Metric("started", "F", "time", "time of the start"),
            Metric("state", "S", "text", "`starting`, `recovering`, `running` or `stopping`"),
            Metric("timestamp", "S", "time", "time of these figures"),
            Metric("uptime_s", "S", "s", "time since the start"),
            Metric("lifetimes", "S", "list", "starts, stops and crashes, each with its time and version"),
        ),
    ),
    Node(
        "instance/cpu",
        "the processor time of the server",
        (
            Metric("user_s", "C", "s", "time for the program"),
            Metric("system_s", "C", "s", "time for the system"),
        ),
    ),
    Node(
        "instance/memory",
        "the memory of the server",
        (Metric("resident_bytes", "S", "bytes", "memory that it uses"),),
    ),
    Node(
        "instance/loop",
        "how long the event loop of the server lets others wait, in the last two minutes",
        (
            Metric("delay_p50_s", "S", "s", "half of the delays are at most as long"),
            Metric("delay_p99_s", "S", "s", "99 of 100 delays are at most as long"),
            Metric("delay_max_s", "S", "s", "the longest delay"),
        ),
    ),
    Node(
        "instance/threads",
        "the threads of the server",
        (
            Metric("name", "F", "text", "name of the thread"),
            Metric("cpu_s", "C", "s", "its processor time"),
            Metric("last_active_s", "S", "s", "time since its processor time has grown"),
        ),
        id="THREAD",
    ),
    Node(
        "instance/messages",
        "the messages of all clients",
        (
            Metric("connections", "S", "connections", "connections, including those before their logon"),
            Metric("publishers", "S", "publishers", "client names with state in the server"),
            Metric("subscriptions", "S", "subscriptions", "subscriptions of all connections"),
            Metric("replays", "S", "subscriptions", "replays that have not caught up"),
            Metric("replay_lag", "S", "records", "largest lag of a replay that is not paused"),
            Metric(
                "published",
                "C",
                "messages",
                "publishes received, including refused messages and duplicates",
            ),
            Metric(
                "offlined_clients",
                "S",
                "connections",
                "clients whose output moves to disk, because they do not read fast enough",
                Series("quire_offlined_clients"),
            ),
            Metric(
                "offlined_bytes", "S", "bytes", "output that waits on disk", Series("quire_offlined_bytes")
            ),
            Metric("duplicates", "C", "messages", "publishes that were dropped as duplicates"),
            Metric("refused", "C", "messages", "publishes that were refused"),
            Metric("delivered", "C", "messages", "messages sent to subscriptions"),
            Metric("unreadable", "C", "messages", "messages that a filter or expression could not read"),
            Metric(
                "persisted_p50_s",
                "S",
                "s",
                "half of the publishes were persisted in at most this time, by the bounds of the histogram",
            ),
            Metric("persisted_p99_s", "S", "s", "99 of 100 publishes were persisted in at most this time"),
            Metric("received_bytes", "C", "bytes", "received from clients and other instances"),
            Metric("sent_bytes", "C", "bytes", "sent to clients"),
        ),
    ),
    Node(
        "instance/clients",
        "the connections of clients",
        (
            Metric("client_name", "F", "text", "its client name; empty before logon"),
            Metric("client_version", "F", "text", "the version of its library"),
            Metric("user", "F", "text", "its user"),
            Metric("peer", "F", "text", "the address it comes from"),
            Metric("transport", "F", "text", "the transport that it uses"),
            Metric("connected", "F", "time", "time of the connection"),
            Metric("messages_in", "C", "messages", "messages that it has published"),
            Metric("messages_out", "C", "messages", "messages sent to its subscriptions"),
            Metric("bytes_in", "C", "bytes", "received from it"),
            Metric("bytes_out", "C", "bytes", "sent to it"),
            Metric("subscriptions", "S", "subscriptions", "its subscriptions"),
            Metric("backlog_bytes", "S", "bytes", "output that waits for it in the memory of the server"),
            Metric("offlined_bytes", "S", "bytes", "output that waits for it on disk"),
            Metric("offlined", "S", "bool", "its output moves to disk, because it does not read fast enough"),
            Metric("writable", "S", "bool", "its connection accepts more bytes"),
            Metric("sequence", "S", "sequence", "highest sequence of its client name"),
            Metric("denied_reads", "C", "commands", "refused because it may not read, replay or query"),
            Metric("denied_writes", "C", "commands", "refused because it lacks another right"),
        ),
        id="CONNECTION",
    ),
    Node(
        "instance/subscriptions",
        "the subscriptions of all clients",
        (
            Metric("client_name", "F", "text", "the client name of its connection"),
            Metric("connection", "F", "number", "its connection"),
            Metric("sub_id", "F", "number", "its number on the connection"),
            Metric("topic", "F", "text", "its topic or pattern"),
            Metric("filter", "F", "text", "its filter"),
            Metric("kind", "F", "text", "`live`, `replay`, `queue` or `last_value`"),
            Metric("messages_out", "C", "messages", "messages sent to it"),
            Metric("bytes_out", "C", "bytes", "bytes of the frames of these messages"),
            Metric("position", "S", "position", "of a replay: the position up to which messages were sent"),
            Metric("lag", "S", "records", "of a replay: records of the log after the position"),
            Metric("lag_s", "S", "s", "of a replay: age of the first of these records"),
            Metric("backlog", "S", "messages", "of a queue: its outstanding messages"),
            Metric("max_backlog", "S", "messages", "of a queue: the most that may be outstanding"),
            Metric("paused", "S", "bool", "the client has paused it"),
        ),
        id="SUBSCRIPTION",
    ),
    Node(
        "instance/topics",
        "the topics of the log and of the configuration",
        (
            Metric("message_type", "F", "text", "type of its messages"),
            Metric("recorded", "F", "bool", "the log records its messages"),
            Metric(
                "published",
                "C",
                "messages",
                "messages that clients have published, including refused ones and duplicates",
                Series("quire_topic_published_messages", "topic"),
            ),
            Metric("published_bytes", "C", "bytes", "bytes of these messages"),
            Metric("subscriptions", "S", "subscriptions", "subscriptions, including those with patterns"),
            Metric("queues", "S", "queues", "queues that its messages enter"),
        ),
        id="TOPIC",
    ),
    Node(
        "instance/queues",
        "the queues",
        (
            Metric("message_type", "F", "text", "type of its messages"),
            Metric("kind", "F", "text", "`queue` or `local_queue`"),
            Metric("takes_dead_letters", "F", "bool", "it is over the dead letter topic of a queue"),
            Metric("depth", "S", "messages", "active messages: waiting, delayed and leased"),
            Metric(
                "waiting",
                "S",
                "messages",
                "messages that are neither leased nor delayed",
                _queue("messages", state="waiting"),
            ),
            Metric(
                "delayed",
                "S",
                "messages",
                "cancelled messages whose delay is not over",
                _queue("messages", state="delayed"),
            ),
            Metric(
                "backlog",
                "S",
                "messages",
                "outstanding messages: delivered and not acknowledged",
                _queue("messages", state="leased"),
            ),
            Metric("max_backlog", "S", "messages", "limit of the outstanding messages"),
            Metric("owned", "S", "messages", "messages that this instance owns", _queue("owned_messages")),
            Metric("subscriptions", "S", "subscriptions", "its subscriptions", _queue("subscriptions")),
            Metric(
                "age_of_oldest_s",
                "S",
                "s",
                "age of the oldest unacknowledged message",
                _queue("oldest_message_age_seconds"),
            ),
            Metric("age_of_oldest_lease_s", "S", "s", "age of the oldest lease"),
            Metric(
                "inactive",
                "S",
                "messages",
                "messages beyond the target depth",
                _queue("messages", state="inactive"),
            ),
            Metric("target_queue_depth", "S", "messages", "the target depth"),
            Metric("deferred_acks", "S", "messages", "acknowledgements for messages that are not active yet"),
            Metric("entered", "C", "messages", "messages that entered", _queue("entered_messages")),
            Metric(
                "delivered", "C", "messages", "deliveries, with repeated ones", _queue("delivered_messages")
            ),
            Metric(
                "acknowledged",
                "C",
                "messages",
                "messages that an acknowledgement removed",
                _queue("acknowledged_messages"),
            ),
            Metric(
                "cancelled",
                "C",
                "messages",
                "cancels that returned a message",
                _queue("cancelled_messages"),
            ),
            Metric("expired", "C", "messages", "messages that expired"),
            *(
                Metric(f"expired_{reason}", "C", "messages", text, _queue("expired_messages", reason=reason))
                for reason, text in (
                    ("time_limit", "of these: their time was over"),
                    ("forced_expire", "of these: acknowledged with `expire`"),
                    ("max_cancels", "of these: cancelled more often than `max_cancels`"),
                    ("max_deliveries", "of these: delivered `max_deliveries` times without success"),
                )
            ),
            Metric("taken", "C", "messages", "messages delivered at most once"),
            Metric("released", "C", "messages", "barriers that were released"),
            Metric(
                "dead_letters",
                "C",
                "messages",
                "messages published as dead letters",
                _queue("dead_letters"),
            ),
            Metric("expired_leases", "C", "leases", "leases that ran out", _queue("expired_leases")),
            DETAILS,
        ),
        id="QUEUE",
    ),
    Node(
        "instance/last_values",
        "the topics that keep the newest message of each key",
        (
            Metric("records", "S", "records", "records", Series("quire_last_value_records", "topic")),
            Metric("bytes", "S", "bytes", "bytes of their messages"),
            Metric("memory_bytes", "S", "bytes", "memory that the topic uses"),
            *(
                Metric(
                    name,
                    "C",
                    unit,
                    text,
                    Series("quire_last_value_changes", "topic", {"operation": operation}),
                )
                for name, unit, text, operation in (
                    ("inserts", "messages", "messages with a new key", "insert"),
                    ("updates", "messages", "messages that replaced a record", "update"),
                    ("deletes", "records", "records that a delete removed", "delete"),
                    ("expiries", "records", "records whose lifetime has ended", "expire"),
                )
            ),
            Metric("queries", "C", "queries", "queries, and subscriptions that received the records"),
        ),
        id="TOPIC",
    ),
    Node(
        "instance/views",
        "the topics that the server computes from others",
        (
            Metric("records", "S", "records", "records", Series("quire_view_records", "view")),
            Metric("memory_bytes", "S", "bytes", "memory for the records, the groups and the joins"),
            Metric(
                "behind_s",
                "S",
                "s",
                "age of the oldest change of a source that the view does not have; 0: it has all",
                Series("quire_view_behind_seconds", "view"),
            ),
            Metric("waiting_changes", "S", "changes", "changes of sources that the view does not have"),
            Metric("updates", "C", "records", "records that were new, changed or removed"),
        ),
        id="VIEW",
    ),
    Node(
        "instance/replication",
        "the messages of this instance, compared with those of the instances that send to it",
        (
            Metric(
                "missing",
                "S",
                "records",
                "messages that are missing between others of their publishers, and that no source has",
                Series("quire_replication_missing_messages"),
            ),
            Metric("accepted", "S", "records", "missing messages that a command has accepted as lost"),
            Metric(
                "missing_total",
                "C",
                "records",
                "messages that were ever found to be missing, over all restarts",
            ),
            Metric("comparisons", "C", "comparisons", "comparisons with the sources"),
        ),
    ),
    Node(
        "instance/replication/destinations",
        "the instances that this one sends to",
        (
            Metric("state", "S", "text", "`waiting`, `connecting`, `catching_up`, `live`, `paused` or `gap`"),
            Metric(
                "connected",
                "S",
                "bool",
                "an instance is connected",
                Series("quire_replication_connected", "destination"),
            ),
            Metric("sync_type", "S", "text", "`sync` or `async`, as it is now"),
            Metric("configured_sync_type", "S", "text", "`sync` or `async`, as configured"),
            Metric(
                "sync",
                "S",
                "bool",
                "publishers wait for the destination",
                Series("quire_replication_sync", "destination"),
            ),
            Metric(
                "seconds_behind",
                "S",
                "s",
                "age of the oldest message that it has not acknowledged",
                Series("quire_replication_lag_seconds", "destination"),
            ),
            Metric(
                "unacknowledged_bytes",
                "S",
                "bytes",
                "records that are sent and not acknowledged",
                Series("quire_replication_unacknowledged_bytes", "destination"),
            ),
            Metric("instance", "S", "text", "the instance that is connected"),
            Metric("address", "S", "text", "the address that is connected, or tried next"),
            Metric("user", "S", "text", "the user of the connection"),
            Metric("tls", "S", "bool", "whether the connection is encrypted"),
            Metric("acknowledged", "S", "position", "position up to which it has all records"),
            Metric("last_error", "S", "text", "why the last connection or attempt ended"),
            Metric(
                "sent",
                "C",
                "records",
                "records sent",
                Series("quire_replication_sent_messages", "destination"),
            ),
            Metric("sent_bytes", "C", "bytes", "bytes of these records"),
            Metric("connects", "C", "connections", "connections"),
            Metric(
                "conflicts",
                "S",
                "records",
                "records that it has not recorded, because others have their bookmarks there",
            ),
        ),
        id="DESTINATION",
    ),
    Node(
        "instance/replication/sources",
        "the instances that send to this one",
        (
            Metric("peer", "S", "text", "its address"),
            Metric("user", "S", "text", "the user of the connection"),
            Metric("tls", "S", "bool", "whether the connection is encrypted"),
            Metric("state", "S", "text", "`connecting`, `live`, `gap`, or `away` after conflicts"),
            Metric("received", "S", "position", "position of its log up to which records were received"),
            Metric("records", "C", "records", "records received by this connection"),
            Metric("duplicates", "C", "records", "of these, dropped as duplicates"),
            Metric(
                "conflicts",
                "S",
                "records",
                "records that are not recorded, because others have their bookmarks",
            ),
        ),
        id="SOURCE",
    ),
    Node(
        "instance/copies",
        "the log of this instance among those of the instances that replicate to each other",
        (
            Metric("state", "S", "text", "`filling`, `gap`, `conflict`, `refused`, `away` or `live`"),
            Metric(
                "filling",
                "S",
                "bool",
                "the log may lack messages of other instances",
                Series("quire_replication_filling"),
            ),
            Metric("admitted", "S", "bool", "a command has let clients in while the log is filled"),
            Metric(
                "not_heard",
                "S",
                "instances",
                "instances from which not everything has come, while the log is filled",
                Series("quire_replication_not_heard_instances"),
            ),
        ),
    ),
    Node(
        "instance/journal",
        "the journal",
        (
            Metric("segments", "S", "files", "files, including archived ones"),
            Metric("size_bytes", "S", "bytes", "bytes of all files"),
            Metric(
                "active_bytes",
                "S",
                "bytes",
                "the file that is written",
                Series("quire_journal_bytes", None, {"state": "active"}),
            ),
            Metric(
                "sealed_bytes",
                "S",
                "bytes",
                "full files in the directory of the journal",
                Series("quire_journal_bytes", None, {"state": "sealed"}),
            ),
            Metric(
                "archived_bytes",
                "S",
                "bytes",
                "files in the archive directory",
                Series("quire_journal_bytes", None, {"state": "archived"}),
            ),
            Metric(
                "compressed_bytes",
                "S",
                "bytes",
                "compressed files",
                Series("quire_journal_bytes", None, {"state": "compressed"}),
            ),
            Metric("unpersisted_bytes", "S", "bytes", "appended and not yet persisted"),
            Metric("writable", "S", "bool", "the journal accepts writes", Series("quire_journal_writable")),
            Metric("first", "S", "position", "position of the first record"),
            Metric("last", "S", "position", "position of the last persisted record"),
            Metric("kept_by", "S", "text", "why the oldest file is kept; empty: nothing needs it"),
            Metric("appended", "C", "records", "records appended since the journal was created"),
            Metric(
                "appended_bytes",
                "C",
                "bytes",
                "bytes of records written",
                Series("quire_journal_appended_bytes"),
            ),
            Metric("syncs", "C", "syncs", "syncs of files with records"),
            Metric(
                "sync_p50_s",
                "S",
                "s",
                "half of the syncs took at most as long, by the bounds of the histogram",
            ),
            Metric("sync_p99_s", "S", "s", "99 of 100 syncs took at most as long"),
        ),
    ),
    Node(
        "instance/transports",
        "the addresses for clients",
        (
            Metric("address", "F", "text", "where clients connect"),
            Metric("enabled", "S", "bool", "it accepts connections"),
            Metric(
                "connections", "S", "connections", "its connections", Series("quire_connections", "transport")
            ),
            Metric(
                "accepted",
                "C",
                "connections",
                "connections that were accepted",
                Series("quire_connections_accepted", "transport"),
            ),
            Metric(
                "refused",
                "C",
                "connections",
                "connections that were refused because of a limit",
                Series("quire_connections_refused", "transport", {"reason": "limit"}),
            ),
            Metric(
                "messages_in",
                "C",
                "messages",
                "messages that clients have published",
                Series("quire_received_messages", "transport"),
            ),
            Metric(
                "messages_out",
                "C",
                "messages",
                "messages sent to subscriptions",
                Series("quire_sent_messages", "transport"),
            ),
            Metric(
                "bytes_in", "C", "bytes", "received from clients", Series("quire_received_bytes", "transport")
            ),
            Metric("bytes_out", "C", "bytes", "sent to clients", Series("quire_sent_bytes", "transport")),
        ),
        id="TRANSPORT",
    ),
    Node(
        "instance/certificates",
        "the certificates of the server: `transport NAME`, `replication`, `destination NAME` and `admin`",
        (
            Metric("expires", "S", "time", "when the first certificate of its file expires"),
            Metric(
                "expires_s",
                "S",
                "s",
                "time until then; negative after it",
                Series("quire_certificate_expires_seconds", "kind"),
            ),
        ),
        id="CERTIFICATE",
    ),
    Node(
        "instance/disconnects",
        "the ends of connections, by their reasons",
        tuple(
            Metric(reason, "C", "connections", text, Series("quire_disconnects", None, {"reason": reason}))
            for reason, text in (
                ("closed", "the client has logged off"),
                ("lost", "the connection was lost, or closed without a logoff"),
                ("name_in_use", "another connection uses the client name"),
                ("heartbeat", "no byte arrived for two heartbeat intervals"),
                ("slow_consumer", "the client did not read its messages fast enough"),
                ("protocol", "the client broke a rule of the protocol"),
                ("limit", "a limit was reached"),
                ("authentication", "the user was not accepted"),
                ("entitlement_reset", "the user or its rights have changed"),
                ("admin", "an administrator has ended it, or has blocked the client name"),
                ("transport_disabled", "an administrator has disabled the transport"),
                ("shutdown", "the server stops"),
            )
        ),
    ),
    Node(
        "instance/actions",
        "the actions",
        (
            Metric("admin_path", "F", "text", "path of the request that runs it; null: there is none"),
            Metric("admin_members", "F", "list", "members that the body of the request may have"),
            Metric("enabled", "S", "bool", "its triggers start it"),
            Metric("running", "S", "runs", "runs in progress"),
            Metric("waiting", "S", "runs", "runs that wait for the one before"),
            Metric("last_run", "S", "time", "when the last run ended"),
            Metric("last_outcome", "S", "text", "its outcome: `ok`, `failed` or `stopped`"),
            Metric("last_error", "S", "text", "the last error of a run; empty: there was none"),
            Metric("runs", "C", "runs", "runs that have ended"),
            *(
                Metric(name, "C", "runs", text, Series("quire_action_runs", "action", {"outcome": outcome}))
                for name, outcome, text in (
                    ("ok", "ok", "of these: every step was carried out"),
                    ("failures", "failed", "of these: a step failed"),
                    ("stopped", "stopped", "of these: a condition was false"),
                    ("dropped", "dropped", "runs that did not begin, because too many waited"),
                )
            ),
        ),
        id="ACTION",
    ),
    Node(
        "instance/statistics",
        "the statistics",
        (
            Metric("samples", "C", "samples", "samples that were taken"),
            Metric(
                "missed",
                "C",
                "samples",
                "intervals without a sample",
                Series("quire_statistics_missed_samples"),
            ),
            Metric("file_bytes", "S", "bytes", "size of the file"),
        ),
    ),
    Node(
        "instance/logging",
        "the records of the log, by their level",
        tuple(
            Metric(
                level,
                "C",
                "records",
                f"records of the level {level}",
                Series("quire_log_records", None, {"level": level}),
            )
            for level in ("trace", "debug", "info", "warning", "error", "critical")
        ),
    ),
)


@dataclass(frozen=True)
class Only:
    """A family of `/metrics` that the tree does not have."""

    name: str
    text: str


SYNC_DURATION: Final = Only("quire_journal_sync_duration_seconds", "time that a sync of a file took")
PERSISTED_DURATION: Final = Only(
    "quire_publish_persisted_duration_seconds",
    "time from the receipt of publishes to their persistence, once for the publishes of a client in a turn",
)
LOOP_DELAY: Final = Only("quire_loop_delay_seconds", "time that the event loop let a call wait")
HISTOGRAMS: Final = (SYNC_DURATION, PERSISTED_DURATION, LOOP_DELAY)
BUILD_INFO: Final = Only("quire_build_info", "1, with the version of quire")
READY: Final = Only("quire_ready", "1: every check of `/readyz` is true")

#: By path.
NODE_AT: Final[Mapping[str, Node]] = {node.path: node for node in NODES}


def series_names() -> set[str]:
    """The names of all series of `/metrics`, with `_total`, without those of the process."""
    names = {each.name for each in (*HISTOGRAMS, BUILD_INFO, READY)}
    for _, metric in every_metric():
        if metric.series is not None:
            names.add(metric.series.name + ("_total" if metric.kind == "C" else ""))
    return names


def every_metric() -> Iterator[tuple[Node, Metric]]:
    """Every metric, in the order of the page."""
    for node in NODES:
        for metric in node.metrics:
            yield node, metric
