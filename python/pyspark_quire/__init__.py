"""Spark finds it at the first use of the format `quire`. No call and no jar is needed.

Spark imports every module `pyspark_*` on its path, and one that raises hides all of them: this one
imports next to nothing, and never raises.
"""

from __future__ import annotations

try:
    from quire.spark._source import QuireDataSource as DefaultSource
except Exception:  # a broken or older installation must not take the sources of others with it
    __all__: list[str] = []
else:
    __all__ = ["DefaultSource"]
