"""Tools for tests: real servers, and messages without a server.

`server()` runs a server in the process of the test. A `ServerProcess` can be killed. `cluster()`
runs instances that replicate to each other, and that can be killed and partitioned. `message()`
makes the message for a handler.

The pytest fixtures `quire_server`, `quire_server_process`, `quire_client` and `quire_async_client`
are available where quire is installed (docs/testing.md).
"""

from quire.testing._certificates import Certificates, certificates
from quire.testing._cluster import Cluster, Instance, cluster
from quire.testing._message import message, verdict
from quire.testing._server import ServerProcess, TestServer, server
from quire.testing._tokens import Tokens, tokens

__all__ = [
    "Certificates",
    "Cluster",
    "Instance",
    "ServerProcess",
    "TestServer",
    "Tokens",
    "certificates",
    "cluster",
    "message",
    "server",
    "tokens",
    "verdict",
]
