"""The client is imported on systems other than Linux: these processes do not have the modules of
Linux or Unix.

The extension is that of this machine. These tests show that the Python code asks for nothing at its
import that macOS or Windows lack.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

#: Modules of the standard library that Windows does not have.
UNIX_MODULES = ("fcntl", "grp", "posix", "pwd", "resource", "termios", "tty")

#: Imports what is not of quire first: the standard library chose its own way at the start of the
#: process.
PROGRAM = """
import asyncio, importlib, json, logging, platform, select, signal, socket, subprocess, sys, tempfile, threading
import sysconfig, tomllib
import cyclopts, pytest, rich.console, rich.progress, rich.table
from pydantic import BaseModel, TypeAdapter
try:
    import uvloop
except ImportError:
    pass
import os

sysconfig.get_config_vars()
system, modules = sys.argv[1], sys.argv[2].split(",")
for module in modules if system == "win32" else ():
    sys.modules[module] = None
for name in {"win32": ("register_at_fork", "uname", "geteuid", "getuid", "fork"), "darwin": ()}[system]:
    delattr(os, name)
for name in {"win32": ("AF_UNIX", "SO_PEERCRED"), "darwin": ("SO_PEERCRED",)}[system]:
    delattr(socket, name)
for name in {"win32": ("SIGKILL", "SIGHUP"), "darwin": ()}[system]:
    delattr(signal, name)
sys.platform = system

import quire

for name in quire.__all__:
    getattr(quire, name)
for name in ("quire.config", "quire.testing", "quire.cli", "quire.cli._app", "quire._pytest"):
    importlib.import_module(name)
assert len(quire.client._options.generated_name()) > 10
quire.Config()
with quire.Client("memory:") as client:
    client.publish("orders", {"qty": 1})
    client.flush("60s")
    assert client.subscribe("orders", bookmark=quire.EPOCH).get(timeout=60).json() == {"qty": 1}
"""


@pytest.mark.parametrize("system", ["darwin", "win32"])
def test_the_client_is_imported_without_what_only_unix_has(system: str) -> None:
    command = [sys.executable, "-W", "error", "-c", PROGRAM, system, ",".join(UNIX_MODULES)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stderr
