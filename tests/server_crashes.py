"""Kills a publishing server, starts it again, and compares its log with what it acknowledged.

`support/crash_harness.py` describes the harnesses. `tests/test_crash.py` runs a few rounds.

Two publishers and a follower outlive the server: they reconnect, send again what was not
acknowledged, and continue where they were. These must hold after each kill:

- a publish that the server acknowledged as persisted before it died is in the log;
- the messages of each publisher are in the log once each, in the order of their sequence numbers,
  without a gap, with the data that was published;
- the follower, which subscribed once, gets exactly that, across all kills.
"""

from __future__ import annotations

import random
from pathlib import Path

import quire
from support import crash_harness
from support.server_process import ServerProcess
from support.waiting import PATIENCE, Deadline

#: Messages acknowledged in one round before the kill, at most: a few journal files.
_MESSAGES_MAX = 3000
#: The limit of unacknowledged bytes of a publisher: more than the largest message, and so few that
#: publishing waits for the server.
_STORE_SIZE_MAX = "512KB"
_PUBLISHERS = ("publisher-1", "publisher-2")
_TRANSACTION_LOG = {"journal_size": "256KB", "topic": [{"name": "^crash/", "message_type": "binary"}]}


class Log:
    """The messages that were read from a server, checked one by one."""

    def __init__(self) -> None:
        self.last = dict.fromkeys(_PUBLISHERS, 0)

    def take(self, message: quire.Message) -> None:
        publisher, sequence, padding = bytes(message.data).split(b" ", 2)
        name = publisher.decode()
        assert message.sequence == int(sequence), (message.bookmark, sequence)
        assert message.topic == f"crash/{name}"
        expected = self.last[name] + 1
        assert message.sequence == expected, f"{name}: {message.sequence} came, {expected} was due"
        assert padding == _padding(message.sequence)
        self.last[name] = message.sequence

    def take_until(self, subscription: quire.Subscription, last: dict[str, int]) -> None:
        """Takes what comes until every publisher has come to its number in `last`."""
        deadline = Deadline()
        while any(self.last[name] < sequence for name, sequence in last.items()):
            for message in next(subscription.batches(timeout=deadline.left)):
                self.take(message)


class Publisher:
    """A client, and how much it has published."""

    def __init__(self, url: str, name: str) -> None:
        self.name = name
        self.client = crash_harness.client(
            url, name=name, publish_store=quire.PublishStore(size_max=_STORE_SIZE_MAX)
        )
        self._last = 0

    def publish(self) -> None:
        self._last += 1
        data = b"%s %d %s" % (self.name.encode(), self._last, _padding(self._last))
        assert self.client.publish(f"crash/{self.name}", data) == self._last


def crash_rounds(directory: Path, rounds: int, seed: int) -> int:
    """Runs `rounds` kills on the journal in `directory`; gives how many messages were published."""
    dice = random.Random(seed)
    followed = Log()
    with ServerProcess(directory, transaction_log=_TRANSACTION_LOG) as server:
        publishers = [Publisher(server.url, name) for name in _PUBLISHERS]
        follower = crash_harness.client(server.url, name="follower")
        subscription = follower.subscribe("^crash/", bookmark=quire.EPOCH)
        for _ in range(rounds):
            # Killed when this number of them is acknowledged, with others on their way; or at once.
            more = dice.randrange(_MESSAGES_MAX) if dice.random() < 0.9 else 0
            enough = sum(publisher.client.persisted for publisher in publishers) + more
            while sum(publisher.client.persisted for publisher in publishers) < enough:
                dice.choice(publishers).publish()
            server.kill()
            # Acknowledgements that the server had sent count, too. A kill takes nothing that was
            # written, unlike a power cut.
            acknowledged = {publisher.name: publisher.client.persisted for publisher in publishers}
            crash_harness.start_again(server, dice, seconds_max=0.6)
            _check_log(server, acknowledged)
        for publisher in publishers:
            publisher.client.flush(timeout=PATIENCE)
        published = {publisher.name: publisher.client.persisted for publisher in publishers}
        followed.take_until(subscription, published)
        _check_log(server, published)
        assert followed.last == published
        for client in (follower, *(publisher.client for publisher in publishers)):
            client.close()
        assert server.terminate() == 0
    return sum(published.values())


def _check_log(server: ServerProcess, acknowledged: dict[str, int]) -> None:
    """Replays everything with a client that knows nothing."""
    log = Log()
    with crash_harness.client(server.url) as reader:
        log.take_until(reader.subscribe("^crash/", bookmark=quire.EPOCH), acknowledged)


def _padding(sequence: int) -> bytes:
    """Bytes that depend on the sequence: now and then more than a journal batch or file."""
    size = sequence * 2654435761 % 400
    if sequence % 397 == 0:
        size += 90_000
    if sequence % 2999 == 0:
        size += 300_000
    return bytes([sequence % 251]) * size


def report(directory: Path, rounds: int, seed: int) -> str:
    published = crash_rounds(directory, rounds, seed)
    return f"{published:,} messages over {rounds} kills: none missing, doubled or out of order"


#: After 25 rounds, the replay of everything would be most of the work.
HARNESS = crash_harness.Harness(run=report, rounds=1000, rounds_per_directory=25)

if __name__ == "__main__":
    crash_harness.main(HARNESS)
