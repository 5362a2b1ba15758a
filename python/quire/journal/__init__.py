"""The log without a broker, and the log of a running server. Import the names from `quire`."""
