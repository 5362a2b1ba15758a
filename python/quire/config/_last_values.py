"""The configuration of last-value topics: `[[sow_topic]]` (docs/last-values.md), `[[view]]` (docs/views.md) and
`[[conflated_topic]]` (docs/conflated-topics.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self

from pydantic import Field, TypeAdapter, ValidationError, field_validator, model_validator

from quire._filter import MessageType
from quire.config._mistakes import refused
from quire.config._model import Model, Texts
from quire.config._values import (
    Duration,
    DurationLike,
    Period,
    SizeLike,
    Table,
    duration_between,
    size_between,
)

#: Tables of the configuration that this version does not have.
TABLES_LATER: Final = ("group_local_queue",)

_PERIOD: Final[TypeAdapter[float]] = TypeAdapter(Period)


def not_in_this_version(key: str) -> str:
    """What is wrong with a table of `TABLES_LATER`."""
    return f"{key} is not in this version: remove the table"


#: Names of fields, such as `/order_id`.
Fields = Texts

#: Constructed fields, such as `/price * /qty AS /notional`.
Assignments = Texts


class History(Model):
    """How much of its history a last-value topic keeps (docs/last-values.md, section 3)."""

    #: The time for which states are kept.
    window: Period
    #: The distance of the instants whose states are kept; 0: every instant.
    granularity: Duration = 0
    #: The most bytes of earlier messages.
    max_size: Annotated[int, size_between("64KB")] = 1 << 30

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            window: DurationLike,
            granularity: DurationLike = ...,
            max_size: SizeLike = ...,
        ) -> None: ...

    @model_validator(mode="after")
    def _check_granularity(self) -> Self:
        if self.granularity > self.window:
            raise ValueError("granularity is longer than window: no state would be kept")
        return self

    def to_core(self) -> dict[str, Any]:
        """Returns the form that the core reads, with durations in nanoseconds."""
        return {
            "window_ns": round(self.window * 1e9),
            "granularity_ns": round(self.granularity * 1e9),
            "max_size": self.max_size,
        }


class SowTopic(Model):
    """A topic that keeps the newest message of each key (docs/last-values.md)."""

    name: Annotated[str, Field(min_length=1)]
    message_type: MessageType
    #: The fields that a key is made of. Without them publishers supply the keys.
    key: Fields = ()
    #: Topics with the same domain and the same values have the same keys. Default: the name of the
    #: topic.
    key_domain: str | None = None
    durability: Literal["persistent", "transient"] = "persistent"
    #: Lists of fields that queries compare with `=`.
    hash_index: tuple[Fields, ...] = ()
    #: Fields that queries compare in other ways.
    index: Fields = ()
    #: `disabled`, `enabled` (the expiration of each message), or the lifetime of a message without
    #: one.
    expiration: Literal["disabled", "enabled"] | float = "disabled"
    #: Fields that the server computes before the key: `expression AS /destination`.
    preprocessing: Assignments = ()
    #: Fields that the server computes after the key, also from the previous record.
    enrichment: Assignments = ()
    #: Earlier states are kept.
    history: History | None = None
    #: A pattern for whole names: each topic that it matches is a last-value topic with these
    #: settings. `name` then only names the settings.
    pattern: str | None = None
    #: `enabled`: the records are in a file that the system can page out.
    file_backed: Literal["enabled", "disabled"] = "disabled"
    #: For a transient topic: `epoch` reads it from the log at each start.
    recovery_point: Literal["now", "epoch"] | None = None

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            name: str,
            message_type: MessageType,
            key: str | Sequence[str] = ...,
            key_domain: str | None = ...,
            durability: Literal["persistent", "transient"] = ...,
            hash_index: Sequence[str | Sequence[str]] = ...,
            index: str | Sequence[str] = ...,
            expiration: Literal["disabled", "enabled"] | DurationLike = ...,
            preprocessing: str | Sequence[str] = ...,
            enrichment: str | Sequence[str] = ...,
            history: History | Table | None = ...,
            pattern: str | None = ...,
            file_backed: Literal["enabled", "disabled"] = ...,
            recovery_point: Literal["now", "epoch"] | None = ...,
        ) -> None: ...

    @field_validator("expiration", mode="before")
    @classmethod
    def _check_expiration(cls, value: Any) -> Any:
        return value if value in ("disabled", "enabled") else _PERIOD.validate_python(value)

    def to_core(self) -> dict[str, Any]:
        """Returns the form that the core reads, with durations in nanoseconds."""
        lifetime = self.expiration
        expiration = lifetime if isinstance(lifetime, str) else {"after_ns": round(lifetime * 1e9)}
        history = None if self.history is None else self.history.to_core()
        settings = self.model_dump(exclude={"expiration", "history"})
        file_backed = self.file_backed == "enabled"
        return settings | {"expiration": expiration, "history": history, "file_backed": file_backed}


class View(Model):
    """A last-value topic that the server computes from others (docs/views.md)."""

    name: Annotated[str, Field(min_length=1)]
    #: The type of the messages of the view.
    message_type: MessageType
    #: The source: a last-value topic, a conflated topic, a queue, or another view.
    underlying_topic: Annotated[str, Field(min_length=1)] | None = None
    #: Instead of a source: conditions that join several of them, `[orders].[/account] =
    #: [accounts].[/id]`. The fields in `projection` and `grouping` then have their topics, too.
    join: Texts = ()
    #: The fields of a record: `expression AS /destination`.
    projection: Annotated[Assignments, Field(min_length=1)]
    #: The fields that make the groups. Without them, all records are one group.
    grouping: Fields = ()
    #: Only records of the source that match are in the view.
    filter: str | None = None
    #: Lists of fields that queries compare with `=`. The fields of `grouping` have an index.
    hash_index: tuple[Fields, ...] = ()
    #: Fields that queries compare in other ways.
    index: Fields = ()
    #: Views with the same domain have equal keys for equal groups. Default: the name of the view.
    key_domain: str | None = None
    #: A group that changes several times in a short time is delivered once.
    inline_conflation: bool = False

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            name: str,
            message_type: MessageType,
            underlying_topic: str | None = ...,
            join: str | Sequence[str] = ...,
            projection: str | Sequence[str],
            grouping: str | Sequence[str] = ...,
            filter: str | None = ...,
            hash_index: Sequence[str | Sequence[str]] = ...,
            index: str | Sequence[str] = ...,
            key_domain: str | None = ...,
            inline_conflation: bool = ...,
        ) -> None: ...

    def to_core(self) -> dict[str, Any]:
        """Returns the form that the core reads."""
        return self.model_dump() | {"underlying_topic": self.underlying_topic or ""}


def view_of(
    settings: Mapping[str, Any], file: Path | None = None, text: str = "", place: tuple[str | int, ...] = ()
) -> View:
    """The definition of one view. Raises `ConfigError` that names the key. `place`: of the table in
    the text."""
    try:
        return View(**settings)
    except ValidationError as error:
        raise refused(error, View, file, text, place) from error


class ConflatedTopic(Model):
    """A copy of a last-value topic that changes at most once per interval (docs/conflated-topics.md)."""

    name: Annotated[str, Field(min_length=1)]
    #: The type of the messages, which is that of the source.
    message_type: MessageType
    #: The source: a last-value topic, a view, or another conflated topic.
    underlying_topic: Annotated[str, Field(min_length=1)]
    #: The time between two changes of one record.
    interval: Annotated[float, duration_between("100ms")] = 5.0
    #: Only records of the source that match.
    filter: str | None = None
    #: Lists of fields that queries compare with `=`. The fields of the key have an index.
    hash_index: tuple[Fields, ...] = ()
    #: Fields that queries compare in other ways.
    index: Fields = ()

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            name: str,
            message_type: MessageType,
            underlying_topic: str,
            interval: DurationLike = ...,
            filter: str | None = ...,
            hash_index: Sequence[str | Sequence[str]] = ...,
            index: str | Sequence[str] = ...,
        ) -> None: ...

    def to_core(self) -> dict[str, Any]:
        """Returns the form that the core reads, with the interval in nanoseconds."""
        return self.model_dump(exclude={"interval"}) | {"interval_ns": round(self.interval * 1e9)}
