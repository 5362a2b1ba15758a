"""`quire.Filter` says what the golden vectors say, and points at mistakes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import quire

VECTORS = [
    line.split(" | ")
    for line in (Path(__file__).parent / "golden" / "filters.txt").read_text().splitlines()
    if line and not line.startswith("#")
]


@pytest.mark.parametrize("vector", VECTORS, ids=" | ".join)
def test_a_golden_vector_holds(vector: list[str]) -> None:
    want, text, data, *message_type = vector
    if want == "yes with backtracking":
        with pytest.raises(quire.BadFilterError, match="backtracking"):
            quire.Filter(text)
    parsed = quire.Filter(text, allow_backtracking=want == "yes with backtracking")
    message = _unescaped(data) if message_type else data.encode()
    assert parsed.matches(message, *message_type) is want.startswith("yes")  # type: ignore[arg-type]


def test_it_names_its_fields() -> None:
    assert quire.Filter("/qty > 50 AND (/symbol LIKE '^I' OR /qty < 0)").fields == ["/qty", "/symbol"]


def test_a_mistake_has_a_column() -> None:
    with pytest.raises(quire.BadFilterError) as caught:
        quire.Filter("/qty >> 5")
    assert caught.value.column == 7


def test_binary_messages_have_no_fields() -> None:
    assert not quire.Filter("/a = 1").matches(b'{"a":1}', message_type="binary")
    with pytest.raises(quire.ConfigError, match="message_type"):
        quire.Filter("/a = 1").matches(b"", message_type="yaml")  # type: ignore[arg-type]


def test_it_takes_what_publish_takes() -> None:
    filter = quire.Filter("/qty > 50 AND /symbol = 'é'")
    assert filter.matches({"qty": 100, "symbol": "é"})
    assert filter.matches('{"qty":100,"symbol":"é"}')
    assert filter.matches(bytearray('{"qty":100,"symbol":"é"}'.encode()))
    assert (str(filter), repr(filter)) == (
        "/qty > 50 AND /symbol = 'é'",
        "Filter(\"/qty > 50 AND /symbol = 'é'\")",
    )


def _unescaped(text: str) -> bytes:
    return re.sub(rb"\\x([0-9a-f]{2})", lambda digits: bytes.fromhex(digits[1].decode()), text.encode())
