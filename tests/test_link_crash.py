"""Instances are killed, stopped and parted under load (`link_crashes.py` says what is compared), and each check sees its mistake.

`make crash KIND=link ROUNDS=200` runs the same for longer.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import link_crashes
import pytest


@pytest.mark.parametrize("seed", [1, 2])
def test_instances_that_fail_under_load_lose_and_double_nothing(tmp_path: Path, seed: int) -> None:
    assert link_crashes.crash_rounds(tmp_path, rounds=3, seed=seed)["messages"] > 0


def _lines() -> list[dict[str, Any]]:
    """A history of two messages on two instances, without a mistake."""
    lines: list[dict[str, Any]] = []

    def note(client: str, kind: str, operation: str, value: Any, instance: str | None = None) -> None:
        position = f"7|{value[-1]}|" if operation in ("receive", "read", "deliver", "acknowledge") else None
        line = {"client": client, "type": kind, "operation": operation, "value": value, "position": position}
        lines.append({"time": len(lines), **line, **({"instance": instance} if instance else {})})

    note("nemesis", "ok", "begin", {"loses_disks": False, "instances": 2})
    for value in ("p/1", "p/2"):
        note("p", "invoke", "publish", value)
        note("p", "ok", "publish", value)
        note("subscriber-1", "ok", "receive", value)
        for instance in ("a", "b"):
            note("worker", "ok", "deliver", value, instance)
            note("worker", "ok", "acknowledge", value, instance)
    for instance in ("a", "b"):
        for value in ("p/1", "p/2"):
            note(f"reader of {instance}", "ok", "read", value, instance)
    return lines


def _checked(path: Path, lines: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    link_crashes.check(path)


def _of(lines: list[dict[str, Any]], operation: str, kind: str = "ok") -> list[dict[str, Any]]:
    return [line for line in lines if (line["operation"], line["type"]) == (operation, kind)]


def _drop(operation: str, number: int) -> Callable[[list[dict[str, Any]]], None]:
    return lambda lines: lines.remove(_of(lines, operation)[number])


def _deliver_again(lines: list[dict[str, Any]]) -> None:
    lines.append({**_of(lines, "deliver")[0], "time": len(lines)})


def _swap(lines: list[dict[str, Any]]) -> None:
    first, second = _of(lines, "read")[:2]
    first["value"], second["value"] = second["value"], first["value"]
    first["position"], second["position"] = second["position"], first["position"]


def _rename(operation: str) -> Callable[[list[dict[str, Any]]], None]:
    return lambda lines: _of(lines, operation)[-1].update(position="8|2|")


def _add(operation: str, instance: str) -> Callable[[list[dict[str, Any]]], None]:
    return lambda lines: lines.append(
        {**_of(lines, operation)[-1], "value": "p/3", "position": "7|3|", "instance": instance}
    )


def test_an_acknowledgement_that_the_former_instance_did_not_confirm_counts_for_the_next(
    tmp_path: Path,
) -> None:
    lines = _lines()
    for operation, number in [("deliver", 1), ("acknowledge", 1), ("acknowledge", 0)]:
        _drop(operation, number)(lines)
    _checked(tmp_path / "history", lines)


@pytest.mark.parametrize(
    ("mistake", "found"),
    [
        (_drop("read", 0), "set: a lacks 1 acknowledged messages, such as p/1"),
        (_add("read", "b"), "set: b has messages that were not published"),
        (_swap, "converge: a: p/2 came, p/1 was due"),
        (_rename("read"), "converge: b: p/2 is "),
        (_drop("receive", 0), "log: subscriber-1: p/2 came, p/1 was due"),
        (_drop("receive", 1), "log: subscriber-1 never got 1 messages"),
        (_rename("receive"), "log: subscriber-1: p/2 is "),
        (_drop("deliver", 0), "queue: a delivered 1 messages to nobody"),
        (_add("deliver", "a"), "queue: messages that were not published"),
        (_deliver_again, "came after its acknowledgement"),
    ],
)
def test_each_check_sees_its_mistake(
    tmp_path: Path, mistake: Callable[[list[dict[str, Any]]], None], found: str
) -> None:
    lines = _lines()
    _checked(tmp_path / "history", lines)
    mistake(lines)
    with pytest.raises(AssertionError, match=found):
        _checked(tmp_path / "history", lines)
