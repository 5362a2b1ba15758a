"""The configuration of replication: `[replication]` (docs/replication.md)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from quire.config._model import Model, Texts, Topics, tables_as_lists
from quire.config._tls import LinkTLS, ServerTLS
from quire.config._values import Address, AddressText, DurationLike, Period, Size, SizeLike, Table


class ReplicatedTopic(Topics):
    """Topics that are sent to a destination."""


class Destination(Model):
    """An instance that this one sends its messages to."""

    #: The `name` of the instance.
    name: Annotated[str, Field(min_length=1)]
    #: The group of the instance. With it, any instance of the group may answer at the addresses.
    group: str | None = None
    #: Equivalent addresses, tried from the top. Without one, the destination is to connect to this
    #: instance.
    addresses: Texts = ()
    #: `sync`: a message is persisted when the destination has it, too.
    sync_type: Literal["sync", "async"]
    #: Patterns of groups: messages that came from an instance of such a group are sent on.
    pass_through: Texts = ()
    #: Compression of the records that are sent.
    compression: Literal["none", "lz4", "zstd"] = "none"
    #: A sync destination whose oldest message without an acknowledgement is older is not waited
    #: for.
    downgrade_after: Period | None = None
    #: It is waited for again when that message is younger than this.
    upgrade_below: Period | None = None
    #: Bytes of the journal, its newest files, that are kept for it. Older files may be removed
    #: although it needs them.
    retained_size_max: Size | None = None
    #: Checks that are left out when the link is made: `txlog`, `message_type`, `sow`, `key`,
    #: `replicate`, `cascade`.
    exclude_validation: Texts = ()
    #: Connects over TLS (docs/security.md).
    tls: LinkTLS | None = None
    topic: Annotated[tuple[ReplicatedTopic, ...], Field(min_length=1)]

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            name: str,
            group: str | None = ...,
            addresses: str | Sequence[str] = ...,
            sync_type: Literal["sync", "async"],
            pass_through: str | Sequence[str] = ...,
            compression: Literal["none", "lz4", "zstd"] = ...,
            downgrade_after: DurationLike | None = ...,
            upgrade_below: DurationLike | None = ...,
            retained_size_max: SizeLike | None = ...,
            exclude_validation: str | Sequence[str] = ...,
            tls: LinkTLS | Table | bool | None = ...,
            topic: ReplicatedTopic | Table | Sequence[ReplicatedTopic | Table],
        ) -> None: ...

    @model_validator(mode="before")
    @classmethod
    def _plain(cls, values: Any) -> Any:
        return tables_as_lists(values, topic=ReplicatedTopic)

    @field_validator("addresses")
    @classmethod
    def _check_addresses(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for address in value:
            Address.parse(address)
        return value

    def tls_name(self, address: Address) -> str:
        """Returns the name that the certificate of the destination at this address must have."""
        return (self.tls and self.tls.server_name) or address.host

    def to_core(self) -> dict[str, Any]:
        """Returns the form that the core reads, with durations in nanoseconds."""
        return {
            "name": self.name,
            "group": self.group,
            "addresses": list(self.addresses),
            "sync_type": self.sync_type,
            "pass_through": list(self.pass_through),
            "compression": self.compression,
            "downgrade_after_ns": _ns(self.downgrade_after),
            "upgrade_below_ns": _ns(self.upgrade_below),
            "retained_size_max": self.retained_size_max,
            "exclude_validation": list(self.exclude_validation),
            "topics": [topic.model_dump() for topic in self.topic],
        }


class Replication(Model):
    """The links of an instance to others."""

    #: Where other instances connect. Without it none can.
    address: AddressText | None = None
    #: The number of sync destinations that must have a message before it is persisted. Default:
    #: all.
    required_acks: Annotated[int, Field(ge=1, le=64)] | None = None
    #: Other instances connect to `address` over TLS only (docs/security.md).
    tls: ServerTLS | None = None
    destination: Annotated[tuple[Destination, ...], Field(max_length=64)] = ()

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            address: str | None = ...,
            required_acks: int | None = ...,
            tls: ServerTLS | Table | None = ...,
            destination: Destination | Table | Sequence[Destination | Table] = ...,
        ) -> None: ...

    @model_validator(mode="before")
    @classmethod
    def _plain(cls, values: Any) -> Any:
        return tables_as_lists(values, destination=Destination)

    def below(self, directory: Path) -> Replication:
        """Returns a copy whose relative files are below this directory."""
        destinations = tuple(
            each if each.tls is None else each.model_copy(update={"tls": each.tls.below(directory)})
            for each in self.destination
        )
        tls = None if self.tls is None else self.tls.below(directory)
        return self.model_copy(update={"tls": tls, "destination": destinations})

    def to_core(self, group: str | None, local_queues: list[str]) -> dict[str, Any]:
        """Returns the form that the core reads."""
        return {
            "group": group,
            "accepts": self.address is not None,
            "required_acks": self.required_acks,
            "local_queues": local_queues,
            "destinations": [destination.to_core() for destination in self.destination],
        }


def _ns(period: float | None) -> int | None:
    return None if period is None else round(period * 1e9)
