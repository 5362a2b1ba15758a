"""Figures of views through the whole stack: server and publisher in processes of their own, over
loopback.

    python benches/views.py upsert [--messages 300000] [--keys 100000] [--rounds 5]
    python benches/views.py groups [--messages 300000] [--groups 10,1000,100000,1000000]
    python benches/views.py join [--records 100000] [--matches 1,10,1000,100000] [--seconds 3]
    python benches/views.py restart [--groups 1000000] [--rounds 5]

Each prints one JSON object. Compare its ratios: the sides alternate in one run.

    upsert    publishes JSON until all of it is persisted and the views have it. The topics: one without a view, one with a
              view with SUM and COUNT, and one with a join
    groups    the same with one view, by its number of groups
    join      changes one record of the joined topic, and waits for all records of the view that match
    restart   starts a server with a view of one record in each group from snapshots, without the snapshot of the view, and
              without the view

`benches/parts.py views` has the figures of the engine alone.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import quire
import saved
from end_to_end import Served, bench_directory, run_role
from last_values import status_bytes

TIMEOUT = 900.0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--directory", type=Path, help="where the journal goes (a temporary directory)")
    saved.add_option(parser)
    benches = parser.add_subparsers(required=True)

    upsert = benches.add_parser("upsert", help="publish to a topic with and without views")
    upsert.add_argument("--messages", type=int, default=300_000, help="of each kind, in each round")
    upsert.add_argument("--keys", type=int, default=100_000)
    upsert.add_argument("--size", type=int, default=300, help="bytes of a message")
    upsert.add_argument("--rounds", type=int, default=5)
    upsert.set_defaults(bench=bench_upsert, rows=rows_of_upsert)

    groups = benches.add_parser("groups", help="a view by its number of groups")
    groups.add_argument("--messages", type=int, default=300_000)
    groups.add_argument("--groups", default="10,1000,100000,1000000")
    groups.add_argument("--size", type=int, default=300, help="bytes of a message")
    groups.add_argument("--rounds", type=int, default=3)
    groups.set_defaults(bench=bench_groups, rows=rows_by_name)

    join = benches.add_parser("join", help="a change of a joined record, by its matches")
    join.add_argument("--records", type=int, default=100_000, help="of the first topic")
    join.add_argument("--matches", default="1,10,1000,100000")
    join.add_argument("--seconds", type=float, default=3.0, help="of each")
    join.set_defaults(bench=bench_join, rows=rows_by_name)

    restart = benches.add_parser("restart", help="the start of a server with a view")
    restart.add_argument("--groups", type=int, default=1_000_000)
    restart.add_argument("--size", type=int, default=100, help="bytes of a message")
    restart.add_argument("--rounds", type=int, default=5)
    restart.set_defaults(bench=bench_restart, rows=rows_by_name)

    options = parser.parse_args()
    with bench_directory(options.directory) as directory:
        figures = options.bench(directory, options)
    print(json.dumps(figures, indent=2))
    saved.save(options.save, options.rows(figures))


def rows_of_upsert(figures: dict[str, Any]) -> dict[str, dict[str, Any]]:
    names = ("messages_per_s", "ratio_to_plain")
    return {kind: {name: figures[name][kind] for name in names} for kind in figures["messages_per_s"]}


def rows_by_name(figures: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return figures


def bench_upsert(directory: Path, options: argparse.Namespace) -> dict[str, Any]:
    kinds = {"no view": "plain", "view with SUM and COUNT": "summed", "view with a join": "orders"}
    rates: dict[str, list[float]] = {kind: [] for kind in kinds}
    with Served(directory, configured(directory)) as server:
        with quire.Client(server.url) as client:
            for account in range(1_000):
                client.publish("accounts", {"id": f"a{account}", "name": f"name {account}"})
            client.flush(timeout=TIMEOUT)
        for topic in kinds.values():
            publish(server, topic, options.keys, options.keys, 1_000, options.size)
        for _ in range(options.rounds):
            for kind, topic in kinds.items():
                took = publish(server, topic, options.messages, options.keys, 1_000, options.size)
                rates[kind].append(options.messages / took)
    medians = {kind: statistics.median(each) for kind, each in rates.items()}
    return {
        "messages_per_s": {kind: round(rate) for kind, rate in medians.items()},
        "ratio_to_plain": {kind: round(rate / medians["no view"], 3) for kind, rate in medians.items()},
        "rounds": {kind: [round(rate) for rate in each] for kind, each in rates.items()},
    }


def bench_groups(directory: Path, options: argparse.Namespace) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    for groups in map(int, options.groups.split(",")):
        below = directory / str(groups)
        below.mkdir()
        keys = max(groups, 100_000)
        with Served(below, configured(below)) as server:
            publish(server, "summed", keys, keys, groups, options.size)
            rates = [
                options.messages / publish(server, "summed", options.messages, keys, groups, options.size)
                for _ in range(options.rounds)
            ]
        figures[f"{groups:,} groups"] = {"messages_per_s": round(statistics.median(rates))}
    return figures


def bench_join(directory: Path, options: argparse.Namespace) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    for matches in map(int, options.matches.split(",")):
        below = directory / str(matches)
        below.mkdir()
        accounts = options.records // matches
        with Served(below, configured(below)) as server, quire.Client(server.url) as client:
            for account in range(accounts):
                client.publish("accounts", {"id": f"a{account}", "name": "first"})
            publish(server, "orders", options.records, options.records, accounts, 300)
            with client.subscribe("joined") as changes:
                took = []
                end = time.monotonic() + options.seconds
                while not took or time.monotonic() < end:
                    account = len(took) % accounts
                    begun = time.monotonic()
                    client.publish("accounts", {"id": f"a{account}", "name": f"name {len(took)}"})
                    for _ in range(matches):
                        changes.get(timeout=TIMEOUT)
                    took.append(time.monotonic() - begun)
        p50 = statistics.median(took)
        figures[f"{matches:,} matches"] = {
            "p50_ms": round(p50 * 1e3, 3),
            "records_per_s": round(matches / p50),
        }
    return figures


def bench_restart(directory: Path, options: argparse.Namespace) -> dict[str, Any]:
    config = configured(directory)
    without = directory / "without.toml"
    without.write_text(config.read_text().partition("[[view]]")[0])
    with Served(directory, config) as server:
        publish(server, "summed", options.groups, options.groups, options.groups, options.size)
        before = status_bytes(server.pid, "RssAnon")
    kinds = {"from the snapshot": config, "computed": config, "without the view": without}
    took: dict[str, list[float]] = {kind: [] for kind in kinds}
    largest: dict[str, list[float]] = {kind: [] for kind in kinds}
    for _ in range(options.rounds):
        for kind, path in kinds.items():
            if kind == "computed":
                # The stop writes it again.
                snapshot_of(directory / "data", "sums").unlink()
            begun = time.monotonic()
            with Served(directory, path) as server:
                took[kind].append(time.monotonic() - begun)
                largest[kind].append(status_bytes(server.pid, "VmHWM") / status_bytes(server.pid, "VmRSS"))
                if kind != "without the view":
                    check(server.url, options.groups)
    return {
        kind: {
            "start_s": round(statistics.median(took[kind]), 3),
            "start_s_min": round(min(took[kind]), 3),
            "largest_memory": round(max(largest[kind]), 2),
        }
        for kind in kinds
    } | {"memory": {"before_mb": before >> 20}}


def check(url: str, groups: int) -> None:
    with quire.Client(url) as client:
        found = client.sow("sums", top_n=1, timeout=TIMEOUT)
        list(found)
        if found.total != groups:
            raise RuntimeError(f"the view has {found.total} records")


def snapshot_of(directory: Path, topic: str) -> Path:
    """The snapshot file with this name in its head."""
    (found,) = [
        path
        for path in directory.rglob("table-*.state")
        if topic.encode() == path.read_bytes()[32 : 32 + len(topic)]
    ]
    return found


def publish(server: Served, topic: str, count: int, keys: int, groups: int, size: int) -> float:
    """Publishes records, and waits until the views have them. Returns the seconds that it took."""
    ((begun, ended),) = run_role(_publish, 1, server.url, topic, count, keys, groups, size)
    return float(ended - begun)


def _publish(
    results: Any, barrier: Any, url: str, topic: str, count: int, keys: int, groups: int, size: int
) -> None:
    view = {"summed": "sums", "orders": "joined"}.get(topic)
    made = [record(position, groups, size) for position in range(min(keys, count))]
    with quire.Client(url) as client:
        barrier.wait(TIMEOUT)
        begun = time.monotonic()
        for first in range(0, count, len(made)):
            for data in made[: count - first]:
                client.publish(topic, data)
        client.flush(timeout=TIMEOUT)
        while view is not None:
            (described,) = client._described_of([view])
            if described["last_values"]["waiting_changes"] == 0:
                break
        results.put((begun, time.monotonic()))


def record(position: int, groups: int, size: int) -> bytes:
    head = f'{{"id":"k{position:09}","account":"a{position % groups}","qty":{position % 1_000},"text":"'
    return (head.ljust(size - 2, "x") + '"}').encode()


def configured(directory: Path) -> Path:
    path = directory / "views.toml"
    path.write_text("""
[transaction_log]

[[transaction_log.topic]]
name = "^(plain|summed|orders|accounts)$"
message_type = "json"

[[sow_topic]]
name = "plain"
message_type = "json"
key = ["/id"]

[[sow_topic]]
name = "summed"
message_type = "json"
key = ["/id"]

[[sow_topic]]
name = "orders"
message_type = "json"
key = ["/id"]

[[sow_topic]]
name = "accounts"
message_type = "json"
key = ["/id"]

[[view]]
name = "sums"
message_type = "json"
underlying_topic = "summed"
projection = ["/account", "SUM(/qty) AS /qty", "COUNT(/id) AS /orders"]
grouping = ["/account"]

[[view]]
name = "joined"
message_type = "json"
join = ["[orders].[/account] = [accounts].[/id]"]
projection = ["[orders].[/id]", "[accounts].[/name]", "[orders].[/qty]"]
""")
    return path


if __name__ == "__main__":
    main()
