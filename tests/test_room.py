"""A client has a limit for messages that the program does not take. Its publishes are still
persisted and acknowledged, on all three kinds of server."""

from __future__ import annotations

import asyncio
import logging
import threading
from pathlib import Path

import pytest
import quire
from support.waiting import PATIENCE, Deadline

_ROOM = 64 * 1024
#: Far more than the room, and more than the kernel and the server keep for one connection.
_SIZE = 16 * 1024 * 1024
_DATA = b"\x00" * 8192


def fill(client: quire.Client, topic: str, size: int = _SIZE) -> int:
    """Publishes this number of bytes, and waits until they are persisted. Returns the number of
    messages."""
    count = size // len(_DATA)
    for _ in range(count):
        client.publish(topic, _DATA)
    client.flush(timeout=PATIENCE)
    return count


def take(subscription: quire.Subscription, count: int) -> list[quire.Message]:
    deadline = Deadline()
    taken: list[quire.Message] = []
    while len(taken) < count:
        taken += next(subscription.batches(timeout=deadline.left))
        assert deadline.left
    return taken


def missed_by(client: quire.Client) -> int:
    return sum(subscription.missed for subscription in client.health().subscriptions)


def test_a_replay_that_nobody_takes_does_not_stand_before_a_flush(url: str) -> None:
    with quire.Client(url, name="loader", receive_size_max=_ROOM) as client:
        replay = client.subscribe("t", bookmark=quire.EPOCH)
        count = fill(client, "t")
        sequences = [message.sequence for message in take(replay, count)]
        assert sequences == list(range(1, count + 1))
        assert client.state == "connected"


def test_a_replay_that_nobody_takes_leaves_the_others_alone(url: str) -> None:
    with quire.Client(url, name="loader", receive_size_max=_ROOM) as client:
        count = fill(client, "t")
        unread = client.subscribe("t", bookmark=quire.EPOCH)
        replay = client.subscribe("t", bookmark=quire.EPOCH)
        assert [m.sequence for m in take(replay, count)] == list(range(1, count + 1))
        assert [m.sequence for m in take(unread, count)] == list(range(1, count + 1))


def test_a_replay_that_was_kept_back_stays_paused_when_the_user_says_so(url: str) -> None:
    with quire.Client(url, name="loader", receive_size_max=_ROOM) as client:
        replay = client.subscribe("t", bookmark=quire.EPOCH)
        count = fill(client, "t")
        got = len(take(replay, 1))
        replay.pause()
        for batch in replay.batches(timeout=0.3):
            if not batch:
                break
            got += len(batch)
        assert 0 < got < count
        replay.resume()
        assert take(replay, count - got)[-1].sequence == count


def test_a_handler_may_flush_while_more_comes_than_there_is_room_for(url: str) -> None:
    with quire.Client(url, name="loader", receive_size_max=_ROOM) as client:
        count = fill(client, "t")
        seen: list[int | None] = []
        all_seen = threading.Event()

        def handler(message: quire.Message) -> None:
            if not seen:
                client.publish("answers", b"first")
                client.flush(timeout=PATIENCE)
            seen.append(message.sequence)
            if len(seen) == count:
                all_seen.set()

        client.subscribe("t", bookmark=quire.EPOCH, on_message=handler)
        assert all_seen.wait(PATIENCE)
        assert seen == list(range(1, count + 1))


def test_an_ordinary_subscription_misses_what_there_is_no_room_for_and_says_so(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with quire.Client(url, name="loader", receive_size_max=_ROOM) as client:
        subscription = client.subscribe("t")
        count = fill(client, "t")
        missed = missed_by(client)
        kept = take(subscription, count - missed)
        assert 0 < len(kept) < count
        assert [m.data for m in kept] == [_DATA] * len(kept)
        # It continues with later publishes.
        deadline = Deadline()
        while not any(record.name == "quire.client" for record in caplog.records):
            assert deadline.left
        client.publish("t", b"after")
        assert subscription.get(timeout=PATIENCE).data == b"after"
        assert missed_by(client) == missed
        text = next(r.getMessage() for r in caplog.records if r.name == "quire.client")
        assert str(missed) in text
        assert subscription.sub_id in text


def test_a_live_subscription_that_falls_behind_ends_with_the_reason(url: str) -> None:
    with quire.Client(url, name="loader", receive_size_max=_ROOM) as client:
        subscription = client.subscribe("t", bookmark=quire.NOW, live=True)
        fill(client, "t")
        kept: list[quire.Message] = []
        with pytest.raises(quire.DisconnectedError, match="behind the last message") as caught:
            kept.extend(subscription)
        assert caught.value.code == "slow_consumer"
        resumed = client.subscribe("t", bookmark=kept[-1].bookmark)
        assert resumed.get(timeout=PATIENCE).sequence == (kept[-1].sequence or 0) + 1


def test_an_ended_subscription_with_a_handler_is_logged(url: str, caplog: pytest.LogCaptureFixture) -> None:
    with quire.Client(url, name="loader", receive_size_max=_ROOM) as client:
        may_go_on = threading.Event()

        def handler(_: quire.Message) -> None:
            may_go_on.wait(PATIENCE)

        client.subscribe("t", bookmark=quire.NOW, live=True, on_message=handler, sub_id="slow")
        fill(client, "t")
        deadline = Deadline()
        while not any("'slow' has ended" in r.getMessage().replace('"', "'") for r in caplog.records):
            assert deadline.left
        may_go_on.set()
        assert caplog.records[-1].levelno == logging.ERROR


def test_answers_of_a_queue_that_nobody_takes_fail_a_flush_with_the_reason(tmp_path: Path) -> None:
    config = quire.Config(
        transaction_log={"topic": [{"name": ".*", "message_type": "binary"}]},
        queue={"name": "Q", "message_type": "binary", "underlying_topic": "t"},
    )
    with quire.Client(f"memory:{tmp_path}", config=config, name="loader", receive_size_max=_ROOM) as client:
        count = fill(client, "t")
        answers = client.sow("Q")
        first = next(answers)
        client.publish("other", b"x")
        with pytest.raises(quire.LimitExceededError, match="receive_size_max"):
            client.flush(timeout=PATIENCE)
        assert first.sequence == 1
        assert sum(1 for _ in answers) == count - 1
        client.flush(timeout=PATIENCE)
        # A question that is given up holds up nothing.
        next(client.sow("Q"))
        fill(client, "t")


def test_nothing_is_kept_of_a_subscription_whose_handler_has_had_everything(url: str) -> None:
    with quire.Client(url, name="loader") as client:
        handled = threading.Event()
        subscription = client.subscribe("t", on_message=lambda _: handled.set())
        client.publish("t", b"x")
        assert handled.wait(PATIENCE)
        subscription.unsubscribe()
        deadline = Deadline()
        while client._handlers:
            assert deadline.left


async def test_nothing_is_kept_of_a_handler_on_the_loop(url: str) -> None:
    async with quire.AsyncClient(url, name="loader") as client:
        handled: list[bytes] = []
        subscription = await client.subscribe("t", on_message=lambda m: handled.append(m.data))
        await client.publish("t", b"x")
        await client.flush(timeout=PATIENCE)
        await subscription.unsubscribe()
        deadline = Deadline()
        while client._handlers:
            assert deadline.left
            await asyncio.sleep(0)
        assert handled == [b"x"]


async def test_a_flush_on_the_loop_uses_twice_the_room(tmp_path: Path) -> None:
    config = quire.Config(
        transaction_log={"topic": [{"name": ".*", "message_type": "binary"}]},
        queue={"name": "Q", "message_type": "binary", "underlying_topic": "t"},
    )
    count = _ROOM * 3 // 2 // len(_DATA)
    async with quire.AsyncClient(
        f"memory:{tmp_path}", config=config, name="loader", receive_size_max=_ROOM
    ) as client:
        subscription = await client.subscribe("Q", max_backlog=count)
        for _ in range(count):
            await client.publish("t", _DATA)
        # The messages arrive before the answer of one of them, and then nothing is read without a
        # flush.
        for _ in range(3):
            await client.publish("other", b"x")
            await client.flush(timeout=PATIENCE)
        for _ in range(count):
            assert (await subscription.get(PATIENCE)).data == _DATA
