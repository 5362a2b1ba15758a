"""One small SparkSession for all tests of this directory: starting one costs more than most of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import quire.spark
from pyspark.sql import DataFrameReader, SparkSession
from support.waiting import PATIENCE

from spark import journals


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Gives the tests of Spark, on any machine, the time that a hang takes to be one."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(3 * PATIENCE))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    config = {
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.streaming.forceDeleteTempCheckpointLocation": "true",
        "spark.sql.streaming.checkpointFileManagerClass": (
            "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
        ),
        "spark.log.level": "ERROR",
        # A Python worker that starts late on a busy machine is not a failure.
        "spark.python.authenticate.socketTimeout": f"{PATIENCE}s",
        # Short jobs: compiling them well costs more than it saves.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }
    session = quire.spark.session("local[2]", memory="768m", name="tests", config=config)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def trades(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A journal of `journals.COUNT` trades in several segments. It is not written to any more."""
    directory = tmp_path_factory.mktemp("trades")
    journals.write(directory, journals.trades())
    return directory


@pytest.fixture(params=("jvm", "python"))
def reader(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[str]:
    """Runs a test with both readers. Without this fixture it runs with that on the JVM, because the
    session has the jar."""
    if request.param == "python":
        spark.conf.set("spark.datasource.quire.reader", "python")
    yield request.param
    spark.conf.unset("spark.datasource.quire.reader")


@pytest.fixture
def read(reader: str, spark: SparkSession) -> Callable[[], DataFrameReader]:
    """Gives a new `spark.read.format("quire")`: each keeps the options that it was given."""
    return lambda: spark.read.format("quire")
