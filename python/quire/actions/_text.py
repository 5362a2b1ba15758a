"""Texts with variables: `{{NAME}}` and its forms."""

from __future__ import annotations

import base64
import json
import re
import urllib.parse
from collections.abc import Iterator, Mapping
from typing import Final

from quire._filter import quote

#: The value of a variable. Bytes are data of a message.
Value = str | int | float | bytes
Variables = Mapping[str, Value]

NAME: Final = re.compile(r"[A-Z][A-Z0-9_]{0,99}")
FORMS: Final = ("json", "base64", "url", "filter")
_PLACE: Final = re.compile(r"\{\{([^{}]*)\}\}")
_BYTE: Final = re.compile(r"BYTE_([0-9A-F]{2})")


def names_in(text: str) -> Iterator[tuple[str, str]]:
    """The names of the variables in a text, and their forms. Raises `ValueError` for another place."""
    for found in _PLACE.finditer(text):
        name, colon, form = found[1].partition(":")
        if NAME.fullmatch(name) is None:
            raise ValueError(f'{found[0]} is no variable: a name has capitals, digits and "_"')
        if colon and form not in FORMS:
            raise ValueError(f"{found[0]}: expected one of {', '.join(FORMS)} after the colon")
        yield name, form


def expanded(text: str, variables: Variables, *, is_pattern: bool = False) -> str:
    """The text with the values of its variables. An unknown variable is empty.

    Bytes that are not UTF-8 are lone surrogates, which `to_bytes` turns into the bytes again.

    - `is_pattern`: the form `filter` quotes for a pattern, not for a filter
    """

    def value_of(found: re.Match[str]) -> str:
        name, _, form = found[1].partition(":")
        byte = _BYTE.fullmatch(name)
        value: Value = bytes([int(byte[1], 16)]) if byte else variables.get(name, "")
        if form == "filter":
            return re.escape(text_of(value)) if is_pattern else _quoted(value)
        if form == "json":
            return json.dumps(data_of(value).decode("utf-8", "replace"), ensure_ascii=False)
        if form == "base64":
            return base64.b64encode(data_of(value)).decode()
        if form == "url":
            return urllib.parse.quote(data_of(value), safe="")
        return text_of(value)

    return _PLACE.sub(value_of, text)


def text_of(value: Value) -> str:
    """A value as text. See `expanded` about bytes."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    return str(value)


def data_of(value: Value) -> bytes:
    """A value as bytes."""
    return value if isinstance(value, bytes) else to_bytes(str(value))


def to_bytes(text: str) -> bytes:
    """The bytes of a text that `expanded` made."""
    return text.encode("utf-8", "surrogateescape")


def _quoted(value: Value) -> str:
    if isinstance(value, (int, float)):
        return quote(value)
    text = data_of(value).decode("utf-8", "replace")
    return quote(text) if text else "''"
