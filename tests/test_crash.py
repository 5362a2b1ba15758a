"""Nothing acknowledged is missing, doubled or out of order after `kill -9` (`crashes.py` says what is compared).

`make crash ROUNDS=1000` runs the same for longer.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from crashes import crash_rounds


@pytest.mark.parametrize("seed", [1, 2])
def test_a_server_killed_at_random_moments_keeps_what_it_acknowledged(tmp_path: Path, seed: int) -> None:
    assert crash_rounds(tmp_path, rounds=5, seed=seed) > 0
