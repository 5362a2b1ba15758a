"""Every argument of a call is checked where it enters: the error names the argument, and nothing is sent."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import quire
import quire.config
from support.waiting import PATIENCE


@pytest.fixture(scope="module")
def client() -> Iterator[quire.Client]:
    with quire.Client("memory:arguments") as client:
        yield client


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[quire.Journal]:
    with quire.Journal(tmp_path_factory.mktemp("arguments") / "journal") as journal:
        yield journal


def refused(call: Callable[[], object], key: str, reason: str) -> None:
    with pytest.raises(quire.QuireError) as caught:
        call()
    assert getattr(caught.value, "key", None) == key, str(caught.value)
    assert str(caught.value).startswith(f"{key}: ")
    assert reason in str(caught.value)


def test_a_misspelt_argument_is_named_with_the_call(client: quire.Client) -> None:
    with pytest.raises(TypeError, match=r'^Client\.subscribe\(\) .*\'bookmrk\'; did you mean "bookmark"\?$'):
        client.subscribe("orders", bookmrk=quire.EPOCH)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"^Client\.__init__\(\) .*'zzz'$"):
        quire.Client("memory:", zzz=1)  # type: ignore[call-arg]
    with pytest.raises(
        TypeError, match=r"^Client\.process\(\) .*'concurency'; did you mean \"concurrency\"\?$"
    ):
        client.process("jobs", print, concurency=2)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"^BookmarkStore.* did you mean \"path\"\?$"):
        quire.BookmarkStore(pth="x")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"takes from 1 to 2 positional arguments but 3 were given$"):
        client.flush(1, 2)  # type: ignore[call-arg]


async def test_a_misspelt_argument_of_a_coroutine_is_named_with_the_call() -> None:
    # Frameworks tell by this that it is to be awaited.
    assert inspect.iscoroutinefunction(quire.AsyncClient.flush)
    async with quire.AsyncClient("memory:") as client:
        with pytest.raises(TypeError, match=r"^AsyncClient\.flush\(\) .*; did you mean \"timeout\"\?$"):
            await client.flush(timeot=1)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("options", "key", "reason"),
    [
        ({"name": 5}, "name", "expected text, got `int`"),
        ({"name": "\ud800"}, "name", "lone surrogate"),
        ({"config": "orders.toml"}, "config", "quire.Config.load(path) reads a file"),
        ({"publish_store": 5}, "publish_store", "expected a path, got `int`"),
        ({"publish_store": b"x"}, "publish_store", "expected a path, got `bytes`"),
        ({"publish_store": "file"}, "publish_store", "requires `name`"),
        ({"bookmark_store": 5}, "bookmark_store", "expected a path, got `int`"),
        ({"heartbeat": 0}, "heartbeat", "is below 0:00:00.010000; None means no heartbeat"),
        ({"heartbeat": "1us"}, "heartbeat", "is below"),
        ({"receive_size_max": 0}, "receive_size_max", "expected at least 1 byte, got 0"),
        ({"reconnect": 5}, "reconnect", "expected a quire.Reconnect, got `int`"),
        (
            {"server_chooser": "best"},
            "server_chooser",
            "expected one of 'first', 'random', 'least_loaded', got 'best'",
        ),
        ({"ack_batch_size": "5"}, "ack_batch_size", "expected a whole number, got `str`"),
        ({"auto_ack": "yes"}, "auto_ack", "expected True or False, got `str`"),
    ],
)
def test_options_of_a_client(options: dict[str, Any], key: str, reason: str) -> None:
    refused(lambda: quire.Client("memory:", **options), key, reason)


@pytest.mark.parametrize(
    ("options", "key", "reason"),
    [
        ({"initial": "5s", "maximum": "1s"}, "reconnect.maximum", "0:00:01 is below initial, 0:00:05"),
        ({"factor": "2"}, "reconnect.factor", "expected a number, got `str`"),
        ({"jitter": None}, "reconnect.jitter", "expected a number, got `NoneType`"),
    ],
)
def test_options_of_a_reconnect(options: dict[str, Any], key: str, reason: str) -> None:
    refused(lambda: quire.Reconnect(**options), key, reason)


@pytest.mark.parametrize(
    ("options", "key", "reason"),
    [
        ({"topic": None}, "topic", "expected text, got `NoneType`"),
        ({"topic": "\ud800"}, "topic", "lone surrogate"),
        ({"filter": 5}, "filter", "expected text, a quire.Filter or a tuple"),
        ({"filter": "/a = '\ud800'"}, "filter", "lone surrogate"),
        ({"filter": ("/a = ?", "\ud800")}, "filter", "lone surrogate"),
        ({"rate": []}, "rate", "expected messages per second, or text such as"),
        ({"rate": True}, "rate", "got `bool`"),
        ({"rate": "fast", "bookmark": "now"}, "rate", '"fast" is not messages per second'),
        ({"rate": 0, "bookmark": "now"}, "rate", "it must be above zero"),
        ({"rate": float("nan"), "bookmark": "now"}, "rate", '"nan" is not messages per second'),
        ({"rate": 1}, "rate", "it requires `bookmark`"),
        ({"live": True}, "live", "it requires `bookmark`"),
        ({"paused": True}, "paused", "it requires `bookmark`"),
        ({"fully_durable": True}, "fully_durable", "it requires `bookmark`"),
        ({"bookmark_not_found": "fail"}, "bookmark_not_found", "it requires `bookmark`"),
        ({"live": True, "rate": 1, "bookmark": "now"}, "rate", "it does not go together with `live`"),
        ({"live": True, "paused": True, "bookmark": "now"}, "paused", "it does not go together with `live`"),
        (
            {"live": True, "fully_durable": True, "bookmark": "now"},
            "fully_durable",
            "it does not go together with `live`",
        ),
        ({"rate_max_gap": "1s", "bookmark": "now"}, "rate_max_gap", "it requires `rate`, a multiple"),
        ({"conflation_key": "/a"}, "conflation_key", "it requires `conflation`"),
        ({"conflation": "1s", "conflation_key": []}, "conflation_key", "the list is empty"),
        ({"conflation": "1s", "conflation_key": 5}, "conflation_key", "expected text, got `int`"),
        ({"select": 5}, "select", "expected text, got `int`"),
        ({"select": ["-/", 5]}, "select", "expected text, got `int`"),
        ({"max_backlog": "5"}, "max_backlog", "expected a whole number, got `str`"),
        ({"timeout": "soon"}, "timeout", "is not a duration"),
    ],
)
def test_arguments_of_a_subscription(
    client: quire.Client, options: dict[str, Any], key: str, reason: str
) -> None:
    refused(lambda: client.subscribe(**{"topic": "orders", **options}), key, reason)


@pytest.mark.parametrize("rate", [1, 0.5, Decimal("2.5"), "1000", "500KB", "2X"])
def test_every_form_of_a_rate_is_taken(client: quire.Client, rate: Any) -> None:
    with client.subscribe("orders", bookmark="now", rate=rate) as subscription:
        assert subscription.bookmark_found


CALLS: list[tuple[Callable[[Any], object], str, str]] = [
    (lambda c: c.publish(None, b""), "topic", "expected text, got `NoneType`"),
    (lambda c: c.publish("\ud800", b""), "topic", "lone surrogate"),
    (lambda c: c.publish("orders", b"", sequence="1"), "sequence", "expected a whole number"),
    (lambda c: c.ack("Q"), "bookmarks", "expected bookmarks or a filter, one of them"),
    (lambda c: c.ack("Q", "1|1|", cancel=True, expire=True), "expire", "does not go together with cancel"),
    (lambda c: c.ack("Q", 5), "bookmarks", "got `int`"),
    (lambda c: c.ack("Q", quire.EPOCH), "bookmarks", "is not the bookmark of a message"),
    (lambda c: c.ack("Q", "zz"), "bookmarks", "'zz' is not the bookmark of a message, such as \"4711|17|\""),
    (lambda c: c.process("Q", print, max_backlog=0), "max_backlog", "would get no message"),
    (lambda c: c.subscribe("Q", bookmark="zz"), "bookmark", 'or "most_recent" with a sub_id'),
    (lambda c: c.process("Q", None), "handler", "expected a function, got `NoneType`"),
    (lambda c: c.process("Q", print, concurrency=0), "concurrency", "0 is not at least 1"),
    (lambda c: c.sow(None), "topic", "expected text, got `NoneType`"),
    (lambda c: c.sow("Q", order_by=5), "order_by", "expected text, got `int`"),
    (lambda c: c.queue_stats(5), "queue", "expected text, got `int`"),
    (lambda c: c.unsubscribe(5), "sub_id", "expected text, got `int`"),
    (lambda c: c.pause(5), "subscriptions", "expected a list of subscriptions, got `int`"),
    (lambda c: c.pause(["mine"]), "subscriptions", "expected subscriptions, got `str`"),
    (lambda c: c.subscribe("a", sub_id="mine").pause(), "subscriptions", "'mine' cannot be paused"),
    (lambda c: c.subscribe("a").batches("5"), "max_messages", "expected a whole number, got `str`"),
    (lambda c: c.subscribe("a").replace(live=True), "live", "it requires `bookmark`"),
    (
        lambda c: c.delta_subscribe("a").replace(max_backlog=5),
        "max_backlog",
        "it does not go together with a delta subscription: it limits the messages of a queue",
    ),
    (
        lambda c: c.delta_subscribe("a").replace(bookmark="epoch"),
        "bookmark",
        "it does not go together with a delta subscription in this version: leave it out",
    ),
]


@pytest.mark.parametrize(
    "call",
    [
        lambda c, s: c.publish("orders", b"", timeout="soon"),
        lambda c, s: c.flush("soon"),
        lambda c, s: c.unsubscribe("kept", timeout="soon"),
        lambda c, s: c.pause([s], timeout="soon"),
        lambda c, s: c.ack("Q", "1|1|", timeout="soon"),
        lambda c, s: c.sow("Q", timeout="soon"),
        lambda c, s: c.queue_stats(timeout="soon"),
        lambda c, s: c.server_info(timeout="soon"),
        lambda c, s: s.replace(topic="trades", timeout="soon"),
    ],
)
def test_a_call_with_a_wrong_timeout_does_nothing(call: Callable[[Any, Any], object]) -> None:
    with quire.Client("memory:timeouts", name="publisher") as client:
        kept = client.subscribe("orders", bookmark="epoch", sub_id="kept")
        refused(lambda: call(client, kept), "timeout", "'soon' is not a duration")
        persisted = client.persisted
        assert client.publish("orders", b"1") == persisted + 1, "nothing was published before"
        assert kept.get(PATIENCE).data == b"1"
        client.flush(PATIENCE)


@pytest.mark.parametrize(("call", "key", "reason"), CALLS)
def test_arguments_of_calls(
    client: quire.Client, call: Callable[[Any], object], key: str, reason: str
) -> None:
    refused(lambda: call(client), key, reason)


JOURNAL_CALLS: list[tuple[Callable[[Any], object], str, str]] = [
    (lambda j: j.append(None, b"", publisher="x"), "topic", "expected text, got `NoneType`"),
    (lambda j: j.append("t", b"", publisher=None), "publisher", "got None"),
    (lambda j: j.append("t", b"", publisher=-1), "publisher", "got -1"),
    (lambda j: j.append("t", b"", publisher=2**64), "publisher", "got 18446744073709551616"),
    (lambda j: j.append("t", b"", publisher=True), "publisher", "got True"),
    (lambda j: j.append("t", b"", publisher="x", message_type=5), "message_type", "expected text"),
    (lambda j: j.append_many("t", 5, publisher="x"), "items", "expected a list of data, got `int`"),
    (lambda j: j.append_many("t", "abc", publisher="x"), "items", "expected a list of data, got `str`"),
    (lambda j: j.read(topic=5), "topic", "expected text, got `int`"),
    (lambda j: j.records(topic=5), "topic", "expected text, got `int`"),
    (lambda j: j.read_arrow(batch_rows=0), "batch_rows", "0 is not between 1 and 2**31 - 1"),
    (lambda j: j.find(["1|1|", "1|2|"]), "bookmark", "2 bookmarks, where one is expected"),
]


@pytest.mark.parametrize(("call", "key", "reason"), JOURNAL_CALLS)
def test_arguments_of_a_journal(
    journal: quire.Journal, call: Callable[[Any], object], key: str, reason: str
) -> None:
    refused(lambda: call(journal), key, reason)


def wrong(value: object) -> Any:
    """A value that the type of the argument excludes."""
    return value


def test_arguments_of_constructors(tmp_path: Path) -> None:
    refused(lambda: quire.Journal(wrong(None)), "directory", "expected a path, got `NoneType`")
    refused(lambda: quire.Journal(""), "directory", "the path is empty")
    refused(
        lambda: quire.Journal(tmp_path, preallocated_journal_files=wrong("2")),
        "preallocated_journal_files",
        "expected a whole number, got `str`",
    )
    refused(lambda: quire.Server(wrong("orders.toml")), "config", "quire.Config.load(path) reads a file")
    refused(lambda: quire.Queue(wrong(5)), "config", "expected a mapping or a quire.config.Queue, got `int`")
    refused(lambda: quire.Config.load(wrong(5)), "path", "expected a path, got `int`")
    refused(lambda: quire.exact(wrong(5)), "topic", "expected text, got `int`")
    assert list(tmp_path.iterdir()) == []
    assert quire.Reconnect(initial="1s", maximum="1s").maximum == timedelta(seconds=1)
    quire.Queue(quire.config.Queue(name="jobs", message_type="json"))


def test_a_configuration_for_a_server_with_its_own_is_refused() -> None:
    with pytest.raises(quire.ConfigError, match="is a server with its own configuration") as refused:
        quire.Client("quire://127.0.0.1:1", config=quire.Config())
    assert refused.value.key == "config"
