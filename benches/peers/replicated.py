"""The lines about replication: a message is confirmed when at least two servers have synced it to
their disks."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterator

from .engine import Replicated
from .roles import Figure, Figures, Result, Scale, rate_of, run

_WARM_UP_S = 1.0
_ALONE_MIN = 10


def publish(processes: int) -> Callable[[Replicated, None, Scale], Figures]:
    def line(engine: Replicated, server: None, scale: Scale) -> Figures:
        results = run([(_publish, (engine, scale.size, scale.window, scale.seconds))] * processes)
        rate = rate_of(sum(result.count for result in results), results)
        return {f"replicated publish, {processes} process{'es' * (processes > 1)}": rate}

    return line


def alone(engine: Replicated, server: None, scale: Scale) -> Figures:
    (result,) = run([(_publish_alone, (engine, scale.size, scale.seconds))])
    cuts = statistics.quantiles(result.latencies_ns, n=100)
    return {
        "replicated publish alone, p50": Figure(cuts[49] / 1e3, "µs"),
        "replicated publish alone, p99": Figure(cuts[98] / 1e3, "µs"),
    }


LINES: dict[str, Callable[[Replicated, None, Scale], Figures]] = {
    "replicated-1": publish(1),
    "replicated-4": publish(4),
    "replicated-alone": alone,
}


def _publish(
    ready: Callable[[], object], engine: Replicated, size: int, window: int, seconds: float
) -> Result:
    # Files, connections between servers, and the compiler of a virtual machine.
    engine.publish(_until(_WARM_UP_S), size, window)
    ready()
    start = time.monotonic()
    count = engine.publish(_until(seconds), size, window)
    return Result(start, time.monotonic(), count)


def _publish_alone(ready: Callable[[], object], engine: Replicated, size: int, seconds: float) -> Result:
    engine.publish_alone(messages_alone(size, _WARM_UP_S, []))
    ready()
    latencies_ns: list[int] = []
    engine.publish_alone(messages_alone(size, seconds, latencies_ns))
    return Result(0.0, 0.0, latencies_ns=latencies_ns)


def _until(seconds: float) -> Callable[[], bool]:
    end = time.monotonic() + seconds
    return lambda: time.monotonic() < end


def messages_alone(size: int, seconds: float, latencies_ns: list[int]) -> Iterator[bytes]:
    """Yields messages for this long, and records how long the engine took for each. The first one
    has the connect and is dropped."""
    data = b"x" * size
    more = _until(seconds)
    for number in itertools.count():
        start = time.monotonic_ns()
        yield data
        if number:
            latencies_ns.append(time.monotonic_ns() - start)
        if number >= _ALONE_MIN and not more():
            break
