"""Answers clients that ask for figures and samples by the client port (docs/protocol.md, `inspect`)."""

from __future__ import annotations

import json
import logging
import sqlite3
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from quire.admin import _forms, _nodes
from quire.admin._errors import HTTPError
from quire.admin._figures import Figures, Tree
from quire.admin._metrics import DETAILS, Node
from quire.admin._nodes import Place
from quire.admin._statistics import History
from quire.server._log import line

_log = logging.getLogger("quire.server")

#: Bytes of an answer. A client always takes frames of 128 KiB.
ANSWER_MAX: Final = 96 * 1024
#: Samples of an answer. A client asks again for further ones.
SAMPLES_MAX: Final = 1000
#: Questions that wait. Further ones are refused.
_WAITING_MAX: Final = 100

#: Gets the answer as JSON, or `None` and why there is none.
Done = Callable[[str | None, str], None]


class Questions:
    """Answers one question after the other, on its own thread, which starts with the first one."""

    def __init__(self, figures: Figures, history: Callable[[], History | None]) -> None:
        """`history`: returns a reader of the samples; `None`: there are none yet."""
        self._figures = figures
        self._history = history
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="quire-questions")
        self._waiting = threading.Semaphore(_WAITING_MAX)

    def answer(self, question: bytes, shows_clients: bool, done: Done) -> None:
        """Answers a question on another thread. Any thread may call it.

        `shows_clients`: the user has the right `monitor` on `/quire/clients`.
        """
        if not self._waiting.acquire(blocking=False):
            done(None, "too many questions about the statistics wait; ask again")
            return

        def work() -> None:
            try:
                answer, reason = self._answered(question, shows_clients)
            except Exception:
                _log.exception("a question about the statistics was not answered", extra=line("70-0004"))
                answer, reason = None, "the server has a bug; its log has the cause"
            finally:
                self._waiting.release()
            done(answer, reason)

        try:
            self._thread.submit(work)
        except RuntimeError:  # the server stops, or there is no thread
            self._waiting.release()
            done(None, "the server cannot answer now")

    def close(self) -> None:
        """Answers no more questions."""
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _answered(self, question: bytes, shows_clients: bool) -> tuple[str | None, str]:
        try:
            asked = json.loads(question)
            assert isinstance(asked, dict)
            path, begin, end = asked["path"], asked.get("begin"), asked.get("end")
            assert isinstance(path, str)
            assert all(each is None or isinstance(each, int) for each in (begin, end))
        except (ValueError, RecursionError, KeyError, AssertionError):
            return None, "the question about the statistics cannot be read"
        try:
            place = _nodes.find(_nodes.split(path)[0])
            if _nodes.resource_of(place.path) != "/quire/server":
                return None, f"/quire/{place.path} has its own subject"
            if "/quire/clients" in place.resources and not shows_clients:
                return None, 'the user may not monitor "/quire/clients"'
            is_history = "begin" in asked or "end" in asked
            answer = self._samples(place, begin, end) if is_history else {"value": self._value(place)}
        except HTTPError as error:
            return None, error.reason
        except sqlite3.Error as error:
            return None, f"the statistics cannot be read: {error}"
        text = json.dumps(answer, separators=(",", ":"))
        if len(text) > ANSWER_MAX:
            return None, f"/quire/{place.path} has more than {ANSWER_MAX} bytes: ask for a part of it"
        return text, ""

    def _value(self, place: Place) -> Any:
        tree, rates = self._figures.current(), self._figures.rates
        if place.metric is DETAILS:
            return self._figures.details(place.id or "")
        if place.metric is not None:
            return _nodes.metrics_of(place, tree, rates).get(place.path.rpartition("/")[2])
        if place.id is not None:
            return _nodes.metrics_of(place, tree, rates)
        return _forms.subtree(
            place,
            lambda node: _objects(node, tree, rates),
            lambda path: _nodes.resource_of(path) == "/quire/server" and path not in _nodes.LISTS,
        )

    def _samples(self, place: Place, begin: int | None, end: int | None) -> Mapping[str, Any]:
        if place.metric is None or place.node is None:
            raise _nodes.not_found(place.path)
        history = self._history()
        if history is None or place.metric.kind == "F":
            return {"samples": [], "more": False}
        samples = history.samples(
            place.node, place.id or "", place.metric, is_rate=place.is_rate, begin=begin, end=end
        )
        return {"samples": samples[:SAMPLES_MAX], "more": len(samples) > SAMPLES_MAX}


def _objects(node: Node, tree: Tree, rates: Tree) -> list[dict[str, Any]]:
    if node.id is None:
        return [tree.get(node.path, {}) | rates.get(node.path, {})]
    return _nodes.objects_of(node, tree, rates)
