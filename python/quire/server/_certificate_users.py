"""Logons with the certificate of a client: the handshake has checked it, and it names the user."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from quire._errors import ConfigError
from quire.config._authentication import Authentication
from quire.server._identity import Checker, Given, Identity, Refused, check_name, is_name
from quire.server._users import Users

#: The kinds of alternative names, as `ssl` names them.
_ALTERNATIVES: Final = {"dns": "DNS", "email": "email", "uri": "URI"}


class CertificateUsers(Checker):
    """Finds the user that a certificate names."""

    def __init__(self, settings: Authentication) -> None:
        self._kind = settings.user_from
        self._names = dict(settings.users)
        for value, user in self._names.items():
            try:
                check_name(user)
            except ConfigError as error:
                raise ConfigError(error._reason, key=f"users.{value}") from None
        file = settings.users_file
        self._users = None if file is None else Users.load(file).by_name

    def check(self, given: Given) -> Identity | Refused:
        """Decides about a logon."""
        if not given.certificate:
            return Refused("no certificate")
        values = list(self._values(given.certificate))
        if len(values) != 1:
            return Refused(f"the certificate has {len(values)} names of the kind {self._kind}")
        user = self._names.get(values[0], values[0])
        if not is_name(user):
            return Refused(f"the {self._kind} of the certificate is not the name of a user")
        if given.user not in (None, user):
            return Refused("the certificate is of another user")
        if self._users is None:
            return Identity(user)
        entry = self._users.get(user)
        if entry is None:
            return Refused("unknown user")
        if entry.disabled:
            return Refused("disabled user")
        return Identity(user, entry.groups, entry=entry)

    def still(self, identity: Identity) -> bool:
        """Whether the entry of the user is as it was."""
        return self._users is None or self._users.get(identity.user) == identity.entry

    def _values(self, certificate: Mapping[str, Any]) -> Iterator[str]:
        if self._kind == "common_name":
            for part in certificate.get("subject", ()):
                yield from (value for key, value in part if key == "commonName")
        else:
            wanted = _ALTERNATIVES[self._kind]
            yield from (value for kind, value in certificate.get("subjectAltName", ()) if kind == wanted)
