"""Finds a node of the tree by its path."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote

from quire.admin._errors import HTTPError
from quire.admin._figures import Tree
from quire.admin._metrics import DETAILS, NODE_AT, NODES, Metric, Node

#: Lists that can be long, and that clients get in parts.
LISTS = ("instance/topics", "instance/queues", "instance/last_values", "instance/views")

#: The resources of the nodes: each part of the tree needs the right `monitor` on one of them.
RESOURCES = ("/quire/server", "/quire/clients", "/quire/replication")

#: The forms of an answer, by the end of the path.
FORMS = ("json", "xml", "csv")


@dataclass(frozen=True)
class Place:
    """A node that a request names."""

    #: Its path below `/quire`, with the ids as they are.
    path: str
    #: The node of the table; `None`: it only has children.
    node: Node | None = None
    #: The id, when it is an object of a collection or a metric of one.
    id: str | None = None
    #: The metric, when it is a leaf.
    metric: Metric | None = None
    #: The leaf is the rate of the metric.
    is_rate: bool = False

    @property
    def is_collection(self) -> bool:
        """Whether it is a list of objects."""
        return self.node is not None and self.node.id is not None and self.id is None

    @property
    def is_subtree(self) -> bool:
        """Whether it has nodes below it. The user may lack the right to some of them."""
        return self.metric is None and self.id is None and not self.is_collection

    @property
    def resources(self) -> tuple[str, ...]:
        """The resources on which the right `monitor` is needed to see it."""
        resource = resource_of(self.path)
        # The consumers of a queue are clients.
        return (resource, "/quire/clients") if self.metric is DETAILS else (resource,)

    @property
    def encoded(self) -> str:
        """The path as a request has it: a slash of an id does not separate parts."""
        if self.node is None or self.id is None:
            return self.path
        last = [] if self.metric is None else [self.path.rpartition("/")[2]]
        return "/".join([self.node.path, encoded(self.id), *last])


def split(raw_path: str) -> tuple[list[str], str | None]:
    """Splits the path of a request below `/quire` into its parts and the form of the answer.

    The dots of an id are percent-encoded, so an id that ends with `.json` is not taken for a form.
    """
    parts = [part for part in raw_path.split("/") if part]
    form = None
    if parts:
        name, dot, end = parts[-1].rpartition(".")
        if dot and end in FORMS:
            parts[-1], form = name, end
    return [unquote(part) for part in parts if part], form


def encoded(part: str) -> str:
    """An id as a part of a path."""
    return quote(part, safe="").replace(".", "%2E")


def find(parts: list[str]) -> Place:
    """Returns the node with these parts of a path. Raises `HTTPError` when there is none."""
    path = "/".join(parts)
    if path in NODE_AT:
        return Place(path, NODE_AT[path])
    if not path or any(node.path.startswith(path + "/") for node in NODES):
        return Place(path)
    above, name = "/".join(parts[:-1]), parts[-1]
    node = NODE_AT.get(above)
    if node is not None and node.id is not None:
        return Place(path, node, name)
    if node is not None and (found := node.metric(name)) is not None:
        return Place(path, node, None, *found)
    node = NODE_AT.get("/".join(parts[:-2])) if len(parts) > 2 else None
    if node is not None and node.id is not None and (found := node.metric(name)) is not None:
        return Place(path, node, parts[-2], *found)
    raise not_found(path)


def not_found(path: str) -> HTTPError:
    """The error for a path that no node has."""
    return HTTPError(404, "not_found", f"/quire/{path} does not exist", "docs/admin.md lists the tree")


def children(path: str) -> list[str]:
    """The names of the nodes below a path."""
    below = f"{path}/" if path else ""
    names = {node.path[len(below) :].split("/")[0] for node in NODES if node.path.startswith(below)}
    names.discard("")
    order = [node.path[len(below) :].split("/")[0] for node in NODES if node.path.startswith(below)]
    return sorted(names, key=order.index)


def metrics_of(place: Place, tree: Tree, rates: Tree) -> dict[str, Any]:
    """The metrics and the rates of one object. Raises `HTTPError` when a collection does not have it."""
    assert place.node is not None
    values, speeds = tree.get(place.node.path, {}), rates.get(place.node.path, {})
    if place.node.id is not None:
        if place.id not in values:
            raise not_found(place.path)
        values, speeds = values[place.id], speeds.get(place.id, {})
    return {**values, **speeds}


def objects_of(node: Node, tree: Tree, rates: Tree) -> list[dict[str, Any]]:
    """The objects of a collection, with their ids."""
    speeds = rates.get(node.path, {})
    return [{"id": id} | values | speeds.get(id, {}) for id, values in tree.get(node.path, {}).items()]


def resource_of(path: str) -> str:
    """The resource on which the right `monitor` is needed to see a node."""
    for part in ("clients", "subscriptions"):
        if path == f"instance/{part}" or path.startswith(f"instance/{part}/"):
            return "/quire/clients"
    if path == "instance/replication" or path.startswith("instance/replication/"):
        return "/quire/replication"
    return "/quire/server"
