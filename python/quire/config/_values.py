"""Values as people write them in a configuration: sizes, durations, addresses."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator

from quire import _units as units
from quire._errors import ConfigError
from quire._text import without_password
from quire._units import seconds, size
from quire.config._mistakes import expected, got


def size_between(low: str, high: str | None = None) -> BeforeValidator:
    """Reads a size within bounds."""
    least, most = size(low, "low"), None if high is None else size(high, "high")
    if most is not None:
        what = f'a size from {low} to {high} such as "16MB"'
    else:
        what = f'a size of at least {low} such as "64MB"' if least else 'a size such as "64MB"'

    def read(value: object) -> int:
        try:
            result = size(value, "size")  # type: ignore[arg-type]
        except ConfigError:
            raise expected(what, value) from None
        if result < least or (most is not None and result > most):
            raise expected(what, value)
        return result

    return BeforeValidator(read)


def _share(value: object) -> float:
    """Reads a part of a limit."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0.001 <= value <= 1:
        raise expected("a part from 0.001 to 1 such as 0.5", value)
    return float(value)


#: The part of a limit that one client may use.
Share = Annotated[float, BeforeValidator(_share)]


def duration_between(low: str, high: str | None = None, *, is_low_excluded: bool = False) -> BeforeValidator:
    """Reads a duration within bounds."""
    least, most = seconds(low, "low"), None if high is None else seconds(high, "high")
    if most is not None:
        what = f'a duration from {low} to {high} such as "{high}"'
    elif is_low_excluded:
        what = 'a duration above 0 such as "30s"'
    else:
        what = f'a duration of at least {low} such as "30s"' if least else 'a duration such as "30s"'

    def read(value: object) -> float:
        try:
            result = round(seconds(value, "duration"), 9)  # type: ignore[arg-type]
        except ConfigError:
            raise expected(what, value) from None
        if result < least or (is_low_excluded and result == least) or (most is not None and result > most):
            raise expected(what, value)
        return result

    return BeforeValidator(read)


#: The values that a key accepts, for type checkers. The models convert them.
DurationLike = units.Duration
SizeLike = units.Size
DirectoryLike = str | PathLike[str]


def as_written(path: Path) -> Path:
    """Refuses a path that a shell would replace: here it would be a file or directory of that name."""
    if path.parts[:1] and path.parts[0].startswith("~"):
        raise ValueError(f"{got(str(path))} begins with ~, which is not replaced: write the whole path")
    if any(part.startswith("$") or "${" in part for part in path.parts):
        raise ValueError(
            f"{got(str(path))} has a variable, and variables are not replaced: write the whole path"
        )
    return path


#: A table as a mapping with the keys of its model.
Table = Mapping[str, Any]

Size = Annotated[int, size_between("0")]
Duration = Annotated[float, duration_between("0")]
#: A duration above 0.
Period = Annotated[float, duration_between("0", is_low_excluded=True)]


def _lease(value: object) -> object:
    if value is None or value == "disabled":
        return value
    try:
        result = round(seconds(value, "duration"), 9)  # type: ignore[arg-type]
    except ConfigError:
        result = 0.0
    if not result > 0:
        raise expected('a duration above 0 such as "30s", or "disabled"', value)
    return result


#: The longest time for which a consumer may hold a message; "disabled": without end; `None`: the
#: default of the queue.
LeasePeriod = Annotated[Literal["disabled"] | float | None, BeforeValidator(_lease)]


@dataclass(frozen=True)
class Address:
    """Where a server listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether only programs on the same machine reach it."""
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    @classmethod
    def parse(cls, text: str) -> Address:
        """Reads `host:port` or `[ipv6]:port`; port 0 = a free one."""
        host, colon, port = text.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        is_port = re.fullmatch("[0-9]{1,5}", port) is not None and int(port) <= 65535
        if not colon or not host or "@" in host or not is_port:
            what = 'an address such as "127.0.0.1:9007", with a port up to 65535'
            raise expected(what, without_password(text))
        return cls(host, int(port))


def _checked(text: str) -> str:
    Address.parse(text)
    return text


#: The text of an address, as it was written.
AddressText = Annotated[str, AfterValidator(_checked)]
