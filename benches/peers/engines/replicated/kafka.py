"""Apache Kafka: three brokers (KRaft), and a topic with three replicas. Those that are in sync must
have a message, two at least."""

from __future__ import annotations

import gc
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from ...engine import Replicated, own_directory
from ...server import START_TIMEOUT_S, Server, free_port, started
from ..kafka import format_storage, java, server_version

_BROKERS = 3
_SETTINGS = {"min.insync.replicas": "2", "flush.messages": "1"}
_LINGER_MS = 1


@dataclass
class Brokers(Replicated):
    name = "Kafka"
    ports: list[int] = field(default_factory=list)
    controller_ports: list[int] = field(default_factory=list)

    def version(self) -> str:
        return f"{server_version()}, confluent-kafka {version('confluent-kafka')}"

    def settings(self) -> str:
        named = ", ".join(f"{key}={value}" for key, value in _SETTINGS.items())
        return f"{_BROKERS} brokers and replicas, {named}; acks=all, idempotent, linger {_LINGER_MS} ms"

    def servers(self, directory: Path) -> AbstractContextManager[None]:
        self.ports = [self.port, *(free_port() for _ in range(_BROKERS - 1))]
        self.controller_ports = [free_port() for _ in range(_BROKERS)]
        return started([self._server(directory, number) for number in range(_BROKERS)])

    def _server(self, directory: Path, number: int) -> Server:
        own = own_directory(directory, f"broker-{number}")
        port, controller_port = self.ports[number], self.controller_ports[number]
        voters = (f"{node}@127.0.0.1:{other}" for node, other in enumerate(self.controller_ports))
        file = format_storage(
            own,
            {
                "process.roles": "broker,controller",
                "node.id": str(number),
                "controller.quorum.voters": ",".join(voters),
                "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}",
                "controller.listener.names": "CONTROLLER",
                "log.dirs": str(own / "logs"),
                "auto.create.topics.enable": "false",
            },
        )
        # The last brokers would look for a leader for as long as they are let.
        return Server([*java(), "kafka.Kafka", str(file)], {}, own, port, ends_by=[signal.SIGKILL])

    def prepare(self) -> None:
        self._create_topic()
        # Clients that wait to be collected would connect again and again after the brokers have
        # ended.
        gc.collect()

    def _create_topic(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                self._try_to_create_topic()
            except KafkaException:
                # On a busy machine, a broker can lose the controllers while they start.
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.5)
            else:
                return

    def _try_to_create_topic(self) -> None:
        admin = AdminClient({"bootstrap.servers": self._servers})
        if len(admin.list_topics(timeout=10).brokers) < _BROKERS:
            raise KafkaException("the brokers have not found each other")
        topic = NewTopic("log", 1, _BROKERS, config=_SETTINGS)
        for created in admin.create_topics([topic], operation_timeout=30).values():
            try:
                created.result(60)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise

    @property
    def _servers(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self.ports)

    def _producer(self, linger_ms: int, window: int) -> Producer:
        return Producer(
            {
                "bootstrap.servers": self._servers,
                "acks": "all",
                "enable.idempotence": True,
                "linger.ms": linger_ms,
                # A message counts until its confirmation has been taken.
                "queue.buffering.max.messages": window,
            }
        )

    def publish(self, more: Callable[[], bool], size: int, window: int) -> int:
        confirmed = 0

        def confirm(error: object, _: Message) -> None:
            nonlocal confirmed
            if error is not None:
                raise RuntimeError(str(error))
            confirmed += 1

        data = b"x" * size
        half = window // 2
        published = 0
        producer = self._producer(_LINGER_MS, window)
        while more():
            for _ in range(half):
                producer.produce("log", data, on_delivery=confirm)
            published += half
            while published - confirmed > half:
                producer.poll(1)
        if producer.flush(60):
            raise TimeoutError("not everything was acknowledged")
        return confirmed

    def publish_alone(self, messages: Iterator[bytes]) -> None:
        producer = self._producer(0, 1)
        for data in messages:
            producer.produce("log", data)
            if producer.flush(60):
                raise TimeoutError("a message was not acknowledged")
