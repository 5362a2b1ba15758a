"""Tables as pages with a picture: HTML and SVG in one file, which needs nothing else to be looked at."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 960, 320, 70, 24
#: Windows that a picture can show apart.
_BARS_MAX = 400
_STYLE = (
    "body{font:14px sans-serif;margin:2em;color:#222}table{border-collapse:collapse;margin-top:1em}"
    "td,th{padding:2px 10px;text-align:right;border-bottom:1px solid #ddd}.up{stroke:#2a7;fill:#2a7}.down{stroke:#c43;fill:#c43}"
    ".mark{fill:#58a}text{font-size:11px;fill:#555}line.grid{stroke:#eee}"
)


def write_html(path: Path, title: str, columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
    """Writes the rows as a table; above it candles of bars, or the waiting times of queues."""
    pictures = _candles(rows) if "open" in columns else _waits(rows) if "p50" in columns else []
    head = "".join(f"<th>{html.escape(column)}</th>" for column in columns)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(_text(row[column]))}</td>" for column in columns) + "</tr>\n"
        for row in rows
    )
    path.write_text(
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{html.escape(title)}</title><style>{_STYLE}</style>"
        f"<h1>{html.escape(title)}</h1>\n{''.join(pictures)}<table><tr>{head}</tr>\n{body}</table></html>\n"
    )


def _candles(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """A picture for each of the keys with the most messages, the newest windows of it."""
    counts: dict[Any, int] = {}
    for row in rows:
        counts[row["key"]] = counts.get(row["key"], 0) + row["count"]
    best = sorted(counts, key=lambda key: -counts[key])[:6]
    return [_candles_of(key, [row for row in rows if row["key"] == key][-_BARS_MAX:]) for key in best]


def _candles_of(key: Any, rows: Sequence[Mapping[str, Any]]) -> str:
    scale = _Scale(min(row["low"] for row in rows), max(row["high"] for row in rows))
    step = (_WIDTH - _LEFT) / len(rows)
    shapes = []
    for number, row in enumerate(rows):
        x = _LEFT + (number + 0.5) * step
        open_, close = scale.y(row["open"]), scale.y(row["close"])
        direction = "up" if row["close"] >= row["open"] else "down"
        shapes.append(
            f"<g class={direction}><title>{_text(row['start'])}: {_text(row['open'])} {_text(row['high'])} "
            f"{_text(row['low'])} {_text(row['close'])}</title>"
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{scale.y(row["high"]):.1f}" y2="{scale.y(row["low"]):.1f}"/>'
            f'<rect x="{x - step * 0.35:.1f}" width="{step * 0.7:.1f}" y="{min(open_, close):.1f}" '
            f'height="{max(abs(open_ - close), 1):.1f}"/></g>'
        )
    ends = f"{_text(rows[0]['start'])} to {_text(rows[-1]['start'])}"
    return _figure(ends if key is None else f"{key}: {ends}", scale, "".join(shapes))


def _waits(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """For each queue the median, the slowest tenth and the slowest hundredth, in seconds."""
    shown = [row for row in rows if row["p50"] is not None]
    if not shown:
        return []
    scale = _Scale(0.0, max(row["p99"] for row in shown))
    step = (_WIDTH - _LEFT) / len(shown)
    shapes = []
    for number, row in enumerate(shown):
        for place, name in enumerate(("p50", "p90", "p99")):
            x, y = _LEFT + (number + 0.15 + place * 0.22) * step, scale.y(row[name])
            shapes.append(
                f'<rect class=mark x="{x:.1f}" width="{step * 0.2:.1f}" y="{y:.1f}" height="{_HEIGHT - _BOTTOM - y:.1f}">'
                f"<title>{html.escape(str(row['queue']))} {name}: {_text(row[name])} s</title></rect>"
            )
        shapes.append(
            f'<text x="{_LEFT + (number + 0.15) * step:.1f}" y="{_HEIGHT - 8}">{html.escape(str(row["queue"]))}</text>'
        )
    return [_figure("seconds in the queue: median, 90 %, 99 %", scale, "".join(shapes))]


class _Scale:
    def __init__(self, lowest: float, highest: float) -> None:
        self._lowest, self._span = lowest, (highest - lowest) or 1.0

    def y(self, value: float) -> float:
        return (_HEIGHT - _BOTTOM) - (value - self._lowest) / self._span * (_HEIGHT - _BOTTOM - 10)

    def grid(self) -> str:
        values = [self._lowest + self._span * part / 4 for part in range(5)]
        return "".join(
            f'<line class=grid x1="{_LEFT}" x2="{_WIDTH}" y1="{self.y(value):.1f}" y2="{self.y(value):.1f}"/>'
            f'<text x="4" y="{self.y(value) + 4:.1f}">{value:,.6g}</text>'
            for value in values
        )


def _figure(caption: str, scale: _Scale, shapes: str) -> str:
    return (
        f'<h3>{html.escape(caption)}</h3><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}">'
        f"{scale.grid()}{shapes}</svg>\n"
    )


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.6g}"
    return value.isoformat(sep=" ") if isinstance(value, datetime) else str(value)
