"""The lines about sums: an engine keeps records, and for each group their number and sum.

In each version a record has another amount, and belongs to the next group: the old contribution
leaves one sum, and the new one enters another. Each line ends with a check of all sums.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from .engine import Amount, Sums
from .roles import Figure, Figures, Result, Scale, rate_of, run, timed
from .server import Server

GROUPS = 1_000
RECORD_SIZE = 300


def insert(engine: Sums, server: Server, scale: Scale) -> Figures:
    return _line("new records", engine, server, scale, scale.records, 0)


def update(engine: Sums, server: Server, scale: Scale) -> Figures:
    return _line("known records", engine, server, scale, scale.messages, 1)


LINES: dict[str, Callable[[Sums, Server, Scale], Figures]] = {"sums-insert": insert, "sums-update": update}


def amount(number: int, version: int) -> Amount:
    key, group, value = f"k{number:07}", f"g{(number + version) % GROUPS:04}", number % 997 + version
    head = f'{{"id":"{key}","group":"{group}","amount":{value},"text":"'
    return Amount(key, group, value, (head.ljust(RECORD_SIZE - 2, "x") + '"}').encode())


def _line(name: str, engine: Sums, server: Server, scale: Scale, count: int, version: int) -> Figures:
    before = server.processor_seconds()
    results = run([(_update, (engine, scale.records, count, version))])
    used = server.processor_seconds() - before + results[0].processor_s
    _check(engine, scale.records, count, version)
    return {
        f"{name} with sums": rate_of(count, results),
        f"{name} with sums, by second of a processor": Figure(count / used, "/s"),
    }


def _update(ready: Callable[[], object], engine: Sums, known: int, count: int, version: int) -> Result:
    records = [amount(number % known, version + number // known) for number in range(count)]
    ready()
    return timed(lambda: engine.update(records))


def _check(engine: Sums, known: int, count: int, version: int) -> None:
    """Raises `ValueError` when the sums are wrong. Records that were not updated have version 0."""
    wanted: defaultdict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
    for number in range(known):
        updates = (count - number + known - 1) // known
        newest = amount(number, version + updates - 1 if updates > 0 else 0)
        records, total = wanted[newest.group]
        wanted[newest.group] = records + 1, total + newest.amount
    found = {group: sums for group, sums in engine.sums().items() if sums[0] > 0}
    if found != wanted:
        wrong = [group for group in {*found, *wanted} if found.get(group) != wanted.get(group)]
        raise ValueError(f"{engine.name} has wrong sums in {len(wrong)} groups, one is {wrong[0]}")
