"""`quire.testing.cluster`: instances that replicate to each other, in processes that can be killed
and partitioned.

Each instance sends to every other one. Its destinations have the addresses of forwarders
(`_forward.py`), one for each direction of each pair. A partition holds the forwarders of a pair.
For measurements there is a cluster without them: a forwarder is an additional thread for every
byte.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Literal, Self

from quire._errors import ConfigError
from quire._units import Duration, seconds
from quire.client._blocking import Observer
from quire.testing._forward import Forwarder
from quire.testing._server import START_TIMEOUT, ServerProcess, reserve_port

#: As many destinations as an instance can have, and the instance.
_INSTANCES_MAX: Final = 65
#: Seconds between two checks of the links.
_POLL: Final = 0.02


class Instance(ServerProcess):
    """One instance of a cluster: a `ServerProcess` with a name."""

    def __init__(
        self,
        name: str,
        directory: Path,
        *,
        environment: Mapping[str, str] | None,
        standard_error: IO[Any] | None,
        settings: Mapping[str, Any],
    ) -> None:
        super().__init__(
            directory, environment=environment, standard_error=standard_error, name=name, **settings
        )
        #: The name of the instance.
        self.name: str = name
        #: The directory of its data.
        self.directory: Path = directory

    def links(self) -> dict[str, Any]:
        """Returns the figures of its links, as `server.replication.stats()` does. The instance must run."""
        with Observer(self.url) as client:
            return client._replication()

    def __repr__(self) -> str:
        return f"<Instance {self.name} {self.url if self.is_running else 'stopped'}>"


#: An instance, its name, or its number from 0.
InstanceLike = Instance | str | int


class Cluster:
    """Instances that replicate to each other. `quire.testing.cluster` makes one.

    The calls take an `Instance`, its name, or its number from 0.
    """

    def __init__(
        self,
        n: int,
        *,
        sync_type: Literal["sync", "async"],
        directory: str | os.PathLike[str] | None,
        link: Mapping[str, Any],
        can_partition: bool,
        environment: Mapping[str, str] | None,
        standard_error: IO[Any] | None,
        settings: Mapping[str, Any],
    ) -> None:
        if not 1 <= n <= _INSTANCES_MAX:
            raise ConfigError(f"{n} is not between 1 and {_INSTANCES_MAX}", key="n")
        for key in ("name", "data_directory"):
            if key in settings:
                raise ConfigError("the cluster sets it for each instance", key=key)
        self._resources = contextlib.ExitStack()
        if directory is None:
            directory = self._resources.enter_context(tempfile.TemporaryDirectory(prefix="quire-cluster-"))
        names = [f"instance-{number}" for number in range(1, n + 1)]
        ports = [reserve_port(self) for _ in names]
        #: By the numbers of the source and of the destination; empty when the instances are
        #: connected directly.
        self._forwarders: dict[tuple[int, int], Forwarder] = {}
        for source in range(n):
            for target in range(n):
                if source != target and can_partition:
                    forwarder = Forwarder(ports[target])
                    self._resources.callback(forwarder.close)
                    self._forwarders[source, target] = forwarder
        self._held: set[frozenset[int]] = set()

        def port_to(target: int, source: int) -> int:
            forwarder = self._forwarders.get((source, target))
            return ports[target] if forwarder is None else forwarder.port

        def settings_of(number: int) -> dict[str, Any]:
            destinations = [
                {
                    "topic": _topics(settings),
                    # A message can reach a third instance on two paths (docs/replication.md, "What
                    # is sent").
                    "pass_through": [".*"] if n > 2 else [],
                    **link,
                    "name": names[other],
                    "addresses": [f"127.0.0.1:{port_to(other, number)}"],
                    "sync_type": sync_type,
                }
                for other in range(n)
                if other != number
            ]
            replication = {
                **settings.get("replication", {}),
                "address": f"127.0.0.1:{ports[number]}",
                "destination": destinations,
            }
            return {**settings, "replication": replication}

        #: The instances, in the order of their numbers.
        self.instances: tuple[Instance, ...] = tuple(
            Instance(
                name,
                Path(directory) / name,
                environment=environment,
                standard_error=standard_error,
                settings=settings_of(number),
            )
            for number, name in enumerate(names)
        )

    @property
    def urls(self) -> list[str]:
        """The URLs of all instances, for `Client(cluster.urls)`."""
        return [instance.url for instance in self.instances]

    def __getitem__(self, instance: InstanceLike) -> Instance:
        return self.instances[self._number(instance)]

    def __len__(self) -> int:
        return len(self.instances)

    def __iter__(self) -> Iterator[Instance]:
        return iter(self.instances)

    def kill(self, instance: InstanceLike) -> None:
        """Kills an instance with `kill -9`."""
        self[instance].kill()

    def terminate(self, instance: InstanceLike) -> int:
        """Asks an instance to stop cleanly, and returns its exit status."""
        return self[instance].terminate()

    def start(self, instance: InstanceLike) -> None:
        """Starts an instance that was stopped, with the same ports and the data that it has."""
        self[instance].start()

    def restart(self, instance: InstanceLike) -> None:
        """Starts an instance again. One that runs is first asked to stop cleanly."""
        found = self[instance]
        if found.is_running:
            found.terminate()
        found.start()

    def lose_disk(self, instance: InstanceLike) -> None:
        """Deletes all data of an instance. One that runs is killed first. `start` starts it empty."""
        found = self[instance]
        if found.is_running:
            found.kill()
        shutil.rmtree(found.directory, ignore_errors=True)

    def partition(self, a: InstanceLike, *others: InstanceLike) -> None:
        """Lets nothing pass between an instance and others, in both directions, until `heal`.

        Without `others`: between it and all other instances. The connections are not closed: as in
        a network that loses every packet, the links notice the silence after 10 s. Clients still
        reach both sides.
        """
        for pair in self._pairs(a, others):
            self._held.add(pair)
            self._set(pair, is_held=True)

    def heal(self, a: InstanceLike | None = None, *others: InstanceLike) -> None:
        """Ends partitions: between an instance and others, of one instance, or all of them."""
        pairs = set(self._held) if a is None else self._pairs(a, others)
        for pair in pairs:
            self._held.discard(pair)
            self._set(pair, is_held=False)

    def wait_until_replicated(self, timeout: Duration = START_TIMEOUT) -> None:
        """Returns when each running instance has all messages of the others that it can reach.

        Raises `TimeoutError`, which names the links that are not ready.
        """
        deadline = time.monotonic() + seconds(timeout, "timeout")
        while late := self._late():
            if time.monotonic() >= deadline:
                raise TimeoutError(f"links that are not ready after the timeout: {', '.join(late)}")
            time.sleep(_POLL)

    def _late(self) -> list[str]:
        """The links between instances that run and reach each other, and that have something to do."""
        late = []
        for number, instance in enumerate(self.instances):
            if not instance.is_running:
                continue
            for link in instance.links()["destinations"]:
                other = self._number(link["name"])
                is_reached = self.instances[other].is_running and frozenset((number, other)) not in self._held
                is_ready = (
                    link["state"] == "live"
                    and not link["unacknowledged_bytes"]
                    and not link["seconds_behind"]
                )
                if is_reached and not is_ready:
                    reason = "" if link["last_error"] is None else f" ({link['last_error']})"
                    late.append(f"{instance.name} to {link['name']}: {link['state']}{reason}")
        return late

    def _pairs(self, a: InstanceLike, others: Sequence[InstanceLike]) -> set[frozenset[int]]:
        if not self._forwarders:
            raise ConfigError("the cluster has can_partition=False or one instance", key="a")
        one = self._number(a)
        numbers = [self._number(other) for other in others] or [
            number for number in range(len(self)) if number != one
        ]
        if one in numbers:
            raise ConfigError(f"{self.instances[one].name} cannot be parted from itself", key="others")
        return {frozenset((one, number)) for number in numbers}

    def _set(self, pair: frozenset[int], *, is_held: bool) -> None:
        a, b = pair
        for forwarder in (self._forwarders[a, b], self._forwarders[b, a]):
            if is_held:
                forwarder.hold()
            else:
                forwarder.release()

    def _number(self, instance: InstanceLike) -> int:
        for number, found in enumerate(self.instances):
            if instance in (found, found.name, number):
                return number
        names = ", ".join(found.name for found in self.instances)
        raise ConfigError(f"no instance is {instance!r}; there are {names}", key="instance")

    def __enter__(self) -> Self:
        try:
            # Together: each waits for the others before it lets clients in.
            for instance in self.instances:
                instance.launch()
            for instance in self.instances:
                instance.wait_until_listening()
            self.wait_until_replicated()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Kills all instances, and removes their data unless the cluster was given a directory."""
        for instance in self.instances:
            instance.__exit__(None, None, None)
        self._resources.close()


def cluster(
    n: int = 2,
    sync_type: Literal["sync", "async"] = "sync",
    *,
    directory: str | os.PathLike[str] | None = None,
    link: Mapping[str, Any] | None = None,
    can_partition: bool = True,
    environment: Mapping[str, str] | None = None,
    standard_error: IO[Any] | None = None,
    **settings: Any,
) -> Cluster:
    """Returns a cluster of `n` instances that replicate to each other, as a context manager.

        with quire.testing.cluster(2) as cluster, quire.Client(cluster.urls, name="loader-1") as client:
            client.publish("orders", {"id": 1})
            client.flush("60s")
            cluster.kill(0)
            client.publish("orders", {"id": 2})

    The instances are processes with the names `instance-1`, `instance-2`, … The links are live at
    the beginning of the `with` block.

    - `sync_type`: whether publishers wait for the other instances
    - `directory`: the directory for their data. Without it: a temporary directory, which is removed
      at the end
    - `link`: other keys of every `[[replication.destination]]`, such as
      `{"downgrade_after": "1s"}`. The default of `topic` is every topic that `transaction_log`
      records
    - `can_partition`: `False` connects the instances directly, for measurements. Otherwise a thread
      of this program forwards what they send to each other, so that `partition` can hold it
    - `environment`, `standard_error`: as in `ServerProcess`
    - `settings`: as in `Config`, the same for all instances
    """
    return Cluster(
        n,
        sync_type=sync_type,
        directory=directory,
        link={} if link is None else link,
        can_partition=can_partition,
        environment=environment,
        standard_error=standard_error,
        settings=settings,
    )


def _topics(settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The topics that the configuration records, as a link names them."""
    topics = settings.get("transaction_log", {}).get("topic", {"name": "^", "message_type": "json"})
    return [
        {"name": topic["name"], "message_type": topic["message_type"]}
        for topic in ([topics] if isinstance(topics, Mapping) else topics)
        if topic.get("recorded", True)
    ]


__all__ = ["Cluster", "Instance", "cluster"]
