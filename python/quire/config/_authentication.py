"""The configuration of authentication: `[authentication]`, or the `authentication` of a transport (docs/security.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field, model_validator

from quire.config._tls import File, Files
from quire.config._values import DirectoryLike


class Authentication(Files):
    """How a server finds out which user a client is."""

    #: `none`: it does not. `users`: by a name and a password, which `users_file` has.
    method: Literal["none", "users"] = "none"
    #: The users, as `quire user add` writes them.
    users_file: File | None = None
    #: Passwords that are checked at the same time. A check uses the memory that its hash names.
    max_hashing: Annotated[int, Field(ge=1, le=64)] = 2

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            method: Literal["none", "users"] = ...,
            users_file: DirectoryLike | None = ...,
            max_hashing: int = ...,
        ) -> None: ...

    @model_validator(mode="after")
    def _check_users(self) -> Self:
        if self.method == "users" and self.users_file is None:
            raise ValueError('method = "users" requires users_file, which `quire user add` makes')
        if self.method == "none" and self.users_file is not None:
            raise ValueError('users_file requires method = "users"')
        return self
