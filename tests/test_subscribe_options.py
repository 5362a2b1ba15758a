"""The clients and the command line have the verdicts of `tests/golden/subscribe-options.txt`.

The file has sets of options of a subscription. `crates/quire-command/tests/subscribe_options.rs`
writes it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import quire
from quire.cli import _connect, run

GOLDEN = Path(__file__).parent / "golden" / "subscribe-options.txt"
OK = "ok"

#: A value of each option. The calls `sow_and_subscribe` and `delta_subscribe` have no value.
VALUES: dict[str, Any] = {
    "bookmark": "0",
    "until": "0|1|",
    "bookmark_not_found": "now",
    "live": True,
    "fully_durable": True,
    "paused": True,
    "deletions": True,
    "rate": "2X",
    "rate_max_gap": "1s",
    "conflation": "1s",
    "conflation_key": "/id",
    "max_backlog": 5,
    "order_by": "/id",
    "top_n": 5,
    "skip_n": 0,
    "keys": "1",
    "oof": True,
    "no_empties": True,
    "select": "-/,+/id",
    "projection": "COUNT(1) AS /n",
    "grouping": "/id",
}


def golden() -> list[tuple[list[str], str]]:
    lines = [line for line in GOLDEN.read_text().splitlines() if not line.startswith("#")]
    return [(names.split(" "), verdict) for names, verdict in (line.split(" | ") for line in lines)]


def call_of(client: Any, names: list[str]) -> Callable[..., Any]:
    calls = {
        (False, False): client.subscribe,
        (True, False): client.sow_and_subscribe,
        (False, True): client.delta_subscribe,
        (True, True): client.sow_and_delta_subscribe,
    }
    call: Callable[..., Any] = calls["sow" in names, "delta" in names]
    return call


#: Options that go together, but for which the calls have no argument: a subscription to records
#: continues with a bookmark and keys after its records, and the records of an earlier state have
#: other options in other versions.
WITHOUT_ARGUMENT = {"keys", "fully_durable", "until"}


def test_the_client_has_the_verdict_of_the_golden_file_on_each_set_of_options() -> None:
    config = quire.Config(
        transaction_log={"topic": [{"name": "orders", "message_type": "json"}]},
        sow_topic=[{"name": "orders", "message_type": "json", "key": ["/id"], "history": {"window": "1d"}}],
    )
    asked = 0
    with quire.Client("memory:", config=config) as client:
        for names, verdict in golden():
            call = call_of(client, names)
            given = {name: VALUES[name] for name in names if name in VALUES}
            if missing := given.keys() - inspect.signature(call).parameters.keys():
                assert verdict != OK or missing <= WITHOUT_ARGUMENT, names
                continue
            asked += 1
            try:
                call("orders", **given).unsubscribe()
            except quire.ConfigError as error:
                reason = (
                    str(error).replace("`sow_and_subscribe`", "sow").replace("`delta_subscribe`", "delta")
                )
                assert reason.replace("`", "") == verdict, names
            except quire.BadBookmarkError:
                assert verdict == OK, names  # the state is before the history
            else:
                assert verdict == OK, names
    assert asked > 100


def test_no_call_has_an_argument_that_can_only_be_refused() -> None:
    for takes in (quire.Client, quire.AsyncClient):
        for name in ("subscribe", "sow_and_subscribe", "delta_subscribe", "sow_and_delta_subscribe"):
            kind = {"sow": "sow" in name, "delta": "delta" in name}
            allowed = {
                option
                for names, verdict in golden()
                if verdict == OK and kind == {each: each in names for each in kind}
                for option in names
            }
            arguments = inspect.signature(getattr(takes, name)).parameters.keys() & VALUES.keys()
            assert arguments <= allowed, name


#: The call that has the arguments which its delta subscription does not have.
WHOLE = {"delta_subscribe": "subscribe", "sow_and_delta_subscribe": "sow_and_subscribe"}


def only_whole(client: Any, call: str) -> dict[str, inspect.Parameter]:
    """The arguments that the subscription to whole messages has in addition."""
    own = inspect.signature(getattr(client, call)).parameters
    whole = inspect.signature(getattr(client, WHOLE[call])).parameters
    return {name: parameter for name, parameter in whole.items() if name in VALUES and name not in own}


def check_refusals(client: Any, call: str) -> None:
    verdicts = {" ".join(names): verdict for names, verdict in golden()}
    kind = "sow delta" if call.startswith("sow") else "delta"
    for name in only_whole(client, call):
        with pytest.raises(quire.ConfigError) as raised:
            getattr(client, call)("orders", **{name: VALUES[name]})
        assert raised.value.key == name
        reason = str(raised.value)
        assert reason.endswith(f". Use `{WHOLE[call]}`, which delivers whole messages")
        # The option `until` of the file is a part of a bookmark.
        order = f"sow {name} delta" if name == "skip_n" else f"{name} {kind}"
        expected = "until: it requires bookmark" if name == "until" else verdicts[order]
        reason = reason.replace("`delta_subscribe`", "delta").replace("`", "")
        assert reason.startswith(expected), name


@pytest.mark.parametrize("call", WHOLE)
async def test_a_delta_subscription_refuses_what_only_whole_messages_can_have(call: str) -> None:
    config = quire.Config(sow_topic=[{"name": "orders", "message_type": "json", "key": ["/id"]}])
    with quire.Client("memory:", config=config) as client:
        check_refusals(client, call)
        # Programs pass on the arguments that they have.
        defaults = {name: parameter.default for name, parameter in only_whole(client, call).items()}
        assert len(defaults) >= 7
        getattr(client, call)("orders", **defaults).unsubscribe()
        with pytest.raises(TypeError, match=rf"{call}\(\) got an unexpected keyword argument 'rat'"):
            getattr(client, call)("orders", rat=None, **defaults)
    async with quire.AsyncClient("memory:", config=config) as later:
        check_refusals(later, call)
        await (await getattr(later, call)("orders", **defaults)).unsubscribe()


def test_the_command_line_has_the_verdict_of_the_golden_file_on_each_set_of_options(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Accepted(Exception):
        pass

    def accepted(*_: object, **__: object) -> None:
        raise Accepted

    monkeypatch.setattr(_connect, "Observer", accepted)
    flags = {"live", "sow", "oof", "delta", "no_empties"}
    options = {*flags, "bookmark", "bookmark_not_found", "rate", "conflation", "conflation_key"}
    options |= {"max_backlog", "order_by", "top_n", "skip_n", "keys", "until"}
    asked = 0
    for names, verdict in golden():
        if not options.issuperset(names):
            continue
        asked += 1
        line = ["subscribe", "orders"]
        for name in names:
            if name in flags:
                line.append(flag(name))
            elif name == "bookmark" and "until" in names:
                line += [flag(name), "[0:0|1|]"]
            elif name != "until":
                line += [flag(name), str(VALUES[name])]
        if "keys" in names and "sow" not in names:
            # Only a subscription to records continues with keys and a bookmark.
            verdict = "keys: it requires sow"
        try:
            code = run(line)
        except Accepted:
            assert verdict == OK, names
            continue
        error = capsys.readouterr().err.strip()
        for name in sorted(options, key=len, reverse=True):
            error = error.replace(flag(name), name)
        assert (code, error) == (2, f"quire: {verdict}"), names
    assert asked > 100


def flag(name: str) -> str:
    return "--" + name.replace("_", "-")
