"""Logons with a token: a JWT that an issuer has signed, and the keys of the issuer.

PyJWT decodes the token and checks its signature. The algorithm is that of the key, which the file of
keys pins: a header cannot choose it. So no public key is taken for the secret of an HMAC.
"""

from __future__ import annotations

import base64
import json
import os
import re
import stat
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from quire._errors import ConfigError
from quire._quire import TOKEN_EXPIRED
from quire.config._authentication import Authentication
from quire.server._identity import Checker, Given, Identity, Refused, is_name

#: The most characters of a token. A longer one is not decoded.
TOKEN_SIZE_MAX: Final = 16 * 1024
#: Three parts in base64url. PyJWT would skip other characters.
_FORM: Final = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+", re.ASCII)
#: The algorithms of each type of key, with the curves of the key.
_ALGORITHMS: Final[dict[str, dict[str, tuple[str, ...]]]] = {
    "RSA": dict.fromkeys(("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"), ()),
    "EC": {"ES256": ("P-256",), "ES384": ("P-384",), "ES512": ("P-521",)},
    "OKP": {"EdDSA": ("Ed25519", "Ed448")},
    "oct": {"HS256": ()},
}
#: The smallest secret of HS256, in bytes, and the smallest RSA key, in bits.
_SECRET_SIZE_MIN: Final = 32
_RSA_SIZE_MIN: Final = 2048

#: The text for a client whose token has a valid signature. It is a part of the protocol: a client
#: with a function for the token then calls it once more.
EXPIRED: Final = TOKEN_EXPIRED


@dataclass(frozen=True)
class Key:
    """A key of the issuer, and the one algorithm that it is for."""

    algorithm: str
    #: As PyJWT takes it.
    key: Any = field(repr=False)


def keys_of(path: Path) -> dict[str, Key]:
    """Reads a JWKS file: the keys by their ids.

    Raises `ConfigError` for a file that cannot be used, without a part of a key: it may be a secret.
    """
    try:
        mode = os.stat(path).st_mode
        entries = json.loads(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{error.strerror or error}", file=path) from None
    except (ValueError, RecursionError):
        raise ConfigError("not JSON", file=path) from None
    keys = entries.get("keys") if isinstance(entries, dict) else None
    if not isinstance(keys, list) or not keys:
        raise ConfigError('expected {"keys": [...]} with at least one key', file=path)
    found: dict[str, Key] = {}
    for number, entry in enumerate(keys):
        place = f"keys[{number}]"
        if not isinstance(entry, dict):
            raise ConfigError("expected an object", key=place, file=path)
        kid = entry.get("kid")
        if not isinstance(kid, str) or not kid:
            raise ConfigError("each key requires a kid", key=place, file=path)
        if kid in found:
            raise ConfigError(f"two keys have the kid {kid!r}", key=f"{place}.kid", file=path)
        try:
            found[kid] = _key_of(entry)
        except ConfigError as error:
            key = place if error.key is None else f"{place}.{error.key}"
            raise ConfigError(error._reason, key=key, file=path) from None
    has_secret = any(key.algorithm == "HS256" for key in found.values())
    if mode & (stat.S_IWOTH | (stat.S_IROTH if has_secret else 0)):
        what = "may read the secret in it" if has_secret else "may change it"
        raise ConfigError(f"every user of this machine {what}: run `chmod o= {path}`", file=path)
    return found


def _key_of(entry: dict[str, Any]) -> Key:
    kind, algorithm = entry.get("kty"), entry.get("alg")
    algorithms = _ALGORITHMS.get(kind) if isinstance(kind, str) else None
    if algorithms is None:
        raise ConfigError(f"expected one of {', '.join(_ALGORITHMS)}", key="kty")
    if not isinstance(algorithm, str) or algorithm not in algorithms:
        raise ConfigError(f"a key of the type {kind} requires one of {', '.join(algorithms)}", key="alg")
    curves = algorithms[algorithm]
    if curves and entry.get("crv") not in curves:
        raise ConfigError(f"{algorithm} requires the curve {' or '.join(curves)}", key="crv")
    if entry.get("use", "sig") != "sig":
        raise ConfigError('the key is not for signatures: expected "sig"', key="use")
    if kind != "oct" and "d" in entry:
        raise ConfigError("this is a private key: leave only its public part in the file", key="d")
    jwt = _jwt()
    try:
        if kind == "oct" and len(_decoded(entry["k"])) < _SECRET_SIZE_MIN:
            raise ConfigError(f"HS256 requires a secret of at least {_SECRET_SIZE_MIN} bytes", key="k")
        key = jwt.PyJWK(entry, algorithm)
    except ConfigError:
        raise
    except Exception:
        # The text of the error may have the key.
        raise ConfigError("the key cannot be read") from None
    if kind == "RSA" and key.key.key_size < _RSA_SIZE_MIN:
        raise ConfigError(f"an RSA key requires at least {_RSA_SIZE_MIN} bits", key="n")
    return Key(algorithm, key)


def _decoded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def _jwt() -> Any:
    try:
        import cryptography  # noqa: F401
        import jwt
    except ModuleNotFoundError:
        reason = "tokens require PyJWT and cryptography: pip install 'quire-mq[auth]'"
        raise ConfigError(reason, key="authentication.method") from None
    return jwt


class Tokens(Checker):
    """Checks tokens against the keys of a file."""

    def __init__(self, settings: Authentication) -> None:
        assert settings.keys is not None
        self._settings = settings
        self._keys = keys_of(settings.keys)

    def check(self, given: Given, now: float | None = None) -> Identity | Refused:
        """Decides about a logon. `now`: seconds since 1970."""
        if given.token is None:
            return Refused("no token")
        claims = self._verified(given.token)
        if isinstance(claims, Refused):
            return claims
        times = self._times(claims, time.time() if now is None else now)
        if isinstance(times, Refused):
            return times
        user = claims.get(self._settings.user_claim)
        if not isinstance(user, str) or not is_name(user):
            return Refused(f"the claim {self._settings.user_claim} is not the name of a user")
        if given.user not in (None, user):
            return Refused("the token is of another user")
        groups = claims.get(self._settings.groups_claim, [])
        groups = [groups] if isinstance(groups, str) else groups
        if not isinstance(groups, list) or not all(map(is_name, groups)):
            return Refused(f"the claim {self._settings.groups_claim} is not a list of groups")
        return Identity(user, tuple(groups), expires=times)

    def _verified(self, token: str) -> dict[str, Any] | Refused:
        """The claims of a token with a valid signature, of the issuer and for the audience."""
        if len(token) > TOKEN_SIZE_MAX:
            return Refused("the token is too long")
        if _FORM.fullmatch(token) is None:
            return Refused("not a token")
        jwt = _jwt()
        try:
            header = json.loads(_decoded(token.partition(".")[0]))
        except (ValueError, RecursionError):
            return Refused("not a token")
        if not isinstance(header, dict):
            return Refused("not a token")
        if "crit" in header or "b64" in header:
            return Refused("the header requires an extension")
        kid = header.get("kid")
        key = self._keys.get(kid) if isinstance(kid, str) else None
        if key is None:
            return Refused("no key has the kid of the token")
        if header.get("alg") != key.algorithm:
            return Refused("the algorithm of the token is not that of its key")
        # The times are checked here, because PyJWT also takes texts as numbers.
        options = {f"verify_{claim}": False for claim in ("exp", "nbf", "iat")}
        try:
            claims: dict[str, Any] = jwt.decode(
                token,
                key.key,
                algorithms=[key.algorithm],
                options=options,
                audience=self._settings.audience,
                issuer=self._settings.issuer,
            )
        except jwt.InvalidSignatureError:
            return Refused("wrong signature")
        except jwt.InvalidAudienceError:
            return Refused("wrong audience")
        except jwt.InvalidIssuerError:
            return Refused("wrong issuer")
        except jwt.MissingRequiredClaimError as error:
            return Refused("wrong issuer" if error.claim == "iss" else "wrong audience")
        except Exception:
            # Each error of the library is a refusal, because a stranger made the bytes. The text of
            # the error may have parts of the token.
            return Refused("the token cannot be read")
        return claims

    def _times(self, claims: dict[str, Any], now: float) -> float | Refused:
        """The time at which the connection ends."""
        for claim in ("exp", "nbf", "iat"):
            if claim in claims and (mistake := _mistake_of_time(claims[claim])) is not None:
                return Refused(f"the claim {claim} is {mistake}")
        leeway = self._settings.leeway
        if "exp" not in claims:
            return Refused("the token has no exp")
        if claims.get("nbf", now) > now + leeway:
            return Refused("the token is not valid yet")
        if claims.get("iat", now) > now + leeway:
            return Refused("the token was issued in the future")
        end: float = claims["exp"] + leeway
        return end if end > now else Refused(EXPIRED, EXPIRED)


def _mistake_of_time(value: object) -> str | None:
    """Why a claim has no seconds since 1970 before the year 10000; `None`: it has them."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        return "not a time"
    # No function of `math` takes an integer of hundreds of digits.
    return None if 0 <= value < 253_402_300_800 else "out of range"
