"""Errors of quire for a user of Spark: the message first, without the Python frames before it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from quire._errors import QuireError

#: With this in its environment, a worker of PySpark (4.3) reports an exception without its
#: traceback.
_HIDES_TRACEBACK = "SPARK_HIDE_TRACEBACK"


@contextmanager
def hiding_traceback() -> Iterator[None]:
    """Hides the traceback of an error of quire or of the system in a worker of Spark. Other
    exceptions keep theirs.

    The setting stays for the rest of the process: a worker ends after it has reported an exception.
    In other processes nothing changes."""
    try:
        yield
    except (QuireError, OSError):
        if is_worker():
            os.environ[_HIDES_TRACEBACK] = "1"
        raise


def is_worker() -> bool:
    """Whether this process is a Python worker of Spark."""
    spec = sys.modules["__main__"].__spec__
    return spec is not None and (spec.name.startswith("pyspark.") or spec.name == "quire.spark._daemon")
