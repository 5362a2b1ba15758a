"""The cost of 100 actions on a busy topic, compared with 100 subscriptions with the same filters.

    python benches/actions.py [--messages 100000] [--rounds 5] [--selected 1000]

One publisher sends messages of 300 B as JSON. Each filter selects one message in a thousand
(`--selected 1000`), so that 100 filters select one in ten. Server, publisher and consumer are
processes of their own. Three servers take turns: one with nothing on the topic, one whose consumer
has 100 subscriptions, and one with 100 actions, which count the messages (`increment`). The
medians are printed: messages a second until they are persisted, and the processor time of the
server for each message until all of them are delivered or counted. Each has its ratio to that with
subscriptions.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import tempfile
import time
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path

import quire
import saved
from end_to_end import Served

COUNT = 100
_SIZE = 300
_TIMEOUT = 600.0
#: The servers: with nothing on the topic, with subscriptions, and with actions.
KINDS = ("nothing", "subscriptions", "actions")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=100_000, help="of each round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--selected", type=int, default=1000, help="a filter selects one message in so many")
    saved.add_option(parser)
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    measured: dict[str, list[tuple[float, float]]] = {kind: [] for kind in KINDS}
    with tempfile.TemporaryDirectory(prefix="quire-bench-") as name, ExitStack() as stack:
        servers = {}
        for kind in KINDS:
            directory = Path(name) / kind
            directory.mkdir()
            servers[kind] = stack.enter_context(Served(directory, _config(directory, kind, options.selected)))
        arguments = (theirs, servers["subscriptions"].url, options.selected)
        consumer = context.Process(target=_consume, args=arguments)
        consumer.start()
        stack.callback(consumer.join)
        stack.callback(ours.send, None)
        ours.recv()
        clients = {kind: stack.enter_context(quire.Client(servers[kind].url, name="shop")) for kind in KINDS}
        for _ in range(options.rounds):
            for kind in KINDS:
                messages = [_message(number, options.selected) for number in range(options.messages)]
                selected = sum(number % options.selected < COUNT for number in range(options.messages))
                if kind == "subscriptions":
                    ours.send(selected)
                measured[kind].append(_round(clients[kind], servers[kind], kind, messages, selected, ours))
    medians = {
        kind: (statistics.median(rate for rate, _ in pairs), statistics.median(used for _, used in pairs))
        for kind, pairs in measured.items()
    }
    with_subscriptions = medians["subscriptions"]
    share = f"1 message in {max(1, options.selected // COUNT)}"
    rows = {}
    for kind, (rate, used) in medians.items():
        rows[f"{share}: {kind if kind == 'nothing' else f'{COUNT} {kind}'}"] = {
            "published_per_s": round(rate),
            "rate_to_subscriptions": round(rate / with_subscriptions[0], 2),
            "server_us": round(used * 1e6, 2),
            "server_to_subscriptions": round(used / with_subscriptions[1], 2),
        }
    print(json.dumps(rows, indent=2))
    saved.save(options.save, rows)


def _config(directory: Path, kind: str, selected: int) -> Path:
    config = directory / "quire.toml"
    lines = ["[admin]", 'address = "127.0.0.1:0"']
    if kind == "actions":
        for number in range(COUNT):
            lines += [
                "[[action]]",
                f'name = "count-{number}"',
                f'on = {{ publish = {{ topic = "orders", filter = "/id = {number}" }} }}',
                'do = [{ increment = "orders" }]',
            ]
    config.write_text("\n".join(lines) + "\n")
    return config


def _message(number: int, selected: int) -> bytes:
    text = f'{{"id":{number % selected},"side":"buy","qty":{number % 900},"price":171.25,"note":"'
    return (text + "." * (_SIZE - len(text) - 2) + '"}').encode()


def _round(
    client: quire.Client,
    server: Served,
    kind: str,
    messages: list[bytes],
    selected: int,
    consumer: Connection,
) -> tuple[float, float]:
    """Messages a second, and seconds of the processor for each."""
    before, counted = _used_seconds(server.pid), _runs(server) if kind == "actions" else 0
    start = time.monotonic()
    for data in messages:
        client.publish("orders", data)
    client.flush(timeout=_TIMEOUT)
    published = time.monotonic()
    if kind == "subscriptions":
        consumer.recv()
    if kind == "actions":
        # Polled a few times a second. Each answer takes about a millisecond of the server.
        while _runs(server) < counted + selected:
            time.sleep(0.2)
    used = _used_seconds(server.pid) - before
    return len(messages) / (published - start), used / len(messages)


def _used_seconds(pid: int) -> float:
    """The time that a process has used of the processors."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _runs(server: Served) -> int:
    """The runs of all actions of a server."""
    import httpx

    figures = httpx.get(f"{server.admin_url}/quire/instance/actions.json").json()
    return sum(each["runs"] for each in figures)


def _consume(publisher: Connection, url: str, selected: int) -> None:
    """Takes as many messages as the publisher announces, and tells when the last one came."""
    taken = 0

    def take(_: quire.Message) -> None:
        nonlocal taken
        taken += 1

    with quire.Client(url, name="consumer") as client:
        for number in range(COUNT):
            client.subscribe("orders", filter=f"/id = {number}", on_message=take)
        publisher.send(None)
        expected = 0
        while (announced := publisher.recv()) is not None:
            expected += announced
            while taken < expected:
                time.sleep(0.0005)
            publisher.send(None)


if __name__ == "__main__":
    main()
