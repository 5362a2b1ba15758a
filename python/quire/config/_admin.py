"""The configuration of administration: `[admin]` (docs/admin.md)."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from pydantic import Field, field_validator

from quire.config._authentication import Authentication
from quire.config._mistakes import expected
from quire.config._model import Texts
from quire.config._tls import Files, ServerTLS
from quire.config._values import (
    Address,
    AddressText,
    DurationLike,
    Period,
    SizeLike,
    Table,
    duration_between,
    size_between,
)

#: The packages of the extra.
_PACKAGES: Final = ("starlette", "uvicorn", "prometheus_client")

#: Clients inside of the server for requests of the HTTP server, at the same time.
CLIENTS_INSIDE_MAX: Final = 100

#: Statistics that no file has.
IN_MEMORY: Final = ":memory:"


class Admin(Files):
    """The HTTP server of administration, and the statistics."""

    #: Where the HTTP server listens; `None`: there is none.
    address: AddressText | None = None
    #: The time between two samples of the statistics.
    interval: Annotated[float, duration_between("1s")] = 10.0
    #: The file of the statistics, below `data_directory`.
    file: Annotated[str, Field(min_length=1)] = "statistics.db"
    #: Older samples are removed.
    retention: Period = 7 * 86400.0
    #: The oldest samples are removed when the file is larger.
    max_size: Annotated[int, size_between("1MB")] = 1 << 30
    #: Names that a `Host` header may have. `localhost`, addresses and the name of the machine are
    #: always allowed.
    hosts: Texts = ()
    #: Nothing can be changed over HTTP.
    read_only: bool = False
    #: Paths that need no authentication.
    anonymous: Texts = ("/healthz", "/readyz")
    #: The objects of each kind that have their own series in `/metrics`.
    metrics_max_objects: Annotated[int, Field(ge=1, le=1_000_000)] = 1000
    #: The time between "not ready" and the end of the transports.
    shutdown_delay: Annotated[float, duration_between("0", "5m")] = 0.0
    max_connections: Annotated[int, Field(ge=1, le=65536)] = 256
    #: Bytes of the body of a request.
    max_body: Annotated[int, size_between("1KB", "64MB")] = 1 << 20
    #: The time in which a request must arrive, and its answer must be read.
    request_timeout: Period = 10.0
    #: HTTPS only (docs/security.md).
    tls: ServerTLS | None = None
    #: How users prove who they are. Default: the `authentication` of the configuration.
    authentication: Authentication | None = None
    #: Accepts requests from beyond this machine without authentication, or passwords without TLS.
    insecure: bool = False

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            address: str | None = ...,
            interval: DurationLike = ...,
            file: str = ...,
            retention: DurationLike = ...,
            max_size: SizeLike = ...,
            hosts: str | Sequence[str] = ...,
            read_only: bool = ...,
            anonymous: str | Sequence[str] = ...,
            metrics_max_objects: int = ...,
            shutdown_delay: DurationLike = ...,
            max_connections: int = ...,
            max_body: SizeLike = ...,
            request_timeout: DurationLike = ...,
            tls: ServerTLS | Table | None = ...,
            authentication: Authentication | Table | None = ...,
            insecure: bool = ...,
        ) -> None: ...

    @field_validator("anonymous")
    @classmethod
    def _check_paths(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for path in value:
            if not path.startswith("/"):
                raise expected('paths such as "/metrics"', path)
        return value

    def below(self, directory: Path) -> Admin:
        """Returns a copy whose relative files are below this directory."""
        tables = {"tls": self.tls, "authentication": self.authentication}
        placed = {key: table.below(directory) for key, table in tables.items() if table is not None}
        return self.model_copy(update=placed)

    def mistakes(self, authentication: Authentication) -> list[tuple[str, str]]:
        """Returns the keys that cannot be used, with the reasons. `authentication`: the table that applies."""
        missing = [package for package in _PACKAGES if find_spec(package) is None]
        if missing:
            names = ", ".join(missing).replace("_", "-")
            return [("", f"it requires {names}: pip install 'quire-mq[admin]'")]
        if self.address is None:
            return []
        if authentication.method == "certificate" and (self.tls is None or self.tls.clients != "required"):
            reason = 'the method "certificate" requires tls with client_certificate = "required"'
            return [("address" if self.tls is None else "tls", reason)]
        if Address.parse(self.address).is_loopback or self.insecure:
            return []
        advice = "or set insecure = true in a network that you trust"
        if authentication.method == "none":
            reason = f"an address beyond this machine requires authentication; add [authentication], {advice}"
            return [("address", reason)]
        if self.tls is None:
            return [("address", f"passwords and tokens require tls beyond this machine; add tls, {advice}")]
        return []
