"""The paths of the HTTP server: the tree, `/metrics`, health and the console."""

from __future__ import annotations

import asyncio
import json
import operator
import sqlite3
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Literal

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Match, Route

from quire._errors import ConfigError, QuireError
from quire.admin import _forms, _nodes
from quire.admin._access import Access
from quire.admin._errors import HTTPError, bad_value, bug
from quire.admin._figures import Figures, Tree
from quire.admin._forms import Window
from quire.admin._guarding import App, Guarding
from quire.admin._health import Health
from quire.admin._metrics import DETAILS, Node
from quire.admin._nodes import Place
from quire.admin._prometheus import Exposition
from quire.admin._statistics import History
from quire.admin._times import span
from quire.config._admin import Admin
from quire.server._identity import Identity

Endpoint = Callable[[Request], Awaitable[Response]]

#: Answers that are kept while their figures are the newest, and the bytes that one may have.
_KEPT_MAX: Final = 200
_KEPT_SIZE_MAX: Final = 64 * 1024


class AdminApp:
    """Answers requests. `_console.py` adds its paths with `add_route`."""

    def __init__(
        self,
        admin: Admin,
        access: Access,
        figures: Figures,
        health: Health,
        history: Callable[[], History | None],
    ) -> None:
        """`history`: returns a reader of the samples; `None`: there are none yet."""
        self._history = history
        self.admin: Admin = admin
        self.access: Access = access
        self.figures: Figures = figures
        self.health: Health = health
        self._routes: list[Route] = []
        self._answers = Answers()
        self._histories = Answers()
        self.add_route("/healthz", self._healthz)
        self.add_route("/readyz", self.ready)
        self.add_route("/quire", self.tree)
        self.add_route("/quire.{form}", self.tree)
        self.add_route("/quire/{path:path}", self.tree)

    def add_route(
        self,
        path: str,
        endpoint: Endpoint,
        *,
        methods: Sequence[Literal["GET", "POST"]] = ("GET",),
        is_first: bool = False,
    ) -> None:
        """Answers requests for a path with `endpoint`, a coroutine function. GET includes HEAD.

        The request was checked, and its user is `identity(request)`. Check the rights with `require`.
        An endpoint raises `HTTPError` for a request that it does not carry out.

        - `is_first`: before the paths that were added earlier
        """
        route = Route(path, endpoint, methods=list(methods))
        self._routes.insert(0 if is_first else len(self._routes), route)

    def expose(self, exposition: Exposition) -> None:
        """Answers scrapes of `/metrics`."""

        async def metrics(request: Request) -> Response:
            if "/metrics" not in self.admin.anonymous:
                self.require(request, "monitor", "/quire/server")
            accept = request.headers.get("accept", "")
            loop = asyncio.get_running_loop()
            body, kind = await loop.run_in_executor(None, exposition.answer, accept)
            return Response(body, headers={"Content-Type": kind})

        self.add_route("/metrics", metrics)

    def asgi(self) -> App:
        """Returns the application with every path that was added."""
        handlers: dict[Any, Any] = {
            HTTPError: _answer_error,
            HTTPException: self._answer_other,
            Exception: _answer_bug,
        }
        app = Starlette(routes=self._routes, exception_handlers=handlers)
        return Guarding(app, self.admin, self.access)

    async def _answer_other(self, request: Request, error: HTTPException) -> Response:
        """The errors of the routes: a path that does not exist, and a method that it does not have."""
        codes = {404: "not_found", 405: "bad_method"}
        reasons = {
            404: f"{request.url.path} does not exist",
            405: f"{request.url.path} does not take {request.method}",
        }
        status, headers = error.status_code, error.headers
        if status == 405:
            # The error has only the methods of the first route of the path.
            headers = {"Allow": ", ".join(sorted(self._methods_of(request)))}
        reason = reasons.get(status, error.detail)
        return HTTPError(status, codes.get(status, "bad_request"), reason, "", headers).response()

    def _methods_of(self, request: Request) -> set[str]:
        """The methods that the path of a request takes."""
        methods: set[str] = set()
        for route in self._routes:
            if route.matches(request.scope)[0] != Match.NONE:
                methods |= route.methods or set()
        return methods

    def identity(self, request: Request) -> Identity:
        """The user of a request."""
        identity: Identity = request.scope["state"]["identity"]
        return identity

    def may(self, request: Request, right: str, name: str) -> bool:
        """Whether the user of a request has a right on a topic, queue or resource."""
        if right in ("admin", "write", "delete") and self.admin.read_only:
            return False
        return self.access.may(self.identity(request), right, name)

    def require(self, request: Request, right: str, name: str) -> None:
        """Raises `HTTPError` when the user of a request lacks a right."""
        if not self.may(request, right, name):
            reason = f"the user has no right {right!r} on {name!r}"
            raise HTTPError(403, "not_entitled", reason, "ask the administrator of the server")

    async def current(self) -> Tree:
        """Returns the figures, at most a second old, by the paths of their nodes."""
        if (known := self.figures.known()) is not None:
            return known
        return await asyncio.get_running_loop().run_in_executor(None, self.figures.current)

    async def _healthz(self, request: Request) -> Response:
        stuck = self.health.is_stuck
        return JSONResponse({"status": "stuck" if stuck else "ok"}, 503 if stuck else 200)

    async def ready(self, request: Request) -> Response:
        """Answers `/readyz`."""
        health = self.health
        tree: Tree = {} if health.is_stuck or not health.recovered else await self.current()
        checks = self._checks(tree)
        is_ready = all(checks.values())
        about = {
            "status": "ready" if is_ready else "not ready",
            "checks": checks,
            "degraded": _degraded(tree),
        }
        return JSONResponse(about, 200 if is_ready else 503)

    def is_ready(self, tree: Tree) -> bool:
        """Whether every check of `/readyz` is true, by these figures."""
        return all(self._checks(tree).values())

    def _checks(self, tree: Tree) -> dict[str, bool]:
        health = self.health
        return {
            "recovered": health.recovered,
            "listening": health.listening,
            "journal_writable": bool(tree.get("instance/journal", {}).get("writable")),
            "not_stopping": not health.stopping,
        }

    async def tree(self, request: Request) -> Response:
        """Answers a path of the tree. Raises `HTTPError`."""
        raw_path = request.scope.get("raw_path", request.url.path.encode()).decode("latin-1")
        parts, form = _nodes.split(raw_path.removeprefix("/quire"))
        place = _nodes.find(parts)
        for resource in place.resources:
            self.require(request, "monitor", resource)
        query = request.query_params
        tree, rates = await self.current(), self.figures.rates
        # The parts of a subtree depend on the rights of the user.
        seen = {each for each in _nodes.RESOURCES if place.is_subtree and self.may(request, "monitor", each)}
        asked = raw_path, request.scope["query_string"], frozenset(seen)
        answers: Answers = self._answers
        state: object = tree
        if place.metric is not None and ("t0" in query or "t1" in query):
            # The samples of a range change with the next sample only.
            answers, state = self._histories, self._samples_state
        if (kept := answers.find(asked, state)) is not None:
            return kept
        window = Window(query)
        headers: dict[str, str] = {}
        if place.metric is not None:
            body = await self._leaf(place, form, query, tree, rates)
        elif place.id is not None:
            body = _whole(place, form, _nodes.metrics_of(place, tree, rates), None)
        elif place.node is not None and place.is_collection:
            objects, total = window.of(place.node, _nodes.objects_of(place.node, tree, rates))
            headers["X-Total-Count"] = str(total)
            body = _whole(place, form, objects, total)
        else:

            def objects_at(node: Node) -> list[dict[str, Any]]:
                if node.id is None:
                    return [tree.get(node.path, {}) | rates.get(node.path, {})]
                return window.of(node, _nodes.objects_of(node, tree, rates))[0]

            def shows(path: str) -> bool:
                return _nodes.resource_of(path) in seen

            body = _whole(place, form, _forms.subtree(place, objects_at, shows), None)
        answer = Response(body, media_type=_forms.TYPES[form], headers=headers)
        # Details are always new.
        if place.metric is not DETAILS:
            answers.keep(answer, asked, state)
        return answer

    @property
    def state(self) -> tuple[object, object, object]:
        """The sources of answers: the figures, while they are new enough, or `None`; the samples; and
        the configuration, which has the rights. Each is another object when it has changed."""
        return self.figures.known(), self._samples_state, self.access.config

    @property
    def _samples_state(self) -> object:
        history = self._history()
        return None if history is None else history.state

    async def _leaf(
        self, place: Place, form: str | None, query: Mapping[str, str], tree: Tree, rates: Tree
    ) -> bytes:
        name, now = place.path.rpartition("/")[2], tree["instance"]["timestamp"]
        if "t0" in query or "t1" in query:
            samples = await asyncio.get_running_loop().run_in_executor(None, self._samples, place, query)
        else:
            samples = None
        if samples is None:
            value = _nodes.metrics_of(place, tree, rates).get(name)
            if place.metric is DETAILS:
                value = await self.details(place.id or "")
            found = _forms.leaf(place, value, now)
            rows = [{"timestamp": now, name: value}]
        else:
            found = _forms.leaf(place, samples, now)
            rows = [{"timestamp": at, name: value} for at, value in samples]
        return _forms.to_csv(rows, ["timestamp", name]) if form == "csv" else _whole(place, form, found, None)

    async def details(self, queue: str) -> dict[str, Any]:
        """Returns the subscriptions of a queue, and the messages that they hold. Raises `HTTPError` without them."""
        try:
            return await asyncio.get_running_loop().run_in_executor(None, self.figures.details, queue)
        except QuireError as error:
            raise HTTPError(409, error.code, str(error)) from None

    def _samples(self, place: Place, query: Mapping[str, str]) -> list[tuple[str, Any]]:
        """The samples of a leaf in the range of a request."""
        assert place.node is not None
        assert place.metric is not None
        try:
            begin, end = span(query.get("t0"), query.get("t1"), ("t0", "t1"))
        except ConfigError as error:
            raise bad_value(str(error)) from None
        points = _forms.points_of(query)
        history = self._history()
        if history is None or place.metric.kind == "F":
            return []
        try:
            samples = history.samples(
                place.node, place.id or "", place.metric, is_rate=place.is_rate, begin=begin, end=end
            )
        except sqlite3.Error as error:
            raise HTTPError(409, "internal", f"the statistics cannot be read: {error}") from None
        return samples if points is None else _forms.thinned(samples, points)


class Answers:
    """Answers that are given again while the figures or samples that they are made from are the
    newest: open pages of the console ask for the same."""

    def __init__(self) -> None:
        self._state: tuple[object, ...] = ()
        self._kept: dict[object, Response] = {}

    def find(self, asked: object, *state: object) -> Response | None:
        """Returns the answer to a request, made from this state."""
        return self._kept.get(asked) if self._is(state) else None

    def keep(self, answer: Response, asked: object, *state: object) -> None:
        """Keeps an answer that is not large."""
        if not self._is(state):
            self._state, self._kept = state, {}
        if len(answer.body) <= _KEPT_SIZE_MAX and len(self._kept) < _KEPT_MAX:
            self._kept[asked] = answer

    def _is(self, state: tuple[object, ...]) -> bool:
        return len(state) == len(self._state) and all(map(operator.is_, state, self._state))


def _whole(place: Place, form: str | None, value: Any, total: int | None) -> bytes:
    match form:
        case "json":
            return _forms.to_json(value)
        case "xml":
            return _forms.to_xml(f"/quire/{place.path}".rstrip("/"), value)
        case "csv":
            if not place.is_collection:
                raise bad_value("only a collection and a leaf have the form CSV", "ask for .json")
            assert place.node is not None
            return _forms.to_csv(value, _forms.head_of(place.node))
        case _:
            return _forms.to_html(place, value, total)


def _degraded(tree: Tree) -> list[str]:
    """Problems, in words. They do not change the status."""
    found = []
    for name, link in tree.get("instance/replication/destinations", {}).items():
        if not link.get("connected"):
            found.append(f"destination {name} is not connected")
        elif (link.get("seconds_behind") or 0) > 10:
            found.append(f"destination {name} is {link['seconds_behind']:.0f} s behind")
    slow = [
        client for client in tree.get("instance/clients", {}).values() if not client.get("writable", True)
    ]
    if slow:
        found.append(f"{len(slow)} clients do not read")
    return found


async def members_of(request: Request, known: Sequence[str]) -> dict[str, Any]:
    """Returns the object in the body of a request. An empty body is an empty object.

    Raises `HTTPError`, also for a member that is not `known`: a filter whose name is misspelled would
    change all messages.
    """
    try:
        body = json.loads(await request.body() or b"{}")
    except (ValueError, RecursionError):
        raise bad_value("the body is not JSON") from None
    if not isinstance(body, dict):
        raise bad_value("the body is not an object")
    if unknown := sorted(body.keys() - set(known)):
        hint = f"the request takes {', '.join(known) or 'no members'}"
        raise bad_value(f"the body has an unknown member {unknown[0]!r}", hint)
    return body


def text_of(values: Mapping[str, Any], name: str) -> str:
    """Returns a text that a request must have. Raises `HTTPError` without it."""
    value = values.get(name)
    if not isinstance(value, str) or not value:
        raise bad_value(f"{name}: it is required, and is a text")
    return value


async def _answer_error(request: Request, error: HTTPError) -> Response:
    return error.response()


async def _answer_bug(request: Request, error: Exception) -> Response:
    return bug().response()
