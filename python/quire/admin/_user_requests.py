"""Administrative requests about messages. A client with the rights of the user carries them out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from quire._errors import QuireError
from quire.admin._app import AdminApp, members_of
from quire.admin._clients import Clients, address_of, refusal
from quire.admin._errors import bad_value
from quire.client._redrive import purge, redrive

#: Purges and redrives that run at the same time. Others wait.
_THREADS: Final = 2


#: The members of the bodies of the requests.
_PURGE: Final = ("confirm", "filter")
_REDRIVE: Final = ("to", "filter")
_DELETE: Final = ("filter",)

#: The paths of the requests below `/quire/administrator`, the members of their bodies, and their
#: rights.
LISTED: Final = (
    (("queues", None, "purge"), _PURGE, "admin on the queue"),
    (("queues", None, "redrive"), _REDRIVE, "admin on the queue"),
    (("last_values", None, "delete"), _DELETE, "admin on the topic"),
)


class UserRequests:
    """The requests about the messages of queues and last-value topics."""

    def __init__(self, app: AdminApp, clients: Clients) -> None:
        self._app = app
        self._clients = clients
        # A redrive may take long. The threads of the loop have other work.
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="quire-admin-queues")

    def add(self) -> None:
        """Adds the paths. They are more exact than the paths of the tree."""
        for path, act in (
            ("queues/{name:path}/purge", self._purge),
            ("queues/{name:path}/redrive", self._redrive),
            ("last_values/{name:path}/delete", self._delete),
        ):
            self._app.add_route(f"/quire/administrator/{path}", act, methods=["POST"], is_first=True)

    async def _purge(self, request: Request) -> Response:
        name = request.path_params["name"]
        self._app.require(request, "admin", name)
        body = await members_of(request, _PURGE)
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
        body = await members_of(request, _REDRIVE)
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

    async def _delete(self, request: Request) -> Response:
        name = request.path_params["name"]
        self._app.require(request, "admin", name)
        filter = (await members_of(request, _DELETE)).get("filter")
        if not isinstance(filter, str) or not filter:
            raise bad_value("filter: it is required, and is a text", "1 = 1 matches every record")
        try:
            async with self._clients.request(self._app.identity(request), address_of(request)) as client:
                count = await client.sow_delete(name, filter=filter)
        except (QuireError, TimeoutError) as error:
            raise refusal(error) from None
        return JSONResponse({"deleted": count})

    async def _done(self, work: Callable[[], dict[str, Any]]) -> Response:
        try:
            return JSONResponse(await asyncio.get_running_loop().run_in_executor(self._threads, work))
        except (QuireError, TimeoutError) as error:
            raise refusal(error) from None
