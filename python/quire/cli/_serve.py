"""`quire serve`."""

from __future__ import annotations

import contextlib
import json
import queue
import signal
import sys
from pathlib import Path

from quire._errors import ConfigError, QuireError
from quire._process import StopSignals, raise_open_files
from quire.cli._config import load
from quire.config import Address, Config
from quire.config._logging import Logging
from quire.server._server import Progress, Server


def serve(
    config_file: Path | None,
    *,
    address: str | None,
    data_directory: Path | None,
    insecure: bool,
    as_json: bool,
) -> int:
    config = Config() if config_file is None else load(config_file)
    if address is not None:
        try:
            Address.parse(address)
        except ValueError as error:
            raise ConfigError(str(error), key="--address") from None
    config = config.replace(address=address, data_directory=data_directory, insecure=insecure)
    raise_open_files()
    stopping = StopSignals(signal.SIGTERM, signal.SIGINT)
    server = _Program(config, on_progress=_progress() if sys.stderr.isatty() else None)
    reloads: queue.SimpleQueue[None] = queue.SimpleQueue()
    if hasattr(signal, "SIGHUP"):
        # Before the start: the actions of the signal come in addition.
        signal.signal(signal.SIGHUP, lambda *_: reloads.put(None))
    server.start()
    try:
        if as_json:
            said = {
                "url": server.url,
                "urls": server.urls,
                "journal": str(config.journal_directory),
                "admin": server.admin_url,
            }
            print(json.dumps(said), flush=True)
        else:
            print(
                f"listening on {', '.join(server.urls.values())}, journal in {config.journal_directory}"
                + ("" if server.admin_url is None else f", administration at {server.admin_url}"),
                flush=True,
            )
        while not stopping.wait(1.0) and server.is_running:
            while not reloads.empty():
                reloads.get()
                _reload(server)
    finally:
        server.close()
    return 0


def _reload(server: Server) -> None:
    """Reads the configuration again. The log has the result."""
    with contextlib.suppress(QuireError, OSError):
        server.reload()


class _Program(Server):
    """The server of `quire serve`. Its log has the lines of all loggers."""

    _log_default = (Logging(),)
    _logger_name = None


def _progress() -> Progress:
    """A line about the recovery of a long journal."""

    def show(done: int, total: int) -> None:
        end = "\n" if done >= total else ""
        print(
            f"\rreading the journal: {done / max(total, 1):4.0%} of {total / 1024**2:,.0f} MB",
            end=end,
            file=sys.stderr,
        )

    return show
