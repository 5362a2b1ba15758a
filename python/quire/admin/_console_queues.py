"""The purge and redrive of queues for the console, with the rights of the user."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from quire._errors import QuireError
from quire.admin._app import AdminApp
from quire.admin._clients import Clients, address_of, refusal
from quire.admin._errors import bad_value
from quire.client._redrive import purge, redrive

#: Purges and redrives that run at the same time. Others wait.
_THREADS: Final = 2


class QueueRoutes:
    """The paths of queues."""

    def __init__(self, app: AdminApp, clients: Clients) -> None:
        self._app = app
        self._clients = clients
        # A redrive may take long. The threads of the loop have other work.
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="quire-admin-queues")

    def add(self) -> None:
        """Adds the paths. They are more exact than the paths of the tree."""
        place = "/quire/administrator/queues/{name:path}"
        self._app.add_route(f"{place}/purge", self._purge, methods=["POST"], is_first=True)
        self._app.add_route(f"{place}/redrive", self._redrive, methods=["POST"], is_first=True)

    async def _purge(self, request: Request) -> Response:
        name = request.path_params["name"]
        self._app.require(request, "admin", name)
        body = await _body(request)
        if body.get("confirm") != name:
            raise bad_value("confirm: it must be the name of the queue", f'send {{"confirm": "{name}"}}')
        filter = body.get("filter") or None
        if filter is not None and not isinstance(filter, str):
            raise bad_value("filter: it is a text")
        identity, address = self._app.identity(request), address_of(request)

        def work() -> dict[str, Any]:
            with self._clients.blocking(identity, address) as client:
                return {"purged": purge(client, name, filter, f"purged by {identity.user}")}

        return await self._done(work)

    async def _redrive(self, request: Request) -> Response:
        name = request.path_params["name"]
        self._app.require(request, "admin", name)
        body = await _body(request)
        to, filter = body.get("to"), body.get("filter") or None
        if not all(each is None or isinstance(each, str) for each in (to, filter)):
            raise bad_value("to, filter: they are texts")
        identity, address = self._app.identity(request), address_of(request)

        def work() -> dict[str, Any]:
            notes: list[str] = []
            done = redrive(
                lambda client: self._clients.blocking(identity, address, client),
                name,
                to=to,
                filter=filter,
                note=notes.append,
            )
            return {"redriven": done.done, "left": done.left + done.refused, "notes": notes[:10]}

        return await self._done(work)

    async def _done(self, work: Callable[[], dict[str, Any]]) -> Response:
        try:
            return JSONResponse(await asyncio.get_running_loop().run_in_executor(self._threads, work))
        except (QuireError, TimeoutError) as error:
            raise refusal(error) from None


async def _body(request: Request) -> dict[str, Any]:
    try:
        body = json.loads(await request.body() or b"{}")
    except ValueError:
        raise bad_value("the body is no JSON") from None
    if not isinstance(body, dict):
        raise bad_value("the body must be a JSON object")
    return body
