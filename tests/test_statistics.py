"""The statistics of a server: samples in a file with a bounded size (docs/admin.md, section 3)."""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
import quire
import quire.testing
from quire._errors import ConfigError
from quire.admin._forms import thinned
from quire.admin._host import timestamp
from quire.admin._metrics import NODE_AT
from quire.admin._sampler import Sampler
from quire.admin._statistics import History, Store
from quire.admin._times import milliseconds, span
from support.waiting import PATIENCE, wait_until

JOURNAL, QUEUES = NODE_AT["instance/journal"], NODE_AT["instance/queues"]


def store_in(directory: Path | None, **settings: Any) -> Store:
    path = None if directory is None else directory / "statistics.db"
    options: dict[str, Any] = {"max_size": 1 << 30, "retention": 1e9, "version": "1"} | settings
    store = Store(path, **options)
    store.begin(0.0)
    return store


def tree(entered: int, **journal: Any) -> dict[str, Any]:
    return {"instance/queues": {"jobs": {"entered": entered, "depth": 1}}, "instance/journal": journal}


def read(
    history: History,
    name: str = "entered",
    key: str = "jobs",
    begin: int | None = None,
    end: int | None = None,
) -> list[Any]:
    node = QUEUES if key else JOURNAL
    found = node.metric(name)
    assert found is not None
    metric, is_rate = found
    samples = history.samples(node, key, metric, is_rate=is_rate, begin=begin, end=end)
    return [value for _, value in samples]


@pytest.mark.parametrize("in_memory", [False, True])
def test_a_value_that_does_not_change_is_in_every_sample(tmp_path: Path, in_memory: bool) -> None:
    store = store_in(None if in_memory else tmp_path)
    for second in range(5):
        store.write(second, tree(0 if second < 3 else 7))
    assert read(store.history()) == [0, 0, 0, 7, 7]
    assert read(store.history(), begin=2000, end=4000) == [0, 7]
    assert read(store.history(), "entered_per_s") == [0, 0, 7, 0]
    assert read(store.history(), "entered_per_s", begin=3000) == [7, 0]
    store.close(5.0)


def test_an_idle_server_writes_few_rows(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    for second in range(120):
        store.write(second, tree(1))
    with sqlite3.connect(tmp_path / "statistics.db") as connection:
        [[count]] = connection.execute("SELECT count(*) FROM figures")
    connection.close()
    assert count <= 3 * len(NODE_AT)
    assert read(store.history()) == [1] * 120
    store.close(120.0)


def test_an_object_that_ends_has_no_values_any_more(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    store.write(0, tree(1))
    store.write(1, {})
    store.write(2, tree(5))
    assert read(store.history()) == [1, 5]
    store.close(3.0)


def test_a_restart_leaves_a_gap_and_counters_begin_again(tmp_path: Path) -> None:
    first = store_in(tmp_path)
    first.write(0, tree(100))
    first.write(10, tree(120))
    first.close(11.0)
    second = store_in(tmp_path)
    second.write(50, {})
    second.write(60, tree(5))
    second.write(70, tree(25))
    assert read(second.history()) == [100, 120, 5, 25]
    assert read(second.history(), "entered_per_s") == [2, 2]
    second.close(71.0)


def test_starts_stops_and_crashes_are_listed(tmp_path: Path) -> None:
    stopped = store_in(tmp_path)
    stopped.close(5.0)
    crashed = store_in(tmp_path)
    crashed.write(7, {})
    crashed._connection.close()
    events = store_in(tmp_path).history().lifetimes()
    assert [event["event"] for event in events] == ["start", "stop", "start", "crash", "start"]
    assert events[3]["timestamp"] == "1970-01-01T00:00:07.000Z"


def test_old_samples_are_removed(tmp_path: Path) -> None:
    store = store_in(tmp_path, retention=100.0)
    for second in range(0, 1000, 10):
        store.write(second, tree(second, segments=second))
    assert read(store.history())[0] >= 890
    assert len(read(store.history())) == 11
    assert read(store.history(), "segments", "")[-1] == 990
    store.close(1000.0)


def test_samples_are_removed_on_request(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    for at in range(10):
        store.write(at, tree(7 if at < 8 else 8))
    assert store.truncate(6) == 6
    # The value was written once, before the first sample that is left.
    assert read(store.history()) == [7, 7, 8, 8]
    assert store.truncate(100) == 4
    assert read(store.history()) == []
    store.write(200, tree(8))
    assert read(store.history()) == [8]
    store.close(300)


def test_a_long_history_is_thinned() -> None:
    samples = [(timestamp(1000 + number), number % 7) for number in range(1000)]
    thin = thinned(samples, 100)
    assert 100 <= len(thin) <= 102
    # No spike is lost.
    assert {value for _, value in thin} == {6}
    assert thinned(samples, 1000) == samples
    # Metrics of one node have the same times.
    later = thinned([(at, "text") for at, _ in samples[1:]], 100)
    assert [at for at, _ in later] == [at for at, _ in thin]


def test_a_month_of_changes_stays_below_the_bound(tmp_path: Path) -> None:
    bound = 2 << 20
    store = store_in(tmp_path, max_size=bound)
    queues = [f"queue-{number}" for number in range(50)]
    sizes = []
    for sample in range(3000):
        figures = {name: {"entered": sample * 1000, "depth": sample} for name in queues}
        store.write(sample * 864, {"instance/queues": figures})
        sizes.append(store.size)
    assert max(sizes) <= bound + (4 << 20)  # with the log of SQLite
    assert (tmp_path / "statistics.db").stat().st_size <= bound
    values = read(store.history(), key="queue-1")
    assert values[-1] == 2999 * 1000
    assert len(values) > 90
    store.close(1.0)


def test_the_file_is_read_while_it_is_written(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    stop = threading.Event()
    failures: list[BaseException] = []

    def read_on() -> None:
        history = History.of_file(tmp_path / "statistics.db")
        while not stop.is_set():
            try:
                values = read(history)
                assert values == list(range(len(values)))
            except BaseException as error:
                failures.append(error)
                return

    store.write(0, tree(0))
    reader = threading.Thread(target=read_on)
    reader.start()
    for second in range(1, 300):
        store.write(second, tree(second))
    stop.set()
    reader.join()
    store.close(300.0)
    assert failures == []


def test_a_file_that_is_no_database_is_put_aside(tmp_path: Path) -> None:
    (tmp_path / "statistics.db").write_text("this is text " * 1000)
    store = store_in(tmp_path)
    store.write(0, tree(3))
    assert read(store.history()) == [3]
    assert (tmp_path / "statistics.db.unreadable").exists()
    store.close(1.0)


def test_a_file_with_a_damaged_page_is_put_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = store_in(tmp_path)
    for number in range(1, 4):
        store.write(number, tree(number))
    store.close(4.0)
    file = tmp_path / "statistics.db"
    whole = file.read_bytes()
    aside = tmp_path / "statistics.db.unreadable"
    for page in range(len(whole) // 4096):
        file.write_bytes(whole[: page * 4096] + b"\xff" * 4096 + whole[(page + 1) * 4096 :])
        caplog.clear()
        store = store_in(tmp_path)
        store.write(6.0, tree(7))
        assert read(store.history())[-1] == 7, page
        assert store.history().lifetimes()[-1]["event"] == "start"
        store.close(7.0)
        # A page that no sample needs can stay damaged.
        assert aside.exists() == any("cannot be read" in line for line in caplog.messages)
        assert aside.exists() or page > 2
        aside.unlink(missing_ok=True)


def test_the_last_sample_of_a_stopped_server_is_there(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "admin": {"interval": "1s"},
        "queue": {"name": "jobs", "message_type": "json"},
    }
    with quire.testing.server(tmp_path, **settings) as server, quire.Client(server.url) as client:
        client.publish("jobs", {})
        client.flush()
        history = History.of_file(tmp_path / "statistics.db")
        deadline = time.monotonic() + PATIENCE
        while not history.latest()[1]["instance/queues"] and time.monotonic() < deadline:
            threading.Event().wait(0.01)
    at, last = History.of_file(tmp_path / "statistics.db").latest()
    assert last["instance/queues"]["jobs"]["entered"] == 1
    assert last["instance"]["name"] == server.config.name
    assert at.endswith("Z")


class Clock:
    """Figures that take a given time."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.rates: dict[str, Any] = {}

    def take(self) -> dict[str, Any]:
        time.sleep(self.seconds)
        return {}


def test_an_interval_without_a_sample_is_counted(tmp_path: Path) -> None:
    figures: Any = Clock(0.05)
    sampler = Sampler(figures, store_in(tmp_path), 0.02)
    sampler.start()
    deadline = time.monotonic() + PATIENCE
    while sampler.figures()["samples"] < 4 and time.monotonic() < deadline:
        threading.Event().wait(0.01)
    missed = sampler.figures()["missed"]
    sampler.close()
    assert missed >= 4


def test_a_sample_that_fails_is_counted_and_the_next_one_is_taken(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    figures: Any = Clock(0.0)
    calls: list[int] = []

    def take() -> dict[str, Any]:
        calls.append(1)
        if len(calls) == 1:
            raise KeyError("a bug")
        return {}

    figures.take = take
    sampler = Sampler(figures, store_in(tmp_path), 0.01)
    sampler.start()
    wait_until(lambda: sampler.figures()["samples"] >= 1)
    sampler.close()
    assert sampler._missed >= 1
    assert "the figures could not be read" in caplog.text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("20261127T113000.5Z", 1795779000500),
        ("2026-11-27T11:30:00.5Z", 1795779000500),
        ("20261127T1130", 1795779000000),
        ("20261127T11", 1795777200000),
        ("20261127", 1795737600000),
        ("2026", 1767225600000),
        ("-15m", 100_000),
    ],
)
def test_times_are_read(text: str, expected: int) -> None:
    assert milliseconds(text, "t0", now=1000.0) == expected


def test_a_written_time_is_read_as_the_same_millisecond() -> None:
    for time_ms in range(1_764_000_000_000, 1_764_000_002_000):
        assert milliseconds(timestamp(time_ms / 1000), "t0") == time_ms


@pytest.mark.parametrize(
    "text", ["", "x", "20261301", "20261127T25", "-x", "15m", "20261127X11", "٢٣٢٦", "2026-01-٣1"]
)
def test_other_times_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="t0"):
        milliseconds(text, "t0")


def test_a_reversed_range_is_refused() -> None:
    with pytest.raises(ConfigError, match="after t1"):
        span("20270101", "20260101", ("t0", "t1"))


def test_a_leaf_has_its_history(tmp_path: Path) -> None:
    admin = {"address": "127.0.0.1:0", "interval": "1s"}
    with (
        quire.testing.server(tmp_path, admin=admin) as server,
        httpx.Client(base_url=server.admin_url or "", timeout=PATIENCE) as page,
    ):
        path = "/quire/instance/journal/segments"
        deadline = time.monotonic() + PATIENCE
        while not page.get(f"{path}.json?t0=-1h").json()["samples"] and time.monotonic() < deadline:
            threading.Event().wait(0.05)
        samples = page.get(f"{path}.json?t0=-1h").json()["samples"]
        assert samples[0][0].endswith("Z")
        rows = page.get(f"{path}.csv?t0=-1h").text.splitlines()
        assert rows[0] == "timestamp,segments"
        assert page.get(f"{path}.xml?t0=-1h").text.count("<sample ") >= len(samples)
        bad = page.get(f"{path}.json?t0=2027&t1=2026")
        assert (bad.status_code, bad.json()["error"]["code"]) == (400, "bad_value")
        assert page.get("/quire/instance/lifetimes.json").json()["value"][0]["event"] == "start"
        assert json.loads(page.get("/quire/instance/statistics.json").text)["missed"] == 0
