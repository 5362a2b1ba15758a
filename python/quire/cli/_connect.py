"""The client of a command that needs what the log already has."""

from __future__ import annotations

import quire
from quire._arguments import journal_inside
from quire.cli import default_url
from quire.client._blocking import Observer
from quire.client._links import Place, parse_url


def connect(
    url: str | None, *, key: str = "--url", name: str | None = None, connect_timeout: float | None = None
) -> quire.Client:
    """Connects to what has the log: `url`, or the default.

    Raises `ConfigError` with `key` for `file:` with a directory that has no journal. A client would create
    one there, and the command would find nothing in it.
    """
    url = url or default_url()
    place = parse_url(url)
    if isinstance(place, Place) and (directory := place.directory) is not None:
        if not directory.exists():
            raise quire.ConfigError(f"there is no directory {directory}", key=key)
        if directory.is_dir() and not any(directory.glob("*.journal")):
            inside = journal_inside(directory)
            hint = "" if inside is None else f"; perhaps you mean file:{inside}"
            raise quire.ConfigError(f"there is no journal in {directory}{hint}", key=key)
    if connect_timeout is None:
        return Observer(url, name=name)
    return Observer(url, name=name, connect_timeout=connect_timeout)


__all__ = ["connect"]
