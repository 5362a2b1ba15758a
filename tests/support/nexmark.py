"""The queries of Nexmark, the benchmark of stream processors, as views and in SQL.

Queries with windows in time, side inputs or patterns of events are left out, as q5 to q13 and q19:
a view has none of these. A query that joins inner has a view of its join, which is a left
outer one, and a view that takes the complete combinations.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

#: As written by `cargo run --package quire-benches --example nexmark -- 3000 120`: 25 hours.
EVENTS: Final = Path(__file__).parent.parent / "golden/nexmark.jsonl.gz"

#: The fields of each topic, after `id`. Bids have no number of their own: theirs is their position.
FIELDS: Final = {
    "person": ("name", "email_address", "credit_card", "city", "state", "date_time", "extra"),
    "auction": (
        "item_name", "description", "initial_bid", "reserve", "date_time", "expires", "seller",
        "category", "extra",
    ),
    "bid": ("auction", "bidder", "price", "channel", "url", "date_time", "extra"),
}  # fmt: skip


@dataclass(frozen=True)
class Query:
    """A query: its views, the last one of which has the answer, and the same in SQL."""

    views: tuple[dict[str, Any], ...]
    #: Over the tables `person`, `auction` and `bid`, with a name for each field of the answer.
    sql: str


def view(
    name: str, source: str, projection: list[str], grouping: list[str], where: str = ""
) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "name": name,
        "message_type": "json",
        "underlying_topic": source,
        "projection": projection,
        "grouping": grouping,
    }
    return settings | {"filter": where} if where else settings


def joined(name: str, join: str, projection: list[str]) -> dict[str, Any]:
    return {"name": name, "message_type": "json", "join": [join], "projection": projection}


def slash(*names: str) -> list[str]:
    return [f"/{name}" for name in names]


BID: Final = ("id", *FIELDS["bid"])
#: The counts and sums of the bids of a group, by three ranges of prices.
RANGES: Final = (
    ("rank1", "/price < 10000", "price < 10000"),
    ("rank2", "/price >= 10000 AND /price < 1000000", "price >= 10000 AND price < 1000000"),
    ("rank3", "/price >= 1000000", "price >= 1000000"),
)
RANGES_OF_BIDS: Final = [f"SUM(IF({where}, 1, 0)) AS /{name}_bids" for name, where, _ in RANGES]
RANGES_OF_BIDS_SQL: Final = ", ".join(
    f"count(*) FILTER ({where}) AS {name}_bids" for name, _, where in RANGES
)
DISTINCT: Final = [
    "COUNT_DISTINCT(/bidder) AS /bidders",
    *(f"COUNT_DISTINCT(IF({where}, /bidder, NULL)) AS /{name}_bidders" for name, where, _ in RANGES),
    "COUNT_DISTINCT(/auction) AS /auctions",
    *(f"COUNT_DISTINCT(IF({where}, /auction, NULL)) AS /{name}_auctions" for name, where, _ in RANGES),
]
DISTINCT_SQL: Final = ", ".join(
    [
        "count(DISTINCT bidder) AS bidders",
        *(f"count(DISTINCT bidder) FILTER ({where}) AS {name}_bidders" for name, _, where in RANGES),
        "count(DISTINCT auction) AS auctions",
        *(f"count(DISTINCT auction) FILTER ({where}) AS {name}_auctions" for name, _, where in RANGES),
    ]
)
DAY: Final = "STRFTIME('%Y-%m-%d', /date_time / 1000) AS /day"
DAY_SQL: Final = "strftime(make_timestamp(date_time * 1000), '%Y-%m-%d')"

QUERIES: Final[dict[str, Query]] = {
    "q0": Query(
        (view("q0", "bid", slash(*BID), slash(*BID)),),
        f"SELECT {', '.join(BID)} FROM bid",
    ),
    "q1": Query(
        (
            view(
                "q1",
                "bid",
                [*slash("id", "auction", "bidder"), "0.908 * /price AS /price", *slash("date_time", "extra")],
                slash("id", "auction", "bidder", "price", "date_time", "extra"),
            ),
        ),
        "SELECT id, auction, bidder, 0.908::DOUBLE * price AS price, date_time, extra FROM bid",
    ),
    "q2": Query(
        (
            view(
                "q2",
                "bid",
                slash("id", "auction", "price"),
                slash("id", "auction", "price"),
                "/auction % 123 = 0",
            ),
        ),
        "SELECT id, auction, price FROM bid WHERE auction % 123 = 0",
    ),
    "q3": Query(
        (
            view("q3_auctions", "auction", slash("id", "seller"), slash("id", "seller"), "/category = 10"),
            view(
                "q3_persons",
                "person",
                slash("id", "name", "city", "state"),
                slash("id", "name", "city", "state"),
                "/state IN ('or', 'id', 'ca')",
            ),
            joined(
                "q3_pairs",
                "[q3_auctions].[/seller] = [q3_persons].[/id]",
                [
                    "[q3_auctions].[/id] AS /id",
                    *(f"[q3_persons].[/{name}] AS /{name}" for name in ("name", "city", "state")),
                ],
            ),
            view(
                "q3",
                "q3_pairs",
                slash("name", "city", "state", "id"),
                slash("name", "city", "state", "id"),
                "/name IS NOT NULL",
            ),
        ),
        "SELECT p.name, p.city, p.state, a.id FROM auction a JOIN person p ON a.seller = p.id "
        "WHERE a.category = 10 AND p.state IN ('or', 'id', 'ca')",
    ),
    "q4": Query(
        (
            joined(
                "q4_bids",
                "[bid].[/auction] = [auction].[/id]",
                [
                    "[auction].[/id] AS /auction",
                    "[auction].[/category] AS /category",
                    "[auction].[/date_time] AS /begin",
                    "[auction].[/expires] AS /end",
                    "[bid].[/date_time] AS /date_time",
                    "[bid].[/price] AS /price",
                ],
            ),
            view(
                "q4_prices",
                "q4_bids",
                ["/auction", "/category", "MAX(/price) AS /price"],
                slash("auction", "category"),
                "/date_time BETWEEN /begin AND /end",
            ),
            view("q4", "q4_prices", ["/category", "AVG(/price) AS /price"], ["/category"]),
        ),
        "SELECT category, avg(price) AS price FROM (SELECT a.id, a.category, max(b.price) AS price "
        "FROM auction a JOIN bid b ON a.id = b.auction WHERE b.date_time BETWEEN a.date_time AND a.expires "
        "GROUP BY a.id, a.category) GROUP BY category",
    ),
    "q14": Query(
        (
            view(
                "q14",
                "bid",
                [
                    *slash("id", "auction", "bidder"),
                    "0.908 * /price AS /price",
                    "IF(AS_INTEGER(STRFTIME('%H', /date_time / 1000)) BETWEEN 8 AND 18, 'dayTime', "
                    "IF(AS_INTEGER(STRFTIME('%H', /date_time / 1000)) <= 6 OR "
                    "AS_INTEGER(STRFTIME('%H', /date_time / 1000)) >= 20, 'nightTime', 'otherTime')) AS /time",
                    "LENGTH(/extra) - COALESCE(LENGTH(REPLACE(/extra, 'c', NULL)), 0) AS /c_counts",
                ],
                slash("id", "auction", "bidder", "price", "date_time", "extra"),
                "0.908 * /price > 1000000 AND 0.908 * /price < 50000000",
            ),
        ),
        "SELECT id, auction, bidder, 0.908::DOUBLE * price AS price, "
        "CASE WHEN hour(make_timestamp(date_time * 1000)) BETWEEN 8 AND 18 THEN 'dayTime' "
        "WHEN hour(make_timestamp(date_time * 1000)) <= 6 OR hour(make_timestamp(date_time * 1000)) >= 20 "
        "THEN 'nightTime' ELSE 'otherTime' END AS time, "
        "nullif(length(extra), 0) - length(replace(extra, 'c', '')) AS c_counts "
        "FROM bid WHERE 0.908::DOUBLE * price > 1000000 AND 0.908::DOUBLE * price < 50000000",
    ),
    "q15": Query(
        (
            view(
                "q15_bids",
                "bid",
                [DAY, *slash("id", "auction", "bidder", "price")],
                slash("id", "date_time", "auction", "bidder", "price"),
            ),
            view("q15", "q15_bids", ["/day", "COUNT(/id) AS /bids", *RANGES_OF_BIDS, *DISTINCT], ["/day"]),
        ),
        f"SELECT {DAY_SQL} AS day, count(*) AS bids, {RANGES_OF_BIDS_SQL}, {DISTINCT_SQL} FROM bid GROUP BY day",
    ),
    "q16": Query(
        (
            view(
                "q16_bids",
                "bid",
                [
                    DAY,
                    "STRFTIME('%H:%M', /date_time / 1000) AS /minute",
                    *slash("id", "channel", "auction", "bidder", "price"),
                ],
                slash("id", "date_time", "channel", "auction", "bidder", "price"),
            ),
            view(
                "q16",
                "q16_bids",
                [
                    "/channel",
                    "/day",
                    "MAX(/minute) AS /minute",
                    "COUNT(/id) AS /bids",
                    *RANGES_OF_BIDS,
                    *DISTINCT,
                ],
                ["/channel", "/day"],
            ),
        ),
        f"SELECT channel, {DAY_SQL} AS day, max(strftime(make_timestamp(date_time * 1000), '%H:%M')) AS minute, "
        f"count(*) AS bids, {RANGES_OF_BIDS_SQL}, {DISTINCT_SQL} FROM bid GROUP BY channel, day",
    ),
    "q17": Query(
        (
            view(
                "q17_bids",
                "bid",
                [DAY, *slash("id", "auction", "price")],
                slash("id", "date_time", "auction", "price"),
            ),
            view(
                "q17",
                "q17_bids",
                [
                    "/auction",
                    "/day",
                    "COUNT(/id) AS /bids",
                    *RANGES_OF_BIDS,
                    "MIN(/price) AS /least",
                    "MAX(/price) AS /most",
                    "AVG(/price) AS /average",
                    "SUM(/price) AS /sum",
                ],
                ["/auction", "/day"],
            ),
        ),
        f"SELECT auction, {DAY_SQL} AS day, count(*) AS bids, {RANGES_OF_BIDS_SQL}, min(price) AS least, "
        "max(price) AS most, avg(price) AS average, sum(price) AS sum FROM bid GROUP BY auction, day",
    ),
    "q18": Query(
        (
            view("q18_last", "bid", ["/bidder", "/auction", "MAX(/id) AS /last"], slash("bidder", "auction")),
            joined(
                "q18",
                "[q18_last].[/last] = [bid].[/id]",
                [f"[bid].[/{name}] AS /{name}" for name in BID],
            ),
        ),
        f"SELECT {', '.join(BID)} FROM bid "
        "QUALIFY row_number() OVER (PARTITION BY bidder, auction ORDER BY date_time DESC, id DESC) = 1",
    ),
    "q20": Query(
        (
            view(
                "q20_auctions",
                "auction",
                slash("id", "item_name", "seller", "category"),
                slash("id", "item_name", "seller", "category"),
                "/category = 10",
            ),
            joined(
                "q20_pairs",
                "[bid].[/auction] = [q20_auctions].[/id]",
                [
                    *(f"[bid].[/{name}] AS /{name}" for name in BID),
                    *(f"[q20_auctions].[/{name}] AS /{name}" for name in ("item_name", "seller", "category")),
                ],
            ),
            view(
                "q20",
                "q20_pairs",
                slash(*BID, "item_name", "seller", "category"),
                slash(*BID, "item_name", "seller", "category"),
                "/category IS NOT NULL",
            ),
        ),
        f"SELECT {', '.join(f'b.{name}' for name in BID)}, a.item_name, a.seller, a.category "
        "FROM bid b JOIN auction a ON b.auction = a.id WHERE a.category = 10",
    ),
    "q22": Query(
        (
            view(
                "q22",
                "bid",
                [
                    *slash("id", "auction", "bidder", "price", "channel"),
                    *(
                        f"REGEXP_REPLACE(/url, '^([^/]*/){{{place}}}([^/]*).*$', '\\2') AS /dir{place - 2}"
                        for place in (3, 4, 5)
                    ),
                ],
                slash("id", "auction", "bidder", "price", "channel", "url"),
            ),
        ),
        "SELECT id, auction, bidder, price, channel, split_part(url, '/', 4) AS dir1, "
        "split_part(url, '/', 5) AS dir2, split_part(url, '/', 6) AS dir3 FROM bid",
    ),
}


def events(path: Path = EVENTS) -> Iterator[tuple[str, dict[str, Any]]]:
    """The topic and the record of each event."""
    with gzip.open(path, "rt") as lines:
        for position, line in enumerate(lines):
            ((topic, record),) = json.loads(line).items()
            yield topic, {"id": position} | record


def settings(queries: dict[str, Query]) -> dict[str, Any]:
    """The configuration of a server with the topics, and the views of these queries."""
    return {
        "sow_topic": [{"name": topic, "message_type": "json", "key": ["/id"]} for topic in FIELDS],
        "view": [view for query in queries.values() for view in query.views],
    }
