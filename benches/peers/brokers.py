"""The lines about logs and queues: each does one thing with a started server and gives figures."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

from .engine import Broker
from .roles import Figure, Figures, Result, Role, Scale, rate_of, run, timed
from .server import Server

_IDLE_S = 2.0


def publish(processes: int) -> Callable[[Broker, Server, Scale], Figures]:
    def line(engine: Broker, server: Server, scale: Scale) -> Figures:
        share = scale.messages // processes
        results = run([(_publish, (engine, share, scale.size))] * processes)
        rate = rate_of(share * processes, results)
        return {f"publish, {processes} process{'es' * (processes > 1)}": rate}

    return line


def replay(engine: Broker, server: Server, scale: Scale) -> Figures:
    """Of what the publish lines left in the log."""
    return {"replay": rate_of(scale.messages, run([(_replay, (engine, scale.messages))]))}


def queue(engine: Broker, server: Server, scale: Scale) -> Figures:
    before = server.resident_bytes()
    filled = run([(_enqueue, (engine, scale.messages, scale.size))])
    per_message = max(0, server.resident_bytes() - before) / scale.messages
    consumed = run([(_consume, (engine,))] * 4)
    if (taken := sum(result.count for result in consumed)) < scale.messages:
        raise RuntimeError(f"{scale.messages} went into the queue, {taken} were acknowledged")
    return {
        "queue, publish": rate_of(scale.messages, filled),
        "queue, 4 consumers": rate_of(scale.messages, consumed),
        "memory per queued message": Figure(per_message, "B"),
    }


def latency(rate: int) -> Callable[[Broker, Server, Scale], Figures]:
    def line(engine: Broker, server: Server, scale: Scale) -> Figures:
        count = rate * scale.seconds
        results = run([(_receive_stamped, (engine, count)), (_publish_stamped, (engine, rate, count))])
        cuts = statistics.quantiles(results[0].latencies_ns, n=1000)
        label = f"publish to subscriber at {rate:,}/s"
        return {
            f"{label}, p50": Figure(cuts[499] / 1e3, "µs"),
            f"{label}, p99": Figure(cuts[989] / 1e3, "µs"),
        }

    return line


def fan_out(engine: Broker, server: Server, scale: Scale) -> Figures:
    """One publisher, four processes with a quarter of the keys each, every subscription wants one key."""
    count = scale.messages // 4 // scale.keys * scale.keys
    shares = [list(range(first, scale.keys, 4)) for first in range(4)]
    roles: list[Role] = [
        (_receive_keyed, (engine, share, count // scale.keys * len(share))) for share in shares
    ]
    results = run([*roles, (_publish_keyed, (engine, scale.keys, count, scale.size))])
    return {f"filtered fan-out, {scale.keys} subscriptions": rate_of(count, results)}


LINES: dict[str, Callable[[Broker, Server, Scale], Figures]] = {
    "publish-1": publish(1),
    "publish-4": publish(4),
    "replay": replay,
    "queue": queue,
    "latency-1000": latency(1_000),
    "latency-5000": latency(5_000),
    "fan-out": fan_out,
}


def _publish(ready: Callable[[], object], engine: Broker, count: int, size: int) -> Result:
    ready()
    return timed(lambda: engine.publish(count, size))


def _replay(ready: Callable[[], object], engine: Broker, count: int) -> Result:
    ready()
    return timed(lambda: engine.replay(count))


def _enqueue(ready: Callable[[], object], engine: Broker, count: int, size: int) -> Result:
    ready()
    return timed(lambda: engine.enqueue(count, size))


def _consume(ready: Callable[[], object], engine: Broker) -> Result:
    ready()
    result = Result(0.0, 0.0)

    def acknowledged(count: int) -> None:
        # From the first message, because joining a group may take seconds, to the last one: the
        # rest is waiting.
        result.end = time.monotonic()
        result.start = result.start or result.end
        result.count = count

    engine.consume(_IDLE_S, acknowledged)
    return result


def _publish_stamped(ready: Callable[[], object], engine: Broker, rate: int, count: int) -> Result:
    ready()
    return timed(lambda: engine.publish_stamped(rate, count))


def _receive_stamped(ready: Callable[[], object], engine: Broker, count: int) -> Result:
    latencies_ns: list[int] = []

    def came(data: bytes) -> bool:
        latencies_ns.append(time.monotonic_ns() - int(data))
        return len(latencies_ns) == count

    result = timed(lambda: engine.receive_stamped(lambda: (ready(), None)[1], came))
    result.latencies_ns = latencies_ns
    return result


def _publish_keyed(ready: Callable[[], object], engine: Broker, keys: int, count: int, size: int) -> Result:
    ready()
    return timed(lambda: engine.publish_keyed(keys, count, size))


def _receive_keyed(ready: Callable[[], object], engine: Broker, keys: Sequence[int], count: int) -> Result:
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
