"""The code of the steps. `STEPS` has one function for each entry of the table."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from quire import _quire
from quire._arguments import AUTO
from quire._errors import NotLastValueError, QuireError
from quire._filter import Filter, MessageType
from quire._units import seconds, size
from quire.actions._check import Part, is_pattern, keeps_values, matches, share_or_size
from quire.actions._clients import publish
from quire.actions._files import compress, files_of, is_compressed
from quire.actions._run import Run, State, StepFailed, Stopped
from quire.actions._text import Value, data_of, expanded, text_of, to_bytes
from quire.client._publish import message_to_core
from quire.config._logging import LEVELS
from quire.journal._journal import maintain
from quire.server._log import line

if TYPE_CHECKING:
    from quire.actions._clients import Clients
    from quire.server._server import Server

_log = logging.getLogger("quire.server")

#: The header of a message that an action has published: the names of the actions that led to it.
#: Names have no commas.
CHAIN_HEADER: Final = "quire-actions"
#: Bytes of the output of a program that a variable gets, and of an error that a line has.
_OUTPUT_MAX: Final = 1 << 20
_ERROR_MAX: Final = 500
#: Names of threads in the order of the log.
_STACKS_MAX: Final = 1000


class Steps:
    """Carries out steps."""

    def __init__(self, server: Server, clients: Clients, raise_event: Callable[[str, Run], None]) -> None:
        """`raise_event`: starts the actions of an event."""
        self.server = server
        self.clients = clients
        self.raise_event = raise_event
        self.started = time.monotonic()
        self._counters: dict[str, int] = {}
        self._lock = threading.Lock()

    def carry(self, state: State, run: Run, part: Part) -> None:
        """Carries out a step. Raises `StepFailed`, and `Stopped` for a condition that is false."""
        try:
            STEPS[part.entry.name](_Step(self, state, run, part))
        except TimeoutError as error:
            raise StepFailed(str(error) or "no answer in time") from None
        except (QuireError, OSError, ValueError) as error:
            raise StepFailed(str(error)) from None

    def add(self, counter: str, by: int) -> int:
        """Adds to a counter. Returns its value."""
        with self._lock:
            self._counters[counter] = self._counters.get(counter, 0) + by
            return self._counters[counter]


class _Step:
    """A step with the options of this run."""

    def __init__(self, steps: Steps, state: State, run: Run, part: Part) -> None:
        self.steps = steps
        self.server = steps.server
        self.state = state
        self.run = run
        self._part = part

    def given(self, name: str) -> Any:
        """The value of an option, as it is configured."""
        return self._part.get(name)

    def text(self, name: str) -> str:
        """The text of an option with the values of its variables; empty: it has none."""
        value = self.given(name)
        if value is None:
            return ""
        text = str(value)
        if "{{" not in text:
            return text
        option = self._part.entry.option(name)
        is_pattern = option is not None and option.kind in ("topics", "names")
        return expanded(text, self.run.variables, is_pattern=is_pattern)

    def optional(self, name: str) -> str | None:
        """The same; `None`: the option is left out."""
        return None if self.given(name) is None else self.text(name)

    def data(self, name: str) -> bytes:
        """The bytes of an option."""
        return to_bytes(self.text(name))

    def seconds(self, name: str) -> float:
        """The seconds of an option."""
        value = self.given(name)
        return seconds(self.text(name) if isinstance(value, str) else value, name)

    def values(self, name: str) -> dict[str, str]:
        """The texts of a table."""
        table: Mapping[str, str] = self.given(name) or {}
        return {key: expanded(value, self.run.variables) for key, value in table.items()}

    def variable(self, name: str) -> Value:
        """The value of the variable that an option names."""
        return self.run.variables.get(self.given(name), "")

    def set(self, name: str, value: Value) -> None:
        """Sets the variable that an option names, if it names one."""
        if (variable := self.given(name)) is not None:
            self.run.variables[variable] = value

    @property
    def chain(self) -> tuple[str, ...]:
        """The actions that led to what this step starts."""
        return (*self.run.chain, self.state.name)


def _log_line(step: _Step) -> None:
    level = LEVELS[step.given("level")]
    fields = {"action": step.state.name, "trigger": step.run.trigger}
    _log.log(level, "action %r: %s", step.state.name, step.text("text"), extra=line("60-0001", **fields))


def _publish(step: _Step) -> None:
    headers: dict[str, str | bytes] = {**step.values("headers"), CHAIN_HEADER: ",".join(step.chain)}
    with step.steps.clients.of(step.state.name) as client:
        message = message_to_core(
            step.text("topic"),
            step.data("data"),
            AUTO,
            None,
            step.optional("correlation_id") or None,
            headers,
            None,
            None,
            None,
            None,
            is_delta=step.given("delta"),
            is_update=step.given("update_only"),
        )
        publish(client, message)
        client.flush(timeout=_FLUSH_TIMEOUT)


#: Seconds that a publish may take until it is persisted.
_FLUSH_TIMEOUT: Final = 60.0


def _query_records(step: _Step) -> None:
    with step.steps.clients.of(step.state.name) as client:
        records = client.sow(
            step.text("topic"),
            filter=step.optional("filter"),
            order_by=step.optional("order_by"),
            top_n=step.given("top_n"),
        )
        step.set("into", b"\n".join(record.data for record in records))


def _delete_records(step: _Step) -> None:
    with step.steps.clients.of(step.state.name) as client:
        # Every record matches 1 = 1. A delete needs a selector.
        count = client.sow_delete(step.text("topic"), filter=step.optional("filter") or "1 = 1")
        client.flush(timeout=_FLUSH_TIMEOUT)
    step.set("into", count)


def _journal(action: str) -> Callable[[_Step], None]:
    def act(step: _Step) -> None:
        age = None if step.given("age") is None else step.seconds("age")
        size_max = None if step.given("size_max") is None else size(step.text("size_max"), "size_max")
        count = 0
        try:
            for _ in maintain(step.server._running_engine, action, age, size_max, dry_run=False):
                count += 1
                if step.server._stop_requested and step.run.trigger != "shutdown":
                    raise StepFailed("the server stops, and the next start does the rest")
        finally:
            if count:
                text = "%d journal files %s"
                _log.info(text, count, _DONE[action], extra=line("20-0004", action=action, count=count))

    return act


_DONE: Final = {"archive": "archived", "compress": "compressed", "remove": "removed"}


def _compress_files(step: _Step) -> None:
    for path in files_of(step.server.config, step.text("pattern"), step.seconds("age")):
        if not is_compressed(path):
            compress(path)


def _remove_files(step: _Step) -> None:
    for path in files_of(step.server.config, step.text("pattern"), step.seconds("age")):
        path.unlink(missing_ok=True)


def _rotate_logs(step: _Step) -> None:
    step.server._rotate_logs()


def _truncate_statistics(step: _Step) -> None:
    administration = step.server._administration
    assert administration is not None
    administration.truncate(step.seconds("age"))


def _disconnect(step: _Step) -> None:
    wanted, engine = step.text("client"), step.server._running_engine
    for number, name in step.server._client_names().items():
        if matches(wanted, name):
            step.steps.clients.ended_by(number, step.chain)
            engine.disconnect(number, 0)


def _transport(step: _Step, act: str) -> None:
    wanted = step.text("name")
    names = [transport.name for transport in step.server.config.transport]
    chosen = [number for number, name in enumerate(names) if matches(wanted, name)]
    if not chosen:
        raise StepFailed(f"no transport has the name {wanted!r}")
    for number in chosen:
        if act == "disable":
            for connection in step.server._client_names(names[number]):
                step.steps.clients.ended_by(connection, step.chain)
            step.server._disable_transport(number)
        else:
            step.server._enable_transport(number)


def _replication(step: _Step, act: str) -> None:
    if act == "downgrade" and time.monotonic() - step.steps.started < step.seconds("grace_period"):
        return
    wanted, age = step.optional("destination"), step.seconds("age")
    for link in step.server.replication.stats()["destinations"]:
        if not matches(wanted, link["name"]) or link["configured_sync_type"] != "sync":
            continue
        behind, is_sync = link["seconds_behind"] or 0.0, link["sync_type"] == "sync"
        is_connected = link["state"] in ("catching_up", "live")
        if act == "downgrade" and is_sync and behind > age:
            step.steps.clients.changed_by(link["name"], step.chain)
            step.server.replication.downgrade(link["name"])
        elif act == "upgrade" and not is_sync and is_connected and behind < age:
            step.steps.clients.changed_by(link["name"], step.chain)
            step.server.replication.upgrade(link["name"])


def _reset(step: _Step) -> None:
    wanted = step.optional("user")
    step.server._forget_results(lambda user: matches(wanted, user))


def _compact_records(step: _Step) -> None:
    topic, freed = step.text("topic"), 0
    try:
        # Each call frees a part, so that the data loop does other work between them.
        while count := step.server._running_engine.compact_records(topic):
            freed += count
    except NotLastValueError:
        # A topic of an entry with a pattern is a topic only while it has records.
        if not is_pattern(topic) and not keeps_values(step.server.config, topic):
            raise
    step.set("into", freed)


def _extract(step: _Step) -> None:
    data, paths = data_of(step.variable("from")), step.values("values")
    message_type = message_type_of(step.run.variables) if step.given("from") == "DATA" else "json"
    message = _quire.test_message(
        "message",
        data,
        bookmark=None,
        timestamp_ns=0,
        correlation_id="",
        headers=None,
        sub_id="",
        queue=None,
        lease_ms=0,
        delivery_count=0,
        cancel_count=0,
        kind="publish",
        reason=None,
        sow_key=None,
        is_delta=False,
    )
    texts = _quire.Fields(list(paths.values())).texts(message, message_type)
    for name, text in zip(paths, texts, strict=True):
        step.run.variables[name] = text or ""


def message_type_of(variables: Mapping[str, Value]) -> MessageType:
    """The type of the message of a run."""
    return cast(MessageType, text_of(variables.get("MESSAGE_TYPE", "")) or "json")


def _translate(step: _Step) -> None:
    source = step.given("message_type") or message_type_of(step.run.variables)
    target = step.given("to")
    step.set("into", _quire.translate(data_of(step.variable("from")), source, target))
    if step.given("into") == "DATA":
        step.run.variables["MESSAGE_TYPE"] = target


def _increment(step: _Step) -> None:
    step.set("into", step.steps.add(step.text("counter"), step.given("by")))


def _raise_event(step: _Step) -> None:
    variables: dict[str, Value] = dict(step.values("variables"))
    step.steps.raise_event(step.text("name"), Run("event", variables, step.chain))


def dump_stacks() -> int:
    """Writes the stacks of all threads to the log. Returns their number."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    frames = sys._current_frames()
    for thread, frame in list(frames.items())[:_STACKS_MAX]:
        _log.info(
            "stack of thread %d (%s):\n%s",
            *(thread, names.get(thread, "?"), "".join(traceback.format_stack(frame))),
            extra=line("01-0022", thread_id=thread, name=names.get(thread, "")),
        )
    return len(frames)


def _shutdown(step: _Step) -> None:
    fields = {"action": step.state.name, "trigger": step.run.trigger}
    _log.info("action %r stops the server", step.state.name, extra=line("60-0005", **fields))
    step.server._request_stop()


def _execute(step: _Step) -> None:
    command = [expanded(each, step.run.variables) for each in step.given("command")]
    if any("\0" in each for each in command):
        raise StepFailed("an argument has a NUL byte")
    try:
        done = subprocess.run(
            [os.fsencode(each) for each in command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=step.seconds("timeout"),
            check=False,
            cwd=step.server.config.data_directory,
        )
    except subprocess.TimeoutExpired:
        raise StepFailed(f"{command[0]} was ended after {step.given('timeout')}") from None
    if done.returncode != 0:
        error = done.stderr.decode("utf-8", "replace").strip()[-_ERROR_MAX:]
        raise StepFailed(f"{command[0]} ended with the code {done.returncode}{': ' if error else ''}{error}")
    step.set("into", done.stdout[:_OUTPUT_MAX])


def _if(step: _Step) -> None:
    variables = {
        name: value.decode("utf-8", "replace") if isinstance(value, bytes) else value
        for name, value in step.run.variables.items()
    }
    text = json.dumps(variables).encode("utf-8", "replace")
    if not Filter(step.text("expression")).matches(text):
        raise Stopped


def _if_free_space(step: _Step) -> None:
    path = step.server.config.data_directory / step.text("path")
    if not path.exists():
        raise StepFailed(f"{path} does not exist")
    value = step.given("below")
    share, least = share_or_size(step.text("below") if isinstance(value, str) else value)
    about = _usage(path)
    limit = about.total * share if share is not None else least
    if about.free >= limit:
        raise Stopped


def _usage(path: Path) -> shutil._ntuple_diskusage:
    return shutil.disk_usage(path)


#: The code of each step of the table.
STEPS: Final[Mapping[str, Callable[[_Step], None]]] = {
    "log": _log_line,
    "publish": _publish,
    "query_records": _query_records,
    "delete_records": _delete_records,
    "compact_records": _compact_records,
    "archive_journal": _journal("archive"),
    "compress_journal": _journal("compress"),
    "remove_journal": _journal("remove"),
    "compress_files": _compress_files,
    "remove_files": _remove_files,
    "rotate_logs": _rotate_logs,
    "truncate_statistics": _truncate_statistics,
    "disconnect": _disconnect,
    "enable_transport": lambda step: _transport(step, "enable"),
    "disable_transport": lambda step: _transport(step, "disable"),
    "downgrade_replication": lambda step: _replication(step, "downgrade"),
    "upgrade_replication": lambda step: _replication(step, "upgrade"),
    "reset_entitlements": _reset,
    "reset_authentication": _reset,
    "extract": _extract,
    "translate": _translate,
    "increment": _increment,
    "raise_event": _raise_event,
    "dump_stacks": lambda step: void(dump_stacks()),
    "shutdown": _shutdown,
    "execute": _execute,
    "if": _if,
    "if_free_space": _if_free_space,
}


def void(value: object) -> None:
    """Drops a result."""
