"""Changes of the destinations in a configuration file. Comments and the other lines stay as they are.

The text is changed line by line, and read again: it must have the change, and nothing else. Otherwise the file is
not written, and the error says what to write by hand.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from quire._errors import ConfigError
from quire._text_files import basic_string, replace_text
from quire.config._models import Config
from quire.config._replication import Destination

#: The line of a table, and its name.
_HEADER: Final = re.compile(r"\s*\[{1,2}\s*([^\[\]]+?)\s*\]{1,2}\s*(#.*)?$")
_DESTINATION: Final = "replication.destination"
#: The keys of a destination that belong to one instance. The others are alike in all entries.
_OWN: Final = ("name", "group", "addresses", "sync_type")
#: The keys that only sync destinations have.
_OF_SYNC: Final = ("downgrade_after", "upgrade_below")
#: A key and its value on one line: a text or a list.
_SETTING: Final = re.compile(r"\s*(\w+)\s*=\s*(\"[^\"]*\"|'[^']*'|\[[^\]]*\])")


class ConfigFile:
    """A configuration file whose destinations are changed."""

    def __init__(self, path: Path) -> None:
        self.path: Path = path.resolve()
        self.config: Config = Config.load(self.path)

    @property
    def name(self) -> str:
        """The name of the instance."""
        return self.config.name

    def destination(self, name: str) -> Destination | None:
        """The destination with this name."""
        return next((each for each in self.config.replication.destination if each.name == name), None)

    def entry(self, name: str, address: str) -> dict[str, Any]:
        """The table for a new async destination: the settings and the topics of the first destination."""
        found = _entries(tomllib.loads(self._text))
        first = found[0] if found else {}
        settings = {key: value for key, value in first.items() if key not in (*_OWN, *_OF_SYNC)}
        topics = settings.pop("topic", None) or [
            {"name": topic.name, "message_type": topic.message_type}
            for topic in self.config.transaction_log.topic
            if topic.recorded
        ]
        topics = topics or [{"name": "^", "message_type": "json"}]
        head = {"name": name, "addresses": [address], "sync_type": "async"}
        return {**head, **settings, "topic": topics if isinstance(topics, list) else [topics]}

    def as_sync(self) -> dict[str, Any]:
        """The keys of a sync destination: those of the first one."""
        found = _entries(tomllib.loads(self._text))
        first: dict[str, Any] = next((each for each in found if each["sync_type"] == "sync"), {})
        return {"sync_type": "sync", **{key: first[key] for key in _OF_SYNC if key in first}}

    def add(self, entry: Mapping[str, Any]) -> None:
        """Adds a destination at the end of the file."""
        text = self._text
        wanted = tomllib.loads(text)
        found = [*_entries(wanted), dict(entry)]
        wanted.setdefault("replication", {})["destination"] = found
        separator = "" if not text or text.endswith("\n") else "\n"
        self._replace(f"{text}{separator}\n{lines_of(entry)}", wanted, "add these lines:\n" + lines_of(entry))

    def remove(self, name: str) -> None:
        """Removes a destination. Comments before and after its lines stay."""
        advice = f"remove the [[{_DESTINATION}]] with the name {name!r}"
        lines, (begin, end), wanted, number = self._found(name, advice)
        found = _entries(wanted)
        del found[number]
        if found:
            wanted["replication"]["destination"] = found
        else:
            del wanted["replication"]["destination"]
        is_apart = (
            begin > 0 and not lines[begin - 1].strip() and (end == len(lines) or not lines[end].strip())
        )
        rest = [*lines[: begin - is_apart], *lines[end:]]
        self._replace("".join(rest), wanted, advice)

    def change(self, name: str, values: Mapping[str, Any]) -> None:
        """Changes keys of a destination, which must be on one line each. A key that is not there is added."""
        said = {key: f"{key} = {_value(value)}" for key, value in values.items()}
        advice = f"set {', '.join(said.values())} in the [[{_DESTINATION}]] with the name {name!r}"
        lines, (begin, end), wanted, number = self._found(name, advice)
        found = _entries(wanted)
        found[number].update(values)
        wanted["replication"]["destination"] = found
        missing, last = dict(said), begin
        for at in range(begin + 1, end):
            if _HEADER.match(lines[at]):
                break
            line = _SETTING.match(lines[at])
            if line and (text := missing.pop(line[1], None)) is not None:
                lines[at], last = text + lines[at][line.end() :], at
        lines[last + 1 : last + 1] = [f"{text}\n" for text in missing.values()]
        self._replace("".join(lines), wanted, advice)

    @property
    def _text(self) -> str:
        text: str = self.config._source.text
        return text

    def _found(self, name: str, advice: str) -> tuple[list[str], tuple[int, int], dict[str, Any], int]:
        """The lines of the file, those of a destination, the settings, and the number of the destination."""
        settings = tomllib.loads(self._text)
        names = [each["name"] for each in _entries(settings)]
        lines = self._text.splitlines(keepends=True)
        blocks = _blocks(lines)
        if name not in names or len(blocks) != len(names):
            raise self._by_hand(advice)
        number = names.index(name)
        return lines, blocks[number], settings, number

    def _replace(self, text: str, wanted: dict[str, Any], advice: str) -> None:
        """Writes the new text, when it has the settings that are wanted, and they are allowed."""
        try:
            found = tomllib.loads(text)
        except tomllib.TOMLDecodeError:
            raise self._by_hand(advice) from None
        for settings in (found, wanted):
            if "destination" in settings.get("replication", {}):
                settings["replication"]["destination"] = _entries(settings)
        if found != wanted:
            raise self._by_hand(advice)
        config = Config._parse(self.path, text)
        config.check()
        replace_text(self.path, text, keeps_mode=True)
        self.config = config

    def _by_hand(self, advice: str) -> ConfigError:
        return ConfigError(f"the lines cannot be changed by a command; {advice}", file=self.path)


def lines_of(entry: Mapping[str, Any]) -> str:
    """The lines of a `[[replication.destination]]`."""
    text = f"[[{_DESTINATION}]]\n"
    text += "".join(f"{key} = {_value(value)}\n" for key, value in entry.items() if key != "topic")
    for topic in entry["topic"]:
        text += f"\n[[{_DESTINATION}.topic]]\n"
        text += "".join(f"{key} = {_value(value)}\n" for key, value in topic.items())
    return text


def _value(value: object) -> str:
    """A value as a line of TOML has it."""
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return basic_string(value)
        case list():
            return f"[{', '.join(map(_value, value))}]"
        case dict():
            return "{ " + ", ".join(f"{key} = {_value(each)}" for key, each in value.items()) + " }"
        case _:
            return str(value)


def _entries(settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The destinations in the settings of a file. One can be a table instead of a list."""
    found = settings.get("replication", {}).get("destination", [])
    return [dict(each) for each in ([found] if isinstance(found, Mapping) else found)]


def _blocks(lines: Sequence[str]) -> list[tuple[int, int]]:
    """The lines of each destination: the first one, and the one after the last. Comments after them do not belong to it."""
    found: list[tuple[int, int]] = []
    begin: int | None = None
    for number, line in enumerate([*lines, "[end]"]):
        header = _HEADER.match(line)
        if header is None:
            continue
        name = ".".join(part.strip().strip("\"'") for part in header[1].split("."))
        if begin is not None and not name.startswith(f"{_DESTINATION}."):
            end = number
            while not lines[end - 1].strip() or lines[end - 1].lstrip().startswith("#"):
                end -= 1
            found.append((begin, end))
            begin = None
        if name == _DESTINATION:
            begin = number
    return found


__all__ = ["ConfigFile", "lines_of"]
