"""A server with actions is killed with `kill -9` while they run. Each message starts its action at least once."""

from __future__ import annotations

import contextlib
import random
import threading
from pathlib import Path
from typing import Any

import pytest
import quire
from quire.testing import ServerProcess
from support.waiting import wait_until

COPY: dict[str, Any] = {
    "name": "copy",
    "on": {"publish": "orders"},
    "do": {"publish": {"topic": "copies", "data": "{{DATA}}"}},
}
GONE: dict[str, Any] = {
    "name": "gone",
    "on": {"delete_message": "records"},
    "do": {"publish": {"topic": "deleted", "data": "{{DATA}}"}},
}
FAILED: dict[str, Any] = {
    "name": "failed",
    "on": {"expire_message": "jobs"},
    "do": {"publish": {"topic": "dead", "data": "{{DATA}}"}},
}


def found(url: str, topic: str) -> list[int]:
    with quire.Client(url) as client:
        return [each.json()["id"] for each in client.subscribe(topic, bookmark=quire.EPOCH, until=quire.NOW)]


@pytest.mark.parametrize("seed", [1, 2])
def test_a_trigger_continues_at_its_place_after_kill_9(tmp_path: Path, seed: int) -> None:
    settings: dict[str, Any] = {
        "action": [COPY, GONE, FAILED],
        "sow_topic": {"name": "records", "message_type": "json", "key": "/id"},
        "queue": {"name": "jobs", "message_type": "json", "expiration": "10ms"},
    }
    random_, is_over, kills = random.Random(seed), threading.Event(), 4
    with ServerProcess(tmp_path, **settings) as server:
        wait_until(lambda: (tmp_path / "actions/begun.json").exists())

        def kill() -> None:
            for _ in range(kills):
                is_over.wait(random_.uniform(0.2, 0.6))
                server.kill()
                server.start()
            is_over.set()

        killer = threading.Thread(target=kill)
        killer.start()
        count = 0
        with quire.Client(server.url, name="worker") as client:
            while not is_over.is_set():
                for topic in ("orders", "records", "jobs"):
                    client.publish(topic, {"id": count})
                # After a lost connection the records are removed, and only their number is unknown.
                with contextlib.suppress(quire.DisconnectedError):
                    client.sow_delete("records", filter=f"/id = {count}")
                count += 1
            client.flush()
        killer.join()
        everything = set(range(count))
        for topic in ("copies", "deleted", "dead"):
            wait_until(lambda topic=topic: set(found(server.url, topic)) >= everything)  # type: ignore[misc]
            assert set(found(server.url, topic)) == everything
            # A kill interrupts one run, and the place of the last runs may not be on the disk.
            repeated = len(found(server.url, topic)) - count
            assert repeated <= 20 * kills
    assert count > 50
