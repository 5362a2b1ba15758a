"""Evaluates the rules of alerts over scrapes, as Prometheus does.

It knows the part of the language that the rules of quire use: selectors, ranges, arithmetic,
comparisons, `and`, and the functions below. A rate is the growth between the first and the last
sample of its range, without the extrapolation of Prometheus to the ends of the range.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from prometheus_client.parser import text_string_to_metric_families

Labels = frozenset[tuple[str, str]]
Vector = dict[Labels, float]
Value = float | Vector

_TOKEN: Final = re.compile(r'\s*(\d+(?:\.\d+)?[smhd]?|[A-Za-z_]\w*|"[^"]*"|[<>=!]=|[-+*/<>(){}\[\],=])')
_UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_COMPARISONS: Final[dict[str, Callable[[float, float], bool]]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
    "<=": operator.le,
    ">=": operator.ge,
}
_ARITHMETIC: Final[dict[str, Callable[[float, float], float]]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
}


@dataclass(frozen=True)
class Rule:
    """An alert."""

    name: str
    query: str
    #: Seconds that the query must have results.
    hold: float


def rules_of(text: str) -> dict[str, Rule]:
    """The rules of a file as `quire generate prometheus --rules` prints it, by their names."""
    found = re.findall(r'- alert: (\w+)\n +expr: (".+")\n +for: (\w+)\n', text)
    return {name: Rule(name, json.loads(query), _seconds(hold)) for name, query, hold in found}


@dataclass
class Prometheus:
    """Keeps scrapes, at times that the test chooses, and evaluates one rule after each of them."""

    rule: Rule
    scrapes: list[tuple[float, dict[str, Vector]]] = field(default_factory=list)
    #: Since when the query has had results; `None`: it has none.
    pending: float | None = None

    def take(self, at: float, text: str) -> bool:
        """Takes a scrape, and returns whether the alert fires."""
        samples: dict[str, Vector] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                samples.setdefault(sample.name, {})[frozenset(sample.labels.items())] = sample.value
        self.scrapes.append((at, samples))
        if not evaluate(self.rule.query, self.scrapes):
            self.pending = None
            return False
        if self.pending is None:
            self.pending = at
        return at - self.pending >= self.rule.hold


def evaluate(query: str, scrapes: list[tuple[float, dict[str, Vector]]]) -> Vector:
    """The result of a query at the time of the last scrape."""
    result = _Query(query, scrapes).whole()
    assert isinstance(result, dict), "a rule needs a vector"
    return result


def _seconds(text: str) -> float:
    return float(text[:-1]) * _UNITS[text[-1]]


class _Query:
    def __init__(self, text: str, scrapes: list[tuple[float, dict[str, Vector]]]) -> None:
        self._tokens = _TOKEN.findall(text)
        assert "".join(self._tokens) == re.sub(r"\s", "", text), text
        self._scrapes = scrapes
        self._now = scrapes[-1][0]

    def whole(self) -> Value:
        value = self._conjunction()
        assert not self._tokens, self._tokens
        return value

    def _conjunction(self) -> Value:
        left = self._comparison()
        while self._takes("and"):
            right = self._comparison()
            assert isinstance(left, dict)
            assert isinstance(right, dict)
            left = {labels: value for labels, value in left.items() if labels in right}
        return left

    def _comparison(self) -> Value:
        left = self._sum()
        if not self._tokens or self._tokens[0] not in _COMPARISONS:
            return left
        holds = _COMPARISONS[self._tokens.pop(0)]
        right = self._sum()
        assert isinstance(left, dict)
        pairs = _pairs(left, right)
        return {labels: left[labels] for labels, (one, other) in pairs.items() if holds(one, other)}

    def _sum(self) -> Value:
        return self._chain(self._product, ("+", "-"))

    def _product(self) -> Value:
        return self._chain(self._primary, ("*", "/"))

    def _chain(self, part: Callable[[], Value], signs: tuple[str, ...]) -> Value:
        left = part()
        while self._tokens and self._tokens[0] in signs:
            act = _ARITHMETIC[self._tokens.pop(0)]
            right = part()
            if isinstance(left, float) and isinstance(right, float):
                left = act(left, right)
            else:
                left = {labels: act(*values) for labels, values in _pairs(left, right).items()}
        return left

    def _primary(self) -> Value:
        token = self._tokens.pop(0)
        if token == "(":
            value = self._conjunction()
            assert self._takes(")")
            return value
        if token[0].isdigit():
            return float(token)
        if self._takes("("):
            return self._function(token)
        labels = self._labels()
        return _selected(self._scrapes[-1][1].get(token, {}), labels)

    def _function(self, name: str) -> Value:
        if name == "histogram_quantile":
            share = self._primary()
            assert isinstance(share, float)
            assert self._takes(",")
            buckets = self._conjunction()
            assert self._takes(")")
            assert isinstance(buckets, dict)
            return _quantile(share, buckets)
        assert name in ("rate", "increase"), name
        series, labels = self._tokens.pop(0), self._labels()
        assert self._takes("[")
        span = _seconds(self._tokens.pop(0))
        assert self._takes("]")
        assert self._takes(")")
        samples = [
            (at, _selected(found.get(series, {}), labels))
            for at, found in self._scrapes
            if self._now - span < at <= self._now
        ]
        rates = {}
        for key in {key for _, found in samples for key in found}:
            points = [(at, found[key]) for at, found in samples if key in found]
            if len(points) > 1:
                growth = sum(
                    after - before if after >= before else after
                    for (_, before), (_, after) in pairwise(points)
                )
                rates[key] = growth / (points[-1][0] - points[0][0]) * (span if name == "increase" else 1)
        return rates

    def _labels(self) -> dict[str, str]:
        labels: dict[str, str] = {}
        if self._takes("{"):
            while not self._takes("}"):
                name = self._tokens.pop(0)
                assert self._takes("=")
                labels[name] = self._tokens.pop(0).strip('"')
                self._takes(",")
        return labels

    def _takes(self, token: str) -> bool:
        if self._tokens[:1] != [token]:
            return False
        self._tokens.pop(0)
        return True


def _selected(vector: Vector, labels: dict[str, str]) -> Vector:
    return {key: value for key, value in vector.items() if labels.items() <= dict(key).items()}


def _pairs(left: Value, right: Value) -> dict[Labels, tuple[float, float]]:
    """The values that belong together. A number belongs to every series."""
    if isinstance(left, dict) and isinstance(right, dict):
        return {key: (value, right[key]) for key, value in left.items() if key in right}
    if isinstance(left, dict):
        return {key: (value, _number(right)) for key, value in left.items()}
    assert isinstance(right, dict)
    return {key: (_number(left), value) for key, value in right.items()}


def _number(value: Value) -> float:
    assert isinstance(value, float)
    return value


def _quantile(share: float, buckets: Vector) -> Vector:
    by_labels: dict[Labels, list[tuple[float, float]]] = {}
    for key, count in buckets.items():
        rest = frozenset(pair for pair in key if pair[0] != "le")
        by_labels.setdefault(rest, []).append((float(dict(key)["le"]), count))
    found: dict[Labels, float] = {}
    for labels, counts in by_labels.items():
        counts.sort()
        wanted = share * counts[-1][1]
        if counts[-1][1] == 0:
            continue
        below, seen = 0.0, 0.0
        for bound, count in counts:
            if count >= wanted:
                is_last = bound == float("inf")
                found[labels] = (
                    below if is_last else below + (bound - below) * (wanted - seen) / (count - seen)
                )
                break
            below, seen = bound, count
    return found
