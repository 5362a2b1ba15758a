"""Gives methods with `@takes(X)` the arguments of the dataclass X on the pages of the Python API,
as they have at run time.

mkdocs.yml names this extension of griffe, which reads the package without importing it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import griffe


class Takes(griffe.Extension):
    """Runs after the extension `dataclasses`, which finds the arguments of dataclasses."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        for method, taken in list(_taking(pkg)):
            arguments = pkg.modules_collection[taken].parameters
            method.parameters = griffe.Parameters(method.parameters[0], *list(arguments)[1:])


def _taking(scope: griffe.Module | griffe.Class) -> Iterator[tuple[griffe.Function, str]]:
    """Yields the methods with the decorator, each with the path of its dataclass."""
    for member in scope.members.values():
        if member.is_alias:
            continue
        if isinstance(member, (griffe.Module, griffe.Class)):
            yield from _taking(member)
        elif isinstance(member, griffe.Function):
            for decorator in member.decorators:
                call = decorator.value
                if isinstance(call, griffe.ExprCall) and decorator.callable_path == "quire._arguments.takes":
                    taken = call.arguments[0]
                    assert isinstance(taken, griffe.ExprName)
                    yield member, taken.canonical_path
