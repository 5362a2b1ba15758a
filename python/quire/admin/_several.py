"""Several answers of the tree in one: a page of the console shows a dozen nodes."""

from __future__ import annotations

import asyncio
import json
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from quire.admin._app import AdminApp
from quire.admin._errors import HTTPError, bad_value

#: Nodes in one request.
_NODES_MAX: Final = 100


async def several(app: AdminApp, request: Request) -> Response:
    """Answers each path that a parameter `get` names, with the rights of the user.

    The answer is a list with one object for each path: `status`, `body`, and for a collection
    `total`, the number of its objects.
    """
    addresses = request.query_params.getlist("get")
    if not 0 < len(addresses) <= _NODES_MAX:
        raise bad_value(f"get: expected 1 to {_NODES_MAX} paths, got {len(addresses)}")
    answers = []
    for address in addresses:
        answers.append(await _answer(app, request, address))
        # Between two answers, other threads can run.
        await asyncio.sleep(0)
    return Response(b"[" + b",".join(answers) + b"]", media_type="application/json")


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
