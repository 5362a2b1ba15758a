"""Replays that are resumed together keep the order of the log and one rate: over kills, from
stores, and when the program is slow."""

from __future__ import annotations

import threading
from pathlib import Path

import quire
from support.server_process import ServerProcess
from support.waiting import PATIENCE

_TOPICS = ("x", "y")


def _publish(url: str, numbers: range, size: int = 0) -> None:
    with quire.Client(url, name="publisher") as client:
        for number in numbers:
            client.publish(_TOPICS[number % 2], b"%d %s" % (number, b"." * size))
        client.flush(PATIENCE)


class _Received:
    """The numbers that the handlers of a client got, in the order of their calls."""

    def __init__(self, until: int) -> None:
        self.numbers: list[int] = []
        self.is_complete = threading.Event()
        self._until = until

    def add(self, message: quire.Message) -> None:
        number = int(message.data.split()[0])
        self.numbers.append(number)
        if number == self._until:
            self.is_complete.set()


def test_replays_resumed_together_stay_in_the_order_of_the_log_after_kills(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server:
        _publish(server.url, range(1, 4001))
        received = _Received(4000)
        with quire.Client(server.url, reconnect=quire.Reconnect(initial="10ms")) as client:
            replays = [
                client.subscribe(
                    topic, bookmark=quire.EPOCH, paused=True, rate="4000", on_message=received.add
                )
                for topic in _TOPICS
            ]
            client.resume(replays)
            for _ in range(3):
                server.kill()
                server.start()
            assert received.is_complete.wait(PATIENCE)
    assert received.numbers == list(range(1, 4001))


def test_replays_continue_together_from_the_places_of_a_store(tmp_path: Path) -> None:
    store = str(tmp_path / "places")
    with ServerProcess(tmp_path / "data") as server:
        _publish(server.url, range(1, 201))
        with quire.Client(server.url, bookmark_store=store) as client:
            for topic, count in zip(_TOPICS, (30, 5), strict=True):
                with client.subscribe(topic, bookmark=quire.MOST_RECENT, sub_id=topic) as replay:
                    for _ in range(count):
                        replay.get(PATIENCE).discard()
        received = _Received(200)
        with quire.Client(server.url, bookmark_store=store) as client:
            replays = [
                client.subscribe(
                    topic, bookmark=quire.MOST_RECENT, paused=True, sub_id=topic, on_message=received.add
                )
                for topic in _TOPICS
            ]
            client.resume(replays)
            assert received.is_complete.wait(PATIENCE)
    # 30 messages of x, the even numbers, and 5 of y were processed.
    assert received.numbers == [number for number in range(1, 201) if number > (10 if number % 2 else 60)]


def test_a_program_slower_than_its_replays_gets_them_in_the_order_of_the_log(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server:
        _publish(server.url, range(1, 8001), size=1000)
        received, may_begin = _Received(8000), threading.Event()

        def handle(message: quire.Message) -> None:
            assert may_begin.wait(PATIENCE)
            received.add(message)

        with quire.Client(server.url, receive_size_max="64KB") as client:
            replays = [
                client.subscribe(topic, bookmark=quire.EPOCH, paused=True, on_message=handle)
                for topic in _TOPICS
            ]
            client.resume(replays)
            # The server has answered a flush: the messages before it have arrived, and there was no
            # room for them.
            client.flush(PATIENCE)
            may_begin.set()
            assert received.is_complete.wait(PATIENCE)
    assert received.numbers == list(range(1, 8001))
