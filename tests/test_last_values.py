"""Last-value topics for programs: queries, subscriptions, deletes and keys, on all three kinds of
server.

docs/last-values.md has the rules. `test_tables.py` has the tests of `Table`.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest
import quire
from support.last_values import LOG, ORDERS, SETTINGS, changes_of, ids, order, publish, received
from support.server_process import ServerProcess
from support.waiting import PATIENCE
from support.ways_in import configured


@pytest.fixture
def place(way_in: str, tmp_path: Path) -> Iterator[dict[str, Any]]:
    with configured(way_in, tmp_path, **SETTINGS) as place:
        yield place


@pytest.fixture
def client(place: dict[str, Any]) -> Iterator[quire.Client]:
    with quire.Client(**place) as client:
        yield client


def test_a_query_returns_the_newest_message_of_each_key(client: quire.Client) -> None:
    publish(client, order(1), order(2), order(1, qty=7))
    records = list(client.sow("orders"))
    assert {record.json()["id"]: record.json()["qty"] for record in records} == {1: 7, 2: 1}
    assert {record.command for record in records} == {"sow"}
    assert len({record.sow_key for record in records}) == 2
    assert all(record.sow_key is not None and len(record.sow_key) == 32 for record in records)
    assert {record.reason for record in records} == {None}


def test_a_query_filters_sorts_pages_and_selects(client: quire.Client) -> None:
    publish(client, *(order(number, qty=number % 3) for number in range(1, 10)))
    assert sorted(ids(client.sow("orders", filter="/qty = 0"))) == [3, 6, 9]
    assert ids(client.sow("orders", order_by="/qty DESC, /id", top_n=4)) == [2, 5, 8, 1]
    with client.sow("orders", order_by="/qty DESC, /id", top_n=2, skip_n=3, filter="/id < 9") as query:
        assert query.total is None or query.total == 8
        assert ids(query) == [1, 4]
        assert query.total == 8
    keys = [record.sow_key for record in client.sow("orders", filter="/id IN (2, 4)")]
    assert sorted(ids(client.sow("orders", keys=[key for key in keys if key]))) == [2, 4]
    assert ids(client.sow("orders", keys=[key for key in keys if key], filter="/id = 4")) == [4]
    assert list(client.sow("orders", keys=[])) == []
    (one,) = client.sow("orders", filter="/id = 5", select="-/,+/qty")
    assert one.json() == {"qty": 2}


def test_a_pattern_queries_every_topic_that_it_matches(client: quire.Client) -> None:
    publish(client, order(1))
    publish(client, order(2), topic="other/orders")
    found = {(record.topic, record.json()["id"]) for record in client.sow("orders$")}
    assert found == {("orders", 1), ("other/orders", 2)}
    assert list(client.sow("^nothing/")) == []


def test_publishers_supply_keys(client: quire.Client) -> None:
    client.publish("prices", {"price": 1}, sow_key="IBM")
    client.publish("prices", {"price": 2}, sow_key="IBM")
    client.publish_receipt("prices", {"price": 3}, sow_key="A/b+c=_-1").wait(PATIENCE)
    client.publish_many("prices", [quire.Publish({"price": 4}, sow_key="HPQ")])
    records = {record.sow_key: record.json()["price"] for record in client.sow("prices")}
    assert records == {"IBM": 2, "A/b+c=_-1": 3, "HPQ": 4}
    subscription = client.subscribe("prices")
    client.publish("prices", {"price": 5}, sow_key="IBM")
    message = subscription.get(timeout=PATIENCE)
    assert (message.command, message.sow_key) == ("publish", "IBM")


@pytest.mark.parametrize("key", [None, "", "has space", "ä", "x" * 256, "a.b"])
def test_a_missing_or_bad_key_is_refused(client: quire.Client, key: str | None) -> None:
    def publish_and_flush() -> None:
        # A key that no frame can carry is refused by this call, and another one by the next.
        client.publish("prices", {"price": 1}, sow_key=key)
        client.flush(timeout=PATIENCE)

    with pytest.raises(quire.BadMessageError):
        publish_and_flush()
    with pytest.raises(quire.BadMessageError):
        client.publish_receipt("prices", {"price": 1}, sow_key=key).wait(PATIENCE)
    assert list(client.sow("prices")) == []


def test_a_message_that_cannot_be_parsed_has_no_key(client: quire.Client) -> None:
    client.publish("orders", b"{not json")
    with pytest.raises(quire.BadMessageError):
        client.flush(timeout=PATIENCE)


def test_a_key_on_a_topic_without_last_values_is_refused(client: quire.Client) -> None:
    client.publish("tasks", {"n": 1}, sow_key="a")
    with pytest.raises(quire.NotLastValueError):
        client.flush(timeout=PATIENCE)


def test_a_topic_without_last_values_is_an_error(client: quire.Client) -> None:
    for call in (
        lambda: client.sow("elsewhere"),
        lambda: client.sow_delete("elsewhere", keys="a"),
        lambda: client.table("elsewhere"),
        lambda: client.table("JOBS"),
    ):
        with pytest.raises(quire.NotLastValueError):
            call()


def test_mistakes_are_errors_that_name_the_argument(client: quire.Client) -> None:
    with pytest.raises(quire.BadFilterError):
        client.sow("orders", filter="/a = ")
    with pytest.raises(quire.QuireError):
        client.sow("orders", order_by="price DESC")
    for call, key in (
        (lambda: client.sow("orders", skip_n=1), "skip_n"),
        (lambda: client.sow("orders", keys=5), "keys"),  # type: ignore[arg-type]
        (lambda: client.sow("orders", keys=[1]), "keys"),  # type: ignore[list-item]
        (lambda: client.sow("orders", top_n=-1), "top_n"),
        (lambda: client.sow("orders", batch_size=0), "batch_size"),
        (lambda: client.sow("orders", batch_size=10_001), "batch_size"),
        (lambda: client.sow_and_subscribe("orders", oof=1), "oof"),  # type: ignore[arg-type]
        (lambda: client.table("orders", key=[]), "key"),
        (lambda: client.sow("orders", grouping=["/id"]), "grouping"),
        (lambda: client.sow_and_subscribe("orders", grouping="/id"), "grouping"),
        (lambda: client.table("orders", grouping="/id"), "grouping"),
        (lambda: client.sow_and_subscribe("orders", rate=5), "rate"),
        (lambda: client.sow_and_subscribe("kept", bookmark="now", live=True, paused=True), "paused"),
        (lambda: client.publish("orders", {}, sow_key=1), "sow_key"),  # type: ignore[arg-type]
    ):
        with pytest.raises(quire.ConfigError) as raised:
            call()
        assert raised.value.key == key


def test_a_subscription_has_the_records_and_then_every_change(client: quire.Client) -> None:
    publish(client, order(1), order(2))
    with client.sow_and_subscribe("orders") as orders:
        publish(client, order(3), order(1, qty=5))
        assert sorted(received(orders, 2)) == [("sow", None, 1), ("sow", None, 2)]
        assert received(orders, 2) == [("publish", None, 3), ("publish", None, 1)]
        assert orders.snapshot.wait(PATIENCE)
        assert orders.snapshot.is_set()


def test_snapshot_is_set_when_the_last_record_has_arrived(client: quire.Client) -> None:
    with client.sow_and_subscribe("orders") as orders:
        assert orders.snapshot.wait(PATIENCE), "of an empty topic, too"
    publish(client, order(1))
    got: list[quire.Message] = []
    with client.sow_and_subscribe("orders", on_message=got.append) as orders:
        assert orders.snapshot.wait(PATIENCE)
        assert ids(got) == [1], "the handler has returned from it"
        publish(client, order(2))
        assert orders.snapshot.is_set(), "it stays set"


def test_oof_tells_what_leaves_the_view(client: quire.Client) -> None:
    publish(client, order(1, qty=60), order(2, qty=10))
    with client.sow_and_subscribe("orders", filter="/qty > 50", oof=True) as orders:
        assert received(orders, 1) == [("sow", None, 1)]
        publish(client, order(2, qty=70), order(1, qty=5))
        assert received(orders, 2) == [("publish", None, 2), ("oof", "match", 1)]
        assert client.sow_delete("orders", filter="/id = 1") == 1, "it is in no view"
        assert client.sow_delete("orders", filter="/id = 2") == 1
        assert received(orders, 1) == [("oof", "deleted", 2)]
        client.publish("orders", order(3, qty=99), expiration=1)
        assert received(orders, 2) == [("publish", None, 3), ("oof", "expired", 3)]


def test_without_oof_only_records_and_changes_come(client: quire.Client) -> None:
    publish(client, order(1))
    with client.sow_and_subscribe("orders") as orders:
        client.sow_delete("orders", filter="/id = 1")
        publish(client, order(2))
        assert received(orders, 2) == [("sow", None, 1), ("publish", None, 2)]


def test_a_subscription_to_another_topic_is_an_ordinary_one(client: quire.Client) -> None:
    with client.sow_and_subscribe("elsewhere", oof=True) as subscription:
        assert subscription.snapshot.wait(PATIENCE)
        client.publish("elsewhere", {"id": 1})
        message = subscription.get(timeout=PATIENCE)
        assert (message.command, message.sow_key) == ("publish", None)


def test_a_delete_removes_the_records_that_all_selectors_name(client: quire.Client) -> None:
    publish(client, *(order(number, qty=number) for number in range(1, 7)))
    with pytest.raises(ValueError, match="keys, filter, data or bookmarks"):
        client.sow_delete("orders")
    keys = {record.json()["id"]: record.sow_key or "" for record in client.sow("orders")}
    assert client.sow_delete("orders", keys=[keys[1], keys[2]], filter="/qty = 2") == 1
    assert client.sow_delete("orders", keys=keys[1]) == 1
    assert client.sow_delete("orders", data={"id": 3}) == 1
    assert client.sow_delete("orders", data={"id": 3}) == 0
    assert client.sow_delete("orders", filter="/qty > 4") == 2
    client.flush(timeout=PATIENCE)
    assert ids(client.sow("orders")) == [4]
    assert client.sow_delete("^no/such/", filter="1 = 1") == 0


def test_a_delete_by_bookmark_acknowledges_messages_of_a_queue(client: quire.Client) -> None:
    client.publish("tasks", {"n": 1})
    client.flush(timeout=PATIENCE)
    with client.subscribe("JOBS", max_backlog=5) as jobs:
        message = jobs.get(timeout=PATIENCE)
        assert client.sow_delete("JOBS", bookmarks=message) == 1
        assert client.sow_delete("JOBS", bookmarks=message) == 0
        client.flush(timeout=PATIENCE)
    assert list(client.sow("JOBS")) == []


def test_a_delete_by_bookmark_returns_how_many_messages_it_acknowledged(client: quire.Client) -> None:
    for n in range(3):
        client.publish("tasks", {"n": n})
    client.flush(timeout=PATIENCE)
    first, second, third = (message.bookmark or "" for message in client.sow("JOBS"))
    assert client.sow_delete("JOBS", bookmarks=[first, second, first, "4711|17|"]) == 2
    assert client.sow_delete("JOBS", bookmarks=[first, second]) == 0
    client.ack("JOBS", third)
    assert client.sow_delete("JOBS", bookmarks=third) == 0


def test_a_delete_by_filter_acknowledges_messages_of_a_queue(client: quire.Client) -> None:
    for n in range(4):
        client.publish("tasks", {"n": n})
    client.flush(timeout=PATIENCE)
    assert client.sow_delete("JOBS", filter="/n < 2") == 2
    assert client.sow_delete("JOBS", filter="/n < 2") == 0
    with pytest.raises(quire.NotLastValueError):
        client.sow_delete("JOBS", filter="/n = 2", keys="2")
    with pytest.raises(quire.NotLastValueError):
        client.sow_delete("elsewhere", filter="/n = 2")
    with pytest.raises(quire.BadFilterError):
        client.sow_delete("JOBS", filter="/n <")
    client.flush(timeout=PATIENCE)
    assert [message.json()["n"] for message in client.sow("JOBS")] == [2, 3]
    assert client.sow_delete("JOBS", filter="1 = 1") == 2


async def test_a_delete_by_bookmark_of_the_asyncio_client_returns_how_many_it_acknowledged(
    place: dict[str, Any],
) -> None:
    async with quire.AsyncClient(**place) as client:
        await client.publish("tasks", {"n": 1})
        await client.flush(timeout=PATIENCE)
        named = [message.bookmark or "" async for message in client.sow("JOBS")]
        assert await client.sow_delete("JOBS", bookmarks=named) == 1
        assert await client.sow_delete("JOBS", bookmarks=named) == 0


def test_a_query_of_a_queue_is_sorted_by_several_fields(client: quire.Client) -> None:
    for n, side in enumerate(["sell", "buy", "buy"]):
        client.publish("tasks", {"n": n, "side": side})
    client.flush(timeout=PATIENCE)
    found = client.sow("JOBS", order_by="/side, /n DESC", top_n=2)
    assert [message.json()["n"] for message in found] == [2, 1]
    with pytest.raises(
        quire.BadFilterError, match="order_by: expected ASC, DESC, TEXT, a comma or the end"
    ) as refused:
        client.sow("JOBS", order_by="/side, /n DOWN")
    assert refused.value.column == 11


def test_a_query_whose_iteration_was_left_has_the_records_that_were_not_taken(client: quire.Client) -> None:
    publish(client, *(order(number) for number in range(8)))
    query = client.sow("orders", order_by="/id")
    for record in query:
        if record.json()["id"] == 1:
            break
    assert next(query).json()["id"] == 2
    assert next(iter(query)).json()["id"] == 3
    pytest.importorskip("pyarrow")
    assert query.to_arrow(["/id"]).to_pydict() == {"id": [4, 5, 6, 7]}
    assert list(query) == []
    query = client.sow("orders")
    ids = []
    for record in query:
        ids.append(record.json()["id"])
        query.close()
    assert len(ids) == 1


def test_deletes_have_sequences_and_are_persisted(client: quire.Client) -> None:
    publish(client, order(1))
    assert client.sow_delete("orders", data=order(1)) == 1
    client.flush(timeout=PATIENCE)
    assert client.persisted == 2
    assert client.publish("orders", order(2)) == 3


class Interrupted(Exception):
    """Raised by the handler of a signal, as `KeyboardInterrupt` is by that of Ctrl-C."""


def test_the_exception_of_a_signal_handler_costs_a_query_one_record_at_most(client: quire.Client) -> None:
    publish(client, *(order(number) for number in range(5)))
    query = client.sow("orders", order_by="/id")

    def interrupt(_frame: Any, event: str, called: Any) -> None:
        # The interpreter runs signal handlers when a call into the core has returned.
        if event == "c_return" and getattr(called, "__self__", None) is query._core:
            sys.setprofile(None)
            raise Interrupted

    sys.setprofile(interrupt)
    try:
        with pytest.raises(Interrupted):
            next(query)
    finally:
        sys.setprofile(None)
    assert next(query).json()["id"] == 1
    assert ids(query) == [2, 3, 4]


def test_records_are_not_lost_when_their_frame_cannot_be_made(client: quire.Client) -> None:
    class Interrupting:
        """A core that a signal handler interrupts when it has moved the records."""

        def __init__(self, core: Any) -> None:
            self._core = core

        def collect(self, *arguments: Any) -> Any:
            self._core.collect(*arguments)
            raise Interrupted

    publish(client, *(order(number) for number in range(5)))
    query = client.sow("orders", order_by="/id")
    assert next(query).json()["id"] == 0
    with pytest.raises(quire.ConfigError):
        query.to_arrow(["/a["])
    assert query.to_arrow(["/id"])["id"].to_pylist() == [1, 2, 3, 4]
    assert query.to_arrow(["/id"]).num_rows == 0
    query = client.sow("orders", order_by="/id")
    core: Any = query._core
    query._core = cast("Any", Interrupting(core))
    with pytest.raises(Interrupted):
        query.to_arrow(["/id"])
    query._core = core
    assert query.to_arrow(["/id"])["id"].to_pylist() == [0, 1, 2, 3, 4]


async def test_records_of_the_asyncio_client_are_not_lost_when_their_frame_cannot_be_made(
    place: dict[str, Any],
) -> None:
    async with quire.AsyncClient(**place) as client:
        for number in range(5):
            await client.publish("orders", order(number))
        await client.flush()
        query = client.sow("orders", order_by="/id")
        assert (await anext(query)).json()["id"] == 0
        with pytest.raises(quire.ConfigError):
            await query.to_arrow(["/a["])
        assert (await query.to_arrow(["/id"]))["id"].to_pylist() == [1, 2, 3, 4]
        assert (await query.to_arrow(["/id"])).num_rows == 0


@pytest.mark.parametrize("kind", ["pandas", "polars"])
async def test_records_are_not_lost_when_the_conversion_of_their_table_is_interrupted(
    place: dict[str, Any], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    def interrupted(_table: Any) -> Any:
        raise Interrupted

    with quire.Client(**place) as client:
        publish(client, order(1), order(2))
        client.flush()
        query = client.sow("orders", order_by="/id")
        with monkeypatch.context() as during:
            during.setattr(f"quire.client._query.{kind}_frame", interrupted)
            with pytest.raises(Interrupted):
                getattr(query, f"to_{kind}")()
        assert len(getattr(query, f"to_{kind}")()) == 2
        assert query.to_arrow().num_rows == 0
    async with quire.AsyncClient(**place) as later:
        for number in (1, 2):
            await later.publish("orders", order(number))
        await later.flush()
        answers = later.sow("orders", order_by="/id")
        with monkeypatch.context() as during:
            during.setattr(f"quire.client._query.{kind}_frame", interrupted)
            with pytest.raises(Interrupted):
                await getattr(answers, f"to_{kind}")()
        assert len(await getattr(answers, f"to_{kind}")()) == 2
        assert (await answers.to_arrow()).num_rows == 0


def test_records_are_not_lost_when_a_library_for_their_frame_is_missing(
    client: quire.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(client, order(1))
    query = client.sow("orders")
    for name, method in (("pandas", query.to_pandas), ("polars", query.to_polars)):
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(quire.ConfigError, match=f"{name} is not installed"):
            method()
    assert query.to_arrow().num_rows == 1


def test_a_query_that_is_closed_or_dropped_ends(client: quire.Client) -> None:
    publish(client, *(order(number) for number in range(3000)))
    with client.sow("orders") as query:
        next(query)
    assert list(query) == []
    query = client.sow("orders")
    next(query)
    del query
    assert len(list(client.sow("orders", batch_size=10))) == 3000


def test_a_program_that_is_slow_misses_no_record_and_no_change(place: dict[str, Any]) -> None:
    with quire.Client(**place) as writer, quire.Client(**place, receive_size_max="64KB") as client:
        for number in range(2000):
            writer.publish("orders", order(number, text="x" * 300))
        writer.flush(timeout=PATIENCE)
        query = client.sow("orders")
        assert sorted(ids(query)) == list(range(2000))
        with client.sow_and_subscribe("orders") as orders:
            for number in range(1000):
                writer.publish("orders", order(number, qty=2, text="x" * 300))
            writer.flush(timeout=PATIENCE)
            assert sorted(received(orders, 2000)) == sorted(("sow", None, number) for number in range(2000))
            assert received(orders, 1000) == [("publish", None, number) for number in range(1000)]
            assert not orders._health(None, 0).missed


def test_a_query_with_a_bookmark_returns_an_earlier_state(client: quire.Client) -> None:
    subscription = client.subscribe("kept")
    publish(client, order(1, qty=1), order(2, qty=2), order(1, qty=3), topic="kept")
    messages = [subscription.get(timeout=PATIENCE) for _ in range(3)]
    client.sow_delete("kept", filter="/id = 2")
    client.flush(timeout=PATIENCE)

    def state(bookmark: Any, **options: Any) -> dict[int, int]:
        records = client.sow("kept", bookmark=bookmark, **options)
        return {record.json()["id"]: record.json()["qty"] for record in records}

    assert state(messages[0]) == {1: 1}
    assert state(messages[1].bookmark) == {1: 1, 2: 2}
    assert state(messages[2].bookmark, order_by="/qty", top_n=1) == {2: 2}
    # The time of a message has nanoseconds, and its `timestamp` microseconds.
    assert state(messages[2].timestamp).items() >= {1: 3}.items()
    assert state("now") == state(datetime.now(UTC) + timedelta(days=1)) == {1: 3}
    assert state(messages[2].timestamp - timedelta(minutes=1)) == {}
    for wrong in (datetime.now(UTC) - timedelta(days=2), "yesterday", "77|1|", "1|1|,1|2|"):
        with pytest.raises(quire.BadBookmarkError):
            client.sow("kept", bookmark=wrong)
    publish(client, order(5))
    assert ids(client.sow("orders", bookmark="epoch")) == [5]


def test_a_subscription_with_a_bookmark_begins_with_an_earlier_state(tmp_path: Path) -> None:
    with (
        ServerProcess(tmp_path / "server", **SETTINGS) as server,
        quire.Client(server.url, name="reader") as reader,
        quire.Client(server.url, name="writer") as writer,
    ):
        publish(writer, order(1), order(2), order(1, qty=2), order(3), topic="kept")
        writer.flush(timeout=PATIENCE)
        with reader.subscribe("kept", bookmark="epoch") as log:
            second = [log.get(timeout=PATIENCE) for _ in range(2)][1]
        kept = reader.sow_and_subscribe("kept", bookmark=second, order_by="/id")
        expected = [("sow", None, 1), ("sow", None, 2), ("publish", None, 1), ("publish", None, 3)]
        assert received(kept, 4) == expected
        assert kept.snapshot.wait(PATIENCE)
        server.kill()
        publish(writer, order(4), topic="kept")
        server.start()
        assert received(kept, 1) == [("publish", None, 4)]
        with pytest.raises(quire.ConfigError, match="oof"):
            reader.sow_and_subscribe("kept", bookmark="now", oof=True)
        with pytest.raises(quire.ConfigError, match="keeps no history"):
            reader.sow_and_subscribe("orders", bookmark="now")
        with pytest.raises(quire.BadBookmarkError):
            reader.sow_and_subscribe("kept", bookmark=datetime.now(UTC) - timedelta(days=2))


def test_the_messages_after_an_earlier_state_are_paced_and_paused(client: quire.Client) -> None:
    publish(client, order(1), order(2), topic="kept")
    client.flush(timeout=PATIENCE)
    paused = client.sow_and_subscribe("kept", bookmark="now", order_by="/id", paused=True, completed=True)
    assert ids([paused.get(timeout=PATIENCE) for _ in range(2)]) == [1, 2]
    assert paused.completed.wait(PATIENCE)
    paced = client.sow_and_subscribe("kept", bookmark="now", top_n=1, rate="0.001")
    assert received(paced, 1) == [("sow", None, 1)]
    live = client.sow_and_subscribe("kept", bookmark="now", filter="/id > 2", live=True)
    publish(client, order(3), order(4), topic="kept")
    assert received(live, 2) == [("publish", None, 3), ("publish", None, 4)]
    assert received(paced, 1) == [("publish", None, 3)]
    for waiting in (paused, paced):
        with pytest.raises(TimeoutError):
            waiting.get(timeout=0.05)
    paused.resume()
    assert received(paused, 2) == [("publish", None, 3), ("publish", None, 4)]


def test_keys_select_the_records_of_an_earlier_state_and_the_messages_after_it(tmp_path: Path) -> None:
    with (
        ServerProcess(tmp_path / "server", **SETTINGS) as server,
        quire.Client(server.url, name="both") as client,
    ):
        publish(client, order(1), order(2), order(3), topic="kept")
        records = client.sow("kept", filter="/id <= 2")
        keys = [record.sow_key or "" for record in records]
        client.flush(timeout=PATIENCE)
        kept = client.sow_and_subscribe("kept", bookmark="now", keys=keys, filter="/qty < 5", order_by="/id")
        assert received(kept, 2) == [("sow", None, 1), ("sow", None, 2)]
        publish(client, order(3), order(1, qty=5), order(2, qty=2), topic="kept")
        assert received(kept, 1) == [("publish", None, 2)]
        client.flush(timeout=PATIENCE)
        server.kill()
        server.start()
        publish(client, order(3), order(1), topic="kept")
        assert received(kept, 1) == [("publish", None, 1)]


def test_a_page_keeps_its_part_of_the_order(client: quire.Client) -> None:
    publish(client, *(order(number, qty=number) for number in range(1, 6)))
    page: dict[str, Any] = {"order_by": "/qty", "top_n": 2, "skip_n": 1, "oof": True}
    with client.sow_and_subscribe("orders", **page) as orders:
        assert received(orders, 2) == [("sow", None, 2), ("sow", None, 3)]
        publish(client, order(9, qty=2.5))
        assert received(orders, 2) == [("oof", "match", 3), ("publish", None, 9)]
        publish(client, order(5, qty=50), order(9, qty=60))
        assert received(orders, 2) == [("oof", "match", 9), ("publish", None, 3)]
        client.sow_delete("orders", filter="/id = 2")
        assert received(orders, 2) == [("oof", "deleted", 2), ("publish", None, 4)]
    with pytest.raises(quire.ConfigError, match="skip_n"):
        client.sow_and_subscribe("orders", skip_n=1)
    with pytest.raises(quire.ConfigError, match="skip_n"):
        client.sow_and_subscribe("orders", skip_n=-1, top_n=1)
    with pytest.raises(quire.ConfigError, match="at most 65536 records"):
        client.sow_and_subscribe("orders", top_n=65_537, skip_n=0)
    with pytest.raises(quire.NotLastValueError, match="skip_n"):
        client.sow_and_subscribe("plain", top_n=1, skip_n=0)


def test_a_page_is_the_same_part_of_the_order_after_a_reconnect(tmp_path: Path) -> None:
    with (
        ServerProcess(tmp_path / "server", **SETTINGS) as server,
        quire.Client(server.url, name="reader") as reader,
        quire.Client(server.url, name="writer") as writer,
    ):
        publish(writer, *(order(number, qty=number) for number in range(1, 6)))
        writer.flush(timeout=PATIENCE)
        page = reader.sow_and_subscribe("orders", order_by="/qty", top_n=2, skip_n=1, oof=True)
        assert received(page, 2) == [("sow", None, 2), ("sow", None, 3)]
        server.kill()
        publish(writer, order(9, qty=0))
        server.start()
        writer.flush(timeout=PATIENCE)
        # The record 1 came into the page, and the record 3 left it.
        news = received(page, 2)
        assert sorted(news, key=lambda one: one[0]) == [("oof", "match", 3), ("publish", None, 1)]
        publish(writer, order(4, qty=44), order(1, qty=1.5))
        assert received(page, 1) == [("publish", None, 1)]


def test_changes_of_records_are_conflated(client: quire.Client) -> None:
    publish(client, order(1))
    with client.sow_and_subscribe("orders", oof=True, filter="/qty > 0", conflation="50ms") as orders:
        assert received(orders, 1) == [("sow", None, 1)]
        # One batch frame arrives in one turn, so all of it is within one interval.
        client.publish_many("orders", [order(1, qty=qty) for qty in (5, 6, 0)] + [order(2, qty=3)])
        assert received(orders, 2) == [("oof", "match", 1), ("publish", None, 2)]
    with pytest.raises(quire.ConfigError, match="conflation_key"):
        client.sow_and_subscribe("orders", conflation="1s", conflation_key="/qty", oof=True)
    with pytest.raises(quire.ConfigError, match="conflation_key"):
        client.sow_and_subscribe("orders", conflation_key="/qty")
    with pytest.raises(quire.ConfigError, match="conflation: it requires conflation_key"):
        client.subscribe("plain", conflation="1s")
    with client.subscribe("orders", conflation="1ms") as orders:
        publish(client, order(1, qty=5))
        assert received(orders, 1) == [("publish", None, 1)]


def test_a_delete_without_a_connection_is_kept_and_applied_once(tmp_path: Path) -> None:
    store = tmp_path / "writer.store"
    options: dict[str, Any] = {"name": "writer", "publish_store": store}
    with ServerProcess(tmp_path / "server", **SETTINGS) as server:
        with quire.Client(server.url, **options) as client:
            publish(client, order(1), order(2))
            client.flush(timeout=PATIENCE)
        server.kill()
        offline = quire.Client(server.url, **options, connect="background")
        with offline, pytest.raises(TimeoutError, match="deleting records of 'orders': no answer within"):
            offline.sow_delete("orders", filter="/id = 1", timeout=0)
        server.start()
        with quire.Client(server.url, **options) as client:
            client.flush(timeout=PATIENCE)
            assert ids(client.sow("orders")) == [2]
            assert client.persisted == 3


def test_queues_answer_queries_as_before(client: quire.Client) -> None:
    for number in range(3):
        client.publish("tasks", {"id": number})
    client.flush(timeout=PATIENCE)
    assert ids(client.sow("JOBS")) == [0, 1, 2]
    assert ids(client.sow("JOBS", order_by="/id DESC", top_n=2)) == [2, 1]


def test_integers_that_a_long_cannot_hold_keep_their_digits_in_an_arrow_table(client: quire.Client) -> None:
    publish(client, {"id": 1, "n": 2**63 + 1}, {"id": 2, "n": 2**64 - 1}, {"id": 3, "n": 5})
    table = client.sow("orders", order_by="/id").to_arrow()
    assert table.to_pydict() == {"id": [1, 2, 3], "n": ["9223372036854775809", "18446744073709551615", "5"]}


def test_a_query_becomes_an_arrow_table(client: quire.Client) -> None:
    pa = pytest.importorskip("pyarrow")
    publish(
        client,
        {"id": 1, "symbol": "IBM", "price": 1.5, "open": True, "legs": [{"a": 1}], "note": 7},
        {"id": 2, "symbol": "HPQ", "price": 2, "open": False, "legs": [], "note": "late", "a/b": 3},
    )
    table = client.sow("orders", order_by="/id").to_arrow()
    assert table.column_names == ["id", "symbol", "price", "open", "legs", "note", "a/b"]
    assert table.to_pylist() == [
        {"id": 1, "symbol": "IBM", "price": 1.5, "open": True, "legs": [{"a": 1}], "note": "7", "a/b": None},
        {"id": 2, "symbol": "HPQ", "price": 2.0, "open": False, "legs": [], "note": "late", "a/b": 3},
    ]
    assert table.schema.field("id").type == pa.int64()
    assert table.schema.field("price").type == pa.float64()
    named = client.sow("orders", order_by="/id").to_arrow(["/symbol", "/legs[0]/a"])
    assert named.to_pydict() == {"symbol": ["IBM", "HPQ"], "legs[0]/a": [1, None]}
    typed = client.sow("orders", order_by="/id").to_arrow({"price": "string", "/id": "double"})
    assert typed.to_pydict() == {"price": ["1.5", "2"], "id": [1.0, 2.0]}
    assert client.sow("orders", filter="/id = 99").to_arrow().num_rows == 0
    query = client.sow("orders", order_by="/id")
    next(query)
    assert query.to_arrow("/id").to_pydict() == {"id": [2]}
    with pytest.raises(quire.ConfigError):
        client.sow("orders").to_arrow(5)  # type: ignore[arg-type]


def test_a_query_becomes_a_pandas_frame(client: quire.Client) -> None:
    pytest.importorskip("pandas")
    publish(client, order(1, qty=5), order(2, qty=6))
    frame = client.sow("orders", order_by="/id").to_pandas()
    assert frame["qty"].tolist() == [5, 6]


def test_a_query_becomes_a_polars_frame_without_python_per_record(client: quire.Client) -> None:
    import polars as pl

    more = {"symbol": "IBM", "price": 1.5, "open": True, "legs": [{"a": 1}], "note": None}
    publish(client, order(1, qty=5, **more), order(2, qty=6, price=2, note="late"))
    frame = client.sow("orders", order_by="/id").to_polars()
    columns = {"id": pl.Int64, "qty": pl.Int64, "symbol": pl.String, "price": pl.Float64, "open": pl.Boolean}
    assert dict(list(frame.schema.items())[:5]) == columns
    assert frame.rows(named=True) == [
        {"id": 1, "qty": 5, **more},
        {"id": 2, "qty": 6, "symbol": None, "price": 2.0, "open": None, "legs": None, "note": "late"},
    ]
    typed = client.sow("orders", order_by="/id").to_polars({"/id": "double", "legs[0]/a": "int"})
    assert typed.to_dict(as_series=False) == {"id": [1.0, 2.0], "legs[0]/a": [1, None]}
    assert client.sow("orders", filter="/id = 99").to_polars(["/id"]).height == 0

    count = 3000
    for number in range(count):
        publish(client, order(number, qty=number, symbol=f"S{number}"))
    calls: list[str] = []
    query = client.sow("orders")
    sys.setprofile(lambda _frame, event, _argument: calls.append(event))
    try:
        frame = query.to_polars(["/id", "/qty", "/symbol"])
    finally:
        sys.setprofile(None)
    assert frame["qty"].sum() == sum(range(count))
    # Calls into the core and into polars, of which the number does not depend on that of the
    # records.
    assert len(calls) < count


async def test_the_asyncio_client_does_the_same(place: dict[str, Any]) -> None:
    pytest.importorskip("pyarrow")
    async with quire.AsyncClient(**place) as client:
        await client.publish("orders", order(1))
        await client.publish("orders", order(2))
        await client.publish("prices", {"id": 1}, sow_key="IBM")
        assert sorted([record.json()["id"] async for record in client.sow("orders")]) == [1, 2]
        query = await client.sow("orders", order_by="/id DESC", top_n=1)
        assert [record.json()["id"] async for record in query] == [2]
        assert query.total == 2
        async with client.sow("orders", order_by="/id") as query:
            assert (await anext(query)).json()["id"] == 1
        assert [record async for record in query] == []
        query = await client.sow("orders", order_by="/id")
        assert (await anext(query)).json()["id"] == 1
        assert (await query.to_arrow(["/id"])).to_pydict() == {"id": [2]}
        table = await client.sow("orders", order_by="/id").to_arrow()
        assert table.to_pydict() == {"id": [1, 2], "qty": [1, 1]}
        assert (await client.sow("orders", order_by="/id").to_polars())["id"].to_list() == [1, 2]
        with pytest.raises(quire.NotLastValueError):
            await client.sow("elsewhere")
        with pytest.raises(ValueError, match="keys, filter, data or bookmarks"):
            await client.sow_delete("orders")
        async with await client.sow_and_subscribe("orders", oof=True) as orders:
            assert await orders.snapshot.wait(PATIENCE)
            assert {(await orders.get(PATIENCE)).command for _ in range(2)} == {"sow"}
            assert await client.sow_delete("orders", filter="/id = 1") == 1
            left = await orders.get(PATIENCE)
            assert (left.command, left.reason, left.json()["id"]) == ("oof", "deleted", 1)


def test_a_message_of_a_record_can_be_pickled(client: quire.Client) -> None:
    publish(client, order(1))
    (record,) = client.sow("orders")
    copy = pickle.loads(pickle.dumps(record))
    assert (copy.command, copy.sow_key, copy.reason) == (record.command, record.sow_key, None)
    with client.sow_and_subscribe("orders", oof=True) as orders:
        orders.get(timeout=PATIENCE)
        client.sow_delete("orders", filter="/id = 1")
        left = orders.get(timeout=PATIENCE)
    copy = pickle.loads(pickle.dumps(left))
    assert (copy.command, copy.sow_key, copy.reason) == ("oof", record.sow_key, "deleted")


def test_a_subscription_with_records_takes_a_batch_size(client: quire.Client) -> None:
    publish(client, *(order(id) for id in range(5)))
    for subscribe in (client.sow_and_subscribe, client.sow_and_delta_subscribe):
        with subscribe("orders", batch_size=2) as orders:
            messages = iter(orders)
            assert sorted(next(messages).json()["id"] for _ in range(5)) == [0, 1, 2, 3, 4]
        with pytest.raises(quire.ConfigError, match="batch_size: 0 is not between 1 and 10000"):
            subscribe("orders", batch_size=0)


async def test_a_subscription_with_records_of_the_asyncio_client_takes_a_batch_size(
    place: dict[str, Any],
) -> None:
    async with quire.AsyncClient(**place) as client:
        for id in range(5):
            await client.publish("orders", order(id))
        async with await client.sow_and_subscribe("orders", batch_size=2) as orders:
            found = [(await orders.get(PATIENCE)).json()["id"] for _ in range(5)]
    assert sorted(found) == [0, 1, 2, 3, 4]


def test_a_replay_with_deletions_delivers_the_deletes_in_the_order_of_the_log(client: quire.Client) -> None:
    publish(client, order(1), order(2), order(3))
    client.sow_delete("orders", filter="/id < 3")
    client.flush(timeout=PATIENCE)
    keys = {message.json()["id"]: message.sow_key for message in client.subscribe("orders", bookmark=LOG)}
    with client.subscribe("orders", bookmark=quire.EPOCH, deletions=True, filter="/id = 3") as replay:
        messages = [replay.get(timeout=PATIENCE) for _ in range(3)]
        assert [message.command for message in messages] == ["publish", "delete", "delete"]
        assert {message.sow_key for message in messages[1:]} == {keys[1], keys[2]}
        assert [message.data for message in messages[1:]] == [b"", b""]
        # Of the messages of one delete only the last has a bookmark.
        assert [message.bookmark is None for message in messages] == [False, True, False]
        # These come at the live tail.
        client.sow_delete("orders", filter="/id = 3")
        publish(client, order(3))
        assert replay.get(timeout=PATIENCE).sow_key == keys[3]
        assert replay.get(timeout=PATIENCE).command == "publish"
    assert {message.command for message in client.subscribe("orders", bookmark=LOG)} == {"publish"}


def test_a_program_that_stops_within_a_delete_receives_all_of_it_again(client: quire.Client) -> None:
    publish(client, order(1), order(2))
    client.sow_delete("orders", filter="/id > 0")
    client.flush(timeout=PATIENCE)
    with client.subscribe("orders", bookmark=quire.EPOCH, deletions=True) as replay:
        messages = [replay.get(timeout=PATIENCE) for _ in range(4)]
        # The first message of the delete is processed.
        place = replay.most_recent
        assert place == messages[1].bookmark
    with client.subscribe("orders", bookmark=place, deletions=True) as replay:
        again = [replay.get(timeout=PATIENCE).sow_key for _ in range(2)]
        assert again == [message.sow_key for message in messages[2:]]


def test_deletions_are_for_replays_that_are_neither_live_nor_conflated(client: quire.Client) -> None:
    for options in ({}, {"live": True, "bookmark": "epoch"}, {"conflation": "1s", "bookmark": "epoch"}):
        with pytest.raises(quire.ConfigError, match=r"^deletions: "):
            client.subscribe("orders", deletions=True, **options)
    with client.subscribe("orders", bookmark=quire.EPOCH, deletions=False):
        pass


def test_after_a_reconnect_a_changed_record_is_whole(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, **SETTINGS) as server, quire.Client(server.url, name="orders") as client:
        publish(client, order(1, qty=1), order(2, qty=1))
        with client.sow_and_delta_subscribe("orders", oof=True) as orders:
            publish(client, order(1, qty=2), order(2, qty=2))
            client.flush()
            assert [is_delta for _, is_delta, _ in changes_of(orders, 4)] == [False, False, True, True]
            server.kill()
            server.start()
            with quire.Client(server.url) as other:
                publish(other, order(3, qty=3))
                other.flush()
            # Records 1 and 2 have not changed since their differences.
            assert changes_of(orders, 1) == [("publish", False, order(3, qty=3))]
            publish(client, order(1, qty=5))
            assert changes_of(orders, 1) == [("publish", True, {"id": 1, "qty": 5})]


PATTERN: dict[str, Any] = {
    "name": "all-orders",
    "message_type": "json",
    "key": ["/id"],
    "pattern": "orders/.*",
}


def test_each_topic_of_a_pattern_keeps_its_own_records_over_a_restart(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, sow_topic=PATTERN, limits={"max_pattern_topics": 2}) as server:
        with quire.Client(server.url, name="desk") as client:
            subscription = client.sow_and_subscribe("orders/eu", oof=True)
            assert subscription.snapshot.wait(PATIENCE)
            publish(client, order(1), order(2), topic="orders/eu")
            publish(client, order(1, qty=7), topic="orders/us")
            assert client.sow_delete("orders/eu", filter="/id = 2") == 1
            assert received(subscription, 3) == [
                ("publish", None, 1),
                ("publish", None, 2),
                ("oof", "deleted", 2),
            ]
            publish(client, order(1), topic="orders/asia")
            with pytest.raises(quire.LimitExceededError, match="max_pattern_topics"):
                client.flush(timeout=PATIENCE)
            with pytest.raises(quire.NotLastValueError):
                client.sow("all-orders")
        for end in (server.kill, server.terminate, server.kill):
            end()
            server.start()
            with quire.Client(server.url, name="desk") as client:
                assert ids(client.sow("orders/eu")) == [1]
                (record,) = client.sow("^orders", filter="/qty = 7")
                assert record.topic == "orders/us"
                assert ids(client.sow("orders/none")) == []


def test_a_page_is_turned(client: quire.Client) -> None:
    publish(client, *(order(id) for id in range(1, 8)))
    with client.sow_and_subscribe("orders", order_by="/id", top_n=2, skip_n=0, oof=True) as page:
        assert ids([page.get(timeout=PATIENCE) for _ in range(2)]) == [1, 2]
        page.replace(skip_n=2)
        turned = [("oof", "match", 1), ("oof", "match", 2), ("publish", None, 3), ("publish", None, 4)]
        assert received(page, 4) == turned
        page.replace(order_by="/id DESC", skip_n=0, top_n=1)
        assert received(page, 3) == [("oof", "match", 3), ("oof", "match", 4), ("publish", None, 7)]
        publish(client, order(8))
        assert received(page, 2) == [("oof", "match", 7), ("publish", None, 8)]
    with client.sow_and_subscribe("orders", filter="/id > 6", order_by="/id") as orders:
        key = [orders.get(timeout=PATIENCE).sow_key for _ in range(2)][1]
        orders.replace(filter=None, keys=key)
        publish(client, order(1), order(8, qty=2))
        assert received(orders, 1) == [("publish", None, 8)]
        for changed in ({"skip_n": 1}, {"top_n": 1}, {"order_by": "/id"}):
            with pytest.raises(quire.ConfigError, match="only a page"):
                orders.replace(**changed)
    plain = client.subscribe("orders")
    with pytest.raises(quire.ConfigError, match="began with a query"):
        plain.replace(skip_n=1)


def test_a_replacement_keeps_the_filter_unless_it_names_one(client: quire.Client) -> None:
    publish(client, order(1), order(2), order(3))
    with client.sow_and_subscribe("orders", filter="/id > 1", order_by="/id", oof=True) as orders:
        assert ids([orders.get(timeout=PATIENCE) for _ in range(2)]) == [2, 3]
        orders.replace(select="-/qty")
        assert [orders.get(timeout=PATIENCE).data for _ in range(2)] == [b'{"id":2}', b'{"id":3}']
        orders.replace(filter=None)
        assert received(orders, 1) == [("publish", None, 1)]


def test_a_replacement_is_kept_over_a_reconnect(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, **SETTINGS) as server, quire.Client(server.url) as client:
        publish(client, order(1), order(2), order(3))
        client.flush()
        with client.sow_and_subscribe("orders", filter="/id = 1", oof=True) as orders:
            orders.replace(filter="/id < 3")
            assert received(orders, 2) == [("sow", None, 1), ("publish", None, 2)]
            server.kill()
            server.start()
            with quire.Client(server.url) as other:
                publish(other, order(2, qty=9))
                assert other.sow_delete("orders", filter="/id = 1") == 1
                other.flush()
            changed, left = received(orders, 2)
            assert changed == ("publish", None, 2)
            # It has data when the client was there again before the delete.
            assert left in [("oof", "deleted", None), ("oof", "deleted", 1)]


async def test_the_asyncio_client_replaces_subscriptions_with_records(place: dict[str, Any]) -> None:
    async with quire.AsyncClient(**place) as client:
        for number in (1, 2):
            await client.publish("orders", order(number))
        orders = await client.sow_and_subscribe("orders", filter="/id = 1", oof=True)
        await orders.replace(filter="/id = 2")
        messages = [await orders.get(timeout=PATIENCE) for _ in range(3)]
        assert [(each.command, each.json()["id"]) for each in messages] == [
            ("sow", 1),
            ("oof", 1),
            ("publish", 2),
        ]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="it reads /proc")
def test_records_in_a_file_are_those_in_memory(tmp_path: Path) -> None:
    sizes = [0, 10, 300, 3_000, 20_000, 200_000]
    found = {}
    for file_backed in ("disabled", "enabled"):
        topic = {**ORDERS, "file_backed": file_backed, "hash_index": [["/group"]], "index": ["/qty"]}
        settings: dict[str, Any] = {
            "transaction_log": {"topic": [{"name": "orders", "message_type": "json"}]},
            "sow_topic": [topic],
        }
        with ServerProcess(tmp_path / file_backed, **settings) as server:
            with quire.Client(server.url) as client:
                for number in range(600):
                    text = "x" * sizes[number * 7 % len(sizes)]
                    publish(client, order(number % 250, qty=number, group=f"g{number % 3}", text=text))
                client.sow_delete("orders", filter="/qty > 500 AND /group = 'g1'")
                client.flush(PATIENCE)
                maps = Path(f"/proc/{server.pid}/maps").read_text()
                assert ("(deleted)" in maps) == (file_backed == "enabled")
            assert server.terminate() == 0
            server.start()
            with quire.Client(server.url) as client:
                publish(client, order(1, qty=-1), order(7, qty=-7, group="g2"))
                found[file_backed] = [
                    sorted((r.sow_key or "", r.data) for r in client.sow("orders", filter=filter))
                    for filter in (None, "/group = 'g2'", "/qty BETWEEN 100 AND 400")
                ]
    assert found["enabled"] == found["disabled"]
    assert [len(records) for records in found["enabled"]] != [0, 0, 0]
