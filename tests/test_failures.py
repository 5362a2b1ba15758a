"""The log of what handlers raise: one line per message and minute, with the number of failures that
were left out."""

from __future__ import annotations

import itertools

import pytest
import quire
from quire.client import _failures
from support.waiting import PATIENCE


def received(count: int) -> list[quire.Message]:
    with quire.Client(f"memory:failures-{next(PLACES)}") as client:
        for number in range(count):
            client.publish("t", {"n": number})
        client.flush(PATIENCE)
        subscription = client.subscribe("t", bookmark=quire.EPOCH)
        return [subscription.get(PATIENCE) for _ in range(count)]


PLACES = itertools.count()


def test_a_message_that_fails_again_is_logged_once_a_minute_with_a_count(
    caplog: pytest.LogCaptureFixture,
) -> None:
    first, second = received(2)
    now = 0.0
    log = _failures.FailureLog(lambda: now)
    for at in (0.0, 1.0, 59.9, 60.0, 61.0, 200.0, 300.0):
        now = at
        log.log("a handler failed", first, RuntimeError("again"))
    log.log("a handler failed", second, RuntimeError("another message"))
    lines = [
        record.getMessage().replace(repr(first), "first").replace(repr(second), "second")
        for record in caplog.records
    ]
    left_out = "more failures of this message were not logged"
    assert lines == [
        "a handler failed: first",
        f"a handler failed (2 {left_out}): first",
        f"a handler failed (1 {left_out}): first",
        "a handler failed: first",
        "a handler failed: second",
    ]
    assert all(record.exc_info for record in caplog.records)


def test_the_memory_of_the_log_is_bounded(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_failures, "MESSAGES_MAX", 2)
    messages = received(3)
    log = _failures.FailureLog(lambda: 0.0)
    for message in [*messages, messages[0], messages[2]]:
        log.log("failed", message, RuntimeError("no"))
    assert len(caplog.records) == 4, "the first was forgotten, the third was not"
