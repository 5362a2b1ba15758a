"""Ports that no other process gets between two servers that use them."""

from __future__ import annotations

import socket
import sys


def reserve() -> tuple[socket.socket, int]:
    """Returns a free port of 127.0.0.1, and the socket that reserves it until it is closed.

    A server that sets SO_REUSEADDR can listen on the port meanwhile. Other systems than Linux would
    refuse that: there the socket is closed already, and nothing is reserved.
    """
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind(("127.0.0.1", 0))
    port: int = reserved.getsockname()[1]
    if sys.platform != "linux":
        reserved.close()
    return reserved, port
