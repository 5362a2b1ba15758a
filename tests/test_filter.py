"""`quire.Filter` says what the golden vectors say, and points at mistakes."""

from __future__ import annotations

from pathlib import Path

import pytest
import quire

VECTORS = [
    line.split(" | ")
    for line in (Path(__file__).parent / "golden" / "filters.txt").read_text().splitlines()
    if line and not line.startswith("#")
]


@pytest.mark.parametrize(("want", "text", "data"), VECTORS)
def test_a_golden_vector_holds(want: str, text: str, data: str) -> None:
    assert quire.Filter(text).matches(data.encode()) is (want == "yes")


def test_it_names_its_fields() -> None:
    assert quire.Filter("/qty > 50 AND (/symbol LIKE '^I' OR /qty < 0)").fields == ["/qty", "/symbol"]


def test_a_mistake_has_a_column() -> None:
    with pytest.raises(quire.BadFilterError) as caught:
        quire.Filter("/qty >> 5")
    assert caught.value.column == 7


def test_binary_messages_have_no_fields() -> None:
    assert not quire.Filter("/a = 1").matches(b'{"a":1}', message_type="binary")
    with pytest.raises(quire.ConfigError, match="message_type"):
        quire.Filter("/a = 1").matches(b"", message_type="yaml")
