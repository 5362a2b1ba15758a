"""Spark on the journal: `spark.read.format("quire")` and its siblings.

`pip install 'quire[spark]'` brings what it needs. `docs/spark.md` has the options, the columns and the jobs.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from quire._errors import ConfigError

try:
    from pyspark.sql import SparkSession
except ImportError as error:
    raise ConfigError("Spark is not installed: pip install 'quire[spark]'") from error

from quire.spark._source import QuireDataSource


def register(spark: SparkSession) -> None:
    """Makes the format `quire` known to the session. Only needed where Spark did not find it by itself."""
    spark.dataSource.register(QuireDataSource)


def session(
    master: str = "local[*]", *, memory: str = "1g", name: str = "quire", config: dict[str, Any] | None = None
) -> SparkSession:
    """A session with the settings that suit quire, for programs that have none yet.

    `memory` is that of the driver, which in local mode does all the work. `config` overrides any setting.
    """
    settings = {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.python.filterPushdown.enabled": "true",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": memory,
    }
    if master.startswith("local"):
        # Spark takes the first python3 on the path otherwise, in which quire need not be installed.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        # Nobody else has to reach this driver, and looking up the name of the machine can take long.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        settings["spark.driver.host"] = settings["spark.driver.bindAddress"] = "127.0.0.1"
    settings.update(config or {})
    builder: Any = SparkSession.builder
    builder = builder.master(master).appName(name)
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark: SparkSession = builder.getOrCreate()
    register(spark)
    return spark


__all__ = ["register", "session"]
