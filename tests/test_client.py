"""The blocking client: the behavior for users, not the form of frames. The tests run on all three
kinds of server, or over a real socket against a scripted server that shows its state or behaves
badly."""

from __future__ import annotations

import inspect
import logging
import math
import pickle
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import quire
from hypothesis import given, settings
from hypothesis import strategies as st
from quire._errors import CLASSES, from_code
from quire._message import datetime_from_ns, to_bytes
from quire._units import number_text, seconds, size
from quire.client._links import parse_url
from support.scripted_server import NAME_IN_USE, TIMESTAMP_NS, ScriptedServer
from support.waiting import PATIENCE, wait_until
from support.ways_in import WAYS_IN, configured, everywhere, url_of

FAST = quire.Reconnect(initial=0.01, maximum=0.05, jitter=0.0)


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer() as server:
        yield server


@pytest.fixture
def client(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[quire.Client]:
    with url_of(request, tmp_path) as url, quire.Client(url, name="client", reconnect=FAST) as client:
        yield client


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    everywhere(metafunc)


def take(subscription: quire.Subscription, count: int) -> list[bytes]:
    return [subscription.get(PATIENCE).data for _ in range(count)]


def test_publishes_are_numbered_and_a_flush_returns_when_they_are_persisted(
    server: ScriptedServer, client: quire.Client
) -> None:
    assert [client.publish("orders", {"n": n}) for n in range(3)] == [1, 2, 3]
    client.flush(PATIENCE)
    assert client.persisted == 3
    assert [record.data for record in server.log] == [b'{"n":0}', b'{"n":1}', b'{"n":2}']


def test_a_flush_that_takes_too_long_is_a_timeout_and_may_be_repeated(
    server: ScriptedServer, client: quire.Client
) -> None:
    server.stop()
    client.publish("orders", b"kept")
    with pytest.raises(TimeoutError, match="1 publish is not persisted"):
        client.flush("20ms")
    server.start()
    client.flush(PATIENCE)
    assert [record.data for record in server.log] == [b"kept"]


def test_a_given_sequence_is_sent_as_it_is_and_none_sends_without(
    server: ScriptedServer, client: quire.Client
) -> None:
    assert client.publish("orders", b"a", sequence=7) == 7
    assert client.publish("orders", b"duplicate", sequence=7) == 7
    assert client.publish("orders", b"b") == 8
    assert client.publish("orders", b"c", sequence=None) is None
    client.flush(PATIENCE)
    assert [(record.sequence, record.data) for record in server.log] == [(7, b"a"), (8, b"b"), (0, b"c")]
    with pytest.raises(quire.ConfigError, match="sequence"):
        client.publish("orders", b"", sequence=0)


def test_a_replay_gives_what_was_published_and_goes_on_live(client: quire.Client) -> None:
    client.publish("orders", "ä€😀", correlation_id="c-1")
    client.publish("other", b"no")
    client.flush(PATIENCE)
    subscription = client.subscribe("orders", bookmark=quire.EPOCH, sub_id="mine")
    message = subscription.get(PATIENCE)
    assert (message.topic, message.data.decode(), message.correlation_id) == ("orders", "ä€😀", "c-1")
    assert (message.sequence, message.sub_id, message.command) == (1, "mine", "publish")
    assert message.bookmark == f"{message.publisher}|1|"
    age = datetime.now(UTC) - message.timestamp
    assert timedelta(seconds=-PATIENCE) < age < timedelta(seconds=PATIENCE)
    assert message.timestamp == datetime_from_ns(message.timestamp_ns)
    assert bytes(memoryview(message)) == message.data
    assert memoryview(message).readonly
    assert subscription.completed.wait(PATIENCE)
    assert subscription.completed.is_set()
    client.publish("orders", {"live": True})
    assert subscription.get(PATIENCE).json() == {"live": True}


def test_the_time_of_a_message_is_the_servers(server: ScriptedServer, client: quire.Client) -> None:
    client.publish("orders", b"x")
    message = client.subscribe("orders", bookmark=quire.EPOCH).get(PATIENCE)
    assert message.timestamp_ns == TIMESTAMP_NS
    assert message.timestamp == datetime(2015, 1, 2, 12, 35, 0, 123456, tzinfo=UTC)


def test_a_view_of_the_data_outlives_its_message(client: quire.Client) -> None:
    subscription = client.subscribe("orders")
    client.publish("orders", b"x" * 1000)
    message = subscription.get(PATIENCE)
    view = memoryview(message)
    del message
    assert bytes(view) == b"x" * 1000


def test_a_pattern_and_a_filter_select(client: quire.Client) -> None:
    by_pattern = client.subscribe("^orders-[0-9]$")
    by_filter = client.subscribe("orders-1", filter="/s = 'IBM'")
    for topic, data in [
        ("orders-1", "IBM"),
        ("orders-x", "IBM"),
        ("orders-2", "MSFT"),
        ("orders-1", "MSFT"),
    ]:
        client.publish(topic, {"s": data})
    assert take(by_pattern, 3) == [b'{"s":"IBM"}', b'{"s":"MSFT"}', b'{"s":"MSFT"}']
    assert take(by_filter, 1) == [b'{"s":"IBM"}']


def test_a_replaced_filter_keeps_the_place_and_a_refused_one_changes_nothing(client: quire.Client) -> None:
    subscription = client.subscribe("orders", filter="/a > 0", bookmark=quire.EPOCH)
    client.publish("orders", b'{"a":1}')
    assert take(subscription, 1) == [b'{"a":1}']
    with pytest.raises(quire.BadFilterError) as raised:
        subscription.replace(filter="/qty >")
    assert raised.value.column == 7
    assert subscription.filter == "/a > 0"
    subscription.replace(filter="/b > 0")
    client.publish("orders", b'{"a":2}')
    client.publish("orders", b'{"b":1}')
    assert take(subscription, 1) == [b'{"b":1}']


def test_a_paused_subscription_delivers_when_it_is_resumed(client: quire.Client) -> None:
    subscription = client.subscribe("orders", bookmark=quire.EPOCH, paused=True)
    client.publish("orders", b"1")
    client.flush(PATIENCE)
    with pytest.raises(TimeoutError):
        subscription.get(0)
    subscription.resume()
    assert take(subscription, 1) == [b"1"]
    client.pause()
    client.publish("orders", b"2")
    client.flush(PATIENCE)
    with pytest.raises(TimeoutError):
        subscription.get(0)
    client.resume([subscription])
    assert take(subscription, 1) == [b"2"]


def test_a_pause_of_all_leaves_out_what_cannot_be_paused(client: quire.Client) -> None:
    replay = client.subscribe("orders", bookmark=quire.EPOCH)
    live = client.subscribe("orders", bookmark=quire.NOW, live=True)
    client.pause()
    client.publish("orders", b"1")
    client.flush(PATIENCE)
    assert take(live, 1) == [b"1"]
    with pytest.raises(TimeoutError):
        replay.get(0)
    live.replace(filter="/a = 1")
    client.resume()
    assert take(replay, 1) == [b"1"]


def test_what_the_server_refuses_is_raised_and_leaves_no_subscription(client: quire.Client) -> None:
    with pytest.raises(quire.BadBookmarkError):
        client.subscribe("orders", bookmark="yesterday", sub_id="x")
    with pytest.raises(quire.BadFilterError, match="column 7"):
        client.subscribe("orders", filter="/qty >", sub_id="x")
    assert client.health().subscriptions == ()
    with (
        client.subscribe("orders", sub_id="x"),
        pytest.raises(quire.ConfigError, match="already has"),
    ):
        client.subscribe("orders", sub_id="x")


def test_a_topic_that_is_not_recorded_has_no_replay(server: ScriptedServer, client: quire.Client) -> None:
    with pytest.raises(quire.NotJournaledError, match=r"transaction_log\.topic"):
        client.subscribe("unrecorded", bookmark=quire.EPOCH)


def test_a_refused_publish_is_raised_by_the_flush_once(server: ScriptedServer, client: quire.Client) -> None:
    server.refused = b"bad"
    client.publish("orders", b"good")
    client.publish("orders", b"bad")
    with pytest.raises(quire.NotEntitledError, match="refused by the test"):
        client.flush(PATIENCE)
    client.flush(PATIENCE)


def test_a_message_above_the_limit_of_the_server_is_refused_and_one_at_the_limit_arrives(
    client: quire.Client,
) -> None:
    subscription = client.subscribe("orders")
    with pytest.raises(quire.MessageTooLargeError):
        client.publish("orders", bytes((16 << 20) + 1))
    client.publish("orders", bytes(16 << 20))
    assert len(subscription.get(PATIENCE)) == 16 << 20


def test_publish_waits_while_the_store_is_full_and_loses_nothing(server: ScriptedServer) -> None:
    with quire.Client(
        server.url, name="full", reconnect=FAST, publish_store=quire.PublishStore(size_max="4KB")
    ) as client:
        for n in range(100):
            client.publish("orders", b"%03d" % n + b"x" * 500)
        client.flush(PATIENCE)
    assert [record.data[:3] for record in server.log] == [b"%03d" % n for n in range(100)]


def test_a_killed_server_that_comes_back_has_everything_once_and_in_order(
    server: ScriptedServer, client: quire.Client
) -> None:
    subscription = client.subscribe("orders", bookmark=quire.EPOCH)
    ordinary = client.subscribe("orders")
    for n in range(50):
        client.publish("orders", b"%d" % n)
    first = take(subscription, 50)
    server.stop()
    for n in range(50, 100):
        client.publish("orders", b"%d" % n)
    server.start()
    client.flush(PATIENCE)
    assert first + take(subscription, 50) == [b"%d" % n for n in range(100)]
    assert [record.sequence for record in server.log] == list(range(1, 101))
    assert server.entered[-2][0] == server.entered[-1][0] == "orders"
    assert server.entered[-2][1] == f"{server.log[0].publisher}|50|"
    assert client.state == "connected"
    assert take(ordinary, 50) == first


def test_a_client_that_lost_its_name_stays_away_and_says_so(
    server: ScriptedServer, client: quire.Client
) -> None:
    subscription = client.subscribe("orders")
    with quire.Client(server.url, name="client") as other:
        with pytest.raises(quire.NameInUseError) as raised:
            subscription.get(PATIENCE)
        assert raised.value.code == "name_in_use"
        with pytest.raises(quire.NameInUseError):
            client.publish("orders", b"")
        with pytest.raises(quire.NameInUseError):
            client.flush()
        assert (client.state, other.state) == ("closed", "connected")


def test_handlers_run_in_the_order_of_arrival_on_one_thread_and_outlive_their_errors(
    client: quire.Client, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[tuple[bytes, int]] = []
    done = threading.Event()

    def handler(message: quire.Message) -> None:
        seen.append((message.data, threading.get_ident()))
        if message.data == b"3":
            raise ValueError("on purpose")
        if message.data == b"9":
            done.set()

    odd = client.subscribe("odd", on_message=handler, bookmark=quire.EPOCH)
    even = client.subscribe("even", on_message=handler, bookmark=quire.EPOCH)
    with caplog.at_level(logging.CRITICAL, "quire.client"):
        for n in range(10):
            client.publish("odd" if n % 2 else "even", b"%d" % n)
            client.flush(PATIENCE)
        assert done.wait(PATIENCE)
        report = client.drain(PATIENCE)
    # The one whose handler failed is left.
    assert report == quire.DrainReport(unpersisted=0, unprocessed=1)
    assert [data for data, _ in seen] == [b"%d" % n for n in range(10)]
    assert len({thread for _, thread in seen}) == 1
    # The failed message is not processed, and no later one counts.
    assert odd.most_recent is not None
    assert odd.most_recent.endswith("|2|")
    assert even.most_recent is not None
    assert even.most_recent.endswith("|9|")
    with pytest.raises(quire.ConfigError, match="on_message"):
        next(iter(odd))


def test_most_recent_moves_when_the_next_message_is_asked_for_or_one_is_discarded(
    client: quire.Client,
) -> None:
    for n in range(5):
        client.publish("orders", b"%d" % n)
    client.flush(PATIENCE)
    subscription = client.subscribe("orders", bookmark=quire.EPOCH, sub_id="mine")
    assert subscription.most_recent == quire.EPOCH
    first = subscription.get(PATIENCE)
    assert subscription.most_recent == quire.EPOCH
    second = subscription.get(PATIENCE)
    assert subscription.most_recent == first.bookmark
    second.discard()
    assert subscription.most_recent == second.bookmark
    third, fourth = next(subscription.batches(2))
    fourth.discard()
    assert subscription.most_recent == second.bookmark
    third.discard()
    third.discard()
    assert subscription.most_recent == fourth.bookmark
    subscription.unsubscribe()
    again = client.subscribe("orders", bookmark=quire.MOST_RECENT, sub_id="mine")
    assert take(again, 1) == [b"4"]


def test_most_recent_without_a_bookmark_store_warns_that_its_place_ends_with_the_process(
    client: quire.Client, caplog: pytest.LogCaptureFixture
) -> None:
    client.subscribe("orders", bookmark=quire.MOST_RECENT, sub_id="report").unsubscribe()
    assert "MOST_RECENT of 'report' begins at the oldest message in each new process" in caplog.text
    caplog.clear()
    client.subscribe("orders", bookmark=quire.MOST_RECENT, sub_id="report")
    assert "MOST_RECENT" not in caplog.text


def test_batches_are_bounded_in_order_and_empty_after_the_timeout(client: quire.Client) -> None:
    for n in range(100):
        client.publish("orders", b"%d" % n)
    client.flush(PATIENCE)
    subscription = client.subscribe("orders", bookmark=quire.EPOCH)
    wait_until(lambda: subscription._core.outstanding_count == 100)
    sizes, data = [], []
    for batch in subscription.batches(30, timeout=0):
        if not batch:
            break
        sizes.append(len(batch))
        data += [message.data for message in batch]
    assert data == [b"%d" % n for n in range(100)]
    assert max(sizes) == 30
    with pytest.raises(quire.ConfigError):
        subscription.batches(0)


@pytest.mark.parametrize("end", ["close", "unsubscribe"])
def test_an_iteration_ends_when_the_subscription_or_the_client_is_closed(
    client: quire.Client, end: str
) -> None:
    subscription = client.subscribe("orders")
    seen: list[bytes] = []
    got_one = threading.Event()

    def iterate() -> None:
        for message in subscription:
            seen.append(message.data)
            got_one.set()
        seen.append(b"end")

    thread = threading.Thread(target=iterate)
    thread.start()
    client.publish("orders", b"1")
    assert got_one.wait(PATIENCE)
    (client if end == "close" else subscription).__exit__(None, None, None)
    thread.join(PATIENCE)
    assert seen == [b"1", b"end"]
    with pytest.raises(quire.DisconnectedError, match="closed"):
        subscription.get(0)


def test_a_closed_client_says_so_and_closing_again_is_harmless(client: quire.Client) -> None:
    client.publish("orders", b"1")
    client.close()
    client.close()
    assert client.state == "closed"
    with pytest.raises(quire.DisconnectedError, match="closed"):
        client.publish("orders", b"2")


def test_close_waits_for_publishes_and_tells_what_it_could_not(server: ScriptedServer) -> None:
    with quire.Client(server.url, reconnect=FAST) as client:
        for _ in range(1000):
            client.publish("orders", b"x")
    assert len(server.log) == 1000
    unlucky = quire.Client(server.url, reconnect=FAST)
    server.stop()
    unlucky.publish("orders", b"lost")
    assert unlucky.drain(0.05).unpersisted == 1
    server.start()


def test_a_server_that_is_not_there_is_named(server: ScriptedServer) -> None:
    server.stop()
    with pytest.raises(quire.DisconnectedError, match=server.url) as raised:
        quire.Client(server.url, connect_timeout="1s")
    assert isinstance(raised.value, ConnectionError)
    server.start()


def test_the_next_url_is_tried_when_the_first_has_no_server(server: ScriptedServer) -> None:
    with ScriptedServer() as dead:
        dead.stop()
        with quire.Client([dead.url, server.url], reconnect=FAST) as client:
            client.publish("orders", b"1")
            client.flush(PATIENCE)
        dead.start()
    assert len(server.log) == 1


def test_publishing_from_many_threads_loses_nothing(server: ScriptedServer, client: quire.Client) -> None:
    def publish(thread: int) -> None:
        for n in range(200):
            client.publish("orders", b"%d %d" % (thread, n))

    threads = [threading.Thread(target=publish, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    client.flush(PATIENCE)
    by_thread = [[r.data for r in server.log if r.data.startswith(b"%d " % n)] for n in range(4)]
    assert by_thread == [[b"%d %d" % (thread, n) for n in range(200)] for thread in range(4)]
    assert [record.sequence for record in server.log] == list(range(1, 801))


@pytest.mark.parametrize("topic", ["", "a\nb", "a\x00", "x" * 1025])
def test_a_text_that_is_no_topic_is_refused_at_the_call(client: quire.Client, topic: str) -> None:
    with client.subscribe("^") as everything:
        calls: list[Callable[[], object]] = [
            lambda: client.publish(topic, b"1"),
            lambda: client.publish(topic, b"1", sequence=None),
            lambda: client.publish_receipt(topic, b"1"),
            lambda: client.publish_many(topic, [b"1"]),
            lambda: client.publish_many("orders", [quire.Publish(b"1", topic=topic)]),
            lambda: client.delta_publish(topic, {"n": 1}),
            lambda: client.subscribe(topic),
            lambda: client.sow(topic),
            lambda: client.sow_and_subscribe(topic),
            lambda: client.sow_delete(topic, keys=["1"]),
        ]
        for call in calls:
            with pytest.raises(quire.BadTopicError):
                call()
        client.publish("orders", b"2")
        client.flush(PATIENCE)
        assert bytes(everything.get(timeout=PATIENCE).data) == b"2"


async def test_a_text_that_is_no_topic_is_refused_at_the_call_of_an_asyncio_client() -> None:
    async with quire.AsyncClient("memory:topics") as client:
        for topic in ("", "a\nb", "a\x00", "x" * 1025):
            with pytest.raises(quire.BadTopicError):
                await client.publish(topic, b"1")
        await client.flush(PATIENCE)


#: Without another thread of Python: a fork may not return in the child while such a thread begins
#: or ends.
_FORKS = """
import os, sys
import quire

with quire.Client(sys.argv[1], name="client") as client:
    client.publish("orders", b"1")
    client.flush(60)
    child = os.fork()
    if child == 0:
        try:
            client.publish("orders", b"")
        except RuntimeError as error:
            os.write(1, str(error).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    client.publish("orders", b"the parent goes on")
    client.flush(60)
"""


@pytest.mark.parametrize("way_in", WAYS_IN)
def test_a_client_that_came_through_a_fork_explains_itself(way_in: str, tmp_path: Path) -> None:
    with configured(way_in, tmp_path) as options:
        command = [sys.executable, "-c", _FORKS, options["url"]]
        done = subprocess.run(command, capture_output=True, timeout=PATIENCE, check=True)
    assert b"fork" in done.stdout


class Interrupted(Exception):
    """Raised by the signal handler, as `KeyboardInterrupt` is by that of Ctrl-C."""


@pytest.mark.parametrize("call", ["get", "iterate", "flush", "completed", "subscribe", "full store"])
def test_a_signal_ends_every_wait(server: ScriptedServer, call: str) -> None:
    def interrupt(*_: object) -> None:
        raise Interrupted

    client = quire.Client(server.url, reconnect=FAST, publish_store=quire.PublishStore(size_max=100))
    subscription = client.subscribe("orders", bookmark=quire.EPOCH, paused=True)
    ordinary = client.subscribe("orders")
    server.stop()
    waits: dict[str, Callable[[], object]] = {
        "get": subscription.get,
        "iterate": lambda: list(subscription),
        "flush": client.flush,
        "completed": ordinary.completed.wait,
        "subscribe": lambda: client.subscribe("others"),
        "full store": lambda: client.publish("orders", bytes(1000)) and client.publish("orders", b""),
    }
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        with pytest.raises(Interrupted):
            waits[call]()
    finally:
        signal.signal(signal.SIGALRM, before)
        client.close(0)
        server.start()


def test_every_code_has_a_class_and_errors_survive_pickling() -> None:
    for code, cls in CLASSES.items():
        error = from_code(code, "reason", 3)
        assert type(error) is cls
        copy = pickle.loads(pickle.dumps(error))
        assert (type(copy), copy.code, str(copy)) == (cls, code, str(error))
    assert NAME_IN_USE == 6
    assert isinstance(from_code("of a later version", "reason"), quire.InternalError)


@pytest.mark.parametrize(
    ("url", "expected"),
    [("quire://h:1", ("h", 1)), ("quire://h", ("h", 9007)), ("quire://[::1]:5/", ("::1", 5))],
)
def test_urls_are_read(url: str, expected: tuple[str, int]) -> None:
    assert parse_url(url) == expected


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://h", "does not begin with"),
        ("quire://", "names no host"),
        (
            "h:1",
            "does not begin with quire://, quires://, file:, memory: or local:; did you mean quire://h:1\\?$",
        ),
        ("127.0.0.1:9007", "did you mean quire://127.0.0.1:9007\\?$"),
        ("trades/a", "does not begin with quire://, quires://, file:, memory: or local:$"),
        ("quire://h:x", "the port must be a number from 1 to 65535$"),
        ("quire://h:70000", "the port must be a number from 1 to 65535$"),
        ("quire://h:0", "the port must be a number from 1 to 65535$"),
        (
            "file://fileserver/share",
            "names the host 'fileserver'; a directory of this machine is file:fileserver/share$",
        ),
        ("file://", "names no directory"),
        ("quire://@h", "has more than a user, a host and a port"),
        ("quires://h/p", "has more than a user, a host and a port"),
        ("quire://h/p", "has more than a user, a host and a port"),
        ("", "does not begin with"),
    ],
)
def test_bad_urls_are_explained(url: str, reason: str) -> None:
    with pytest.raises(quire.ConfigError, match=f"^url: {url!r}.*{reason}"):
        parse_url(url)


@pytest.mark.parametrize(
    "url",
    [
        "quire://user:geheim@h:9007",
        "quire://user:geheim@h:x",
        "quire://user:geheim@",
        "quire://:geheim@h",
        "quire://user:ge@geheim@h",
        "quires://user:geheim@h",
        "http://user:geheim@h:80",
        "user:geheim@h:9007",
        "quire://user:geheim@[h",
        "quire://user:geheim@h\u2100",
        "quire://user:/geheim@h:9007",
        "quire://user:?geheim@h:9007",
        "quire://user:#geheim@h:9007",
        "quire://user:x@geheim/y@h:9007",
        "quire://user:geheim:x@h:9007",
        "quire:user:geheim@h:9007",
        "QUIRE://user:geheim@h",
        "file://user:geheim@h/directory",
    ],
)
def test_a_password_in_a_url_is_not_repeated(url: str) -> None:
    for make in (quire.Client, quire.AsyncClient):
        with pytest.raises(quire.ConfigError) as refused:
            make(url)
        assert "geheim" not in "".join(traceback.format_exception(refused.value))


def test_the_uri_of_a_directory_leads_to_it(tmp_path: Path) -> None:
    directory = tmp_path / "my trades é 100%"
    uri = directory.as_uri()
    for url in (uri, uri.replace("file://", "file://localhost"), f"file:{directory}"):
        with quire.Client(url, name="c") as client:
            client.publish("orders", b"1")
            client.flush(PATIENCE)
    assert [path.name for path in tmp_path.iterdir()] == [directory.name]
    with quire.Journal(directory) as journal:
        assert journal.appended == 3


def test_the_signatures_show_every_argument() -> None:
    """The arguments are those of dataclasses. Programs depend on the names."""
    names: dict[Callable[..., object], str] = {
        quire.Client: "url config name user password token publish_store bookmark_store heartbeat connect wait"
        " connect_timeout command_timeout auto_ack ack_batch_size ack_timeout reconnect"
        " server_chooser receive_size_max encoder ssl",
        quire.Client.subscribe: "self topic filter bookmark until bookmark_not_found max_backlog live fully_durable paused completed"
        " deletions rate rate_max_gap conflation conflation_key select on_message sub_id timeout",
        quire.Subscription.replace: "self filter topic bookmark until live fully_durable max_backlog rate rate_max_gap"
        " conflation conflation_key select keys order_by top_n skip_n timeout",
    }
    for call, expected in names.items():
        assert " ".join(inspect.signature(call).parameters) == expected
    with pytest.raises(TypeError, match="nmae"):
        quire.Client("memory:", nmae="loader")  # type: ignore[call-arg]


def test_a_blocking_client_refuses_a_coroutine_function(url: str) -> None:
    async def handle(message: object) -> None: ...

    with quire.Client(url) as client:
        for call in (
            lambda: client.subscribe("orders", on_message=handle),  # type: ignore[arg-type]
            lambda: client.process("orders", handle),  # type: ignore[arg-type]
            lambda: client.add_state_listener(handle),
        ):
            with pytest.raises(TypeError, match=r"coroutine function.*quire\.AsyncClient"):
                call()
        assert client.health().subscriptions == ()


def test_a_handler_of_a_blocking_client_that_returns_an_awaitable_has_failed(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def late() -> None: ...

    with quire.Client(url) as client, caplog.at_level(logging.ERROR, "quire.client"):
        client.publish("orders", b"1")
        client.flush(PATIENCE)
        subscription = client.subscribe("orders", bookmark=quire.EPOCH, on_message=lambda _: late())  # type: ignore[arg-type]
        assert client.drain(PATIENCE).unprocessed == 1
        assert subscription.most_recent == quire.EPOCH
    assert "which a blocking client cannot await" in caplog.text


@pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt, GeneratorExit])
def test_handlers_go_on_after_one_that_raised_anything(
    url: str, error: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[tuple[str, bytes]] = []
    done = threading.Event()

    def handle(message: quire.Message) -> None:
        seen.append((message.topic, message.data))
        if message.data == b"0":
            raise error("on purpose")
        if message.topic == "later":
            done.set()

    with quire.Client(url) as client, caplog.at_level(logging.ERROR, "quire.client"):
        client.subscribe("orders", on_message=handle)
        for n in range(2):
            client.publish("orders", b"%d" % n)
        client.flush(PATIENCE)
        client.subscribe("later", on_message=handle)
        client.publish("later", b"2")
        assert done.wait(PATIENCE)
        assert client.health().state == "connected"
    assert seen == [("orders", b"0"), ("orders", b"1"), ("later", b"2")]
    assert "on purpose" in caplog.text


#: Options of a client, and how the error begins.
WRONG_OPTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "url None": ({"url": None}, "url: expected text such as .*, got `NoneType`"),
    "url Path": ({"url": Path("memory:")}, "url: expected text such as .*, got `PosixPath`"),
    "url bytes": ({"url": b"memory:"}, "url: expected text such as .*, got `bytes`"),
    "url list": ({"url": ["memory:", 5]}, "url: expected text such as .*, got `int`"),
    "name": ({"name": 5}, "name: expected text, got `int`"),
    "password": ({"password": b"secret"}, "password: expected text, got `bytes`"),
    "config": ({"config": "orders.toml"}, r"config: expected a quire.Config, got `str`; quire.Config.load"),
    "auto_ack": ({"auto_ack": "yes"}, "auto_ack: expected True or False, got `str`"),
    "ack_batch_size": ({"ack_batch_size": "5"}, "ack_batch_size: expected a whole number, got `str`"),
    "encoder": ({"encoder": 5}, "encoder: expected a function, got `int`"),
}


@pytest.mark.parametrize("mistake", WRONG_OPTIONS)
@pytest.mark.parametrize("kind", [quire.Client, quire.AsyncClient])
def test_an_option_of_a_wrong_type_is_named(kind: Callable[..., object], mistake: str) -> None:
    options, message = WRONG_OPTIONS[mistake]
    with pytest.raises(quire.ConfigError, match=f"^{message}") as refused:
        kind(**{"url": "memory:", **options})
    assert refused.value.key == next(iter(options))


#: Calls, and their errors.
WRONG_ARGUMENTS: dict[str, tuple[Callable[[Any], object], str]] = {
    "publish": (lambda client: client.publish(None, b""), "topic: expected text, got `NoneType`"),
    "sequence": (lambda client: client.publish("t", b"", sequence="1"), "sequence: expected a whole number"),
    "subscribe": (lambda client: client.subscribe(None), "topic: expected text, got `NoneType`"),
    "live": (lambda client: client.subscribe("t", live="yes"), "live: expected True or False, got `str`"),
    "max_backlog": (
        lambda client: client.subscribe("t", max_backlog="5"),
        "max_backlog: expected a whole number, got `str`",
    ),
    "on_message": (
        lambda client: client.subscribe("t", on_message=3),
        "on_message: expected a function, got `int`",
    ),
    "sub_id": (lambda client: client.subscribe("t", sub_id=3), "sub_id: expected text, got `int`"),
    "process": (lambda client: client.process("t", None), "handler: expected a function, got `NoneType`"),
    "listener": (lambda client: client.add_state_listener(3), "listener: expected a function, got `int`"),
}


@pytest.mark.parametrize("mistake", WRONG_ARGUMENTS)
def test_an_argument_of_a_wrong_type_is_named(client: quire.Client, mistake: str) -> None:
    call, message = WRONG_ARGUMENTS[mistake]
    with pytest.raises(quire.ConfigError, match=f"^{message}"):
        call(client)
    assert client.health().subscriptions == ()


@pytest.mark.parametrize("reconnect", [False, 5, "5s"])
def test_what_does_not_say_how_to_reconnect_is_refused(reconnect: Any) -> None:
    with pytest.raises(quire.ConfigError, match="reconnect"):
        quire.Client("quire://127.0.0.1:1", reconnect=reconnect)


@pytest.mark.parametrize("name", ["", "a\nb", "x" * 256])
def test_bad_names_are_explained(name: str) -> None:
    with pytest.raises(quire.ConfigError, match="name"):
        quire.Client("quire://127.0.0.1:1", name=name)


def test_numbers_for_people_have_six_digits() -> None:
    numbers = (0.0, 5.0, 1e-9, 0.0713977164, 101.34364244, -101.5, 999_999.7, 1_234_567.89, 1e15, math.inf)
    texts = ["0", "5", "1e-09", "0.071398", "101.344", "-101.5", "1,000,000", "1,234,568", "1e+15", "inf"]
    assert [number_text(number) for number in numbers] == texts


def test_durations_and_sizes_take_units() -> None:
    texts = ["30us", "100ms", "10s", "5m", "4h", "7d"]
    assert [seconds(text, "k") for text in texts] == pytest.approx([3e-5, 0.1, 10, 300, 14400, 604800])
    assert (seconds(timedelta(minutes=1), "k"), seconds("0", "k")) == (60, 0)
    assert [size("500KB", "k"), size("64MB", "k"), size("12", "k"), size(7, "k")] == [512000, 67108864, 12, 7]
    for bad in ["", "10", "s", "-1s", "1 parsec", float("nan"), True, None]:
        with pytest.raises(quire.ConfigError, match="some_key"):
            seconds(bad, "some_key")  # type: ignore[arg-type]
    bad_sizes: list[int | str] = ["", "KB", "-1", -1, True]
    for bad_size in bad_sizes:
        with pytest.raises(quire.ConfigError, match="some_key"):
            size(bad_size, "some_key")


@settings(deadline=None)  # the machine may be busy
@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists))
def test_data_that_is_json_comes_back(value: object) -> None:
    import json

    data = to_bytes(value)
    assert (data.decode() if isinstance(value, str) else json.loads(data)) == value


@settings(deadline=None)  # the machine may be busy
@given(st.integers(0, 253_402_300_799_999_999_999))
def test_timestamps_are_exact_to_the_microsecond(timestamp_ns: int) -> None:
    moment = datetime_from_ns(timestamp_ns)
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    assert since // timedelta(microseconds=1) == timestamp_ns // 1000


def test_a_handler_gets_messages_that_arrive_before_its_subscription_is_entered(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with quire.Client(url) as client:
        first: list[str] = []
        has_all = threading.Event()

        def handle(message: quire.Message) -> None:
            first.append(message.data.decode())
            if len(first) == 2:
                has_all.set()

        client.subscribe("orders", on_message=handle)
        entered = client._subscription_class

        def enter_late(*arguments: Any) -> quire.Subscription:
            for number in range(2):
                client.publish("orders", f"message {number}")
            # Until the thread of the handlers has gone past the first message, or waits for the new
            # handler.
            has_all.wait(0.5)
            return entered(*arguments)

        second: list[str] = []
        monkeypatch.setattr(client, "_subscription_class", enter_late)
        client.subscribe(
            "orders", bookmark=quire.EPOCH, on_message=lambda message: second.append(message.data.decode())
        )
        wait_until(lambda: len(second) == 2)
        assert second == first == ["message 0", "message 1"]
