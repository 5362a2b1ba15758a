"""Users: what is accepted and refused, where a client gets its identity, changes of the file while
the server runs, the command `quire user`, and that no secret leaves its place."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import quire
import quire.testing
from quire._quire import check_password, password_cost
from quire.client._options import ClientOptions
from quire.config._authentication import Authentication
from quire.server import _guard, _users
from quire.server._guard import Failures, Guard
from quire.server._identity import Checker, Given, Identity, Refused, check_name
from quire.server._users import User, Users, Verifier, hash_of
from quire.testing._server import write_users
from support.server_process import ServerProcess
from support.stranger import Stranger, fields, frame
from support.waiting import PATIENCE, wait_until

ANNA, BOB = "correct horse battery", "staple, staple"
USERS: dict[str, dict[str, Any]] = {
    "anna": {"password": ANNA, "groups": ["desk"]},
    "bob": {"password": BOB},
    "carl": {"password": "is disabled", "disabled": True},
    "dora": {},
}
AUTHENTICATION_FAILED = 5

#: The identity of the machine on which the tests run does not count.
VARIABLES = ("QUIRE_USER", "QUIRE_PASSWORD", "QUIRE_NETRC")


@pytest.fixture(autouse=True)
def no_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[quire.testing.TestServer]:
    with quire.testing.server(tmp_path / "data", users=USERS) as server:
        yield server


def refusal(url: str, **options: Any) -> quire.AuthenticationError:
    with pytest.raises(quire.AuthenticationError) as raised:
        quire.Client(url, connect_timeout=PATIENCE, **options)
    return raised.value


# Logons


def test_a_user_with_the_right_password_logs_on(server: quire.testing.TestServer) -> None:
    with quire.Client(server.url, **server.options("anna")) as client:
        client.publish("orders", "1")
        client.flush(timeout=PATIENCE)


async def test_an_asyncio_client_logs_on(server: quire.testing.TestServer) -> None:
    async with quire.AsyncClient(server.url, **server.options("bob")) as client:
        await client.publish("orders", "1")
        await client.flush(timeout=PATIENCE)
    with pytest.raises(quire.AuthenticationError):
        await quire.AsyncClient(server.url, user="bob", password=ANNA).server_info()


def test_a_client_connects_again_with_its_password(tmp_path: Path) -> None:
    file = tmp_path / "users.toml"
    write_users(file, USERS)
    authentication = {"method": "users", "users_file": str(file)}
    with (
        ServerProcess(tmp_path / "data", authentication=authentication) as server,
        quire.Client(server.url, name="loader", user="anna", password=ANNA) as client,
    ):
        client.publish("orders", "1")
        server.kill()
        server.start()
        client.publish("orders", "2")
        client.flush(timeout=PATIENCE)


REFUSED = [
    ({"user": "anna", "password": BOB}, "wrong password"),
    ({"user": "anna", "password": ANNA + " "}, "wrong password"),
    ({"user": "anna", "password": ""}, "wrong password"),
    ({"user": "nobody", "password": ANNA}, "unknown user"),
    ({"user": "Anna", "password": ANNA}, "unknown user"),
    ({"user": "carl", "password": "is disabled"}, "disabled user"),
    ({"user": "dora", "password": "no password"}, "the user has no password"),
    ({"user": "anna"}, "no password"),
    ({"password": ANNA}, "no user"),
    ({}, "no user"),
    ({"user": "anna", "password": "x" * 1025}, "the password is too long"),
]


def test_every_refusal_has_one_text_and_the_log_has_the_reason(
    server: quire.testing.TestServer, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "quire.server"):
        texts = {str(refusal(server.url, **given)) for given, _ in REFUSED}
    assert texts == {"user or password are not accepted (check `user` and `password`)"}
    lines = [line for line in caplog.messages if line.startswith("audit: logon ")]
    reasons = [json.loads(re.search(r'reason=(".*")$', line)[1]) for line in lines]  # type: ignore[index]
    assert reasons == [reason for _, reason in REFUSED]
    assert all('result="refused"' in line for line in lines)
    for secret in (ANNA, BOB, "x" * 1025, "is disabled"):
        assert secret not in caplog.text.replace("disabled user", "")


def test_an_accepted_logon_is_in_the_log(
    server: quire.testing.TestServer, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        caplog.at_level(logging.INFO, "quire.server"),
        quire.Client(server.url, name='a "b"', **server.options("anna")),
    ):
        [line] = [line for line in caplog.messages if line.startswith("audit: logon ")]
    address = re.search(r'address="127\.0\.0\.1:\d+" ', line)
    assert address is not None
    assert line == (
        f'audit: logon user="anna" client="a \\"b\\"" {address[0]}transport="clients" method="users" '
        'result="accepted" reason=""'
    )


def test_a_refused_client_does_not_try_again(server: quire.testing.TestServer) -> None:
    # Also when it would wait for a server that is away.
    refusal(server.url, user="anna", password=BOB, wait=True)


def test_a_command_before_the_answer_waits_for_it(server: quire.testing.TestServer) -> None:
    host, port = server.url.removeprefix("quire://").rsplit(":", 1)
    with Stranger((host, int(port)), timeout=PATIENCE) as stranger:
        log_on = fields((1, b"QUIR"), (2, b"\1\0"), (3, b"x"), (4, b"anna"), (5, BOB.encode()))
        stranger.send(frame(1, log_on) + frame(2, bytes(16)))
        assert stranger.error() == AUTHENTICATION_FAILED


def test_the_checked_user_holds_the_client_name(server: quire.testing.TestServer) -> None:
    with quire.Client(server.url, name="loader", **server.options("anna")) as client:
        with pytest.raises(quire.NameInUseError):
            quire.Client(server.url, name="loader", **server.options("bob"))
        client.publish("orders", "1")
        client.flush(timeout=PATIENCE)


def test_nobody_waits_for_a_check(server: quire.testing.TestServer, monkeypatch: pytest.MonkeyPatch) -> None:
    may_end, begun = threading.Event(), threading.Event()
    check = Verifier.check

    def slow(self: Verifier, name: str | None, password: str | None) -> str | None:
        if name == "bob":
            begun.set()
            assert may_end.wait(PATIENCE)
        return check(self, name, password)

    with quire.Client(server.url, **server.options("anna")) as client:
        monkeypatch.setattr(Verifier, "check", slow)
        logons = [
            threading.Thread(target=lambda: quire.Client(server.url, **server.options("bob")).close())
            for _ in range(2)
        ]
        for logon in logons:
            logon.start()
        assert begun.wait(PATIENCE)
        for n in range(100):
            client.publish("orders", str(n))
            client.flush(timeout=PATIENCE)
        may_end.set()
        for logon in logons:
            logon.join()


def test_an_unknown_user_costs_as_much_as_the_most_expensive_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    verifier = Verifier(
        Users(
            [
                User("anna", hash_of(ANNA, memory=64, passes=1)),
                User("bob", hash_of(BOB, memory=512, passes=2)),
                User("carl", hash_of(BOB, memory=128, passes=2), disabled=True),
                User("dora"),
            ]
        )
    )
    verifier.prepare()
    checked: list[tuple[int, int]] = []

    def noted(phc: str, password: bytes) -> bool:
        memory, passes, _ = password_cost(phc)
        checked.append((memory, passes))
        return check_password(phc, password)

    monkeypatch.setattr("quire.server._users.check_password", noted)
    for name in ("nobody", "carl", "dora", None):
        assert verifier.check(name, ANNA) is not None
    assert checked == [(512, 2)] * 4
    # A long text is not hashed, also for a known user.
    for name in ("nobody", "bob"):
        assert verifier.check(name, "x" * 1025) == "the password is too long"
    assert len(checked) == 4
    assert verifier.check("bob", BOB) is None


def test_a_password_is_compared_in_one_form_of_unicode() -> None:
    verifier = Verifier(Users([User("anna", hash_of("pâté de foie", memory=64, passes=1))]))
    assert verifier.check("anna", "pa\u0302te\u0301 de foie") is None
    assert verifier.check("anna", "pate de foie") == "wrong password"
    assert verifier.check("anna", "lone \ud800 surrogate") == "wrong password"


def test_after_five_failures_in_ten_seconds_an_address_waits_for_the_next_refusal() -> None:
    failures = Failures()
    assert [failures.note("a", second) for second in (0, 1, 2, 3, 4)] == [0.0] * 5
    assert failures.note("a", 5) == 1.0
    assert failures.note("b", 5) == 0.0
    # Five within ten seconds.
    assert failures.note("a", 100) == 0.0
    for number in range(20_000):
        failures.note(str(number), 100)
    assert len(failures._times) == _guard._ADDRESSES_MAX


class Noting(Checker):
    """Accepts everybody, the first one late."""

    def __init__(self) -> None:
        self.checked: list[str] = []
        self.is_begun = threading.Event()
        self.may_end = threading.Event()

    def check(self, given: Given) -> Identity | Refused:
        self.checked.append(given.address)
        self.is_begun.set()
        assert self.may_end.wait(PATIENCE)
        return Identity("anna")


def test_an_address_with_many_logons_delays_only_its_own(tmp_path: Path) -> None:
    file = tmp_path / "users.toml"
    Users([User("anna", hash_of(ANNA, memory=64, passes=1))]).save(file)
    guard = Guard(Authentication(method="users", users_file=file, max_hashing=1))
    checker = Noting()
    guard.use(checker)
    addresses = ["10.0.0.1:1", "10.0.0.1:2", "10.0.0.1:3", "10.0.0.1:4", "10.0.0.2:1", "10.0.0.2:2"]
    checks = [guard.check(Given("anna", address=addresses[0]))]
    assert checker.is_begun.wait(PATIENCE)
    checks += [guard.check(Given("anna", address=address)) for address in addresses[1:]]
    checks[3].cancel()  # Its connection has ended.
    checker.may_end.set()
    assert checks[-1].result(PATIENCE) == checks[2].result(PATIENCE) == Identity("anna")
    assert checker.checked == [addresses[at] for at in (0, 1, 4, 2, 5)]
    checker.may_end.clear()
    checker.is_begun.clear()
    running, waiting = (guard.check(Given("anna", address=addresses[0])) for _ in range(2))
    assert checker.is_begun.wait(PATIENCE)
    guard.close()
    assert waiting.cancelled()
    checker.may_end.set()
    assert running.result(PATIENCE) == Identity("anna")


def test_a_right_password_is_accepted_after_any_number_of_failures(server: quire.testing.TestServer) -> None:
    for _ in range(7):
        refusal(server.url, user="anna", password=BOB)
    with quire.Client(server.url, **server.options("anna")) as client:
        assert client.state == "connected"


def test_an_administrator_of_the_machine_needs_no_password(
    server: quire.testing.TestServer, tmp_path: Path
) -> None:
    with quire.Client(f"local:{tmp_path / 'data' / 'journal'}") as client:
        assert client.server_info().connections == 1


# The identity of a client


def identity(url: str | list[str], **options: Any) -> tuple[str | None, str | None]:
    found = ClientOptions(url, **options).credentials
    assert not callable(found.password)
    return found.user, found.password


def test_the_sources_of_an_identity_have_an_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url, with_user = "quire://127.0.0.1:9", "quire://anna@127.0.0.1:9"
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login net password netrc-secret\n")
    netrc.chmod(0o600)
    assert identity(url) == (None, None)
    assert identity(with_user) == ("anna", None)
    monkeypatch.setenv("QUIRE_NETRC", str(netrc))
    assert identity(url) == ("net", "netrc-secret")
    assert identity("quire://localhost:9") == (None, None)
    assert identity(["quire://localhost:9", url]) == ("net", "netrc-secret")
    # The entry is that of another user.
    assert identity(with_user) == ("anna", None)
    monkeypatch.setenv("QUIRE_USER", "env")
    monkeypatch.setenv("QUIRE_PASSWORD", "env-secret")
    assert identity(url) == ("env", "env-secret")
    assert identity(with_user) == ("anna", None)
    monkeypatch.delenv("QUIRE_USER")
    assert identity(with_user) == ("anna", "env-secret")
    # With an argument, the environment does not count.
    assert identity(with_user, password="given") == ("anna", "given")
    assert identity(with_user, user="bob") == ("bob", None)
    assert identity(url, password="given") == (None, "given")
    # Engines of this process have no users.
    assert identity("memory:") == (None, None)


def test_a_netrc_file_that_cannot_be_used_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    netrc = tmp_path / "netrc"
    monkeypatch.setenv("QUIRE_NETRC", str(netrc))
    with pytest.raises(quire.ConfigError, match="No such file"):
        identity("quire://127.0.0.1:9")
    netrc.write_text("machine 127.0.0.1 login net password secret-word other\n")
    netrc.chmod(0o604)
    with pytest.raises(quire.ConfigError, match="every user of this machine"):
        identity("quire://127.0.0.1:9")
    netrc.chmod(0o600)
    with pytest.raises(quire.ConfigError) as raised:
        identity("quire://127.0.0.1:9")
    assert "secret-word" not in str(raised.value)


def test_urls_with_different_users_are_refused() -> None:
    with pytest.raises(quire.ConfigError, match="the URLs name different users: 'anna', 'bob'"):
        identity(["quire://anna@127.0.0.1:9", "quire://bob@127.0.0.1:9"])
    assert identity(["quire://anna@127.0.0.1:9", "quire://127.0.0.1:9"]) == ("anna", None)


def test_a_password_of_the_environment_is_not_sent_without_encryption(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("QUIRE_PASSWORD", "geheim")
    with pytest.raises(quire.ConfigError, match="without encryption") as raised:
        identity("quire://db.example:9")
    assert "geheim" not in str(raised.value)
    assert identity("quire://db.example:9", ssl=False) == (None, "geheim")


def test_an_engine_in_this_process_has_no_users(tmp_path: Path) -> None:
    write_users(tmp_path / "users.toml", USERS)
    config = quire.Config(authentication={"method": "users", "users_file": tmp_path / "users.toml"})
    with pytest.raises(quire.ConfigError, match="has no users"):
        quire.Client("memory:guarded", config=config)


def test_a_user_in_the_url_logs_on_with_the_password_of_the_environment(
    server: quire.testing.TestServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUIRE_PASSWORD", BOB)
    with quire.Client(server.url.replace("//", "//bob@")) as client:
        assert client.state == "connected"


def test_a_function_returns_the_password_for_each_connection(tmp_path: Path) -> None:
    file = tmp_path / "users.toml"
    write_users(file, USERS)
    asked: list[str] = []

    def password() -> str:
        asked.append("")
        return ANNA

    with (
        ServerProcess(
            tmp_path / "data", authentication={"method": "users", "users_file": str(file)}
        ) as server,
        quire.Client(server.url, name="loader", user="anna", password=password) as client,
    ):
        assert len(asked) == 1
        server.kill()
        server.start()
        client.publish("orders", "1")
        client.flush(timeout=PATIENCE)
        assert len(asked) > 1


async def test_a_coroutine_function_returns_the_password(server: quire.testing.TestServer) -> None:
    async def password() -> str:
        return BOB

    async with quire.AsyncClient(server.url, user="bob", password=password) as client:
        await client.publish("orders", "1")
        await client.flush(timeout=PATIENCE)
    with pytest.raises(TypeError, match="is a coroutine function"):
        quire.Client(server.url, user="bob", password=password)


def test_a_function_that_fails_or_returns_no_text_is_named(server: quire.testing.TestServer) -> None:
    def broken() -> str:
        raise OSError("the vault is away")

    with pytest.raises(
        quire.DisconnectedError, match=r"the function for the password has failed.*the vault is away"
    ):
        quire.Client(server.url, user="bob", password=broken)
    with pytest.raises(quire.DisconnectedError, match=r"it returned .*bytes.*, and not text") as raised:
        quire.Client(server.url, user="bob", password=lambda: BOB.encode())  # type: ignore[arg-type]
    assert BOB not in str(raised.value)


# Changes of the file


def test_a_user_that_changes_is_disconnected_and_others_notice_nothing(
    server: quire.testing.TestServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "data" / "users.toml"
    with (
        caplog.at_level(logging.INFO, "quire.server"),
        quire.Client(server.url, **server.options("anna")) as anna,
        quire.Client(server.url, **server.options("bob")) as bob,
    ):
        states: list[str] = []
        bob.add_state_listener(states.append)
        write_users(file, {**USERS, "anna": {"password": "another password"}})
        # It has changed bob's entry, too: each hash has its salt.
        wait_until(lambda: anna.state == "closed")
        with pytest.raises(quire.AuthenticationError):
            anna.publish("orders", "1")
        assert any("entitlement_reset" in line or "was removed" in line for line in caplog.messages)
        bob.publish("orders", "1")
        bob.flush(timeout=PATIENCE)


def test_only_connections_of_changed_users_end(server: quire.testing.TestServer, tmp_path: Path) -> None:
    file = tmp_path / "data" / "users.toml"
    with (
        quire.Client(server.url, **server.options("anna")) as anna,
        quire.Client(server.url, **server.options("bob")) as bob,
    ):
        states: list[str] = []
        bob.add_state_listener(states.append)
        users = Users.load(file)
        del users.by_name["anna"]
        users.by_name["eva"] = User("eva", hash_of("new password", memory=64, passes=1))
        users.save(file)
        wait_until(lambda: anna.state == "closed")
        with quire.Client(server.url, user="eva", password="new password"):
            pass
        bob.publish("orders", "1")
        bob.flush(timeout=PATIENCE)
        assert states == []


def test_a_mistake_in_the_file_changes_nothing(
    server: quire.testing.TestServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "data" / "users.toml"
    with (
        caplog.at_level(logging.INFO, "quire.server"),
        quire.Client(server.url, **server.options("anna")) as anna,
    ):
        file.write_text('[[user]]\nname = "anna"\npassword = "plain secret"\n')
        wait_until(lambda: "the users were not changed" in caplog.text)
        assert "users.toml:3: user[0].password: expected the argon2id hash" in caplog.text
        assert "plain secret" not in caplog.text
        anna.publish("orders", "1")
        anna.flush(timeout=PATIENCE)
        with quire.Client(server.url, **server.options("bob")):
            pass


# The configuration


def mistakes_of(tmp_path: Path, text: str) -> str:
    path = tmp_path / "quire.toml"
    path.write_text(text)
    config = quire.Config.load(path)
    with pytest.raises(quire.ConfigError) as checked:
        config.check()
    with pytest.raises(quire.ConfigError) as started:
        quire.Server(config).start()
    assert str(started.value) == str(checked.value)
    return str(checked.value)


def test_an_address_beyond_loopback_requires_authentication(tmp_path: Path) -> None:
    text = mistakes_of(tmp_path, '[[transport]]\naddress = "0.0.0.0:0"\n')
    assert "quire.toml:2: transport[0].address: 0.0.0.0:0 can be reached from other machines" in text
    assert "set [authentication], or set insecure = true" in text


def test_passwords_beyond_loopback_require_tls(tmp_path: Path) -> None:
    write_users(tmp_path / "users.toml", USERS)
    authentication = '[authentication]\nmethod = "users"\nusers_file = "users.toml"\n'
    text = mistakes_of(tmp_path, '[[transport]]\naddress = "0.0.0.0:0"\n' + authentication)
    assert "without encryption: set tls" in text


@pytest.mark.parametrize(
    ("file", "reason"),
    [
        (
            "[[user]]\nname = 'a'\npassword = 'secret-word'\n",
            "users.toml:3: user[0].password: expected the argon2id hash",
        ),
        ("[[user]]\nname = ' a'\n", "users.toml:2: user[0].name"),
        ("[[user]]\nname = 'anonymous'\n", "is the name of users without authentication"),
        ("[[user]]\nname = 'a'\n[[user]]\nname = 'a'\n", "users.toml:4: user[1].name: 'a' is there twice"),
        ("[[user]]\nname = 'a'\nadmin = true\n", "user[0].admin: unknown key"),
        ("[user]\nname = 'a'\n", "expected only [[user]] tables"),
        ("[[user]\n", "not TOML"),
        (None, "`quire user add` makes it"),
    ],
)
def test_a_file_of_users_with_a_mistake_is_refused(tmp_path: Path, file: str | None, reason: str) -> None:
    if file is not None:
        (tmp_path / "users.toml").write_text(file)
        (tmp_path / "users.toml").chmod(0o600)
    text = mistakes_of(
        tmp_path,
        '[[transport]]\naddress = "127.0.0.1:0"\n[authentication]\nmethod = "users"\nusers_file = "users.toml"\n',
    )
    assert "authentication.users_file" in text
    assert reason in text
    assert "secret-word" not in text


def test_a_file_of_users_that_every_user_may_read_is_refused(tmp_path: Path) -> None:
    write_users(tmp_path / "users.toml", USERS)
    (tmp_path / "users.toml").chmod(0o644)
    with pytest.raises(quire.ConfigError, match="every user of this machine may read it"):
        Users.load(tmp_path / "users.toml")


def test_a_hash_of_more_than_a_gibibyte_is_refused() -> None:
    phc = "$argon2id$v=19$m=1048577,t=1,p=1$c29tZXNhbHQ$RdescudvJCsgt3ub+b0dWRWJTmaaJObG"
    with pytest.raises(quire.ConfigError, match="1 GiB"):
        _users.check_hash(phc)


def test_a_transport_may_have_no_users_where_the_others_have_them(tmp_path: Path) -> None:
    write_users(tmp_path / "users.toml", USERS)
    config = quire.Config(
        data_directory=tmp_path / "data",
        transport=[
            {"name": "guarded", "address": "127.0.0.1:0"},
            {"name": "open", "address": "localhost:0", "authentication": {"method": "none"}},
        ],
        authentication={"method": "users", "users_file": tmp_path / "users.toml"},
    )
    with quire.Server(config) as server:
        refusal(server.urls["guarded"])
        with quire.Client(server.urls["open"]) as client:
            assert client.state == "connected"


@pytest.mark.parametrize("name", ["", " a", "a ", "a\n", "e\u0301", "anonymous", "x" * 256, "\ud800"])
def test_names_that_can_be_confused_are_refused(name: str) -> None:
    with pytest.raises(quire.ConfigError):
        check_name(name)


# `quire user`


def user(
    *arguments: str, directory: Path, stdin: str = "", **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "quire", "user", *arguments],
        cwd=directory,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env={**os.environ, **environment},
    )


def test_users_are_added_changed_shown_and_removed(tmp_path: Path) -> None:
    added = user("add", "anna", "--group", "desk", "--password-stdin", directory=tmp_path, stdin=f"{ANNA}\n")
    assert (added.returncode, added.stdout) == (0, "added anna\n"), added.stderr
    file = tmp_path / "users.toml"
    assert file.stat().st_mode & 0o777 == 0o600
    assert Verifier(Users.load(file)).check("anna", ANNA) is None
    assert user("add", "dora", "--no-password", directory=tmp_path).returncode == 0
    listed = user("ls", "--json", directory=tmp_path)
    assert [json.loads(line) for line in listed.stdout.splitlines()] == [
        {"name": "anna", "groups": ["desk"], "disabled": False, "password": True},
        {"name": "dora", "groups": [], "disabled": False, "password": False},
    ]
    changed = user("passwd", "anna", "--password-env", "NEW", directory=tmp_path, NEW=BOB)
    assert changed.returncode == 0, changed.stderr
    assert Verifier(Users.load(file)).check("anna", BOB) is None
    assert user("remove", "anna", directory=tmp_path).returncode == 0
    assert [*Users.load(file).by_name] == ["dora"]
    assert [path.name for path in tmp_path.iterdir()] == ["users.toml"]


def test_the_exit_code_says_whether_the_user_or_the_password_is_wrong(tmp_path: Path) -> None:
    assert user("add", "anna", "--no-password", directory=tmp_path).returncode == 0
    for arguments in (("add", "anna", "--no-password"), ("passwd", "bob"), ("remove", "bob")):
        done = user(*arguments, directory=tmp_path)
        assert (done.returncode, done.stdout) == (1, ""), done.stderr
    mistakes: list[tuple[str, ...]] = [
        ("add", "bob"),
        ("add", " bob", "--no-password"),
        ("add", "bob", "--password-env", "NOT_THERE"),
        ("add", "bob", "--no-password", "--password-stdin"),
        ("add", "bob", "--password-stdin", "--password-env", "PATH"),
        ("ls", "--file", "elsewhere/users.toml"),
    ]
    for mistake in mistakes:
        done = user(*mistake, directory=tmp_path)
        assert (done.returncode, done.stdout) == (2, ""), (mistake, done.stderr)
        assert "Traceback" not in done.stderr
    short = user("add", "bob", "--password-stdin", directory=tmp_path, stdin="geheim\n")
    assert (short.returncode, short.stdout) == (2, "")
    assert "--password-stdin: expected 8 to 1024 bytes" in short.stderr
    assert "geheim" not in short.stderr


def test_names_and_groups_survive_the_file(tmp_path: Path) -> None:
    names = ['a "quoted" \\ name', "ünïcode", "a\u2028b", "[x]", "del-\u00a0-x"]
    users = Users([User(name, None, tuple(names), disabled=True) for name in names])
    users.save(tmp_path / "users.toml")
    assert Users.load(tmp_path / "users.toml").by_name == users.by_name


def test_a_symbolic_link_to_the_file_remains(tmp_path: Path) -> None:
    file, link = tmp_path / "mounted" / "users.toml", tmp_path / "users.toml"
    file.parent.mkdir()
    Users([]).save(file)
    link.symlink_to(file)
    Users([User("anna")]).save(link)
    assert link.is_symlink()
    assert list(Users.load(file).by_name) == ["anna"]
    assert list(file.parent.iterdir()) == [file]


def test_a_file_that_is_replaced_keeps_its_owner(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root may change the owner of a file")
    file = tmp_path / "users.toml"
    Users([]).save(file)
    os.chown(file, 4711, 4712)
    Users([User("anna")]).save(file)
    kept = file.stat()
    assert (kept.st_uid, kept.st_gid, kept.st_mode & 0o777) == (4711, 4712, 0o600)


@pytest.mark.skipif(sys.platform != "linux", reason="a thread has a priority of its own on Linux only")
def test_a_check_that_ran_out_of_patience_has_the_priority_of_the_server(
    server: quire.testing.TestServer,
) -> None:
    """With a lower one, no client could log on in time while other programs were busy."""
    quire.Client(server.url, user="anna", password=ANNA).close()
    checking = [thread.native_id for thread in threading.enumerate() if thread.name.startswith("quire-logon")]
    assert checking
    usual = os.getpriority(os.PRIO_PROCESS, 0)
    assert [os.getpriority(os.PRIO_PROCESS, thread or 0) for thread in checking] == [usual] * len(checking)
