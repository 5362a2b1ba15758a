"""The HTTP server of administration: its checks, health and the tree (docs/admin.md)."""

from __future__ import annotations

import csv
import io
import json
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from xml.etree import ElementTree

import httpx
import metrics_page
import pytest
import quire
import quire.testing
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as prometheus
from quire.admin._metrics import NODE_AT, series_names
from quire.admin._shown import Shown
from quire.cli import run
from quire.testing import TestServer
from support.waiting import PATIENCE, wait_until

JSON = {"Content-Type": "application/json"}


def started(directory: Path, **settings: Any) -> Any:
    admin = {"address": "127.0.0.1:0"} | settings.pop("admin", {})
    return quire.testing.server(directory, admin=admin, **settings)


def page_of(server: quire.Server, **options: Any) -> httpx.Client:
    assert server.admin_url is not None
    return httpx.Client(base_url=server.admin_url, timeout=PATIENCE, **options)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[TestServer]:
    with started(tmp_path, queue={"name": "jobs", "message_type": "json"}) as server:
        yield server


@pytest.fixture
def page(server: TestServer) -> Iterator[httpx.Client]:
    with page_of(server) as page:
        yield page


def error_of(response: httpx.Response) -> tuple[int, str]:
    error = response.json()["error"]
    assert set(error) == {"code", "reason", "hint"}
    return response.status_code, error["code"]


def test_health_needs_no_authentication_and_says_that_the_server_is_ready(page: httpx.Client) -> None:
    assert page.get("/healthz").json() == {"status": "ok"}
    ready = page.get("/readyz")
    assert ready.status_code == 200
    assert ready.json() == {
        "status": "ready",
        "checks": {"recovered": True, "listening": True, "journal_writable": True, "not_stopping": True},
        "degraded": [],
    }


def test_every_answer_has_the_headers_that_protect_a_browser(page: httpx.Client) -> None:
    for path in ("/healthz", "/quire", "/nothing"):
        headers = page.get(path).headers
        assert "default-src 'self'" in headers["Content-Security-Policy"]
        assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Cache-Control"] == "no-store"
        assert "Access-Control-Allow-Origin" not in headers


def test_a_name_that_the_server_does_not_have_is_refused(page: httpx.Client) -> None:
    assert error_of(page.get("/healthz", headers={"Host": "evil.example"})) == (421, "bad_host")
    for name in ("::1", ""):
        assert error_of(page.get("/healthz", headers={"Host": name})) == (421, "bad_host"), name
    for name in ("localhost", "127.0.0.1:9080", "[::1]:80", socket.gethostname()):
        assert page.get("/healthz", headers={"Host": name}).status_code == 200


@pytest.mark.parametrize("host", ["[evil]", "["])
def test_a_text_that_is_no_name_of_a_host_is_refused(page: httpx.Client, host: str) -> None:
    assert error_of(page.get("/healthz", headers={"Host": host})) == (421, "bad_host")


def test_a_body_with_very_many_levels_is_refused(page: httpx.Client) -> None:
    answer = page.post("/quire/administrator/statistics/truncate", content="[" * 100_000, headers=JSON)
    assert error_of(answer) == (400, "bad_value")


def test_a_request_that_ends_with_a_bug_has_the_form_of_an_error(
    page: httpx.Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("quire.admin._forms.to_html", lambda *values: 1 / 0)
    answer = page.get("/quire")
    assert error_of(answer) == (500, "internal")
    assert answer.headers["Cache-Control"] == "no-store"
    wait_until(lambda: "ZeroDivisionError" in caplog.text)


def test_a_name_of_the_configuration_is_a_name_of_the_server(tmp_path: Path) -> None:
    with started(tmp_path, admin={"hosts": ["quire.example.com"]}) as server, page_of(server) as page:
        assert page.get("/healthz", headers={"Host": "Quire.Example.com:443"}).status_code == 200


def test_a_request_of_another_site_or_without_json_is_refused(page: httpx.Client) -> None:
    path = "/quire/administrator/nothing"
    assert error_of(page.post(path, content="a=b")) == (415, "bad_content_type")
    for header in ({"Origin": "https://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}):
        assert error_of(page.post(path, json={}, headers=header)) == (403, "foreign_origin")
    own = {"Origin": str(page.base_url).rstrip("/"), "Sec-Fetch-Site": "same-origin"}
    assert page.post(path, json={}, headers=own).status_code in (404, 405)


def test_a_request_that_is_too_large_is_refused(page: httpx.Client) -> None:
    assert error_of(page.post("/quire", json={"a": "x" * (1 << 20)})) == (413, "limit_exceeded")
    assert error_of(page.get("/healthz", headers={"X-Long": "x" * 17_000})) == (431, "limit_exceeded")


def test_a_body_without_a_length_is_measured(page: httpx.Client) -> None:
    parts = (b"x" * 65536 for _ in range(20))
    assert page.post("/quire", content=parts, headers=JSON).status_code in (405, 413)


@pytest.mark.parametrize(
    ("path", "methods"),
    [
        ("/healthz", "GET, HEAD"),
        ("/quire", "GET, HEAD"),
        ("/quire.json", "GET, HEAD"),
        ("/quire/instance/queues", "GET, HEAD"),
        ("/metrics", "GET, HEAD"),
        ("/console", "GET, HEAD"),
        ("/console/api/publish", "POST"),
        ("/quire/administrator", "GET, HEAD"),
        ("/quire/administrator/shutdown", "GET, HEAD, POST"),
        ("/quire/administrator/queues/jobs/purge", "GET, HEAD, POST"),
    ],
)
def test_an_unknown_method_names_those_that_the_path_takes(
    page: httpx.Client, path: str, methods: str
) -> None:
    refused = [page.put(path), page.delete(path)]
    if "POST" not in methods:
        refused.append(page.post(path, json={}))
    for answer in refused:
        assert error_of(answer) == (405, "bad_method")
        assert answer.headers["Allow"] == methods


def test_a_read_only_server_refuses_every_post(tmp_path: Path) -> None:
    with started(tmp_path, admin={"read_only": True}) as server, page_of(server) as page:
        assert error_of(page.post("/quire", json={})) == (403, "read_only")


def test_a_request_that_does_not_end_is_cut_off(tmp_path: Path) -> None:
    with started(tmp_path, admin={"request_timeout": "100ms"}) as server:
        assert server.admin_url is not None
        place = urlsplit(server.admin_url)
        with socket.create_connection((place.hostname, place.port), timeout=PATIENCE) as connection:
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n")
            assert connection.recv(1) == b""


def test_connections_beyond_the_limit_are_told(tmp_path: Path) -> None:
    with (
        started(tmp_path, admin={"max_connections": 1}) as server,
        page_of(server) as first,
        page_of(server) as second,
    ):
        assert first.get("/healthz").status_code == 200
        assert error_of(second.get("/healthz")) == (503, "limit_exceeded")


def test_the_tree_has_the_objects_of_the_server(server: TestServer, page: httpx.Client) -> None:
    with quire.Client(server.url, name="shop") as client:
        client.publish("jobs", {"id": 1})
        client.publish("orders", {"id": 2})
        client.flush()
        with client.subscribe("orders"):
            tree = page.get("/quire.json").json()
    instance = tree["instance"]
    assert instance["name"] == server.config.name
    assert instance["state"] == "running"
    assert [each["client_name"] for each in instance["clients"]] == ["shop"]
    assert [each["topic"] for each in instance["subscriptions"]] == ["orders"]
    assert {each["id"]: each["depth"] for each in instance["queues"]} == {"jobs": 1}
    assert "orders" in {each["id"] for each in instance["topics"]}
    assert instance["journal"]["writable"] is True
    assert instance["messages"]["published"] == 2
    assert tree["host"]["memory"]["total_bytes"] > 0


def test_a_leaf_has_its_kind_and_unit(page: httpx.Client) -> None:
    leaf = page.get("/quire/instance/queues/jobs/depth.json").json()
    assert leaf.pop("timestamp").endswith("Z")
    assert leaf == {
        "path": "/quire/instance/queues/jobs/depth",
        "kind": "snapshot",
        "unit": "messages",
        "value": 0,
    }


@pytest.mark.parametrize(
    "path", ["/quire/nothing", "/quire/instance/queues/none", "/quire/instance/queues/jobs/none", "/none"]
)
def test_a_path_that_no_node_has_is_not_found(page: httpx.Client, path: str) -> None:
    assert error_of(page.get(path)) == (404, "not_found")


def test_a_collection_is_filtered_sorted_and_cut(server: TestServer, page: httpx.Client) -> None:
    with quire.Client(server.url) as client:
        for name in ("a.1", "a.2", "b.1"):
            client.publish(name, {})
        client.flush()
        found = page.get("/quire/instance/topics.json", params={"name": "^a", "sort": "-id", "limit": "1"})
    assert [each["id"] for each in found.json()] == ["a.2"]
    assert found.headers["X-Total-Count"] == "2"
    assert error_of(page.get("/quire/instance/topics.json?sort=none")) == (400, "bad_value")
    assert error_of(page.get("/quire/instance/topics.json?limit=x")) == (400, "bad_value")
    assert error_of(page.get("/quire/instance/topics.json", params={"name": "("})) == (400, "bad_value")


#: Names that are written in another way in each form.
NAMES = ("a/b", "orders.json", '<b>&"', "=1+1", "é %2F")


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_found_by_its_link_and_escaped_in_every_form(
    server: TestServer, page: httpx.Client, name: str
) -> None:
    from quire.admin._nodes import encoded

    with quire.Client(server.url) as client:
        client.publish(name, {})
        client.flush()
        one = page.get(f"/quire/instance/topics/{encoded(name)}.json")
        assert one.json()["recorded"] is True
        html = page.get("/quire/instance/topics").text
        assert f'href="/quire/instance/topics/{encoded(name)}"' in html
        assert "<b>" not in html
        items = ElementTree.fromstring(page.get("/quire/instance/topics.xml").text)
        assert name in [item.get("id") for item in items]
        rows = list(csv.reader(io.StringIO(page.get("/quire/instance/topics.csv").text, newline="")))
    assert rows[0][:2] == ["id", "message_type"]
    assert ("'" + name if name.startswith("=") else name) in [row[0] for row in rows]


def test_every_node_has_the_form_xml(server: TestServer, page: httpx.Client) -> None:
    with quire.Client(server.url) as client:
        # XML does not have this character.
        client.publish("a\ufffeb", {})
        client.flush()
        paths = [path for path in NODE_AT if "{" not in path]
        for path in ("", *paths):
            answer = page.get(f"/quire/{path}".rstrip("/") + ".xml")
            assert answer.status_code == 200, path
            assert ElementTree.fromstring(answer.content).get("path") == f"/quire/{path}".rstrip("/")
        items = ElementTree.fromstring(page.get("/quire/instance/topics.xml").content)
        assert "a\ufffdb" in [item.get("id") for item in items]
        statistics = ElementTree.fromstring(page.get("/quire/instance/statistics.xml").content)
        assert (statistics.findtext("samples") or "").isdigit()


def test_the_configuration_is_shown_without_secrets(tmp_path: Path) -> None:
    headers = {"authorization": "Bearer Mark-7b1d", "source": "quire"}
    step = {"publish": {"topic": "orders", "data": "{}", "headers": headers}}
    action = {"name": "tell", "on": {"admin": {"path": "tell"}}, "do": [step]}
    with started(tmp_path, action=action) as server, page_of(server) as page:
        shown = page.get("/quire/instance/config.json").json()["value"]
        assert "Mark-7b1d" not in page.get("/quire/instance.xml").text
    [step] = json.loads(shown)["action"][0]["do"]
    assert step["publish"]["headers"] == {"authorization": "***", "source": "quire"}


USERS = {
    "olga": {"password": "olga-secret", "groups": ["operators"]},
    "anna": {"password": "anna-secret"},
    "carl": {"password": "carl-secret"},
}
ENTITLEMENT = [
    {"group": "operators", "topic": "^/quire/", "allow": ["monitor", "admin"]},
    {"user": "carl", "topic": "/quire/server", "allow": ["monitor"]},
]


def test_a_user_sees_what_its_rights_allow(tmp_path: Path) -> None:
    with (
        started(tmp_path, users=USERS, entitlement=ENTITLEMENT) as server,
        page_of(server) as page,
        quire.Client(server.url, **server.options("olga")),
    ):
        assert page.get("/healthz").status_code == 200
        refused = page.get("/quire.json")
        assert error_of(refused) == (401, "authentication_failed")
        assert refused.headers["WWW-Authenticate"].startswith("Basic ")
        assert error_of(page.get("/quire.json", auth=("olga", "wrong"))) == (401, "authentication_failed")
        assert error_of(page.get("/quire.json", auth=("anna", "anna-secret"))) == (403, "not_entitled")
        assert page.get("/quire.json", auth=("olga", "olga-secret")).json()["instance"]["clients"]
        carl = ("carl", "carl-secret")
        assert "clients" not in page.get("/quire.json", auth=carl).json()["instance"]
        assert error_of(page.get("/quire/instance/clients.json", auth=carl)) == (403, "not_entitled")


def test_a_user_gets_no_answer_that_was_made_for_other_rights(tmp_path: Path) -> None:
    olga, carl = ("olga", "olga-secret"), ("carl", "carl-secret")
    with (
        # Its figures are new enough for every request.
        started(tmp_path, users=USERS, entitlement=ENTITLEMENT) as server,
        page_of(server) as page,
        quire.Client(server.url, **server.options("olga")),
    ):
        for path in ("/quire.json", "/quire/instance.json", "/quire/instance.xml"):
            for first, second in ((olga, carl), (carl, olga)):
                for user in (first, second, first):
                    shows_clients = "client_name" in page.get(path, auth=user).text
                    assert shows_clients == (user is olga), (path, user)


def test_consumers_of_a_queue_are_clients(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = [*ENTITLEMENT, {"group": "operators", "topic": "jobs", "allow": ["read", "write"]}]
    with (
        started(
            tmp_path, users=USERS, entitlement=entries, queue={"name": "jobs", "message_type": "json"}
        ) as server,
        page_of(server) as page,
        quire.Client(server.url, name="worker-7", **server.options("olga")) as worker,
    ):
        worker.publish("jobs", {"id": 1})
        held = worker.subscribe("jobs").get(PATIENCE)
        path = "/quire/instance/queues/jobs/details.json"
        wait_until(lambda: "worker-7" in page.get(path, auth=("olga", "olga-secret")).text)
        assert error_of(page.get(path, auth=("carl", "carl-secret"))) == (403, "not_entitled")
        for user, code in (("olga", 0), ("carl", 1)):
            monkeypatch.setenv("QUIRE_USER", user)
            monkeypatch.setenv("QUIRE_PASSWORD", f"{user}-secret")
            assert run(["stats", "queues/jobs/details", "--url", server.url, "--format", "json"]) == code
            said = capsys.readouterr()
            assert ("worker-7" in said.out) == (user == "olga")
            assert ('may not monitor "/quire/clients"' in said.err) == (user == "carl")
        held.ack()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("queues/jobs/purge", {"confirm": "jobs", "filtr": "/id = 1"}),
        ("queues/jobs/redrive", {"filtr": "/id = 1"}),
        ("last_values/state/delete", {"filter": "1 = 1", "key": "a"}),
        ("statistics/truncate", {"age": "1d", "filter": ""}),
        ("entitlements/reset", {"user": "anna"}),
    ],
)
def test_a_request_with_an_unknown_member_changes_nothing(
    tmp_path: Path, path: str, body: dict[str, Any]
) -> None:
    with (
        started(tmp_path, queue={"name": "jobs", "message_type": "json"}) as server,
        page_of(server) as page,
        quire.Client(server.url) as client,
    ):
        client.publish("jobs", {"id": 1})
        client.flush(PATIENCE)
        answer = page.post(f"/quire/administrator/{path}", json=body)
        assert error_of(answer) == (400, "bad_value")
        assert "unknown member" in answer.json()["error"]["reason"]
        assert client.queue_stats("jobs")["jobs"]["depth"] == 1


def test_a_user_whose_name_has_a_colon_connects_but_has_no_access_by_basic(tmp_path: Path) -> None:
    users = {"shop:anna": {"password": "anna-secret"}}
    with started(tmp_path, users=users) as server, page_of(server) as page:
        with quire.Client(server.url, **server.options("shop:anna")) as client:
            assert client.queue_stats() == {}
        answer = page.get("/quire.json", auth=("shop:anna", "anna-secret"))
        assert error_of(answer) == (401, "authentication_failed")


def test_serve_prints_the_url_of_administration(tmp_path: Path) -> None:
    file = tmp_path / "quire.toml"
    file.write_text(
        '[[transport]]\naddress = "127.0.0.1:0"\n[admin]\naddress = "127.0.0.1:0"\n', encoding="utf-8"
    )
    command = [sys.executable, "-m", "quire", "serve", str(file), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        try:
            said = json.loads(process.stdout.readline())
            assert httpx.get(f"{said['admin']}/readyz", timeout=PATIENCE).status_code == 200
        finally:
            process.terminate()
    assert process.returncode == 0


def test_administration_beyond_this_machine_requires_users(tmp_path: Path) -> None:
    with (
        pytest.raises(quire.ConfigError, match=r"admin\.address.*requires authentication"),
        started(tmp_path, admin={"address": "0.0.0.0:0"}),
    ):
        pass


def test_without_the_extra_the_table_is_a_mistake_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quire.config._admin.find_spec", lambda name: None)
    with (
        pytest.raises(quire.ConfigError, match=r"admin: it requires .* pip install 'quire-mq\[admin\]'"),
        started(tmp_path),
    ):
        pass


def test_the_page_has_the_metrics_of_the_code() -> None:
    assert metrics_page.PAGE.read_text() == metrics_page.page(), "run `python tests/metrics_page.py`"


def test_a_server_without_the_table_loads_nothing_of_the_extra() -> None:
    heavy = ("starlette", "uvicorn", "prometheus_client", "h11", "anyio")
    program = f"""
import sys, quire, quire.testing
with quire.testing.server() as server, quire.Client(server.url) as client:
    assert server.admin_url is None
    print([name for name in {heavy} if name in sys.modules])
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE)
    assert result.stdout == "[]\n", result.stderr


# /metrics


def scraped(page: httpx.Client, accept: str = "") -> dict[str, Metric]:
    """The families of a scrape, as the official parser reads them."""
    answer = page.get("/metrics", headers={"Accept": accept})
    assert answer.status_code == 200
    if accept:
        assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
        return {family.name: family for family in openmetrics(answer.text)}  # type: ignore[no-untyped-call]
    assert answer.headers["Content-Type"].startswith("text/plain; version=")
    return {family.name: family for family in prometheus(answer.text)}


def value_in(families: dict[str, Metric], name: str, **labels: str) -> float:
    samples = [sample for family in families.values() for sample in family.samples]
    return next(
        sample.value
        for sample in samples
        if sample.name == name and all(sample.labels.get(key) == value for key, value in labels.items())
    )


@pytest.mark.parametrize("accept", ["", "application/openmetrics-text; version=1.0.0"])
def test_a_scrape_is_read_by_the_official_parser(server: TestServer, page: httpx.Client, accept: str) -> None:
    name = 'a"b\\c'
    with quire.Client(server.url) as client:
        client.publish(name, {})
        client.publish("jobs", {})
        client.flush()
    families = scraped(page, accept)
    assert value_in(families, "quire_topic_published_messages_total", topic=name) == 1
    assert value_in(families, "quire_queue_messages", queue="jobs", state="waiting") == 1
    assert value_in(families, "quire_ready") == 1
    assert value_in(families, "quire_build_info", version=quire.__version__) == 1
    assert value_in(families, "quire_journal_writable") == 1
    assert value_in(families, "quire_journal_sync_duration_seconds_count") > 0
    assert value_in(families, "process_resident_memory_bytes") > 0


def test_every_series_of_the_table_is_in_a_scrape_and_no_other(
    server: TestServer, page: httpx.Client
) -> None:
    with quire.Client(server.url) as client:
        client.publish("jobs", {})
        client.flush()
        families = scraped(page)
    typed = {
        family.name + ("_total" if family.type == "counter" else "")
        for family in families.values()
        if not family.name.startswith("process_")
    }
    assert typed == series_names()
    labels = {key for family in families.values() for sample in family.samples for key in sample.labels}
    allowed = "queue topic view destination transport action kind state reason level direction operation outcome version le"
    assert labels <= set(allowed.split())


def test_objects_beyond_the_limit_are_summed(tmp_path: Path) -> None:
    with (
        started(tmp_path, admin={"metrics_max_objects": 2}) as server,
        page_of(server) as page,
        quire.Client(server.url) as client,
    ):
        for name in ("a", "b", "c", "d"):
            client.publish(name, {})
        client.flush()
        families = scraped(page)
        published = families["quire_topic_published_messages"].samples
        assert len(published) == 3
        assert value_in(families, "quire_topic_published_messages_total", topic="_other") == 2


def test_the_sum_of_others_never_falls() -> None:
    node = NODE_AT["instance/topics"]
    found = node.metric("published")
    assert found is not None
    shown = Shown(1)
    sums = []
    for objects in (
        {"a": 1, "b": 2, "c": 3},
        {"a": 1, "b": 5, "c": 3},
        {"a": 1, "b": 5},
        {"a": 1, "b": 6, "c": 1},
    ):
        values = {key: {"published": value} for key, value in objects.items()}
        shown.update(values)
        sums.append(dict(shown.values(found[0], values)))
    assert sums == [
        {"a": 1, "_other": 5},
        {"a": 1, "_other": 8},
        {"a": 1, "_other": 8},
        {"a": 1, "_other": 10},
    ]


def test_a_scrape_needs_the_right_unless_it_is_anonymous(tmp_path: Path) -> None:
    for anonymous, status in ((["/healthz"], 401), (["/metrics"], 200)):
        admin = {"anonymous": anonymous}
        with (
            started(tmp_path, users=USERS, entitlement=ENTITLEMENT, admin=admin) as server,
            page_of(server) as page,
        ):
            assert page.get("/metrics").status_code == status
            if status == 401:
                assert page.get("/metrics", auth=("anna", "anna-secret")).status_code == 403
                assert page.get("/metrics", auth=("carl", "carl-secret")).status_code == 200


# Administrative requests


def test_an_administrator_ends_a_connection_and_its_client_connects_again(
    server: TestServer, page: httpx.Client, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "quire.server")
    with quire.Client(server.url, name="shop") as client:
        client.publish("orders", {})
        client.flush()
        [before] = page.get("/quire/instance/clients.json").json()
        path = f"/quire/administrator/clients/{before['id']}/disconnect"
        assert page.post(path, json={}).json() == {"disconnected": 1}
        client.publish("orders", {})
        client.flush()
        assert error_of(page.post(path, json={})) == (404, "not_found")
        assert error_of(page.post(path, json={"a": 1})) == (400, "bad_value")
        assert error_of(page.post(path, content=b"[", headers=JSON)) == (400, "bad_value")
        found = server.stats()["clients"]
        assert [each["client_name"] for each in found] == ["shop"]
        assert found[0]["connection"] != int(before["id"])
    lines = [line for line in caplog.messages if line.startswith("audit: admin ")]
    assert len(lines) == 4
    assert 'user="anonymous"' in lines[0]
    assert f'resource="{path}" result="accepted" status="200"' in lines[0]
    assert 'result="refused" status="404"' in lines[1]


def test_a_get_lists_the_requests(page: httpx.Client) -> None:
    listed = page.get("/quire/administrator.json").json()
    assert "/quire/administrator/clients/{id}/disconnect" in [each["path"] for each in listed]
    assert [each["path"] for each in page.get("/quire/administrator/shutdown").json()] == [
        "/quire/administrator/shutdown"
    ]
    assert error_of(page.get("/quire/administrator/none")) == (404, "not_found")
    assert error_of(page.post("/quire/administrator/none", json={})) == (404, "not_found")


def test_files_of_the_journal_are_compressed_by_a_request(page: httpx.Client) -> None:
    path = "/quire/administrator/journal/compress"
    assert page.post(path, json={"age": "1h"}).json() == {"files": []}
    assert error_of(page.post(path, json={})) == (400, "bad_value")
    assert error_of(page.post(path, json={"age": "x"})) == (400, "bad_value")


def test_a_link_is_paused_by_a_request(tmp_path: Path) -> None:
    destination = {
        "name": "east",
        "sync_type": "async",
        "addresses": ["127.0.0.1:1"],
        "topic": {"name": "^", "message_type": "json"},
    }
    with started(tmp_path, replication={"destination": [destination]}) as server, page_of(server) as page:
        path = "/quire/administrator/replication/{}/pause"
        assert page.post(path.format("east"), json={}).json() == {"destination": "east", "action": "pause"}
        assert server.replication.stats()["destinations"][0]["state"] == "paused"
        assert error_of(page.post(path.format("west"), json={})) == (404, "not_found")
        refused = page.post("/quire/administrator/replication/east/upgrade", json={})
        assert error_of(refused) == (400, "bad_value")


def test_a_request_needs_its_right(tmp_path: Path) -> None:
    with started(tmp_path, users=USERS, entitlement=ENTITLEMENT) as server, page_of(server) as page:
        path = "/quire/administrator/diagnostics/stacks"
        assert error_of(page.post(path, json={}, auth=("carl", "carl-secret"))) == (403, "not_entitled")
        assert page.post(path, json={}, auth=("olga", "olga-secret")).json()["threads"] > 1


def test_a_blocked_client_cannot_log_on_before_the_time_is_over(
    server: TestServer, page: httpx.Client, caplog: pytest.LogCaptureFixture
) -> None:
    with quire.Client(server.url, name="shop") as client:
        client.publish("orders", {})
        client.flush()
        [before] = page.get("/quire/instance/clients.json").json()
        path = f"/quire/administrator/clients/{before['id']}/disconnect"
        for block in ("soon", "50d", [1]):
            assert error_of(page.post(path, json={"block": block})) == (400, "bad_value")
        assert page.post(path, json={"block": "1h"}).json() == {"disconnected": 1}
        with pytest.raises(quire.QuireError):
            quire.Client(server.url, name="shop", reconnect=quire.Reconnect(give_up_after=0)).close()
        assert any("has blocked the client name for 3600 s" in line for line in caplog.messages)
        with quire.Client(server.url, name="other"):
            pass
        assert client.state != "connected"


def test_a_block_ends_after_its_time(server: TestServer) -> None:
    quick = quire.Reconnect(initial="5ms", maximum="20ms")
    with quire.Client(server.url, name="shop", reconnect=quick) as client:
        client.publish("orders", {})
        client.flush()
        [before] = server.stats()["clients"]
        assert server._running_engine.disconnect(before["connection"], 200)
        client.publish("orders", {})
        client.flush()
        assert server._administration is not None
        # The attempts within the block count, too.
        assert server._administration._figures.take()["instance/disconnects"]["admin"] > 1


def test_a_disabled_transport_accepts_no_connections_until_it_is_enabled(tmp_path: Path) -> None:
    transports = [{"name": "one", "address": "127.0.0.1:0"}, {"name": "two", "address": "127.0.0.1:0"}]
    config = quire.Config(transport=transports, data_directory=tmp_path, admin={"address": "127.0.0.1:0"})
    with quire.Server(config) as server, page_of(server) as page:
        path = "/quire/administrator/transports/two"
        url = server.urls["two"]
        place = ("127.0.0.1", int(url.rpartition(":")[2]))
        once = quire.Reconnect(give_up_after=0)
        with quire.Client(url, name="shop", reconnect=once) as client, quire.Client(server.url) as other:
            client.publish("orders", {})
            client.flush()
            found = page.post(f"{path}/disable", json={}).json()
            assert found == {"transport": "two", "enabled": False, "disconnected": 1}
            wait_until(lambda: client.state != "connected")
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(place, timeout=PATIENCE)
            assert page.get("/quire/instance/transports/two/enabled.json").json()["value"] is False
            # The other transport is not disturbed, and a second request changes nothing.
            other.publish("orders", {})
            other.flush()
            assert page.post(f"{path}/disable", json={}).json()["disconnected"] == 0
        for _number in range(2):
            assert page.post(f"{path}/enable", json={}).json() == {"transport": "two", "enabled": True}
        with quire.Client(url, name="shop") as client:
            client.publish("orders", {})
            client.flush()
        assert server.urls["two"] == url
        assert error_of(page.post("/quire/administrator/transports/x/enable", json={})) == (404, "not_found")


def test_a_transport_whose_address_is_taken_stays_disabled(server: TestServer, page: httpx.Client) -> None:
    path = "/quire/administrator/transports/clients"
    assert page.post(f"{path}/disable", json={}).status_code == 200
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", int(server.url.rpartition(":")[2])))
        taken.listen()
        refused = page.post(f"{path}/enable", json={})
        assert error_of(refused) == (409, "unavailable")
        assert "another program uses the address" in refused.json()["error"]["reason"]
    assert page.post(f"{path}/enable", json={}).status_code == 200


def test_samples_are_removed_by_a_request(server: TestServer, page: httpx.Client) -> None:
    wait_until(lambda: page.get("/quire/instance/statistics/samples.json").json()["value"] > 0)
    path = "/quire/administrator/statistics/truncate"
    assert page.post(path, json={"age": "1h"}).json() == {"samples": 0}
    assert page.post(path, json={"age": 0}).json()["samples"] > 0
    for body in ({}, {"age": "x"}, {"age": None}):
        assert error_of(page.post(path, json=body)) == (400, "bad_value")


def test_users_are_checked_again_after_a_reset(tmp_path: Path) -> None:
    with started(tmp_path, users=USERS, entitlement=ENTITLEMENT) as server, page_of(server) as page:
        olga = ("olga", "olga-secret")
        assert page.get("/quire/instance.json", auth=olga).status_code == 200
        assert server._administration is not None
        assert server._administration._access is not None
        assert server._administration._access._kept
        path = "/quire/administrator/entitlements/reset"
        assert error_of(page.post(path, json={}, auth=("carl", "carl-secret"))) == (403, "not_entitled")
        assert page.post(path, json={}, auth=olga).json() == {"reset": True}
        assert not server._administration._access._kept


def test_the_figures_of_queues_are_written_to_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "quire.server")
    with started(tmp_path, queue={"name": "jobs", "message_type": "json"}) as server, page_of(server) as page:
        assert page.post("/quire/administrator/diagnostics/queues", json={}).json() == {"queues": 1}
    [line] = [line for line in caplog.messages if line.startswith("state of queue ")]
    assert "'jobs'" in line
    assert '"depth": 0' in line


def test_records_are_deleted_by_a_request(tmp_path: Path) -> None:
    prices = {"name": "prices", "key": "/id", "message_type": "json"}
    with started(tmp_path, sow_topic=prices) as server, page_of(server) as page:
        with quire.Client(server.url) as client:
            for id in range(3):
                client.publish("prices", {"id": id})
            client.flush()
        path = "/quire/administrator/last_values/prices/delete"
        assert page.post(path, json={"filter": "/id > 0"}).json() == {"deleted": 2}
        for body in ({}, {"filter": ""}, {"filter": "/id >"}):
            assert page.post(path, json=body).status_code == 400
        other = page.post("/quire/administrator/last_values/none/delete", json={"filter": "1 = 1"})
        assert other.status_code == 400


def test_each_request_of_the_page_is_listed(page: httpx.Client) -> None:
    listed = {each["path"] for each in page.get("/quire/administrator.json").json()}
    text = (Path(__file__).parent.parent / "docs/admin.md").read_text()
    table = text[text.index("## 5. Administrative requests") : text.index("## 6. Health")]
    named = re.findall(r"^\| `([\w/]+)` \|", table, re.MULTILINE)
    expected = {"/quire/administrator/" + re.sub("CONNECTION|NAME|PATH", "{id}", each) for each in named}
    assert listed == expected


def test_a_server_is_stopped_by_a_request_with_its_name(tmp_path: Path) -> None:
    with started(tmp_path, name="shop") as server, page_of(server) as page:
        path = "/quire/administrator/shutdown"
        assert error_of(page.post(path, json={"confirm": "other"})) == (400, "bad_value")
        assert page.post(path, json={"confirm": "shop"}).json() == {"state": "stopping"}
        server.close()
        assert not server.is_running
