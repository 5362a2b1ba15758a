"""Views with joins for programs: their records after changes of each topic, after a restart, and the
mistakes that a start refuses.

docs/views.md, section 2, has the rules. The tests of the crate quire-table compare the engine with
a slow model.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import quire
import quire.testing
from support.command_line import quire as run
from support.server_process import ServerProcess
from support.waiting import PATIENCE, wait_until
from support.ways_in import configured

ORDERS = {"name": "orders", "message_type": "json", "key": ["/id"], "expiration": "enabled"}
ACCOUNTS = {"name": "accounts", "message_type": "nvfix", "key": ["/id"]}
DESKS = {"name": "desks", "message_type": "json", "key": ["/id"]}
DESK_SIZES = {
    "name": "desk_sizes",
    "message_type": "json",
    "join": ["[orders].[/account] = [accounts].[/id]", "[accounts].[/desk] = [desks].[/id]"],
    "projection": [
        "[desks].[/name] AS /desk",
        "SUM([orders].[/qty]) AS /qty",
        "COUNT([accounts].[/id]) AS /known",
    ],
    "grouping": ["[desks].[/name]"],
}
NAMED = {
    "name": "named",
    "message_type": "json",
    "join": "[orders].[/account] = [accounts].[/id]",
    "projection": ["[orders].[/id]", "[accounts].[/name]", "[orders].[/qty] * 2 AS /twice"],
}
#: A view of the joined view, and a join of a view with a topic.
LARGE = {
    "name": "large",
    "message_type": "json",
    "underlying_topic": "named",
    "projection": ["/name", "SUM(/twice) AS /twice"],
    "grouping": ["/name"],
    "filter": "/twice > 10",
}
BACK = {
    "name": "back",
    "message_type": "nvfix",
    "join": ["[accounts].[/name] = [large].[/name]"],
    "projection": ["[accounts].[/id]", "[large].[/twice]"],
}
SETTINGS: dict[str, Any] = {
    "transaction_log": {
        "topic": [
            {"name": "accounts", "message_type": "nvfix"},
            {"name": "^(orders|desks)$", "message_type": "json"},
        ]
    },
    "sow_topic": [ORDERS, ACCOUNTS, DESKS],
    "view": [BACK, LARGE, DESK_SIZES, NAMED],
}


@pytest.fixture
def place(way_in: str, tmp_path: Path) -> Iterator[dict[str, Any]]:
    with configured(way_in, tmp_path, **SETTINGS) as place:
        yield place


@pytest.fixture
def client(place: dict[str, Any]) -> Iterator[quire.Client]:
    with quire.Client(**place) as client:
        yield client


def nvfix(**fields: Any) -> bytes:
    return "".join(f"{name}={value}\x01" for name, value in fields.items()).encode()


def received(subscription: quire.Subscription, count: int) -> list[tuple[str, Any]]:
    messages = [subscription.get(timeout=PATIENCE) for _ in range(count)]
    return [(message.reason or message.command, message.json()) for message in messages]


def records(client: quire.Client, topic: str) -> list[Any]:
    return sorted((record.json() for record in client.sow(topic)), key=str)


def settled(client: quire.Client, topic: str) -> None:
    """Waits until a view has all changes of its topics."""

    def waiting() -> int:
        (described,) = client._described_of([topic])
        return int(described["last_values"]["waiting_changes"])

    wait_until(lambda: waiting() == 0)


def test_a_join_follows_the_changes_of_each_of_its_topics(client: quire.Client) -> None:
    changes = client.sow_and_subscribe("desk_sizes", oof=True)
    client.publish("orders", {"id": 1, "account": 7, "qty": 5})
    assert received(changes, 1) == [("publish", {"desk": None, "qty": 5, "known": 0})]
    client.publish("accounts", nvfix(id=7, desk="d", name="Ann"))
    assert received(changes, 1) == [("publish", {"desk": None, "qty": 5, "known": 1})]
    client.publish("desks", {"id": "d", "name": "rates"})
    assert received(changes, 2) == [
        ("deleted", {"desk": None, "qty": 5, "known": 1}),
        ("publish", {"desk": "rates", "qty": 5, "known": 1}),
    ]
    client.publish("orders", {"id": 2, "account": "7", "qty": 1.5})
    assert received(changes, 1) == [("publish", {"desk": "rates", "qty": 6.5, "known": 2})]
    client.publish("desks", {"id": "d", "name": "credit"})
    assert received(changes, 2)[1] == ("publish", {"desk": "credit", "qty": 6.5, "known": 2})
    assert client.sow_delete("accounts", filter="/id = 7") == 1
    assert received(changes, 2)[1] == ("publish", {"desk": None, "qty": 6.5, "known": 0})
    client.publish("orders", {"id": 2, "account": None, "qty": 2})
    assert received(changes, 1) == [("publish", {"desk": None, "qty": 7, "known": 0})]
    assert client.sow_delete("orders", filter="/id > 0") == 2
    assert received(changes, 2)[-1][0] == "deleted"
    assert records(client, "desk_sizes") == []


def test_a_join_without_groups_has_a_record_for_each_combination(client: quire.Client) -> None:
    changes = client.sow_and_delta_subscribe("named", oof=True)
    client.publish("orders", {"id": 1, "account": 7, "qty": 5})
    (first,) = [changes.get(timeout=PATIENCE)]
    assert first.json() == {"id": 1, "name": None, "twice": 10}
    client.publish("orders", {"id": 1, "account": 7, "qty": 6})
    (second,) = [changes.get(timeout=PATIENCE)]
    assert (second.json(), second.sow_key) == ({"twice": 12}, first.sow_key)
    client.publish("accounts", nvfix(id=7, desk="d", name="Ann"))
    assert received(changes, 2) == [
        ("deleted", {"id": 1, "name": None, "twice": 12}),
        ("publish", {"id": 1, "name": "Ann", "twice": 12}),
    ]
    client.publish("accounts", nvfix(id=7, desk="d", name="Anna"))
    assert received(changes, 1) == [("publish", {"name": "Anna"})]


def test_views_of_joins_and_joins_of_views_follow(client: quire.Client) -> None:
    client.publish("accounts", nvfix(id=7, desk="d", name="Ann"))
    client.publish("accounts", nvfix(id=8, desk="d", name="Bob"))
    for id, account, qty in [(1, 7, 6), (2, 7, 7), (3, 8, 1), (4, 9, 8)]:
        client.publish("orders", {"id": id, "account": account, "qty": qty})
    wait_until(
        lambda: records(client, "large") == [{"name": "Ann", "twice": 26}, {"name": None, "twice": 16}]
    )
    wait_until(
        lambda: (
            sorted(record.data for record in client.sow("back"))
            == [b"id=7\x01twice=26\x01", b"id=8\x01twice=\x01"]
        )
    )
    client.publish("orders", {"id": 3, "account": 8, "qty": 10})
    wait_until(lambda: b"id=8\x01twice=20\x01" in [record.data for record in client.sow("back")])


def test_an_expired_record_leaves_its_combinations(client: quire.Client) -> None:
    client.publish("accounts", nvfix(id=7, desk="d", name="Ann"))
    changes = client.sow_and_subscribe("desk_sizes", oof=True)
    client.publish("orders", {"id": 1, "account": 7, "qty": 5}, expiration=1)
    client.publish("orders", {"id": 2, "account": 7, "qty": 1})
    assert received(changes, 2)[1] == ("publish", {"desk": None, "qty": 6, "known": 2})
    assert received(changes, 1) == [("publish", {"desk": None, "qty": 1, "known": 1})]


def test_the_figures_of_a_join_show_its_conditions_and_how_far_it_is_behind(client: quire.Client) -> None:
    client.publish("orders", {"id": 1, "account": 7, "qty": 5})
    settled(client, "desk_sizes")
    (described,) = client._described_of(["desk_sizes"])
    figures = described["last_values"]
    assert figures["join"] == DESK_SIZES["join"]
    assert "underlying_topic" not in figures
    assert (figures["records"], figures["waiting_changes"], figures["behind_s"]) == (1, 0, 0.0)
    assert figures["memory"] > 1000


def test_a_restart_computes_the_same_records(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, **SETTINGS) as server:
        with quire.Client(server.url, name="c") as client:
            for id in range(300):
                client.publish("orders", {"id": id, "account": id % 7, "qty": id / 10})
            for account in range(5):
                client.publish("accounts", nvfix(id=account, desk=account % 2, name=f"n{account}"))
            client.publish("desks", {"id": 1, "name": "one"})
            client.flush()
            for view in ("desk_sizes", "named", "large", "back"):
                settled(client, view)
            before = {
                view: sorted(record.data for record in client.sow(view))
                for view in ("desk_sizes", "named", "large", "back")
            }
            keys = {record.sow_key for record in client.sow("named")}
        server.kill()
        server.start()
        with quire.Client(server.url, name="c") as client:
            after = {view: sorted(record.data for record in client.sow(view)) for view in before}
            assert {record.sow_key for record in client.sow("named")} == keys
    assert after == before
    assert len(before["named"]) == 300


def test_a_change_with_many_matches_is_whole_and_in_order(client: quire.Client) -> None:
    client.publish("accounts", nvfix(id=7, desk="d", name="Ann"))
    for id in range(2_000):
        client.publish("orders", {"id": id, "account": 7, "qty": 1})
    client.flush()
    settled(client, "named")
    changes = client.subscribe("named")
    client.publish("accounts", nvfix(id=7, desk="d", name="Bob"))
    client.publish("orders", {"id": 5, "account": 7, "qty": 2})
    found = received(changes, 2_001)
    assert {message["name"] for _, message in found} == {"Bob"}
    assert sorted(message["id"] for _, message in found[:2_000]) == list(range(2_000))
    assert found[-1] == ("publish", {"id": 5, "name": "Bob", "twice": 4})


MISTAKES = [
    ({"join": ["[orders].[/account] = [nothing].[/id]"]}, "join", r'"nothing" keeps no last values'),
    ({"join": ["[orders].[/account] = /id"]}, "join", r"column 23: expected a field with its topic"),
    ({"join": ["[orders].[/account] = [orders].[/id]"]}, "join", r'"orders" is joined with itself'),
    (
        {"join": ["[json].[orders].[/account] = [json].[accounts].[/id]"]},
        "join",
        r'messages on "accounts" are nvfix, not json',
    ),
    (
        {
            "join": [
                "[orders].[/a] = [accounts].[/a]",
                "[accounts].[/b] = [desks].[/b]",
                "[desks].[/c] = [orders].[/c]",
            ]
        },
        "join",
        r"the joins make a cycle",
    ),
    (
        {"join": ["[orders].[/a] = [accounts].[/a]", "[desks].[/b] = [plain].[/b]"]},
        "join",
        r'neither "desks" nor "plain" is joined with "orders"',
    ),
    (
        {"join": ["[orders].[/account] = [nvfix].[queued].[/id]"]},
        "join",
        r'"queued" are json, not nvfix',
    ),
    ({"join": ["[orders].[/account] = [patterned].[/id]"]}, "join", r'"patterned" has a pattern'),
    ({"join": ["[orders].[/account] = [opaque].[/id]"]}, "join", r'"opaque" have no fields: binary'),
    ({"join": ["[orders].[/account] = [bad].[/id]"]}, "join", r'the view reads itself: "?bad reads bad'),
    ({"filter": "/a = 1"}, "filter", r"a view with join has no filter"),
    ({"underlying_topic": "orders"}, "underlying_topic", r"join names the topics already"),
    (
        {"join": [], "projection": ["COUNT(1) AS /n"], "grouping": []},
        "underlying_topic",
        r"name the last-value topic",
    ),
    ({"projection": ["/id"]}, "projection", r"the topic of the field before it"),
    ({"projection": ["[desks].[/id] AS /id"]}, "projection", r"a field of a topic that join names"),
    ({"grouping": ["/id"]}, "grouping", r"the topic of the field before it"),
    ({"projection": ["SUM(SOW_KEY()) AS /k"]}, "projection", r"a join has several messages"),
    (
        {"projection": ["[orders].[/id]", "COUNT(1) AS /n"], "grouping": []},
        "projection",
        r"an aggregate, or a field of grouping",
    ),
]


@pytest.mark.parametrize(("change", "key", "reason"), MISTAKES)
def test_a_start_refuses_a_join_with_a_mistake(
    tmp_path: Path, change: dict[str, Any], key: str, reason: str
) -> None:
    settings = {
        "join": ["[orders].[/account] = [accounts].[/id]"],
        "projection": ["[orders].[/id]", "[accounts].[/name]"],
        "grouping": ["[orders].[/id]", "[accounts].[/name]"],
    } | change
    topics = [
        ("orders", "json", "key = ['/id']"),
        ("accounts", "nvfix", "key = ['/id']"),
        ("desks", "json", "key = ['/id']"),
        ("plain", "json", "key = ['/id']"),
        ("patterned", "json", "key = ['/id']\npattern = 'p/.*'"),
        ("opaque", "binary", ""),
    ]
    text = "[[queue]]\nname = 'queued'\nmessage_type = 'json'\nunderlying_topic = 'jobs'\n"
    for name, kind, more in topics:
        text += f"[[sow_topic]]\nname = '{name}'\nmessage_type = '{kind}'\ndurability = 'transient'\n{more}\n"
    text += "[[transaction_log.topic]]\nname = 'jobs'\nmessage_type = 'json'\n"
    text += "[[view]]\nname = 'bad'\nmessage_type = 'json'\n"
    text += "".join(f"{name} = {json.dumps(value)}\n" for name, value in settings.items())
    path = tmp_path / "quire.toml"
    path.write_text(text)
    with pytest.raises(quire.ConfigError) as caught:
        quire.Config.load(path).check()
    (mistake,) = caught.value.mistakes
    where = re.escape(f"view[0].{key}") + (r"(\[\d\])?" if key in ("join", "projection", "grouping") else "")
    assert re.fullmatch(where, mistake.key or ""), mistake.key
    assert re.search(reason, str(mistake)), str(mistake)
    line = text.splitlines()[(mistake.line or 0) - 1]
    assert line.startswith((f"{key} =", "[[view]]")), line


def test_explain_shows_what_a_view_keeps_and_what_a_change_costs(tmp_path: Path) -> None:
    with quire.testing.server(tmp_path, **SETTINGS) as server, quire.Client(server.url) as client:
        for id in range(6):
            client.publish("orders", {"id": id, "account": id % 2, "qty": 1})
        client.publish("accounts", nvfix(id=1, desk="d", name="Ann"))
        client.flush(timeout=PATIENCE)
        settled(client, "named")
        explained = json.loads(run("view", "explain", "named", "--json", "--url", server.url).stdout)
        shown = run("view", "explain", "desk_sizes", "--url", server.url).stdout
        single = json.loads(run("view", "explain", "large", "--json", "--url", server.url).stdout)
        unknown = run("view", "explain", "orders", "--url", server.url)
    assert (explained["view"], explained["combinations"], explained["groups"]) == ("named", 6, 6)
    assert [(each["topic"], each["records"]) for each in explained["sources"]] == [
        ("orders", 6),
        ("accounts", 1),
    ]
    assert [each["combinations_per_change"] for each in explained["sources"]] == [1, 6]
    (join,) = explained["joins"]
    assert (join["parent"], join["child"], join["keys"]) == ("orders", "accounts", 2)
    assert explained["memory_bytes"] > join["memory_bytes"] > 0
    assert "SUM\tthe exact sum\tconstant" in shown
    assert "accounts\tdesks\t1\t" in shown
    assert single["sources"][0]["topic"] == "named"
    assert (unknown.returncode, "no view 'orders'" in unknown.stderr) == (1, True)
