"""Nothing acknowledged is missing, doubled or out of order after `kill -9` (`server_crashes.py` and
`queue_crashes.py` say what is compared).

`make crash ROUNDS=1000` and `make crash KIND=queue ROUNDS=200` run the same for longer.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
import queue_crashes
from server_crashes import crash_rounds
from support.crash_harness import Harness, repeat


@pytest.mark.parametrize("seed", [1, 2])
def test_a_server_killed_at_random_moments_keeps_what_it_acknowledged(tmp_path: Path, seed: int) -> None:
    assert crash_rounds(tmp_path, rounds=5, seed=seed) > 0


@pytest.mark.parametrize(("seed", "has_state_file"), [(1, False), (2, True)])
def test_a_server_or_a_worker_killed_loses_no_job_and_gives_none_that_is_gone(
    tmp_path: Path, seed: int, has_state_file: bool
) -> None:
    published, _ = queue_crashes.crash_rounds(tmp_path, rounds=5, seed=seed, has_state_file=has_state_file)
    assert published > 0


def test_a_job_that_is_given_after_it_is_gone_is_found_when_it_is_gone_again(tmp_path: Path) -> None:
    (tmp_path / "worker-1-1.log").write_text("given 1 10\ngone 1 20\ngiven 1 30\ngone 1 40\n")
    with pytest.raises(AssertionError, match="job 1 was given again"):
        queue_crashes.check(tmp_path, published=1)


@pytest.mark.parametrize("error", [AssertionError, KeyboardInterrupt])
def test_the_files_of_rounds_that_fail_or_are_interrupted_are_kept(
    tmp_path: Path,
    error: type[BaseException],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def ended(directory: Path, _rounds: int, _seed: int) -> str:
        (directory / "history.jsonl").write_text("{}\n")
        raise error

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(error):
        repeat(Harness(run=ended, rounds=1), 1, seed=7)
    [kept] = tmp_path.glob("*/history.jsonl")
    assert f"the files are in {kept.parent}" in capsys.readouterr().out
