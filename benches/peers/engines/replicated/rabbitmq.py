"""RabbitMQ: three nodes, and a quorum queue with a member on each. Two of them must have a message."""

from __future__ import annotations

import os
import secrets
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

import pika

from ...engine import Replicated, own_directory
from ...server import START_TIMEOUT_S, Server, free_port, started
from ..rabbitmq import (
    PERSISTENT,
    Publisher,
    configure,
    environment,
    name_server,
    parameters,
    program,
    server_version,
)

_NODES = 3


@dataclass
class Quorum(Replicated):
    name = "RabbitMQ"
    epmd_port: int = field(default_factory=free_port)

    def version(self) -> str:
        return f"{server_version()}, pika {version('pika')}"

    def settings(self) -> str:
        return f"{_NODES} nodes, a quorum queue of {_NODES} members, persistent, publisher confirms"

    @contextmanager
    def servers(self, directory: Path) -> Iterator[None]:
        cookie = secrets.token_hex(16)
        nodes = [self._server(directory, number, cookie) for number in range(_NODES)]
        with name_server(directory, self.epmd_port), started(nodes):
            first = directory / _name(0)
            # A queue has members on the nodes that have joined when it is declared.
            subprocess.run(
                [program("rabbitmqctl"), "await_online_nodes", str(_NODES)],
                env={**os.environ, **environment(first, _name(0), self.epmd_port, 0)},
                check=True,
                capture_output=True,
                timeout=START_TIMEOUT_S,
            )
            yield

    def _server(self, directory: Path, number: int, cookie: str) -> Server:
        own = own_directory(directory, _name(number))
        port = self.port if number == 0 else free_port()
        nodes = {
            f"cluster_formation.classic_config.nodes.{other + 1}": _name(other) for other in range(_NODES)
        }
        configure(own, port, {"cluster_formation.peer_discovery_backend": "classic_config", **nodes})
        secret = own / ".erlang.cookie"
        secret.write_text(cookie)
        secret.chmod(0o400)
        return Server(
            [program("rabbitmq-server")],
            environment(own, _name(number), self.epmd_port, free_port()),
            own,
            port,
        )

    def prepare(self) -> None:
        connection = pika.BlockingConnection(parameters(self.port))
        connection.channel().queue_declare(
            "log",
            durable=True,
            arguments={"x-queue-type": "quorum", "x-quorum-initial-group-size": _NODES},
        )
        connection.close()

    def publish(self, more: Callable[[], bool], size: int, window: int) -> int:
        return Publisher("", ["log"], lambda _: more(), b"x" * size, window).run(self.port)

    def publish_alone(self, messages: Iterator[bytes]) -> None:
        connection = pika.BlockingConnection(parameters(self.port))
        channel = connection.channel()
        channel.confirm_delivery()
        for data in messages:
            # It returns when the broker has confirmed.
            channel.basic_publish("", "log", data, PERSISTENT)
        connection.close()


def _name(number: int) -> str:
    return f"peers-{number}@localhost"
