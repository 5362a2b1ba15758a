"""Apache Kafka: one broker (KRaft), one partition as the log, four as the queue of a consumer group.

The broker is where `KAFKA_LIBS` says: a directory with its jar files and those they need.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from ..engine import Broker, Durability, pauses
from ..server import free_port

_PARTITIONS = 4
_CLUSTER = "4L6g3nShT-eMCtK--X86sw"


@dataclass
class Kafka(Broker):
    name = "Kafka"
    controller_port: int = field(default_factory=free_port)

    def version(self) -> str:
        return f"{server_version()}, confluent-kafka {version('confluent-kafka')}"

    def settings(self) -> str:
        sync = "flush.messages=1" if self.durability is Durability.SYNCED else "its own flushing"
        return f"{sync}; acks=all, idempotent, linger 5 ms; queue: a group over {_PARTITIONS} partitions that commits offsets"

    def command(self, directory: Path) -> Sequence[str]:
        settings = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{self.controller_port}",
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{self.controller_port}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": str(directory / "logs"),
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "4",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            "auto.create.topics.enable": "false",
        }
        if self.durability is Durability.SYNCED:
            settings["log.flush.interval.messages"] = "1"
        return [*java(), "kafka.Kafka", str(format_storage(directory, settings))]

    @property
    def _servers(self) -> str:
        return f"127.0.0.1:{self.port}"

    def prepare(self) -> None:
        admin = AdminClient({"bootstrap.servers": self._servers})
        topics = [
            NewTopic(name, partitions, 1)
            for name, partitions in (("log", 1), ("work", _PARTITIONS), ("live", 1), ("keyed", 1))
        ]
        for created in admin.create_topics(topics, operation_timeout=60).values():
            created.result(60)

    def publish(self, count: int, size: int) -> None:
        self._publish("log", count, [b"x" * size])

    def enqueue(self, count: int, size: int) -> None:
        self._publish("work", count, [b"x" * size])

    def publish_keyed(self, keys: int, count: int, size: int) -> None:
        self._publish("keyed", count, [b"%d " % key + b"x" * size for key in range(keys)])

    def _producer(self, linger_ms: int) -> Producer:
        return Producer(
            {
                "bootstrap.servers": self._servers,
                "acks": "all",
                "enable.idempotence": True,
                "linger.ms": linger_ms,
                "queue.buffering.max.messages": 200_000,
            }
        )

    def _publish(self, topic: str, count: int, bodies: Sequence[bytes]) -> None:
        producer = self._producer(linger_ms=5)
        for number in range(count):
            data = bodies[number % len(bodies)]
            while True:
                try:
                    producer.produce(topic, data)
                    break
                except BufferError:
                    producer.poll(0.05)
            if number % 1000 == 0:
                producer.poll(0)
        if producer.flush(600):
            raise TimeoutError("not everything was acknowledged")

    @contextmanager
    def _consumer(self, **settings: str | bool) -> Iterator[Consumer]:
        consumer = Consumer(
            {
                "bootstrap.servers": self._servers,
                "group.id": "workers",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                **settings,
            }
        )
        try:
            yield consumer
        finally:
            consumer.close()

    def replay(self, count: int) -> None:
        taken = size = 0
        with self._consumer() as consumer:
            consumer.assign([TopicPartition("log", 0, 0)])
            while taken < count:
                batch = _data(consumer.consume(1000, timeout=60))
                size += sum(map(len, batch))
                taken += len(batch)

    def consume(self, idle_s: float, acknowledged: Callable[[int], None]) -> None:
        taken = 0
        with self._consumer() as consumer:
            consumer.subscribe(["work"])
            # Joining the group takes a while; being idle counts from the first message on.
            while batch := _data(consumer.consume(500, timeout=idle_s if taken else 30)):
                consumer.commit(asynchronous=True)
                taken += len(batch)
                acknowledged(taken)
            try:
                consumer.commit(asynchronous=False)
            except KafkaException as error:
                # All was committed already, or another consumer has got every partition.
                if error.args[0].code() != KafkaError._NO_OFFSET:
                    raise

    def publish_stamped(self, rate: int, count: int) -> None:
        producer = self._producer(linger_ms=0)
        for pause in pauses(rate, count):
            if pause:
                time.sleep(pause)
            producer.produce("live", b"%d" % time.monotonic_ns())
            producer.poll(0)
        producer.flush(60)

    def receive_stamped(self, ready: Callable[[], None], came: Callable[[bytes], bool]) -> None:
        with self._consumer() as consumer:
            consumer.assign([TopicPartition("live", 0, 0)])
            ready()
            while True:
                for data in _data(consumer.consume(1000, timeout=0.001)):
                    if came(data):
                        return

    def receive_keyed(
        self, keys: Sequence[int], ready: Callable[[], None], came: Callable[[int], bool]
    ) -> None:
        wanted = {b"%d" % key for key in keys}
        with self._consumer() as consumer:
            consumer.assign([TopicPartition("keyed", 0, 0)])
            ready()
            while True:
                # There is no filter on the broker: every subscriber reads everything and keeps its
                # own.
                batch = _data(consumer.consume(1000, timeout=1))
                if came(sum(data[: data.index(b" ")] in wanted for data in batch)):
                    return


def _data(batch: Sequence[Message]) -> list[bytes]:
    data = []
    for message in batch:
        if (error := message.error()) is not None:
            raise RuntimeError(str(error))
        value = message.value()
        assert isinstance(value, bytes)
        data.append(value)
    return data


def server_version() -> str:
    for jar in _libs().glob("kafka_2*.jar"):
        if found := re.search(r"-([\d.]+)\.jar", jar.name):
            return found[1]
    raise FileNotFoundError("the broker's jar files (KAFKA_LIBS)")


def format_storage(directory: Path, settings: Mapping[str, str]) -> Path:
    """Writes the settings of a broker, and creates its storage. Returns the file of the settings."""
    file = directory / "server.properties"
    file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    subprocess.run(
        [*java(), "kafka.tools.StorageTool", "format", "-t", _CLUSTER, "-c", str(file)],
        check=True,
        capture_output=True,
    )
    return file


def java() -> list[str]:
    """The beginning of a command that runs a class of Kafka."""
    return [shutil.which("java") or "java", "-Xmx2g", "-Xms2g", "-cp", f"{_libs()}/*"]


def _libs() -> Path:
    libs = os.environ.get("KAFKA_LIBS")
    if not libs or not Path(libs).is_dir() or shutil.which("java") is None:
        raise FileNotFoundError("the broker's jar files (KAFKA_LIBS) or java")
    return Path(libs)
