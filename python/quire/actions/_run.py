"""The runs of actions: one run of an action after the other, and what became of them."""

from __future__ import annotations

import contextlib
import json
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Literal

from quire.actions._check import Part, members_of, parts_of
from quire.actions._text import Value
from quire.server._log import line

if TYPE_CHECKING:
    from quire.config._actions import Action

_log = logging.getLogger("quire.server")

#: Runs of one action that wait. Further ones are dropped.
WAITING_MAX: Final = 10_000
#: Actions that run at the same time, besides those that messages of the log start.
_THREADS: Final = 4
#: Seconds between two lines about dropped runs of an action.
_REPORTED: Final = 60.0

Outcome = Literal["ok", "failed", "stopped", "dropped"]


@dataclass
class Run:
    """One run of an action."""

    #: The name of the trigger.
    trigger: str
    variables: dict[str, Value]
    #: The actions that led to it, the first one first.
    chain: tuple[str, ...] = ()
    at: float = field(default_factory=time.time)


@dataclass(frozen=True)
class Ended:
    """The result of a run."""

    outcome: Outcome
    #: The step that failed, or the condition that was false.
    step: str | None = None
    error: str | None = None
    duration: float = 0.0


class StepFailed(Exception):
    """A step cannot do what it should. The text says why."""


class Stopped(Exception):
    """A condition is false."""


#: Carries out a step. Raises `StepFailed` or `Stopped`.
Carry = Callable[["State", Run, Part], None]


class State:
    """An action with its runs."""

    def __init__(self, action: Action) -> None:
        self.action = action
        self.triggers, self.steps = parts_of(action)
        #: Held while it runs.
        self.lock = threading.Lock()
        self.waiting: deque[tuple[Run, Callable[[Ended], None] | None]] = deque()
        self.is_scheduled = False
        self.running = 0
        self.last: tuple[float, Ended] | None = None
        self.last_error = ""
        self.counts: dict[str, int] = {"ok": 0, "failed": 0, "stopped": 0, "dropped": 0}
        self.dropped_logged: float | None = None
        #: Of the run in progress: its chain, and when it began.
        self.chain: tuple[str, ...] = ()
        self.began_ns = 0
        #: When the last runs began and ended, in nanoseconds since 1970, with their chains.
        self.recent: deque[tuple[int, int, tuple[str, ...]]] = deque(maxlen=10_000)

    @property
    def name(self) -> str:
        """The name of the action."""
        return self.action.name

    def figures(self) -> dict[str, Any]:
        """The figures of the action."""
        at, ended = self.last or (None, None)
        counts = self.counts
        request = next((part for part in self.triggers if part.entry.name == "admin"), None)
        members = [] if request is None else [*members_of(request)[0], *members_of(request)[1]]
        return {
            "admin_path": None if request is None else request.get("path"),
            "admin_members": members,
            "enabled": self.action.enabled,
            "running": self.running,
            "waiting": len(self.waiting),
            "last_run": None if at is None else time_text(at),
            "last_outcome": None if ended is None else ended.outcome,
            "last_error": self.last_error,
            "runs": counts["ok"] + counts["failed"] + counts["stopped"],
            "ok": counts["ok"],
            "failures": counts["failed"],
            "stopped": counts["stopped"],
            "dropped": counts["dropped"],
        }


class Runner:
    """Runs actions on its threads, and notes what became of each run."""

    def __init__(self, always: Mapping[str, Value], carry: Carry, tell: Callable[[str], None]) -> None:
        """
        - `always`: the variables of the instance
        - `carry`: carries out a step
        - `tell`: gets a message about each run, when `is_told` says so
        """
        self._always = always
        self._carry = carry
        self._tell = tell
        self.is_told: Callable[[], bool] = lambda: False
        self._changed = threading.Condition()
        self._pool: ThreadPoolExecutor | None = None
        #: Actions with runs that wait or are in progress.
        self._scheduled = 0
        self._is_closed = False

    def submit(self, state: State, run: Run, done: Callable[[Ended], None] | None = None) -> bool:
        """Runs an action later, on another thread. `False`: the run is dropped.

        `done` gets the result on that thread.
        """
        with self._changed:
            if self._is_closed:
                return False
            if len(state.waiting) < WAITING_MAX:
                state.waiting.append((run, done))
                if not state.is_scheduled:
                    state.is_scheduled = True
                    self._scheduled += 1
                    self._start(state)
                return True
        self._note(state, run, Ended("dropped", error=f"{WAITING_MAX:,} runs of the action wait"))
        return False

    def _start(self, state: State) -> None:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="quire-actions")
        self._pool.submit(self._work, state)

    def _work(self, state: State) -> None:
        """Makes one run of an action. The others get their turn before the next one."""
        run, done = state.waiting.popleft()
        try:
            ended = self.run(state, run)
            if done is not None:
                with contextlib.suppress(Exception):
                    done(ended)
        finally:
            with self._changed:
                state.is_scheduled = bool(state.waiting)
                if state.is_scheduled:
                    # After the pool was shut down, the runs that wait are given up.
                    with contextlib.suppress(RuntimeError):
                        self._start(state)
                else:
                    self._scheduled -= 1
                    self._changed.notify_all()

    def run(self, state: State, run: Run) -> Ended:
        """Runs an action on this thread, after its run in progress. Returns the result."""
        with state.lock:
            state.running += 1
            began, began_ns = time.monotonic(), time.time_ns()
            state.chain, state.began_ns = run.chain, began_ns
            try:
                outcome, step, error = self._steps(state, run)
            finally:
                state.running -= 1
            state.recent.append((began_ns, time.time_ns(), run.chain))
            ended = Ended(outcome, step, error, time.monotonic() - began)
        self._note(state, run, ended)
        return ended

    def _steps(self, state: State, run: Run) -> tuple[Outcome, str | None, str | None]:
        """Returns the outcome, the step that ended the run, and its error."""
        run.variables = {
            **self._always,
            "DATETIME": time_text(run.at),
            "UNIX_TIMESTAMP": int(run.at),
            **run.variables,
            "ACTION_NAME": state.name,
        }
        for index, step in enumerate(state.steps):
            try:
                self._carry(state, run, step)
            except Stopped:
                return "stopped", _place(index, step), None
            except StepFailed as error:
                return "failed", _place(index, step), str(error)
            except Exception as error:  # A bug must not end the thread, and is seen.
                where = _place(index, step)
                _log.debug("action %s: %s", state.name, where, exc_info=True, extra=line("60-0006"))
                return "failed", where, f"{type(error).__name__}: {error}"
        return "ok", None, None

    def _note(self, state: State, run: Run, ended: Ended) -> None:
        state.counts[ended.outcome] += 1
        if ended.outcome != "dropped":
            state.last = time.time(), ended
        if ended.error is not None:
            state.last_error = ended.error
        self._write(state, run, ended)
        if self.is_told():
            self._tell(_message(state, run, ended))

    def _write(self, state: State, run: Run, ended: Ended) -> None:
        if ended.outcome in ("ok", "stopped") and not _log.isEnabledFor(logging.DEBUG):
            return
        fields = {"action": state.name, "trigger": run.trigger}
        match ended.outcome:
            case "failed":
                _log.error(
                    "action %r, started by %s: %s failed: %s",
                    *(state.name, run.trigger, ended.step, ended.error),
                    extra=line("60-0002", **fields, step=ended.step, error=ended.error),
                )
            case "dropped":
                now = time.monotonic()
                if state.dropped_logged is None or now - state.dropped_logged >= _REPORTED:
                    state.dropped_logged = now
                    _log.warning(
                        "action %r: runs are dropped, %d since the start: %s",
                        *(state.name, state.counts["dropped"], ended.error),
                        extra=line("60-0003", **fields, dropped=state.counts["dropped"]),
                    )
            case _:
                _log.debug(
                    "action %r, started by %s: %s",
                    *(state.name, run.trigger, ended.outcome),
                    extra=line("60-0004", **fields, outcome=ended.outcome, step=ended.step),
                )

    def close(self, timeout: float) -> bool:
        """Takes no more runs, and waits for those that it has. Returns whether all have ended in time."""
        with self._changed:
            self._is_closed = True
            has_ended = self._changed.wait_for(lambda: self._scheduled == 0, timeout)
        if self._pool is not None:
            self._pool.shutdown(wait=has_ended, cancel_futures=True)
        return has_ended


def _place(index: int, step: Part) -> str:
    return f"do[{index}] {step.entry.name}"


def time_text(at: float) -> str:
    """A time in UTC, to the microsecond. `at`: seconds since 1970."""
    microseconds = round(at * 1_000_000)
    return f"{_second_text(microseconds // 1_000_000)}.{microseconds % 1_000_000:06}Z"


@lru_cache(maxsize=256)
def _second_text(second: int) -> str:
    return f"{datetime.fromtimestamp(second, UTC):%Y-%m-%dT%H:%M:%S}"


def _message(state: State, run: Run, ended: Ended) -> str:
    """The message for `/quire/Action`."""
    at = datetime.fromtimestamp(time.time(), UTC)
    return json.dumps(
        {
            "action": state.name,
            "trigger": run.trigger,
            "outcome": ended.outcome,
            "step": ended.step,
            "error": ended.error,
            "duration_s": round(ended.duration, 6),
            "timestamp": f"{at:%Y%m%dT%H%M%S.%f}Z",
        }
    )
