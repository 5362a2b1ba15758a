"""`quire view`: the sources and the state of a view, and its definition (docs/views.md)."""

from __future__ import annotations

import re
import tomllib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cyclopts import App

import quire
from quire.cli._app import Json, Url
from quire.cli._connect import connect
from quire.cli._output import print_json, print_table, say
from quire.config._last_values import View, view_of
from quire.config._locate import line_of, path_text, place_of

app = App(
    name="view", help="Show what a view reads and keeps, and replace its definition.", help_format="plaintext"
)

_SUM = ("the exact sum", "constant")
_SQUARES = ("the exact sums of the values and of their squares", "constant")
_VALUES = ("each different value with its number", "logarithmic in the different values")

#: The state of a group for an aggregate, and the time of a change.
_STATES = {
    "ANY": _VALUES,
    "AVG": _SUM,
    "COUNT": ("a number", "constant"),
    "COUNT_DISTINCT": _VALUES,
    "DISTINCT_LIST": (_VALUES[0], "the size of the list"),
    "MAX": _VALUES,
    "MIN": _VALUES,
    "STDDEV_POP": _SQUARES,
    "STDDEV_SAMP": _SQUARES,
    "SUM": _SUM,
    "VAR_POP": _SQUARES,
    "VAR_SAMP": _SQUARES,
}


@app.command
def explain(name: str, *, url: Url = None, json: Json = False) -> int:
    """Show what a view reads and keeps, and what a change of each of its topics costs.

    A change of a topic removes and adds the combinations that have the record.
    `combinations` is their average number.
    A view of one topic has one combination for each record that its filter selects.
    `defined_by` tells whether the definition is that of the configuration, or was replaced.

    For example:
      quire view explain exposure
      quire view explain exposure --json | jq '.joins[] | {child, keys, memory_bytes}'

    Parameters
    ----------
    name
        Name of the view.
    """
    with connect(url) as client:
        described = client._described_of([name])
    values = described[0]["last_values"] if described else None
    if values is None or "view" not in values:
        raise quire.QuireError(f"the server has no view {name!r}; `quire topic ls` lists the topics")
    explained = _explained(name, values)
    if json:
        print_json(**explained)
        return 0
    _print(explained)
    return 0


@app.command
def replace(name: str, file: Path, *, url: Url = None, timeout: str = "1h", json: Json = False) -> int:
    """Replace the definition of a view while the server runs.

    The file has the keys of one [[view]], with or without the head of the table. It can be a whole configuration.
    The server builds the new records next to the old ones. Then subscribers get the difference.
    The definition survives a restart, until the [[view]] in the configuration of the server is edited.
    Write it there, too: then both are the same.

    For example:
      quire view replace exposure exposure.toml
      quire view replace exposure quire.toml --timeout 10m

    Parameters
    ----------
    name
        Name of the view.
    file
        TOML file with the definition.
    timeout
        Time to wait until the view has its new records. The server continues after it.
    """
    text, place, settings = _definition(name, file)
    given = view_of({"message_type": "json", **settings, "name": name}, file, text, place)
    options: Any = given.model_dump(exclude={"name"}, include={*settings})
    with connect(url) as client:
        try:
            changed = client.define_view(name, timeout=timeout, **options)
        except quire.ConfigError as error:
            raise _in_file(error, file, text, place) from error
    if json:
        print_json(view=name, changed=changed)
    else:
        say(f"view {name} has the definition of {file}" if changed else f"view {name} had this definition")
    return 0


def _definition(name: str, file: Path) -> tuple[str, tuple[str | int, ...], dict[str, Any]]:
    """The text of the file, the place of the definition in it, and its keys."""
    text = file.read_text(encoding="utf-8")
    try:
        settings = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise quire.ConfigError(str(error), file=file) from None
    views = settings.get("view")
    if views is None:
        if settings.get("name", name) != name:
            raise quire.ConfigError(
                f"{settings['name']!r} is not the view {name!r}",
                key="name",
                file=file,
                line=line_of(text, ("name",)),
            )
        return text, (), settings
    views = views if isinstance(views, list) else [views]
    for number, view in enumerate(views):
        if isinstance(view, dict) and view.get("name") == name:
            return text, ("view", number), view
    raise quire.ConfigError(f"the file has no [[view]] with the name {name!r}", key="view", file=file)


def _in_file(
    error: quire.ConfigError, file: Path, text: str, place: tuple[str | int, ...]
) -> quire.ConfigError:
    """A mistake that the server found, with its line."""
    found = re.match(r"((\w+)(?:\[\d+\])?): (.*)", str(error), re.DOTALL)
    if found is None or found[2] not in View.model_fields or found[2] == "name":
        return error
    own = (*place, *place_of(found[1]))
    return quire.ConfigError(found[3], key=path_text(own), file=file, line=line_of(text, own))


def _explained(name: str, values: dict[str, Any]) -> dict[str, Any]:
    view = values["view"]
    combinations = view["combinations"]
    return {
        "view": name,
        "defined_by": _defined_by(view["replaced_ns"]),
        "projection": view["projection"],
        "grouping": values["key"],
        "filter": view["filter"],
        "join": values.get("join", []),
        "inline_conflation": view["inline_conflation"],
        "records": values["records"],
        "groups": view["groups"],
        "combinations": combinations,
        "memory_bytes": values["memory"],
        "groups_memory_bytes": view["groups_memory"],
        "waiting_changes": values["waiting_changes"],
        "behind_s": values["behind_s"],
        "sources": [
            {
                "topic": source["topic"],
                "records": source["records"],
                "memory_bytes": source["memory"],
                "combinations_per_change": combinations / source["records"] if source["records"] else 0.0,
            }
            for source in view["sources"]
        ],
        "joins": [
            {
                "parent": join["parent"],
                "child": join["child"],
                "keys": join["keys"],
                "memory_bytes": join["memory"],
            }
            for join in view["joins"]
        ],
        "aggregates": [
            {"aggregate": kind, "keeps": _STATES[kind][0], "cost": _STATES[kind][1]}
            for kind in view["aggregates"]
        ],
    }


def _defined_by(replaced_ns: int | None) -> str:
    if replaced_ns is None:
        return "the configuration"
    time = datetime.fromtimestamp(replaced_ns // 1_000_000_000, UTC)
    return f"define_view at {time:%Y-%m-%dT%H:%M:%SZ}"


def _print(explained: dict[str, Any]) -> None:
    lists = ("sources", "joins", "aggregates")
    shown = {key: value for key, value in explained.items() if key not in (*lists, "view")}
    for key in ("projection", "grouping", "join"):
        shown[key] = ", ".join(shown[key]) or "none"
    shown["filter"] = shown["filter"] or "none"
    shown["inline_conflation"] = "yes" if shown["inline_conflation"] else "no"
    print_table(["view", explained["view"]], [[key.replace("_", " "), value] for key, value in shown.items()])
    headings = {
        "sources": ["source", "records", "memory bytes", "combinations per change"],
        "joins": ["index of", "joined with", "keys", "memory bytes"],
        "aggregates": ["aggregate", "keeps for each group", "cost of a change"],
    }
    for key in lists:
        if explained[key]:
            print()
            rows = [[_shown(cell) for cell in each.values()] for each in explained[key]]
            print_table(headings[key], rows)


def _shown(cell: Any) -> Any:
    return f"{cell:.1f}" if isinstance(cell, float) else cell
