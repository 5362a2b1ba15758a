"""`quire entitlement`: which entry of a configuration decides about a request."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from quire._errors import ConfigError, QuireError
from quire._quire import explain_entitlement
from quire.cli._app import Json
from quire.cli._config import load
from quire.cli._connect import connect
from quire.cli._options import server_options
from quire.cli._output import print_json
from quire.config import Config
from quire.server._identity import ANONYMOUS, check_name
from quire.server._users import Users

# A type checker sees the text that the function gets.
if TYPE_CHECKING:
    Url = str | None
else:
    Url = server_options("Running server to ask, instead of --config.")

app = App(
    name="entitlement",
    help="Explain the rights of a user.",
    help_format="plaintext",
)


@app.command
def check(
    user: str,
    right: str,
    topic: str,
    /,
    *,
    group: Annotated[
        list[str] | None,
        Parameter(
            negative="",
            help="Group of the user. Repeat it for more. Default: its groups in users_file; with --url, those of its newest connection.",
        ),
    ] = None,
    config: Annotated[
        Path | None, Parameter(help="Configuration file of the server. Default: quire.toml.")
    ] = None,
    url: Url = None,
    json: Json = False,
) -> int:
    """Show the entries up to the one that decides, with the reason why each applies or not.

    With --url, the entries are those of a running server, and the command needs the right monitor on /quire/access.

    Exit codes: 0 the right is granted, 1 it is refused, 2 there is a mistake, or the server does not answer.

    For example:
      quire entitlement check anna read orders
      quire entitlement check anna write orders --group desk --config /etc/quire/quire.toml --json
      quire entitlement check anna read orders --url quires://prod:9007 --user operator

    Parameters
    ----------
    user
        Name of the user.
    right
        One of read, replay, query, write, delete, monitor, admin, replicate.
    topic
        Topic, queue, or resource such as /quire/server.
    """
    if user != ANONYMOUS:
        _check(user, "user")
    groups = [check_name(each, "--group") for each in group] if group else None
    if url is not None:
        if config is not None:
            raise ConfigError("a server has its own configuration: use --config or --url", key="--config")
        explained = _asked(url, {"user": user, "groups": groups, "right": right, "topic": topic})
    else:
        settings = load(Path("quire.toml") if config is None else config)
        if groups is None:
            groups = _groups_of(settings, user)
        explained = json_module.loads(explain_entitlement(settings.to_core(), user, groups, right, topic))
    if json:
        print_json(**explained)
    else:
        _print(explained)
    return 0 if explained["allowed"] else 1


def _asked(url: str, question: dict[str, Any]) -> dict[str, Any]:
    """The answer of a server. A failure has the exit code of a mistake: code 1 means a refusal."""
    try:
        with connect(url) as client:
            return client._explain(question)
    except ConfigError:
        raise
    except QuireError as error:
        raise ConfigError(str(error), key="--url") from None


def _check(name: str, key: str) -> None:
    try:
        check_name(name)
    except ConfigError as error:
        raise ConfigError(error._reason, key=key) from None


def _groups_of(config: Config, user: str) -> list[str]:
    """The groups of a user in the first file of users that has it."""
    tables = [config.authentication_of(transport) for transport in config.transport]
    for table in tables:
        if table.users_file is not None:
            known = Users.load(table.users_file).by_name.get(user)
            if known is not None:
                return list(known.groups)
    return []


def _print(explained: dict[str, Any]) -> None:
    for step in explained["steps"]:
        print(f"entry {step['entry']}: {step['reason']}")
    number, allowed = explained["entry"], explained["allowed"]
    if number is None and allowed:
        print("allowed: the configuration has no entry")
    elif number is None:
        print("refused: no entry applies")
    else:
        parts = [f"{'allowed' if allowed else 'refused'} by entry {number}"]
        parts += [f"{key} {explained[key]}" for key in ("filter", "select") if explained[key] is not None]
        print(", ".join(parts))
