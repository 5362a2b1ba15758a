"""Stores in files: the files of a killed client, and their use by the next one.

Server and clients are processes of their own, and the kills are real.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import quire
from support.client_process import ClientProcess
from support.scripted_server import ScriptedServer
from support.server_process import ServerProcess
from support.waiting import PATIENCE


def replayed(url: str, topic: str, count: int) -> list[int]:
    """The numbers that the log holds, and that there are no more than `count`."""
    with quire.Client(url) as reader:
        subscription = reader.subscribe(topic, bookmark=quire.EPOCH)
        numbers = [int(subscription.get(PATIENCE).data) for _ in range(count)]
        assert subscription.completed.wait(PATIENCE)
        with pytest.raises(TimeoutError):
            subscription.get(0)
        return numbers


def test_what_a_killed_client_had_published_is_sent_by_the_next_one_and_never_doubled(tmp_path: Path) -> None:
    store = str(tmp_path / "publishes")
    with ServerProcess(tmp_path / "data") as server:
        with ClientProcess(server.url, name="loader", publish_store=store) as client:
            assert client.ask("publish", "orders", 1, 50) == 50
            assert client.ask("flush", PATIENCE) == 50
            assert client.ask("publish", "orders", 51, 50) == 100
            server.kill()
            assert client.ask("publish", "orders", 101, 100) == 200
            client.kill()
        server.start()
        with ClientProcess(server.url, name="loader", publish_store=store) as client:
            assert client.ask("publish", "orders", 201, 1) == 201
            assert client.ask("flush", PATIENCE) == 201
            client.kill()
        assert replayed(server.url, "orders", 201) == list(range(1, 202))
        # Everything is persisted: nothing is left to be sent.
        with quire.Client(server.url, name="loader", publish_store=store) as last:
            assert last.health().unpersisted == 0
            assert last.publish("orders", b"202") == 202
            last.flush(PATIENCE)
        assert replayed(server.url, "orders", 202) == list(range(1, 203))


def test_a_publish_that_returned_survives_a_kill_at_any_moment(tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    store = str(tmp_path / "publishes")
    with ServerProcess(tmp_path / "data") as server:
        published = 0
        for _ in range(4):
            with ClientProcess(server.url, name="loader", publish_store=store) as client:
                client.tell("publish_without_end", "orders", published + 1)
                for _ in range(dice.randrange(1, 400)):
                    published = client.answer()
                if dice.random() < 0.5:
                    server.kill()
                    server.start()
                client.kill()
            # A message that was published but not reported before the kill counts, too: the next
            # client continues after it.
            with quire.Client(server.url, name="loader", publish_store=store) as next_client:
                next_client.flush(PATIENCE)
                assert next_client.persisted >= published
                published = next_client.persisted
        assert replayed(server.url, "orders", published) == list(range(1, published + 1))


def test_a_file_needs_a_name_and_has_one_owner(tmp_path: Path) -> None:
    store = tmp_path / "publishes"
    with ScriptedServer() as server:
        with pytest.raises(quire.ConfigError, match="requires `name`"):
            quire.Client(server.url, publish_store=store)
        first = quire.Client(server.url, name="one", publish_store=quire.PublishStore(store, size_max="1MB"))
        with first, pytest.raises(quire.StoreLockedError):
            quire.Client(server.url, name="one", publish_store=store)
        with pytest.raises(quire.ConfigError, match="belongs to the client"):
            quire.Client(server.url, name="two", publish_store=store)


def test_a_damaged_store_is_named_and_left_alone(tmp_path: Path) -> None:
    store = tmp_path / "publishes"
    with ScriptedServer() as server:
        client = quire.Client(server.url, name="one", publish_store=store)
        server.stop()
        for number in range(3):
            client.publish("orders", b"%d" % number)
        client.close(0)
        server.start()
        damaged = bytearray(store.read_bytes())
        damaged[4096 + 40] ^= 1
        store.write_bytes(damaged)
        with pytest.raises(quire.StoreCorruptError, match="damaged at byte 4096"):
            quire.Client(server.url, name="one", publish_store=store)
        assert store.read_bytes() == damaged


def test_a_full_file_makes_publish_wait_and_a_message_above_it_is_refused(tmp_path: Path) -> None:
    store = quire.PublishStore(tmp_path / "publishes", size_max="64KB")
    with ScriptedServer() as server:
        with quire.Client(server.url, name="one", publish_store=store) as client:
            for number in range(1, 301):
                client.publish("orders", b"%d" % number + b" " * 1000)
            client.flush(PATIENCE)
            with pytest.raises(quire.MessageTooLargeError, match="publish store"):
                client.publish("orders", b" " * 65536)
        assert [int(record.data) for record in server.log] == list(range(1, 301))


async def test_the_asyncio_client_keeps_a_store_too(tmp_path: Path) -> None:
    store = tmp_path / "publishes"
    with ScriptedServer() as server:
        client = quire.AsyncClient(server.url, name="one", publish_store=store)
        await client.publish("orders", b"1")
        await client.flush(PATIENCE)
        server.stop()
        await client.publish("orders", b"2")
        await client.close(0)
        server.start()
        async with quire.AsyncClient(server.url, name="one", publish_store=store) as again:
            await again.flush(PATIENCE)
        assert [record.data for record in server.log] == [b"1", b"2"]
