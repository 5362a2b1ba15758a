"""The objects of a collection that have separate series. The others are summed, so that the number of series is bounded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from quire.admin._metrics import Metric

#: The label of the sum of the objects that have no separate series.
OTHER: Final = "_other"


class Shown:
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

    def values(self, metric: Metric, objects: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
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
