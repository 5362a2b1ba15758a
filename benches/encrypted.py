"""What TLS costs: the rates of a publisher and of a replay over TLS, beside those without it.

    python benches/encrypted.py [--messages 400000] [--size 300] [--rounds 7] [--save NAME]

Two servers, one with TLS, have the same messages. A round publishes to each until its messages are
persisted, and replays them to one client. The servers take turns, so that what else the machine
does falls on both. Printed are the medians of the rates over TLS, and of their ratios to the others.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from threading import Barrier
from typing import Any

import quire
import quire.testing
import saved
from end_to_end import TIMEOUT, run_roles


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=400_000, help="of each row")
    parser.add_argument("--size", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=7)
    saved.add_option(parser)
    options = parser.parse_args()
    rates: dict[tuple[str, str], list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="quire-bench-") as name, ExitStack() as stack:
        files = quire.testing.certificates(name)
        transports: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
            "plain": ({}, {}),
            "tls": ({"tls": files.server}, {"ssl": str(files.ca)}),
        }
        servers = {
            kind: stack.enter_context(quire.testing.ServerProcess(Path(name) / kind, transport=transport))
            for kind, (transport, _) in transports.items()
        }
        for number in range(options.rounds):
            for what, role in (("publish", _publish), ("replay", _replay)):
                for kind, server in servers.items():
                    arguments = (
                        server.url,
                        transports[kind][1],
                        f"topic-{number}",
                        options.messages,
                        options.size,
                    )
                    ((begun, ended),) = run_roles([(role, arguments)])
                    rates.setdefault((what, kind), []).append(options.messages / (ended - begun))
    rows = {
        what: {
            "tls_per_s": round(statistics.median(rates[what, "tls"])),
            "tls_to_plain": round(
                statistics.median(
                    own / other for own, other in zip(rates[what, "tls"], rates[what, "plain"], strict=True)
                ),
                3,
            ),
        }
        for what in ("publish", "replay")
    }
    print(json.dumps(rows, indent=2))
    saved.save(options.save, rows)


def _publish(
    results: Any, barrier: Barrier, url: str, how: dict[str, Any], topic: str, count: int, size: int
) -> None:
    data = b"x" * size
    with quire.Client(url, **how) as client:
        barrier.wait(TIMEOUT)
        begun = time.monotonic()
        for _ in range(count):
            client.publish(topic, data)
        client.flush(timeout=TIMEOUT)
        results.put((begun, time.monotonic()))


def _replay(
    results: Any, barrier: Barrier, url: str, how: dict[str, Any], topic: str, count: int, size: int
) -> None:
    with quire.Client(url, **how) as client:
        barrier.wait(TIMEOUT)
        begun = time.monotonic()
        taken = 0
        for batch in client.subscribe(topic, bookmark=quire.EPOCH).batches(timeout=TIMEOUT):
            taken += sum(len(message.data) == size for message in batch)
            if taken >= count:
                break
        results.put((begun, time.monotonic()))


if __name__ == "__main__":
    main()
