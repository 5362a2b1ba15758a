"""The requests of the pages of the console: their rights, their limits and their effects."""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import quire
import quire.testing
from quire.admin import _console_stream
from quire.server._identity import ANONYMOUS
from quire.testing import TestServer
from support.waiting import PATIENCE, wait_until

QUEUES = [
    {"name": "JOBS", "message_type": "json", "underlying_topic": "orders", "dead_letter_topic": "dead"},
    {"name": "DEAD", "message_type": "json", "underlying_topic": "dead"},
]
AIRCRAFT = {"name": "aircraft", "message_type": "json", "key": ["/tail"]}
USERS = {
    "olga": {"password": "olga-secret"},
    "rita": {"password": "rita-secret"},
    "nora": {"password": "nora-secret"},
}
ENTITLEMENT = [
    {
        "user": "olga",
        "topic": "^",
        "allow": ["read", "replay", "query", "write", "delete", "monitor", "admin"],
    },
    {"user": "olga", "topic": "^/quire/", "allow": ["monitor", "admin"]},
    {"user": "rita", "topic": "orders", "allow": ["read", "replay"], "filter": "/desk = 'FX'"},
    {"user": "rita", "topic": "^", "allow": ["monitor", "query"]},
    {"user": "rita", "topic": "^/quire/", "allow": ["monitor"]},
    {"user": "nora", "topic": "orders", "allow": ["write"]},
]


def started(directory: Path, **settings: Any) -> Any:
    return quire.testing.server(
        directory,
        admin={"address": "127.0.0.1:0"} | settings.pop("admin", {}),
        queue=QUEUES,
        sow_topic=AIRCRAFT,
        **settings,
    )


def page_of(server: TestServer, user: str | None = None) -> httpx.Client:
    assert server.admin_url is not None
    auth = None if user is None else (user, f"{user}-secret")
    return httpx.Client(base_url=server.admin_url, timeout=PATIENCE, auth=auth)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[TestServer]:
    with started(tmp_path) as server:
        yield server


@pytest.fixture
def page(server: TestServer) -> Iterator[httpx.Client]:
    with page_of(server) as page:
        yield page


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[TestServer]:
    """A server with an operator, a reader with fewer rights, and a user who may only publish."""
    with started(tmp_path, users=USERS, entitlement=ENTITLEMENT) as server:
        yield server


def publish(server: TestServer, topic: str, *messages: Any, user: str | None = None) -> None:
    options = {} if user is None else server.options(user)
    with quire.Client(server.url, **options) as client:
        for message in messages:
            client.publish(topic, message)
        client.flush()


def data_of(answer: httpx.Response) -> list[Any]:
    assert answer.status_code == 200, answer.text
    return [json.loads(each["data"]) for each in answer.json()["messages"]]


@contextmanager
def lines_of(page: httpx.Client, path: str, **query: Any) -> Iterator[Iterator[dict[str, Any]]]:
    """The lines of a stream, without those that only show that it goes on."""
    with page.stream("GET", f"/console/api/{path}", params=query) as answer:
        assert answer.status_code == 200, answer.read()
        lines = (json.loads(line) for line in answer.iter_lines())
        assert next(lines) == {"begun": True}
        yield (line for line in lines if "ping" not in line)


def wait_for_subscription(server: TestServer) -> None:
    """Waits for the subscription of a stream, which begins after the answer has begun."""
    with quire.Client(server.url) as client:
        wait_until(lambda: client.server_info().subscriptions == 1)


def test_the_page_allows_its_own_scripts_only(page: httpx.Client) -> None:
    answer = page.get("/")
    assert answer.headers["Content-Type"].startswith("text/html")
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'self'" in policy
    assert "unsafe" not in policy
    scripts = re.findall(rb"<script([^>]*)>(.*?)</script>", answer.content, re.DOTALL)
    [import_map] = [text for attributes, text in scripts if b"src=" not in attributes]
    assert base64.b64encode(hashlib.sha256(import_map).digest()).decode() in policy
    assert b" style=" not in answer.content
    assert b"http://" not in answer.content
    assert b"https://" not in answer.content


def test_each_page_has_an_address(page: httpx.Client) -> None:
    for path in ("/console", "/console/overview", "/console/queues?sort=-depth"):
        assert page.get(path).content == page.get("/").content


def test_a_file_is_sent_again_only_when_it_has_changed(page: httpx.Client) -> None:
    first = page.get("/console/assets/app.js")
    assert first.headers["Content-Type"].startswith("text/javascript")
    assert (
        page.get("/console/assets/app.js", headers={"If-None-Match": first.headers["ETag"]}).status_code
        == 304
    )
    assert page.get("/console/assets/%2e%2e/_console.py").status_code == 404
    assert page.get("/console/assets/index.html").status_code == 404


def test_every_vendored_file_has_its_license(page: httpx.Client) -> None:
    about = page.get("/console/assets/vendor/README.md").text
    vendored = Path(_console_stream.__file__).parent / "console" / "vendor"
    for file in vendored.iterdir():
        assert file.name == "README.md" or f"`{file.name}`" in about, file
    for named in re.findall(r"`(LICENSE[^`]*)`", about):
        assert (vendored / named).is_file()


def test_the_newest_messages_are_first(server: TestServer, page: httpx.Client) -> None:
    publish(server, "orders", *({"id": number} for number in range(150)))
    answer = page.get("/console/api/messages", params={"topic": "orders", "limit": 3})
    assert data_of(answer) == [{"id": 149}, {"id": 148}, {"id": 147}]
    assert answer.json()["complete"] is False
    every = page.get("/console/api/messages", params={"topic": "orders", "limit": 500})
    assert len(data_of(every)) == 150
    assert every.json()["complete"] is True


def test_messages_are_found_from_a_place_and_by_a_filter(server: TestServer, page: httpx.Client) -> None:
    publish(server, "orders", *({"id": number} for number in range(10)))
    first = page.get("/console/api/messages", params={"topic": "orders", "from": "beginning", "limit": 2})
    assert data_of(first) == [{"id": 0}, {"id": 1}]
    assert first.json()["complete"] is False
    found = page.get("/console/api/messages", params={"topic": "orders", "from": "-1h", "filter": "/id > 7"})
    assert data_of(found) == [{"id": 8}, {"id": 9}]
    bookmark = first.json()["messages"][1]["bookmark"]
    after = page.get("/console/api/messages", params={"topic": "orders", "from": bookmark, "limit": 1})
    assert data_of(after) == [{"id": 2}]


@pytest.mark.parametrize(
    "query",
    [
        {},
        {"topic": "orders", "limit": "0"},
        {"topic": "orders", "limit": "many"},
        {"topic": "orders", "limit": "0001009"},
        {"topic": "orders", "filter": "/id >"},
        {"topic": "orders", "from": "-a while"},
        {"topic": "orders", "from": "yesterday"},
    ],
)
def test_a_question_with_a_mistake_is_refused(page: httpx.Client, query: dict[str, str]) -> None:
    answer = page.get("/console/api/messages", params=query)
    assert answer.status_code == 400
    assert answer.json()["error"]["reason"]


def test_data_that_is_no_text_is_shown_as_base64(server: TestServer, page: httpx.Client) -> None:
    publish(server, "orders", b'"\xff"', b'"' + b"x" * 100_000 + b'"')
    answer = page.get("/console/api/messages", params={"topic": "orders"}).json()["messages"]
    large, binary = answer
    assert base64.b64decode(binary["base64"]) == b'"\xff"'
    assert large["truncated"]
    assert large["size"] == 100_002
    assert len(large["data"]) == 64 * 1024


def test_a_peek_changes_nothing(server: TestServer, page: httpx.Client) -> None:
    publish(server, "orders", {"id": 1}, {"id": 2})
    with quire.Client(server.url) as client:
        before = client.queue_stats("JOBS")["JOBS"]
        assert data_of(page.get("/console/api/peek", params={"queue": "JOBS", "limit": 1})) == [{"id": 1}]
        after = client.queue_stats("JOBS")["JOBS"]
    assert {name: value for name, value in before.items() if not name.startswith("age_")} == {
        name: value for name, value in after.items() if not name.startswith("age_")
    }


def test_messages_are_followed_as_they_come(server: TestServer, page: httpx.Client) -> None:
    with lines_of(page, "follow", topic="orders", filter="/id > 1") as lines:
        wait_for_subscription(server)
        publish(server, "orders", {"id": 1}, {"id": 2})
        assert json.loads(next(lines)["message"]["data"]) == {"id": 2}


def test_several_nodes_come_in_one_answer(server: TestServer, page: httpx.Client) -> None:
    publish(server, "orders", {"id": 1})
    paths = ["/quire/instance/queues.json?sort=-depth&limit=1", "/quire/instance/topics/orders.json"]
    wrong = [
        "/quire/instance/nothing.json",
        "/quire/instance/queues.json?limit=x",
        "/metrics",
        "/quire/instance",
    ]
    # Figures may be a second old.
    wait_until(lambda: page.get(paths[1]).status_code == 200)
    answer = page.get("/console/api/several", params={"get": [*paths, *wrong, "/readyz"]})
    queues, topic, *refused, ready = answer.json()
    assert (queues["status"], queues["total"], len(queues["body"])) == (200, 2, 1)
    assert topic == {"status": 200, "body": page.get(paths[1]).json()}
    assert [each["status"] for each in refused] == [404, 400, 400, 400]
    assert refused[0]["body"] == page.get(wrong[0]).json()
    assert (ready["status"], ready["body"]["status"]) == (200, "ready")
    assert page.get("/console/api/several").status_code == 400
    assert page.get("/console/api/several", params={"get": paths[:1] * 101}).status_code == 400


def test_several_nodes_are_answered_with_the_rights_of_each_user(guarded: TestServer) -> None:
    paths = ["/quire/instance/clients.json", "/quire/instance/clients.json", "/quire/instance.json"]
    with page_of(guarded, "olga") as olga, page_of(guarded, "nora") as nora:
        for page, status in ((olga, 200), (nora, 403), (olga, 200)):
            answer = page.get("/console/api/several", params={"get": paths})
            assert [each["status"] for each in answer.json()] == [status] * 3


def test_several_nodes_are_answered_with_the_rights_after_a_reload(tmp_path: Path) -> None:
    file = tmp_path / "quire.toml"
    head = f'data_directory = "{tmp_path}"\n[[transport]]\naddress = "127.0.0.1:0"\n'
    head += '[admin]\naddress = "127.0.0.1:0"\n'

    def allow(topic: str) -> None:
        entry = f'[[entitlement]]\nuser = "{ANONYMOUS}"\ntopic = "{topic}"\nallow = "monitor"\n'
        file.write_text(head + entry)

    allow("/quire/clients")
    with quire.Server(quire.Config.load(file)) as server:
        assert server.admin_url is not None
        with httpx.Client(base_url=server.admin_url, timeout=PATIENCE) as page:
            asked = {"get": ["/quire/instance/clients.json"]}

            def status() -> int:
                [answer] = page.get("/console/api/several", params=asked).json()
                return int(answer["status"])

            assert status() == 200
            allow("/quire/server")
            assert server.reload() == ["entitlement"]
            assert status() == 403


def test_a_page_gets_a_part_of_the_messages_at_a_high_rate(server: TestServer, page: httpx.Client) -> None:
    count = 20_000
    with lines_of(page, "follow", topic="orders") as lines:
        wait_for_subscription(server)
        publish(server, "orders", *({"id": number} for number in range(count)))
        seen = skipped = 0
        for line in lines:
            seen += "message" in line
            skipped += line.get("skipped", 0)
            if skipped > 1000:
                break
    # The page gets the newest messages of each batch, and the number of the others.
    assert skipped > seen
    assert seen + skipped <= count


def test_the_records_of_a_topic_are_followed(server: TestServer, page: httpx.Client) -> None:
    publish(server, "aircraft", {"tail": "N1", "height": 1}, {"tail": "N2", "height": 2})
    with lines_of(page, "records", topic="aircraft") as lines:
        begun = [next(lines) for _ in range(3)]
        heights = sorted(json.loads(each["record"]["data"])["height"] for each in begun[:2])
        assert heights == [1, 2]
        assert begun[2] == {"loaded": True}
        publish(server, "aircraft", {"tail": "N2", "height": 3})
        change = next(lines)["record"]
        assert json.loads(change["data"]) == {"tail": "N2", "height": 3}
        assert not change["is_new"]
        with quire.Client(server.url) as client:
            client.sow_delete("aircraft", filter="/tail = 'N1'")
        assert next(lines)["removed"]["topic"] == "aircraft"


def test_a_page_that_does_not_read_is_cut_off_and_delays_no_client(tmp_path: Path) -> None:
    with started(tmp_path, admin={"request_timeout": "200ms"}) as server:
        assert server.admin_url is not None
        place = urlsplit(server.admin_url)
        with socket.create_connection((place.hostname, place.port), timeout=PATIENCE) as page:
            page.sendall(b"GET /console/api/follow?topic=orders HTTP/1.1\r\nHost: localhost\r\n\r\n")
            wait_for_subscription(server)
            with quire.Client(server.url) as client:

                def is_cut_off() -> bool:
                    for _ in range(100):
                        client.publish("orders", {"text": "x" * 15_000})
                    # It raises an error when the server does not persist them in time.
                    client.flush(PATIENCE)
                    return client.server_info().subscriptions == 0

                wait_until(is_cut_off)


def test_a_stream_with_a_mistake_says_so(page: httpx.Client) -> None:
    with lines_of(page, "follow", topic="orders", filter="/id >") as lines:
        assert next(lines)["error"]["code"] == "bad_filter"


def test_a_message_is_published(server: TestServer, page: httpx.Client) -> None:
    body = {"topic": "orders", "data": '{"id": 7}', "correlation_id": "c"}
    assert page.post("/console/api/publish", json=body).status_code == 200
    [message] = page.get("/console/api/messages", params={"topic": "orders"}).json()["messages"]
    assert message["data"] == '{"id": 7}'
    assert message["correlation_id"] == "c"
    refused = page.post("/console/api/publish", json={"topic": "aircraft", "data": "no key"})
    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == "bad_message"


def test_a_purge_needs_the_name_of_the_queue(server: TestServer, page: httpx.Client) -> None:
    publish(server, "orders", {"id": 1}, {"id": 2}, {"id": 3})
    path = "/quire/administrator/queues/JOBS/purge"
    assert page.post(path, json={}).status_code == 400
    assert page.post(path, json={"confirm": "JOBS", "filter": "/id = 2"}).json() == {"purged": 1}
    assert page.post(path, json={"confirm": "JOBS"}).json() == {"purged": 2}


def test_dead_letters_are_published_again(server: TestServer, page: httpx.Client) -> None:
    publish(server, "orders", {"id": 1}, {"id": 2})
    page.post("/quire/administrator/queues/JOBS/purge", json={"confirm": "JOBS"})
    done = page.post("/quire/administrator/queues/DEAD/redrive", json={}).json()
    assert done == {"redriven": 2, "left": 0, "notes": []}
    assert data_of(page.get("/console/api/peek", params={"queue": "JOBS"})) == [{"id": 1}, {"id": 2}]
    refused = page.post("/quire/administrator/queues/JOBS/redrive", json={})
    assert refused.status_code == 400


def test_the_consumers_of_a_queue_are_listed(server: TestServer, page: httpx.Client) -> None:
    publish(server, "orders", {"id": 1})
    with quire.Client(server.url, name="worker") as client, client.subscribe("JOBS", max_backlog=5) as jobs:
        jobs.get(timeout=PATIENCE)
        holders = page.get("/console/api/holders", params={"queue": "JOBS"}).json()
    [lease] = holders["leases"]
    assert (lease["client_name"], lease["deliveries"], holders["leases_total"]) == ("worker", 1, 1)
    assert lease["age_s"] >= 0
    [consumer] = holders["consumers"]
    assert (consumer["client_name"], consumer["backlog"], consumer["max_backlog"]) == ("worker", 1, 5)


def test_the_files_of_the_journal_are_listed(server: TestServer, page: httpx.Client) -> None:
    publish(server, "orders", {"id": 1})
    told = page.get("/console/api/journal").json()
    assert told["total"] == 1
    assert told["files"][0]["state"] == "active"


def test_lines_of_the_log_are_kept_and_followed(server: TestServer, page: httpx.Client) -> None:
    log = logging.getLogger("quire.server")
    log.warning("one %s", "line")
    lines = page.get("/console/api/logs").json()["lines"]
    assert (lines[-1]["level"], lines[-1]["text"]) == ("warning", "one line")
    with lines_of(page, "logs/follow") as followed:
        assert next(line for line in followed if line["line"]["text"] == "one line")
        log.warning("another")
        assert next(line for line in followed if line["line"]["text"] == "another")


def test_the_session_says_what_the_user_may_do(guarded: TestServer) -> None:
    with page_of(guarded, "olga") as page:
        assert page.get("/console/api/session").json()["rights"]["/quire/journal"] == ["monitor", "admin"]
    with page_of(guarded, "rita") as page:
        session = page.get("/console/api/session").json()
        assert session["user"] == "rita"
        assert session["rights"]["/quire/journal"] == ["monitor"]
        assert page.get("/console/api/rights", params={"name": "orders"}).json()["rights"] == [
            "read",
            "replay",
            "query",
            "monitor",
        ]
    with page_of(guarded) as page:
        assert page.get("/console/api/session").status_code == 401


def test_a_user_sees_the_messages_that_its_entry_allows(guarded: TestServer) -> None:
    publish(guarded, "orders", {"id": 1, "desk": "FX"}, {"id": 2, "desk": "EQ"}, user="olga")
    with page_of(guarded, "rita") as page:
        answer = page.get("/console/api/messages", params={"topic": "orders"})
        assert [each["id"] for each in data_of(answer)] == [1]
    with page_of(guarded, "olga") as page:
        assert len(data_of(page.get("/console/api/messages", params={"topic": "orders"}))) == 2


@pytest.mark.parametrize(
    ("user", "method", "path", "values"),
    [
        ("rita", "POST", "/console/api/publish", {"topic": "orders", "data": "{}"}),
        ("rita", "POST", "/quire/administrator/queues/JOBS/purge", {"confirm": "JOBS"}),
        ("rita", "POST", "/quire/administrator/queues/DEAD/redrive", {}),
        ("nora", "GET", "/console/api/messages", {"topic": "orders"}),
        ("nora", "GET", "/console/api/follow", {"topic": "orders"}),
        ("nora", "GET", "/console/api/records", {"topic": "aircraft"}),
        ("nora", "GET", "/console/api/peek", {"queue": "JOBS"}),
        ("nora", "GET", "/console/api/holders", {"queue": "JOBS"}),
        ("nora", "GET", "/console/api/journal", {}),
        ("nora", "GET", "/console/api/logs", {}),
        ("nora", "GET", "/console/api/logs/follow", {}),
    ],
)
def test_a_request_without_the_right_is_refused(
    guarded: TestServer, user: str, method: str, path: str, values: dict[str, str]
) -> None:
    with page_of(guarded, user) as page:
        answer = page.post(path, json=values) if method == "POST" else page.get(path, params=values)
    assert answer.status_code == 403, answer.text
    assert answer.json()["error"]["code"] == "not_entitled"


def test_a_read_only_server_changes_nothing_for_the_console(tmp_path: Path) -> None:
    with started(tmp_path, admin={"read_only": True}) as server, page_of(server) as page:
        assert page.get("/console/api/session").json()["read_only"] is True
        assert page.get("/console/api/rights", params={"name": "orders"}).json()["rights"] == [
            "read",
            "replay",
            "query",
            "monitor",
        ]
        body = {"topic": "orders", "data": "{}"}
        assert page.post("/console/api/publish", json=body).status_code == 403


def test_a_stream_ends_when_its_user_loses_the_right(
    guarded: TestServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_console_stream, "RECHECK_INTERVAL", 0.05)
    with page_of(guarded, "rita") as page, lines_of(page, "follow", topic="orders") as lines:
        assert guarded._administration is not None
        access = guarded._administration._access
        monkeypatch.setattr(access, "may", lambda *_: False)
        assert next(lines)["error"]["code"] == "entitlement_reset"
