"""Configuration files, and `quire config check`."""

from __future__ import annotations

import sys
from pathlib import Path

from quire._errors import ConfigError
from quire.cli import USER_MISTAKE
from quire.cli._output import print_json
from quire.config import Config


def check(file: Path, *, as_json: bool) -> int:
    try:
        config, warnings = _loaded(file)
    except ConfigError as error:
        if not as_json:
            raise
        mistakes = [
            {"line": mistake.line, "key": mistake.key, "reason": mistake._reason}
            for mistake in error.mistakes
        ]
        print_json(file=str(file), is_sound=False, **mistakes[0], mistakes=mistakes)
        return USER_MISTAKE
    journal = str(config.journal_directory)
    if as_json:
        addresses = [str(address) for address in config.addresses]
        print_json(
            file=str(file),
            is_sound=True,
            address=config.address,
            addresses=addresses,
            journal=journal,
            warnings=warnings,
        )
    else:
        print(f"{file}: sound; listens on {', '.join(map(str, config.addresses))}, journal in {journal}")
        for warning in warnings:
            print(f"{file}: warning: {warning}", file=sys.stderr)
    return 0


def load(file: Path) -> Config:
    """The configuration in a file. Raises `ConfigError` also for a file that cannot be read."""
    try:
        return Config.load(file)
    except FileNotFoundError:
        advice = "check the path; `quire config example` prints a configuration with every key"
        raise ConfigError(f"there is no such file; {advice}", file=file) from None
    except OSError as error:
        raise ConfigError(error.strerror or str(error), file=file) from None


def _loaded(file: Path) -> tuple[Config, list[str]]:
    """The configuration, and warnings about it."""
    config = load(file)
    return config, config.check()


__all__ = ["check", "load"]
