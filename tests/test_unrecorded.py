"""Only messages that the transaction log records are reported as persisted, on all kinds of
server."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import quire
from support.command_line import quire as run
from support.waiting import PATIENCE
from support.ways_in import configured

#: Records `orders`. Topics that begin with `prices` are unrecorded on purpose.
SETTINGS: dict[str, Any] = {
    "transaction_log": {
        "topic": [
            {"name": "orders", "message_type": "json"},
            {"name": "^prices", "message_type": "json", "recorded": False},
        ]
    }
}


def test_a_publish_to_a_topic_that_is_not_recorded_is_refused(way_in: str, tmp_path: Path) -> None:
    with configured(way_in, tmp_path, **SETTINGS) as place, quire.Client(**place) as client:
        subscription = client.subscribe("^ord")
        client.publish("orders", b"1")
        client.publish("ordres", b"2")
        client.publish("orders", b"3")
        with pytest.raises(quire.NotJournaledError, match=r'"ordres".*sequence=None') as refused:
            client.flush(timeout=PATIENCE)
        assert "publish 2 was refused" in refused.value.__notes__[0]
        client.flush(timeout=PATIENCE)
        assert [subscription.get(timeout=PATIENCE).data for _ in range(2)] == [b"1", b"3"]


async def test_an_asyncio_publish_to_a_topic_that_is_not_recorded_is_refused(
    way_in: str, tmp_path: Path
) -> None:
    with configured(way_in, tmp_path, **SETTINGS) as place:
        async with quire.AsyncClient(**place) as client:
            await client.publish("ordres", b"1")
            with pytest.raises(quire.NotJournaledError, match='"ordres"'):
                await client.flush(timeout=PATIENCE)


def test_a_message_without_a_sequence_and_an_unrecorded_topic_are_accepted(
    way_in: str, tmp_path: Path
) -> None:
    with configured(way_in, tmp_path, **SETTINGS) as place, quire.Client(**place) as client:
        subscription = client.subscribe("^(ordres|prices)$")
        assert client.publish("ordres", b"1", sequence=None) is None
        sequence = client.publish("prices", b"2")
        client.flush(timeout=PATIENCE)
        assert client.persisted == sequence
        messages = [subscription.get(timeout=PATIENCE) for _ in range(2)]
        assert [(message.data, message.bookmark) for message in messages] == [(b"1", None), (b"2", None)]
        with pytest.raises(quire.NotJournaledError):
            client.subscribe("prices", bookmark=quire.EPOCH)


def test_a_transaction_log_without_topics_records_everything(way_in: str, tmp_path: Path) -> None:
    settings = {"transaction_log": {"journal_size": "1MB"}}
    with configured(way_in, tmp_path, **settings) as place, quire.Client(**place) as client:
        client.publish("anything", b"1")
        client.flush(timeout=PATIENCE)
        assert client.subscribe("anything", bookmark=quire.EPOCH).get(timeout=PATIENCE).data == b"1"


def test_the_first_entry_that_names_a_topic_decides(way_in: str, tmp_path: Path) -> None:
    topics = [
        {"name": "scratch", "message_type": "json", "recorded": False},
        {"name": "^", "message_type": "json"},
    ]
    settings = {"transaction_log": {"topic": topics}}
    with configured(way_in, tmp_path, **settings) as place, quire.Client(**place) as client:
        client.publish("scratch", b"1")
        client.publish("orders", b"2")
        client.flush(timeout=PATIENCE)
        replay = client.subscribe("^", bookmark=quire.EPOCH)
        assert replay.get(timeout=PATIENCE).topic == "orders"


@pytest.mark.parametrize(
    ("topics", "key", "reason"),
    [
        ([], "transaction_log.topic", "the list is empty"),
        (
            [{"name": "^", "message_type": "json"}, {"name": "a", "message_type": "json", "recorded": False}],
            "transaction_log.topic[1].recorded",
            '"a" is recorded by the entry "\\^" before it',
        ),
        (
            [{"name": "a", "message_type": "json", "recorded": False, "filter": "/a = 1"}],
            "transaction_log.topic[0].filter",
            "recorded = false has no filter",
        ),
    ],
)
def test_entries_without_effect_are_refused(topics: list[dict[str, Any]], key: str, reason: str) -> None:
    with pytest.raises(quire.ConfigError, match=reason) as refused:
        quire.Config(transaction_log={"topic": topics}).check()
    assert refused.value.key == key


#: A file, and what is warned of.
WARNED = {
    """
    [[transaction_log.topic]]
    name = "^"
    message_type = "json"
    recorded = false
    """: ["the transaction log records nothing"],
    """
    [transaction_log]
    durability = "os"
    """: ['transaction_log.durability is "os": messages are acknowledged before they are on the disk'],
    """
    [[transaction_log.topic]]
    name = "jobs/low"
    message_type = "json"
    recorded = false
    [[transaction_log.topic]]
    name = "jobs/high"
    message_type = "json"
    filter = "/n > 1"
    [[transaction_log.topic]]
    name = "^jobs/"
    message_type = "json"
    [[queue]]
    name = "JOBS"
    message_type = "json"
    underlying_topic = "^jobs/"
    default_publish_target = "jobs/high"
    """: [
        'does not record its underlying topic "jobs/low"',
        'only a part of its underlying topic "jobs/high"',
    ],
}


@pytest.mark.parametrize(("text", "warned"), WARNED.items(), ids=["nothing", "power", "queue"])
def test_the_check_and_the_log_warn_of_what_can_be_lost(
    tmp_path: Path, text: str, warned: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "quire.toml"
    file.write_text('[[transport]]\naddress = "127.0.0.1:0"\n' + text)
    checked = run("config", "check", str(file))
    assert checked.returncode == 0
    told = json.loads(run("config", "check", str(file), "--json").stdout)
    with caplog.at_level(logging.WARNING, "quire.server"), quire.Server(quire.Config.load(file)):
        pass
    logged = [record.getMessage() for record in caplog.records]
    assert len(told["warnings"]) == len(logged) == len(warned)
    for text, *places in zip(warned, told["warnings"], logged, strict=True):
        assert text in checked.stderr
        assert all(text in place for place in places)


def test_a_sound_configuration_has_no_warnings() -> None:
    assert quire.Config().check() == []
