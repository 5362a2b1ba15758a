"""One program runs unchanged on a server, on an engine in this process with files, and in memory."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path

import pytest
import quire
from support.waiting import PATIENCE


def test_publish_flush_replay_and_follow(url: str) -> None:
    with quire.Client(url, name="loader-1") as client:
        assert client.publish("trades", {"symbol": "IBM", "qty": 100}) == 1
        assert client.publish("trades", {"symbol": "HPQ", "qty": 10}) == 2
        client.flush(timeout=PATIENCE)
        assert client.persisted == 2
        subscription = client.subscribe("trades", filter="/qty > 50", bookmark=quire.EPOCH)
        message = subscription.get(timeout=PATIENCE)
        assert message.json() == {"symbol": "IBM", "qty": 100}
        assert message.sequence == 1
        client.publish("trades", {"symbol": "IBM", "qty": 60})
        later = subscription.get(timeout=PATIENCE)
        assert later.json()["qty"] == 60
        assert later.bookmark == f"{later.publisher}|3|"
        resumed = client.subscribe("trades", bookmark=message.bookmark)
        assert next(resumed.batches(timeout=PATIENCE))[0].sequence == 2


def test_two_clients_of_one_url_share_what_is_published(url: str) -> None:
    with quire.Client(url) as publisher, quire.Client(url) as subscriber:
        subscription = subscriber.subscribe("^orders/")
        publisher.publish("orders/1", b"\x00\xff", correlation_id="c-1")
        message = subscription.get(timeout=PATIENCE)
        assert (message.topic, message.data, message.correlation_id) == ("orders/1", b"\x00\xff", "c-1")
        assert (message.command, message.sow_key) == ("publish", None)


def test_mistakes_are_the_same_errors_everywhere(url: str) -> None:
    with quire.Client(url) as client:
        with pytest.raises(quire.BadFilterError) as caught:
            client.subscribe("t", filter="/a = ")
        assert caught.value.column == 6
        with pytest.raises(quire.BadTopicError):
            client.subscribe("(")
        with pytest.raises(quire.BadBookmarkError):
            client.subscribe("t", bookmark="yesterday")


async def test_the_asyncio_client_does_the_same(url: str) -> None:
    async with quire.AsyncClient(url, name="a") as client:
        for number in range(100):
            await client.publish("t", {"n": number})
        await client.flush(timeout=PATIENCE)
        subscription = await client.subscribe("t", bookmark=quire.EPOCH)
        numbers = []
        async for message in subscription:
            numbers.append(message.json()["n"])
            if len(numbers) == 100:
                break
        assert numbers == list(range(100))


def test_an_embedded_journal_outlives_its_engine_and_is_held_by_one_process(tmp_path: Path) -> None:
    url = f"file:{tmp_path}/journal"
    with quire.Client(url, name="n") as client:
        client.publish("t", b"1")
        client.flush(timeout=PATIENCE)
        program = (
            f"import quire\ntry:\n quire.Client({url!r})\nexcept quire.JournalLockedError as e: print(e)"
        )
        other = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE
        )
        assert f"{tmp_path}/journal: another process has this journal open" in other.stdout, other.stderr
        # The advice of the error works in the meantime.
        assert "`quire.Journal(directory, read_only=True)`" in other.stdout
        with quire.Journal(tmp_path / "journal", read_only=True) as journal:
            assert [record.data for record in journal.records()] == [b"1"]
    with quire.Client(url, name="n") as client:
        message = client.subscribe("t", bookmark=quire.EPOCH).get(timeout=PATIENCE)
        assert message.data == b"1"
        assert client.publish("t", b"2") == 2


def test_an_embedded_engine_takes_a_configuration(tmp_path: Path) -> None:
    config = quire.Config(transaction_log={"topic": [{"name": "kept", "message_type": "json"}]})
    with quire.Client("memory:configured", config=config) as client, pytest.raises(quire.NotJournaledError):
        client.subscribe("lost", bookmark=quire.EPOCH)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("file:", "'file:' names no directory, as file:./trades does"),
        (
            "http://localhost",
            "'http://localhost' does not begin with quire://, quires://, file:, memory: or local:",
        ),
        (
            "tcp://h:9007",
            "'tcp://h:9007' does not begin with quire://, quires://, file:, memory: or local:; did you mean quire://h:9007?",
        ),
        ("trades", "'trades' does not begin with quire://, quires://, file:, memory: or local:"),
        ("quire://", "'quire://' names no host, as quire://127.0.0.1:9007 does"),
    ],
)
def test_a_bad_url_is_an_error_with_the_reason(url: str, reason: str) -> None:
    with pytest.raises(quire.ConfigError) as raised:
        quire.Client(url)
    assert (raised.value.key, str(raised.value)) == ("url", f"url: {reason}")


def test_messages_cost_the_cycle_collector_nothing() -> None:
    with quire.Client("memory:collector") as client:
        for number in range(3):
            client.publish("t", {"n": number})
        client.flush(timeout=PATIENCE)
        subscription = client.subscribe("t", bookmark=quire.EPOCH)
        messages = [subscription.get(timeout=PATIENCE), *next(subscription.batches(timeout=PATIENCE))]
        assert not any(gc.is_tracked(message) for message in messages)
        del messages
        gc.collect()


def test_programs_name_the_types_of_arguments(url: str) -> None:
    def follow(
        client: quire.Client, begin: quire.Bookmark, rate: quire.Rate, handler: quire.Handler
    ) -> object:
        assert callable(handler)
        return client.subscribe("t", bookmark=begin, rate=rate)

    def flush(client: quire.Client, timeout: quire.Duration) -> None:
        client.flush(timeout)

    size: quire.Size = "1MB"
    with quire.Client(url, receive_size_max=size) as client:
        follow(client, quire.EPOCH, 1000, print)
        flush(client, PATIENCE)


def test_a_client_without_a_configuration_joins_the_running_engine() -> None:
    config = quire.Config(queue={"name": "JOBS", "message_type": "json", "underlying_topic": "jobs"})
    with quire.Client("memory:joined", config=config) as first:
        with quire.Client("memory:joined") as second:
            second.publish("jobs", {"n": 1})
            second.flush(timeout=PATIENCE)
        assert first.queue_stats("JOBS")["JOBS"]["depth"] == 1
        with pytest.raises(quire.ConfigError, match="pass the same one, or none"):
            quire.Client("memory:joined", config=quire.Config())
