"""`quire check`: one line and an exit code for a monitoring system."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from quire._errors import ConfigError, QuireError
from quire._units import seconds, size
from quire.cli._connect import connect
from quire.cli._output import say, visible

_WORDS: Final = ("OK", "WARNING", "CRITICAL", "UNKNOWN")
OK, WARNING, CRITICAL, UNKNOWN = range(4)


@dataclass
class _Findings:
    level: int = OK
    texts: list[str] = field(default_factory=list)
    figures: list[str] = field(default_factory=list)

    def note(self, level: int, text: str) -> None:
        """Something is wrong."""
        self.level = max(self.level, level)
        self.texts.append(text)


@dataclass(frozen=True)
class _Limit:
    """`NAME=WARNING[:CRITICAL]`."""

    name: str
    warning: float
    critical: float | None

    def level(self, value: float) -> int:
        if self.critical is not None and value > self.critical:
            return CRITICAL
        return WARNING if value > self.warning else OK


@dataclass(frozen=True)
class _Room:
    """`KIND=WARNING[:CRITICAL]`: bytes, or a share of the file system."""

    name: str
    warning: str
    critical: str | None

    def level(self, available: float, total: float) -> int:
        if self.critical is not None and available < _room(self.critical, total):
            return CRITICAL
        return WARNING if available < _room(self.warning, total) else OK


def check(
    url: str | None, *, max_depth: list[str], max_age: list[str], max_lag: list[str], min_free: list[str]
) -> int:
    found = _Findings()
    try:
        rooms = [_room_limit(text) for text in min_free]
        depths = [_limit(text, "--max-depth", _count) for text in max_depth]
        ages = [_limit(text, "--max-age", lambda text: seconds(text, "--max-age")) for text in max_age]
        lags = [_limit(text, "--max-lag", lambda text: seconds(text, "--max-lag")) for text in max_lag]
        _look(url, found, depths, ages, lags, rooms)
    except (QuireError, OSError) as error:
        found = _Findings(UNKNOWN, [str(error)])
    text = "; ".join(found.texts) or "the server is ready"
    figures = f" | {' '.join(found.figures)}" if found.figures else ""
    say(visible(f"{_WORDS[found.level]}: {text}{figures}".replace("\n", " ")))
    return found.level


def _look(
    url: str | None,
    found: _Findings,
    depths: list[_Limit],
    ages: list[_Limit],
    lags: list[_Limit],
    rooms: list[_Room],
) -> None:
    with connect(url) as client:
        server = client.server_info()
        queues = client.queue_stats() if depths or ages else {}
        systems = client._statistics({"path": "host/filesystems"})["value"] if rooms else []
        links = {each["name"]: each for each in client._replication()["destinations"]}
    if server.journal_failed is None:
        raise QuireError("the user needs the right monitor on /quire/server")
    if server.journal_failed:
        found.note(CRITICAL, "the journal accepts no writes: look at the disk and at the log of the server")
    found.figures += [f"connections={server.connections}", f"unpersisted={server.unpersisted_bytes}B"]
    for name, link in links.items():
        if link["state"] not in ("live", "catching_up", "paused"):
            reason = f" ({link['last_error']})" if link.get("last_error") else ""
            found.note(WARNING, f"destination {name} is not connected{reason}")
    for limit in depths:
        _compare(found, limit, queues, "depth", "queue {name} has {value:g} messages: add consumers", "")
    for limit in ages:
        text = "the oldest message of queue {name} is {value:.0f} s old: look at its consumers"
        _compare(found, limit, queues, "age_of_oldest_s", text, "s")
    for limit in lags:
        text = "destination {name} is {value:.0f} s behind: look at the connection and at its disk"
        _compare(found, limit, links, "seconds_behind", text, "s")
    by_kind = {each["id"]: each for each in systems}
    for room in rooms:
        _compare_room(found, room, by_kind)


def _compare(
    found: _Findings, limit: _Limit, objects: dict[str, Any], figure: str, text: str, unit: str
) -> None:
    if limit.name not in objects:
        found.note(UNKNOWN, f"the server has no {limit.name!r}")
        return
    value = float(objects[limit.name][figure] or 0)
    critical = "" if limit.critical is None else f"{limit.critical:g}"
    found.figures.append(f"'{limit.name} {figure}'={value:g}{unit};{limit.warning:g};{critical}")
    if level := limit.level(value):
        found.note(level, text.format(name=limit.name, value=value))


def _compare_room(found: _Findings, room: _Room, systems: dict[str, Any]) -> None:
    if room.name not in systems:
        known = ", ".join(systems)
        found.note(UNKNOWN, f"the server has no file system of the kind {room.name!r}; it has {known}")
        return
    available, total = (systems[room.name][name] for name in ("available_bytes", "total_bytes"))
    limits = ["" if text is None else f"{_room(text, total):.0f}:" for text in (room.warning, room.critical)]
    found.figures.append(f"'{room.name} available_bytes'={available}B;{limits[0]};{limits[1]}")
    if level := room.level(available, total):
        path, left = systems[room.name]["path"], available / max(total, 1)
        found.note(
            level,
            f"the file system of {path} has {available:,} bytes left, {left:.0%}: archive or remove journal files",
        )


def _room_limit(text: str) -> _Room:
    name, _, limits = text.partition("=")
    warning, colon, critical = limits.partition(":")
    if not name or not warning or (colon and not critical):
        reason = f"expected KIND=WARNING or KIND=WARNING:CRITICAL, got {text!r}"
        raise ConfigError(reason, key="--min-free")
    room = _Room(name, warning, critical if colon else None)
    room.level(0, 0)  # finds mistakes
    return room


def _room(text: str, total: float) -> float:
    """The bytes of a limit."""
    if not text.endswith("%"):
        return size(text, "--min-free")
    share = text[:-1]
    if not share.isascii() or not share.replace(".", "", 1).isdigit() or float(share) > 100:
        raise ConfigError(f"{text!r} is no share such as 10%", key="--min-free")
    return float(share) / 100 * total


def _limit(text: str, option: str, read: Callable[[str], float]) -> _Limit:
    # The name of a queue may have any character, so the limits are after the last one.
    name, equals, limits = text.rpartition("=")
    if not equals or not name:
        raise ConfigError(f"expected NAME=WARNING or NAME=WARNING:CRITICAL, got {text!r}", key=option)
    warning, colon, critical = limits.partition(":")
    return _Limit(name, read(warning), read(critical) if colon else None)


def _count(text: str) -> float:
    if not text.isascii() or not text.isdigit():
        raise ConfigError(f"expected a number, got {text!r}", key="--max-depth")
    return float(text)
