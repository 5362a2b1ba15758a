"""The figures of a server as instruments of OpenTelemetry (docs/how-to/tracing.md)."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from quire.admin._metrics import Metric, Node, every_metric
from quire.admin._shown import Shown

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Meter, Observation

    from quire.server._server import Server

#: The units of the tables in the notation of OpenTelemetry. Things that are counted are in braces.
_UNITS: Final = {"s": "s", "bytes": "By", "bool": "1", "ratio": "1"}


#: The objects of each kind with separate series, for a server without `[admin]`.
OBJECTS_MAX: Final = 1000


class Observed:
    """An instrument for each series of `/metrics`, with the same objects and labels."""

    def __init__(self, meter: Meter) -> None:
        """Makes the instruments."""
        #: The servers, and by node and metric their objects with separate series.
        self._servers: weakref.WeakKeyDictionary[Server, dict[tuple[str, str], Shown]] = (
            weakref.WeakKeyDictionary()
        )
        # A provider may have several readers, each with its thread.
        self._lock = threading.Lock()
        by_name: dict[str, list[tuple[Node, Metric]]] = {}
        for node, metric in every_metric():
            if metric.series is not None:
                by_name.setdefault(metric.series.name, []).append((node, metric))
        for name, metrics in by_name.items():
            node, metric = metrics[0]
            make = meter.create_observable_counter if metric.kind == "C" else meter.create_observable_gauge
            text = metric.text if len(metrics) == 1 else node.text
            unit = _UNITS.get(metric.unit, f"{{{metric.unit}}}")
            make(name_of(name), [self._callback(metrics)], unit=unit, description=text)

    def add(self, server: Server) -> None:
        """Observes a server for as long as it exists."""
        with self._lock:
            self._servers.setdefault(server, {})

    def _callback(
        self, metrics: list[tuple[Node, Metric]]
    ) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observe(options: CallbackOptions) -> Iterable[Observation]:
            from opentelemetry.metrics import Observation

            with self._lock:
                return [
                    Observation(value, {"quire.instance": server.config.name} | attributes)
                    for server, shown in list(self._servers.items())
                    for node, metric in metrics
                    for attributes, value in _values(node, metric, server, shown)
                ]

        return observe


def _values(
    node: Node, metric: Metric, server: Server, shown: dict[tuple[str, str], Shown]
) -> Iterable[tuple[dict[str, str], float]]:
    """The labels and values of a metric of a server."""
    series = metric.series
    assert series is not None
    values: Any = server._figures().get(node.path) or {}
    fixed = dict(series.labels)
    if node.id is None:
        value = values.get(metric.name)
        return [] if value is None else [(fixed, float(value))]
    assert series.label is not None
    label = series.label
    admin = server.config.admin
    objects_max = OBJECTS_MAX if admin is None else admin.metrics_max_objects
    objects = shown.setdefault((node.path, metric.name), Shown(objects_max))
    objects.update(values)
    return [({label: key} | fixed, value) for key, value in objects.values(metric, values)]


def name_of(series: str) -> str:
    """The name of an instrument, by that of its series: `quire.queue.messages`."""
    first, second, *rest = series.split("_")
    return ".".join([first, second, *(["_".join(rest)] if rest else [])])
