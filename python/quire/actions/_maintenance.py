"""The schedule of `[transaction_log.maintenance]` as actions.

There is one action for each of `archive`, `compress` and `remove` that has a rule, so that one that
fails does not keep the others from their work.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from quire.actions._schedule import Schedule
from quire.config._actions import Action

if TYPE_CHECKING:
    from quire.config._models import Maintenance

#: The beginning of the names of the actions.
PREFIX: Final = "maintenance."


def actions_of(maintenance: Maintenance) -> list[Action]:
    """The actions of the rules."""
    schedule = Schedule(f"{maintenance.interval:g}s", maintenance.interval)
    found = []
    for verb, rules in maintenance.rules().items():
        steps: list[dict[str, Any]] = [{f"{verb}_journal": {name: value}} for name, value in rules.items()]
        found.append(Action(name=f"{PREFIX}{verb}", on={"schedule": {"at": schedule}}, do=steps))
    return found
