"""Tables as pages with a picture: HTML and SVG in one file, which needs no other file."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from datetime import datetime, time
from pathlib import Path
from typing import Any

from quire._units import number_text
from quire.spark._axis import Axis

Row = Mapping[str, Any]

#: Pixels.
_WIDTH, _TOP, _LETTER, _LINE = 960, 10, 7, 22
_PRICES_HEIGHT, _VOLUMES_HEIGHT, _GAP = 260, 70, 14
#: Candles of a few windows shall not become walls.
_CANDLE_WIDTH_MAX = 16.0
#: Windows that a picture can show apart; keys that have one; queues that one shows.
_WINDOWS_MAX, _KEYS_MAX, _QUEUES_MAX = 400, 6, 40
#: Letters of the name of a queue; the rest is shown when it is pointed at.
_NAME_MAX = 30
#: The largest value of a candle or a volume.
_VALUE_MAX = 1e300
#: Seconds: nothing is shown as shorter.
_SHORTEST = 1e-6
_WAITS = {"p50": "median", "p90": "90 %", "p99": "99 %", "longest": "longest"}
_STYLE = (
    "body{font:14px sans-serif;margin:2em;color:#222}h3{margin-bottom:0}p{margin:.2em 0 .6em;color:#666}"
    "table{border-collapse:collapse;margin-top:1em}td,th{padding:2px 10px;text-align:right;border-bottom:1px solid #ddd}"
    "text{font-size:11px;fill:#555}.grid{stroke:#e4e4e4}.up{stroke:#2a8;fill:#2a8}.down{stroke:#c43;fill:#c43}"
    ".volume{fill:#b8c4d0;stroke:none}.range{stroke:#b8c4d0;stroke-width:3}.p50{fill:#2a6}.p90{fill:#e90}.p99{fill:#c43}.longest{fill:#777}"
)


def write_html(path: Path, title: str, columns: Sequence[str], rows: Sequence[Row]) -> None:
    """Writes the rows as a table; above it candles of bars, the waiting times of queues, or the
    leases of their consumers."""
    pictures = _candles(rows) if "open" in columns else _waits(rows) if "p50" in columns else ""
    head = "".join(f"<th>{html.escape(column)}</th>" for column in columns)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(_text(row[column]))}</td>" for column in columns) + "</tr>\n"
        for row in rows
    )
    path.write_text(
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{html.escape(title)}</title><style>{_STYLE}</style>"
        f"<h1>{html.escape(title)}</h1>\n{pictures}<table><tr>{head}</tr>\n{body}</table></html>\n",
        encoding="utf-8",
    )


def _candles(rows: Sequence[Row]) -> str:
    """A picture for each of the keys with the most messages, the newest windows of it."""
    by_key: dict[Any, list[Row]] = {}
    for row in rows:
        # Larger numbers, and other values, have no place on an axis.
        if all(abs(row[name]) <= _VALUE_MAX for name in ("open", "high", "low", "close")):
            by_key.setdefault(row["key"], []).append(row)
    most = sorted(by_key, key=lambda key: -sum(row["count"] for row in by_key[key]))[:_KEYS_MAX]
    note = f"<p>The {_KEYS_MAX} keys of {len(by_key):,} with the most messages.</p>\n"
    pictures = "".join(_candles_of(key, by_key[key]) for key in most)
    return (note if len(by_key) > _KEYS_MAX else "") + pictures


def _candles_of(key: Any, every: Sequence[Row]) -> str:
    rows = every[-_WINDOWS_MAX:]
    prices = Axis.linear(
        min(row["low"] for row in rows), max(row["high"] for row in rows), _TOP + _PRICES_HEIGHT, _TOP
    )
    bottom = _TOP + _PRICES_HEIGHT
    sizes = [row["volume"] for row in rows if row["volume"] is not None and 0 < row["volume"] <= _VALUE_MAX]
    volumes = None
    if sizes:
        volumes = Axis.linear(0.0, max(sizes), bottom + _VOLUMES_HEIGHT, bottom + _GAP, count=2)
        bottom += _VOLUMES_HEIGHT
    axes = [prices, *([volumes] if volumes else [])]
    left = 12 + _LETTER * max(len(label) for axis in axes for _, label in axis.ticks)
    step = (_WIDTH - left) / len(rows)
    candles = [
        _candle(row, left + (number + 0.5) * step, step, prices, volumes) for number, row in enumerate(rows)
    ]
    lines = "".join(axis.horizontal_lines(left, _WIDTH) for axis in axes)
    moments = _moments([row["start"] for row in rows], left, step, bottom + 18)
    caption = f"{_text(rows[0]['start'])} to {_text(rows[-1]['start'])}"
    if len(rows) < len(every):
        caption += f", the newest {len(rows):,} of {len(every):,} windows"
    caption += "; below, the volume" if volumes else ""
    title = "all messages" if key is None else str(key)
    return _figure(title, caption, bottom + 24, lines + moments + "".join(candles))


def _candle(row: Row, x: float, step: float, prices: Axis, volumes: Axis | None) -> str:
    half = min(step * 0.35, _CANDLE_WIDTH_MAX / 2)
    open_, close = prices.at(row["open"]), prices.at(row["close"])
    known = [f"{name}: {_text(row[name])}" for name in row if name != "key" and row[name] is not None]
    volume = ""
    if volumes and row["volume"] is not None and 0 < row["volume"] <= _VALUE_MAX:
        top, bottom = volumes.at(row["volume"]), volumes.at(0.0)
        volume = f'<rect class="volume" x="{x - half:.1f}" width="{half * 2:.1f}" y="{top:.1f}" height="{bottom - top:.1f}"/>'
    return (
        f'<g class="{"up" if row["close"] >= row["open"] else "down"}"><title>{html.escape(", ".join(known))}</title>'
        f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{prices.at(row["high"]):.1f}" y2="{prices.at(row["low"]):.1f}"/>'
        f'<rect x="{x - half:.1f}" width="{half * 2:.1f}" y="{min(open_, close):.1f}" '
        f'height="{max(abs(open_ - close), 1):.1f}"/>{volume}</g>'
    )


def _moments(starts: Sequence[datetime], left: float, step: float, y: float) -> str:
    """The beginnings of some windows: as many as fit."""
    form = "%Y-%m-%d %H:%M:%S"
    if all(start.time() == time() for start in starts):
        form = "%Y-%m-%d"
    elif not any(start.second for start in starts):
        form = "%H:%M" if starts[0].date() == starts[-1].date() else "%m-%d %H:%M"
    width = len(f"{starts[0]:{form}}") * _LETTER
    stride = math.ceil((width + 24) / step)
    places = (
        (min(left + (n + 0.5) * step, _WIDTH - width / 2), starts[n]) for n in range(0, len(starts), stride)
    )
    return "".join(
        f'<text text-anchor="middle" x="{x:.1f}" y="{y}">{start:{form}}</text>' for x, start in places
    )


def _waits(rows: Sequence[Row]) -> str:
    """A line for each queue: within which time half, nine tenths, 99 % and all of the messages left
    it; or of the leases of each consumer ended."""
    known = [row for row in rows if row["p50"] is not None]
    if not known:
        return ""
    shown = sorted(known, key=lambda row: -row["p99"])[:_QUEUES_MAX]
    left = 20 + _LETTER * min(max(len(_whose(row)) for row in shown), _NAME_MAX)
    times = [max(row[wait], _SHORTEST) for row in shown for wait in _WAITS]
    axis = Axis.logarithmic(min(times), max(times), left, _WIDTH - 30, _seconds)
    bottom = _TOP + _LINE * len(shown)
    lines = [_wait(row, _TOP + (number + 0.5) * _LINE, left - 10, axis) for number, row in enumerate(shown)]
    legend = "".join(
        f'<circle class="{wait}" cx="{left + 90 * number + 5}" cy="{bottom + 36}" r="5"/>'
        f'<text x="{left + 90 * number + 15}" y="{bottom + 40}">{name}</text>'
        for number, (wait, name) in enumerate(_WAITS.items())
    )
    title, caption, whose = (
        "Time in the queue",
        "from when the log took the message to when it left the queue",
        "queues",
    )
    if "consumer" in shown[0]:
        title, caption, whose = (
            "Leases",
            "from the delivery of a message to the end of its lease",
            "consumers",
        )
    if len(shown) < len(known):
        caption += f"; the {len(shown)} slowest of {len(known):,} {whose}"
    return _figure(title, caption, bottom + 46, axis.vertical_lines(_TOP, bottom) + "".join(lines) + legend)


def _wait(row: Row, y: float, left: float, axis: Axis) -> str:
    whose = _whose(row)
    name = whose if len(whose) <= _NAME_MAX else whose[: _NAME_MAX - 1] + "…"
    places = {wait: axis.at(max(row[wait], _SHORTEST)) for wait in _WAITS}
    # The shortest last: it is what is seen where they lie upon each other.
    circles = "".join(
        f'<circle class="{wait}" cx="{places[wait]:.1f}" cy="{y:.1f}" r="5"><title>{_WAITS[wait]}: {_text(row[wait])} s</title></circle>'
        for wait in reversed(_WAITS)
    )
    return (
        f'<text text-anchor="end" x="{left}" y="{y + 4:.1f}">{html.escape(name)}<title>{html.escape(whose)}</title></text>'
        f'<line class="range" x1="{places["p50"]:.1f}" x2="{places["longest"]:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>{circles}'
    )


def _whose(row: Row) -> str:
    return f"{row['queue']}: {row['consumer']}" if "consumer" in row else str(row["queue"])


def _seconds(value: float) -> str:
    """A power of ten as text for people."""
    scale, unit = (1.0, "s") if value >= 1 else (1e3, "ms") if value >= 1e-3 else (1e6, "µs")
    return f"{value * scale:,.0f} {unit}"


def _figure(title: str, caption: str, height: float, content: str) -> str:
    return (
        f"<h3>{html.escape(title)}</h3><p>{html.escape(caption)}</p>\n"
        f'<svg role="img" aria-label="{html.escape(title)}" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}">'
        f"{content}</svg>\n"
    )


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return number_text(value)
    return value.isoformat(sep=" ") if isinstance(value, datetime) else str(value)
