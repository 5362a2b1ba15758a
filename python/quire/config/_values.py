"""Values as people write them in a configuration: sizes, durations, addresses."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address
from typing import Annotated

from pydantic import BeforeValidator

from quire._errors import ConfigError, QuireError
from quire._units import seconds, size


def _size(value: object) -> int:
    try:
        return size(value, "size")  # type: ignore[arg-type]
    except ConfigError:
        raise ValueError(f"{value!r} is not a size: bytes, or text such as '64MB'") from None


def _seconds(value: object) -> float:
    try:
        return round(seconds(value, "duration"), 9)  # type: ignore[arg-type]
    except QuireError:
        raise ValueError(
            f"{value!r} is not a duration: a timedelta, seconds, or text such as '100ms'"
        ) from None


Size = Annotated[int, BeforeValidator(_size)]
Duration = Annotated[float, BeforeValidator(_seconds)]


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
        if not colon or not host or not port.isdecimal() or int(port) > 65535:
            raise ValueError(f"{text!r} is not an address such as '127.0.0.1:9007'")
        return cls(host, int(port))
