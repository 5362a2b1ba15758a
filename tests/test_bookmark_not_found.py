"""The behavior of a client when the bookmark of a replay is not in the log, on every kind of
server."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import quire
from quire.testing import ServerProcess
from support.waiting import PATIENCE, wait_until

#: Of a publisher that no log has heard of.
MISSING = "4711|17|"


@pytest.fixture
def client(url: str) -> Iterator[quire.Client]:
    with quire.Client(url, name="reader") as client:
        for number in range(3):
            client.publish("t", {"n": number})
        client.flush(PATIENCE)
        yield client


def test_a_replay_begins_with_the_oldest_message_and_the_client_says_so(
    client: quire.Client, caplog: pytest.LogCaptureFixture
) -> None:
    subscription = client.subscribe("t", bookmark=MISSING)
    assert not subscription.bookmark_found
    assert [subscription.get(timeout=PATIENCE).json()["n"] for _ in range(3)] == [0, 1, 2]
    expected = (
        'the bookmark of the subscription to "t" is not in the log, so it begins with the oldest message'
    )
    wait_until(lambda: expected in caplog.text)


def test_a_replay_that_is_to_begin_now_leaves_out_what_is_in_the_log(
    client: quire.Client, caplog: pytest.LogCaptureFixture
) -> None:
    subscription = client.subscribe("t", bookmark=MISSING, bookmark_not_found="now")
    assert not subscription.bookmark_found
    wait_until(
        lambda: "begins now: messages that were published after the bookmark are left out" in caplog.text
    )
    client.publish("t", {"n": 3})
    assert subscription.get(timeout=PATIENCE).json()["n"] == 3


def test_a_replay_that_is_to_fail_is_refused(client: quire.Client) -> None:
    with pytest.raises(quire.BadBookmarkError) as caught:
        client.subscribe("t", bookmark=MISSING, bookmark_not_found="fail")
    assert caught.value.code == "bookmark_not_found"


async def test_the_asyncio_client_knows_it_too(url: str) -> None:
    async with quire.AsyncClient(url) as client:
        subscription = await client.subscribe("t", bookmark=MISSING)
        assert not subscription.bookmark_found


def test_a_place_that_the_log_has_is_found(client: quire.Client) -> None:
    first = client.subscribe("t", bookmark=quire.EPOCH).get(timeout=PATIENCE)
    for bookmark in (
        quire.EPOCH,
        quire.NOW,
        first.bookmark,
        first.timestamp,
        [MISSING, first.bookmark or ""],
        None,
    ):
        assert client.subscribe("t", bookmark=bookmark).bookmark_found, bookmark


def test_another_bookmark_begins_anew(client: quire.Client) -> None:
    subscription = client.subscribe("t", bookmark=MISSING)
    subscription.replace(filter="/n > 1")
    assert not subscription.bookmark_found
    subscription.replace(bookmark=quire.EPOCH)
    assert subscription.bookmark_found


def test_a_word_that_it_does_not_know_is_refused(client: quire.Client) -> None:
    with pytest.raises(quire.ConfigError, match="is not 'epoch', 'now' or 'fail'") as caught:
        client.subscribe("t", bookmark=MISSING, bookmark_not_found="begin")  # type: ignore[arg-type]
    assert caught.value.key == "bookmark_not_found"


def test_a_place_that_is_gone_after_a_reconnect_is_said_or_ends_the_subscription(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server:
        reconnect = quire.Reconnect(initial="5ms", maximum="50ms")
        with quire.Client(server.url, name="reader", reconnect=reconnect) as client:
            client.publish("t", {"n": 1})
            client.flush(PATIENCE)
            lenient = client.subscribe("t", bookmark=quire.EPOCH)
            strict = client.subscribe("t", bookmark=quire.EPOCH, bookmark_not_found="fail")
            for subscription in (lenient, strict):
                assert subscription.get(timeout=PATIENCE).json() == {"n": 1}
            assert lenient.bookmark_found
            server.kill()
            shutil.rmtree(tmp_path / "data")
            server.start()
            with pytest.raises(quire.BadBookmarkError):
                strict.get(timeout=PATIENCE)
            wait_until(lambda: not lenient.bookmark_found)


def test_a_client_warns_of_a_replay_of_a_topic_that_the_log_does_not_have(
    client: quire.Client, caplog: pytest.LogCaptureFixture
) -> None:
    expected = 'the log has no message of the topic "tt": check the name'
    client.subscribe("t", bookmark=quire.EPOCH)
    client.subscribe("tt")
    subscription = client.subscribe("tt", bookmark=quire.EPOCH)
    wait_until(lambda: expected in caplog.text)
    client.publish("tt", {"n": 1})
    assert subscription.get(PATIENCE).json() == {"n": 1}
    client.subscribe("tt", bookmark=quire.EPOCH).get(PATIENCE)
    assert caplog.text.count("the log has no message") == 1
