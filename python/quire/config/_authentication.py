"""The configuration of authentication: `[authentication]`, or the `authentication` of a transport (docs/security.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from quire.config._model import Texts
from quire.config._tls import File, Files
from quire.config._values import Address, DirectoryLike, DurationLike, duration_between

Method = Literal["none", "users", "token", "certificate", "http"]
UserFrom = Literal["common_name", "dns", "email", "uri"]

#: The keys of each method, besides `max_hashing`. Those that it requires come first.
_REQUIRED: Final[dict[str, tuple[str, ...]]] = {
    "none": (),
    "users": ("users_file",),
    "token": ("keys", "issuer", "audience"),
    "certificate": (),
    "http": ("url",),
}
_OPTIONAL: Final[dict[str, tuple[str, ...]]] = {
    "token": ("leeway", "user_claim", "groups_claim"),
    "certificate": ("user_from", "users", "users_file"),
    "http": ("timeout", "cache", "ca", "headers_file"),
}
#: Where a required key comes from.
_HINTS: Final = {
    "users_file": ", which `quire user add` makes",
    "keys": ", a file with the public keys of the issuer (JWKS)",
    "issuer": ", the iss of the tokens",
    "audience": ", the aud of the tokens",
    "url": ", the service to ask",
}


def _pairs(value: Any) -> Any:
    """A table as pairs, so that the settings can be compared."""
    return tuple(value.items()) if isinstance(value, Mapping) else value


def _check_url(url: str) -> str:
    """Refuses a URL whose request others could read. The error does not repeat a password."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise ValueError("the URL cannot be read") from None
    if parts.scheme not in ("http", "https") or not host or not url.isascii() or not url.isprintable():
        raise ValueError('expected a URL such as "https://logons.example/quire"')
    if " " in url or parts.fragment:
        raise ValueError("a URL of a service has no space and no fragment")
    if "@" in parts.netloc:
        raise ValueError("the URL has a user or a password, which would be shown in logs: use headers_file")
    if parts.scheme == "http" and not Address(host, 0).is_loopback:
        raise ValueError(
            "http:// would send passwords without encryption: use https://, or a loopback address"
        )
    return url


class Authentication(Files):
    """How a server finds out which user a client is."""

    #: `none`: it does not. `users`: by a name and a password, which `users_file` has. `token`: by a
    #: JWT. `certificate`: by the certificate of the client. `http`: by the answer of a service.
    method: Method = "none"
    #: The users, as `quire user add` writes them.
    users_file: File | None = None
    #: Logons that are checked at the same time. The check of a password uses the memory that its
    #: hash names.
    max_hashing: Annotated[int, Field(ge=1, le=64)] = 2
    #: The keys of the issuer of tokens, as JWKS.
    keys: File | None = None
    #: The issuer of tokens, or several.
    issuer: Annotated[Texts, Field(min_length=1)] | None = None
    #: The audience of tokens, or several, of which a token must have one.
    audience: Annotated[Texts, Field(min_length=1)] | None = None
    #: The most by which the clocks of issuer and server may differ.
    leeway: Annotated[float, duration_between("0", "5m")] = 30.0
    #: The claims with the user and with the groups.
    user_claim: Annotated[str, Field(min_length=1)] = "sub"
    groups_claim: Annotated[str, Field(min_length=1)] = "groups"
    #: The name in a certificate that is the user.
    user_from: UserFrom = "common_name"
    #: The users of names in certificates, if they are others.
    users: Annotated[tuple[tuple[str, str], ...], BeforeValidator(_pairs)] = ()
    #: The service that is asked about each logon, over https or at a loopback address.
    url: Annotated[str, AfterValidator(_check_url)] | None = None
    #: How long the answer may take.
    timeout: Annotated[float, duration_between("1ms", "1m")] = 2.0
    #: How long an acceptance is kept.
    cache: Annotated[float, duration_between("0", "1d")] = 60.0
    #: The authorities of the certificate of the service. Default: those of the system.
    ca: File | None = None
    #: Headers of the requests, one a line.
    headers_file: File | None = None

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            method: Method = ...,
            users_file: DirectoryLike | None = ...,
            max_hashing: int = ...,
            keys: DirectoryLike | None = ...,
            issuer: str | Sequence[str] | None = ...,
            audience: str | Sequence[str] | None = ...,
            leeway: DurationLike = ...,
            user_claim: str = ...,
            groups_claim: str = ...,
            user_from: UserFrom = ...,
            users: Mapping[str, str] | tuple[tuple[str, str], ...] = ...,
            url: str | None = ...,
            timeout: DurationLike = ...,
            cache: DurationLike = ...,
            ca: DirectoryLike | None = ...,
            headers_file: DirectoryLike | None = ...,
        ) -> None: ...

    @model_validator(mode="after")
    def _check_method(self) -> Self:
        required = _REQUIRED[self.method]
        for key in required:
            if getattr(self, key) is None:
                raise ValueError(f'method = "{self.method}" requires {key}{_HINTS[key]}')
        allowed = {"method", "max_hashing", *required, *_OPTIONAL.get(self.method, ())}
        for key in sorted(self.model_fields_set - allowed):
            if getattr(self, key) == type(self).model_fields[key].default:
                continue  # a copy of a table
            methods = [name for name in _REQUIRED if key in (*_REQUIRED[name], *_OPTIONAL.get(name, ()))]
            texts = " or ".join(f'method = "{name}"' for name in methods)
            raise ValueError(f"{key} requires {texts}")
        return self
