"""Runs the same work through quire and what else is installed, interleaved, and prints a table of medians.

    python -m benches.peers [--durability synced|os] [--rounds 3] [--engine NAME]... [--line NAME]... [--json]

From the project's root, after `make setup` and `pip install '.[peers]'`. Servers that are not
installed are left out and named: `nats-server` and `redis-server` on the path, RabbitMQ and
PostgreSQL as Debian packages them, Kafka's jar files in the directory that `KAFKA_LIBS` names.
`REDIS_SERVER` names another program than `redis-server`. All of them listen on 127.0.0.1 alone and
keep their files in a temporary directory on one disk.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import tempfile
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path

from . import report
from .engine import Durability, Engine, NotOffered, Replicated
from .engines import ALL
from .roles import Scale
from .work import FAMILIES, LINES, lines_of, with_bases

sys.path.append(str(Path(__file__).resolve().parents[1]))
import saved


def main() -> None:
    options = _options()
    # So that the servers end, too.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    durability = Durability(options.durability)
    scale = Scale(
        messages=options.messages,
        size=options.size,
        keys=options.keys,
        seconds=options.seconds,
        records=options.records,
        window=options.window,
    )
    wanted = with_bases(options.line or list(LINES))
    engines = _installed(options.engine, wanted, durability)
    units: dict[str, str] = {}
    line_of: dict[str, str] = {}
    rounds: defaultdict[str, defaultdict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for number in range(options.rounds):
        # Round by round through all engines, so that what else the machine does meets all of them.
        for engine in list(engines):
            directory = Path(tempfile.mkdtemp(prefix="quire-peers-", dir=options.directory))
            try:
                _say(f"round {number + 1}/{options.rounds}: {engine.name}")
                # With new ports: connections of the last round may hold the old ones for a minute.
                _measure(
                    type(engine)(durability),
                    lines_of(type(engine), wanted),
                    scale,
                    directory,
                    rounds,
                    units,
                    line_of,
                )
            except NotStarted as reason:
                _say(f"  left out: {reason}")
                engines.remove(engine)
            finally:
                shutil.rmtree(directory, ignore_errors=True)
    saved.save(options.save, report.rows(rounds, units))
    if options.json:
        print(json.dumps(report.as_json(rounds, units), indent=2))
    else:
        # An engine with one server, and one with several, can have the same name.
        names = list(dict.fromkeys(engine.name for engine in engines))
        for family, (_, lines) in FAMILIES.items():
            labels = [label for label in units if line_of[label] in lines]
            if labels:
                print(
                    report.table(
                        f"{family}, {durability.value}",
                        names,
                        {label: rounds[label] for label in labels},
                        units,
                    )
                )
                print()


class NotStarted(Exception):
    """The server of an engine did not start: an old version may not know a setting."""


def _measure(
    engine: Engine,
    lines: list[str],
    scale: Scale,
    directory: Path,
    rounds: defaultdict[str, defaultdict[str, list[float]]],
    units: dict[str, str],
    line_of: dict[str, str],
) -> None:
    with ExitStack() as stack:
        try:
            server = stack.enter_context(engine.serving(directory))
        except RuntimeError as error:
            raise NotStarted(str(error)) from error
        for line in lines:
            try:
                figures = LINES[line](engine, server, scale)
            except NotOffered as reason:
                _say(f"  {line}: {reason}")
                continue
            for label, figure in figures.items():
                units[label] = figure.unit
                line_of[label] = line
                rounds[label][engine.name].append(figure.value)
                _say(f"  {label}: {figure.value:,.0f} {figure.unit}")


def _installed(names: list[str] | None, wanted: list[str], durability: Durability) -> list[Engine]:
    engines = []
    for kind in ALL:
        if (names and _word(kind) not in names) or not lines_of(kind, wanted):
            continue
        if issubclass(kind, Replicated) and durability is not Durability.SYNCED:
            _say(f"{kind.name}, copies: left out, they are synced")
            continue
        engine = kind(durability)
        try:
            _say(f"{engine.name} {engine.version()}: {engine.settings()}")
        except FileNotFoundError as missing:
            _say(f"{engine.name}: left out, {missing} not found")
            continue
        engines.append(engine)
    return engines


def _word(kind: type[Engine]) -> str:
    """The name of the engine on the command line."""
    return kind.name.split(",")[0].lower()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benches.peers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = list(dict.fromkeys(map(_word, ALL)))
    parser.add_argument("--durability", choices=[kind.value for kind in Durability], default="synced")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--engine", action="append", choices=names, help="only this one; may be repeated")
    parser.add_argument(
        "--line",
        action="append",
        choices=list(LINES),
        help="only this one, and the one that writes what it reads; may be repeated",
    )
    parser.add_argument("--messages", type=int, default=100_000, help="of each line")
    parser.add_argument("--size", type=int, default=512, help="bytes of a message")
    parser.add_argument("--keys", type=int, default=100, help="subscriptions of the filtered fan-out")
    parser.add_argument(
        "--seconds",
        type=int,
        default=5,
        help="of each latency line, of each kind of look-up, and of each line with copies",
    )
    parser.add_argument("--records", type=int, default=100_000, help="of each table of last values")
    parser.add_argument(
        "--window", type=int, default=1_000, help="messages of a process that wait for copies, at most"
    )
    parser.add_argument("--directory", type=Path, help="where the servers keep their files")
    parser.add_argument("--json", action="store_true", help="every figure of every round")
    saved.add_option(parser)
    return parser.parse_args()


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
