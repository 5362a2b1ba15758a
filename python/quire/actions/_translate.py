"""Messages without nested objects from one type to another: the step `translate`."""

from __future__ import annotations

import json
from typing import Final

_SOH: Final = b"\x01"


def translated(data: bytes, source: str, target: str) -> bytes:
    """The message in another type. Raises `ValueError` when it cannot be written so."""
    fields = _from_json(data) if source == "json" else _from_pairs(data, source)
    if target == "json":
        return json.dumps(dict(fields), ensure_ascii=False, separators=(",", ":")).encode()
    return b"".join(_pair(name, value, target) for name, value in fields)


def _from_json(data: bytes) -> list[tuple[str, object]]:
    try:
        found = json.loads(data)
    except ValueError as error:
        raise ValueError(f"the message is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ValueError("the message is not a JSON object")
    return list(found.items())


def _from_pairs(data: bytes, source: str) -> list[tuple[str, object]]:
    fields: list[tuple[str, object]] = []
    for part in data.split(_SOH):
        if not part:
            continue
        name, equals, value = part.partition(b"=")
        if not equals:
            raise ValueError(f"the message is not {source}: a field has no value")
        fields.append((name.decode("utf-8", "replace"), value.decode("utf-8", "replace")))
    if len({name for name, _ in fields}) < len(fields):
        raise ValueError("a field comes twice, and its values have no place in an object")
    return fields


def _pair(name: str, value: object, target: str) -> bytes:
    if isinstance(value, (dict, list)):
        raise ValueError(f"the field {name!r} is nested, and {target} has no nested fields")
    if target == "fix" and not name.isdecimal():
        raise ValueError(f"the field {name!r} is no number, as the fields of fix are")
    if value is None:
        text = ""
    elif isinstance(value, bool):
        text = "true" if value else "false"
    else:
        text = value if isinstance(value, str) else json.dumps(value)
    pair = f"{name}={text}".encode()
    if _SOH in pair or not name or "=" in name:
        raise ValueError(f"the field {name!r} cannot be written in {target}")
    return pair + _SOH
