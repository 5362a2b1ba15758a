"""The figures of the server in the form of the tree: by the paths of the nodes of `_metrics.py`."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from quire._text import without_secrets
from quire.admin import _host
from quire.admin._host import Host, timestamp
from quire.admin._metrics import NODE_AT, NODES, RATE, Node
from quire.config import Config

#: By the path of a node: its metrics, or those of each object of a collection by its id.
Tree = dict[str, Any]
#: The age of figures that an answer may have, in seconds.
AGE_MAX: Final = 1.0
#: Messages in the hands of subscriptions that the details of a queue have.
HELD_MAX: Final = 1000

State = Literal["starting", "recovering", "running", "stopping"]


class Figures:
    """Asks the core for its figures, at most once a second however many answers need them."""

    def __init__(self, config: Config, ask_core: Callable[[], str | None]) -> None:
        """`ask_core`: returns every figure of the core as JSON; `None`: it does not run."""
        self._config = config
        self._ask_core = ask_core
        self._host = Host()
        self._started = time.time()
        self._lock = threading.Lock()
        #: The last figures, and the time at which they become too old.
        self._last: tuple[Tree, float] = {}, 0.0
        self._fixed = _fixed(config, self._started)
        #: The durations of syncs, and those of publishes until they were persisted.
        self.syncs = self.persisted = Durations([], [0], 0.0)
        #: The rates of the last interval, by the path of the node.
        self.rates: Tree = {}
        #: The addresses of the transports, and those that accept connections.
        self.transports: Mapping[str, str] = {}
        self.enabled: Callable[[], Collection[str]] = tuple
        self.state: State = "starting"
        #: The starts, stops and crashes.
        self.lifetimes: list[dict[str, str]] = []
        #: Further figures, by the paths of nodes.
        self.more: Callable[[], Tree] = dict
        #: Returns the messages of a queue that subscriptions hold: those that were delivered first,
        #: up to a number, as JSON.
        self.ask_held: Callable[[str, int], str] = lambda queue, limit: "[]"

    def current(self) -> Tree:
        """Returns figures that are at most a second old. It may wait for a turn of the server."""
        with self._lock:
            if (known := self.known()) is not None:
                return known
            tree = self._read(is_sample=False)
            self._last = tree, time.monotonic() + AGE_MAX
            return tree

    def known(self) -> Tree | None:
        """Returns figures that are at most a second old, without waiting; `None`: there are none."""
        tree, until = self._last
        return tree if time.monotonic() < until else None

    def take(self) -> Tree:
        """Asks for the figures of a sample."""
        with self._lock:
            return self._read(is_sample=True)

    def _read(self, *, is_sample: bool) -> Tree:
        text = self._ask_core()
        now = time.time()
        tree: Tree = {node.path: {} for node in NODES}
        tree |= self._host.read(self._directories(), is_sample=is_sample) | self._host.process()
        if text is not None:
            core = json.loads(text)
            self.syncs = Durations.of(core["journal"]["syncs"])
            self.persisted = Durations.of(core["persisted_durations"])
            tree |= _of_core(core, self._config, self.syncs, self.persisted)
        tree["instance"] = self._fixed | {
            "state": self.state,
            "timestamp": timestamp(now),
            "uptime_s": round(now - self._started, 3),
            "lifetimes": self.lifetimes,
        }
        enabled = self.enabled()
        tree["instance/transports"] = {
            transport.name: {
                "address": self.transports.get(transport.name, transport.address),
                "enabled": transport.name in self.transports and transport.name in enabled,
                **tree["instance/transports"].get(transport.name, {}),
            }
            for transport in self._config.transport
        }
        return tree | self.more()

    def details(self, queue: str) -> dict[str, Any]:
        """Returns the subscriptions of a queue, and the messages that they hold. Without data."""
        subscriptions = [
            {"id": id} | each
            for id, each in self.current().get("instance/subscriptions", {}).items()
            if each["kind"] == "queue" and each["topic"] == queue
        ]
        leases = [
            {name: value for name, value in each.items() if name != "subscription"}
            | {"sub_id": each["subscription"]}
            for each in json.loads(self.ask_held(queue, HELD_MAX))
        ]
        return {"subscriptions": subscriptions, "leases": leases}

    def _directories(self) -> dict[str, Path]:
        directories = {"journal": self._config.journal_directory, "data": self._config.data_directory}
        if self._config.limits.disk_limit:
            directories["offline"] = self._config.data_directory / self._config.limits.message_disk_path
        if (archive := self._config.journal_archive_directory) is not None:
            directories["archive"] = archive
        return directories


@dataclass(frozen=True)
class Durations:
    """Durations since the start, by upper bounds in seconds."""

    bounds: list[float]
    #: The number of durations up to each bound and above the one before it, and of longer ones.
    counts: list[int]
    sum: float

    @classmethod
    def of(cls, core: Mapping[str, Any]) -> Durations:
        """Those in an answer of the core."""
        return cls(core["bounds_s"], core["counts"], core["sum_s"])

    def quantile(self, share: float) -> float:
        """The bound below which this share of durations is; the last bound for longer ones."""
        wanted, seen = share * sum(self.counts), 0
        for bound, count in zip(self.bounds, self.counts, strict=False):
            seen += count
            if seen >= wanted:
                return bound if seen else 0.0
        return self.bounds[-1] if self.bounds else 0.0


def rates_of(before: Tree, after: Tree, seconds: float) -> Tree:
    """The rates of the cumulative metrics between two samples, by the paths of the nodes."""
    rates: Tree = {}
    for node in NODES:
        names = [metric.name for metric in node.metrics if metric.kind == "C"]
        if not names:
            continue
        old, new = before.get(node.path, {}), after.get(node.path, {})
        if node.id is None:
            rates[node.path] = _rates_between(names, old, new, seconds)
        else:
            rates[node.path] = {
                key: _rates_between(names, old.get(key, {}), values, seconds) for key, values in new.items()
            }
    return rates


def _rates_between(
    names: list[str], old: Mapping[str, Any], new: Mapping[str, Any], seconds: float
) -> dict[str, float]:
    rates = {}
    for name in names:
        value = new.get(name)
        if value is not None:
            # A counter that is smaller than before has begun at 0 again.
            then = old.get(name) or 0
            rates[name + RATE] = round((value - then if value >= then else value) / seconds, 6)
    return rates


def _fixed(config: Config, started: float) -> dict[str, Any]:
    from quire import __version__

    return {
        "name": config.name,
        "group": config.group or config.name,
        "version": __version__,
        "pid": os.getpid(),
        "cwd": os.getcwd(),
        "user": _host.user_name(),
        "config_path": str(config._source.file or ""),
        # A path that is not UTF-8 is refused later, with its key.
        "config": json.dumps(without_secrets(config.model_dump(exclude_defaults=True)), default=str),
        "started": timestamp(started),
    }


def _of_core(core: dict[str, Any], config: Config, syncs: Durations, persisted: Durations) -> Tree:
    """The figures of the core, by the paths of the nodes."""
    local = {queue.name for queue in config.local_queue}
    for name, queue in core["queues"].items():
        queue["kind"] = "local_queue" if name in local else "queue"
    server, journal = core["server"], core["journal"]
    files = ("active_bytes", "sealed_bytes", "archived_bytes", "compressed_bytes")
    return collections_of(core) | {
        "instance/messages": _chosen(NODE_AT["instance/messages"], core)
        | {"persisted_p50_s": persisted.quantile(0.5), "persisted_p99_s": persisted.quantile(0.99)},
        "instance/disconnects": {
            metric.name: core["disconnects"].get(metric.name, 0)
            for metric in NODE_AT["instance/disconnects"].metrics
        },
        "instance/transports": {
            each["name"]: _chosen(NODE_AT["instance/transports"], each) for each in core["transports"]
        },
        "instance/journal": _chosen(NODE_AT["instance/journal"], journal)
        | {
            "size_bytes": sum(journal[name] for name in files),
            "unpersisted_bytes": core["unpersisted_bytes"],
            "writable": not core["journal_failed"],
            "last": server["persisted"],
            "kept_by": journal["kept_by"] or "",
            "syncs": sum(syncs.counts),
            "sync_p50_s": syncs.quantile(0.5),
            "sync_p99_s": syncs.quantile(0.99),
            "appended": core["appended"],
        },
        "instance/copies": _copies(core["replication"]),
    }


def _copies(links: dict[str, Any]) -> dict[str, Any]:
    is_filling = links["state"] == "filling"
    found = links | {"filling": is_filling, "not_heard": len(links["not_heard"])}
    return _chosen(NODE_AT["instance/copies"], found)


def collections_of(core: dict[str, Any]) -> Tree:
    """The collections in the answers of the core, also to a client, by the paths of the nodes."""
    return {
        "instance/clients": {
            str(each["connection"]): _chosen(
                NODE_AT["instance/clients"], each | {"connected": timestamp(each["connected_ns"] / 1e9)}
            )
            for each in core["clients"]
        },
        "instance/subscriptions": {
            f"{each['connection']}-{each['subscription']}": _chosen(
                NODE_AT["instance/subscriptions"], each | {"sub_id": each["subscription"]}
            )
            for each in core["all_subscriptions"]
        },
        "instance/topics": {
            each["topic"]: _chosen(NODE_AT["instance/topics"], each | {"queues": len(each["queues"])})
            for each in core["topics"]
        },
        "instance/queues": {
            name: _chosen(NODE_AT["instance/queues"], queue) for name, queue in core["queues"].items()
        },
        "instance/last_values": {
            each["topic"]: _chosen(
                NODE_AT["instance/last_values"],
                each["last_values"] | {"memory_bytes": each["last_values"]["memory"]},
            )
            for each in core["topics"]
            if each["last_values"] is not None and not _is_view(each["last_values"])
        },
        "instance/views": {
            each["topic"]: _chosen(NODE_AT["instance/views"], _of_view(each["last_values"]))
            for each in core["topics"]
            if each["last_values"] is not None and _is_view(each["last_values"])
        },
        "instance/replication": _chosen(NODE_AT["instance/replication"], core["replication"]),
        "instance/replication/destinations": {
            each["name"]: _chosen(
                NODE_AT["instance/replication/destinations"],
                each
                | {
                    "connected": each["state"] in ("catching_up", "live"),
                    "sync": each["sync_type"] == "sync",
                },
            )
            for each in core["replication"]["destinations"]
        },
        "instance/replication/sources": _by_id(
            "instance/replication/sources", core["replication"]["sources"], "name"
        ),
    }


def _is_view(last_values: dict[str, Any]) -> bool:
    return "behind_s" in last_values


def _of_view(last_values: dict[str, Any]) -> dict[str, Any]:
    updates = sum(last_values[name] for name in ("inserts", "updates", "deletes"))
    return last_values | {"memory_bytes": last_values["memory"], "updates": updates}


def _chosen(node: Node, values: Mapping[str, Any]) -> dict[str, Any]:
    """The metrics of a node."""
    return {metric.name: values[metric.name] for metric in node.metrics if metric.name in values}


def _by_id(path: str, objects: list[dict[str, Any]], key: str) -> Tree:
    node = NODE_AT[path]
    return {str(each[key]): _chosen(node, each) for each in objects}
