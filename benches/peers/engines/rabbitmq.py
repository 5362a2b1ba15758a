"""RabbitMQ: a queue per line, publisher confirms, a topic exchange for the keys.

Its synced queue is the quorum queue; the classic one does not sync before it confirms. Replays need its streams and
their own client; a queue is consumed, not replayed.
"""

from __future__ import annotations

import functools
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pika
from pika.adapters.blocking_connection import BlockingChannel
from pika.channel import Channel
from pika.spec import Basic

from ..engine import Broker, Durability, NotOffered, pauses
from ..server import free_port

_PREFETCH = 500
_WINDOW = 5_000
_PERSISTENT = pika.BasicProperties(delivery_mode=2)


@dataclass
class RabbitMQ(Broker):
    name = "RabbitMQ"
    epmd_port: int = field(default_factory=free_port)
    dist_port: int = field(default_factory=free_port)

    def version(self) -> str:
        control = shutil.which("rabbitmqctl")
        if control is None or _server() is None:
            raise FileNotFoundError("rabbitmq-server")
        server = subprocess.run([control, "version"], capture_output=True, text=True, check=True).stdout
        return f"{server.split()[-1]}, pika {version('pika')}"

    def settings(self) -> str:
        return f"{self._queue_type} queues, persistent, {_WINDOW} unconfirmed at most; prefetch {_PREFETCH}"

    @property
    def _queue_type(self) -> str:
        return "quorum" if self.durability is Durability.SYNCED else "classic"

    def command(self, directory: Path) -> Sequence[str]:
        (directory / "rabbitmq.conf").write_text(
            f"listeners.tcp.default = 127.0.0.1:{self.port}\nloopback_users = none\n"
            "log.console = true\nlog.console.level = error\n"
        )
        (directory / "plugins").write_text("[].\n")
        return [_server() or "rabbitmq-server"]

    def environment(self, directory: Path) -> dict[str, str]:
        return {
            "HOME": str(directory),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": str(self.epmd_port),
            "RABBITMQ_NODENAME": "peers@localhost",
            "RABBITMQ_DIST_PORT": str(self.dist_port),
            "RABBITMQ_CONFIG_FILE": str(directory / "rabbitmq.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(directory / "plugins"),
            "RABBITMQ_MNESIA_BASE": str(directory / "data"),
            "RABBITMQ_LOG_BASE": str(directory / "log"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        }

    @property
    def _parameters(self) -> pika.ConnectionParameters:
        return pika.ConnectionParameters("127.0.0.1", self.port, heartbeat=600)

    @contextmanager
    def _channel(self) -> Iterator[BlockingChannel]:
        connection = pika.BlockingConnection(self._parameters)
        try:
            yield connection.channel()
        finally:
            connection.close()

    def prepare(self) -> None:
        with self._channel() as channel:
            for queue in ("log", "work", "live"):
                channel.queue_declare(queue, durable=True, arguments={"x-queue-type": self._queue_type})
            channel.exchange_declare("keyed", "topic", durable=True)

    def publish(self, count: int, size: int) -> None:
        self._publish("", ["log"], count, size)

    def enqueue(self, count: int, size: int) -> None:
        self._publish("", ["work"], count, size)

    def publish_keyed(self, keys: int, count: int, size: int) -> None:
        self._publish("keyed", [str(key) for key in range(keys)], count, size)

    def _publish(self, exchange: str, routing_keys: Sequence[str], count: int, size: int) -> None:
        publisher = _Publisher(exchange, routing_keys, count, b"x" * size)
        connection = pika.SelectConnection(self._parameters, on_open_callback=publisher.opened)
        connection.ioloop.start()
        if publisher.confirmed < count:
            raise RuntimeError(f"{publisher.confirmed} of {count} were confirmed")

    def replay(self, count: int) -> None:
        raise NotOffered("a queue is consumed, not replayed")

    def consume(self, idle_s: float, acknowledged: Callable[[int], None]) -> None:
        taken = 0
        with self._channel() as channel:
            channel.basic_qos(prefetch_count=_PREFETCH)
            for method, _, _ in channel.consume("work", inactivity_timeout=idle_s):
                if method is None:
                    if taken:
                        channel.basic_ack(0, multiple=True)
                    break
                taken += 1
                if taken % 100 == 0:
                    channel.basic_ack(method.delivery_tag, multiple=True)
                    acknowledged(taken)
            acknowledged(taken)

    def publish_stamped(self, rate: int, count: int) -> None:
        with self._channel() as channel:
            for pause in pauses(rate, count):
                if pause:
                    time.sleep(pause)
                channel.basic_publish("", "live", b"%d" % time.monotonic_ns(), _PERSISTENT)

    def receive_stamped(self, ready: Callable[[], None], came: Callable[[bytes], bool]) -> None:
        with self._channel() as channel:
            channel.basic_qos(prefetch_count=_PREFETCH)

            def take(_: Any, method: Basic.Deliver, __: Any, data: bytes) -> None:
                channel.basic_ack(method.delivery_tag)
                if came(data):
                    channel.stop_consuming()

            channel.basic_consume("live", take)
            ready()
            channel.start_consuming()

    def receive_keyed(
        self, keys: Sequence[int], ready: Callable[[], None], came: Callable[[int], bool]
    ) -> None:
        with self._channel() as channel:

            def take(*_: object) -> None:
                if came(1):
                    channel.stop_consuming()

            for key in keys:
                queue = channel.queue_declare("", exclusive=True).method.queue
                channel.queue_bind(queue, "keyed", str(key))
                channel.basic_consume(queue, take, auto_ack=True)
            ready()
            channel.start_consuming()


class _Publisher:
    """Keeps `_WINDOW` publishes unconfirmed: its documented way to publish fast and surely."""

    def __init__(self, exchange: str, routing_keys: Sequence[str], count: int, data: bytes) -> None:
        self._unconfirmed: dict[int, None] = {}  # by delivery tag, in order
        self._sent = 0
        self._exchange = exchange
        self._routing_keys = routing_keys
        self._count = count
        self._data = data

    def opened(self, connection: pika.SelectConnection) -> None:
        connection.channel(on_open_callback=functools.partial(self._channel_opened, connection))

    def _channel_opened(self, connection: pika.SelectConnection, channel: Channel) -> None:
        channel.confirm_delivery(functools.partial(self._answered, connection, channel))
        self._send(channel)

    @property
    def confirmed(self) -> int:
        return self._sent - len(self._unconfirmed)

    def _send(self, channel: Channel) -> None:
        while self._sent < self._count and len(self._unconfirmed) < _WINDOW:
            key = self._routing_keys[self._sent % len(self._routing_keys)]
            channel.basic_publish(self._exchange, key, self._data, _PERSISTENT)
            self._sent += 1
            self._unconfirmed[self._sent] = None

    def _answered(self, connection: pika.SelectConnection, channel: Channel, frame: Any) -> None:
        if isinstance(frame.method, Basic.Nack):
            raise RuntimeError("the broker refused a message")
        tag = frame.method.delivery_tag
        if frame.method.multiple:
            while self._unconfirmed and (first := next(iter(self._unconfirmed))) <= tag:
                del self._unconfirmed[first]
        else:
            del self._unconfirmed[tag]
        if self.confirmed == self._count:
            connection.ioloop.stop()
        elif len(self._unconfirmed) < _WINDOW // 2:
            self._send(channel)


def _server() -> str | None:
    # Some packages refuse to run it under another user than their own; the library's script does not.
    for found in (
        *Path("/usr/lib/rabbitmq").glob("lib/*/sbin/rabbitmq-server"),
        shutil.which("rabbitmq-server"),
    ):
        if found:
            return str(found)
    return None
