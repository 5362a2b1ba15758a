"""`/metrics`: the figures as Prometheus reads them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from quire.admin import _metrics
from quire.admin._figures import Durations, Tree
from quire.admin._metrics import BUILD_INFO, READY, Node, every_metric

#: The label of the sum of the objects that have no separate series.
OTHER: Final = "_other"


class Exposition:
    """Answers scrapes. Objects beyond a limit are summed, so that the number of series is bounded."""

    def __init__(
        self,
        current: Callable[[], Tree],
        durations: Callable[[], Mapping[str, Durations]],
        is_ready: Callable[[Tree], bool],
        *,
        version: str,
        objects_max: int,
    ) -> None:
        """`current`: returns the tree; `durations`: those of the histograms, by their names."""
        self._registry = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=self._registry)
        self._registry.register(_Figures(current, durations, is_ready, version, objects_max))
        self._lock = threading.Lock()

    def answer(self, accept: str) -> tuple[bytes, str]:
        """Returns the text of a scrape and its type, by the `Accept` header. It may wait for a turn."""
        encoder, content_type = choose_encoder(accept)
        with self._lock:
            return encoder(self._registry), content_type


class _Shown:
    """The objects of a collection that have their own series: the first ones."""

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._shown: dict[str, None] = {}
        self._others: dict[str, None] = {}
        #: The sums of cumulative metrics of the others, and the last value of each one.
        self._sums: dict[str, float] = {}
        self._last: dict[tuple[str, str], float] = {}

    def update(self, objects: Mapping[str, Any]) -> None:
        """Takes the objects that exist now. An object keeps its place until it no longer exists."""
        self._shown = {key: None for key in self._shown if key in objects}
        gone = [key for key in self._others if key not in objects]
        for key in gone:
            del self._others[key]
        if gone:
            self._last = {place: value for place, value in self._last.items() if place[1] in self._others}
        for key in objects:
            if key not in self._shown and key not in self._others:
                (self._shown if len(self._shown) < self._count_max else self._others)[key] = None

    def values(self, metric: _metrics.Metric, objects: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
        """The values of a metric by the label of their object."""
        for key in self._shown:
            if (value := objects[key].get(metric.name)) is not None:
                yield key, float(value)
        others = [(key, objects[key].get(metric.name)) for key in self._others]
        known = [(key, float(value)) for key, value in others if value is not None]
        if metric.kind == "C":
            for key, value in known:
                place = (metric.name, key)
                growth = value - self._last.get(place, 0.0)
                self._sums[metric.name] = self._sums.get(metric.name, 0.0) + max(growth, 0.0)
                self._last[place] = value
            if metric.name in self._sums:
                yield OTHER, self._sums[metric.name]
        elif known:
            # Of ages, the largest one.
            yield OTHER, (max if metric.unit == "s" else sum)(value for _, value in known)


class _Figures(Collector):
    def __init__(
        self,
        current: Callable[[], Tree],
        durations: Callable[[], Mapping[str, Durations]],
        is_ready: Callable[[Tree], bool],
        version: str,
        objects_max: int,
    ) -> None:
        self._current = current
        self._durations = durations
        self._is_ready = is_ready
        self._version = version
        self._shown = {node.path: _Shown(objects_max) for node in _metrics.NODES if node.id is not None}

    def collect(self) -> Iterable[Metric]:
        tree = self._current()
        for path, shown in self._shown.items():
            shown.update(tree.get(path) or {})
        info = GaugeMetricFamily(BUILD_INFO.name, BUILD_INFO.text, labels=["version"])
        info.add_metric([self._version], 1)
        yield info
        ready = GaugeMetricFamily(READY.name, READY.text)
        ready.add_metric([], int(self._is_ready(tree)))
        yield ready
        yield from self._families(tree)
        durations = self._durations()
        for histogram in _metrics.HISTOGRAMS:
            yield _histogram(histogram, durations[histogram.name])

    def _families(self, tree: Tree) -> Iterator[Metric]:
        """The families of the table. Several metrics may belong to one, with different labels."""
        families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
        for node, metric in every_metric():
            series = metric.series
            if series is None:
                continue
            labels = [*([] if series.label is None else [series.label]), *series.labels]
            family = families.get(series.name)
            if family is None:
                kind = CounterMetricFamily if metric.kind == "C" else GaugeMetricFamily
                text = metric.text if not series.labels else f"{node.text}: {', '.join(series.labels)}"
                family = families[series.name] = kind(series.name, text, labels=labels)
            for key, value in self._values(node, metric, tree):
                family.add_metric([*([] if key is None else [key]), *series.labels.values()], value)
        yield from families.values()

    def _values(self, node: Node, metric: _metrics.Metric, tree: Tree) -> Iterator[tuple[str | None, float]]:
        values = tree.get(node.path) or {}
        if node.id is not None:
            yield from self._shown[node.path].values(metric, values)
        elif (value := values.get(metric.name)) is not None:
            yield None, float(value)


def _histogram(about: _metrics.Only, durations: Durations) -> Metric:
    family = HistogramMetricFamily(about.name, about.text)
    buckets, total = [], 0
    for bound, count in zip([*durations.bounds, float("inf")], durations.counts, strict=True):
        total += count
        buckets.append(("+Inf" if bound == float("inf") else repr(bound), float(total)))
    family.add_metric([], buckets, durations.sum)
    return family
