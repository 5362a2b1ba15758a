"""The same aggregation by Spark, over the journal, has the rows of the view."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import quire
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from support.waiting import PATIENCE, wait_until

SETTINGS: dict[str, Any] = {
    "sow_topic": [
        {"name": "orders", "message_type": "json", "key": ["/id"]},
        {"name": "accounts", "message_type": "json", "key": ["/id"]},
    ],
    "view": [
        {
            "name": "exposure",
            "message_type": "json",
            "underlying_topic": "orders",
            "projection": [
                "/account",
                "SUM(/qty) AS /qty",
                "SUM(/price * /qty) AS /notional",
                "COUNT(/id) AS /orders",
                "MIN(/price) AS /least",
                "MAX(/price) AS /most",
                "AVG(/price) AS /average",
                "STDDEV_SAMP(/price) AS /deviation",
                "COUNT_DISTINCT(/qty) AS /quantities",
            ],
            "grouping": ["/account"],
            "filter": "/state <> 'cancelled'",
        },
        {
            "name": "desks",
            "message_type": "json",
            "join": ["[orders].[/account] = [accounts].[/id]"],
            "projection": ["[accounts].[/desk] AS /desk", "SUM([orders].[/qty]) AS /qty"],
            "grouping": ["[accounts].[/desk]"],
        },
    ],
}


def test_spark_and_views_have_the_same_rows(spark: SparkSession, tmp_path: Path) -> None:
    draw = random.Random(7)
    with quire.Client(f"file:{tmp_path}", config=quire.Config(**SETTINGS)) as client:
        for number in range(20):
            client.publish("accounts", {"id": f"a{number}", "desk": draw.choice(["north", "south"])})
        for _ in range(5_000):
            order = {
                "id": draw.randrange(1_000),
                "account": f"a{draw.randrange(25)}",
                "price": draw.randrange(10_000) / 100,
                "qty": draw.randrange(1, 50),
                "state": draw.choice(["new", "done", "cancelled"]),
            }
            client.publish("orders", order)
            if draw.random() < 0.1:
                client.sow_delete("orders", data={"id": draw.randrange(1_000)})
        client.flush(timeout=PATIENCE)
        names = ["exposure", "desks"]
        wait_until(
            lambda: all(it["last_values"]["waiting_changes"] == 0 for it in client._described_of(names))
        )
        exposure, desks = ([record.json() for record in client.sow(name)] for name in names)

    def records(topic: str, fields: str) -> Any:
        options = {"lastValues": topic, "fields": fields}
        return spark.read.format("quire").options(**options).load(str(tmp_path))

    orders = records("orders", "id int, account string, price double, qty long, state string")
    accounts = records("accounts", "id string, desk string")
    grouped = orders.where("state <> 'cancelled'").groupBy("account")
    by_spark = grouped.agg(
        f.sum("qty").alias("qty"),
        f.sum(f.col("price") * f.col("qty")).alias("notional"),
        f.count("id").alias("orders"),
        f.min("price").alias("least"),
        f.max("price").alias("most"),
        f.avg("price").alias("average"),
        f.stddev_samp("price").alias("deviation"),
        f.countDistinct("qty").alias("quantities"),
    )
    assert len(exposure) == 25
    assert_equal(exposure, [row.asDict() for row in by_spark.collect()], "account")
    of_desks = (
        orders.join(accounts, orders.account == accounts.id, "left")
        .groupBy("desk")
        .agg(f.sum("qty").alias("qty"))
    )
    # Some orders name an account that has no record. Their desk is NULL.
    assert {record["desk"] for record in desks} == {"north", "south", None}
    assert_equal(desks, [row.asDict() for row in of_desks.collect()], "desk")


def assert_equal(found: list[dict[str, Any]], expected: list[dict[str, Any]], key: str) -> None:
    """The same rows: integers and texts are equal, floats to 1e-9 of their value."""
    assert len(found) == len(expected)
    by_key = {row[key]: row for row in expected}
    for record in found:
        row = by_key[record[key]]
        assert record.keys() == row.keys()
        for name, value in row.items():
            if isinstance(value, float):
                assert math.isclose(record[name], value, rel_tol=1e-9), (record, row)
            else:
                assert record[name] == value, (record, row)
