"""Helpers of tests of programs with Spark."""

#: Spark gives each of its Python processes ten seconds to start, in any configuration. A busy
#: machine needs longer.
SPARK_TOO_SLOW = "Timed out while waiting for the Python worker to connect back"
