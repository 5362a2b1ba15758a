"""Clients receive every message that the server has, also one that is larger than what they may publish."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import quire
from quire.testing import server
from support.waiting import PATIENCE

TRANSPORTS = [
    {"name": "services", "address": "127.0.0.1:0"},
    {"name": "guests", "address": "127.0.0.1:0", "max_message_size": "64KB"},
]
LARGE = "y" * 300_000


def sizes(subscription: quire.Subscription, count: int) -> list[int]:
    return [len(subscription.get(timeout=PATIENCE).data) for _ in range(count)]


def connection_number(running: quire.Server) -> int:
    numbers: list[int] = [client["connection"] for client in running.stats()["clients"]]
    return max(numbers)


def test_a_client_receives_messages_that_are_larger_than_what_it_may_publish(tmp_path: Path) -> None:
    with (
        quire.Server(quire.Config(data_directory=tmp_path, transport=TRANSPORTS)) as running,
        quire.Client(running.urls["services"], name="service") as service,
        quire.Client(running.urls["guests"], name="guest") as guest,
    ):
        live = guest.subscribe("news")
        replay = guest.subscribe("news", bookmark=quire.EPOCH)
        number = connection_number(running)
        for text in ("y", LARGE, "y"):
            service.publish("news", {"x": text})
        service.flush(PATIENCE)
        expected = [len('{"x":"y"}'), len(LARGE) + len('{"x":""}'), len('{"x":"y"}')]
        assert sizes(live, 3) == expected
        assert sizes(replay, 3) == expected
        assert connection_number(running) == number
        with pytest.raises(quire.MessageTooLargeError):
            guest.publish("news", {"x": LARGE})


def test_a_log_is_delivered_after_a_start_with_a_lower_limit(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "queue": {"name": "jobs", "message_type": "json"},
        "sow_topic": {"name": "prices", "message_type": "json", "key": "/id"},
    }
    data = {"id": 1, "x": LARGE}
    with server(tmp_path, **settings) as running, quire.Client(running.url, name="service") as service:
        for topic in ("news", "jobs", "prices"):
            service.publish(topic, data)
            service.publish(topic, {"id": 2})
        service.flush(PATIENCE)
    limited = {"address": "127.0.0.1:0", "max_message_size": "64KB"}
    with (
        server(tmp_path, transport=limited, **settings) as running,
        quire.Client(running.url, name="guest") as guest,
    ):
        replay = guest.subscribe("news", bookmark=quire.EPOCH)
        assert [replay.get(timeout=PATIENCE).json()["id"] for _ in range(2)] == [1, 2]
        assert sorted(record.json()["id"] for record in guest.sow("prices")) == [1, 2]
        jobs = guest.subscribe("jobs", max_backlog=2)
        for expected in (1, 2):
            job = jobs.get(timeout=PATIENCE)
            assert job.json()["id"] == expected
            job.ack()
        guest.flush(PATIENCE)


def test_a_command_that_is_too_large_for_the_server_is_an_error(tmp_path: Path) -> None:
    limited = {"address": "127.0.0.1:0", "max_message_size": "64KB"}
    topic = {"name": "prices", "message_type": "json", "key": "/id"}
    keys = [f"{number:0200d}" for number in range(2_000)]
    with (
        server(tmp_path, transport=limited, sow_topic=topic) as running,
        quire.Client(running.url, name="client") as client,
    ):
        with pytest.raises(quire.MessageTooLargeError, match="fewer keys"):
            client.sow("prices", keys=keys)
        with pytest.raises(quire.MessageTooLargeError, match="fewer keys"):
            client.sow_delete("prices", keys=keys)
        with pytest.raises(quire.MessageTooLargeError, match="shorter filter"):
            client.subscribe("news", filter="/x = '" + LARGE + "'")
        client.publish("prices", {"id": 1})
        client.flush(PATIENCE)
        assert len(list(client.sow("prices"))) == 1


def test_config_check_warns_of_transports_with_different_limits(tmp_path: Path) -> None:
    config = quire.Config(data_directory=tmp_path, transport=TRANSPORTS)
    (warning,) = config.check()
    assert 'transport "guests": clients may publish 65536 bytes' in warning
    small = {"address": "127.0.0.1:0", "max_client_backlog": "1MB", "max_message_size": "500MB"}
    backlog, unfinished = quire.Config(data_directory=tmp_path, transport=small).check()
    assert "max_client_backlog is 1048576 bytes" in backlog
    assert "max_unfinished is 268435456 bytes" in unfinished
