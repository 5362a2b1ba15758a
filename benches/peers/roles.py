"""Client processes: each has one role for a started server, and reports what it did and how long it took.

They start together; a rate counts from the first start to the last end.
"""

from __future__ import annotations

import multiprocessing
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.synchronize import Barrier
from typing import Any

from .engine import NotOffered


@dataclass(frozen=True)
class Scale:
    """How much of each; the same for every engine of a run."""

    messages: int
    size: int
    keys: int
    seconds: int
    records: int
    window: int


@dataclass(frozen=True)
class Figure:
    value: float
    unit: str


Figures = dict[str, Figure]


@dataclass
class Result:
    """The results of one client process."""

    start: float
    end: float
    count: int = 0
    processor_s: float = 0.0
    latencies_ns: Sequence[int] = ()


Role = tuple[Callable[..., Result], tuple[Any, ...]]


def rate_of(count: int, results: Sequence[Result]) -> Figure:
    busy = [result for result in results if result.end]
    seconds = max(result.end for result in busy) - min(result.start for result in busy)
    return Figure(count / seconds, "/s")


def run(roles: Sequence[Role]) -> list[Result]:
    """Runs each role in a process; they begin when all are ready."""
    results: Any = _SPAWN.Queue()
    barrier = _SPAWN.Barrier(len(roles))
    processes = [
        _SPAWN.Process(target=_child, args=(results, number, barrier, role, arguments))
        for number, (role, arguments) in enumerate(roles)
    ]
    for process in processes:
        process.start()
    try:
        by_number = {}
        for _ in processes:
            number, result = results.get(timeout=_TIMEOUT_S)
            if isinstance(result, NotOffered):
                raise result
            if isinstance(result, str):
                raise RuntimeError(result)
            by_number[number] = result
        return [by_number[number] for number in range(len(roles))]
    finally:
        for process in processes:
            if len(by_number) < len(roles):
                process.kill()
            process.join()


def _child(results: Any, number: int, barrier: Barrier, role: Callable[..., Result], arguments: Any) -> None:
    try:
        results.put((number, role(lambda: barrier.wait(_TIMEOUT_S), *arguments)))
    except NotOffered as reason:
        results.put((number, reason))
    except Exception:
        barrier.abort()
        results.put((number, traceback.format_exc()))


def timed(work: Callable[[], None]) -> Result:
    start, used = time.monotonic(), time.process_time()
    work()
    return Result(start, time.monotonic(), processor_s=time.process_time() - used)


_SPAWN = multiprocessing.get_context("spawn")
_TIMEOUT_S = 600.0
