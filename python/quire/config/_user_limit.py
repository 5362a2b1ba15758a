"""The configuration of the limits of users: `[[user_limit]]` (docs/security.md)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator, Field

from quire._errors import ConfigError
from quire._units import size
from quire.config._mistakes import expected
from quire.config._model import Model, Texts
from quire.config._values import SizeLike, size_between


def _rate(value: object) -> object:
    """Messages as `("messages", 1000)`, or bytes as `("bytes", 5000000)`."""
    what = 'a number of messages such as "1000", or a size such as "5MB"'
    if value is None or isinstance(value, tuple):
        return value
    is_number = isinstance(value, int) and not isinstance(value, bool)
    if is_number or (isinstance(value, str) and value.isascii() and value.strip().isdecimal()):
        unit, number = "messages", int(str(value))
    else:
        try:
            unit, number = "bytes", size(value, "size")  # type: ignore[arg-type]
        except ConfigError:
            raise expected(what, value) from None
    if number <= 0:
        raise expected(what, value)
    return unit, number


class UserLimit(Model):
    """Limits of a user. The first entry that matches the user decides. Its connections share them."""

    #: Names or patterns of users. Default: every user.
    user: Texts = ()
    #: Names or patterns of groups, of which the user must be in one. Default: any groups, or none.
    group: Texts = ()
    #: Concurrent connections.
    max_connections: Annotated[int, Field(ge=1, le=1 << 20)] = 1_000
    #: Subscriptions of all connections. Default: no limit.
    max_subscriptions: Annotated[int | None, Field(ge=1, le=1 << 31)] = None
    #: Bytes that wait for all connections. Default: no limit.
    max_waiting: Annotated[int, size_between("64KB")] | None = None
    #: Messages or bytes in a second. Default: no limit.
    publish_rate: Annotated[tuple[str, int] | None, BeforeValidator(_rate)] = None

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            user: str | Sequence[str] = ...,
            group: str | Sequence[str] = ...,
            max_connections: int = ...,
            max_subscriptions: int | None = ...,
            max_waiting: SizeLike | None = ...,
            publish_rate: int | str | None = ...,
        ) -> None: ...

    def to_core(self) -> dict[str, Any]:
        """The entry as the core reads it."""
        rate = self.publish_rate
        return {**self.model_dump(), "publish_rate": None if rate is None else {rate[0]: rate[1]}}
