"""`completed` of a replay is set when the program has the last replayed message, on all three kinds
of server."""

from __future__ import annotations

import asyncio
import threading

import quire
from support.waiting import PATIENCE, wait_until


def test_a_loop_that_ends_when_the_replay_is_completed_has_read_all_of_it(url: str) -> None:
    with quire.Client(url) as client:
        client.publish_many_receipt("orders", [b"%d" % n for n in range(1000)]).wait(PATIENCE)
        with client.subscribe("orders", bookmark=quire.EPOCH) as replay:
            # All of it has come, and the program was handed nothing.
            wait_until(lambda: replay._core.outstanding_count == 1000)
            client.publish_receipt("other", b"").wait(PATIENCE)
            assert not replay.completed.is_set()
            assert not replay.completed.wait(0)
            assert not client.health().subscriptions[0].completed
            found = []
            for message in replay:
                found.append(int(message.data))
                if replay.completed.is_set():
                    break
            assert found == list(range(1000))
            assert replay.completed.wait(0)


def test_a_list_of_messages_does_not_go_beyond_the_end_of_the_replay(url: str) -> None:
    with quire.Client(url) as client:
        client.publish_many_receipt("orders", [b"%d" % n for n in range(10)]).wait(PATIENCE)
        with client.subscribe("orders", bookmark=quire.EPOCH) as replay:
            client.publish_receipt("orders", b"live").wait(PATIENCE)
            wait_until(lambda: replay._core.outstanding_count == 11)
            batches = replay.batches(100)
            assert [int(message.data) for message in next(batches)] == list(range(10))
            assert replay.completed.is_set()
            assert [message.data for message in next(batches)] == [b"live"]


def test_a_thread_that_waits_is_told_when_another_has_taken_the_replay(url: str) -> None:
    with quire.Client(url) as client:
        client.publish_many_receipt("orders", [b"%d" % n for n in range(10)]).wait(PATIENCE)
        with client.subscribe("orders", bookmark=quire.EPOCH) as replay:
            told: list[bool] = []
            waiting = threading.Thread(target=lambda: told.append(replay.completed.wait(PATIENCE)))
            waiting.start()
            for _ in range(10):
                replay.get(PATIENCE)
            waiting.join()
            assert told == [True]


async def test_a_task_that_waits_is_told_when_another_has_taken_the_replay(url: str) -> None:
    async with quire.AsyncClient(url) as client:
        await client.publish_many_receipt("orders", [b"%d" % n for n in range(10)])
        replay = await client.subscribe("orders", bookmark=quire.EPOCH)
        waiting = asyncio.create_task(replay.completed.wait(PATIENCE))
        for _ in range(10):
            await replay.get(PATIENCE)
        assert await waiting


def test_a_replay_with_a_handler_is_completed_when_the_handler_returned_from_its_end(url: str) -> None:
    with quire.Client(url) as client:
        client.publish_many_receipt("orders", [b"%d" % n for n in range(10)]).wait(PATIENCE)
        gate, handled = threading.Semaphore(0), []

        def handle(message: quire.Message) -> None:
            gate.acquire()
            handled.append(int(message.data))

        replay = client.subscribe("orders", bookmark=quire.EPOCH, on_message=handle)
        gate.release(9)
        wait_until(lambda: len(handled) == 9)
        assert not replay.completed.is_set()
        gate.release()
        assert replay.completed.wait(PATIENCE)
        assert handled == list(range(10))


def test_an_empty_replay_is_completed_at_once(url: str) -> None:
    with quire.Client(url) as client, client.subscribe("orders", bookmark=quire.EPOCH) as replay:
        assert replay.completed.wait(PATIENCE)
