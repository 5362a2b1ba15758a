"""`quire.Journal`: appending with group commit, reading back, finding one record."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import quire
from pytest_benchmark.fixture import BenchmarkFixture

COUNT = 2_000
DATA = b'{"n":0,"pad":"' + b"x" * 496 + b'"}'


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[quire.Journal]:
    with quire.Journal(tmp_path) as journal:
        yield journal


@pytest.fixture
def filled(journal: quire.Journal) -> quire.Journal:
    for start in range(0, 50 * COUNT, COUNT):
        items = [f'{{"n":{n}}}' for n in range(start, start + COUNT)]
        journal.append_many("filled", items, publisher="p")
    journal.flush()
    return journal


def test_append_many_of_512_bytes_until_persisted(
    benchmark: BenchmarkFixture, journal: quire.Journal
) -> None:
    def run() -> None:
        journal.append_many("t", [DATA] * COUNT, publisher="p")
        journal.flush()

    benchmark.extra_info["messages"] = COUNT
    benchmark(run)
    assert journal.persisted % COUNT == 0


def test_append_one(benchmark: BenchmarkFixture, journal: quire.Journal) -> None:
    benchmark(journal.append, "t", DATA, publisher="p")
    assert journal.appended > 0


def test_append_one_until_persisted(benchmark: BenchmarkFixture, journal: quire.Journal) -> None:
    def run() -> None:
        journal.append("t", DATA, publisher="p")
        journal.flush()

    benchmark(run)
    assert journal.persisted == journal.appended


def test_read_100000_messages(benchmark: BenchmarkFixture, filled: quire.Journal) -> None:
    count = benchmark(lambda: sum(1 for _ in filled.read()))
    assert count == 50 * COUNT


def test_read_with_a_filter_that_one_in_1000_matches(
    benchmark: BenchmarkFixture, filled: quire.Journal
) -> None:
    count = benchmark(lambda: sum(1 for _ in filled.read(filter="/n % 1000 = 0")))
    assert count == 50 * COUNT // 1000


def test_find_a_bookmark(benchmark: BenchmarkFixture, filled: quire.Journal) -> None:
    bookmark = next(filled.read()).bookmark
    assert bookmark is not None
    middle = bookmark.replace("|1|", f"|{25 * COUNT}|")
    assert benchmark(filled.find, middle) is not None
