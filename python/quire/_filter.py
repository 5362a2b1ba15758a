"""`quire.Filter`: a content filter on its own, for services that want it without a server."""

from __future__ import annotations

from typing import Any, Literal

from quire import _quire
from quire._message import to_bytes

#: The formats that messages can have (docs/filters.md section 3).
MessageType = Literal["json", "binary", "nvfix", "fix", "msgpack", "bson", "xml"]


class Filter:
    """A parsed content filter (docs/filters.md); may be shared between threads.

    `allow_backtracking` admits patterns with back-references and look-around, under a limit of steps.
    Raises `BadFilterError` with the column of the mistake.
    """

    def __init__(self, text: str, *, allow_backtracking: bool = False) -> None:
        self._core = _quire.Filter(text, allow_backtracking)
        self._text = text

    def matches(self, data: Any, message_type: MessageType = "json") -> bool:
        """Whether a message with this data matches: bytes, text, or anything JSON-serialisable.

        Data that is not of its type matches no filter that reads fields.
        """
        return self._core.matches(to_bytes(data), message_type)

    @property
    def fields(self) -> list[str]:
        """The fields that it reads, each once, as they are written."""
        return self._core.fields

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"Filter({self._text!r})"
