"""Each step of the protocol with a kill at it (see `protocol_crashes.py`).

`make crash KIND=protocol ROUNDS=2000` runs any combinations for longer.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from protocol_crashes import LINES, MESSAGES, Victim, world
from support.proxy import CONNECT, Moment, Step

#: What a life comes to in any case; a frame that is rare or has its own time (`place`) is killed at
#: by chance only.
_FRAMES = frozenset(
    {
        CONNECT,
        "logon",
        "logged_on",
        "subscribe",
        "publish",
        "persisted",
        "message",
        "pause",
        "resume",
        "delivery",
        "extend",
    }
    | {"settle_acknowledge", "settle_cancel", "flush", "ack_processed", "ack_completed", "ack_persisted"}
    | {"stats", "figures", "unsubscribe", "goodbye"}
)


@pytest.mark.parametrize(
    ("victim", "moment"),
    [
        ("server", "before"),
        ("server", "after"),
        ("client", "before"),
        ("client", "after"),
        ("connection", "within"),
    ],
)
def test_a_kill_at_any_step_loses_nothing_and_repeats_nothing(
    tmp_path: Path, victim: Victim, moment: Moment
) -> None:
    with world(tmp_path) as it:
        last = {step.name: step for step in it.live()}
        assert last.keys() >= _FRAMES | LINES, (_FRAMES | LINES) - last.keys()
        for name in sorted(_FRAMES | LINES if victim == "client" and moment == "before" else _FRAMES):
            it.live((Step(name, 1), moment, victim))
            assert it.left == [], f"no life came to {name}"
            # A server takes longer to come back.
            if moment == "after" and (victim == "client" or name in {"publish", "message", "delivery"}):
                it.live((last[name], moment, victim))
        assert it.check() > 0


def test_what_was_published_while_there_was_no_server_outlives_the_client(tmp_path: Path) -> None:
    with world(tmp_path) as it:
        for number in range(1, MESSAGES + 1):
            it.live(
                (Step("ack_processed", 1), "after", "road"), (Step("published", number), "after", "client")
            )
            assert it.left == []
        assert it.check() == (1 + MESSAGES) * MESSAGES // 2 + MESSAGES


@pytest.mark.parametrize("victim", ["server", "client"])
def test_a_kill_at_any_step_of_a_reconnect_loses_nothing_and_repeats_nothing(
    tmp_path: Path, victim: Victim
) -> None:
    """The published message is in the log, and the client has no acknowledgement when its
    connection is cut."""
    cut: tuple[Step, Moment, Victim] = Step("persisted", 1), "before", "connection"
    with world(tmp_path) as it:
        for name in (CONNECT, "logon", "logged_on", "publish", "subscribe", "ack_processed", "message"):
            for moment in ("before", "after"):
                it.live(cut, (Step(name, 1), moment, victim))
                # Whether anything is left to be sent again depends on how far it was.
                assert it.left == [] or name in {"publish", "message"}, f"no life came to {name}"
        assert it.check() > 0
