"""The models of the configuration as type checkers see them: the values that a key accepts, and
that a wrong key is refused.

mypy and pyright check this file. An error that one of them does not report any more is an unused
`type: ignore`.
"""

from __future__ import annotations

import ast
import inspect
from datetime import timedelta
from pathlib import Path

import pytest
import quire
from pydantic import BaseModel
from quire.config._last_values import History

MODELS = [
    *(getattr(quire.config, name) for name in quire.config.__all__ if name != "Address"),
    History,
]


def test_keys_accept_durations_sizes_and_tables_as_people_write_them() -> None:
    jobs = quire.config.Queue(
        name="jobs", message_type="json", lease_period="30s", retry_delay=["1s", timedelta(minutes=1)]
    )
    assert jobs.lease_period == 30.0
    config = quire.Config(
        data_directory=Path("shop"),
        transport=quire.config.Transport(max_message_size="64KB"),
        transaction_log={"journal_size": "64MB"},
        queue=[jobs, {"name": "mail", "message_type": "json"}],
        sow_topic=quire.config.SowTopic(name="orders", message_type="json", key="/id", expiration="1h"),
        view=quire.config.View(
            name="totals", message_type="json", underlying_topic="orders", projection="COUNT(1) AS /n"
        ),
        conflated_topic=quire.config.ConflatedTopic(
            name="orders-C", message_type="json", underlying_topic="orders", interval="100ms"
        ),
    )
    assert config.queue[0] == jobs
    assert config.transport[0].max_message_size == 65536


def test_wrong_keys_and_values_are_refused_by_type_checkers_too() -> None:
    with pytest.raises(quire.ConfigError, match="nmae"):
        quire.Config(nmae="shop")  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="lease"):
        quire.config.Queue(name="jobs", message_type="json", lease="30s")  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="lease_period"):
        quire.config.Queue(name="jobs", message_type="json", lease_period=[30])  # type: ignore[arg-type]


def _constructor(model: type[object]) -> ast.FunctionDef | None:
    """The declaration of a class for type checkers. `None`: the declaration of a base class."""
    module = ast.parse(Path(inspect.getfile(model)).read_text())
    [body] = [
        node.body for node in module.body if isinstance(node, ast.ClassDef) and node.name == model.__name__
    ]
    seen = [node.body[0] for node in body if isinstance(node, ast.If)]
    return next((node for node in seen if isinstance(node, ast.FunctionDef)), None)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_the_constructor_that_type_checkers_see_has_the_keys_of_the_model(model: type[BaseModel]) -> None:
    seen = next(filter(None, map(_constructor, model.__mro__)))
    required = {
        arg.arg
        for arg, default in zip(seen.args.kwonlyargs, seen.args.kw_defaults, strict=True)
        if default is None
    }
    fields = {field.alias or name: field.is_required() for name, field in model.model_fields.items()}
    older = {"max_queue_depth", "max_waiting"} - set(fields)
    assert {arg.arg for arg in seen.args.kwonlyargs} - older == set(fields)
    assert required == {name for name, is_required in fields.items() if is_required}
