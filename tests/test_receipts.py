"""Receipts and batches: each followed message gets its outcome, on all three kinds of server and
with both clients."""

from __future__ import annotations

import asyncio
import json
import pickle
import threading
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import quire
from quire.client._options import ClientOptions
from support.faulty_server import FaultyServer
from support.scripted_server import ScriptedServer
from support.waiting import PATIENCE, wait_until
from support.ways_in import configured

#: A server refuses it, because of its control character.
#: A topic whose messages need a key, which these do not have.
REFUSED = "keyed"


@pytest.fixture
def url(way_in: str, tmp_path: Path) -> Iterator[str]:
    """All kinds of server, with the topic `REFUSED`."""
    topic = {"name": REFUSED, "message_type": "json"}
    with configured(way_in, tmp_path, sow_topic=topic) as place, quire.Client(**place, name="first"):
        # The other clients join the engine of this one.
        yield place["url"]


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer() as server:
        yield server


def test_a_receipt_says_when_its_message_is_persisted(url: str) -> None:
    with quire.Client(url) as client:
        receipt = client.publish_receipt("orders", {"n": 1})
        assert (receipt.sequence, receipt.topic) == (1, "orders")
        assert receipt.wait(PATIENCE) == 1
        assert (receipt.done(), receipt.result(), receipt.failures) == (True, 1, [])
        assert client.persisted == 1


def test_result_takes_no_timeout_and_the_error_names_the_public_class(url: str) -> None:
    with quire.Client(url) as client:
        receipt = client.publish_receipt("orders", {"n": 1})
        with pytest.raises(TypeError, match=r"^Receipt\.result\(\) got an unexpected keyword argument"):
            receipt.result(timeout=5)  # type: ignore[call-arg]
        receipt.wait(PATIENCE)


async def test_a_receipt_can_be_awaited(url: str) -> None:
    async with quire.AsyncClient(url) as client:
        receipts = [await client.publish_receipt("orders", {"n": n}) for n in range(100)]
        assert await asyncio.gather(*receipts) == list(range(1, 101))
        assert await receipts[0] == await receipts[0].wait(PATIENCE) == receipts[0].result() == 1
        assert (receipts[0].done(), receipts[0].topic, receipts[0].failures) == (True, "orders", [])


def test_a_refusal_reaches_its_receipt_and_not_the_flush(url: str) -> None:
    with quire.Client(url) as client:
        good, bad = client.publish_receipt("orders", b"1"), client.publish_receipt(REFUSED, b"2")
        asks: list[Callable[[], object]] = [lambda: bad.wait(PATIENCE), bad.result]
        for ask in asks:
            with pytest.raises(quire.BadMessageError, match="key") as caught:
                ask()
            assert (caught.value.sequence, caught.value.topic) == (2, REFUSED)
        assert bad.done()
        [failure] = bad.failures
        copy = pickle.loads(pickle.dumps(failure))
        assert (type(copy), copy.sequence, copy.topic) == (quire.BadMessageError, 2, REFUSED)
        assert good.wait(PATIENCE) == 1
        client.flush(PATIENCE)


async def test_a_refusal_is_raised_where_the_receipt_is_awaited(url: str) -> None:
    async with quire.AsyncClient(url) as client:
        good, bad = await client.publish_receipt("orders", b"1"), await client.publish_receipt(REFUSED, b"2")
        with pytest.raises(quire.BadMessageError) as caught:
            await bad
        assert (caught.value.sequence, caught.value.topic) == (2, REFUSED)
        assert await good == 1
        await client.flush(PATIENCE)


@pytest.mark.parametrize("is_refused_before", [False, True])
def test_flush_raises_the_refusal_of_a_receipt_that_was_dropped(
    server: ScriptedServer, is_refused_before: bool
) -> None:
    server.refused = b"bad"
    with quire.Client(server.url) as client:
        receipt = client.publish_receipt("orders", b"bad")
        if is_refused_before:
            wait_until(receipt.done)
        del receipt
        with pytest.raises(quire.NotEntitledError) as caught:
            client.flush(PATIENCE)
        assert caught.value.sequence == 1


def test_a_receipt_waits_over_a_lost_connection(server: ScriptedServer) -> None:
    server.persists = False
    with quire.Client(server.url, reconnect=quire.Reconnect(initial=0.01, jitter=0.0)) as client:
        receipt = client.publish_receipt("orders", b"1")
        with pytest.raises(
            TimeoutError, match=r"^publish 1 on 'orders': not persisted within 0 s: the server"
        ):
            receipt.wait(0)
        with pytest.raises(TimeoutError, match="it is not known yet"):
            receipt.result()
        assert (receipt.done(), receipt.failures) == (False, [])
        server.stop()
        wait_until(lambda: client.state != "connected")
        with pytest.raises(
            TimeoutError, match="not persisted within 0 s, because there is no connection: quire://"
        ):
            receipt.wait(0)
        server.persists = True
        server.start()
        assert receipt.wait(PATIENCE) == 1


def test_the_end_of_the_client_settles_its_receipts(server: ScriptedServer) -> None:
    server.persists = False
    called: list[quire.Receipt] = []
    client = quire.Client(server.url)
    receipt = client.publish_receipt("orders", b"1", on_persisted=called.append)
    batch = client.publish_many_receipt("orders", [b"2", b"3"])
    codes: list[str] = []

    def wait() -> None:
        try:
            receipt.wait(PATIENCE)
        except quire.DisconnectedError as error:
            codes.append(error.code)

    waiting = threading.Thread(target=wait)
    waiting.start()
    client.close(0)
    waiting.join()
    assert codes == ["closed"]
    for ask, what in (
        (receipt.wait, "publish 1 on 'orders'"),
        (batch.wait, "the batch of 2 publishes from 2 to 3"),
    ):
        with pytest.raises(
            quire.DisconnectedError, match=f"^it is not known whether {what} is persisted"
        ) as caught:
            ask()
        assert caught.value.code == "closed"
    assert called == [receipt]
    # Late answers of the server have no effect.
    server.persist()
    assert len(receipt.failures) == 1


async def test_the_end_of_an_asyncio_client_settles_its_receipts(server: ScriptedServer) -> None:
    server.persists = False
    called: list[quire.AsyncReceipt] = []
    client = quire.AsyncClient(server.url)
    receipt = await client.publish_receipt("orders", b"1")
    await client.publish("orders", b"2", on_persisted=called.append)
    waiting = asyncio.create_task(receipt.wait(PATIENCE))
    await asyncio.sleep(0)  # It waits.
    await client.close(0)
    with pytest.raises(quire.DisconnectedError) as caught:
        await waiting
    assert (caught.value.code, caught.value.sequence, caught.value.topic) == ("closed", 1, "orders")
    assert [receipt.sequence for receipt in called] == [2]


def test_a_receipt_raises_what_keeps_the_server_from_storing(tmp_path: Path) -> None:
    with (
        FaultyServer(tmp_path, transaction_log={"journal_size": "1MB"}) as server,
        quire.Client(server.url) as client,
    ):
        client.publish_receipt("orders", b"1").wait(PATIENCE)
        server.fail_writes()
        receipt = client.publish_receipt("orders", b"2")
        with pytest.raises(quire.StorageFullError):
            receipt.wait(PATIENCE)
        assert not receipt.done()
        server.heal()
        # The error is raised as long as there is no room.
        wait_until(lambda: receipt.done())
        assert receipt.wait() == 2


async def test_an_awaited_receipt_raises_what_keeps_the_server_from_storing(tmp_path: Path) -> None:
    with FaultyServer(tmp_path, transaction_log={"journal_size": "1MB"}) as server:
        async with quire.AsyncClient(server.url) as client:
            await client.publish_receipt("orders", b"1")
            server.fail_writes()
            receipt = await client.publish_receipt("orders", b"2")
            with pytest.raises(quire.StorageFullError):
                await receipt.wait(PATIENCE)
            assert not receipt.done()
            server.heal()


def test_a_repeat_of_a_sequence_is_followed_too(url: str) -> None:
    with quire.Client(url) as client:
        assert client.publish_receipt("orders", b"1", sequence=5).wait(PATIENCE) == 5
        assert client.publish_receipt("orders", b"1", sequence=5).wait(PATIENCE) == 5
        with pytest.raises(quire.BadMessageError):
            client.publish_receipt(REFUSED, b"1", sequence=5).wait(PATIENCE)
        with client.subscribe("orders", bookmark="[0:0|1|]") as replay:
            assert [message.sequence for message in replay] == [5]


def test_a_function_is_called_with_the_receipt(url: str, caplog: pytest.LogCaptureFixture) -> None:
    called: list[tuple[str, bool, list[str]]] = []

    def note(receipt: quire.Receipt | quire.BatchReceipt) -> None:
        name = threading.current_thread().name
        called.append(
            (name.rpartition("-")[0], receipt.done(), [failure.code for failure in receipt.failures])
        )
        raise ZeroDivisionError

    with quire.Client(url, name="loader") as client:
        assert client.publish("orders", b"1", on_persisted=note) == 1
        assert client.publish(REFUSED, b"2", on_persisted=note) == 2
        assert client.publish_many("orders", [b"3", b"4"], on_persisted=note) == [3, 4]
        wait_until(lambda: len(called) == 3)
        client.flush(PATIENCE)
    assert called == [
        ("quire-receipts", True, []),
        ("quire-receipts", True, ["bad_message"]),
        ("quire-receipts", True, []),
    ]
    assert caplog.text.count("ZeroDivisionError") >= 3


async def test_a_function_is_called_on_the_loop(url: str, caplog: pytest.LogCaptureFixture) -> None:
    tasks: list[object] = []
    done = asyncio.Event()

    async def wrong() -> None: ...

    def note(receipt: quire.AsyncReceipt) -> object:
        tasks.append(asyncio.current_task())
        if receipt.sequence == 2:
            done.set()
        return wrong()

    async with quire.AsyncClient(url) as client:
        await client.publish("orders", b"1", on_persisted=note)
        await client.publish("orders", b"2", on_persisted=note)
        await asyncio.wait_for(done.wait(), PATIENCE)
    assert len(tasks) == 2
    assert None not in tasks
    assert "it must be a plain function" in caplog.text


def test_what_cannot_be_called_is_refused(url: str) -> None:
    async def wrong(receipt: object) -> None: ...

    with quire.Client(url) as client:
        with pytest.raises(TypeError, match="is a coroutine function"):
            client.publish("orders", b"1", on_persisted=wrong)
        with pytest.raises(quire.ConfigError, match=r"^on_persisted: expected a function, got `int`"):
            client.publish("orders", b"1", on_persisted=1)  # type: ignore[arg-type]
        with pytest.raises(quire.ConfigError, match=r"^sequence: "):
            client.publish_receipt("orders", b"1", sequence=None)  # type: ignore[arg-type]
        with pytest.raises(quire.ConfigError, match=r"^topic: expected text"):
            client.publish_receipt(None, b"1")  # type: ignore[arg-type]
        assert client.publish("orders", b"1") == 1


def test_a_batch_is_published_in_order(url: str) -> None:
    with quire.Client(url) as client:
        assert client.publish_many("orders", ({"n": n} for n in range(3))) == [1, 2, 3]
        assert client.publish_many("orders", []) == []
        items = [
            {"n": 3},
            quire.Publish({"n": 4}, topic="trades", sequence=9, correlation_id="c"),
            b'{"n":5}',
        ]
        batch = client.publish_many_receipt("orders", items, correlation_id="b")
        assert batch.wait(PATIENCE) == batch.sequences == batch.result() == [4, 9, 10]
        with client.subscribe("^(orders|trades)$", bookmark="[0:0|1|]") as replay:
            found = [(m.topic, json.loads(m.data)["n"], m.sequence, m.correlation_id) for m in replay]
        assert found == [
            ("orders", 0, 1, None),
            ("orders", 1, 2, None),
            ("orders", 2, 3, None),
            ("orders", 3, 4, "b"),
            ("trades", 4, 9, "c"),
            ("orders", 5, 10, "b"),
        ]


async def test_an_asyncio_client_publishes_batches(url: str) -> None:
    async with quire.AsyncClient(url) as client:
        assert await client.publish_many("orders", [b"1", b"2"]) == [1, 2]
        batch = await client.publish_many_receipt(None, [quire.Publish(b"3", topic="orders")])
        assert await batch == batch.sequences == [3]


def test_the_refusals_of_a_batch_name_their_messages(url: str) -> None:
    with quire.Client(url) as client:
        items: list[Any] = [
            b"1",
            quire.Publish(b"2", topic=REFUSED),
            b"3",
            quire.Publish(b"4", topic=REFUSED),
        ]
        batch = client.publish_many_receipt("orders", items)
        with pytest.raises(quire.BadMessageError) as caught:
            batch.wait(PATIENCE)
        assert (caught.value.sequence, caught.value.topic) == (2, REFUSED)
        assert caught.value.__notes__ == ["1 more message of the batch failed: see `failures`"]
        assert [(failure.sequence, failure.topic) for failure in batch.failures] == [
            (2, REFUSED),
            (4, REFUSED),
        ]
        client.flush(PATIENCE)
        client.publish_many("orders", items)
        with pytest.raises(quire.BadMessageError) as caught:
            client.flush(PATIENCE)
        assert caught.value.sequence == 6


@pytest.mark.parametrize(
    ("topic", "items", "kind", "reason", "index"),
    [
        ("orders", "abc", quire.ConfigError, "^items: expected a list of messages, got `str`", None),
        ("orders", {"a": 1}, quire.ConfigError, "^items: expected a list of messages, got `dict`", None),
        (None, [b"1"], quire.ConfigError, "^topic: it is left out", 0),
        (5, [b"1"], quire.ConfigError, "^topic: expected text", None),
        ("orders", [b"1", object()], TypeError, "cannot become JSON", 1),
        ("orders", [b"1", quire.Publish(b"2", sequence=None)], quire.ConfigError, "^sequence: ", 1),
        (
            "orders",
            [b"1", quire.Publish(b"2", topic="")],
            quire.BadTopicError,
            "topic: it is empty; it must have 1 to 1024 bytes",
            1,
        ),
        (
            "orders",
            [b"1", quire.Publish(b"2", topic="a\nb")],
            quire.BadTopicError,
            r"topic: \"a\\nb\" has a control character at byte 1",
            1,
        ),
    ],
)
def test_of_a_batch_with_a_wrong_item_nothing_is_published(
    topic: Any, items: Any, kind: type[Exception], reason: str, index: int | None
) -> None:
    with quire.Client("memory:wrong-item") as client:
        with pytest.raises(kind, match=reason) as caught:
            client.publish_many(topic, items)
        if index is not None:
            assert caught.value.__notes__ == [f"item {index} of the batch; nothing was published"]
        with pytest.raises(quire.ConfigError, match=r"^items: the list is empty"):
            client.publish_many_receipt("orders", [])
        assert client.publish("orders", b"1") == 1


@pytest.mark.parametrize("options", [{"command_timeout": "10ms"}, {}])
def test_a_full_store_is_waited_for_a_bounded_time(server: ScriptedServer, options: dict[str, Any]) -> None:
    server.persists = False
    store = quire.PublishStore(size_max=400)
    timeout = None if options else "10ms"
    with quire.Client(server.url, publish_store=store, **options) as client:
        client.publish("orders", bytes(100))
        with pytest.raises(
            TimeoutError,
            match=r"^publishing to 'orders': the publish store had no room within 0.01 s, because 1 publish is not "
            "persisted; nothing was published$",
        ):
            client.publish("orders", b"2", timeout=timeout)
        with pytest.raises(TimeoutError, match=r"^publishing to 'orders': the publish store had no room"):
            client.publish_receipt("orders", b"2", timeout=timeout)
        with pytest.raises(TimeoutError, match=r"^publishing 2 messages: the publish store had no room"):
            client.publish_many("orders", [b"2", b"3"], timeout=timeout)
        waiting = threading.Thread(target=client.publish, args=("orders", b"2"), kwargs={"timeout": PATIENCE})
        waiting.start()
        server.persist()
        server.cut()  # Messages that it did not log are sent again.
        waiting.join()
        client.flush(PATIENCE)
    assert [record.data for record in server.log] == [bytes(100), b"2"]


async def test_an_asyncio_client_waits_for_a_full_store_for_a_bounded_time(server: ScriptedServer) -> None:
    server.persists = False
    store = quire.PublishStore(size_max=400)
    async with quire.AsyncClient(server.url, publish_store=store) as client:
        await client.publish("orders", bytes(100))
        with pytest.raises(
            TimeoutError, match=r"^publishing to 'orders': the publish store had no room within 0.01 s"
        ):
            await client.publish("orders", b"2", timeout="10ms")
        with pytest.raises(TimeoutError, match=r"^publishing 2 messages: the publish store had no room"):
            await client.publish_many("orders", [b"2", b"3"], timeout="10ms")
        waiting = asyncio.create_task(client.publish("orders", b"2", timeout=PATIENCE))
        await asyncio.sleep(0)  # It waits.
        server.persist()
        server.cut()  # Messages that it did not log are sent again.
        assert await waiting == 2
        await client.flush(PATIENCE)


def test_a_publish_that_waits_for_room_ends_with_its_client(server: ScriptedServer) -> None:
    server.persists = False
    client = quire.Client(server.url, publish_store=quire.PublishStore(size_max=400))
    client.publish("orders", bytes(100))
    errors: list[BaseException] = []

    def publish() -> None:
        try:
            client.publish("orders", b"2", timeout=PATIENCE)
        except quire.DisconnectedError as error:
            errors.append(error)

    waiting = threading.Thread(target=publish)
    waiting.start()
    client.close(0)
    waiting.join()
    assert [getattr(error, "code", None) for error in errors] == ["closed"]


def test_receipts_do_not_keep_a_client_that_the_program_drops(server: ScriptedServer) -> None:
    client = quire.Client(server.url)
    called: list[object] = []
    client.publish("orders", b"1", on_persisted=called.append)
    wait_until(lambda: len(called) == 1)
    gone = weakref.ref(client)
    with pytest.warns(ResourceWarning, match="was not closed"):
        del client
    assert gone() is None


def test_receipts_are_settled_while_the_messages_of_a_queue_are_not_taken() -> None:
    queue = {"name": "JOBS", "message_type": "json", "underlying_topic": "tasks"}
    with (
        quire.Client("memory:untaken", config=quire.Config(queue=queue), receive_size_max="10KB") as client,
        client.subscribe("JOBS", max_backlog=100) as jobs,
    ):
        client.publish_many_receipt("tasks", [json.dumps("x" * 200)] * 60).wait(PATIENCE)
        wait_until(lambda: jobs._core.outstanding_count > 30)
        assert client.publish_receipt("other", b"1").wait(PATIENCE) == 61


def test_waiting_for_a_sequence_ends_with_its_acknowledgement(url: str) -> None:
    with quire.Client(url) as client:
        client.wait_persisted(0, timeout=0)
        for n in range(10):
            client.wait_persisted(client.publish("orders", {"n": n}) or 0, PATIENCE)
            assert client.persisted == n + 1
        client.wait_persisted(3, timeout=0)
        client.wait_persisted(-990, timeout=0)


async def test_a_window_of_unpersisted_publishes_can_be_awaited(url: str) -> None:
    async with quire.AsyncClient(url) as client:
        for n in range(100):
            sequence = await client.publish("orders", {"n": n})
            assert sequence is not None
            await client.wait_persisted(sequence - 7, PATIENCE)
            assert client.persisted >= sequence - 7
        await client.wait_persisted(100, PATIENCE)
        assert client.persisted == 100


def test_waiting_for_a_sequence_does_not_wait_for_later_ones(server: ScriptedServer) -> None:
    with quire.Client(server.url) as client:
        client.publish("orders", b"1")
        client.wait_persisted(1, PATIENCE)
        server.persists = False
        client.publish("orders", b"2")
        client.wait_persisted(1, timeout=0)
        with pytest.raises(TimeoutError, match=r"^1 publish is not persisted yet: the server waits"):
            client.wait_persisted(2, timeout=0)


def test_a_timeout_says_what_the_server_may_wait_for(server: ScriptedServer) -> None:
    server.persists = False
    reason = "the server waits for its disk or for a sync destination (see `quire replication ls`)"
    with quire.Client(server.url) as client:
        receipt = client.publish_receipt("orders", b"1")
        for wait, text in (
            (partial(client.flush, 0), "1 publish is not persisted yet"),
            (partial(client.wait_persisted, 1, 0), "1 publish is not persisted yet"),
            (partial(receipt.wait, 0), "publish 1 on 'orders': not persisted within 0 s"),
        ):
            with pytest.raises(TimeoutError) as caught:
                wait()
            assert str(caught.value) == f"{text}: {reason}"
        server.persist()
    # An engine of the process sends to no other instance.
    assert ClientOptions("memory:").unpersisted_reason == ""


def test_the_note_about_other_refused_publishes_counts_them(server: ScriptedServer) -> None:
    server.refused = b"bad"
    notes = []
    with quire.Client(server.url) as client:
        for count in (1, 2, 3):
            for _ in range(count):
                client.publish("orders", b"bad")
            with pytest.raises(quire.NotEntitledError) as caught:
                client.flush(PATIENCE)
            notes += caught.value.__notes__
    assert notes == [
        "publish 1 was refused",
        "publish 2 was refused, and 1 more since the last flush",
        "publish 4 was refused, and 2 more since the last flush",
    ]


def test_waiting_for_a_sequence_continues_after_a_lost_connection(server: ScriptedServer) -> None:
    server.persists = False
    with quire.Client(server.url, reconnect=quire.Reconnect(initial=0.01, jitter=0.0)) as client:
        client.publish("orders", b"1")
        server.stop()
        wait_until(lambda: client.state != "connected")
        with pytest.raises(
            TimeoutError, match=r"^1 publish is not persisted yet, and there is no connection: quire://"
        ):
            client.wait_persisted(1, timeout=0)
        server.persists = True
        server.start()
        client.wait_persisted(1, PATIENCE)


def test_waiting_for_a_sequence_raises_what_the_server_refused(url: str) -> None:
    with quire.Client(url) as client:
        client.publish("orders", b"1")
        client.publish(REFUSED, b"2")
        with pytest.raises(quire.BadMessageError, match="key") as caught:
            client.wait_persisted(2, PATIENCE)
        assert caught.value.sequence == 2
        client.wait_persisted(2, timeout=0)
        client.flush(PATIENCE)


def test_waiting_for_a_sequence_that_was_never_published_is_refused(url: str) -> None:
    with quire.Client(url) as client:
        client.publish("orders", b"1")
        with pytest.raises(
            ValueError, match=r"^sequence: 2 was not published, the last sequence of this client is 1$"
        ):
            client.wait_persisted(2)
        with pytest.raises(quire.ConfigError, match=r"^sequence: expected a whole number"):
            client.wait_persisted(None)  # type: ignore[arg-type]


def test_waiting_for_a_sequence_ends_with_the_client(server: ScriptedServer) -> None:
    server.persists = False
    client = quire.Client(server.url)
    client.publish("orders", b"1")
    failures: list[BaseException] = []

    def wait() -> None:
        try:
            client.wait_persisted(1)
        except quire.DisconnectedError as failure:
            failures.append(failure)

    waiting = threading.Thread(target=wait)
    waiting.start()
    client.close()
    waiting.join(PATIENCE)
    assert [str(failure) for failure in failures] == ["the client is closed"]
