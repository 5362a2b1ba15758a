"""The views of the queries of Nexmark have the answers of DuckDB over the same records: after all
events, after deletes of records in a random order, and after a restart."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import duckdb
import pyarrow
import pytest
import quire
from support.nexmark import FIELDS, QUERIES, events, settings
from support.server_process import ServerProcess
from support.waiting import PATIENCE, wait_until

Tables = dict[str, dict[int, dict[str, Any]]]
#: Of the sum of floats that DuckDB makes in another order.
RELATIVE: Final = 1e-9


def rows_of(records: Iterable[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """The records in a defined order. An empty text is NULL in a view."""
    rows = [
        tuple(None if record.get(name) == "" else record.get(name) for name in sorted(record))
        for record in records
    ]
    return sorted(rows, key=lambda row: [(value is not None, str(value)) for value in row])


def answers(tables: Tables) -> dict[str, list[tuple[Any, ...]]]:
    """The answers of DuckDB."""
    with duckdb.connect() as database:
        for topic, records in tables.items():
            columns = {name: [record[name] for record in records.values()] for name in ("id", *FIELDS[topic])}
            database.register(topic, pyarrow.table(columns))
        return {
            name: rows_of(database.sql(query.sql).to_arrow_table().to_pylist())
            for name, query in QUERIES.items()
        }


def assert_equal(found: list[tuple[Any, ...]], expected: list[tuple[Any, ...]], name: str) -> None:
    assert len(found) == len(expected), name
    for one, other in zip(found, expected, strict=True):
        assert len(one) == len(other), name
        for value, wanted in zip(one, other, strict=True):
            if isinstance(value, float) or isinstance(wanted, float):
                assert math.isclose(value, wanted, rel_tol=RELATIVE), (name, one, other)
            else:
                assert value == wanted, (name, one, other)


def check(client: quire.Client, tables: Tables) -> None:
    client.flush(timeout=PATIENCE)
    names = [view["name"] for query in QUERIES.values() for view in query.views]
    wait_until(
        lambda: all(it["last_values"]["waiting_changes"] == 0 for it in client._described_of(names)),
    )
    for name, expected in answers(tables).items():
        assert expected, name
        assert_equal(rows_of(record.json() for record in client.sow(name)), expected, name)


@pytest.mark.parametrize("seed", range(2))
def test_views_have_the_answers_of_another_engine(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    tables: Tables = {topic: {} for topic in FIELDS}
    with ServerProcess(tmp_path, **settings(QUERIES)) as server:
        with quire.Client(server.url, name="c") as client:
            for topic, record in events():
                client.publish(topic, record)
                tables[topic][record["id"]] = record
                # One bid is deleted again.
                if draw.random() < 0.05:
                    _delete(client, draw, tables, "bid")
            check(client, tables)
            for topic, share in (("bid", 0.3), ("auction", 0.2), ("person", 0.2)):
                for _ in range(int(len(tables[topic]) * share)):
                    _delete(client, draw, tables, topic)
            check(client, tables)
        server.kill()
        server.start()
        with quire.Client(server.url, name="c") as client:
            check(client, tables)


def _delete(client: quire.Client, draw: random.Random, tables: Tables, topic: str) -> None:
    if tables[topic]:
        number = draw.choice([*tables[topic]])
        client.sow_delete(topic, data={"id": number})
        del tables[topic][number]
