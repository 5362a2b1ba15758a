"""A server that gets another name: its queues continue, also after `kill -9`, and an engine in a
program takes part."""

from __future__ import annotations

from pathlib import Path

import pytest
import quire
from quire.testing import ServerProcess
from support.waiting import PATIENCE

JOBS = {"name": "jobs", "message_type": "json", "lease_period": "1h", "dead_letter_topic": "dead"}


def work(url: str, config: quire.Config | None = None) -> list[int]:
    """Acknowledges the second of the jobs and expires the third one. Gives the jobs that the queue had."""
    with quire.Client(url, config=config) as client:
        depth = int(client.queue_stats("jobs")["jobs"]["depth"])
        jobs = client.subscribe("jobs", max_backlog=depth)
        held = [jobs.get(PATIENCE) for _ in range(depth)]
        held[1].ack()
        held[2].expire()
        client.flush(PATIENCE)
        return [message.json() for message in held]


def dead_letters(url: str, count: int) -> list[int]:
    with quire.Client(url) as client:
        dead = client.subscribe("dead", bookmark=quire.EPOCH)
        letters = [dead.get(PATIENCE).json()["message"] for _ in range(count)]
        assert dead.completed.wait(PATIENCE)
        with pytest.raises(TimeoutError):
            dead.get(0)
        return letters


@pytest.mark.parametrize("end", ["kill", "terminate"])
def test_a_server_with_another_name_delivers_no_settled_job_again(tmp_path: Path, end: str) -> None:
    for name, left in (("up", [0, 1, 2, 3, 4, 5, 6]), ("renamed", [0, 3, 4, 5, 6]), ("up", [0, 5, 6])):
        with ServerProcess(tmp_path, name=name, queue=[JOBS]) as process:
            if len(left) == 7:
                with quire.Client(process.url) as client:
                    client.publish_many("jobs", left)
                    client.flush(PATIENCE)
            assert work(process.url) == left
            getattr(process, end)()
    with ServerProcess(tmp_path, name="third", queue=[JOBS]) as process:
        assert dead_letters(process.url, 3) == [2, 4, 6]


def test_an_engine_with_another_name_continues_the_queues_of_a_server(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, name="up", queue=[JOBS]) as process:
        with quire.Client(process.url) as client:
            for number in range(7):
                client.publish("jobs", number)
            client.flush(PATIENCE)
        assert work(process.url) == [0, 1, 2, 3, 4, 5, 6]
        process.kill()
    assert work(f"file:{tmp_path / 'journal'}", quire.Config(name="embedded", queue=[JOBS])) == [
        0,
        3,
        4,
        5,
        6,
    ]
    with ServerProcess(tmp_path, name="up", queue=[JOBS]) as process:
        assert dead_letters(process.url, 2) == [2, 4]
        assert work(process.url) == [0, 5, 6]
