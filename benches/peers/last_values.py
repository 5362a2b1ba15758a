"""The lines about last values: an engine keeps the newest version of each record.

A record belongs to one of 100 groups, so a query for a group matches 1 % of the records.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle, islice

from .engine import LastValues, Record, Table
from .roles import Figure, Figures, Result, Scale, rate_of, run, timed
from .server import Server

GROUPS = 100
RECORD_SIZE = 300

_LOOK_UPS_MIN = 3
_INDEX = {Table.PLAIN: "without an index", Table.INDEXED: "with an index"}


def insert(table: Table) -> Callable[[LastValues, Server, Scale], Figures]:
    def line(engine: LastValues, server: Server, scale: Scale) -> Figures:
        results = run([(_upsert, (engine, table, scale.records, scale.records, 0))])
        return {f"upsert of new records, {_INDEX[table]}": rate_of(scale.records, results)}

    return line


def update(table: Table) -> Callable[[LastValues, Server, Scale], Figures]:
    def line(engine: LastValues, server: Server, scale: Scale) -> Figures:
        results = run([(_upsert, (engine, table, scale.records, scale.messages, 1))])
        return {f"upsert of known records, {_INDEX[table]}": rate_of(scale.messages, results)}

    return line


def get(engine: LastValues, server: Server, scale: Scale) -> Figures:
    results = run([(_get, (engine, scale.records, scale.seconds))])
    return {"get by key, p50": _p50(results[0])}


def query(table: Table) -> Callable[[LastValues, Server, Scale], Figures]:
    def line(engine: LastValues, server: Server, scale: Scale) -> Figures:
        results = run([(_query, (engine, table, scale.records, scale.seconds))])
        return {f"query for 1 % of the records, {_INDEX[table]}, p50": _p50(results[0])}

    return line


def watch(engine: LastValues, server: Server, scale: Scale) -> Figures:
    """Counts from the first change until the subscriber has the last one. It reads the state before."""
    changes = (_upsert, (engine, Table.PLAIN, scale.records, scale.messages, 2, True))
    results = run([(_watch, (engine, scale.records, scale.messages)), changes])
    return {"upsert to one subscriber": rate_of(scale.messages, results)}


LINES: dict[str, Callable[[LastValues, Server, Scale], Figures]] = {
    "insert": insert(Table.PLAIN),
    "insert-indexed": insert(Table.INDEXED),
    "update": update(Table.PLAIN),
    "update-indexed": update(Table.INDEXED),
    "get": get,
    "query": query(Table.PLAIN),
    "query-indexed": query(Table.INDEXED),
    "watch": watch,
}


def record(number: int, version: int) -> Record:
    key, group = f"k{number:07}", f"g{number % GROUPS:02}"
    head = f'{{"id":"{key}","group":"{group}","version":{version},"text":"'
    return Record(key, group, (head.ljust(RECORD_SIZE - 2, "x") + '"}').encode())


def _p50(result: Result) -> Figure:
    return Figure(statistics.median(result.latencies_ns) / 1e3, "µs")


def _upsert(
    ready: Callable[[], object],
    engine: LastValues,
    table: Table,
    known: int,
    count: int,
    version: int,
    watched: bool = False,
) -> Result:
    records = [record(number % known, version + number // known) for number in range(count)]
    ready()
    return timed(lambda: engine.upsert(table, records, watched=watched))


def _get(ready: Callable[[], object], engine: LastValues, known: int, seconds: int) -> Result:
    # The stride is prime: successive keys are far apart, and all keys are used.
    keys = (record(number * 7919 % known, 0).key for number in range(1 << 60))
    result = Result(0.0, 0.0)

    def came(data: bytes) -> None:
        if len(data) != RECORD_SIZE:
            raise ValueError(f"a record of {len(data)} bytes")

    ready()
    engine.get(Table.PLAIN, _timing(keys, seconds, result), came)
    return result


def _query(ready: Callable[[], object], engine: LastValues, table: Table, known: int, seconds: int) -> Result:
    groups = cycle(record(number, 0).group for number in range(GROUPS))
    result = Result(0.0, 0.0)

    def came(records: Sequence[bytes]) -> None:
        if len(records) != known // GROUPS:
            raise ValueError(f"{len(records)} records in a group")

    ready()
    engine.query(table, _timing(groups, seconds, result), came)
    return result


def _timing(items: Iterator[str], seconds: int, result: Result) -> Iterator[str]:
    """Yields items for this long, and records how long the engine took for each. The first one
    warms up and is dropped."""
    latencies_ns: list[int] = []
    end = time.monotonic() + seconds
    for item in items:
        if time.monotonic() > end and len(latencies_ns) > _LOOK_UPS_MIN:
            break
        start = time.monotonic_ns()
        yield item
        latencies_ns.append(time.monotonic_ns() - start)
    result.latencies_ns = list(islice(latencies_ns, 1, None))


def _watch(ready: Callable[[], object], engine: LastValues, known: int, count: int) -> Result:
    taken = 0
    result = Result(0.0, 0.0)

    def begin(records: int) -> None:
        if records != known:
            raise ValueError(f"{records} records in the state")
        ready()
        result.start = time.monotonic()

    def came(more: int) -> bool:
        nonlocal taken
        taken += more
        return taken >= count

    engine.watch(begin, came)
    result.end = time.monotonic()
    return result
