"""The console of `quire demo`, and the live traffic of `quire demo --stay`."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import cycle
from typing import Any, Final

from rich.console import Console

import quire
from quire.demo._board import AIRCRAFT
from quire.demo._jobs import QUEUE
from quire.testing._server import reserve_port

#: The address that a newcomer finds in the documentation, if it is free.
PORT: Final = 9080
#: Flights per second, on average.
RATE: Final = 50
#: The share of jobs that the worker returns to the queue.
CANCELLED: Final = 0.02


def admin_settings(owner: object) -> dict[str, Any] | None:
    """Returns the `[admin]` table of the server of the demo; `None`: its packages are not installed.

    The port is free, and stays reserved while `owner` exists.
    """
    if any(find_spec(package) is None for package in ("starlette", "uvicorn", "prometheus_client")):
        return None
    return {"address": f"127.0.0.1:{PORT if _is_free(PORT) else reserve_port(owner)}", "interval": "1s"}


def console_of(settings: dict[str, Any] | None) -> str | None:
    """The URL of the console."""
    return None if settings is None else f"http://{settings['address']}"


def stay(console: Console, url: str, flights: list[bytes], address: str | None) -> None:
    """Publishes flights, and works on them, until Ctrl-C."""
    if address is None:
        console.print("the console needs further packages: pip install 'quire-mq[admin]'")
    else:
        console.print(f"[bold green]console: {address}[/]")
    console.print("live traffic until Ctrl-C")
    with traffic(url, flights):
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            console.print("stopped")


@contextmanager
def traffic(url: str, flights: list[bytes]) -> Iterator[None]:
    """Live traffic: a publisher, subscribers with filters, and a worker that is sometimes slower."""
    stopping = threading.Event()
    with (
        quire.Client(url, name="airport") as publisher,
        quire.Client(url, name="board") as board,
        quire.Client(url, name="worker-live") as worker,
    ):
        for filter in ("/carrier = 'UA'", "/dest = 'LAX'"):
            board.subscribe("flights", filter=filter, on_message=lambda _: None)
        board.sow_and_subscribe(str(AIRCRAFT["name"]), filter="/dep_delay > 60", on_message=lambda _: None)
        threads = [
            threading.Thread(target=_publish, args=(publisher, flights, stopping), daemon=True),
            threading.Thread(target=_work, args=(worker, stopping), daemon=True),
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            stopping.set()
            for thread in threads:
                thread.join()


def _publish(client: quire.Client, flights: list[bytes], stopping: threading.Event) -> None:
    chance = random.Random(2013)
    for flight in cycle(flights):
        client.publish("flights", flight)
        if b'"tailnum": null' not in flight:
            client.publish(str(AIRCRAFT["name"]), flight)
        # More flights in one minute than in the next, so that the charts have a shape.
        busy = 1.5 if int(time.monotonic() / 20) % 2 else 0.5
        if stopping.wait(chance.expovariate(RATE * busy)):
            return


def _work(client: quire.Client, stopping: threading.Event) -> None:
    chance = random.Random(1903)
    jobs = client.subscribe(str(QUEUE["name"]), max_backlog=20)
    for batch in jobs.batches(1, timeout=0.2):
        for job in batch:
            if chance.random() < CANCELLED:
                job.cancel(reason="the gate was closed")
            else:
                job.ack()
        if stopping.wait(chance.expovariate(RATE) if batch else 0):
            return


def _is_free(port: int) -> bool:
    with socket.socket() as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
