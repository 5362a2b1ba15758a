"""What tests of programs with Spark share."""

#: Spark gives each of its Python processes ten seconds to start, whatever it is configured with. A
#: busy machine needs longer.
SPARK_TOO_SLOW = "Timed out while waiting for the Python worker to connect back"
