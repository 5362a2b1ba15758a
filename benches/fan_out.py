"""The cost of filtered subscriptions for a publisher: one publisher, one consumer with 1, 100 and
10,000 of them on a topic.

    python benches/fan_out.py [--messages 100000] [--rounds 5]

Each message of 300 B is JSON and matches one subscription: by equality, by range, or by a pattern
of topics. Server, publisher and consumer are processes of their own, every message is synced. The
counts take turns, so that what else the machine does falls on all; the medians of the rates are
printed, and each as a ratio to that with one subscription: `published` until persisted, `delivered`
until the consumer has all of them.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import cycle, islice, product
from multiprocessing.connection import Connection
from pathlib import Path

import quire
import saved
from end_to_end import Served

COUNTS = (1, 100, 10_000)
#: The selection of a subscription: a filter, or else a pattern that one topic matches.
KINDS = {"equality": "/symbol = 'S{0}'", "range": "/id >= {0} AND /id < {0}.5", "pattern": None}
_SIZE = 300
_TIMEOUT = 600.0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=100_000, help="of each round")
    parser.add_argument("--rounds", type=int, default=5)
    saved.add_option(parser)
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    rates: dict[tuple[str, int], list[tuple[float, float]]] = {}
    with (
        tempfile.TemporaryDirectory(prefix="quire-bench-") as name,
        Served(*_directory(Path(name))) as server,
    ):
        consumer = context.Process(target=_consume, args=(theirs, server.url))
        consumer.start()
        ours.recv()
        with quire.Client(server.url, name="publisher") as client:
            for _ in range(options.rounds):
                for kind in KINDS:
                    for count in COUNTS:
                        messages = list(islice(cycle(_messages(count)), options.messages))
                        rates.setdefault((kind, count), []).append(
                            _round(client, ours, kind, count, messages)
                        )
        ours.send(None)
        consumer.join()
    figures: dict[str, dict[str, dict[str, float]]] = {}
    for (kind, count), measured in rates.items():
        one = rates[kind, 1]
        for number, what in enumerate(("published", "delivered")):
            rate = statistics.median(pair[number] for pair in measured)
            ratio = statistics.median(
                pair[number] / base[number] for pair, base in zip(measured, one, strict=True)
            )
            figures.setdefault(kind, {}).setdefault(str(count), {}).update(
                {f"{what}_per_s": round(rate), f"{what}_to_one": round(ratio, 3)}
            )
    print(json.dumps(figures, indent=2))
    rows = {
        f"{kind}, {count} subscriptions": row for kind, rows in figures.items() for count, row in rows.items()
    }
    saved.save(options.save, rows)


def _directory(directory: Path) -> tuple[Path, Path]:
    """With a configuration that lets one connection have them all."""
    config = directory / "quire.toml"
    config.write_text(f"[transport]\nmax_subscriptions_per_connection = {max(COUNTS)}\n")
    return directory, config


def _messages(count: int) -> Iterator[bytes]:
    """One message for each of `count` subscriptions."""
    for number in range(count):
        text = (
            f'{{"id":{number},"symbol":"S{number}","side":"buy","qty":{number % 900},"price":171.25,"note":"'
        )
        yield (text + "." * (_SIZE - len(text) - 2) + '"}').encode()


def _round(
    client: quire.Client, consumer: Connection, kind: str, count: int, messages: list[bytes]
) -> tuple[float, float]:
    topics = [f"{kind}/{count}" if KINDS[kind] else f"{kind}/{count}/{number}" for number in range(count)]
    consumer.send(len(messages))
    start = time.monotonic()
    for topic, data in zip(cycle(topics), messages, strict=False):
        client.publish(topic, data)
    client.flush(timeout=_TIMEOUT)
    published = time.monotonic()
    delivered: float = consumer.recv()
    return len(messages) / (published - start), len(messages) / (delivered - start)


def _consume(publisher: Connection, url: str) -> None:
    """Takes as many messages as the publisher announces, and tells when the last one came."""
    taken = [0] * (len(KINDS) * len(COUNTS))

    def counter(at: int) -> Callable[[quire.Message], None]:
        def take(_: quire.Message) -> None:
            taken[at] += 1

        return take

    with ExitStack() as clients:
        for at, ((kind, text), count) in enumerate(product(KINDS.items(), COUNTS)):
            client = clients.enter_context(quire.Client(url, name=f"consumer-{at}"))
            for number in range(count):
                topic = f"{kind}/{count}" if text else f"^{kind}/{count}/{number}$"
                client.subscribe(topic, filter=text and text.format(number), on_message=counter(at))
        publisher.send(None)
        expected = 0
        while (announced := publisher.recv()) is not None:
            expected += announced
            # Polled a few hundred times for each figure. The figure does not contain its time.
            while sum(taken) < expected:
                time.sleep(0.0005)
            publisher.send(time.monotonic())


if __name__ == "__main__":
    main()
