"""`quire replication`: the links of a running server to other instances."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

import quire
from quire._arguments import LinkAction
from quire._units import counted
from quire.cli._app import Json, Url
from quire.cli._compare import Compared, compared, described
from quire.cli._connect import connect
from quire.cli._instances import add, replace, retire
from quire.cli._options import server_options
from quire.cli._output import note, print_json, print_table, say

if TYPE_CHECKING:
    Urls = list[str]
else:
    Urls = server_options("Server to compare: two or more.", has_many=True)

app = App(
    name="replication",
    help="Show the links of a server to other instances; downgrade, upgrade, pause and resume destinations; "
    "let clients in; accept lost messages; compare servers; add, retire and replace instances.",
    help_format="plaintext",
)
app.command(add)
app.command(retire)
app.command(replace)

#: The columns of `replication ls`: key, heading.
COLUMNS = (
    ("direction", "direction"),
    ("name", "instance"),
    ("state", "state"),
    ("sync_type", "sync type"),
    ("position", "acknowledged"),
    ("behind", "seconds behind"),
    ("conflicts", "conflicts"),
    ("user", "user"),
    ("last_error", "last error"),
)


@app.command(name="ls")
def ls(*, url: Url = None, json: Json = False) -> int:
    """List the destinations of a server, and the instances that send to it.

    For example:
      quire replication ls
      quire replication ls --json | jq 'select(.seconds_behind > 10).name'
    """
    with connect(url) as client:
        links = client._replication()
    destinations = [{"direction": "to", **link} for link in links["destinations"]]
    sources = [{"direction": "from", **link} for link in links["sources"]]
    if json:
        for link in (*destinations, *sources):
            print_json(**link)
        return 0
    print_table([heading for _, heading in COLUMNS], [_row(link) for link in (*destinations, *sources)])
    # Not among the rows, which programs read.
    note(f"state: {links['state']}")
    note_filling(links)
    return 0


def note_filling(links: dict[str, Any]) -> None:
    """Says that the log of a server may lack messages, and which instances were not heard."""
    if links["state"] == "filling":
        clients = "a command has let clients in" if links["admitted"] else "clients are not let in"
        note(f"the log may lack messages, and {clients}; not heard: {described(links['not_heard'])}")


@app.command(name="admit")
def admit(*, url: Url = None, json: Json = False) -> int:
    """Let clients in although the server may lack messages of other instances.

    The server takes no clients while its log is filled: after its first start, or after it lost a part of its log.
    The command names the instances from which not everything has come, and the last message of each that is known.
    Their messages may be missing. The server records them when they arrive, after later messages.

    For example:
      quire replication admit
      quire replication admit --json | jq -r .name
    """
    with connect(url) as client:
        before = client._replication()
        links = client._replicate("", "admit")
    if json:
        for member in links["not_heard"]:
            print_json(**member)
    elif links["state"] != "filling" or before["admitted"]:
        say(f"{links['name']}: clients were let in before")
    else:
        say(
            f"{links['name']}: clients are let in; messages may be missing of {described(links['not_heard'])}"
        )
    return 0


@app.command(name="accept")
def accept(
    *,
    publisher: Annotated[
        tuple[int, ...],
        Parameter(help="Only the messages of this publisher: the first part of a bookmark. May be repeated."),
    ] = (),
    url: Url = None,
    json: Json = False,
) -> int:
    """Accept that messages which are missing at a server are lost.

    A server has the state `gap` when its log lacks messages that no instance which sends to it has.
    The command lists these messages by publisher and sequence, and the server forgets that they are missing.
    Subscribers never receive them from it. They are recorded if they arrive after all.
    Each instance has its own gap. Start the instances that may have the messages before you accept it.

    For example:
      quire replication accept
      quire replication accept --publisher 1234567890 --json | jq .first
    """
    with connect(url) as client:
        links = before = client._replication()
        for each in publisher or ("",):
            links = client._replicate(str(each), "accept")
    rows = [
        {key: each[key] for key in ("publisher", "first", "last")}
        | {"messages": each["last"] - each["first"] + 1}
        for each in before["missing_ranges"]
        if not publisher or each["publisher"] in publisher
    ]
    if json:
        for row in rows:
            print_json(**row)
    elif rows:
        print_table(list(rows[0]), [list(row.values()) for row in rows])
    count = before["missing"] - links["missing"]
    # Of many ranges, the first ones are listed.
    if (more := count - sum(row["messages"] for row in rows)) > 0:
        note(f"{counted(more, 'further message')} of further ranges; the log of the server has some of them")
    tell = note if json else say
    if count:
        tell(f"{links['name']}: {counted(count, 'message')} accepted as lost; state: {links['state']}")
    else:
        tell(f"{links['name']}: nothing to accept; {counted(links['missing'], 'message')} missing")
    return 0


@app.command(name="stats")
def stats(name: str, *, url: Url = None, json: Json = False) -> int:
    """Show all figures of one destination or source.

    For example:
      quire replication stats east-2
      quire replication stats east-2 --json | jq .seconds_behind

    Parameters
    ----------
    name
        Name of the instance.
    """
    with connect(url) as client:
        links = client._replication()
    found = [
        {"direction": direction, **link}
        for direction, key in (("to", "destinations"), ("from", "sources"))
        for link in links[key]
        if link["name"] == name
    ]
    if not found:
        raise quire.QuireError(
            f"the server has no link to or from {name!r}; `quire replication ls` lists the links"
        )
    for link in found:
        if json:
            print_json(**link)
        else:
            rows = [[key.replace("_", " "), _text(value)] for key, value in link.items()]
            print_table(["link", name], rows)
    return 0


@app.command(name="downgrade")
def downgrade(destination: str, *, url: Url = None) -> int:
    """Confirm publishes without a sync destination, until it is upgraded.

    For example:
      quire replication downgrade east-2

    Parameters
    ----------
    destination
        Name of the destination.
    """
    return _set_waited_for(destination, url, "downgrade")


@app.command(name="upgrade")
def upgrade(destination: str, *, url: Url = None) -> int:
    """Wait for a downgraded destination again before publishes are confirmed.

    For example:
      quire replication upgrade east-2

    Parameters
    ----------
    destination
        Name of the destination.
    """
    return _set_waited_for(destination, url, "upgrade")


@app.command(name="pause")
def pause(destination: str, *, url: Url = None) -> int:
    """Send nothing to a destination until it is resumed or the server is restarted.

    The journal keeps the files that the destination needs.
    Publishers wait for a sync destination as before. Downgrade it so that they do not wait.

    For example:
      quire replication pause east-2

    Parameters
    ----------
    destination
        Name of the destination.
    """
    _act(destination, url, "pause")
    say(f"{destination}: paused, nothing is sent to it")
    return 0


@app.command(name="resume")
def resume(destination: str, *, url: Url = None) -> int:
    """Connect to a paused destination, and send it what it lacks.

    A destination with a gap gets the records that are still in the journal.

    For example:
      quire replication resume east-2

    Parameters
    ----------
    destination
        Name of the destination.
    """
    _act(destination, url, "resume")
    say(f"{destination}: resumed")
    return 0


@app.command(name="verify")
def verify(
    *,
    url: Urls,
    limit: Annotated[
        int, Parameter(help="Messages that differ after which the comparison of two servers ends.")
    ] = 100_000,
    repair: Annotated[
        bool,
        Parameter(help="Before, let the links of each server fetch the messages that it lacks.", negative=""),
    ] = False,
    json: Json = False,
) -> int:
    """Compare the messages of servers, and list the ones that differ. Exits with 1 when some do.

    The first server is compared with each other one.
    Messages that are published or sent during the comparison can be listed.
    Repeat the command: lasting differences are listed again.
    Messages that no link sends are listed as missing.

    For example:
      quire replication verify --url quire://east-1:9007 --url quire://east-2:9007
      quire replication verify --url quire://east-1:9007 --url quire://east-2:9007 --json | jq .first
      quire replication verify --url quire://east-1:9007 --url quire://east-2:9007 --repair
    """
    if len(url) < 2:
        raise quire.ConfigError("two servers or more are required", key="--url")
    if limit < 1:
        raise quire.ConfigError("must be 1 or more", key="--limit")
    with contextlib.ExitStack() as connections:
        # Before the first comparison, so that one server that is away costs no time.
        first, *others = [Compared(each, connections.enter_context(connect(each))) for each in url]
        if repair:
            for server in (first, *others):
                server.repair()
        return max([compared(first, other, limit).show(limit, json=json) for other in others])


def _act(destination: str, url: str | None, action: LinkAction) -> dict[str, Any]:
    """Changes the link to a destination, and returns its figures."""
    with connect(url) as client:
        try:
            links = client._replicate(destination, action)
        except quire.ConfigError as error:
            # The command is right. The server has no such destination, or its link is in another
            # state.
            raise quire.QuireError(str(error)) from None
    (link,) = (link for link in links["destinations"] if link["name"] == destination)
    return dict(link)


def _set_waited_for(destination: str, url: str | None, action: LinkAction) -> int:
    link = _act(destination, url, action)
    say(f"{destination}: publishers {'wait' if link['sync_type'] == 'sync' else 'do not wait'} for it")
    return 0


def _row(link: dict[str, Any]) -> list[object]:
    row = {
        **link,
        "sync_type": _sync_type(link),
        "position": link["acknowledged"],
        "behind": round(link["seconds_behind"], 1) if "seconds_behind" in link else "",
    }
    return [_text(row.get(key)) for key, _ in COLUMNS]


def _sync_type(link: dict[str, Any]) -> str | None:
    """How publishers wait, and whether the configuration says otherwise."""
    now = link.get("sync_type")
    return f"{now} (downgraded)" if now == "async" and link.get("configured_sync_type") == "sync" else now


def _text(value: object) -> object:
    return "" if value is None else value
