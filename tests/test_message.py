"""`quire.Message` as an object: documented, comparable, picklable, and made without a server."""

from __future__ import annotations

import copy
import json
import pickle
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime, timedelta
from multiprocessing import get_context
from typing import Any

import pytest
import quire
import quire.testing
from support.waiting import PATIENCE


@pytest.fixture
def quire_settings() -> dict[str, Any]:
    return {"queue": {"name": "Q", "message_type": "json", "underlying_topic": "t", "lease_period": "1h"}}


def attributes(message: quire.Message) -> dict[str, Any]:
    """Every attribute of the message that is a value."""
    names = [name for name in dir(quire.Message) if not name.startswith("_")]
    values = {name: getattr(message, name) for name in names}
    return {name: value for name, value in values.items() if not callable(value)}


def test_every_member_has_its_documentation_at_run_time() -> None:
    names = [name for name in vars(quire.Message) if not name.startswith("_")]
    assert len(names) > 20
    assert [name for name in names if not getattr(quire.Message, name).__doc__] == []


def test_a_message_is_equal_to_another_delivery_of_it(url: str) -> None:
    with quire.Client(url) as client:
        for number in (1, 2):
            client.publish("t", {"n": number}, correlation_id="c")
        client.flush(PATIENCE)
        first, second = (client.subscribe("t", bookmark=quire.EPOCH) for _ in range(2))
        one, two = (first.get(timeout=PATIENCE) for _ in range(2))
        again = second.get(timeout=PATIENCE)
        assert one == again
        assert hash(one) == hash(again)
        assert one is not again
        assert one != two
        assert one != "t"
        assert {one, two, again} == {one, two}


def test_a_pickled_message_is_a_copy_with_all_attributes(url: str) -> None:
    with quire.Client(url) as client:
        client.publish("t", {"n": 1}, correlation_id="c")
        client.flush(PATIENCE)
        message = client.subscribe("t", bookmark=quire.EPOCH).get(timeout=PATIENCE)
        copied = pickle.loads(pickle.dumps(message))
        assert copied == message
        assert attributes(copied) == attributes(message)
        assert memoryview(copied) == memoryview(message)
        with pytest.raises(quire.ConfigError, match="it is a copy, which cannot be settled"):
            copied.discard()


def test_a_copy_of_a_queue_message_cannot_be_settled_and_the_original_can(
    quire_client: quire.Client,
) -> None:
    quire_client.publish("t", {"n": 1})
    quire_client.flush(PATIENCE)
    message = quire_client.subscribe("Q").get(timeout=PATIENCE)
    copied = pickle.loads(pickle.dumps(message))
    assert attributes(copied) == {**attributes(message), "lease_deadline": None}
    for settle in (copied.ack, copied.cancel, copied.expire, copied.extend):
        with pytest.raises(quire.ConfigError, match=r"client\.ack\(message\.topic, message\.bookmark\)"):
            settle()
    assert message._verdict is None
    message.ack()
    assert message._verdict == "ack"


def test_a_message_does_not_change_so_copying_it_gives_it_back() -> None:
    message = quire.testing.message("t", b"1", queue="Q")
    assert copy.copy(message) is message
    assert copy.deepcopy([message])[0] is message


def topic_of(message: quire.Message) -> str:
    return message.topic


def test_another_process_takes_a_message() -> None:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        assert pool.submit(topic_of, quire.testing.message("orders", {"n": 1})).result(PATIENCE) == "orders"


def test_a_message_for_a_test_has_what_the_test_says() -> None:
    at = datetime(2026, 3, 4, 5, 6, 7, 8, tzinfo=UTC)
    message = quire.testing.message(
        "orders",
        {"qty": 1},
        bookmark="7|9|",
        timestamp=at,
        correlation_id="c",
        headers={"trace": "abc", "raw": b"\x00"},
        sub_id="s",
        queue="JOBS",
        lease_period="30s",
        delivery_count=2,
        cancel_count=1,
    )
    assert attributes(message) == {
        "bookmark": "7|9|",
        "cancel_count": 1,
        "command": "publish",
        "correlation_id": "c",
        "data": b'{"qty":1}',
        "delivery_count": 2,
        "headers": {"trace": "abc", "raw": b"\x00"},
        "is_delta": False,
        "lease_deadline": None,
        "lease_lost": False,
        "lease_period": timedelta(seconds=30),
        "publisher": "7",
        "queue": "JOBS",
        "reason": None,
        "sequence": 9,
        "source_topic": "orders",
        "sow_key": None,
        "sub_id": "s",
        "timestamp": at,
        "timestamp_ns": 1772600767000008000,
        "topic": "JOBS",
    }
    assert message.json() == {"qty": 1}
    plain = quire.testing.message("orders", b"1")
    assert plain == quire.testing.message("orders", b"1")
    assert (plain.topic, plain.queue, plain.delivery_count) == ("orders", None, 0)


def test_a_message_for_a_test_can_be_one_of_a_last_value_topic() -> None:
    left = quire.testing.message("orders", b"1", command="oof", reason="expired", sow_key="A-1")
    assert (left.command, left.reason, left.sow_key) == ("oof", "expired", "A-1")
    record = quire.testing.message("orders", b"1", command="sow", sow_key="A-1")
    assert (record.command, record.reason, record.sow_key) == ("sow", None, "A-1")
    change = quire.testing.message("orders", b"1", sow_key="A-1", is_delta=True)
    assert (change.command, change.is_delta, left.is_delta, record.is_delta) == (
        "publish",
        True,
        False,
        False,
    )
    delete = quire.testing.message("orders", b"", command="delete", sow_key="A-1")
    assert (delete.command, delete.sow_key, delete.data) == ("delete", "A-1", b"")
    for key, arguments in {
        "reason": {"command": "oof", "sow_key": "A-1"},
        "sow_key": {"command": "sow"},
        "command": {"command": "other", "sow_key": "A-1"},
        "data": {"command": "delete", "sow_key": "A-1"},
        "is_delta": {"command": "sow", "sow_key": "A-1", "is_delta": True},
    }.items():
        with pytest.raises(quire.ConfigError) as raised:
            quire.testing.message("orders", b"1", **arguments)  # type: ignore[arg-type]
        assert raised.value.key == key
    with pytest.raises(quire.ConfigError, match="only"):
        quire.testing.message("orders", b"1", reason="expired")


@pytest.mark.parametrize("settle", ["ack", "cancel", "expire"])
def test_the_verdict_of_a_handler_is_known_to_its_test(settle: str) -> None:
    message = quire.testing.message("orders", b"1", queue="JOBS")
    assert quire.testing.verdict(message) is None
    getattr(message, settle)()
    message.ack()  # the first verdict counts
    assert quire.testing.verdict(message) == settle


def test_a_cancel_with_a_delay_is_a_cancel() -> None:
    message = quire.testing.message("orders", b"1", queue="JOBS")
    with pytest.raises(quire.ConfigError, match="delay"):
        message.cancel(delay="soon")
    assert quire.testing.verdict(message) is None
    message.cancel(delay="5s")
    assert quire.testing.verdict(message) == "cancel"


def test_the_end_of_a_block_is_a_verdict() -> None:
    good, bad = (quire.testing.message("orders", b"1", queue="JOBS") for _ in range(2))
    with good:
        pass
    with pytest.raises(ZeroDivisionError), bad:
        _ = 1 / 0
    assert (quire.testing.verdict(good), quire.testing.verdict(bad)) == ("ack", "cancel")


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        ({"topic": ""}, "topic"),
        ({"topic": "x" * 1025}, "topic"),
        ({"queue": ""}, "queue"),
        ({"correlation_id": "x" * 256}, "correlation_id"),
        ({"bookmark": "x"}, "bookmark"),
        ({"bookmark": None, "queue": "Q"}, "bookmark"),
        ({"timestamp": datetime(2026, 1, 1)}, "timestamp"),
        ({"lease_period": "x"}, "lease_period"),
    ],
)
def test_an_argument_that_no_message_can_have_is_refused(arguments: dict[str, Any], key: str) -> None:
    with pytest.raises((quire.ConfigError, quire.BadBookmarkError)) as caught:
        quire.testing.message(**{"topic": "t", "data": b"1", **arguments})
    assert isinstance(caught.value, (quire.ConfigError, quire.BadBookmarkError))
    assert caught.value.key == key


def test_the_error_of_a_message_that_is_not_json_names_topic_and_bookmark() -> None:
    message = quire.testing.message("orders", b"{", bookmark="7|3|")
    with pytest.raises(json.JSONDecodeError, match="Expecting property name") as refused:
        message.json()
    place = 'the message is not JSON: topic "orders", bookmark 7|3|'
    assert str(refused.value).startswith(f"{place}: Expecting property name")
    assert (refused.value.doc, refused.value.pos) == ("{", 1)
    with pytest.raises(UnicodeDecodeError) as undecodable:
        quire.testing.message("orders", b"\xff", bookmark="7|3|").json()
    assert undecodable.value.__notes__ == [place]


def test_the_error_of_a_message_with_a_long_integer_does_not_say_that_it_is_not_json() -> None:
    message = quire.testing.message("orders", b'{"n": ' + b"9" * 5000 + b"}", bookmark="7|3|")
    with pytest.raises(ValueError, match="4300") as refused:
        message.json()
    assert refused.value.__notes__ == [
        'the message has an integer of more digits than Python reads: topic "orders", bookmark 7|3|'
    ]
