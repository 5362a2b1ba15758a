"""A server with actions is killed with `kill -9` while they run (`action_crashes.py` says what is compared).

`make crash KIND=action ROUNDS=50` runs the same for longer.
"""

from __future__ import annotations

from pathlib import Path

import action_crashes
import pytest


@pytest.mark.parametrize("seed", [1, 2])
def test_a_trigger_continues_at_its_place_after_kill_9(tmp_path: Path, seed: int) -> None:
    count, _ = action_crashes.crash_rounds(tmp_path, rounds=4, seed=seed)
    assert count > 0


def test_a_lost_run_and_one_out_of_order_are_found() -> None:
    assert action_crashes.check("copies", [1, 2, 1, 2, 3], [1, 2, 3]) == 2
    with pytest.raises(AssertionError, match="copies: 1 are missing, the first is 2"):
        action_crashes.check("copies", [1, 3], [1, 2, 3])
    with pytest.raises(AssertionError, match="a run came before the run of an earlier message"):
        action_crashes.check("copies", [1, 3, 2], [1, 2, 3])
