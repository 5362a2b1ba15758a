"""A few rounds of `tests/client_crashes.py`: publishers and consumers with stores, killed with
their server."""

from __future__ import annotations

import random
from pathlib import Path

from client_crashes import client_crash_rounds


def test_killed_clients_and_servers_lose_nothing_and_repeat_nothing(tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    assert client_crash_rounds(tmp_path, 6, seed) > 0
