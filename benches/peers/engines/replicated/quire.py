"""quire: two instances with sync links, and three of which two must have a message."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import ClassVar

import quire

from ...engine import Replicated, own_directory
from ...server import START_TIMEOUT_S, Server, free_port, started


@dataclass
class Pair(Replicated):
    name = "quire"
    instances: ClassVar[int] = 2
    link_ports: list[int] = field(default_factory=list)

    def version(self) -> str:
        return version("quire-mq")

    def settings(self) -> str:
        return f'{self.instances} instances, links with sync_type = "sync", required_acks = 1; publish_many'

    def servers(self, directory: Path) -> AbstractContextManager[None]:
        self.link_ports = [free_port() for _ in range(self.instances)]
        return started([self._server(directory, number) for number in range(self.instances)])

    def _server(self, directory: Path, number: int) -> Server:
        port = self.port if number == 0 else free_port()
        own = own_directory(directory, _name(number))
        config = own / "quire.toml"
        config.write_text(
            f"""
            name = "{_name(number)}"
            data_directory = {json.dumps(str(own / "data"))}
            [[transport]]
            name = "peers"
            address = "127.0.0.1:{port}"
            [transaction_log]
            durability = "fsync"
            [[transaction_log.topic]]
            name = "log"
            message_type = "binary"
            [replication]
            address = "127.0.0.1:{self.link_ports[number]}"
            required_acks = 1
            """
            + "".join(self._destination(other) for other in range(self.instances) if other != number)
        )
        return Server([sys.executable, "-m", "quire", "serve", str(config)], {}, own, port)

    def _destination(self, number: int) -> str:
        return f"""
            [[replication.destination]]
            name = "{_name(number)}"
            addresses = ["127.0.0.1:{self.link_ports[number]}"]
            sync_type = "sync"
            [[replication.destination.topic]]
            name = "log"
            message_type = "binary"
            """

    def prepare(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        with quire.Client(self._url) as client:
            while any(link["state"] != "live" for link in client._replication()["destinations"]):
                if time.monotonic() > deadline:
                    raise RuntimeError("the links are not live")
                time.sleep(0.05)

    @property
    def _url(self) -> str:
        return f"quire://127.0.0.1:{self.port}"

    def publish(self, more: Callable[[], bool], size: int, window: int) -> int:
        batch = [b"x" * size] * (window // 2)
        count = 0
        with quire.Client(self._url) as client:
            while more():
                first = client.publish_many("log", batch)[0]
                client.wait_persisted(first - 1)
                count += len(batch)
            client.flush()
        return count

    def publish_alone(self, messages: Iterator[bytes]) -> None:
        with quire.Client(self._url) as client:
            for data in messages:
                client.publish("log", data)
                client.flush()


class Three(Pair):
    name = "quire, 2 of 3"
    instances = 3


def _name(number: int) -> str:
    return f"instance-{number + 1}"
