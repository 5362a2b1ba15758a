"""Kills, stops and parts instances that replicate, and compares what their clients saw.

`support/crash_harness.py` describes the harnesses. `tests/test_link_crash.py` runs a few rounds.
The checks of this module can be made again:

    python tests/link_crashes.py --check HISTORY

In each round one or two of these happen to one of two or three instances, while clients work and
fail over:

- `kill -9`, and a restart;
- `SIGSTOP` for up to 12 s: links and clients give the instance up after 10 s and 2 s;
- a partition, of both directions or of one. Where the machine has network namespaces, the program
  runs in a separate one, and the kernel drops the packets. Elsewhere a forwarder holds the bytes;
- in every other directory, a lost disk: the instance is killed and its directory deleted.

All links are sync and nothing is downgraded, so an acknowledged message is on every instance. Two
publishers, two subscribers and a worker of a `[[local_queue]]` have the URLs of all instances.

The program writes a history: one JSON object a line, with `time` (nanoseconds), `client`, `type`
(`invoke`, `ok`, `fail`, `unknown`), `operation`, `value` and `position`. The checks read nothing
else, so another program can make them, too:

- set: an acknowledged message is missing at the end, or a message is there that was not published;
- log: a reader skips a message, gets one twice or out of the order of its publisher. Two readers
  disagree about a bookmark;
- queue: an acknowledged message was not delivered by the queue of some instance. A queue delivered
  a message after the acknowledgement of its consumer was durable there. Or it delivered one that
  was not published. The worker sends acknowledgements that are not known to be durable again to
  the next instance, and the queue there does not deliver these messages;
- converge: the instances differ in the end.

`position` of a message is its bookmark. Subscribers of an instance that lost its disk can miss
messages and get them again (docs/replication.md, *The cost of a fault*). The check of readers
leaves out such directories, and so does the check that a message does not come again.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import quire
import quire.testing
from support import crash_harness
from support.waiting import PATIENCE, Deadline, stop, wait_until

TOPIC: Final = "crash"
QUEUE: Final = "JOBS"
PUBLISHERS: Final = ("publisher-1", "publisher-2")
#: Messages acknowledged in one round before the faults, at most.
MESSAGES_MAX: Final = 600
#: Messages of one publisher that are not acknowledged, at most.
UNACKNOWLEDGED_MAX: Final = 300
#: Seconds that a publisher waits between two messages, at most.
PAUSE_MAX: Final = 0.002
#: A stopped or parted instance: sometimes short, sometimes so long that links and clients give it
#: up.
LONGEST_FAULT: Final = 12.0

RECONNECT: Final = quire.Reconnect(initial="20ms", maximum="200ms")
SETTINGS: Final[dict[str, Any]] = {
    "transaction_log": {"journal_size": "256KB", "topic": [{"name": TOPIC, "message_type": "json"}]},
    "local_queue": [{"name": QUEUE, "message_type": "json", "underlying_topic": TOPIC, "lease_period": "1h"}],
}


class History:
    """The file with the history. Any thread may write to it."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a")
        self._lock = threading.Lock()

    def note(
        self,
        client: str,
        kind: str,
        operation: str,
        values: Iterable[tuple[Any, str | None]],
        instance: str | None = None,
    ) -> None:
        """Writes a line for each value and its position."""
        with self._lock:
            now = time.monotonic_ns()
            for value, position in values:
                line: dict[str, Any] = {
                    "time": now,
                    "client": client,
                    "type": kind,
                    "operation": operation,
                    "value": value,
                    "position": position,
                }
                if instance is not None:
                    line["instance"] = instance
                self._file.write(json.dumps(line) + "\n")

    def close(self) -> None:
        self._file.close()


class Load:
    """The clients, each with a thread, until `finish`."""

    def __init__(self, cluster: quire.testing.Cluster, history: History, dice: random.Random) -> None:
        self._cluster, self._history, self._dice = cluster, history, dice
        #: The publishers end, and then the others.
        self._is_over, self._is_published = threading.Event(), threading.Event()
        self._errors: list[BaseException] = []
        self._clients = contextlib.ExitStack()
        self.published: Counter[str] = Counter()
        self._publishers = {name: self._client(name) for name in PUBLISHERS}
        # A bookmark store in memory: the place survives the connection.
        subscribers = [(f"subscriber-{number}", self._client(f"subscriber-{number}")) for number in (1, 2)]
        worker = self._client("worker")
        jobs: list[Callable[[], None]] = [
            *(lambda name=name: self._publish(name) for name in PUBLISHERS),
            *(lambda name=name, client=client: self._follow(name, client) for name, client in subscribers),
            lambda: self._work("worker", worker),
        ]
        self._threads = [threading.Thread(target=self._run, args=(job,), daemon=True) for job in jobs]
        for thread in self._threads:
            thread.start()

    def acknowledged(self) -> int:
        """The number of messages that are acknowledged."""
        self.check()
        return sum(client.persisted for client in self._publishers.values())

    def check(self) -> None:
        """Raises what a thread raised."""
        if self._errors:
            raise self._errors[0]

    def finish(self) -> None:
        """Ends the publishers, and waits until every client has everything."""
        self._is_over.set()
        for number, thread in enumerate(self._threads, 1):
            thread.join(PATIENCE)
            self.check()
            assert not thread.is_alive(), "a client did not come to its end"
            if number == len(PUBLISHERS):
                self._is_published.set()
        self._clients.close()

    def _client(self, name: str) -> quire.Client:
        urls = self._cluster.urls
        self._dice.shuffle(urls)
        options = {"heartbeat": "1s", "connect_timeout": "5s", "reconnect": RECONNECT}
        return self._clients.enter_context(crash_harness.client(urls, name=name, **options))

    def _run(self, job: Callable[[], None]) -> None:
        try:
            job()
        except BaseException as error:
            self._errors.append(error)

    def _publish(self, name: str) -> None:
        client = self._publishers[name]
        dice = random.Random(name)
        acknowledged = 0

        def note_acknowledged() -> None:
            nonlocal acknowledged
            persisted = client.persisted
            values = ((f"{name}/{number}", None) for number in range(acknowledged + 1, persisted + 1))
            self._history.note(name, "ok", "publish", values)
            acknowledged = max(acknowledged, persisted)

        while not self._is_over.is_set():
            number = self.published[name] + 1
            self._history.note(name, "invoke", "publish", [(f"{name}/{number}", None)])
            data = {"value": f"{name}/{number}", "text": "x" * dice.randrange(400)}
            assert client.publish(TOPIC, data) == number
            self.published[name] = number
            while number - acknowledged > UNACKNOWLEDGED_MAX and not self._is_over.is_set():
                with contextlib.suppress(TimeoutError):
                    client.wait_persisted(number - UNACKNOWLEDGED_MAX, timeout="200ms")
                note_acknowledged()
            if number % 20 == 0:
                note_acknowledged()
            time.sleep(dice.uniform(0, PAUSE_MAX))
        client.flush(PATIENCE)
        note_acknowledged()

    def _follow(self, name: str, client: quire.Client) -> None:
        received: Counter[str] = Counter()
        with client.subscribe(TOPIC, bookmark=quire.EPOCH) as subscription:
            for batch in subscription.batches(timeout="500ms"):
                self._history.note(name, "ok", "receive", _read(batch))
                for message in batch:
                    publisher = message.json()["value"].partition("/")[0]
                    received[publisher] = max(received[publisher], message.sequence or 0)
                if self._is_published.is_set() and received == self.published:
                    return

    def _work(self, name: str, client: quire.Client) -> None:
        for batch in client.subscribe(QUEUE, max_backlog=100).batches(50, timeout="500ms"):
            # First: a message whose lease is not lost then came from this instance.
            instance = client.health().instance
            held = [message for message in batch if not message.lease_lost]
            self._history.note(name, "ok", "deliver", _read(held), instance)
            if not batch and self._is_published.is_set():
                return
            for message in held:
                message.ack()
            try:
                client.flush(PATIENCE)
            except quire.DisconnectedError:
                continue
            if instance is not None and client.health().instance == instance:
                done = [message for message in held if not message.lease_lost]
                self._history.note(name, "ok", "acknowledge", _read(done), instance)


def _read(messages: Iterable[quire.Message]) -> Iterator[tuple[str, str]]:
    return ((message.json()["value"], str(message.bookmark)) for message in messages)


class Faults:
    """The faults of the instances."""

    def __init__(self, cluster: quire.testing.Cluster, history: History, dice: random.Random) -> None:
        self._cluster, self._history, self._dice = cluster, history, dice

    def one_round(self, *, may_lose_disk: bool) -> str:
        """Lets one fault happen, and ends it. Gives its name."""
        number = self._dice.randrange(len(self._cluster))
        kinds = [self._kill, self._kill, self._stop, self._part, self._kill_while_parted]
        if may_lose_disk:
            kinds.append(self._lose_disk)
        fault = self._dice.choice(kinds)
        name = fault.__name__.lstrip("_")
        self._history.note("nemesis", "invoke", name, [(self._cluster[number].name, None)])
        fault(number)
        self._history.note("nemesis", "ok", name, [(self._cluster[number].name, None)])
        return name

    def _wait(self, seconds_max: float) -> None:
        time.sleep(self._dice.uniform(0, seconds_max))

    def _kill(self, number: int) -> None:
        self._cluster.kill(number)
        self._wait(1.0)
        crash_harness.start_again(self._cluster[number], self._dice, seconds_max=1.0)

    def _stop(self, number: int) -> None:
        pid = self._cluster[number].pid
        stop(pid)
        self._wait(LONGEST_FAULT if self._dice.random() < 0.3 else 1.0)
        os.kill(pid, signal.SIGCONT)

    def _part(self, number: int) -> None:
        with partition(self._cluster, number, self._dice):
            self._wait(LONGEST_FAULT if self._dice.random() < 0.3 else 1.0)

    def _kill_while_parted(self, number: int) -> None:
        with partition(self._cluster, number, self._dice):
            self._wait(1.0)
            self._kill(self._dice.randrange(len(self._cluster)))

    def _lose_disk(self, number: int) -> None:
        self._cluster.lose_disk(number)
        self._wait(1.0)
        self._cluster.start(number)
        lost = self._cluster[number]
        for other in (instance for instance in self._cluster if instance is not lost):
            # Everything that it lacked is there before the next disk is lost. The publishers go on
            # meanwhile.
            wait_until(lambda other=other: _link(other, lost)["state"] == "live")  # type: ignore[misc]
            target = _link(other, lost)["scanned"]
            wait_until(
                lambda other=other, target=target: _link(other, lost)["acknowledged"] >= target  # type: ignore[misc]
            )


def _link(source: quire.testing.Instance, destination: quire.testing.Instance) -> dict[str, Any]:
    """The figures of a link."""
    links: list[dict[str, Any]] = source.links()["destinations"]
    return next(link for link in links if link["name"] == destination.name)


def in_namespace() -> bool:
    """Whether the kernel can drop packets: the program is in a separate network namespace."""
    return os.environ.get("QUIRE_LINK_NAMESPACE") == "1"


@contextlib.contextmanager
def partition(cluster: quire.testing.Cluster, number: int, dice: random.Random) -> Iterator[None]:
    """Parts an instance from another one or from all."""
    others = [other for other in range(len(cluster)) if other != number]
    if dice.random() < 0.5:
        others = [dice.choice(others)]
    if not in_namespace():
        cluster.partition(number, *others)
        try:
            yield
        finally:
            cluster.heal()
        return
    ports = [
        cluster._forwarders[pair].port for other in others for pair in ((number, other), (other, number))
    ]
    # Of one direction: the packets of the source are dropped, or those of the destination.
    sides = [["dport", "sport"], ["dport"], ["sport"]][dice.randrange(3)]
    rules = [["ipproto", "tcp", side, str(port)] for port in ports for side in sides]
    for rule in rules:
        _ip("rule", "add", "pref", "10", *rule, "blackhole")
    try:
        yield
    finally:
        for rule in rules:
            _ip("rule", "del", "pref", "10", *rule, "blackhole")


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


def crash_rounds(directory: Path, rounds: int, seed: int, instances: int = 2) -> Counter[str]:
    """Runs `rounds` faults on new instances, and checks the history.

    Gives the numbers of faults and of messages.
    """
    dice = random.Random(seed)
    loses_disks = seed % 2 == 1
    path = directory / "history.jsonl"
    history = History(path)
    header = {"loses_disks": loses_disks, "instances": instances, "seed": seed}
    history.note("nemesis", "ok", "begin", [(header, None)])
    counts: Counter[str] = Counter()
    with (
        open(directory / "instances.log", "a") as log,
        quire.testing.cluster(
            instances, directory=directory / "data", standard_error=log, **SETTINGS
        ) as cluster,
    ):
        load = Load(cluster, history, dice)
        faults = Faults(cluster, history, dice)
        for _ in range(rounds):
            enough = load.acknowledged() + dice.randrange(MESSAGES_MAX)
            wait_until(lambda enough=enough: load.acknowledged() >= enough)  # type: ignore[misc]
            counts[faults.one_round(may_lose_disk=loses_disks)] += 1
        load.finish()
        cluster.wait_until_replicated(PATIENCE)
        for instance in cluster:
            read_all(instance, history)
    history.close()
    counts["messages"] = sum(load.published.values())
    check(path)
    return counts


def read_all(instance: quire.testing.Instance, history: History) -> None:
    """Reads the log and the queue of an instance to their ends."""
    reader = f"reader of {instance.name}"
    with quire.Client(instance.url, command_timeout=None) as client:
        messages: list[quire.Message] = []
        with client.subscribe(TOPIC, bookmark="[0:0|1|]") as subscription:
            for batch in subscription.batches():
                messages += batch
        history.note(reader, "ok", "read", _read(messages), instance.name)
        deadline = Deadline()
        with client.subscribe(QUEUE, max_backlog=1000) as jobs:
            for batch in jobs.batches(timeout="1s"):
                assert deadline.left
                history.note(reader, "ok", "deliver", _read(batch), instance.name)
                for message in batch:
                    message.ack()
                client.flush(PATIENCE)
                history.note(reader, "ok", "acknowledge", _read(batch), instance.name)
                if not batch and not client.queue_stats(QUEUE)[QUEUE]["depth"]:
                    break


def check(path: Path) -> None:
    """Makes the checks of this module. Raises `AssertionError` with what did not hold."""
    with path.open() as file:
        lines = [json.loads(line) for line in file]
    header = next(line["value"] for line in lines if line["operation"] == "begin")
    of: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for line in lines:
        of[line["type"], line["operation"]].append(line)
    invoked = [line["value"] for line in of["invoke", "publish"]]
    published = set(invoked)
    acknowledged = {line["value"] for line in of["ok", "publish"]}
    assert len(invoked) == len(published)
    assert acknowledged == published, "the history ends before the publishers"
    logs: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for line in of["ok", "read"]:
        logs[line["instance"]].append(line)
    assert len(logs) == header["instances"]
    bookmarks: dict[str, str] = {}
    for instance, log in logs.items():
        found = [line["value"] for line in log]
        lost, unexpected = acknowledged - set(found), set(found) - published
        assert not lost, f"set: {instance} lacks {len(lost)} acknowledged messages, such as {min(lost)}"
        assert not unexpected, f"set: {instance} has messages that were not published: {unexpected}"
        check_order(f"converge: {instance}", log, bookmarks)
    for client in {line["client"] for line in of["ok", "receive"]}:
        received = [line for line in of["ok", "receive"] if line["client"] == client]
        if not header["loses_disks"]:
            check_order(f"log: {client}", received, bookmarks)
        lost = acknowledged - {line["value"] for line in received}
        assert not lost or header["loses_disks"], f"log: {client} never got {len(lost)} messages"
    check_queues(of["ok", "deliver"], of["ok", "acknowledge"], set(logs), published, header)


def check_order(who: str, lines: list[dict[str, Any]], bookmarks: dict[str, str]) -> None:
    """Each message once, those of a publisher in their order and without a gap, each under its bookmark."""
    last: Counter[str] = Counter()
    for line in lines:
        publisher, _, number = line["value"].partition("/")
        expected = last[publisher] + 1
        assert int(number) == expected, f"{who}: {line['value']} came, {publisher}/{expected} was due"
        last[publisher] = expected
        known = bookmarks.setdefault(line["value"], line["position"])
        assert known == line["position"], f"{who}: {line['value']} is {known} and {line['position']}"


def check_queues(
    deliveries: list[dict[str, Any]],
    acknowledgements: list[dict[str, Any]],
    instances: set[str],
    published: set[str],
    header: dict[str, Any],
) -> None:
    """The queue of each instance delivers every message, and none whose acknowledgement was durable."""
    unexpected = {line["value"] for line in deliveries} - published
    assert not unexpected, f"queue: messages that were not published: {unexpected}"
    gone: dict[tuple[str, str], int] = {}
    for line in acknowledgements:
        gone.setdefault((line["instance"], line["value"]), line["time"])
    confirmed = {(line["client"], line["instance"], line["value"]) for line in acknowledgements}
    for instance in instances:
        # A delivery counts for each instance when its instance or the fate of its acknowledgement
        # is not known.
        given = {
            line["value"]
            for line in deliveries
            if line.get("instance") in (instance, None)
            or (line["client"], line["instance"], line["value"]) not in confirmed
        }
        missing = published - given
        assert not missing, f"queue: {instance} delivered {len(missing)} messages to nobody"
    for line in deliveries if not header["loses_disks"] else ():
        at = gone.get((line.get("instance", ""), line["value"]))
        assert at is None or line["time"] <= at, f"queue: {line} came after its acknowledgement"


def report(directory: Path, rounds: int, seed: int) -> str:
    counts = crash_rounds(directory, rounds, seed, instances=2 + seed % 3 // 2)
    messages = counts.pop("messages")
    happened = ", ".join(f"{number} {name}" for name, number in sorted(counts.items()))
    return f"{messages:,} messages, {happened}: nothing lost, doubled or out of order"


HARNESS: Final = crash_harness.Harness(run=report, rounds=200, rounds_per_directory=10)


def enter_namespace() -> None:
    """Starts this program again in a network namespace where that is possible."""
    if in_namespace() or shutil.which("unshare") is None or shutil.which("ip") is None:
        return
    # The rule of local addresses comes first, and would hide all others.
    prepare = "ip link set lo up && ip rule add pref 100 lookup local && ip rule del pref 0"
    probe = f"{prepare} && ip rule add pref 10 ipproto tcp dport 1 blackhole"
    unshare = ["unshare", "--net", "sh", "-c"]
    if subprocess.run([*unshare, probe], check=False, capture_output=True).returncode:
        return
    os.environ["QUIRE_LINK_NAMESPACE"] = "1"
    os.execvp("unshare", [*unshare, f'{prepare} && exec "$0" "$@"', sys.executable, *sys.argv])


if __name__ == "__main__":
    if sys.argv[1:2] == ["--check"]:
        check(Path(sys.argv[2]))
    else:
        enter_namespace()
        # Lost connections are the purpose.
        logging.getLogger("quire.client").setLevel(logging.ERROR)
        is_dropped = "packets are dropped by the kernel"
        print(is_dropped if in_namespace() else "no network namespace: forwarders hold the bytes")
        crash_harness.main(HARNESS)
