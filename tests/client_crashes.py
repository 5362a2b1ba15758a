"""Kills clients with stores in files, and their server, and compares what each of them had done.

`support/crash_harness.py` describes the harnesses. `tests/test_client_crash.py` runs a few rounds.

A publisher has a publish store in a file, and a consumer a bookmark store in a file. Each of them
runs in a separate process. They are killed and replaced, and so is the server between them. These must hold:

- a publish that returned is in the log once, in order, whichever process was killed;
- a message that the consumer had processed does not come again, and none is left out: each new
  consumer begins with the message that the last one held, or with the next.
"""

from __future__ import annotations

import random
from pathlib import Path

import quire
from support import crash_harness
from support.client_process import ClientProcess
from support.server_process import ServerProcess
from support.waiting import PATIENCE, Deadline

_TOPIC = "crash"
#: Answers that are waited for before something is killed, at most.
_ANSWERS_MAX = 300


class Publisher:
    """A process that publishes numbers; the next one goes on behind what the last had published."""

    def __init__(self, url: str, store: str) -> None:
        self._url = url
        self._store = store
        self._process: ClientProcess | None = None
        #: The last number whose publish is known to have returned.
        self.published = 0

    def start(self) -> None:
        # What the last one published and could not say any more counts, too: the server knows.
        with crash_harness.client(self._url, name="publisher", publish_store=self._store) as client:
            client.flush(PATIENCE)
            assert client.persisted >= self.published, (client.persisted, self.published)
            self.published = client.persisted
        self._process = ClientProcess(self._url, name="publisher", publish_store=self._store)
        self._process.tell("publish_without_end", _TOPIC, self.published + 1)

    def listen(self, count: int) -> None:
        assert self._process is not None
        for _ in range(count):
            self.published = self._process.answer()

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self.published = max([self.published, *self._process.rest()])


class Consumer:
    """A process that takes numbers; the next one goes on behind what the last had processed."""

    def __init__(self, url: str, store: str) -> None:
        self._url = url
        self._store = store
        self._process: ClientProcess | None = None
        self._is_first = True
        self.taken = 0

    def start(self) -> None:
        self._process = ClientProcess(self._url, bookmark_store=self._store)
        self._process.ask("subscribe", _TOPIC, quire.MOST_RECENT, "consumer")
        self._process.tell("take_without_end")
        self._is_first = True

    def listen(self, count: int) -> None:
        assert self._process is not None
        for _ in range(count):
            self._take(self._process.answer())

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        for number in self._process.rest():
            self._take(number)

    def _take(self, number: int) -> None:
        # The last one that was handed out before a kill was not processed, unless the next was
        # asked for.
        expected = (self.taken, self.taken + 1) if self._is_first else (self.taken + 1,)
        assert number in expected or self.taken == 0 == number - 1, f"{number} came, {expected} was due"
        self.taken = number
        self._is_first = False


def client_crash_rounds(directory: Path, rounds: int, seed: int) -> int:
    """Runs `rounds` kills on the files in `directory`; gives how many messages were published."""
    dice = random.Random(seed)
    with ServerProcess(directory / "data") as server:
        publisher = Publisher(server.url, str(directory / "publishes"))
        consumer = Consumer(server.url, str(directory / "places"))
        publisher.start()
        consumer.start()
        # In the order in which they are started again.
        parts: dict[str, ServerProcess | Publisher | Consumer] = {
            "server": server,
            "publisher": publisher,
            "consumer": consumer,
        }
        for _ in range(rounds):
            publisher.listen(dice.randrange(1, _ANSWERS_MAX))
            # A publisher stops when its pipe is full and is not read. Then nothing more comes to
            # the consumer.
            while publisher.published <= consumer.taken:
                publisher.listen(1)
            consumer.listen(min(dice.randrange(1, _ANSWERS_MAX), publisher.published - consumer.taken))
            chosen = dice.sample(list(parts), dice.choice([1, 1, 2, 3]))
            victims = [part for name, part in parts.items() if name in chosen]
            for part in victims:
                part.kill()
            for part in victims:
                part.start()
        publisher.kill()
        publisher.start()
        publisher.kill()
        consumer.kill()
        with crash_harness.client(
            server.url, name="publisher", publish_store=directory / "publishes"
        ) as last:
            last.flush(PATIENCE)
            published = last.persisted
        assert published >= publisher.published
        with crash_harness.client(server.url) as reader:
            subscription = reader.subscribe(_TOPIC, bookmark=quire.EPOCH)
            deadline = Deadline()
            for expected in range(1, published + 1):
                assert int(subscription.get(deadline.left).data) == expected
        assert consumer.taken <= published
    return published


def report(directory: Path, rounds: int, seed: int) -> str:
    published = client_crash_rounds(directory, rounds, seed)
    return f"{published:,} messages over {rounds} kills: none lost, none twice"


HARNESS = crash_harness.Harness(run=report, rounds=200, rounds_per_directory=20)

if __name__ == "__main__":
    crash_harness.main(HARNESS)
