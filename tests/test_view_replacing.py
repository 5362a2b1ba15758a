"""`define_view` and `quire view replace` for programs and operators (docs/views.md section 8): what
readers get, what a mistake says, and what a `kill -9` leaves. `view_redefining.rs` of the broker has
the rules, with random definitions.
"""

from __future__ import annotations

import contextlib
import json
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import quire
import quire.testing
from quire.cli import run
from support.server_process import ServerProcess
from support.waiting import PATIENCE, wait_until
from support.ways_in import configured

ORDERS = {"name": "orders", "message_type": "json", "key": ["/id"]}
ACCOUNTS = {"name": "accounts", "message_type": "json", "key": ["/id"]}
SUMS: dict[str, Any] = {
    "name": "sums",
    "message_type": "json",
    "underlying_topic": "orders",
    "projection": ["/account", "SUM(/qty) AS /qty"],
    "grouping": ["/account"],
}
#: Over the view that is replaced.
TOTAL = {
    "name": "total",
    "message_type": "json",
    "underlying_topic": "sums",
    "projection": ["SUM(/qty) AS /qty", "COUNT(1) AS /accounts"],
}
SETTINGS: dict[str, Any] = {"sow_topic": [ORDERS, ACCOUNTS], "view": [SUMS, TOTAL]}
#: New definitions of the view.
LARGE: dict[str, Any] = {
    "underlying_topic": "orders",
    "projection": ["/account", "SUM(/qty) AS /qty"],
    "grouping": "/account",
    "filter": "/qty > 2",
}
NAMED: dict[str, Any] = {
    "join": "[orders].[/account] = [accounts].[/id]",
    "projection": ["[accounts].[/name] AS /account", "SUM([orders].[/qty]) AS /qty"],
    "grouping": "[accounts].[/name]",
}


@pytest.fixture
def client(way_in: str, tmp_path: Path) -> Iterator[quire.Client]:
    with configured(way_in, tmp_path, **SETTINGS) as place, quire.Client(**place) as client:
        for number, account in enumerate("AAABBC"):
            client.publish("orders", {"id": number, "account": account, "qty": number})
        client.publish("accounts", {"id": "A", "name": "Ann"})
        client.flush(timeout=PATIENCE)
        yield client


def records(client: quire.Client | quire.AsyncClient, view: str = "sums") -> list[Any]:
    assert isinstance(client, quire.Client)
    return sorted((record.json() for record in client.sow(view)), key=json.dumps)


def test_all_readers_get_the_difference(client: quire.Client) -> None:
    changes = client.sow_and_subscribe("sums", oof=True)
    deltas = client.sow_and_delta_subscribe("sums", oof=True)
    table = client.table("sums", key="/account")
    totals = client.table("total")
    wait_until(lambda: dict(rows(table)) == {"A": 3, "B": 7, "C": 5})
    assert client.define_view("sums", timeout=PATIENCE, **LARGE) is True
    assert records(client) == [{"account": "B", "qty": 7}, {"account": "C", "qty": 5}]
    for subscription in (changes, deltas):
        first = [subscription.get(timeout=PATIENCE).command for _ in range(3)]
        assert first == ["sow"] * 3
        message = subscription.get(timeout=PATIENCE)
        assert (message.command, message.reason) == ("oof", "deleted")
        assert message.json() == {"account": "A", "qty": 3}
    wait_until(lambda: dict(rows(table)) == {"B": 7, "C": 5})
    wait_until(lambda: [message.json() for message in totals.values()] == [{"qty": 12, "accounts": 2}])
    client.publish("orders", {"id": 9, "account": "B", "qty": 10})
    for subscription in (changes, deltas):
        assert subscription.get(timeout=PATIENCE).json() == {"account": "B", "qty": 17}
    assert client.define_view("sums", **LARGE) is False


def rows(table: quire.Table) -> Iterator[tuple[Any, Any]]:
    return ((key, message.json()["qty"]) for key, message in table.items())


def test_a_view_of_one_topic_becomes_a_join_and_back(client: quire.Client) -> None:
    before = records(client)
    assert client.define_view("sums", message_type="json", **NAMED) is True
    assert records(client) == [{"account": "Ann", "qty": 3}, {"account": None, "qty": 12}]
    client.publish("accounts", {"id": "B", "name": "Bob"})
    client.flush(timeout=PATIENCE)
    expected = [{"account": "Ann", "qty": 3}, {"account": "Bob", "qty": 7}, {"account": None, "qty": 5}]
    wait_until(lambda: records(client) == expected)
    options = {key: value for key, value in SUMS.items() if key != "name"}
    assert client.define_view("sums", **options) is True
    assert records(client) == before


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"projection": "SUM(/qty AS /qty"}, r"^projection\[0\]: "),
        ({"underlying_topic": "nothing"}, '^underlying_topic: "nothing" keeps no last values'),
        (
            {"underlying_topic": "total"},
            "^underlying_topic: the view reads itself: sums reads total reads sums",
        ),
        ({"message_type": "fix"}, '^message_type: the messages of the view "sums" are json'),
        ({"projektion": "/account"}, "^projektion: unknown key; did you mean"),
        ({"filter": "/qty >"}, "^filter: "),
    ],
)
def test_a_mistake_names_its_key_and_leaves_the_view(
    client: quire.Client, changed: dict[str, Any], reason: str
) -> None:
    before = records(client)
    with pytest.raises(quire.ConfigError, match=reason):
        client.define_view("sums", **{**LARGE, **changed})
    assert records(client) == before
    with pytest.raises(quire.ConfigError, match=r'^name: the server has no view "orders"'):
        client.define_view("orders", **LARGE)


async def test_the_asynchronous_client_replaces_a_definition(tmp_path: Path) -> None:
    config = quire.Config(**SETTINGS)
    async with quire.AsyncClient("memory:define-view-aio", config=config) as client:
        await client.publish("orders", {"id": 1, "account": "A", "qty": 1})
        assert await client.define_view("sums", timeout=PATIENCE, **LARGE) is True
        assert [record.json() async for record in client.sow("sums")] == []
        assert await client.define_view("sums", **LARGE) is False


def test_the_right_admin_and_unfiltered_sources_are_needed() -> None:
    allow = ["read", "query", "admin"]
    entitlement = [
        {"user": "anna", "topic": "sums", "allow": allow},
        {"user": "bob", "topic": "sums", "allow": ["read", "query"]},
        {"user": "olga", "topic": "orders", "allow": allow, "filter": "/qty > 1"},
        {"user": "olga", "topic": "^", "allow": allow},
        {"user": "root", "topic": "^", "allow": allow},
    ]
    users = {name: {"password": f"{name}-password"} for name in ("anna", "bob", "olga", "root")}
    with quire.testing.server(**SETTINGS, entitlement=entitlement, users=users) as server:

        def define(user: str) -> bool:
            with quire.Client(server.url, **server.options(user)) as client:
                return client.define_view("sums", **LARGE)

        for user, action, topic in [
            ("anna", "read", "orders"),
            ("bob", "admin", "sums"),
            ("olga", "read", "orders"),
        ]:
            with pytest.raises(quire.NotEntitledError) as raised:
                define(user)
            assert (raised.value.action, raised.value.topic) == (action, topic)
        assert define("root") is True


FILE = """\
[[sow_topic]]
name = "orders"
message_type = "json"

[[view]]
name = "sums"
message_type = "json"
underlying_topic = "orders"
projection = [
    "/account",
    "SUM(/qty) AS /qty",
]
grouping = ["/account"]
filter = "/qty > 2"
"""


def test_the_command_line_replaces_a_definition_and_shows_where_it_comes_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "new.toml"
    with quire.testing.server(**SETTINGS) as server:
        url = ["--url", server.url]

        def replace(text: str, name: str = "sums") -> tuple[int, str]:
            file.write_text(text)
            status = run(["view", "replace", name, str(file), *url])
            out, err = capsys.readouterr()
            return status, out or err

        def defined_by() -> str:
            assert run(["view", "explain", "sums", "--json", *url]) == 0
            return str(json.loads(capsys.readouterr().out)["defined_by"])

        assert defined_by() == "the configuration"
        assert replace(FILE) == (0, f"view sums has the definition of {file}\n")
        assert replace(FILE) == (0, "view sums had this definition\n")
        assert defined_by().startswith("define_view at 20")
        # The keys without the head of the table.
        assert replace('underlying_topic = "orders"\nprojection = "COUNT(1) AS /qty"') == (
            0,
            f"view sums has the definition of {file}\n",
        )
        for text, expected in [
            (FILE.replace("SUM(/qty)", "SUM(/qty"), ":11: view[0].projection[1]: "),
            (FILE.replace('= "orders"\np', '= "ordres"\np'), ':8: view[0].underlying_topic: "ordres" keeps'),
            (
                FILE.replace("grouping", "groping"),
                ':13: view[0].groping: unknown key; did you mean "grouping"?',
            ),
            (FILE.replace('"json"\nu', '"fix"\nu'), ":7: view[0].message_type: the messages of the view"),
            (FILE.replace("sums", "sum"), ": view: the file has no [[view]] with the name 'sums'"),
            ('name = "sum"\nprojection = "COUNT(1) AS /n"', ":1: name: 'sum' is not the view 'sums'"),
            ("nonsense", ": Expected '=' after a key"),
        ]:
            status, said = replace(text)
            assert (status, said.startswith(f"quire: {file}{expected}")) == (2, True), said
        assert defined_by().startswith("define_view at 20")


@pytest.mark.parametrize("seed", range(4))
def test_a_kill_at_any_time_leaves_the_old_or_the_new_definition(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    source: dict[int, tuple[str, int]] = {}

    def expected(filtered: bool) -> list[Any]:
        sums: dict[str, int] = {}
        for account, qty in source.values():
            if not filtered or qty > 2:
                sums[account] = sums.get(account, 0) + qty
        found = [{"account": account, "qty": qty} for account, qty in sums.items()]
        return sorted(found, key=json.dumps)

    definitions = [{key: value for key, value in SUMS.items() if key != "name"}, LARGE]
    is_large = False
    with ServerProcess(tmp_path / "server", **SETTINGS) as server:
        for _ in range(4):
            with quire.Client(server.url) as client:
                for _ in range(3000):
                    number = draw.randrange(20_000)
                    source[number] = (f"a{draw.randrange(2_000)}", draw.randrange(5))
                    account, qty = source[number]
                    client.publish("orders", {"id": number, "account": account, "qty": qty})
                client.flush(timeout=PATIENCE)
                answered: list[bool] = []
                wanted = definitions[not is_large]
                asking = threading.Thread(target=_ask, args=(client, wanted, answered))
                asking.start()
                with quire.Client(server.url) as other:
                    for _ in range(draw.choice([0, 1, 3, 10, 30])):
                        other.server_info()
                server.kill()
                asking.join()
                server.start()
            with quire.Client(server.url) as client:
                found = records(client)
                if answered:
                    assert found == expected(not is_large)
                else:
                    assert found in (expected(False), expected(True))
                is_large = found == expected(True)
                totals = records(client, "total")
                assert totals == [{"qty": sum(row["qty"] for row in found), "accounts": len(found)}]


def _ask(client: quire.Client, definition: dict[str, Any], answered: list[bool]) -> None:
    # Without an answer, the server was killed.
    with contextlib.suppress(quire.QuireError):
        answered.append(client.define_view("sums", **definition))
