"""Entitlements: the configuration, the errors of clients, a reload, and `quire entitlement check`.

The broker's own tests have the matrix of commands and rights, and the messages that a filter hides.
"""

from __future__ import annotations

import json
import logging
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import quire
import quire.testing
from quire.cli import run
from quire.testing._server import write_users
from support.waiting import PATIENCE, wait_until

USERS: dict[str, dict[str, Any]] = {
    "anna": {"password": "correct horse", "groups": ["desk"]},
    "bob": {"password": "correct horse"},
}
DESK = {"group": "desk", "topic": "^orders", "allow": ["read", "query", "replay", "write"]}
BOB = {"user": "bob", "topic": "^", "allow": ["read", "write"]}


@pytest.fixture
def server() -> Iterator[quire.testing.TestServer]:
    entries = [{**DESK, "filter": "/desk = 'FX'", "select": ["-/client"]}, BOB]
    with quire.testing.server(users=USERS, entitlement=entries) as server:
        yield server


def client(server: quire.testing.TestServer, user: str, **options: Any) -> quire.Client:
    return quire.Client(server.url, **server.options(user), **options)


# Commands


def test_a_user_sees_the_messages_and_the_fields_of_its_entry(server: quire.testing.TestServer) -> None:
    with client(server, "anna") as anna, client(server, "bob") as bob:
        live = anna.subscribe("orders")
        bob.publish("orders", {"desk": "EQ", "client": "x", "n": 1})
        bob.publish("orders", {"desk": "FX", "client": "x", "n": 2})
        bob.flush(timeout=PATIENCE)
        assert live.get(timeout=PATIENCE).json() == {"desk": "FX", "n": 2}
        bounded = anna.subscribe("^orders", bookmark="[:NOW]")
        assert [message.json() for message in bounded] == [{"desk": "FX", "n": 2}]


def test_a_refused_command_names_the_right_and_the_topic(server: quire.testing.TestServer) -> None:
    with client(server, "anna") as anna:
        commands: list[tuple[Callable[[], Any], str, str]] = [
            (lambda: anna.subscribe("trades"), "read", "trades"),
            (lambda: anna.sow('say "hi"', timeout=PATIENCE), "query", 'say "hi"'),
            (lambda: anna.sow_delete("orders", filter="1 = 1"), "delete", "orders"),
            (lambda: anna.queue_stats("orders"), "monitor", "orders"),
            (lambda: anna.create_queue("orders"), "admin", "orders"),
            (lambda: anna.define_view("sums", projection="COUNT(1) AS /n"), "admin", "sums"),
        ]
        for command, right, topic in commands:
            with pytest.raises(quire.NotEntitledError) as raised:
                command()
            assert (raised.value.action, raised.value.topic) == (right, topic)
            again = pickle.loads(pickle.dumps(raised.value))
            assert (again.action, again.topic) == (right, topic)


def test_a_refused_publish_is_reported_with_its_sequence(server: quire.testing.TestServer) -> None:
    with client(server, "anna") as anna:
        anna.publish("orders", {"desk": "FX"})
        anna.publish("orders", {"desk": "EQ"})
        anna.publish("trades", {"desk": "FX"})
        with pytest.raises(quire.NotEntitledError) as raised:
            anna.flush(timeout=PATIENCE)
        assert (raised.value.action, raised.value.topic, raised.value.sequence) == ("write", "orders", 2)


def test_without_the_right_to_monitor_a_client_sees_the_name_of_the_server(
    server: quire.testing.TestServer,
) -> None:
    with client(server, "anna") as anna:
        info = anna.server_info()
    assert (info.name, info.user) == (server.config.name, "anna")
    assert info.version
    assert info.topics is None
    assert info.uptime is None


def test_every_refusal_is_logged(server: quire.testing.TestServer, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "quire.server"), client(server, "anna", name="loader") as anna:
        with pytest.raises(quire.NotEntitledError):
            anna.subscribe("trades")
        expected = 'audit: refused user="anna" client="loader" right="read" topic="trades"'
        wait_until(lambda: expected in caplog.messages)


async def test_an_asyncio_client_is_refused(server: quire.testing.TestServer) -> None:
    async with quire.AsyncClient(server.url, **server.options("anna")) as anna:
        with pytest.raises(quire.NotEntitledError):
            await anna.subscribe("trades")


# The configuration


@pytest.mark.parametrize(
    ("entry", "key"),
    [
        ({"topic": "^orders|trades", "allow": "read"}, "topic"),
        ({"topic": "orders", "allow": "read", "deny": "read"}, "deny"),
        ({"topic": "orders", "allow": "monitor", "filter": "/a = 1"}, "filter"),
        ({"topic": "orders", "allow": "read", "select": ["/a"]}, "select"),
        ({"topic": "orders"}, "allow"),
    ],
)
def test_a_mistake_in_an_entry_names_its_key(entry: dict[str, Any], key: str) -> None:
    config = quire.Config(entitlement=[BOB, entry])
    with pytest.raises(quire.ConfigError) as raised:
        config.check()
    assert raised.value.key == f"entitlement[1].{key}"


def test_a_mistake_in_a_file_names_its_line(tmp_path: Path) -> None:
    file = tmp_path / "quire.toml"
    file.write_text('[[entitlement]]\ntopic = "orders"\nallow = "read"\nfilter = "/a ="\n')
    with pytest.raises(quire.ConfigError) as raised:
        quire.Config.load(file).check()
    assert raised.value.line == 4


def test_an_unknown_right_is_a_mistake() -> None:
    with pytest.raises(quire.ConfigError, match="entitlement"):
        quire.Config(entitlement={"topic": "orders", "allow": "fly"})


def test_an_engine_in_the_program_has_no_entitlements(tmp_path: Path) -> None:
    with pytest.raises(quire.ConfigError, match="entitlement"):
        quire.Client(f"file:{tmp_path}", config=quire.Config(entitlement=BOB))


# Reload


def configured(directory: Path, *entries: dict[str, Any], more: str = "") -> Path:
    """A configuration file with users and these entries."""
    if not (users := directory / "users.toml").exists():
        write_users(users, USERS)
    text = '[[transport]]\naddress = "127.0.0.1:0"\n'
    text += f'[authentication]\nmethod = "users"\nusers_file = "users.toml"\n{more}'
    for entry in entries:
        text += "[[entitlement]]\n"
        text += "".join(f"{key} = {json.dumps(value)}\n" for key, value in entry.items())
    file = directory / "quire.toml"
    file.write_text(text)
    return file


def password(user: str) -> dict[str, Any]:
    return {"user": user, "password": USERS[user]["password"]}


def test_a_reload_ends_the_connections_of_users_with_other_rights(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = configured(tmp_path, DESK, BOB)
    with (
        caplog.at_level(logging.INFO, "quire.server"),
        quire.Server(quire.Config.load(file)) as server,
        quire.Client(server.url, **password("anna")) as anna,
        quire.Client(server.url, **password("bob")) as bob,
    ):
        lost, kept = anna.subscribe("orders"), bob.subscribe("orders")
        assert server.reload() == []
        configured(tmp_path, {**DESK, "topic": "trades"}, BOB)
        assert server.reload() == ["entitlement"]
        bob.publish("orders", {"n": 1})
        bob.flush(timeout=PATIENCE)
        assert kept.get(timeout=PATIENCE).json() == {"n": 1}
        with pytest.raises(quire.NotEntitledError):
            lost.get(timeout=PATIENCE)
        anna.subscribe("trades")
    ended = [line for line in caplog.messages if "entitlement_reset" in line]
    assert len(ended) == 1, "bob was not disconnected"


@pytest.mark.parametrize(
    ("entries", "more", "reason"),
    [
        ((DESK, {**BOB, "filter": "/a ="}), "", "filter"),
        ((DESK, BOB), "[limits]\nmax_patterns = 7\n", "limits"),
        ((), "", "last entry"),
        ((DESK, {**BOB, "allow": "fly"}), "", "allow"),
    ],
)
def test_a_reload_changes_everything_or_nothing(
    tmp_path: Path,
    entries: tuple[dict[str, Any], ...],
    more: str,
    reason: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    file = configured(tmp_path, DESK, BOB)
    with (
        quire.Server(quire.Config.load(file)) as server,
        quire.Client(server.url, **password("anna")) as anna,
    ):
        live = anna.subscribe("orders")
        configured(tmp_path, *entries, more=more)
        with (
            caplog.at_level(logging.INFO, "quire.server"),
            pytest.raises(quire.ConfigError, match=reason),
        ):
            server.reload()
        assert any('audit: reload result="refused"' in line for line in caplog.messages)
        anna.publish("orders", {"n": 1})
        assert live.get(timeout=PATIENCE).json() == {"n": 1}


def test_sighup_reloads_the_configuration(tmp_path: Path) -> None:
    file = configured(tmp_path, DESK, BOB)
    command = [sys.executable, "-m", "quire", "serve", str(file), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        try:
            assert server.stdout is not None
            url = json.loads(server.stdout.readline())["url"]
            with quire.Client(url, **password("anna")) as anna:
                live = anna.subscribe("orders")
                configured(tmp_path, BOB)
                server.send_signal(signal.SIGHUP)
                with pytest.raises(quire.NotEntitledError):
                    live.get(timeout=PATIENCE)
        finally:
            server.terminate()


def test_the_command_line_reloads_the_configuration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    operator = {"user": "bob", "topic": "/quire/access", "allow": "admin"}
    file = configured(tmp_path, DESK, operator)
    with quire.Server(quire.Config.load(file)) as server:
        monkeypatch.setenv("QUIRE_PASSWORD", USERS["bob"]["password"])
        reload = ["reload", "--url", server.url, "--user"]
        assert run([*reload, "bob"]) == 0
        assert capsys.readouterr().out == "reloaded: nothing has changed\n"
        configured(tmp_path, DESK, operator, BOB)
        # The connection of the command has other rights, too. It gets the answer before it ends.
        assert run([*reload, "bob"]) == 0
        assert capsys.readouterr().out == "reloaded: entitlement\n"
        configured(tmp_path, DESK, operator, {**BOB, "allow": "fly"})
        assert run([*reload, "bob"]) == 1
        assert "entitlement" in capsys.readouterr().err
        assert run([*reload, "anna"]) == 1
        assert 'the user may not admin "/quire/access"' in capsys.readouterr().err


# `quire entitlement check`


def test_the_command_line_explains_a_decision(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = configured(
        tmp_path, {**DESK, "filter": "/desk = 'FX'"}, {"user": "^b", "topic": "^", "deny": "read"}
    )
    check = ["entitlement", "check", "--config", str(file)]
    # The groups of the user are those of the file of users.
    assert run([*check, "anna", "read", "orders/eu"]) == 0
    assert capsys.readouterr().out == "entry 1: it allows \"read\"\nallowed by entry 1, filter /desk = 'FX'\n"
    assert run([*check, "bob", "read", "orders"]) == 1
    assert capsys.readouterr().out == (
        'entry 1: the user is in none of its groups\nentry 2: it refuses "read"\nrefused by entry 2\n'
    )
    assert run([*check, "bob", "read", "/quire/server", "--json"]) == 1
    explained = json.loads(capsys.readouterr().out)
    assert explained["allowed"] is False
    assert explained["entry"] is None
    assert [step["entry"] for step in explained["steps"]] == [1, 2]
    assert run([*check, "bob", "write", "orders", "--group", "desk", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["groups"] == ["desk"]
    assert run([*check, "bob", "fly", "orders"]) == 2
    assert run(["entitlement", "check", "bob", "read", "orders", "--config", str(tmp_path / "none")]) == 2


def test_queues_are_listed_by_name_to_users_who_may_not_see_their_figures(
    capsys: pytest.CaptureFixture[str],
) -> None:
    entries = [
        {"user": "anna", "topic": "jobs", "allow": "read"},
        {"user": "bob", "topic": ["jobs", "other"], "allow": ["monitor", "admin"]},
    ]
    queues = [{"name": name, "message_type": "json"} for name in ("jobs", "other")]
    with quire.testing.server(users=USERS, entitlement=entries, queue=queues) as server:
        with client(server, "anna") as anna, client(server, "bob") as bob:
            assert anna.queue_stats() == {"jobs": {}}
            assert list(bob.queue_stats()) == ["jobs", "other"]
            with pytest.raises(AttributeError):
                _ = anna.queue_stats()["jobs"].depth
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("QUIRE_USER", "anna")
            patch.setenv("QUIRE_PASSWORD", "correct horse")
            for command in ("ls", "stats"):
                assert run(["queue", command, "--url", server.url]) == 0
                shown = capsys.readouterr()
                assert ("jobs" in shown.out) == (command == "ls")
                assert shown.err == "quire: the user may not monitor jobs: the figures are left out\n"
            assert run(["queue", "ls", "--url", server.url, "--json"]) == 0
            assert json.loads(capsys.readouterr().out) == {"queue": "jobs"}


def test_commands_that_show_messages_need_no_right_to_monitor(capsys: pytest.CaptureFixture[str]) -> None:
    entries = [
        {**DESK, "allow": ["read", "replay"]},
        {"user": "anna", "topic": "jobs", "allow": "query"},
        BOB,
    ]
    queue = {"name": "jobs", "message_type": "json"}
    with quire.testing.server(users=USERS, entitlement=entries, queue=queue) as server:
        with client(server, "bob") as bob:
            for topic in ("orders", "jobs"):
                bob.publish(topic, {"n": 1})
            bob.flush(timeout=PATIENCE)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("QUIRE_USER", "anna")
            patch.setenv("QUIRE_PASSWORD", "correct horse")
            patch.setenv("QUIRE_URL", server.url)
            assert run(["subscribe", "orders", "--count", "1", "--timeout", "1s"]) == 1
            assert "0 of 1 message came" in capsys.readouterr().err
            for command in ("subscribe", "queue peek"):
                assert run([*command.split(), "jobs"]) == 0
                assert '{"n":1}' in capsys.readouterr().out
            assert run(["subscribe", "other"]) == 1
            assert 'may not read "other"' in capsys.readouterr().err


# Limits of users, and reloads of other keys


def test_the_limits_of_a_user_are_refusals_that_name_them(tmp_path: Path) -> None:
    limit = (
        '[[user_limit]]\nuser = "anna"\nmax_connections = 1\nmax_subscriptions = 1\npublish_rate = "1000"\n'
    )
    file = configured(tmp_path, {**DESK, "user": "anna"}, BOB)
    file.write_text(file.read_text() + limit)
    with (
        quire.Server(quire.Config.load(file)) as server,
        quire.Client(server.url, **password("anna")) as anna,
    ):
        kept = [anna.subscribe("orders")]
        with pytest.raises(quire.LimitExceededError, match="max_subscriptions"):
            anna.subscribe("orders")
        with (
            pytest.raises(quire.LimitExceededError, match="max_connections"),
            quire.Client(server.url, name="other", **password("anna")) as other,
        ):
            other.flush(timeout=PATIENCE)
        file.write_text(file.read_text().replace("max_subscriptions = 1", "max_subscriptions = 2"))
        assert server.reload() == ["user_limit"]
        kept.append(anna.subscribe("orders"))


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"publish_rate": "fast"}, "publish_rate"),
        ({"publish_rate": 0}, "publish_rate"),
        ({"publish_rate": "٢٣"}, "publish_rate"),
        ({"max_connections": 0}, "max_connections"),
        ({"max_waiting": "1B"}, "max_waiting"),
        ({"user": "a|b"}, "user"),
    ],
)
def test_a_mistake_in_a_limit_names_its_key(settings: dict[str, Any], key: str) -> None:
    with pytest.raises(quire.ConfigError) as raised:
        quire.Config(user_limit=[{"user": "anna"}, settings]).check()
    assert raised.value.key == f"user_limit[1].{key}"


@pytest.mark.parametrize(
    ("rate", "core"), [("1000", {"messages": 1000}), (20, {"messages": 20}), ("5MB", {"bytes": 5 << 20})]
)
def test_a_rate_is_messages_or_bytes(rate: Any, core: dict[str, int]) -> None:
    limit = quire.Config(user_limit={"publish_rate": rate}).user_limit[0]
    assert limit.to_core()["publish_rate"] == core


def test_a_reload_changes_the_authentication(tmp_path: Path) -> None:
    file = configured(tmp_path, DESK, BOB)
    with quire.Server(quire.Config.load(file)) as server:
        others = {**USERS, "anna": {"password": "another horse", "groups": ["desk"]}}
        with (
            quire.Client(server.url, **password("anna")) as anna,
            quire.Client(server.url, **password("bob")) as bob,
        ):
            live = anna.subscribe("orders")
            bob.flush(timeout=PATIENCE)
            write_users(tmp_path / "others.toml", others)
            before = file.read_text()
            file.write_text(before.replace("users.toml", "others.toml"))
            assert server.reload() == ["authentication"]
            with pytest.raises(quire.AuthenticationError):
                live.get(timeout=PATIENCE)
            bob.flush(timeout=PATIENCE)
        with quire.Client(server.url, user="anna", password="another horse", ssl=False) as anna:
            anna.flush(timeout=PATIENCE)
        # A mistake changes nothing.
        file.write_text(before.replace("users.toml", "nowhere.toml"))
        with pytest.raises(quire.ConfigError, match="nowhere"):
            server.reload()
        with quire.Client(server.url, user="anna", password="another horse", ssl=False) as anna:
            anna.flush(timeout=PATIENCE)


def test_a_reload_changes_the_authentication_of_the_http_server(tmp_path: Path) -> None:
    admin = '[admin]\naddress = "127.0.0.1:0"\n'
    olga = {"user": "anna", "topic": "^/quire/", "allow": ["monitor", "admin"]}
    file = configured(tmp_path, olga, more=admin)
    write_users(tmp_path / "others.toml", {"anna": {"password": "another horse"}})
    old, new = ("anna", USERS["anna"]["password"]), ("anna", "another horse")
    with quire.Server(quire.Config.load(file)) as server:
        assert server.admin_url is not None
        page = httpx.Client(base_url=server.admin_url, timeout=PATIENCE)

        def statuses() -> list[int]:
            return [page.get("/quire/instance.json", auth=user).status_code for user in (old, new)]

        with page, page.stream("GET", "/console/api/logs/follow", auth=old) as answer:
            lines = answer.iter_lines()
            assert json.loads(next(lines)) == {"begun": True}
            assert statuses() == [200, 401]
            # First the table that the HTTP server shares. Then a separate table for it.
            before = file.read_text()
            file.write_text(before.replace("users.toml", "others.toml"))
            assert server.reload() == ["authentication"]
            assert statuses() == [401, 200]
            *_, last = map(json.loads, lines)
            assert last["error"]["code"] == "entitlement_reset"
            own = 'authentication = { method = "users", users_file = "users.toml" }\n'
            file.write_text(before.replace("users.toml", "others.toml").replace(admin, admin + own))
            assert server.reload() == ["admin.authentication"]
            assert statuses() == [200, 401]
            other = admin + 'max_body = "2MB"\n'
            file.write_text(before.replace("users.toml", "others.toml").replace(admin, other))
            with pytest.raises(quire.ConfigError, match="restart"):
                server.reload()
            assert statuses() == [200, 401]


def test_a_reload_changes_the_certificates_of_an_address(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    one, two = (quire.testing.certificates(tmp_path / name) for name in ("one", "two"))
    text = '[[transport]]\naddress = "127.0.0.1:0"\n'

    def configure(files: quire.testing.Certificates, more: str = "") -> Path:
        file = tmp_path / "quire.toml"
        tls = f'{{ certificate = "{files.certificate}", private_key = "{files.private_key}" }}'
        file.write_text(f"{text}tls = {tls}\n{more}")
        return file

    with quire.Server(quire.Config.load(configure(one))) as server:
        with quire.Client(server.url, ssl=one.ca) as first:
            first.flush(timeout=PATIENCE)
            configure(two)
            assert server.reload() == ["transport[0].tls"]
            with quire.Client(server.url, ssl=two.ca) as second:
                second.flush(timeout=PATIENCE)
            with pytest.raises(quire.TLSError), quire.Client(server.url, ssl=one.ca) as third:
                third.flush(timeout=PATIENCE)
            first.flush(timeout=PATIENCE)
        configure(one, "max_connections = 7\n")
        with pytest.raises(quire.ConfigError, match="restart") as raised:
            server.reload()
        assert raised.value.key == "transport[0].max_connections"


def test_a_connection_whose_reload_changes_its_user_gets_the_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    operator = {"user": "bob", "topic": "/quire/access", "allow": "admin"}
    file = configured(tmp_path, operator)
    with quire.Server(quire.Config.load(file)) as server:
        monkeypatch.setenv("QUIRE_PASSWORD", USERS["bob"]["password"])
        reload = ["reload", "--url", server.url, "--user", "bob"]
        configured(tmp_path, operator, BOB)
        assert run(reload) == 0
        assert capsys.readouterr().out == "reloaded: entitlement\n"
        write_users(tmp_path / "others.toml", USERS)
        file.write_text(file.read_text().replace("users.toml", "others.toml"))
        assert run(reload) == 0
        assert capsys.readouterr().out == "reloaded: authentication\n"


def test_a_server_explains_a_decision_to_a_user_with_the_right(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = [
        {**DESK, "filter": "/desk = 'FX'"},
        {"user": "bob", "topic": "/quire/access", "allow": "monitor"},
    ]
    monkeypatch.setenv("QUIRE_PASSWORD", "correct horse")
    with quire.testing.server(tmp_path / "data", users=USERS, entitlement=entries) as server:
        check = ["entitlement", "check", "--url", server.url, "--user", "bob"]
        with quire.Client(server.url, **server.options("anna")):
            # The groups of anna are those of its connection.
            assert run([*check, "anna", "read", "orders/eu", "--json"]) == 0
        assert json.loads(capsys.readouterr().out) == {
            "allowed": True,
            "entry": 1,
            "filter": "/desk = 'FX'",
            "select": None,
            "groups": ["desk"],
            "steps": [{"entry": 1, "reason": 'it allows "read"'}],
        }
        assert run([*check, "carl", "read", "orders"]) == 1
        assert "refused: no entry applies" in capsys.readouterr().out
        assert run([*check, "carl", "read", "orders", "--group", "desk"]) == 0
        assert run([*check, "carl", "fly", "orders"]) == 2
        assert "expected one of read, replay" in capsys.readouterr().err
        assert run([*check, "carl", "read", "orders", "--config", "quire.toml"]) == 2
        assert "use --config or --url" in capsys.readouterr().err
        check[-1] = "anna"
        assert run([*check, "anna", "read", "orders"]) == 2
        told = capsys.readouterr()
        assert 'the user may not monitor "/quire/access"' in told.err
        assert told.out == ""
