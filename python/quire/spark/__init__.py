"""Spark on the journal: `spark.read.format("quire")`, `readStream`, `write` and `writeStream`.

The extra `spark` of the wheel installs PySpark and pyarrow. `docs/spark.md` has the options,
columns and jobs.
"""

from __future__ import annotations

import locale
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from quire._errors import ConfigError

try:
    from pyspark.sql import SparkSession
except ImportError as _error:
    raise ConfigError("Spark is not installed: pip install 'quire-mq[spark]'") from _error

from quire.spark import _jar
from quire.spark._archive import Archived, Compacted, archive, compact
from quire.spark._bars import bars
from quire.spark._jar import jar
from quire.spark._last_value import LastValues, last_value
from quire.spark._queue_audit import queue_audit
from quire.spark._replay import Replayed, replay
from quire.spark._source import QuireDataSource

#: The log configuration of Spark with `session(quiet=True)`.
_LOGGING = Path(__file__).with_name("log4j2.properties")


def register(spark: SparkSession) -> None:
    """Registers the format `quire` in the session. This is only needed if Spark did not find it by itself."""
    spark.dataSource.register(QuireDataSource)


def session(
    master: str | None = "local[*]",
    *,
    memory: str = "1g",
    name: str = "quire",
    quiet: bool = False,
    config: dict[str, Any] | None = None,
) -> SparkSession:
    """Returns a Spark session with settings for quire, for programs that have no session.

        spark = quire.spark.session("local[2]")
        spark.read.format("quire").load("quire-data/journal").show()

    The session has the jar of quire (`jar()`), with which reads take less time. A session that
    another part of the program made before stays as it is: give its builder `spark.jars`.

    `memory` is the memory of the driver, which does all the work in local mode. With `quiet`, Spark
    prints only errors, also while it starts. `config` overrides settings. With `master=None`,
    `spark-submit` decides where Spark runs.
    """
    settings = {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.python.filterPushdown.enabled": "true",
        "spark.python.unix.domain.socket.enabled": "true",
        # Spark gives a worker 15 s to start, which a busy machine can exceed.
        "spark.python.authenticate.socketTimeout": "60s",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": memory,
    }
    if master is not None and master.startswith("local"):
        # Spark takes the first python3 on the path otherwise, in which quire need not be installed.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        # Only this machine connects to this driver, and looking up the name of the machine can take
        # long.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        # Workers that are dismissed do not fill the terminal. Elsewhere it goes to logs, and a
        # cluster may have another version of quire.
        settings["spark.python.daemon.module"] = "quire.spark._daemon"
        settings["spark.driver.host"] = settings["spark.driver.bindAddress"] = "127.0.0.1"
    if quiet:
        # About packages that quire does not use.
        warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
        settings["spark.driver.extraJavaOptions"] = f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}"
    settings.update(config or {})
    if (own := _jar.found()) is not None:
        # Next to the jars of the program.
        settings["spark.jars"] = ",".join(filter(None, (settings.get("spark.jars"), str(own))))
    builder: Any = SparkSession.builder
    builder = builder.appName(name) if master is None else builder.appName(name).master(master)
    for key, value in settings.items():
        builder = builder.config(key, value)
    with _names_in_utf8():
        spark: SparkSession = builder.getOrCreate()
    register(spark)
    return spark


#: The values that Python gives `LC_CTYPE` when it finds no usable locale.
_FALLBACKS = ("C.UTF-8", "C.utf8", "UTF-8")


@contextmanager
def _names_in_utf8() -> Iterator[None]:
    """Java writes the names of files as the locale says that it is started in, and in that of C
    only those in ASCII.

    Python uses another encoding there, by a setting that Java ignores when another setting
    contradicts it."""
    before = os.environ.get("LC_ALL")
    is_helped = not before and os.environ.get("LC_CTYPE") in _FALLBACKS
    if locale.getencoding().lower() in ("utf-8", "utf8") and not is_helped:
        yield
        return
    os.environ["LC_ALL"] = "C.UTF-8"
    try:
        yield
    finally:
        if before is None:
            del os.environ["LC_ALL"]
        else:
            os.environ["LC_ALL"] = before


__all__ = [
    "Archived",
    "Compacted",
    "LastValues",
    "Replayed",
    "archive",
    "bars",
    "compact",
    "jar",
    "last_value",
    "queue_audit",
    "register",
    "replay",
    "session",
]
