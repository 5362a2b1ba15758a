"""The pages of the console in a headless Chromium: by clicks, by keyboard alone, and for everyone.

They need Chromium. The check for accessibility also needs axe-core (`make browser`).
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest
import quire
import quire.testing
from quire.testing import TestServer
from support import browser as browsers
from support.browser import Browser, Page
from support.waiting import wait_until

if browsers.program() is None:
    pytest.skip("no Chromium: install it, or set QUIRE_CHROMIUM", allow_module_level=True)

#: The pages: path, name, the letter after `g`.
PAGES: Final = (
    ("overview", "Overview", "o"),
    ("topics", "Topics", "t"),
    ("queues", "Queues", "q"),
    ("last-values", "Last values", "l"),
    ("views", "Views", "v"),
    ("clients", "Clients", "c"),
    ("replication", "Replication", "r"),
    ("journal", "Journal", "j"),
    ("actions", "Actions", "a"),
    ("logs", "Logs", "L"),
)
QUEUES: Final = [
    {"name": "JOBS", "message_type": "json", "underlying_topic": "orders", "dead_letter_topic": "dead"},
    {"name": "DEAD", "message_type": "json", "underlying_topic": "dead"},
]
#: Another instance, which does not run.
LISBON: Final = {
    "name": "lisbon",
    "addresses": ["127.0.0.1:1"],
    "sync_type": "async",
    "topic": {"name": "orders", "message_type": "json"},
}
AXE: Final = Path(
    os.environ.get("QUIRE_AXE", Path(__file__).parent / "node_modules" / "axe-core" / "axe.min.js")
)
#: Milliseconds within which a long list shows its rows.
LIST_TIME_MAX: Final = 1000


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as chromium:
        yield chromium


@pytest.fixture
def server(tmp_path: Path) -> Iterator[TestServer]:
    """A server with something on each page."""
    with ExitStack() as stack:
        server = stack.enter_context(
            quire.testing.server(
                tmp_path,
                name="plant",
                admin={"address": "127.0.0.1:0", "interval": "1s"},
                queue=QUEUES,
                sow_topic={"name": "aircraft", "message_type": "json", "key": ["/tail"]},
                replication={"destination": LISBON},
                action={
                    "name": "sweep",
                    "on": {"admin": {"path": "sweep", "required": ["AGE"]}},
                    "do": [{"if": "/AGE = '1d'"}, {"publish": {"topic": "swept", "data": "{{AGE:json}}"}}],
                },
            )
        )
        # A new instance waits for Lisbon, which never answers.
        server.replication.admit()
        client = stack.enter_context(quire.Client(server.url, name="gateway"))
        for number in range(5):
            client.publish("orders", {"id": number, "price": number * 100})
        client.publish("aircraft", {"tail": "N1", "height": 1000})
        client.flush()
        yield server


@pytest.fixture
def page(chromium: Browser) -> Iterator[Page]:
    """A tab, whose log has no error at the end, and which asks its server only."""
    with chromium.page() as page:
        yield page
        assert page.errors == []
        origins = {"/".join(each.split("/")[:3]) for each in page.requests if not each.startswith("data:")}
        assert len(origins) == 1, origins


def open_page(page: Page, server: TestServer, path: str) -> None:
    page.goto(f"{server.admin_url}/console/{path}")
    page.wait("document.querySelector('main h1')")


def queue(server: TestServer, name: str, figure: str) -> int:
    with quire.Client(server.url) as client:
        value: int = client.queue_stats(name)[name][figure]
        return value


@pytest.mark.parametrize(("path", "name", "letter"), PAGES)
def test_each_page_is_reached_by_a_click_and_by_keys(
    server: TestServer, page: Page, path: str, name: str, letter: str
) -> None:
    open_page(page, server, "logs" if path == "overview" else "overview")
    page.click(name, "link")
    page.wait(f"document.querySelector('main h1').textContent === {json.dumps(name)}")
    assert page.evaluate("location.pathname") == f"/console/{path}"
    page.evaluate("history.back()")
    page.wait(f"document.querySelector('main h1').textContent !== {json.dumps(name)}")
    page.press("g", letter)
    page.wait(f"document.querySelector('main h1').textContent === {json.dumps(name)}")


def test_the_overview_shows_what_needs_attention(server: TestServer, page: Page) -> None:
    open_page(page, server, "overview")
    page.wait_text("Queue JOBS has 5 messages and no consumer.")
    page.wait_text("Destination lisbon is not connected.")
    page.wait_text("Messages in")
    page.wait("document.querySelectorAll('.chart canvas').length >= 4")


def test_messages_of_a_topic_are_filtered_followed_and_published_by_clicks(
    server: TestServer, page: Page
) -> None:
    open_page(page, server, "topics")
    page.click("orders", "link")
    page.wait_text('{"id":4,"price":400}')
    page.click("Content filter", "field")
    page.type("/price < 100")
    page.click("Apply")
    page.wait("document.querySelectorAll('.messages details').length === 1")
    page.click("Follow")
    page.wait_text("Following.")
    with quire.Client(server.url) as client:
        wait_until(lambda: client.server_info().subscriptions == 1)
    page.click("Data", "field")
    page.type('{"id": 7, "price": 70}')
    page.click("Publish")
    page.wait_text("Published 22 B to orders.")
    page.wait("document.querySelector('.messages summary code').textContent.includes('\"id\": 7')")
    page.click("Stop")
    page.wait_text("Stopped. 1 message")


def test_messages_of_a_topic_are_filtered_followed_and_published_by_keys(
    server: TestServer, page: Page
) -> None:
    open_page(page, server, "topics")
    page.wait_text("orders")
    page.press("/")
    page.type("ord")
    page.wait("document.querySelectorAll('tbody tr[data-index]').length === 1")
    page.tab_to("orders")
    page.press("Enter")
    page.wait_text('{"id":4,"price":400}')
    page.tab_to("Content filter")
    page.type("/price < 100")
    page.press("Enter")
    page.wait("document.querySelectorAll('.messages details').length === 1")
    page.tab_to("Follow")
    page.press("Enter")
    page.wait_text("Following.")
    with quire.Client(server.url) as client:
        wait_until(lambda: client.server_info().subscriptions == 1)
    page.tab_to("Data")
    page.type('{"id": 7, "price": 70}')
    page.tab_to("Publish")
    page.press("Enter")
    page.wait("document.querySelector('.messages summary code')?.textContent.includes('\"id\": 7')")
    page.tab_to("Stop")
    page.press("Enter")
    page.wait_text("Stopped. 1 message")
    page.press("Escape")
    page.wait("location.hash === ''")


def test_a_queue_is_peeked_at_and_purged_by_clicks(server: TestServer, page: Page) -> None:
    open_page(page, server, "queues")
    page.click("JOBS", "link")
    page.click("Peek")
    page.wait("document.querySelectorAll('.messages details').length === 5")
    assert queue(server, "JOBS", "delivered") == 0
    page.click("Purge")
    assert page.evaluate("document.querySelector('dialog button.danger').disabled")
    page.click("Type JOBS to confirm", "field")
    page.type("JOB")
    assert page.evaluate("document.querySelector('dialog button.danger').disabled")
    page.type("S")
    page.click("Purge")
    page.wait_text("5 messages purged.")
    assert queue(server, "JOBS", "depth") == 0


def test_a_queue_is_peeked_at_and_purged_by_keys(server: TestServer, page: Page) -> None:
    open_page(page, server, "queues")
    page.wait_text("JOBS")
    page.evaluate("document.querySelector('.grid').focus()")
    page.press("ArrowDown", "ArrowDown")
    page.wait("document.activeElement.textContent === 'JOBS'")
    page.press("Enter")
    page.tab_to("Peek")
    page.press("Enter")
    page.wait("document.querySelectorAll('.messages details').length === 5")
    page.tab_to("Purge")
    page.press("Enter")
    page.wait("document.activeElement.matches('dialog input')")
    page.press("Escape")
    page.wait("!document.querySelector('dialog[open]')")
    assert queue(server, "JOBS", "depth") == 5
    page.tab_to("Purge")
    page.press("Enter")
    page.tab_to("Type JOBS to confirm")
    page.type("JOBS")
    page.press("Enter")
    page.wait_text("5 messages purged.")


@pytest.mark.parametrize("by", ["clicks", "keys"])
def test_dead_letters_are_put_back(server: TestServer, page: Page, by: str) -> None:
    with quire.Client(server.url) as client:
        client.ack("JOBS", filter="", expire=True)
        client.flush()
    wait_until(lambda: queue(server, "DEAD", "depth") == 5)
    open_page(page, server, "queues#DEAD")
    if by == "clicks":
        page.click("Redrive")
    else:
        page.wait_text("Redrive")
        page.tab_to("Redrive")
        page.press("Enter")
    page.wait_text("5 dead letters published again.")
    assert queue(server, "JOBS", "depth") == 5


@pytest.mark.parametrize("by", ["clicks", "keys"])
def test_records_change_on_the_page(server: TestServer, page: Page, by: str) -> None:
    open_page(page, server, "last-values")
    if by == "clicks":
        page.click("aircraft", "link")
    else:
        page.wait_text("aircraft")
        page.tab_to("aircraft")
        page.press("Enter")
    page.wait_text("1 record shown.")
    with quire.Client(server.url) as client:
        client.publish("aircraft", {"tail": "N1", "height": 2000})
        client.flush()
    page.wait("[...document.querySelectorAll('tr.changed td')].some((cell) => cell.textContent === '2000')")


def press_button(page: Page, by: str, name: str) -> None:
    if by == "clicks":
        page.click(name)
        return
    page.wait(f"document.body.innerText.includes({json.dumps(name)})")
    page.tab_to(name)
    page.press("Enter")


@pytest.mark.parametrize("by", ["clicks", "keys"])
def test_a_client_is_disconnected(server: TestServer, page: Page, by: str) -> None:
    with quire.Client(server.url, name="visitor") as client:
        client.server_info()
        open_page(page, server, "clients?name=visitor")
        page.wait("document.querySelectorAll('tbody tr[data-index]').length === 1")
        if by == "clicks":
            page.click("visitor", "link")
        else:
            page.tab_to("visitor")
            page.press("Enter")
        press_button(page, by, "Disconnect")
        page.wait("document.activeElement.matches('dialog input')")
        page.type("visitor")
        press_button(page, "clicks" if by == "clicks" else "keys", "Disconnect")
        page.wait_text("visitor was disconnected.")


@pytest.mark.parametrize("by", ["clicks", "keys"])
def test_files_of_the_journal_are_compressed(server: TestServer, page: Page, by: str) -> None:
    open_page(page, server, "journal")
    page.wait_text("quire.0000000000.journal")
    press_button(page, by, "Compress")
    page.wait("document.querySelector('dialog[open]')")
    press_button(page, by, "Compress")
    page.wait_text("0 files compressed.")
    press_button(page, by, "Remove")
    page.wait("document.querySelector('dialog[open]')")
    assert page.evaluate("document.querySelector('dialog button.danger').disabled")


@pytest.mark.parametrize("by", ["clicks", "keys"])
def test_a_link_is_paused_and_resumed(server: TestServer, page: Page, by: str) -> None:
    open_page(page, server, "replication")
    page.wait_text("lisbon")
    if by == "clicks":
        page.click("lisbon", "link")
    else:
        page.tab_to("lisbon")
        page.press("Enter")
    press_button(page, by, "Pause")
    page.wait_text("lisbon was paused.")
    press_button(page, by, "Resume")
    page.wait_text("lisbon was resumed.")


@pytest.mark.parametrize("by", ["clicks", "keys"])
def test_lines_of_the_log_are_filtered(server: TestServer, page: Page, by: str) -> None:
    open_page(page, server, "logs")
    logging.getLogger("quire.server").warning("a line to find")
    logging.getLogger("quire.server").warning("another one")
    page.wait_text("another one")
    if by == "clicks":
        page.click("Filter", "field")
    else:
        page.press("/")
    page.type("to find")
    page.wait("!document.body.innerText.includes('another one')")
    page.wait_text("a line to find")
    if by == "clicks":
        page.click("Stop")
    else:
        page.tab_to("Stop")
        page.press("Enter")
    page.wait("location.search.includes('follow=0')")


def test_an_action_is_run_with_the_members_of_its_request(server: TestServer, page: Page) -> None:
    open_page(page, server, "actions#sweep")
    page.click("AGE", "field")
    page.type("1d")
    page.click("Run")
    page.wait_text("sweep: ok.")
    page.click("AGE", "field")
    page.type("ay")
    page.click("Run")
    page.wait_text("sweep: stopped.")


def test_the_state_of_a_page_is_in_its_address(server: TestServer, page: Page) -> None:
    open_page(page, server, "queues?sort=-depth&name=JO#JOBS")
    page.wait("document.querySelector('.detail h2')?.textContent === 'JOBS'")
    page.wait("document.querySelectorAll('tbody tr[data-index]').length === 1")
    assert page.evaluate("document.querySelector('th[aria-sort]').textContent").startswith("Depth")
    page.click("Close", "link")
    page.wait("location.hash === ''")
    assert page.evaluate("location.search") == "?sort=-depth&name=JO"


def test_the_keys_are_listed(server: TestServer, page: Page) -> None:
    open_page(page, server, "overview")
    page.press("?")
    page.wait("document.querySelector('dialog[open] h2')?.textContent === 'Keys'")
    page.press("Escape")
    page.wait("!document.querySelector('dialog[open]')")


def test_a_user_without_rights_sees_no_control_that_needs_them(tmp_path: Path, chromium: Browser) -> None:
    with (
        quire.testing.server(
            tmp_path, admin={"address": "127.0.0.1:0", "read_only": True}, queue=QUEUES
        ) as server,
        chromium.page() as page,
        quire.Client(server.url, name="gateway") as client,
    ):
        client.publish("orders", {"id": 1})
        client.flush()
        for path, wanted, missing in (
            ("queues#JOBS", "Peek", ("Purge", "Redrive")),
            ("topics#orders", "Follow", ("Publish",)),
            ("journal", "24h", ("Archive", "Compress", "Remove")),
        ):
            open_page(page, server, path)
            page.wait(f"document.querySelector('main').innerText.includes({json.dumps(wanted)})")
            assert not any(page.has(each) for each in missing)
        assert page.errors == []


def test_every_control_has_a_visible_name(server: TestServer, page: Page) -> None:
    for path in (
        "overview",
        "topics#orders",
        "queues#JOBS",
        "last-values#aircraft",
        "clients#1",
        "journal",
        "logs",
    ):
        open_page(page, server, path)
        page.wait("!document.body.innerText.includes('Loading')")
        nameless = page.evaluate(
            """[...document.querySelectorAll("button, a[href], input, select, textarea")]
            .filter((each) => each.offsetParent && !(each.labels?.[0]?.querySelector("span") ?? each).innerText.trim())
            .map((each) => each.outerHTML)"""
        )
        assert nameless == [], path
        labelled = page.evaluate(
            """[...document.querySelectorAll("button[aria-label], a[aria-label]")].length"""
        )
        assert labelled == 0, path


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("phone", [False, True], ids=["wide", "phone"])
def test_no_page_breaks_a_rule_of_accessibility(
    server: TestServer, chromium: Browser, theme: str, phone: bool
) -> None:
    if not AXE.is_file():
        pytest.skip("no axe-core: run `make browser`, or set QUIRE_AXE")
    axe = AXE.read_text()
    size = {"width": 390, "height": 844} if phone else {}
    with chromium.page(theme=theme, phone=phone, **size) as page:
        for path in (
            *(path for path, _, _ in PAGES),
            "topics#orders",
            "queues#JOBS",
            "last-values#aircraft",
            "clients#1",
            "replication#lisbon",
        ):
            open_page(page, server, path)
            page.wait("!document.body.innerText.includes('Loading')")
            page.evaluate(f"{axe}; null")
            # The browser refuses styles in the page, and axe only needs them for a picture.
            found = page.evaluate("axe.run(document).then((told) => told.violations)")
            assert not [(each["id"], [node["html"] for node in each["nodes"]]) for each in found], path
            if path == "queues#JOBS":
                page.click("Purge")
                found = page.evaluate("axe.run(document).then((told) => told.violations)")
                assert not [(each["id"], [node["html"] for node in each["nodes"]]) for each in found]


class _Large:
    """The figures of a server with 10,000 clients, and 1,000 topics and queues."""

    def __init__(self, real: Callable[[], dict[str, Any]]) -> None:
        tree = real()
        self._tree = dict(tree)
        client = next(iter(tree["instance/clients"].values()))
        topic = next(iter(tree["instance/topics"].values()))
        queue = next(iter(tree["instance/queues"].values()))
        self._tree["instance/clients"] = {
            str(number): client | {"client_name": f"client-{number:05}"} for number in range(10_000)
        }
        self._tree["instance/topics"] = {f"topic/{number:04}": topic for number in range(1000)}
        self._tree["instance/queues"] = {
            f"QUEUE_{number:04}": queue | {"depth": number} for number in range(1000)
        }

    def __call__(self) -> dict[str, Any]:
        return self._tree


@pytest.mark.parametrize(
    ("path", "count", "first", "last"),
    [
        ("clients", "10,000 clients", "client-00000", "client-09999"),
        ("topics", "1,000 topics", "topic/0000", "topic/0999"),
        ("queues?sort=-depth", "1,000 queues", "QUEUE_0999", "QUEUE_0000"),
    ],
)
def test_a_long_list_is_shown_in_less_than_a_second(
    server: TestServer, page: Page, path: str, count: str, first: str, last: str
) -> None:
    administration = server._administration
    assert administration is not None
    large = _Large(administration._figures.current)
    administration._figures.current = administration._figures.known = large  # type: ignore[method-assign]
    open_page(page, server, "overview")
    page.wait_text("Deepest queue")
    name = path.split("?")[0]
    begun = time.monotonic()
    page.evaluate(f"document.querySelector('nav a[href=\"/console/{name}\"]').click()")
    page.wait_text(count)
    shown = (time.monotonic() - begun) * 1000
    open_page(page, server, path)
    page.wait_text(first)
    assert page.evaluate("document.querySelectorAll('tbody tr').length") < 120
    page.evaluate("document.querySelector('.grid').focus()")
    begun = time.monotonic()
    page.press("End")
    page.wait(f"document.activeElement.textContent === {json.dumps(last)}")
    moved = (time.monotonic() - begun) * 1000
    assert shown < LIST_TIME_MAX
    assert moved < LIST_TIME_MAX
