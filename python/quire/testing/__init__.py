"""Tools for tests: real servers (`server()`, and `ServerProcess`, which can be killed), and messages (`message()`).

The pytest fixtures `quire_server`, `quire_server_process`, `quire_client` and `quire_async_client` are
available where quire is installed (docs/testing.md).
"""

from quire.testing._message import message, verdict
from quire.testing._server import ServerProcess, server

__all__ = ["ServerProcess", "message", "server", "verdict"]
