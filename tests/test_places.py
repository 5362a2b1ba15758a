"""Bookmark stores: a subscription resumes after the processed messages, in this client, the next
one, or after a kill."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import quire
from support.client_process import ClientProcess
from support.scripted_server import ScriptedServer
from support.server_process import ServerProcess
from support.waiting import PATIENCE, Deadline


@pytest.fixture
def server(tmp_path: Path) -> Iterator[quire.Server]:
    config = quire.Config(transport={"address": "127.0.0.1:0"}, data_directory=str(tmp_path / "data"))
    with quire.Server(config) as server:
        yield server


def publish(url: str, count: int, topic: str = "orders") -> None:
    with quire.Client(url, name="publisher") as client:
        first = client.persisted + 1
        for number in range(first, first + count):
            client.publish(topic, b"%d" % number)
        client.flush(PATIENCE)


def numbers(subscription: quire.Subscription, count: int) -> list[int]:
    return [int(subscription.get(PATIENCE).data) for _ in range(count)]


def most_recent(client: quire.Client) -> quire.Subscription:
    return client.subscribe("orders", bookmark=quire.MOST_RECENT, sub_id="mine")


@pytest.fixture
def file_server(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path / "data") as server:
        yield server


def test_what_counts_as_processed_does_not_come_again_after_a_kill(
    file_server: ServerProcess, tmp_path: Path
) -> None:
    store = str(tmp_path / "places")
    publish(file_server.url, 20)
    with ClientProcess(file_server.url, bookmark_store=store) as client:
        client.ask("subscribe", "orders", quire.MOST_RECENT, "mine")
        assert client.ask("take", 5) == [1, 2, 3, 4, 5]
        client.kill()
    # The fifth was handed out, and nothing was asked for after it.
    with ClientProcess(file_server.url, bookmark_store=store) as client:
        client.ask("subscribe", "orders", quire.MOST_RECENT, "mine")
        assert client.ask("take", 3) == [5, 6, 7]
        file_server.kill()
        file_server.start()
        assert client.ask("take", 13) == list(range(8, 21))
        client.kill()
    with quire.BookmarkStore(store) as places:
        assert places.sub_ids == ["mine"]
        with quire.Client(file_server.url, bookmark_store=places) as last:
            assert numbers(most_recent(last), 1) == [20]


def test_no_processed_message_comes_again_and_none_is_left_out_over_kills_at_any_moment(
    file_server: ServerProcess, tmp_path: Path
) -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    store = str(tmp_path / "places")
    seen = 0
    for _ in range(4):
        publish(file_server.url, 1500)
        with ClientProcess(file_server.url, bookmark_store=store) as client:
            client.ask("subscribe", "orders", quire.MOST_RECENT, "mine")
            client.tell("take_without_end")
            first = client.answer()
            # The last reported message may have been processed or not. The earlier ones were
            # processed.
            assert first in (seen, seen + 1) or seen == 0
            seen = first
            for _ in range(dice.randrange(400)):
                number = client.answer()
                assert number == seen + 1
                seen = number
            client.kill()
            # It continued until it was killed: messages of unread reports were processed, too.
            for number in client.rest():
                assert number == seen + 1
                seen = number


@pytest.mark.parametrize("in_file", [False, True])
def test_discards_out_of_order_are_remembered_one_by_one(
    server: quire.Server, tmp_path: Path, in_file: bool
) -> None:
    path = tmp_path / "places" if in_file else None
    publish(server.url, 10)
    store = quire.BookmarkStore(path)
    held: list[quire.Message] = []

    def keep_back(message: quire.Message) -> None:
        held.append(message)
        raise KeyError("kept back")

    with quire.Client(server.url, bookmark_store=store) as client:
        subscription = client.subscribe("orders", bookmark=quire.EPOCH, sub_id="mine", on_message=keep_back)
        deadline = Deadline()
        while len(held) < 10:
            assert deadline.left
        for index in (1, 3, 0, 6):
            held[index].discard()
        assert store.most_recent("mine") == held[1].bookmark
        assert subscription.most_recent == held[1].bookmark
    if in_file:
        store.close()
        store = quire.BookmarkStore(path)
    with quire.Client(server.url, bookmark_store=store) as client:
        resumed = most_recent(client)
        assert resumed.most_recent == held[1].bookmark
        assert numbers(resumed, 6) == [3, 5, 6, 8, 9, 10]
        publish(server.url, 1)
        assert numbers(resumed, 1) == [11]
        assert store.most_recent("mine") == held[9].bookmark


def test_another_bookmark_begins_anew_and_a_refused_subscription_changes_nothing(
    server: quire.Server,
) -> None:
    publish(server.url, 5)
    with quire.BookmarkStore() as store, quire.Client(server.url, bookmark_store=store) as client:
        subscription = most_recent(client)
        assert numbers(subscription, 4) == [1, 2, 3, 4]
        subscription.unsubscribe()
        with pytest.raises(quire.BadFilterError):
            client.subscribe("orders", filter="/a >", bookmark=quire.EPOCH, sub_id="mine")
        subscription = most_recent(client)
        assert numbers(subscription, 1) == [4]
        subscription.unsubscribe()
        client.subscribe("orders", bookmark=quire.EPOCH, sub_id="mine").unsubscribe()
        assert store.most_recent("mine") is None
        assert numbers(most_recent(client), 2) == [1, 2]


def test_a_replaced_bookmark_begins_anew(server: quire.Server) -> None:
    publish(server.url, 5)
    with quire.BookmarkStore() as store, quire.Client(server.url, bookmark_store=store) as client:
        subscription = most_recent(client)
        assert numbers(subscription, 5) == [1, 2, 3, 4, 5]
        subscription.replace(bookmark=quire.EPOCH)
        assert store.most_recent("mine") is None
        assert numbers(subscription, 3) == [1, 2, 3]
        subscription.unsubscribe()
        assert numbers(most_recent(client), 1) == [3]


def test_a_subscription_without_a_name_is_not_kept(server: quire.Server) -> None:
    publish(server.url, 2)
    with quire.BookmarkStore() as store, quire.Client(server.url, bookmark_store=store) as client:
        assert numbers(client.subscribe("orders", bookmark=quire.EPOCH), 2) == [1, 2]
        assert store.sub_ids == []
        with pytest.raises(quire.ConfigError, match="sub_id"):
            client.subscribe("orders", bookmark=quire.MOST_RECENT)


def test_a_store_is_shared_by_clients_forgets_and_closes(server: quire.Server, tmp_path: Path) -> None:
    publish(server.url, 3)
    with quire.BookmarkStore(tmp_path / "places") as store:
        with pytest.raises(quire.StoreLockedError):
            quire.Client(server.url, bookmark_store=tmp_path / "places")
        for expected in ([1, 2], [2, 3]):
            with quire.Client(server.url, bookmark_store=store) as client:
                assert numbers(most_recent(client), 2) == expected
        assert store.forget("mine")
        assert not store.forget("mine")
        with quire.Client(server.url, bookmark_store=store) as client:
            assert numbers(most_recent(client), 1) == [1]
            store.close()
            with pytest.raises(quire.ConfigError, match="closed"):
                client.subscribe("orders", bookmark=quire.EPOCH, sub_id="other")


def test_a_damaged_store_is_named_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "places"
    path.write_bytes(b"something else that somebody keeps")
    with ScriptedServer() as server, pytest.raises(quire.ConfigError, match="is not a store"):
        quire.Client(server.url, bookmark_store=path)
    assert path.read_bytes() == b"something else that somebody keeps"


async def test_the_asyncio_client_keeps_places_too(server: quire.Server, tmp_path: Path) -> None:
    publish(server.url, 4)
    for expected in ([1, 2], [2, 3]):
        async with quire.AsyncClient(server.url, bookmark_store=tmp_path / "places") as client:
            subscription = await client.subscribe("orders", bookmark=quire.MOST_RECENT, sub_id="mine")
            assert [int((await subscription.get(PATIENCE)).data) for _ in range(2)] == expected
