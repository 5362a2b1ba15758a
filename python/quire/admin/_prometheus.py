"""`/metrics`: the figures as Prometheus reads them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from quire.admin import _metrics
from quire.admin._figures import Durations, Tree
from quire.admin._metrics import BUILD_INFO, READY, Node, every_metric
from quire.admin._shown import Shown


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
        self._shown = {node.path: Shown(objects_max) for node in _metrics.NODES if node.id is not None}

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
