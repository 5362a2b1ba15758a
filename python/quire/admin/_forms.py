"""The forms of an answer: HTML, JSON, XML and CSV."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from html import escape
from typing import Any, Final
from xml.sax.saxutils import escape as xml_escape
from xml.sax.saxutils import quoteattr

from quire._errors import QuireError
from quire._quire import Filter
from quire.admin._errors import bad_value
from quire.admin._host import timestamp
from quire.admin._metrics import KINDS, NODE_AT, RATE, Node
from quire.admin._nodes import Place, children, encoded

#: The characters that XML 1.0 does not have.
_NOT_IN_XML: Final = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
#: Objects of a collection in an answer that does not say how many.
LIMIT: Final = 1000

TYPES: Final = {
    None: "text/html; charset=utf-8",
    "json": "application/json",
    "xml": "application/xml",
    "csv": "text/csv; charset=utf-8",
}


class Window:
    """The part of a collection that a request asks for."""

    def __init__(self, query: Mapping[str, str]) -> None:
        """Raises `HTTPError` for a value that cannot be used."""
        self._offset = _count(query, "offset", 0)
        self._limit = _count(query, "limit", LIMIT)
        sort = query.get("sort", "")
        self._is_descending = sort.startswith("-")
        self._sort = sort.removeprefix("-")
        self._filter = _pattern_of(query["name"]) if query.get("name") else None

    def of(self, node: Node, objects: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], int]:
        """Returns the objects, and how many there are without `offset` and `limit`."""
        if self._sort and self._sort != "id" and node.metric(self._sort) is None:
            raise bad_value(f"sort: {self._sort!r} is no metric of {node.pattern}")
        if self._filter is not None:
            objects = [each for each in objects if self._matches(each)]
        key = self._sort or "id"
        if node.metric(key) or self._sort:
            # Objects without the value come last in both directions.
            known = [each for each in objects if each.get(key) is not None]
            known.sort(key=lambda each: _order(each[key]), reverse=self._is_descending)
            objects = known + [each for each in objects if each.get(key) is None]
        return objects[self._offset : self._offset + self._limit], len(objects)

    def _matches(self, each: Mapping[str, Any]) -> bool:
        assert self._filter is not None
        names = {"id": each["id"], "name": each.get("client_name") or each["id"]}
        return self._filter.matches(json.dumps(names).encode(), "json", None)


def _count(query: Mapping[str, str], name: str, default: int) -> int:
    text = query.get(name)
    if text is None:
        return default
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise bad_value(f"{name}: expected a number, got {text[:40]!r}")
    return int(text)


def _pattern_of(pattern: str) -> Filter:
    # The filters of the server run in linear time for every pattern.
    quoted = pattern.replace("'", "''")
    try:
        return Filter(f"/id LIKE '{quoted}' OR /name LIKE '{quoted}'", False)
    except QuireError:
        raise bad_value(f"name: {pattern[:100]!r} is no regular expression") from None


def _order(value: Any) -> tuple[int, Any]:
    return (0, value) if isinstance(value, (int, float)) else (1, str(value))


def subtree(
    place: Place, objects_at: Callable[[Node], list[dict[str, Any]]], shows: Callable[[str], bool]
) -> Any:
    """The values of a node and of those below it. `shows`: whether the user may see a path."""
    if place.is_collection:
        assert place.node is not None
        return objects_at(place.node)
    found: dict[str, Any] = {}
    if place.node is not None:
        found |= objects_at(place.node)[0]
    for name in children(place.path):
        path = f"{place.path}/{name}" if place.path else name
        if shows(path):
            found[name] = subtree(Place(path, NODE_AT.get(path)), objects_at, shows)
    return found


def leaf(place: Place, value: Any, timestamp: str) -> dict[str, Any]:
    """A leaf as JSON. `value`: as it is now, or its samples."""
    assert place.metric is not None
    kind = "R" if place.is_rate else place.metric.kind
    unit = f"{place.metric.unit}/s" if place.is_rate else place.metric.unit
    about = {"path": f"/quire/{place.path}", "kind": KINDS[kind], "unit": unit, "timestamp": timestamp}
    is_history = isinstance(value, list) and place.metric.unit != "list"
    return about | ({"samples": value} if is_history else {"value": value})


def points_of(query: Mapping[str, str]) -> int | None:
    """The samples that a request wants at most; `None`: all. Raises `HTTPError` for a bad number."""
    points = _count(query, "points", 0)
    if "points" in query and points < 2:
        raise bad_value("points: expected a number from 2 on")
    return points or None


def thinned(samples: list[tuple[str, Any]], points: int) -> list[tuple[str, Any]]:
    """At most about `points` samples: of each span of time the largest number, or the last value.

    The spans are those of every metric, so that the lines of a chart have the same times.
    """
    if len(samples) <= points:
        return samples
    times = [datetime.fromisoformat(at).timestamp() for at, _ in samples]
    # A whole number of seconds, so that it is the same for the next request.
    width = max(1, math.ceil((times[-1] - times[0]) / points))
    found: dict[int, Any] = {}
    for time, (_, value) in zip(times, samples, strict=True):
        span = int(time // width)
        before = found.get(span)
        is_below = isinstance(value, (int, float)) and isinstance(before, (int, float)) and value < before
        found[span] = before if is_below else value
    return [(timestamp(span * width), value) for span, value in found.items()]


def to_json(value: Any) -> bytes:
    """As compact JSON."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace")


def to_csv(rows: list[dict[str, Any]], head: list[str]) -> bytes:
    """As RFC 4180."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(head)
    writer.writerows([_cell(row.get(name)) for name in head] for row in rows)
    return text.getvalue().encode("utf-8", "replace")


def head_of(node: Node) -> list[str]:
    """The columns of a collection."""
    rates = [metric.name + RATE for metric in node.metrics if metric.kind == "C"]
    return ["id", *(metric.name for metric in node.metrics if metric.unit != "list"), *rates]


def _cell(value: Any) -> Any:
    if isinstance(value, str):
        # A spreadsheet would run it as a formula.
        return f"'{value}" if value[:1] in ("=", "+", "-", "@") else value
    return "" if value is None else _text(value)


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "" if value is None else json.dumps(value, ensure_ascii=False)


def to_xml(path: str, value: Any) -> bytes:
    """A node and those below it."""
    parts = [f"<quire path={quoteattr(_printable(path))}>"]
    parts += _xml_members(value)
    parts.append("</quire>")
    return ('<?xml version="1.0" encoding="utf-8"?>\n' + "".join(parts) + "\n").encode("utf-8", "replace")


def _xml_members(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for name, member in value.items():
            # The metric with this name is a number.
            if name == "samples" and isinstance(member, list):
                for at, sample in member:
                    yield f"<sample timestamp={quoteattr(at)}>{_xml_text(sample)}</sample>"
                continue
            tag = name if name[:1].isalpha() else f"_{name}"
            yield f"<{tag}>"
            yield from _xml_members(member)
            yield f"</{tag}>"
    elif isinstance(value, list) and all(isinstance(each, dict) for each in value):
        for each in value:
            yield f"<item id={quoteattr(_printable(str(each.get('id', ''))))}>"
            yield from _xml_members({key: member for key, member in each.items() if key != "id"})
            yield "</item>"
    else:
        yield _xml_text(value)


def _xml_text(value: Any) -> str:
    return xml_escape(_printable(_text(value)))


def _printable(text: str) -> str:
    """Without the characters that XML cannot have."""
    return _NOT_IN_XML.sub("\ufffd", text)


def to_html(place: Place, value: Any, total: int | None) -> bytes:
    """A page with a table, and links to the nodes below."""
    title = f"/quire/{place.path}".rstrip("/")
    rows = []
    if isinstance(value, list):
        head = list(dict.fromkeys(name for each in value for name in each))
        rows.append("<tr>" + "".join(f"<th>{escape(name)}</th>" for name in head) + "</tr>")
        for each in value:
            cells = [_html_cell(place, name, each) for name in head]
            rows.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    else:
        for name, member in value.items():
            link = f'<a href="{escape(_href(place.path, name))}">{escape(name)}</a>'
            shown = "" if isinstance(member, (dict, list)) else escape(_text(member))
            rows.append(f"<tr><th>{link}</th><td>{shown}</td></tr>")
    parts = [part for part in place.path.split("/") if part]
    trail = ['<a href="/quire">quire</a>']
    trail += [
        f'<a href="{escape(_href("/".join(parts[:number]), part))}">{escape(part)}</a>'
        for number, part in enumerate(parts)
    ]
    about = f"<p>{total} objects</p>" if total is not None else ""
    head_text = (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title></head>'
    )
    body = f"<body><h1>{' / '.join(trail)}</h1>{about}<table>{''.join(rows)}</table></body></html>\n"
    return (head_text + body).encode("utf-8", "replace")


def _html_cell(place: Place, name: str, each: Mapping[str, Any]) -> str:
    text = escape(_text(each.get(name)))
    return f'<a href="{escape(_href(place.path, str(each["id"])))}">{text}</a>' if name == "id" else text


def _href(path: str, name: str) -> str:
    return "/quire/" + "/".join(encoded(part) for part in [*path.split("/"), name] if part)
