"""`quire.testing.certificates`: an authority for tests, with the certificates of a server and of clients."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from quire._errors import ConfigError
from quire._units import Duration, seconds
from quire.client._tls import TLS


@dataclass(frozen=True)
class Certificates:
    """The files that `quire.testing.certificates` wrote, as PEM."""

    #: The certificate of the authority.
    ca: Path
    #: The certificate of the server, and its private key.
    certificate: Path
    private_key: Path
    #: The `ssl` of each client, by its name: `ssl=certificates.clients["anna"]`.
    clients: Mapping[str, TLS]

    @property
    def server(self) -> dict[str, Any]:
        """The `tls` of a transport, for clients with or without a certificate."""
        return {
            "certificate": str(self.certificate),
            "private_key": str(self.private_key),
            "client_ca": str(self.ca),
            "client_certificate": "optional",
        }

    @property
    def tls(self) -> TLS:
        """The `ssl` of a client without a certificate."""
        return TLS(ca=self.ca)


def certificates(
    directory: str | os.PathLike[str],
    *,
    names: Sequence[str] = ("localhost", "127.0.0.1", "::1"),
    clients: Sequence[str] = (),
    expires_in: Duration = "1d",
) -> Certificates:
    """Makes an authority, a certificate for a server, and one for each client. Returns their files.

        files = quire.testing.certificates(tmp_path, clients=["anna"])
        with quire.testing.server(tls=files.server) as server:
            client = quire.Client(server.url, ssl=files.clients["anna"])

    - `directory`: where the files are written. Files of an earlier call are replaced: the authority is new
    - `names`: host names and addresses of the server
    - `clients`: names of clients. Each is the common name of a certificate
    - `expires_in`: the lifetime of the certificates. It may be negative

    Requires `quire-mq[testing]`, and raises `ConfigError` without it.
    """
    try:
        import trustme
    except ModuleNotFoundError:
        reason = "it requires trustme: pip install 'quire-mq[testing]'"
        raise ConfigError(reason, key="quire.testing.certificates") from None
    place = Path(directory)
    place.mkdir(parents=True, exist_ok=True)
    authority = trustme.CA()
    now = datetime.now(UTC)
    lifetime = (
        expires_in
        if isinstance(expires_in, timedelta)
        else timedelta(seconds=seconds(expires_in, "expires_in"))
    )
    until = now + lifetime
    since = min(now, until) - timedelta(days=1)

    def write(name: str, data: bytes) -> Path:
        path = place / name
        # Readable by its owner only from the first moment.
        number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(number, "wb") as file:
            os.fchmod(number, 0o600)
            file.write(data)
        return path.absolute()

    def pair(name: str, issued: trustme.LeafCert) -> tuple[Path, Path]:
        chain = b"".join(blob.bytes() for blob in issued.cert_chain_pems)
        return write(f"{name}.pem", chain), write(f"{name}.key", issued.private_key_pem.bytes())

    ca = write("ca.pem", authority.cert_pem.bytes())
    server = authority.issue_cert(*names, not_before=since, not_after=until)
    certificate, private_key = pair("server", server)
    of_clients = {}
    for client in clients:
        issued = authority.issue_cert(common_name=client, not_before=since, not_after=until)
        its_certificate, its_key = pair(f"client-{client}", issued)
        of_clients[client] = TLS(ca=ca, certificate=its_certificate, key=its_key)
    return Certificates(ca, certificate, private_key, of_clients)
