"""`quire bench`: measures the speed of a server, its disk and this machine with Python clients."""

from __future__ import annotations

import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

import quire
from quire._process import start_thread
from quire._units import counted
from quire.cli import default_url
from quire.cli._options import server_options
from quire.cli._output import print_json
from quire.client._links import directory_of

app = App(
    name="bench",
    help="Measure the speed of a server from clients. The messages stay in its journal: use a separate server or directory.",
    help_format="plaintext",
)

#: Seconds that a benchmark waits for a message or an answer.
_PATIENCE = 60.0
#: Bytes of the file that the disk is measured with.
_DISK_FILE_SIZE = 8 * 1024 * 1024

if TYPE_CHECKING:
    Url = str | None
else:
    Url = server_options(
        "Server, or file:DIRECTORY, or memory:. Default: $QUIRE_URL, or quire://127.0.0.1:9007."
    )
Json = Annotated[bool, Parameter(negative="", help="Print one JSON object.")]
Messages = Annotated[int, Parameter(help="Number of messages.")]
Size = Annotated[int, Parameter(help="Size of each message in bytes.")]
Topic = Annotated[str, Parameter(help="Topic of the messages.")]


@app.command
def publish(
    *,
    url: Url = None,
    messages: Messages = 200_000,
    size: Size = 512,
    topic: Topic = "bench",
    json: Json = False,
) -> int:
    """Measure how fast a client publishes until all messages are persisted.

    For example:
      quire bench publish
      quire bench publish --url file:/mnt/disk/trial --messages 1000000 --size 128
    """
    _check(messages, size)
    with quire.Client(url or default_url()) as client:
        seconds = _publish(client, topic, messages, size)
    return _report(json, "published and persisted", messages, size, seconds)


@app.command
def subscribe(
    *,
    url: Url = None,
    messages: Messages = 200_000,
    size: Size = 512,
    topic: Topic = "bench",
    json: Json = False,
) -> int:
    """Measure how fast messages go from one client to another.

    For example:
      quire bench subscribe --size 128
    """
    _check(messages, size)
    with quire.Client(url or default_url()) as receiver, quire.Client(url or default_url()) as publisher:
        subscription = receiver.subscribe(topic)
        begun = time.perf_counter()
        thread = threading.Thread(target=_publish, args=(publisher, topic, messages, size))
        start_thread(thread)
        _take(subscription, messages)
        seconds = time.perf_counter() - begun
        thread.join()
    return _report(json, "published and received", messages, size, seconds)


@app.command
def replay(
    *,
    url: Url = None,
    messages: Messages = 200_000,
    size: Size = 512,
    topic: Topic = "bench",
    json: Json = False,
) -> int:
    """Measure how fast a client replays messages from the log.

    For example:
      quire bench replay --messages 1000000
    """
    _check(messages, size)
    with quire.Client(url or default_url()) as client:
        # Older messages on the topic are not counted: the replay begins with those of this run.
        with client.subscribe(topic, bookmark=quire.NOW) as subscription:
            _publish(client, topic, 1, size)
            begin = subscription.get(timeout=_PATIENCE).bookmark
        _publish(client, topic, messages, size)
        started = time.perf_counter()
        with client.subscribe(topic, bookmark=begin) as again:
            _take(again, messages)
        seconds = time.perf_counter() - started
    return _report(json, "replayed", messages, size, seconds)


@app.command
def queue(
    *,
    url: Url = None,
    messages: Messages = 200_000,
    size: Size = 512,
    topic: Topic = "bench",
    queue: Annotated[
        str,
        Parameter(help="Empty queue over the topic. With file: or memory: the command creates it."),
    ] = "BENCH",
    max_backlog: Annotated[
        int, Parameter(help="Limit of messages that are delivered and not yet acknowledged.")
    ] = 100,
    json: Json = False,
) -> int:
    """Measure how fast messages go through a queue until they are acknowledged.

    For example:
      quire bench queue --url memory:
      quire bench queue --queue ORDERS_RISK --topic orders --messages 100000
    """
    _check(messages, size)
    url = url or default_url()
    config = None
    if "://" not in url:
        # A server has its own queues.
        made = {"name": queue, "message_type": "json", "underlying_topic": topic}
        config = quire.Config(queue={**made, "max_per_subscription_backlog": max(1, max_backlog)})
    batch = max(1, max_backlog * 4 // 5)
    with (
        quire.Client(url, config=config, ack_batch_size=batch) as worker,
        quire.Client(url, config=config) as publisher,
    ):
        if depth := worker.queue_stats(queue)[queue]["depth"]:
            raise quire.ConfigError(
                f"{queue} holds {counted(depth, 'message')}: purge it first", key="--queue"
            )
        subscription = worker.subscribe(queue, max_backlog=max_backlog)
        begun = time.perf_counter()
        thread = threading.Thread(target=_publish, args=(publisher, topic, messages, size))
        start_thread(thread)
        _take(subscription, messages, quire.Message.ack)
        worker.flush(timeout=_PATIENCE)
        seconds = time.perf_counter() - begun
        thread.join()
    return _report(json, "published, delivered and acknowledged", messages, size, seconds)


@app.command
def latency(
    *,
    url: Url = None,
    seconds: Annotated[float, Parameter(help="Duration in seconds.")] = 5.0,
    rate: Annotated[float, Parameter(help="Messages per second.")] = 1_000.0,
    size: Size = 512,
    topic: Topic = "bench",
    disk: Annotated[
        Path | None,
        Parameter(
            help="Directory on the disk of the server, if it is on this machine. The command also measures this disk. "
            "With file: it is the directory of the journal."
        ),
    ] = None,
    json: Json = False,
) -> int:
    """Measure the latency to a subscriber, until a message is persisted, and of the disk alone.

    The latency to the subscriber is measured at a constant rate, and from the time at which a message was due.
    Then the client publishes one message at a time, and waits until it is persisted.
    Then the program writes and syncs as many bytes without quire.

    For example:
      quire bench latency --rate 5000 --seconds 10
      quire bench latency --disk /var/lib/quire
    """
    if not (seconds > 0 and rate > 0):
        raise quire.ConfigError("both must be above 0", key="--seconds, --rate")
    count = max(1, round(seconds * rate))
    _check(count, size)
    url = url or default_url()
    if disk is None and url.startswith("file:"):
        disk = directory_of(url)
    measured = {"delivered": _deliver(url, topic, rate, count, size)}
    with quire.Client(url) as client:
        measured["persisted"] = _persist(client, topic, min(seconds, 2), size)
    if disk is not None:
        measured["disk"] = _sync(disk, min(seconds, 2), size)
    figures = {name: _quantiles(took) for name, took in measured.items()}
    if json:
        print_json(messages=count, rate=rate, size=size, **figures)
        return 0
    print(f"{counted(count, 'message')} of {counted(size, 'byte')} at {rate:,.0f}/s")
    meanings = {
        "delivered": "from the time at which a message was due to a subscriber",
        "persisted": "a publish and the wait until it is persisted, one message at a time",
        "disk": f"a synced write of as many bytes in {disk}, without quire",
    }
    for name, quantiles in figures.items():
        text = ", ".join(f"{key.removesuffix('_us')} {value:,} µs" for key, value in quantiles.items())
        print(f"{name:9} {text} ({meanings[name]})")
    return 0


def _deliver(url: str, topic: str, rate: float, count: int, size: int) -> list[int]:
    """Publishes at a rate, and returns the nanoseconds until a subscriber had each message."""
    took: list[int] = []
    done = threading.Event()

    def receive(message: quire.Message) -> None:
        took.append(time.perf_counter_ns() - int.from_bytes(message.data[:8]))
        if len(took) == count:
            done.set()

    with quire.Client(url) as receiver, quire.Client(url) as publisher:
        receiver.subscribe(topic, on_message=receive)
        begun, padding = time.perf_counter_ns(), b"x" * (size - 8)
        for number in range(count):
            due = begun + round(number / rate * 1e9)
            while (left := due - time.perf_counter_ns()) > 0:
                time.sleep(left / 1e9)
            publisher.publish(topic, due.to_bytes(8) + padding)
        if not done.wait(_PATIENCE):
            raise TimeoutError(f"only {len(took)} of {counted(count, 'message')} came")
    return took


def _persist(client: quire.Client, topic: str, seconds: float, size: int) -> list[int]:
    """Publishes one message at a time, and returns the nanoseconds until each was persisted."""
    took: list[int] = []
    data, end = b"x" * size, time.perf_counter() + seconds
    while not took or time.perf_counter() < end:
        begun = time.perf_counter_ns()
        client.publish(topic, data)
        client.flush(timeout=_PATIENCE)
        took.append(time.perf_counter_ns() - begun)
    return took


def _sync(directory: Path, seconds: float, size: int) -> list[int]:
    """Writes one message at a time, and returns the nanoseconds until each was on the disk.

    The file is filled before. A sync of a file that grows takes longer, and quire fills its files, too.
    """
    took: list[int] = []
    data, room = b"x" * max(1, size), max(_DISK_FILE_SIZE, size)
    with tempfile.NamedTemporaryFile(dir=directory, prefix="quire-bench-") as file:
        file.write(bytes(room))
        file.flush()
        os.fsync(file.fileno())
        offset, end = 0, time.perf_counter() + seconds
        while not took or time.perf_counter() < end:
            if offset + len(data) > room:
                offset = 0
            begun = time.perf_counter_ns()
            os.pwrite(file.fileno(), data, offset)
            # The system may lack it. The journal then uses the same call.
            getattr(os, "fdatasync", os.fsync)(file.fileno())
            took.append(time.perf_counter_ns() - begun)
            offset += len(data)
    return took


def _quantiles(took: list[int]) -> dict[str, float]:
    cuts = statistics.quantiles(took, n=1000, method="inclusive") if len(took) > 1 else [float(took[0])] * 999
    quantiles = {f"p{name}_us": cuts[at] for name, at in (("50", 499), ("99", 989), ("999", 998))}
    return {name: round(value / 1e3, 1) for name, value in {**quantiles, "max_us": max(took)}.items()}


def _check(messages: int, size: int) -> None:
    if messages < 1:
        raise quire.ConfigError(f"{messages} is not at least 1", key="--messages")
    if size < 0:
        raise quire.ConfigError(f"{size} is below 0", key="--size")


def _publish(client: quire.Client, topic: str, count: int, size: int) -> float:
    """Publishes messages, waits until they are persisted, and returns the seconds that this took."""
    data = b"x" * size
    begun = time.perf_counter()
    for _ in range(count):
        client.publish(topic, data)
    client.flush()
    return time.perf_counter() - begun


def _take(
    subscription: quire.Subscription, count: int, settle: Callable[[quire.Message], None] | None = None
) -> None:
    taken = 0
    for batch in subscription.batches(timeout=_PATIENCE):
        if settle is not None:
            for message in batch:
                settle(message)
        taken += len(batch)
        if taken >= count:
            return
        if not batch:
            raise TimeoutError(f"only {taken} of {counted(count, 'message')} came")


def _report(as_json: bool, what: str, count: int, size: int, seconds: float) -> int:
    rate = count / max(seconds, 1e-9)
    if as_json:
        print_json(messages=count, size=size, seconds=round(seconds, 4), per_second=round(rate))
    else:
        print(
            f"{counted(count, 'message')} of {counted(size, 'byte')} {what} in {seconds:.2f} s: "
            f"{rate:,.0f} messages/s, {rate * size / 1024**2:,.0f} MB/s"
        )
    return 0


__all__ = ["app"]
