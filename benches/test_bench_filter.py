"""`quire.Filter`: parsing one, and asking it about a message."""

from __future__ import annotations

import pytest
import quire
from pytest_benchmark.fixture import BenchmarkFixture

DATA = b'{"symbol":"IBM","qty":100,"price":171.25,"note":"' + b"x" * 200 + b'"}'


@pytest.mark.parametrize(
    "text", ["/qty > 50", "/symbol = 'IBM' AND /qty > 50", "/symbol LIKE '^I' AND (/qty > 50 OR /price < 10)"]
)
def test_matches(benchmark: BenchmarkFixture, text: str) -> None:
    assert benchmark(quire.Filter(text).matches, DATA)


def test_parse(benchmark: BenchmarkFixture) -> None:
    parsed = benchmark(quire.Filter, "/symbol = 'IBM' AND /qty > 50")
    assert list(parsed.fields) == ["/symbol", "/qty"]
