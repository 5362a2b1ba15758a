"""Finds the line of a key in the text of a configuration, for error messages."""

from __future__ import annotations

import re

#: Limits of the core that are set together with the other keys of the log.
_LIMITS_OF_THE_LOG = {"max_unpersisted", "max_topics"}


def line_of(text: str, place: tuple[str | int, ...]) -> int | None:
    """The line on which the last key of a path is set, else that of the table in which it should be.

    A number in the path is the number of a `[[table]]` among those of its name.
    """
    keys = keys_of(place)
    numbers = {".".join(keys_of(place[:at])): part for at, part in enumerate(place) if isinstance(part, int)}
    counts: dict[str, int] = {}
    table: list[str] | None = []
    fallback = None
    lines = text.splitlines()
    for number, line in enumerate(lines, start=1):
        if header := re.match(r"\s*(\[{1,2})\s*([^\]]+?)\s*\]", line):
            table = [part.strip().strip("\"'") for part in header[2].split(".")]
            name = ".".join(table)
            if header[1] == "[[":
                counts[name] = counts.get(name, -1) + 1
            if any(counts.get(outer, at) != at for outer, at in numbers.items() if name.startswith(outer)):
                table = None  # another one of the same name
            elif table == keys:
                return number
            elif table == keys[: len(table)]:
                fallback = number
        elif table is not None and (key := re.match(r"\s*([A-Za-z0-9_.\"'-]+?)\s*=", line)):
            path = [*table, *(part.strip("\"'") for part in key[1].split("."))]
            entry = numbers.get(".".join(path)) if ".".join(path) not in counts else None
            if path == keys or path == keys[: len(path)]:
                # An inline table, or a list over several lines.
                fallback = number if entry is None else _line_of_entry(lines, number, key.end(), entry)
            if path == keys:
                return fallback
    return fallback


def _line_of_entry(lines: list[str], number: int, start: int, entry: int) -> int:
    """The line of an entry of a list that begins after `start` on a line."""
    depth, commas, has_begun, at = 0, 0, False, number
    text = "\n".join([lines[number - 1][start:], *lines[number:]])
    for part in re.finditer(r'"(?:\\.|[^"\\])*"|\'[^\']*\'|#[^\n]*|[\[{}\],\n]|[^\s]', text):
        found = part[0]
        if found == "\n":
            at += 1
            continue
        if found.startswith("#"):
            continue
        if depth == 0 and found != "[":
            break  # no list
        if depth == 1 and found != "," and found != "]" and not has_begun:
            has_begun = True
            if commas == entry:
                return at
        if found in ("[", "{"):
            depth += 1
        elif found in ("]", "}"):
            depth -= 1
            if depth == 0:
                break
        elif found == "," and depth == 1:
            commas, has_begun = commas + 1, False
    return number


def place_of(key: str) -> tuple[str | int, ...]:
    """The path of a key of the core, as `queues[0].lease_period_ns`."""
    names = {
        "queues": "queue",
        "sow_topics": "sow_topic",
        "views": "view",
        "conflated_topics": "conflated_topic",
        "topics": "topic",
        "transports": "transport",
        "destinations": "destination",
        "entitlements": "entitlement",
        "user_limits": "user_limit",
    }
    table, _, name = key.partition(".")
    if key == "replication.group":
        key = "group"
    if table == "limits" and name in _LIMITS_OF_THE_LOG:
        key = f"transaction_log.{name}"
    place: list[str | int] = []
    for name, number in re.findall(r"(\w+)(?:\[(\d+)\])?", key):
        place.append(names.get(name, str(name)).removesuffix("_ns"))
        place += [int(number)] if number else []
    return tuple(place)


def path_text(place: tuple[str | int, ...]) -> str:
    """A path as errors show it: `queue[0].lease_period`."""
    text = ""
    for part in place:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def keys_of(place: tuple[str | int, ...]) -> list[str]:
    return [part for part in place if isinstance(part, str)]
