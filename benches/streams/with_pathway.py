"""Computes one query of Nexmark with Pathway, in this process: `with_pathway.py QUERY EVENTS`.

The events come from a Python connector as text, and Pathway parses them. It hands on the changes of
each 100 ms together.
"""

from __future__ import annotations

import sys
from typing import Any

import pathway as pw
from program import Meter, Program, read_events


class Person(pw.Schema):
    number: int = pw.column_definition(primary_key=True)
    name: str
    email_address: str
    credit_card: str
    city: str
    state: str
    date_time: int
    extra: str


class Auction(pw.Schema):
    number: int = pw.column_definition(primary_key=True)
    item_name: str
    description: str
    initial_bid: int
    reserve: int
    date_time: int
    expires: int
    seller: int
    category: int
    extra: str


class Bid(pw.Schema):
    number: int = pw.column_definition(primary_key=True)
    auction: int
    bidder: int
    price: int
    channel: str
    url: str
    date_time: int
    extra: str


COMMIT_MS = 100
SCHEMAS = {"person": Person, "auction": Auction, "bid": Bid}


class Events(pw.io.python.ConnectorSubject):  # type: ignore[misc]
    """The events of one topic."""

    def __init__(self, events: list[bytes], meter: Meter) -> None:
        super().__init__(datasource_name="events")
        # Pathway has a use of its own for the name `id`, the first field of each record.
        self._events = [event.decode().replace("id", "number", 1) for event in events]
        self._meter = meter

    def run(self) -> None:
        self._meter.begin()
        for event in self._events:
            self.next_str(event)


def q1(bid: Any) -> Any:
    this = pw.this
    return bid.select(
        this.number, this.auction, this.bidder, this.date_time, this.extra, price=0.908 * this.price
    )


def q2(bid: Any) -> Any:
    return bid.filter(pw.this.auction % 123 == 0).select(pw.this.number, pw.this.auction, pw.this.price)


def q3(auction: Any, person: Any) -> Any:
    state = pw.this.state
    near = person.filter((state == "or") | (state == "id") | (state == "ca"))
    sold = auction.filter(pw.this.category == 10)
    return sold.join(near, pw.left.seller == pw.right.number).select(
        pw.right.name, pw.right.city, pw.right.state, pw.left.number
    )


def q4(bid: Any, auction: Any) -> Any:
    pairs = bid.join(auction, pw.left.auction == pw.right.number).select(
        pw.left.auction,
        pw.right.category,
        pw.left.price,
        at=pw.left.date_time,
        begin=pw.right.date_time,
        end=pw.right.expires,
    )
    in_time = pairs.filter((pw.this.at >= pw.this.begin) & (pw.this.at <= pw.this.end))
    prices = in_time.groupby(pw.this.auction, pw.this.category).reduce(
        pw.this.category, price=pw.reducers.max(pw.this.price)
    )
    return prices.groupby(pw.this.category).reduce(pw.this.category, price=pw.reducers.avg(pw.this.price))


def q17(bid: Any) -> Any:
    day = pw.this.date_time.dt.utc_from_timestamp(unit="ms").dt.strftime("%Y-%m-%d")
    price = pw.this.price
    bids = bid.select(
        pw.this.auction,
        price,
        day=day,
        low=pw.if_else(price < 10_000, 1, 0),
        middle=pw.if_else((price >= 10_000) & (price < 1_000_000), 1, 0),
        high=pw.if_else(price >= 1_000_000, 1, 0),
    )
    to = pw.reducers
    return bids.groupby(pw.this.auction, pw.this.day).reduce(
        pw.this.auction,
        pw.this.day,
        bids=to.count(),
        rank1_bids=to.sum(pw.this.low),
        rank2_bids=to.sum(pw.this.middle),
        rank3_bids=to.sum(pw.this.high),
        least=to.min(pw.this.price),
        most=to.max(pw.this.price),
        average=to.avg(pw.this.price),
        sum=to.sum(pw.this.price),
    )


def q18(bid: Any) -> Any:
    last = bid.groupby(pw.this.bidder, pw.this.auction).reduce(last=pw.reducers.max(pw.this.number))
    return last.join(bid, pw.left.last == pw.right.number).select(
        *(pw.right[name] for name in Bid.column_names())
    )


def q20(bid: Any, auction: Any) -> Any:
    sold = auction.filter(pw.this.category == 10)
    return bid.join(sold, pw.left.auction == pw.right.number).select(
        *(pw.left[name] for name in Bid.column_names()),
        pw.right.item_name,
        pw.right.seller,
        pw.right.category,
    )


QUERIES = {"q1": q1, "q2": q2, "q3": q3, "q4": q4, "q17": q17, "q18": q18, "q20": q20}


def main() -> None:
    program = Program(sys.argv)
    query = QUERIES[program.query]
    meter = Meter()
    names = query.__code__.co_varnames[: query.__code__.co_argcount]
    events = read_events(program.events, names)
    tables = [
        pw.io.python.read(
            Events([event for topic, event in events if topic == name], meter),
            schema=SCHEMAS[name],
            format="json",
            autocommit_duration_ms=COMMIT_MS,
        )
        for name in names
    ]
    rows: dict[Any, dict[str, Any]] = {}

    def changed(key: Any, row: dict[str, Any], time: int, is_addition: bool) -> None:
        if is_addition:
            rows[key] = row
        elif rows.get(key) == row:
            del rows[key]

    pw.io.subscribe(query(*tables), on_change=changed, on_end=meter.end)
    pw.run(monitoring_level=pw.MonitoringLevel.NONE)
    answer = ({"id" if name == "number" else name: row[name] for name in row} for row in rows.values())
    program.answer(meter, len(events), answer)


if __name__ == "__main__":
    main()
