"""A program whose threads gevent or eventlet have replaced: functions of a blocking client would
stop it for good, and are refused."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType

import pytest
import quire
from support.waiting import PATIENCE

_PROGRAM = """
from gevent import monkey
monkey.patch_all({arguments})
import quire

client = quire.Client("memory:", name="c")
try:
    {call}
except RuntimeError as error:
    print(error)
assert client.health().subscriptions == ()
client.publish("orders", b"1")
client.flush(60)
client.close()
"""

CALLS = {
    "on_message": "client.subscribe('orders', on_message=print)",
    "on_persisted": "client.publish('orders', b'', on_persisted=print)",
    "process": "client.create_queue('jobs', message_type='json'); client.process('jobs', print, concurrency=2)",
    "state listener": "client.add_state_listener(print)",
    "table": "client.sow_and_subscribe('orders', on_message=print)",
    "server": "quire.Server(quire.Config(transport={'address': '127.0.0.1:0'})).start()",
}


def run(call: str, arguments: str = "") -> str:
    program = _PROGRAM.format(call=call, arguments=arguments)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_functions_that_need_threads_are_refused_where_gevent_has_replaced_them(call: str) -> None:
    pytest.importorskip("gevent")
    assert run(call).startswith("gevent has replaced the threads of Python")


def test_functions_run_under_gevent_when_it_leaves_threads_out() -> None:
    pytest.importorskip("gevent")
    call = "import threading; done = threading.Event(); client.publish('orders', b'', on_persisted=lambda _: done.set()); done.wait(60)"
    assert run(call, "thread=False") == ""


def test_functions_are_refused_where_eventlet_has_replaced_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    patcher = ModuleType("eventlet.patcher")
    patcher.is_monkey_patched = lambda name: name == "thread"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "eventlet.patcher", patcher)
    with (
        quire.Client("memory:eventlet") as client,
        pytest.raises(RuntimeError, match="eventlet has replaced the threads"),
    ):
        client.subscribe("orders", on_message=print)
