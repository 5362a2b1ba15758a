"""The Grafana dashboard and the configuration of Prometheus, from the table of metrics."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from quire.admin._metrics import HISTOGRAMS, every_metric

#: Columns of a dashboard, and those of a panel.
_WIDTH, _PANEL_WIDTH, _PANEL_HEIGHT = 24, 8, 8
_DATASOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
_UNITS: Final = {"bytes": "bytes", "s": "s", "bool": "bool"}

#: Name, expression, seconds that it must hold, severity, and advice.
ALERTS: Final = (
    ("QuireNotReady", "quire_ready == 0", "1m", "critical", "Look at /readyz: it has the check that failed."),
    (
        "QuireJournalNotWritable",
        "quire_journal_writable == 0",
        "0m",
        "critical",
        "The disk is full, or a write has failed. Look at the log of the server.",
    ),
    (
        "QuireDiskFillsUp",
        'quire_filesystem_available_bytes{kind="journal"} < 0.1 * quire_filesystem_size_bytes{kind="journal"}',
        "5m",
        "warning",
        "Archive or remove journal files: quire journal remove --help.",
    ),
    (
        "QuireCertificateExpires",
        "quire_certificate_expires_seconds < 7 * 86400",
        "0m",
        "warning",
        "Replace the files of the certificate. The server follows them.",
    ),
    (
        "QuireReplicationLost",
        "quire_replication_connected == 0",
        "1m",
        "warning",
        "Look at last_error of the destination: quire replication ls.",
    ),
    (
        "QuireReplicationBehind",
        "quire_replication_lag_seconds > 60",
        "5m",
        "warning",
        "The destination is slower than this instance. Look at its disk and at the network.",
    ),
    (
        "QuireMessagesMissing",
        "quire_replication_missing_messages > 0",
        "5m",
        "warning",
        "Start the instances that may have the messages, or restore their disks: quire replication ls.",
    ),
    (
        "QuireQueueNotWorked",
        "quire_queue_oldest_message_age_seconds > 600 and rate(quire_queue_acknowledged_messages_total[10m]) == 0",
        "5m",
        "warning",
        "No consumer acknowledges messages of the queue: quire queue stats shows them.",
    ),
    (
        "QuireDeadLetters",
        "increase(quire_queue_dead_letters_total[10m]) > 0",
        "0m",
        "warning",
        "Messages of the queue could not be processed: quire queue redrive --help.",
    ),
    (
        "QuireLoopSlow",
        "histogram_quantile(0.99, rate(quire_loop_delay_seconds_bucket[5m])) > 1",
        "5m",
        "warning",
        "The process has too little processor time, or a callback blocks its event loop.",
    ),
    (
        "QuireStatisticsMissed",
        "increase(quire_statistics_missed_samples_total[1h]) > 0",
        "0m",
        "info",
        "The disk of the statistics is slow or full.",
    ),
)


def dashboard() -> str:
    """A dashboard for Grafana, as JSON."""
    panels = list(_panels())
    for number, panel in enumerate(panels):
        panel["id"] = number + 1
        panel["gridPos"] = {
            "x": number * _PANEL_WIDTH % _WIDTH,
            "y": number * _PANEL_WIDTH // _WIDTH * _PANEL_HEIGHT,
            "w": _PANEL_WIDTH,
            "h": _PANEL_HEIGHT,
        }
    about: dict[str, Any] = {
        "title": "quire",
        "uid": "quire",
        "tags": ["quire"],
        "schemaVersion": 39,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [
                {"name": "datasource", "type": "datasource", "query": "prometheus"},
                {
                    "name": "instance",
                    "type": "query",
                    "datasource": _DATASOURCE,
                    "query": "label_values(quire_ready, instance)",
                    "multi": True,
                    "includeAll": True,
                },
            ]
        },
        "panels": panels,
    }
    return json.dumps(about, indent=2) + "\n"


def _panels() -> Iterator[dict[str, Any]]:
    seen: set[str] = set()
    for node, metric in every_metric():
        series = metric.series
        if series is None or series.name in seen:
            continue
        seen.add(series.name)
        labels = [*([series.label] if series.label else []), *series.labels]
        legend = " ".join(f"{{{{{label}}}}}" for label in labels) or "{{instance}}"
        chosen = f'{series.name}{"_total" if metric.kind == "C" else ""}{{instance=~"$instance"}}'
        query = f"rate({chosen}[$__rate_interval])" if metric.kind == "C" else chosen
        unit = _UNITS.get(metric.unit, "short")
        if metric.kind == "C":
            unit = "Bps" if metric.unit == "bytes" else "cps"
        yield _panel(_title(series.name), f"{node.text}: {metric.text}", query, legend, unit)
    for each in HISTOGRAMS:
        bucket = f'rate({each.name}_bucket{{instance=~"$instance"}}[$__rate_interval])'
        query = f"histogram_quantile(0.99, sum by (le, instance) ({bucket}))"
        yield _panel(f"{_title(each.name)}, p99", each.text, query, "{{instance}}", "s")


def _panel(title: str, text: str, query: str, legend: str, unit: str) -> dict[str, Any]:
    return {
        "type": "timeseries",
        "title": title,
        "description": text,
        "datasource": _DATASOURCE,
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "targets": [{"expr": query, "legendFormat": legend, "refId": "A", "datasource": _DATASOURCE}],
    }


def _title(name: str) -> str:
    words = name.removeprefix("quire_").replace("_", " ")
    return words[0].upper() + words[1:]


def prometheus(target: str, scheme: str) -> tuple[str, str]:
    """The configuration of a scrape, and the rules of alerts, as YAML."""
    scrape = f"""\
scrape_configs:
  - job_name: quire
    scheme: {scheme}
    metrics_path: /metrics
    static_configs:
      - targets: [{json.dumps(target)}]
"""
    rules = ["groups:", "  - name: quire", "    rules:"]
    for name, query, hold, severity, advice in ALERTS:
        rules += [
            f"      - alert: {name}",
            # JSON is YAML, too.
            f"        expr: {json.dumps(query)}",
            f"        for: {hold}",
            "        labels:",
            f"          severity: {severity}",
            "        annotations:",
            f"          summary: {json.dumps(advice)}",
        ]
    return scrape, "\n".join(rules) + "\n"
