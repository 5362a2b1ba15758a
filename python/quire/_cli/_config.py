"""`quire config check`."""

from __future__ import annotations

from pathlib import Path

from quire._cli import USER_MISTAKE
from quire._cli._output import print_json
from quire._config import Config
from quire._errors import ConfigError


def check(file: Path, *, as_json: bool) -> int:
    try:
        config = _loaded(file)
    except ConfigError as error:
        if not as_json:
            raise
        print_json(file=str(file), is_sound=False, line=error.line, key=error.key, reason=error.reason)
        return USER_MISTAKE
    journal = str(config.journal_directory)
    if as_json:
        print_json(file=str(file), is_sound=True, address=config.address, journal=journal)
    else:
        print(f"{file}: sound; listens on {config.address}, journal in {journal}")
    return 0


def _loaded(file: Path) -> Config:
    try:
        config = Config.load(file)
    except OSError as error:
        raise ConfigError(error.strerror or str(error), file=file) from None
    config.check()
    return config


__all__ = ["check"]
