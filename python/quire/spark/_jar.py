"""The jar with the source on the JVM, and the choice between it and the source in Python.

In a session that has the jar, Spark finds the class `quire.DefaultSource` in it before it looks for
a source in Python. So when a read reaches the Python source, it was requested, or the session has
no jar.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from quire._errors import ConfigError

log = logging.getLogger("quire.spark")

#: The build writes it here (crates/quire-jvm/build_jar.py).
_JAR = Path(__file__).with_name("quire-spark.jar")

#: The option of a read that selects the source.
READER = "reader"

_TO_ADD = "quire.spark.session(...) adds it, and so do --jars and the setting spark.jars with the path of quire.spark.jar()"


def jar() -> Path:
    """The jar with the source on the JVM, for `--jars` and `spark.jars`. `quire.spark.session` adds
    it by itself.

    Raises `ConfigError` when this installation has none: it was built where Java was missing. Spark
    then reads with the Python source.
    """
    if (own := found()) is None:
        raise ConfigError(
            f"there is no {_JAR.name} in this installation, because it was built without Java; the Python source reads"
        )
    return own


def found() -> Path | None:
    """The jar, if there is one."""
    return _JAR if _JAR.is_file() else None


def check_choice(options: Mapping[str, str]) -> None:
    """Checks the option `reader` of a read that reached the Python source. `ConfigError` when it
    asks for the other one.

    Without the option, and where the jar would help, it is logged once for a session that there is
    a faster source.
    """
    given = {key.lower(): value for key, value in options.items()}
    reader = given.get(READER, "").lower()
    if reader not in ("", "jvm", "python"):
        raise ConfigError(f"{READER}: {reader!r} is not one of jvm, python")
    if reader == "jvm":
        raise ConfigError(
            f"{READER}: jvm needs the jar of quire, which this session does not have; {_TO_ADD}"
        )
    if not reader and "url" not in given and found() is not None and _is_first():
        log.warning(
            "the Python source reads, because this session does not have the faster one in the jar; %s",
            _TO_ADD,
        )


def _is_first() -> bool:
    """Whether no worker of the session has asked yet. Spark removes the directory with the session."""
    from pyspark import SparkFiles

    try:
        Path(SparkFiles.getRootDirectory(), "quire-without-jar").touch(exist_ok=False)
    except OSError:
        return False
    return True
