"""Tests of Spark on the journal, on one session."""
