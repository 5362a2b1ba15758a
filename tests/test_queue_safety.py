"""Queues with default settings are safe, messages that leave a queue are reported and kept, and
commands without an effect fail."""

from __future__ import annotations

import json
import logging
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import quire
from quire.testing import server
from support.command_line import quire as run
from support.command_line import started
from support.waiting import PATIENCE, wait_until

JOBS: dict[str, Any] = {"name": "jobs", "message_type": "json"}


def core_of(**settings: Any) -> dict[str, Any]:
    """A queue as the core reads it."""
    core: dict[str, Any] = json.loads(quire.Config(queue={**JOBS, **settings}).to_core())["queues"][0]
    return core


def test_a_queue_has_a_lease_period_and_growing_retry_delays_by_default() -> None:
    core = core_of()
    assert core["lease_period_ns"] == 300 * 10**9
    assert core["retry_delay_ns"] == [100_000_000, 10**9, 10 * 10**9, 60 * 10**9]


def test_the_lease_period_and_the_retry_delays_can_be_switched_off(tmp_path: Path) -> None:
    core = core_of(lease_period="disabled", retry_delay=[])
    assert (core["lease_period_ns"], core["retry_delay_ns"]) == (None, [])
    file = tmp_path / "q.toml"
    file.write_text(
        '[[queue]]\nname = "jobs"\nmessage_type = "json"\nlease_period = "disabled"\nretry_delay = []\n'
    )
    [queue] = quire.Config.load(file).queue
    assert (queue.lease_period, queue.retry_delay) == ("disabled", ())
    with pytest.raises(quire.ConfigError, match=r'"30s", or "disabled", got "never"'):
        core_of(lease_period="never")


def test_an_at_most_once_queue_has_neither(caplog: pytest.LogCaptureFixture) -> None:
    core = core_of(semantics="at-most-once")
    assert (core["lease_period_ns"], core["retry_delay_ns"]) == (None, [])
    with (
        caplog.at_level(logging.WARNING),
        quire.Client("memory:", config=quire.Config(queue={**JOBS, "semantics": "at-most-once"})),
    ):
        pass
    assert "has no effect" not in caplog.text


def test_a_message_that_always_fails_is_delivered_a_few_times_a_minute() -> None:
    queue = quire.Queue()
    queue.subscribe()
    queue.enqueue({"n": 1})
    deliveries = []
    while queue.now < 180:
        for delivery in queue.dispatch():
            deliveries.append(queue.now)
            queue.cancel(delivery.position)
        at = queue.next_tick
        assert at is not None
        queue.tick(at)
    assert deliveries == pytest.approx([0, 0.1, 1.1, 11.1, 71.1, 131.1])


def test_a_created_queue_has_the_defaults_and_a_reset_gives_them_back() -> None:
    with quire.Client("memory:") as client:
        client.create_queue("jobs", lease_period="disabled", retry_delay=["1s"])
        assert client.create_queue("jobs", lease_period="disabled", retry_delay=["1s"]) is False
        assert client.alter_queue("jobs", lease_period=None, retry_delay=None) is True
        # These are the settings of a queue that sets nothing.
        assert client.create_queue("jobs") is False
        assert client.alter_queue("jobs", lease_period="5m") is False
        assert client.alter_queue("jobs", lease_period="disabled") is True


def test_a_message_that_is_cancelled_again_and_again_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    config = quire.Config(queue={**JOBS, "retry_delay": []})
    with caplog.at_level(logging.WARNING), quire.Client("memory:", config=config) as client:
        client.publish("jobs", 1)
        client.flush(PATIENCE)
        jobs = client.subscribe("jobs")
        for _ in range(50):
            jobs.get(PATIENCE).cancel()
        client.flush(PATIENCE)
        wait_until(lambda: "was cancelled" in caplog.text)
        assert caplog.text.count("was cancelled") == 1


def test_the_figures_of_a_queue_have_typed_attributes() -> None:
    with quire.Client("memory:", config=quire.Config(queue=JOBS)) as client:
        client.publish("jobs", 1)
        client.flush(PATIENCE)
        stats = client.queue_stats("jobs")
        figures = stats["jobs"]
        assert (figures.depth, figures["depth"], {**figures}["expired"]) == (1, 1, 0)
        assert set(figures) == set(quire.QueueFigures.__annotations__)
        with pytest.raises(KeyError, match=r"queue_stats\('jobs'\)\['jobs'\]\.depth"):
            stats["depth"]
        with pytest.raises(AttributeError, match="no figure 'dept'"):
            _ = figures.dept


def test_figures_that_count_begin_at_the_start(tmp_path: Path) -> None:
    with server(tmp_path, queue=JOBS) as running, quire.Client(running.url) as client:
        for number in range(5):
            client.publish("jobs", number)
        client.flush(PATIENCE)
        jobs = client.subscribe("jobs", max_backlog=5)
        held = [jobs.get(PATIENCE) for _ in range(5)]
        for message in held[1:4]:
            message.ack()
        client.flush(PATIENCE)
    with server(tmp_path, queue=JOBS) as running, quire.Client(running.url) as client:
        figures = client.queue_stats("jobs")["jobs"]
        assert (figures.depth, figures.entered, figures.acknowledged) == (2, 2, 0)


# What leaves a queue


def left_out(caplog: pytest.LogCaptureFixture, count: int) -> list[str]:
    """The lines about messages that are left out: the thread of the server writes them."""

    def lines() -> list[str]:
        messages = [record.getMessage() for record in caplog.records]
        return [message for message in messages if "not acknowledged" in message]

    wait_until(lambda: len(lines()) >= count)
    found = lines()
    caplog.clear()
    return found


def test_messages_that_a_filter_leaves_out_come_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with server(tmp_path, queue=JOBS) as running, quire.Client(running.url) as client:
        for number in range(10):
            client.publish("jobs", {"i": number})
        client.flush(PATIENCE)
    for _ in range(2):
        with (
            server(tmp_path, queue={**JOBS, "filter": "/i > 6"}) as running,
            quire.Client(running.url) as client,
        ):
            figures = client.queue_stats("jobs")["jobs"]
            assert (figures.depth, figures.left_out) == (3, 7)
        [line] = left_out(caplog, 1)
        assert "7 messages that are not acknowledged are left out" in line
    with server(tmp_path, queue=JOBS) as running, quire.Client(running.url) as client:
        assert client.queue_stats("jobs")["jobs"].depth == 10
    assert left_out(caplog, 0) == []


def test_a_queue_that_left_the_configuration_is_dropped_by_a_command(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with server(tmp_path, queue=JOBS) as running, quire.Client(running.url) as client:
        client.publish("jobs", 1)
        client.flush(PATIENCE)
    with server(tmp_path) as running:
        assert "left the configuration" in left_out(caplog, 1)[0]
        with (
            quire.Client(running.url) as client,
            pytest.raises(quire.QueueExistsError, match="not acknowledged: 1"),
        ):
            client.create_queue("jobs")
        refused = run("queue", "drop", "jobs", url=running.url)
        assert (refused.returncode, "add --yes to give them up" in refused.stderr) == (1, True), refused
        dropped = run("queue", "drop", "jobs", "--yes", url=running.url)
        assert (dropped.returncode, dropped.stdout) == (0, "queue jobs dropped, 1 message\n"), dropped
        assert run("queue", "drop", "jobs", "--yes", url=running.url).returncode == 1
    with server(tmp_path, queue=JOBS) as running, quire.Client(running.url) as client:
        # A new queue: its recovery point is the beginning of the log.
        assert client.queue_stats("jobs")["jobs"].depth == 1
    assert left_out(caplog, 0) == []


def test_purge_of_a_strict_queue_fails(tmp_path: Path) -> None:
    with (
        server(tmp_path, queue={**JOBS, "leasing": "strict"}) as running,
        quire.Client(running.url) as client,
    ):
        client.publish("jobs", 1)
        client.flush(PATIENCE)
        said = run("queue", "purge", "jobs", "--all", url=running.url)
        assert (said.returncode, said.stdout) == (1, "")
        assert 'has leasing = "strict"' in said.stderr
        assert client.queue_stats("jobs")["jobs"].depth == 1


def test_a_pattern_that_matches_queues_says_what_it_does_not_show(tmp_path: Path) -> None:
    with server(tmp_path, queue=JOBS) as running:
        with started("subscribe", "^j", "--timeout", "1", url=running.url) as process:
            assert process.wait(PATIENCE) == 0
        said = run("subscribe", "^j", "--timeout", "0.1", url=running.url)
        assert (
            "^j also matches 1 queue: jobs. Messages of topics with these names are not shown" in said.stderr
        )
        said = run("subscribe", "^other", "--timeout", "0.1", url=running.url)
        assert "queue" not in said.stderr


# Pairs

PAIR = """\
name = "east-{me}"

[replication]
address = "127.0.0.1:910{me}"

[[replication.destination]]
name = "east-{other}"
addresses = ["127.0.0.1:910{other}"]
sync_type = "sync"

[[replication.destination.topic]]
name = "^"
message_type = "json"

[[queue]]
name = "jobs"
message_type = "json"
"""


def test_a_queue_in_a_pair_is_a_mistake_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "east-1.toml"
    file.write_text(PAIR.format(me=1, other=2))
    said = run("config", "check", str(file))
    assert said.returncode == 2, said
    assert f"{file}:16: queue[0].name: " in said.stderr
    assert "[[local_queue]]" in said.stderr
    file.write_text(PAIR.format(me=1, other=2).replace("[[queue]]", "[[local_queue]]"))
    assert run("config", "check", str(file)).returncode == 0


def test_letters_of_a_local_queue_on_a_replicated_topic_are_a_warning(tmp_path: Path) -> None:
    file = tmp_path / "east-1.toml"
    text = PAIR.format(me=1, other=2).replace("[[queue]]", "[[local_queue]]")
    file.write_text(text + 'dead_letter_topic = "dead"\n')
    said = run("config", "check", str(file))
    assert said.returncode == 0
    assert "a redrive on each publishes every message twice" in said.stderr


# The process


def test_only_the_user_of_the_server_reads_its_files(tmp_path: Path) -> None:
    data, store = tmp_path / "data", tmp_path / "stores" / "bookmarks"
    with (
        server(
            data, queue=JOBS, sow_topic={"name": "last", "message_type": "json", "key": ["/k"]}
        ) as running,
        quire.Client(running.url, name="a", bookmark_store=str(store)) as client,
    ):
        client.publish("jobs", 1)
        client.flush(PATIENCE)
    assert stat.S_IMODE((data / "journal").stat().st_mode) == 0o700
    files = [path for path in [*data.rglob("*"), *store.parent.rglob("*")] if path.is_file()]
    assert len(files) >= 5
    assert {path.name: oct(stat.S_IMODE(path.stat().st_mode)) for path in files} == {
        path.name: oct(0o600) for path in files
    }


def test_new_files_can_be_read_by_those_who_may_list_their_directory(tmp_path: Path) -> None:
    (tmp_path / "journal").mkdir(mode=0o700)
    (tmp_path / "journal").chmod(0o750)
    with server(tmp_path):
        pass
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "journal").glob("*.journal")}
    assert modes == {0o640}


def test_a_link_in_place_of_a_temporary_file_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "journal").mkdir()
    for name in ("clients.writing", "queues.writing"):
        (tmp_path / "journal" / name).symlink_to(victim)
    with server(tmp_path, queue=JOBS):
        pass
    assert victim.read_text() == "precious"


def test_a_server_without_a_thread_for_its_journal_says_which_limit_to_raise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start: Callable[[threading.Thread], None] = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if threading.current_thread().name == "quire-server":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    running = quire.Server(quire.Config(data_directory=tmp_path, transport={"address": "127.0.0.1:0"}))
    with pytest.raises(quire.LimitExceededError, match="ulimit -v"):
        running.start()
