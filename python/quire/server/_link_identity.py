"""The identity with which this instance logs on to other instances: its user, and the file of its secret."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Final

from quire._errors import ConfigError
from quire.config import Config, Destination

#: The most bytes of a password or a token.
_SECRET_SIZE_MAX: Final = 16 * 1024


def identity_of(destination: Destination) -> bytes:
    """Returns user, password and token as the core reads them. Each call reads the files.

    Raises `ConfigError` with the key of a file that cannot be used.
    """
    files = {"password_file": destination.password_file, "token_file": destination.token_file}
    secrets = [None if file is None else _secret(file, key) for key, file in files.items()]
    return json.dumps([destination.user, *secrets]).encode()


def mistakes_of_identities(config: Config) -> list[tuple[str, str]]:
    """Returns the keys of the files with secrets of links that cannot be used, with the reasons."""
    found = []
    for number, destination in enumerate(config.replication.destination):
        try:
            identity_of(destination)
        except ConfigError as error:
            found.append((f"replication.destination[{number}].{error.key}", error._reason))
    return found


def _secret(path: Path, key: str) -> str:
    """The only line of a file. The errors do not repeat it."""
    try:
        about = os.stat(path)
        if about.st_mode & (stat.S_IROTH | stat.S_IWOTH):
            raise ConfigError(f"every user of this machine may read {path}: run `chmod o= {path}`", key=key)
        if about.st_size > _SECRET_SIZE_MAX:
            raise ConfigError(f"{path} has more than {_SECRET_SIZE_MAX} bytes", key=key)
        text = path.read_bytes().decode("utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}", key=key) from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8", key=key) from None
    lines = text.splitlines()
    if len(lines) != 1 or not lines[0]:
        raise ConfigError(f"{path} must have one line, which is the secret", key=key)
    return lines[0]
