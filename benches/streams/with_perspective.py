"""Computes one query of Nexmark with Perspective, in this process: `with_perspective.py QUERY EVENTS`.

The events come as lines of JSON, a thousand at a time, and Perspective hands on the changes after
each of these updates.
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import Any

import perspective
from program import Meter, Program, read_events

BID = {
    "id": "integer",
    "auction": "integer",
    "bidder": "integer",
    "price": "integer",
    "channel": "string",
    "url": "string",
    "date_time": "float",
    "extra": "string",
}
AT_ONCE = 1_000

#: The settings of the view, and how its columns are named in the answer.
QUERIES: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    "q1": (
        {
            "columns": ["id", "auction", "bidder", "cost", "date_time", "extra"],
            "expressions": {"cost": '0.908 * "price"'},
        },
        {"cost": "price"},
    ),
    "q2": (
        {
            "columns": ["id", "auction", "price"],
            "expressions": {"rest": '"auction" % 123'},
            "filter": [["rest", "==", 0]],
        },
        {},
    ),
    "q17": (
        {
            "group_by": ["auction", "day"],
            "group_by_depth": 2,
            "columns": ["id", "low", "middle", "high", "least", "most", "average", "price"],
            "expressions": {
                "day": "bucket(datetime(\"date_time\"), 'D')",
                "low": 'if ("price" < 10000) 1; else 0',
                "middle": 'if ("price" >= 10000 and "price" < 1000000) 1; else 0',
                "high": 'if ("price" >= 1000000) 1; else 0',
                "least": '"price"',
                "most": '"price"',
                "average": '"price"',
            },
            "aggregates": {
                "id": "count",
                "low": "sum",
                "middle": "sum",
                "high": "sum",
                "least": "min",
                "most": "max",
                "average": "avg",
                "price": "sum",
            },
        },
        {"id": "bids", "low": "rank1_bids", "middle": "rank2_bids", "high": "rank3_bids", "price": "sum"},
    ),
}


def main() -> None:
    program = Program(sys.argv)
    settings, names = QUERIES[program.query]
    events = [event for _, event in read_events(program.events, ["bid"])]
    updates = [
        b"\n".join(events[start : start + AT_ONCE]).decode() for start in range(0, len(events), AT_ONCE)
    ]
    client = perspective.Server().new_local_client()
    table = client.table(BID, index="id", name="bid")
    view = table.view(**settings)
    changes = 0

    def changed(*_: Any, **delta: Any) -> None:
        nonlocal changes
        changes += 1

    view.on_update(changed, mode="row")
    meter = Meter()
    meter.begin()
    for update in updates:
        table.update(update, format="ndjson")
    table.size()
    meter.end()
    assert changes > 0
    # Perspective adds the totals of each auction, and of all.
    rows = (row for row in view.to_json() if len(row.get("__ROW_PATH__", (0, 0))) == 2)
    program.answer(meter, len(events), (row_of(row, names) for row in rows))


def row_of(row: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    path = row.pop("__ROW_PATH__", [])
    groups = (
        {"auction": path[0], "day": str(datetime.fromtimestamp(path[1] / 1000, UTC).date())} if path else {}
    )
    return groups | {names.get(name, name): value for name, value in row.items()}


if __name__ == "__main__":
    main()
