"""The reasons of cancels and expiries, which dead letters show."""

from __future__ import annotations

import asyncio
import inspect
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import quire
from quire._reasons import SIZE_MAX, reason_of
from support.waiting import PATIENCE

QUEUE = {
    "name": "JOBS",
    "message_type": "json",
    "underlying_topic": "tasks",
    "max_cancels": 0,
    "retry_delay": [],
    "dead_letter_topic": "dead",
}
PLACES = itertools.count()


class BadOrderError(Exception):
    """An error of a program."""


class SilentError(Exception):
    """An error that cannot say what it is."""

    def __str__(self) -> str:
        raise RuntimeError("on purpose")


@pytest.fixture
def options() -> dict[str, Any]:
    """The arguments of clients of one engine in memory."""
    return {"url": f"memory:reasons-{next(PLACES)}", "config": quire.Config(queue=QUEUE)}


@pytest.fixture
def other(options: dict[str, Any]) -> Iterator[quire.Client]:
    """The client that publishes, and reads the dead letters."""
    with quire.Client(**options) as client:
        yield client


def publish(client: quire.Client, count: int) -> None:
    client.publish_many("tasks", [{"n": n} for n in range(count)])
    client.flush(PATIENCE)


def letters(client: quire.Client, count: int) -> list[tuple[Any, Any, Any]]:
    """The message of each dead letter, its reasons, and the reason of the consumer."""
    with client.subscribe("dead", bookmark=quire.EPOCH) as subscription:
        found = [subscription.get(PATIENCE).json() for _ in range(count)]
    return [(letter["message"]["n"], letter["reason"], letter.get("consumer_reason")) for letter in found]


def test_a_dead_letter_has_the_reason_of_a_cancel_or_an_expiry(other: quire.Client) -> None:
    publish(other, 6)
    jobs = other.subscribe("JOBS", max_backlog=10)
    jobs.get(PATIENCE).cancel(reason="späť")
    jobs.get(PATIENCE).cancel("5s", "with a delay")
    jobs.get(PATIENCE).expire(reason="no item")
    jobs.get(PATIENCE).expire("no city")
    jobs.get(PATIENCE).cancel(reason="")
    jobs.get(PATIENCE).expire()
    assert letters(other, 6) == [
        (0, ["max_cancels"], "späť"),
        (1, ["max_cancels"], "with a delay"),
        (2, ["forced_expire"], "no item"),
        (3, ["forced_expire"], "no city"),
        (4, ["max_cancels"], None),
        (5, ["forced_expire"], None),
    ]


async def test_an_asyncio_client_gives_reasons(options: dict[str, Any], other: quire.Client) -> None:
    publish(other, 3)
    async with quire.AsyncClient(**options) as client:
        jobs = await client.subscribe("JOBS", max_backlog=10)
        (await jobs.get(PATIENCE)).cancel(reason="busy")
        (await jobs.get(PATIENCE)).expire(reason="no item")
        await client.ack("JOBS", await jobs.get(PATIENCE), expire=True, reason="by bookmark")
    assert [reason for *_, reason in letters(other, 3)] == ["busy", "no item", "by bookmark"]


def test_ack_takes_a_reason_with_bookmarks_and_with_a_filter(other: quire.Client) -> None:
    publish(other, 4)
    jobs = other.subscribe("JOBS", max_backlog=2)
    held = [jobs.get(PATIENCE) for _ in range(2)]
    other.ack("JOBS", held[0], cancel=True, reason="returned")
    other.ack("JOBS", held[1], expire=True, reason="given up")
    other.ack("JOBS", filter="/n > 1", expire=True, reason="a load test")
    seen = letters(other, 4)
    assert [(n, reason) for n, _, reason in seen[:2]] == [(0, "returned"), (1, "given up")]
    assert [reason for *_, reason in seen[2:]] == ["a load test"] * 2
    with pytest.raises(quire.ConfigError, match="reason: it goes only together with cancel or expire"):
        other.ack("JOBS", held[0], reason="done")


@pytest.mark.parametrize(
    ("reason", "error"),
    [
        (7, "reason: expected text, got `int`"),
        (ValueError("no item"), "reason: expected text, got `ValueError`"),
        (b"no item", "reason: expected text, got `bytes`"),
        ("x" * (SIZE_MAX + 1), "reason: the text has 1,025 bytes in UTF-8, the limit is 1,024"),
        ("ä" * (SIZE_MAX // 2) + "x", "reason: the text has 1,025 bytes in UTF-8, the limit is 1,024"),
        ("\ud800", "reason: "),
    ],
)
def test_a_bad_reason_is_an_error_and_the_message_keeps_its_lease(
    other: quire.Client, reason: Any, error: str
) -> None:
    publish(other, 1)
    message = other.subscribe("JOBS").get(PATIENCE)
    calls: list[Callable[[], None]] = [
        lambda: message.cancel(reason=reason),
        lambda: message.expire(reason=reason),
        lambda: other.ack("JOBS", message, expire=True, reason=reason),
    ]
    for call in calls:
        with pytest.raises(quire.ConfigError) as raised:
            call()
        assert str(raised.value).startswith(error)
        assert raised.value.key == "reason"
    assert message._verdict is None
    message.expire(reason="ä" * (SIZE_MAX // 2))
    assert letters(other, 1) == [(0, ["forced_expire"], "ä" * (SIZE_MAX // 2))]


def test_the_exception_of_a_handler_of_process_is_the_reason(
    options: dict[str, Any], other: quire.Client
) -> None:
    publish(other, 3)
    client = quire.Client(**options)

    def handle(message: quire.Message) -> None:
        match message.json()["n"]:
            case 0:
                raise BadOrderError("no item")
            case 1:
                message.expire(reason="the handler decided")
                raise KeyError("too late")
            case _:
                client.close()

    client.process("JOBS", handle)
    expected = (["max_cancels"], f"{__name__}.BadOrderError: no item")
    assert letters(other, 2) == [(0, *expected), (1, ["forced_expire"], "the handler decided")]


async def test_the_exception_of_an_asyncio_handler_of_process_is_the_reason(
    options: dict[str, Any], other: quire.Client
) -> None:
    publish(other, 2)
    client = quire.AsyncClient(**options)

    async def handle(message: quire.Message) -> None:
        if message.json()["n"] == 0:
            raise KeyError("id")
        await client.close()

    await asyncio.wait_for(client.process("JOBS", handle), PATIENCE)
    assert letters(other, 1) == [(0, ["max_cancels"], "KeyError: 'id'")]


def test_with_auto_ack_the_exception_of_a_handler_is_the_reason(
    options: dict[str, Any], other: quire.Client
) -> None:
    publish(other, 1)

    def handle(message: quire.Message) -> None:
        raise ValueError("no item")

    with quire.Client(**options, auto_ack=True) as client:
        client.subscribe("JOBS", on_message=handle)
        assert letters(other, 1) == [(0, ["max_cancels"], "ValueError: no item")]


async def test_with_auto_ack_the_exception_of_an_asyncio_handler_is_the_reason(
    options: dict[str, Any], other: quire.Client
) -> None:
    publish(other, 1)

    async def handle(message: quire.Message) -> None:
        raise ValueError("no item")

    async with quire.AsyncClient(**options, auto_ack=True) as client:
        await client.subscribe("JOBS", on_message=handle)
        async with quire.AsyncClient(**options) as reader:
            dead = await reader.subscribe("dead", bookmark=quire.EPOCH)
            assert (await dead.get(PATIENCE)).json()["consumer_reason"] == "ValueError: no item"


def test_the_exception_that_leaves_a_block_on_a_message_is_the_reason(other: quire.Client) -> None:
    publish(other, 2)
    jobs = other.subscribe("JOBS", max_backlog=2)
    with pytest.raises(BadOrderError), jobs.get(PATIENCE):
        raise BadOrderError("no item")
    with pytest.raises(KeyboardInterrupt), jobs.get(PATIENCE):
        raise KeyboardInterrupt
    assert [reason for *_, reason in letters(other, 2)] == [
        f"{__name__}.BadOrderError: no item",
        "KeyboardInterrupt",
    ]


def test_a_redriven_message_is_the_message_without_its_reason(other: quire.Client) -> None:
    publish(other, 1)
    other.subscribe("JOBS").get(PATIENCE).cancel(reason="busy")
    (n, _, reason), *_ = letters(other, 1)
    assert (n, reason) == (0, "busy")
    with other.subscribe("dead", bookmark=quire.EPOCH) as dead:
        other.publish("tasks", dead.get(PATIENCE).json()["message"])
    with other.subscribe("JOBS") as jobs:
        again = jobs.get(PATIENCE)
    assert (again.json(), again.headers) == ({"n": 0}, {})


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ValueError("no item"), "ValueError: no item"),
        (ValueError(), "ValueError"),
        (KeyError("id"), "KeyError: 'id'"),
        (BadOrderError("no item"), f"{__name__}.BadOrderError: no item"),
        (quire.BadFilterError("no"), "quire.BadFilterError: no"),
        (SilentError(), f"{__name__}.SilentError: <its text cannot be read: str() of the exception failed>"),
        (ValueError("a\ud800b"), "ValueError: a\\ud800b"),
        (ValueError("two\nlines"), "ValueError: two\nlines"),
    ],
)
def test_an_exception_becomes_the_name_of_its_class_and_its_text(error: Exception, reason: str) -> None:
    assert reason_of(error) == reason


@pytest.mark.parametrize("character", ["x", "ä", "€", "😀", "\ud800"])
def test_the_text_of_an_exception_is_cut_between_two_characters(character: str) -> None:
    for shift in range(6):
        reason = reason_of(ValueError("-" * shift + character * SIZE_MAX))
        size = len(reason.encode())
        assert SIZE_MAX - 3 <= size <= SIZE_MAX
        assert reason.startswith("ValueError: " + "-" * shift)


def test_the_signatures_of_cancel_and_expire_name_the_reason() -> None:
    assert list(inspect.signature(quire.Message.cancel).parameters) == ["self", "delay", "reason"]
    assert list(inspect.signature(quire.Message.expire).parameters) == ["self", "reason"]
