"""`quire.Client` on an engine in this process: publishing, taking messages, going round."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import quire
from pytest_benchmark.fixture import BenchmarkFixture

COUNT = 10_000
DATA = b'{"qty":1,"pad":"' + b"x" * 238 + b'"}'


@pytest.fixture(params=["memory", "file"])
def client(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[quire.Client]:
    url = f"file:{tmp_path}/journal" if request.param == "file" else f"memory:{tmp_path}"
    with quire.Client(url, name="bench") as client:
        yield client


def publish(client: quire.Client) -> None:
    for _ in range(COUNT):
        client.publish("t", DATA)
    client.flush()


def test_publish_10000_until_persisted(benchmark: BenchmarkFixture, client: quire.Client) -> None:
    benchmark.pedantic(publish, args=(client,), rounds=10, warmup_rounds=1)
    assert client.persisted > 0
    assert client.persisted % COUNT == 0


def test_publish_10000_in_batches_until_persisted(benchmark: BenchmarkFixture, client: quire.Client) -> None:
    batch = [DATA] * 500

    def run() -> None:
        for _ in range(0, COUNT, len(batch)):
            client.publish_many("t", batch)
        client.flush()

    benchmark.pedantic(run, rounds=10, warmup_rounds=1)
    assert client.persisted > 0
    assert client.persisted % COUNT == 0


def test_publish_one_dictionary_until_persisted(benchmark: BenchmarkFixture, client: quire.Client) -> None:
    def run() -> None:
        client.publish("t", {"symbol": "IBM", "qty": 100, "price": 171.25})
        client.flush()

    benchmark(run)
    assert client.persisted > 0


@pytest.mark.parametrize("way", ["batches", "iteration"])
def test_replay_10000(benchmark: BenchmarkFixture, client: quire.Client, way: str) -> None:
    publish(client)

    def run() -> int:
        size = 0
        with client.subscribe("t", bookmark=quire.EPOCH) as subscription:
            if way == "iteration":
                for message in subscription:
                    size += len(message)
                    if size == COUNT * len(DATA):
                        break
                return size
            for messages in subscription.batches():
                size += sum(map(len, messages))
                if size == COUNT * len(DATA):
                    break
        return size

    assert benchmark(run) == COUNT * len(DATA)


def test_publish_and_receive_one(benchmark: BenchmarkFixture, client: quire.Client) -> None:
    subscription = client.subscribe("t")

    def run() -> quire.Message:
        client.publish("t", DATA)
        return subscription.get()

    assert benchmark(run).data == DATA
