"""`quire view`: the sources and the state of a view (docs/views.md)."""

from __future__ import annotations

from typing import Any

from cyclopts import App

import quire
from quire.cli._app import Json, Url
from quire.cli._connect import connect
from quire.cli._output import print_json, print_table

app = App(name="view", help="Show what a view reads and keeps.", help_format="plaintext")

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


def _explained(name: str, values: dict[str, Any]) -> dict[str, Any]:
    view = values["view"]
    combinations = view["combinations"]
    return {
        "view": name,
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
