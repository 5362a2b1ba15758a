"""The samples and tables of `quire top`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from time import monotonic
from typing import Any, Final, Literal, get_args

import quire
from quire._units import number_text

TableName = Literal["queues", "topics", "clients", "replication"]
TABLES: Final[tuple[TableName, ...]] = get_args(TableName)

Row = dict[str, Any]


@dataclass(frozen=True)
class Column:
    """A column of a table. `rate_of`: the count whose growth per second it shows."""

    key: str
    heading: str
    rate_of: str | None = None


COLUMNS: Final[dict[TableName, tuple[Column, ...]]] = {
    "queues": (
        Column("queue", "queue"),
        Column("depth", "depth"),
        Column("entered_per_s", "entered/s", "entered"),
        Column("delivered_per_s", "delivered/s", "delivered"),
        Column("acknowledged_per_s", "acked/s", "acknowledged"),
        Column("backlog", "leased"),
        Column("subscriptions", "subs"),
        Column("age_of_oldest_s", "oldest (s)"),
        Column("dead_letters", "dead"),
        Column("expired_leases", "expired"),
    ),
    "topics": (
        Column("topic", "topic"),
        Column("message_type", "type"),
        Column("recorded", "recorded"),
        Column("subscriptions", "subs"),
        Column("queues", "queues"),
        Column("records", "records"),
    ),
    "clients": (
        Column("client_name", "client"),
        Column("peer", "address"),
        Column("published_per_s", "published/s", "sequence"),
        Column("subscriptions", "subs"),
        Column("backlog_bytes", "waiting (bytes)"),
    ),
    "replication": (
        Column("name", "instance"),
        Column("direction", "direction"),
        Column("state", "state"),
        Column("sync_type", "sync type"),
        Column("seconds_behind", "behind (s)"),
        Column("unacknowledged_bytes", "behind (bytes)"),
        Column("last_error", "last error"),
    ),
}

#: The figures of the server whose growth per second is shown.
SERVER_RATES: Final = ("published", "delivered", "persisted")


@dataclass(frozen=True)
class Sample:
    """The figures of one moment. A table whose figures the user may not see has a reason in `refused`."""

    time: datetime
    server: Row
    tables: dict[TableName, list[Row]]
    refused: dict[TableName, str] = field(default_factory=dict)

    def to_json(self) -> Row:
        """One object with everything."""
        tables: Row = {name: self.tables.get(name, []) for name in TABLES}
        refused = {"refused": self.refused} if self.refused else {}
        return {"time": self.time, "server": self.server, **tables, **refused}


class Sampler:
    """Takes samples from a server. A rate compares a sample with the one before, so the first has none."""

    def __init__(self, client: quire.Client) -> None:
        self._client = client
        self._before: dict[object, tuple[float, float]] = {}

    def take(self) -> Sample:
        """Asks the server. Raises the errors of the client."""
        now = monotonic()
        seen: dict[object, tuple[float, float]] = {}

        def rate(key: object, count: object) -> float | None:
            if not isinstance(count, (int, float)):
                return None
            seen[key] = (now, count)
            then, counted = self._before.get(key, (now, count))
            # A server that has started again counts from 0.
            return None if now <= then or count < counted else (count - counted) / (now - then)

        info = self._client.server_info()
        server: Row = {
            name: value
            for name in ("name", "version", "connections", "subscriptions", "unpersisted_bytes", "replay_lag")
            if (value := getattr(info, name)) is not None
        }
        if info.uptime is not None:
            server["uptime_s"] = info.uptime.total_seconds()
            server |= {"journal_size": info.journal_size, "journal_failed": info.journal_failed}
            server |= {f"{name}_per_s": rate(name, getattr(info, name)) for name in SERVER_RATES}
        sample = Sample(datetime.now(UTC), server, {})
        questions: dict[TableName, Callable[[], list[Row]]] = {
            "queues": self._queues,
            "topics": self._topics,
            "clients": self._client._clients,
            "replication": self._replication,
        }
        for name, ask in questions.items():
            try:
                found = ask()
            except quire.NotEntitledError as error:
                sample.refused[name] = str(error)
                continue
            # A client may reconnect, and two clients have no name.
            identity = "connection" if name == "clients" else COLUMNS[name][0].key
            sample.tables[name] = [
                {
                    column.key: row.get(column.key)
                    if column.rate_of is None
                    else rate((name, row.get(identity), column.key), row.get(column.rate_of))
                    for column in COLUMNS[name]
                }
                for row in found
            ]
        self._before = seen
        return sample

    def _queues(self) -> list[Row]:
        return [{"queue": name, **figures} for name, figures in self._client.queue_stats().items()]

    def _topics(self) -> list[Row]:
        return [
            {
                **topic,
                "queues": len(topic["queues"]),
                "records": (topic.get("last_values") or {}).get("records"),
            }
            for topic in self._client._topics()
        ]

    def _replication(self) -> list[Row]:
        links = self._client._replication()
        return [
            {"direction": direction, **link}
            for direction, key in (("to", "destinations"), ("from", "sources"))
            for link in links[key]
        ]


@dataclass
class View:
    """Which rows of a table are shown, and in which order. `sort`: a key, with a hyphen from the highest value on."""

    table: TableName = "queues"
    sort: dict[TableName, str] = field(default_factory=dict)
    filter: str = ""

    def rows(self, sample: Sample) -> list[Row]:
        """The rows whose name has the text of the filter."""
        columns = COLUMNS[self.table]
        name = columns[0].key
        found = [row for row in sample.tables.get(self.table, ()) if self.filter in str(row[name])]
        sort = self.sort.get(self.table)
        if sort is None:
            return found
        key = sort.removeprefix("-")
        # Rows without the figure come last in both directions, and names decide between equal ones.
        found.sort(key=lambda row: str(row[name]))
        has = [row for row in found if row[key] is not None]
        has.sort(key=lambda row: _comparable(row[key]), reverse=sort.startswith("-"))
        return has + [row for row in found if row[key] is None]

    def next_sort(self) -> None:
        """Sorts by the next column: figures from the highest on, texts in their order."""
        keys = [column.key for column in COLUMNS[self.table]]
        now = self.sort.get(self.table)
        place = -1 if now is None else keys.index(now.removeprefix("-"))
        key = keys[(place + 1) % len(keys)]
        texts = ("queue", "topic", "client_name", "name", "message_type", "peer", "direction", "state")
        self.sort[self.table] = key if key in texts else f"-{key}"


def _comparable(value: object) -> tuple[int, Any]:
    return (0, value) if isinstance(value, (int, float)) else (1, str(value))


def table_for_sort(sort: str) -> tuple[TableName, str]:
    """The table of `--sort TABLE.COLUMN` or `--sort COLUMN` (of queues), and the key.

    Raises `ConfigError` for an unknown one.
    """
    sign = "-" if sort.startswith("-") else ""
    table, _, key = sort.removeprefix("-").rpartition(".")
    # A comparison would make texts of the names, for a type checker.
    names: dict[str, TableName] = {each: each for each in TABLES}
    name = names.get(table or "queues")
    if name is None:
        raise quire.ConfigError(f"the table {table!r} is not one of {', '.join(TABLES)}", key="--sort")
    keys = [column.key for column in COLUMNS[name]]
    if key not in keys:
        raise quire.ConfigError(f"the column {key!r} of {name} is not one of {', '.join(keys)}", key="--sort")
    return name, f"{sign}{key}"


def cell(value: object) -> str:
    """A figure as a person reads it."""
    match value:
        case None:
            return ""
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float():
            return f"{value:,.0f}" if abs(value) >= 100 else number_text(round(value, 1))
    return str(value)


def head(sample: Sample) -> Sequence[str]:
    """The lines above the tables."""
    server = sample.server
    first = f"{server.get('name')}, quire {server.get('version')}"
    if "uptime_s" not in server:
        return [first, "The figures of the server require the right `monitor` on /quire/server."]
    seconds = int(server["uptime_s"])
    days, seconds = divmod(seconds, 86_400)
    uptime = f"{f'{days} d ' if days else ''}{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    rates = ", ".join(f"{name} {cell(server[f'{name}_per_s']) or '-'}/s" for name in SERVER_RATES)
    lines = [
        f"{first}, up {uptime}, {cell(server['connections'])} connections, {cell(server['subscriptions'])} subscriptions",
        f"{rates}; not persisted {cell(server['unpersisted_bytes'])} bytes; journal {cell(server['journal_size'])} bytes",
    ]
    if server["journal_failed"]:
        lines.append("The journal takes no writes: see the log of the server.")
    return lines
