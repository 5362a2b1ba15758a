"""The options of commands that have many of them: each option is declared once, with its help.

A command takes its options as one object, checks them, and passes them on by name.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, fields, make_dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from cyclopts import Parameter

#: How messages are printed: an object per line, the data alone, or columns for people.
Format = Literal["json", "raw", "table"]
#: `infer`: a column whose cells are all JSON numbers, or empty, has numbers. `text`: every cell is
#: text.
CsvTypes = Literal["infer", "text"]

#: An option without a value, and without a negation.
Flag = Annotated[bool, Parameter(negative="")]
#: A text that can begin with a hyphen.
_Text = Annotated[str | None, Parameter(allow_leading_hyphen=True)]
_BookmarkNotFound = Literal["epoch", "now", "fail"]

Again = Annotated[
    bool,
    Parameter(
        negative="",
        help="Publish even if the destination already has the first message under the same topic. "
        "Without it, such a replay is an error.",
    ),
]

#: Every option of the object is an option of the command.
_of_command = Parameter(name="*")

#: The options that say how to connect, with the environment variables that the client reads, and
#: their help.
_CONNECTING: Final = {
    "user": (
        "QUIRE_USER",
        str,
        "User, for a server with users. The password comes from $QUIRE_PASSWORD or $QUIRE_NETRC, a token from $QUIRE_TOKEN.",
    ),
    "ca": (
        "QUIRE_CA",
        Path,
        "File with the authorities to trust, for quires://. Default: $QUIRE_CA, or those of the system.",
    ),
    "certificate": ("QUIRE_CERTIFICATE", Path, "File with the certificate of this client, for quires://."),
    "key": (
        "QUIRE_KEY",
        Path,
        "File with the private key of the certificate. Default: the file of --certificate.",
    ),
}


class ServerOptions:
    """How a command reaches a server: the members are those of `_CONNECTING`, and `url`."""

    url: str | list[str] | None

    def use(self) -> str | list[str] | None:
        """Lets the clients of this process connect like this, and returns the URL, or the list of them."""
        for name, (variable, _, _) in _CONNECTING.items():
            if (value := getattr(self, name, None)) is not None:
                os.environ[variable] = str(value)
        return self.url


def server_options(help: str, *, has_key: bool = True, has_many: bool = False) -> Any:
    """The option `--url` with this help, and those that say how to connect. For a command, it is the text of the URL.

    - `has_key`: a command with another `--key` has none for the private key, which is in the file of `--certificate`
    - `has_many`: the command requires `--url`, and takes several. For it, it is the list of them
    """
    url: Any = Annotated[str | None, Parameter(help=help)]
    members: list[tuple[str, Any, Any]] = [("url", url, field(default=None))]
    if has_many:
        members = [("url", Annotated[list[str], Parameter(help=help, negative="")], field())]
    for name, (_, kind, text) in _CONNECTING.items():
        if name != "key" or has_key:
            text = text if has_key or name != "certificate" else f"{text} It also has the private key."
            members.append((name, Annotated[kind | None, Parameter(help=text)], field(default=None)))
    options = make_dataclass("ServerOptions", members, bases=(ServerOptions,), frozen=True, kw_only=True)
    options.__module__ = __name__
    # A command with none of them has `None`.
    return Annotated[options | None, _of_command]


def given(options: object) -> dict[str, Any]:
    """Returns the options with another value than none or off, by their names."""
    values = {field.name: getattr(options, field.name) for field in fields(options)}  # type: ignore[arg-type]
    return {name: value for name, value in values.items() if value is not None and value is not False}


@_of_command
@dataclass(frozen=True, kw_only=True)
class PublishOptions:
    """The options of `quire publish`.

    Parameters
    ----------
    name
        Client name, used for this file only. The number of a line is its sequence.
        When the command runs again with this name, it publishes only the lines that the server does not have.
    rate
        Limit in messages per second.
    header
        Header of every message, as name=value. Repeat the option for more headers.
    delay
        Queues deliver each message after this time at the earliest, such as --delay 10m.
    deliver_at
        Queues deliver the messages at this time at the earliest, such as 2030-01-01T08:00:00Z. UTC without a zone.
    correlation_id
        Text that subscribers receive with every message.
    expiration
        Lifetime of every message in a queue or a last-value topic, such as 1h.
    key
        Key of every message, for a last-value topic whose keys are supplied by the publisher.
    delta
        Each message has only the fields that change.
        The server merges it into the record with its key.
    data
        Message to publish, instead of a file.
    csv
        The file is CSV with a header line. Each row is published as a JSON object.
    csv_types
        Types of the cells. Requires --csv.
        infer (default): a column has numbers if each of its cells is a JSON number or empty. Otherwise it has text.
        An empty cell is null then, and the file is read to its end before the first message is published.
        text: each cell is text.
    delimiter
        Character between the cells, or tab. Requires --csv. Default: a comma.
    records
        Each line is an object that --json of journal dump, subscribe or sow printed.
        Its message is published, with its headers, correlation id and lifetime.
    """

    name: str | None = None
    rate: float | None = None
    header: Annotated[list[str] | None, Parameter(negative="")] = None
    delay: str | None = None
    deliver_at: str | None = None
    correlation_id: str | None = None
    expiration: str | None = None
    key: str | None = None
    delta: Flag = False
    data: _Text = None
    csv: Flag = False
    csv_types: CsvTypes | None = None
    delimiter: _Text = None
    records: Flag = False


@_of_command
@dataclass(frozen=True, kw_only=True)
class SubscribeOptions:
    r"""The options of `quire subscribe`.

    Parameters
    ----------
    filter
        Content filter. Only messages that match it are printed.
    bookmark
        Where to begin: epoch, now, a bookmark, a comma-separated list of bookmarks, a time, or a range [A:B].
        -1h is the time one hour ago.
        After the end of a range the command ends.
        Without this option, only messages that are published from now on are printed.
        With --sow: a bookmark or a time. The records of that state are printed first.
    bookmark_not_found
        Where to begin if the log does not contain the bookmark. Requires --bookmark.
        epoch (default): at the oldest message. now: at the end of the log. fail: end with an error.
    live
        After the replay, print messages before they are persisted. Requires --bookmark.
    max_backlog
        With --ack: limit of messages that are delivered and not yet acknowledged. Default: 1.
    ack
        Take the messages from a queue, and acknowledge each one after it was printed.
        Without this option, the messages of a queue are printed and stay in it.
    rate
        Limit of the replay: 1000 (messages per second), 500KB (per second), or 2X (the original pace times 2).
        Requires --bookmark.
    select
        Fields to print of each message, as in -/,+/symbol,+/price.
    sow
        Print the records of a last-value topic first, and then every change.
    oof
        Also print a message for each record that no longer exists or no longer matches the filter.
        Requires --sow or --delta.
    delta
        Of each change of a record, print only the fields that differ, and the key fields.
    no_empties
        Print nothing for a publish in which no field differs. Requires --delta.
    order_by
        Order of the records, as in "/price DESC, /time". Requires --sow.
    top_n
        Limit of the records that are printed first. Default: all. Requires --sow.
    skip_n
        Number of records before the page that is printed. Requires --top-n.
        Only records at these places of the order are printed, also later.
    keys
        Keys of the records to print, separated by commas. Default: all. Requires --sow.
    conflation
        Of the messages with the same key, print at most one in each interval of this length, such as 500ms.
    conflation_key
        Fields that are the key, as in /symbol,/side. Default: the key of the record in a last-value topic.
        Requires --conflation.
    projection
        Field of a record for each group of records, as in "SUM(/qty) AS /total". Repeat the option for more fields.
        Requires --sow.
    grouping
        Field that makes the groups, as in /account. Repeat the option for more fields. Default: one group.
    count
        Stop after this number of messages.
    timeout
        Stop after this time without a message, or without an answer of a server: seconds, or a duration such as 500ms.
    format
        json: one object per line. raw: the data and a line end. table: columns.
    """

    filter: str | None = None
    bookmark: _Text = None
    bookmark_not_found: _BookmarkNotFound | None = None
    live: Flag = False
    max_backlog: int | None = None
    ack: Flag = False
    rate: str | None = None
    select: _Text = None
    sow: Flag = False
    oof: Flag = False
    delta: Flag = False
    no_empties: Flag = False
    order_by: str | None = None
    top_n: int | None = None
    skip_n: int | None = None
    keys: str | None = None
    conflation: str | None = None
    conflation_key: str | None = None
    projection: Annotated[list[str] | None, Parameter(negative="")] = None
    grouping: Annotated[list[str] | None, Parameter(negative="")] = None
    count: int | None = None
    timeout: str | None = None
    format: Format = "json"


@_of_command
@dataclass(frozen=True, kw_only=True)
class SowOptions:
    """The options of `quire sow`.

    Parameters
    ----------
    filter
        Content filter. Only records that match it are printed.
    order_by
        Fields to sort by, as in "/price DESC, /time". Default: no order, and delivery order for a queue.
    top_n
        Limit of printed records. Default: all.
    skip_n
        Number of records to leave out first. Requires --top-n.
    keys
        Keys of the records to print, separated by commas. Default: all.
        Keys are those of sow_key in the output.
        On a topic with `key` in its configuration, the keys are generated: use --filter for the values of fields.
    bookmark
        Print the state after a message or a time: a bookmark, or a time such as 2026-01-01T12:00:00Z.
        The topic must keep a history that reaches back to it. Without history, the current state is printed.
    select
        Fields to print of each record, as in -/,+/symbol,+/price.
    projection
        Field of a record for each group of records, as in "SUM(/qty) AS /total". Repeat the option for more fields.
    grouping
        Field that makes the groups, as in /account. Repeat the option for more fields. Default: one group.
    format
        json: one object per line. raw: the data and a line end. table: columns.
    """

    filter: str | None = None
    order_by: str | None = None
    top_n: int | None = None
    skip_n: int | None = None
    keys: str | None = None
    bookmark: _Text = None
    select: _Text = None
    projection: Annotated[list[str] | None, Parameter(negative="")] = None
    grouping: Annotated[list[str] | None, Parameter(negative="")] = None
    format: Format = "json"


@_of_command
@dataclass(frozen=True, kw_only=True)
class ReplayOptions:
    r"""The options of `quire replay`.

    Parameters
    ----------
    topic
        Only this topic. It is a regular expression if it contains any of ^ $ * + ? [ ] ( ) { } | \.
    filter
        Content filter. Only messages that match it are published.
    from_
        Begin after this place: epoch, a bookmark, a list of bookmarks, or a time (UTC).
    until
        Last place to include: now (the end of the log at the start), a bookmark, or a time.
    bookmark_not_found
        Where to begin if the source does not contain the bookmark of --from.
        epoch: at the oldest message. now: at the end of the log. fail: end with an error.
    rate
        Limit: 1000 (messages per second), 500KB (per second), or 2X (the original pace times 2).
        Default: no limit.
    rate_max_gap
        With a multiple as --rate: longest pause before the next message, as in 5s.
    into
        Publish all messages to this topic instead of their original topics.
    name
        Client name at the destination. From a directory, the sequence is the position in the journal.
        An interrupted replay with the same name then continues at the same place, without duplicates.
    archive_directory
        Directory with the archived files of the journal. Default: the directory of the last archiving.
    """

    topic: str | None = None
    filter: str | None = None
    from_: Annotated[str, Parameter(name="--from", allow_leading_hyphen=True)] = "epoch"
    until: Annotated[str, Parameter(allow_leading_hyphen=True)] = "now"
    bookmark_not_found: _BookmarkNotFound = "fail"
    rate: str | None = None
    rate_max_gap: str | None = None
    into: str | None = None
    again: Again = False
    name: str | None = None
    archive_directory: Path | None = None
