"""`quire stats`: a node of the statistics, by the client port of a server or from its file."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import quire
from quire._errors import ConfigError, QuireError
from quire.admin import _forms, _nodes
from quire.admin._errors import HTTPError
from quire.admin._figures import Tree, collections_of
from quire.admin._metrics import NODE_AT, NODES, Node
from quire.admin._nodes import LISTS, Place
from quire.admin._statistics import History
from quire.admin._times import milliseconds, span
from quire.cli._connect import connect
from quire.cli._output import print_table

Form = Literal["table", "json", "csv", "xml"]


def stats(
    path: str, *, url: str | None, file: Path | None, begin: str | None, end: str | None, form: Form
) -> int:
    place = _place_of(path)
    is_history = begin is not None or end is not None
    if is_history and (place.metric is None or place.node is None):
        raise ConfigError("only one metric has samples, such as queues/jobs/depth", key="--from")
    times = span(begin, end, ("--from", "--to"))
    if file is not None:
        if url is not None:
            raise ConfigError("--file and --url exclude each other", key="--file")
        try:
            return _stats_of_file(file, place, times if is_history else None, form)
        except (sqlite3.Error, ValueError) as error:
            raise QuireError(f"{file}: it is damaged, or has no statistics: {error}") from None
        except LookupError as error:
            raise QuireError(f"{file}: {error.args[0]}") from None
    with connect(url) as client:
        if is_history:
            _print_samples(place, _samples_of_server(client, place, *times), form)
        else:
            _print_value(place, _value_of_server(client, place), "", form)
    return 0


def _stats_of_file(file: Path, place: Place, times: tuple[int | None, int | None] | None, form: Form) -> int:
    history = History.of_file(file)
    if times is not None:
        assert place.metric is not None
        assert place.node is not None
        begin, end = times
        samples = history.samples(
            place.node, place.id or "", place.metric, is_rate=place.is_rate, begin=begin, end=end
        )
        _print_samples(place, samples, form)
        return 0
    at, tree = history.latest()
    try:
        _print_value(place, _value_in(tree, place), at, form)
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


def _value_of_server(client: quire.Client, place: Place) -> Any:
    """A node, as the server knows it now. Long lists come in parts, by their own commands."""
    if place.path in LISTS or _nodes.resource_of(place.path) != "/quire/server":
        try:
            return _value_in(collections_of(_lists(client, place)), place)
        except HTTPError as error:
            raise QuireError(error.reason) from None
    value = _asked(client, {"path": place.encoded})["value"]
    below = [node.path for node in NODES if node.path.startswith(place.path + "/")]
    if any(path in LISTS for path in below):
        # The answer has no long lists.
        lists = collections_of(_lists(client, place))
        for path in below:
            if path in lists:
                *above, name = path.removeprefix(place.path + "/").split("/")
                at = value
                for part in above:
                    at = at.setdefault(part, {})
                node = NODE_AT[path]
                at[name] = {**lists[path]} if node.id is None else _nodes.objects_of(node, lists, {})
    return value


def _lists(client: quire.Client, place: Place) -> dict[str, Any]:
    """The lists of a server that a node needs."""
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
    if "instance/clients" in wanted:
        core["clients"] = client._clients()
    if "instance/subscriptions" in wanted:
        core["all_subscriptions"] = client._subscription_figures()
    if {"instance/topics", "instance/last_values", "instance/views"} & {*wanted}:
        core["topics"] = client._topics()
    if "instance/queues" in wanted:
        core["queues"] = client.queue_stats()
    if any(_nodes.resource_of(path) == "/quire/replication" for path in wanted):
        core["replication"] = client._replication()
    return core


def _samples_of_server(
    client: quire.Client, place: Place, begin: int | None, end: int | None
) -> list[tuple[str, Any]]:
    """The samples of a metric. The server sends them in parts."""
    samples: list[tuple[str, Any]] = []
    while True:
        answer = _asked(client, {"path": place.encoded, "begin": begin, "end": end})
        samples += [(at, value) for at, value in answer["samples"]]
        if not answer["more"]:
            return samples
        begin = milliseconds(samples[-1][0], "--from") + 1


def _asked(client: quire.Client, question: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return client._statistics(question)
    except ConfigError as error:
        # The path is that of the user, and no option is wrong.
        raise QuireError(error._reason) from None


def _value_in(tree: Tree, place: Place) -> Any:
    """A node of a tree. Raises `HTTPError` when it is not there."""
    if place.metric is not None:
        return _nodes.metrics_of(place, tree, {}).get(place.path.rpartition("/")[2])
    if place.id is not None:
        return _nodes.metrics_of(place, tree, {})

    def objects_at(node: Node) -> list[dict[str, Any]]:
        return [tree.get(node.path, {})] if node.id is None else _nodes.objects_of(node, tree, {})

    return _forms.subtree(place, objects_at, lambda path: True)


def _print_value(place: Place, value: Any, at: str, form: Form) -> None:
    if place.metric is not None:
        name = place.path.rpartition("/")[2]
        _print(place, _forms.leaf(place, value, at), [{"timestamp": at, name: value}], form)
    else:
        _print(place, value, value if isinstance(value, list) else [value], form)


def _print_samples(place: Place, samples: list[tuple[str, Any]], form: Form) -> None:
    name = place.path.rpartition("/")[2]
    at = samples[-1][0] if samples else ""
    rows = [{"timestamp": time, name: value} for time, value in samples]
    _print(place, _forms.leaf(place, samples, at), rows, form, ["timestamp", name])


def _print(
    place: Place, value: Any, rows: list[dict[str, Any]], form: Form, head: list[str] | None = None
) -> None:
    """`head`: the names of the columns. Default: those of the rows."""
    match form:
        case "json":
            _write(_forms.to_json(value) + b"\n")
        case "xml":
            _write(_forms.to_xml(f"/quire/{place.path}", value))
        case "csv":
            is_table = place.is_collection and place.node is not None
            if is_table and place.node is not None:
                head = _forms.head_of(place.node)
            _write(_forms.to_csv(rows, head or _head(rows)))
        case _:
            _print_table(place, rows, head)


def _print_table(place: Place, rows: list[dict[str, Any]], head: list[str] | None) -> None:
    if place.is_collection or place.metric is not None:
        head = head or _head(rows)
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
