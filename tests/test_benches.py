"""The result files of the benches, and the page that shows them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

BENCHES = Path(__file__).parent.parent / "benches"
sys.path.append(str(BENCHES))

import page  # type: ignore[import-not-found]  # noqa: E402
import saved  # type: ignore[import-not-found]  # noqa: E402

#: Benches that the others start, and those of pytest, which `parts.py` runs.
WITHOUT_FIGURES = {"bare_server.py", "conftest.py", "latency_peers.py", "page.py", "recorded.py", "saved.py"}
WITHOUT_FIGURES |= {"stalls.py", "strangers.py", "variants.py"}


def test_the_page_of_benchmarks_is_up_to_date() -> None:
    text = page.PAGE.read_text(encoding="utf-8")
    assert text == page.text(text), "run `python benches/page.py`"


def test_the_page_of_benchmarks_shows_every_result_file() -> None:
    shown = page.names(page.PAGE.read_text(encoding="utf-8"))
    assert sorted(shown) == sorted(path.stem for path in saved.RESULTS.glob("*.json"))


def test_every_bench_can_save_its_figures() -> None:
    programs = [*BENCHES.glob("*.py"), *(BENCHES / "spark").glob("*.py"), *BENCHES.glob("*/__main__.py")]
    for path in programs:
        if path.name not in WITHOUT_FIGURES and not path.name.startswith("test_"):
            assert "saved.save(" in path.read_text(), path


def test_a_run_replaces_the_earlier_run_of_the_same_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(saved, "RESULTS", tmp_path)
    program = str(BENCHES / "end_to_end.py")
    for rate, messages_per_s in (("1", 10), ("2", 20), ("1", 30)):
        monkeypatch.setattr(sys, "argv", [program, "--save", "some", "latency", "--rate", rate])
        saved.save("some", {f"{rate}/s": {"messages_per_s": messages_per_s}})
    runs = json.loads((tmp_path / "some.json").read_text())["runs"]
    assert [(run["command"], run["rows"]) for run in runs] == [
        ("python benches/end_to_end.py latency --rate 1", {"1/s": {"messages_per_s": 30}}),
        ("python benches/end_to_end.py latency --rate 2", {"2/s": {"messages_per_s": 20}}),
    ]
    assert all("processor" in run["machine"] and run["version"] for run in runs)
    assert "| 1/s | 30 |" in page.table("some")


def test_a_command_names_the_program_as_it_is_called() -> None:
    peers = str(BENCHES / "peers/__main__.py")
    arguments = ["--directory=/somewhere", "--rounds", "3", "--python", "/elsewhere/python"]
    assert saved.command_of([peers, *arguments]) == "python -m benches.peers --rounds 3"
    assert saved.command_of([str(BENCHES / "spark/scan.py")]) == "python benches/spark/scan.py"


@pytest.mark.parametrize(
    ("name", "words"),
    [("p50_us", "p50, µs"), ("50000_per_s", "50000/s"), ("ratio", "ratio"), ("2 queues_ms", "2 queues_ms")],
)
def test_names_of_figures_become_words(name: str, words: str) -> None:
    assert saved.words(name) == words
