"""Logons with tokens and with certificates: accepted and refused ones, and that a refused client does not learn the reason."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import logging
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import jwt
import pytest
import quire
import quire.testing
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import ECAlgorithm, HMACAlgorithm, OKPAlgorithm, RSAAlgorithm
from quire.config import Authentication
from quire.server._certificate_users import CertificateUsers
from quire.server._identity import Given, Identity, Refused
from quire.server._tokens import TOKEN_SIZE_MAX, Tokens, keys_of
from support.waiting import PATIENCE, wait_until

NOW = 1_800_000_000
ISSUER, AUDIENCE = "https://issuer.test", "quire"
SECRET = b"0123456789abcdef0123456789abcdef"
#: Made once: an RSA key takes a second.
RSA_KEY = rsa.generate_private_key(65537, 2048)
EC_KEY = ec.generate_private_key(ec.SECP256R1())
CLAIMS = {"iss": ISSUER, "aud": AUDIENCE, "sub": "anna", "exp": NOW + 60}


def jwk(key: Any, algorithm: str, kid: str, **more: Any) -> dict[str, Any]:
    if isinstance(key, bytes):
        public = HMACAlgorithm.to_jwk(key, as_dict=True)
        public = {name: value for name, value in public.items() if name in ("kty", "k")}
    elif isinstance(key, rsa.RSAPrivateKey):
        public = RSAAlgorithm.to_jwk(key.public_key(), as_dict=True)
    elif isinstance(key, ec.EllipticCurvePrivateKey):
        public = ECAlgorithm.to_jwk(key.public_key(), as_dict=True)
    else:
        public = OKPAlgorithm.to_jwk(key.public_key(), as_dict=True)
    public.pop("key_ops", None)
    return {**public, "kid": kid, "alg": algorithm, **more}


def keys_file(directory: Path, *keys: dict[str, Any], mode: int = 0o600) -> Path:
    file = directory / "keys.json"
    file.write_text(json.dumps({"keys": list(keys)}))
    file.chmod(mode)
    return file


def checker(directory: Path, *keys: dict[str, Any], **settings: Any) -> Tokens:
    file = keys_file(directory, *keys)
    given = {"keys": file, "issuer": ISSUER, "audience": AUDIENCE, **settings}
    return Tokens(Authentication(method="token", **given))


@pytest.fixture
def tokens(tmp_path: Path) -> Tokens:
    return checker(
        tmp_path,
        jwk(RSA_KEY, "RS256", "rsa"),
        jwk(EC_KEY, "ES256", "ec"),
        jwk(SECRET, "HS256", "secret"),
    )


def signed(key: Any = EC_KEY, algorithm: str = "ES256", kid: str | None = "ec", **claims: Any) -> str:
    found = {**CLAIMS, **claims}
    kept = {name: value for name, value in found.items() if value is not None}
    return jwt.encode(kept, key, algorithm=algorithm, headers={} if kid is None else {"kid": kid})


def encoded(part: object) -> str:
    data = part if isinstance(part, bytes) else json.dumps(part).encode()
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def crafted(header: object, claims: object, sign: Callable[[bytes], bytes] = lambda text: b"x") -> str:
    text = f"{encoded(header)}.{encoded(claims)}"
    return f"{text}.{encoded(sign(text.encode()))}"


def with_secret(secret: bytes) -> Callable[[bytes], bytes]:
    return lambda text: hmac.digest(secret, text, hashlib.sha256)


def decide(
    tokens: Tokens, token: str | None, user: str | None = None, now: float = NOW
) -> Identity | Refused:
    return tokens.check(Given(user, token=token), now)


def reason(tokens: Tokens, token: str | None, **given: Any) -> str:
    refused = decide(tokens, token, **given)
    assert isinstance(refused, Refused), refused
    return refused.reason


# Tokens


@pytest.mark.parametrize(
    ("key", "algorithms"),
    [
        (RSA_KEY, ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")),
        (EC_KEY, ("ES256",)),
        (ec.generate_private_key(ec.SECP384R1()), ("ES384",)),
        (ec.generate_private_key(ec.SECP521R1()), ("ES512",)),
        (ed25519.Ed25519PrivateKey.generate(), ("EdDSA",)),
        (ed448.Ed448PrivateKey.generate(), ("EdDSA",)),
        (SECRET, ("HS256",)),
    ],
)
def test_a_token_with_the_algorithm_of_its_key_is_accepted(
    tmp_path: Path, key: Any, algorithms: tuple[str, ...]
) -> None:
    for algorithm in algorithms:
        tokens = checker(tmp_path, jwk(key, algorithm, "k"))
        assert decide(tokens, signed(key, algorithm, "k")) == Identity("anna", (), NOW + 90)


def test_the_user_and_the_groups_are_in_claims(tmp_path: Path) -> None:
    tokens = checker(tmp_path, jwk(EC_KEY, "ES256", "ec"))
    assert decide(tokens, signed(groups=["desk", "risk"])) == Identity("anna", ("desk", "risk"), NOW + 90)
    assert decide(tokens, signed(groups="desk")) == Identity("anna", ("desk",), NOW + 90)
    assert decide(tokens, signed(), user="anna") == Identity("anna", (), NOW + 90)
    named = checker(tmp_path, jwk(EC_KEY, "ES256", "ec"), user_claim="mail", groups_claim="roles")
    assert decide(named, signed(mail="anna@x", roles=["a"])) == Identity("anna@x", ("a",), NOW + 90)
    several = checker(tmp_path, jwk(EC_KEY, "ES256", "ec"), issuer=["a", ISSUER], audience=["b", "c"])
    assert isinstance(decide(several, signed(aud=["x", "c"])), Identity)
    assert reason(several, signed(aud=["x"])) == "wrong audience"


def test_an_algorithm_other_than_that_of_the_key_is_refused(tokens: Tokens) -> None:
    other = "the algorithm of the token is not that of its key"
    # A public key as the secret of an HMAC.
    public = RSA_KEY.public_key()
    for encoding, form in (
        (Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
        (Encoding.DER, PublicFormat.SubjectPublicKeyInfo),
        (Encoding.PEM, PublicFormat.PKCS1),
    ):
        sign = with_secret(public.public_bytes(encoding, form))
        assert reason(tokens, crafted({"alg": "HS256", "kid": "rsa"}, CLAIMS, sign)) == other
    for algorithm in ("none", "None", "NONE", "", None, 1, ["RS256"], "HS256", "RS512", "PS256"):
        assert reason(tokens, crafted({"alg": algorithm, "kid": "rsa"}, CLAIMS)) == other
    assert reason(tokens, crafted({"kid": "rsa"}, CLAIMS)) == other
    assert reason(tokens, signed(RSA_KEY, "RS512", "rsa")) == other
    # The right form for HS256 with the kid of another key.
    assert reason(tokens, signed(SECRET, "HS256", "ec")) == other
    # A token without a signature.
    assert reason(tokens, f"{encoded({'alg': 'none', 'kid': 'rsa'})}.{encoded(CLAIMS)}.") == "not a token"


def test_a_key_of_somebody_else_is_refused(tokens: Tokens) -> None:
    stranger = ec.generate_private_key(ec.SECP256R1())
    assert reason(tokens, signed(stranger)) == "wrong signature"
    # Keys in the header, or named by it, are not used.
    public = ECAlgorithm.to_jwk(stranger.public_key(), as_dict=True)
    for header in ({"jwk": public}, {"jku": "http://127.0.0.1:1/"}, {"x5u": "http://127.0.0.1:1/"}):
        token = jwt.encode(CLAIMS, stranger, algorithm="ES256", headers={"kid": "ec", **header})
        assert reason(tokens, token) == "wrong signature"
    for kid in (None, "", "EC", "../ec", 7, {"kid": "ec"}):
        token = crafted({"alg": "ES256", "kid": kid}, CLAIMS)
        assert reason(tokens, token) == "no key has the kid of the token"
    token = signed()
    head, claims, signature = token.split(".")
    other = encoded({**CLAIMS, "sub": "bob"})
    assert reason(tokens, f"{head}.{other}.{signature}") == "wrong signature"
    assert reason(tokens, f"{head}.{claims}.{encoded(bytes(64))}") == "wrong signature"
    assert reason(tokens, f"{head}.{claims}.{encoded(b'')}x") in (
        "wrong signature",
        "the token cannot be read",
    )


def test_clocks_may_differ_by_the_leeway(tmp_path: Path) -> None:
    tokens = checker(tmp_path, jwk(EC_KEY, "ES256", "ec"), leeway="10s")
    token = signed(exp=NOW)
    assert decide(tokens, token, now=NOW + 9.9) == Identity("anna", (), NOW + 10)
    refused = decide(tokens, token, now=NOW + 10)
    # The client learns this one.
    assert refused == Refused("the token has expired", "the token has expired")
    assert isinstance(decide(tokens, signed(nbf=NOW + 10, iat=NOW + 10)), Identity)
    assert reason(tokens, signed(nbf=NOW + 11)) == "the token is not valid yet"
    assert reason(tokens, signed(iat=NOW + 11)) == "the token was issued in the future"
    # Only the issuer can make an expired token that says so.
    assert reason(tokens, signed(ec.generate_private_key(ec.SECP256R1()), exp=1)) == "wrong signature"
    assert reason(tokens, signed(exp=1, aud="other")) == "wrong audience"


def test_a_claim_that_is_missing_or_odd_is_refused(tokens: Tokens) -> None:
    assert reason(tokens, signed(exp=None)) == "the token has no exp"
    exp: Any
    for exp in ("9999999999", True, [NOW + 60], {}):
        token = crafted({"alg": "HS256", "kid": "secret"}, {**CLAIMS, "exp": exp}, with_secret(SECRET))
        assert reason(tokens, token) == "the claim exp is not a time", exp
    assert reason(tokens, signed(iss=None)) == "wrong issuer"
    assert reason(tokens, signed(iss="https://other.test")) == "wrong issuer"
    assert reason(tokens, signed(aud=None)) == "wrong audience"
    assert reason(tokens, signed(aud="Quire")) == "wrong audience"
    for user in ("", "anonymous", " anna", "a\nb", "x" * 256, "e\u0301"):
        assert reason(tokens, signed(sub=user)) == "the claim sub is not the name of a user", user
    assert reason(tokens, signed(sub=None)) == "the claim sub is not the name of a user"
    for groups in ([1], [""], {"a": "b"}, 7, ["a\nb"]):
        assert reason(tokens, signed(groups=groups)) == "the claim groups is not a list of groups"
    assert reason(tokens, signed(), user="bob") == "the token is of another user"
    assert reason(tokens, None) == "no token"


@pytest.mark.parametrize("claim", ["exp", "nbf", "iat"])
def test_a_time_of_a_token_that_is_out_of_range_is_refused_as_such(tokens: Tokens, claim: str) -> None:
    def of(text: str) -> str:
        whole = json.dumps(CLAIMS)[:-1] + f', "{claim}": {text}}}'
        token = crafted({"alg": "HS256", "kid": "secret"}, whole.encode(), with_secret(SECRET))
        return reason(tokens, token)

    for text in ("1" + "0" * 400, "-1" + "0" * 400, "-1", "1e300", "1e308", "1e999", "Infinity", "-Infinity"):
        assert of(text) == f"the claim {claim} is out of range", text
    for text in ("NaN", '"1800000000"', '"\u0661"', "true", "null", "[]"):
        assert of(text) == f"the claim {claim} is not a time", text


def test_text_that_is_not_a_token_is_refused(tokens: Tokens) -> None:
    good = signed()
    head, claims, signature = good.split(".")
    odd = [
        "", ".", "..", "a.b", "a.b.c.d", "a.b.c", good + "\n", " " + good, good + "=", f"{head}.{claims}.+/==",
        f"{head}\u00e9.{claims}.{signature}", f"{encoded([1])}.{claims}.{signature}",
        f"{encoded(b'not json')}.{claims}.{signature}", f"{encoded(b'{' * 3000)}.{claims}.{signature}",
        f"{encoded(b'[' * 9000)}.{claims}.{signature}", "lone \ud800 surrogate",
    ]  # fmt: skip
    for text in odd:
        assert reason(tokens, text) == "not a token", text[:50]
    # Deep or damaged claims, with a signature.
    for data in (b"[" * 9000, b"{}x", b"\xff", b"7", b"null", b"[]", b'"text"'):
        token = crafted({"alg": "HS256", "kid": "secret"}, data, with_secret(SECRET))
        assert reason(tokens, token) == "the token cannot be read", data[:9]
    more: dict[str, Any]
    for more in ({"crit": ["exp"]}, {"crit": []}, {"b64": False, "crit": ["b64"]}, {"b64": True}):
        token = jwt.encode(CLAIMS, SECRET, algorithm="HS256", headers={"kid": "secret"})
        token = crafted({"alg": "HS256", "kid": "secret", **more}, CLAIMS, with_secret(SECRET))
        assert reason(tokens, token) == "the header requires an extension"


def test_a_huge_token_is_not_decoded(tokens: Tokens) -> None:
    token = signed(filler="x" * TOKEN_SIZE_MAX)
    assert len(token) > TOKEN_SIZE_MAX
    assert reason(tokens, token) == "the token is too long"
    size = TOKEN_SIZE_MAX - len(signed(filler="")) - 8
    assert isinstance(decide(tokens, signed(filler="x" * (size * 3 // 4))), Identity)


def refusal_of_keys(file: Path) -> str:
    with pytest.raises(quire.ConfigError) as raised:
        keys_of(file)
    assert str(file) in str(raised.value)
    return str(raised.value).replace(str(file), "FILE")


def test_a_file_of_keys_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    good = jwk(EC_KEY, "ES256", "ec")
    private = ECAlgorithm.to_jwk(EC_KEY, as_dict=True)
    cases: list[tuple[list[Any], str]] = [
        ([], "at least one key"),
        ([7], "keys[0]: expected an object"),
        ([{**good, "kid": ""}], "keys[0]: each key requires a kid"),
        ([good, good], "keys[1].kid: two keys have the kid 'ec'"),
        ([{**good, "alg": "none"}], "keys[0].alg: a key of the type EC requires one of ES256, ES384, ES512"),
        ([{**good, "alg": "HS256"}], "keys[0].alg"),
        ([{**good, "alg": "ES384"}], "keys[0].crv: ES384 requires the curve P-384"),
        ([{**good, "alg": None}], "keys[0].alg"),
        ([{**good, "kty": "ec"}], "keys[0].kty: expected one of RSA, EC, OKP, oct"),
        ([{**good, "use": "enc"}], "keys[0].use"),
        ([{**good, "x": "AA"}], "keys[0]: the key cannot be read"),
        ([{**good, "x": 7}], "keys[0]: the key cannot be read"),
        ([{**private, "kid": "p", "alg": "ES256"}], "keys[0].d: this is a private key"),
        ([jwk(SECRET[:31], "HS256", "s")], "keys[0].k: HS256 requires a secret of at least 32 bytes"),
        ([jwk(SECRET, "HS512", "s")], "keys[0].alg: a key of the type oct requires one of HS256"),
        ([jwk(RSA_KEY, "HS256", "r")], "keys[0].alg"),
        ([jwk(rsa.generate_private_key(65537, 1024), "RS256", "r")], "keys[0].n: an RSA key requires"),
    ]
    for keys, text in cases:
        file = keys_file(tmp_path, *keys)
        message = refusal_of_keys(file)
        assert text in message, message
        for secret in (encoded(SECRET), encoded(SECRET[:31]), str(private["d"])):
            assert secret not in message
    for data in (b"", b"{", b"\xff", b"[" * 100_000):
        file.write_bytes(data)
        assert "not JSON" in refusal_of_keys(file)
    for data in (b"[]", b'{"keys": 7}', b"null"):
        file.write_bytes(data)
        assert "at least one key" in refusal_of_keys(file)
    file.unlink()
    assert "No such file" in refusal_of_keys(file)


def test_a_secret_that_others_may_read_is_refused(tmp_path: Path) -> None:
    secret, public = jwk(SECRET, "HS256", "s"), jwk(EC_KEY, "ES256", "ec")
    assert "may read the secret in it" in refusal_of_keys(keys_file(tmp_path, secret, mode=0o604))
    assert "may change it" in refusal_of_keys(keys_file(tmp_path, public, mode=0o606))
    assert list(keys_of(keys_file(tmp_path, public, mode=0o644))) == ["ec"]
    assert encoded(SECRET) not in repr(keys_of(keys_file(tmp_path, secret)))


# A server with tokens


@pytest.fixture
def issuer(tmp_path: Path) -> quire.testing.Tokens:
    return quire.testing.tokens(tmp_path / "issuer")


@pytest.fixture
def server(tmp_path: Path, issuer: quire.testing.Tokens) -> Iterator[quire.testing.TestServer]:
    settings = {**issuer.authentication, "leeway": 0}
    with quire.testing.server(tmp_path / "data", authentication=settings) as server:
        yield server


def audits(caplog: pytest.LogCaptureFixture, what: str) -> list[dict[str, str]]:
    lines = [line for line in caplog.messages if line.startswith(f"audit: {what} ")]
    pattern = re.compile(r'(\w+)=("(?:[^"\\]|\\.)*")')
    return [{name: json.loads(value) for name, value in pattern.findall(line)} for line in lines]


def refusal(url: str, **options: Any) -> quire.AuthenticationError:
    with pytest.raises(quire.AuthenticationError) as raised:
        quire.Client(url, connect_timeout=PATIENCE, **options)
    return raised.value


def test_a_client_logs_on_with_a_token_as_its_password(
    server: quire.testing.TestServer, issuer: quire.testing.Tokens, caplog: pytest.LogCaptureFixture
) -> None:
    token = issuer.make("anna", groups=["desk"])
    with (
        caplog.at_level(logging.INFO, "quire.server"),
        quire.Client(server.url, token=token, name="loader") as client,
    ):
        client.publish("orders", "1")
        client.flush(timeout=PATIENCE)
        # The name is held by the user of the token.
        with pytest.raises(quire.NameInUseError):
            quire.Client(server.url, token=issuer.make("bob"), name="loader")
    first = audits(caplog, "logon")[0]
    assert first["user"] == "anna"
    assert (first["method"], first["result"], first["reason"]) == ("token", "accepted", "")
    assert token not in caplog.text


def test_a_refused_token_has_one_text_and_the_log_has_the_reason(
    server: quire.testing.TestServer,
    issuer: quire.testing.Tokens,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    stranger = quire.testing.tokens(tmp_path / "stranger")
    given: list[tuple[dict[str, Any], str]] = [
        ({"token": stranger.make("anna")}, "wrong signature"),
        ({"token": issuer.make("anna", aud="other")}, "wrong audience"),
        ({"token": issuer.make("anna", exp=None)}, "the token has no exp"),
        ({"token": issuer.make("anna"), "user": "bob"}, "the token is of another user"),
        ({"token": "x" * (TOKEN_SIZE_MAX + 1)}, "the token is too long"),
        ({"token": "secret word"}, "not a token"),
        ({"user": "anna"}, "no token"),
        ({"password": issuer.make("anna")}, "no token"),
    ]
    with caplog.at_level(logging.INFO, "quire.server"):
        texts = {str(refusal(server.url, **options)) for options, _ in given}
        assert len(texts) == 1
        assert "user or token are not accepted" in texts.pop()
        assert "the token has expired" in str(
            refusal(server.url, token=issuer.make("anna", expires_in=timedelta(seconds=-1)))
        )
    found = [line["reason"] for line in audits(caplog, "logon")]
    assert found == [reason for _, reason in given] + ["the token has expired"]
    for options, _ in given:
        assert options.get("token", "\0") not in caplog.text


def test_a_client_asks_once_more_for_a_token_after_one_that_has_expired(
    server: quire.testing.TestServer, issuer: quire.testing.Tokens, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[str] = []

    def token() -> str:
        asked.append(issuer.make("anna", expires_in=timedelta(hours=1 if asked else -1)))
        return asked[-1]

    def expired() -> str:
        asked.append(issuer.make("anna", expires_in=timedelta(hours=-1)))
        return asked[-1]

    def strange() -> str:
        asked.append(issuer.make("bob", aud="other"))
        return asked[-1]

    with quire.Client(server.url, token=token) as client:
        assert client.state == "connected"
    assert len(asked) == 2
    asked.clear()
    assert "the token has expired" in str(refusal(server.url, token=expired))
    assert len(asked) == 2
    asked.clear()
    # A token that is wrong for another reason is not asked for again.
    assert "not accepted" in str(refusal(server.url, token=strange))
    assert len(asked) == 1


async def test_a_coroutine_function_returns_the_token(
    server: quire.testing.TestServer, issuer: quire.testing.Tokens
) -> None:
    asked: list[str] = []

    async def token() -> str:
        asked.append(issuer.make("anna", expires_in=timedelta(hours=1 if asked else -1)))
        return asked[-1]

    async with quire.AsyncClient(server.url, token=token) as client:
        await client.publish("orders", "1")
        await client.flush(timeout=PATIENCE)
    assert len(asked) == 2
    with pytest.raises(TypeError, match="is a coroutine function"):
        quire.Client(server.url, token=token)


def test_a_token_of_the_environment_logs_on(
    server: quire.testing.TestServer, issuer: quire.testing.Tokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUIRE_TOKEN", issuer.make("anna"))
    with quire.Client(server.url) as client:
        assert client.server_info().user == "anna"
    # With an argument the environment is not used.
    assert "not accepted" in str(refusal(server.url, user="anna"))
    monkeypatch.setenv("QUIRE_PASSWORD", "secret word")
    with pytest.raises(quire.ConfigError, match=r"token: \$QUIRE_PASSWORD and \$QUIRE_TOKEN are both set"):
        quire.Client(server.url)
    with pytest.raises(quire.ConfigError, match="a client has a password or a token, and not both"):
        quire.Client(server.url, user="anna", password="secret word", token="a.b.c")


def test_a_token_is_not_sent_without_encryption() -> None:
    with pytest.raises(quire.ConfigError, match=r"^token: quire:// would send it") as raised:
        quire.Client("quire://db.example:9007", token="secret.word.x")
    assert "secret.word" not in str(raised.value)


def test_a_connection_ends_when_its_token_expires_and_a_new_token_is_asked_for(
    server: quire.testing.TestServer, issuer: quire.testing.Tokens, caplog: pytest.LogCaptureFixture
) -> None:
    made: list[str] = []

    def token() -> str:
        made.append(issuer.make("anna", expires_in="1h" if made else "2s"))
        return made[-1]

    with (
        caplog.at_level(logging.INFO, "quire.server"),
        quire.Client(server.url, token=token) as client,
        quire.Client(server.url, token=issuer.make("bob")) as other,
    ):
        states: list[str] = []
        other.add_state_listener(states.append)
        wait_until(lambda: len(made) == 2)
        client.publish("orders", "1")
        client.flush(timeout=PATIENCE)
        assert states == []
    [line] = audits(caplog, "logoff")
    assert (line["user"], line["reason"]) == ("anna", "the token has expired")


def test_the_groups_of_a_token_have_their_rights(tmp_path: Path, issuer: quire.testing.Tokens) -> None:
    entries = [{"group": "desk", "topic": "^", "allow": ["read", "write"]}]
    settings: Any = {"authentication": issuer.authentication, "entitlement": entries}
    with quire.testing.server(tmp_path / "data", **settings) as server:
        with quire.Client(server.url, token=issuer.make("anna", groups=["risk", "desk"])) as client:
            client.publish("orders", "1")
            client.flush(timeout=PATIENCE)
        with quire.Client(server.url, token=issuer.make("bob", groups=["risk"])) as client:
            client.publish("orders", "1")
            with pytest.raises(quire.NotEntitledError):
                client.flush(timeout=PATIENCE)


def test_a_new_key_is_used_while_the_server_runs(
    server: quire.testing.TestServer, issuer: quire.testing.Tokens
) -> None:
    with quire.Client(server.url, token=issuer.make("anna")) as client:
        later = quire.testing.tokens(issuer.keys.parent)

        def is_accepted() -> bool:
            try:
                quire.Client(server.url, token=later.make("bob")).close()
            except quire.AuthenticationError:
                return False
            return True

        wait_until(is_accepted)
        refusal(server.url, token=issuer.make("anna"))
        # Its token was valid, and has not expired.
        client.publish("orders", "1")
        client.flush(timeout=PATIENCE)


def test_a_mistake_in_the_configuration_has_its_key_and_line(tmp_path: Path) -> None:
    file = tmp_path / "quire.toml"
    head = '[transaction_log]\ntopic = [{ name = "^", message_type = "json" }]\n\n[authentication]\nmethod = "token"\n'
    for text, expected in [
        ("", 'quire.toml:4: authentication: method = "token" requires keys'),
        ('keys = "k.json"\nissuer = "i"\n', 'method = "token" requires audience'),
        (
            'keys = "k.json"\nissuer = "i"\naudience = "a"\nleeway = "6m"\n',
            "quire.toml:9: authentication.leeway",
        ),
        ('keys = "k.json"\nissuer = "i"\naudience = "a"\nusers_file = "u"\n', "users_file requires method"),
        ('keys = "k.json"\nissuer = "i"\naudience = "a"\nkey = "u"\n', 'did you mean "keys"?'),
    ]:
        file.write_text(head + text)
        with pytest.raises(quire.ConfigError) as raised:
            quire.Config.load(file)
        assert expected in str(raised.value), raised.value
    file.write_text(head + 'keys = "k.json"\nissuer = "i"\naudience = "a"\n')
    with pytest.raises(quire.ConfigError, match=r"quire.toml:6: authentication.keys: .*No such file"):
        quire.Config.load(file).check()


# Certificates


def certificate(**parts: Any) -> dict[str, Any]:
    names = parts.pop("names", ())
    return {
        "subject": tuple(((kind, value),) for kind, value in parts.items()),
        "subjectAltName": tuple(names),
    }


def test_a_certificate_names_its_user_by_exactly_one_value() -> None:
    users = CertificateUsers(Authentication(method="certificate", users={"Anna Smith": "anna"}))

    def found(certificate: dict[str, Any] | None, user: str | None = None) -> str:
        result = users.check(Given(user, certificate=certificate))
        return result.reason if isinstance(result, Refused) else f"user {result.user}"

    assert found(certificate(commonName="bob")) == "user bob"
    assert found(certificate(commonName="Anna Smith"), "anna") == "user anna"
    assert found(certificate(commonName="bob"), "anna") == "the certificate is of another user"
    assert found(None) == found({}) == "no certificate"
    assert found(certificate(organizationName="x")) == "the certificate has 0 names of the kind common_name"
    twice = {"subject": ((("commonName", "bob"), ("commonName", "carl")),)}
    assert found(twice) == "the certificate has 2 names of the kind common_name"
    for name in ("", "anonymous", "a\0b", "a\nb", " bob"):
        assert found(certificate(commonName=name)).endswith("is not the name of a user"), name
    names = (("DNS", "bob.test"), ("email", "bob@test"), ("URI", "spiffe://test/bob"), ("DNS", "b.test"))
    for kind, expected in [("email", "user bob@test"), ("uri", "user spiffe://test/bob"), ("dns", "2 names")]:
        users = CertificateUsers(Authentication(method="certificate", user_from=kind))  # type: ignore[arg-type]
        assert expected in found(certificate(commonName="x", names=names))


def test_a_client_logs_on_with_its_certificate(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    from quire.testing._server import write_users

    files = quire.testing.certificates(tmp_path / "tls", clients=["anna", "bob", "carl"])
    write_users(tmp_path / "users.toml", {"anna": {"groups": ["desk"]}, "carl": {"disabled": True}})
    settings = {"method": "certificate", "users_file": str(tmp_path / "users.toml")}
    tls = {**files.server, "client_certificate": "required"}
    with (
        caplog.at_level(logging.INFO, "quire.server"),
        quire.testing.server(tmp_path / "data", tls=tls, authentication=settings) as server,
        quire.Client(server.url, ssl=files.clients["anna"]) as client,
    ):
        client.publish("orders", "1")
        client.flush(timeout=PATIENCE)
        texts = {
            str(refusal(server.url, ssl=files.clients[name], user=user))
            for name, user in [("bob", None), ("carl", None), ("anna", "bob")]
        }
        assert len(texts) == 1
        with pytest.raises(quire.TLSError):
            quire.Client(server.url, ssl=files.tls, connect_timeout=PATIENCE)
        # The user is removed.
        write_users(tmp_path / "users.toml", {})
        wait_until(lambda: client.state == "closed")
    lines = audits(caplog, "logon")
    assert [line["user"] for line in lines[:1]] == ["anna"]
    assert {line["method"] for line in lines} == {"certificate"}
    assert [line["reason"] for line in lines[:4]] == [
        "", "unknown user", "disabled user", "the certificate is of another user"
    ]  # fmt: skip


def test_certificates_as_users_require_tls(tmp_path: Path) -> None:
    files = quire.testing.certificates(tmp_path / "tls")
    method = {"method": "certificate"}
    for tls in (None, files.server):
        config = quire.Config(transport={"address": "127.0.0.1:0", "tls": tls}, authentication=method)
        with pytest.raises(quire.ConfigError, match='requires tls with client_certificate = "required"'):
            config.check()
    users = {"x": "anonymous"}
    tls = {**files.server, "client_certificate": "required"}
    config = quire.Config(
        transport={"address": "127.0.0.1:0", "tls": tls}, authentication={**method, "users": users}
    )
    with pytest.raises(quire.ConfigError, match=r"authentication\.users\.x: 'anonymous' is the name"):
        config.check()


# The command line


def inspect(*arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "quire", "token", "inspect", *arguments]
    return subprocess.run(command, input=text, capture_output=True, text=True, timeout=PATIENCE, check=False)


def test_a_token_is_shown_without_a_check_of_its_signature(tmp_path: Path) -> None:
    token = signed(groups=["desk"])
    shown = inspect(text=f"{token}\n")
    assert shown.returncode == 0, shown.stderr
    head, claims = shown.stdout.split("\n}\n", 1)
    assert json.loads(head + "}") == {"alg": "ES256", "kid": "ec", "typ": "JWT"}
    assert json.loads(claims) == {**CLAIMS, "groups": ["desk"]}
    assert "not checked" in shown.stderr
    assert token.rpartition(".")[2] not in shown.stdout
    file = tmp_path / "token"
    file.write_text(token)
    assert inspect(str(file)).stdout == shown.stdout
    assert inspect("-", text=token).stdout == shown.stdout
    for text in ("", "secret word", "a.b.c", "x" * 20_000):
        refused = inspect(text=text)
        assert (refused.returncode, refused.stdout) == (2, "")
        assert not text or text not in refused.stderr
    assert inspect(str(tmp_path / "missing")).returncode == 2


def test_no_secret_is_in_a_repr() -> None:
    given = Given("anna", "secret word", "secret word", certificate={"subject": "Anna"})
    assert "secret word" not in repr(given)
    assert "secret word" not in repr(replace(given, transport="clients"))
    assert time.time() > 0
