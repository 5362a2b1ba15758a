"""`quire.Queue`: the engine of queues on the clock of the test."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
import quire
from quire.config._example import EXAMPLE


def taken(queue: quire.Queue) -> list[tuple[int, int]]:
    return [(delivery.position, delivery.subscription) for delivery in queue.dispatch()]


def test_a_lease_comes_and_goes_with_the_time_that_it_is_told() -> None:
    queue = quire.Queue({"lease_period": "10s"})
    first = queue.subscribe()
    assert queue.enqueue({"n": 1}) == 1
    (delivery,) = queue.dispatch()
    assert (delivery.position, delivery.subscription, delivery.data) == (1, first, b'{"n":1}')
    assert (delivery.lease_deadline, delivery.delivery_count, delivery.barrier) == (10.0, 1, False)
    assert queue.next_tick == 10.0
    queue.tick(9.999)
    assert queue.dispatch() == []
    queue.tick(10)
    (again,) = queue.dispatch()
    assert (again.delivery_count, again.lease_deadline) == (2, 20.0)
    assert queue.ack(1) == 1
    assert queue.ack(1) == 0
    stats = queue.stats()
    assert (stats["depth"], stats["acknowledged"], stats["expired_leases"]) == (0, 1, 1)


def test_a_released_message_was_not_delivered() -> None:
    queue = quire.Queue(max_deliveries=1)
    queue.subscribe()
    queue.enqueue()
    for _ in range(3):
        (again,) = queue.dispatch()
        assert again.delivery_count == 1
        assert queue.release(again.position) == 1
    queue.dispatch()
    queue.disconnect()
    assert [expired.reasons for expired in queue.tick(1)] == [("max_deliveries",)]


def test_a_message_that_enters_with_a_delay_waits_and_keeps_its_place() -> None:
    queue = quire.Queue()
    desk = queue.subscribe(max_backlog=1)
    queue.enqueue({"n": 1}, delay="5s")
    queue.enqueue({"n": 2}, delay=0)
    queue.enqueue({"n": 3})
    assert (taken(queue), queue.stats()["delayed"], queue.next_tick) == ([(2, desk)], 1, 5.0)
    queue.tick(5)
    queue.ack(2)
    assert taken(queue) == [(1, desk)]
    with pytest.raises(quire.ConfigError) as caught:
        queue.enqueue(delay="soon")
    assert caught.value.key == "delay"


def test_a_cancelled_message_waits_for_its_retry_delay() -> None:
    queue = quire.Queue(retry_delay=["1s", "1m"])
    queue.subscribe(max_backlog=2)
    for number in range(2):
        queue.enqueue({"n": number})
    queue.dispatch()
    queue.cancel(2)
    queue.cancel(1, delay="500ms")
    assert (queue.dispatch(), queue.stats()["delayed"], queue.next_tick) == ([], 2, 0.5)
    queue.tick(1)
    assert [delivery.position for delivery in queue.dispatch()] == [1, 2]
    queue.cancel([1, 2])
    queue.tick(60.9)
    assert queue.dispatch() == []
    queue.tick(61)
    assert [delivery.cancel_count for delivery in queue.dispatch()] == [2, 2]


def example_queue() -> dict[str, Any]:
    """The queue of `quire config example`, which is commented out there."""
    lines = EXAMPLE.splitlines()
    begin = lines.index("# [[queue]]")
    end = next((at for at in range(begin, len(lines)) if not lines[at].startswith("# ")), len(lines))
    parsed = tomllib.loads("\n".join(line.removeprefix("# ") for line in lines[begin:end]))
    (queue,) = parsed["queue"]
    return dict(queue)


def deliveries_in_ten_minutes(queue: quire.Queue) -> int:
    """Of one message that is cancelled as soon as it is delivered."""
    queue.subscribe()
    assert queue.enqueue({"price": 1, "quantity": 1}) == 1
    count = 0
    while queue.now < 600:
        count += len(queue.dispatch())
        queue.cancel(1)
        queue.tick(600 if queue.next_tick is None else min(600, max(queue.next_tick, queue.now + 0.001)))
    return count


def test_a_poison_message_is_delivered_a_few_times_as_the_example_is_configured() -> None:
    settings = example_queue()
    assert settings["dead_letter_topic"]
    assert deliveries_in_ten_minutes(quire.Queue(settings)) == 4
    # Without the limits the pauses alone keep it from being a loop.
    del settings["max_cancels"], settings["max_deliveries"]
    assert deliveries_in_ten_minutes(quire.Queue(settings)) <= 20


def test_time_does_not_go_back() -> None:
    queue = quire.Queue()
    queue.tick(5)
    queue.tick(3)
    assert queue.now == 5.0


def test_proportional_gives_to_whom_has_the_most_room() -> None:
    queue = quire.Queue(fairness_model="proportional")
    small, large = queue.subscribe(max_backlog=2), queue.subscribe(max_backlog=4)
    for _ in range(6):
        queue.enqueue()
    assert [who for _, who in taken(queue)] == [small, large, large, small, large, large]


def test_a_filter_and_a_priority_read_the_data() -> None:
    queue = quire.Queue(priority="/price", filter="/price > 0")
    some = queue.subscribe(filter="/side = 'buy'", max_backlog=10)
    assert queue.enqueue({"price": 0}) is None
    for price, side in [(1, "buy"), (9, "sell"), (5, "buy")]:
        queue.enqueue({"price": price, "side": side})
    assert taken(queue) == [(3, some), (1, some)]
    with pytest.raises(quire.BadFilterError) as caught:
        queue.subscribe(filter="/a =")
    assert caught.value.column == 5


def test_a_barrier_goes_to_all_when_everything_before_it_is_done() -> None:
    queue = quire.Queue(barrier_expression="/end = 1")
    first, second = queue.subscribe(), queue.subscribe(max_backlog=0)
    queue.enqueue({"n": 1})
    queue.enqueue({"end": 1})
    assert taken(queue) == [(1, first)]
    queue.ack(1)
    (one,) = queue.dispatch(1)
    (other,) = queue.dispatch(1)
    assert [(d.subscription, d.barrier, d.data) for d in (one, other)] == [
        (first, True, b'{"end":1}'),
        (second, True, b'{"end":1}'),
    ]


def test_what_expires_is_told_with_its_reasons() -> None:
    queue = quire.Queue(max_cancels=0, expiration="1m")
    queue.subscribe()
    queue.enqueue("late", expiration="10s")
    queue.enqueue("thrown out")
    queue.enqueue("tried")
    assert queue.expire(2) == 1
    assert [d.position for d in queue.dispatch()] == [1]
    queue.ack(1)
    assert [d.position for d in queue.dispatch()] == [3]
    queue.cancel(3)
    queue.enqueue("too late", expiration=1)
    expired = {e.data: (e.reasons, e.delivery_count, e.cancel_count) for e in queue.tick(0)}
    assert expired == {b"thrown out": (("forced_expire",), 0, 0), b"tried": (("max_cancels",), 1, 1)}
    assert queue.dispatch()[0].data == b"too late"
    queue.disconnect()
    assert [(e.position, e.reasons) for e in queue.tick(1)] == [(4, ("time_limit",))]
    assert queue.stats()["depth"] == 0


def test_messages_beyond_the_target_depth_become_active_later() -> None:
    queue = quire.Queue(target_queue_depth=2)
    queue.subscribe(max_backlog=10)
    for _ in range(5):
        queue.enqueue()
    assert (queue.stats()["depth"], queue.stats()["inactive"]) == (2, 3)
    assert queue.ack(4) == 1
    assert [d.position for d in queue.dispatch()] == [1, 2]
    queue.ack([1, 2])
    assert [d.position for d in queue.dispatch()] == [3, 5]


def test_strict_leasing_asks_who_holds_it() -> None:
    queue = quire.Queue(leasing="strict", lease_period=60)
    queue.subscribe(connection=7)
    queue.enqueue()
    queue.dispatch()
    assert queue.ack(1, connection=8) == 0
    assert not queue.extend(1, connection=8)
    assert queue.extend(1, "1h", connection=7)
    queue.tick(3599)
    assert queue.ack(1, connection=7) == 1


def test_by_filter_everything_active_is_settled() -> None:
    queue = quire.Queue()
    queue.subscribe(max_backlog=2)
    for n in range(6):
        queue.enqueue({"n": n})
    queue.dispatch()
    assert queue.ack(filter="/n >= 1 AND /n < 4") == 3
    assert queue.ack(filter="", expire=True) == 3
    assert sorted(e.position for e in queue.tick(0)) == [1, 5, 6]


def test_mistakes_name_their_key() -> None:
    with pytest.raises(quire.ConfigError, match="semantics"):
        quire.Queue(semantics="exactly-once")
    with pytest.raises(quire.ConfigError, match="lease_time"):
        quire.Queue(lease_time=3)
    with pytest.raises(quire.ConfigError, match="target_queue_depth"):
        quire.Queue(target_queue_depth=10, priority="/a")
    with pytest.raises(quire.ConfigError, match="one of them"):
        quire.Queue().ack()
