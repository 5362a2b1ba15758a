"""A new configuration for a running server: which keys may change, and what is wrong with the others."""

from __future__ import annotations

from typing import Final

from quire._errors import ConfigError
from quire.config import Config

#: The keys that a running server takes over.
RELOADED: Final = ("entitlement",)


def reloaded(config: Config) -> tuple[Config, list[str]]:
    """Reads the file of a configuration again. Returns the new configuration, and the keys that differ.

    Raises `ConfigError` for a mistake in the file, and for a change that requires a restart.
    """
    file = config._source.file
    if file is None:
        raise ConfigError("the server has no configuration file, so there is nothing to read again")
    # The options of the command line have replaced some keys of the configuration.
    before = Config._parse(file, config._source.text)
    after = Config.load(file)
    after.check()
    changed = [key for key in Config.model_fields if getattr(before, key) != getattr(after, key)]
    for key in changed:
        if key not in RELOADED:
            raise ConfigError("a change of it requires a restart of the server", key=key, file=file)
    if before.entitlement and not after.entitlement:
        raise ConfigError(
            "the last entry was removed, so that every user could do everything; restart the server for this",
            key="entitlement",
            file=file,
        )
    update = {key: getattr(after, key) for key in RELOADED}
    new = config.model_copy(update=update)
    new._source = after._source
    return new, changed
