"""`quire.TLS`: the authorities that a client trusts, and its certificate."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from quire import _quire
from quire._arguments import check_path, check_type
from quire._errors import ConfigError

#: The file with the certificates of the authorities that clients trust.
CA_VARIABLE: Final = "QUIRE_CA"
#: The file with the certificate of a client, and that with its private key.
CERTIFICATE_VARIABLE: Final = "QUIRE_CERTIFICATE"
KEY_VARIABLE: Final = "QUIRE_KEY"


@dataclass(frozen=True, kw_only=True)
class TLS:
    """The files with which a client connects to `quires://`.

        quire.Client("quires://prod:9007", ssl=quire.TLS(ca="ca.pem", certificate="app.pem", key="app.key"))

    - `ca`: a file with the certificates of the authorities that the client trusts, as PEM. Default: the file
      `$QUIRE_CA`, or else the authorities of the system
    - `certificate`: a file with the certificate of the client, as PEM. Default: the file `$QUIRE_CERTIFICATE`
    - `key`: a file with its private key, as PEM. Default: the file `$QUIRE_KEY` with `$QUIRE_CERTIFICATE`, or
      else the file of the certificate
    - `key_password`: the password of an encrypted private key
    - `server_name`: the name in the certificate of the server. Default: the host of the URL

    The files are read for each connection. Raises `ConfigError` for a value of another type. A client raises
    it for a file that cannot be used.
    """

    ca: str | os.PathLike[str] | None = None
    certificate: str | os.PathLike[str] | None = None
    key: str | os.PathLike[str] | None = None
    key_password: str | None = field(default=None, repr=False)
    server_name: str | None = None

    def __post_init__(self) -> None:
        for name in ("ca", "certificate", "key"):
            check_path(getattr(self, name), f"ssl.{name}", optional=True)
        for name in ("key_password", "server_name"):
            check_type(getattr(self, name), str, f"ssl.{name}", optional=True)

    def __getstate__(self) -> dict[str, Any]:
        if self.key_password is not None:
            raise TypeError(
                "a quire.TLS with a key_password cannot be pickled: the password would be in the result"
            )
        return dict(self.__dict__)

    @property
    def absolute(self) -> TLS:
        """A copy with absolute paths: the program may change its working directory."""

        def absolute(path: str | os.PathLike[str] | None) -> Path | None:
            return None if path is None else Path(path).expanduser().absolute()

        return replace(
            self, ca=absolute(self.ca), certificate=absolute(self.certificate), key=absolute(self.key)
        )


#: The argument `ssl` of a client.
SSLArgument = bool | str | os.PathLike[str] | TLS | None


def tls_of(ssl: SSLArgument) -> TLS:
    """The files of connections to `quires://`.

    Raises `ConfigError` when a file cannot be used, or for `ssl=False`.
    """
    given: object = ssl
    if given is False:
        reason = "quires:// requires TLS; the scheme without it is quire://"
        raise ConfigError(reason, key="ssl")
    if isinstance(given, TLS):
        tls = given
    elif isinstance(given, (str, os.PathLike)):
        tls = TLS(ca=given)
    elif given is None or given is True:
        tls = TLS()
    else:
        reason = f"expected True, False, a file or a quire.TLS, got `{type(given).__name__}`"
        raise ConfigError(reason, key="ssl")
    if tls.ca is None and (path := os.environ.get(CA_VARIABLE)):
        tls = replace(tls, ca=path)
    if tls.certificate is None and tls.key is None and (path := os.environ.get(CERTIFICATE_VARIABLE)):
        tls = replace(tls, certificate=path, key=os.environ.get(KEY_VARIABLE) or None)
    tls = tls.absolute
    _quire.check_tls(tls)
    return tls
