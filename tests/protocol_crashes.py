"""Kills the server, the client, or their connection at every step of the protocol, and compares.

`support/crash_harness.py` describes the harnesses. `tests/test_protocol_crash.py` runs the first
and the last frame of each kind. The program runs any combinations, one to three kills in a life.

A *life* is one client process that sends everything that a client can send. It publishes from a
store in a file, replays what it published with a bookmark store in a file, and takes the same
messages from a queue. A proxy between the client and the server strikes directly before, within and
directly after the chosen frame. The client waits at each line that it reports, so that it can be
killed there, too. The next life continues with the files of the last. These must hold:

- a publish that returned is in the log, every message is there once, and in order;
- the replay continues with the message after the last that was discarded, not one earlier or later;
- a job that a flush has confirmed is not delivered again, and every job is confirmed in the end.
"""

from __future__ import annotations

import contextlib
import random
import signal
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal, cast

import quire
from support import crash_harness
from support.forked_process import ForkedProcess, ForkedServer
from support.proxy import Moment, Proxy, Step, Strike
from support.waiting import PATIENCE, Deadline

#: Of a road nothing comes back in this life: its connection is cut and there is no other.
Victim = Literal["server", "client", "connection", "road"]

#: Steps that are no frames: what a life says. Every moment is the same there.
LINES = frozenset({"begun", "published", "taken", "discarded", "given", "gone", "flushed", "closed"})

#: Messages published by one life.
MESSAGES = 8
_TOPIC, _QUEUE = "steps", "STEPS"
_RECONNECT = quire.Reconnect(initial="2ms", maximum="20ms")
_SETTINGS: dict[str, Any] = {
    "name": "steps-1",
    "transaction_log": {"topic": [{"name": f"^{_TOPIC}$", "message_type": "json"}]},
    "queue": [
        # A lease ends with its connection only: then nobody is given what another has acknowledged.
        {
            "name": _QUEUE,
            "message_type": "json",
            "underlying_topic": _TOPIC,
            "lease_period": "disabled",
            "retry_delay": [],
        }
    ],
}


class Life:
    """The client's side; each line that it says is answered before it goes on."""

    def __init__(self, listener: Connection, url: str, directory: Path) -> None:
        self._listener = listener
        self._client = crash_harness.client(
            url,
            name="steps",
            publish_store=directory / "publishes",
            bookmark_store=directory / "places",
            reconnect=_RECONNECT,
            ack_batch_size=4,
            ack_timeout="10ms",
        )

    def run(self) -> None:
        with self._client:
            self._client.flush(PATIENCE)
            last = self._client.persisted
            self._say("begun", last)
            replay = self._client.subscribe(
                _TOPIC, bookmark=quire.MOST_RECENT, sub_id="steps", completed=True
            )
            for _ in range(MESSAGES):
                last = cast(int, self._client.publish(_TOPIC, {"n": last + 1}))
                self._say("published", last)
            replay.pause()
            replay.resume()
            self._take(replay, last)
            jobs = self._client.subscribe(_QUEUE, max_backlog=6)
            jobs.replace(filter="/n > 0", max_backlog=5)
            while self._depth():
                self._work(jobs)
            jobs.unsubscribe()
            replay.unsubscribe()
            self._client.flush(PATIENCE)
            self._say("flushed", self._client.persisted)
        self._say("closed", last)

    def _take(self, replay: quire.Subscription, last: int) -> None:
        """What was published comes in its order, from where the last life was."""
        number = 0
        while number < last:
            message = replay.get(PATIENCE)
            number = message.json()["n"]
            assert message.sequence == number
            self._say("taken", number)
            message.discard()
            self._say("discarded", number)

    def _depth(self) -> int:
        while True:
            with contextlib.suppress(quire.DisconnectedError):  # Asking again does no harm.
                return int(self._client.queue_stats(_QUEUE)[_QUEUE]["depth"])

    def _work(self, jobs: quire.Subscription) -> None:
        """A handful of jobs; each fourth is given back once."""
        batch = next(jobs.batches(5, timeout=PATIENCE))
        # What an earlier connection brought is not ours any more.
        held = [job for job in batch if not job.lease_lost]
        for job in held:
            self._say("given", job.json()["n"])
        if held:
            held[0].extend()
        done = [job for job in held if job.json()["n"] % 4 or job.cancel_count or job.delivery_count > 1]
        for job in held:
            if job in done:
                job.ack()
            else:
                job.cancel()
        # Those of which nothing is known come again.
        with contextlib.suppress(quire.DisconnectedError):
            self._client.flush(PATIENCE)
            for job in done:
                if not job.lease_lost:
                    self._say("gone", job.json()["n"])

    def _say(self, what: str, number: int) -> None:
        self._listener.send((what, number))
        self._listener.recv()


def live(listener: Connection, url: str, directory: Path) -> None:
    """The whole of a client process."""
    Life(listener, url, directory).run()


class Ledger:
    """What lives have said, checked line by line."""

    def __init__(self) -> None:
        self.published = 0
        #: The last message that is known to be discarded, and one behind it that perhaps is.
        self._discarded = 0
        self._taken: int | None = None
        self.given: set[int] = set()
        self.gone: set[int] = set()

    def take(self, what: str, number: int) -> None:
        match what:
            case "begun":
                # What the last life published and could not say any more counts, too.
                assert number >= self.published, (
                    f"{self.published} had been published, the log ends with {number}"
                )
            case "published":
                assert number > self.published, f"{number} was published twice"
                self.published = number
            case "taken":
                due = {self._discarded + 1} | ({self._taken + 1} if self._taken else set())
                assert number in due, f"{number} came, {due} was due"
                self._discarded, self._taken = number - 1, None
            case "discarded":
                self._discarded, self._taken = number, None
            case "given":
                assert number not in self.gone, f"job {number} was given after it was gone"
                self.given.add(number)
            case "gone":
                self.gone.add(number)

    def let_go_on(self, what: str, number: int) -> None:
        """The life was told to go on behind the line."""
        if what == "taken":
            self._taken = number


class World:
    """A server, a proxy before it, and one life after the other."""

    def __init__(self, directory: Path, server: ForkedServer, proxy: Proxy) -> None:
        self._directory, self._server, self._proxy = directory, server, proxy
        self._life: ForkedProcess | None = None
        self._ledger = Ledger()

    def live(self, *kills: tuple[Step, Moment, Victim]) -> list[Step]:
        """One life, in which the kills happen one after the other; gives the steps that it came to."""
        acts: dict[Victim, Callable[[], None]] = {
            "server": self._kill_server,
            "client": self._kill_client,
            "connection": lambda: None,
            "road": self._close_road,
        }
        self._proxy.arm([Strike(step, moment, acts[victim]) for step, moment, victim in kills])
        self._life = ForkedProcess(live, self._proxy.url, self._directory)
        try:
            self._listen(self._life)
        finally:
            self._life.kill()
        assert self._proxy.errors == []
        return self._proxy.seen

    @property
    def left(self) -> list[Strike]:
        """The kills of the last life that it did not come to."""
        return self._proxy.left

    def check(self) -> int:
        """One life without a kill finishes what is left. Then a new client reads the log.

        Gives how many messages it has.
        """
        self.live()
        published = self._ledger.published
        everything = set(range(1, published + 1))
        assert self._ledger.given == everything, f"given to nobody: {sorted(everything - self._ledger.given)}"
        with crash_harness.client(self._server.url) as reader:
            assert reader.queue_stats(_QUEUE)[_QUEUE]["depth"] == 0
            replay = reader.subscribe(_TOPIC, bookmark=f"[{quire.EPOCH}:{quire.NOW}]")
            numbers = [(message.sequence, message.json()["n"]) for message in replay]
        assert numbers == [(number, number) for number in range(1, published + 1)]
        return published

    def _listen(self, life: ForkedProcess) -> None:
        """Takes what the life says until its end."""
        deadline = Deadline()
        while True:
            assert life.connection.poll(deadline.left), "the client says nothing any more"
            try:
                what, number = life.connection.recv()
            except (EOFError, ConnectionResetError):
                break
            self._ledger.take(what, number)
            self._proxy.reached(what)
            if life.is_running:
                self._ledger.let_go_on(what, number)
                with contextlib.suppress(BrokenPipeError):  # It was killed.
                    life.connection.send(None)
        status = life.end(deadline.left)
        assert status in (0, -signal.SIGKILL), f"the client ended with {status}"

    def _kill_server(self) -> None:
        self._server.kill()
        self._server.start()

    def _close_road(self) -> None:
        self._proxy.is_closed = True

    def _kill_client(self) -> None:
        assert self._life is not None
        self._life.kill()


@contextlib.contextmanager
def world(directory: Path) -> Iterator[World]:
    with (
        ForkedServer(directory / "data", _SETTINGS) as server,
        Proxy(server.url) as proxy,
    ):
        yield World(directory, server, proxy)


def report(directory: Path, rounds: int, seed: int) -> str:
    dice = random.Random(seed)
    reached = 0
    print()
    with world(directory) as it:
        steps = it.live()
        for done in range(1, rounds + 1):
            # A kill in the life that comes back from one is a kill at a reconnect.
            strikes = [_any_kill(dice, steps) for _ in range(dice.choice([1, 1, 2, 3]))]
            what = ", ".join(
                f"{victim} {moment} {step.name} {step.number}" for step, moment, victim in strikes
            )
            print(f"{done}/{rounds}: {what}", flush=True)
            it.live(*strikes)
            reached += len(strikes) - len(it.left)
        published = it.check()
    return f"{published:,} messages over {reached:,} kills: none lost, none twice"


def _any_kill(dice: random.Random, steps: list[Step]) -> tuple[Step, Moment, Victim]:
    moments: tuple[Moment, ...] = ("before", "within", "after")
    victims: tuple[Victim, ...] = ("server", "client", "connection")
    return dice.choice(steps), dice.choice(moments), dice.choice(victims)


HARNESS = crash_harness.Harness(run=report, rounds=500)

if __name__ == "__main__":
    crash_harness.main(HARNESS)
