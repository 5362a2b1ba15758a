"""`quire.testing.tokens`: an issuer of tokens for tests."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from quire._errors import ConfigError
from quire._units import Duration, seconds

_KID = "test"


@dataclass(frozen=True)
class Tokens:
    """An issuer, with the file of its keys."""

    #: The file with the public key of the issuer, as JWKS.
    keys: Path
    #: The `iss` and the `aud` of the tokens.
    issuer: str
    audience: str
    _key: Any = field(repr=False)

    @property
    def authentication(self) -> dict[str, Any]:
        """The `[authentication]` of a server that takes the tokens."""
        return {
            "method": "token",
            "keys": str(self.keys),
            "issuer": self.issuer,
            "audience": self.audience,
        }

    def make(
        self, user: str, *, groups: Sequence[str] = (), expires_in: Duration = "1h", **claims: Any
    ) -> str:
        """Returns a token of a user.

        - `groups`: the groups of the user
        - `expires_in`: the lifetime of the token. A `timedelta` may be negative
        - `claims`: further claims, or others than those of the issuer. `None` leaves a claim out
        """
        import jwt

        now = int(time.time())
        lifetime = (
            expires_in.total_seconds()
            if isinstance(expires_in, timedelta)
            else seconds(expires_in, "expires_in")
        )
        found = {
            "iss": self.issuer,
            "aud": self.audience,
            "sub": user,
            "groups": list(groups),
            "iat": now,
            "exp": now + lifetime,
            **claims,
        }
        kept = {name: value for name, value in found.items() if value is not None}
        return jwt.encode(kept, self._key, algorithm="ES256", headers={"kid": _KID})


def tokens(directory: str | os.PathLike[str]) -> Tokens:
    """Makes an issuer, and writes the file of its keys. The issuer is a new one with each call.

        tokens = quire.testing.tokens(tmp_path)
        with quire.testing.server(authentication=tokens.authentication) as server:
            client = quire.Client(server.url, token=tokens.make("anna", groups=["desk"]))

    - `directory`: where the file `keys.json` is written

    Requires `quire-mq[testing]`, and raises `ConfigError` without it.
    """
    try:
        from cryptography.hazmat.primitives.asymmetric import ec
        from jwt.algorithms import ECAlgorithm
    except ModuleNotFoundError:
        reason = "it requires PyJWT and cryptography: pip install 'quire-mq[testing]'"
        raise ConfigError(reason, key="quire.testing.tokens") from None
    key = ec.generate_private_key(ec.SECP256R1())
    public = ECAlgorithm.to_jwk(key.public_key(), as_dict=True)
    place = Path(directory)
    place.mkdir(parents=True, exist_ok=True)
    file = place / "keys.json"
    file.write_text(json.dumps({"keys": [{**public, "kid": _KID, "alg": "ES256", "use": "sig"}]}))
    return Tokens(file, "https://issuer.test", "quire", key)
