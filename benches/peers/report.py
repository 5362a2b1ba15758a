"""The table: medians over the rounds, and each engine's ratio to quire."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

Rounds = Mapping[str, Mapping[str, Sequence[float]]]
"""Label of the line → engine → one figure per round."""


def table(title: str, engines: Sequence[str], rounds: Rounds, units: Mapping[str, str]) -> str:
    """Of the engines that have a figure in any of its lines."""
    engines = [engine for engine in engines if any(figures.get(engine) for figures in rounds.values())]
    lines = [
        f"| {title} | " + " | ".join(engines) + " |",
        "| --- |" + " --- |" * len(engines),
    ]
    for label, figures in rounds.items():
        ours = statistics.median(figures["quire"]) if figures.get("quire") else None
        cells = []
        for engine in engines:
            if not (values := figures.get(engine)):
                cells.append("-")
                continue
            median = statistics.median(values)
            cell = f"{median:,.0f} {units[label]}".replace(" /s", "/s")
            if ours and engine != "quire":
                cell += f" ({median / ours:.2g} x)"
            cells.append(cell)
        lines.append(f"| {label} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def as_json(rounds: Rounds, units: Mapping[str, str]) -> dict[str, Any]:
    return {
        label: {"unit": units[label], **{engine: list(values) for engine, values in figures.items()}}
        for label, figures in rounds.items()
    }


def rows(rounds: Rounds, units: Mapping[str, str]) -> dict[str, dict[str, float]]:
    """The medians, for a result file."""
    return {
        f"{label}, {units[label].replace('/s', 'messages/s')}": {
            engine: _rounded(statistics.median(values)) for engine, values in figures.items() if values
        }
        for label, figures in rounds.items()
    }


def _rounded(value: float) -> float:
    return round(value) if value >= 100 else round(value, 1)
