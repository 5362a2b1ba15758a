"""The latency of an honest pair while other clients log on.

    python benches/logons.py [--logons 10000] [--connections 40] [--seconds 10] [--rounds 3] [--json]

A publisher sends 1,000 messages/s to a consumer. The clock of a message starts when it was due. The
rows take turns:

    quiet      nobody logs on
    failing    strangers log on with a wrong password, `--connections` of them at the same time, until there were
               `--logons` refusals in all rounds together
    right      one client after the other logs on with the right password
    computing  no logons. Another program computes on one processor, with the priority of the checks. It is the floor

Each password is checked with the default cost of argon2id. The strangers get only the time that
nothing else wants, because those of an attack are on other machines. For each row the program prints p50 and p99 in
microseconds, and the number of logons.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import quire
import quire.testing
import saved
from quire.server._users import User, Users, hash_of
from strangers import CutOffError, Stranger, fields, frame

RATE = 1000
PASSWORD = "correct horse battery"
_SPAWN = multiprocessing.get_context("spawn")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--logons", type=int, default=10_000)
    parser.add_argument("--connections", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    saved.add_option(parser)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "users.toml"
        phc = hash_of(PASSWORD)
        Users([User(name, phc) for name in ("honest", "anna")]).save(file)
        settings: Any = {"authentication": {"method": "users", "users_file": str(file)}}
        with quire.testing.ServerProcess(Path(place) / "data", **settings) as server:
            rows = measure(server.url, options)
    kept: dict[str, dict[str, Any]] = {}
    for name, rounds in rows.items():
        p50, p99 = (statistics.median(each[key] for each in rounds) for key in ("p50", "p99"))
        figures = {
            "row": name,
            "p50": round(p50),
            "p99": round(p99),
            "logons": sum(each["logons"] for each in rounds),
        }
        kept[name] = {"p50_us": round(p50), "p99_us": round(p99), "logons": figures["logons"]}
        all_p99 = [round(each["p99"]) for each in rounds]
        print(
            json.dumps(figures | {"rounds": all_p99})
            if options.json
            else f"{figures}, p99 of the rounds {all_p99}"
        )
    saved.save(options.save, kept)


def measure(url: str, options: argparse.Namespace) -> dict[str, list[dict[str, Any]]]:
    rows: dict[str, list[dict[str, Any]]] = {"quiet": [], "failing": [], "right": [], "computing": []}
    share = -(-options.logons // options.rounds)
    for _ in range(options.rounds):
        rows["quiet"].append(row(url, options.seconds, None, (), 0))
        rows["failing"].append(row(url, options.seconds, fail, (share, options.connections), share))
        rows["right"].append(row(url, options.seconds, log_on, (options.seconds,), 0))
        rows["computing"].append(row(url, options.seconds, compute, (options.seconds,), 0))
    return rows


def row(url: str, seconds: float, strangers: Any, arguments: tuple[Any, ...], least: int) -> dict[str, Any]:
    """`least`: the row lasts until there were this number of logons."""
    done = _SPAWN.Value("q", 0)
    took: list[int] = []
    options: Any = {"user": "honest", "password": PASSWORD, "connect_timeout": 60, "wait": True}
    with quire.Client(url, **options) as publisher, quire.Client(url, **options) as consumer:
        consumer.subscribe(
            "honest", on_message=lambda message: took.append(time.perf_counter_ns() - int(message.data))
        )
        process = None
        if strangers is not None:
            process = _SPAWN.Process(target=strangers, args=(url, done, *arguments))
            process.start()
            while done.value == 0:
                time.sleep(0.01)
        publish(publisher, seconds, lambda: done.value < least)
        if process is not None:
            process.terminate()
            process.join()
    cuts = statistics.quantiles(took, n=100)
    logons = 0 if strangers is compute else done.value
    return {"p50": cuts[49] / 1000, "p99": cuts[98] / 1000, "logons": logons}


def publish(client: quire.Client, seconds: float, goes_on: Callable[[], bool]) -> None:
    due, step = time.perf_counter_ns(), 1_000_000_000 // RATE
    end = due + int(seconds * 1e9)
    while due < end or goes_on():
        due += step
        if (wait := due - time.perf_counter_ns()) > 0:
            time.sleep(wait / 1e9)
        client.publish("honest", str(due))
    client.flush(60)


def fail(url: str, done: Any, count: int, connections: int) -> None:
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    host, _, port = url.removeprefix("quire://").partition(":")

    async def one() -> None:
        while done.value < count:
            stranger = Stranger(*await asyncio.open_connection(host, int(port)))
            given = [(1, b"QUIR"), (2, b"\1\0"), (3, b"stranger"), (4, b"anna"), (5, b"a wrong password")]
            with contextlib.suppress(CutOffError):
                await stranger.send(frame(1, fields(*given)))
                await stranger.frame()
            stranger.close()
            done.value += 1

    async def all_of_them() -> None:
        await asyncio.gather(*(one() for _ in range(connections)))

    asyncio.run(all_of_them())


def log_on(url: str, done: Any, seconds: float) -> None:
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    end = time.monotonic() + seconds + 5
    while time.monotonic() < end:
        quire.Client(url, user="anna", password=PASSWORD, connect_timeout=60).close()
        done.value += 1


def compute(url: str, done: Any, seconds: float) -> None:
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    done.value += 1
    end = time.monotonic() + seconds + 5
    while time.monotonic() < end:
        pass


if __name__ == "__main__":
    main()
