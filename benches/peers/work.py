"""The lines of the table: each does one thing with a started server and gives figures.

Clients run in processes of their own that start together; a rate counts from the first start to the last end.
"""

from __future__ import annotations

import multiprocessing
import statistics
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.synchronize import Barrier
from typing import Any

from .engine import Engine, NotOffered
from .server import Server

_SPAWN = multiprocessing.get_context("spawn")
_TIMEOUT_S = 600.0
_IDLE_S = 2.0


@dataclass(frozen=True)
class Scale:
    """How much of each; the same for every engine of a run."""

    messages: int
    size: int
    keys: int
    seconds: int


@dataclass(frozen=True)
class Figure:
    value: float
    unit: str


Figures = dict[str, Figure]


def publish(processes: int) -> Callable[[Engine, Server, Scale], Figures]:
    def run(engine: Engine, server: Server, scale: Scale) -> Figures:
        share = scale.messages // processes
        results = _run([(_publish, (engine, share, scale.size))] * processes)
        rate = _rate(share * processes, results)
        return {f"publish, {processes} process{'es' * (processes > 1)}": rate}

    return run


def replay(engine: Engine, server: Server, scale: Scale) -> Figures:
    """Of what the publish lines left in the log."""
    return {"replay": _rate(scale.messages, _run([(_replay, (engine, scale.messages))]))}


def queue(engine: Engine, server: Server, scale: Scale) -> Figures:
    before = server.resident_bytes()
    filled = _run([(_enqueue, (engine, scale.messages, scale.size))])
    per_message = max(0, server.resident_bytes() - before) / scale.messages
    consumed = _run([(_consume, (engine,))] * 4)
    if (taken := sum(result.count for result in consumed)) < scale.messages:
        raise RuntimeError(f"{scale.messages} went into the queue, {taken} were acknowledged")
    return {
        "queue, publish": _rate(scale.messages, filled),
        "queue, 4 consumers": _rate(scale.messages, consumed),
        "memory per queued message": Figure(per_message, "B"),
    }


def latency(rate: int) -> Callable[[Engine, Server, Scale], Figures]:
    def run(engine: Engine, server: Server, scale: Scale) -> Figures:
        count = rate * scale.seconds
        results = _run([(_receive_stamped, (engine, count)), (_publish_stamped, (engine, rate, count))])
        cuts = statistics.quantiles(results[0].latencies_ns, n=1000)
        label = f"publish to subscriber at {rate:,}/s"
        return {
            f"{label}, p50": Figure(cuts[499] / 1e3, "µs"),
            f"{label}, p99": Figure(cuts[989] / 1e3, "µs"),
        }

    return run


def fan_out(engine: Engine, server: Server, scale: Scale) -> Figures:
    """One publisher, four processes with a quarter of the keys each, every subscription wants one key."""
    count = scale.messages // 4 // scale.keys * scale.keys
    shares = [list(range(first, scale.keys, 4)) for first in range(4)]
    roles: list[Role] = [
        (_receive_keyed, (engine, share, count // scale.keys * len(share))) for share in shares
    ]
    results = _run([*roles, (_publish_keyed, (engine, scale.keys, count, scale.size))])
    return {f"filtered fan-out, {scale.keys} subscriptions": _rate(count, results)}


LINES: dict[str, Callable[[Engine, Server, Scale], Figures]] = {
    "publish-1": publish(1),
    "publish-4": publish(4),
    "replay": replay,
    "queue": queue,
    "latency-1000": latency(1_000),
    "latency-5000": latency(5_000),
    "fan-out": fan_out,
}


@dataclass
class Result:
    """What one client process did."""

    start: float
    end: float
    count: int = 0
    latencies_ns: Sequence[int] = ()


Role = tuple[Callable[..., Result], tuple[Any, ...]]


def _rate(count: int, results: Sequence[Result]) -> Figure:
    busy = [result for result in results if result.end]
    seconds = max(result.end for result in busy) - min(result.start for result in busy)
    return Figure(count / seconds, "/s")


def _run(roles: Sequence[Role]) -> list[Result]:
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


def _timed(work: Callable[[], None]) -> Result:
    start = time.monotonic()
    work()
    return Result(start, time.monotonic())


def _publish(ready: Callable[[], object], engine: Engine, count: int, size: int) -> Result:
    ready()
    return _timed(lambda: engine.publish(count, size))


def _replay(ready: Callable[[], object], engine: Engine, count: int) -> Result:
    ready()
    return _timed(lambda: engine.replay(count))


def _enqueue(ready: Callable[[], object], engine: Engine, count: int, size: int) -> Result:
    ready()
    return _timed(lambda: engine.enqueue(count, size))


def _consume(ready: Callable[[], object], engine: Engine) -> Result:
    ready()
    result = Result(0.0, 0.0)

    def acknowledged(count: int) -> None:
        # From the first time that something came, joining a group may take seconds, to the last: what follows is waiting.
        result.end = time.monotonic()
        result.start = result.start or result.end
        result.count = count

    engine.consume(_IDLE_S, acknowledged)
    return result


def _publish_stamped(ready: Callable[[], object], engine: Engine, rate: int, count: int) -> Result:
    ready()
    return _timed(lambda: engine.publish_stamped(rate, count))


def _receive_stamped(ready: Callable[[], object], engine: Engine, count: int) -> Result:
    latencies_ns: list[int] = []

    def came(data: bytes) -> bool:
        latencies_ns.append(time.monotonic_ns() - int(data))
        return len(latencies_ns) == count

    result = _timed(lambda: engine.receive_stamped(lambda: (ready(), None)[1], came))
    result.latencies_ns = latencies_ns
    return result


def _publish_keyed(ready: Callable[[], object], engine: Engine, keys: int, count: int, size: int) -> Result:
    ready()
    return _timed(lambda: engine.publish_keyed(keys, count, size))


def _receive_keyed(ready: Callable[[], object], engine: Engine, keys: Sequence[int], count: int) -> Result:
    taken = 0
    result = Result(0.0, 0.0)

    def begin() -> None:
        ready()
        result.start = time.monotonic()

    def came(more: int) -> bool:
        nonlocal taken
        taken += more
        return taken >= count

    engine.receive_keyed(keys, begin, came)
    result.end = time.monotonic()
    return result
