"""`Table`: a live copy of the records of a last-value topic is what a query returns, also after
lost connections and killed servers."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import quire
from quire.client._table import CHANGES_MAX, Change, Records
from support.server_process import ServerProcess
from support.waiting import PATIENCE, wait_until
from support.ways_in import configured

ORDERS = {"name": "orders", "message_type": "json", "key": ["/id"], "expiration": "enabled"}
SETTINGS: dict[str, Any] = {
    "sow_topic": [ORDERS, *({"name": name, "message_type": "json"} for name in ("prices", "prices-EU"))]
}
RECONNECT = quire.Reconnect(initial="5ms", maximum="50ms")


@pytest.fixture
def place(way_in: str, tmp_path: Path) -> Iterator[dict[str, Any]]:
    with configured(way_in, tmp_path, **SETTINGS) as place:
        yield place


@pytest.fixture
def client(place: dict[str, Any]) -> Iterator[quire.Client]:
    with quire.Client(**place) as client:
        yield client


def shown(table: quire.Table) -> dict[Any, int]:
    return {key: message.json()["qty"] for key, message in table.items()}


def test_a_table_is_a_live_copy(client: quire.Client) -> None:
    client.publish("orders", {"id": "a", "qty": 1})
    with client.table("orders", key="/id") as table:
        assert table.ready.wait(PATIENCE)
        assert shown(table) == {"a": 1}
        assert (table.stale, len(table), "a" in table, "b" in table) == (False, 1, True, False)
        changes = table.changes()
        client.publish("orders", {"id": "b", "qty": 2})
        client.publish("orders", {"id": "a", "qty": 3})
        client.sow_delete("orders", filter="/id = 'b'")
        told = [changes.get(PATIENCE) for _ in range(3)]
        assert [(c.kind, c.key) for c in told if c] == [("added", "b"), ("changed", "a"), ("removed", "b")]
        added, changed, removed = (change for change in told if change)
        assert (added.before, added.message.json()["qty"]) == (None, 2)
        assert changed.before is not None
        assert (changed.before.json()["qty"], changed.message.json()["qty"]) == (1, 3)
        assert removed.before is not None
        assert (removed.before.json()["qty"], removed.message.reason) == (2, "deleted")
        assert shown(table) == {"a": 3}
        with pytest.raises(KeyError):
            table["b"]
    assert changes.get(PATIENCE) is None, "it ends with the table"
    assert list(changes) == []
    assert table.stale
    assert shown(table) == {"a": 3}, "it stays as it was"
    client.publish("orders", {"id": "c", "qty": 1})
    client.flush(timeout=PATIENCE)
    assert shown(table) == {"a": 3}


def test_a_filter_selects_the_records_of_a_table(client: quire.Client) -> None:
    with client.table("orders", key="/id", filter="/qty > 5") as table:
        changes = table.changes()
        for qty in (1, 6, 2, 7):
            client.publish("orders", {"id": "a", "qty": qty})
        told = [changes.get(PATIENCE) for _ in range(3)]
        assert [(change.kind, change.message.json()["qty"]) for change in told if change] == [
            ("added", 6),
            ("removed", 2),
            ("added", 7),
        ]


def test_the_keys_of_a_table(client: quire.Client) -> None:
    client.publish("prices", {"price": 1, "symbol": "IBM", "venue": 3}, sow_key="k1")
    client.publish("prices", {"price": 2, "symbol": "IBM"}, sow_key="k2")
    with (
        client.table("prices") as by_key,
        client.table("prices", key=["/symbol", "/venue"], select="-/price") as by_fields,
    ):
        assert by_key.ready.wait(PATIENCE)
        assert by_fields.ready.wait(PATIENCE)
        assert {key: message.json()["price"] for key, message in by_key.items()} == {"k1": 1, "k2": 2}
        assert set(by_fields) == {("IBM", "3"), ("IBM", None)}
        assert by_fields["IBM", "3"].json() == {"symbol": "IBM", "venue": 3}


@pytest.mark.parametrize("key", ["id", "/id", ["/qty", "/id"]])
@pytest.mark.parametrize("select", ["-/id", ["-/", "+/qty"]])
def test_a_table_whose_select_leaves_out_a_field_of_its_key_is_refused(
    client: quire.Client, key: str | list[str], select: str | list[str]
) -> None:
    with pytest.raises(quire.ConfigError, match=r'^select: it leaves out /id, a field of `key`; add "\+/id"'):
        client.table("orders", key=key, select=select)


def test_a_table_over_a_pattern_does_not_merge_equal_keys_of_two_topics(client: quire.Client) -> None:
    client.publish("prices", {"qty": 1}, sow_key="k")
    client.publish("prices-EU", {"qty": 2}, sow_key="l")
    with client.table("^prices") as table:
        assert table.ready.wait(PATIENCE)
        assert shown(table) == {"k": 1, "l": 2}
        changes = table.changes()
        client.publish("prices-EU", {"qty": 3}, sow_key="k")
        with pytest.raises(
            quire.ConfigError, match=r"both have the key 'k': two topics have it; make a table of"
        ):
            changes.get(PATIENCE)
        assert (table.stale, shown(table)) == (True, {"k": 1, "l": 2})
    with client.table("^prices") as table, pytest.raises(quire.ConfigError, match="two topics have it"):
        table.ready.wait(PATIENCE)


@pytest.mark.parametrize(
    ("key", "field"),
    [
        ("/of", {"of": {"a": 1}}),
        ("/of", {"of": [{"a": 1}]}),
        ("/of", {"of": None}),
        ("/of", {}),
        (["/at", "/of"], {"at": 1}),
    ],
)
def test_a_table_does_not_merge_records_whose_key_has_a_field_without_a_text(
    client: quire.Client, key: str | list[str], field: dict[str, Any]
) -> None:
    with client.table("orders", key=key) as table:
        changes = table.changes()
        for qty in (1, 2):
            client.publish("orders", {"id": "a", "qty": qty, **field})
        assert table.ready.wait(PATIENCE)
        assert [change.kind for change in (changes.get(PATIENCE), changes.get(PATIENCE)) if change] == [
            "added",
            "changed",
        ]
        client.publish("orders", {"id": "b", "qty": 3, **field})
        with pytest.raises(
            quire.ConfigError, match=r"^key: the record .* name fields in which every record has a text"
        ):
            changes.get(PATIENCE)
        assert table.stale
        assert list(shown(table).values()) == [2], "it keeps what it has"
        with pytest.raises(quire.ConfigError):
            next(table.changes())
        assert table.ready.wait(PATIENCE), "it stays set"


def test_a_table_that_cannot_keep_its_first_records_apart_is_never_ready(client: quire.Client) -> None:
    for id in "ab":
        client.publish("orders", {"id": id, "of": {"id": id}})
    table = client.table("orders", key="/of")
    with pytest.raises(quire.ConfigError, match="every record has a text"):
        table.ready.wait(PATIENCE)
    with pytest.raises(quire.ConfigError, match="every record has a text"):
        next(table.changes())
    assert (table.ready.is_set(), table.stale) == (False, True)


async def test_the_tables_of_the_asyncio_client_keep_records_apart_too(place: dict[str, Any]) -> None:
    async with quire.AsyncClient(**place) as client:
        with pytest.raises(quire.ConfigError, match=r"^select: it leaves out /id"):
            await client.table("orders", key="/id", select=["-/", "+/qty"])
        await client.publish("prices", {"qty": 1}, sow_key="k")
        await client.publish("prices-EU", {"qty": 2}, sow_key="k")
        async with await client.table("^prices") as prices:
            with pytest.raises(quire.ConfigError, match="two topics have it"):
                await prices.ready.wait(PATIENCE)
        async with await client.table("orders", key="/of") as table:
            changes = table.changes()
            for id in "ab":
                await client.publish("orders", {"id": id, "of": {}})
            assert await changes.get(PATIENCE) is not None
            with pytest.raises(quire.ConfigError, match="every record has a text"):
                await changes.get(PATIENCE)
            assert table.stale


def test_a_function_is_called_with_each_change(client: quire.Client) -> None:
    told: list[Change] = []
    with client.table("orders", key="/id", on_change=told.append) as table:
        client.publish("orders", {"id": "a", "qty": 1})
        wait_until(lambda: len(told) == 1)
        assert (told[0].kind, told[0].key, table["a"].json()["qty"]) == ("added", "a", 1)

    async def coroutine(change: Change) -> None: ...

    with pytest.raises(TypeError, match="coroutine function"):
        client.table("orders", on_change=coroutine)  # type: ignore[arg-type]


def test_a_table_ends_with_its_client(place: dict[str, Any]) -> None:
    with quire.Client(**place) as client:
        table = client.table("orders")
        changes = table.changes()
    assert list(changes) == []
    assert table.stale
    assert list(table.changes()) == []


def test_a_table_becomes_a_data_frame(client: quire.Client) -> None:
    pytest.importorskip("pyarrow")
    client.publish("orders", {"id": "a", "qty": 1})
    with client.table("orders", key="/id") as table:
        assert table.ready.wait(PATIENCE)
        assert table.to_arrow().to_pydict() == {"id": ["a"], "qty": [1]}
        assert table.to_arrow("/qty").to_pydict() == {"qty": [1]}
        assert table.to_pandas()["qty"].tolist() == [1]
        assert table.to_polars()["qty"].to_list() == [1]
    assert table.to_arrow().num_rows == 1


async def test_the_asyncio_client_has_tables_too(place: dict[str, Any]) -> None:
    told: list[str] = []

    async def on_change(change: Change) -> None:
        told.append(change.kind)

    async with quire.AsyncClient(**place) as client:
        await client.publish("orders", {"id": "a", "qty": 1})
        async with await client.table("orders", key="/id", on_change=on_change) as table:
            assert await table.ready.wait(PATIENCE)
            assert set(table) == {"a"}
            changes = table.changes()
            await client.publish("orders", {"id": "b", "qty": 2})
            change = await changes.get(PATIENCE)
            assert change is not None
            assert (change.kind, change.key, told) == ("added", "b", ["added", "added"])
            assert not table.stale
        assert [change async for change in changes] == []
        with pytest.raises(quire.NotLastValueError):
            await client.table("elsewhere")


def test_a_program_that_takes_no_changes_is_told(client: quire.Client) -> None:
    with client.table("orders", key="/id") as table:
        changes = table.changes()
        client.publish("orders", {"id": "a", "qty": 1})
        first = changes.get(PATIENCE)
        assert first is not None
        # As many as wait without the time that they would take to arrive.
        for _ in range(CHANGES_MAX + 1):
            changes._push(first)
        for _ in range(CHANGES_MAX):
            assert next(changes) == first
        with pytest.raises(quire.LimitExceededError, match="100,000"):
            next(changes)


def record(name: str, key: str, qty: int, command: Any = "publish") -> quire.Message:
    reason = "deleted" if command == "oof" else None
    data = {"key": key, "qty": qty}
    return quire.testing.message("t", data, command=command, reason=reason, sow_key=name)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(20))
def test_of_records_with_one_key_the_later_one_is_shown(seed: int) -> None:
    """Against the model: the records in the order in which they came, and the last one of each key."""
    dice = random.Random(seed)
    records = Records(lambda message: message.json()["key"])
    model: dict[str, tuple[str, int]] = {}
    view: dict[Any, int] = {}
    for qty in range(300):
        name = dice.choice("abcdef")
        if dice.random() < 0.3:
            changes = records.take(record(name, "?", 0, "oof"))
            model.pop(name, None)
        else:
            key = dice.choice("xyz")
            changes = records.take(record(name, key, qty))
            model.pop(name, None)
            model[name] = (key, qty)
        for change in changes:
            assert (change.before is None) == (change.key not in view)
            if change.kind == "removed":
                del view[change.key]
            else:
                assert (change.kind == "added") == (change.key not in view)
                view[change.key] = change.message.json()["qty"]
        expected = dict(model.values())
        assert {key: message.json()["qty"] for key, message in records.shown.items()} == expected == view


class Model:
    """Random publishes, deletes and lifetimes of a few orders."""

    def __init__(self, client: quire.Client, seed: int) -> None:
        self._client = client
        self._dice = random.Random(seed)
        self.records: dict[str, int] = {}
        self._count = 0

    def change(self, count: int) -> None:
        for _ in range(count):
            self._count += 1
            id = f"o{self._dice.randrange(60)}"
            match self._dice.randrange(10):
                case 0 | 1:
                    deleted = self._client.sow_delete("orders", data={"id": id})
                    assert deleted == (id in self.records)
                    self.records.pop(id, None)
                case 2:
                    low = self._count - self._dice.randrange(200)
                    deleted = self._client.sow_delete("orders", filter=f"/qty < {low} AND /is_mortal IS NULL")
                    kept = {id: qty for id, qty in self.records.items() if qty >= low}
                    assert deleted == len(self.records) - len(kept)
                    self.records = kept
                case 3:
                    # It is gone after a second. The model is about the time after that.
                    mortal = {"id": f"m{id}", "qty": self._count, "is_mortal": True}
                    self._client.publish("orders", mortal, expiration=1)
                case _:
                    self._client.publish("orders", {"id": id, "qty": self._count})
                    self.records[id] = self._count


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_table_is_its_model_over_restarts_of_the_server(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    with ServerProcess(tmp_path, **SETTINGS) as server:
        options: dict[str, Any] = {"reconnect": RECONNECT, "wait": True, "command_timeout": None}
        with (
            quire.Client(server.url, name="writer", **options) as writer,
            quire.Client(server.url, name="reader", **options) as reader,
        ):
            model = Model(writer, seed)
            model.change(100)
            everything = reader.table("orders", key="/id")
            even = reader.table("orders", key="/id", filter="/qty % 2 = 0")
            followed: dict[Any, int] = {}

            def follow(change: Change) -> None:
                if change.kind == "removed":
                    del followed[change.key]
                else:
                    assert (change.kind == "added") == (change.key not in followed)
                    followed[change.key] = change.message.json()["qty"]

            reader.table("orders", key="/id", on_change=follow)
            for _ in range(4):
                model.change(dice.randrange(200))
                writer.flush(timeout=PATIENCE)
                assert server.terminate() == 0
                wait_until(lambda: everything.stale)
                server.start()
                model.change(dice.randrange(50))
                wait_until(lambda: shown(everything) == model.records == followed)
                wait_until(lambda: shown(even) == {k: v for k, v in model.records.items() if v % 2 == 0})
                wait_until(lambda: not everything.stale)
