"""`quire entitlement`: which entry of a configuration decides about a request."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

from quire._errors import ConfigError
from quire._quire import explain_entitlement
from quire.cli._app import Json
from quire.cli._config import load
from quire.cli._output import print_json
from quire.config import Config
from quire.server._identity import ANONYMOUS, check_name
from quire.server._users import Users

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
    *,
    group: Annotated[
        list[str] | None,
        Parameter(
            negative="", help="Group of the user. Repeat it for more. Default: its groups in users_file."
        ),
    ] = None,
    config: Annotated[Path, Parameter(help="Configuration file of the server.")] = Path("quire.toml"),
    json: Json = False,
) -> int:
    """Show the entries up to the one that decides, with the reason why each applies or not.

    Exit codes: 0 the right is granted, 1 it is refused, 2 there is a mistake in the arguments or in the file.

    For example:
      quire entitlement check anna read orders
      quire entitlement check anna write orders --group desk --config /etc/quire/quire.toml --json

    Parameters
    ----------
    user
        Name of the user.
    right
        One of read, replay, query, write, delete, monitor, admin, replicate.
    topic
        Topic, queue, or resource such as /quire/server.
    """
    settings = load(config)
    if user != ANONYMOUS:
        _check(user, "user")
    groups = [check_name(each, "--group") for each in group] if group else _groups_of(settings, user)
    explained: dict[str, Any] = json_module.loads(
        explain_entitlement(settings.to_core(), user, groups, right, topic)
    )
    if json:
        print_json(**explained)
    else:
        _print(explained)
    return 0 if explained["allowed"] else 1


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
