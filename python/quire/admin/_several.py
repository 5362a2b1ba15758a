"""Several answers of the tree in one: a page of the console shows a dozen nodes."""

from __future__ import annotations

import asyncio
import json
import operator
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from quire.admin._app import AdminApp, Answers
from quire.admin._errors import HTTPError, bad_value
from quire.admin._metrics import DETAILS

#: Nodes in one request.
_NODES_MAX: Final = 100


class Several:
    """Answers requests for several nodes. Tabs that are open at the same time get one answer, which is
    made from figures that are at most a second old."""

    def __init__(self, app: AdminApp) -> None:
        self._app = app
        self._answers = Answers()

    async def answer(self, request: Request) -> Response:
        """Answers each path that a parameter `get` names, with the rights of the user.

        The answer is a list with one object for each path: `status`, `body`, and for a collection
        `total`, the number of its objects.
        """
        user = self._app.identity(request)
        asked = request.scope["query_string"], user.user, user.groups
        figures, *others = self._app.state
        if figures is not None and (kept := self._answers.find(asked, figures, *others)) is not None:
            return kept
        addresses = request.query_params.getlist("get")
        if not 0 < len(addresses) <= _NODES_MAX:
            raise bad_value(f"get: expected 1 to {_NODES_MAX} paths, got {len(addresses)}")
        answers = []
        for address in addresses:
            answers.append(await _answer(self._app, request, address))
            # Between two answers, other threads can run.
            await asyncio.sleep(0)
        answer = Response(b"[" + b",".join(answers) + b"]", media_type="application/json")
        newest, *others_now = self._app.state
        # Without new figures, the first of the answers has asked for some.
        is_of_one_state = (figures is None or figures is newest) and all(
            map(operator.is_, others, others_now)
        )
        if newest is not None and is_of_one_state and not _has_details(addresses):
            self._answers.keep(answer, asked, newest, *others)
        return answer


def _has_details(addresses: list[str]) -> bool:
    """Whether one is for the details of a queue. They are always new."""
    return any(address.partition("?")[0].endswith(f"/{DETAILS.name}.json") for address in addresses)


async def _answer(app: AdminApp, request: Request, address: str) -> bytes:
    try:
        answer = await _look(app, request, address)
    except HTTPError as error:
        answer = error.response()
    about = {"status": answer.status_code}
    if (total := answer.headers.get("X-Total-Count")) is not None:
        about["total"] = int(total)
    return json.dumps(about).encode()[:-1] + b', "body": ' + bytes(answer.body) + b"}"


async def _look(app: AdminApp, request: Request, address: str) -> Response:
    path, _, query = address.partition("?")
    raw_path = path.encode()
    scope = {**request.scope, "path": path, "raw_path": raw_path, "query_string": query.encode()}
    if path == "/readyz":
        return await app.ready(Request(scope))
    if path.startswith("/quire/") and path.endswith(".json"):
        return await app.tree(Request(scope))
    raise bad_value(f"get: expected /readyz or /quire/….json, got {address[:100]!r}")
