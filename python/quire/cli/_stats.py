"""`quire stats`: a node of the statistics, by the client port of a server or from its file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Literal

from quire._errors import ConfigError, QuireError
from quire.admin import _forms, _nodes
from quire.admin._errors import HTTPError
from quire.admin._figures import Tree, collections_of
from quire.admin._metrics import NODES, Node
from quire.admin._nodes import Place
from quire.admin._statistics import History
from quire.admin._times import span
from quire.cli._connect import connect
from quire.cli._output import print_table

Form = Literal["table", "json", "csv", "xml"]


def stats(
    path: str, *, url: str | None, file: Path | None, begin: str | None, end: str | None, form: Form
) -> int:
    place = _place_of(path)
    if file is None:
        if begin is not None or end is not None:
            raise ConfigError("samples are only in a file: add --file", key="--from" if begin else "--to")
        at, tree = "", _tree_of_server(url, place)
    else:
        if url is not None:
            raise ConfigError("--file and --url exclude each other", key="--file")
        history = History.of_file(file)
        if begin is not None or end is not None:
            return _print_samples(history, place, *span(begin, end, ("--from", "--to")), form)
        at, tree = history.latest()
    try:
        _print_node(place, tree, at, form)
    except HTTPError as error:
        raise QuireError(error.reason) from None
    return 0


def _place_of(path: str) -> Place:
    parts, _ = _nodes.split(path.removeprefix("/quire"))
    if parts[:1] not in (["instance"], ["host"]):
        parts.insert(0, "instance")
    try:
        return _nodes.find(parts)
    except HTTPError as error:
        raise QuireError(f"{error.reason}; {error.hint}") from None


def _tree_of_server(url: str | None, place: Place) -> Tree:
    """The collections of a server, as far as the node needs them."""
    core: dict[str, Any] = {
        "clients": [],
        "all_subscriptions": [],
        "topics": [],
        "queues": {},
        "replication": {"destinations": [], "sources": []},
    }
    wanted = [node.path for node in NODES if node.path.startswith(place.path)] or [
        node.path for node in NODES if place.path.startswith(node.path + "/")
    ]
    with connect(url) as client:
        if "instance/clients" in wanted:
            core["clients"] = client._clients()
        if "instance/subscriptions" in wanted:
            core["all_subscriptions"] = client._subscription_figures()
        if {"instance/topics", "instance/last_values"} & {*wanted}:
            core["topics"] = client._topics()
        if "instance/queues" in wanted:
            core["queues"] = client.queue_stats()
        if "instance/replication/destinations" in wanted or "instance/replication/sources" in wanted:
            core["replication"] = client._replication()
    tree = collections_of(core)
    if place.node is not None and place.node.path not in tree and place.path != "instance":
        raise QuireError(
            f"/quire/{place.path} is not known to clients; use --file with the statistics of the server, or its HTTP server"
        )
    return tree


def _print_node(place: Place, tree: Tree, at: str, form: Form) -> None:
    if place.metric is not None:
        name = place.path.rpartition("/")[2]
        value = _nodes.metrics_of(place, tree, {}).get(name)
        _print(place, _forms.leaf(place, value, at), [{"timestamp": at, name: value}], form)
        return
    if place.id is not None:
        found: Any = _nodes.metrics_of(place, tree, {})
    else:

        def objects_at(node: Node) -> list[dict[str, Any]]:
            return [tree.get(node.path, {})] if node.id is None else _nodes.objects_of(node, tree, {})

        found = _forms.subtree(place, objects_at, lambda path: True)
    _print(place, found, found if isinstance(found, list) else [found], form)


def _print_samples(history: History, place: Place, begin: int | None, end: int | None, form: Form) -> int:
    if place.metric is None or place.node is None:
        raise ConfigError("only one metric has samples, such as queues/jobs/depth", key="--from")
    samples = history.samples(
        place.node, place.id or "", place.metric, is_rate=place.is_rate, begin=begin, end=end
    )
    name = place.path.rpartition("/")[2]
    at = samples[-1][0] if samples else ""
    rows = [{"timestamp": time, name: value} for time, value in samples]
    _print(place, _forms.leaf(place, samples, at), rows, form)
    return 0


def _print(place: Place, value: Any, rows: list[dict[str, Any]], form: Form) -> None:
    match form:
        case "json":
            _write(_forms.to_json(value) + b"\n")
        case "xml":
            _write(_forms.to_xml(f"/quire/{place.path}", value))
        case "csv":
            is_table = place.is_collection and place.node is not None
            head = _forms.head_of(place.node) if is_table and place.node is not None else _head(rows)
            _write(_forms.to_csv(rows, head))
        case _:
            _print_table(place, rows)


def _print_table(place: Place, rows: list[dict[str, Any]]) -> None:
    if place.is_collection or place.metric is not None:
        head = _head(rows)
        print_table(head, [[_shown(row.get(name)) for name in head] for row in rows])
        return
    members = [(name, value) for row in rows for name, value in row.items()]
    print_table(["name", "value"], [[name, _shown(value)] for name, value in members])


def _shown(value: Any) -> Any:
    if isinstance(value, list):
        return f"{len(value)} objects"
    if isinstance(value, dict):
        return ", ".join(value)
    return "" if value is None else value


def _head(rows: list[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row)) or ["id"]


def _write(data: bytes) -> None:
    sys.stdout.write(data.decode("utf-8", "replace"))
    sys.stdout.flush()
