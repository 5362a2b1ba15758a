"""The pages with pictures: what is in them, and that no row keeps one from being made."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from quire.spark._axis import Axis
from quire.spark._picture import write_html

BARS = ["start", "key", "open", "high", "low", "close", "mean", "volume", "count"]
QUEUES = ["queue", "p50", "p90", "p99", "longest"]
START = datetime(2026, 1, 5, 8)


def bar(minute: int, key: str | None, price: float = 5.0, volume: float | None = None) -> dict[str, Any]:
    prices = {"open": price, "high": price + 1, "low": price - 1, "close": price, "mean": price}
    return {
        "start": START + timedelta(minutes=minute),
        "key": key,
        **prices,
        "volume": volume,
        "count": 1 + minute,
    }


def queue(name: str, *times: float | None) -> dict[str, Any]:
    return dict(zip(QUEUES, (name, *times), strict=True))


def pictures(
    path: Path, columns: list[str], rows: list[dict[str, Any]]
) -> tuple[str, list[ElementTree.Element]]:
    """The text of the page; its pictures, which must be sound, with all that they show within their
    borders."""
    write_html(path, "title", columns, rows)
    text = path.read_text()
    found = [ElementTree.fromstring(svg) for svg in re.findall("<svg.*?</svg>", text, re.DOTALL)]
    for svg in found:
        width, height = map(float, svg.attrib["viewBox"].split()[2:])
        for shape in svg.iter():
            for name, value in shape.attrib.items():
                if name in ("x", "x1", "x2", "cx", "y", "y1", "y2", "cy"):
                    assert 0 <= float(value) <= (width if "x" in name else height), ElementTree.tostring(
                        shape
                    )
    return text, found


def labels(svg: ElementTree.Element) -> list[str]:
    return [text.text or "" for text in svg.iter("text")]


def test_candles_have_a_scale_of_round_numbers_and_moments(tmp_path: Path) -> None:
    rows = [bar(n, None, 100 + n / 10, volume=n * 1000.0) for n in range(60)]
    _, (svg,) = pictures(tmp_path / "p.html", BARS, rows)
    assert labels(svg)[:5] == ["100", "102", "104", "106", "0"]
    assert {"50,000", "08:00"} <= set(labels(svg))
    assert len(svg.findall("g")) == 60
    assert len(svg.findall("g/rect[@class='volume']")) == 59


def test_the_newest_windows_of_the_keys_with_the_most_messages_are_shown(tmp_path: Path) -> None:
    rows = [bar(n, f"S{key}") for key in range(10) for n in range(500 if key == 7 else key + 1)]
    text, found = pictures(tmp_path / "p.html", BARS, rows)
    assert [svg.attrib["aria-label"] for svg in found] == ["S7", "S9", "S8", "S6", "S5", "S4"]
    assert len(found[0].findall("g")) == 400
    assert "the newest 400 of 500 windows" in text
    assert "6 keys of 10" in text
    assert text.count("<tr>") == len(rows) + 1


@pytest.mark.parametrize("price", [0.0, 1e-9, 5e-324, -3.0, 1e15, 1e299, 1e308, math.inf, math.nan])
def test_any_price_can_be_shown(tmp_path: Path, price: float) -> None:
    _, found = pictures(tmp_path / "p.html", BARS, [bar(0, "<a>", price, price), bar(1, "<a>", price, price)])
    assert len(found) == (abs(price) <= 1e300)


def test_a_page_shows_how_long_messages_waited(tmp_path: Path) -> None:
    rows = [
        queue("<a>", 0.002, 0.5, 4.0, 70.0),
        queue("b" * 50, 0.0, 0.0, 0.0, 0.0),
        queue("c", None, None, None, None),
    ]
    text, (svg,) = pictures(tmp_path / "q.html", QUEUES, rows)
    assert "<a>" not in text
    assert labels(svg)[:2] == ["1 µs", "10 µs"]
    assert {"<a>", "b" * 29 + "…", "100 s", "median"} <= set(labels(svg))
    circles = [float(circle.attrib["cx"]) for circle in svg.findall("circle")]
    assert circles[:4] == sorted(circles[:4], reverse=True), "of the slowest queue, the longest time first"
    assert "99 %: 4 s" in text
    text, found = pictures(tmp_path / "q.html", QUEUES, rows[2:])
    assert not found
    text, (svg,) = pictures(
        tmp_path / "q.html", QUEUES, [queue(f"q{n}", 1, 2, 3 + n, 4 + n) for n in range(500)]
    )
    assert "the 40 slowest of 500 queues" in text
    assert labels(svg)[0] == "1 s"


def test_labels_are_round() -> None:
    assert [label for _, label in Axis.linear(0.1, 0.9, 0, 1).ticks] == ["0.2", "0.4", "0.6", "0.8"]
    assert [label for _, label in Axis.linear(-7, 12, 0, 1).ticks] == ["-5", "0", "5", "10"]
    assert [label for _, label in Axis.linear(1000, 2100, 0, 1).ticks] == [
        "1,000",
        "1,250",
        "1,500",
        "1,750",
        "2,000",
    ]


WRITES_TABLES = r"""
import sys
from pathlib import Path
from quire.cli._pipeline import _write_csv
from quire.spark._picture import write_html
_write_csv(Path("t.csv"), ["key"], [{"key": "\u00fc\u65e5"}])
write_html(Path("t.html"), "bars", ["key"], [{"key": "\u00fc\u65e5"}])
"""


@pytest.mark.parametrize("locale", ["C", "C.UTF-8"])
def test_tables_are_written_in_utf8_in_any_locale(tmp_path: Path, locale: str) -> None:
    environment = {**os.environ, "LC_ALL": locale, "PYTHONUTF8": "0"}
    subprocess.run([sys.executable, "-c", WRITES_TABLES], cwd=tmp_path, env=environment, check=True)
    assert (tmp_path / "t.csv").read_text(encoding="utf-8") == "key\n\u00fc\u65e5\n"
    page = (tmp_path / "t.html").read_text(encoding="utf-8")
    assert "<meta charset=utf-8>" in page
    assert "<td>\u00fc\u65e5</td>" in page
