"""The configuration of replication: `[replication]` (docs/replication.md)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from quire.config._authentication import Authentication
from quire.config._model import Model, Texts, Topics, tables_as_lists
from quire.config._tls import File, LinkTLS, ServerTLS
from quire.config._values import (
    Address,
    AddressText,
    DirectoryLike,
    DurationLike,
    Period,
    Size,
    SizeLike,
    Table,
)


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
    #: The user with which this instance logs on. A token or a certificate has its user.
    user: Annotated[str, Field(min_length=1, max_length=255)] | None = None
    #: The file with the password of the user, or with a token: one line. It is read for each
    #: connection.
    password_file: File | None = None
    token_file: File | None = None
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
            user: str | None = ...,
            password_file: DirectoryLike | None = ...,
            token_file: DirectoryLike | None = ...,
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

    @model_validator(mode="after")
    def _check_identity(self) -> Self:
        has_certificate = self.tls is not None and self.tls.certificate is not None
        if self.password_file is not None and self.token_file is not None:
            raise ValueError("password_file and token_file: expected one of them")
        if self.password_file is not None and self.user is None:
            raise ValueError("password_file requires user")
        if self.user is not None and not (self.password_file or self.token_file or has_certificate):
            raise ValueError("user requires password_file, token_file, or a certificate in tls")
        for key in ("user", "password_file", "token_file"):
            if getattr(self, key) is not None and not self.addresses:
                raise ValueError(f"{key} requires addresses: an instance logs on where it connects")
        return self

    def below(self, directory: Path) -> Destination:
        """Returns a copy whose relative files are below this directory."""
        update: dict[str, Any] = {"tls": None if self.tls is None else self.tls.below(directory)}
        for key in ("password_file", "token_file"):
            if (file := getattr(self, key)) is not None:
                update[key] = directory / file
        return self.model_copy(update=update)

    @property
    def files(self) -> list[Path]:
        """The files with secrets, and those of TLS."""
        named = [self.password_file, self.token_file, *(value for _, value in self.tls or ())]
        return [file for file in named if isinstance(file, Path)]

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
    #: The time between two comparisons of the messages with those of the instances that send to
    #: this one. Default: when such an instance connects.
    compare_interval: Period | None = None
    #: Instances that send to this one, and that are not destinations. After a lost disk, clients
    #: wait for them, too.
    instances: Texts = ()
    #: Other instances connect to `address` over TLS only (docs/security.md).
    tls: ServerTLS | None = None
    #: How instances that connect prove their user. Default: the `authentication` of the
    #: configuration.
    authentication: Authentication | None = None
    #: The time within which an instance that connects must have logged on.
    logon_timeout: Period = 5.0
    #: Accepts instances from beyond this machine without authentication, and secrets without TLS.
    insecure: bool = False
    destination: Annotated[tuple[Destination, ...], Field(max_length=64)] = ()

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            address: str | None = ...,
            required_acks: int | None = ...,
            compare_interval: DurationLike | None = ...,
            instances: str | Sequence[str] = ...,
            tls: ServerTLS | Table | None = ...,
            authentication: Authentication | Table | None = ...,
            logon_timeout: DurationLike = ...,
            insecure: bool = ...,
            destination: Destination | Table | Sequence[Destination | Table] = ...,
        ) -> None: ...

    @model_validator(mode="before")
    @classmethod
    def _plain(cls, values: Any) -> Any:
        return tables_as_lists(values, destination=Destination)

    def below(self, directory: Path) -> Replication:
        """Returns a copy whose relative files are below this directory."""
        tables = {"tls": self.tls, "authentication": self.authentication}
        placed = {key: table.below(directory) for key, table in tables.items() if table is not None}
        destinations = tuple(each.below(directory) for each in self.destination)
        return self.model_copy(update={**placed, "destination": destinations})

    def mistakes(self, authentication: Authentication) -> list[tuple[str, str]]:
        """Returns the keys whose values are not safe, with the reasons. `authentication`: the table that applies."""
        advice = "or set insecure = true in [replication] in a network that you trust"
        found = []
        for number, each in enumerate(self.destination):
            secret = next((key for key in ("password_file", "token_file") if getattr(each, key)), None)
            if secret is None or each.tls is not None or self.insecure:
                continue
            if beyond := [text for text in each.addresses if not Address.parse(text).is_loopback]:
                reason = f"the secret would be sent to {beyond[0]} without encryption: set tls, {advice}"
                found.append((f"destination[{number}].{secret}", reason))
        if self.address is None:
            return found
        if authentication.method == "certificate" and (self.tls is None or self.tls.clients != "required"):
            reason = 'the method "certificate" requires tls with client_certificate = "required"'
            return [*found, ("address" if self.tls is None else "tls", reason)]
        address = Address.parse(self.address)
        if address.is_loopback or self.insecure:
            return found
        if authentication.method == "none":
            reason = (
                f"{address} can be reached from other machines, and every program there could add messages "
                f"under the name of any publisher: set authentication, {advice}"
            )
            return [*found, ("address", reason)]
        if self.tls is None:
            what = "tokens" if authentication.method == "token" else "passwords"
            reason = f"instances would send their {what} to {address} without encryption: set tls, {advice}"
            return [*found, ("address", reason)]
        return found

    def to_core(self, group: str | None, local_queues: list[str], *, authenticates: bool) -> dict[str, Any]:
        """Returns the form that the core reads."""
        return {
            "group": group,
            "accepts": self.address is not None,
            "authenticates": authenticates,
            "logon_timeout_ns": round(self.logon_timeout * 1e9),
            "required_acks": self.required_acks,
            "compare_interval_ns": _ns(self.compare_interval),
            "instances": list(self.instances),
            "local_queues": local_queues,
            "destinations": [destination.to_core() for destination in self.destination],
        }


def _ns(period: float | None) -> int | None:
    return None if period is None else round(period * 1e9)
