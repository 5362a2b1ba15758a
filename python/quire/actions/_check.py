"""Checks the actions of a configuration: each trigger and step by its table, and whether actions start each other."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from quire._errors import ConfigError, QuireError
from quire._filter import Filter
from quire._text import nearest
from quire._units import seconds, size
from quire.actions._maintenance import actions_of
from quire.actions._schedule import Schedule
from quire.actions._table import LATER, STEP_OF, TRIGGER_OF, Entry, Option
from quire.actions._text import NAME, names_in
from quire.config._mistakes import expected, got

if TYPE_CHECKING:
    from quire.config import Config
    from quire.config._actions import Action

#: A key with what is wrong with its value.
Mistake = tuple[str, str]

_PATTERN: Final = re.compile(r"[\^$*+?\[\](){}|\\]")
_PATH: Final = re.compile(r"[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)*")
_SHARE: Final = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*%\s*")
#: The variables whose values are numbers: a filter takes them without quotes.
_NUMBERS: Final = (
    "UNIX_TIMESTAMP",
    "DATA_LENGTH",
    "DELIVERIES",
    "CANCELS",
    "SECONDS",
    "CONNECTION",
    "SUB_ID",
)


@dataclass(frozen=True)
class Part:
    """A trigger or a step of an action, with its options."""

    entry: Entry
    #: The values of the options, with the defaults of those that are left out.
    options: Mapping[str, Any]

    def get(self, name: str) -> Any:
        """The value of an option, or its default."""
        return self.options.get(name)


def is_pattern(text: str) -> bool:
    """Whether a name of a topic or of a client is a pattern."""
    return _PATTERN.search(text) is not None


def matches(wanted: str | None, name: str) -> bool:
    """Whether a name or a pattern selects a name. `None` selects each."""
    if wanted is None:
        return True
    if not is_pattern(wanted):
        return wanted == name
    if name.startswith("/quire/") and not wanted.lstrip("^").startswith("/quire/"):
        return False
    return re.search(wanted, name) is not None


def share_or_size(text: str | int) -> tuple[float | None, int]:
    """A share of a file system from 0 to 1, or a size. Raises `ConfigError`."""
    if isinstance(text, str) and (found := _SHARE.fullmatch(text)):
        share = float(found[1]) / 100
        if share > 1:
            raise ConfigError(f"{text!r} is above 100%", key="below")
        return share, 0
    return None, size(text, "below")


def parts_of(action: Action) -> tuple[list[Part], list[Part]]:
    """The triggers and the steps of an action that was checked."""
    on = [_part(each, TRIGGER_OF) for each in action.on]
    return on, [_part(each, STEP_OF) for each in action.do]


def _part(given: Any, entries: Mapping[str, Entry]) -> Part:
    name, value = _named(given)
    entry = entries[name]
    defaults = {option.name: option.default for option in entry.options}
    return Part(entry, {**defaults, **_options(entry, value)})


def _named(given: Any) -> tuple[str, Any]:
    """The name of a trigger or step, and its value. Raises `ValueError`."""
    if isinstance(given, str):
        return given, {}
    if isinstance(given, Mapping) and len(given) == 1:
        [(name, value)] = given.items()
        return name, value
    raise expected("a table with one key, or the name of a trigger or step", given)


def _options(entry: Entry, value: Any) -> Mapping[str, Any]:
    """The options in a value. Raises `ValueError`."""
    if isinstance(value, Mapping):
        return value
    if entry.short is None:
        raise expected("a table" if entry.options else f'no value: write "{entry.name}"', value)
    return {entry.short: value}


def mistakes_of_actions(config: Config) -> list[Mistake]:
    """Every mistake in the actions, with its key."""
    mistakes: list[Mistake] = []
    known: list[tuple[int, Action]] = []
    names = {action.name for action in actions_of(config.transaction_log.maintenance)}
    for number, action in enumerate(config.action):
        before = len(mistakes)
        if action.name in names:
            mistakes.append((f"action[{number}].name", f"another action has the name {got(action.name)}"))
        names.add(action.name)
        for key, entries, given in (("on", TRIGGER_OF, action.on), ("do", STEP_OF, action.do)):
            what = "trigger" if key == "on" else "step"
            for index, each in enumerate(given):
                mistakes += _mistakes_of(f"action[{number}].{key}[{index}]", what, each, entries, config)
        if len(mistakes) == before:
            known.append((number, action))
    mistakes += _same_paths(known)
    return [*mistakes, *_cycles(known, config)]


def _mistakes_of(
    key: str, what: str, given: Any, entries: Mapping[str, Entry], config: Config
) -> Iterator[Mistake]:
    try:
        name, value = _named(given)
    except ValueError as error:
        yield key, str(error)
        return
    entry = entries.get(name)
    if entry is None:
        reason = LATER.get(name)
        close = nearest(name, list(entries))
        advice = f'; did you mean "{close}"?' if close else f"; docs/actions.md lists the {what}s"
        yield f"{key}.{name}", reason or f"unknown {what}{advice}"
        return
    key = f"{key}.{name}"
    try:
        options = _options(entry, value)
    except ValueError as error:
        yield key, str(error)
        return
    for option, given_value in options.items():
        known = entry.option(option)
        if known is None:
            close = nearest(option, [each.name for each in entry.options])
            yield f"{key}.{option}", f'unknown key; did you mean "{close}"?' if close else "unknown key"
            continue
        place = key if option == entry.short and not isinstance(value, Mapping) else f"{key}.{option}"
        if (reason := _mistake_in(known, given_value, is_step=what == "step")) is not None:
            yield place, reason
    for each in entry.options:
        if each.required and each.name not in options:
            yield f"{key}.{each.name}", "this key is required"
    if entry.one_of and sum(name in options for name in entry.one_of) != 1:
        yield key, f"expected exactly one of {' and '.join(entry.one_of)}"
    yield from _mistakes_with_others(key, entry, options, config)


def _mistake_in(option: Option, value: Any, *, is_step: bool) -> str | None:
    """Why a value cannot be used; `None`: it can."""
    try:
        _check_value(option, value, is_step=is_step)
    except QuireError as error:
        return str(error.args[0]) if error.args else str(error)
    except ValueError as error:
        return str(error)
    return None


def _check_value(option: Option, value: Any, *, is_step: bool) -> None:
    kind = option.kind
    if kind == "flag":
        if not isinstance(value, bool):
            raise expected("true or false", value)
        return
    if kind == "count":
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise expected("a whole number of at least 0", value)
        return
    if kind in ("words", "variables", "command"):
        entries = [value] if isinstance(value, str) and kind != "command" else value
        if not isinstance(entries, (list, tuple)) or not entries:
            raise expected("a list of texts", value)
        for each in entries:
            _check_text(option, each, is_step=is_step)
        return
    if kind == "values":
        if not isinstance(value, Mapping):
            raise expected("a table of texts", value)
        for each in value.values():
            if not isinstance(each, str):
                raise expected("text", each)
            list(names_in(each))
        return
    if kind in ("size", "room", "duration") and isinstance(value, (int, float)):
        value = str(value) if kind != "duration" else value
    if kind == "duration" and isinstance(value, (int, float)) and not isinstance(value, bool):
        seconds(value, option.name)
        return
    _check_text(option, value, is_step=is_step)


def _check_text(option: Option, value: Any, *, is_step: bool) -> None:
    kind = option.kind
    if not isinstance(value, str):
        raise expected("text", value)
    if not value and kind not in ("data", "text"):
        raise expected("text that is not empty", value)
    variables = list(names_in(value)) if is_step and kind not in ("variable", "word", "words") else []
    if kind in ("filter", "topics", "names"):
        _check_quoted(variables, kind)
    if kind in ("word", "words") and value not in option.choices:
        close = nearest(value, list(option.choices))
        raise expected(" or ".join(f'"{each}"' for each in ([close] if close else option.choices)), value)
    if (
        kind in ("variable", "variables")
        and NAME.fullmatch(value.upper() if kind == "variables" else value) is None
    ):
        raise expected('the name of a variable: capitals, digits and "_"', value)
    if variables:
        return
    match kind:
        case "at":
            Schedule.parse(value)
        case "filter":
            Filter(value)
        case "duration":
            seconds(value, option.name)
        case "size":
            size(value, option.name)
        case "room":
            share_or_size(value)
        case "topic" if is_pattern(value):
            raise expected("a name, and no pattern", value)
        case "topics" | "names" if is_pattern(value):
            _check_pattern(value)
        case _:
            if option.name == "path" and not is_step and _PATH.fullmatch(value) is None:
                raise expected('letters, digits, "-", "_", "." and "/"', value)


def _check_quoted(variables: Sequence[tuple[str, str]], kind: str) -> None:
    for name, form in variables:
        if form != "filter" and name not in _NUMBERS:
            what = "a filter" if kind == "filter" else "a pattern"
            raise ValueError(f"{{{{{name}}}}} in {what}: write {{{{{name}:filter}}}}, which quotes the value")


def _check_pattern(text: str) -> None:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"the pattern {got(text)} cannot be used: {error}") from None


def _mistakes_with_others(
    key: str, entry: Entry, options: Mapping[str, Any], config: Config
) -> Iterator[Mistake]:
    """The mistakes that depend on the rest of the configuration."""
    if entry.name == "execute" and not config.allow_execute:
        yield key, "it requires allow_execute = true, before all tables of the file"
    topic = options.get("topic")
    if not isinstance(topic, str) or "{{" in topic:
        return
    queues = {queue.name for queue in (*config.queue, *config.local_queue)}
    records = keeps_values(config, topic)
    unknown = f"no last-value topic has the name {got(topic)}{_of_pattern(config, topic)}"
    if entry.name == "expire_message" and topic not in queues and not records:
        yield f"{key}.topic", unknown.replace("no last-value", "no queue and no last-value", 1)
    if entry.name == "expire_message" and topic not in queues and "reason" in options:
        reasons = options["reason"]
        if [reasons] != ["time_limit"] and list(reasons) != ["time_limit"]:
            yield f"{key}.reason", 'records of last-value topics expire for the reason "time_limit" only'
    views = {each.name for each in config.view} | {each.name for each in config.conflated_topic}
    if entry.name in ("expire_message", "delete_message") and topic in views:
        yield f"{key}.topic", f"{got(topic)} is computed from another topic: use oof_message"
    needs_records = ("delete_message", "oof_message", "condition_timeout", "alert")
    if entry.name in needs_records and not records and topic not in views:
        yield f"{key}.topic", unknown
    if entry.name == "publish" and options.get("update_only") is True and not records:
        yield f"{key}.update_only", unknown
    if entry.name == "compact_records" and not is_pattern(topic) and not records and topic not in views:
        yield f"{key}.topic", unknown
    if entry.name == "publish" and "data" in options and topic.startswith("/quire/"):
        yield f"{key}.topic", "only the server publishes to topics that begin with /quire/"


def keeps_values(config: Config, topic: str) -> bool:
    """Whether a name is that of a last-value topic. The name of an entry with a pattern is not."""
    return any(
        each.name == topic if each.pattern is None else re.fullmatch(each.pattern, topic) is not None
        for each in config.sow_topic
    )


def _of_pattern(config: Config, name: str) -> str:
    """What to write instead of the name of an entry with a pattern; empty: no entry has the name."""
    for each in config.sow_topic:
        if each.name == name and each.pattern is not None:
            return f": it is the name of an entry; write a topic that the pattern {got(each.pattern)} matches"
    return ""


def _same_paths(actions: Sequence[tuple[int, Action]]) -> Iterator[Mistake]:
    """Two actions with one path must take the same members."""
    seen: dict[str, tuple[str, set[str]]] = {}
    for number, action in actions:
        for index, part in enumerate(parts_of(action)[0]):
            if part.entry.name != "admin":
                continue
            path, members = part.get("path"), set(members_of(part)[0] + members_of(part)[1])
            other = seen.setdefault(path, (action.name, members))
            if other[1] != members:
                key = f"action[{number}].on[{index}].admin.path"
                yield key, f"the action {got(other[0])} has this path with other members"


def members_of(part: Part) -> tuple[list[str], list[str]]:
    """The members that the body of an `admin` trigger must have, and those that it may have."""
    found = []
    for name in ("required", "optional"):
        value = part.get(name) or []
        found.append([value] if isinstance(value, str) else list(value))
    return found[0], found[1]


def _cycles(actions: Sequence[tuple[int, Action]], config: Config) -> Iterator[Mistake]:
    """Actions that start each other, as far as their texts tell."""
    parts = {action.name: (number, *parts_of(action)) for number, action in actions if action.enabled}
    starts = {
        name: {
            other: index
            for index, step in enumerate(do)
            for other, (_, on, _) in parts.items()
            if any(_may_start(step, trigger, config) for trigger in on)
        }
        for name, (_, _, do) in parts.items()
    }
    reported: set[str] = set()
    for name, (number, _, _) in parts.items():
        if name in reported or (path := _path_back(name, starts)) is None:
            continue
        reported.update(path)
        index = starts[name][path[1] if len(path) > 1 else name]
        chain = " starts ".join([*path, name])
        yield f"action[{number}].do[{index}]", f"a cycle: {chain}"


def _path_back(name: str, starts: Mapping[str, Mapping[str, int]]) -> list[str] | None:
    """The actions from one that leads back to itself; `None`: it does not."""
    paths, seen = [[name]], set()
    while paths:
        path = paths.pop(0)
        for following in starts[path[-1]]:
            if following == name:
                return path
            if following not in seen:
                seen.add(following)
                paths.append([*path, following])
    return None


def _may_start(step: Part, trigger: Part, config: Config) -> bool:
    """Whether a step starts a trigger, as far as their texts tell. A text with variables tells nothing."""
    on, do = trigger.entry.name, step.entry.name

    def literal(option: str) -> str | None:
        value = step.get(option)
        return value if isinstance(value, str) and "{{" not in value else None

    match do:
        case "publish" if (topic := literal("topic")) is not None:
            if on == "expire_message":
                return _enters(config, topic, trigger.get("topic"))
            return on in ("publish", "deliver", "oof_message", "condition_timeout", "alert") and matches(
                trigger.get("topic"), target_of(config, topic)
            )
        case "delete_records" if (topic := literal("topic")) is not None:
            return on in ("delete_message", "oof_message", "alert") and matches(topic, trigger.get("topic"))
        case "raise_event" if (name := literal("name")) is not None:
            return on == "event" and name == trigger.get("name")
        case "disconnect" if (client := literal("client")) is not None:
            wanted = trigger.get("client")
            return on in ("client_disconnect", "unsubscribe") and (
                wanted is None or is_pattern(wanted) or matches(client, wanted)
            )
        case "disable_transport":
            return on in ("client_disconnect", "unsubscribe")
        case "downgrade_replication" | "upgrade_replication":
            ends = {
                "downgrade_replication": "replication_downgrade",
                "upgrade_replication": "replication_upgrade",
            }
            return on == ends[do]
    return False


def target_of(config: Config, topic: str) -> str:
    """The topic of a message that is published to a topic or a queue."""
    for queue in (*config.queue, *config.local_queue):
        if queue.name == topic:
            return queue.default_publish_target or queue.underlying_topic or topic
    return topic


def _enters(config: Config, topic: str, queue_name: str) -> bool:
    """Whether messages of a topic enter a queue, or the topic is the last-value topic."""
    if topic == queue_name:
        return True
    for queue in (*config.queue, *config.local_queue):
        if queue.name == queue_name:
            return matches(queue.underlying_topic or queue.name, target_of(config, topic))
    return False
