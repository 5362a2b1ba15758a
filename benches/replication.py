"""Figures of replication: instances and publishers in processes, over loopback, all in one run.

    python benches/replication.py [--messages 100000] [--size 512] [--rounds 5] [--lone 500] [--backlog 400000]

Prints one JSON object with ratios to one instance without replication. The rounds of the kinds
alternate, and each figure is the median of its rounds. `pair_sync` and `pair_async`: two instances.
`down`: the destination does not run, and is not waited for. `behind`: it has just returned, lacks
`--backlog` messages, and gets them meanwhile. `catching_up`: the rate at which it gets them without
other work, compared with a replay of the same messages to one client.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import quire
import quire.testing
import saved

#: Messages that are handed to the client at once.
_BATCH = 500
_TOPIC = "bench"
_PATIENCE = 600
_SETTINGS: dict[str, Any] = {"transaction_log": {"topic": [{"name": _TOPIC, "message_type": "json"}]}}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=100_000, help="of one round")
    parser.add_argument("--size", type=int, default=512, help="bytes of a message")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--lone", type=int, default=500, help="messages of one round that are published one by one"
    )
    parser.add_argument("--backlog", type=int, default=400_000, help="messages that a destination lacks")
    parser.add_argument("--directory", type=Path, help="where the journals go (a temporary directory)")
    saved.add_option(parser)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="quire-bench-", dir=options.directory) as directory:
        figures = bench(Path(directory), options)
    print(json.dumps(figures, indent=2))
    saved.save(options.save, {f"`{kind}`": each for kind, each in figures.items()})


def bench(directory: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Runs all kinds, and returns their figures."""
    data = b'{"text":"%s"}' % (b"x" * (options.size - 11))
    with contextlib.ExitStack() as resources:
        enter = resources.enter_context
        one = enter(quire.testing.ServerProcess(directory / "one", **_SETTINGS))
        sync = enter(_cluster("sync", directory / "sync"))
        other = enter(_cluster("async", directory / "async"))
        down = enter(_cluster("sync", directory / "down"))
        down.kill(1)
        with quire.Client(down[0].url) as operator:
            operator._replicate("instance-2", "downgrade")
        urls = {"one": one.url, "pair_sync": sync[0].url, "pair_async": other[0].url, "down": down[0].url}
        clients = {
            kind: enter(quire.Client(url, name="bench", command_timeout=None)) for kind, url in urls.items()
        }
        rates: dict[str, list[float]] = {kind: [] for kind in urls}
        delays: dict[str, list[float]] = {kind: [] for kind in urls}
        for number in range(options.rounds + 1):
            for kind, client in clients.items():
                rate, delay = _rate(client, data, options.messages), _lone_delay(client, data, options.lone)
                # The first round fills the files.
                if number:
                    rates[kind].append(rate)
                    delays[kind].append(delay)
            other.wait_until_replicated(_PATIENCE)
        figures: dict[str, Any] = {
            kind: {
                "messages_per_s": round(statistics.median(rates[kind])),
                "p50_us": round(statistics.median(delays[kind]) * 1e6),
                "rate_ratio": round(statistics.median(rates[kind]) / statistics.median(rates["one"]), 2),
                "p50_ratio": round(statistics.median(delays[kind]) / statistics.median(delays["one"]), 2),
            }
            for kind in urls
        }
    figures["behind"] = _behind(directory, data, options)
    figures["catching_up"] = _catching_up(directory, data, options)
    return figures


def _cluster(sync_type: Literal["sync", "async"], directory: Path) -> quire.testing.Cluster:
    """Two instances that are connected directly, as they are without a test."""
    return quire.testing.cluster(2, sync_type, directory=directory, can_partition=False, **_SETTINGS)


def _rate(client: quire.Client, data: bytes, count: int) -> float:
    begun = time.perf_counter()
    for _ in range(0, count, _BATCH):
        client.publish_many(_TOPIC, [data] * _BATCH)
    client.flush(_PATIENCE)
    return count / (time.perf_counter() - begun)


def _lone_delay(client: quire.Client, data: bytes, count: int) -> float:
    delays = []
    for _ in range(count):
        begun = time.perf_counter()
        client.publish(_TOPIC, data)
        client.flush(_PATIENCE)
        delays.append(time.perf_counter() - begun)
    return statistics.median(delays)


def _filled(cluster: quire.testing.Cluster, data: bytes, count: int) -> None:
    """Publishes to the first instance while the second one does not run."""
    # A killed instance sends the messages of its last second back, as it would to an instance that
    # lost its disk.
    cluster.terminate(1)
    with quire.Client(cluster[0].url, name="filler", command_timeout=None) as client:
        _rate(client, data, count)


def _link(cluster: quire.testing.Cluster) -> dict[str, Any]:
    (link,) = cluster[0].links()["destinations"]
    return dict(link)


def _behind(directory: Path, data: bytes, options: argparse.Namespace) -> dict[str, Any]:
    """The rate of a publisher with a destination that catches up, compared with one without."""
    with (
        quire.testing.ServerProcess(directory / "alone", **_SETTINGS) as alone,
        _cluster("async", directory / "behind") as cluster,
    ):
        _filled(cluster, data, options.backlog)
        rates: dict[str, list[float]] = {"alone": [], "behind": []}
        with (
            quire.Client(alone.url, name="bench", command_timeout=None) as at_alone,
            quire.Client(cluster[0].url, name="bench", command_timeout=None) as at_behind,
        ):
            _rate(at_alone, data, options.messages)
            _rate(at_behind, data, options.messages)
            for _ in range(options.rounds):
                rates["alone"].append(_rate(at_alone, data, options.messages))
                cluster.start(1)
                _wait(lambda: _link(cluster)["state"] in ("catching_up", "live"))
                rates["behind"].append(_rate(at_behind, data, options.messages))
                was_behind = _link(cluster)["seconds_behind"] > 0
                cluster.kill(1)
                if not was_behind:
                    # It had caught up before the end of the round: the figure is one of a live
                    # destination.
                    break
    ratio = statistics.median(rates["behind"]) / statistics.median(rates["alone"])
    return {"rate_ratio": round(ratio, 2), "rounds_that_were_behind": len(rates["behind"]) - (not was_behind)}


def _catching_up(directory: Path, data: bytes, options: argparse.Namespace) -> dict[str, Any]:
    """The rate of a destination that returns, and of a replay."""
    rates, replays = [], []
    with _cluster("async", directory / "catching-up") as cluster:
        for _ in range(max(options.rounds // 2, 1)):
            before = _link(cluster)["sent"]
            _filled(cluster, data, options.backlog)
            cluster.start(1)
            _wait(lambda before=before: _link(cluster)["sent"] > before)  # type: ignore[misc]
            begun, sent = time.perf_counter(), _link(cluster)["sent"]
            cluster.wait_until_replicated(_PATIENCE)
            rates.append((_link(cluster)["sent"] - sent) / (time.perf_counter() - begun))
            with quire.Client(cluster[0].url, command_timeout=None) as client:
                begun, count = time.perf_counter(), 0
                with client.subscribe(_TOPIC, bookmark="[0:0|1|]") as subscription:
                    for batch in subscription.batches(10_000):
                        count += len(batch)
                replays.append(count / (time.perf_counter() - begun))
    ratio = statistics.median(rates) / statistics.median(replays)
    return {
        "messages_per_s": round(statistics.median(rates)),
        "replay_messages_per_s": round(statistics.median(replays)),
        "ratio": round(ratio, 2),
    }


def _wait(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + _PATIENCE
    while not is_so():
        assert time.monotonic() < end, "what had to come did not come"
        time.sleep(0.005)


if __name__ == "__main__":
    main()
