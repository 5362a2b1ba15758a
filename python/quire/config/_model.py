"""The common parts of the models of the configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from quire._filter import MessageType


class Model(BaseModel):
    """A table: its keys are known, and its values do not change."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True)


class Topics(Model):
    """An entry about topics."""

    #: A topic, or a regular expression.
    name: Annotated[str, Field(min_length=1)]
    message_type: MessageType
    #: Only messages that match.
    filter: str | None = None

    if TYPE_CHECKING:

        def __init__(self, *, name: str, message_type: MessageType, filter: str | None = ...) -> None: ...


def _text_as_list(value: Any) -> Any:
    """A single text is accepted as a list with one entry."""
    return (value,) if isinstance(value, str) else value


#: Texts, of which a single one needs no list.
Texts = Annotated[tuple[str, ...], BeforeValidator(_text_as_list)]


def tables_as_lists(values: Any, **kinds: type[BaseModel]) -> Any:
    """A single table is accepted as a list with one entry.

    - `kinds`: the keys of such lists, and the models of their entries
    """
    if not isinstance(values, Mapping):
        return values
    return {
        key: (value,) if key in kinds and isinstance(value, (Mapping, kinds[key])) else value
        for key, value in values.items()
    }
