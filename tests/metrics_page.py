"""Writes the tables of metrics in docs/admin.md: `python tests/metrics_page.py`."""

from __future__ import annotations

from pathlib import Path

from quire.admin._metrics import NODES, RATE, Node

PAGE = Path(__file__).parent.parent / "docs/admin.md"
BEGIN = "<!-- metrics: generated from python/quire/admin/_metrics.py by tests/metrics_page.py -->\n"
END = "<!-- end of metrics -->\n"


def tables() -> str:
    """Every node with its metrics."""
    return "".join(f"\n### `{node.pattern}`\n\n{_head(node)}\n" + _table(node) for node in NODES) + "\n"


def _head(node: Node) -> str:
    return f"{node.text[0].upper()}{node.text[1:]}.\n"


def _table(node: Node) -> str:
    rows = ["| metric | kind | unit | meaning | in `/metrics` |", "| --- | --- | --- | --- | --- |"]
    for metric in node.metrics:
        name = f"`{metric.name}`" + (f", `{metric.name}{RATE}`" if metric.kind == "C" else "")
        series = metric.series
        shown = "" if series is None else f"`{series.name}{'_total' if metric.kind == 'C' else ''}`"
        if series is not None and series.labels:
            shown += " " + ", ".join(f'`{key}="{value}"`' for key, value in series.labels.items())
        rows.append(f"| {name} | {metric.kind} | {metric.unit} | {metric.text} | {shown} |")
    return "\n".join(rows) + "\n"


def page() -> str:
    """The page with the tables as they are in the code."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    return before + BEGIN + tables() + END + rest.partition(END)[2]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
