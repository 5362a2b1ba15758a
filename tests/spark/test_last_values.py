"""`option("lastValues", topic)` and `includeDeletes`: the state of a last-value topic, and its
deletes, from the files of the journal.

The state is compared with that of a server on the same journal (`client.sow`), and at earlier
points with a model: a dictionary.
"""

from __future__ import annotations

import json
import random
import shutil
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import quire
from pyspark.errors import PySparkException
from pyspark.sql.types import StructType
from quire._quire import spark_frame
from quire.spark import _scan
from quire.spark._options import read_options
from quire.testing import server
from support.waiting import PATIENCE

from spark import journals

CONFIG = quire.Config(
    transaction_log={"journal_size": "64KB", "topic": [{"name": ".*", "message_type": "json"}]},
    sow_topic=[
        {"name": "orders", "message_type": "json", "key": ["/id"]},
        {"name": "prices", "message_type": "json"},
        {"name": "quotes", "message_type": "json", "key": ["/id"], "expiration": "enabled"},
    ],
)
KEYS = 40


@dataclass
class History:
    """A journal with changes of `orders`, in several segments, and the states that it went through."""

    directory: Path
    #: Bookmarks, each with the data of all records after this message.
    states: list[tuple[str, dict[int, dict[str, Any]]]] = field(default_factory=list)
    #: As a server has it at the end: keys with data.
    at_the_end: dict[str, bytes] = field(default_factory=dict)
    deletes: int = 0


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> History:
    made, draw = History(tmp_path_factory.mktemp("orders")), random.Random(5)
    state: dict[int, dict[str, Any]] = {}
    with quire.Client(f"file:{made.directory}", name="loader", config=CONFIG) as client:
        for number in range(1500):
            order: dict[str, Any] = {"id": draw.randrange(KEYS), "number": number, "padding": "x" * 150}
            client.publish("orders", order)
            client.publish("other", order)
            state[order["id"]] = order
            if number % 100 == 50:
                gone = draw.sample(range(KEYS), 5)
                deleted = client.sow_delete("orders", filter=f"/id IN ({', '.join(map(str, gone))})")
                assert deleted == len(gone & state.keys())
                made.deletes += deleted
                state = {id: order for id, order in state.items() if id not in gone}
                client.flush(PATIENCE)
            if number % 300 == 299:
                client.flush(PATIENCE)
                newest = next(iter(client.sow("orders", filter=f"/number = {number}")))
                made.states.append((newest.data.decode(), dict(state)))
        client.flush(PATIENCE)
        made.at_the_end = {str(record.sow_key): record.data for record in client.sow("orders")}
    with quire.Journal(made.directory, read_only=True) as journal:
        bookmarks = {message.data.decode(): message.bookmark for message in journal.read(topic="orders")}
        assert len(journal.segments()) > 3
    made.states = [(str(bookmarks[data]), after) for data, after in made.states]
    return made


def last_values(read: Any, history: History, **options: str) -> Any:
    return read().option("lastValues", "orders").options(**options).load(str(history.directory))


def test_the_newest_message_of_each_key_is_what_a_server_has(read: Any, history: History) -> None:
    rows = last_values(read, history).collect()
    assert {row.sow_key: row.data.encode() for row in rows} == history.at_the_end
    assert {(row.topic, row.kind) for row in rows} == {("orders", "publish")}
    with quire.Journal(history.directory, read_only=True) as journal:
        written = {message.bookmark: message for message in journal.read(topic="orders")}
    assert all(written[row.bookmark].sow_key == row.sow_key for row in rows)


@pytest.mark.parametrize("parts", ["1", "7"])
def test_the_state_at_a_bookmark_is_that_after_this_message(read: Any, history: History, parts: str) -> None:
    for bookmark, state in history.states:
        frame = last_values(read, history, endingOffsets=bookmark, minPartitions=parts)
        assert {row.sow_key: json.loads(row.data)["id"] for row in frame.collect()}.keys()
        assert sorted(frame.select("data").collect()) == sorted(
            (journals.encoded(order),) for order in state.values()
        )


def test_every_action_on_a_frame_sees_the_state_at_the_load(read: Any, tmp_path: Path) -> None:
    with quire.Client(f"file:{tmp_path / 'j'}", name="loader", config=CONFIG) as client:
        client.publish("orders", {"id": 1})
        client.flush(PATIENCE)
        frame = read().option("lastValues", "orders").load(str(tmp_path / "j"))
        client.publish("orders", {"id": 2})
        client.flush(PATIENCE)
        assert [frame.count(), frame.count()] == [1, 1]
        assert read().option("lastValues", "orders").load(str(tmp_path / "j")).count() == 2


def test_a_filter_and_conditions_select_among_the_newest_messages(read: Any, history: History) -> None:
    newest = [json.loads(data) for data in history.at_the_end.values()]
    wanted = sorted(order["id"] for order in newest if order["number"] >= 1450)
    assert 0 < len(wanted) < len(newest)
    frame = last_values(read, history, filter="/number >= 1450", fields="id int, number int")
    assert sorted(row.id for row in frame.collect()) == wanted
    frame = last_values(read, history, fields="id int, number int", pushConditions="true")
    assert sorted(row.id for row in frame.where("number >= 1450").collect()) == wanted
    key, data = next(iter(history.at_the_end.items()))
    frame = last_values(read, history, pushConditions="true").where(f"sow_key = '{key}'")
    assert [row.data.encode() for row in frame.collect()] == [data]
    frame = last_values(read, history, pushConditions="true").where("topic = 'other'")
    assert frame.count() == 0


def test_tasks_are_made_only_for_ranges_with_newest_messages(history: History) -> None:
    def tasks(**options: str) -> list[_scan.Task]:
        frame = spark_frame({"path": str(history.directory), "minPartitions": "50", **options})
        return _scan.ScanBuilder(frame, StructType()).tasks()

    parts = tasks(lastValues="orders")
    assert 0 < len(parts) < len(tasks(topics="orders"))
    rows = sum(batch.num_rows for part in parts for batch in _scan.scan(part))
    assert rows == len(history.at_the_end)


@pytest.fixture
def quotes(tmp_path: Path) -> Path:
    with quire.Client(f"file:{tmp_path / 'q'}", name="loader", config=CONFIG) as client:
        client.publish("quotes", {"id": 1}, expiration=timedelta(seconds=1))
        client.publish("quotes", {"id": 2}, expiration=timedelta(seconds=3600))
        client.publish("quotes", {"id": 3})
        client.publish("quotes", {"id": 4}, expiration=timedelta(seconds=3600))
        client.publish("quotes", {"id": 4}, expiration=timedelta(seconds=0))
        client.flush(PATIENCE)
    return tmp_path / "q"


@pytest.mark.parametrize(
    ("expiration", "after", "ids"),
    [
        (None, 10, [1, 2, 3, 4]),
        ("disabled", 10, [1, 2, 3, 4]),
        ("enabled", 0, [1, 2, 3, 4]),
        ("enabled", 10, [2, 3, 4]),
        ("ENABLED", 4000, [3, 4]),
        ("1m", 10, [2, 3, 4]),
        ("1m", 61, [2, 4]),
    ],
)
def test_lifetimes_end_as_the_topic_is_configured(
    read: Any, quotes: Path, expiration: str | None, after: int, ids: list[int]
) -> None:
    with quire.Journal(quotes, read_only=True) as journal:
        last = max(message.timestamp_ns for message in journal.read())
    # In whole milliseconds, as the option takes them.
    ending = -(-last // 1_000_000) + after * 1000
    options = {} if expiration is None else {"expiration": expiration}
    frame = read().options(lastValues="quotes", fields="id int", endingTimestamp=str(ending), **options)
    assert sorted(row.id for row in frame.load(str(quotes)).collect()) == ids


def test_a_state_without_its_oldest_files_is_an_error_unless_it_may_be_incomplete(
    read: Any, history: History, tmp_path: Path
) -> None:
    directory = tmp_path / "j"
    shutil.copytree(history.directory, directory)
    # A server keeps the files that the topic needs: here they are removed in its absence.
    for state in directory.glob("table-*.state"):
        state.unlink()
    journals.remove_oldest(directory, 2)
    with pytest.raises(PySparkException, match="were removed from the journal, which begins at"):
        read().option("lastValues", "orders").load(str(directory)).count()
    frame = read().options(lastValues="orders", failOnDataLoss="false").load(str(directory))
    assert 0 < frame.count() <= len(history.at_the_end)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"topics": "orders"}, "topics: it cannot be used with lastValues: lastValues names the topic"),
        ({"topicPattern": "o"}, "topicPattern: it cannot be used with lastValues"),
        ({"startingOffsets": "-10"}, "endingOffsets selects the state at an earlier point"),
        ({"startingTimestamp": "0"}, "endingTimestamp selects the state at an earlier time"),
        ({"includeQueueEvents": "true"}, "a state has no events"),
        ({"includeDeletes": "true"}, "deleted records are not in the state"),
        ({"expiration": "soon"}, "expiration: 'soon'"),
        ({"lastValues": "other"}, "messages without a key of the topic 'other'"),
        ({"lastValues": "order"}, "no message of the topic 'order'"),
    ],
)
def test_a_read_of_last_values_that_cannot_be_is_refused(
    read: Any, history: History, options: dict[str, str], reason: str
) -> None:
    with pytest.raises(PySparkException, match=reason):
        read().options(**{"lastValues": "orders", **options}).load(str(history.directory)).count()


def test_last_values_are_neither_for_servers_nor_for_several_journals_nor_for_streams(
    spark: Any, read: Any, history: History
) -> None:
    with pytest.raises(quire.ConfigError, match=r"url: it cannot be used with lastValues: .*client\.sow"):
        read_options({"url": "quire://localhost:1", "lastValues": "orders"})
    with pytest.raises(quire.ConfigError, match="lastValues: it is the state of one journal"):
        read_options({"paths": '["a", "b"]', "lastValues": "orders"})
    with pytest.raises(quire.ConfigError, match="expiration: it is for lastValues"):
        read_options({"path": "a", "expiration": "enabled"})
    stream = spark.readStream.format("quire").option("lastValues", "orders").load(str(history.directory))
    query = stream.writeStream.format("noop").trigger(availableNow=True).start()
    with pytest.raises(PySparkException, match=r"lastValues: spark\.read has it"):
        query.awaitTermination(PATIENCE)


def test_the_state_before_the_first_message_of_the_topic_is_empty(read: Any, tmp_path: Path) -> None:
    with quire.Client(f"file:{tmp_path / 'j'}", name="loader", config=CONFIG) as client:
        client.publish("other", {"id": 1})
        client.publish("prices", {"price": 1}, sow_key="IBM")
        client.publish("prices", {"price": 2}, sow_key="IBM")
        client.flush(PATIENCE)
    with quire.Journal(tmp_path / "j", read_only=True) as journal:
        first = str(next(iter(journal.read())).bookmark)
    prices = read().options(lastValues="prices", endingOffsets=first).load(str(tmp_path / "j"))
    assert prices.count() == 0
    row = read().options(lastValues="prices").load(str(tmp_path / "j")).first()
    assert (row.sow_key, row.data) == ("IBM", '{"price":2}')


def test_a_server_sends_the_keys_of_records(read: Any, tmp_path: Path) -> None:
    topic = {"name": "prices", "message_type": "json"}
    with server(tmp_path, sow_topic=topic) as running, quire.Client(running.url, name="loader") as client:
        client.publish("prices", {"price": 1}, sow_key="IBM")
        client.publish("other", {"price": 2})
        client.flush(PATIENCE)
        rows = read().option("url", running.url).load().collect()
        assert sorted((row.topic, row.sow_key) for row in rows) == [("other", None), ("prices", "IBM")]
        with pytest.raises(PySparkException, match="includeDeletes: it does not go together with url"):
            read().options(url=running.url, includeDeletes="true").load().count()


def test_deletes_are_rows_with_a_key_and_without_data(read: Any, history: History) -> None:
    options = {"topics": "orders", "fields": "id int"}
    messages = read().options(**options).load(str(history.directory))
    assert {row.kind for row in messages.select("kind").distinct().collect()} == {"publish"}
    assert messages.where("sow_key IS NULL").count() == 0
    everything = read().options(**options, includeDeletes="true").load(str(history.directory))
    deletes = everything.where("kind = 'delete'").collect()
    assert len(deletes) == history.deletes
    assert {(row.data, row.id, row.message_type is None) for row in deletes} <= {
        (None, None, False),
        (None, None, True),
    }
    # A filter is about content, and a delete has none.
    with_filter = (
        read().options(**options, includeDeletes="true", filter="/id < 0").load(str(history.directory))
    )
    kinds = {row.kind: row["count"] for row in with_filter.groupBy("kind").count().collect()}
    assert kinds == {"delete": history.deletes}
    # The state follows from these rows alone.
    state: dict[str, bytes] = {}
    for row in everything.orderBy("position").collect():
        if row.kind == "delete":
            del state[row.sow_key]
        else:
            state[row.sow_key] = row.data.encode()
    assert state == history.at_the_end


def test_a_stream_has_the_deletes_at_their_places(spark: Any, history: History) -> None:
    stream = spark.readStream.format("quire").options(
        topics="orders", includeDeletes="true", startingOffsets="earliest", maxMessagesPerTrigger="700"
    )
    found: list[tuple[int, str, str]] = []

    def keep(rows: Any, _batch: int) -> None:
        found.extend((row.position, row.kind, row.sow_key) for row in rows.orderBy("position").collect())

    frame = stream.load(str(history.directory)).select("position", "kind", "sow_key")
    query = frame.writeStream.foreachBatch(keep).trigger(availableNow=True).start()
    assert query.awaitTermination(PATIENCE)
    with quire.Journal(history.directory, read_only=True) as journal:
        expected = [
            (record.position, record.kind, key.decode())
            for record in journal.records(topic="orders")
            for key in ([record.key or b""] if record.kind == "publish" else record.deleted_keys)
        ]
    assert found == expected
