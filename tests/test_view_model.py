"""Random views of random topics against a slow computation in Python, after random changes, and
after restarts.

The views are of topics and of other views, with and without joins, groups and filters. The model
keeps the messages of the topics, and computes all records of all views again.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import quire
from support.server_process import ServerProcess
from support.waiting import PATIENCE, wait_until

TOPICS: Final = ("t0", "t1", "t2")
FIELDS: Final = ("a", "b", "g", "v")
#: Aggregates, and what they compute from numbers.
AGGREGATES: Final[dict[str, Callable[[list[int]], int | None]]] = {
    "COUNT": len,
    "SUM": lambda values: sum(values) if values else None,
    "MIN": lambda values: min(values, default=None),
    "MAX": lambda values: max(values, default=None),
    "COUNT_DISTINCT": lambda values: len(set(values)),
}
Record = dict[str, Any]


def number(value: Any) -> int | None:
    """The value as the views compare it. Each is NULL, a number, or a text that is a number."""
    return None if value in (None, "") else int(value)


class Model:
    """The definitions of the views, and their records."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.fields: dict[str, list[str]] = {topic: [*FIELDS] for topic in TOPICS}
        self.settings: list[dict[str, Any]] = []
        self.parts: dict[str, Any] = {}
        for place in range(5):
            self._add(f"view{place}")

    def _add(self, name: str) -> None:
        draw = self.draw
        sources = draw.sample(sorted(self.fields), draw.choice([1, 2, 2, 3]))
        joins = []
        for place, source in enumerate(sources[1:], start=1):
            parent = sources[draw.randrange(place)]
            pairs = [
                (draw.choice(self.fields[parent]), draw.choice(self.fields[source]))
                for _ in range(draw.choice([1, 1, 2]))
            ]
            joins.append((parent, source, pairs))
        known = [(source, field) for source in sources for field in self.fields[source]]
        is_ungrouped = len(sources) > 1 and draw.random() < 0.4
        grouping = draw.sample(known, draw.randrange(4)) if not is_ungrouped else []
        shown = draw.sample(known, 4) if is_ungrouped else grouping
        aggregates = (
            [] if is_ungrouped else [(draw.choice([*AGGREGATES]), draw.choice(known)) for _ in range(3)]
        )
        limit = draw.randrange(5) if len(sources) == 1 and draw.random() < 0.5 else None
        self.parts[name] = (sources, joins, shown, aggregates, limit, is_ungrouped, known[0])

        def written(field: tuple[str, str]) -> str:
            return f"/{field[1]}" if len(sources) == 1 else f"[{field[0]}].[/{field[1]}]"

        names = [f"s{place}" for place in range(len(shown))] + [
            f"x{place}" for place in range(len(aggregates))
        ]
        texts = [written(field) for field in shown] + [
            f"{kind}({written(field)})" for kind, field in aggregates
        ]
        settings: dict[str, Any] = {
            "name": name,
            "message_type": "json",
            "projection": [f"{text} AS /{field}" for text, field in zip(texts, names, strict=True)],
            "grouping": [written(field) for field in grouping],
            "inline_conflation": draw.random() < 0.3,
        }
        if len(sources) == 1:
            settings |= {"underlying_topic": sources[0]}
            if limit is not None:
                settings |= {"filter": f"/{known[0][1]} > {limit}"}
        else:
            settings |= {
                "join": [
                    f"[{parent}].[/{left}] = [{child}].[/{right}]"
                    for parent, child, pairs in joins
                    for left, right in pairs
                ]
            }
        self.fields[name] = names
        self.settings.append(settings)

    def records(self, topics: dict[str, dict[int, Record]]) -> dict[str, list[Record]]:
        """The records of all views."""
        found = {topic: list(records.values()) for topic, records in topics.items()}
        for name in self.parts:
            found[name] = self._records_of(name, found)
        return {name: found[name] for name in self.parts}

    def _records_of(self, name: str, found: dict[str, list[Record]]) -> list[Record]:
        sources, joins, shown, aggregates, limit, is_ungrouped, filtered = self.parts[name]
        rows: list[dict[str, Record]] = [{sources[0]: record} for record in found[sources[0]]]
        for parent, child, pairs in joins:
            rows = [
                {**row, child: match}
                for row in rows
                for match in _matches(row[parent], found[child], pairs) or [{}]
            ]
        if limit is not None:
            rows = [row for row in rows if (number(row[filtered[0]].get(filtered[1])) or -1) > limit]
        groups: dict[tuple[int | None, ...], list[dict[str, Record]]] = {}
        for place, row in enumerate(rows):
            key = tuple(number(row[source].get(field)) for source, field in shown)
            groups.setdefault((*key, place) if is_ungrouped else key, []).append(row)
        if not shown and not groups:
            groups[()] = []
        records = []
        for key, members in groups.items():
            record: Record = {f"s{place}": key[place] for place in range(len(shown))}
            for place, (kind, (source, field)) in enumerate(aggregates):
                values = [number(row[source].get(field)) for row in members]
                record[f"x{place}"] = AGGREGATES[kind]([value for value in values if value is not None])
            records.append(record)
        return records


def _matches(parent: Record, children: list[Record], pairs: list[tuple[str, str]]) -> list[Record]:
    def equal(child: Record) -> bool:
        values = [(number(parent.get(left)), number(child.get(right))) for left, right in pairs]
        return all(left is not None and left == right for left, right in values)

    return [child for child in children if equal(child)]


def shown(records: Iterator[Record] | list[Record]) -> list[str]:
    return sorted(json.dumps({key: number(value) for key, value in record.items()}) for record in records)


def random_record(draw: random.Random, id: int) -> Record:
    value = [None, "", 0, 1, 2, 3, 4, "1", "2"]
    return {"id": id} | {field: draw.choice(value) for field in FIELDS if draw.random() < 0.9}


@pytest.mark.parametrize("seed", range(12))
def test_random_views_have_the_records_of_a_slow_computation(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    model = Model(draw)
    topics: dict[str, dict[int, Record]] = {topic: {} for topic in TOPICS}
    settings: dict[str, Any] = {
        "sow_topic": [{"name": topic, "message_type": "json", "key": ["/id"]} for topic in TOPICS],
        "view": draw.sample(model.settings, len(model.settings)),
        "logging": {"target": "file", "file": str(tmp_path / "log")},
    }

    def check(client: quire.Client) -> None:
        client.flush(timeout=PATIENCE)
        names = [*model.parts]
        wait_until(
            lambda: all(it["last_values"]["waiting_changes"] == 0 for it in client._described_of(names))
        )
        expected = model.records(topics)
        for name in names:
            found = shown([record.json() for record in client.sow(name)])
            assert found == shown(expected[name]), (name, model.settings)

    with ServerProcess(tmp_path, **settings) as server:
        for _ in range(3):
            with quire.Client(server.url, name="c") as client:
                check(client)
                for _ in range(8):
                    for _ in range(draw.randrange(25)):
                        _change(client, draw, topics)
                    check(client)
            if draw.random() < 0.5:
                # The stop writes snapshots.
                assert server.terminate() == 0
            else:
                server.kill()
            server.start()
        with quire.Client(server.url, name="c") as client:
            check(client)
    # No view was computed again because of its snapshot.
    assert "40-0009" not in (tmp_path / "log").read_text()


def _change(client: quire.Client, draw: random.Random, topics: dict[str, dict[int, Record]]) -> None:
    topic, id = draw.choice(TOPICS), draw.randrange(6)
    kind = draw.random()
    if kind < 0.25:
        client.sow_delete(topic, filter=f"/id = {id}")
        topics[topic].pop(id, None)
    elif kind < 0.4 and id in topics[topic]:
        field = draw.choice(FIELDS)
        value = draw.choice([0, 1, 2, "3"])
        client.delta_publish(topic, {"id": id, field: value})
        topics[topic][id] = topics[topic][id] | {field: value}
    else:
        record = random_record(draw, id)
        client.publish(topic, record)
        topics[topic][id] = record
