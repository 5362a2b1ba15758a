"""A table, a query and the log have the same records after `kill -9` (`table_crashes.py` says what
is compared)."""

from __future__ import annotations

from pathlib import Path

import pytest
from table_crashes import crash_rounds


@pytest.mark.parametrize("seed", [1, 2])
def test_a_server_and_a_subscriber_killed_at_random_moments_leave_all_copies_of_the_records_equal(
    tmp_path: Path, seed: int
) -> None:
    done = crash_rounds(tmp_path, rounds=4, seed=seed)
    assert done.changes > 0
    assert (done.server_kills, done.subscriber_kills) == (2, 2)
