"""Kills a server with actions, and compares their messages with the messages that started them.

`support/crash_harness.py` describes the harnesses. `tests/test_action_crash.py` runs a few rounds.

A client outlives the server. It publishes orders, records that it deletes again, records that
expire, and jobs that expire. Actions with the triggers `publish`, `delete_message` and
`expire_message` publish a copy of each of them. One of the queues has a `dead_letter_topic`. These
must hold at the end (docs/actions.md, "Runs"):

- every order, every deleted or expired record and every expired job started its action at least
  once;
- an action sees the messages of its trigger in the order of the log: a message that comes for the
  first time comes after all messages before it;
- a kill repeats at most the runs whose place was not on the disk, and those of records that have
  expired since the last snapshot of their topic;
- every dead letter is on its topic exactly once;
- an action whose message was published by another action runs too, and none runs for a message that
  it led to itself.

Now and then the server is killed again while it starts, and sometimes it is stopped with SIGTERM.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import quire
from support import crash_harness
from support.server_process import ServerProcess
from support.waiting import PATIENCE, wait_until

#: Groups of messages in one round before the kill, at most.
_GROUPS_MAX: Final = 60
#: Runs that one kill may repeat, of each action: the place of a trigger is written some times a
#: second.
_REPEATED_MAX: Final = 40


def _copy(name: str, on: dict[str, str], topic: str) -> dict[str, Any]:
    return {"name": name, "on": on, "do": {"publish": {"topic": topic, "data": "{{DATA}}"}}}


#: The topic of the copies, and of the topic or queue whose messages start the action.
COPIES: Final = {
    "copies": "orders",
    "again": "orders",
    "deleted": "records",
    "expired": "short",
    "dead": "jobs",
    "lettered": "letters-jobs",
}
#: Records that expire at one moment have no order. After a kill, those that have expired since the
#: last snapshot expire again.
_EXPIRED: Final = "expired"
_SETTINGS: Final[dict[str, Any]] = {
    "action": [
        _copy("copy", {"publish": "orders"}, "copies"),
        # A chain: it runs for the messages of the action before it.
        _copy("again", {"publish": "copies"}, "again"),
        _copy("gone", {"delete_message": "records"}, "deleted"),
        _copy("over", {"expire_message": "short"}, "expired"),
        _copy("failed", {"expire_message": "jobs"}, "dead"),
        _copy("lettered", {"expire_message": "letters-jobs"}, "lettered"),
    ],
    "sow_topic": [
        {"name": "records", "message_type": "json", "key": "/id"},
        {"name": "short", "message_type": "json", "key": "/id", "expiration": "100ms"},
    ],
    "queue": [
        {"name": "jobs", "message_type": "json", "expiration": "10ms"},
        {
            "name": "letters-jobs",
            "message_type": "json",
            "expiration": "10ms",
            "dead_letter_topic": "letters",
        },
    ],
    "transaction_log": {"journal_size": "256KB", "topic": [{"name": "^", "message_type": "json"}]},
}


def crash_rounds(directory: Path, rounds: int, seed: int) -> tuple[int, int]:
    """Runs `rounds` kills; gives how many messages of each kind there were, and how many runs were repeated."""
    dice = random.Random(seed)
    count = kills = 0
    with ServerProcess(directory, **_SETTINGS) as server:
        # From here on, each trigger has its place.
        wait_until(lambda: (directory / "actions/begun.json").exists())
        with crash_harness.client(server.url, name="worker") as client:
            for _ in range(rounds):
                for _ in range(dice.randrange(1, _GROUPS_MAX)):
                    count += 1
                    _publish_group(client, count)
                if dice.random() < 0.3:
                    client.flush(PATIENCE)
                time.sleep(dice.uniform(0, 0.3))
                if dice.random() < 0.2:
                    assert server.terminate() == 0
                else:
                    kills += 1
                    server.kill()
                crash_harness.start_again(server, dice, seconds_max=0.5)
            client.flush(PATIENCE)
        expected = list(range(1, count + 1))
        for topic in COPIES:
            _wait_for(server.url, topic, count)
        repeated = 0
        for topic in COPIES:
            again = check(topic, _numbers(server.url, topic), expected, is_ordered=topic != _EXPIRED)
            # `again` repeats what `copy` repeats, too. A start that was killed counts as a kill.
            limit = _REPEATED_MAX * (rounds + 1) * (2 if topic == "again" else 1)
            assert again <= limit or topic == _EXPIRED, (
                f"{topic}: {again} runs were repeated after {kills} kills"
            )
            repeated += again
        letters = _numbers(server.url, "letters", "/message/id")
        assert sorted(letters) == expected, (
            f"dead letters: {len(letters)} of {count}, {_missing(letters, expected)}"
        )
    return count, repeated


def _publish_group(client: quire.Client, number: int) -> None:
    for topic in ("orders", "records", "short", "jobs", "letters-jobs"):
        client.publish(topic, {"id": number})
    # After a lost connection the records are removed, and only their number is unknown.
    with contextlib.suppress(quire.DisconnectedError):
        client.sow_delete("records", filter=f"/id = {number}")


def _numbers(url: str, topic: str, member: str = "/id") -> list[int]:
    """The numbers of the messages of a topic, in the order of the log."""
    found = []
    with crash_harness.client(url) as client:
        for message in client.subscribe(topic, bookmark=quire.EPOCH, until=quire.NOW):
            value = message.json()
            for name in member.strip("/").split("/"):
                value = value[name]
            found.append(value)
    return found


def _wait_for(url: str, topic: str, count: int) -> None:
    """Waits until the topic has as many different numbers."""
    wait_until(lambda: len(set(_numbers(url, topic))) >= count)


def _missing(numbers: Sequence[int], expected: Sequence[int]) -> str:
    missing = sorted(set(expected) - set(numbers))
    return f"{len(missing)} are missing, the first is {missing[0]}" if missing else "none is missing"


def check(topic: str, numbers: Sequence[int], expected: Sequence[int], *, is_ordered: bool = True) -> int:
    """Compares the copies of messages with the messages; gives how many are there again."""
    assert set(numbers) == set(expected), f"{topic}: {_missing(numbers, expected)}"
    # Records are deleted in the order of their publishes, and jobs of one queue expire in it.
    first_times = list(dict.fromkeys(numbers))
    assert not is_ordered or first_times == list(expected), (
        f"{topic}: a run came before the run of an earlier message"
    )
    return len(numbers) - len(expected)


def report(directory: Path, rounds: int, seed: int) -> str:
    count, repeated = crash_rounds(directory, rounds, seed)
    runs = f"{count * len(COPIES):,} runs over {rounds} kills, {repeated:,} repeated"
    return f"{runs}: none was lost, and every dead letter is there once"


HARNESS = crash_harness.Harness(run=report, rounds=50, rounds_per_directory=10)

if __name__ == "__main__":
    crash_harness.main(HARNESS)
