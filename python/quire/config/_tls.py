"""The configuration of TLS: the `tls` of a transport, of `[replication]` and of a destination (docs/security.md)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from quire.config._model import Model
from quire.config._values import DirectoryLike, as_written

#: A file. A relative one is below the directory of the configuration file.
File = Annotated[Path, AfterValidator(as_written)]


class Files(Model):
    """A table that names files."""

    def below(self, directory: Path) -> Self:
        """Returns a copy whose relative files are below this directory."""
        files = {name: directory / value for name, value in self if isinstance(value, Path)}
        return self.model_copy(update=files)


class ServerTLS(Files):
    """How an address for clients, or for other instances, is secured."""

    #: The certificate of the server, and those that lead from it to an authority, as PEM.
    certificate: File
    #: The private key of the certificate, as PEM, not encrypted.
    private_key: File
    #: The certificates of the authorities of clients.
    client_ca: File | None = None
    #: Whether a client must have a certificate. Default: it must when there is a `client_ca`.
    client_certificate: Literal["required", "optional", "none"] | None = None
    #: The lowest version of TLS.
    min_version: Literal["1.2", "1.3"] = "1.2"

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            certificate: DirectoryLike,
            private_key: DirectoryLike,
            client_ca: DirectoryLike | None = ...,
            client_certificate: Literal["required", "optional", "none"] | None = ...,
            min_version: Literal["1.2", "1.3"] = ...,
        ) -> None: ...

    @model_validator(mode="after")
    def _check_clients(self) -> Self:
        if self.client_ca is None and self.client_certificate in ("required", "optional"):
            raise ValueError(f'client_certificate = "{self.client_certificate}" requires client_ca')
        return self

    @property
    def clients(self) -> Literal["required", "optional", "none"]:
        """Whether a client must have a certificate."""
        if self.client_certificate is not None:
            return self.client_certificate
        return "none" if self.client_ca is None else "required"


class LinkTLS(Files):
    """How the connection to a destination is secured."""

    #: The certificates of the authorities of the destination. Default: those of the system.
    ca: File | None = None
    #: The certificate with which this instance identifies itself, as PEM.
    certificate: File | None = None
    #: Its private key, as PEM, not encrypted.
    private_key: File | None = None
    #: The name in the certificate of the destination. Default: the host of its address.
    server_name: Annotated[str, Field(min_length=1)] | None = None

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            ca: DirectoryLike | None = ...,
            certificate: DirectoryLike | None = ...,
            private_key: DirectoryLike | None = ...,
            server_name: str | None = ...,
        ) -> None: ...

    @model_validator(mode="before")
    @classmethod
    def _plain(cls, values: Any) -> Any:
        # `tls = true`: with the authorities of the system.
        return {} if values is True else values

    @model_validator(mode="after")
    def _check_pair(self) -> Self:
        if (self.certificate is None) != (self.private_key is None):
            raise ValueError("certificate and private_key belong together")
        return self
