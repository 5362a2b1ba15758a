"""A named subscription that moves to another server misses nothing, and gets nothing twice.

docs/stores.md, *Failover to another instance*. A publisher that the subscription has not heard of
has messages on the new server, before those that the subscription has.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import quire
import quire.testing
from support.waiting import PATIENCE, wait_until


def _data(url: str) -> list[str]:
    """The messages in the log of a server, in its order."""
    with quire.Client(url) as reader:
        return [message.data.decode() for message in reader.subscribe("t", bookmark="[epoch:now]")]


def _take(subscription: quire.Subscription, count: int) -> list[str]:
    """The next messages."""
    taken: list[str] = []
    for message in subscription:
        taken.append(message.data.decode())
        message.discard()
        if len(taken) == count:
            return taken
    raise AssertionError(f"the subscription has ended after {taken}")


def _reading(client: quire.Client, **options: Any) -> quire.Subscription:
    return client.subscribe("t", bookmark=quire.MOST_RECENT, sub_id="reader", **options)


@pytest.mark.parametrize("count", [2, 3])
def test_a_subscription_that_moves_gets_the_messages_of_a_publisher_that_it_has_not_heard_of(
    count: int, tmp_path: Path
) -> None:
    store = str(tmp_path / "reader.places")
    with quire.testing.cluster(count) as cluster:
        first, last = cluster[0], cluster[count - 1]
        with (
            quire.Client(cluster.urls, name="known") as known,
            quire.Client(cluster[1].url, name="unknown") as unknown,
        ):
            with quire.Client(first.url, bookmark_store=store) as reader, _reading(reader) as subscription:
                for number in (1, 2):
                    known.publish("t", f"known {number}")
                    known.flush(PATIENCE)
                assert _take(subscription, 2) == ["known 1", "known 2"]
                for other in range(1, count):
                    cluster.partition(0, other)
                for number in (1, 2, 3):
                    unknown.publish("t", f"unknown {number}")
                wait_until(lambda: "unknown 3" in _data(last.url))
                # The first server has it, and the others get it from its client, after the
                # messages of the other publisher.
                known.publish("t", "known 3")
                assert _take(subscription, 1) == ["known 3"]
            cluster.kill(0)
            wait_until(lambda: "known 3" in _data(last.url))
            with quire.Client(last.url, bookmark_store=store) as reader, _reading(reader) as subscription:
                assert _take(subscription, 3) == ["unknown 1", "unknown 2", "unknown 3"]
                known.publish("t", "known 4")
                assert _take(subscription, 1) == ["known 4"]


def test_a_client_that_fails_over_gets_the_messages_of_a_publisher_that_it_has_not_heard_of() -> None:
    with (
        quire.testing.cluster(2) as cluster,
        quire.Client(cluster.urls, name="known") as known,
        quire.Client(cluster[1].url, name="unknown") as unknown,
        quire.Client(cluster.urls, name="reader") as reader,
        reader.subscribe("t", bookmark=quire.EPOCH) as subscription,
    ):
        known.publish("t", "known 1")
        known.flush(PATIENCE)
        assert _take(subscription, 1) == ["known 1"]
        cluster.partition(0, 1)
        unknown.publish("t", "unknown 1")
        wait_until(lambda: "unknown 1" in _data(cluster[1].url))
        known.publish("t", "known 2")
        assert _take(subscription, 1) == ["known 2"]
        cluster.kill(0)
        assert _take(subscription, 1) == ["unknown 1"]
        known.publish("t", "known 3")
        assert _take(subscription, 1) == ["known 3"]


def _moved_store(cluster: quire.testing.Cluster, store: str, **options: Any) -> None:
    """Reads a message on the first server, which then dies. The disk of the second one is lost."""
    with quire.Client(cluster.urls, name="known") as known:
        known.publish("t", "known 1")
        known.flush(PATIENCE)
        with (
            quire.Client(cluster[0].url, bookmark_store=store) as reader,
            _reading(reader, **options) as subscription,
        ):
            assert _take(subscription, 1) == ["known 1"]
    cluster.lose_disk(1)
    cluster.start(1)
    cluster.wait_until_replicated(PATIENCE)
    cluster.kill(0)


def test_without_a_place_a_subscription_from_the_beginning_begins_again_and_logs_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = str(tmp_path / "reader.places")
    with quire.testing.cluster(2) as cluster:
        _moved_store(cluster, store)
        with (
            caplog.at_level(logging.WARNING, "quire.client"),
            quire.Client(cluster[1].url, bookmark_store=store) as reader,
            quire.Client(cluster[1].url, name="known") as known,
            _reading(reader) as subscription,
        ):
            known.publish("t", "known 2")
            assert _take(subscription, 1) == ["known 2"]
        assert "begins with the oldest message of the log again" in caplog.text


def test_without_a_place_a_subscription_fails_when_it_is_told_to(tmp_path: Path) -> None:
    store = str(tmp_path / "reader.places")
    with quire.testing.cluster(2) as cluster:
        _moved_store(cluster, store, bookmark_not_found="fail")
        with (
            quire.Client(cluster[1].url, bookmark_store=store) as reader,
            pytest.raises(quire.BadBookmarkError, match="place in the log here") as caught,
        ):
            _reading(reader, bookmark_not_found="fail")
        assert caught.value.code == "bookmark_not_found"
