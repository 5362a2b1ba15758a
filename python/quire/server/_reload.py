"""A new configuration for a running server: which keys may change, and what is wrong with the others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from quire._errors import ConfigError
from quire.config import Config

#: The keys that a running server takes over as a whole.
_RELOADED: Final = ("entitlement", "user_limit", "authentication", "logging")
#: The keys of which it takes over these keys.
_RELOADED_PARTS: Final = {
    "transport": ("tls", "authentication"),
    "admin": ("authentication",),
    "replication": ("tls", "authentication"),
    "replication.destination": ("tls", "user", "password_file", "token_file"),
}


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
    changed = sorted(set(_differences(before, after)))
    for key in changed:
        if not _is_reloaded(key):
            raise ConfigError("a change of it requires a restart of the server", key=key, file=file)
    if before.entitlement and not after.entitlement:
        raise ConfigError(
            "the last entry was removed, so that every user could do everything; restart the server for this",
            key="entitlement",
            file=file,
        )
    new = config.model_copy(update=_taken_over(config, after))
    new._source = after._source
    return new, changed


def _differences(before: Config, after: Config) -> Iterator[str]:
    """The keys that differ, as in the file."""
    for key in Config.model_fields:
        old, new = getattr(before, key), getattr(after, key)
        if old == new:
            continue
        match key:
            case "transport" if len(old) == len(new):
                for number, (one, other) in enumerate(zip(old, new, strict=True)):
                    yield from _keys_of(f"transport[{number}]", one, other)
            case "admin":
                yield from _keys_of(key, old, new)
            case "replication" if len(old.destination) == len(new.destination):
                yield from (each for each in _keys_of(key, old, new) if each != "replication.destination")
                for number, (one, other) in enumerate(zip(old.destination, new.destination, strict=True)):
                    yield from _keys_of(f"replication.destination[{number}]", one, other)
            case _:
                yield key


def _keys_of(place: str, before: Any, after: Any) -> Iterator[str]:
    if before is None or after is None:
        yield place
        return
    for key in type(before).model_fields:
        if getattr(before, key) != getattr(after, key):
            yield f"{place}.{key}"


def _is_reloaded(key: str) -> bool:
    table, _, last = key.rpartition(".")
    return key in _RELOADED or last in _RELOADED_PARTS.get(table.partition("[")[0], ())


def _taken_over(config: Config, after: Config) -> dict[str, Any]:
    """The values of the new configuration that a server takes over."""
    replication = config.replication
    # The options of the command line may have replaced the transports by one.
    transports = tuple(
        old.model_copy(update={key: getattr(new, key) for key in _RELOADED_PARTS["transport"]})
        for old, new in zip(config.transport, after.transport, strict=False)
    )
    destinations = tuple(
        old.model_copy(update={key: getattr(new, key) for key in _RELOADED_PARTS["replication.destination"]})
        for old, new in zip(replication.destination, after.replication.destination, strict=True)
    )
    update = {key: getattr(after.replication, key) for key in _RELOADED_PARTS["replication"]}
    admin = config.admin
    if admin is not None and after.admin is not None:
        admin = admin.model_copy(update={key: getattr(after.admin, key) for key in _RELOADED_PARTS["admin"]})
    return {
        **{key: getattr(after, key) for key in _RELOADED},
        "admin": admin,
        "transport": transports,
        "replication": replication.model_copy(update={**update, "destination": destinations}),
    }
