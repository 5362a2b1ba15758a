"""Helpers of several test modules: servers and clients in processes, fakes of either side, and
timeouts."""
