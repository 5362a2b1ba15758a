"""The configuration of rights: `[[entitlement]]` (docs/security.md)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator

from quire.config._model import Model, Texts

Right = Literal["read", "replay", "query", "write", "delete", "monitor", "admin", "replicate"]


def _right_as_list(value: Any) -> Any:
    """A single right is accepted as a list with one entry."""
    return (value,) if isinstance(value, str) else value


#: Rights, of which a single one needs no list.
Rights = Annotated[tuple[Right, ...], BeforeValidator(_right_as_list)]


class Entitlement(Model):
    """The rights of users on topics. The first entry that applies to a command decides."""

    #: Names or patterns of users. Default: every user.
    user: Texts = ()
    #: Names or patterns of groups, of which the user must be in one. Default: any groups, or none.
    group: Texts = ()
    #: Names or patterns of topics, queues and resources of the server.
    topic: Texts
    #: The rights that the entry grants.
    allow: Rights = ()
    #: The rights that the entry refuses.
    deny: Rights = ()
    #: The messages that are visible, or that may be published or deleted. Default: all.
    filter: str | None = None
    #: The fields that are visible, as a select list. Default: all.
    select: Texts = ()

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            user: str | Sequence[str] = ...,
            group: str | Sequence[str] = ...,
            topic: str | Sequence[str],
            allow: Right | Sequence[Right] = ...,
            deny: Right | Sequence[Right] = ...,
            filter: str | None = ...,
            select: str | Sequence[str] = ...,
        ) -> None: ...

    def to_core(self) -> dict[str, Any]:
        """The entry as the core reads it."""
        return {**self.model_dump(), "select": ",".join(self.select) or None}
