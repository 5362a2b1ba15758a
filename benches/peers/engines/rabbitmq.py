"""RabbitMQ: a queue per line, publisher confirms, a topic exchange for the keys.

Its synced queue is the quorum queue; the classic one does not sync before it confirms. Replays need
its streams and their own client; a queue is consumed, not replayed.
"""

from __future__ import annotations

import functools
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pika
from pika.adapters.blocking_connection import BlockingChannel
from pika.channel import Channel
from pika.spec import Basic

from ..engine import Broker, Durability, NotOffered, own_directory, pauses
from ..server import Server, free_port

_PREFETCH = 500
_WINDOW = 5_000
PERSISTENT = pika.BasicProperties(delivery_mode=2)


@dataclass
class RabbitMQ(Broker):
    name = "RabbitMQ"
    epmd_port: int = field(default_factory=free_port)
    dist_port: int = field(default_factory=free_port)

    def version(self) -> str:
        return f"{server_version()}, pika {version('pika')}"

    def settings(self) -> str:
        return f"{self._queue_type} queues, persistent, {_WINDOW} unconfirmed at most; prefetch {_PREFETCH}"

    @property
    def _queue_type(self) -> str:
        return "quorum" if self.durability is Durability.SYNCED else "classic"

    def command(self, directory: Path) -> Sequence[str]:
        configure(directory, self.port, {})
        return [program("rabbitmq-server")]

    def environment(self, directory: Path) -> dict[str, str]:
        return environment(directory, "peers@localhost", self.epmd_port, self.dist_port)

    @contextmanager
    def serving(self, directory: Path) -> Iterator[Server]:
        with name_server(directory, self.epmd_port), super().serving(directory) as server:
            yield server

    @property
    def _parameters(self) -> pika.ConnectionParameters:
        return parameters(self.port)

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
        publisher = Publisher(exchange, routing_keys, lambda sent: sent < count, b"x" * size, _WINDOW)
        publisher.run(self.port)

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
                channel.basic_publish("", "live", b"%d" % time.monotonic_ns(), PERSISTENT)

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


class Publisher:
    """Keeps up to `window` publishes unconfirmed: its documented way to publish fast and surely.

    It publishes while `more` is true of the number of messages that it has sent.
    """

    def __init__(
        self,
        exchange: str,
        routing_keys: Sequence[str],
        more: Callable[[int], bool],
        data: bytes,
        window: int,
    ) -> None:
        self._unconfirmed: dict[int, None] = {}  # by delivery tag, in order
        self._sent = 0
        self._exchange = exchange
        self._routing_keys = routing_keys
        self._more = more
        self._data = data
        self._window = window

    def run(self, port: int) -> int:
        """Returns how many were published, when all are confirmed."""
        connection = pika.SelectConnection(parameters(port), on_open_callback=self._opened)
        connection.ioloop.start()
        if self._unconfirmed or not self._sent:
            raise RuntimeError(f"{len(self._unconfirmed)} of {self._sent} were not confirmed")
        return self._sent

    def _opened(self, connection: pika.SelectConnection) -> None:
        connection.channel(on_open_callback=functools.partial(self._channel_opened, connection))

    def _channel_opened(self, connection: pika.SelectConnection, channel: Channel) -> None:
        channel.confirm_delivery(functools.partial(self._answered, connection, channel))
        self._send(channel)

    def _send(self, channel: Channel) -> None:
        while len(self._unconfirmed) < self._window and self._more(self._sent):
            key = self._routing_keys[self._sent % len(self._routing_keys)]
            channel.basic_publish(self._exchange, key, self._data, PERSISTENT)
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
        if len(self._unconfirmed) < self._window // 2:
            self._send(channel)
        if not self._unconfirmed:
            connection.ioloop.stop()


def parameters(port: int) -> pika.ConnectionParameters:
    return pika.ConnectionParameters("127.0.0.1", port, heartbeat=600)


def configure(directory: Path, port: int, more: Mapping[str, str]) -> None:
    """Writes the files that `environment` names."""
    settings = {
        "listeners.tcp.default": f"127.0.0.1:{port}",
        "loopback_users": "none",
        "log.console": "true",
        "log.console.level": "error",
        **more,
    }
    (directory / "rabbitmq.conf").write_text("".join(f"{key} = {value}\n" for key, value in settings.items()))
    (directory / "plugins").write_text("[].\n")


def environment(directory: Path, node: str, epmd_port: int, dist_port: int) -> dict[str, str]:
    """Of the server, and of the programs that control it."""
    return {
        "HOME": str(directory),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "ERL_EPMD_PORT": str(epmd_port),
        "RABBITMQ_NODENAME": node,
        "RABBITMQ_DIST_PORT": str(dist_port),
        "RABBITMQ_CONFIG_FILE": str(directory / "rabbitmq.conf"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(directory / "plugins"),
        "RABBITMQ_MNESIA_BASE": str(directory / "data"),
        "RABBITMQ_LOG_BASE": str(directory / "log"),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
    }


def name_server(directory: Path, port: int) -> Server:
    """The name server of Erlang. Each node would start one in the background, where it outlives the node."""
    own = own_directory(directory, "epmd")
    program = shutil.which("epmd") or "epmd"
    return Server([program, "-address", "127.0.0.1", "-port", str(port)], {}, own, port)


def server_version() -> str:
    # `rabbitmqctl version` starts a name server of Erlang that continues to run, on all addresses.
    directory = Path(program("rabbitmq-server")).resolve().parent.parent.name
    return directory.rpartition("-")[2]


def program(name: str) -> str:
    # Some packages refuse to run it under another user than their own; the library's script does
    # not.
    for found in (*Path("/usr/lib/rabbitmq").glob(f"lib/*/sbin/{name}"), shutil.which(name)):
        if found:
            return str(found)
    raise FileNotFoundError(name)
