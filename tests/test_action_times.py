"""The times of schedules, of records that match for a while, and of parts that are stuck, without a server."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import pytest
from quire.actions._conditions import Conditions
from quire.actions._schedule import Schedule
from quire.actions._triggers import Timetable
from quire.actions._watchdog import STUCK, Watch, Watchdog


@pytest.mark.parametrize(
    ("text", "now", "after"),
    [
        ("4h", "2026-01-05 10:00", "2026-01-05 12:00"),
        ("23:00Z", "2026-01-05 10:00", "2026-01-05 23:00"),
        ("09:59Z", "2026-01-05 10:00", "2026-01-06 09:59"),
        ("Saturday at 00:30Z", "2026-01-05 10:00", "2026-01-10 00:30"),
        ("monday at 10:00Z", "2026-01-05 10:00", "2026-01-12 10:00"),
    ],
)
def test_a_schedule_has_its_next_time(text: str, now: str, after: str) -> None:
    started = at("2026-01-05 08:00")
    assert Schedule.parse(text).after(at(now), started) == at(after)


def at(text: str) -> float:
    import calendar

    return float(calendar.timegm(time.strptime(text, "%Y-%m-%d %H:%M")))


@pytest.mark.parametrize("text", ["24:00", "12:60", "Someday at 10:00", "0s", "noon", "", "100ms", "٣:00"])
def test_a_bad_schedule_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        Schedule.parse(text)


@pytest.mark.parametrize("text", ["02:30", "03:30", "01:59"])
def test_a_local_time_comes_once_a_day_when_the_clocks_change(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        state: Any = None
        for first in ("2026-03-27 22:00", "2026-10-23 22:00"):
            now = at(first)
            timetable = Timetable([(state, Schedule.parse(text))], now)
            days = []
            for minute in range(5 * 24 * 60):
                for _ in timetable.due(now + 60 * minute):
                    days.append(time.localtime(now + 60 * minute).tm_yday)
            assert days == list(range(days[0], days[0] + 5))
    finally:
        monkeypatch.undo()
        time.tzset()


def test_times_that_were_missed_are_skipped() -> None:
    state: Any = None
    timetable = Timetable([(state, Schedule.parse("1m"))], 0.0)
    assert list(timetable.due(59.0)) == []
    assert len(list(timetable.due(1000.0))) == 1
    assert list(timetable.due(1001.0)) == []
    assert len(list(timetable.due(1020.0))) == 1


def test_a_record_is_due_once_and_only_after_its_time() -> None:
    conditions, key = Conditions(10.0), ("t", "k")
    conditions.matched(key, "first", 0.0)
    conditions.matched(key, "second", 5.0)
    assert list(conditions.due(9.9)) == []
    assert list(conditions.due(10.0)) == ["second"]
    assert list(conditions.due(100.0)) == []
    assert conditions.left(key) is False
    conditions.matched(key, "again", 20.0)
    assert conditions.left(key) is True
    conditions.matched(key, "once more", 25.0)
    assert list(conditions.due(30.0)) == []
    assert list(conditions.due(35.0)) == ["once more"]


# The watchdog


def test_the_watchdog_reports_a_part_once_and_when_it_runs_again() -> None:
    watch = Watch()
    answers: list[Callable[[], None]] = []
    watch.add("loop", answers.append)
    assert list(watch.look(0.0)) == []
    answers.pop()()
    assert list(watch.look(1.0)) == []
    assert list(watch.look(1.0 + STUCK - 0.1)) == []
    assert list(watch.look(1.0 + STUCK)) == [("loop", STUCK, True)]
    assert list(watch.look(2.0 + STUCK)) == []
    answers.pop()()
    assert list(watch.look(3.0 + STUCK)) == [("loop", 0.0, False)]


def test_a_stuck_part_is_logged_with_the_stacks_of_all_threads(caplog: pytest.LogCaptureFixture) -> None:
    class Held:
        def call_soon_threadsafe(self, *_: object) -> None: ...

    told: list[tuple[str, float]] = []
    held: Any = Held()
    watchdog = Watchdog(held, lambda *stuck: told.append(stuck))
    with caplog.at_level(logging.INFO, logger="quire.server"):
        watchdog.look(0.0)
        watchdog.look(STUCK)
    assert told == [("event loop", STUCK)]
    ids = [getattr(record, "line_id", "") for record in caplog.records]
    assert ids[0] == "01-0001"
    assert ids.count("01-0022") >= 1
    assert "test_a_stuck_part_is_logged" in caplog.text
