"""The cost of a filter that an entitlement adds to a subscription, beside the same filter in the
command.

    python benches/entitlements.py [--messages 200000] [--rounds 7] [--save NAME]

Two users read the same kind of messages: `open` may read all of them and names a filter, `limited`
names none, and the filter comes from its entitlement. Each message of 300 B is JSON, and all, half
or none of them match. Server, publisher and consumers are processes of their own. The users take
turns, so that what else the machine does falls on both. Printed are the medians of the rates of
`limited`, and of their ratios to those of `open`: `published` until persisted, `delivered` until
the consumer has all that match.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import quire
import quire.testing
import saved
from quire.server._users import User, Users, hash_of

#: The share of messages that match, and the bound of the filter.
SHARES = {"all": 1000, "half": 500, "none": 0}
USERS = ("open", "limited")
_PASSWORD = "correct horse battery"
_SIZE = 300
_TIMEOUT = 600.0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=200_000, help="of each round")
    parser.add_argument("--rounds", type=int, default=7)
    saved.add_option(parser)
    options = parser.parse_args()
    messages = list(_messages(options.messages))
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    rates: dict[tuple[str, str], list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory(prefix="quire-bench-") as place:
        users = Path(place) / "users.toml"
        phc = hash_of(_PASSWORD)
        accounts = {name: {"user": name, "password": _PASSWORD} for name in (*USERS, "publisher")}
        Users([User(name, phc) for name in accounts]).save(users)
        authentication = {"method": "users", "users_file": str(users)}
        settings: Any = {"authentication": authentication, "entitlement": _entitlements()}
        with quire.testing.ServerProcess(Path(place) / "data", **settings) as server:
            consumer = context.Process(target=_consume, args=(theirs, server.url, accounts))
            consumer.start()
            ours.recv()
            with quire.Client(server.url, name="publisher", **accounts["publisher"]) as client:
                for _ in range(options.rounds):
                    for share in SHARES:
                        for user in USERS:
                            rates.setdefault((share, user), []).append(
                                _round(client, ours, user, share, messages)
                            )
            ours.send(None)
            consumer.join()
    rows = {share: _figures(rates[share, "open"], rates[share, "limited"]) for share in SHARES}
    print(json.dumps(rows, indent=2))
    saved.save(options.save, {f"{share} match": row for share, row in rows.items()})


def _figures(base: list[tuple[float, float]], measured: list[tuple[float, float]]) -> dict[str, float]:
    figures: dict[str, float] = {}
    for number, what in enumerate(("published", "delivered")):
        figures[f"{what}_per_s"] = round(statistics.median(pair[number] for pair in measured))
        ratios = (own[number] / other[number] for own, other in zip(measured, base, strict=True))
        figures[f"{what}_to_command"] = round(statistics.median(ratios), 3)
    return figures


def _entitlements() -> list[dict[str, Any]]:
    limits: list[dict[str, Any]] = [
        {"user": "limited", "topic": _topic("limited", share), "allow": ["read"], "filter": _filter(share)}
        for share in SHARES
    ]
    everything = {"topic": "^", "allow": ["read", "write"]}
    return [*limits, {"user": ["open", "limited", "publisher"], **everything}]


def _topic(user: str, share: str) -> str:
    return f"{user}/{share}"


def _filter(share: str) -> str:
    return f"/qty < {SHARES[share]}"


def _messages(count: int) -> Iterator[bytes]:
    for number in range(count):
        text = f'{{"id":{number},"symbol":"S{number % 500}","side":"buy","qty":{number % 1000},"price":171.25,"note":"'
        yield (text + "." * (_SIZE - len(text) - 2) + '"}').encode()


def _round(
    client: quire.Client, consumer: Connection, user: str, share: str, messages: list[bytes]
) -> tuple[float, float]:
    """The rates of one round. After the messages comes one that matches and ends the round."""
    topic = _topic(user, share)
    start = time.monotonic()
    for data in messages:
        client.publish(topic, data)
    client.publish(topic, b'{"qty":-1}')
    client.flush(timeout=_TIMEOUT)
    published = time.monotonic()
    delivered: float = consumer.recv()
    return len(messages) / (published - start), len(messages) / (delivered - start)


def _consume(publisher: Connection, url: str, accounts: dict[str, dict[str, Any]]) -> None:
    """Tells the time of the last message of each round."""

    def take(message: quire.Message) -> None:
        if len(message.data) < _SIZE:
            publisher.send(time.monotonic())

    with ExitStack() as clients:
        for user in USERS:
            client = clients.enter_context(quire.Client(url, name=f"consumer-{user}", **accounts[user]))
            for share in SHARES:
                filter = _filter(share) if user == "open" else None
                client.subscribe(_topic(user, share), filter=filter, on_message=take)
        publisher.send(None)
        publisher.recv()


if __name__ == "__main__":
    main()
