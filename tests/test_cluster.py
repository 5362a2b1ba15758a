"""`quire.testing.cluster`: instances that are killed, that lose their disks and that cannot reach
each other."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import quire
import quire.testing
from quire.testing import Cluster
from support.waiting import PATIENCE, wait_until

AGAIN = quire.Reconnect(initial="5ms", maximum="50ms")


def numbers_at(url: str) -> list[int]:
    """The numbers of all messages that an instance has, in their order."""
    numbers = []
    with quire.Client(url) as client:
        replay = client.subscribe("orders", bookmark=quire.EPOCH)
        # The replay is over after its last message was taken.
        while not replay.completed.wait(0):
            with contextlib.suppress(TimeoutError):
                numbers.append(replay.get(0.01).json()["n"])
    return numbers


def publish(client: quire.Client, *numbers: int) -> None:
    for number in numbers:
        client.publish("orders", {"n": number})


def test_a_client_continues_when_an_instance_is_killed_and_lost_its_disk() -> None:
    with (
        quire.testing.cluster(2, link={"downgrade_after": "1s"}) as cluster,
        quire.Client(cluster.urls, name="p", reconnect=AGAIN) as client,
    ):
        publish(client, *range(100))
        client.flush(PATIENCE)
        cluster.kill("instance-1")
        cluster.lose_disk("instance-1")
        assert not cluster[0].directory.exists()
        publish(client, *range(100, 200))
        client.flush(PATIENCE)
        cluster.start("instance-1")
        cluster.wait_until_replicated(PATIENCE)
        assert numbers_at(cluster[0].url) == numbers_at(cluster[1].url) == list(range(200))


def test_nothing_passes_between_two_instances_until_the_partition_is_healed() -> None:
    with (
        quire.testing.cluster() as cluster,
        quire.Client(cluster[0].url, name="a") as a,
        quire.Client(cluster[1].url, name="b") as b,
    ):
        cluster.partition(0, 1)
        publish(a, 1)
        publish(b, 2)
        for client in (a, b):
            with pytest.raises(TimeoutError):
                client.flush(0.1)
        # The published messages are in the logs, and not at the other side.
        assert all(link["seconds_behind"] > 0 for i in cluster for link in i.links()["destinations"])
        with quire.Client(cluster[0].url, name="sub") as reader:
            assert reader.subscribe("orders", bookmark=quire.EPOCH).get(PATIENCE).json() == {"n": 1}
        cluster.heal()
        for client in (a, b):
            client.flush(PATIENCE)
        for instance in cluster:
            assert sorted(numbers_at(instance.url)) == [1, 2]


def test_one_of_three_instances_is_parted_from_the_others() -> None:
    with quire.testing.cluster(3, "async") as cluster, quire.Client(cluster[1].url, name="p") as client:
        cluster.partition(cluster[0])
        publish(client, 1)
        client.flush(PATIENCE)
        # The links to it are not waited for.
        cluster.wait_until_replicated(PATIENCE)
        assert numbers_at(cluster[2].url) == [1]
        assert numbers_at(cluster[0].url) == []
        cluster.heal(0, 1)
        cluster.wait_until_replicated(PATIENCE)
        assert numbers_at(cluster[0].url) == [1]
        # Still parted from the third one: the link there is not ready.
        assert {frozenset((0, 2))} == cluster._held
        cluster.heal()
        cluster.wait_until_replicated(PATIENCE)


def test_instances_that_are_connected_directly_replicate_and_cannot_be_parted() -> None:
    with quire.testing.cluster(2, can_partition=False) as cluster:
        with quire.Client(cluster[0].url) as client:
            client.publish("orders", {"id": 1})
            client.flush(PATIENCE)
        with quire.Client(cluster[1].url) as client, client.subscribe("orders", bookmark="0") as subscription:
            assert subscription.get(PATIENCE).json() == {"id": 1}
        with pytest.raises(quire.ConfigError, match="can_partition=False"):
            cluster.partition(0, 1)


def test_an_instance_is_restarted_with_its_data_and_its_url() -> None:
    with quire.testing.cluster(2) as cluster, quire.Client(cluster[0].url, name="p") as client:
        publish(client, 1)
        client.flush(PATIENCE)
        url, pid = cluster[0].url, cluster[0].pid
        cluster.restart(0)
        assert cluster[0].url == url
        assert cluster[0].pid != pid
        assert cluster.terminate(0) == 0
        cluster.restart(0)
        assert numbers_at(url) == [1]


def test_a_link_that_does_not_come_up_is_named() -> None:
    with quire.testing.cluster(2) as cluster:
        cluster.terminate(1)
        cluster.wait_until_replicated(PATIENCE)
        # It runs, and no link comes up: the links of a pair share the connection of either
        # instance.
        for forwarder in cluster._forwarders.values():
            forwarder.hold()
        cluster.start(1)
        with pytest.raises(TimeoutError, match="instance-1 to instance-2"):
            cluster.wait_until_replicated(0)


@pytest.mark.parametrize("is_kept", [True, False])
def test_at_the_end_all_processes_have_ended_and_only_a_given_directory_stays(
    is_kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    directory = tmp_path / "given" if is_kept else None
    with quire.testing.cluster(2, directory=directory) as cluster:
        pids = [instance.pid for instance in cluster]
        cluster.partition(0, 1)
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    left = ["given/instance-1", "given/instance-2"] if is_kept else []
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.glob("*/*")) == left


def test_the_settings_are_those_of_every_instance() -> None:
    recorded = [
        {"name": "a", "message_type": "json", "recorded": False},
        {"name": "b", "message_type": "json"},
    ]
    with quire.testing.cluster(
        2, link={"downgrade_after": "100ms"}, transaction_log={"topic": recorded}
    ) as cluster:
        cluster.kill(1)
        with quire.Client(cluster[0].url, name="p") as client:
            client.publish("b", b"{}")
            client.flush(PATIENCE)
            wait_until(lambda: cluster[0].links()["destinations"][0]["sync_type"] == "async")
            with pytest.raises(quire.NotJournaledError):
                client.subscribe("a", bookmark=quire.EPOCH)


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda _: quire.testing.cluster(0), "0 is not between 1 and 65"),
        (lambda _: quire.testing.cluster(name="x"), "the cluster sets it for each instance"),
        (lambda cluster: cluster.kill("b"), "no instance is 'b'; there are instance-1, instance-2"),
        (lambda cluster: cluster.partition(1, "instance-2"), "cannot be parted from itself"),
    ],
)
def test_a_wrong_argument_is_refused(call: Callable[[Cluster], Any], reason: str) -> None:
    cluster = quire.testing.cluster(2)
    try:
        with pytest.raises(quire.ConfigError, match=reason):
            call(cluster)
    finally:
        cluster.close()


def test_three_instances_agree_after_a_publisher_moved_to_another_one_during_a_partition() -> None:
    with quire.testing.cluster(3) as cluster:
        first, second, third = cluster
        cluster.partition(first, second)
        publisher = quire.Client(first.url, name="p")
        publisher.publish("orders", {"n": 1})
        wait_until(lambda: numbers_at(third.url) == [1])
        publisher.close(timeout=0)
        # The second instance gets the next message from the third one, before the first one can
        # send the first message.
        with quire.Client(third.url, name="p") as publisher:
            publisher.publish("orders", {"n": 2})
            # Each instance acknowledges what the two others have, so nothing is persisted during
            # the partition.
            wait_until(lambda: numbers_at(second.url) == [1, 2])
            cluster.heal()
            publisher.flush(PATIENCE)
        cluster.wait_until_replicated(PATIENCE)
        assert [numbers_at(instance.url) for instance in cluster] == [[1, 2]] * 3
